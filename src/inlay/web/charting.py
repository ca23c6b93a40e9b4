"""A chart of a query's rows: which one suits its columns, and what ECharts must be told to draw it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from inlay.web.grid import is_number

__all__ = ["Chart", "Kind", "default_chart", "most_rows", "numbers", "options"]

Kind = Literal["bar", "line", "scatter"]
Rows = Sequence[Sequence[Any]]
_MOST_BARS, _MOST_POINTS = 200, 5_000
_MOST_SERIES = 3  # by default
_DAY = re.compile(r"date|timestamp.*").fullmatch
_NAME = re.compile(r"text|boolean|time(?!stamp).*").fullmatch
_FRACTION = re.compile(r"(\.\d{6})\d+")  # Python's clock has microseconds
_MIDNIGHT = re.compile(r"(?:T00:00:00)?(?:\.0+)?Z?$")
# Both themes; none of them stands alone for its meaning.
_COLORS = ("#0f8a80", "#c2710c", "#4f6bd8", "#b8438f", "#6b8e23", "#7c5bbf")


class Chart(NamedTuple):
    """Which columns are drawn, by position; without an `x`, rows in their order."""

    kind: Kind
    x: int | None
    y: tuple[int, ...]


# -------------------------------------------------------------------------------------------------------------- choice
def numbers(types: Sequence[str]) -> list[int]:
    """The columns that have a height."""
    return _those(types, is_number)


def default_chart(types: Sequence[str], rows: Rows) -> Chart | None:
    """Over time a line, by name bars, number against number a cloud of points; None where nothing can be drawn."""
    amounts = numbers(types)
    if len(rows) < 2 or not amounts:
        return None
    for kind, belongs in _BY_AXIS:
        axes = _those(types, belongs)
        if axes:
            return Chart(kind, axes[0], tuple(amounts[:_MOST_SERIES]))
    if len(amounts) == 1:
        return Chart("bar", None, (amounts[0],))
    x, *others = amounts
    if _rises([row[x] for row in rows]):
        return Chart("line", x, tuple(others[:_MOST_SERIES]))
    return Chart("scatter", x, (others[0],))


_BY_AXIS: tuple[tuple[Kind, Callable[[str], object]], ...] = (("line", _DAY), ("bar", _NAME))


def _those(types: Sequence[str], belongs: Callable[[str], object]) -> list[int]:
    return [at for at, type_ in enumerate(types) if belongs(type_)]


def _rises(values: Sequence[Any]) -> bool:
    """Whether a column counts something: years, hours, steps."""
    return all(isinstance(value, int) for value in values) and all(a < b for a, b in pairwise(values))


# ------------------------------------------------------------------------------------------------------------- drawing
def most_rows(kind: Kind) -> int:
    """How many rows one chart shows so that something can be seen."""
    return _MOST_BARS if kind == "bar" else _MOST_POINTS


def options(chart: Chart, names: Sequence[str], types: Sequence[str], rows: Rows) -> dict[str, Any]:
    """For ECharts. Texts of the data are drawn as what they are; colours come from the page's style."""
    shown = rows[: most_rows(chart.kind)]
    axis, place = _axis(chart, types)
    places = [at if chart.x is None else place(row[chart.x]) for at, row in enumerate(shown, 1)]
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
            **({"data": places} if axis["type"] == "category" else {}),
            **_axis_style("row" if chart.x is None else names[chart.x]),
            "nameLocation": "middle",
            "nameGap": 30,
        },
        "yAxis": {"type": "value", "scale": chart.kind != "bar", **_axis_style(names[chart.y[0]], len(chart.y) == 1)},
        "series": [
            {
                "name": names[y],
                "type": chart.kind,
                "data": _points(places, [_number(row[y]) for row in shown], axis["type"], chart.kind),
                "symbolSize": 6 if chart.kind == "scatter" else 4,
                "emphasis": {"disabled": True},
            }
            for y in chart.y
        ],
    }


def _axis(chart: Chart, types: Sequence[str]) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """What the x axis is, and where a value stands on it."""
    if chart.x is not None and chart.kind != "bar":
        if _DAY(types[chart.x]):
            return {"type": "time"}, _moment
        if is_number(types[chart.x]):
            return {"type": "value", "scale": True}, _number
    is_day = chart.x is not None and _DAY(types[chart.x])
    return {"type": "category"}, lambda value: _label(value, bool(is_day))


def _label(value: Any, is_day: bool) -> str:
    """What stands under a bar; of a moment, no digits that say nothing."""
    if value is None:
        return "NULL"
    return _MIDNIGHT.sub("", str(value)) if is_day else str(value)


def _points(places: Sequence[Any], values: Sequence[Any], axis: str, kind: Kind) -> list[Any]:
    if axis == "category":
        return list(values)
    points = [[place, value] for place, value in zip(places, values, strict=True) if place is not None]
    return sorted(points, key=lambda point: point[0]) if kind == "line" else points


def _number(value: Any) -> float | int | None:
    """Decimals come as text; what is not finite has no place."""
    if isinstance(value, bool) or value is None:
        return None
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None


def _moment(value: Any) -> float | None:
    """Milliseconds; a time without a zone is taken as it is written."""
    if value is None:
        return None
    text = _FRACTION.sub(r"\1", value)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None  # a year that Python does not know
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
