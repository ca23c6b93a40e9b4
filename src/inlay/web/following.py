"""A job's progress while it runs, with a button that cancels it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nicegui import ui

from inlay.errors import ForbiddenError, InlayError, JobCancelledError, NotFoundError, UnauthorizedError
from inlay.web.shell import guarded
from inlay.web.visitor import Visitor
from inlay.workspace import require_success

if TYPE_CHECKING:
    from inlay.catalog import Job
    from inlay.workspace import Workspace

__all__ = ["follow", "phase_in_words", "phase_of", "share_of"]

_LOOK_SECONDS = 0.25
_PHASES = {
    "plan": "Looking at what changes",
    "convert": "Converting on Spark",
    "match": "Looking for the keys",
    "rewrite": "Writing what changes",
    "append": "Writing new rows",
    "commit": "Making it true",
}


async def follow(visitor: Visitor, job: Job) -> Job:
    """Show a job where the caller stands until it has ended; raises what it failed with, or that it was cancelled."""
    job_id = job.id

    def look(workspace: Workspace) -> Job:
        return workspace.job(job_id)

    with ui.row().classes("w-full items-center no-wrap").props("role=status") as shown:
        ui.spinner(size="1.2em").props("aria-hidden=true")
        with ui.column().classes("grow gap-1"):
            phase = ui.label(phase_of(job))
            bar = ui.linear_progress(value=0, show_value=False, size="6px").props('aria-label="Progress"')
        cancel = ui.button("Cancel", on_click=guarded(lambda: _cancel(visitor, job_id))).props("flat")
    try:
        while not job.has_ended:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                job = await visitor.read(look)
            except (UnauthorizedError, ForbiddenError, NotFoundError):
                raise
            except InlayError:  # of the look: the job goes on
                phase.text = "Cannot be seen just now; it goes on"
                continue
            phase.text = phase_of(job)
            bar.value = share_of(job)
            cancel.set_enabled(not job.cancel_requested)
    finally:
        if not shown.is_deleted:  # with the place where it stood
            shown.delete()
    if job.state == "cancelled":
        raise JobCancelledError("Cancelled. Nothing changed.")
    return require_success(job)


async def _cancel(visitor: Visitor, job_id: str) -> None:
    await visitor.write(lambda w: w.cancel_job(job_id))


def phase_of(job: Job) -> str:
    """What a job does now, in words."""
    if job.has_ended:
        return job.state.capitalize()
    if job.cancel_requested:
        return "Stopping"
    if job.state == "queued":
        return "Waiting for its turn"
    return phase_in_words(job.kind, (job.progress or {}).get("phase", ""))


def phase_in_words(kind: str, name: str) -> str:
    """A phase of a job of this kind."""
    if kind == "plan" and name == "rewrite":
        return "Comparing rows"
    return _PHASES.get(name, name.capitalize() or "Starting")


def share_of(job: Job) -> float:
    """How much of its present phase is done, from 0 to 1."""
    progress = job.progress or {}
    total = progress.get("total") or 0
    return min(1.0, progress.get("done", 0) / total) if total else 0.0
