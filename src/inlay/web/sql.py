"""Asking SQL: an editor that knows the tables, the answer as a table or a chart, the last queries, links and files."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from nicegui import html, ui

from inlay.errors import InlayError, QueryError, UnauthorizedError, error_from
from inlay.web.shell import guarded, heading, page, style_with
from inlay.web.sql_answer import MOST_ROWS, Answer, ChartPanel, ask, show_table
from inlay.web.sql_editor import Past, SqlEditor
from inlay.web.sql_tables import TableList
from inlay.web.sql_text import TableInfo, examples
from inlay.web.visitor import Visitor
from inlay.web.wording import ago, count, duration

if TYPE_CHECKING:
    from inlay.workspace import Workspace

_LIMITS = {limit: count(limit, "row") for limit in (100, 1_000, MOST_ROWS)}
_LIMIT = 1_000
_MOST_TABLES = 1_000
_FORMS = {
    "CSV": ("text/csv", "query.csv"),
    "Parquet": ("application/vnd.apache.parquet", "query.parquet"),
    "Arrow": ("application/vnd.apache.arrow.stream", "query.arrow"),
}


@page("/sql", "SQL")
async def show(visitor: Visitor, q: str = "") -> None:
    style_with("sql.css")
    heading("SQL")
    _Workbench(visitor, q)


def _tables(workspace: Workspace) -> list[TableInfo]:
    found = sorted(workspace.datasets(limit=_MOST_TABLES).items, key=lambda dataset: dataset.table_name.lower())
    return [TableInfo(dataset.table_name, dataset.row_count, dataset.schema) for dataset in found]


class _Workbench:
    """One visitor's editor and the answer to what they last asked."""

    def __init__(self, visitor: Visitor, text: str) -> None:
        self._visitor = visitor
        self._is_linked = bool(text.strip())
        self._tables: list[TableInfo] = []
        self._running: threading.Event | None = None
        with ui.element("div").classes("inlay-sql"):
            self._make_sidebar()
            with ui.element("div").classes("inlay-sql-main"):
                with ui.card().classes("inlay-card inlay-sql-card"):
                    self._editor = SqlEditor(text, guarded(self.run), guarded(self._opened))
                    self._make_toolbar()
                self._result = ui.element("section").classes("inlay-sql-result")
                self._result.props["aria-label"] = "Answer"
        ui.context.client.on_delete(self._stop)

    # -------------------------------------------------------------------------------------------------------- building
    def _make_sidebar(self) -> None:
        with ui.element("aside").classes("inlay-sql-side").props('aria-label="Tables"') as side:
            opener = ui.button("Tables", icon="table_chart").props("flat no-caps aria-expanded=false")
            opener.classes("inlay-sql-side-opener")
            with ui.element("div").classes("inlay-sql-side-body"):
                html.h2("Tables").classes("inlay-sql-side-title")
                self._list = TableList(self._insert)

        def toggle() -> None:
            is_open = "inlay-open" not in side.classes
            side.classes(toggle="inlay-open")
            opener.props(f"aria-expanded={'true' if is_open else 'false'}")

        opener.on_click(toggle)

    def _insert(self, text: str) -> None:
        self._editor.insert(text)

    def _make_toolbar(self) -> None:
        with ui.row().classes("inlay-sql-toolbar"):
            self._run_button = ui.button("Run", icon="play_arrow", on_click=guarded(self.run)).props(
                "no-caps unelevated"
            )
            self._cancel_button = ui.button("Cancel", icon="stop", on_click=self._stop).props("no-caps outline")
            self._cancel_button.set_visibility(False)
            self._limit = ui.select(_LIMITS, value=_LIMIT).props('dense outlined options-dense aria-label="Row limit"')
            ui.label("Ctrl+Enter runs · Esc, then Tab leaves the editor").classes("inlay-note inlay-sql-keys")
            ui.space()
            for icon, label, act in (
                ("history", "History", self._show_history),
                ("link", "Copy link", self._share),
            ):
                button = ui.button(label, icon=icon, on_click=guarded(act)).props(f'flat no-caps aria-label="{label}"')
                button.classes("inlay-sql-extra")

    async def _opened(self, was_restored: bool) -> None:
        await self._look_at_tables()
        if self._is_linked and not was_restored:
            await self.run()
        else:
            self._show_examples()

    async def _look_at_tables(self) -> None:
        tables = await self._visitor.read(_tables)
        if tables != self._tables or not tables:
            self._tables = tables
            self._list.show(tables)
            self._editor.know(tables)

    # --------------------------------------------------------------------------------------------------------- running
    async def run(self) -> None:
        sql = self._editor.text
        if self._running is not None or not sql.strip():
            return
        self._editor.unmark()
        self._editor.remember(sql)
        started = time.monotonic()
        try:
            with self._waiting() as cancel:
                answer = await self._visitor.read(lambda w: ask(w, sql, int(self._limit.value), cancel), "queries")
        except UnauthorizedError:
            raise
        except InlayError as error:
            if self._result.is_deleted:  # nobody is there any more
                return
            self._show_mistake(error, time.monotonic() - started)
        else:
            self._show_answer(sql, answer)
        await self._look_at_tables()

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[threading.Event]:
        """While the block runs, the page says so and offers to cancel."""
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

    def _stop(self) -> None:
        if self._running is not None:
            self._running.set()

    # --------------------------------------------------------------------------------------------------------- answers
    def _show_answer(self, sql: str, answer: Answer) -> None:
        with self._result, ui.card().classes("inlay-card inlay-sql-card"):
            with ui.row().classes("inlay-sql-toolbar"):
                ui.label(answer.summary).classes("inlay-sql-summary").props("role=status")
                ui.space()
                view = ui.toggle(["Table", "Chart"], value="Table").props("dense no-caps unelevated")
                self._make_export_menu(sql)
            table = show_table(answer)
            chart = ui.column().classes("w-full gap-2")
            chart.set_visibility(False)

        def change() -> None:
            if not chart.default_slot.children:
                with chart:
                    ChartPanel(answer)
            table.set_visibility(view.value == "Table")
            chart.set_visibility(view.value == "Chart")

        view.on_value_change(change)

    def _make_export_menu(self, sql: str) -> None:
        with ui.dropdown_button("Export", icon="download", auto_close=True).props("flat no-caps") as button:
            for form in _FORMS:
                ui.item(form, on_click=guarded(lambda form=form: self._export(sql, form, button)))

    async def _export(self, sql: str, form: str, button: ui.element) -> None:
        button.props("loading")
        try:
            made = await self._editor.export(sql, *_FORMS[form])
        finally:
            button.props(remove="loading")
        if made.problem is not None:
            raise error_from({**made.problem, "message": made.problem.get("detail", "The export failed.")})
        told = f"{count(made.rows, 'row')} in the file"
        ui.notify(f"{told}; there are more than one answer may have." if made.truncated else f"{told}.")

    def _show_mistake(self, error: InlayError, seconds: float) -> None:
        with self._result, ui.card().classes("inlay-error").props("role=alert"):
            ui.label(error.message).classes("text-base font-medium inlay-sql-message")
            if error.hint:
                ui.label(error.hint)
            with ui.row().classes("items-center gap-3"):
                if isinstance(error, QueryError) and error.position is not None:
                    self._make_place_button(*error.position)
                ui.label(f"after {duration(seconds)}").classes("inlay-note")

    def _make_place_button(self, line: int, column: int) -> None:
        self._editor.mark(line, column)
        button = ui.button(f"Line {line}, column {column}", on_click=lambda: self._editor.go_to(line, column))
        button.props("outline dense no-caps")

    def _show_examples(self) -> None:
        self._result.clear()
        with self._result, ui.card().classes("inlay-card"):
            html.h2("Try one of these" if self._tables else "There are no datasets yet").classes("inlay-sql-side-title")
            if not self._tables:
                ui.link("Upload a file to make one", "/")
            with html.ul().classes("inlay-sql-examples"):
                for example in examples(self._tables):
                    with html.li():
                        button = html.button().props("type=button").classes("inlay-sql-example")
                        with button:
                            ui.label(example.meaning)
                            ui.label(example.sql).classes("inlay-mono inlay-note")
                        button.on("click", guarded(lambda sql=example.sql: self._try(sql)))

    async def _try(self, sql: str) -> None:
        self._editor.replace(sql)
        await self.run()

    # ------------------------------------------------------------------------------------------------ history and links
    async def _show_history(self) -> None:
        past = await self._editor.past()

        def forget() -> None:
            self._editor.forget()
            dialog.close()

        with ui.dialog() as dialog, ui.card().classes("inlay-card inlay-sql-history"):
            html.h2("History").classes("inlay-sql-side-title")
            if not past:
                ui.label("Nothing was run here yet.").classes("inlay-note")
            with html.ul().classes("inlay-sql-examples"):
                for each in past:
                    self._history_entry(each, dialog)
            with ui.row().classes("w-full justify-end"):
                if past:
                    ui.button("Forget all", on_click=forget).props("flat no-caps")
                ui.button("Close", on_click=dialog.close).props("flat no-caps")
        dialog.on("hide", dialog.delete)
        dialog.open()

    def _history_entry(self, each: Past, dialog: ui.dialog) -> None:
        def bring_back() -> None:
            dialog.close()
            self._editor.replace(each.text)

        with html.li():
            button = html.button().props("type=button").classes("inlay-sql-example").on("click", bring_back)
            with button:
                ui.label(each.text).classes("inlay-mono")
                ui.label(ago(datetime.fromtimestamp(each.at, UTC))).classes("inlay-note")

    async def _share(self) -> None:
        shared = await self._editor.share(self._editor.text)
        if shared.link is None:
            raise InlayError("This text is too long for a link.", hint="Copy the text itself.")
        ui.notify(
            "The link is in the clipboard." if shared.copied else shared.link, timeout=4000 if shared.copied else 0
        )
