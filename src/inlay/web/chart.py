"""Charts of query results: the choice of a suitable chart, and its ECharts options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from inlay.web.widgets import is_number

__all__ = ["Chart", "default_chart", "max_rows", "number_columns", "options"]

Kind = Literal["bar", "line", "scatter"]
Rows = Sequence[Sequence[Any]]
_MAX_BARS, _MAX_POINTS = 200, 5_000
_MAX_SERIES = 3  # by default
_IS_TIME = re.compile(r"date|timestamp.*").fullmatch
_IS_CATEGORY = re.compile(r"text|boolean|time(?!stamp).*").fullmatch
_EXTRA_DIGITS = re.compile(r"(\.\d{6})\d+")  # Python's datetime has microseconds.
_MIDNIGHT = re.compile(r"(?:T00:00:00)?(?:\.0+)?Z?$")
# The colors are readable in both themes. Legend and tooltip name every series, so no color carries meaning alone.
_COLORS = ("#0f8a80", "#c2710c", "#4f6bd8", "#b8438f", "#6b8e23", "#7c5bbf")


class Chart(NamedTuple):
    """The kind of a chart and the indexes of its columns. If `x` is None, the x axis shows row numbers."""

    kind: Kind
    x: int | None
    y: tuple[int, ...]


# ------------------------------------------------------------------------------------------------------- default chart
def number_columns(types: Sequence[str]) -> list[int]:
    """Return the indexes of numeric columns."""
    return _indexes(types, is_number)


def default_chart(types: Sequence[str], rows: Rows) -> Chart | None:
    """Choose a line over time, bars by category, or points for two numbers. Returns None if no chart suits."""
    numbers = number_columns(types)
    if len(rows) < 2 or not numbers:
        return None
    for kind, matches in _KIND_BY_X_AXIS:
        axes = _indexes(types, matches)
        if axes:
            return Chart(kind, axes[0], tuple(numbers[:_MAX_SERIES]))
    if len(numbers) == 1:
        return Chart("bar", None, (numbers[0],))
    x, *others = numbers
    if _increases([row[x] for row in rows]):
        return Chart("line", x, tuple(others[:_MAX_SERIES]))
    return Chart("scatter", x, (others[0],))


_KIND_BY_X_AXIS: tuple[tuple[Kind, Callable[[str], object]], ...] = (("line", _IS_TIME), ("bar", _IS_CATEGORY))


def _indexes(types: Sequence[str], matches: Callable[[str], object]) -> list[int]:
    return [at for at, type_ in enumerate(types) if matches(type_)]


def _increases(values: Sequence[Any]) -> bool:
    """Return True for strictly increasing integers, such as years or steps."""
    return all(isinstance(value, int) for value in values) and all(a < b for a, b in pairwise(values))


# -------------------------------------------------------------------------------------------------------------- options
def max_rows(kind: Kind) -> int:
    return _MAX_BARS if kind == "bar" else _MAX_POINTS


def options(chart: Chart, names: Sequence[str], types: Sequence[str], rows: Rows) -> dict[str, Any]:
    """Return ECharts options. Names and values are drawn as text, and the style sheet sets the colors."""
    drawn = rows[: max_rows(chart.kind)]
    axis, to_x = _axis(chart, types)
    xs = [at if chart.x is None else to_x(row[chart.x]) for at, row in enumerate(drawn, 1)]
    return {
        "animation": False,
        "useUTC": True,
        "aria": {"enabled": True},
        "color": list(_COLORS),
        "textStyle": {"color": "var(--ink)", "fontFamily": "inherit"},
        "grid": {"left": 12, "right": 24, "top": 48, "bottom": 36, "containLabel": True},
        "legend": {"show": len(chart.y) > 1, "type": "scroll", "top": 8, "textStyle": {"color": "var(--ink)"}},
        "tooltip": _tooltip(chart.kind),
        "xAxis": {
            **axis,
            **({"data": xs} if axis["type"] == "category" else {}),
            **_axis_style("Row number" if chart.x is None else names[chart.x]),
            "nameLocation": "middle",
            "nameGap": 30,
        },
        "yAxis": {"type": "value", "scale": chart.kind != "bar", **_axis_style(names[chart.y[0]], len(chart.y) == 1)},
        "series": [
            {
                "name": names[y],
                "type": chart.kind,
                "data": _points(xs, [_number(row[y]) for row in drawn], axis["type"], chart.kind),
                "symbolSize": 6 if chart.kind == "scatter" else 4,
                "emphasis": {"disabled": True},
            }
            for y in chart.y
        ],
    }


def _axis(chart: Chart, types: Sequence[str]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """Return the type of the x axis, and the function that converts values to positions on it."""
    if chart.x is not None and chart.kind != "bar":
        if _IS_TIME(types[chart.x]):
            return {"type": "time"}, _milliseconds
        if is_number(types[chart.x]):
            return {"type": "value", "scale": True}, _number
    is_time = chart.x is not None and _IS_TIME(types[chart.x])
    return {"type": "category"}, lambda value: _label(value, bool(is_time))


def _label(value: Any, is_time: bool) -> str:
    """Return the label of a bar. Timestamps at midnight are shown as dates."""
    if value is None:
        return "NULL"
    return _MIDNIGHT.sub("", str(value)) if is_time else str(value)


def _points(xs: Sequence[Any], values: Sequence[Any], axis: str, kind: Kind) -> list[Any]:
    if axis == "category":
        return list(values)
    points = [[x, value] for x, value in zip(xs, values, strict=True) if x is not None]
    return sorted(points, key=lambda point: point[0]) if kind == "line" else points


def _number(value: Any) -> float | int | None:
    """Convert a number or a decimal in text form. Returns None for NULL, NaN and infinity."""
    if isinstance(value, bool) or value is None:
        return None
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def _milliseconds(value: Any) -> float | None:
    """Convert a timestamp in text form to milliseconds since 1970. A timestamp without a time zone is read as UTC."""
    if value is None:
        return None
    text = _EXTRA_DIGITS.sub(r"\1", value)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None  # Python supports only the years 1 to 9999.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000


def _tooltip(kind: Kind) -> dict[str, Any]:
    return {
        "trigger": "item" if kind == "scatter" else "axis",
        "renderMode": "richText",
        "confine": True,
        "backgroundColor": "var(--surface)",
        "borderColor": "var(--line)",
        "textStyle": {"color": "var(--ink)"},
    }


def _axis_style(name: str, is_named: bool = True) -> dict[str, Any]:
    return {
        "name": name if is_named else "",
        "nameTextStyle": {"color": "var(--faint)"},
        "axisLabel": {"color": "var(--faint)", "fontSize": 12, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": "var(--line)"}},
        "splitLine": {"lineStyle": {"color": "var(--line)"}},
    }
