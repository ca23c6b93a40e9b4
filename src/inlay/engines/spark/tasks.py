"""Spark jobs that run kernels in tasks, and the pieces of rows that tasks exchange.

The tasks travel with the code and their results with the job's result, so nothing is shuffled. Rows never pass through
the JVM: the driver sends each task the location of its pieces, files of a scratch directory that all tasks can read.
Every writer chooses a new file name, so that Spark can run a task again. Pieces of few rows contain the rows.

Only functions that Spark Connect supports are used.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.commit.sidecar import create_claimed_staging, inner_sidecar_path, new_staging_name, sidecar_path, unlock
from inlay.engines.base import RowNumbers, StageResult, TaskProgress
from inlay.engines.columns import take_rows
from inlay.engines.spark.session import (
    cancel_jobs,
    parallelism,
    report_tasks,
    service_session,
    ship_package,
    tagged,
)
from inlay.errors import InlayError, MemoryLimitError
from inlay.pyarrow_features import byte_size
from inlay.storage import LocalStore, Location, Store, discard_tree

__all__ = [
    "RESULT_DDL",
    "Attempt",
    "Chunk",
    "ChunkRows",
    "Kernel",
    "Piece",
    "PieceWriter",
    "Scratch",
    "TaskJobs",
    "TaskResults",
    "Tasks",
    "credentials",
    "max_tasks",
    "pack",
    "read_slabs",
    "result_batch",
    "unpack",
    "use_credentials",
]

Kernel = Callable[[Any], Any]

RESULT_DDL = "task int, result binary"
MAX_TRACKED_OBJECTS = 20_000  # for the garbage collector of a worker
_TASKS_PER_CORE = 4  # balances long tasks of different length
_TASK_BYTES = 1 << 20  # a smaller task costs the JVM as much as its worker
_BALANCED_BYTES = 16 << 20
_IDENTITY = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})  # only valid together
_borrowed: set[str] = set()  # environment variables of this process that a driver set
_SLAB_BYTES = 48 << 20
_CRASH = "Python worker exited unexpectedly"
_POSITION = np.dtype(np.int32)


# ------------------------------------------------------------------------------------------------------------ jobs
class Tasks(Protocol):
    """The input of a job's tasks. Every task gets all of it."""

    def __len__(self) -> int: ...
    def __getitem__(self, task: int, /) -> Any: ...


@dataclass(frozen=True)
class TaskResults:
    """The results of tasks in order, and their totals. Iteration raises a task's error."""

    table: pa.Table
    totals: Mapping[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        for at in np.argsort(self.table["task"].to_numpy(), kind="stable"):
            result = pickle.loads(self.table["result"][int(at)].as_py())  # noqa: S301  (written by inlay's tasks)
            if isinstance(result, InlayError):
                raise result
            yield result


@dataclass(frozen=True)
class TaskJobs:
    """Jobs of a Spark session. `failure` makes the error of a failed job."""

    spark: Any
    failure: Callable[[str], InlayError]
    on_tasks: TaskProgress | None = None

    def run(
        self,
        kernel: Kernel,
        tasks: Tasks,
        *,
        tag: str | None = None,
        counted: Sequence[str] = (),
        size: int | None = None,
    ) -> TaskResults:
        """Run the kernel on every task, and sum up the `counted` attributes of the results.

        Tasks that process few bytes (`size`) together share Spark tasks.
        """
        ship_package(self.spark)
        partitions = max_tasks(self.spark, len(tasks), size)
        runner = _Runner(kernel, tasks, partitions, credentials(), tuple(counted))
        columns = ", ".join([RESULT_DDL, *(f"{name} long" for name in counted)])
        frame = self.spark.range(0, partitions, 1, partitions).mapInArrow(runner, columns)
        table = self.collect(frame, tag).table
        return TaskResults(table, {name: pc.sum(table[name]).as_py() or 0 for name in counted})

    def collect(self, frame: Any, tag: str | None = None) -> TaskResults:
        """Run the job whose rows are task results. An exception of `on_tasks` cancels it."""
        tag = tag or f"inlay-{uuid.uuid4().hex}"
        stopped: list[BaseException] = []

        def on_tasks(done: int, total: int) -> None:
            try:
                if self.on_tasks is not None:
                    self.on_tasks(done, total)
            except BaseException as error:
                stopped.append(error)
                cancel_jobs(self.spark, tag)
                raise

        try:
            with tagged(self.spark, tag) if self.on_tasks is None else report_tasks(self.spark, tag, on_tasks):
                return TaskResults(frame.toArrow())
        except Exception as error:
            if stopped:
                raise stopped[0] from error
            if not type(error).__module__.startswith(("pyspark.", "py4j.", "grpc")):
                raise
            if service_session() is not None and _CRASH in str(error):
                raise _memory_error("A Spark worker process crashed, probably at its memory limit.") from error
            raise self.failure(f"The Spark job failed: {_cause(str(error))}") from error


def _memory_error(message: str) -> MemoryLimitError:
    return MemoryLimitError(
        message,
        hint="Use files with smaller rows, records or row groups, or increase the memory limit of Spark workers "
        "(INLAY_WORKER_MEMORY_BYTES of the service).",
    )


def max_tasks(spark: Any, items: int, size: int | None = None) -> int:
    """Return the number of Spark tasks for `items`: one per core for few bytes, and more to balance long tasks."""
    cores = parallelism(spark)
    limit = cores * _TASKS_PER_CORE
    if size is not None:
        limit = min(limit, max(size // _BALANCED_BYTES, min(cores, -(-size // _TASK_BYTES))))
    return max(1, min(items, limit))


def _cause(message: str) -> str:
    """Find the line that names a task's exception between the stack traces of Python and Java."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Invalid|Interrupt)\b", line)]
    return (named or lines or ["Spark reports no reason"])[0]


def credentials() -> dict[str, str]:
    """Return the driver's AWS settings, for executors that have none, if the tasks may need them."""
    service = service_session()
    if service is not None and not service.uses_s3:
        return {}
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def use_credentials(offered: Mapping[str, str]) -> None:
    """Replace the AWS settings of earlier drivers. The executor's own settings win."""
    own = {name for name in os.environ if name.startswith("AWS_")} - _borrowed
    identity = {name for name in offered if name in _IDENTITY} if own & _IDENTITY else set()
    taken = {name: value for name, value in offered.items() if name not in own | identity}
    for name in _borrowed - taken.keys():
        os.environ.pop(name, None)
    os.environ.update(taken)
    _borrowed.clear()
    _borrowed.update(taken)


@dataclass(frozen=True)
class _Runner:
    """The function that Spark calls with partition numbers to run their tasks."""

    kernel: Kernel
    tasks: Tasks
    partitions: int
    credentials: Mapping[str, str]
    counted: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        use_credentials(self.credentials)
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for task in range(partition, len(self.tasks), self.partitions):
                    yield self._run(task)
        _freeze_objects()

    def _run(self, task: int) -> pa.RecordBatch:
        try:
            result: Any = self.kernel(self.tasks[task])
        except InlayError as error:  # raised by the driver, because another attempt would fail too
            result = error
        except MemoryError:
            result = _memory_error("A Spark task reached the memory limit of its worker process.")
        return result_batch(task, result, self.counted)


def _freeze_objects() -> None:
    """Exclude long-lived objects from garbage collection.

    A Spark worker collects garbage after each task. Tracking many objects, such as the client of an object store,
    takes longer than a short task.
    """
    if len(gc.get_objects()) > MAX_TRACKED_OBJECTS:
        gc.collect()
        gc.freeze()


def result_batch(task: int, result: Any, counted: Sequence[str] = ()) -> pa.RecordBatch:
    """Return a task's result as a row of `RESULT_DDL`, followed by its counts."""
    row = {"task": pa.array([task], pa.int32()), "result": pa.array([pickle.dumps(result)], pa.binary())}
    counts = {name: pa.array([_count(result, name)], pa.int64()) for name in counted}
    return pa.RecordBatch.from_pydict(row | counts)


def _count(result: Any, name: str) -> int:
    count = getattr(result, name, 0)
    return count if isinstance(count, int) else 0


# ---------------------------------------------------------------------------------------------------------- pieces
class Piece(NamedTuple):
    """Rows in part of a file or in `content`, after their positions in the chunk if `ordered`."""

    path: str
    offset: int
    length: int
    rows: int
    ordered: bool = False
    content: bytes | None = None


Chunk = list[Piece]  # rows that a task reads together


def pack(table: pa.Table) -> bytes:
    packed: bytes = _pack(table, "lz4").to_pybytes()
    return packed


def _pack(table: pa.Table, compression: str | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpack(packed: bytes | pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(packed)).read_all()


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory of one merge, named like staging so that it is deleted if the merge dies.

    Without a path nothing is written: pieces contain their rows.
    """

    store: Store
    path: str = ""

    @classmethod
    def beside(cls, location: Location) -> Scratch | None:
        """Create a scratch directory in the dataset's sidecar. Return None if that fails."""
        if not isinstance(location.store, LocalStore):
            return cls(location.store, f"{sidecar_path(location)}/{new_staging_name()}")
        for parent in dict.fromkeys([sidecar_path(location), inner_sidecar_path(location)]):
            with contextlib.suppress(OSError):
                path, _claims[path] = create_claimed_staging(location.store, parent)
                return cls(location.store, path)
        return None

    def file(self, kind: str) -> str:
        return f"{self.path}/{kind}-{uuid.uuid4().hex[:16]}"

    def read(self, piece: Piece) -> pa.Table:
        return self.read_ordered(piece)[0]

    def read_ordered(self, piece: Piece) -> tuple[pa.Table, RowNumbers | None]:
        """Read a piece and the positions of its rows in the chunk, if it has them."""
        data = pa.py_buffer(self.read_bytes(piece))
        if not piece.ordered:
            return unpack(data), None
        size = piece.rows * _POSITION.itemsize
        return unpack(data.slice(size)), np.frombuffer(data.slice(0, size), _POSITION)

    def read_bytes(self, piece: Piece) -> bytes:
        if piece.content is not None:
            return piece.content
        return self.store.read_range(piece.path, piece.offset, piece.length)

    def write(self, kind: str, table: pa.Table) -> Piece:
        with PieceWriter(self, kind) as writer:
            return writer.add(table)

    def remove(self) -> None:
        """Delete the directory, and its parent if it becomes empty."""
        discard_tree(self.store, self.path)
        if self.path in _claims:
            unlock(_claims.pop(self.path))
        if isinstance(self.store, LocalStore):
            self.store.remove_empty_directory(self.path.rpartition("/")[0])


_claims: dict[str, int] = {}  # locks of this process's scratch directories


class PieceWriter:
    """Writes pieces to a new file, or into the pieces if the scratch has no path."""

    def __init__(self, scratch: Scratch, kind: str) -> None:
        self._store = scratch.store
        self.path = scratch.file(kind) if scratch.path else ""
        self._stack = contextlib.ExitStack()
        self._out = self._stack.enter_context(self._store.open_write(self.path)) if self.path else None
        self._end = 0

    def __enter__(self) -> PieceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is not None and self.path:
            self._store.remove(self.path)

    def add(self, table: pa.Table, positions: RowNumbers | None = None) -> Piece:
        # On a local disk, compression takes more time than it saves.
        data = _pack(table, None if self.path and self._store.is_local else "lz4")
        if positions is None:
            return self.put(data, table.num_rows)
        ordered = positions.astype(_POSITION).tobytes() + data.to_pybytes()
        return self.put(ordered, table.num_rows)._replace(ordered=True)

    def put(self, data: bytes | pa.Buffer, rows: int = 0) -> Piece:
        if self._out is None:
            return Piece("", 0, len(data), rows, content=bytes(data))
        self._out.write(data)
        piece = Piece(self.path, self._end, len(data), rows)
        self._end += len(data)
        return piece


def read_slabs(scratch: Scratch, pieces: Iterable[Piece]) -> Iterator[pa.Table]:
    """Read pieces in order, joined into tables of about `_SLAB_BYTES`."""
    pending: list[pa.Table] = []
    for piece in pieces:
        pending.append(scratch.read(piece))
        if sum(map(byte_size, pending)) >= _SLAB_BYTES:
            yield pa.concat_tables(pending)
            pending = []
    if pending:
        yield pa.concat_tables(pending)


class ChunkRows:
    """The rows of consecutive chunks by number. Only one chunk is in memory."""

    def __init__(self, scratch: Scratch, chunks: Sequence[Chunk]) -> None:
        self._scratch = scratch
        self._chunks = chunks
        self._starts = np.concatenate([[0], np.cumsum([sum(p.rows for p in c) for c in chunks])]).astype(np.int64)
        self._open: tuple[int, pa.Table] | None = None

    def take(self, rows: RowNumbers) -> pa.Table:
        """Return rows. `rows` must be consecutive numbers."""
        first, end = int(rows[0]), int(rows[-1]) + 1
        at = int(np.searchsorted(self._starts, first, side="right")) - 1
        parts = []
        while first < end:
            start, stop = int(self._starts[at]), min(end, int(self._starts[at + 1]))
            if stop > first:
                parts.append(self._chunk(at).slice(first - start, stop - first))
                first = stop
            at += 1
        return pa.concat_tables(parts)

    def _chunk(self, at: int) -> pa.Table:
        if self._open is None or self._open[0] != at:
            self._open = None  # frees the memory before the next chunk is read
            self._open = (at, self._read_chunk(self._chunks[at]))
        return self._open[1]

    def _read_chunk(self, chunk: Chunk) -> pa.Table:
        read = [self._scratch.read_ordered(piece) for piece in chunk]
        table = pa.concat_tables([part for part, _ in read])
        positions = [numbers for _, numbers in read if numbers is not None]
        if len(read) == 1 or not positions:
            return table
        order = np.empty(table.num_rows, np.int64)
        order[np.concatenate(positions)] = np.arange(table.num_rows)
        return take_rows(table.combine_chunks(), order)


class Attempt:
    """The staged file of one attempt at a task. It gets its final name when it is complete."""

    def __init__(self, location: Location, stage: str) -> None:
        self._store = location.store
        self._stage = stage
        self.path = f"{stage}.{uuid.uuid4().hex[:8]}" if stage else ""

    def complete(self, result: StageResult) -> StageResult:
        """Rename the file to its final name."""
        if not result.stage:
            return result
        self._store.move(self.path, self._stage)
        if not self._store.is_local:  # an object store copies instead of moving
            self._store.remove(self.path)
        return replace(result, stage=self._stage)
