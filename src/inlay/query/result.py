"""What a query answered: an Arrow stream in a file that nobody else sees, and its forms for the outside.

A result is complete when it is handed out, so a failure is known before the first byte of an answer, and a slow
reader holds up nobody. Every form is written in chunks; memory does not grow with the result.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from inlay.errors import QueryError
from inlay.query.cells import dumps, json_values, text_values
from inlay.type_grammar import type_name

__all__ = ["QueryResult"]

_CHUNK = 1 << 18
_SPECIAL = re.compile(r'[,"\r\n]').search
_ROWS_AT_ONCE = 8192
_ROW_GROUP_ROWS = 100_000
_ROW_GROUP_BYTES = 32 << 20


@dataclass
class QueryResult:
    """Use it as a context manager, or close it: its file is gone then. One form at a time."""

    file: BinaryIO
    row_count: int
    truncated: bool
    execution_ms: float

    def __post_init__(self) -> None:
        self.size_bytes = os.fstat(self.file.fileno()).st_size
        self.schema = self._reader().schema

    def __enter__(self) -> QueryResult:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._reader()

    def read_all(self) -> pa.Table:
        return self._reader().read_all()

    def columns(self) -> list[dict[str, str]]:
        return [{"name": field.name, "type": type_name(field.type)} for field in self.schema]

    def summary(self) -> dict[str, Any]:
        return {
            "columns": self.columns(),
            "row_count": self.row_count,
            "truncated": self.truncated,
            "execution_time_ms": round(self.execution_ms, 3),
        }

    def to_arrow(self) -> Iterator[bytes]:
        """An Arrow IPC stream."""
        self.file.seek(0)
        while chunk := self.file.read(_CHUNK):
            yield chunk

    def to_json(self) -> Iterator[bytes]:
        """One object: the summary, and `rows` as arrays of values."""
        yield dumps(self.summary())[:-1].encode() + b',"rows":['
        separator = ""
        for batch in self._pieces():
            rows = list(zip(*map(json_values, batch.columns), strict=True))
            yield (separator + dumps(rows)[1:-1]).encode()
            separator = ","
        yield b"]}"

    def to_csv(self) -> Iterator[bytes]:
        """RFC 4180 with a header; NULL is an empty cell, the empty text a quoted one."""
        yield _line([field.name for field in self.schema]).encode()
        for batch in self._pieces():
            rows = zip(*map(text_values, batch.columns), strict=True)
            yield "".join(map(_line, rows)).encode()

    def to_parquet(self) -> Iterator[bytes]:
        """A Parquet file; columns of one name are told apart as `name`, `name_2`."""
        import pyarrow.parquet as pq

        sink = _Sink()
        schema = pa.schema([f.with_name(n) for f, n in zip(self.schema, _unique(self.schema.names), strict=True)])
        try:
            with pq.ParquetWriter(sink, schema, compression="zstd", write_statistics=False) as writer:
                for group in self._groups(schema):
                    writer.write_table(group, row_group_size=max(1, group.num_rows))
                    yield sink.take()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise QueryError(
                f"Parquet cannot hold this result: {error}", hint="Cast the column to text, or ask for another format."
            ) from error
        yield sink.take()

    def _reader(self) -> Any:
        self.file.seek(0)
        return pa.ipc.open_stream(pa.PythonFile(self.file, mode="r"))

    def _pieces(self) -> Iterator[pa.RecordBatch]:
        for batch in self.batches():
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                yield batch.slice(start, _ROWS_AT_ONCE)

    def _groups(self, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows in portions that make good row groups."""
        pending: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self.batches():
            pending.append(batch.rename_columns(schema.names))
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
                yield pa.Table.from_batches(pending, schema)
                pending, rows, size = [], 0, 0
        if pending:
            yield pa.Table.from_batches(pending, schema)


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
