"""Batches of rows as files for the outside, written piece by piece: memory does not grow with their number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from inlay.errors import QueryError
from inlay.query.cells import text_values

__all__ = ["arrow_file", "csv_file", "in_pieces", "parquet_file"]

_SPECIAL = re.compile(r'[,"\r\n]').search
_ROWS_AT_ONCE = 8192
_ROW_GROUP_ROWS = 100_000
_ROW_GROUP_BYTES = 32 << 20


def in_pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are small enough to be turned into Python values."""
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(start, _ROWS_AT_ONCE)


def csv_file(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """RFC 4180 with a header; NULL is an empty cell, the empty text a quoted one."""
    yield _line([field.name for field in schema]).encode()
    for batch in in_pieces(batches):
        rows = zip(*map(text_values, batch.columns), strict=True)
        yield "".join(map(_line, rows)).encode()


def arrow_file(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """An Arrow IPC stream."""
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
            yield sink.take()
    yield sink.take()


def parquet_file(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """A Parquet file; columns of one name are told apart as `name`, `name_2`."""
    import pyarrow.parquet as pq

    from inlay.parquet.writer import portions

    sink = _Sink()
    fields = [field.with_name(name) for field, name in zip(schema, _unique(schema.names), strict=True)]
    schema = pa.schema(fields, schema.metadata)
    try:
        with pq.ParquetWriter(sink, schema, compression="zstd", write_statistics=False) as writer:
            tables = (pa.Table.from_batches([batch.rename_columns(schema.names)], schema) for batch in batches)
            for group in portions(tables, _ROW_GROUP_ROWS, _ROW_GROUP_BYTES):
                writer.write_table(group, row_group_size=group.num_rows)
                yield sink.take()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise QueryError(
            f"Parquet cannot hold this result: {error}", hint="Cast the column to text, or ask for another format."
        ) from error
    yield sink.take()


class _Sink:
    """A file whose bytes are taken away as they come."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._written = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._written += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._written

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def _line(cells: Any) -> str:
    return ",".join(map(_cell, cells)) + "\r\n"


def _cell(value: str | None) -> str:
    if value is None:
        return ""
    if value == "" or _SPECIAL(value):
        return '"' + value.replace('"', '""') + '"'
    return value


def _unique(names: list[str]) -> list[str]:
    unique: dict[str, None] = {}
    for name in names:
        candidates = (f"{name}_{number}" for number in itertools.count(2))
        free = name if name not in unique else next(c for c in candidates if c not in unique and c not in names)
        unique[free] = None
    return list(unique)
