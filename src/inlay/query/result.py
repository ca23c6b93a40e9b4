"""What a query answered: an Arrow stream in a file that nobody else sees, and its forms for the outside.

A result is complete when it is handed out, so a failure is known before the first byte of an answer, and a slow
reader holds up nobody. Every form is written in chunks; memory does not grow with the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from inlay.query.cells import dumps, json_values
from inlay.query.forms import csv_file, in_pieces, parquet_file
from inlay.type_grammar import type_name

__all__ = ["QueryResult"]

_CHUNK = 1 << 18


@dataclass
class QueryResult:
    """Use it as a context manager, or close it: its file is gone then. One form at a time."""

    file: pa.NativeFile
    row_count: int
    truncated: bool
    execution_ms: float

    def __post_init__(self) -> None:
        self.size_bytes = self.file.size()
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
        for batch in in_pieces(self.batches()):
            rows = list(zip(*map(json_values, batch.columns), strict=True))
            yield (separator + dumps(rows)[1:-1]).encode()
            separator = ","
        yield b"]}"

    def to_csv(self) -> Iterator[bytes]:
        return csv_file(self.schema, self.batches())

    def to_parquet(self) -> Iterator[bytes]:
        """Columns of one name are told apart as `name`, `name_2`."""
        return parquet_file(self.schema, self.batches())

    def _reader(self) -> Any:
        self.file.seek(0)
        return pa.ipc.open_stream(self.file)
