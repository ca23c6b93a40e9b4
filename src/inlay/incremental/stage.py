"""New files on their way: where they will lie, how they are written, and a look at each before it becomes true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.engines.base import Append, Written
from inlay.engines.kernels import file_settings
from inlay.errors import DatasetMergeError
from inlay.incremental.target import Partitions, TargetState
from inlay.parquet.writer import DEFAULT_ROW_GROUP_SIZE, WriterSettings
from inlay.storage import FileStat, Location

__all__ = ["Slot", "Transaction", "new_file_settings", "partition_chunks", "plan_appends", "verify_staged"]


class Slot(NamedTuple):
    """A file on its way: where it is written, and what it will be called in the dataset."""

    stage: str  # absolute in the dataset's store
    path: str


class Transaction(Protocol):
    """Whoever makes staged files true in one moment: a plain dataset's journal, or a catalog."""

    def snapshot(self) -> list[FileStat]:
        """The files as they are now; the commit refuses if that changes in between."""

    def rewriting(self, path: str) -> Slot:
        """A place for what replaces an existing file."""

    def adding(self, directory: str) -> Slot:
        """A place for a new file."""

    def commit(self, puts: Sequence[Slot], removes: Sequence[str]) -> None: ...


def partition_chunks(rows: np.ndarray, partitions: Partitions, most: int) -> list[tuple[int, np.ndarray]]:
    """Rows by partition, cut into files, each in source order."""
    if len(partitions.values) == 1:
        return [(0, rows[start : start + most]) for start in range(0, len(rows), most)]
    chunks = []
    numbers = partitions.rows[rows]
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    for number, start, end in zip(found, starts, [*starts[1:], len(rows)], strict=False):
        mine = rows[order[start:end]]
        chunks += [(int(number), mine[at : at + most]) for at in range(0, len(mine), most)]
    return chunks


def plan_appends(
    rows: np.ndarray,
    partitions: Partitions,
    schema: pa.Schema,
    settings: WriterSettings,
    max_rows_per_file: int,
    files: Transaction,
    *,
    empty: bool = False,
) -> list[tuple[Slot, Append]]:
    """The new files for source rows; with `empty` one file without rows where there are none."""
    chunks = partition_chunks(rows, partitions, max_rows_per_file)
    if empty and not chunks and not partitions.columns:
        chunks = [(0, rows)]
    slots = [files.adding(partitions.directory(number)) for number, _ in chunks]
    return [(slot, Append(slot.stage, mine, schema, settings)) for slot, (_, mine) in zip(slots, chunks, strict=True)]


def new_file_settings(
    location: Location, target: TargetState, compression: str | None, row_group_size: int | None
) -> WriterSettings:
    """As the caller chose, else as the dataset's files are, else the documented defaults."""
    settings = WriterSettings()
    if target.footers:
        telling = int(target.footers.groups.argmax())  # the file with the most row groups
        own, groups = file_settings(location, target.footers.files[telling].path)
        # one row group says nothing about how large they are meant to be
        settings = own if groups > 1 else replace(own, row_group_size=DEFAULT_ROW_GROUP_SIZE)
    return settings.with_choice(compression, row_group_size)


def verify_staged(location: Location, written: Sequence[Written]) -> None:
    """Read back every staged footer before anything becomes true."""
    for outcome in written:
        if outcome.stage is None:
            continue
        try:
            with location.store.open_arrow(outcome.stage) as file:
                rows = pq.read_metadata(file).num_rows
        except (pa.ArrowException, OSError) as error:
            raise DatasetMergeError(f"A staged file cannot be read back: {error}", operation="verify") from error
        if rows != outcome.rows:
            raise DatasetMergeError(
                f"A staged file has {rows:,} rows instead of {outcome.rows:,}; nothing changed.",
                operation="verify",
            )
