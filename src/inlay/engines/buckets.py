"""The rows of a merge, taken in: in memory or, when there are many, on disk in ranges of keys.

A source on disk is cut into buckets by key, so that each fits in memory by itself and all rows of one key lie in
the same bucket. A source in memory is one bucket.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.arrays import take_rows
from inlay.engines.base import Conform
from inlay.engines.key_faults import NullKeys, Repeats, joined_nulls, joined_repeats, null_keys, repeated_keys
from inlay.engines.keys import KeyIndex, canonical_keys, contiguous, sortable_values
from inlay.engines.source import BATCH_ROWS
from inlay.engines.source_faults import unreadable

__all__ = ["ArrowSource", "load_source"]

SPILL_BYTES = 64 << 20
_BUCKET_BYTES = 32 << 20
_MOST_BUCKETS = 400  # each is an open file while the source is cut
_SAMPLE, _SAMPLED_EVERY = 500, 200


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
    """Rows in memory, or in an Arrow file that is looked into when needed."""

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
        table = self._stored(columns)
        return table if self._kept is None else take_rows(table, self._kept)

    def _stored(self, columns: Sequence[str] | None) -> pa.Table:
        """Also the rows that `keep` left out. Read, not mapped: mapped pages would count as memory of ours."""
        table = self._table
        if table is None:
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

    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        if self._kept is not None:
            rows = self._kept[rows]
        if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
            return self._stored(columns).slice(int(rows[0]), len(rows))
        if self._table is not None:  # taking from one chunk is much cheaper than from many
            self._table = self._table.combine_chunks()
        return take_rows(self._stored(columns), rows)

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
        writer.write_table(table, max_chunksize=BATCH_ROWS)
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
