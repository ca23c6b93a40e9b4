"""The source of a merge: tables, streams, DataFrames or files, in memory or on disk."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.base import Conform, RowNumbers
from inlay.engines.kernels import take_rows
from inlay.engines.keys import (
    KeyIndex,
    NullKeys,
    Repeats,
    canonical_keys,
    contiguous,
    find_null_keys,
    find_repeats,
    join_null_keys,
    join_repeats,
    sortable_values,
)
from inlay.errors import InvalidArgumentError, NotFoundError, UnreadableFileError, UnreadableSourceError
from inlay.parquet.footers import has_nanoseconds, int96_columns, require_nanoseconds
from inlay.parquet.layout import data_files
from inlay.pyarrow_features import byte_size, sort_nulls_first
from inlay.schema import family, storage_type, unify
from inlay.storage import expand_glob, locate, resolve_filesystem

__all__ = [
    "PATH_TYPES",
    "ArrowSource",
    "SourcePath",
    "load_small_source",
    "load_source",
    "open_batches",
    "open_path",
    "unreadable_source",
]

Integers = npt.NDArray[np.int64]

_BATCH_ROWS = 32_768
# By default pyarrow reads 16 batches and 4 files ahead, which can take much memory.
_SCAN_OPTIONS: dict[str, Any] = {
    "batch_size": _BATCH_ROWS,
    "batch_readahead": 1,
    "fragment_readahead": 1,
    "use_threads": False,
}
_LEADING_ZERO, _MANY_DIGITS = r"^\s*[+-]?0[0-9]", r"^\s*[+-]?[0-9]{16,}\s*$"
_TEXT_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


class SourcePath(NamedTuple):
    """A path with an explicit file format: csv, json, parquet or arrow."""

    path: str
    format: str


PATH_TYPES = (str, os.PathLike, SourcePath)


def open_batches(
    data: Any, like: pa.Schema | None = None, storage_options: Mapping[str, Any] | None = None
) -> pa.Table | pa.RecordBatchReader:
    """Open source rows of any supported kind as a table or a stream of batches.

    Text formats have no types: their columns get the types of `like`, the schema of the dataset.
    """
    if isinstance(data, PATH_TYPES):
        data = open_path(data, like, storage_options)
    return _without_view_dictionaries(_open(data))


def _open(data: Any) -> pa.Table | pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return _open_once(data)
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if type(data).__module__.startswith("pyarrow"):
        return _open_dataset(data)
    return _open_foreign(data)


_OPENED: weakref.WeakSet[pa.RecordBatchReader] = weakref.WeakSet()


def _open_once(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Reject a reader that an earlier call has read: it would look like a source without rows."""
    if reader in _OPENED:
        raise UnreadableSourceError(
            "The source is a reader that an earlier call has already read, so it has no rows left.",
            hint="Create a new reader for each call, or pass a table.",
        )
    _OPENED.add(reader)
    return reader


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
    scanner = data if isinstance(data, ds.Scanner) else data.scanner(**_SCAN_OPTIONS)
    return scanner.to_reader()


def scan_fragments(fragments: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Scan one file after another, because a dataset scan keeps many row groups in memory."""
    for fragment in fragments:
        yield from fragment.to_batches(schema=schema, **_SCAN_OPTIONS)


def _open_foreign(data: Any) -> pa.Table | pa.RecordBatchReader:
    module = type(data).__module__.split(".")[0]
    if module == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if module == "polars" and hasattr(data, "collect"):
        data = data.collect()
    if module == "pyspark":  # its Arrow stream fails for timestamps
        return data.toArrow()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    if hasattr(data, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(data)])
    if isinstance(data, dict):
        return pa.table(data)
    if isinstance(data, list) and all(isinstance(row, dict) for row in data):
        names = dict.fromkeys(name for row in data for name in row)  # from_pylist reads only the keys of the first
        return pa.table({name: [row.get(name) for row in data] for name in names})
    raise InvalidArgumentError(
        f"Cannot read rows from {type(data).__name__}.",
        hint="Pass a pyarrow, pandas, polars or DuckDB table, a list of dicts, a pyarrow dataset or reader, or a path.",
    )


def open_path(
    source: str | os.PathLike[str] | SourcePath, like: pa.Schema | None, storage_options: Mapping[str, Any] | None
) -> Any:
    """Open files as a pyarrow dataset, or as a scanner if their values need a cast."""
    import pyarrow.dataset as ds

    path, kind = source if isinstance(source, SourcePath) else (os.fspath(source), None)
    suffix = os.path.splitext(path.removesuffix(".gz").removesuffix(".zst").lower())[1]
    kind = kind or _TEXT_FORMATS.get(suffix, "parquet")
    try:
        root, files = _list_files(path, storage_options)
        store, bare = resolve_filesystem(files, storage_options)
        make = functools.partial(
            ds.dataset,
            bare,
            format=_csv_format(like) if kind == "csv" else kind,
            filesystem=store,
            partitioning="hive" if kind == "parquet" else None,
            partition_base_dir=root,
        )
        dataset = make()
        schema = _unified_schema(dataset)
        if kind == "parquet" and any(has_nanoseconds(field.type) for field in schema):
            _check_timestamps(dataset)
        if kind == "csv":
            schema = _with_codes_as_text(make, schema, [] if like is None else like.names)
        return make(schema=schema) if kind != "json" or like is None else _typed_json(make, schema, like)
    except (NotFoundError, UnreadableFileError):
        raise
    except FileNotFoundError as error:
        raise NotFoundError(f"The source {path!r} does not exist.", hint="Check the path.") from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable_source(error) from error


def _list_files(path: str, storage_options: Mapping[str, Any] | None) -> tuple[str | None, list[str]]:
    """List the files of a path or glob, and the root directory if the path is one."""
    if any(c in path for c in "*?["):
        files = list(expand_glob(path, storage_options))
        root = None
    else:
        location = locate(path, storage_options=storage_options)
        if not location.store.is_directory(location.path):
            return None, [path]
        files = [location.display(file.path) for file in data_files(location)]
        root = location.path
    if not files:
        raise NotFoundError(
            f"The source {path!r} has no files to read.",
            hint="Check the path. inlay reads the Parquet files of a directory.",
        )
    return root, files


def _unified_schema(dataset: Any) -> pa.Schema:
    """Return the columns of all files in types that can hold the values of each file."""
    with ThreadPoolExecutor(8, "inlay-source") as pool:
        fragments = list(dataset.get_fragments())
        schemas = list(pool.map(lambda fragment: fragment.physical_schema, fragments))
    inside = unify(schemas, [fragment.path for fragment in fragments])
    return pa.schema([*inside, *(f for f in dataset.schema if f.name not in inside.names)], inside.metadata)


def _check_timestamps(dataset: Any) -> None:
    """Raise if a file has INT96 timestamps outside the range of nanoseconds."""
    import pyarrow.parquet as pq

    for fragment in dataset.get_fragments():
        if columns := int96_columns(fragment.metadata.schema):
            require_nanoseconds(lambda f=fragment, **o: pq.ParquetFile(f.open(), **o), fragment.path, None, columns)


def _with_codes_as_text(make: Callable[..., Any], found: pa.Schema, known: Sequence[str]) -> pa.Schema:
    """Turn inferred number columns into text if a number cannot hold the text of every cell.

    Such cells have a leading zero (`007`) or more digits than a float. `known` columns have the dataset's types.
    """
    numbers = [f.name for f in found if f.name not in known and family(f.type) in ("integer", "float")]
    if not numbers:
        return found
    as_text = pa.schema([f.with_type(pa.string()) if f.name in numbers else f for f in found])
    codes: set[str] = set()
    for batch in make(schema=as_text).scanner(columns=numbers, **_SCAN_OPTIONS).to_batches():
        for name in set(numbers) - codes:
            is_integer = pa.types.is_integer(found.field(name).type)
            pattern = _LEADING_ZERO if is_integer else f"{_LEADING_ZERO}|{_MANY_DIGITS}"
            if pc.any(pc.match_substring_regex(batch.column(name), pattern), min_count=0).as_py():
                codes.add(name)
    return pa.schema([f.with_type(pa.string()) if f.name in codes else f for f in found], found.metadata)


def _typed_json(make: Callable[..., Any], found: pa.Schema, like: pa.Schema) -> Any:
    """Read JSON with the dataset's types. Dates and times are text in JSON, so they are cast."""
    import pyarrow.dataset as ds

    types = {f.name: _text_type(like.field(f.name).type) for f in found if f.name in like.names}
    texts = {name for name, type_ in types.items() if pa.types.is_temporal(type_) and not pa.types.is_duration(type_)}
    read = [f.with_type(pa.string() if f.name in texts else types.get(f.name, f.type)) for f in found]
    columns = {n: ds.field(n).cast(types[n]) if n in texts else ds.field(n) for n in found.names}
    return make(schema=pa.schema(read)).scanner(columns=columns, **_SCAN_OPTIONS)


def _csv_format(like: pa.Schema | None) -> Any:
    """Read CSV with the dataset's types: `007` stays text in a text column."""
    import pyarrow.dataset as ds
    from pyarrow import csv

    types = {} if like is None else {f.name: _text_type(f.type) for f in like if not pa.types.is_nested(f.type)}
    options = csv.ConvertOptions(
        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return ds.CsvFileFormat(convert_options=options)


def _text_type(type_: pa.DataType) -> pa.DataType:
    """Return a type that Arrow can parse, wide enough to detect values that do not fit."""
    plain = storage_type(type_)
    if pa.types.is_decimal(plain):
        return pa.decimal128(38, plain.scale) if plain.precision <= 38 else pa.decimal256(76, plain.scale)
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary(), pa.float16(): pa.float64()}.get(plain, plain)


# ------------------------------------------------------------------------------------------------ unreadable files
class _ReadError(NamedTuple):
    """A pattern in an Arrow error message, with the reason and the hint to report."""

    pattern: re.Pattern[str]
    reason: Callable[[re.Match[str]], str]
    hint: str


def _invalid_cell(found: re.Match[str]) -> str:
    line = f"line {found['line']}, " if found["line"] else ""
    return f"{line}column {int(found['column']) + 1}: {found['value']!r} is not a valid {found['type']}"


_FILE = re.compile(r"Could not read schema from ('.*?')\. Is this an? '")
_READ_ERRORS = (
    _ReadError(
        re.compile(
            r"In CSV column #(?P<column>\d+): (?:Row #(?P<line>\d+): )?"
            r"CSV conversion error to (?P<type>.+?): invalid value '(?P<value>.*)'"
        ),
        _invalid_cell,
        "Correct the cell (an empty cell is NULL), or use `inlay upload`, which can reject such rows.",
    ),
    _ReadError(
        re.compile("Empty CSV file"), lambda _: "the file is empty", "A CSV file starts with a line of column names."
    ),
    _ReadError(
        re.compile("Parquet magic bytes not found|Parquet file size is"),
        lambda _: "it is not a Parquet file",
        "inlay reads files named .csv, .json, .jsonl and .ndjson as text, and all other files as Parquet.",
    ),
    _ReadError(
        re.compile(r"Column\(\) changed from object to array"),
        lambda _: "it is a JSON array",
        "Write one JSON object per line. `jq -c '.[]'` converts an array.",
    ),
)


def unreadable_source(error: Exception) -> UnreadableSourceError:
    """Return the error to raise for an error of Arrow."""
    text = str(error).splitlines()[0]
    file = _FILE.search(text)
    name = f"the source {file[1]}" if file else "the source"
    for known in _READ_ERRORS:
        if found := known.pattern.search(text):
            return UnreadableSourceError(f"Cannot read {name}: {known.reason(found)}.", hint=known.hint)
    return UnreadableSourceError(f"Cannot read the source: {text}")


# --------------------------------------------------------------------------------------------------- loaded source
SPILL_BYTES = 64 << 20
_BUCKET_BYTES = 32 << 20
_MAX_BUCKETS = 400  # each one is an open file while the source is split
_SAMPLE_ROWS, _SAMPLE_STEP = 500, 200  # sampled keys: the first 500, then every 200th


class ArrowSource:
    """Source rows in the dataset's types, numbered bucket after bucket."""

    def __init__(
        self,
        schema: pa.Schema,
        key_columns: Sequence[str],
        buckets: Sequence[_Bucket],
        input_rows: int,
        nulls: Sequence[NullKeys],
        directory: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.schema = schema
        self.key_columns = list(key_columns)
        self.buckets = list(buckets)
        self.input_rows = input_rows  # before `reduce`
        self.null_keys = list(nulls)
        self._directory = directory
        self._number_rows()

    def _number_rows(self) -> None:
        sizes = [bucket.num_rows for bucket in self.buckets]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.num_rows = int(self.starts[-1])

    @property
    def nbytes(self) -> int:
        return sum(bucket.nbytes for bucket in self.buckets)

    def column(self, name: str) -> pa.ChunkedArray:
        chunks = [chunk for bucket in self.buckets for chunk in bucket.read([name]).column(name).chunks]
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def indexes(self) -> Iterator[tuple[int, KeyIndex]]:
        """Yield the first row number and the key index of each bucket."""
        for start, bucket in zip(self.starts[:-1], self.buckets, strict=True):
            yield int(start), bucket.index(self.key_columns)

    def repeated_keys(self) -> Repeats:
        indexes = zip(self.buckets, self.indexes(), strict=True)
        found = [find_repeats(bucket.read(self.key_columns), index.repeated()) for bucket, (_, index) in indexes]
        return join_repeats(found)

    def take(self, rows: RowNumbers, columns: Sequence[str] | None = None) -> pa.Table:
        """Return rows by number, in the order of `rows`."""
        if len(self.buckets) == 1:
            return self.buckets[0].take(rows, columns)
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(numbers, kind="stable")
        pieces = []
        for number in np.unique(numbers):
            wanted = rows[order[numbers[order] == number]] - self.starts[number]
            pieces.append(self.buckets[number].take(wanted, columns))
        if not pieces:
            return self.schema.empty_table().select(columns or self.schema.names)
        if (numbers[1:] >= numbers[:-1]).all():
            return pa.concat_tables(pieces)  # in order already
        positions = np.empty(len(rows), np.int64)
        positions[order] = np.arange(len(rows))
        return take_rows(pa.concat_tables(pieces), positions)

    def reduce(self, order_by: Sequence[str]) -> None:
        """Keep one row per key: the last by `order_by`, NULLs lowest, NaN highest, ties by source order."""
        for bucket in self.buckets:
            bucket.keep(last_per_key(bucket.read([*self.key_columns, *order_by]), self.key_columns, order_by))
        self._number_rows()

    def close(self) -> None:
        self.buckets.clear()
        if self._directory is not None:
            self._directory.cleanup()


def last_per_key(table: pa.Table, key_columns: Sequence[str], order_by: Sequence[str]) -> Integers:
    """Return the last row of each key by `order_by`, in ascending order."""
    keys = [canonical_keys(table.column(name), table.schema.field(name).type) for name in key_columns]
    by = [part for name in order_by for part in _order_parts(sortable_values(table.column(name)))]
    names = [f"k{i}" for i in range(len(keys))] + [f"o{i}" for i in range(len(by))]
    sortable = pa.table([*keys, *by], names)
    order = sort_nulls_first(sortable)
    rows = order.to_numpy().astype(np.int64)
    repeated = np.zeros(len(rows), np.bool_)
    sorted_keys = KeyIndex.adjacent_equal([key.take(order) for key in keys])
    repeated[:-1] = sorted_keys
    return np.sort(rows[~repeated])


def _order_parts(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Return the columns to sort by in place of a column: Arrow sorts NaN like NULL, but NaN is the highest value."""
    return [pc.is_nan(column), column] if pa.types.is_floating(column.type) else [column]


class _Bucket:
    """Rows in memory, or in an Arrow file that is read when needed."""

    def __init__(self, table: pa.Table | None, path: str = "", num_rows: int = 0) -> None:
        self._table = table
        self._path = path
        self._kept: RowNumbers | None = None
        self._index: KeyIndex | None = None
        self.num_rows = num_rows if table is None else table.num_rows

    @property
    def nbytes(self) -> int:
        return os.path.getsize(self._path) if self._table is None else byte_size(self._table)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        table = self._stored(columns)
        return table if self._kept is None else take_rows(table, self._kept)

    def _stored(self, columns: Sequence[str] | None) -> pa.Table:
        """Read all rows, including those that `keep` excluded."""
        table = self._table
        if table is None:
            # A memory map would count as memory of this process.
            with pa.OSFile(self._path) as file, pa.ipc.open_stream(file) as reader:
                table = reader.read_all()
        return table if columns is None else table.select(list(dict.fromkeys(columns)))

    def index(self, key_columns: Sequence[str]) -> KeyIndex:
        if self._index is not None:
            return self._index
        table = self.read(key_columns)
        index = KeyIndex([canonical_keys(table.column(c), table.schema.field(c).type) for c in key_columns])
        if self._table is not None:
            self._index = index
        return index

    def take(self, rows: RowNumbers, columns: Sequence[str] | None = None) -> pa.Table:
        if self._kept is not None:
            rows = self._kept[rows]
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return self._stored(columns).slice(int(rows[0]), len(rows))
        if self._table is not None:  # taking rows from one chunk is much faster than from many
            self._table = self._table.combine_chunks()
        return take_rows(self._stored(columns), rows)

    def in_memory(self) -> _Bucket:
        """Return a bucket with the same rows in memory, to take rows from it more than once."""
        return self if self._table is not None else _Bucket(self.read())

    def keep(self, rows: RowNumbers) -> None:
        self._index = None
        self.num_rows = len(rows)
        if self._table is not None:
            self._table = take_rows(self._table, rows)
        else:
            self._kept = rows


def load_source(
    data: pa.Table | pa.RecordBatchReader, conform: Conform, key_columns: Sequence[str], spill_bytes: int | None = None
) -> ArrowSource:
    """Load a source. A stream that is larger than `spill_bytes` is written to disk."""
    if isinstance(data, pa.Table):
        return _in_memory(conform(data), key_columns)
    batches = _read_batches(data, conform)
    kept = [conform(data.schema.empty_table())]
    if not _fill(kept, batches, SPILL_BYTES if spill_bytes is None else spill_bytes):
        return _spill(kept, batches, key_columns)
    return _in_memory(pa.concat_tables(kept), key_columns)


def load_small_source(
    data: pa.RecordBatchReader, conform: Conform, key_columns: Sequence[str], limit: int
) -> ArrowSource | None:
    """Load a source, or return None as soon as its rows take more than `limit` bytes of memory."""
    kept = [conform(data.schema.empty_table())]
    is_complete = _fill(kept, _read_batches(data, conform), limit)
    return _in_memory(pa.concat_tables(kept), key_columns) if is_complete else None


def _fill(kept: list[pa.Table], batches: Iterator[pa.Table], limit: int) -> bool:
    """Append tables, and return False once they take more than `limit` bytes."""
    size = 0
    for table in batches:
        kept.append(table)
        size += byte_size(table)
        if size > limit:
            return False
    return True


def _in_memory(table: pa.Table, key_columns: Sequence[str]) -> ArrowSource:
    nulls = find_null_keys(table.select(list(key_columns)))
    return ArrowSource(table.schema, key_columns, [_Bucket(table)], table.num_rows, nulls)


def _read_batches(reader: pa.RecordBatchReader, conform: Conform) -> Iterator[pa.Table]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise unreadable_source(error) from error
        yield conform(pa.Table.from_batches([batch]))


def _spill(first: list[pa.Table], rest: Iterator[pa.Table], key_columns: Sequence[str]) -> ArrowSource:
    """Write the stream to disk, then split it into buckets by ranges of keys."""
    directory = tempfile.TemporaryDirectory(prefix="inlay-source-")
    try:
        schema = first[0].schema
        raw = os.path.join(directory.name, "raw.arrow")
        with pa.OSFile(raw, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            spill = _SpillWriter(writer, list(key_columns))
            while first:
                spill.write(first.pop(0))
            for table in rest:
                spill.write(table)
        count = min(max(1, spill.size // _BUCKET_BYTES), _MAX_BUCKETS)
        points = split_points(spill.sample, key_columns, count) if key_columns else None
        bucketing = bucket_by_key(points, schema) if points is not None else bucket_by_position(count, spill.rows)
        buckets = _split(raw, directory.name, schema, bucketing)
        os.unlink(raw)
        pa.default_memory_pool().release_unused()
    except BaseException:
        directory.cleanup()
        raise
    return ArrowSource(schema, key_columns, buckets, spill.rows, join_null_keys(spill.nulls, key_columns), directory)


class _SpillWriter:
    """Writes a stream to disk, samples its keys and finds NULL keys."""

    def __init__(self, writer: Any, key_columns: list[str]) -> None:
        self._writer = writer
        self._key_columns = key_columns
        self.rows = self.size = 0
        self.sample: list[pa.Table] = []
        self.nulls: list[list[NullKeys]] = []

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, max_chunksize=_BATCH_ROWS)
        if self._key_columns:
            keys = table.select(self._key_columns)
            # The sample depends on row numbers, not on how the rows are batched.
            numbers = np.arange(self.rows, self.rows + table.num_rows)
            chosen = np.flatnonzero((numbers < _SAMPLE_ROWS) | (numbers % _SAMPLE_STEP == 0))
            self.sample.append(take_rows(keys, chosen))
            self.nulls.append(find_null_keys(keys, self.rows))
        self.rows += table.num_rows
        self.size += byte_size(table)


@dataclass(frozen=True)
class Bucketing:
    """The number of buckets, and a function that assigns rows to them.

    The function gets a table and the number of its first row, and returns the bucket number of each row.
    """

    count: int
    assign: Callable[[pa.Table, int], Integers]


def split_points(sample: list[pa.Table], key_columns: Sequence[str], limit: int) -> tuple[str, pa.Array]:
    """Choose the key column with the most distinct values, and values that split it."""
    table = pa.concat_tables(sample)
    columns = {name: canonical_keys(table.column(name), table.schema.field(name).type) for name in key_columns}
    name = max(columns, key=lambda n: len(pc.unique(columns[n])))
    values = pc.unique(columns[name].drop_null())
    ordered = values.take(pc.sort_indices(values))
    count = min(limit, max(1, len(ordered)))
    return name, ordered.take(pa.array(np.linspace(0, len(ordered), count, endpoint=False).astype(np.int64)[1:]))


def bucket_by_key(points: tuple[str, pa.Array], schema: pa.Schema) -> Bucketing:
    name, bounds = points
    type_ = schema.field(name).type

    def assign(table: pa.Table, _: int) -> Integers:
        keys = contiguous(canonical_keys(table.column(name), type_))
        return KeyIndex.range_numbers(bounds, keys) if len(bounds) else np.zeros(len(keys), np.int64)

    return Bucketing(len(bounds) + 1, assign)


def bucket_by_position(count: int, rows: int) -> Bucketing:
    step = -(-rows // count)
    return Bucketing(count, lambda table, first: (first + np.arange(table.num_rows)) // step)


def _split(raw: str, directory: str, schema: pa.Schema, bucketing: Bucketing) -> list[_Bucket]:
    paths = [os.path.join(directory, f"{i}.arrow") for i in range(bucketing.count)]
    counts = [0] * bucketing.count
    first = 0
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(pa.OSFile(raw))
        sinks = [stack.enter_context(pa.OSFile(path, "wb")) for path in paths]
        writers = [stack.enter_context(pa.ipc.new_stream(sink, schema)) for sink in sinks]
        for batch in stack.enter_context(pa.ipc.open_stream(file)):
            table = pa.Table.from_batches([batch])
            numbers = bucketing.assign(table, first)
            first += table.num_rows
            for number in np.unique(numbers):
                part = take_rows(table, np.flatnonzero(numbers == number))
                writers[number].write_table(part)
                counts[number] += part.num_rows
    return [_Bucket(None, path, rows) for path, rows in zip(paths, counts, strict=True) if rows]
