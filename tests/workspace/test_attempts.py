"""Several attempts at one version of a dataset: an ended one may not know it, and must not harm the others."""

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
    made.places.prepare()
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


def test_the_first_attempt_writes_where_everybody_would_look(workspace: Workspace, dataset: Dataset) -> None:
    assert directory(workspace, started(workspace, dataset.id)) == "v2"


def test_no_two_attempts_share_a_directory(workspace: Workspace, dataset: Dataset) -> None:
    """Whoever slept longer than its lease would remove, with what it made itself, what its successor committed."""
    places = []
    for _ in range(3):
        job = started(workspace, dataset.id)
        places.append(directory(workspace, job))
        workspace.catalog.jobs.fail(job.id, InvalidArgumentError("It did not work."))
    assert len(set(places)) == 3


def test_an_attempt_at_an_older_version_may_have_seen_the_newer_one(workspace: Workspace, dataset: Dataset) -> None:
    sleeper = started(workspace, dataset.id)
    workspace.catalog.jobs.fail(sleeper.id, InvalidArgumentError("Its lease ran out."))
    restoring = started(workspace, dataset.id, "restore")
    workspace.catalog.versions.restore(dataset.id, 1, job_id=restoring.id)
    assert directory(workspace, sleeper) == "v3"  # which it looks up only now
    assert directory(workspace, started(workspace, dataset.id)) not in ("v2", "v3")


def test_what_changes_nothing_is_no_attempt(workspace: Workspace, dataset: Dataset) -> None:
    planning = started(workspace, dataset.id, "plan", writes=False)
    workspace.catalog.jobs.fail(planning.id, InvalidArgumentError("It did not work."))
    assert directory(workspace, started(workspace, dataset.id)) == "v2"


def test_looking_at_the_storage_leaves_nothing(workspace: Workspace) -> None:
    workspace.places.prepare()
    assert workspace.places.files_below("scratch") == []
