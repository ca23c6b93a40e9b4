"""The tables that a query can name, beside the editor: a click puts a name into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nicegui import html, ui
from nicegui.element import Element

from inlay.type_grammar import type_name
from inlay.web.sql_text import TableInfo, written

__all__ = ["TableList"]

_MOST_SHOWN = 100
_ENOUGH_TO_SEARCH = 8


class TableList:
    def __init__(self, insert: Callable[[str], None]) -> None:
        self._insert = insert
        self._tables: Sequence[TableInfo] = ()
        self._search = ui.input(placeholder="Find a table", on_change=self._fill).props(
            'dense outlined clearable aria-label="Find a table"'
        )
        self._search.classes("w-full").set_visibility(False)
        self._list = html.ul().classes("inlay-tables")

    def show(self, tables: Sequence[TableInfo]) -> None:
        if list(tables) != list(self._tables) or not tables:
            self._tables = tables
            self._search.set_visibility(len(tables) > _ENOUGH_TO_SEARCH)
            self._fill()

    def _fill(self) -> None:
        wanted = (self._search.value or "").strip().lower()
        found = [table for table in self._tables if wanted in table.name.lower()]
        self._list.clear()
        with self._list:
            for table in found[:_MOST_SHOWN]:
                self._entry(table)
            if not found:
                html.li("No table is called so." if self._tables else "There is none yet.").classes("inlay-note")
            if len(found) > _MOST_SHOWN:
                html.li(f"and {len(found) - _MOST_SHOWN:,} more").classes("inlay-note")

    def _entry(self, table: TableInfo) -> None:
        with html.li():
            with ui.element("div").classes("inlay-table-line"):
                opener = html.button().classes("inlay-table-opener")
                opener.props.update({"type": "button", "aria-expanded": "false"})
                opener.props["aria-label"] = f"Columns of {table.name}"
                with opener:
                    ui.icon("chevron_right").props("aria-hidden=true")
                self._button(table.name, table.written).classes("inlay-table-name")
                ui.label(f"{table.rows:,}").classes("inlay-note inlay-table-count")
            columns = html.ul().classes("inlay-columns")
            columns.set_visibility(False)

        def toggle() -> None:
            if not columns.default_slot.children:
                self._fill_columns(columns, table)
            columns.set_visibility(not columns.visible)
            opener.props["aria-expanded"] = "true" if columns.visible else "false"

        opener.on("click", toggle)

    def _fill_columns(self, columns: ui.element, table: TableInfo) -> None:
        with columns:
            for field in table.schema:
                with html.li():
                    self._button(field.name, written(field.name))
                    ui.label(type_name(field.type)).classes("inlay-note inlay-column-type")

    def _button(self, name: str, text: str) -> Element:
        button: Element = html.button(name).classes("inlay-insert")
        button.props.update({"type": "button", "title": f"Insert {text}"})
        button.on("click", lambda: self._insert(text))
        return button
