"""Tables of queries: current versions are looked up each time, their files are cached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from inlay.catalog import Catalog
from inlay.workspace.data import DatasetTables
from inlay.workspace.storage import ServiceStorage
from tests.catalog import steps


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with closing(Catalog(f"sqlite:///{tmp_path}/catalog.db")) as catalog:
        catalog.migrate()
        yield catalog


@pytest.fixture
def tables(catalog: Catalog, tmp_path: Path) -> DatasetTables:
    return DatasetTables(catalog, ServiceStorage(str(tmp_path)))


def names_of_files(tables: DatasetTables, version: int | None = None) -> list[str] | None:
    found = tables.find("SALES", version)
    return None if found is None else ["/".join(Path(file).parts[-2:]) for file in found.files]


def test_the_current_version_is_cached(
    catalog: Catalog, tables: DatasetTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = steps.dataset(catalog)
    first = tables.find("sales", None)
    assert first is not None
    assert first.schema.equals(steps.SCHEMA)
    monkeypatch.setattr(catalog.versions, "snapshot", None)  # any further lookup fails
    assert tables.find("Sales", None) is first
    monkeypatch.undo()
    steps.load(catalog, made.id)
    assert names_of_files(tables) == ["v2/data.parquet"]


def test_renames_and_deletions_are_visible_immediately(catalog: Catalog, tables: DatasetTables) -> None:
    made = steps.dataset(catalog)
    assert names_of_files(tables) == ["v1/data.parquet"]
    catalog.datasets.rename(made.id, table_name="income")
    assert names_of_files(tables) is None
    assert tables.names() == ["income"]
    catalog.datasets.rename(made.id, table_name="sales")
    assert names_of_files(tables) == ["v1/data.parquet"]
    catalog.datasets.delete(made.id)
    assert names_of_files(tables) is None


def test_older_versions_are_not_cached(catalog: Catalog, tables: DatasetTables) -> None:
    made = steps.dataset(catalog)
    steps.load(catalog, made.id)
    assert names_of_files(tables, 1) == ["v1/data.parquet"]
    assert names_of_files(tables, 3) is None
    catalog.versions.expire(keep_versions=1, keep_days=0)
    assert names_of_files(tables, 1) is None
    assert names_of_files(tables) == ["v2/data.parquet"]


def test_a_version_that_expires_during_the_lookup(
    catalog: Catalog, tables: DatasetTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version expires between the lookup of its number and of its files."""
    made = steps.dataset(catalog)
    snapshot = catalog.versions.snapshot

    def late(dataset_id: str, version: int) -> object:
        monkeypatch.undo()
        steps.load(catalog, made.id)
        catalog.versions.expire(keep_versions=1, keep_days=0)
        return snapshot(dataset_id, version)

    monkeypatch.setattr(catalog.versions, "snapshot", late)
    assert names_of_files(tables) == ["v2/data.parquet"]
