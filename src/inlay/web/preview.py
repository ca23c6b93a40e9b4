"""The preview of an upload: its format, columns and first rows, and the form that creates a dataset from it."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from nicegui import events, html, ui

from inlay.errors import BadRowsError, InlayError, JobCancelledError, UnauthorizedError, UploadConsumedError
from inlay.server import models
from inlay.type_grammar import parse_type
from inlay.web.formatting import ago, count, size
from inlay.web.progress import follow_job
from inlay.web.shell import Visitor, confirm, heading, page, report_errors, use_stylesheet
from inlay.web.upload_form import FormatForm, file_name
from inlay.web.widgets import bad_cells_table, cells, grid_options, shorten
from inlay.workspace import NewDataset, Source

if TYPE_CHECKING:
    from inlay.catalog import Upload
    from inlay.pipeline import Preview
    from inlay.pipeline.previews import PreviewReject
    from inlay.server.models import PreviewColumn
    from inlay.text.reader import BadCell
    from inlay.workspace import Workspace

__all__ = ["frequent_values", "grid_rows", "suggest_label"]

_SUFFIXES = frozenset({".csv", ".tsv", ".txt", ".json", ".ndjson", ".jsonl", ".parquet", ".gz", ".zst"})
_COMMON_TYPES = (
    "text", "bigint", "integer", "double", "decimal(18,2)", "boolean", "date", "timestamp",
    "timestamp with time zone", "time",
)  # fmt: skip
_MAX_COLUMNS = 50  # The page shows more columns on request.
_MAX_SAMPLE, _MAX_CELL = 40, 500  # characters
_MAX_ROWS = 50
_MAX_ROWS_WITHOUT_SCROLLING = 12
_MAX_NULL_SUGGESTIONS, _MAX_NULL_LENGTH = 3, 20
_FIRST_CELL = "0"  # The first cell of an invalid row shows the reason.
_ON_ERROR = {"fail": "Stop and list them", "quarantine": "Reject them and load the rest"}
# Code for the browser. The last element of a row maps column indexes to the reasons why their cells are invalid.
_IS_BAD = "p => p.data.at(-1)[p.colDef.field] !== undefined"
_TOOLTIP = "p => p.data.at(-1)[p.colDef.field] ?? (String(p.value ?? '').length > 30 ? p.value : null)"
_IS_BAD_ROW = "p => Object.keys(p.data.at(-1)).length > 0"


# -------------------------------------------------------------------------------------------------------------- columns
class _ColumnTypes:
    """The table of columns. `chosen` holds the types that the visitor set; inlay detects all others."""

    def __init__(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self.chosen: dict[str, str] = {}
        self._on_change = on_change
        self._rows: dict[str, _ColumnRow] = {}
        self._limit = _MAX_COLUMNS
        self._preview: models.Preview | None = None
        self._box = ui.column().classes("w-full")

    def keep(self, names: Sequence[str]) -> None:
        """Drop the chosen types of all columns except `names`."""
        self.chosen = {name: type_ for name, type_ in self.chosen.items() if name in names}

    def show(self, preview: models.Preview) -> None:
        """Show the columns of a preview. Existing rows are updated in place, so that the visitor can keep typing."""
        self._preview = preview
        columns = preview.columns[: self._limit]
        if [column.name for column in columns] != list(self._rows):
            self._build(preview, columns)
        for column in columns:
            self._rows[column.name].show(column, column.name in self.chosen)

    def _build(self, preview: models.Preview, columns: Sequence[PreviewColumn]) -> None:
        self._box.clear()
        with self._box:
            with html.table().classes("inlay-table inlay-columns"):
                with html.thead(), html.tr():
                    for name in ("Column", "Type", "NULL", "Examples"):
                        html.th(name).props("scope=col")
                with html.tbody():
                    choose = None if preview.format == "parquet" else self._choose
                    self._rows = {column.name: _ColumnRow(column.name, choose) for column in columns}
            if len(preview.columns) > len(columns):
                more = f"Show {count(len(preview.columns) - len(columns), 'more column')}"
                ui.button(more, on_click=self._show_all).props("flat no-caps")

    def _show_all(self) -> None:
        if self._preview is not None:
            self._limit = len(self._preview.columns)
            self.show(self._preview)

    async def _choose(self, name: str, type_: str | None) -> None:
        if type_ is None:
            self.chosen.pop(name, None)
        else:
            self.chosen[name] = type_
        await self._on_change()


class _ColumnRow:
    """One column of the upload. Without `choose`, its type is fixed."""

    def __init__(self, name: str, choose: Callable[[str, str | None], Awaitable[None]] | None) -> None:
        self._name, self._choose = name, choose
        self._type = self._typed = ""
        with html.tr():
            with html.td().classes("inlay-what"):
                ui.label(name).classes("inlay-name inlay-column")
                self._bad = ui.label().classes("inlay-badge")
            with html.td():
                self._select = self._type_select() if choose else None
                self._fixed_type = ui.label().classes("inlay-mono")
                self._fixed_type.set_visibility(choose is None)
            with html.td().classes("inlay-fact"):
                self._null_share = ui.label()
            self._samples = html.td().classes("inlay-samples inlay-mono")

    def _type_select(self) -> ui.select:
        with ui.row().classes("items-center no-wrap gap-0"):
            select = ui.select(
                list(_COMMON_TYPES),
                on_change=report_errors(self._changed),
                new_value_mode="add-unique",
                validation=_problem_with,
            )
            select.props("dense outlined options-dense hide-bottom-space").classes("inlay-type")
            select.props["aria-label"] = f"Type of {self._name}"
            select.on("input-value", self._type_in).on("blur", self._apply_typed)
            self._reset = ui.button(icon="undo", on_click=report_errors(functools.partial(self._pick, None)))
            self._reset.props("flat round dense size=sm")
            self._reset.props["aria-label"] = f"Reset {self._name} to the detected type"
            self._reset.props["title"] = "Reset to the detected type"
        return select

    def show(self, column: PreviewColumn, is_chosen: bool) -> None:
        self._type = column.type
        self._fixed_type.text = column.type
        self._null_share.text = f"{column.null_share:.{0 if column.null_share in (0, 1) else 1}%}"
        self._bad.text = count(column.bad_count, "invalid value")
        self._bad.set_visibility(column.bad_count > 0)
        self._samples.clear()
        with self._samples:
            for sample in cells([column.samples])[0]:
                html.span(shorten(str(sample), _MAX_SAMPLE)).classes("inlay-sample")
        if self._select is not None:
            self._reset.set_visibility(is_chosen)
            _select_type(self._select, column.type)

    def _type_in(self, event: events.GenericEventArguments) -> None:
        self._typed = str(event.args or "")

    def _apply_typed(self) -> None:
        """Apply a typed type when the field loses focus, even without Enter."""
        if self._select is not None and self._typed not in ("", self._select.value):
            _select_type(self._select, self._typed)

    async def _changed(self, event: events.ValueChangeEventArguments[str | None]) -> None:
        self._typed = ""
        event.sender.run_method("hidePopup")
        if event.value and event.value != self._type and _problem_with(event.value) is None:
            self._type = event.value
            await self._pick(event.value)

    async def _pick(self, type_: str | None) -> None:
        if self._choose is not None:
            await self._choose(self._name, type_)


def _select_type(select: ui.select, type_: str) -> None:
    if type_ not in select.options:
        select.set_options([*select.options, type_])
    select.set_value(type_)


def _problem_with(type_: str | None) -> str | None:
    try:
        parse_type(type_ or "text")
    except InlayError as error:
        return f"{error.message} {error.hint or ''}".strip()
    return None


# ----------------------------------------------------------------------------------------------------------------- page
@page("/uploads/{upload_id}", "New dataset")
async def show(visitor: Visitor, upload_id: str, name: str = "") -> None:
    use_stylesheet("home.css")
    use_stylesheet("preview.css")
    upload = await visitor.read(lambda w: w.upload(upload_id))
    if upload.status != "pending":
        raise UploadConsumedError(
            "This file is already loaded into a dataset.", hint="Upload the file again to create another dataset."
        )
    await _PreviewPage(visitor, upload, name or file_name(upload.content_type) or upload_id).build()


class _PreviewPage:
    def __init__(self, visitor: Visitor, upload: Upload, name: str) -> None:
        self._visitor, self._upload, self._name = visitor, upload, name
        self._preview: Preview | None = None
        self._create_button: ui.button | None = None  # None if the visitor may not write.
        self._latest = 0  # The number of the latest preview request, which supersedes all earlier ones.

    async def build(self) -> None:
        may_write = await self._visitor.may("write")
        with ui.row().classes("w-full items-start no-wrap"):
            with ui.column().classes("gap-1 grow"):
                heading(self._name, f"{size(self._upload.size_bytes)}, uploaded {ago(self._upload.created_at)}")
            if may_write:
                ui.button("Delete", icon="delete", on_click=report_errors(self._delete)).props("flat no-caps")
        with html.div().classes("inlay-sides"):
            with html.div().classes("inlay-side"):
                self._build_preview()
            with _section("New dataset").classes("inlay-create"):
                if may_write:
                    await self._build_create_form()
                else:
                    ui.label(
                        "Your API key is read-only. To create a dataset, sign in with a key that has the write scope."
                    ).classes("inlay-note")
        ui.timer(0, report_errors(self._refresh), once=True)

    def _build_preview(self) -> None:
        with _section("File format"):
            self._format = FormatForm("csv", self._change_format)
            self._warnings = ui.column().classes("w-full gap-1")
        with ui.row().classes("items-center no-wrap").props("role=status") as self._busy:
            ui.spinner(size="1.2em").props("aria-hidden=true")
            self._progress_label = ui.label()
        self._problem = ui.column().classes("w-full")
        self._results = html.div().classes("inlay-side")
        with self._results:
            with _section("Columns"):
                self._columns = _ColumnTypes(self._refresh)
            with _section("First rows"):
                self._rows = ui.column().classes("w-full")
        self._results.set_visibility(False)

    # --------------------------------------------------------------------------------------------------------- preview
    async def _change_format(self) -> None:
        """Read the file with another format or other options. Columns that still exist keep their chosen types."""
        if self._columns.chosen:
            preview = await self._read({})
            if preview is None:
                return
            self._columns.keep([column.name for column in preview.columns])
        await self._refresh()

    async def _refresh(self) -> None:
        preview = await self._read(self._columns.chosen)
        if preview is not None:
            self._show(preview)

    async def _read(self, types: Mapping[str, str]) -> Preview | None:
        """Read a preview with these types. Returns None if that fails or a later request supersedes this one."""
        self._latest += 1
        self._set_preview(None)
        number = self._latest
        arguments = (self._format.chosen_format, dict(self._format.changes), list(types.items()))

        def read(workspace: Workspace) -> Preview:
            return workspace.preview(self._upload.id, *arguments)

        self._busy.set_visibility(True)
        is_ready = await self._visitor.read(lambda w: w.spark.state()) == "ready"
        self._progress_label.text = "Reading the first rows" if is_ready else "Waiting for Spark to start"
        try:
            preview = await self._visitor.read(read, "queries")
        except UnauthorizedError:
            raise
        except InlayError as error:
            if number == self._latest:
                self._warnings.clear()
                self._results.classes("inlay-stale")
                self._show_problem(error)
            return None
        finally:
            self._busy.set_visibility(number != self._latest)
        return preview if number == self._latest else None

    def _set_preview(self, preview: Preview | None) -> None:
        """Set the preview, and enable the button that creates a dataset exactly as previewed."""
        self._preview = preview
        if self._create_button is not None:
            self._create_button.set_enabled(preview is not None)

    def _show(self, preview: Preview) -> None:
        self._set_preview(preview)
        model = models.Preview.of(preview)
        self._problem.clear()
        self._results.set_visibility(True)
        self._results.classes(remove="inlay-stale")
        self._format.show(preview.format, model.options)
        self._warnings.clear()
        with self._warnings:
            for warning in model.warnings:
                _warning(warning)
        self._columns.show(model)
        self._rows.clear()
        with self._rows:
            self._show_invalid_rows(preview)
            _show_grid(preview, model)

    def _show_invalid_rows(self, preview: Preview) -> None:
        if not preview.rows_rejected:
            return
        rows = count(preview.rows_seen, "row")
        ui.label(f"Invalid rows: {preview.rows_rejected:,} of the first {rows}.").classes("inlay-bad-note")
        if preview.format == "csv":
            for value in frequent_values(preview.bad_cells):
                add = report_errors(functools.partial(self._format.add_null_value, value))
                ui.button(f"Read {value} as NULL", on_click=add).props('outline no-caps padding="2px 10px"')
        with html.details().classes("w-full"):
            number = len(preview.bad_cells)
            has_all = sum(column.bad_count for column in preview.columns) <= number
            html.summary("Show invalid values" if has_all else f"Show the first {count(number, 'invalid value')}")
            bad_cells_table([cell._asdict() for cell in preview.bad_cells])

    def _show_problem(self, error: InlayError) -> None:
        self._problem.clear()
        with self._problem, ui.card().classes("inlay-error").props("role=alert"):
            ui.label(error.message).classes("text-base font-medium")
            if isinstance(error, BadRowsError):
                ui.label("Change the column types, add values to read as NULL, or fix the file. Or reject these rows.")
                reject = report_errors(self._create_without_invalid_rows)
                ui.button("Reject invalid rows and create dataset", on_click=reject).props("no-caps outline")
                bad_cells_table(error.errors)
            elif error.hint:
                ui.label(error.hint)

    # ----------------------------------------------------------------------------------------------------- new dataset
    async def _build_create_form(self) -> None:
        self._label = ui.input("Label", value=suggest_label(self._name), on_change=report_errors(self._suggest_name))
        self._label.props("dense outlined debounce=300").classes("inlay-wide")
        self._table_name = ui.input("Table name").props("dense outlined stack-label").classes("inlay-wide")
        await self._suggest_name()
        ui.label("Invalid rows").classes("inlay-note")
        self._on_error = ui.radio(_ON_ERROR, value="fail").props('dense aria-label="Invalid rows"')
        self._create_button = ui.button("Create dataset", on_click=report_errors(self._create))
        self._create_button.props("no-caps unelevated").set_enabled(self._preview is not None)
        self._progress = ui.column().classes("w-full")

    async def _suggest_name(self) -> None:
        label = self._label.value or ""
        self._table_name.props["placeholder"] = await self._visitor.read(lambda w: w.suggest_table_name(label))

    async def _create(self) -> None:
        if self._preview is None or self._create_button is None:
            return
        request = self._request(self._preview)
        self._create_button.disable()
        with self._progress:  # This element outlives the button that an error message offers.
            try:
                self._problem.clear()
                submitted = await self._visitor.write(lambda w: w.create_dataset(request))
                job = await follow_job(self._visitor, submitted.job)
                ui.navigate.to(f"/datasets/{job.dataset_id}")
            except JobCancelledError:
                ui.notify("Cancelled. No dataset was created.")
            except UnauthorizedError:
                raise
            except InlayError as error:
                self._show_problem(error)
                self._problem.run_method("scrollIntoView")
            finally:
                self._create_button.set_enabled(self._preview is not None)

    async def _create_without_invalid_rows(self) -> None:
        self._on_error.value = "quarantine"
        await self._create()

    def _request(self, preview: Preview) -> NewDataset:
        """Return a request with the detected format and options, so that the dataset matches the preview."""
        return NewDataset(
            label=self._label.value or "",
            source=Source(upload_id=self._upload.id, format=preview.format, options=preview.options.to_dict()),
            table_name=(self._table_name.value or "").strip() or None,
            columns=list(self._columns.chosen.items()),
            on_error=self._on_error.value,
        )

    async def _delete(self) -> None:
        if await confirm(f"Delete {self._name}?", "This deletes the uploaded file. You can't undo it.", "Delete"):
            await self._visitor.write(lambda w: w.delete_upload(self._upload.id))
            ui.navigate.to("/")


def suggest_label(name: str) -> str:
    """Derive a label from a file name: drop the suffixes, and replace underscores with spaces."""
    path = PurePath(name.replace("\\", "/")).name
    while PurePath(path).suffix.lower() in _SUFFIXES and PurePath(path).stem:
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


# ----------------------------------------------------------------------------------------------------------- first rows
def _show_grid(preview: Preview, model: models.Preview) -> None:
    rows = grid_rows(preview, model)
    scrolls = len(rows) > _MAX_ROWS_WITHOUT_SCROLLING
    options = grid_options([(column.name, column.type) for column in model.columns], rows)
    options["defaultColDef"]["cellClassRules"][":inlay-bad"] = _IS_BAD
    options["defaultColDef"] |= {":tooltipValueGetter": _TOOLTIP, "sortable": False}
    options["rowClassRules"] = {":inlay-bad-row": _IS_BAD_ROW}
    options["domLayout"] = "normal" if scrolls else "autoHeight"
    ui.aggrid(options, auto_size_columns=False).classes("inlay-grid" if scrolls else "inlay-few")


def grid_rows(preview: Preview, model: models.Preview) -> list[list[Any]]:
    """Return the first rows in file order, including rejected ones.

    The last element of each row maps column indexes to the reasons why their cells are invalid.
    """
    indexes = {column.name: str(at) for at, column in enumerate(model.columns)}
    rejected = {reject.row: _rejected_row(reject, indexes) for reject in preview.rejects}
    loaded = iter([*map(_shorten_cell, row), {}] for row in cells(model.rows))
    rows: list[list[Any]] = []
    while len(rows) < _MAX_ROWS and (row := rejected.get(len(rows)) or next(loaded, None)):
        rows.append(row)
    return rows


def _rejected_row(reject: PreviewReject, indexes: Mapping[str, str]) -> list[Any]:
    padded = [*map(_shorten_cell, reject.cells), *[None] * (len(indexes) - len(reject.cells))]
    return [*padded, {indexes.get(str(cell.column), _FIRST_CELL): cell.reason for cell in reject.bad_cells}]


def _shorten_cell(value: Any) -> Any:
    return shorten(value, _MAX_CELL) if isinstance(value, str) else value


def frequent_values(bad: Iterable[BadCell]) -> list[str]:
    """Return short invalid values that occur more than once. They may stand for NULL."""
    counts = Counter(cell.value for cell in bad if cell.value and cell.column is not None)
    frequent = counts.most_common(_MAX_NULL_SUGGESTIONS)
    return [value for value, times in frequent if times > 1 and len(value) <= _MAX_NULL_LENGTH]
