"""Versions in the catalog: commit, restore, expire; and garbage."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from inlay.catalog import Catalog, DataFile, dataset_directory
from inlay.errors import ConflictError, InvalidArgumentError, JobEndedError, NotFoundError, UploadConsumedError
from tests.catalog import steps
from tests.catalog.conftest import Clock


def test_a_commit_makes_the_next_version_current(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    upload = steps.upload(catalog)
    job = steps.running(catalog, "load", dataset_id=made.id, upload_id=upload.id)
    wider = steps.SCHEMA.append(pa.field("new", pa.string()))
    old_file = catalog.versions.snapshot(made.id).files[0]
    new = steps.new_version(
        made.id,
        2,
        files=[old_file, DataFile(steps.path(made.id, 2), 7, 70)],
        schema=wider,
        strategy="upsert",
        inserted=7,
        updated=3,
        deleted=0,
        parquet_url="file:///v2/manifest.json",
        source={"upload_id": upload.id},
    )
    version = catalog.versions.commit(made.id, 1, new, job_id=job.id, result={"rewritten": 1})

    assert version == catalog.versions.get(made.id) == catalog.versions.get(made.id, 2)
    assert (version.version, version.strategy, version.inserted, version.updated) == (2, "upsert", 7, 3)
    assert (version.row_count, version.size_bytes, version.file_count) == (17, 170, 2)
    now = catalog.datasets.get(made.id)
    assert (now.version, now.row_count, now.size_bytes) == (2, 17, 170)
    assert now.parquet_url == "file:///v2/manifest.json"
    assert now.schema == wider
    assert now.updated_at == version.created_at > made.updated_at
    assert now.created_at == made.created_at
    assert catalog.uploads.get(upload.id).status == "consumed"
    ended = catalog.jobs.get(job.id)
    assert (ended.state, ended.result) == ("succeeded", {"dataset_id": made.id, "version": 2, "rewritten": 1})

    before = catalog.versions.snapshot(made.id, 1)
    assert before.files == (old_file,)
    assert before.version.schema == steps.SCHEMA
    assert before.dataset == now


def test_a_commit_on_an_outdated_version_changes_nothing(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    steps.load(catalog, made.id)
    upload = steps.upload(catalog)
    job = steps.running(catalog, "load", dataset_id=made.id, upload_id=upload.id)
    before = catalog.versions.snapshot(made.id)
    for base in (1, 3, 0):
        with pytest.raises(ConflictError, match="at version 2"):
            catalog.versions.commit(made.id, base, steps.new_version(made.id, base + 1), job_id=job.id)
    assert catalog.versions.snapshot(made.id) == before
    assert catalog.versions.list(made.id).count == 2
    assert catalog.uploads.get(upload.id).status == "pending"
    assert catalog.jobs.get(job.id).state == "running"


def test_only_the_running_writing_job_of_the_dataset_and_owner_may_commit(
    catalog: Catalog, connect: Callable[..., Catalog]
) -> None:
    made, other = steps.dataset(catalog), steps.dataset(catalog)
    new = steps.new_version(made.id, 2)
    queued = catalog.jobs.create("load", {}, dataset_id=made.id).job
    with pytest.raises(JobEndedError):
        catalog.versions.commit(made.id, 1, new, job_id=queued.id)
    catalog.jobs.cancel(queued.id)  # otherwise the next job would wait for it
    elsewhere = steps.running(catalog, "load", dataset_id=other.id)
    planning = steps.running(catalog, "plan", dataset_id=made.id, writes=False)
    foreign = steps.running(connect(owner="somebody"), "load", dataset_id=made.id)
    for job in (elsewhere, planning, foreign):
        with pytest.raises(ConflictError):
            catalog.versions.commit(made.id, 1, new, job_id=job.id)
        with pytest.raises(ConflictError):
            catalog.versions.restore(made.id, 1, job_id=job.id)
    assert catalog.datasets.get(made.id).version == 1


def test_a_job_with_an_expired_lease_cannot_commit(
    catalog: Catalog, connect: Callable[..., Catalog], clock: Clock
) -> None:
    made = steps.dataset(catalog)
    slow = connect(owner="slow")
    job = steps.running(slow, "load", dataset_id=made.id)
    clock.advance(seconds=61)
    version = steps.load(catalog, made.id)
    assert version.version == 2
    with pytest.raises(JobEndedError):
        slow.versions.commit(made.id, 1, steps.new_version(made.id, 2), job_id=job.id)
    assert catalog.versions.list(made.id).count == 2


def test_a_commit_fails_if_its_upload_is_missing(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    upload = steps.upload(catalog)
    job = steps.running(catalog, "load", dataset_id=made.id, upload_id=upload.id)
    with catalog._database.write() as connection:
        connection.exec_driver_sql("UPDATE uploads SET status = 'consumed'")
    with pytest.raises(UploadConsumedError):
        catalog.versions.commit(made.id, 1, steps.new_version(made.id, 2), job_id=job.id)
    assert catalog.datasets.get(made.id).version == 1


def test_versions_are_listed_newest_first(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    for _ in range(4):
        steps.load(catalog, made.id)
    page = catalog.versions.list(made.id, limit=2, offset=1)
    assert [version.version for version in page.items] == [4, 3]
    assert (page.count, page.has_more) == (5, True)


@pytest.mark.parametrize("number", [0, -1, 3, 2**70])
def test_an_unknown_version_is_not_found(catalog: Catalog, number: int) -> None:
    made = steps.dataset(catalog)
    steps.load(catalog, made.id)
    with pytest.raises(NotFoundError, match="Its current version is 2"):
        catalog.versions.get(made.id, number)


def test_restoring_creates_a_new_version_of_old_files(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    steps.load(catalog, made.id, schema=pa.schema([("other", pa.int8())]), rejected_count=3)
    job = steps.running(catalog, "restore", dataset_id=made.id)
    restored = catalog.versions.restore(made.id, 1, job_id=job.id)
    first, third = catalog.versions.snapshot(made.id, 1), catalog.versions.snapshot(made.id)
    assert third.version == restored
    assert third.files == first.files
    assert (restored.version, restored.operation, restored.source) == (3, "restore", {"version": 1})
    assert (restored.row_count, restored.rejected_count, restored.job_id) == (10, 0, job.id)
    assert third.dataset.schema == steps.SCHEMA
    assert third.dataset.parquet_url == first.version.parquet_url
    assert catalog.jobs.get(job.id).state == "succeeded"
    assert steps.load(catalog, made.id).version == 4

    job = steps.running(catalog, "restore", dataset_id=made.id)
    with pytest.raises(NotFoundError, match="no version 9"):
        catalog.versions.restore(made.id, 9, job_id=job.id)
    assert catalog.jobs.get(job.id).state == "running"


def test_a_version_can_have_no_files_or_many(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    empty = steps.load(catalog, made.id, files=[], parquet_url="file:///none")
    assert (empty.row_count, empty.file_count) == (0, 0)
    many = [DataFile(steps.path(made.id, 3, f"data-{n:05}.parquet"), n, 1) for n in range(3000, 0, -1)]
    steps.load(catalog, made.id, files=many)
    assert catalog.versions.snapshot(made.id).files == tuple(many)


# ------------------------------------------------------------------------------------------------------- retention
def chain(catalog: Catalog, clock: Clock, count: int) -> str:
    """Create a dataset with one version per day, each with the previous file and a new file."""
    made = steps.dataset(catalog)
    for number in range(2, count + 1):
        clock.advance(days=1)
        kept = DataFile(steps.path(made.id, number - 1), 1, 1)
        own = DataFile(steps.path(made.id, number), 1, 1)
        steps.load(
            catalog,
            made.id,
            files=[kept, own],
            manifest_path=steps.path(made.id, number, "manifest.json"),
            reject_files=[steps.path(made.id, number, "rejects.parquet")],
        )
    return made.id


def numbers(catalog: Catalog, dataset_id: str) -> list[int]:
    return [version.version for version in catalog.versions.list(dataset_id).items]


def test_old_versions_beyond_the_last_ones_expire(catalog: Catalog, clock: Clock) -> None:
    dataset_id = chain(catalog, clock, 8)
    assert catalog.versions.expire() == 0
    assert catalog.versions.expire(keep_versions=3, keep_days=30) == 0
    assert catalog.versions.expire(keep_versions=20, keep_days=0) == 0
    assert catalog.versions.expire(keep_versions=2, keep_days=3.5) == 4
    assert numbers(catalog, dataset_id) == [8, 7, 6, 5]

    clock.advance(seconds=61)
    expired = {item.path for item in catalog.garbage.due() if not item.is_directory}
    expected = {steps.path(dataset_id, number) for number in (1, 2, 3)}  # version 5 still uses the file of version 4
    expected |= {steps.path(dataset_id, n, name) for n in (2, 3, 4) for name in ("manifest.json", "rejects.parquet")}
    assert expired == expected
    assert not expired & catalog.versions.live_paths(dataset_id)
    with pytest.raises(NotFoundError):
        catalog.versions.get(dataset_id, 4)


def test_the_current_version_never_expires(catalog: Catalog, clock: Clock) -> None:
    dataset_id = chain(catalog, clock, 3)
    clock.advance(days=1000)
    assert catalog.versions.expire(keep_versions=1, keep_days=0) == 2
    assert catalog.versions.expire(keep_versions=1, keep_days=0) == 0
    assert numbers(catalog, dataset_id) == [3]
    assert steps.load(catalog, dataset_id).version == 4


def test_files_of_a_restored_version_outlive_the_original(catalog: Catalog, clock: Clock) -> None:
    dataset_id = chain(catalog, clock, 4)
    job = steps.running(catalog, "restore", dataset_id=dataset_id)
    catalog.versions.restore(dataset_id, 2, job_id=job.id)
    clock.advance(days=100)
    catalog.versions.expire(keep_versions=1, keep_days=1)
    needed = {steps.path(dataset_id, 1), steps.path(dataset_id, 2), steps.path(dataset_id, 2, "manifest.json")}
    assert catalog.versions.live_paths(dataset_id) == needed
    clock.advance(days=1)
    assert not needed & {item.path for item in catalog.garbage.due()}


@pytest.mark.parametrize(
    "wrong", [{"keep_versions": 0}, {"keep_days": -1}, {"keep_days": 1e9}, {"keep_days": float("nan")}]
)
def test_an_invalid_retention_is_rejected(catalog: Catalog, wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        catalog.versions.expire(**wrong)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------- garbage
def test_garbage_is_due_after_its_grace_period_until_removed(
    catalog: Catalog, connect: Callable[..., Catalog], clock: Clock
) -> None:
    catalog.garbage.add(["datasets/a/v1/x", "datasets/a/v1/y"])
    catalog.garbage.add(["datasets/b"], is_directory=True)
    assert catalog.garbage.due() == ()
    clock.advance(seconds=30)
    catalog.garbage.add(["datasets/a/v1/x"])  # keeps its first due time
    clock.advance(seconds=31)
    again = connect()  # simulates a restart
    assert [item.path for item in again.garbage.due()] == ["datasets/a/v1/x", "datasets/a/v1/y", "datasets/b"]
    assert [item.path for item in again.garbage.due(limit=1)] == ["datasets/a/v1/x"]
    again.garbage.mark_removed("datasets/a/v1/x")
    again.garbage.mark_removed("datasets/a/v1/x")
    assert [item.path for item in catalog.garbage.due()] == ["datasets/a/v1/y", "datasets/b"]
    assert catalog.garbage.due(clock.time.replace(year=2020)) == ()


def test_files_of_a_version_are_removed_from_the_garbage(catalog: Catalog, clock: Clock) -> None:
    """After a failed job, whose files are garbage, the next job writes the same paths."""
    made = steps.dataset(catalog)
    root = dataset_directory(made.id)
    stale = [steps.path(made.id, 2), f"{root}/v2/leftover.parquet", f"{root}/v3/data.parquet"]
    catalog.garbage.add(stale)
    catalog.garbage.add([f"{root}/v2"], is_directory=True)
    steps.load(catalog, made.id)
    clock.advance(days=1)
    assert {item.path for item in catalog.garbage.due()} == set(stale[1:])


def test_row_counts_of_the_last_versions(catalog: Catalog) -> None:
    long, short = steps.dataset(catalog, "Long"), steps.dataset(catalog, "Short")
    for _ in range(4):
        steps.load(catalog, long.id)
    assert catalog.versions.row_counts([long.id, short.id, "data_unknown"], limit=3) == {
        long.id: (30, 40, 50),
        short.id: (10,),
    }
    assert catalog.versions.row_counts([], limit=3) == {}
