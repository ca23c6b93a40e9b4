"""Sources that are too large for the driver, so that only executors read them.

A chain of jobs writes files to a scratch directory beside the dataset:

ingest   write each partition of the DataFrame, or some row groups, in the dataset's types, and sample its keys
split    split each of these files into ranges of keys (buckets), and write the keys to files of their own
index    sort the keys of each bucket, and summarize them for the driver
reduce   keep one row per key, for the strategy `deduplicate`

Rows are numbered bucket after bucket, and within a bucket in the order of the DataFrame's partitions or of the files.
So the numbers do not depend on the order in which tasks run. The driver knows the counts, the location of the pieces,
and the bounds of some hundred runs of keys per bucket.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from inlay.engines.base import Conform, RowNumbers
from inlay.engines.columns import take_rows
from inlay.engines.files import scan_fragments, unreadable_source
from inlay.engines.keys import (
    KeyIndex,
    KeyRuns,
    NullKeys,
    Repeats,
    canonical_keys,
    find_null_keys,
    find_repeats,
    join_null_keys,
    join_repeats,
)
from inlay.engines.source import (
    Bucketing,
    bucket_by_key,
    bucket_by_position,
    last_per_key,
    split_points,
)
from inlay.engines.spark.tasks import (
    Piece,
    PieceWriter,
    Scratch,
    pack,
    read_slabs,
    result_batch,
    unpack,
    use_credentials,
)
from inlay.engines.streams import open_rows
from inlay.errors import InlayError
from inlay.pyarrow_features import byte_size

__all__ = [
    "Ingest",
    "IngestFiles",
    "Ingested",
    "ParquetFiles",
    "SparkFrame",
    "StoredKeys",
    "StoredSource",
    "make_buckets",
    "sorted_keys",
]


BUCKET_BYTES = 32 << 20
_MAX_BUCKETS = 4096
_PIECE_BYTES = 8 << 20
_INLINE_BYTES = 128 << 10
_SAMPLE_STEP, _MAX_SAMPLE_ROWS = 200, 4096
_RUNS = 512
_INDEX_ROWS = 4_000_000  # keys that a task searches at a time
_TASK_BYTES = 32 << 20


class Run(Protocol):
    """Runs a kernel on tasks that process `size` bytes, and yields the results in order."""

    def __call__(self, kernel: Any, tasks: Sequence[Any], size: int | None = None, /) -> Iterator[Any]: ...


class SparkFrame(NamedTuple):
    """A Spark DataFrame as a source."""

    frame: Any
    schema: pa.Schema

    @classmethod
    def of(cls, frame: Any) -> SparkFrame:
        from pyspark.sql.pandas.types import to_arrow_schema

        zone = frame.sparkSession.conf.get("spark.sql.session.timeZone")  # pyspark's batches lack the time zone
        return cls(frame, to_arrow_schema(frame.schema, timezone=zone))

    def reader(self) -> pa.RecordBatchReader:
        """Read the rows in this process, one partition at a time."""
        packed = self.frame.mapInArrow(_pack_batches, "payload binary").toLocalIterator()
        batches = (batch for row in packed for batch in unpack(bytes(row.payload)).cast(self.schema).to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)


def _pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pa.array([pack(pa.Table.from_batches([batch]))], pa.binary())], ["payload"])


# ---------------------------------------------------------------------------------------------------------- ingest
class Ingested(NamedTuple):
    """An ingested partition: `inline` if it has few rows, otherwise pieces of a file."""

    rows: int
    size: int
    inline: bytes | None
    pieces: list[Piece]
    sample: bytes | None
    nulls: list[NullKeys]


@dataclass(frozen=True)
class Ingest:
    """The function that Spark calls with the batches of a partition."""

    conform: Conform
    key_columns: list[str]
    scratch: Scratch
    credentials: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        use_credentials(self.credentials)
        partition = TaskContext.get().partitionId()  # type: ignore[union-attr]
        try:
            result: Any = self.ingest(batches)
        except InlayError as error:  # raised by the driver, because another attempt would fail too
            result = error
            for _ in batches:  # Spark requires that the whole partition is read
                pass
        if not isinstance(result, Ingested) or result.rows:
            yield result_batch(partition, result)

    def ingest(self, batches: Iterator[pa.RecordBatch]) -> Ingested:
        tables = self._conformed_tables(batches)
        first = next(tables, None)
        if first is None:
            return Ingested(0, 0, None, [], None, [])
        second = next(tables, None)
        if second is None and byte_size(first) <= _INLINE_BYTES:
            nulls = find_null_keys(first.select(self.key_columns))
            return Ingested(first.num_rows, byte_size(first), pack(first), [], None, nulls)
        return self._write(itertools.chain([first], [] if second is None else [second], tables))

    def _write(self, tables: Iterable[pa.Table]) -> Ingested:
        pieces, samples, nulls, rows, size = [], [], [], 0, 0
        with PieceWriter(self.scratch, "in") as out:
            for table in tables:
                pieces.append(out.add(table))
                if self.key_columns:
                    keys = table.select(self.key_columns)
                    samples.append(take_rows(keys, np.arange(0, len(table), _SAMPLE_STEP)))
                    nulls.append(find_null_keys(keys, rows))
                rows, size = rows + table.num_rows, size + byte_size(table)
        return Ingested(rows, size, None, pieces, _pack_sample(samples), join_null_keys(nulls, self.key_columns))

    def _conformed_tables(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
        """Yield rows in the dataset's types, in tables of about `_PIECE_BYTES`."""
        pending: list[pa.Table] = []
        size = 0
        for batch in batches:
            if not batch.num_rows:
                continue
            pending.append(self.conform(pa.Table.from_batches([batch])))
            size += byte_size(pending[-1])
            if size >= _PIECE_BYTES:
                yield pa.concat_tables(pending)
                pending, size = [], 0
        if pending:
            yield pa.concat_tables(pending)


def _pack_sample(samples: list[pa.Table]) -> bytes | None:
    if not samples:
        return None
    sample = pa.concat_tables(samples)
    step = -(-len(sample) // _MAX_SAMPLE_ROWS)
    return pack(take_rows(sample, np.arange(0, len(sample), step)))


# --------------------------------------------------------------------------------------------------------- buckets
@dataclass(frozen=True, slots=True)
class _Bucket:
    """The pieces with the rows and the keys of a bucket, and a summary of its keys."""

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
    """Split ingested rows into buckets, each of which fits in memory."""
    files = [_as_pieces(part, scratch) for part in ingested]
    rows, size = sum(part.rows for part in ingested), sum(part.size for part in ingested)
    count = min(max(1, size // BUCKET_BYTES), _MAX_BUCKETS)
    search = list(key_columns)
    bucketing = bucket_by_position(count, rows)
    if key_columns:
        points = split_points(_samples(ingested, key_columns), key_columns, count)
        bucketing = bucket_by_key(points, schema)
        # With the splitting column first, the sorted keys of all buckets together are sorted.
        search = [points[0], *(name for name in key_columns if name != points[0])]
    firsts = list(itertools.accumulate((part.rows for part in ingested), initial=0))
    pieces: list[tuple[list[Piece], list[Piece]]] = [([], []) for _ in range(bucketing.count)]
    for split in run(_Split(scratch, bucketing, list(key_columns)), list(zip(firsts, files, strict=False))):
        for number, piece, keys in split:
            pieces[number][0].append(piece)
            pieces[number][1].extend([keys] if keys else [])
    for path in {piece.path for file in files for piece in file}:
        scratch.store.remove(path)
    index = _Index(scratch, schema, list(key_columns), search)
    filled = [bucket for bucket in pieces if bucket[0]]
    buckets = list(run(index, filled)) if key_columns else [_Bucket(*bucket, None, *_NO_KEYS) for bucket in filled]
    nulls = [[n._replace(row=first + n.row) for n in p.nulls] for first, p in zip(firsts, ingested, strict=False)]
    return StoredSource(run, index, buckets, rows, join_null_keys(nulls, key_columns))


def _as_pieces(part: Ingested, scratch: Scratch) -> list[Piece]:
    return part.pieces if part.inline is None else [scratch.write("in", unpack(part.inline))]


def _samples(ingested: Sequence[Ingested], key_columns: Sequence[str]) -> list[pa.Table]:
    found = [unpack(part.sample) for part in ingested if part.sample is not None]
    return found + [unpack(part.inline).select(key_columns) for part in ingested if part.inline is not None]


@dataclass(frozen=True)
class _Split:
    """Split a file into buckets: one piece per bucket for every slab of rows."""

    scratch: Scratch
    bucketing: Bucketing
    key_columns: list[str]

    def __call__(self, task: tuple[int, list[Piece]]) -> list[tuple[int, Piece, Piece | None]]:
        first, pieces = task
        found = []
        with PieceWriter(self.scratch, "rows") as rows, PieceWriter(self.scratch, "keys") as keys:
            for table in read_slabs(self.scratch, pieces):
                numbers = self.bucketing.assign(table, first)
                first += table.num_rows
                order = np.argsort(numbers, kind="stable")
                for number, part in _group_rows(numbers[order], take_rows(table.combine_chunks(), order)):
                    key_piece = keys.add(part.select(self.key_columns)) if self.key_columns else None
                    found.append((number, rows.add(part), key_piece))
        return found


def _group_rows(sorted_numbers: RowNumbers, table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each number with its rows."""
    numbers, starts = np.unique(sorted_numbers, return_index=True)
    for number, (start, end) in zip(numbers, itertools.pairwise([*starts, len(sorted_numbers)]), strict=True):
        yield int(number), table.slice(int(start), int(end - start))


@dataclass(frozen=True)
class _Index:
    """Sort the keys of a bucket, and summarize them."""

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
        return _Bucket(rows, pieces, piece, runs, find_repeats(keys.select(self.key_columns), index.repeated()))


@dataclass(frozen=True)
class _Reduce:
    """Write the last row of each key of a bucket."""

    index: _Index
    order_by: list[str]

    def __call__(self, bucket: _Bucket) -> _Bucket:
        scratch, key_columns = self.index.scratch, self.index.key_columns
        wanted = list(dict.fromkeys([*key_columns, *self.order_by]))
        ordering = pa.concat_tables([scratch.read(piece).select(wanted) for piece in bucket.rows])
        is_last = np.zeros(ordering.num_rows, np.bool_)
        is_last[last_per_key(ordering, key_columns, self.order_by)] = True
        del ordering  # frees its memory before rows are read
        rows, keys, kept, first = [], [], [], 0
        with PieceWriter(scratch, "rows") as out, PieceWriter(scratch, "keys") as key_out:
            for piece in bucket.rows:
                chosen = np.flatnonzero(is_last[first : first + piece.rows])
                first += piece.rows
                if len(chosen):
                    table = take_rows(scratch.read(piece), chosen)
                    rows.append(out.add(table))
                    kept.append(table.select(key_columns))
                    keys.append(key_out.add(kept[-1]))
        return self.index.of(rows, keys, pa.concat_tables(kept))


@dataclass(frozen=True)
class _Column:
    """Read one column of a bucket, compressed because many values may repeat."""

    scratch: Scratch
    name: str

    def __call__(self, pieces: list[Piece]) -> bytes:
        return pack(pa.concat_tables([self.scratch.read(piece).select([self.name]) for piece in pieces]))


# ---------------------------------------------------------------------------------------------------------- source
class StoredSource:
    """Source rows in a store. Jobs do all work on them."""

    def __init__(
        self, run: Run, index: _Index, buckets: Sequence[_Bucket], input_rows: int, nulls: Sequence[NullKeys]
    ) -> None:
        self.run, self._index = run, index
        self.scratch, self.schema, self.key_columns = index.scratch, index.schema, index.key_columns
        self.input_rows = input_rows  # before `reduce`
        self.null_keys = list(nulls)
        self._set_buckets(buckets)

    def _set_buckets(self, buckets: Sequence[_Bucket]) -> None:
        self.buckets = list(buckets)
        self.starts = np.concatenate([[0], np.cumsum([b.num_rows for b in self.buckets])]).astype(np.int64)
        self.num_rows = int(self.starts[-1])

    def repeated_keys(self) -> Repeats:
        return join_repeats([bucket.repeats for bucket in self.buckets])

    @property
    def keys(self) -> StoredKeys:
        """The sorted keys, for tasks that search them."""
        groups: list[list[tuple[int, Piece]]] = [[]]
        rows = 0
        for start, bucket in zip(self.starts[:-1], self.buckets, strict=True):
            if bucket.index is None:
                continue
            if rows + bucket.num_rows > _INDEX_ROWS and groups[-1]:
                groups.append([])
                rows = 0
            groups[-1].append((int(start), bucket.index))
            rows += bucket.num_rows
        return StoredKeys(self.scratch, self.schema, self._index.search_columns, groups)

    def indexes(self) -> Iterator[tuple[int, KeyRuns]]:
        for start, bucket in zip(self.starts[:-1], self.buckets, strict=True):
            yield int(start), bucket.runs

    def column(self, name: str) -> pa.ChunkedArray:
        tables = [unpack(packed) for packed in self.run(_Column(self.scratch, name), [b.rows for b in self.buckets])]
        chunks = [chunk for table in tables for chunk in table.column(name).chunks]
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def take(self, rows: RowNumbers, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a few rows or columns by row number, in the order of `rows`."""
        names = list(columns or self.schema.names)
        pieces = [piece for bucket in self.buckets for piece in bucket.rows]
        starts = np.concatenate([[0], np.cumsum([piece.rows for piece in pieces])]).astype(np.int64)
        numbers = np.searchsorted(starts, rows, side="right") - 1
        parts, order = [self.schema.empty_table().select(names)], []
        for number in np.unique(numbers):
            wanted = np.flatnonzero(numbers == number)
            parts.append(take_rows(self.scratch.read(pieces[number]).select(names), rows[wanted] - starts[number]))
            order.append(wanted)
        positions = np.empty(len(rows), np.int64)
        positions[np.concatenate([np.empty(0, np.int64), *order])] = np.arange(len(rows))
        return take_rows(pa.concat_tables(parts), positions)

    def reduce(self, order_by: Sequence[str]) -> None:
        """Keep one row per key: the last by `order_by`, NULLs lowest, ties by source order."""
        pieces = [piece for bucket in self.buckets for piece in [*bucket.rows, *bucket.keys, bucket.index] if piece]
        self._set_buckets(list(self.run(_Reduce(self._index, list(order_by)), self.buckets)))
        for path in {piece.path for piece in pieces}:
            self.scratch.store.remove(path)

    def close(self) -> None:
        self.scratch.remove()


def sorted_keys(index: KeyIndex) -> pa.Table:
    """Return sorted keys with their source rows, as tasks read them."""
    numbers = index.rows(np.arange(len(index))).astype(np.int32)
    names = [str(at) for at in range(len(index.columns))]
    return pa.table([*index.columns, pa.array(numbers)], [*names, "row"])


@dataclass(frozen=True)
class StoredKeys:
    """Sorted keys in a store. Tasks read them to search them."""

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


# --------------------------------------------------------------------------------------------------- Parquet files
class ParquetFiles(NamedTuple):
    """A dataset of Parquet files, and the fragments that each task reads."""

    dataset: Any
    tasks: list[list[Any]]
    size: int  # in bytes, encoded

    @classmethod
    def of(cls, dataset: Any) -> ParquetFiles | None:
        """Return None if `dataset` is not a dataset of Parquet files."""
        import pyarrow.dataset as ds

        if not isinstance(dataset, ds.FileSystemDataset) or not isinstance(dataset.format, ds.ParquetFileFormat):
            return None
        fragments = list(dataset.get_fragments())
        with ThreadPoolExecutor(8, "inlay-source") as pool:  # reads every footer
            groups = list(pool.map(lambda fragment: fragment.row_groups, fragments))
        sizes = [(f, g.id, g.total_byte_size) for f, of_file in zip(fragments, groups, strict=True) for g in of_file]
        tasks = [[fragment.subset(row_group_ids=ids) for fragment, ids in task] for task in plan_row_groups(sizes)]
        return cls(dataset, tasks, sum(size for _, _, size in sizes))

    @property
    def schema(self) -> pa.Schema:
        return self.dataset.schema

    def reader(self) -> pa.RecordBatchReader:
        """Read the rows in this process."""
        return open_rows(self.dataset)


def plan_row_groups(groups: Sequence[tuple[Any, Any, int]]) -> list[list[tuple[Any, list[Any]]]]:
    """Assign adjacent row groups (fragment, number, size) to tasks of about `_TASK_BYTES`."""
    tasks: list[list[tuple[Any, list[Any]]]] = []
    task_bytes = _TASK_BYTES
    for fragment, group, size in groups:
        if task_bytes >= _TASK_BYTES:
            tasks.append([])
            task_bytes = 0
        if not tasks[-1] or tasks[-1][-1][0] is not fragment:
            tasks[-1].append((fragment, []))
        tasks[-1][-1][1].append(group)
        task_bytes += size
    return tasks


class _NoAccessError(Exception):
    """An executor cannot open a source file, for example because it is on the driver's disk."""


@dataclass(frozen=True)
class IngestFiles:
    """Ingest a task's row groups. Return None if the executor cannot open them."""

    ingest: Ingest
    schema: pa.Schema

    def __call__(self, fragments: Sequence[Any]) -> Ingested | None:
        try:
            return self.ingest.ingest(_read_batches(fragments, self.schema))
        except _NoAccessError:
            return None


def _read_batches(fragments: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        yield from scan_fragments(fragments, schema)
    except (FileNotFoundError, PermissionError) as error:
        raise _NoAccessError from error
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise unreadable_source(error) from error
