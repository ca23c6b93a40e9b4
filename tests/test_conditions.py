"""Conditions in SQL notation: the rows that they select are those of DuckDB."""

from __future__ import annotations

import datetime as dt
import functools
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.conditions import check_syntax, parse_condition
from inlay.errors import InvalidArgumentError

NAN = float("nan")
ROWS = pa.table({
    "number": range(6),
    "id": pa.array([1, 2, 3, None, -5, 2], pa.int32()),
    "amount": pa.array([1.5, NAN, None, 3.0, -0.0, 2.0]),
    "limit of": pa.array([1.5, 3.0, NAN, NAN, 1.0, None]),
    "name": ["a", "it's", None, "AB", "a%", ""],
    "day": pa.array([dt.date(2025, 1, 1), None, dt.date(2024, 2, 29), dt.date(2026, 1, 1), *[dt.date(2025, 1, 2)] * 2]),
    "seen": pa.array(["2025-01-01 12:00:00", None, *["2024-01-01"] * 4]).cast(pa.timestamp("us")),
    "price": pa.array([Decimal("1.50"), Decimal("2.00"), None, *[Decimal("-1.00")] * 3], pa.decimal128(8, 2)),
    "is open": [True, False, None, True, False, True],
    "kind": pa.array(["x", "y", None, "x", "y", "x"]).dictionary_encode(),
})  # fmt: skip
TESTS = [
    "id = 2", "id <> 2", "2 < id", "id >= -5", "id IN (1, 2, 99)", "id NOT IN (2, 3)", "id NOT IN (2, NULL)",
    "id IN (3, NULL)", "id BETWEEN 1 AND 2", "id NOT BETWEEN 1 AND 2", "id IS NULL", "id IS NOT NULL",
    "amount > 1.5", "amount >= 'NaN'", "amount = 'nan'", "amount <= 3", "amount <> 2e0", "amount < 'NaN'",
    "amount IN (0, 1.5)", 'amount > "limit of"', 'amount <= "limit of"', 'amount = "limit of"', 'amount <> "limit of"',
    "name LIKE 'a%'", "name NOT LIKE 'a_'", "name ILIKE 'A%'", "name = 'it''s'", "name > 'a'", "name <> ''",
    "day < '2025-01-02'", "day = DATE '2024-02-29'", "day BETWEEN '2025-01-01' AND '2025-12-31'",
    "seen >= TIMESTAMP '2025-01-01 12:00:00'", "seen < '2025-01-01'", "price > 1.5", "price = -1", "price IN (1.5, 2)",
    '"is open"', '"is open" = FALSE', "TRUE", "FALSE", "kind = 'x'", "kind IN ('y')", "kind <> 'x'",
]  # fmt: skip


def conditions() -> st.SearchStrategy[str]:
    def combine(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        joined = st.tuples(parts, st.sampled_from([" AND ", " or "]), parts).map("".join)
        return joined | parts.map(lambda part: f"NOT ({part})") | parts.map(lambda part: f"({part})")

    return st.recursive(st.sampled_from(TESTS), combine, max_leaves=6)


def selected(condition: str) -> list[int]:
    found: list[int] = ROWS.filter(parse_condition(condition, ROWS.schema)).column("number").to_pylist()
    return found


@functools.cache
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    return connection.register("source", ROWS)


def selected_by_duckdb(condition: str) -> list[int]:
    found = database().execute(f"SELECT number FROM source WHERE {condition} ORDER BY 1").fetchall()
    return [number for (number,) in found]


@pytest.mark.parametrize("condition", TESTS)
def test_a_condition_selects_the_rows_of_duckdb(condition: str) -> None:
    assert selected(condition) == selected_by_duckdb(condition)
    assert selected(f"NOT {condition}") == selected_by_duckdb(f"NOT ({condition})")


@given(conditions())
def test_combined_conditions_select_the_rows_of_duckdb(condition: str) -> None:
    assert selected(condition) == selected_by_duckdb(condition)


def test_unquoted_names_ignore_case() -> None:
    assert selected("ID = 1 and Day = '2025-01-01'") == [0]


def test_a_time_zone_is_part_of_the_value() -> None:
    rows = pa.table({"at": pa.array([0, 3600], pa.timestamp("s", "UTC"))})
    assert rows.filter(parse_condition("at < '1970-01-01 02:00:00+01:00'", rows.schema)).num_rows == 1
    with pytest.raises(InvalidArgumentError, match="Add the time zone"):
        parse_condition("at < '1970-01-01'", rows.schema)


BAD_SYNTAX = [
    (" ", "it is empty"),
    ("id = NULL", 'Use "id" IS NULL'),
    ("1 = 1", "1 is not compared with a column"),
    ("id =", "a column is missing before the end"),
    ("id = 1 2", "unexpected '2'"),
    ("id = 1; DROP TABLE x", "unexpected '; DROP TABLE x'"),
    ("(id = 1", r"\) is missing before the end"),
    ("id IN (SELECT 1)", "a value is missing before 'SELECT'"),
    ("lower(name) = 'a'", "functions such as lower are not supported"),
    ("name LIKE 5", "LIKE needs a text in quotes, not 5"),
    ("(" * 60 + "id = 1" + ")" * 60, "more than 50 nested levels"),
    (" OR ".join(["id = 1"] * 1001), "more than 1,000 comparisons"),
    ("name = 'open", 'unexpected "\'open"'),
]
BAD_COLUMNS = [
    ("idd = 1", "no column 'idd'.\nHint: Did you mean 'id'"),
    ('"ID" = 1', "no column 'ID'"),
    ("id > 1.5", "1.5 is not a value of column 'id', which is integer"),
    ("id = 3000000000", "3000000000 is not a value"),
    ("id = '1e1'", "'1e1' is not a value"),
    ("price = 1.234", "1.234 is not a value of column 'price', which is decimal"),
    ("day = '2025-02-30'", "'2025-02-30' is not a value of column 'day', which is date"),
    ("name = 1", "1 is not a value of column 'name', which is text"),
    ("id = name", "column 'id' is integer, and column 'name' is text"),
    ("name", "no comparison follows the column 'name'"),
    ("id LIKE '1%'", "LIKE compares text"),
]


@pytest.mark.parametrize(("condition", "message"), [*BAD_SYNTAX, *BAD_COLUMNS])
def test_an_invalid_condition_is_explained(condition: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        parse_condition(condition, ROWS.schema)


def test_nested_columns_are_tested_for_null_only() -> None:
    rows = pa.table({"tags": [["a"], None]})
    assert rows.filter(parse_condition("tags IS NULL", rows.schema)).num_rows == 1
    with pytest.raises(InvalidArgumentError, match="IS NULL"):
        parse_condition("tags = 'a'", rows.schema)


def test_names_that_differ_only_in_case_need_quotes() -> None:
    schema = pa.schema({"Id": pa.int64(), "iD": pa.int64()})
    with pytest.raises(InvalidArgumentError, match="can be one of the columns"):
        parse_condition("id = 1", schema)
    parse_condition('"iD" = 1', schema)


@pytest.mark.parametrize(("condition", "message"), BAD_SYNTAX)
def test_the_syntax_is_checked_without_columns(condition: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_syntax(condition)


@pytest.mark.parametrize("condition", [condition for condition, _ in BAD_COLUMNS])
def test_the_syntax_has_no_columns_and_types(condition: str) -> None:
    check_syntax(condition)


@given(conditions())
def test_the_syntax_of_every_condition_is_accepted(condition: str) -> None:
    check_syntax(condition)


def test_errors_shorten_long_values_and_names() -> None:
    for condition in (f"n = '{'9' * 100_000}'", f"n = {'9' * 100_000}.5", f"{'x' * 100_000} = 1", f"n {'x' * 100_000}"):
        with pytest.raises(InvalidArgumentError) as caught:
            parse_condition(condition, pa.schema([("n", pa.int64())]))
        assert len(caught.value.message) < 250
