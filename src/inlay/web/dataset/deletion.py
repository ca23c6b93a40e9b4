"""The page that deletes rows of a dataset: enter a condition, review the rows, delete them, and undo the deletion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.errors import InlayError, JobCancelledError, UnauthorizedError
from inlay.server import models
from inlay.web.formatting import count
from inlay.web.load.plan import show_problem
from inlay.web.progress import follow_job
from inlay.web.shell import Visitor, confirm, heading, page, report_errors, run_inside, use_stylesheet
from inlay.web.widgets import rows_table
from inlay.workspace import Deletion

if TYPE_CHECKING:
    from inlay.catalog import Job, Snapshot
    from inlay.workspace import SubmittedJob, Workspace

_MAX_ROWS = 8
_NOTE = (
    "Compare columns with values, such as: day < '2025-01-01' AND (status = 'closed' OR amount IS NULL). "
    "Rows for which the condition is NULL are kept."
)


@page("/datasets/{dataset_id}/delete-rows", "Delete rows")
async def show(visitor: Visitor, dataset_id: str) -> None:
    use_stylesheet("load.css")
    snapshot = await visitor.read(lambda w: w.dataset(dataset_id))
    ui.page_title(f"Delete rows of {snapshot.dataset.label} · inlay")
    _DeletionPage(visitor, snapshot)


class _DeletionPage:
    """A condition, and below it the dry run or the result of the latest request."""

    def __init__(self, visitor: Visitor, snapshot: Snapshot) -> None:
        self._visitor, self._dataset = visitor, snapshot.dataset
        self._address = f"/datasets/{self._dataset.id}"
        ui.link("Back to dataset", self._address)
        heading(f"Delete rows of {self._dataset.label}")
        ui.label(f"Columns: {', '.join(self._dataset.schema.names[:30])}").classes("inlay-note")
        with html.section().classes("inlay-card inlay-part") as self._form:
            self._where = ui.textarea("Condition", placeholder="id = 7")
            self._where.classes("w-full inlay-mono").props("outlined autogrow autofocus")
            html.p(_NOTE).classes("inlay-note")
            with html.div().classes("inlay-buttons"):
                _button("Preview deletion", report_errors(self._preview))
        self._area = html.div().classes("inlay-part")
        self._where.on_value_change(self._area.clear)

    async def _preview(self) -> None:
        request = Deletion(where=self._where.value or "", dry_run=True)
        job = await self._follow(lambda w: w.delete_rows(self._dataset.id, request))
        if job is None:
            return
        plan = models.DeletionPlan.of(job)
        with self._area, html.section().classes("inlay-card inlay-part"):
            before = plan.row_count + plan.deleted
            html.h2(f"{plan.deleted:,} of {count(before, 'row')} to be deleted").classes("inlay-section-title")
            if not plan.deleted:
                html.p("The condition selects no row.").classes("inlay-note")
                return
            rows_table("Deleted rows", [(name, "") for name in plan.columns], plan.rows[:_MAX_ROWS], "inlay-deleted")
            with html.div().classes("inlay-buttons"):
                delete = run_inside(self._area, lambda: self._delete(request, plan))
                _button(f"Delete {count(plan.deleted, 'row')}", delete).props("icon=delete color=negative")
                note = f"This creates version {plan.version + 1} and keeps version {plan.version}."
                html.span(note).classes("inlay-note")

    async def _delete(self, request: Deletion, plan: models.DeletionPlan) -> None:
        """Delete the previewed rows, unless the dataset has a newer version."""
        if await self._latest_version() != plan.version:
            self._area.clear()
            with self._area:
                html.p(
                    "Someone changed the dataset after this preview. Nothing was deleted. Preview again.", role="alert"
                )
            return
        job = await self._follow(lambda w: w.delete_rows(self._dataset.id, Deletion(where=request.where)))
        if job is None:
            return
        result = models.DeletionResult.of(job)
        self._form.set_visibility(False)
        with self._area, html.section().classes("inlay-card inlay-part inlay-done"):
            with html.h2(role="status").classes("inlay-section-title"):
                ui.icon("check_circle").props("aria-hidden=true")
                html.span(f"Deleted {count(result.deleted, 'row')} in version {result.version}")
            with html.div().classes("inlay-buttons"):
                _button("View dataset", lambda: ui.navigate.to(self._address))
                undo = run_inside(self._area, lambda: self._undo(result.version))
                _button(f"Undo and restore version {result.version - 1}", undo).props("outline icon=undo")

    async def _undo(self, version: int) -> None:
        latest = await self._latest_version()
        note = "inlay copies no data and keeps all versions."
        if latest != version:
            note = f"This also undoes version {latest}, which someone created after your deletion. {note}"
        if not await confirm(f"Restore version {version - 1}?", note, "Restore"):
            return
        if await self._follow(lambda w: w.restore(self._dataset.id, version - 1)) is not None:
            ui.navigate.to(self._address)

    async def _follow(self, start: Callable[[Workspace], SubmittedJob]) -> Job | None:
        """Start a job and follow it. Returns None if it fails."""
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
                show_problem(error)
            finally:
                self._form.props(remove="inert")
        return None

    async def _latest_version(self) -> int:
        return (await self._visitor.read(lambda w: w.catalog.datasets.get(self._dataset.id))).version


def _button(text: str, on_click: Callable[[], Any]) -> ui.button:
    return ui.button(text, on_click=on_click).props("no-caps unelevated")
