"""Where the rows of a load come from: a file, an upload that waits, or a query; and how its first rows look."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.server import models
from inlay.web.bad_cells import bad_cells_table
from inlay.web.load.choices import Choices, fit_of
from inlay.web.load.problems import show_problem, show_warnings
from inlay.web.load.tables import rows_table
from inlay.web.reading import ReadingForm
from inlay.web.shell import guarded
from inlay.web.uploader import Uploaded, Uploader, name_of
from inlay.web.visitor import Visitor
from inlay.web.wording import ago, count, size

if TYPE_CHECKING:
    from inlay.catalog import Dataset, Upload
    from inlay.pipeline import Preview
    from inlay.workspace import Workspace

__all__ = ["SourcePanel"]

T = TypeVar("T")
_WAITING = 8
_ROWS = 6
_BAD_CELLS = 5
_NAMES = 10


class SourcePanel:
    """Fills in the source of the choices; `on_change` is called whenever it becomes another one."""

    def __init__(
        self, visitor: Visitor, dataset: Dataset, choices: Choices, on_change: Callable[[], Awaitable[None]]
    ) -> None:
        self._visitor, self._dataset, self._choices, self._on_change = visitor, dataset, choices, on_change
        self._box = html.div().classes("inlay-part")
        self._reading: ReadingForm | None = None
        self._turn = 0  # looks are overtaken by later ones

    # ----------------------------------------------------------------------------------------------------- choosing one
    async def offer(self) -> None:
        """All that rows can come from."""
        waiting = await self._visitor.read(lambda w: w.uploads("pending", _WAITING))
        self._choices.upload_id = self._choices.sql = None
        self._turn += 1
        self._box.clear()
        with self._box:
            Uploader(self._dropped, multiple=False, text="Drop a file with the rows here, or click to choose")
            if waiting.items:
                html.h3("Or a file that waits to be used").classes("inlay-subtitle")
                with html.ul().classes("inlay-waiting"):
                    for upload in waiting.items:
                        self._waiting(upload)
            with ui.expansion("Or rows that a query finds").classes("inlay-expansion"):
                self._query_field()
        await self._on_change()

    def _waiting(self, upload: Upload) -> None:
        name = name_of(upload.content_type) or upload.id
        with html.li():
            html.span(name).classes("inlay-file-name")
            html.span(f"{size(upload.size_bytes)}, {ago(upload.created_at)}").classes("inlay-note")
            button = ui.button("Use", on_click=self._acting(lambda: self.use_upload(upload.id)))
            button.props("flat dense no-caps").props["aria-label"] = f"Use {name}"

    def _query_field(self) -> None:
        field = ui.textarea("SELECT", placeholder=f"SELECT * FROM datasets.{self._dataset.table_name}")  # noqa: S608
        field.classes("w-full inlay-mono").props("outlined autogrow")
        use = self._acting(lambda: self._use_query(field.value or "", looked))
        ui.button("Use this query", on_click=use).props("outline no-caps")
        looked = html.div()

    async def _dropped(self, file: Uploaded) -> None:
        await self._acting(lambda: self.use_upload(file.id))()

    def _acting(self, act: Callable[[], Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        """A handler that outlives the element it belongs to."""

        async def run() -> None:
            with self._box:
                await guarded(act)()

        return run

    # ---------------------------------------------------------------------------------------------------------- a file
    async def use_upload(self, upload_id: str) -> None:
        upload = await self._visitor.read(lambda w: w.upload(upload_id))
        self._choices.upload_id, self._choices.sql = upload_id, None
        self._reading = None
        self._box.clear()
        with self._box:
            self._chosen("description", name_of(upload.content_type) or upload.id, size(upload.size_bytes))
            self._fields = html.div()
            self._shown = html.div().classes("inlay-part")
        await self._look()

    def _chosen(self, icon: str, name: str, note: str) -> None:
        with html.div().classes("inlay-chosen"):
            ui.icon(icon).props("aria-hidden=true")
            html.span(name).classes("inlay-file-name")
            html.span(note).classes("inlay-note")
            ui.button("Choose another", on_click=self._acting(self.offer)).props("flat dense no-caps")

    async def _look(self) -> None:
        """The first rows as the load would read them; how it reads them is settled then."""
        upload_id, dataset_id = str(self._choices.upload_id), self._dataset.id
        stated, options = self._stated
        self._choices.read_as(stated, options)
        await self._on_change()
        found = await self._seen(
            self._shown, lambda w: w.preview(upload_id, stated, self._choices.options, dataset_id=dataset_id)
        )
        if found is None:
            self._show_reading("csv", {})
            return
        told = models.Preview.of(found)
        self._choices.read_as(told.format, told.options)
        self._show_reading(told.format, told.options)
        self._shown.clear()
        with self._shown:
            self._show_fit([column.name for column in told.columns])
            show_warnings(told.warnings)
            _show_misfits(found)
            columns = [(column.name, column.type) for column in told.columns]
            rows_table("The first rows", columns, told.rows[:_ROWS])

    async def _seen(self, box: ui.element, look: Callable[[Workspace], T]) -> T | None:
        """What a look at the source finds. None: it failed, which the box says, or another one has begun."""
        self._turn += 1
        turn = self._turn
        _wait(box)
        try:
            found = await self._visitor.read(look, "queries")
        except UnauthorizedError:
            raise
        except InlayError as error:
            if turn == self._turn:
                box.clear()
                with box:
                    show_problem(error)
            return None
        return found if turn == self._turn else None

    @property
    def _stated(self) -> tuple[str | None, dict[str, Any]]:
        """How a person wants it to be read; the rest is found out."""
        return (None, {}) if self._reading is None else (self._reading.stated_format, self._reading.changes)

    def _show_reading(self, format_: str, options: Mapping[str, Any]) -> None:
        if self._reading is None:
            with self._fields:
                self._reading = ReadingForm(format_, self._look)
        if options:
            self._reading.show(format_, options)

    # --------------------------------------------------------------------------------------------------------- a query
    async def _use_query(self, sql: str, looked: ui.element) -> None:
        found = await self._seen(looked, lambda w: _first_rows(w, sql))
        if found is None:
            return
        columns, rows = found
        self._choices.sql, self._choices.upload_id = sql, None
        self._choices.read_as(None, {})
        self._box.clear()
        with self._box:
            self._chosen("terminal", "A query", "")
            html.pre(sql).classes("inlay-mono inlay-query")
            self._show_fit([name for name, _ in columns])
            rows_table("The first rows", columns, rows)
        await self._on_change()

    def _show_fit(self, names: Sequence[str]) -> None:
        """What the source lacks and what it has too much is known before any work."""
        fit = fit_of(names, self._dataset.schema.names)
        if not fit.missing and not fit.extra:
            return
        with html.div(role="alert").classes("inlay-warning"):
            if fit.missing:
                html.p(f"The source lacks {count(len(fit.missing), 'column')} of the dataset: {_listed(fit.missing)}.")
            if fit.extra:
                html.p(f"The dataset lacks {count(len(fit.extra), 'column')} of the source: {_listed(fit.extra)}.")
            html.p("A load has the columns of its dataset, neither more nor less.")
            if self._choices.upload_id is not None:
                ui.link("Make a new dataset of the file instead", f"/uploads/{self._choices.upload_id}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")


def _first_rows(workspace: Workspace, sql: str) -> tuple[list[tuple[str, str]], list[list[Any]]]:
    with workspace.query(sql, limit=_ROWS) as result:
        told = json.loads(b"".join(result.to_json()))
    return [(column["name"], column["type"]) for column in told["columns"]], told["rows"]


def _wait(box: ui.element) -> None:
    box.clear()
    with box, html.div(role="status").classes("inlay-waits"):
        ui.spinner(size="1.2em").props("aria-hidden=true")
        html.span("Reading the first rows")


def _show_misfits(found: Preview) -> None:
    """Rows that would not be loaded, of those that were looked at."""
    if found.rows_rejected:
        with html.div().classes("inlay-warning"):
            html.p(f"{found.rows_rejected:,} of the first {count(found.rows_seen, 'row')} would not fit.")
            bad_cells_table([bad._asdict() for bad in found.bad_cells[:_BAD_CELLS]])
