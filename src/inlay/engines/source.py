"""Whatever people give as rows, opened: tables, streams, frames, files and directories, with their types."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.source_faults import unreadable
from inlay.errors import InvalidArgumentError, NotFoundError, UnreadableFileError
from inlay.parquet.int96 import int96_columns, is_nanoseconds, require_nanoseconds
from inlay.parquet.layout import data_files
from inlay.schema import family, storage_type, unify
from inlay.storage import expand_glob, filesystem_of, locate

__all__ = ["BATCH_ROWS", "PATHS", "SourcePath", "open_batches", "open_path"]

BATCH_ROWS = 32_768
# pyarrow would read 16 batches and 4 files ahead, and they may be large
_SCANNING: dict[str, Any] = {
    "batch_size": BATCH_ROWS,
    "batch_readahead": 1,
    "fragment_readahead": 1,
    "use_threads": False,
}
_CODE, _MANY_DIGITS = r"^\s*[+-]?0[0-9]", r"^\s*[+-]?[0-9]{16,}\s*$"
_TEXT_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


class SourcePath(NamedTuple):
    """A path whose files have another format than their names say: csv, json, parquet or arrow."""

    path: str
    format: str


PATHS = (str, os.PathLike, SourcePath)


def open_batches(
    data: Any, like: pa.Schema | None = None, storage_options: Mapping[str, Any] | None = None
) -> pa.Table | pa.RecordBatchReader:
    """Anything with rows in it, as a table or a stream of batches.

    `like` is the schema that the rows are meant for: text formats, which have no types, are read with its types.
    """
    if isinstance(data, PATHS):
        data = open_path(data, like, storage_options)
    if isinstance(data, (pa.Table, pa.RecordBatchReader)):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if type(data).__module__.startswith("pyarrow"):
        return _open_dataset(data)
    return _open_foreign(data)


def _open_dataset(data: Any) -> pa.RecordBatchReader:
    import pyarrow.dataset as ds  # imports pandas where there is one

    if not isinstance(data, (ds.Dataset, ds.Scanner)):
        return _open_foreign(data)
    if isinstance(data, ds.FileSystemDataset):
        with contextlib.suppress(ValueError):  # a dataset that was filtered keeps its files to itself
            return pa.RecordBatchReader.from_batches(data.schema, _file_after_file(data.get_fragments(), data.schema))
    scanner = data if isinstance(data, ds.Scanner) else data.scanner(**_SCANNING)
    return scanner.to_reader()


def _file_after_file(fragments: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A scan of many files at once holds many row groups at once, however it is told not to."""
    for fragment in fragments:
        yield from scanned(fragment, schema)


def scanned(fragment: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield from fragment.to_batches(schema=schema, **_SCANNING)


def _open_foreign(data: Any) -> pa.Table | pa.RecordBatchReader:
    module = type(data).__module__.split(".")[0]
    if module == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if module == "polars" and hasattr(data, "collect"):
        data = data.collect()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    if isinstance(data, dict):
        return pa.table(data)
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        return pa.Table.from_pylist(data)
    raise InvalidArgumentError(
        f"Cannot read rows from {type(data).__name__}.",
        hint="Pass a pyarrow, pandas, polars or DuckDB table, a pyarrow dataset or reader, or a path.",
    )


def open_path(
    source: str | os.PathLike[str] | SourcePath, like: pa.Schema | None, storage_options: Mapping[str, Any] | None
) -> Any:
    """The files at a path as a pyarrow dataset, or as a scanner where they need to be converted."""
    import pyarrow.dataset as ds

    path, kind = source if isinstance(source, SourcePath) else (os.fspath(source), None)
    suffix = os.path.splitext(path.removesuffix(".gz").removesuffix(".zst").lower())[1]
    kind = kind or _TEXT_FORMATS.get(suffix, "parquet")
    try:
        root, files = _files_at(path, storage_options)
        store, bare = filesystem_of(files, storage_options)
        make = functools.partial(
            ds.dataset,
            bare,
            format=_csv_format(like) if kind == "csv" else kind,
            filesystem=store,
            partitioning="hive" if kind == "parquet" else None,
            partition_base_dir=root,
        )
        found = make()
        schema = _schema_of(found)
        if kind == "parquet" and any(is_nanoseconds(field.type) for field in schema):
            _check_timestamps(found)
        if kind == "csv":
            schema = _with_codes_as_text(make, schema, [] if like is None else like.names)
        return make(schema=schema) if kind != "json" or like is None else _typed_json(make, schema, like)
    except (NotFoundError, UnreadableFileError):
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no source at {path!r}.") from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable(error) from error


def _files_at(path: str, storage_options: Mapping[str, Any] | None) -> tuple[str | None, list[str]]:
    """The files that a path or pattern names, and the directory that they lie in if the path is one."""
    if any(c in path for c in "*?["):
        files = list(expand_glob(path, storage_options))
        root = None
    else:
        location = locate(path, storage_options=storage_options)
        if not location.store.is_directory(location.path):
            return None, [path]
        files = [location.shown(file.path) for file in data_files(location)]
        root = location.path
    if not files:
        raise NotFoundError(f"There is no file to read at {path!r}.")
    return root, files


def _schema_of(dataset: Any) -> pa.Schema:
    """What all files have, in types that hold the values of each."""
    with ThreadPoolExecutor(8, "inlay-source") as pool:
        fragments = list(dataset.get_fragments())
        schemas = list(pool.map(lambda fragment: fragment.physical_schema, fragments))
    inside = unify(schemas, [fragment.path for fragment in fragments])
    return pa.schema([*inside, *(f for f in dataset.schema if f.name not in inside.names)], inside.metadata)


def _check_timestamps(dataset: Any) -> None:
    """Refuse files with timestamps that would not be read as they are."""
    import pyarrow.parquet as pq

    for fragment in dataset.get_fragments():
        if columns := int96_columns(fragment.metadata.schema):
            require_nanoseconds(lambda f=fragment, **o: pq.ParquetFile(f.open(), **o), fragment.path, None, columns)


def _with_codes_as_text(make: Callable[..., Any], found: pa.Schema, known: Sequence[str]) -> pa.Schema:
    """Columns that Arrow takes for numbers are text where a cell says more than its number: `007`, or so many digits
    that a floating point number loses some. Columns of the dataset have their types already.
    """
    numbers = [f.name for f in found if f.name not in known and family(f.type) in ("integer", "float")]
    if not numbers:
        return found
    spelled = pa.schema([f.with_type(pa.string()) if f.name in numbers else f for f in found])
    codes: set[str] = set()
    for batch in make(schema=spelled).scanner(columns=numbers, **_SCANNING).to_batches():
        for name in set(numbers) - codes:
            pattern = _CODE if pa.types.is_integer(found.field(name).type) else f"{_CODE}|{_MANY_DIGITS}"
            if pc.any(pc.match_substring_regex(batch.column(name), pattern), min_count=0).as_py():
                codes.add(name)
    return pa.schema([f.with_type(pa.string()) if f.name in codes else f for f in found], found.metadata)


def _typed_json(make: Callable[..., Any], found: pa.Schema, like: pa.Schema) -> Any:
    """JSON has no dates and times: they are text, and become what the dataset's columns are."""
    import pyarrow.dataset as ds

    types = {f.name: _text_type(like.field(f.name).type) for f in found if f.name in like.names}
    texts = {name for name, type_ in types.items() if pa.types.is_temporal(type_) and not pa.types.is_duration(type_)}
    read = [f.with_type(pa.string() if f.name in texts else types.get(f.name, f.type)) for f in found]
    columns = {n: ds.field(n).cast(types[n]) if n in texts else ds.field(n) for n in found.names}
    return make(schema=pa.schema(read)).scanner(columns=columns, **_SCANNING)


def _csv_format(like: pa.Schema | None) -> Any:
    """Cells become what the dataset's columns are: `007` stays text in a text column."""
    import pyarrow.dataset as ds
    from pyarrow import csv

    types = {} if like is None else {f.name: _text_type(f.type) for f in like if not pa.types.is_nested(f.type)}
    options = csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return ds.CsvFileFormat(convert_options=options)


def _text_type(type_: pa.DataType) -> pa.DataType:
    """The nearest type that Arrow can read from text, wide enough to notice what does not fit."""
    plain = storage_type(type_)
    if pa.types.is_decimal(plain):
        return pa.decimal128(38, plain.scale) if plain.precision <= 38 else pa.decimal256(76, plain.scale)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float64()}.get(plain, plain)
