"""The loaded source of a merge: rows in the dataset's types with their key index, in memory or on disk."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy, to_numpy
from inlay.engines.base import Conform, RowNumbers
from inlay.engines.columns import take_rows
from inlay.engines.files import unreadable_source
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
from inlay.pyarrow_features import byte_size, sort_nulls_first

__all__ = ["ArrowSource", "load_small_source", "load_source"]

Integers = npt.NDArray[np.int64]

_BATCH_ROWS = 32_768
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
    rows = to_numpy(order).astype(np.int64)
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
        except MemoryError:
            raise
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
    return name, ordered.take(from_numpy(np.linspace(0, len(ordered), count, endpoint=False).astype(np.int64)[1:]))


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
