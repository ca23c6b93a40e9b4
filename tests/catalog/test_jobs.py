"""Jobs in the catalog: claims, leases, cancellation, idempotency keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from inlay.catalog import Catalog, leases, new_id
from inlay.errors import (
    ConflictError,
    IdempotencyKeyReusedError,
    InvalidArgumentError,
    JobEndedError,
    NotFoundError,
    UploadInUseError,
)
from tests.catalog import steps
from tests.catalog.conftest import Clock


def test_a_job_from_queued_to_succeeded(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    request = {"strategy": "upsert", "key_columns": ["ключ"]}
    submission = catalog.jobs.create("load", request, dataset_id=made.id)
    job = submission.job
    assert submission.is_new
    assert (job.kind, job.state, job.request, job.owner) == ("load", "queued", request, catalog.owner)
    assert (job.started_at, job.finished_at, job.result, job.error, job.has_ended) == (None, None, None, None, False)
    assert catalog.jobs.start(job.id)
    assert catalog.jobs.report(job.id, {"done": 1, "total": 4, "phase": "parse", "message": "läuft"})
    running = catalog.jobs.get(job.id)
    assert running.state == "running"
    assert running.progress == {"done": 1, "total": 4, "phase": "parse", "message": "läuft"}
    ended = catalog.jobs.succeed(job.id, {"rows": 4})
    assert (ended.state, ended.result, ended.has_ended) == ("succeeded", {"rows": 4}, True)
    assert ended.finished_at is not None
    assert running.started_at is not None
    assert job.created_at < running.started_at < ended.finished_at


def test_a_failure_is_stored_as_a_problem(catalog: Catalog) -> None:
    job = steps.running(catalog, "load")
    failed = catalog.jobs.fail(job.id, InvalidArgumentError("bad \0 cell \ud800", hint="fix it"))
    assert failed.state == "failed"
    assert failed.error == {"code": "invalid_argument", "message": "bad \0 cell \ud800", "hint": "fix it"}


def test_one_job_writes_a_dataset_at_a_time(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    made, other = steps.dataset(catalog), steps.dataset(catalog)
    elsewhere = connect(owner="elsewhere")
    first = steps.running(catalog, "load", dataset_id=made.id)
    second = elsewhere.jobs.create("load", {}, dataset_id=made.id).job
    assert not elsewhere.jobs.start(second.id)
    assert elsewhere.jobs.get(second.id).state == "queued"
    assert steps.running(elsewhere, "load", dataset_id=other.id)
    assert steps.running(elsewhere, "plan", dataset_id=made.id, writes=False)
    catalog.jobs.fail(first.id, {"code": "x"})
    assert elsewhere.jobs.start(second.id)


def test_a_job_can_be_started_once_and_only_by_its_owner(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    job = catalog.jobs.create("load", {}).job
    with pytest.raises(ConflictError, match="another process"):
        connect(owner="else").jobs.start(job.id)
    assert catalog.jobs.start(job.id)
    with pytest.raises(JobEndedError, match="has already started"):
        catalog.jobs.start(job.id)


@pytest.mark.parametrize("job_id", ["", "job_", "job_none", "data_a", "job_\0"])
def test_an_unknown_job_is_not_found(catalog: Catalog, job_id: str) -> None:
    for call in (catalog.jobs.get, catalog.jobs.start, catalog.jobs.cancel, catalog.jobs.succeed, catalog.jobs.stop):
        with pytest.raises(NotFoundError):
            call(job_id)


def test_lists_filter_and_page(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    loads = [catalog.jobs.create("load", {}, dataset_id=made.id).job.id for _ in range(3)]
    assert [job.id for job in catalog.jobs.list(kind="load", limit=2).items] == loads[:0:-1]
    assert catalog.jobs.list(state="queued").count == 3
    assert catalog.jobs.list(state="succeeded", dataset_id=made.id, kind="create").count == 1
    assert catalog.jobs.list(dataset_id=new_id("dataset")).count == 0
    with pytest.raises(InvalidArgumentError, match="Unknown state"):
        catalog.jobs.list(state="done")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        catalog.jobs.list(kind="\0")


# -------------------------------------------------------------------------------------------------------- cancelling
def test_a_queued_job_is_cancelled_immediately(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    job = catalog.jobs.create("load", {}).job
    assert connect(owner="user").jobs.cancel(job.id).state == "cancelled"
    with pytest.raises(JobEndedError, match="is already canceled"):
        catalog.jobs.start(job.id)
    with pytest.raises(JobEndedError):
        catalog.jobs.cancel(job.id)


def test_a_running_job_is_cancelled_by_its_owner(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    job = steps.running(catalog, "load")
    cancelled = connect(owner="user").jobs.cancel(job.id)
    assert (cancelled.state, cancelled.cancel_requested) == ("running", True)
    assert not catalog.jobs.report(job.id, {"done": 2})
    assert catalog.jobs.heartbeat().cancelling == {job.id}
    assert catalog.jobs.stop(job.id).state == "cancelled"
    assert not catalog.jobs.report(job.id, {"done": 3})


def test_a_commit_before_the_cancellation_holds(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    job = steps.running(catalog, "load", dataset_id=made.id)
    catalog.jobs.cancel(job.id)
    catalog.versions.commit(made.id, 1, steps.new_version(made.id, 2), job_id=job.id)
    assert catalog.jobs.get(job.id).state == "succeeded"
    for late in (catalog.jobs.stop, catalog.jobs.cancel, lambda job_id: catalog.jobs.fail(job_id, {})):
        with pytest.raises(JobEndedError, match="has already succeeded"):
            late(job.id)


# ------------------------------------------------------------------------------------------------------------- leases
def test_an_expired_lease_releases_upload_and_dataset(
    catalog: Catalog, connect: Callable[..., Catalog], clock: Clock
) -> None:
    made = steps.dataset(catalog)
    upload = steps.upload(catalog)
    silent = connect(owner="elsewhere")
    busy = steps.running(silent, "load", dataset_id=made.id, upload_id=upload.id)
    waiting = catalog.jobs.create("load", {}, dataset_id=made.id).job
    clock.advance(seconds=59)
    assert not catalog.jobs.start(waiting.id)
    with pytest.raises(UploadInUseError):
        catalog.uploads.delete(upload.id)
    clock.advance(seconds=2)
    assert catalog.jobs.start(waiting.id)
    released = catalog.jobs.get(busy.id)
    assert (released.state, released.error and released.error["code"]) == ("failed", "job_interrupted")
    assert not silent.jobs.report(busy.id, {})
    assert silent.jobs.heartbeat().held == frozenset()
    with pytest.raises(JobEndedError):
        silent.jobs.succeed(busy.id)
    catalog.uploads.delete(upload.id)


def test_every_use_of_an_upload_first_releases_dead_jobs(
    catalog: Catalog, connect: Callable[..., Catalog], clock: Clock
) -> None:
    upload = steps.upload(catalog)
    silent = connect(owner="elsewhere")
    queued = silent.jobs.create("create", {}, upload_id=upload.id).job
    clock.advance(seconds=61)
    assert catalog.jobs.create("create", {}, upload_id=upload.id).is_new
    assert catalog.jobs.get(queued.id).state == "failed"
    clock.advance(seconds=61)
    silent.uploads.delete(upload.id)


def test_an_error_does_not_roll_back_the_release_before_it(
    catalog: Catalog, connect: Callable[..., Catalog], clock: Clock
) -> None:
    lost = steps.running(connect(owner="elsewhere"), "load")
    clock.advance(seconds=61)
    with pytest.raises(JobEndedError, match="has already failed"):
        catalog.jobs.cancel(lost.id)
    assert catalog.jobs.get(lost.id).state == "failed"


def test_a_heartbeat_renews_only_the_jobs_of_its_owner(
    catalog: Catalog, connect: Callable[..., Catalog], clock: Clock
) -> None:
    one, two = connect(owner="one"), connect(owner="two")
    kept, queued, lost = steps.running(one, "load"), one.jobs.create("load", {}).job, steps.running(two, "load")
    for _ in range(5):
        clock.advance(seconds=30)
        assert one.jobs.heartbeat().held == {kept.id, queued.id}
    assert catalog.jobs.release_expired() == [lost.id]
    assert not catalog.jobs.release_expired()
    assert one.jobs.get(kept.id).state == "running"


def test_old_leases_of_the_own_process_do_not_expire(catalog: Catalog, clock: Clock) -> None:
    """After the machine slept, all leases are old, but this process still runs its jobs."""
    made = steps.dataset(catalog)
    job = steps.running(catalog, "load", dataset_id=made.id)
    clock.advance(hours=8)
    assert not catalog.jobs.release_expired()
    assert catalog.versions.commit(made.id, 1, steps.new_version(made.id, 2), job_id=job.id).version == 2


def test_lease_and_grace_are_configurable(connect: Callable[..., Catalog], clock: Clock) -> None:
    from datetime import timedelta

    short = connect(owner="short", lease=timedelta(seconds=5), grace=timedelta(0))
    job = steps.running(short, "load")
    short.garbage.add(["datasets/x"])
    assert [item.path for item in short.garbage.due()] == ["datasets/x"]
    clock.advance(seconds=6)
    assert connect().jobs.release_expired() == [job.id]


def test_jobs_of_a_dead_process_are_released_immediately(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from inlay.catalog import leases; print(leases.this_process(), flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        owner = child.stdout.readline().strip()
        upload = steps.upload(catalog)
        job = steps.running(connect(owner=owner), "create", upload_id=upload.id)
        assert not catalog.jobs.release_expired()
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie
        assert catalog.jobs.release_expired() == [job.id]
    steps.running(connect(owner=owner), "create", upload_id=upload.id)
    assert catalog.jobs.create("create", {}, upload_id=upload.id).is_new


def test_only_owners_on_this_host_can_be_dead() -> None:
    owner = leases.this_process()
    host, pid, start = owner.split("/")
    assert not leases.is_dead(owner)
    assert leases.is_dead(f"{host}/{pid}/{int(start) + 1}"), "another process has this pid now"
    assert leases.is_dead(f"{host}/{2**22 + 1}/{start}")
    assert not leases.is_dead(f"other{host}/{2**22 + 1}/{start}")
    assert not leases.is_dead(f"{host}/{2**22 + 1}/0"), "a system that tells no start times"
    assert not leases.is_dead("somebody")


def test_old_jobs_are_deleted_with_their_keys(catalog: Catalog, clock: Clock) -> None:
    old = steps.running(catalog, "load", idempotency_key="k")
    catalog.jobs.succeed(old.id)
    active = steps.running(catalog, "load")
    clock.advance(days=31)
    fresh = catalog.jobs.create("load", {}).job
    assert catalog.jobs.expire(keep_days=30) == 1
    assert {job.id for job in catalog.jobs.list().items} == {active.id, fresh.id}
    assert catalog.jobs.create("load", {"another": 1}, idempotency_key="k").is_new


# --------------------------------------------------------------------------------------------------- idempotency keys
def test_the_same_key_and_request_return_the_same_job(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    upload = steps.upload(catalog)
    request = {"b": [1, 2], "a": {"ü": None}}
    first = catalog.jobs.create(
        "create", request, dataset_id=new_id("dataset"), upload_id=upload.id, idempotency_key="k"
    )
    same = {"a": {"ü": None}, "b": [1, 2]}
    again = connect(owner="other").jobs.create(
        "create", same, dataset_id=new_id("dataset"), upload_id=upload.id, idempotency_key="k"
    )
    assert (first.is_new, again.is_new, again.job) == (True, False, first.job)
    assert catalog.jobs.knows_key("k")
    assert not catalog.jobs.knows_key("k", scope="key_x")
    assert not catalog.jobs.knows_key(None)
    catalog.jobs.start(first.job.id)
    made = steps.finish_creation(catalog, first.job)
    later = catalog.jobs.create("create", same, upload_id=upload.id, idempotency_key="k")
    assert later.job.result == {"dataset_id": made.id, "version": 1, "table_name": made.table_name}
    assert catalog.jobs.list().count == 1


def test_the_same_key_with_another_request_is_rejected(catalog: Catalog) -> None:
    made, other = steps.dataset(catalog), steps.dataset(catalog)
    catalog.jobs.create("load", {"a": 1}, dataset_id=made.id, idempotency_key="k")
    for kind, request, dataset_id in (
        ("load", {"a": 2}, made.id),
        ("load", {"a": True}, made.id),
        ("restore", {"a": 1}, made.id),
        ("load", {"a": 1}, other.id),
    ):
        with pytest.raises(IdempotencyKeyReusedError) as caught:
            catalog.jobs.create(kind, request, dataset_id=dataset_id, idempotency_key="k")
        assert caught.value.http_status == 422
    assert catalog.jobs.create("load", {"a": 2}, dataset_id=made.id, idempotency_key="k", scope="key_x").is_new
    assert catalog.jobs.create("load", {"a": 2}, dataset_id=made.id).is_new


def test_only_a_retryable_failure_releases_its_key(
    catalog: Catalog, connect: Callable[..., Catalog], clock: Clock
) -> None:
    def submit(at: Catalog = catalog) -> tuple[str, bool]:
        submission = at.jobs.create("load", {}, idempotency_key="k")
        return submission.job.id, submission.is_new

    first, _ = submit(connect(owner="elsewhere"))
    clock.advance(seconds=61)
    second, is_new = submit()
    assert is_new, "the first one was interrupted"
    assert catalog.jobs.get(first).state == "failed"
    catalog.jobs.fail(second, {"code": "unavailable"}, retryable=True)
    third, is_new = submit()
    assert is_new
    catalog.jobs.fail(third, {"code": "rejected_data"})
    assert submit() == (third, False)


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\0", "\udcff"])
def test_an_invalid_idempotency_key_is_rejected(catalog: Catalog, key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Idempotency-Key"):
        catalog.jobs.create("load", {}, idempotency_key=key)


def test_jobs_of_one_dataset_start_in_submission_order(catalog: Catalog) -> None:
    dataset_id = new_id("dataset")
    first, second, third = (catalog.jobs.create("create", {}, dataset_id=dataset_id).job for _ in range(3))
    assert not catalog.jobs.start(second.id)
    assert catalog.jobs.start(first.id)
    assert not catalog.jobs.start(second.id)
    catalog.jobs.succeed(first.id)
    assert not catalog.jobs.start(third.id)
    catalog.jobs.cancel(second.id)
    assert catalog.jobs.start(third.id)
