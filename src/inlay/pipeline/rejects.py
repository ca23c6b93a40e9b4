"""Rows that did not fit: kept with their line, the first bad cell, the reason and the text as it came."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from inlay.storage import Location

__all__ = ["MAX_SHOWN", "REJECT_SCHEMA", "BadCell", "Reject", "read_rejects", "reject_tables", "scan_rejects"]

MAX_SHOWN = 100  # bad cells that an error names
_LONGEST_VALUE = 1_000
_ROWS_AT_ONCE = 1_000
_LONGEST_RAW = 100_000
REJECT_SCHEMA = pa.schema(
    [
        pa.field("line", pa.int64(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("value", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("raw", pa.string()),
    ]
)


class BadCell(NamedTuple):
    """A cell that does not fit; without `column` the row as such does not."""

    line: int
    column: str | None
    value: str | None
    reason: str

    @classmethod
    def of(cls, line: int, column: str | None, value: str | None, reason: str) -> BadCell:
        shown = None if value is None else value.encode("utf-8", "backslashreplace").decode()
        return cls(int(line), column, _shortened(shown, _LONGEST_VALUE), reason)


class Reject(NamedTuple):
    """A row that was not loaded: its bad cells, its text, and its number among the rows of its split."""

    cells: list[BadCell]
    raw: str
    row: int


def reject_tables(rejects: Iterable[Reject]) -> Iterator[pa.Table]:
    """One row for each rejected one, by its first bad cell; in pieces."""
    remaining = iter(rejects)
    while some := list(itertools.islice(remaining, _ROWS_AT_ONCE)):
        yield _reject_table(some)


def _reject_table(rejects: Sequence[Reject]) -> pa.Table:
    rows = [(*reject.cells[0][:3], _reason(reject.cells), _shortened(reject.raw, _LONGEST_RAW)) for reject in rejects]
    columns = list(zip(*rows, strict=True)) or [()] * len(REJECT_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, REJECT_SCHEMA, strict=True)], schema=REJECT_SCHEMA)


def read_rejects(location: Location, files: Sequence[str], offset: int = 0, limit: int = 100) -> list[dict[str, Any]]:
    """A page of rejects, in the order of the source; row groups before it are not read."""
    rows: list[dict[str, Any]] = []
    for table in _groups(location, files, offset, limit):
        rows += table.to_pylist()
    return rows


def scan_rejects(location: Location, files: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
    """All of them, in pieces; memory holds a row group at a time."""
    for table in _groups(location, files, 0, sys.maxsize):
        for batch in table.to_batches(max_chunksize=_ROWS_AT_ONCE):
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
    return cells[0].reason + (f"; also bad: {others}{more}" if others else "")


def _shortened(text: str | None, longest: int) -> str | None:
    return text if text is None or len(text) <= longest else text[:longest] + "..."
