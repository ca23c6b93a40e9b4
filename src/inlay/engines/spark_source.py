"""A source that stays with the executors: DataFrames and files whose rows are too many for the driver.

Its life is a chain of jobs, each of which leaves files in a scratch directory beside the dataset:

ingest   every partition of the DataFrame, or some row groups, in the dataset's types, with a sample of the keys
split    every such file cut into ranges of keys (buckets); the keys once more on their own
index    every bucket's keys, sorted, and what the driver must know about them
reduce   one row per key, for the strategy that asks for it

Rows are numbered bucket after bucket, inside a bucket in the order of the DataFrame's partitions or of the files, so
that the order of the source is what Spark or the path gives, whatever task runs first. The driver knows counts, where
pieces lie, and of the keys the ends of some hundred runs per bucket.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from inlay.engines.arrays import take_rows
from inlay.engines.base import Conform
from inlay.engines.buckets import Cut, cut_by_arrival, cut_by_key, last_per_key, splitters
from inlay.engines.exchange import Piece, PieceWriter, Scratch, pack, slabs, unpack
from inlay.engines.key_faults import NullKeys, Repeats, joined_nulls, joined_repeats, null_keys, repeated_keys
from inlay.engines.keys import KeyIndex, KeyRuns, canonical_keys
from inlay.engines.spark_tasks import answer_batch, use_credentials
from inlay.errors import InlayError

__all__ = ["Ingest", "Ingested", "SparkFrame", "StoredKeys", "StoredSource", "make_buckets", "sorted_keys"]

BUCKET_BYTES = 32 << 20
_MOST_BUCKETS = 4096
_PIECE_BYTES = 8 << 20
_INLINE_BYTES = 128 << 10
_SAMPLED_EVERY, _MOST_SAMPLED = 200, 4096
_RUNS = 512
_INDEX_ROWS = 4_000_000  # keys searched for at a time

Run = Callable[[Any, Sequence[Any]], Iterator[Any]]  # a kernel and its tasks; answers in order


class SparkFrame(NamedTuple):
    """A Spark DataFrame as a source."""

    frame: Any
    schema: pa.Schema

    @classmethod
    def of(cls, frame: Any) -> SparkFrame:
        from pyspark.sql.pandas.types import to_arrow_schema

        zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")  # pyspark's own stream of batches forgets it
        return cls(frame, to_arrow_schema(frame.schema, timezone=zone))

    def reader(self) -> pa.RecordBatchReader:
        """Its rows in this process, one partition at a time."""
        packed = self.frame.mapInArrow(_packed_batches, "payload binary").toLocalIterator()
        batches = (batch for row in packed for batch in unpack(bytes(row.payload)).cast(self.schema).to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)


def _packed_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([pack(pa.Table.from_batches([batch]))], pa.binary())], ["payload"])


# ---------------------------------------------------------------------------------------------------------- ingest
class Ingested(NamedTuple):
    """What a partition of the source became: a few rows that travel along, or pieces of a file."""

    rows: int
    size: int
    inline: bytes | None
    pieces: list[Piece]
    sample: bytes | None
    nulls: list[NullKeys]


@dataclass(frozen=True)
class Ingest:
    """What Spark calls with a partition."""

    conform: Conform
    key_columns: list[str]
    scratch: Scratch
    credentials: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        use_credentials(self.credentials)
        partition = TaskContext.get().partitionId()  # type: ignore[union-attr]
        try:
            answer: Any = self.take_in(batches)
        except InlayError as error:  # trying again would say the same
            answer = error
            for _ in batches:  # Spark wants its partition to be read
                pass
        if not isinstance(answer, Ingested) or answer.rows:
            yield answer_batch(partition, answer)

    def take_in(self, batches: Iterator[pa.RecordBatch]) -> Ingested:
        tables = self._gathered(batches)
        first = next(tables, None)
        if first is None:
            return Ingested(0, 0, None, [], None, [])
        second = next(tables, None)
        if second is None and first.nbytes <= _INLINE_BYTES:
            nulls = null_keys(first.select(self.key_columns))
            return Ingested(first.num_rows, first.nbytes, pack(first), [], None, nulls)
        return self._lay_down(itertools.chain([first], [] if second is None else [second], tables))

    def _lay_down(self, tables: Iterable[pa.Table]) -> Ingested:
        pieces, samples, nulls, rows, size = [], [], [], 0, 0
        with PieceWriter(self.scratch, "in") as out:
            for table in tables:
                pieces.append(out.add(table))
                if self.key_columns:
                    keys = table.select(self.key_columns)
                    samples.append(take_rows(keys, np.arange(0, len(table), _SAMPLED_EVERY)))
                    nulls.append(null_keys(keys, rows))
                rows, size = rows + table.num_rows, size + table.nbytes
        return Ingested(rows, size, None, pieces, _thinned(samples), joined_nulls(nulls, self.key_columns))

    def _gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Rows in the dataset's types, in pieces worth writing."""
        waiting: list[pa.Table] = []
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            waiting.append(self.conform(pa.Table.from_batches([batch])))
            size += waiting[-1].nbytes
            if size >= _PIECE_BYTES:
                yield pa.concat_tables(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.concat_tables(waiting)


def _thinned(samples: list[pa.Table]) -> bytes | None:
    if not samples:
        return None
    sample = pa.concat_tables(samples)
    step = -(-len(sample) // _MOST_SAMPLED)
    return pack(take_rows(sample, np.arange(0, len(sample), step)))


# --------------------------------------------------------------------------------------------------------- buckets
@dataclass(frozen=True, slots=True)
class _Bucket:
    """Where the rows and the keys of a bucket lie, and what its keys are like."""

    rows: list[Piece]
    keys: list[Piece]
    index: Piece | None
    runs: KeyRuns
    repeats: Repeats

    @property
    def num_rows(self) -> int:
        return sum(piece.rows for piece in self.rows)


_NO_KEYS = KeyRuns([], []), Repeats(0, pa.table({}))


def make_buckets(
    run: Run, ingested: Sequence[Ingested], schema: pa.Schema, key_columns: Sequence[str], scratch: Scratch
) -> StoredSource:
    """Cut what was taken in into buckets that fit in memory one by one."""
    files = [_as_pieces(part, scratch) for part in ingested]
    rows, size = sum(part.rows for part in ingested), sum(part.size for part in ingested)
    count = min(max(1, size // BUCKET_BYTES), _MOST_BUCKETS)
    search = list(key_columns)
    cut = cut_by_arrival(count, rows)
    if key_columns:
        points = splitters(_samples(ingested, key_columns), key_columns, count)
        cut = cut_by_key(points, schema)
        # in this order, the sorted keys of one bucket after the other are sorted
        search = [points[0], *(name for name in key_columns if name != points[0])]
    firsts = list(itertools.accumulate((part.rows for part in ingested), initial=0))
    pieces: list[tuple[list[Piece], list[Piece]]] = [([], []) for _ in range(cut[0])]
    for split in run(_Split(scratch, cut, list(key_columns)), list(zip(firsts, files, strict=False))):
        for home, piece, keys in split:
            pieces[home][0].append(piece)
            pieces[home][1].extend([keys] if keys else [])
    for path in {piece.path for file in files for piece in file}:
        scratch.store.remove(path)
    index = _Index(scratch, schema, list(key_columns), search)
    filled = [bucket for bucket in pieces if bucket[0]]
    buckets = list(run(index, filled)) if key_columns else [_Bucket(*bucket, None, *_NO_KEYS) for bucket in filled]
    nulls = [[n._replace(row=first + n.row) for n in p.nulls] for first, p in zip(firsts, ingested, strict=False)]
    return StoredSource(run, index, buckets, rows, joined_nulls(nulls, key_columns))


def _as_pieces(part: Ingested, scratch: Scratch) -> list[Piece]:
    return part.pieces if part.inline is None else [scratch.write("in", unpack(part.inline))]


def _samples(ingested: Sequence[Ingested], key_columns: Sequence[str]) -> list[pa.Table]:
    found = [unpack(part.sample) for part in ingested if part.sample is not None]
    return found + [unpack(part.inline).select(key_columns) for part in ingested if part.inline is not None]


@dataclass(frozen=True)
class _Split:
    """Cut a file into buckets: one piece for each of them out of as many rows as fit in memory."""

    scratch: Scratch
    cut: Cut
    key_columns: list[str]

    def __call__(self, task: tuple[int, list[Piece]]) -> list[tuple[int, Piece, Piece | None]]:
        first, pieces = task
        found = []
        with PieceWriter(self.scratch, "rows") as rows, PieceWriter(self.scratch, "keys") as keys:
            for table in slabs(self.scratch, pieces):
                homes = self.cut[1](table, first)
                first += table.num_rows
                order = np.argsort(homes, kind="stable")
                for home, part in _by(homes[order], take_rows(table.combine_chunks(), order)):
                    key_piece = keys.add(part.select(self.key_columns)) if self.key_columns else None
                    found.append((home, rows.add(part), key_piece))
        return found


def _by(sorted_numbers: np.ndarray, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Rows of equal numbers."""
    numbers, starts = np.unique(sorted_numbers, return_index=True)
    for number, (start, end) in zip(numbers, itertools.pairwise([*starts, len(sorted_numbers)]), strict=True):
        yield int(number), table.slice(int(start), int(end - start))


@dataclass(frozen=True)
class _Index:
    """Sort the keys of a bucket, and sum them up."""

    scratch: Scratch
    schema: pa.Schema
    key_columns: list[str]
    search_columns: list[str]

    def __call__(self, task: tuple[list[Piece], list[Piece]]) -> _Bucket:
        rows, pieces = task
        return self.of(rows, pieces, pa.concat_tables([self.scratch.read(piece) for piece in pieces]))

    def of(self, rows: list[Piece], pieces: list[Piece], keys: pa.Table) -> _Bucket:
        search = self.search_columns
        index = KeyIndex([canonical_keys(keys.column(name), self.schema.field(name).type) for name in search])
        piece = self.scratch.write("index", sorted_keys(index))
        lows, highs = index.runs(_RUNS)
        order = [search.index(name) for name in self.key_columns]
        runs = KeyRuns([lows[at] for at in order], [highs[at] for at in order])
        return _Bucket(rows, pieces, piece, runs, repeated_keys(keys.select(self.key_columns), index.repeated()))


@dataclass(frozen=True)
class _Reduce:
    """Write the rows of a bucket that stay."""

    index: _Index
    order_by: list[str]

    def __call__(self, bucket: _Bucket) -> _Bucket:
        scratch, key_columns = self.index.scratch, self.index.key_columns
        wanted = list(dict.fromkeys([*key_columns, *self.order_by]))
        deciding = pa.concat_tables([scratch.read(piece).select(wanted) for piece in bucket.rows])
        stays = np.zeros(deciding.num_rows, np.bool_)
        stays[last_per_key(deciding, key_columns, self.order_by)] = True
        del deciding
        rows, keys, kept, first = [], [], [], 0
        with PieceWriter(scratch, "rows") as out, PieceWriter(scratch, "keys") as key_out:
            for piece in bucket.rows:
                here = np.flatnonzero(stays[first : first + piece.rows])
                first += piece.rows
                if len(here):
                    table = take_rows(scratch.read(piece), here)
                    rows.append(out.add(table))
                    kept.append(table.select(key_columns))
                    keys.append(key_out.add(kept[-1]))
        return self.index.of(rows, keys, pa.concat_tables(kept))


@dataclass(frozen=True)
class _Column:
    """One column of a bucket; few distinct values take little room."""

    scratch: Scratch
    name: str

    def __call__(self, pieces: list[Piece]) -> bytes:
        return pack(pa.concat_tables([self.scratch.read(piece).select([self.name]) for piece in pieces]))


# ---------------------------------------------------------------------------------------------------------- source
class StoredSource:
    """Source rows that lie in a store; what is done with them is done by jobs."""

    def __init__(
        self, run: Run, index: _Index, stored: Sequence[_Bucket], given: int, nulls: Sequence[NullKeys]
    ) -> None:
        self.run, self._index = run, index
        self.scratch, self.schema, self.key_columns = index.scratch, index.schema, index.key_columns
        self.num_given = given  # rows as given, before deduplication
        self.null_keys = list(nulls)
        self._take_over(stored)

    def _take_over(self, stored: Sequence[_Bucket]) -> None:
        self.stored = list(stored)
        self.starts = np.concatenate([[0], np.cumsum([b.num_rows for b in self.stored])]).astype(np.int64)
        self.num_rows = int(self.starts[-1])

    def repeated_keys(self) -> Repeats:
        return joined_repeats([bucket.repeats for bucket in self.stored])

    @property
    def keys(self) -> StoredKeys:
        """The sorted keys, for tasks that look for them."""
        groups: list[list[tuple[int, Piece]]] = [[]]
        rows = 0
        for start, bucket in zip(self.starts[:-1], self.stored, strict=True):
            if bucket.index is None:
                continue
            if rows + bucket.num_rows > _INDEX_ROWS and groups[-1]:
                groups.append([])
                rows = 0
            groups[-1].append((int(start), bucket.index))
            rows += bucket.num_rows
        return StoredKeys(self.scratch, self.schema, self._index.search_columns, groups)

    def indexes(self) -> Iterator[tuple[int, KeyRuns]]:
        for start, bucket in zip(self.starts[:-1], self.stored, strict=True):
            yield int(start), bucket.runs

    def column(self, name: str) -> pa.ChunkedArray:
        tables = [unpack(packed) for packed in self.run(_Column(self.scratch, name), [b.rows for b in self.stored])]
        chunks = [chunk for table in tables for chunk in table.column(name).chunks]
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows by number, in the order asked for; meant for few rows or columns."""
        names = list(columns or self.schema.names)
        pieces = [piece for bucket in self.stored for piece in bucket.rows]
        starts = np.concatenate([[0], np.cumsum([piece.rows for piece in pieces])]).astype(np.int64)
        homes = np.searchsorted(starts, rows, side="right") - 1
        parts, order = [self.schema.empty_table().select(names)], []
        for home in np.unique(homes):
            mine = np.flatnonzero(homes == home)
            parts.append(take_rows(self.scratch.read(pieces[home]).select(names), rows[mine] - starts[home]))
            order.append(mine)
        place = np.empty(len(rows), np.int64)
        place[np.concatenate([np.empty(0, np.int64), *order])] = np.arange(len(rows))
        return take_rows(pa.concat_tables(parts), place)

    def reduce(self, order_by: Sequence[str]) -> None:
        """Keep one row per key: the last by `order_by`, NULLs lowest, ties by source order."""
        before = {piece.path for bucket in self.stored for piece in [*bucket.rows, *bucket.keys, bucket.index] if piece}
        self._take_over(list(self.run(_Reduce(self._index, list(order_by)), self.stored)))
        for path in before:
            self.scratch.store.remove(path)

    def close(self) -> None:
        self.scratch.remove()


def sorted_keys(index: KeyIndex) -> pa.Table:
    """Keys as tasks get them, with the rows they come from."""
    numbers = index.rows(np.arange(len(index))).astype(np.int32)
    names = [str(at) for at in range(len(index.columns))]
    return pa.table([*index.columns, pa.array(numbers)], [*names, "row"])


@dataclass(frozen=True)
class StoredKeys:
    """Sorted keys in the store, read where and when they are searched for."""

    scratch: Scratch
    schema: pa.Schema
    columns: list[str]
    groups: list[list[tuple[int, Piece]]]

    def indexes(self) -> Iterator[tuple[int, KeyIndex]]:
        for group in self.groups:
            tables = [self.scratch.read(piece) for _, piece in group]
            rows = [
                t.column("row").to_numpy().astype(np.int64) + start for t, (start, _) in zip(tables, group, strict=True)
            ]
            if tables:
                keys = pa.concat_tables(tables).drop_columns("row")
                yield 0, KeyIndex(keys.columns, rows=np.concatenate(rows))
