"""Every row of a version in a grid, paged, sorted and filtered where the data is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from nicegui import events, html, ui
from nicegui.element import Element

from inlay.errors import InlayError, UnauthorizedError
from inlay.type_grammar import type_name
from inlay.web import wording
from inlay.web.dataset.profile import sort_of
from inlay.web.dataset.row_sql import View, operators_of
from inlay.web.dataset.rows import Rows
from inlay.web.shell import guarded
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot

__all__ = ["show_rows"]

_BLOCK = 100
_LONGEST_CELL = 300
_LONGEST_OPENED = 20_000


async def show_rows(visitor: Visitor, snapshot: Snapshot) -> None:
    _RowsView(Rows(visitor, snapshot), snapshot)


class _RowsView:
    """The number of rows, a way back to all of them, and the grid."""

    def __init__(self, rows: Rows, snapshot: Snapshot) -> None:
        self._rows, self._stored = rows, snapshot.version.row_count
        self._latest = 0  # what was asked for last; older answers change no words
        with ui.row().classes("inlay-rows-bar"):
            self._told = ui.label(wording.count(self._stored, "row")).props("role=status")
            self._again = ui.button("Try again", icon="refresh").props("flat dense no-caps")
            self._clear = ui.button("Clear filters and order", icon="filter_alt_off").props("flat dense no-caps")
        self._again.set_visibility(False)
        self._clear.set_visibility(False)
        self._grid = _Grid(rows.schema, self._stored, f"Rows of {snapshot.dataset.label}").classes("inlay-rows")
        self._grid.style(f"--rows: {min(self._stored, _BLOCK)}")
        self._grid.on("wanted", guarded(self._deliver))
        self._grid.on("opened", guarded(self._open))
        self._again.on_click(lambda: self._grid.run_method("again"))
        self._clear.on_click(lambda: self._grid.run_method("reset"))

    async def _deliver(self, event: events.GenericEventArguments) -> None:
        asked, found, total = event.args, None, 0
        self._latest = max(self._latest, asked["key"])
        try:
            view = View.of(self._rows.schema, asked["sorts"], asked["filters"])
            matching = await self._rows.total(view)
            start = max(0, int(asked["start"]))
            stop = min(int(asked["stop"]), start + _BLOCK)  # whatever a browser may ask for
            found, total = await self._rows.page(view, start, stop, _LONGEST_CELL), matching
            self._again.set_visibility(False)
            self._tell(asked, _words(view, total, self._stored))
        except UnauthorizedError:
            raise
        except InlayError as error:  # often of somebody who is still typing a value
            self._again.set_visibility(True)
            self._tell(asked, str(error.message), "inlay-wrong")
        finally:
            self._grid.run_method("deliver", asked["key"], found, total)

    def _tell(self, asked: dict[str, object], words: str, look: str = "") -> None:
        if asked["key"] == self._latest:
            self._told.text = words
            self._told.classes(replace=look)
            self._clear.set_visibility(bool(asked["sorts"] or asked["filters"]))

    async def _open(self, event: events.GenericEventArguments) -> None:
        asked, number = event.args, max(0, int(event.args["row"]))
        view = View.of(self._rows.schema, asked["sorts"], asked["filters"])
        for cells in await self._rows.page(view, number, number + 1, _LONGEST_OPENED):
            _show_row(self._rows.schema, number, cells)


def _words(view: View, total: int, stored: int) -> str:
    return f"{total:,} of {wording.count(stored, 'row')}" if view.filters else wording.count(stored, "row")


def _show_row(schema: pa.Schema, number: int, cells: list[str | None]) -> None:
    """One row with all of its values in full."""
    with ui.dialog() as dialog, ui.card().classes("inlay-dialog inlay-row-dialog"):
        with ui.row().classes("w-full items-center no-wrap"):
            html.h2(f"Row {number + 1:,}").classes("inlay-subtitle grow")
            ui.button(icon="close", on_click=dialog.close).props('flat round dense aria-label="Close"')
        with html.dl().classes("inlay-row-values"):
            for field, cell in zip(schema, cells, strict=True):
                html.dt(field.name)
                html.dd("NULL" if cell is None else cell).classes("inlay-null" if cell is None else "")
    dialog.props["aria-label"] = f"Row {number + 1:,}"
    dialog.on_value_change(lambda event: None if event.value else dialog.delete())
    dialog.open()


class _Grid(Element, component="rows_grid.js"):
    def __init__(self, schema: pa.Schema, total: int, label: str) -> None:
        super().__init__()
        self._props["columns"] = [
            {
                "name": field.name,
                "type": type_name(field.type),
                "isNumber": sort_of(field.type) == "number",
                "operators": operators_of(field.type),
            }
            for field in schema
        ]
        self._props["total"] = total
        self._props["block"] = _BLOCK
        self._props["label"] = label
