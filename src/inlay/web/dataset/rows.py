"""Every row of a version in a grid, paged, sorted and filtered where the data is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from nicegui import events, html, ui
from nicegui.element import Element

from inlay.errors import InlayError, UnauthorizedError
from inlay.query.cells import text_values
from inlay.type_grammar import type_name
from inlay.web import wording
from inlay.web.dataset.profile import sort_of
from inlay.web.dataset.row_sql import View, count_sql, operators_of, page_sql, table_sql
from inlay.web.shell import guarded
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot
    from inlay.workspace import Workspace

__all__ = ["Rows", "show_rows"]

_BLOCK = 100
_LONGEST_CELL = 300
_LONGEST_OPENED = 20_000
Cells = list[list[str | None]]


class Rows:
    """The rows of one version in the order and under the filter of a view."""

    def __init__(self, visitor: Visitor, snapshot: Snapshot) -> None:
        self._visitor = visitor
        self._dataset_id, self._version = snapshot.dataset.id, snapshot.version.version
        self._table = table_sql(snapshot.dataset.table_name, self._version)
        self._stored = snapshot.version.row_count
        self._counts: dict[tuple[Any, ...], int] = {(): self._stored}
        self.schema = snapshot.version.schema.remove_metadata()

    async def total(self, view: View) -> int:
        if view.filters not in self._counts:
            sql = count_sql(self._table, self.schema, view.filters)
            found = await self._visitor.read(lambda w: _ask(w, sql), "queries")
            self._counts = {(): self._stored, view.filters: found[0][0].as_py()}
        return self._counts[view.filters]

    async def page(self, view: View, start: int, stop: int, longest: int = _LONGEST_CELL) -> Cells:
        if view.is_stored_order:
            table = await self._visitor.read(lambda w: self._in_stored_order(w, start, stop), "bytes")
        else:
            total = await self.total(view)
            page = page_sql(self._table, self.schema, view, start, stop, total)
            table = await self._visitor.read(lambda w: _ask(w, page.sql), "queries")
            table = table.take(range(table.num_rows)[::-1]) if page.is_reversed else table
        return _cells(table, longest)

    def _in_stored_order(self, workspace: Workspace, start: int, stop: int) -> pa.Table:
        data = workspace.data(self._dataset_id, self._version)
        return pa.Table.from_batches(data.batches(start, stop - start), self.schema)


def _ask(workspace: Workspace, sql: str) -> pa.Table:
    with workspace.query(sql) as result:
        return result.read_all()


def _cells(table: pa.Table, longest: int) -> Cells:
    """Text to the last digit: a browser's numbers are not as exact as ours."""
    columns = [text_values(column.combine_chunks()) for column in table.columns]
    return [[_cut(cell, longest) for cell in row] for row in zip(*columns, strict=True)]


def _cut(cell: str | None, longest: int) -> str | None:
    return cell if cell is None or len(cell) <= longest else cell[:longest] + "…"


# ---------------------------------------------------------------------------------------------------------- the element
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


async def show_rows(visitor: Visitor, snapshot: Snapshot) -> None:
    rows = Rows(visitor, snapshot)
    stored = snapshot.version.row_count
    with ui.row().classes("inlay-rows-bar"):
        told = ui.label(wording.count(stored, "row")).props("role=status")
        clear = ui.button("Clear filters and order", icon="filter_alt_off").props("flat dense no-caps")
        clear.set_visibility(False)
    grid = _Grid(rows.schema, stored, f"Rows of {snapshot.dataset.label}").classes("inlay-rows")
    grid.style(f"--rows: {min(stored, _BLOCK)}")
    clear.on_click(lambda: grid.run_method("reset"))

    async def deliver(event: events.GenericEventArguments) -> None:
        asked = event.args
        try:
            view = View.of(rows.schema, asked["sorts"], asked["filters"])
            total = await rows.total(view)
            found = await rows.page(view, asked["start"], asked["stop"])
        except UnauthorizedError:
            raise
        except InlayError as error:  # often of somebody who is still typing a value
            told.text = str(error.message)
            told.classes(add="inlay-wrong")
            clear.set_visibility(True)
            grid.run_method("deliver", asked["key"], [], 0)
            return
        told.classes(remove="inlay-wrong")
        told.text = _told(view, total, stored)
        clear.set_visibility(not view.is_stored_order)
        grid.run_method("deliver", asked["key"], found, total)

    async def open_row(event: events.GenericEventArguments) -> None:
        asked, number = event.args, int(event.args["row"])
        view = View.of(rows.schema, asked["sorts"], asked["filters"])
        for cells in await rows.page(view, number, number + 1, _LONGEST_OPENED):
            _show_row(rows.schema, number, cells)

    grid.on("wanted", guarded(deliver))
    grid.on("opened", guarded(open_row))


def _told(view: View, total: int, stored: int) -> str:
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
    dialog.on_value_change(lambda event: None if event.value else dialog.delete())
    dialog.open()
