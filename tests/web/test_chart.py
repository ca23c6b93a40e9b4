"""Tests of the choice of charts and of their options."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from inlay.web.chart import Chart, Kind, default_chart, max_rows, options

XSS = "<img src=x onerror=alert(1)>"
ROWS = [["a", 3, "1.50", "2024-01-02", 1.5], ["b", 1, "2.50", "2024-01-01", None], [None, 2, None, None, "NaN"]]
NAMES = ["who", "n", "price", "day", "ratio"]
TYPES = ["text", "bigint", "decimal(10,2)", "date", "double"]


@pytest.mark.parametrize(
    ("types", "rows", "chart"),
    [
        (["date", "bigint"], [["2024-01-01", 1], ["2024-01-02", 2]], Chart("line", 0, (1,))),
        (["text", "timestamp", "double"], [["a", "x", 1], ["b", "y", 2]], Chart("line", 1, (2,))),
        (["text", "bigint"], [["a", 1], ["b", 2]], Chart("bar", 0, (1,))),
        (["bigint", "boolean"], [[1, True], [2, False]], Chart("bar", 1, (0,))),
        (["text", "double", "real", "integer", "bigint"], [[0] * 5] * 2, Chart("bar", 0, (1, 2, 3))),
        (["integer", "double"], [[2023, 1.5], [2024, 0.5]], Chart("line", 0, (1,))),
        (["integer", "double"], [[2024, 1.5], [2023, 0.5]], Chart("scatter", 0, (1,))),
        (["double", "decimal(5,1)"], [[1.5, "1.5"], [0.5, "2.5"]], Chart("scatter", 0, (1,))),
        (["bigint"], [[1], [2]], Chart("bar", None, (0,))),
        (["text"], [["a"], ["b"]], None),
        (["text", "bigint"], [["a", 1]], None),
        (["text", "list<bigint>"], [["a", "[1]"], ["b", "[2]"]], None),
    ],
)
def test_default_chart_depends_on_the_types(types: list[str], rows: list[list[Any]], chart: Chart | None) -> None:
    assert default_chart(types, rows) == chart


def drawn(kind: Kind, x: int | None, *y: int) -> dict[str, Any]:
    made = options(Chart(kind, x, y), NAMES, TYPES, ROWS)
    json.dumps(made, allow_nan=False)
    return made


def test_bars_keep_the_order_of_the_rows() -> None:
    made = drawn("bar", 0, 1, 2)
    assert made["xAxis"]["data"] == ["a", "b", "NULL"]
    assert [(series["name"], series["data"]) for series in made["series"]] == [
        ("n", [3, 1, 2]),
        ("price", [1.5, 2.5, None]),
    ]


def test_line_points_are_sorted_by_x() -> None:
    made = drawn("line", 3, 1)
    assert made["xAxis"]["type"] == "time"
    days = [datetime.fromtimestamp(x / 1000, UTC).date().isoformat() for x, _ in made["series"][0]["data"]]
    assert days == ["2024-01-01", "2024-01-02"]
    assert [y for _, y in drawn("line", 1, 2)["series"][0]["data"]] == [2.5, None, 1.5]


def test_null_nan_and_infinity_are_not_drawn() -> None:
    assert drawn("bar", None, 4)["series"][0]["data"] == [1.5, None, None]
    assert drawn("scatter", 4, 1)["series"][0]["data"] == [[1.5, 3]]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T00:00:01.123456789", 1123.456),
        ("12024-01-01", None),
    ],
)
def test_timestamps_without_a_time_zone_are_read_as_utc(text: str, milliseconds: float | None) -> None:
    made = options(Chart("scatter", 0, (1,)), ["at", "n"], ["timestamp(9)", "bigint"], [[text, 1], ["1970-01-01", 2]])
    points = {y: x for x, y in made["series"][0]["data"]}
    assert points.get(1) == (milliseconds if milliseconds is None else pytest.approx(milliseconds))


@pytest.mark.parametrize("kind", ["bar", "line", "scatter"])
def test_chart_draws_a_limited_number_of_rows(kind: Kind) -> None:
    rows = [[f"{number}", number] for number in range(20_000)]
    made = options(Chart(kind, 0, (1,)), ["name", "n"], ["text", "bigint"], rows)
    assert len(made["series"][0]["data"]) == max_rows(kind) < 20_000


def test_chart_options_never_contain_data_as_code() -> None:
    """ECharts draws its tooltips as text, and no key of the options comes from the data."""
    made = options(Chart("bar", 0, (1,)), [XSS, ":evil"], ["text", "bigint"], [[XSS, 1], [":x", 2]])
    assert made["tooltip"]["renderMode"] == "richText"
    assert not [key for key in _keys(made) if key.startswith(":") or "<" in key]


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in _keys(inner))]
    return [key for inner in value for key in _keys(inner)] if isinstance(value, list) else []


def test_bar_labels_omit_midnight() -> None:
    texts = [
        "2025-01-01T00:00:00.000000000",
        "2025-01-01T00:00:00Z",
        "2025-01-01T10:20:00.000Z",
        "2025-01-01T10:20:00.5",
    ]
    made = options(Chart("bar", 0, (1,)), ["at", "n"], ["timestamp(9)", "bigint"], [[text, 1] for text in texts])
    assert made["xAxis"]["data"] == ["2025-01-01", "2025-01-01", "2025-01-01T10:20:00", "2025-01-01T10:20:00.5"]
