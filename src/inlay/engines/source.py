"""The rows of a merge: anything that speaks Arrow, kept in memory or, when large, on disk in ranges of keys.

A source on disk is cut into buckets by key, so that each fits in memory by itself and all rows of one key lie in
the same bucket. A source in memory is one bucket.
"""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.base import Conform
from inlay.engines.key_faults import NullKeys, Repeats, joined_nulls, joined_repeats, null_keys, repeated_keys
from inlay.engines.keys import KeyIndex, canonical_keys, contiguous, sortable_values
from inlay.engines.source_faults import unreadable
from inlay.errors import InvalidArgumentError, NotFoundError, UnreadableFileError
from inlay.parquet.int96 import int96_columns, is_nanoseconds, require_nanoseconds
from inlay.parquet.layout import data_files
from inlay.schema import family, storage_type, unify
from inlay.storage import expand_glob, filesystem_of, locate

__all__ = ["PATHS", "ArrowSource", "SourcePath", "load_source", "open_batches", "open_path"]

SPILL_BYTES = 64 << 20
_BUCKET_BYTES = 32 << 20
_MOST_BUCKETS = 400  # each is an open file while the source is cut
_BATCH_ROWS = 32_768
# pyarrow would read 16 batches and 4 files ahead, and they may be large
_SCANNING: dict[str, Any] = {
    "batch_size": _BATCH_ROWS,
    "batch_readahead": 1,
    "fragment_readahead": 1,
    "use_threads": False,
}
_SAMPLE, _SAMPLED_EVERY = 500, 200
_CODE, _MANY_DIGITS = r"^\s*[+-]?0[0-9]", r"^\s*[+-]?[0-9]{16,}\s*$"
_TEXT_FORMATS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}


# -------------------------------------------------------------------------------------------------- what people have
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


# ------------------------------------------------------------------------------------------------------ the source
class ArrowSource:
    """Source rows in the dataset's types. Rows are numbered bucket after bucket."""

    def __init__(
        self,
        schema: pa.Schema,
        key_columns: Sequence[str],
        buckets: Sequence[_Bucket],
        given: int,
        nulls: Sequence[NullKeys],
        directory: tempfile.TemporaryDirectory[str] | None = None,
    ) -> None:
        self.schema = schema
        self.key_columns = list(key_columns)
        self.buckets = list(buckets)
        self.num_given = given  # rows as given, before deduplication
        self.null_keys = list(nulls)
        self._directory = directory
        self._number()

    def _number(self) -> None:
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
        """The key index of every bucket, one at a time, with the number of its first row."""
        for start, bucket in zip(self.starts[:-1], self.buckets, strict=True):
            yield int(start), bucket.index(self.key_columns)

    def repeated_keys(self) -> Repeats:
        indexes = zip(self.buckets, self.indexes(), strict=True)
        found = [repeated_keys(bucket.read(self.key_columns), index.repeated()) for bucket, (_, index) in indexes]
        return joined_repeats(found)

    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows by number, in the order asked for."""
        if len(self.buckets) == 1:
            return self.buckets[0].take(rows, columns)
        homes = np.searchsorted(self.starts, rows, side="right") - 1
        order = np.argsort(homes, kind="stable")
        pieces = []
        for home in np.unique(homes):
            wanted = rows[order[homes[order] == home]] - self.starts[home]
            pieces.append(self.buckets[home].take(wanted, columns))
        if not pieces:
            return self.schema.empty_table().select(columns or self.schema.names)
        if (homes[1:] >= homes[:-1]).all():
            return pa.concat_tables(pieces)  # in order already
        place = np.empty(len(rows), np.int64)
        place[order] = np.arange(len(rows))
        return take_rows(pa.concat_tables(pieces), place)

    def reduce(self, order_by: Sequence[str]) -> None:
        """Keep one row per key: the last by `order_by`, NULLs lowest, ties by source order."""
        for bucket in self.buckets:
            bucket.keep(last_per_key(bucket.read([*self.key_columns, *order_by]), self.key_columns, order_by))
        self._number()

    def close(self) -> None:
        self.buckets.clear()
        if self._directory is not None:
            self._directory.cleanup()


def last_per_key(table: pa.Table, key_columns: Sequence[str], order_by: Sequence[str]) -> np.ndarray:
    keys = [canonical_keys(table.column(name), table.schema.field(name).type) for name in key_columns]
    by = [sortable_values(table.column(name)) for name in order_by]
    names = [f"k{i}" for i in range(len(keys))] + [f"o{i}" for i in range(len(by))]
    sortable = pa.table([*keys, *by], names)
    order = pc.sort_indices(sortable, [(name, "ascending", "at_start") for name in names])
    rows = order.to_numpy().astype(np.int64)
    repeated = np.zeros(len(rows), np.bool_)
    sorted_keys = KeyIndex.adjacent_equal([key.take(order) for key in keys])
    repeated[:-1] = sorted_keys
    return np.sort(rows[~repeated])


class _Bucket:
    """Rows in memory, or in an Arrow file that is read when needed."""

    def __init__(self, table: pa.Table | None, path: str = "", num_rows: int = 0) -> None:
        self._table = table
        self._path = path
        self._kept: np.ndarray | None = None
        self._index: KeyIndex | None = None
        self.num_rows = num_rows if table is None else table.num_rows

    @property
    def nbytes(self) -> int:
        return os.path.getsize(self._path) if self._table is None else int(self._table.nbytes)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        table = self._table if self._table is not None else self._load()
        if self._kept is not None and self._table is None:
            table = take_rows(table, self._kept)
        return table if columns is None else table.select(list(dict.fromkeys(columns)))

    def _load(self) -> pa.Table:
        with pa.OSFile(self._path) as file, pa.ipc.open_stream(file) as reader:
            return reader.read_all()

    def index(self, key_columns: Sequence[str]) -> KeyIndex:
        if self._index is not None:
            return self._index
        table = self.read(key_columns)
        index = KeyIndex([canonical_keys(table.column(c), table.schema.field(c).type) for c in key_columns])
        if self._table is not None:
            self._index = index
        return index

    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        table = self.read(columns)
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return table.slice(int(rows[0]), len(rows))
        if self._table is not None:  # taking from one chunk is much cheaper than from many
            self._table = self._table.combine_chunks()
            table = self.read(columns)
        return take_rows(table, rows)

    def loaded(self) -> _Bucket:
        """The same rows in memory, for those who take from them more than once."""
        return self if self._table is not None else _Bucket(self.read())

    def keep(self, rows: np.ndarray) -> None:
        self._index = None
        self.num_rows = len(rows)
        if self._table is not None:
            self._table = take_rows(self._table, rows)
        else:
            self._kept = rows


def take_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Take, also for the view types that Arrow cannot take from."""
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    schema = table.schema
    if any(field.type in views for field in schema):
        plain = pa.schema([field.with_type(views.get(field.type, field.type)) for field in schema])
        return table.cast(plain).take(pa.array(rows)).cast(schema)
    return table.take(pa.array(rows))


# --------------------------------------------------------------------------------------------------------- loading
def load_source(
    data: pa.Table | pa.RecordBatchReader,
    conform: Conform,
    key_columns: Sequence[str],
    spill_bytes: int | None = None,
) -> ArrowSource:
    """Take a source in; a stream that outgrows `spill_bytes` goes to disk."""
    if isinstance(data, pa.Table):
        return _in_memory(conform(data), key_columns)
    batches = _conformed(data, conform)
    kept, size = [], 0
    for table in batches:
        kept.append(table)
        size += table.nbytes
        if size > (SPILL_BYTES if spill_bytes is None else spill_bytes):
            return _spill(kept, batches, key_columns)
    return _in_memory(pa.concat_tables(kept) if kept else conform(data.schema.empty_table()), key_columns)


def _in_memory(table: pa.Table, key_columns: Sequence[str]) -> ArrowSource:
    nulls = null_keys(table.select(list(key_columns)))
    return ArrowSource(table.schema, key_columns, [_Bucket(table)], table.num_rows, nulls)


def _conformed(reader: pa.RecordBatchReader, conform: Conform) -> Iterator[pa.Table]:
    while True:
        try:
            batch = reader.read_next_batch()
        except StopIteration:
            return
        except (pa.ArrowException, OSError) as error:
            raise unreadable(error) from error
        yield conform(pa.Table.from_batches([batch]))


def _spill(first: list[pa.Table], rest: Iterator[pa.Table], key_columns: Sequence[str]) -> ArrowSource:
    """First pass: write the stream down and look at its keys. Second pass: cut it into ranges of keys."""
    directory = tempfile.TemporaryDirectory(prefix="inlay-source-")
    try:
        schema = first[0].schema
        raw = os.path.join(directory.name, "raw.arrow")
        down = _WrittenDown(list(key_columns))
        with pa.OSFile(raw, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            while first:
                down.add(first.pop(0), writer)
            for table in rest:
                down.add(table, writer)
        count = _bucket_count(down.size)
        points = splitters(down.sample, key_columns, count) if key_columns else None
        cut = cut_by_key(points, schema) if points is not None else cut_by_arrival(count, down.rows)
        buckets = _cut(raw, directory.name, schema, cut)
        os.unlink(raw)
        pa.default_memory_pool().release_unused()
    except BaseException:
        directory.cleanup()
        raise
    return ArrowSource(schema, key_columns, buckets, down.rows, joined_nulls(down.nulls, key_columns), directory)


class _WrittenDown:
    """What is known of a stream after it was written to disk."""

    def __init__(self, key_columns: list[str]) -> None:
        self.key_columns = key_columns
        self.rows = self.size = 0
        self.sample: list[pa.Table] = []
        self.nulls: list[list[NullKeys]] = []

    def add(self, table: pa.Table, writer: Any) -> None:
        writer.write_table(table, max_chunksize=_BATCH_ROWS)
        if self.key_columns:
            keys = table.select(self.key_columns)
            numbers = np.arange(self.rows, self.rows + table.num_rows)
            # of a long source every so many rows, however they are batched
            chosen = np.flatnonzero((numbers < _SAMPLE) | (numbers % _SAMPLED_EVERY == 0))
            self.sample.append(take_rows(keys, chosen))
            self.nulls.append(null_keys(keys, self.rows))
        self.rows += table.num_rows
        self.size += table.nbytes


# how many buckets, and to which of them the rows of a batch (and the number of its first row) belong
Cut = tuple[int, Callable[[pa.Table, int], np.ndarray]]


def _bucket_count(size: int) -> int:
    return min(max(1, size // _BUCKET_BYTES), _MOST_BUCKETS)


def splitters(sample: list[pa.Table], key_columns: Sequence[str], most: int) -> tuple[str, pa.Array]:
    """Cut points on the key column with the most values, which spreads rows best."""
    table = pa.concat_tables(sample)
    columns = {name: canonical_keys(table.column(name), table.schema.field(name).type) for name in key_columns}
    name = max(columns, key=lambda n: len(pc.unique(columns[n])))
    values = pc.unique(columns[name].drop_null())
    ordered = values.take(pc.sort_indices(values))
    count = min(most, max(1, len(ordered)))
    return name, ordered.take(pa.array(np.linspace(0, len(ordered), count, endpoint=False).astype(np.int64)[1:]))


def cut_by_key(points: tuple[str, pa.Array], schema: pa.Schema) -> Cut:
    name, cuts = points
    type_ = schema.field(name).type

    def homes(table: pa.Table, _: int) -> np.ndarray:
        keys = contiguous(canonical_keys(table.column(name), type_))
        return KeyIndex.places(cuts, keys) if len(cuts) else np.zeros(len(keys), np.int64)

    return len(cuts) + 1, homes


def cut_by_arrival(count: int, rows: int) -> Cut:
    step = -(-rows // count)
    return count, lambda table, first: (first + np.arange(table.num_rows)) // step


def _cut(raw: str, directory: str, schema: pa.Schema, cut: Cut) -> list[_Bucket]:
    count, homes_of = cut
    paths = [os.path.join(directory, f"{i}.arrow") for i in range(count)]
    counts = [0] * count
    first = 0
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(pa.OSFile(raw))
        sinks = [stack.enter_context(pa.OSFile(path, "wb")) for path in paths]
        writers = [stack.enter_context(pa.ipc.new_stream(sink, schema)) for sink in sinks]
        for batch in stack.enter_context(pa.ipc.open_stream(file)):
            table = pa.Table.from_batches([batch])
            homes = homes_of(table, first)
            first += table.num_rows
            for home in np.unique(homes):
                part = take_rows(table, np.flatnonzero(homes == home))
                writers[home].write_table(part)
                counts[home] += part.num_rows
    return [_Bucket(None, path, rows) for path, rows in zip(paths, counts, strict=True) if rows]
