"""Jobs of a session: their number of tasks, tags, cancelling and progress.

Connect and classic sessions share no API for these, so each function here has two halves.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from inlay.engines.spark_workers import is_connect

__all__ = ["cancel_jobs", "parallelism", "tagged", "watch"]

Tasks = Callable[[int, int], None]

_POLL_SECONDS = 0.2
_cores: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def parallelism(spark: Any) -> int:
    """How many tasks run side by side, as far as Spark knows."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    if spark not in _cores:
        from pyspark.sql import functions as f

        # A client can only see how many partitions the server makes of something when nobody says how many.
        last = spark.range(1 << 16).select(f.spark_partition_id().alias("p")).agg(f.max("p")).collect()[0][0]
        _cores[spark] = int(last) + 1
    return _cores[spark]


@contextlib.contextmanager
def tagged(spark: Any, tag: str) -> Iterator[None]:
    """Jobs that this thread starts inside carry the tag."""
    with _tagged_connect(spark, tag) if is_connect(spark) else _tagged_classic(spark.sparkContext, tag):
        yield


def cancel_jobs(spark: Any, tag: str) -> None:
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


@contextlib.contextmanager
def watch(spark: Any, tag: str, callback: Tasks) -> Iterator[None]:
    """Tag the jobs that this thread starts inside, and call back with (tasks done, tasks total) as they run.

    The total grows when a job adds stages. The callback runs in another thread on a classic session, in the one
    that waits for the job on Connect; what it raises is raised when the block ends.
    """
    reports = _Reports(callback)
    watching = _watch_connect(spark, tag, reports) if is_connect(spark) else _watch_classic(spark, tag, reports)
    with tagged(spark, tag), watching:
        yield
    reports.finish()


class _Reports:
    """Passes on what changed. An exception of the callback must not break Spark's own threads."""

    def __init__(self, callback: Tasks) -> None:
        self._callback = callback
        self._last = (0, 0)
        self._error: Exception | None = None

    def __call__(self, done: int, total: int) -> None:
        if (done, total) == self._last or self._error is not None:
            return
        self._last = (done, total)
        try:
            self._callback(done, total)
        except Exception as error:  # noqa: BLE001 - raised by finish
            self._error = error

    def finish(self) -> None:
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def _tagged_classic(context: Any, tag: str) -> Iterator[None]:
    # The tag cancels (broadcasts keep it), the group of the same name is what the status tracker can look up.
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    context.setJobGroup(tag, before["spark.job.description"] or tag, interruptOnCancel=True)
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)
        for name, value in before.items():
            context.setLocalProperty(name, value)


@contextlib.contextmanager
def _tagged_connect(spark: Any, tag: str) -> Iterator[None]:
    added = tag not in spark.getTags()
    spark.addTag(tag)
    try:
        yield
    finally:
        if added:
            spark.removeTag(tag)


@contextlib.contextmanager
def _watch_classic(spark: Any, tag: str, reports: _Reports) -> Iterator[None]:
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(_POLL_SECONDS):
            with contextlib.suppress(Exception):  # the session may end before us
                reports(*_count_classic(tracker, tag))

    thread = threading.Thread(target=poll, name="inlay-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):
            reports(*_count_classic(tracker, tag))


def _count_classic(tracker: Any, tag: str) -> tuple[int, int]:
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(tag):
        job = tracker.getJobInfo(job_id)
        stages = [tracker.getStageInfo(stage) for stage in job.stageIds] if job else []
        for stage in stages:
            if stage is not None:
                # Stages whose output was already there are skipped: their job ends, their tasks never do.
                done += stage.numTasks if job.status == "SUCCEEDED" else stage.numCompletedTasks
                total += stage.numTasks
    return done, total


@contextlib.contextmanager
def _watch_connect(spark: Any, tag: str, reports: _Reports) -> Iterator[None]:
    operations: dict[str, tuple[int, int]] = {}

    # Spark calls with exactly these keywords; any other signature breaks the query itself.
    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG001
        if tag not in spark.getTags():  # tags belong to threads, handlers to the session
            return
        found = list(stages or ())
        total = sum(stage.num_tasks for stage in found)
        finished = sum(stage.num_completed_tasks for stage in found)
        operations[operation_id or ""] = (total if done else finished, total)
        reports(sum(d for d, _ in operations.values()), sum(t for _, t in operations.values()))

    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)
