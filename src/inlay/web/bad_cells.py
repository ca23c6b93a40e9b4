"""Cells that do not fit, with their places and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nicegui import html, ui

__all__ = ["bad_cells_table"]

_LONGEST = 500


def bad_cells_table(bad: Iterable[Mapping[str, Any]]) -> None:
    """Each has `line`, `column`, `value`, `reason`; a cell without a column stands for its row, which may be `raw`."""
    with ui.element("div").classes("inlay-scroll"), html.table().classes("inlay-table inlay-bad-cells"):
        with html.thead(), html.tr():
            for name in ("Line", "Column", "Value", "Reason"):
                html.th(name).props("scope=col")
        with html.tbody():
            for cell in bad:
                _row(cell)


def _row(cell: Mapping[str, Any]) -> None:
    with html.tr():
        html.td(f"{cell['line']:,}").classes("inlay-fact")
        html.td(cell["column"] or "whole row").classes("inlay-name" if cell["column"] else "inlay-note")
        with html.td():
            _text(cell["value"])
            if cell.get("raw"):
                with html.details():
                    html.summary("the row")
                    _text(cell["raw"])
        html.td(cell["reason"]).classes("inlay-name")


def _text(value: str | None) -> None:
    if value is None:
        return
    shown = value if len(value) <= _LONGEST else f"{value[:_LONGEST]}…"
    html.span(shown).classes("inlay-name inlay-mono inlay-as-written")
