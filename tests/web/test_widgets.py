"""Tests of grid options and cells."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inlay.web.widgets import cells, grid_options, is_number

XSS = "<img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (2**53, 2**53),
        (2**53 + 1, "9007199254740993"),
        (-(2**63), "-9223372036854775808"),
        (1.5, 1.5),
        ("text", "text"),
        ([1, "ä"], '[1,"ä"]'),
        ({":evil": "alert(1)"}, '{":evil":"alert(1)"}'),
        ("x" * 5_001, "x" * 5_000 + "…"),
    ],
)
def test_values_are_sent_exactly(value: Any, shown: Any) -> None:
    assert cells([[value]]) == [[shown]]


def test_grid_options_never_contain_data_as_code() -> None:
    """NiceGUI evaluates values of keys that begin with a colon, so no such key may come from data."""
    rows = cells([[XSS, {":evil": "alert(1)"}, [{":evil": "alert(1)"}]]])
    made = grid_options([(":evil", "text"), (XSS, "struct<:evil: text>"), ("a.b", "list<text>")], rows)
    assert not any(isinstance(cell, (dict, list)) for row in made["rowData"] for cell in row)
    assert [column["field"] for column in made["columnDefs"]] == ["0", "1", "2"]
    ours = {value for key, value in _entries(made) if key.startswith(":")}
    assert not any("evil" in json.dumps(code) or XSS in json.dumps(code) for code in ours)


def _entries(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [*value.items(), *(entry for inner in value.values() for entry in _entries(inner))]
    return [entry for inner in value for entry in _entries(inner)] if isinstance(value, list) else []


@pytest.mark.parametrize("type_", ["tinyint", "ubigint", "uinteger", "integer", "double", "real", "decimal(38,9)"])
def test_numbers_are_right_aligned(type_: str) -> None:
    assert is_number(type_)
    assert "ag-right-aligned-cell" in grid_options([("n", type_)], [])["columnDefs"][0]["cellClass"]


@pytest.mark.parametrize(
    "type_", ["text", "boolean", "date", "timestamp", "interval", "list<integer>", "map<text,double>"]
)
def test_other_values_are_left_aligned(type_: str) -> None:
    assert not is_number(type_)
