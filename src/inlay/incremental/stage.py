"""Staged files: their paths, writer settings and the check before the commit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.commit.transaction import StagedFile, Transaction
from inlay.engines.base import Append, RowNumbers, StageResult
from inlay.engines.open_file import file_settings
from inlay.errors import DatasetMergeError
from inlay.incremental.target import Partitions, TargetState
from inlay.parquet.writer import DEFAULT_ROW_GROUP_SIZE, WriterSettings
from inlay.storage import Location

__all__ = ["new_file_settings", "partition_chunks", "plan_appends", "verify_staged"]

_VERIFIED_AT_ONCE = 8


def partition_chunks(rows: RowNumbers, partitions: Partitions, max_rows: int) -> list[tuple[int, RowNumbers]]:
    """Split rows by partition, then into files of at most `max_rows`, in source order."""
    if len(partitions.values) == 1:
        return [(0, rows[start : start + max_rows]) for start in range(0, len(rows), max_rows)]
    chunks = []
    numbers = partitions.rows[rows]
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    for number, start, end in zip(found, starts, [*starts[1:], len(rows)], strict=False):
        members = rows[order[start:end]]
        chunks += [(int(number), members[at : at + max_rows]) for at in range(0, len(members), max_rows)]
    return chunks


def plan_appends(
    rows: RowNumbers,
    partitions: Partitions,
    schema: pa.Schema,
    settings: WriterSettings,
    max_rows_per_file: int,
    files: Transaction,
    extension: str,
    *,
    empty: bool = False,
) -> list[tuple[StagedFile, Append]]:
    """Assign source rows to new files. If `empty` is True and there are no rows, plan one empty file."""
    chunks = partition_chunks(rows, partitions, max_rows_per_file)
    if empty and not chunks and not partitions.columns:
        chunks = [(0, rows)]
    slots = [files.stage_new_file(partitions.directory(number), extension) for number, _ in chunks]
    return [(slot, Append(slot.stage, part, schema, settings)) for slot, (_, part) in zip(slots, chunks, strict=True)]


def new_file_settings(
    location: Location, target: TargetState, compression: str | None, row_group_size: int | None
) -> WriterSettings:
    """Return the caller's writer settings, or those of the dataset's files, or the defaults."""
    settings = WriterSettings()
    if target.footers:
        sample = int(target.footers.groups.argmax())  # the file with the largest number of row groups
        own, groups = file_settings(location, target.footers.files[sample].path)
        # A single row group may be smaller than the size that its writer was set to.
        settings = own if groups > 1 else replace(own, row_group_size=DEFAULT_ROW_GROUP_SIZE)
    return settings.override(compression, row_group_size)


def verify_staged(location: Location, written: Sequence[StageResult]) -> None:
    """Read the footer of each staged file, and check its row count."""
    staged = [outcome for outcome in written if outcome.stage is not None]
    if len(staged) < _VERIFIED_AT_ONCE:
        for outcome in staged:
            _verify(location, outcome)
        return
    with ThreadPoolExecutor(_VERIFIED_AT_ONCE, "inlay-verify") as pool:
        list(pool.map(lambda outcome: _verify(location, outcome), staged))


def _verify(location: Location, outcome: StageResult) -> None:
    try:
        with location.store.open_arrow(outcome.stage or "", outcome.size) as file:
            rows = pq.read_metadata(file).num_rows
    except (pa.ArrowException, OSError) as error:
        raise DatasetMergeError(
            f"The staged file {outcome.stage!r} cannot be read: {error}. Nothing changed.",
            operation="verify",
            hint="Check the disk, then run the operation again.",
        ) from error
    if rows != outcome.rows:
        raise DatasetMergeError(
            f"The staged file {outcome.stage!r} has {rows:,} rows instead of {outcome.rows:,}. Nothing changed.",
            operation="verify",
            hint="Check the disk, then run the operation again.",
        )
