"""A file that waits: what it holds, how it is read, and how it becomes a dataset."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.errors import BadRowsError, InlayError, JobCancelledError, UnauthorizedError, UploadConsumedError
from inlay.server import models
from inlay.web.asking import confirm
from inlay.web.bad_cells import bad_cells_table
from inlay.web.column_types import ColumnTypes
from inlay.web.following import follow
from inlay.web.grid import cells, grid_options
from inlay.web.reading import ReadingForm
from inlay.web.shell import guarded, heading, page, style_with
from inlay.web.uploader import name_of
from inlay.web.visitor import Visitor
from inlay.web.wording import ago, count, size
from inlay.workspace import NewDataset, Source

if TYPE_CHECKING:
    from inlay.catalog import Upload
    from inlay.pipeline import Preview
    from inlay.pipeline.previewing import PreviewReject
    from inlay.pipeline.rejects import BadCell
    from inlay.workspace import Workspace

__all__ = ["frequent_values", "grid_rows", "label_of"]

_ENDINGS = frozenset({".csv", ".tsv", ".txt", ".json", ".ndjson", ".jsonl", ".parquet", ".gz", ".zst"})
_LONGEST_CELL = 500
_ROWS = 50
_FEW_ROWS = 12
_OFFERED, _LONGEST_OFFERED = 3, 20
_WHOLE_ROW = "0"  # its first cell says what is wrong with it
_ON_ERROR = {
    "fail": "Create nothing, and tell me which",
    "quarantine": "Set them aside with their reasons, and load the rest",
}
# Code for the browser; the last element of a row says by column what is wrong with it.
_IS_BAD = "p => p.data.at(-1)[p.colDef.field] !== undefined"
_WHY = "p => p.data.at(-1)[p.colDef.field] ?? (String(p.value ?? '').length > 30 ? p.value : null)"
_IS_BAD_ROW = "p => Object.keys(p.data.at(-1)).length > 0"


@page("/uploads/{upload_id}", "New dataset")
async def show(visitor: Visitor, upload_id: str, name: str = "") -> None:
    style_with("home.css")
    style_with("preview.css")
    upload = await visitor.read(lambda w: w.upload(upload_id))
    if upload.status != "pending":
        raise UploadConsumedError("This file has become a dataset already.", hint="Upload it again to use it again.")
    await _PreviewPage(visitor, upload, name or name_of(upload.content_type) or upload_id).build()


class _PreviewPage:
    def __init__(self, visitor: Visitor, upload: Upload, name: str) -> None:
        self._visitor, self._upload, self._name = visitor, upload, name
        self._found: Preview | None = None
        self._create_button: ui.button | None = None  # for who may write
        self._turn = 0  # of many looks only the last one counts

    async def build(self) -> None:
        may_write = await self._visitor.may("write")
        with ui.row().classes("w-full items-start no-wrap"):
            with ui.column().classes("gap-1 grow"):
                heading(self._name, f"{size(self._upload.size_bytes)}, uploaded {ago(self._upload.created_at)}")
            if may_write:
                ui.button("Delete", icon="delete", on_click=guarded(self._forget)).props("flat no-caps")
        with html.div().classes("inlay-sides"):
            with html.div().classes("inlay-side"):
                self._build_view()
            with _section("New dataset").classes("inlay-create"):
                if may_write:
                    await self._build_creation()
                else:
                    ui.label("Your key may read, but not write: it cannot create a dataset.").classes("inlay-note")
        ui.timer(0, guarded(self._look), once=True)

    def _build_view(self) -> None:
        with _section("How it is read"):
            self._reading = ReadingForm("csv", self._look_anew)
            self._warnings = ui.column().classes("w-full gap-1")
        with ui.row().classes("items-center no-wrap").props("role=status") as self._busy:
            ui.spinner(size="1.2em").props("aria-hidden=true")
            self._doing = ui.label()
        self._problem = ui.column().classes("w-full")
        self._results = html.div().classes("inlay-side")
        with self._results:
            with _section("Columns"):
                self._columns = ColumnTypes(self._look)
            with _section("First rows"):
                self._rows = ui.column().classes("w-full")
        self._results.set_visibility(False)

    # ---------------------------------------------------------------------------------------------------------- looking
    async def _look_anew(self) -> None:
        """Look at a file that is read in another way: types stay chosen for the columns that are still there."""
        if self._columns.chosen:
            found = await self._preview({})
            if found is None:
                return
            self._columns.forget_others([column.name for column in found.columns])
        await self._look()

    async def _look(self) -> None:
        found = await self._preview(self._columns.chosen)
        if found is not None:
            self._show(found)

    async def _preview(self, types: Mapping[str, str]) -> Preview | None:
        """What a look with these types finds; None if it failed, or if another look has begun meanwhile."""
        self._turn += 1
        self._see(None)
        turn, asked = self._turn, (self._reading.stated_format, dict(self._reading.changes), list(types.items()))

        def look(workspace: Workspace) -> Preview:
            return workspace.preview(self._upload.id, *asked)

        self._busy.set_visibility(True)
        is_ready = await self._visitor.read(lambda w: w.spark.state()) == "ready"
        self._doing.text = "Looking at the first rows" if is_ready else "Waiting for Spark, which is starting"
        try:
            found = await self._visitor.read(look, "queries")
        except UnauthorizedError:
            raise
        except InlayError as error:
            if turn == self._turn:
                self._warnings.clear()
                self._results.classes("inlay-stale")
                self._tell(error)
            return None
        finally:
            self._busy.set_visibility(turn != self._turn)
        return found if turn == self._turn else None

    def _see(self, found: Preview | None) -> None:
        """What is seen can be made; while nothing is, nothing can."""
        self._found = found
        if self._create_button is not None:
            self._create_button.set_enabled(found is not None)

    def _show(self, found: Preview) -> None:
        self._see(found)
        shown = models.Preview.of(found)
        self._problem.clear()
        self._results.set_visibility(True)
        self._results.classes(remove="inlay-stale")
        self._reading.show(found.format, shown.options)
        self._warnings.clear()
        with self._warnings:
            for warning in shown.warnings:
                _warning(warning)
        self._columns.show(shown)
        self._rows.clear()
        with self._rows:
            self._show_misfits(found)
            _show_grid(found, shown)

    def _show_misfits(self, found: Preview) -> None:
        if not found.rows_rejected:
            return
        seen = f"{found.rows_rejected:,} of the first {count(found.rows_seen, 'row')}"
        ui.label(f"{seen} would not fit.").classes("inlay-bad-note")
        if found.format == "csv":
            for value in frequent_values(found.bad_cells):
                take = guarded(functools.partial(self._reading.add_null_value, value))
                ui.button(f"Take {value} as empty", on_click=take).props('outline no-caps padding="2px 10px"')
        with html.details().classes("w-full"):
            are_all = sum(column.bad_count for column in found.columns) <= len(found.bad_cells)
            html.summary("Which, and why" if are_all else f"The first {len(found.bad_cells)} of them, and why")
            bad_cells_table([cell._asdict() for cell in found.bad_cells])

    def _tell(self, error: InlayError) -> None:
        """What went wrong, in the place where it can be put right."""
        self._problem.clear()
        with self._problem, ui.card().classes("inlay-error").props("role=alert"):
            ui.label(error.message).classes("text-base font-medium")
            if isinstance(error, BadRowsError):
                ui.label("Choose other types, name cells that mean nothing, or correct the file. Or:")
                again = guarded(self._create_the_rest)
                ui.button("Set them aside, and create it with the rest", on_click=again).props("no-caps outline")
                bad_cells_table(error.errors)
            elif error.hint:
                ui.label(error.hint)

    # --------------------------------------------------------------------------------------------------------- creating
    async def _build_creation(self) -> None:
        self._label = ui.input("Label", value=label_of(self._name), on_change=guarded(self._suggest))
        self._label.props("dense outlined debounce=300").classes("inlay-wide")
        self._table_name = ui.input("Table name in SQL").props("dense outlined stack-label").classes("inlay-wide")
        await self._suggest()
        ui.label("Rows that do not fit").classes("inlay-note")
        self._on_error = ui.radio(_ON_ERROR, value="fail").props('dense aria-label="Rows that do not fit"')
        self._create_button = ui.button("Create dataset", on_click=guarded(self._create)).props("no-caps unelevated")
        self._create_button.set_enabled(self._found is not None)
        self._progress = ui.column().classes("w-full")

    async def _suggest(self) -> None:
        label = self._label.value or ""
        self._table_name.props["placeholder"] = await self._visitor.read(lambda w: w.suggest_table_name(label))

    async def _create(self) -> None:
        found = self._found
        if found is None or self._create_button is None:
            return
        self._create_button.disable()
        with self._progress:  # which stays, unlike a button that stands beside what went wrong
            try:
                await self._make(self._request(found))
            except JobCancelledError:
                ui.notify("Cancelled. Nothing was created.")
            except UnauthorizedError:
                raise
            except InlayError as error:
                self._tell(error)
                self._problem.run_method("scrollIntoView")
            finally:
                self._create_button.set_enabled(self._found is not None)

    async def _make(self, request: NewDataset) -> None:
        self._problem.clear()
        ticket = await self._visitor.write(lambda w: w.create_dataset(request))
        job = await follow(self._visitor, ticket.job)
        ui.navigate.to(f"/datasets/{job.dataset_id}")

    async def _create_the_rest(self) -> None:
        self._on_error.value = "quarantine"
        await self._create()

    def _request(self, seen: Preview) -> NewDataset:
        """What was seen is what is made: also what was found out is said."""
        return NewDataset(
            label=self._label.value or "",
            source=Source(upload_id=self._upload.id, format=seen.format, options=seen.options.to_dict()),
            table_name=(self._table_name.value or "").strip() or None,
            columns=list(self._columns.chosen.items()),
            on_error=self._on_error.value,
        )

    async def _forget(self) -> None:
        if await confirm(f"Delete the file {self._name}?", "It was uploaded, and is gone then.", "Delete"):
            await self._visitor.write(lambda w: w.delete_upload(self._upload.id))
            ui.navigate.to("/")


# --------------------------------------------------------------------------------------------------------------- pieces
def label_of(name: str) -> str:
    """A label for what was in a file: its name without endings, and with blanks for what stands in their place."""
    path = PurePath(name.replace("\\", "/")).name
    while PurePath(path).suffix.lower() in _ENDINGS and PurePath(path).stem:
        path = PurePath(path).stem
    text = re.sub(r"[_\s]+", " ", path).strip()
    return text[:1].upper() + text[1:]


def _section(title: str) -> ui.card:
    card = ui.card().classes("inlay-card inlay-section")
    with card:
        html.h2(title).classes("inlay-heading")
    return card


def _warning(text: str) -> None:
    with ui.row().classes("inlay-warning no-wrap"):
        ui.icon("warning").props("aria-hidden=true")
        ui.label(text).classes("inlay-name")


def _show_grid(found: Preview, shown: models.Preview) -> None:
    rows = grid_rows(found, shown)
    options = grid_options([(column.name, column.type) for column in shown.columns], rows)
    options["defaultColDef"]["cellClassRules"][":inlay-bad"] = _IS_BAD
    options["defaultColDef"] |= {":tooltipValueGetter": _WHY, "sortable": False}
    options["rowClassRules"] = {":inlay-bad-row": _IS_BAD_ROW}
    options["domLayout"] = "autoHeight" if len(rows) <= _FEW_ROWS else "normal"
    ui.aggrid(options, auto_size_columns=False).classes("inlay-few" if len(rows) <= _FEW_ROWS else "inlay-grid")


def grid_rows(found: Preview, shown: models.Preview) -> list[list[Any]]:
    """The first rows, rejected ones in their places. The last element of a row says what is wrong in which cell."""
    places = {column.name: str(at) for at, column in enumerate(shown.columns)}
    rejected = {reject.row: _rejected_row(reject, places) for reject in found.rejects}
    loaded = iter([*map(_shortened, row), {}] for row in cells(shown.rows))
    rows: list[list[Any]] = []
    while len(rows) < _ROWS and (row := rejected.get(len(rows)) or next(loaded, None)):
        rows.append(row)
    return rows


def _rejected_row(reject: PreviewReject, places: Mapping[str, str]) -> list[Any]:
    written = [*map(_shortened, reject.cells), *[None] * (len(places) - len(reject.cells))]
    return [*written, {places.get(str(cell.column), _WHOLE_ROW): cell.reason for cell in reject.bad_cells}]


def frequent_values(bad: Iterable[BadCell]) -> list[str]:
    """Values that are wrong again and again: they may stand for nothing."""
    seen = Counter(cell.value for cell in bad if cell.value and cell.column is not None)
    return [value for value, times in seen.most_common(_OFFERED) if times > 1 and len(value) <= _LONGEST_OFFERED]


def _shortened(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > _LONGEST_CELL
    return f"{value[:_LONGEST_CELL]}…" if is_long else value
