"""The Spark engine: Spark distributes, Arrow computes.

Every verb is a job of tasks that run the same kernels as the pyarrow engine, one task per file or bundle of small
files. Target data never enters a shuffle: tasks open files through `storage`. Source rows travel to the file they
belong to: those of a small source as Arrow bytes beside the task's description, those of a large DataFrame from task
to task through files in a scratch directory (`spark_source`, `exchange`), so that the driver sees only their numbers
and no value passes through Spark's own types again. Tasks may be tried again: a task writes under a name of its own
attempt and then renames.

Only what works under Spark Connect too is used: no RDD, no JVM gateway, no accumulators.
"""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from inlay.engines.base import (
    Append,
    Combine,
    Conform,
    FileEdit,
    FileMatch,
    GroupEdit,
    GroupMatch,
    Target,
    Watch,
    Written,
)
from inlay.engines.exchange import Attempt, Scratch, pack, unpack
from inlay.engines.kernels import append_rows, combine_files, rewrite_file
from inlay.engines.keys import KeyIndex
from inlay.engines.matching import match_files, open_target
from inlay.engines.source import ArrowSource, load_source, open_batches
from inlay.engines.spark_jobs import cancel_jobs, parallelism, watch
from inlay.engines.spark_session import get_session, ship_package
from inlay.engines.spark_source import Ingest, Ingested, SparkFrame, StoredSource, make_buckets
from inlay.engines.spark_stored import append_stored, match_stored, rewrite_stored
from inlay.errors import DatasetMergeError, InlayError
from inlay.parquet.footers import Footer, read_many, with_shared_schemas
from inlay.storage import FileStat, Location

__all__ = ["SparkEngine"]

_TASKS_PER_CORE = 4  # enough to level out files of different size, few enough not to pay for empty tasks
_FOOTERS_WORTH_A_JOB = 4_000
_SHIPPED_WITH_CODE = 2 << 20
_CHUNK_BYTES = 16 << 20  # source rows travel in pieces of this size
_WAVE_BYTES = 256 << 20  # so much of the source is on its way at a time
_DRIVER_BYTES = 64 << 20  # a DataFrame that is larger stays with the executors
_TASK_SCHEMA = pa.schema([("task", pa.int32()), ("part", pa.int32()), ("payload", pa.binary())])
_RESULT_SCHEMA = pa.schema([("task", pa.int32()), ("payload", pa.binary())])
_RESULT_DDL = "task int, payload binary"

Kernel = Callable[[Any, "_Rows"], Any]


class SparkEngine:
    name = "spark"

    def __init__(self, spark: Any = None, watch: Watch | None = None, location: Location | None = None) -> None:
        """`location` is where a merge goes to; large DataFrames are laid down beside it."""
        self._given, self._watch, self._location = spark, watch, location

    def watched(self, watch: Watch) -> SparkEngine:
        return SparkEngine(self._given, watch, self._location)

    def merging(self, location: Location, strategy: str) -> SparkEngine:  # noqa: ARG002  (any place, any strategy)
        return SparkEngine(self._given, self._watch, location)

    @property
    def spark(self) -> Any:
        session = self._given if self._given is not None else get_session()
        ship_package(session)
        return session

    # --------------------------------------------------------------------------------------------------- source
    def open(
        self, data: Any, like: pa.Schema | None, storage_options: Mapping[str, Any] | None
    ) -> pa.Table | pa.RecordBatchReader | SparkFrame:
        if hasattr(data, "mapInArrow"):
            return SparkFrame.of(data)
        return open_batches(data, like, storage_options)

    def load(self, data: Any, conform: Conform, key_columns: Sequence[str]) -> ArrowSource | StoredSource:
        if not isinstance(data, SparkFrame):
            return load_source(data, conform, key_columns)
        scratch = None if self._location is None else Scratch.beside(self._location)
        if scratch is None:
            return load_source(data.reader(), conform, key_columns)
        try:
            return self._load_frame(data, conform, list(key_columns), scratch)
        except BaseException:
            scratch.remove()
            raise

    def _load_frame(
        self, data: SparkFrame, conform: Conform, key_columns: list[str], scratch: Scratch
    ) -> ArrowSource | StoredSource:
        """One pass over the DataFrame, whatever its size; what turns out to be small goes on in the driver."""
        session = data.frame.sparkSession
        ship_package(session)
        ingest = Ingest(conform, key_columns, scratch, functools.partial(_use_credentials, _credentials()))
        parts: list[Ingested] = list(self._answers(session, data.frame.mapInArrow(ingest, _RESULT_DDL)))
        if sum(part.size for part in parts) > _DRIVER_BYTES:
            return make_buckets(self._run, parts, conform(data.schema.empty_table()).schema, key_columns, scratch)
        tables: list[pa.Table] = []
        for part in parts:
            tables += [unpack(part.inline)] if part.inline is not None else map(scratch.read, part.pieces)
        scratch.remove()
        whole = pa.concat_tables([conform(data.schema.empty_table()), *tables])
        return load_source(whole, lambda rows: rows, key_columns)

    # ---------------------------------------------------------------------------------------------------- verbs
    def footers(self, location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]:
        """A job costs a second or two: worth it from some thousands of footers on."""
        if len(files) < _FOOTERS_WORTH_A_JOB:
            return read_many(location, files, columns)
        read = self._run(_FooterKernel(location, list(columns)), self._bundles(files))
        return with_shared_schemas([footer for bundle in read for footer in bundle])

    def match(
        self,
        location: Location,
        source: ArrowSource | StoredSource,
        key_columns: Sequence[str],
        targets: Sequence[Target],
    ) -> Iterator[FileMatch]:
        """Sorted keys go to the tasks, only hits come back; of a source in the driver, bucket by bucket."""
        if isinstance(source, StoredSource):
            yield from match_stored(self._run, location, source, self._bundles(targets))
            return
        matches: dict[str, FileMatch] = {}
        for start, index in source.indexes():
            sorted_keys = pa.table(index.columns, [str(i) for i in range(len(index.columns))])
            keys = _ShippedKeys(source.schema, pack(sorted_keys))
            kernel = _MatchKernel(location, list(key_columns), keys)
            for bundle in self._run(kernel, self._bundles(targets)):
                for match in bundle:
                    _add(matches, match, index, start)
        for target in targets:
            yield matches[target.path]

    def rewrite(
        self, location: Location, source: ArrowSource | StoredSource, edits: Sequence[FileEdit], *, dry_run: bool
    ) -> Iterator[Written]:
        if isinstance(source, StoredSource):
            rows = sum(len(group.sources) for edit in edits for group in edit.groups)
            share = 0 if dry_run else max(1, rows // (2 * parallelism(self.spark)))
            yield from rewrite_stored(self._run, _RewriteKernel(location, dry_run), location, source, edits, share)
            return
        jobs = [(_without_sources(edit), _sources(edit)) for edit in edits]
        yield from self._run_with_rows(_RewriteKernel(location, dry_run), jobs, source)

    def append(
        self, location: Location, source: ArrowSource | StoredSource, appends: Sequence[Append]
    ) -> Iterator[Written]:
        if isinstance(source, StoredSource):
            yield from append_stored(self._run, _AppendKernel(location), source, appends)
            return
        jobs = [(replace(append, rows=np.arange(len(append.rows))), append.rows) for append in appends]
        yield from self._run_with_rows(_AppendKernel(location), jobs, source)

    def combine(self, location: Location, combines: Sequence[Combine]) -> Iterator[Written]:
        for bundle in self._run(_CombineKernel(location), [[job] for job in combines]):
            yield from bundle

    # ----------------------------------------------------------------------------------------------------- jobs
    def _bundles(self, items: Sequence[Any]) -> list[list[Any]]:
        """Neighbouring items, so many to a task that there are a few tasks for every core."""
        tasks = min(len(items), parallelism(self.spark) * _TASKS_PER_CORE) or 1
        bounds = np.linspace(0, len(items), tasks + 1).astype(int)
        return [list(items[a:b]) for a, b in itertools.pairwise(bounds) if b > a]

    def _run(self, kernel: Kernel, tasks: Sequence[Any]) -> Iterator[Any]:
        """Tasks without source rows; their results in order."""
        yield from self._job(kernel, [_Parcel(at, 0, pickle.dumps(task)) for at, task in enumerate(tasks)])

    def _run_with_rows(
        self, kernel: Kernel, jobs: Sequence[tuple[Any, np.ndarray]], source: ArrowSource
    ) -> Iterator[Any]:
        """Tasks with their source rows, in waves that bound what is on its way."""
        row_bytes = max(1, source.nbytes // max(source.num_rows, 1))
        step = max(1, _CHUNK_BYTES // row_bytes)
        wave: list[_Parcel] = []
        weight = task = 0
        for description, rows in jobs:
            wave.append(_Parcel(task, 0, pickle.dumps(description)))
            for part, start in enumerate(range(0, len(rows), step), 1):
                wave.append(_Parcel(task, part, pack(source.take(rows[start : start + step]))))
            task += 1
            weight += len(rows) * row_bytes
            if weight >= _WAVE_BYTES:
                yield from self._job(kernel, wave)
                wave, weight, task = [], 0, 0
        yield from self._job(kernel, wave)

    def _job(self, kernel: Kernel, parcels: Sequence[_Parcel]) -> Iterator[Any]:
        if not parcels:
            return
        tasks = parcels[-1].task + 1
        partitions = min(tasks, parallelism(self.spark) * _TASKS_PER_CORE)
        if sum(len(parcel.payload) for parcel in parcels) <= _SHIPPED_WITH_CODE:
            frame = self.spark.range(0, partitions, 1, partitions)
            runner: Any = _ShippedRunner(_Runner(kernel, _credentials()), partitions, list(parcels))
        else:
            frame = self._routed(parcels, partitions)
            runner = _Runner(kernel, _credentials())
        yield from self._answers(self.spark, frame.mapInArrow(runner, _RESULT_DDL))

    def _answers(self, spark: Any, frame: Any) -> Iterator[Any]:
        """What the tasks of a job say, in their order; the first error is raised."""
        results = self._collect(spark, frame)
        for at in np.argsort(results["task"].to_numpy(), kind="stable"):
            answer = pickle.loads(results["payload"][int(at)].as_py())  # noqa: S301  (our own tasks' answers)
            if isinstance(answer, InlayError):
                raise answer
            yield answer

    def _collect(self, spark: Any, frame: Any) -> pa.Table:
        """Run the job, telling how far it is; whoever watches can cancel it by raising."""
        tag = f"inlay-{uuid.uuid4().hex}"
        stopped: list[BaseException] = []

        def on_tasks(done: int, total: int) -> None:
            try:
                if self._watch is not None:
                    self._watch(done, total)
            except BaseException as error:
                stopped.append(error)
                cancel_jobs(spark, tag)
                raise

        try:
            with watch(spark, tag, on_tasks):
                return frame.toArrow()
        except Exception as error:
            if stopped:
                raise stopped[0] from error
            if not _is_from_spark(error):
                raise
            raise DatasetMergeError(f"The Spark job failed: {str(error).splitlines()[0]}", operation="spark") from error

    def _routed(self, parcels: Sequence[_Parcel], partitions: int) -> Any:
        """Every parcel on its way to the partition of its task, in order."""
        columns = [pa.array(c, f.type) for c, f in zip(zip(*parcels, strict=True), _TASK_SCHEMA, strict=True)]
        frame = self.spark.createDataFrame(pa.table(columns, schema=_TASK_SCHEMA))
        return frame.repartitionById(partitions, frame["task"] % partitions).sortWithinPartitions("task", "part")


# ------------------------------------------------------------------------------------------------------ on executors
def _credentials() -> dict[str, str]:
    """The driver's way into object stores, for executors that have none of their own."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def _use_credentials(given: Mapping[str, str]) -> None:
    for name, value in given.items():  # what the executor has of its own wins
        os.environ.setdefault(name, value)


def _is_from_spark(error: Exception) -> bool:
    return type(error).__module__.startswith(("pyspark.", "py4j.", "grpc"))


class _Rows:
    """The source rows that came with a task, in pieces; decoded one at a time."""

    def __init__(self, packed: Sequence[bytes]) -> None:
        self._packed = packed
        self._starts = [0, *itertools.accumulate(unpack(piece).num_rows for piece in packed)]
        self._open: tuple[int, pa.Table] | None = None

    def take(self, rows: np.ndarray) -> pa.Table:
        """Rows by number; they are asked for in order, so that a piece is decoded once."""
        first, last = int(rows[0]), int(rows[-1])
        pieces = []
        for at, start in enumerate(self._starts[:-1]):
            end = self._starts[at + 1]
            if start <= last and first < end:
                piece = self._piece(at)
                low, high = max(first, start), min(last + 1, end)
                pieces.append(piece.slice(low - start, high - low))
        return pa.concat_tables(pieces)

    def _piece(self, at: int) -> pa.Table:
        if self._open is None or self._open[0] != at:
            self._open = (at, unpack(self._packed[at]))
        return self._open[1]


class _Parcel(NamedTuple):
    """A piece of a task: first its description, then source rows in order."""

    task: int
    part: int
    payload: bytes


@dataclass(frozen=True)
class _ShippedRunner:
    """Tasks that are small enough to travel with the code: no shuffle."""

    runner: _Runner
    partitions: int
    parcels: list[_Parcel]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                mine = (parcel for parcel in self.parcels if parcel.task % self.partitions == partition)
                yield from self.runner.answers(mine)


@dataclass(frozen=True)
class _Runner:
    """What Spark calls with a partition: its tasks one after the other, each with its rows."""

    kernel: Kernel
    credentials: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parcels = (
            _Parcel(*row) for batch in batches for row in zip(*(c.to_pylist() for c in batch.columns), strict=True)
        )
        return self.answers(parcels)

    def answers(self, parcels: Iterable[_Parcel]) -> Iterator[pa.RecordBatch]:
        _use_credentials(self.credentials)
        for task, mine in itertools.groupby(parcels, key=lambda parcel: parcel.task):
            first, *others = (parcel.payload for parcel in mine)
            yield self._answer(task, pickle.loads(first), _Rows(others))  # noqa: S301  (our own driver's request)

    def _answer(self, task: int, description: Any, rows: _Rows) -> pa.RecordBatch:
        try:
            answer: Any = self.kernel(description, rows)
        except InlayError as error:  # trying again would say the same
            answer = error
        return pa.RecordBatch.from_arrays(
            [pa.array([task], pa.int32()), pa.array([pickle.dumps(answer)], pa.binary())], schema=_RESULT_SCHEMA
        )


@dataclass(frozen=True)
class _ShippedKeys:
    """Sorted source keys as bytes; stands in for the source where keys are matched."""

    schema: pa.Schema
    packed: bytes

    def indexes(self) -> Iterator[tuple[int, KeyIndex]]:
        yield 0, KeyIndex(unpack(self.packed).columns, is_sorted=True)


@dataclass(frozen=True)
class _FooterKernel:
    location: Location
    columns: list[str]

    def __call__(self, files: list[FileStat], _: _Rows) -> list[Footer]:
        return read_many(self.location, files, self.columns)


@dataclass(frozen=True)
class _MatchKernel:
    location: Location
    key_columns: list[str]
    keys: _ShippedKeys

    def __call__(self, targets: list[Target], _: _Rows) -> list[FileMatch]:
        opened = [open_target(self.location, target) for target in targets]
        return list(match_files(self.location, self.keys, self.key_columns, opened))


@dataclass(frozen=True)
class _RewriteKernel:
    location: Location
    dry_run: bool

    def __call__(self, edit: FileEdit, rows: _Rows) -> Written:
        attempt = Attempt(self.location, edit.stage)
        mine = replace(edit, stage=attempt.path)
        return attempt.settle(rewrite_file(self.location, mine, rows.take, map, dry_run=self.dry_run))


@dataclass(frozen=True)
class _AppendKernel:
    location: Location

    def __call__(self, append: Append, rows: _Rows) -> Written:
        attempt = Attempt(self.location, append.stage)
        return attempt.settle(append_rows(self.location, replace(append, stage=attempt.path), rows.take))


@dataclass(frozen=True)
class _CombineKernel:
    location: Location

    def __call__(self, combines: list[Combine], _: _Rows) -> list[Written]:
        written = []
        for combine in combines:
            attempt = Attempt(self.location, combine.stage)
            written.append(attempt.settle(combine_files(self.location, replace(combine, stage=attempt.path))))
        return written


# ----------------------------------------------------------------------------------------------------------- numbers
def _sources(edit: FileEdit) -> np.ndarray:
    parts = [group.sources for group in edit.groups]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _without_sources(edit: FileEdit) -> FileEdit:
    """The edit with source rows numbered as they travel: all of a file's rows, one group after the other."""
    groups, start = [], 0
    for group in edit.groups:
        end = start + len(group.sources)
        groups.append(GroupEdit(group.group, group.positions, np.arange(start, end), group.keep_others))
        start = end
    return replace(edit, groups=groups)


def _add(matches: dict[str, FileMatch], match: FileMatch, index: KeyIndex, start: int) -> None:
    """Collect what the buckets found, in the driver's numbering of source rows."""
    for group in match.groups:
        group.sources = index.rows(group.sources) + start
    known = matches.setdefault(match.path, match)
    if known is match:
        return
    known.scanned = max(known.scanned, match.scanned)
    mine = {group.group: group for group in known.groups}
    for group in match.groups:
        mine[group.group] = _joined(mine[group.group], group) if group.group in mine else group
    known.groups = [mine[number] for number in sorted(mine)]


def _joined(left: GroupMatch, right: GroupMatch) -> GroupMatch:
    positions = np.concatenate([left.positions, right.positions])
    order = np.argsort(positions, kind="stable")
    sources = np.concatenate([left.sources, right.sources])
    return GroupMatch(left.group, left.rows, positions[order], sources[order])
