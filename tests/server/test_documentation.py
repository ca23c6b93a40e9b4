"""Snippets of the documentation pages run against a real service."""

from __future__ import annotations

from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.pages import ROOT, PageRunner, load_generator, name_of, needs_a_service
from tests.postgres import PostgresServer, find_programs
from tests.s3 import S3Server
from tests.service import running
from tests.spark import cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]  # each page runs many commands
PAGES: list[Path] = [path for path in load_generator().documents() if needs_a_service(path)]
GROWN = ROOT / "docs/operations/grow.md"  # requires PostgreSQL and S3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the reader, with the data directory of the service."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


FOR_USERS = ("docs/tutorial/service.md", "docs/how-to/service.md")


def page_case(path: Path) -> ParameterSet:
    # Short runs run the pages for users, and one page for operators on PostgreSQL and S3 below.
    is_for_users = path.relative_to(ROOT).as_posix() in FOR_USERS
    return pytest.param(path, marks=() if is_for_users else pytest.mark.long, id=name_of(path))


@pytest.mark.parametrize("path", [page_case(page) for page in PAGES if page != GROWN])
def test_every_snippet_runs(path: Path, folder: Path) -> None:
    cluster.local_session()
    with running(Workspace(Settings(data_dir=str(folder / ".inlay"), spark_master="local[2]"))) as api:
        api.wait_until_ready()
        PageRunner(path, api.url).run()


# Short runs run the tutorial on SQLite and a disk above.
TUTORIAL = pytest.param(ROOT / "docs/tutorial/service.md", marks=pytest.mark.long)


@pytest.mark.parametrize("path", [GROWN, TUTORIAL], ids=name_of)
def test_every_snippet_runs_on_postgresql_and_s3(
    path: Path, folder: Path, postgres: PostgresServer, s3: S3Server
) -> None:
    cluster.local_session()
    settings = {
        "catalog_url": postgres.url(postgres.create_database()),
        "storage_url": f"{s3.bucket()}/inlay",
        "data_dir": str(folder / ".inlay"),
    }
    with running(Workspace(Settings(spark_master="local[2]", **settings))) as api:
        api.wait_until_ready()
        environment = {f"INLAY_{name.upper()}": value for name, value in settings.items()}
        environment |= {"BACKUP_BUCKET": s3.bucket(), "RESTORED_URL": postgres.url(postgres.create_database())}
        PageRunner(path, api.url, environment, program_directories=[str(find_programs())]).run()
