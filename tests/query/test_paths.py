"""Queries never show where the storage is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.errors import QueryError, QueryFailedError
from inlay.query import QueryEngine, Table
from inlay.query.paths import FilePaths

SCHEMA = pa.schema([("id", pa.int64())])


class Files:
    """Two files of one table, and a table whose file is missing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str, version: int | None) -> Table | None:
        found = {"t": ["one.parquet", "two.parquet"], "lost": ["missing.parquet"]}.get(name)
        return None if found is None else Table(SCHEMA, [str(self._folder / file) for file in found])

    def names(self) -> list[str]:
        return ["t", "lost"]

    def schemas(self) -> list[tuple[str, pa.Schema]]:
        return [("t", SCHEMA)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("secret") / "a b%20 ü" / "v1"
    made.mkdir(parents=True)
    for name in ("one.parquet", "two.parquet"):
        pq.write_table(pa.table({"id": [1, 2, 3]}, SCHEMA), made / name)
    return made


@pytest.fixture(scope="module")
def db(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryEngine]:
    with QueryEngine(Files(folder), spill_dir=tmp_path_factory.mktemp("spill")) as engine:
        yield engine


@pytest.mark.parametrize("kind", ["", "VERBOSE", "ANALYZE", "ANALYZE VERBOSE", "FORMAT TREE", "FORMAT GRAPHVIZ"])
def test_explain_shows_names_of_files_without_their_directories(db: QueryEngine, kind: str) -> None:
    with db.run(f"EXPLAIN {kind} SELECT * FROM datasets.t WHERE id > 1") as result:
        text = str(result.read_all().to_pydict())
    assert "secret" not in text
    assert ("one.parquet" in text) == (not kind.startswith("FORMAT"))


def test_the_function_that_shows_paths_does_not_exist(db: QueryEngine) -> None:
    for sql in ("SELECT input_file_name() FROM datasets.t", 'SELECT ascii("input_file_name"()) FROM datasets.t'):
        with pytest.raises(QueryError, match="no function input_file_name"):
            db.run(sql)


def test_an_error_shows_the_name_of_a_file_without_its_directory(db: QueryEngine) -> None:
    with pytest.raises(QueryFailedError, match=r"'missing\.parquet'"):
        db.run("SELECT * FROM datasets.lost")


def test_text_of_users_that_resembles_a_path_is_kept(db: QueryEngine, folder: Path) -> None:
    with db.run(f"SELECT '{folder}/one.parquet' FROM datasets.t LIMIT 1") as result:
        assert result.read_all().column(0).to_pylist() == [f"{folder}/one.parquet"]


def test_addresses_of_objects_are_hidden() -> None:
    paths = FilePaths()
    paths.add(["s3://bucket/some where/datasets/d/v1/a.parquet", "s3://bucket/some where/datasets/d/v2/b.parquet"])
    for text in (
        "[[some where/datasets/d/v1/a.parquet]]",
        "[[some%20where/datasets/d/v1/a.parquet]]",
        "[[s3://bucket/some where/datasets/d/v1/a.parquet]]",
    ):
        assert paths.hide(text) == "[[a.parquet]]"
