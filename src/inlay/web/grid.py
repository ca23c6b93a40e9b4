"""Rows of data in a grid. Whatever they hold, names and values are shown as text and never taken for anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from inlay.query.cells import dumps

__all__ = ["cells", "grid_options", "is_number"]

_LARGEST = 2**53  # beyond it browsers round integers
_LONGEST = 5_000  # characters of one cell
_NUMBER = re.compile(r"u?(?:tiny|small|big)int|u?integer|halffloat|real|double|decimal\(.*")
_ROW_HEIGHT = 32
# Code for the browser; nothing of the data is part of it.
_SHOW = "p => p.value === null || p.value === undefined ? 'NULL' : String(p.value)"
_IS_NULL = "p => p.value === null || p.value === undefined"
_WHOLE = "p => typeof p.value === 'string' && p.value.length > 30 ? p.value.slice(0, 2000) : null"
_COMPARE = "(a, b) => a === null ? (b === null ? 0 : -1) : b === null ? 1 : Number(a) - Number(b)"


def is_number(type_: str) -> bool:
    return _NUMBER.fullmatch(type_) is not None


def cells(rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Values of a JSON answer as the browser can show them: nested ones as their JSON, large integers in full.

    Texts that nobody would read in a grid are cut.
    """
    return [[_cell(value) for value in row] for row in rows]


def _cell(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        value = dumps(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    return str(value) if isinstance(value, int) and abs(value) > _LARGEST else value


def grid_options(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """For AG Grid: columns by name and type, their cells by position."""
    return {
        "columnDefs": [_column(str(at), name, type_) for at, (name, type_) in enumerate(columns)],
        "defaultColDef": {
            "sortable": True,
            "resizable": True,
            "minWidth": 90,
            "cellDataType": False,
            ":valueFormatter": _SHOW,
            "cellClassRules": {":inlay-null": _IS_NULL},
            ":tooltipValueGetter": _WHOLE,
        },
        "rowData": rows,
        "rowHeight": _ROW_HEIGHT,
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
