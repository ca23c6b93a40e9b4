"""The report of a workspace: versions, backends and totals, without secrets."""

from __future__ import annotations

import os
import platform

import pyarrow as pa
import pytest

from inlay import __version__
from inlay.workspace import Inline, NewDataset, Source, Workspace

pytestmark = pytest.mark.spark


@pytest.mark.on_servers
def test_about_reports_versions_backends_and_totals(workspace: Workspace) -> None:
    before = workspace.about()
    with workspace.receive("text/csv") as upload:
        upload.write(b"id\n1\n")
        upload.finish()
    job = workspace.create_dataset(NewDataset("Two rows", Source(inline=Inline("csv", "id\n1\n2\n")))).wait()
    assert job.dataset_id is not None
    made = workspace.dataset(job.dataset_id).dataset
    after = workspace.about()
    assert after.versions["inlay"] == __version__
    assert after.versions["Python"] == platform.python_version()
    assert after.versions["PyArrow"] == pa.__version__
    assert after.versions["Spark"].startswith("4.")
    assert int(after.versions["Java"].partition(".")[0]) >= 17
    assert after.spark_master == "local[2]"
    assert (after.datasets, after.rows) == (before.datasets + 1, before.rows + 2)
    assert after.bytes == before.bytes + made.size_bytes
    assert after.uploads == before.uploads + 1
    assert after.jobs["succeeded"] == before.jobs["succeeded"] + 1
    assert set(after.jobs) == {"queued", "running", "succeeded", "failed", "cancelled"}


@pytest.mark.on_servers
def test_addresses_of_backends_contain_no_secrets(workspace: Workspace, request: pytest.FixtureRequest) -> None:
    about = workspace.about()
    if "sqlite" in request.node.name:
        folder = str(workspace.settings.data_path)
        assert (about.catalog.kind, about.catalog.address) == ("SQLite", os.path.join(folder, "catalog.db"))
        assert (about.storage.kind, about.storage.address) == ("Local disk", os.path.realpath(folder))
        assert about.storage.free_bytes is not None
        assert about.storage.free_bytes > 0
    else:
        assert about.catalog.kind == "PostgreSQL"
        assert about.catalog.address.startswith("postgresql://")
        assert (about.storage.kind, about.storage.free_bytes) == ("S3", None)
        assert about.storage.address.startswith("s3://")
