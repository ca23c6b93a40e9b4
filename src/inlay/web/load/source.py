"""The source of a load: a file, a pending upload, or a query, with its first rows."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.server import models
from inlay.web.formatting import count, size
from inlay.web.load.mapping import MappingForm
from inlay.web.load.plan import show_problem, show_warnings
from inlay.web.shell import Visitor, run_inside
from inlay.web.upload_form import FormatForm, Uploaded, Uploader, file_name, upload_note
from inlay.web.widgets import bad_cells_table, rows_table

if TYPE_CHECKING:
    from inlay.catalog import Dataset
    from inlay.pipeline import Preview
    from inlay.web.load.strategy import LoadDraft
    from inlay.workspace import Workspace

__all__ = ["SourceForm"]

T = TypeVar("T")
_MAX_UPLOADS = 8
_MAX_ROWS = 6
_MAX_BAD_CELLS = 5


class SourceForm:
    """A form that edits the source of a draft and calls `on_change` when the source changes."""

    def __init__(
        self, visitor: Visitor, dataset: Dataset, draft: LoadDraft, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self._visitor, self._dataset, self._draft, self._on_change = visitor, dataset, draft, on_change
        self._box = html.div().classes("inlay-part")
        self._format: FormatForm | None = None
        self._latest = 0  # The number of the latest read, which supersedes all earlier ones.

    # ---------------------------------------------------------------------------------------------------------- choices
    async def show_choices(self) -> None:
        """Show a drop zone, the pending uploads, and a field for a query."""
        uploads = await self._visitor.read(lambda w: models.Uploads.of(w.uploads("pending", _MAX_UPLOADS), w))
        self._draft.forget_source()
        self._latest += 1
        self._box.clear()
        with self._box:
            Uploader(self._uploaded, multiple=False)
            if uploads.uploads:
                html.h3("Or use a pending upload").classes("inlay-subtitle")
                with html.ul().classes("inlay-uploads"):
                    for upload in uploads.uploads:
                        self._show_upload(upload)
            with ui.expansion("Or use a query").classes("inlay-expansion"):
                self._query_field()
        await self._on_change()

    def _show_upload(self, upload: models.Upload) -> None:
        name = file_name(upload.content_type) or upload.id
        with html.li():
            html.span(name).classes("inlay-file-name")
            html.span(upload_note(upload)).classes("inlay-note")
            button = ui.button("Use", on_click=run_inside(self._box, lambda: self.use_upload(upload.id)))
            button.props("flat dense no-caps").props["aria-label"] = f"Use {name}"

    def _query_field(self) -> None:
        field = ui.textarea("SQL query", placeholder=f"SELECT * FROM datasets.{self._dataset.table_name}")  # noqa: S608
        field.classes("w-full inlay-mono").props("outlined autogrow")
        use = run_inside(self._box, lambda: self._use_query(field.value or "", status))
        ui.button("Use this query", on_click=use).props("outline no-caps")
        status = html.div()

    async def _uploaded(self, file: Uploaded) -> None:
        await run_inside(self._box, lambda: self.use_upload(file.id))()

    # ------------------------------------------------------------------------------------------------------------- file
    async def use_upload(self, upload_id: str) -> None:
        upload = await self._visitor.read(lambda w: w.upload(upload_id))
        self._draft.forget_source()
        self._draft.upload_id = upload_id
        self._format = None
        self._box.clear()
        with self._box:
            self._show_chosen("description", file_name(upload.content_type) or upload.id, size(upload.size_bytes))
            self._fields = html.div()
            self._rows = html.div().classes("inlay-part")
        await self._preview()

    def _show_chosen(self, icon: str, name: str, note: str) -> None:
        with html.div().classes("inlay-chosen"):
            ui.icon(icon).props("aria-hidden=true")
            html.span(name).classes("inlay-file-name")
            html.span(note).classes("inlay-note")
            ui.button("Change source", on_click=run_inside(self._box, self.show_choices)).props("flat dense no-caps")

    async def _preview(self) -> None:
        """Show the first rows, and fix the detected format so that the load reads the same rows."""
        upload_id, dataset_id = str(self._draft.upload_id), self._dataset.id
        format_, options = (None, {}) if self._format is None else (self._format.chosen_format, self._format.changes)
        self._draft.set_format(format_, options)
        await self._on_change()
        preview = await self._read(
            self._rows, lambda w: w.preview(upload_id, format_, self._draft.options, dataset_id=dataset_id)
        )
        if preview is None:
            self._show_format("csv", {})
            return
        model = models.Preview.of(preview)
        self._draft.set_format(model.format, model.options)
        self._show_format(model.format, model.options)
        self._rows.clear()
        with self._rows:
            show_warnings(model.warnings)
            _show_invalid_rows(preview)
            columns = [(column.name, column.type) for column in model.columns]
            rows_table("First rows", columns, model.rows[:_MAX_ROWS])
            self._map_columns(columns)
        await self._on_change()

    async def _read(self, box: ui.element, read: Callable[[Workspace], T]) -> T | None:
        """Read from the source. Returns None if a later read supersedes it, or if it fails, which `box` shows."""
        self._latest += 1
        number = self._latest
        _show_busy(box)
        try:
            found = await self._visitor.read(read, "queries")
        except UnauthorizedError:
            raise
        except InlayError as error:
            if number == self._latest:
                box.clear()
                with box:
                    show_problem(error)
            return None
        return found if number == self._latest else None

    def _show_format(self, format_: str, options: Mapping[str, Any]) -> None:
        if self._format is None:
            with self._fields:
                self._format = FormatForm(format_, self._preview)
        if options:
            self._format.show(format_, options)

    # ------------------------------------------------------------------------------------------------------------ query
    async def _use_query(self, sql: str, status: ui.element) -> None:
        found = await self._read(status, lambda w: _first_rows(w, sql))
        if found is None:
            return
        columns, rows = found
        self._draft.forget_source()
        self._draft.sql = sql
        self._draft.set_format(None, {})
        self._box.clear()
        with self._box:
            self._show_chosen("terminal", "Query", "")
            html.pre(sql).classes("inlay-mono inlay-query")
            rows_table("First rows", columns, rows)
            self._map_columns(columns)
        await self._on_change()

    def _map_columns(self, columns: Sequence[tuple[str, str]]) -> None:
        MappingForm(columns, self._dataset.schema.names, self._draft, self._on_change)
        if self._draft.upload_id is not None and self._draft.undecided:
            ui.link("Create a new dataset from the file instead", f"/uploads/{self._draft.upload_id}")


def _first_rows(workspace: Workspace, sql: str) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    with workspace.query(sql, limit=_MAX_ROWS) as result:
        content = json.loads(b"".join(result.to_json()))
    return [(column["name"], column["type"]) for column in content["columns"]], content["rows"]


def _show_busy(box: ui.element) -> None:
    box.clear()
    with box, html.div(role="status").classes("inlay-busy"):
        ui.spinner(size="1.2em").props("aria-hidden=true")
        html.span("Reading the first rows")


def _show_invalid_rows(preview: Preview) -> None:
    if preview.rows_rejected:
        with html.div().classes("inlay-warning"):
            html.p(f"Invalid rows: {preview.rows_rejected:,} of the first {count(preview.rows_seen, 'row')}.")
            bad_cells_table([bad._asdict() for bad in preview.bad_cells[:_MAX_BAD_CELLS]])
