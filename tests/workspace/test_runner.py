"""The job runner: threads, leases, cancellation, failures and outages of the catalog."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from inlay.catalog import Catalog, Job, NewVersion, new_id
from inlay.errors import (
    CatalogUnavailableError,
    CommitStateUnknownError,
    InlayError,
    InvalidArgumentError,
    JobCancelledError,
    JobInterruptedError,
    ServiceStoppingError,
    StorageFullError,
)
from inlay.workspace import SubmittedJob
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


def test_a_job_ends_with_the_result_of_its_work(catalog: Catalog, runner: JobRunner) -> None:
    job = queued(catalog)
    ended = runner.submit(job, lambda handle: {"id": handle.id}).result(10)
    assert (ended.state, ended.result) == ("succeeded", {"id": job.id})
    assert runner.future(job.id) is None


def test_work_may_end_its_own_job(catalog: Catalog, runner: JobRunner) -> None:
    def work(handle: JobHandle) -> None:
        catalog.jobs.succeed(handle.id, {"by": "itself"})

    assert runner.submit(queued(catalog), work).result(10).result == {"by": "itself"}


def test_a_failure_is_raised_and_stored(catalog: Catalog, runner: JobRunner) -> None:
    def work(_: JobHandle) -> None:
        raise InvalidArgumentError("This cannot be.", hint="Do that.")

    job = queued(catalog)
    with pytest.raises(InvalidArgumentError, match="This cannot be"):
        runner.submit(job, work).result(10)
    kept = catalog.jobs.get(job.id)
    assert kept.state == "failed"
    assert kept.error is not None
    assert (kept.error["code"], kept.error["hint"]) == ("invalid_argument", "Do that.")


def test_an_unexpected_error_fails_the_job(catalog: Catalog, runner: JobRunner) -> None:
    def work(_: JobHandle) -> None:
        raise ZeroDivisionError("by zero")

    job = queued(catalog)
    with pytest.raises(InlayError, match="ZeroDivisionError: by zero"):
        runner.submit(job, work).result(10)
    assert catalog.jobs.get(job.id).state == "failed"


def test_a_full_disk_is_retryable(catalog: Catalog, runner: JobRunner) -> None:
    def work(_: JobHandle) -> None:
        raise StorageFullError("The disk is full.")

    job = catalog.jobs.create("create", {}, dataset_id=new_id("dataset"), idempotency_key="a").job
    with pytest.raises(StorageFullError):
        runner.submit(job, work).result(10)
    assert not catalog.jobs.knows_key("a")  # the same request can be sent again


def test_jobs_that_wait_for_a_dataset_do_not_block_others(catalog: Catalog) -> None:
    runner = JobRunner(catalog, threads=2, lease_seconds=2.0)
    go_on = threading.Event()
    busy = new_id("dataset")
    waiting = [runner.submit(queued(catalog, busy), lambda _: go_on.wait(30) and None) for _ in range(6)]
    try:
        assert runner.submit(queued(catalog), lambda _: None).result(20).state == "succeeded"
        assert not any(future.done() for future in waiting)
        go_on.set()
        assert {future.result(30).state for future in waiting} == {"succeeded"}
    finally:
        go_on.set()
        runner.close(0.0)


def test_the_number_of_concurrent_jobs_is_limited(catalog: Catalog) -> None:
    runner = JobRunner(catalog, threads=2, lease_seconds=2.0)
    inside: list[str] = []
    counts: list[int] = []

    def work(handle: JobHandle) -> None:
        inside.append(handle.id)
        counts.append(len(inside))
        time.sleep(0.05)
        inside.remove(handle.id)

    futures = [runner.submit(queued(catalog), work) for _ in range(8)]
    assert {future.result(30).state for future in futures} == {"succeeded"}
    assert max(counts) == 2
    runner.close(0.0)


def test_waiting_for_a_cancelled_job_of_another_process_raises(catalog: Catalog) -> None:
    job = queued(catalog)
    catalog.jobs.stop(job.id)
    with pytest.raises(JobCancelledError, match="Nothing changed"):
        SubmittedJob(catalog.jobs.get(job.id), catalog.jobs.get).wait()


def test_one_job_at_a_time_changes_a_dataset(catalog: Catalog, runner: JobRunner) -> None:
    dataset_id = new_id("dataset")
    inside: list[str] = []
    counts: list[int] = []

    def work(handle: JobHandle) -> None:
        inside.append(handle.id)
        counts.append(len(inside))
        threading.Event().wait(0.05)
        inside.remove(handle.id)

    futures = [runner.submit(queued(catalog, dataset_id), work) for _ in range(6)]
    assert {future.result(30).state for future in futures} == {"succeeded"}
    assert max(counts) == 1


def test_leases_are_renewed_while_a_job_runs(catalog: Catalog, runner: JobRunner) -> None:
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
    catalog.jobs.cancel(job.id)  # as another process would; the heartbeat notices
    with pytest.raises(JobCancelledError):
        future.result(20)
    assert catalog.jobs.get(job.id).state == "cancelled"


def test_progress_is_stored_and_stops_a_cancelled_job(catalog: Catalog, runner: JobRunner) -> None:
    seen: list[object] = []

    def work(handle: JobHandle) -> None:
        handle.progress("convert", 1, 4)
        seen.append(catalog.jobs.get(handle.id).progress)
        catalog.jobs.cancel(handle.id)
        handle.progress("convert", 4, 4)
        seen.append("went on")

    with pytest.raises(JobCancelledError):
        runner.submit(queued(catalog), work).result(10)
    assert seen == [{"phase": "convert", "done": 1, "total": 4, "phases": [{"phase": "convert", "at": ANY}]}]


def test_the_phases_of_a_job_are_stored_with_their_times(catalog: Catalog, runner: JobRunner) -> None:
    def work(handle: JobHandle) -> None:
        for number in range(100):
            handle.progress("convert", number, 100)
        handle.progress("append", 0, 1)
        handle.progress("append", 1, 1)

    job = runner.submit(queued(catalog), work).result(10)
    assert job.progress is not None
    assert job.started_at is not None
    kept = job.progress["phases"]
    assert [each["phase"] for each in kept] == ["convert", "append"]
    moments = [datetime.fromisoformat(each["at"]) for each in kept]
    assert job.started_at.replace(microsecond=0) <= moments[0] <= moments[1] <= datetime.now(UTC)


def test_the_number_of_stored_phases_is_limited(catalog: Catalog, runner: JobRunner) -> None:
    def work(handle: JobHandle) -> None:
        for number in range(1000):
            handle.progress("ab"[number % 2], number, 999)

    job = runner.submit(queued(catalog), work).result(30)
    assert job.progress is not None
    assert len(job.progress["phases"]) == 50


def test_a_job_that_waits_for_its_dataset_can_be_cancelled(catalog: Catalog, runner: JobRunner) -> None:
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
def test_an_unknown_commit_is_checked_in_the_catalog(catalog: Catalog, runner: JobRunner, happened: bool) -> None:
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


def test_closing_finishes_running_jobs_and_rejects_new_ones(catalog: Catalog) -> None:
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


def test_closing_stops_jobs_after_the_timeout(catalog: Catalog) -> None:
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


def test_a_version_requires_a_running_job(catalog: Catalog) -> None:
    """The runner relies on it: only a running job can commit."""
    import pyarrow as pa

    job = queued(catalog)
    version = NewVersion(operation="create", files=[], schema=pa.schema([("a", pa.int64())]), parquet_url="x")
    with pytest.raises(InlayError):
        catalog.datasets.create(job_id=job.id, label="x", source_type="inline", source_config={}, version=version)


class Outage:
    """A catalog that cannot record the end of a job for a while."""

    def __init__(
        self, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, error: type[Exception] = CatalogUnavailableError
    ) -> None:
        self.is_over = threading.Event()
        fail = catalog.jobs.fail

        def failing(*arguments: Any, **options: Any) -> Job:
            if not self.is_over.is_set():
                raise error("The catalog is away.")
            return fail(*arguments, **options)

        monkeypatch.setattr(catalog.jobs, "fail", failing)


def ended(catalog: Catalog, job: Job) -> Job:
    deadline = time.monotonic() + 20
    while not (found := catalog.jobs.get(job.id)).has_ended:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.mark.parametrize("error", [CatalogUnavailableError, RuntimeError])
def test_a_job_that_ended_during_an_outage_is_ended_later(
    catalog: Catalog, runner: JobRunner, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """Its lease never expires, because its owner, this process, is alive."""
    outage = Outage(catalog, monkeypatch, error)

    def work(_: JobHandle) -> None:
        raise InvalidArgumentError("This cannot be.")

    job = queued(catalog)
    with pytest.raises(InvalidArgumentError):
        runner.submit(job, work).result(10)
    assert catalog.jobs.get(job.id).state == "running"
    outage.is_over.set()
    assert ended(catalog, job).state == "failed"
    again = queued(catalog, job.dataset_id)
    assert runner.submit(again, lambda _: None).result(10).state == "succeeded"


def test_a_commit_stays_unknown_while_the_catalog_is_unavailable(
    catalog: Catalog, runner: JobRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(catalog, monkeypatch)

    def work(_: JobHandle) -> None:
        raise CommitStateUnknownError("The answer was lost.")

    job = queued(catalog)
    with pytest.raises(CommitStateUnknownError):
        runner.submit(job, work).result(10)
    outage.is_over.set()
    assert ended(catalog, job).state == "failed"


def test_a_job_of_an_unknown_commit_is_ended(catalog: Catalog, runner: JobRunner) -> None:
    made: list[Job] = []

    def submit() -> None:
        with runner.admission():
            made.append(queued(catalog))
            raise CommitStateUnknownError("The answer was lost.")

    with pytest.raises(CommitStateUnknownError):
        submit()
    assert ended(catalog, made[0]).state == "failed"


def test_a_job_that_another_process_ended_is_interrupted(catalog: Catalog, runner: JobRunner) -> None:
    """Its commit fails then, which the client must not see as a conflict."""

    def work(handle: JobHandle) -> None:
        catalog.jobs.fail(handle.id, JobInterruptedError("The lease ran out."))
        catalog.jobs.succeed(handle.id)

    with pytest.raises(JobInterruptedError, match="Another process ended"):
        runner.submit(queued(catalog), work).result(10)


def test_closing_fails_jobs_that_wait_for_a_thread(catalog: Catalog) -> None:
    runner = JobRunner(catalog, threads=1, lease_seconds=2.0)
    begun = threading.Event()

    def work(handle: JobHandle) -> None:
        begun.set()
        while True:
            threading.Event().wait(0.05)
            handle.check()

    jobs = [queued(catalog) for _ in range(3)]
    futures = [runner.submit(job, work) for job in jobs]
    assert begun.wait(10)
    closing = threading.Thread(target=runner.close, args=(0.1,), daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    for future in futures:
        with pytest.raises(JobInterruptedError):
            future.result(0)
    assert {catalog.jobs.get(job.id).state for job in jobs} == {"failed"}
