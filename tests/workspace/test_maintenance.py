"""Maintenance: removal of due garbage and orphans, and of nothing else."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from inlay.catalog import DataFile, Dataset, NewVersion, new_id
from inlay.errors import NotFoundError, StorageUnavailableError
from inlay.settings import Settings
from inlay.workspace import Workspace
from inlay.workspace.maintenance import Maintenance

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def workspace(settings: Settings) -> Iterator[Workspace]:
    made = Workspace(settings)
    made.catalog.migrate()
    made.storage.prepare()
    yield made
    made.query_engine.close()
    made.catalog.close()


def age(workspace: Workspace, seconds: float = 7200.0) -> None:
    """Set the modification time of every file to long ago."""
    when = time.time() - seconds
    for path in Path(workspace.storage.root.path).rglob("*"):
        if path.is_file():
            os.utime(path, (when, when))


def files(workspace: Workspace) -> set[str]:
    tops = ("uploads", "datasets", "scratch")
    return {f"{top}/{file.path}" for top in tops for file in workspace.storage.files_below(top)}


def dataset(workspace: Workspace, *names: str) -> Dataset:
    dataset_id = new_id("dataset")
    job = workspace.catalog.jobs.create("create", {}, dataset_id=dataset_id).job
    workspace.catalog.jobs.start(job.id)
    paths = [f"datasets/{dataset_id}/v1/{name}" for name in names]
    for path in paths:
        workspace.storage.create(path, b"data")
    version = NewVersion(
        operation="create", files=[DataFile(path, 1, 4) for path in paths], schema=SCHEMA, parquet_url=paths[0]
    )
    return workspace.catalog.datasets.create(
        job_id=job.id, label="x", source_type="inline", source_config={}, version=version
    )


def upload(workspace: Workspace) -> str:
    with workspace.receive("text/csv") as writer:
        writer.write(b"a\n1\n")
        return writer.finish().id


def test_a_version_with_a_damaged_file_is_marked_until_the_file_is_restored(workspace: Workspace) -> None:
    damaged, intact = dataset(workspace, "a.parquet", "b.parquet"), dataset(workspace, "data.parquet")
    path = Path(workspace.storage.address(f"datasets/{damaged.id}/v1/b.parquet"))

    def marked() -> list[bool]:
        workspace._maintenance.collect_orphans()
        return [workspace.dataset(each.id).version.damaged for each in (damaged, intact)]

    assert marked() == [False, False]
    path.write_bytes(b"other data")
    assert marked() == [True, False]
    path.unlink()
    assert marked() == [True, False]
    path.write_bytes(b"data")
    assert marked() == [False, False]


def test_files_of_versions_and_uploads_are_kept(workspace: Workspace) -> None:
    kept, pending = dataset(workspace, "data.parquet"), upload(workspace)
    age(workspace)
    workspace._maintenance.run()
    assert files(workspace) == {f"datasets/{kept.id}/v1/data.parquet", f"uploads/{pending}/raw"}


def test_old_pending_uploads_expire_unless_a_job_uses_them(workspace: Workspace) -> None:
    expired, claimed = upload(workspace), upload(workspace)
    job = workspace.catalog.jobs.create("create", {}, dataset_id=new_id("dataset"), upload_id=claimed).job
    workspace._maintenance.run()
    assert {u.id for u in workspace.uploads().items} == {expired, claimed}
    workspace._services = replace(workspace._services, settings=replace(workspace.settings, upload_expiry_seconds=0.0))
    maintenance = Maintenance(workspace._services)
    maintenance.run()
    assert [u.id for u in workspace.uploads().items] == [claimed]
    assert files(workspace) == {f"uploads/{claimed}/raw"}
    with pytest.raises(NotFoundError):
        workspace.upload(expired)
    workspace.catalog.jobs.cancel(job.id)
    maintenance.run()
    assert files(workspace) == set()


def test_files_of_a_deleted_dataset_are_removed_after_the_grace_period(workspace: Workspace) -> None:
    deleted, kept = dataset(workspace, "data.parquet"), dataset(workspace, "data.parquet")
    workspace.delete_dataset(deleted.id)
    workspace._maintenance.remove_garbage()
    assert files(workspace) == {f"datasets/{kept.id}/v1/data.parquet"}


def test_a_failed_removal_is_retried_later_and_blocks_no_other(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, deleted = dataset(workspace, "data.parquet"), dataset(workspace, "data.parquet")
    orphans = [f"scratch/job_{number}/part" for number in range(2)]
    for path in orphans:
        workspace.storage.create(path, b"data")
    for each in (stuck, deleted):
        workspace.delete_dataset(each.id)
    refused = (f"datasets/{stuck.id}", "scratch/job_0")
    rmtree = shutil.rmtree

    def refuse(path: str) -> None:
        if path.endswith(refused):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        rmtree(path)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        workspace._maintenance.run()
    assert files(workspace) == {f"datasets/{stuck.id}/v1/data.parquet", orphans[0]}
    workspace._maintenance.run()  # retries after some minutes, not immediately
    assert files(workspace) == {f"datasets/{stuck.id}/v1/data.parquet", orphans[0]}
    workspace.catalog.garbage.postpone(f"datasets/{stuck.id}", timedelta(0))
    workspace._maintenance.run()
    workspace._maintenance.collect_orphans()
    assert not files(workspace)
    assert not workspace.catalog.garbage.paths()


def test_files_of_a_deleted_dataset_are_kept_for_the_grace_period(settings: Settings) -> None:
    patient = Workspace(replace(settings, delete_grace_seconds=3600.0))
    patient.catalog.migrate()
    doomed = dataset(patient, "data.parquet")
    patient.delete_dataset(doomed.id)
    age(patient)
    patient._maintenance.run()
    assert files(patient) == {f"datasets/{doomed.id}/v1/data.parquet"}
    patient.query_engine.close()
    patient.catalog.close()


def test_orphans_of_a_crash_are_removed(workspace: Workspace) -> None:
    kept, pending = dataset(workspace, "data.parquet"), upload(workspace)
    orphans = [
        f"uploads/{new_id('upload')}/raw",  # the service crashed before it recorded the upload
        f"datasets/{new_id('dataset')}/v1/data.parquet",  # ... the dataset
        f"datasets/{kept.id}/v2/part-00000.parquet",  # ... the version
        f"scratch/{new_id('job')}/source/data.parquet",
    ]
    for path in orphans:
        workspace.storage.create(path, b"orphan")
    age(workspace)
    workspace._maintenance.collect_orphans()
    assert files(workspace) == {f"datasets/{kept.id}/v1/data.parquet", f"uploads/{pending}/raw"}


def test_an_orphaned_sidecar_is_removed(workspace: Workspace) -> None:
    kept, deleted = dataset(workspace, "data.parquet"), new_id("dataset")
    busy = workspace.catalog.jobs.create("plan", {}, dataset_id=dataset(workspace, "data.parquet").id, writes=False).job
    orphans = [f"datasets/.{owner}.txn/.staging_1/sent-1" for owner in (kept.id, deleted)]
    working = f"datasets/.{busy.dataset_id}.txn/.staging_1/sent-1"
    foreign = {"datasets/notes/of somebody else", f"datasets/.{deleted}/notes", f"datasets/{deleted}.txn/notes"}
    for path in [*orphans, working, *foreign]:
        workspace.storage.create(path, b"rows")
    age(workspace)
    workspace._maintenance.collect_orphans()
    data = {f"datasets/{owner}/v1/data.parquet" for owner in (kept.id, busy.dataset_id)}
    assert files(workspace) == {working} | foreign | data


def test_files_of_active_jobs_are_not_orphans(workspace: Workspace) -> None:
    kept = dataset(workspace, "data.parquet")
    job = workspace.catalog.jobs.create("load", {}, dataset_id=kept.id).job
    creating = workspace.catalog.jobs.create("create", {}, dataset_id=new_id("dataset")).job
    working = [
        f"datasets/{kept.id}/v2/part-00000.parquet",
        f"scratch/{job.id}/source/data.parquet",
        f"datasets/{creating.dataset_id}/v1/data.parquet",
    ]
    for path in working:
        workspace.storage.create(path, b"work")
    age(workspace)
    workspace._maintenance.collect_orphans()
    assert set(working) <= files(workspace)


def test_empty_directories_of_a_crash_are_removed(workspace: Workspace) -> None:
    kept = dataset(workspace, "data.parquet")
    job = workspace.catalog.jobs.create("create", {}, dataset_id=new_id("dataset")).job
    hollow = [f"uploads/{new_id('upload')}", f"datasets/{kept.id}/v2/rejects", f"scratch/{new_id('job')}/source/parts"]
    working = [f"datasets/{job.dataset_id}/v1/rejects", f"scratch/{job.id}/source"]
    for path in hollow + working:
        workspace.storage.make_directory(path)
    workspace._maintenance.collect_orphans()
    root = Path(workspace.storage.root.path)
    assert [path for path in hollow + working if (root / path).exists()] == working
    assert not (root / f"datasets/{kept.id}/v2").exists()
    assert (root / "uploads").exists()
    assert files(workspace) == {f"datasets/{kept.id}/v1/data.parquet"}


def test_young_files_are_not_orphans(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old files may belong to a newer catalog than the restored one, so they stay for an hour."""
    patient = Workspace(replace(settings, orphan_grace_seconds=3600.0))
    patient.catalog.migrate()
    paths = {f"uploads/{new_id('upload')}/raw", f"datasets/{new_id('dataset')}/v1/data.parquet"}
    for path in paths:
        patient.storage.create(path, b"still arriving")
    patient._maintenance.collect_orphans()
    assert files(patient) == paths
    age(patient)
    patient._maintenance.collect_orphans()
    assert files(patient) == paths
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3601.0)
    patient._maintenance.collect_orphans()
    assert files(patient) == set()
    patient.query_engine.close()
    patient.catalog.close()


def test_an_interrupted_upload_leaves_no_files(workspace: Workspace) -> None:
    def broken_off() -> None:
        with workspace.receive("text/csv") as writer:
            writer.write(b"a\n1")
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        broken_off()
    assert (files(workspace), workspace.uploads().items) == (set(), ())


def test_a_dataset_deleted_during_orphan_collection_keeps_its_grace_period(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(replace(settings, delete_grace_seconds=60.0))
    workspace.catalog.migrate()
    made = dataset(workspace, "data.parquet")
    age(workspace)
    live_paths = workspace.catalog.versions.live_paths

    def late(dataset_id: str) -> set[str]:
        workspace.catalog.datasets.delete(dataset_id)
        return live_paths(dataset_id)

    monkeypatch.setattr(workspace.catalog.versions, "live_paths", late)
    assert workspace._maintenance.collect_orphans() == []
    assert files(workspace) == {f"datasets/{made.id}/v1/data.parquet"}
    workspace.query_engine.close()
    workspace.catalog.close()


def test_a_storage_belongs_to_one_catalog(settings: Settings, tmp_path: Path) -> None:
    """Another catalog, such as an empty one, would remove all files as orphans."""
    shared = replace(settings, storage_url=str(tmp_path / "storage"))
    mine = Workspace(shared)
    mine.open(warm=False)
    upload(mine)
    before = files(mine)
    mine.close()
    other = Workspace(replace(shared, data_dir=str(tmp_path / "elsewhere")))
    with pytest.raises(StorageUnavailableError, match="belongs to another catalog") as caught:
        other.open(warm=False)
    assert "INLAY_CATALOG_URL" in str(caught.value.hint)
    other.close()
    again = Workspace(shared)
    again.open(warm=False)
    assert files(again) == before
    again.close()
