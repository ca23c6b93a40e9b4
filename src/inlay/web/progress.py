"""The progress of a running job, with a button that cancels it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nicegui import ui

from inlay.errors import ForbiddenError, InlayError, JobCancelledError, NotFoundError, UnauthorizedError
from inlay.web.shell import Visitor, report_errors
from inlay.workspace import require_success

if TYPE_CHECKING:
    from inlay.catalog import Job

__all__ = ["cancel_button", "current_phase", "follow_job", "phase_fraction", "phase_label"]

_POLL_SECONDS = 0.25
_PHASES = {
    "plan": "Planning",
    "convert": "Converting on Spark",
    "match": "Matching keys",
    "rewrite": "Rewriting files",
    "append": "Writing new rows",
    "commit": "Committing",
}


async def follow_job(visitor: Visitor, job: Job) -> Job:
    """Show the progress of a job until it ends. Raises the job's error, or JobCancelledError."""
    job_id = job.id
    with ui.row().classes("w-full items-center no-wrap").props("role=status") as row:
        ui.spinner(size="1.2em").props("aria-hidden=true")
        with ui.column().classes("grow gap-1"):
            phase = ui.label(current_phase(job))
            bar = ui.linear_progress(value=0, show_value=False, size="6px").props('aria-label="Progress"')
        cancel = cancel_button(visitor, job_id)
    try:
        while not job.has_ended:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                job = await visitor.read(lambda w: w.job(job_id))
            except (UnauthorizedError, ForbiddenError, NotFoundError):
                raise
            except InlayError:
                phase.text = "The job is running. Its progress is unavailable at the moment."
                continue
            phase.text = current_phase(job)
            bar.value = phase_fraction(job)
            cancel.set_enabled(not job.cancel_requested)
    finally:
        if not row.is_deleted:
            row.delete()
    if job.state == "cancelled":
        raise JobCancelledError("Cancelled. Nothing changed.")
    return require_success(job)


def cancel_button(visitor: Visitor, job_id: str) -> ui.button:
    async def cancel() -> None:
        await visitor.write(lambda w: w.cancel_job(job_id))

    return ui.button("Cancel", on_click=report_errors(cancel)).props("flat dense no-caps")


def current_phase(job: Job) -> str:
    if job.has_ended:
        return job.state.capitalize()
    if job.cancel_requested:
        return "Cancelling"
    if job.state == "queued":
        return "Waiting for other jobs"
    return phase_label(job.kind, (job.progress or {}).get("phase", ""))


def phase_label(kind: str, phase: str) -> str:
    """Return the label of a phase in a job of this kind."""
    if kind == "plan" and phase == "rewrite":
        return "Comparing rows"
    return _PHASES.get(phase, phase.capitalize() or "Starting")


def phase_fraction(job: Job) -> float:
    """Return the completed part of the current phase, from 0 to 1."""
    progress = job.progress or {}
    total = progress.get("total") or 0
    return min(1.0, progress.get("done", 0) / total) if total else 0.0
