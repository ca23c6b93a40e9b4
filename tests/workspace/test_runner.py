"""Jobs on threads: turns, leases, cancelling, and what becomes of work that fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from inlay.catalog import Catalog, Job, NewVersion, new_id
from inlay.errors import (
    CommitStateUnknownError,
    InlayError,
    InvalidArgumentError,
    JobCancelledError,
    JobInterruptedError,
    ServiceStoppingError,
)
from inlay.workspace.runner import JobHandle, JobRunner


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(f"sqlite:///{tmp_path / 'catalog.db'}")
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def runner(catalog: Catalog) -> Iterator[JobRunner]:
    made = JobRunner(catalog, threads=4, lease_seconds=2.0)
    yield made
    made.close(0.0)


def queued(catalog: Catalog, dataset_id: str | None = None) -> Job:
    return catalog.jobs.create("create", {}, dataset_id=dataset_id or new_id("dataset")).job


def test_a_job_ends_with_what_its_work_gives(catalog: Catalog, runner: JobRunner) -> None:
    job = queued(catalog)
    ended = runner.submit(job, lambda handle: {"id": handle.id}).result(10)
    assert (ended.state, ended.result) == ("succeeded", {"id": job.id})
    assert runner.future(job.id) is None


def test_work_that_ended_its_job_itself_is_left_alone(catalog: Catalog, runner: JobRunner) -> None:
    def work(handle: JobHandle) -> None:
        catalog.jobs.succeed(handle.id, {"by": "itself"})

    assert runner.submit(queued(catalog), work).result(10).result == {"by": "itself"}


def test_a_failure_is_told_and_kept(catalog: Catalog, runner: JobRunner) -> None:
    def work(_: JobHandle) -> None:
        raise InvalidArgumentError("This cannot be.", hint="Do that.")

    job = queued(catalog)
    with pytest.raises(InvalidArgumentError, match="This cannot be"):
        runner.submit(job, work).result(10)
    kept = catalog.jobs.get(job.id)
    assert kept.state == "failed"
    assert kept.error is not None
    assert (kept.error["code"], kept.error["hint"]) == ("invalid_argument", "Do that.")


def test_a_failure_that_nobody_foresaw_is_a_failure_too(catalog: Catalog, runner: JobRunner) -> None:
    def work(_: JobHandle) -> None:
        raise ZeroDivisionError("by zero")

    job = queued(catalog)
    with pytest.raises(InlayError, match="ZeroDivisionError: by zero"):
        runner.submit(job, work).result(10)
    assert catalog.jobs.get(job.id).state == "failed"


def test_one_job_at_a_time_changes_a_dataset(catalog: Catalog, runner: JobRunner) -> None:
    dataset_id = new_id("dataset")
    inside: list[str] = []
    most: list[int] = []

    def work(handle: JobHandle) -> None:
        inside.append(handle.id)
        most.append(len(inside))
        threading.Event().wait(0.05)
        inside.remove(handle.id)

    futures = [runner.submit(queued(catalog, dataset_id), work) for _ in range(6)]
    assert {future.result(30).state for future in futures} == {"succeeded"}
    assert max(most) == 1


def test_leases_are_kept_while_work_goes_on(catalog: Catalog, runner: JobRunner) -> None:
    def work(_: JobHandle) -> None:
        threading.Event().wait(5.0)  # longer than two leases

    assert runner.submit(queued(catalog), work).result(20).state == "succeeded"


def test_a_running_job_is_stopped_and_interrupted(catalog: Catalog, runner: JobRunner) -> None:
    interrupted, begun = threading.Event(), threading.Event()

    def work(handle: JobHandle) -> None:
        with handle.interrupted_by(interrupted.set):
            begun.set()
            interrupted.wait(20)
            raise OSError("whatever was waited for broke off")

    job = queued(catalog)
    future = runner.submit(job, work)
    assert begun.wait(10)
    catalog.jobs.cancel(job.id)  # from another process: the heart notices
    with pytest.raises(JobCancelledError):
        future.result(20)
    assert catalog.jobs.get(job.id).state == "cancelled"


def test_progress_is_kept_and_says_when_to_stop(catalog: Catalog, runner: JobRunner) -> None:
    seen: list[object] = []

    def work(handle: JobHandle) -> None:
        handle.progress("convert", 1, 4)
        seen.append(catalog.jobs.get(handle.id).progress)
        catalog.jobs.cancel(handle.id)
        handle.progress("convert", 4, 4)
        seen.append("went on")

    with pytest.raises(JobCancelledError):
        runner.submit(queued(catalog), work).result(10)
    assert seen == [{"phase": "convert", "done": 1, "total": 4}]


def test_a_job_that_waits_for_its_turn_can_be_cancelled(catalog: Catalog, runner: JobRunner) -> None:
    dataset_id = new_id("dataset")
    first = queued(catalog, dataset_id)
    catalog.jobs.start(first.id)
    second = queued(catalog, dataset_id)
    future = runner.submit(second, lambda _: pytest.fail("it was not its turn"))
    catalog.jobs.cancel(second.id)
    runner.stop(second.id)
    with pytest.raises(InlayError):
        future.result(10)
    assert catalog.jobs.get(second.id).state == "cancelled"


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_whose_answer_was_lost_is_looked_up(catalog: Catalog, runner: JobRunner, happened: bool) -> None:
    def work(handle: JobHandle) -> None:
        if happened:
            catalog.jobs.succeed(handle.id, {"version": 2})
        raise CommitStateUnknownError("The answer was lost.")

    future = runner.submit(queued(catalog), work)
    if happened:
        assert future.result(10).result == {"version": 2}
    else:
        with pytest.raises(JobInterruptedError):
            future.result(10)


def test_closing_lets_work_finish_and_takes_no_more(catalog: Catalog) -> None:
    runner = JobRunner(catalog, threads=2, lease_seconds=2.0)
    begun = threading.Event()

    def work(_: JobHandle) -> dict[str, int]:
        begun.set()
        threading.Event().wait(1.0)
        return {"done": 1}

    future = runner.submit(queued(catalog), work)
    assert begun.wait(10)
    closing = threading.Thread(target=runner.close, args=(20.0,))
    closing.start()
    threading.Event().wait(0.2)
    late = queued(catalog)
    with pytest.raises(ServiceStoppingError):
        runner.submit(late, lambda _: None)
    assert catalog.jobs.get(late.id).state == "failed"
    assert future.result(20).result == {"done": 1}
    closing.join(20)
    assert not closing.is_alive()


def test_closing_stops_what_takes_too_long(catalog: Catalog) -> None:
    runner = JobRunner(catalog, threads=2, lease_seconds=2.0)
    begun = threading.Event()

    def work(handle: JobHandle) -> None:
        begun.set()
        while True:
            threading.Event().wait(0.05)
            handle.check()

    job = queued(catalog)
    future = runner.submit(job, work)
    assert begun.wait(10)
    runner.close(0.1)
    with pytest.raises(JobInterruptedError):
        future.result(10)
    assert catalog.jobs.get(job.id).state == "failed"


def test_a_version_needs_a_running_job(catalog: Catalog) -> None:
    """What the runner relies on: nothing becomes true for a job that is not running."""
    import pyarrow as pa

    job = queued(catalog)
    version = NewVersion(operation="create", files=[], schema=pa.schema([("a", pa.int64())]), parquet_url="x")
    with pytest.raises(InlayError):
        catalog.datasets.create(job_id=job.id, label="x", source_type="inline", source_config={}, version=version)
