"""The work on data files apart from edits: writes new files, combines files and reads single rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import to_numpy
from inlay.engines.base import Append, Combine, Pick, StageResult, TakeRows
from inlay.engines.columns import cast_rows, take_rows, take_values
from inlay.engines.keys import contiguous, sortable_values
from inlay.engines.open_file import OpenFile, file_size
from inlay.parquet.writer import StreamingParquetWriter, rows_per_bytes
from inlay.pyarrow_features import byte_size
from inlay.storage import Location

__all__ = ["append_rows", "combine_files", "pick_rows"]

_SAMPLE_ROWS = 1000  # rows from which the size of the following rows is estimated


def append_rows(location: Location, append: Append, take: TakeRows) -> StageResult:
    """Write source rows as a new data file, one row group at a time."""
    with (
        location.store.open_write(append.stage) as out,
        StreamingParquetWriter(out, append.schema, append.settings) as writer,
    ):
        for table in _row_groups(append, take):
            writer.write_table(table)
    return StageResult(append.stage, len(append.rows), file_size(location, append.stage))


def combine_files(location: Location, combine: Combine) -> StageResult:
    """Write several data files as one with full row groups, sorted if `combine` says so."""
    with (
        location.store.open_write(combine.stage) as out,
        StreamingParquetWriter(out, combine.schema, combine.settings) as writer,
    ):
        for table in _regroup(_read_tables(location, combine), combine):
            writer.write_table(table)
    return StageResult(combine.stage, writer.rows, file_size(location, combine.stage))


def pick_rows(location: Location, picks: Sequence[Pick], schema: pa.Schema) -> list[pa.Table]:
    """Read single rows of row groups, and only the columns of `schema`."""
    found = []
    for path, of_file in itertools.groupby(picks, lambda pick: pick.path):
        file = OpenFile(location, path)
        found += [_pick_rows(file, pick, schema) for pick in of_file]
    return found


def _pick_rows(file: OpenFile, pick: Pick, schema: pa.Schema) -> pa.Table:
    names = [name for name in file.schema.names if name in schema.names] if file.has_plain_names else None
    # Without a column, a table would have no rows.
    table = cast_rows(file.read_group(pick.group, names or None), schema)
    positions = pick.positions
    if pick.others:
        positions = np.setdiff1d(np.arange(table.num_rows), positions)[: pick.others]
    columns = [take_values(contiguous(column), positions) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=schema)


def _row_groups(append: Append, take: TakeRows) -> Iterator[pa.Table]:
    """Yield row groups of the configured number of rows, or fewer if rows are large."""
    rows, limit = append.rows, append.settings.row_group_size
    while len(rows):
        count = min(limit, rows_per_bytes(append.settings.row_group_bytes, take(rows[:_SAMPLE_ROWS])))
        yield cast_rows(take(rows[:count]), append.schema)
        rows = rows[count:]


def _read_tables(location: Location, combine: Combine) -> Iterator[pa.Table]:
    for path in combine.paths:
        file = OpenFile(location, path)
        for group in range(file.metadata.num_row_groups):
            yield cast_rows(file.read_group(group), combine.schema)


def _regroup(tables: Iterator[pa.Table], combine: Combine) -> Iterator[pa.Table]:
    if combine.sort_by:
        whole = pa.concat_tables([combine.schema.empty_table(), *tables])
        by = pa.table({name: sortable_values(whole.column(name)) for name in combine.sort_by})
        order = pc.sort_indices(by, [(name, "ascending") for name in combine.sort_by])
        yield take_rows(whole, to_numpy(order).astype(np.int64))
        return
    pending: list[pa.Table] = []
    rows = size = 0
    max_bytes = combine.settings.row_group_bytes
    for table in tables:
        pending.append(table)
        rows, size = rows + table.num_rows, size + byte_size(table)
        if max_bytes is not None and size >= max_bytes and rows < combine.settings.row_group_size:
            yield pa.concat_tables(pending)
            pending, rows, size = [], 0, 0
        elif rows >= combine.settings.row_group_size:
            joined = pa.concat_tables(pending)
            full = rows - rows % combine.settings.row_group_size
            yield joined.slice(0, full)
            rest = joined.slice(full)
            pending, rows, size = [rest], rows - full, byte_size(rest)
    if rows:
        yield pa.concat_tables(pending)
