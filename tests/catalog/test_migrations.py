"""Migrations: they create exactly the tables of the code, or change nothing."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hatchling.builders.wheel import WheelBuilder

from inlay.catalog import Catalog, Version, records, tables
from inlay.catalog.database import LATEST, MIGRATIONS, Database, current_revision, migrate
from inlay.errors import CatalogUnavailableError, CatalogVersionError
from tests.catalog import steps
from tests.catalog.conftest import Backend
from tests.catalog.processes import ROOT, go, read, worker


@pytest.fixture
def empty(backend: Backend) -> Iterator[str]:
    address = backend.empty()
    yield address
    backend.drop(address)


def description(database: Database) -> list[tuple[object, ...]]:
    """Return the schema as the database describes it."""
    queries = {
        "sqlite": """
            SELECT type, name, tbl_name, sql, 0 FROM sqlite_master WHERE tbl_name NOT LIKE 'alembic%'
            UNION ALL SELECT 'column', tbl_name, c.name, NULL, c.cid
            FROM sqlite_master, pragma_table_info(tbl_name) AS c WHERE tbl_name NOT LIKE 'alembic%'""",
        "postgresql": """
            SELECT 'column', table_name, column_name, data_type || is_nullable || coalesce(column_default, '-'),
                ordinal_position
            FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> 'alembic_version'
            UNION ALL SELECT 'index', tablename, indexname, indexdef, 0 FROM pg_indexes WHERE schemaname = 'public'
                AND tablename <> 'alembic_version'
            UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid), 0
            FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
                AND conrelid <> 'alembic_version'::regclass""",
    }
    with database.read() as connection:
        rows = connection.exec_driver_sql(queries[database.dialect]).all()
    return sorted(tuple(_in_order(" ".join(str(cell).split())) for cell in row) for row in rows)


def _in_order(text: str) -> str:
    """Sort the parts of a definition: SQLite appends added columns to the constraints, and sorts the columns itself."""
    name, _, body = text.partition("(")
    return f"{name}({sorted(re.split(r', ?(?![^()]*[)])', body[:-1]))}" if name.startswith("CREATE TABLE") else text


def test_migrations_create_the_tables_of_the_code(backend: Backend, url: str, empty: str) -> None:
    migrated, made = Database(url), Database(empty)
    with made.write() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
        tables.metadata.create_all(connection)
    expected = description(made)
    assert len(expected) > 20
    assert description(migrated) == expected
    with migrated.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    assert backend.name == migrated.dialect
    migrated.close()
    made.close()


REQUIRED = {
    "uploads": [
        ("id", "TEXT", True),
        ("status", "TEXT", True),
        ("storage_url", "TEXT", True),
        ("content_type", "TEXT", False),
        ("content_encoding", "TEXT", False),
        ("size_bytes", "BIGINT", True),
        ("created_at", "TIMESTAMP", True),
        ("consumed_at", "TIMESTAMP", False),
    ],
    "datasets": [
        ("id", "TEXT", True),
        ("label", "TEXT", True),
        ("schema_name", "TEXT", True),
        ("table_name", "TEXT", True),
        ("parquet_url", "TEXT", True),
        ("arrow_schema_json", "TEXT", True),
        ("source_type", "TEXT", True),
        ("source_config", "TEXT", True),
        ("created_at", "TIMESTAMP", True),
        ("updated_at", "TIMESTAMP", True),
    ],
}


@pytest.mark.parametrize("table", REQUIRED)
def test_the_required_tables_have_the_required_columns_first(url: str, table: str) -> None:
    database = Database(url)
    with database.read() as connection:
        inspector = sa.inspect(connection)
        columns = [(c["name"], str(c["type"]), not c["nullable"]) for c in inspector.get_columns(table)]
        assert columns[: len(REQUIRED[table])] == REQUIRED[table]
        assert inspector.get_pk_constraint(table)["constrained_columns"] == ["id"]
        if table == "datasets":
            unique = [sorted(c["column_names"]) for c in inspector.get_unique_constraints(table)]
            assert ["schema_name", "table_name"] in unique
            defaults = {c["name"]: c["default"] for c in inspector.get_columns(table)}
            assert defaults["schema_name"].startswith("'default'")
    database.close()


def test_the_code_knows_its_latest_migration() -> None:
    assert ScriptDirectory(MIGRATIONS).get_current_head() == LATEST


def test_migrating_again_changes_nothing(url: str) -> None:
    catalog = Catalog(url)
    made = steps.dataset(catalog)
    before = description(catalog._database)
    catalog.migrate()
    catalog.check()
    assert description(catalog._database) == before
    assert catalog.datasets.get(made.id) == made
    catalog.close()


def test_a_database_without_migrations_is_reported(empty: str) -> None:
    catalog = Catalog(empty)
    with pytest.raises(CatalogVersionError, match="has schema version none"):
        catalog.check()
    with pytest.raises(CatalogUnavailableError, match="uploads"):
        catalog.uploads.list()
    catalog.close()


@pytest.mark.parametrize(
    ("create", "message"),
    [
        ("CREATE TABLE alembic_version (version_num VARCHAR(32)); INSERT INTO alembic_version VALUES ('a'), ('b')",
         "2 rows instead of one"),
        ("CREATE TABLE alembic_version (other INTEGER); INSERT INTO alembic_version VALUES (7)",
         "supports versions up to|does not name a known schema version"),
        ("CREATE TABLE alembic_version (version_num VARCHAR(32)); INSERT INTO alembic_version VALUES ('0000')",
         "does not name a known schema version"),
    ],
    ids=["two rows", "another column", "an unknown version"],
)  # fmt: skip
def test_a_version_table_of_another_program_is_reported(empty: str, create: str, message: str) -> None:
    database = Database(empty)
    with database.write() as connection:
        for statement in create.split("; "):
            connection.exec_driver_sql(statement)
    with pytest.raises(CatalogVersionError, match=message):
        migrate(database)
    database.close()


OLD_VERSIONS = [
    # version, operation, strategy, source, then the facts after the migration
    (1, "create", None, {"type": "inline"}, ("create", [], "token", None)),
    (2, "load", "append", {"type": "inline"}, ("append", [], None, None)),
    (3, "load", "replace", {"type": "inline"}, ("overwrite", [], None, None)),
    (4, "load", "upsert", {"type": "inline", "key_columns": ["id", "day"]}, ("merge", ["id", "day"], None, None)),
    (5, "load", "delete", {"type": "inline", "key_columns": ["id"]}, ("merge", ["id"], None, None)),
    (6, "load", "delete", {"type": "condition", "where": "id = 1"}, ("delete", [], None, None)),
    (7, "restore", None, {"version": 4}, ("restore", [], None, 4)),
]


def test_versions_of_an_older_catalog_get_their_facts(empty: str) -> None:
    database = Database(empty)
    migrate(database, latest="0002")
    job, at = {"id": "job_1", "kind": "create", "state": "succeeded"}, "2026-01-02 03:04:05"
    counts = dict.fromkeys(("inserted", "updated", "deleted", "row_count", "size_bytes", "file_count"), 1)
    texts = {"parquet_url": "u", "arrow_schema_json": "{}", "created_at": at}
    made = {"id": "data_1", "label": "Old", "table_name": "old", "table_key": "old", "source_type": "inline"}
    with database.write() as connection:
        _insert(connection, "jobs", job | {
            "writes": True, "request": "{}", "request_hash": "", "key_scope": "", "idempotency_key": "token",
            "owner": "", "lease_until": at, "cancel_requested": False, "created_at": at,
        })  # fmt: skip
        sizes = {"version": 7, "row_count": 1, "size_bytes": 1}
        _insert(connection, "datasets", made | texts | sizes | {"source_config": "{}", "updated_at": at})
        for version, operation, strategy, source, _ in OLD_VERSIONS:
            row = {"dataset_id": "data_1", "version": version, "operation": operation, "strategy": strategy}
            more = {"source": json.dumps(source), "rejected_count": 0, "reject_files": "[]", "job_id": f"job_{version}"}
            _insert(connection, "dataset_versions", row | counts | texts | more)
    migrate(database)
    query = records.select(Version, tables.dataset_versions).order_by(tables.dataset_versions.c.version)
    with database.read() as connection:
        found = records.every(connection, Version, query)
    assert [(v.version, v.strategy, v.source) for v in found] == [(n, s, o) for n, _, s, o, _ in OLD_VERSIONS]
    facts = [(v.operation, v.key_columns, v.transaction, v.restores) for v in found]
    assert facts == [facts for *_, facts in OLD_VERSIONS]
    assert not any(version.damaged or version.external for version in found)
    database.close()


def _insert(connection: sa.Connection, table: str, row: dict[str, object]) -> None:
    target = sa.table(table, *map(sa.column, row))
    connection.execute(target.insert().values(row))


def test_processes_can_migrate_at_the_same_time(empty: str) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(worker("migrate", empty)) for _ in range(4)]
        assert [read(process) for process in workers] == ["ready"] * 4
        for process in workers:
            go(process)
        assert [read(process) for process in workers] == ["done"] * 4
    catalog = Catalog(empty)
    catalog.check()
    assert steps.dataset(catalog).version == 1
    catalog.close()


def test_threads_can_migrate_catalogs_at_the_same_time(tmp_path: Path) -> None:
    catalogs = [Catalog(tmp_path / f"{number}.db") for number in range(6)]
    with ThreadPoolExecutor(len(catalogs)) as threads:
        list(threads.map(Catalog.migrate, catalogs))
    for catalog in catalogs:
        catalog.check()
        assert steps.dataset(catalog).version == 1
        catalog.close()


# ------------------------------------------------------------------------------------------- a later version of inlay
LATER = """
import sqlalchemy as sa
from alembic import op

revision = "9999"
down_revision = "0004"


def upgrade() -> None:
    op.create_table("later", sa.Column("x", sa.Integer))
    op.execute("UPDATE datasets SET label = 'migrated'")
    with op.batch_alter_table("datasets") as batch:  # SQLite rebuilds the table
        batch.add_column(sa.Column("later", sa.Text, server_default="yes"))
        batch.alter_column("label", nullable=True)
    {ending}
"""


def later_migrations(directory: Path, ending: str = "pass") -> str:
    copy = directory / "100% later"
    shutil.copytree(MIGRATIONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "versions" / "v9999_later.py").write_text(LATER.format(ending=ending))
    return str(copy)


def test_a_failed_migration_changes_nothing(url: str, tmp_path: Path) -> None:
    catalog = Catalog(url)
    made = steps.dataset(catalog)
    before = description(catalog._database)
    with pytest.raises(ZeroDivisionError):
        migrate(catalog._database, later_migrations(tmp_path, "1 / 0"), "9999")
    assert description(catalog._database) == before
    assert catalog.datasets.get(made.id) == made
    catalog.check()
    catalog.close()


@pytest.mark.parametrize("recreate", ["auto", "always"])
def test_a_later_migration_keeps_the_data_and_locks_out_older_programs(url: str, tmp_path: Path, recreate: str) -> None:
    catalog = Catalog(url)
    made = steps.dataset(catalog)
    steps.load(catalog, made.id)
    migrate(catalog._database, later_migrations(tmp_path), "9999")
    assert catalog.datasets.get(made.id).label == "migrated"
    assert catalog.versions.list(made.id).count == 2
    for call in (catalog.check, catalog.migrate):
        with pytest.raises(CatalogVersionError, match="schema version '9999'") as caught:
            call()
        assert "Update inlay" in str(caught.value)
    with catalog._database.read() as connection:
        assert current_revision(connection) == "9999"
    catalog.close()


def test_the_wheel_contains_the_migrations(tmp_path: Path) -> None:
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = {file.relative_to(MIGRATIONS) for file in Path(MIGRATIONS).rglob("*.py")}
    assert len(files) >= 3
    assert {f"inlay/catalog/migrations/{file}" for file in files} <= packed
