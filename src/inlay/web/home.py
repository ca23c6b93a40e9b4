"""All datasets, files that wait to become one, and a place to drop more."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.web import sample
from inlay.web.asking import confirm
from inlay.web.following import follow
from inlay.web.paging import pager
from inlay.web.shell import guarded, heading, page, style_with
from inlay.web.sparkline import sparkline
from inlay.web.uploader import Uploaded, Uploader, name_of
from inlay.web.visitor import Visitor
from inlay.web.wording import ago, count, size

if TYPE_CHECKING:
    from inlay.catalog import Dataset, Job, Page, Upload
    from inlay.workspace import Workspace

log = logging.getLogger("inlay.web")
_PAGE = 100
_WAITING = 5  # more files are shown when asked for
_LOOK_SECONDS = 3.0
_WHAT_IT_IS = (
    "inlay turns CSV, JSON and Parquet files into typed tables that you ask in SQL and keep current, row by row."
)
_PROMISES = (
    ("upload_file", "Drop a file", "Columns and types are found. You see what does not fit, and correct it."),
    ("terminal", "Ask in SQL", "Every dataset is a table, and so is each of its versions."),
    ("published_with_changes", "Load corrections", "By key: see beforehand what changes, and undo it afterwards."),
)


@page("/", "Datasets")
async def show(visitor: Visitor) -> None:
    style_with("home.css")
    await _Home(visitor).build()


@dataclass(frozen=True)
class _Seen:
    """What there is at one moment."""

    datasets: Page[Dataset]
    row_counts: Mapping[str, Sequence[int]]
    uploads: Page[Upload]


class _Home:
    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._search = ""
        self._offset = 0
        self._seen: _Seen | None = None

    async def build(self) -> None:
        self._may_write = await self._visitor.may("write")
        self._head = ui.column().classes("w-full gap-1")
        if self._may_write:
            Uploader(guarded(self._uploaded), text="Drop files anywhere on this page, or click to choose")
        self._waiting = ui.column().classes("w-full gap-1")
        self._progress = ui.column().classes("w-full")
        self._offer = ui.column().classes("w-full gap-4")
        with self._offer:
            self._offer_sample()
        self._finder = ui.row().classes("w-full items-center")
        with self._finder:
            self._box = ui.input(placeholder="Search by label or table name", on_change=guarded(self._find))
            self._box.props('type=search dense outlined clearable debounce=200 aria-label="Search"')
            self._box.classes("inlay-search")
        self._list = ui.column().classes("w-full gap-2")
        await self._look()
        ui.timer(_LOOK_SECONDS, guarded(self._watch), immediate=False)

    # ---------------------------------------------------------------------------------------------------- what there is
    async def _look(self) -> None:
        """Look again; only what is different is shown anew, so that nobody loses the place where they are."""
        asked = (self._search, self._offset)
        seen = await self._visitor.read(self._read)
        if seen == self._seen or asked != (self._search, self._offset):
            return
        before, self._seen = self._seen, seen
        if before is None or before.uploads != seen.uploads:
            self._show_waiting(seen.uploads)
        if before is None or (before.datasets, before.row_counts) != (seen.datasets, seen.row_counts):
            self._show_datasets(seen)

    async def _watch(self) -> None:
        """Others change things, too. What cannot be seen now may be seen the next time."""
        try:
            await self._look()
        except UnauthorizedError:
            raise
        except InlayError as error:
            log.info("the datasets cannot be seen: %s", error)

    def _read(self, workspace: Workspace) -> _Seen:
        datasets = workspace.datasets(_PAGE, self._offset, self._search)
        if datasets.count and not datasets.items:  # those on the last page are gone
            self._offset = (datasets.count - 1) // _PAGE * _PAGE
            datasets = workspace.datasets(_PAGE, self._offset, self._search)
        counts = workspace.row_counts([dataset.id for dataset in datasets.items])
        return _Seen(datasets, counts, workspace.uploads("pending", _PAGE))

    async def _find(self) -> None:
        self._search, self._offset = self._box.value or "", 0
        await self._look()

    async def _turn(self, offset: int) -> None:
        self._offset = offset
        await self._look()

    # --------------------------------------------------------------------------------------------------------- datasets
    def _show_datasets(self, seen: _Seen) -> None:
        is_empty = not seen.datasets.count and not self._search
        self._finder.set_visibility(not is_empty)
        self._show_head(is_empty=is_empty)
        self._offer.set_visibility(is_empty)
        self._list.clear()
        with self._list:
            if seen.datasets.items:
                _table(seen)
                found = seen.datasets
                pager(found.offset, len(found.items), found.count, _PAGE, self._turn)
            elif not is_empty:
                ui.label("No dataset has a name like that.").classes("inlay-note")

    # ---------------------------------------------------------------------------------------------------- first steps
    def _show_head(self, *, is_empty: bool) -> None:
        self._head.clear()
        with self._head:
            if is_empty:
                heading("Put a file in, get a table out")
                ui.label(_WHAT_IT_IS).classes("inlay-lead")
            else:
                heading("Datasets")

    def _offer_sample(self) -> None:
        if self._may_write:
            with ui.row().classes("w-full items-center justify-center gap-2"):
                ui.label("No file at hand?")
                button = ui.button("Try a sample of 500 orders", on_click=guarded(self._make_sample))
                button.props("no-caps unelevated")
        with html.ol().classes("inlay-promises"):
            for icon, what, how in _PROMISES:
                with html.li():
                    ui.icon(icon).props("aria-hidden=true")
                    html.strong(what)
                    ui.label(how).classes("inlay-note")

    async def _make_sample(self) -> None:
        self._offer.set_visibility(False)
        try:
            ticket = await self._visitor.write(lambda w: w.create_dataset(sample.request()))
            with self._progress:
                _lead_on(await follow(self._visitor, ticket.job))
        except InlayError:
            self._offer.set_visibility(True)
            raise
        await self._look()

    # ---------------------------------------------------------------------------------------------------- waiting files
    async def _uploaded(self, file: Uploaded) -> None:
        if file.is_alone:
            ui.navigate.to(f"/uploads/{file.id}")
        await self._look()

    def _show_waiting(self, found: Page[Upload]) -> None:
        self._waiting.clear()
        if not found.items:
            return
        with self._waiting:
            html.h2("Waiting files").classes("inlay-heading")
            ui.label("Uploaded, and not yet a dataset.").classes("inlay-note")
            self._waiting_files(found.items[:_WAITING])
            if found.count > _WAITING:
                with html.details().classes("w-full"):
                    html.summary(f"{found.count - _WAITING:,} more")
                    self._waiting_files(found.items[_WAITING:])

    def _waiting_files(self, uploads: Sequence[Upload]) -> None:
        with html.ul().classes("inlay-files"):
            for upload in uploads:
                self._waiting_file(upload)

    def _waiting_file(self, upload: Upload) -> None:
        name = name_of(upload.content_type) or upload.id
        with html.li():
            ui.icon("description").props("aria-hidden=true")
            with html.div().classes("inlay-file"):
                ui.link(name, f"/uploads/{upload.id}").classes("inlay-name")
                ui.label(f"{size(upload.size_bytes)}, {ago(upload.created_at)}").classes("inlay-note")
            if self._may_write:
                forget = guarded(functools.partial(self._forget, upload.id, name))
                button = ui.button(icon="delete", on_click=forget).props("flat round size=sm")
                button.props["aria-label"] = f"Delete the file {name}"

    async def _forget(self, upload_id: str, name: str) -> None:
        with self._waiting:
            if await confirm(f"Delete the file {name}?", "It was uploaded, and is gone then.", "Delete"):
                await self._visitor.write(lambda w: w.delete_upload(upload_id))
                await self._look()


def _lead_on(job: Job) -> None:
    """What to do with the sample now that it is there."""
    made = job.result or {}
    ask = urlencode({"q": sample.question(made["table_name"])})
    with ui.card().classes("inlay-card inlay-steps"):
        html.h2(f"{sample.LABEL}: {count(made['row_count'], 'row')} are in").classes("inlay-heading")
        with html.ol():
            with html.li():
                ui.link("Look at the rows", f"/datasets/{job.dataset_id}")
            with html.li():
                ui.link("Ask a question in SQL", f"/sql?{ask}")
            with html.li():
                ui.link("Load a correction", f"/datasets/{job.dataset_id}/load")
                ui.label("by order_id, and see beforehand what it changes:")
                save = ui.button(f"save {sample.CORRECTION_NAME}", icon="download").props("flat dense no-caps")
                save.on_click(lambda: ui.download.content(sample.correction(), sample.CORRECTION_NAME, "text/csv"))


# ------------------------------------------------------------------------------------------------------------ the table
def _table(seen: _Seen) -> None:
    with html.table().classes("inlay-table inlay-datasets"):
        with html.thead(), html.tr():
            for name in ("Dataset", "Rows", "Size", "Version", "Updated", "Rows by version"):
                html.th(name).props("scope=col")
        with html.tbody():
            for dataset in seen.datasets.items:
                _row(dataset, seen.row_counts.get(dataset.id, ()))


def _row(dataset: Dataset, row_counts: Sequence[int]) -> None:
    with html.tr():
        with html.td().classes("inlay-what"):
            ui.link(dataset.label, f"/datasets/{dataset.id}").classes("inlay-name")
            ui.label(dataset.table_name).classes("inlay-note inlay-mono inlay-name")
        _fact("rows", f"{dataset.row_count:,}")
        _fact("", size(dataset.size_bytes))
        _fact("version", f"{dataset.version:,}")
        _fact("", ago(dataset.updated_at)).props["title"] = f"{dataset.updated_at:%Y-%m-%d %H:%M} UTC"
        with html.td():
            if row_counts:
                label = f"Rows of the last {count(len(row_counts), 'version')}: {', '.join(map(str, row_counts))}"
                ui.html(sparkline(row_counts, label), sanitize=False)


def _fact(unit: str, text: str) -> html.td:
    """A cell; on a phone, where the table has no header, its unit stands beside it."""
    cell = html.td(text).classes("inlay-fact")
    cell.props["data-unit"] = unit
    return cell
