"""The SQL page: an editor, the list of tables, and the result as a table or a chart."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from nicegui import html, ui
from nicegui.element import Element

from inlay.errors import InlayError, QueryError, UnauthorizedError, error_from_dict
from inlay.query.values import json_values
from inlay.type_grammar import type_name
from inlay.web import chart as charts
from inlay.web.chart import Chart, default_chart
from inlay.web.formatting import ago, count, duration
from inlay.web.shell import Visitor, heading, page, report_errors, use_stylesheet
from inlay.web.sql_editor import HistoryEntry, SqlEditor, TableInfo, examples, quote_if_needed
from inlay.web.widgets import cells, grid_options

if TYPE_CHECKING:
    from inlay.query import QueryResult
    from inlay.workspace import Workspace

__all__ = ["fit_to_browser"]

_MAX_ROWS = 10_000
_MAX_CHARACTERS = 16_000_000  # of all cells that the page sends to a browser
_NUMBER_LENGTH = 18  # the assumed number of characters of a number
_MAX_TABLES, _MAX_LISTED_TABLES = 1_000, 100
_MIN_TABLES_TO_SEARCH = 9
_CHART_KINDS = {"bar": "Bars", "line": "Line", "scatter": "Points"}
_ROW_NUMBER = -1
_LIMITS = {limit: count(limit, "row") for limit in (100, 1_000, _MAX_ROWS)}
_DEFAULT_LIMIT = 1_000
_EXPORT_FORMATS = {
    "CSV": ("text/csv", "query.csv"),
    "Parquet": ("application/vnd.apache.parquet", "query.parquet"),
    "Arrow": ("application/vnd.apache.arrow.stream", "query.arrow"),
}


# --------------------------------------------------------------------------------------------------------------- tables
class _TableList:
    """The tables and their columns. A click calls `insert` with the SQL name of a table or column."""

    def __init__(self, insert: Callable[[str], None]) -> None:
        self._insert = insert
        self._tables: Sequence[TableInfo] = ()
        self._search = ui.input(placeholder="Search tables", on_change=self._fill).props(
            'dense outlined clearable aria-label="Search tables"'
        )
        self._search.classes("w-full").set_visibility(False)
        self._list = html.ul().classes("inlay-tables")

    def show(self, tables: Sequence[TableInfo]) -> None:
        if list(tables) != list(self._tables) or not tables:
            self._tables = tables
            self._search.set_visibility(len(tables) >= _MIN_TABLES_TO_SEARCH)
            self._fill()

    def _fill(self) -> None:
        wanted = (self._search.value or "").strip().lower()
        found = [table for table in self._tables if wanted in table.name.lower()]
        self._list.clear()
        with self._list:
            for table in found[:_MAX_LISTED_TABLES]:
                self._show_table(table)
            if not found:
                html.li("No tables match your search." if self._tables else "No tables yet.").classes("inlay-note")
            if len(found) > _MAX_LISTED_TABLES:
                html.li(f"and {len(found) - _MAX_LISTED_TABLES:,} more").classes("inlay-note")

    def _show_table(self, table: TableInfo) -> None:
        with html.li():
            with ui.element("div").classes("inlay-table-line"):
                opener = html.button().classes("inlay-table-opener")
                opener.props.update({"type": "button", "aria-expanded": "false"})
                opener.props["aria-label"] = f"Show columns of {table.name}"
                with opener:
                    ui.icon("chevron_right").props("aria-hidden=true")
                self._insert_button(table.name, table.sql).classes("inlay-table-name")
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
                    self._insert_button(field.name, quote_if_needed(field.name))
                    ui.label(type_name(field.type)).classes("inlay-note inlay-column-type")

    def _insert_button(self, name: str, text: str) -> Element:
        button: Element = html.button(name).classes("inlay-insert")
        button.props.update({"type": "button", "title": f"Insert {text}"})
        button.on("click", lambda: self._insert(text))
        return button


# -------------------------------------------------------------------------------------------------------------- results
@dataclass(frozen=True, slots=True)
class _Result:
    """The part of a query's result that the page sends to the browser."""

    columns: list[tuple[str, str]]  # name and type
    rows: list[list[Any]]
    row_count: int
    truncated: bool
    seconds: float

    @property
    def summary(self) -> str:
        """Say how many rows the result has, how many of them the page shows, and how long the query took."""
        rows = count(self.row_count, "row")
        if self.truncated:
            rows = f"First {rows}, more available"
        if len(self.rows) < self.row_count:
            rows += f", {len(self.rows):,} shown"
        return f"{rows} · {duration(self.seconds)}"


def _run_query(workspace: Workspace, sql: str, limit: int, cancel: threading.Event) -> _Result:
    with workspace.query(sql, min(limit, _MAX_ROWS), None, cancel) as result:
        columns = [(column["name"], column["type"]) for column in result.columns()]
        rows = list(fit_to_browser(_rows(result), _MAX_CHARACTERS))
        return _Result(columns, rows, result.row_count, result.truncated, result.execution_ms / 1000)


def _rows(result: QueryResult) -> Iterator[list[Any]]:
    for batch in result.batches():
        yield from cells(zip(*map(json_values, batch.columns), strict=True))


def fit_to_browser(rows: Iterator[list[Any]], limit: int) -> Iterator[list[Any]]:
    """Yield rows until their cells have more than `limit` characters in total."""
    for row in rows:
        limit -= sum(len(cell) if isinstance(cell, str) else _NUMBER_LENGTH for cell in row)
        if limit < 0:
            return
        yield row


def _show_grid(result: _Result) -> ui.element:
    grid = ui.aggrid(grid_options(result.columns, result.rows), auto_size_columns=False).classes("inlay-grid")
    return grid.style(f"height: min({len(result.rows) * 32 + 42}px, 65vh); min-height: 6rem")


class _ChartPanel:
    """A chart of the result, with controls for its kind and axes."""

    def __init__(self, result: _Result) -> None:
        self._rows = result.rows
        self._names = [name for name, _ in result.columns]
        self._types = [type_ for _, type_ in result.columns]
        chart = default_chart(self._types, result.rows)
        if chart is None:
            ui.label("A chart needs at least two rows and a numeric column.").classes("inlay-note")
            return
        self._build_controls(chart)
        self._note = ui.label().classes("inlay-note")
        self._box = ui.element("div").classes("w-full")
        self._draw()

    def _build_controls(self, chart: Chart) -> None:
        columns = dict(enumerate(self._names))
        numbers = {at: self._names[at] for at in charts.number_columns(self._types)}
        with ui.row().classes("w-full items-end gap-3"):
            self._kind = ui.toggle(_CHART_KINDS, value=chart.kind, on_change=self._draw)
            self._kind.props("dense no-caps unelevated")
            self._x = ui.select(
                {_ROW_NUMBER: "Row number", **columns},
                value=_ROW_NUMBER if chart.x is None else chart.x,
                label="X axis",
                on_change=self._draw,
            )
            self._y = ui.select(numbers, value=list(chart.y), label="Y axis", multiple=True, on_change=self._draw)
            for select in (self._x, self._y):
                select.props("dense outlined options-dense").classes("inlay-chart-choice")
            self._y.props("use-chips")

    def _draw(self) -> None:
        self._box.clear()
        chart = Chart(self._kind.value, None if self._x.value == _ROW_NUMBER else self._x.value, tuple(self._y.value))
        limit = charts.max_rows(chart.kind)
        self._note.set_visibility(len(self._rows) > limit)
        self._note.text = f"The chart shows the first {limit:,} of {count(len(self._rows), 'row')}."
        if chart.y:
            with self._box:
                options = charts.options(chart, self._names, self._types, self._rows)
                ui.echart(options, renderer="svg").classes("inlay-chart")


# ----------------------------------------------------------------------------------------------------------------- page
@page("/sql", "SQL")
async def show(visitor: Visitor, q: str = "") -> None:
    use_stylesheet("sql.css")
    heading("SQL")
    _Workbench(visitor, q)


def _tables(workspace: Workspace) -> list[TableInfo]:
    found = sorted(workspace.datasets(limit=_MAX_TABLES).items, key=lambda dataset: dataset.table_name.lower())
    return [TableInfo(dataset.table_name, dataset.row_count, dataset.schema) for dataset in found]


class _Workbench:
    """The editor, and the result of the latest query."""

    def __init__(self, visitor: Visitor, text: str) -> None:
        self._visitor = visitor
        self._is_linked = bool(text.strip())
        self._tables: list[TableInfo] = []
        self._running: threading.Event | None = None
        with ui.element("div").classes("inlay-sql"):
            self._build_sidebar()
            with ui.element("div").classes("inlay-sql-main"):
                with ui.card().classes("inlay-card inlay-sql-card"):
                    self._editor = SqlEditor(text, report_errors(self.run), report_errors(self._opened))
                    self._build_toolbar()
                self._result = ui.element("section").classes("inlay-sql-result")
                self._result.props["aria-label"] = "Result"
        ui.context.client.on_delete(self._cancel)

    def _build_sidebar(self) -> None:
        with ui.element("aside").classes("inlay-sql-side").props('aria-label="Tables"') as side:
            opener = ui.button("Tables", icon="table_chart").props("flat no-caps aria-expanded=false")
            opener.classes("inlay-sql-side-opener")
            with ui.element("div").classes("inlay-sql-side-body"):
                html.h2("Tables").classes("inlay-sql-side-title")
                self._list = _TableList(self._insert)

        def toggle() -> None:
            is_open = "inlay-open" not in side.classes
            side.classes(toggle="inlay-open")
            opener.props(f"aria-expanded={'true' if is_open else 'false'}")

        opener.on_click(toggle)

    def _insert(self, text: str) -> None:
        self._editor.insert(text)

    def _build_toolbar(self) -> None:
        with ui.row().classes("inlay-sql-toolbar"):
            self._run_button = ui.button("Run", icon="play_arrow", on_click=report_errors(self.run)).props(
                "no-caps unelevated"
            )
            self._cancel_button = ui.button("Cancel", icon="stop", on_click=self._cancel).props("no-caps outline")
            self._cancel_button.set_visibility(False)
            self._limit = ui.select(_LIMITS, value=_DEFAULT_LIMIT)
            self._limit.props('dense outlined options-dense aria-label="Row limit"')
            ui.label("Ctrl+Enter to run · Esc, then Tab to leave the editor").classes("inlay-note inlay-sql-keys")
            ui.space()
            for icon, label, action in (
                ("history", "Show history", self._show_history),
                ("link", "Copy link", self._share),
            ):
                button = ui.button(label, icon=icon, on_click=report_errors(action))
                button.props(f'flat no-caps aria-label="{label}"').classes("inlay-sql-extra")

    async def _opened(self, was_restored: bool) -> None:
        await self._refresh_tables()
        if self._is_linked and not was_restored:
            await self.run()
        else:
            self._show_examples()

    async def _refresh_tables(self) -> None:
        tables = await self._visitor.read(_tables)
        if tables != self._tables or not tables:
            self._tables = tables
            self._list.show(tables)
            self._editor.set_tables(tables)

    # --------------------------------------------------------------------------------------------------------- running
    async def run(self) -> None:
        sql = self._editor.text
        if self._running is not None or not sql.strip():
            return
        self._editor.unmark()
        self._editor.add_to_history(sql)
        started = time.monotonic()
        try:
            with self._busy() as cancel:
                limit = int(self._limit.value)
                result = await self._visitor.read(lambda w: _run_query(w, sql, limit, cancel), "queries")
        except UnauthorizedError:
            raise
        except InlayError as error:
            if self._result.is_deleted:  # The visitor left the page.
                return
            self._show_error(error, time.monotonic() - started)
        else:
            self._show_result(sql, result)
        await self._refresh_tables()

    @contextlib.contextmanager
    def _busy(self) -> Iterator[threading.Event]:
        """Show a spinner and a cancel button while the block runs."""
        self._running = threading.Event()
        self._run_button.disable()
        self._cancel_button.set_visibility(True)
        self._result.clear()
        with self._result, ui.row().classes("items-center").props("role=status"):
            ui.spinner(size="1.2em").props("aria-hidden=true")
            ui.label("Running")
        try:
            yield self._running
        finally:
            self._running = None
            if not self._result.is_deleted:
                self._run_button.enable()
                self._cancel_button.set_visibility(False)
                self._result.clear()

    def _cancel(self) -> None:
        if self._running is not None:
            self._running.set()

    # --------------------------------------------------------------------------------------------------------- results
    def _show_result(self, sql: str, result: _Result) -> None:
        with self._result, ui.card().classes("inlay-card inlay-sql-card"):
            with ui.row().classes("inlay-sql-toolbar"):
                ui.label(result.summary).classes("inlay-sql-summary").props("role=status")
                ui.space()
                view = ui.toggle(["Table", "Chart"], value="Table").props("dense no-caps unelevated")
                self._build_export_menu(sql)
            table = _show_grid(result)
            chart = ui.column().classes("w-full gap-2")
            chart.set_visibility(False)

        def change() -> None:
            if not chart.default_slot.children:
                with chart:
                    _ChartPanel(result)
            table.set_visibility(view.value == "Table")
            chart.set_visibility(view.value == "Chart")

        view.on_value_change(change)

    def _build_export_menu(self, sql: str) -> None:
        with ui.dropdown_button("Export", icon="download", auto_close=True).props("flat no-caps") as button:
            for name in _EXPORT_FORMATS:
                ui.item(name, on_click=report_errors(lambda name=name: self._export(sql, name, button)))

    async def _export(self, sql: str, format_: str, button: ui.element) -> None:
        button.props("loading")
        try:
            export = await self._editor.export(sql, *_EXPORT_FORMATS[format_])
        finally:
            button.props(remove="loading")
        if export.problem is not None:
            raise error_from_dict({**export.problem, "message": export.problem.get("detail", "The export failed.")})
        more = " The result has more rows than a query may return." if export.truncated else ""
        ui.notify(f"Exported {count(export.rows, 'row')}.{more}")

    def _show_error(self, error: InlayError, seconds: float) -> None:
        with self._result, ui.card().classes("inlay-error").props("role=alert"):
            ui.label(error.message).classes("text-base font-medium inlay-sql-message")
            if error.hint:
                ui.label(error.hint)
            with ui.row().classes("items-center gap-3"):
                if isinstance(error, QueryError) and error.position is not None:
                    self._build_position_button(*error.position)
                ui.label(f"Failed after {duration(seconds)}").classes("inlay-note")

    def _build_position_button(self, line: int, column: int) -> None:
        self._editor.mark(line, column)
        button = ui.button(f"Go to line {line}, column {column}", on_click=lambda: self._editor.go_to(line, column))
        button.props("outline dense no-caps")

    def _show_examples(self) -> None:
        self._result.clear()
        with self._result, ui.card().classes("inlay-card"):
            html.h2("Try an example" if self._tables else "No datasets yet").classes("inlay-sql-side-title")
            if not self._tables:
                ui.link("Upload a file to create one", "/")
            with html.ul().classes("inlay-sql-examples"):
                for example in examples(self._tables):
                    with html.li():
                        button = html.button().props("type=button").classes("inlay-sql-example")
                        with button:
                            ui.label(example.title)
                            ui.label(example.sql).classes("inlay-mono inlay-note")
                        button.on("click", report_errors(lambda sql=example.sql: self._run_example(sql)))

    async def _run_example(self, sql: str) -> None:
        self._editor.replace(sql)
        await self.run()

    # ------------------------------------------------------------------------------------------------ history and links
    async def _show_history(self) -> None:
        entries = await self._editor.history()

        def clear() -> None:
            self._editor.clear_history()
            dialog.close()

        with ui.dialog() as dialog, ui.card().classes("inlay-card inlay-sql-history"):
            html.h2("History").classes("inlay-sql-side-title")
            if not entries:
                ui.label("Run a query to see it here.").classes("inlay-note")
            with html.ul().classes("inlay-sql-examples"):
                for entry in entries:
                    self._show_history_entry(entry, dialog)
            with ui.row().classes("w-full justify-end"):
                if entries:
                    ui.button("Clear history", on_click=clear).props("flat no-caps")
                ui.button("Close", on_click=dialog.close).props("flat no-caps")
        dialog.on("hide", dialog.delete)
        dialog.open()

    def _show_history_entry(self, entry: HistoryEntry, dialog: ui.dialog) -> None:
        def restore() -> None:
            dialog.close()
            self._editor.replace(entry.text)

        with html.li():
            button = html.button().props("type=button").classes("inlay-sql-example").on("click", restore)
            with button:
                ui.label(entry.text).classes("inlay-mono")
                ui.label(ago(datetime.fromtimestamp(entry.at, UTC))).classes("inlay-note")

    async def _share(self) -> None:
        shared = await self._editor.share(self._editor.text)
        if shared.link is None:
            raise InlayError("The query is too long for a link.", hint="Copy the text of the query instead.")
        ui.notify("Copied the link." if shared.copied else shared.link, timeout=4000 if shared.copied else 0)
