"""The home page: the list of datasets, pending uploads, a drop zone, and a sample dataset."""

from __future__ import annotations

import csv
import functools
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.server import models
from inlay.web.formatting import ago, count, size
from inlay.web.progress import follow_job
from inlay.web.shell import Visitor, confirm, heading, log, page, pager, report_errors, use_stylesheet
from inlay.web.upload_form import Uploaded, Uploader, file_name, upload_note
from inlay.web.widgets import sparkline
from inlay.workspace import Inline, NewDataset, Source

if TYPE_CHECKING:
    from inlay.catalog import Dataset, Job, Page
    from inlay.workspace import Workspace

__all__ = ["sample_corrections", "sample_orders"]

_PAGE_SIZE = 100
_MAX_UPLOADS = 5  # The page shows more pending uploads on request.
_POLL_SECONDS = 3.0
_SUMMARY = (
    "inlay turns CSV, JSON, and Parquet files into typed tables that you query with SQL and keep current row by row."
)
_FEATURES = (
    ("upload_file", "Drop a file", "inlay detects columns and types. Review the values that don't fit, and fix them."),
    ("terminal", "Query with SQL", "Every dataset is a table, and so is each of its versions."),
    ("published_with_changes", "Load corrections", "Preview what a load changes, and undo it if it's wrong."),
)


# --------------------------------------------------------------------------------------------------------------- sample
_SAMPLE_LABEL = "Sample orders"
_CORRECTIONS_FILE = "order-corrections.csv"
_SAMPLE_ROWS = 500
_FIRST_ORDER = datetime(2024, 3, 1, 8)  # noqa: DTZ001  (the local time of the shop)
_COLUMNS = (
    "order_id", "ordered_at", "customer", "postcode", "city", "product", "quantity", "unit_price", "discount",
    "status", "note",
)  # fmt: skip
_CUSTOMERS = (
    ("Zoë Lindqvist", "01067", "Dresden"), ("Łukasz Nowak", "00950", "Warszawa"), ("Ada O'Neill", "02139", "Cambridge"),
    ("Jean-Luc Réaux", "06000", "Nice"), ("Mina Öztürk", "34425", "İstanbul"), ("Sam Lee, Jr.", "94105", "Oakland"),
    ("Ingrid Sørensen", "0150", "Oslo"), ("Paulo Souza", "01310", "São Paulo"), ("Yuki Tanaka", "1500001", "Tokyo"),
)  # fmt: skip
_PRODUCTS = (
    ("Oak plank, 20 mm", "24.90"), ("Walnut strip", "31.50"), ('Brass inlay 1/4"', "12.00"), ("Wood glue", "7.35"),
    ("Sanding disc (50)", "18.20"), ("Herringbone kit", "149.00"), ("Floor oil, 1 l", "22.75"), ("Felt pads", "3.99"),
)  # fmt: skip
_STATES = ("delivered", "delivered", "delivered", "shipped", "open", "returned")
_DISCOUNTS = ("", "", "", "", "5", "10", "12.5")
_NOTES = ("", "", "", "", "gift wrap", 'said "call first"', "leave at the door,\nback yard")


def sample_orders() -> str:
    """Return a CSV file with leading zeros, quotes, commas, line breaks, empty cells, and `n/a`."""
    return _as_csv([_order(number) for number in range(1, _SAMPLE_ROWS + 1)])


def sample_corrections() -> str:
    """Return a CSV file with five corrected orders and two new ones, keyed by `order_id`."""
    changed = [_order(number) for number in (7, 42, 101, 250, 499)]
    for row in changed:
        row[_COLUMNS.index("status")] = "delivered"
        row[_COLUMNS.index("discount")] = "15"
    return _as_csv([*changed, _order(_SAMPLE_ROWS + 1), _order(_SAMPLE_ROWS + 2)])


def _sample_query(table_name: str) -> str:
    return (
        "SELECT product, sum(quantity) AS pieces, sum(quantity * unit_price) AS revenue\n"
        f"FROM datasets.{table_name}\nGROUP BY product\nORDER BY revenue DESC"
    )


def _order(number: int) -> list[str]:
    generator = random.Random(number)  # noqa: S311  (an order is the same in every call)
    customer, postcode, city = generator.choice(_CUSTOMERS)
    product, price = generator.choice(_PRODUCTS)
    ordered = _FIRST_ORDER + timedelta(minutes=97 * number + generator.randrange(60))
    discount = "n/a" if number % 60 == 30 else generator.choice(_DISCOUNTS)
    return [
        f"{number:06}", ordered.isoformat(" "), customer, postcode, city, product, str(generator.randint(1, 12)), price,
        discount, generator.choice(_STATES), generator.choice(_NOTES),
    ]  # fmt: skip


def _as_csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([_COLUMNS, *rows])
    return text.getvalue()


# ----------------------------------------------------------------------------------------------------------------- page
@page("/", "Datasets")
async def show(visitor: Visitor) -> None:
    use_stylesheet("home.css")
    await _Home(visitor).build()


@dataclass(frozen=True)
class _Listing:
    """One page of datasets, and the pending uploads."""

    datasets: Page[Dataset]
    row_counts: Mapping[str, Sequence[int]]
    uploads: models.Uploads


class _Home:
    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self._search = ""
        self._offset = 0
        self._listing: _Listing | None = None

    async def build(self) -> None:
        self._may_write = await self._visitor.may("write")
        self._head = ui.column().classes("w-full gap-1")
        if self._may_write:
            Uploader(report_errors(self._uploaded), text="Drop files anywhere on this page, or click to choose")
        self._uploads = ui.column().classes("w-full gap-1")
        self._progress = ui.column().classes("w-full")
        self._first_steps = ui.column().classes("w-full gap-4")
        with self._first_steps:
            self._show_first_steps()
        self._search_bar = ui.row().classes("w-full items-center")
        with self._search_bar:
            self._search_box = ui.input(
                placeholder="Search by label or table name", on_change=report_errors(self._search_datasets)
            )
            self._search_box.props('type=search dense outlined clearable debounce=200 aria-label="Search"')
            self._search_box.classes("inlay-search")
        self._list = ui.column().classes("w-full gap-2")
        await self._refresh()
        ui.timer(_POLL_SECONDS, report_errors(self._poll), immediate=False)

    # -------------------------------------------------------------------------------------------------------- listing
    async def _refresh(self) -> None:
        """Read the listing and redraw only the parts that changed, so that visitors keep focus and scroll position."""
        request = (self._search, self._offset)
        listing = await self._visitor.read(self._read)
        if listing == self._listing or request != (self._search, self._offset):
            return
        before, self._listing = self._listing, listing
        if before is None or before.uploads != listing.uploads:
            self._show_uploads(listing.uploads)
        if before is None or (before.datasets, before.row_counts) != (listing.datasets, listing.row_counts):
            self._show_datasets(listing)

    async def _poll(self) -> None:
        try:
            await self._refresh()
        except UnauthorizedError:
            raise
        except InlayError as error:
            log.info("failed to refresh the list of datasets: %s", error)

    def _read(self, workspace: Workspace) -> _Listing:
        datasets = workspace.datasets(_PAGE_SIZE, self._offset, self._search)
        if datasets.count and not datasets.items:  # The datasets of this page were deleted.
            self._offset = (datasets.count - 1) // _PAGE_SIZE * _PAGE_SIZE
            datasets = workspace.datasets(_PAGE_SIZE, self._offset, self._search)
        counts = workspace.row_counts([dataset.id for dataset in datasets.items])
        return _Listing(datasets, counts, models.Uploads.of(workspace.uploads("pending", _PAGE_SIZE), workspace))

    async def _search_datasets(self) -> None:
        self._search, self._offset = self._search_box.value or "", 0
        await self._refresh()

    async def _turn(self, offset: int) -> None:
        self._offset = offset
        await self._refresh()

    # --------------------------------------------------------------------------------------------------------- datasets
    def _show_datasets(self, listing: _Listing) -> None:
        datasets = listing.datasets
        is_empty = not datasets.count and not self._search
        self._search_bar.set_visibility(not is_empty)
        self._show_head(is_empty=is_empty)
        self._first_steps.set_visibility(is_empty)
        self._list.clear()
        with self._list:
            if datasets.items:
                _table(listing)
                pager(datasets.offset, len(datasets.items), datasets.count, _PAGE_SIZE, self._turn)
            elif not is_empty:
                ui.label("No datasets match your search.").classes("inlay-note")

    # ---------------------------------------------------------------------------------------------------- first steps
    def _show_head(self, *, is_empty: bool) -> None:
        self._head.clear()
        with self._head:
            if is_empty:
                heading("Turn files into SQL tables")
                ui.label(_SUMMARY).classes("inlay-lead")
            else:
                heading("Datasets")

    def _show_first_steps(self) -> None:
        if self._may_write:
            with ui.row().classes("w-full items-center justify-center gap-2"):
                ui.label("No file at hand?")
                button = ui.button("Try a sample of 500 orders", on_click=report_errors(self._create_sample))
                button.props("no-caps unelevated")
        with html.ol().classes("inlay-features"):
            for icon, title, description in _FEATURES:
                with html.li():
                    ui.icon(icon).props("aria-hidden=true")
                    html.strong(title)
                    ui.label(description).classes("inlay-note")

    async def _create_sample(self) -> None:
        self._first_steps.set_visibility(False)
        request = NewDataset(_SAMPLE_LABEL, Source(inline=Inline("csv", sample_orders())))
        try:
            submitted = await self._visitor.write(lambda w: w.create_dataset(request))
            with self._progress:
                _show_next_steps(await follow_job(self._visitor, submitted.job))
        except InlayError:
            self._first_steps.set_visibility(True)
            raise
        await self._refresh()

    # -------------------------------------------------------------------------------------------------- pending uploads
    async def _uploaded(self, file: Uploaded) -> None:
        if file.is_alone:
            ui.navigate.to(f"/uploads/{file.id}")
        await self._refresh()

    def _show_uploads(self, uploads: models.Uploads) -> None:
        self._uploads.clear()
        if not uploads.uploads:
            return
        with self._uploads:
            html.h2("Pending uploads").classes("inlay-heading")
            ui.label("Open a file to create a dataset from it.").classes("inlay-note")
            self._list_uploads(uploads.uploads[:_MAX_UPLOADS])
            if uploads.count > _MAX_UPLOADS:
                with html.details().classes("w-full"):
                    html.summary(f"Show {uploads.count - _MAX_UPLOADS:,} more")
                    self._list_uploads(uploads.uploads[_MAX_UPLOADS:])

    def _list_uploads(self, uploads: Sequence[models.Upload]) -> None:
        with html.ul().classes("inlay-files"):
            for upload in uploads:
                self._show_upload(upload)

    def _show_upload(self, upload: models.Upload) -> None:
        name = file_name(upload.content_type) or upload.id
        with html.li():
            ui.icon("description").props("aria-hidden=true")
            with html.div().classes("inlay-file"):
                ui.link(name, f"/uploads/{upload.id}").classes("inlay-name")
                ui.label(upload_note(upload)).classes("inlay-note")
            if self._may_write:
                delete = report_errors(functools.partial(self._delete, upload.id, name))
                button = ui.button(icon="delete", on_click=delete).props("flat round size=sm")
                button.props["aria-label"] = f"Delete {name}"

    async def _delete(self, upload_id: str, name: str) -> None:
        with self._uploads:
            if await confirm(f"Delete {name}?", "This deletes the uploaded file. You can't undo it.", "Delete"):
                await self._visitor.write(lambda w: w.delete_upload(upload_id))
                await self._refresh()


def _show_next_steps(job: Job) -> None:
    """Show what visitors can do with the sample dataset."""
    result = job.result or {}
    query = urlencode({"q": _sample_query(result["table_name"])})
    with ui.card().classes("inlay-card inlay-steps"):
        html.h2(f"{_SAMPLE_LABEL}: {count(result['row_count'], 'row')} loaded").classes("inlay-heading")
        with html.ol():
            with html.li():
                ui.link("View the rows", f"/datasets/{job.dataset_id}")
            with html.li():
                ui.link("Query the dataset with SQL", f"/sql?{query}")
            with html.li():
                ui.link("Load corrections", f"/datasets/{job.dataset_id}/load")
                ui.label("by order_id and preview the changes:")
                save = ui.button(f"Download {_CORRECTIONS_FILE}", icon="download").props("flat dense no-caps")
                save.on_click(lambda: ui.download.content(sample_corrections(), _CORRECTIONS_FILE, "text/csv"))


# ------------------------------------------------------------------------------------------------------------ the table
def _table(listing: _Listing) -> None:
    with html.table().classes("inlay-table inlay-datasets"):
        with html.thead(), html.tr():
            for name in ("Dataset", "Rows", "Size", "Version", "Updated", "Rows by version"):
                html.th(name).props("scope=col")
        with html.tbody():
            for dataset in listing.datasets.items:
                _row(dataset, listing.row_counts.get(dataset.id, ()))


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
    """Add a cell. On a phone, the style sheet hides the table header and shows the unit beside the text."""
    cell = html.td(text).classes("inlay-fact")
    cell.props["data-unit"] = unit
    return cell
