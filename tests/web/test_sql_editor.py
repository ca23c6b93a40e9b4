"""Tests of the SQL editor's parser and examples."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.query import QueryEngine, Table
from inlay.web.sql_editor import TableInfo, examples, quote_if_needed, tables_by_scope, token_span


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT * FROM datasets.people", {"people": "people"}),
        ("SELECT p. FROM datasets.people p", {"people": "people", "p": "people"}),
        ("SELECT p. FROM datasets.People AS P WHERE", {"people": "people", "p": "people"}),
        ('FROM datasets . "people" "My p"', {"people": "people", "my p": "people"}),
        ("FROM datasets.default.people JOIN datasets.pets t ON", {"people": "people", "pets": "pets", "t": "pets"}),
        ('FROM datasets."people@3" old', {"people": "people", "old": "people"}),
        ("FROM datasets.people -- datasets.comment\nWHERE x = 'datasets.text'", {"people": "people"}),
        ("FROM datasets.people WHERE", {"people": "people"}),
        ("FROM datasets.", {}),
        ("FROM datasets", {}),
        ("FROM datasets.5", {}),
        ("", {}),
    ],
)
def test_tables_and_aliases_are_found_in_incomplete_queries(sql: str, found: dict[str, str]) -> None:
    assert tables_by_scope(sql) == found


@given(st.text(alphabet="dats.ep\"'-/*@ \n;x5", max_size=60))
def test_any_text_can_be_scanned(sql: str) -> None:
    assert all(isinstance(table, str) for table in tables_by_scope(sql).values())
    span = token_span(sql, 1, 1)
    assert span is None or 0 <= span[0] < span[1] <= len(sql)


@pytest.mark.parametrize(
    ("position", "marked"),
    [
        ((1, 8), "amuont"),
        ((2, 1), "FROM"),
        ((2, 6), "datasets"),
        ((2, 15), '"my table"'),
        ((3, 1), "WHERE"),
        ((9, 9), "💥"),
    ],
)
def test_token_at_a_position_is_found(position: tuple[int, int], marked: str) -> None:
    sql = 'SELECT amuont\nFROM datasets."my table"\nWHERE 💥'
    span = token_span(sql, *position)
    assert span is not None
    assert sql[slice(*span)] == marked


NAMES = ["plain", "UPPER", "two words", "select", "ord.er", 'quo"te', "<img src=x onerror=alert(1)>", "naïve", "5th"]


class OneTable:
    """A table `t` of the query engine."""

    def __init__(self, path: Path, data: pa.Table) -> None:
        pq.write_table(data, path)
        self._table = Table(data.schema, [str(path)])

    def find(self, name: str, version: int | None) -> Table | None:
        return self._table if name == "t" else None

    def names(self) -> list[str]:
        return ["t"]


def test_quoted_names_can_be_queried(tmp_path: Path) -> None:
    data = pa.table({name: [number] for number, name in enumerate(NAMES)})
    with QueryEngine(OneTable(tmp_path / "t.parquet", data), spill_dir=tmp_path) as engine:
        for number, name in enumerate(NAMES):
            with engine.run(f"SELECT {quote_if_needed(name)} AS found FROM datasets.t") as result:
                assert result.read_all()["found"].to_pylist() == [number]


@pytest.mark.parametrize("name", ["plain", "order", '<b>"x"</b>'])
def test_every_example_runs(tmp_path: Path, name: str) -> None:
    data = pa.table(
        {
            name: ["a", "b"],
            f"{name} day": pa.array([0, 1], pa.date32()),
            f"{name} amount": pa.array([1.5, 2.5]),
        }
    )
    queries = examples([TableInfo("t", 2, data.schema)])
    assert len(queries) == 4
    with QueryEngine(OneTable(tmp_path / "t.parquet", data), spill_dir=tmp_path) as engine:
        for example in queries:
            with engine.run(example.sql) as result:
                assert result.row_count >= 1


def test_table_with_the_most_examples_comes_first() -> None:
    poor = TableInfo("poor", 1, pa.schema({"id": pa.int64()}))
    rich = TableInfo("rich", 1, pa.schema({"who": pa.string(), "amount": pa.float64()}))
    meanings = [example.title for example in examples([poor, rich])]
    assert meanings[0] == "First rows of rich"
    assert meanings[-1] == "First rows of poor"


def test_there_is_an_example_without_tables() -> None:
    assert [example.sql for example in examples([])] == ["SELECT 1 + 1 AS two"]
