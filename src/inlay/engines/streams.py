"""Open source rows of every kind, such as tables, streams, DataFrames and paths, as a table or a stream."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import pyarrow as pa

from inlay.engines.absence import absence_column
from inlay.engines.files import SCAN_OPTIONS, open_path, scan_fragments
from inlay.errors import InvalidArgumentError, SchemaMismatchError, UnreadableSourceError
from inlay.schema import Path, nested_fields

__all__ = ["PATH_TYPES", "open_rows", "open_source", "require_no_read_options"]

PATH_TYPES = (str, os.PathLike)


@contextlib.contextmanager
def open_source(
    data: Any,
    like: pa.Schema | None = None,
    storage_options: Mapping[str, Any] | None = None,
    read_options: Mapping[str, Any] | None = None,
) -> Iterator[pa.Table | pa.RecordBatchReader]:
    """Open source rows of any supported kind as a table or a stream of batches, readable inside the block.

    Text formats have no types: their columns get the types of `like`, the schema of the dataset.
    """
    if isinstance(data, PATH_TYPES):
        with open_path(os.fspath(data), like, storage_options, read_options) as opened:
            yield open_rows(opened)
        return
    require_no_read_options(data, read_options)
    yield open_rows(data)


def require_no_read_options(data: Any, read_options: Mapping[str, Any] | None) -> None:
    if read_options:
        raise InvalidArgumentError(
            f"read_options apply to paths of CSV and JSON files, not to {type(data).__name__}.",
            hint="Remove read_options, or pass the path of a file.",
        )


def open_rows(data: Any) -> pa.Table | pa.RecordBatchReader:
    """Open source rows of any kind except a path."""
    opened = _without_view_dictionaries(_open(data))
    if isinstance(opened, pa.Table) and not opened.num_columns and not opened.num_rows:
        raise UnreadableSourceError(
            "The source has no rows and no columns.", hint="Pass an empty pyarrow table.", is_empty=True
        )
    return opened


def _open(data: Any) -> pa.Table | pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return _open_once(data)
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if any(kind.__module__.startswith("pyarrow") for kind in type(data).__mro__):  # `open_dataset` returns a subclass
        return _open_dataset(data)
    return _open_foreign(data)


_OPENED: weakref.WeakSet[Any] = weakref.WeakSet()
_Stream = TypeVar("_Stream")


def _open_once(stream: _Stream) -> _Stream:
    """Reject a reader or iterator that an earlier call has read: it would continue after its first rows."""
    if stream in _OPENED:
        raise UnreadableSourceError(
            f"The source is a {type(stream).__name__} that an earlier call has already read.",
            hint="Create a new reader or generator for each call, or pass a table.",
        )
    with contextlib.suppress(TypeError):  # iterators that allow no weak references cannot be remembered
        _OPENED.add(stream)
    return stream


_WITH_ROWS: dict[int, weakref.ref[Any]] = {}  # by id, because tables of other libraries are not hashable


def _open_stream(data: Any) -> pa.Table | pa.RecordBatchReader:
    """Open an object that exports a stream. Reject an object that had rows in an earlier call and has none now.

    Such an object wraps a reader that can be read only once, and a `full_merge` of no rows would delete all rows.
    """
    try:
        reader = pa.RecordBatchReader.from_stream(data)
        first = next((batch for batch in reader if batch.num_rows), None)
    except Exception as error:
        raise UnreadableSourceError(
            f"Cannot read the source, a {type(data).__name__}: {error}", hint="Check the source, or pass a table."
        ) from error
    if first is not None:
        with contextlib.suppress(TypeError):  # objects that allow no weak references cannot be remembered
            _WITH_ROWS[id(data)] = weakref.ref(data, functools.partial(_forget, id(data)))
        return pa.RecordBatchReader.from_batches(reader.schema, itertools.chain([first], reader))
    if id(data) in _WITH_ROWS:
        raise UnreadableSourceError(
            f"The source is a {type(data).__name__} that had rows in an earlier call and has none now.",
            hint="Create a new object for each call, or pass a table.",
        )
    return reader.schema.empty_table()


def _forget(key: int, _: object) -> None:
    _WITH_ROWS.pop(key, None)


def _open_batches(batches: Iterator[Any]) -> pa.RecordBatchReader:
    """Open an iterator of record batches or tables. Its first item sets the schema."""
    first = next(batches, None)
    if first is None:
        raise UnreadableSourceError(
            "The source is an iterator without items, so its columns are unknown.",
            hint="Create a new iterator for each call: it can be read only once. Pass a table to merge no rows.",
        )
    tables = _check_items(itertools.chain([first], batches))
    schema = _as_table(first).schema
    return pa.RecordBatchReader.from_batches(schema, (batch for table in tables for batch in table.to_batches()))


def _check_items(items: Iterable[Any]) -> Iterator[pa.Table]:
    schema = None
    for number, item in enumerate(items, 1):
        table = _as_table(item)
        schema = schema or table.schema
        if not table.schema.equals(schema):
            raise SchemaMismatchError(
                f"Item {number} of the source has other columns or types than item 1:"
                f" {_first_difference(schema, table.schema)}.",
                hint="Cast all items to one schema, or pass one table.",
            )
        yield table


def _first_difference(first: pa.Schema, other: pa.Schema) -> str:
    pairs = itertools.zip_longest(first, other)
    left, right = next((a, b) for a, b in pairs if a is None or b is None or not a.equals(b))
    return f"{_field_text(right)} instead of {_field_text(left)}"


def _field_text(field: pa.Field | None) -> str:
    return "no column" if field is None else f"{field.name!r} {field.type}{'' if field.nullable else ' not null'}"


def _as_table(item: Any) -> pa.Table:
    if isinstance(item, pa.RecordBatch):
        return pa.Table.from_batches([item])
    if not isinstance(item, pa.Table):
        raise _unsupported(f"an iterator of {type(item).__name__}")
    return item


def _without_view_dictionaries(data: pa.Table | pa.RecordBatchReader) -> pa.Table | pa.RecordBatchReader:
    """Replace dictionaries of string views, which polars exports, by dictionaries of strings.

    Arrow can neither cast nor store dictionaries of views.
    """
    schema = pa.schema([field.with_type(_plain_dictionary(field.type)) for field in data.schema], data.schema.metadata)
    if schema.equals(data.schema):
        return data

    def convert(table: pa.Table) -> pa.Table:
        columns = [_plain_column(c, field.type) for c, field in zip(table.columns, schema, strict=True)]
        return pa.table(columns, schema=schema)

    if isinstance(data, pa.Table):
        return convert(data)
    tables = (convert(pa.Table.from_batches([batch])) for batch in data)
    return pa.RecordBatchReader.from_batches(schema, (batch for table in tables for batch in table.to_batches()))


def _plain_dictionary(type_: pa.DataType) -> pa.DataType:
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    if not pa.types.is_dictionary(type_) or type_.value_type not in plain:
        return type_
    return pa.dictionary(type_.index_type, plain[type_.value_type], type_.ordered)


def _plain_column(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(type_):
        return column
    chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(type_.value_type), ordered=type_.ordered)
        for chunk in column.chunks
    ]
    return pa.chunked_array(chunks, type_)


def _open_dataset(data: Any) -> pa.RecordBatchReader:
    import pyarrow.dataset as ds  # slow to import: it imports pandas if it is installed

    if not isinstance(data, (ds.Dataset, ds.Scanner)):
        return _open_foreign(data)
    if isinstance(data, ds.FileSystemDataset):
        with contextlib.suppress(ValueError):  # a filtered dataset does not list its fragments
            return pa.RecordBatchReader.from_batches(data.schema, scan_fragments(data.get_fragments(), data.schema))
    scanner = data if isinstance(data, ds.Scanner) else data.scanner(**SCAN_OPTIONS)
    return scanner.to_reader()


def _open_foreign(data: Any) -> pa.Table | pa.RecordBatchReader:
    module = type(data).__module__.split(".")[0]
    if module == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if module == "polars" and hasattr(data, "collect"):
        data = data.collect()
    if module == "pyspark":  # its Arrow stream fails for timestamps
        return data.toArrow()
    if hasattr(data, "__arrow_c_stream__"):
        return _open_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    return _open_python(data)


def _open_python(data: Any) -> pa.Table | pa.RecordBatchReader:
    """Open a collection of Python."""
    if isinstance(data, dict):
        return _table_of(data)
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        return _open_dicts(data)
    if isinstance(data, Iterator):
        return _open_batches(_open_once(data))
    if isinstance(data, list | tuple) and data and isinstance(data[0], pa.RecordBatch | pa.Table):
        return _open_batches(iter(data))
    raise _unsupported(type(data).__name__)


def _open_dicts(rows: list[dict[str, Any]]) -> pa.Table:
    names = dict.fromkeys(name for row in rows for name in row)  # from_pylist reads only the keys of the first
    if rows and not names:
        raise UnreadableSourceError("The rows of the source have no fields.", hint="Pass at least the key columns.")
    table = _table_of({name: [row.get(name) for row in rows] for name in names})
    lacking: dict[Path, dict[int, str]] = {}
    nested = [field for field in table.schema if nested_fields(field.type)]
    for number, row in enumerate(rows):
        absent = [(name,) for name in names if name not in row] if len(row) < len(names) else []
        inside = (path for field in nested for path in _absent_inside(row.get(field.name), field.type, (field.name,)))
        for path in itertools.chain(absent, inside):
            lacking.setdefault(path, {})[number] = f"row {number}"
    order = {name: at for at, name in enumerate(names)}
    for path, numbers in sorted(lacking.items(), key=lambda item: order[item[0][0]]):
        texts = pa.array([numbers.get(number) for number in range(len(rows))], pa.string())
        table = table.append_column(absence_column(*path), texts)
    return table


def _absent_inside(value: Any, type_: pa.DataType, path: Path) -> Iterator[Path]:
    """Yield the paths of the fields that the objects in a value lack, and that other rows have."""
    if pa.types.is_struct(type_) and isinstance(value, Mapping):
        for field in type_:
            below = (*path, field.name)
            yield from _absent_inside(value[field.name], field.type, below) if field.name in value else (below,)
    elif pa.types.is_list(type_) and isinstance(value, list | tuple) and nested_fields(type_):
        for item in value:
            yield from _absent_inside(item, type_.value_type, path)


def _table_of(columns: Mapping[str, Any]) -> pa.Table:
    """Convert columns of Python values, and name the column that has no Arrow type."""
    converted = {}
    for name, values in columns.items():
        try:
            converted[name] = pa.table({name: values}).column(0)
        except (pa.ArrowException, OverflowError, TypeError) as error:
            raise UnreadableSourceError(
                f"The values of the source column {name!r} have no common Arrow type: {error}",
                hint="Convert the values to one type, or pass a pyarrow table with the types that you want.",
            ) from error
    try:
        return pa.table(converted)
    except pa.ArrowException as error:
        raise UnreadableSourceError(f"The columns of the source do not fit together: {error}") from error


def _unsupported(kind: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Cannot read rows from {kind}.",
        hint="Pass a pyarrow, pandas, polars or DuckDB table, a list of dicts, record batches, a pyarrow dataset or"
        " reader, or a path.",
    )
