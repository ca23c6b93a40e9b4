"""Table names: validation, and derivation from labels."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa
import pytest
from datafusion import SessionContext
from hypothesis import example, given
from hypothesis import strategies as st

from inlay.catalog.names import (
    MAX_NAME_LENGTH,
    RESERVED_WORDS,
    name_prefix,
    table_name_from_label,
    validate_table_name,
)
from inlay.errors import InvalidTableNameError


@pytest.mark.parametrize("name", ["a", "_", "_1", "Q1_sales", "x" * 128, "selected", "Data2026"])
def test_valid_names(name: str) -> None:
    assert validate_table_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("1a", "start with a letter"),
        ("a-b", "only letters"),
        ("a b", "only letters"),
        ("a.b", "only letters"),
        ("größe", "only letters"),
        ("a\n", "only letters"),
        ('a"', "only letters"),
        ("\u0661", "only letters"),
        ("x" * 129, "129 characters"),
        ("x" * 10_000_000, "10,000,000 characters"),
        ("select", "reserved"),
        ("SELECT", "reserved"),
        ("Order", "reserved"),
        ("user", "reserved"),
        ("limit", "reserved"),
    ],
)
def test_invalid_names_say_why(name: str, why: str) -> None:
    with pytest.raises(InvalidTableNameError, match=why) as caught:
        validate_table_name(name)
    assert (caught.value.http_status, caught.value.code) == (400, "invalid_table_name")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Q1 Sales Report", "q1_sales_report"),
        ("Country Codes", "country_codes"),
        ("  --spaces &  signs!! ", "spaces_signs"),
        ("2026 budget", "_2026_budget"),
        ("Select", "_select"),
        ("Bob's data", "bobs_data"),
        ("Bob\u2019s data", "bobs_data"),
        ("Crème Brûlée", "creme_brulee"),
        ("Straße Ærø Łódź Þór", "strasse_aero_lodz_thor"),
        ("İstanbul ISPARTA", "istanbul_isparta"),
        ("\u2115\uff21\u2460", "na1"),
        ("表", "dataset"),
        ("🦆", "dataset"),
        ("", "dataset"),
        ("snake_case_already", "snake_case_already"),
        ("__x__", "x"),
        ("x" * 300, "x" * 128),
        ("9" * 300, "_" + "9" * 127),
        ("a" * 127 + " b", "a" * 127),
    ],
)
def test_names_from_labels(label: str, name: str) -> None:
    assert table_name_from_label(label) == name


def test_taken_names_get_the_first_free_number() -> None:
    assert table_name_from_label("a", {"a"}) == "a_2"
    assert table_name_from_label("a", {"a", "a_2", "a_4"}) == "a_3"
    assert table_name_from_label("a", {"a_2"}) == "a"
    long = "x" * 128
    assert table_name_from_label(long, {long} | {f"{'x' * 126}_{n}" for n in range(2, 10)}) == "x" * 125 + "_10"


@given(st.text(max_size=300), st.integers(1, 12))
@example("_" * 200, 3)
@example("a" * 127 + "_b", 12)
def test_every_label_gives_valid_names_with_one_prefix(label: str, count: int) -> None:
    taken: set[str] = set()
    for _ in range(count):
        name = table_name_from_label(label, taken)
        assert validate_table_name(name) == name == name.lower()
        assert len(name) <= MAX_NAME_LENGTH
        assert name.startswith(name_prefix(label))
        assert name not in taken
        taken.add(name)


def known_words() -> set[str]:
    words = {row[0].lower() for row in duckdb.sql("SELECT keyword_name FROM duckdb_keywords()").fetchall()}
    return {word for word in words | RESERVED_WORDS if re.fullmatch("[a-z_][a-z0-9_]*", word)}


def test_every_valid_name_works_unquoted_in_queries() -> None:
    context = SessionContext()
    batches = pa.table({"a": [1]}).to_batches()
    words = known_words()
    assert len(words) > 400
    for word in sorted(words - RESERVED_WORDS):
        context.register_record_batches(f'"{word}"', [batches])
        for query in (
            f"SELECT {word}.a FROM {word}",
            f"SELECT {word}.a FROM public.{word} WHERE {word}.a > 0 GROUP BY {word}.a ORDER BY {word}.a",
            f"SELECT x.a FROM {word} x JOIN {word} ON {word}.a = x.a",
        ):
            assert context.sql(query).to_pydict() == {"a": [1]}, query
