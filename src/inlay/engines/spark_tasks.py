"""Work as Spark jobs: a kernel over a list of tasks, whose answers come back in their order.

Tasks travel with the code and answers with the result, so nothing is shuffled. Only API that Connect has too is used.
"""

from __future__ import annotations

import gc
import os
import pickle
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from inlay.engines.base import Watch
from inlay.engines.spark_jobs import cancel_jobs, parallelism, tagged, watch
from inlay.engines.spark_session import ship_package
from inlay.errors import InlayError

__all__ = [
    "ANSWERS_DDL",
    "Answers",
    "Kernel",
    "TaskJobs",
    "Tasks",
    "answer_batch",
    "credentials",
    "most_tasks",
    "use_credentials",
]

Kernel = Callable[[Any], Any]

ANSWERS_DDL = "task int, answer binary"
MOST_WALKED = 20_000  # objects that the garbage collector of a worker may have to look at
_IDENTITY = frozenset({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})  # belong together
_borrowed: set[str] = set()  # names in the environment of this process that a driver gave
_TASKS_PER_CORE = 4  # enough to level out differences, few enough not to pay for tasks


class Tasks(Protocol):
    """What the tasks of a job are given; it travels to all of them."""

    def __len__(self) -> int: ...
    def __getitem__(self, task: int, /) -> Any: ...


def most_tasks(spark: Any) -> int:
    """How many tasks keep a session busy."""
    return parallelism(spark) * _TASKS_PER_CORE


def credentials() -> dict[str, str]:
    """The driver's way into object stores, for executors that have none of their own."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def use_credentials(given: Mapping[str, str]) -> None:
    """What the executor has of its own wins; what came from a driver is renewed by the next one."""
    own = {name for name in os.environ if name.startswith("AWS_")} - _borrowed
    identity = {name for name in given if name in _IDENTITY} if own & _IDENTITY else set()
    taken = {name: value for name, value in given.items() if name not in own | identity}
    for name in _borrowed - taken.keys():
        os.environ.pop(name, None)
    os.environ.update(taken)
    _borrowed.clear()
    _borrowed.update(taken)


@dataclass(frozen=True)
class Answers:
    """What the tasks said, in their order, the first error among them raised; and what Spark added up over them."""

    packed: pa.Table
    totals: Mapping[str, int] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        for at in np.argsort(self.packed["task"].to_numpy(), kind="stable"):
            answer = pickle.loads(self.packed["answer"][int(at)].as_py())  # noqa: S301  (our own tasks' answers)
            if isinstance(answer, InlayError):
                raise answer
            yield answer


@dataclass(frozen=True)
class TaskJobs:
    """Jobs in a session: what their failure is, and who is told how far they are."""

    spark: Any
    failure: Callable[[str], InlayError]
    watch: Watch | None = None

    def run(self, kernel: Kernel, tasks: Tasks, *, tag: str | None = None, counted: Sequence[str] = ()) -> Answers:
        """The kernel's answer to every task; Spark adds up the `counted` attributes of the answers."""
        ship_package(self.spark)
        partitions = min(len(tasks), most_tasks(self.spark))
        runner = _Runner(kernel, tasks, partitions, credentials(), tuple(counted))
        columns = ", ".join([ANSWERS_DDL, *(f"{name} long" for name in counted)])
        frame = self.spark.range(0, partitions, 1, partitions).mapInArrow(runner, columns)
        if not counted:
            return self.collect(frame, tag)
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        totals = Observation("inlay")
        frame = frame.observe(totals, *(f.sum(name).alias(name) for name in counted))
        packed = self.collect(frame, tag).packed
        return Answers(packed, {name: totals.get[name] or 0 for name in counted})

    def collect(self, frame: Any, tag: str | None = None) -> Answers:
        """Run the job whose rows are answers; whoever watches can cancel it by raising."""
        tag = tag or f"inlay-{uuid.uuid4().hex}"
        stopped: list[BaseException] = []

        def on_tasks(done: int, total: int) -> None:
            try:
                if self.watch is not None:
                    self.watch(done, total)
            except BaseException as error:
                stopped.append(error)
                cancel_jobs(self.spark, tag)
                raise

        try:
            with tagged(self.spark, tag) if self.watch is None else watch(self.spark, tag, on_tasks):
                return Answers(frame.toArrow())
        except Exception as error:
            if stopped:
                raise stopped[0] from error
            if not type(error).__module__.startswith(("pyspark.", "py4j.", "grpc")):
                raise
            raise self.failure(f"The Spark job failed: {_cause(str(error))}") from error


def _cause(message: str) -> str:
    """The line that names a task's exception, among the stacks of two languages around it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Invalid|Interrupt)\b", line)]
    return (named or lines or ["for no reason that it gives"])[0]


# ------------------------------------------------------------------------------------------------------ on executors
@dataclass(frozen=True)
class _Runner:
    """What Spark calls with the number of a partition: its tasks one after the other."""

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
                    yield self._answer(task)
        _keep_out_of_sight()

    def _answer(self, task: int) -> pa.RecordBatch:
        try:
            answer: Any = self.kernel(self.tasks[task])
        except InlayError as error:  # trying again would say the same
            answer = error
        return answer_batch(task, answer, self.counted)


def _keep_out_of_sight() -> None:
    """After each of its tasks a worker of Spark walks all living objects for garbage. Most of them came to stay, such
    as the client of an object store, and walking them takes longer than many a task."""
    if len(gc.get_objects()) > MOST_WALKED:
        gc.collect()
        gc.freeze()


def answer_batch(task: int, answer: Any, counted: Sequence[str] = ()) -> pa.RecordBatch:
    """The row by which a task answers, as `ANSWERS_DDL` says."""
    said = {"task": pa.array([task], pa.int32()), "answer": pa.array([pickle.dumps(answer)], pa.binary())}
    counts = {name: pa.array([_count(answer, name)], pa.int64()) for name in counted}
    return pa.RecordBatch.from_pydict(said | counts)


def _count(answer: Any, what: str) -> int:
    """How many of them an answer stands for; most stand for none."""
    found = getattr(answer, what, 0)
    return found if isinstance(found, int) else 0
