"""The result of a query, and its conversion to JSON, CSV, Arrow and Parquet.

A result is complete when `QueryEngine.run` returns it, so that errors are known before the first byte of a response,
and a slow reader does not block a worker. Conversions yield chunks: memory does not grow with the result.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from inlay.errors import QueryError
from inlay.type_grammar import type_name

__all__ = [
    "Answer",
    "QueryResult",
    "arrow_file",
    "columns_of",
    "csv_file",
    "csv_header",
    "csv_rows",
    "dumps",
    "json_document",
    "json_rows",
    "json_values",
    "parquet_file",
    "text_values",
]

_is: Any = pa.types
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SPECIAL = re.compile(r'[,"\r\n]').search
_ROWS_AT_ONCE = 8192
_ROW_GROUP_ROWS = 100_000
_ROW_GROUP_BYTES = 32 << 20
_CHUNK_BYTES = 1 << 18
_ANSWER_BYTES, _COLUMN_BYTES = 2000, 400  # of the fields of an answer

dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_values(array: pa.Array) -> list[Any]:
    """Convert a column to values that `json.dumps` accepts."""
    convert = next((convert for matches, convert in _CONVERSIONS if matches(array.type)), None)
    return list(array.to_pylist()) if convert is None else convert(array)


def text_values(array: pa.Array) -> list[str | None]:
    """Convert a column to the text of CSV cells. NULL stays None."""
    if _is.is_integer(array.type):
        return _as_text(array)
    return [value if value is None or isinstance(value, str) else dumps(value) for value in json_values(array)]


def _each(convert: Callable[[Any], Any]) -> Callable[[pa.Array], list[Any]]:
    return lambda array: [None if value is None else convert(value) for value in array.to_pylist()]


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _timestamps(array: pa.Array) -> list[Any]:
    if array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    return [None if text is None else text.replace(" ", "T", 1) for text in array.cast(pa.string()).to_pylist()]


def _as_text(array: pa.Array) -> list[Any]:
    return list(array.cast(pa.string()).to_pylist())


def _seconds(count: int, per_second: int) -> str:
    whole, rest = divmod(abs(count), per_second)
    digits = len(str(per_second)) - 1
    fraction = f".{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else ""
    return f"{'-' if count < 0 else ''}{whole}{fraction}S"


def _durations(array: pa.Array) -> list[Any]:
    per_second = _PER_SECOND[array.type.unit]
    counts = array.cast(pa.int64()).to_pylist()
    return [None if count is None else f"PT{_seconds(count, per_second)}" for count in counts]


def _interval(value: Any) -> str:
    parts = f"{value.months}M" * bool(value.months) + f"{value.days}D" * bool(value.days)
    return f"P{parts}T{_seconds(value.nanoseconds, 10**9)}"


def _lists(array: pa.Array) -> list[Any]:
    items = iter(json_values(array.flatten()))  # without the items of NULL lists
    lengths = array.value_lengths().to_pylist()
    return [None if length is None else [next(items) for _ in range(length)] for length in lengths]


def _fixed_lists(array: pa.Array) -> list[Any]:
    return _lists(array.cast(pa.list_(array.type.value_field)))


def _maps(array: pa.Array) -> list[Any]:
    entries = pa.struct([array.type.key_field, array.type.item_field])
    pairs = _lists(array.cast(pa.list_(pa.field("entries", entries, nullable=False))))
    return [None if row is None else [list(entry.values()) for entry in row] for row in pairs]


def _structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [json_values(column) for column in array.flatten()]
    rows = zip(*columns, strict=True) if columns else ([] for _ in range(len(array)))
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_valid else None for is_valid, row in zip(valid, rows, strict=True)]


def _decoded(array: pa.Array) -> list[Any]:
    return json_values(array.dictionary_decode())


def _stored(array: pa.Array) -> list[Any]:
    return json_values(array.storage)


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (lambda t: isinstance(t, pa.BaseExtensionType), _stored),
    (_is.is_dictionary, _decoded),
    (_is.is_floating, _each(_float)),
    (_is.is_decimal, _each(lambda value: format(value, "f"))),
    (_is.is_timestamp, _timestamps),
    (_is.is_date64, lambda array: _as_text(array.cast(pa.date32()))),
    (lambda t: _is.is_date32(t) or _is.is_time(t), _as_text),
    (_is.is_duration, _durations),
    (_is.is_interval, _each(_interval)),
    (lambda t: _is.is_binary(t) or _is.is_large_binary(t) or _is.is_fixed_size_binary(t), _each(_base64)),
    (_is.is_map, _maps),
    (_is.is_fixed_size_list, _fixed_lists),
    (lambda t: _is.is_list(t) or _is.is_large_list(t), _lists),
    (_is.is_struct, _structs),
)


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


def csv_header(schema: pa.Schema) -> bytes:
    return (",".join(_cell(field.name) for field in schema) + "\r\n").encode()


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Return the lines of the rows."""
    rows = zip(*map(text_values, batch.columns), strict=True)
    return "".join(",".join(map(_cell, row)) + "\r\n" for row in rows).encode()


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

    def complete(self, form: str) -> bytes:
        """Return the whole response of an answer without a file."""
        return b"".join(json_document(self.summary(), [self.body])) if form == "json" else self.body

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
