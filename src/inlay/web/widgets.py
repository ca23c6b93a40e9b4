"""Grids, tables and sparklines. They show names and values as text, whatever these contain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nicegui import html, ui

from inlay.query.values import dumps

__all__ = [
    "bad_cells_table",
    "cell",
    "cells",
    "grid_options",
    "is_number",
    "rows_table",
    "scrolling_table",
    "shorten",
    "sparkline",
    "text_of",
]

_MAX_INTEGER = 2**53  # Browsers round larger integers.
_MAX_GRID_CELL, _MAX_BAD_CELL, _MAX_UNWRAPPED = 5_000, 500, 32  # characters
_NUMBER = re.compile(r"u?(?:tiny|small|big)int|u?integer|halffloat|real|double|decimal\(.*")
_WIDTH, _HEIGHT, _MARGIN = 96, 24, 3  # pixels of a sparkline
# Code for the browser, which contains no data.
_FORMAT = "p => p.value === null || p.value === undefined ? 'NULL' : String(p.value)"
_IS_NULL = "p => p.value === null || p.value === undefined"
_TOOLTIP = "p => typeof p.value === 'string' && p.value.length > 30 ? p.value.slice(0, 2000) : null"
_COMPARE = "(a, b) => a === null ? (b === null ? 0 : -1) : b === null ? 1 : Number(a) - Number(b)"


# --------------------------------------------------------------------------------------------------------------- values
def shorten(text: str, limit: int) -> str:
    """Cut a text after `limit` characters and mark the cut with an ellipsis."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def is_number(type_: str) -> bool:
    return _NUMBER.fullmatch(type_) is not None


def cells(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Convert JSON values for a grid: nested values and large integers become text, long text is cut."""
    return [[_cell(value) for value in row] for row in rows]


def _cell(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        value = dumps(value)
    if isinstance(value, str):
        return shorten(value, _MAX_GRID_CELL)
    return str(value) if isinstance(value, int) and abs(value) > _MAX_INTEGER else value


def text_of(value: Any) -> str:
    return "NULL" if value is None else value if isinstance(value, str) else dumps(value)


# ---------------------------------------------------------------------------------------------------------------- grids
def grid_options(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return AG Grid options for columns of `(name, type)` and rows of cells by position."""
    return {
        "columnDefs": [_column(str(at), name, type_) for at, (name, type_) in enumerate(columns)],
        "defaultColDef": {
            "sortable": True,
            "resizable": True,
            "minWidth": 90,
            "cellDataType": False,
            ":valueFormatter": _FORMAT,
            "cellClassRules": {":inlay-null": _IS_NULL},
            ":tooltipValueGetter": _TOOLTIP,
        },
        "rowData": rows,
        "rowHeight": 32,
        "headerHeight": 38,
        "autoSizeStrategy": {"type": "fitCellContents", "skipHeader": False},
        "enableCellTextSelection": True,
        "ensureDomOrder": True,
        "suppressFieldDotNotation": True,
        "suppressDragLeaveHidesColumns": True,
        "animateRows": False,
        "tooltipShowDelay": 400,
    }


def _column(field: str, name: str, type_: str) -> dict[str, Any]:
    column: dict[str, Any] = {"field": field, "headerName": name, "headerTooltip": f"{name}: {type_}"}
    if is_number(type_):
        column |= {
            ":comparator": _COMPARE,
            "cellClass": ["ag-right-aligned-cell", "inlay-number"],
            "headerClass": "ag-right-aligned-header",
        }
    return column


# --------------------------------------------------------------------------------------------------------------- tables
def bad_cells_table(bad: Iterable[Mapping[str, Any]]) -> None:
    """Show invalid cells with their reasons.

    Each cell has `line`, `column`, `value` and `reason`, and may have the `raw` text of its row. If the whole row is
    invalid, `column` is None.
    """
    with ui.element("div").classes("inlay-scroll"), html.table().classes("inlay-table inlay-bad-cells"):
        with html.thead(), html.tr():
            for name in ("Line", "Column", "Value", "Reason"):
                html.th(name).props("scope=col")
        with html.tbody():
            for cell in bad:
                _bad_cell(cell)


def _bad_cell(cell: Mapping[str, Any]) -> None:
    with html.tr():
        html.td(f"{cell['line']:,}").classes("inlay-fact")
        html.td(cell["column"] or "Whole row").classes("inlay-name" if cell["column"] else "inlay-note")
        with html.td():
            _raw_text(cell["value"])
            if cell.get("raw"):
                with html.details():
                    html.summary("Show row")
                    _raw_text(cell["raw"])
        html.td(cell["reason"]).classes("inlay-name")


def _raw_text(value: str | None) -> None:
    if value is not None:
        html.span(shorten(value, _MAX_BAD_CELL)).classes("inlay-name inlay-mono inlay-as-written")


def cell(value: Any, tag: type[ui.element] = html.td) -> ui.element:
    """Add a table cell. NULL and the empty text have a style of their own, unlike the texts "NULL" and "empty"."""
    text = text_of(value) if value != "" else "empty"
    element: ui.element = tag(text).classes("inlay-short" if len(text) <= _MAX_UNWRAPPED else "")
    return element.classes("inlay-null") if value is None or value == "" else element


def scrolling_table(label: str, classes: str = "") -> ui.element:
    """Add a table that scrolls horizontally if it is wider than the page."""
    with html.div(role="region", tabindex=0, **{"aria-label": label}).classes("inlay-scroll"):
        table: ui.element = html.table().classes(f"inlay-table {classes}")
    return table


def rows_table(
    label: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], classes: str = ""
) -> None:
    """Add a table of rows. Each column has a name and a note, which may be empty."""
    with scrolling_table(label, classes):
        with html.thead(), html.tr():
            for name, note in columns:
                with html.th(scope="col"):
                    html.div(name)
                    if note:
                        html.div(note).classes("inlay-column-note")
        with html.tbody():
            for row in rows:
                with html.tr():
                    for value in row:
                        cell(value)


# ----------------------------------------------------------------------------------------------------------- sparklines
def sparkline(values: Sequence[int], label: str) -> str:
    """Draw values as SVG, scaled between the minimum and the maximum. `label` must not contain data from users."""
    points = [(_x(at, len(values)), _y(value, min(values), max(values))) for at, value in enumerate(values)]
    if len(points) == 1:
        points = [(_MARGIN, points[0][1]), *points]
    line = " ".join(f"{x:g},{y:g}" for x, y in points)
    x, y = points[-1]
    return (
        f'<svg class="inlay-spark" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" '
        f'aria-label="{label}"><polyline points="{line}"/><circle cx="{x:g}" cy="{y:g}" r="2.5"/></svg>'
    )


def _x(at: int, count: int) -> float:
    return round(_MARGIN + (_WIDTH - 2 * _MARGIN) * (at / (count - 1) if count > 1 else 1), 1)


def _y(value: int, low: int, high: int) -> float:
    share = (value - low) / (high - low) if high > low else 0.5
    return round(_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * share, 1)
