"""Transactions on SQLite and PostgreSQL, and their errors."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inlay.catalog import Catalog
from inlay.catalog.database import Database
from inlay.errors import CatalogUnavailableError, CommitStateUnknownError, ConflictError, InvalidArgumentError
from tests.catalog import steps
from tests.catalog.conftest import Backend
from tests.postgres import PostgresServer


@pytest.mark.parametrize(
    "url", ["", "nonsense", "mysql://x/y", "sqlite://", "sqlite:///:memory:", "postgresql+psycopg2://x/y"]
)
def test_an_invalid_database_url_is_rejected(url: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Catalog(url)
    assert "Use a URL such as sqlite:" in str(caught.value)


def test_a_password_is_never_shown() -> None:
    catalog = Catalog("postgresql://me:hunter2@127.0.0.1:1/none")
    assert catalog.location == "postgresql+psycopg://me:***@127.0.0.1:1/none"
    with pytest.raises(CatalogUnavailableError) as caught:
        catalog.check()
    assert "hunter2" not in str(caught.value)
    assert caught.value.http_status == 503


def test_an_exhausted_connection_pool_makes_the_catalog_unavailable(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    pool: Any = database._engine.pool
    pool._timeout = 0.1
    with contextlib.ExitStack() as taken:
        for _ in range(40):
            taken.enter_context(database.read())
        with pytest.raises(CatalogUnavailableError, match="QueuePool limit"), database.read():
            pass
    with database.read():
        pass
    database.close()


def test_a_file_that_is_not_a_database_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database at all" * 100)
    catalog = Catalog(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(CatalogUnavailableError, match="not a database"):
        catalog.check()
    with pytest.raises(CatalogUnavailableError, match="not a database"):
        catalog.migrate()
    with pytest.raises(CatalogUnavailableError):
        Catalog(f"sqlite:///{tmp_path / 'x.db' / 'y.db'}")


def test_directories_are_created_for_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "größe %20 ?#@:" / "x.db"
    catalog = Catalog(path)
    catalog.migrate()
    made = steps.dataset(catalog)
    catalog.close()
    assert path.is_file()
    again = Catalog(catalog.location)
    assert again.datasets.get(made.id) == made
    again.close()


def test_sqlite_connections_have_the_required_pragmas(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    expected = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}
    for transaction in (database.read, database.write):
        with transaction() as connection:
            assert {p: connection.exec_driver_sql(f"PRAGMA {p}").scalar() for p in expected} == expected
    database.close()


def test_readers_do_not_wait_for_writers_and_see_one_snapshot(
    catalog: Catalog, connect: Callable[..., Catalog]
) -> None:
    steps.upload(catalog)
    with catalog._database.write() as writer:
        writer.exec_driver_sql("DELETE FROM uploads")
        assert connect().uploads.list().count == 1
    assert connect().uploads.list().count == 0

    with catalog._database.read() as reader:
        count = "SELECT count(*) FROM uploads"
        assert reader.exec_driver_sql(count).scalar() == 0
        steps.upload(connect())
        assert reader.exec_driver_sql(count).scalar() == 0
    assert catalog.uploads.list().count == 1


def test_only_one_writer_runs_at_a_time(catalog: Catalog) -> None:
    inside, overlaps = [], []

    def write() -> None:
        for _ in range(10):
            with catalog._database.write():
                inside.append(1)
                time.sleep(0.002)
                overlaps.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [1] * 80


def test_an_error_rolls_the_transaction_back(catalog: Catalog) -> None:
    def spoil() -> None:
        with catalog._database.write() as connection:
            connection.exec_driver_sql("CREATE TABLE extra (x INTEGER)")
            connection.exec_driver_sql("DELETE FROM uploads")
            raise KeyboardInterrupt

    steps.upload(catalog)
    with pytest.raises(KeyboardInterrupt):
        spoil()
    assert catalog.uploads.list().count == 1
    with pytest.raises(CatalogUnavailableError, match="extra"), catalog._database.read() as connection:
        connection.exec_driver_sql("SELECT * FROM extra")


def test_a_constraint_violation_is_a_conflict(catalog: Catalog) -> None:
    made = steps.dataset(catalog)
    with pytest.raises(ConflictError), catalog._database.write() as connection:
        connection.exec_driver_sql(
            f"DELETE FROM datasets WHERE id = '{made.id}'"
        )  # violates the foreign key of its versions
    assert catalog.datasets.get(made.id) == made


def test_a_commit_that_the_database_rejects_changes_nothing(backend: Backend, catalog: Catalog) -> None:
    late = {  # deferred constraints fail in the commit
        "sqlite": ["PRAGMA defer_foreign_keys = ON", "DELETE FROM datasets"],
        "postgresql": [
            "CREATE TEMP TABLE t (a INT UNIQUE DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO t VALUES (1), (1)",
        ],
    }[backend.name]

    def fail_late() -> None:
        with catalog._database.write() as connection:
            for statement in late:
                connection.exec_driver_sql(statement)

    made = steps.dataset(catalog)
    for _ in range(3):
        with pytest.raises(ConflictError):
            fail_late()
    assert catalog.datasets.get(made.id) == made
    assert steps.load(catalog, made.id).version == 2


def test_connections_that_the_server_closed_are_replaced(postgres: PostgresServer) -> None:
    name = postgres.create_database()
    catalog = Catalog(postgres.url(name))
    catalog.migrate()
    made = steps.dataset(catalog)
    postgres.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    assert catalog.datasets.get(made.id) == made
    catalog.close()
    postgres.drop_database(name)


def test_an_idle_writer_is_aborted(postgres: PostgresServer) -> None:
    """A process that is stopped inside a transaction must not block all writers."""
    url = postgres.url(postgres.create_database())
    database, other = Database(url), Database(url)

    def fall_silent() -> None:
        with database.write() as connection:
            assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar() == "15s"
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = '200ms'")
            with other.write() as waiting:  # gets the lock only after the idle writer has lost it
                assert waiting.exec_driver_sql("SELECT 1").scalar() == 1

    with pytest.raises(CommitStateUnknownError):
        fall_silent()
    with database.write() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    database.close()
    other.close()


def test_lookups_see_the_changes_of_other_processes_at_once(catalog: Catalog, connect: Callable[..., Catalog]) -> None:
    other = connect()
    assert catalog.datasets.current_version("sales") is None
    made = steps.dataset(other)
    assert catalog.datasets.current_version("SALES") == (made.id, 1)
    steps.load(other, made.id)
    assert catalog.datasets.current_version("sales") == (made.id, 2)
    other.datasets.rename(made.id, table_name="income")
    assert catalog.datasets.current_version("sales") is None
    other.datasets.delete(made.id)
    assert catalog.datasets.current_version("income") is None
    key = other.api_keys.create("one")
    assert catalog.api_keys.verify(key.secret) == key.key
    other.api_keys.revoke(key.key.id)
    assert catalog.api_keys.verify(key.secret) is None


def test_lookups_survive_a_restart_of_the_server(postgres: PostgresServer) -> None:
    url = postgres.url(postgres.create_database())
    catalog, other = Catalog(url), Catalog(url)
    catalog.migrate()
    assert not catalog.api_keys.exist()
    with other._database.write() as connection:
        terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        connection.exec_driver_sql(f"{terminate} WHERE datname = current_database() AND pid <> pg_backend_pid()")
    assert not catalog.api_keys.exist()
    catalog.close()
    other.close()


def test_lookups_of_an_unavailable_catalog_are_an_error(tmp_path: Path) -> None:
    catalog = Catalog(f"sqlite:///{tmp_path / 'x.db'}")
    with pytest.raises(CatalogUnavailableError, match="no such table"):
        catalog.api_keys.exist()
    catalog.migrate()
    assert not catalog.api_keys.exist()
    catalog.close()
