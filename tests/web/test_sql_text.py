"""What the editor understands of SQL, and the questions that it proposes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.query import QueryEngine, Table
from inlay.web.sql_text import TableInfo, examples, named_tables, span_at, written


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
def test_tables_and_their_aliases_are_found_in_texts_that_are_not_ready(sql: str, found: dict[str, str]) -> None:
    assert named_tables(sql) == found


@given(st.text(alphabet="dats.ep\"'-/*@ \n;x5", max_size=60))
def test_any_text_is_read(sql: str) -> None:
    assert all(isinstance(table, str) for table in named_tables(sql).values())
    span = span_at(sql, 1, 1)
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
def test_a_mistake_is_marked_where_it_stands(position: tuple[int, int], marked: str) -> None:
    sql = 'SELECT amuont\nFROM datasets."my table"\nWHERE 💥'
    span = span_at(sql, *position)
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


def test_names_are_written_so_that_they_can_be_asked_for(tmp_path: Path) -> None:
    data = pa.table({name: [number] for number, name in enumerate(NAMES)})
    with QueryEngine(OneTable(tmp_path / "t.parquet", data), spill_dir=tmp_path) as engine:
        for number, name in enumerate(NAMES):
            with engine.run(f"SELECT {written(name)} AS found FROM datasets.t") as result:
                assert result.read_all()["found"].to_pylist() == [number]


@pytest.mark.parametrize("name", ["plain", "order", '<b>"x"</b>'])
def test_every_example_can_be_answered(tmp_path: Path, name: str) -> None:
    data = pa.table(
        {
            name: ["a", "b"],
            f"{name} day": pa.array([0, 1], pa.date32()),
            f"{name} amount": pa.array([1.5, 2.5]),
        }
    )
    asked = examples([TableInfo("t", 2, data.schema)])
    assert len(asked) == 4
    with QueryEngine(OneTable(tmp_path / "t.parquet", data), spill_dir=tmp_path) as engine:
        for example in asked:
            with engine.run(example.sql) as result:
                assert result.row_count >= 1


def test_the_table_that_can_answer_most_is_asked_most() -> None:
    poor = TableInfo("poor", 1, pa.schema({"id": pa.int64()}))
    rich = TableInfo("rich", 1, pa.schema({"who": pa.string(), "amount": pa.float64()}))
    meanings = [example.meaning for example in examples([poor, rich])]
    assert meanings[0] == "First rows of rich"
    assert meanings[-1] == "First rows of poor"


def test_without_tables_there_is_still_something_to_ask() -> None:
    assert [example.sql for example in examples([])] == ["SELECT 1 + 1 AS two"]
