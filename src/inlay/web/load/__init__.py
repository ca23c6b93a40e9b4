"""The load page: choose rows and a strategy, review the changes, load them, and undo the load."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.errors import BadRowsError, DuplicateKeyError, InlayError, JobCancelledError, UnauthorizedError
from inlay.server import models
from inlay.web.formatting import count
from inlay.web.load.plan import Remedy, show_counts, show_plan, show_problem
from inlay.web.load.source import SourceForm
from inlay.web.load.strategy import LoadDraft, StrategyForm
from inlay.web.progress import follow_job
from inlay.web.shell import Visitor, confirm, heading, page, report_errors, run_inside, use_stylesheet

if TYPE_CHECKING:
    from inlay.catalog import Job, Snapshot
    from inlay.workspace import Load, SubmittedJob, Workspace


@page("/datasets/{dataset_id}/load", "Load")
async def show(visitor: Visitor, dataset_id: str, upload: str | None = None) -> None:
    use_stylesheet("load.css")
    snapshot = await visitor.read(lambda w: w.dataset(dataset_id))
    ui.page_title(f"Load rows into {snapshot.dataset.label} · inlay")
    load_page = _LoadPage(visitor, snapshot)
    ui.timer(0, report_errors(lambda: load_page.fill(upload)), once=True)


class _LoadPage:
    """A form, and below it the dry run or the result of its latest request."""

    def __init__(self, visitor: Visitor, snapshot: Snapshot) -> None:
        self._visitor, self._dataset = visitor, snapshot.dataset
        self._dataset_address = f"/datasets/{self._dataset.id}"
        self._draft = LoadDraft()
        self._previewed: Load | None = None
        ui.link("Back to dataset", self._dataset_address)
        heading(f"Load rows into {self._dataset.label}")
        self._size = ui.label().classes("inlay-note")
        self._show_size(snapshot.version.row_count, snapshot.version.version)
        with html.div().classes("inlay-part") as self._form:
            with _section("1", "Choose the rows to load"):
                self._source = SourceForm(visitor, self._dataset, self._draft, self._changed)
            with _section("2", "Choose how to load them"):
                self._strategy = StrategyForm(self._dataset, self._draft, self._changed)
            with html.div().classes("inlay-buttons"):
                self._preview_button = _button("Preview changes", report_errors(self._preview))
                self._hint = ui.label().classes("inlay-note").props("role=status")
        self._area = html.div().classes("inlay-part")
        self._show_readiness()

    def _show_size(self, rows: int, version: int) -> None:
        self._size.text = f"{count(rows, 'row')} in version {version}"

    async def fill(self, upload: str | None) -> None:
        """Fill in the parts of the page that take time."""
        await self._fill_source(upload)
        advice = await self._visitor.read(lambda w: w.advise_keys(self._dataset.id), "queries")
        self._strategy.show_advice(advice, apply=self._previewed is None)
        self._show_readiness()

    async def _fill_source(self, upload: str | None) -> None:
        if upload is None:
            await self._source.show_choices()
            return
        try:
            await self._source.use_upload(upload)
        except InlayError:
            await self._source.show_choices()
            raise

    # ---------------------------------------------------------------------------------------------------------- preview
    async def _changed(self) -> None:
        """Remove the preview, because it shows earlier choices."""
        if self._draft.request(dry_run=True) != self._previewed:
            self._area.clear()
        self._show_readiness()

    def _show_readiness(self) -> None:
        self._preview_button.set_enabled(self._draft.missing is None)
        self._hint.text = self._draft.missing or ""

    async def _preview(self) -> None:
        request = self._draft.request(dry_run=True)
        job = await self._follow(lambda w: w.load(self._dataset.id, request))
        if job is None:
            return
        plan = models.LoadPlan.of(job)
        with self._area, _section("3", "Review the changes"):
            show_plan(plan)
            with html.div().classes("inlay-buttons"):
                text = f"Load and delete {count(plan.deleted, 'row')}" if plan.deleted else "Load"
                button = _button(text, run_inside(self._area, lambda: self._load(request, plan)))
                button.props("icon=check" + (" color=negative" if plan.deleted else ""))
                note = f"This creates version {plan.version + 1} and keeps version {plan.version}."
                html.span(note).classes("inlay-note")

    async def _follow(self, start: Callable[[Workspace], SubmittedJob]) -> Job | None:
        """Start a job and follow it. Returns None if it fails; the form then keeps all choices."""
        self._previewed = self._draft.request(dry_run=True)
        self._area.clear()
        self._form.props("inert")
        with self._area:
            try:
                submitted = await self._visitor.write(start)
                return await follow_job(self._visitor, submitted.job)
            except UnauthorizedError:
                raise
            except JobCancelledError as error:
                html.p(error.message, role="status")
            except InlayError as error:
                show_problem(error, self._remedy(error))
            finally:
                self._form.props(remove="inert")
        return None

    def _remedy(self, error: InlayError) -> Remedy | None:
        remedies = {
            BadRowsError.code: (
                "Fix these rows in the file, or reject them and load the rest. inlay keeps the reason for each.",
                "Reject these rows and preview again",
                self._strategy.reject_invalid_rows,
            ),
            DuplicateKeyError.code: (
                "Choose more key columns, remove the duplicates from the source, or keep the last row of each key.",
                "Keep the last row of each key and preview again",
                self._strategy.deduplicate,
            ),
        }
        if error.code not in remedies:
            return None
        advice, button, change = remedies[error.code]

        async def apply() -> None:
            await change()
            await self._preview()

        return Remedy(advice, button, run_inside(self._area, apply))

    # ------------------------------------------------------------------------------------------------------------- load
    async def _load(self, request: Load, plan: models.LoadPlan) -> None:
        """Run the previewed load, whatever the form says now, unless the dataset has a newer version."""
        if await self._latest_version() != plan.version:
            self._area.clear()
            with self._area:
                html.p(
                    "Someone changed the dataset after this preview. Nothing was loaded. Preview the changes again.",
                    role="alert",
                )
            return
        job = await self._follow(lambda w: w.load(self._dataset.id, replace(request, dry_run=False)))
        if job is None:
            return
        result = models.LoadResult.of(job)
        self._form.set_visibility(False)
        self._show_size(result.row_count, result.version)
        with self._area, _done(f"Loaded as version {result.version}"):
            show_counts(result)
            if result.version != plan.version + 1:
                html.p("Someone changed the dataset after the preview. These are the counts of the load itself.")
            with html.div().classes("inlay-buttons"):
                self._view_button()
                _button("Load more rows", lambda: ui.navigate.to(f"{self._dataset_address}/load")).props("flat")
                undo = run_inside(self._area, lambda: self._undo(result.version))
                _button(f"Undo and restore version {result.version - 1}", undo).props("outline icon=undo")

    def _view_button(self) -> None:
        _button("View dataset", lambda: ui.navigate.to(self._dataset_address))

    async def _undo(self, loaded: int) -> None:
        version, latest = loaded - 1, await self._latest_version()
        note = f"The loaded rows remain available as version {loaded}."
        if latest != loaded:
            note = f"This also undoes version {latest}, which someone created after your load. {note}"
        if not await confirm(f"Restore version {version}?", note, "Restore"):
            return
        job = await self._follow(lambda w: w.restore(self._dataset.id, version))
        if job is None:
            return
        snapshot = await self._visitor.read(lambda w: w.dataset(self._dataset.id))
        current = snapshot.version.version
        self._show_size(snapshot.version.row_count, current)
        with self._area, _done(f"Restored version {version}"):
            html.p(
                f"Version {current} has the rows of version {version}. "
                f"The loaded rows remain available as version {loaded}."
            )
            with html.div().classes("inlay-buttons"):
                self._view_button()

    async def _latest_version(self) -> int:
        return (await self._visitor.read(lambda w: w.catalog.datasets.get(self._dataset.id))).version


def _button(text: str, on_click: Callable[[], Any]) -> ui.button:
    return ui.button(text, on_click=on_click).props("no-caps unelevated")


@contextlib.contextmanager
def _section(number: str, title: str) -> Iterator[None]:
    with html.section().classes("inlay-card inlay-part"):
        with html.h2().classes("inlay-section-title"):
            html.span(number).classes("inlay-section-number").props("aria-hidden=true")
            html.span(title)
        yield


@contextlib.contextmanager
def _done(title: str) -> Iterator[None]:
    with html.section().classes("inlay-card inlay-part inlay-done"):
        with html.h2(role="status").classes("inlay-section-title"):
            ui.icon("check_circle").props("aria-hidden=true")
            html.span(title)
        yield
