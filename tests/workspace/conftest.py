"""Workspaces on SQLite with a local disk, and on PostgreSQL with S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.postgres import postgres  # noqa: F401  (a fixture)
from tests.s3 import s3  # noqa: F401  (a fixture)
from tests.spark import cluster

BACKENDS = ("sqlite-disk", "postgresql-s3")


@pytest.fixture(scope="module", params=BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    """Open a workspace with Spark, shared by tests that create their own datasets."""
    settings = {"data_dir": str(tmp_path_factory.mktemp("workspace")), "spark_master": "local[2]"}
    if request.param == "postgresql-s3":
        server = request.getfixturevalue("postgres")
        settings |= {
            "catalog_url": server.url(server.create_database()),
            "storage_url": request.getfixturevalue("s3").bucket() + "/inlay",
        }
    cluster.local_session()
    with Workspace(Settings(**settings, delete_grace_seconds=0.0, lease_seconds=5.0)) as opened:
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=str(tmp_path / "data"), delete_grace_seconds=0.0, orphan_grace_seconds=0.0)
