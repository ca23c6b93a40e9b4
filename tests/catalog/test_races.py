"""Concurrent and killed processes: one claim per upload, unique names, no lost version."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from inlay.catalog import Catalog, Version, new_id
from inlay.errors import InlayError, NotFoundError, TableNameTakenError, UploadConsumedError, UploadInUseError
from tests.catalog import steps
from tests.catalog.processes import go, read, worker


def together(actions: list[Callable[[], object]]) -> list[object]:
    """Run all functions at the same moment. Returns results and `InlayError`s."""
    barrier = threading.Barrier(len(actions))

    def act(action: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return action()
        except InlayError as error:
            return type(error)

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(act, actions))


def test_one_of_sixteen_threads_claims_an_upload(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    catalogs = [connect(owner=f"process {n}") for n in range(4)]

    def claim(number: int, upload_id: str) -> bool:
        return catalogs[number % 4].jobs.create("create", {}, upload_id=upload_id).is_new

    for _ in range(5):
        upload = steps.upload(catalog)
        results = together([partial(claim, number, upload.id) for number in range(16)])
        assert (results.count(True), results.count(UploadInUseError)) == (1, 15)
        (winner,) = catalog.jobs.list(state="queued").items
        catalog.jobs.cancel(winner.id)


def test_concurrent_creates_from_one_upload_make_one_dataset(catalog: Catalog) -> None:
    upload = steps.upload(catalog)

    def attempt() -> str:
        return steps.finish_creation(catalog, steps.create_job(catalog, upload_id=upload.id)).id

    results = together([attempt] * 12)
    made = [result for result in results if isinstance(result, str)]
    assert len(made) == 1
    assert {r for r in results if not isinstance(r, str)} <= {UploadInUseError, UploadConsumedError}
    assert [dataset.id for dataset in catalog.datasets.list().items] == made


def test_one_of_many_creates_gets_a_table_name(catalog: Catalog) -> None:
    results = together(
        [lambda: steps.dataset(catalog, table_name="naMe").id, lambda: steps.dataset(catalog, table_name="NAME").id] * 4
    )
    assert [result for result in results if isinstance(result, str)] == [catalog.datasets.list().items[0].id]
    assert results.count(TableNameTakenError) == 7
    renamed = [steps.dataset(catalog).id for _ in range(6)]
    results = together([partial(catalog.datasets.rename, dataset_id, table_name="another") for dataset_id in renamed])
    assert results.count(TableNameTakenError) == 5


def test_one_idempotency_key_creates_one_job(catalog: Catalog) -> None:
    upload = steps.upload(catalog)

    def submit() -> tuple[str, bool]:
        made = catalog.jobs.create(
            "create", {"a": 1}, dataset_id=new_id("dataset"), upload_id=upload.id, idempotency_key="k"
        )
        return made.job.id, made.is_new

    results = together([submit] * 12)
    assert len({job_id for job_id, _ in results}) == 1  # type: ignore[misc]
    assert [is_new for _, is_new in results].count(True) == 1  # type: ignore[misc]


def test_concurrent_delete_and_commit_are_consistent(catalog: Catalog) -> None:
    for _ in range(6):
        made = steps.dataset(catalog)
        job = steps.running(catalog, "load", dataset_id=made.id)
        new = steps.new_version(made.id, 2)
        commit = partial(catalog.versions.commit, made.id, 1, new, job_id=job.id)
        deleted, committed = together([partial(catalog.datasets.delete, made.id), commit])
        assert deleted is None
        assert committed is NotFoundError or isinstance(committed, Version)
        assert catalog.versions.live_paths(made.id) == set()
        with pytest.raises(NotFoundError):
            catalog.datasets.get(made.id)


def test_concurrent_processes_lose_no_version(catalog: Catalog, url: str) -> None:
    made = steps.dataset(catalog)
    with ExitStack() as stack:
        workers = [stack.enter_context(worker("load", url, made.id, "15")) for _ in range(3)]
        assert [read(process) for process in workers] == ["ready"] * 3
        for process in workers:
            go(process)
        assert [read(process) for process in workers] == ["done"] * 3
    versions = catalog.versions.list(made.id, limit=1000).items
    assert [version.version for version in versions] == list(range(46, 0, -1))
    assert len({version.job_id for version in versions}) == 46
    assert catalog.jobs.list(kind="load", state="succeeded").count == 45
    assert catalog.jobs.list(kind="load").count == 45


def test_concurrent_creates_with_one_label_all_succeed(catalog: Catalog, url: str) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(worker("create", url, "Umsätze 2026", "10")) for _ in range(3)]
        assert [read(process) for process in workers] == ["ready"] * 3
        for process in workers:
            go(process)
        names = " ".join(read(process) for process in workers).split()
    expected = {"umsatze_2026"} | {f"umsatze_2026_{n}" for n in range(2, 31)}
    assert len(names) == 30
    assert set(names) == expected == set(catalog.datasets.table_names())


# ---------------------------------------------------------------------------------------------------------- kill -9
def test_jobs_of_a_killed_process_are_released_immediately(catalog: Catalog, url: str) -> None:
    made, upload = steps.dataset(catalog), steps.upload(catalog)
    with worker("claim", url, upload.id, made.id) as process:
        job_id = read(process)
        assert catalog.jobs.get(job_id).state == "running"
        with pytest.raises(UploadInUseError):
            catalog.jobs.create("load", {}, dataset_id=made.id, upload_id=upload.id)
        process.kill()
        process.wait()
        job = steps.running(catalog, "load", dataset_id=made.id, upload_id=upload.id)
    dead = catalog.jobs.get(job_id)
    assert (dead.state, dead.error and dead.error["code"]) == ("failed", "job_interrupted")
    catalog.versions.commit(made.id, 1, steps.new_version(made.id, 2), job_id=job.id)
    assert catalog.uploads.get(upload.id).status == "consumed"


def test_a_process_killed_within_a_transaction_changes_nothing(catalog: Catalog, url: str) -> None:
    made = steps.dataset(catalog)
    before = catalog.versions.snapshot(made.id)
    with worker("hold", url, made.id) as process:
        assert read(process) == "inside"
        assert catalog.versions.snapshot(made.id) == before, "nobody sees what is not committed"
        process.kill()
        process.wait()
        assert catalog.versions.snapshot(made.id) == before
        assert steps.load(catalog, made.id).version == 2
    catalog.check()


def test_acknowledged_commits_survive_a_kill(catalog: Catalog, url: str) -> None:
    made = steps.dataset(catalog)
    chance = random.Random(4)
    for _ in range(4):
        with worker("churn", url, made.id) as process:
            acknowledged = int(read(process))
            time.sleep(chance.uniform(0, 0.2))
            process.kill()
            rest = process.communicate()[0].split("\n")[:-1]  # without an incomplete line
        acknowledged = int(rest[-1]) if rest else acknowledged
        snapshot = catalog.versions.snapshot(made.id)
        assert snapshot.dataset.version in (acknowledged, acknowledged + 1)
        assert len(snapshot.files) == 1
        catalog.jobs.release_expired()
        ended = catalog.jobs.list(state="succeeded", dataset_id=made.id, limit=1000)
        assert ended.count == snapshot.dataset.version
        assert catalog.uploads.list(status="consumed").count == snapshot.dataset.version - 1
        for upload in catalog.uploads.list().items:
            catalog.uploads.delete(upload.id)
    assert catalog.jobs.list(state="running").count == 0
