"""The result of a query, and its conversion to JSON, CSV, Arrow and Parquet.

A result is complete when `QueryEngine.run` returns it, so that errors are known before the first byte of a response,
and a slow reader does not block a worker. Conversions yield chunks: memory does not grow with the result.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from inlay.errors import QueryError
from inlay.query.csv_lines import csv_header, csv_rows
from inlay.query.values import json_values
from inlay.type_grammar import type_name

__all__ = [
    "Answer",
    "QueryResult",
    "arrow_file",
    "columns_of",
    "csv_file",
    "json_document",
    "json_rows",
    "parquet_file",
]

_ROWS_AT_ONCE = 8192
_ROW_GROUP_ROWS = 100_000
_ROW_GROUP_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 18
_ANSWER_BYTES, _COLUMN_BYTES = 2000, 400  # of the fields of an answer


def _small_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Split batches so that each can be converted to Python values in little memory."""
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(start, _ROWS_AT_ONCE)


def csv_file(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield an RFC 4180 file with a header. NULL is an empty cell, empty text a quoted one."""
    yield csv_header(schema)
    for batch in _small_batches(batches):
        yield csv_rows(batch)


def arrow_file(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield an Arrow IPC stream."""
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
            yield sink.take()
    yield sink.take()


def parquet_file(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Yield a Parquet file. Repeated column names get a suffix: `name`, `name_2`."""
    import pyarrow.parquet as pq

    from inlay.parquet.writer import combine_tables

    sink = _Sink()
    fields = [field.with_name(name) for field, name in zip(schema, _unique(schema.names), strict=True)]
    schema = pa.schema(fields, schema.metadata)
    try:
        with pq.ParquetWriter(sink, schema, compression="zstd", write_statistics=False) as writer:
            tables = (pa.Table.from_batches([batch.rename_columns(schema.names)], schema) for batch in batches)
            for group in combine_tables(tables, _ROW_GROUP_ROWS, _ROW_GROUP_BYTES):
                writer.write_table(group, row_group_size=group.num_rows)
                yield sink.take()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise QueryError(
            f"Parquet cannot store this result: {error}", hint="Cast the column to text, or choose another format."
        ) from error
    yield sink.take()


class _Sink:
    """A writable file. `take` returns the bytes written since the last call."""

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


def _unique(names: list[str]) -> list[str]:
    unique: dict[str, None] = {}
    for name in names:
        candidates = (f"{name}_{number}" for number in itertools.count(2))
        free = name if name not in unique else next(c for c in candidates if c not in unique and c not in names)
        unique[free] = None
    return list(unique)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a worker: encoded rows, or the path of a file with many rows in Arrow's stream format."""

    fields: Mapping[str, Any]
    body: bytes
    path: str | None

    def summary(self) -> dict[str, Any]:
        names = ("columns", "row_count", "truncated", "execution_time_ms")
        return {name: self.fields[name] for name in names}

    @property
    def row_count(self) -> int:
        return int(self.fields["row_count"])

    @property
    def truncated(self) -> bool:
        return bool(self.fields["truncated"])

    @property
    def size(self) -> int:
        """The approximate memory of the answer in bytes."""
        return len(self.body) + _ANSWER_BYTES + _COLUMN_BYTES * len(self.fields["columns"])

    def complete(self, form: str, summary: Mapping[str, Any] | None = None) -> bytes:
        """Return the whole response of an answer without a file. In JSON, a summary comes before the rows."""
        return b"".join(json_document(summary or self.summary(), [self.body])) if form == "json" else self.body

    def close(self) -> None:
        """Delete the file."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)


class QueryResult:
    """The rows of a query. Close it, or use it as a context manager, to free its disk space.

    Only one conversion can be read at a time.
    """

    def __init__(self, answer: Answer) -> None:
        self.file = pa.BufferReader(answer.body) if answer.path is None else pa.OSFile(answer.path)
        answer.close()  # the open file remains readable
        self.size_bytes: int = self.file.size()
        self.schema = self._reader().schema
        self._summary = answer.summary()
        self.row_count: int = self._summary["row_count"]
        self.truncated: bool = self._summary["truncated"]
        self.execution_ms: float = self._summary["execution_time_ms"]

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
        return columns_of(self.schema)

    def summary(self) -> dict[str, Any]:
        return dict(self._summary)

    def to_arrow(self) -> Iterator[bytes]:
        """Yield an Arrow IPC stream."""
        self.file.seek(0)
        while chunk := self.file.read(_CHUNK_BYTES):
            yield chunk

    def to_json(self) -> Iterator[bytes]:
        """Yield one JSON object: the summary, and `rows` as arrays of values."""
        return json_document(self.summary(), map(json_rows, _small_batches(self.batches())))

    def to_csv(self) -> Iterator[bytes]:
        return csv_file(self.schema, self.batches())

    def to_parquet(self) -> Iterator[bytes]:
        return parquet_file(self.schema, self.batches())

    def _reader(self) -> Any:
        self.file.seek(0)
        return pa.ipc.open_stream(self.file)


def columns_of(schema: pa.Schema) -> list[dict[str, str]]:
    return [{"name": field.name, "type": type_name(field.type)} for field in schema]


def json_rows(batch: pa.RecordBatch) -> bytes:
    """Return the rows as arrays of values, separated by commas, without the brackets around all rows."""
    return orjson.dumps(list(zip(*map(json_values, batch.columns), strict=True)))[1:-1]


def json_document(summary: Mapping[str, Any], rows: Iterable[bytes]) -> Iterator[bytes]:
    """Yield one JSON object: the summary, and the `rows` of `json_rows`."""
    yield orjson.dumps(summary)[:-1] + b',"rows":['
    separator = b""
    for part in rows:
        if part:
            yield separator + part
            separator = b","
    yield b"]}"
