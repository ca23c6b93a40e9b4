"""Work of a conversion as Spark jobs: a kernel over a list of tasks, whose answers come back in order.

Tasks travel with the code and answers with the result, so nothing is shuffled. Every answer says how many rows it
stands for; Spark adds them up, and the sum is what a conversion reports. Only API that Connect has too is used.
"""

from __future__ import annotations

import os
import pickle
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from inlay.engines.spark_jobs import cancel_jobs, parallelism, watch
from inlay.engines.spark_session import ship_package
from inlay.errors import ConversionFailedError, InlayError

__all__ = ["Progress", "Totals", "run"]

Kernel = Callable[[Any], Any]
Progress = Callable[[int, int], None]

_TASKS_PER_CORE = 4  # enough to level out differences, few enough not to pay for tasks
_ANSWERS = pa.schema([("task", pa.int32()), ("rows", pa.int64()), ("rejected", pa.int64()), ("answer", pa.binary())])
_ANSWERS_DDL = "task int, rows long, rejected long, answer binary"


class Totals(NamedTuple):
    """What Spark added up over all tasks of a job, and the job group by which its event log knows it."""

    job: str
    rows: int
    rejected: int


def run(
    spark: Any, what: str, kernel: Kernel, tasks: Sequence[Any], progress: Progress | None = None
) -> tuple[list[Any], Totals]:
    """Answers in the order of the tasks, and their totals. An InlayError of a task is raised here."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    ship_package(spark)
    partitions = min(len(tasks), parallelism(spark) * _TASKS_PER_CORE)
    runner = _Runner(kernel, list(tasks), partitions, _credentials())
    totals = Observation("inlay")
    frame = spark.range(0, partitions, 1, partitions).mapInArrow(runner, _ANSWERS_DDL)
    frame = frame.observe(totals, f.sum("rows").alias("rows"), f.sum("rejected").alias("rejected"))
    job = f"inlay-{what}-{uuid.uuid4().hex}"
    table = _collect(spark, job, frame, progress)
    answers: list[Any] = [None] * len(tasks)
    for task, packed in zip(table["task"].to_pylist(), table["answer"].to_pylist(), strict=True):
        answers[task] = pickle.loads(packed)  # noqa: S301  (our own tasks' answers)
    for answer in answers:
        if isinstance(answer, InlayError):
            raise answer
    return answers, Totals(job, totals.get["rows"] or 0, totals.get["rejected"] or 0)


def _collect(spark: Any, tag: str, frame: Any, progress: Progress | None) -> pa.Table:
    """Run the job, telling how far it is; whoever is told can cancel it by raising."""
    stopped: list[BaseException] = []

    def on_tasks(done: int, total: int) -> None:
        try:
            if progress is not None:
                progress(done, total)
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
        if not type(error).__module__.startswith(("pyspark.", "py4j.", "grpc")):
            raise
        raise ConversionFailedError(f"The Spark job failed: {_cause(str(error))}") from error


def _cause(message: str) -> str:
    """The line that names a task's exception, among the stacks of two languages around it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Invalid|Interrupt)\b", line)]
    return (named or lines or ["for no reason that it gives"])[0]


def _credentials() -> dict[str, str]:
    """The driver's way into object stores, for executors that have none of their own."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def _count(answer: Any, what: str) -> int:
    """How many rows an answer stands for; most stand for none."""
    found = getattr(answer, what, 0)
    return found if isinstance(found, int) else 0


@dataclass(frozen=True)
class _Runner:
    """What Spark calls with a partition: its tasks one after the other."""

    kernel: Kernel
    tasks: list[Any]
    partitions: int
    credentials: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name, value in self.credentials.items():  # what the executor has of its own wins
            os.environ.setdefault(name, value)
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for task in range(partition, len(self.tasks), self.partitions):
                    yield self._answer(task)

    def _answer(self, task: int) -> pa.RecordBatch:
        try:
            answer: Any = self.kernel(self.tasks[task])
        except InlayError as error:  # trying again would say the same
            answer = error
        values = [task, _count(answer, "rows"), _count(answer, "rejected"), pickle.dumps(answer)]
        columns = [pa.array([value], field.type) for value, field in zip(values, _ANSWERS, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=_ANSWERS)
