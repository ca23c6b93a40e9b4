"""New files on their way: where they will lie, how they are written, and a look at each before it becomes true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.engines.base import Append, Written
from inlay.engines.kernels import file_settings
from inlay.errors import DatasetMergeError
from inlay.incremental.commit import IncrementalFileManager
from inlay.incremental.target import Partitions, TargetState
from inlay.parquet.writer import DEFAULT_ROW_GROUP_SIZE, WriterSettings
from inlay.storage import Location

__all__ = ["new_file_settings", "partition_chunks", "plan_appends", "verify_staged"]


def partition_chunks(rows: np.ndarray, partitions: Partitions, most: int) -> list[tuple[int, np.ndarray]]:
    """Rows by partition, cut into files, each in source order."""
    if len(partitions.values) == 1:
        return [(0, rows[start : start + most]) for start in range(0, len(rows), most)]
    chunks = []
    numbers = partitions.rows[rows]
    for number in np.unique(numbers):
        mine = rows[numbers == number]
        chunks += [(int(number), mine[start : start + most]) for start in range(0, len(mine), most)]
    return chunks


def plan_appends(
    rows: np.ndarray,
    partitions: Partitions,
    schema: pa.Schema,
    settings: WriterSettings,
    max_rows_per_file: int,
    files: IncrementalFileManager,
    *,
    empty: bool = False,
) -> list[tuple[str, Append]]:
    """The new files for source rows; with `empty` one file without rows where there are none."""
    chunks = partition_chunks(rows, partitions, max_rows_per_file)
    if empty and not chunks and not partitions.columns:
        chunks = [(0, rows)]
    appends = []
    for at, (number, mine) in enumerate(chunks):
        directory = partitions.directory(number)
        name = f"part-{files.id[:12]}-{at:05d}.parquet"
        appends.append(
            (f"{directory}/{name}" if directory else name, Append(files.stage_path(), mine, schema, settings))
        )
    return appends


def new_file_settings(
    location: Location, target: TargetState, compression: str | None, row_group_size: int | None
) -> WriterSettings:
    """As the caller chose, else as the dataset's files are, else the documented defaults."""
    settings = WriterSettings()
    if target.footers:
        own, groups = file_settings(location, target.footers[0].file.path)
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
