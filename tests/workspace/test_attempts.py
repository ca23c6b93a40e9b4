"""Several attempts at one version: an attempt that ended in the catalog may still run."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from inlay.catalog import DataFile, Dataset, Job, NewVersion, new_id
from inlay.errors import InvalidArgumentError
from inlay.settings import Settings
from inlay.workspace import Workspace
from inlay.workspace.runner import JobHandle


@pytest.fixture
def workspace(settings: Settings) -> Iterator[Workspace]:
    made = Workspace(settings)
    made.catalog.migrate()
    made.storage.prepare()
    yield made
    made.query_engine.close()
    made.catalog.close()


@pytest.fixture
def dataset(workspace: Workspace) -> Dataset:
    job = started(workspace, new_id("dataset"), "create")
    files = [DataFile(f"datasets/{job.dataset_id}/v1/data.parquet", 1, 4)]
    version = NewVersion(operation="create", files=files, schema=pa.schema([("id", pa.int64())]), parquet_url="x")
    return workspace.catalog.datasets.create(
        job_id=job.id, label="x", source_type="inline", source_config={}, version=version
    )


def started(workspace: Workspace, dataset_id: str, kind: str = "load", **how: bool) -> Job:
    job = workspace.catalog.jobs.create(kind, {}, dataset_id=dataset_id, **how).job
    assert workspace.catalog.jobs.start(job.id)
    return job


def directory(workspace: Workspace, job: Job) -> str:
    handle = JobHandle(job, workspace.catalog.jobs.report)
    snapshot = workspace.dataset(str(job.dataset_id))
    return workspace._conversions._directory(snapshot, handle)


def test_the_first_attempt_writes_to_the_plain_version_directory(workspace: Workspace, dataset: Dataset) -> None:
    assert directory(workspace, started(workspace, dataset.id)) == "v2"


def test_attempts_never_share_a_directory(workspace: Workspace, dataset: Dataset) -> None:
    """An attempt that slept longer than its lease must not remove files of its successor."""
    directories = []
    for _ in range(3):
        job = started(workspace, dataset.id)
        directories.append(directory(workspace, job))
        workspace.catalog.jobs.fail(job.id, InvalidArgumentError("It did not work."))
    assert len(set(directories)) == 3


def test_a_late_attempt_gets_its_own_directory(workspace: Workspace, dataset: Dataset) -> None:
    sleeper = started(workspace, dataset.id)
    workspace.catalog.jobs.fail(sleeper.id, InvalidArgumentError("Its lease ran out."))
    restoring = started(workspace, dataset.id, "restore")
    workspace.catalog.versions.restore(dataset.id, 1, job_id=restoring.id)
    assert directory(workspace, sleeper) == "v3"  # it reads the current version only now
    assert directory(workspace, started(workspace, dataset.id)) not in ("v2", "v3")


def test_plans_are_not_attempts(workspace: Workspace, dataset: Dataset) -> None:
    planning = started(workspace, dataset.id, "plan", writes=False)
    workspace.catalog.jobs.fail(planning.id, InvalidArgumentError("It did not work."))
    assert directory(workspace, started(workspace, dataset.id)) == "v2"


def test_checking_the_storage_leaves_no_files(workspace: Workspace) -> None:
    workspace.storage.prepare()
    assert workspace.storage.files_below("scratch") == []
