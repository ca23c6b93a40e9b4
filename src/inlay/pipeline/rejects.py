"""Rejects of a conversion: Parquet files with one row per rejected row of the upload."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from inlay.storage import Location
from inlay.text.reader import BadCell, Reject, shorten

__all__ = ["REJECT_SCHEMA", "read_rejects", "reject_tables", "scan_rejects"]

_MAX_RAW = 100_000
_BATCH_ROWS = 1_000
REJECT_SCHEMA = pa.schema(
    [
        pa.field("line", pa.int64(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("value", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("raw", pa.string()),
    ]
)


def reject_tables(rejects: Iterable[Reject]) -> Iterator[pa.Table]:
    """Yield tables with one row per reject, described by its first invalid cell."""
    remaining = iter(rejects)
    while batch := list(itertools.islice(remaining, _BATCH_ROWS)):
        yield _reject_table(batch)


def _reject_table(rejects: Sequence[Reject]) -> pa.Table:
    rows = [(*reject.cells[0][:3], _reason(reject.cells), shorten(reject.raw, _MAX_RAW)) for reject in rejects]
    columns = list(zip(*rows, strict=True)) or [()] * len(REJECT_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, REJECT_SCHEMA, strict=True)], schema=REJECT_SCHEMA)


def read_rejects(location: Location, files: Sequence[str], offset: int = 0, limit: int = 100) -> list[dict[str, Any]]:
    """Return a page of rejects in source order, without reading earlier row groups."""
    rows: list[dict[str, Any]] = []
    for table in _groups(location, files, offset, limit):
        rows += table.to_pylist()
    return rows


def scan_rejects(location: Location, files: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """Yield all rejects in batches, with one row group in memory."""
    for table in _groups(location, files, 0, sys.maxsize):
        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            yield batch.to_pylist()


def _groups(location: Location, files: Sequence[str], offset: int, limit: int) -> Iterator[pa.Table]:
    for path in files:
        with location.store.open_arrow(location.full(path)) as source, pq.ParquetFile(source) as file:
            for number in range(file.num_row_groups):
                rows = file.metadata.row_group(number).num_rows
                if limit > 0 and offset < rows:
                    table = file.read_row_group(number).slice(offset, limit)
                    limit -= table.num_rows
                    yield table
                offset = max(0, offset - rows)


def _reason(cells: Sequence[BadCell]) -> str:
    others = ", ".join(str(cell.column) for cell in cells[1:5])
    more = ", ..." if len(cells) > 5 else ""
    return cells[0].reason + (f"; also invalid: {others}{more}" if others else "")
