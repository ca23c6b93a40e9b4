"""Rows of data as a table that reads well aloud, too; every name and value in it is text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nicegui import html, ui

from inlay.query.cells import dumps

__all__ = ["cell", "rows_table", "scrolling_table", "text_of"]

_SHORT = 32  # characters stay on one line


def text_of(value: Any) -> str:
    """A value of a JSON answer."""
    return "NULL" if value is None else value if isinstance(value, str) else dumps(value)


def cell(value: Any, tag: type[ui.element] = html.td) -> ui.element:
    """NULL and the empty text are told apart from the texts that they might be taken for."""
    text = text_of(value) if value != "" else "empty"
    made: ui.element = tag(text).classes("inlay-short" if len(text) <= _SHORT else "")
    return made.classes("inlay-null") if value is None or value == "" else made


def scrolling_table(label: str, classes: str = "") -> ui.element:
    """A table that scrolls by itself where it is wider than the page."""
    with html.div(role="region", tabindex=0, **{"aria-label": label}).classes("inlay-scroll"):
        made: ui.element = html.table().classes(f"inlay-table {classes}")
    return made


def rows_table(
    label: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], classes: str = ""
) -> None:
    """Columns by name and a note, which may be empty."""
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
