"""The list of jobs, and the page of one job with its result, timeline and request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from nicegui import html, ui

from inlay.errors import InlayError, NotFoundError, error_from_dict
from inlay.web.formatting import ago, count, duration, size
from inlay.web.progress import cancel_button, current_phase, phase_fraction, phase_label
from inlay.web.shell import Visitor, heading, page, report_errors, use_stylesheet

if TYPE_CHECKING:
    from inlay.catalog import Job
    from inlay.workspace import Workspace

__all__ = ["counts", "elapsed", "outcome", "request_lines", "timeline"]

_KINDS = {"create": "Create", "load": "Load", "plan": "Dry run", "restore": "Restore", "delete": "Delete rows"}
_ICONS = {
    "queued": "schedule",
    "running": "autorenew",
    "succeeded": "check_circle",
    "failed": "error",
    "cancelled": "cancel",
}
_COUNTS = {
    "version": "Version",
    "row_count": "Rows",
    "source_count": "Source rows",
    "inserted": "Inserted",
    "updated": "Updated",
    "unchanged": "Unchanged",
    "stale": "Stale",
    "deleted": "Deleted",
    "rejected_count": "Rejected",
}
_ON_ERROR = {"fail": "Stop without changes", "quarantine": "Reject them and load the rest"}
_POLL_SECONDS = 1.0
_PAGE_SIZE = 50
_MAX_ROWS = 1_000
_STATES = {"": "All", **{state: state.capitalize() for state in _ICONS}}


def elapsed(job: Job) -> str:
    """Return how long a job took, or has been running."""
    if job.started_at is None:
        return "Not started"
    return duration(((job.finished_at or datetime.now(UTC)) - job.started_at).total_seconds())


# -------------------------------------------------------------------------------------------------------------- request
def request_lines(job: Job) -> list[tuple[str, str]]:
    """Return the name and text of every field that is set in the job's request."""
    return [(name, text) for name, text in _request_fields(job.request) if text]


def _request_fields(request: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "Label", request.get("label") or ""
    yield "Table name", request.get("table_name") or ""
    yield "Strategy", request.get("strategy") or ""
    yield "Condition", request.get("where") or ""
    yield "Key columns", ", ".join(request.get("key_columns") or ())
    yield "Deduplication order", ", ".join(request.get("dedup_order_by") or ())
    yield "Operation column", request.get("operation_column") or ""
    yield "Newer by", request.get("newer_by") or ""
    yield "Maximum deleted", "" if request.get("max_deleted") is None else str(request["max_deleted"])
    scope = (request.get("scope") or {}).items()
    yield "Scope", "; ".join(f"{name}={', '.join(map(str, values))}" for name, values in scope)
    yield "Version", str(request.get("version") or "")
    yield from _source_fields(request.get("source") or {})
    yield from _column_fields(request.get("columns") or ())
    yield "Invalid rows", _ON_ERROR.get(request.get("on_error") or "", "")


def _column_fields(columns: Mapping[str, Any] | Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the types that a new dataset sets, or the mapping of a load."""
    if isinstance(columns, Mapping):
        yield "Columns", ", ".join(f"{source} {_target_of(to)}" for source, to in columns.items())
    else:
        yield "Types", ", ".join(f"{name} {type_}" for name, type_ in columns)


def _target_of(to: str | Mapping[str, str] | None) -> str:
    if to is None:
        return "ignored"
    return f"as {to}" if isinstance(to, str) else f"added as {to['name']} {to['type']}"


def _source_fields(source: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    inline = source.get("inline")
    if inline is not None:
        yield "Source", f"{size(inline['size_bytes'])} of inline {inline['format'].upper()}"
    yield "Upload", source.get("upload_id") or ""
    yield "Query", source.get("sql") or ""
    yield "Format", source.get("format") or ""
    yield "Options", ", ".join(f"{name} {value!r}" for name, value in (source.get("options") or {}).items())


# ------------------------------------------------------------------------------------------------- timeline and result
class Step(NamedTuple):
    """A step of a job. Warnings and cancellation requests have no time."""

    text: str
    at: datetime | None = None


def timeline(job: Job) -> list[Step]:
    progress = job.progress or {}
    steps = [Step("Queued", job.created_at)]
    if job.started_at is not None:
        steps.append(Step("Started", job.started_at))
    steps += [
        Step(phase_label(job.kind, each["phase"]), datetime.fromisoformat(each["at"]))
        for each in progress.get("phases", ())
    ]
    steps += [Step(warning) for warning in (job.result or {}).get("warnings", ())]
    if job.cancel_requested:
        steps.append(Step("Cancellation requested"))
    if job.finished_at is not None:
        steps.append(Step(job.state.capitalize(), job.finished_at))
    return steps


def counts(job: Job) -> list[tuple[str, str]]:
    """Return the name and value of every count in the job's result."""
    result = job.result or {}
    return [(name, f"{result[key]:,}") for key, name in _COUNTS.items() if isinstance(result.get(key), int)]


def outcome(job: Job) -> str:
    """Summarize how a job ended, or return an empty text while it runs."""
    if job.error is not None:
        return str(job.error.get("message", ""))
    if job.state != "succeeded":
        return "Nothing changed" if job.has_ended else ""
    result = job.result or {}
    changes = [f"{result[key]:,} {key}" for key in ("inserted", "updated", "deleted") if result.get(key)]
    rows = [count(result["row_count"], "row")] if "row_count" in result and not changes else []
    rejected = [f"{result['rejected_count']:,} rejected"] if result.get("rejected_count") else []
    summary = ", ".join([*changes, *rows, *rejected])
    return f"Planned: {summary}" if job.kind == "plan" else summary


# ------------------------------------------------------------------------------------------------------- dataset labels
class _LabeledJob(NamedTuple):
    """A job with the label of its dataset."""

    job: Job
    label: str | None
    has_dataset: bool

    @property
    def name(self) -> str:
        return self.label or "a deleted dataset"

    @property
    def title(self) -> str:
        return _KINDS.get(self.job.kind, self.job.kind)


class _Labels:
    """A cache of dataset labels."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def add_label(self, workspace: Workspace, job: Job) -> _LabeledJob:
        found = self._find(workspace, job.dataset_id) if job.dataset_id else None
        requested = job.request.get("label") if job.kind == "create" else None
        return _LabeledJob(job, found or requested, found is not None)

    def _find(self, workspace: Workspace, dataset_id: str) -> str | None:
        if dataset_id not in self._known:
            try:
                self._known[dataset_id] = workspace.dataset(dataset_id).dataset.label
            except NotFoundError:
                return None
        return self._known[dataset_id]


# ------------------------------------------------------------------------------------------------------------ all jobs
@page("/jobs", "Jobs")
async def show(visitor: Visitor, state: str = "") -> None:
    use_stylesheet("jobs.css")
    heading("Jobs", "inlay creates, loads, previews, and restores datasets in jobs.")
    jobs = _JobList(visitor, state if state in _STATES else "", may_cancel=await visitor.may("write"))
    await jobs.refresh()
    ui.timer(_POLL_SECONDS, jobs.refresh)


class _JobList:
    def __init__(self, visitor: Visitor, state: str, *, may_cancel: bool) -> None:
        self._visitor, self._may_cancel = visitor, may_cancel
        self._limit = _PAGE_SIZE
        self._labels = _Labels()
        self._rows: dict[str, _Row] = {}
        self._state = ui.select(_STATES, value=state, label="State", on_change=self._filter)
        self._state.props("dense outlined options-dense").classes("inlay-jobs-state")
        self._problem = ui.label().classes("inlay-jobs-problem").props("role=alert")
        self._problem.set_visibility(False)
        with html.table().classes("inlay-jobs") as self._table:
            with html.thead(), html.tr():
                for name in ("State", "Job", "Started", "Duration", "Progress", ""):
                    html.th(name)
            self._body = html.tbody()
        self._empty = ui.label().classes("inlay-card inlay-note")
        self._more = ui.button("Show more", on_click=report_errors(self._show_more)).props("flat no-caps")

    async def refresh(self) -> None:
        """Show the current jobs. An error appears above the table, not as a new notification every second."""
        state, limit = self._state.value or None, self._limit

        def read(workspace: Workspace) -> tuple[list[_LabeledJob], int]:
            found = workspace.jobs(state, limit=limit)
            return [self._labels.add_label(workspace, job) for job in found.items], found.count

        try:
            jobs, total = await self._visitor.read(read)
        except InlayError as error:
            self._problem.text = error.message
        else:
            self._show(jobs, total)
            self._problem.text = ""
        self._problem.set_visibility(bool(self._problem.text))

    def _show(self, jobs: Sequence[_LabeledJob], total: int) -> None:
        ids = [each.job.id for each in jobs]
        for job_id in set(self._rows) - set(ids):
            self._rows.pop(job_id).delete()
        for at, each in enumerate(jobs):
            row = self._rows.get(each.job.id)
            if row is None:
                with self._body:
                    row = self._rows[each.job.id] = _Row(self._visitor, each, may_cancel=self._may_cancel)
                row.move(at)
            row.show(each)
        self._table.set_visibility(bool(jobs))
        self._empty.set_visibility(not jobs)
        state = self._state.value
        self._empty.text = f"No {state} jobs." if state else "No jobs yet. Upload a file to create a dataset."
        self._more.set_visibility(total > len(jobs) and self._limit < _MAX_ROWS)

    async def _filter(self) -> None:
        state = self._state.value
        ui.navigate.history.replace(f"/jobs?state={state}" if state else "/jobs")
        await self.refresh()

    async def _show_more(self) -> None:
        self._limit = min(self._limit + _PAGE_SIZE, _MAX_ROWS)
        await self.refresh()


class _Row:
    """One job in the table. Updates change its elements in place, so that visitors keep their focus."""

    def __init__(self, visitor: Visitor, labeled: _LabeledJob, *, may_cancel: bool) -> None:
        job = labeled.job
        self._may_cancel = may_cancel
        with html.tr() as self._line:
            with html.td():
                self._state = _StateBadge(job.state)
            with html.td().classes("inlay-jobs-name"):
                ui.link(labeled.title, f"/jobs/{job.id}").classes("inlay-jobs-link")
                self._dataset = ui.element("span")
            with html.td():
                self._started = ui.label().classes("inlay-note")
            with html.td():
                self._duration = ui.label().classes("inlay-number")
            with html.td().classes("inlay-jobs-progress"):
                self._phase = ui.label().classes("inlay-note inlay-jobs-outcome")
                self._bar = ui.linear_progress(value=0, show_value=False, size="4px").props('aria-label="Progress"')
            with html.td():
                self._cancel = cancel_button(visitor, job.id)
        self._has_dataset: bool | None = None

    def move(self, index: int) -> None:
        self._line.move(target_index=index)

    def delete(self) -> None:
        self._line.delete()

    def show(self, labeled: _LabeledJob) -> None:
        job = labeled.job
        self._state.show(job.state)
        if self._has_dataset != labeled.has_dataset:
            self._has_dataset = labeled.has_dataset
            self._show_dataset(labeled)
        self._started.text = ago(job.started_at or job.created_at)
        self._duration.text = elapsed(job)
        self._phase.text = outcome(job) if job.has_ended else current_phase(job)
        _show_progress(self._bar, job)
        self._bar.set_visibility(job.state == "running")
        self._cancel.set_visibility(self._may_cancel and not job.has_ended)
        self._cancel.set_enabled(not job.cancel_requested)

    def _show_dataset(self, labeled: _LabeledJob) -> None:
        self._dataset.clear()
        with self._dataset:
            if labeled.has_dataset:
                ui.link(labeled.name, f"/datasets/{labeled.job.dataset_id}")
            else:
                ui.label(labeled.name).classes("inlay-note")


class _StateBadge:
    """A job's state as text with an icon and a color."""

    def __init__(self, state: str) -> None:
        with ui.element("span").classes("inlay-state") as self._badge:
            self._icon = ui.icon(_ICONS[state]).props("aria-hidden=true")
            self._text = ui.label(state.capitalize())
        self._badge.props["data-state"] = state

    def show(self, state: str) -> None:
        if self._text.text != state.capitalize():
            self._badge.props["data-state"] = state
            self._icon.name = _ICONS[state]
            self._text.text = state.capitalize()


def _show_progress(bar: ui.linear_progress, job: Job) -> None:
    """Show the fraction of the current phase, or an indeterminate bar if it is unknown."""
    bar.value = phase_fraction(job)
    bar.props(remove="indeterminate") if bar.value else bar.props("indeterminate")


# ------------------------------------------------------------------------------------------------------------- one job
@page("/jobs/{job_id}", "Job")
async def show_one(visitor: Visitor, job_id: str) -> None:
    use_stylesheet("jobs.css")
    job_page = _JobPage(visitor, job_id)
    job = await job_page.refresh()
    if not job.has_ended:
        job_page.follow(may_cancel=await visitor.may("write"))


class _JobPage:
    def __init__(self, visitor: Visitor, job_id: str) -> None:
        self._visitor, self._job_id = visitor, job_id
        self._labels = _Labels()
        self._current: _LabeledJob | None = None
        self._head = html.div().classes("inlay-job-head")
        self._running = ui.row().classes("inlay-card w-full items-center no-wrap").props("role=status")
        self._running.set_visibility(False)
        self._body = html.div().classes("inlay-job")

    async def refresh(self) -> Job:
        """Show the job, and return it."""
        labeled = await self._visitor.read(lambda w: self._labels.add_label(w, w.job(self._job_id)))
        if labeled != self._current:
            self._current = labeled
            self._show(labeled)
        return labeled.job

    def follow(self, *, may_cancel: bool) -> None:
        """Show the progress of the job until it ends."""
        self._running.set_visibility(True)
        with self._running:
            with ui.column().classes("grow gap-1"):
                phase = ui.label()
                bar = ui.linear_progress(value=0, show_value=False, size="6px").props('aria-label="Progress"')
            cancel = cancel_button(self._visitor, self._job_id)
            cancel.set_visibility(may_cancel)

        async def poll() -> None:
            job = await self.refresh()
            phase.text = f"{current_phase(job)} · {elapsed(job)}"
            _show_progress(bar, job)
            cancel.set_enabled(not job.cancel_requested)
            if job.has_ended:
                timer.cancel()
                self._running.set_visibility(False)

        timer = ui.timer(_POLL_SECONDS / 2, report_errors(poll))

    def _show(self, labeled: _LabeledJob) -> None:
        job = labeled.job
        self._head.clear()
        with self._head:
            heading(f"{labeled.title}: {labeled.name}")
            with html.div().classes("inlay-job-facts"):
                _StateBadge(job.state)
                ui.label(f"{ago(job.created_at)} · took {elapsed(job)}" if job.has_ended else ago(job.created_at))
                ui.label(job.id).classes("inlay-mono")
        self._body.clear()
        with self._body:
            _show_result(labeled)
            _show_timeline(job)
            _show_request(job)
        with self._head:
            ui.link("View all jobs", "/jobs")


def _show_result(labeled: _LabeledJob) -> None:
    job = labeled.job
    if job.error is not None:
        _show_error(job.error)
    numbers = counts(job)
    if numbers:
        with html.section().classes("inlay-card"):
            html.h2("Result").classes("inlay-job-title")
            _show_counts(numbers)
            if labeled.has_dataset:
                version = (job.result or {}).get("version")
                at_version = f"?version={version}" if version and job.writes else ""
                ui.link(f"View {labeled.name}", f"/datasets/{job.dataset_id}{at_version}")


def _show_error(stored: Mapping[str, Any]) -> None:
    error = error_from_dict(stored)
    with ui.card().classes("inlay-error").props("role=alert"):
        ui.label(error.message).classes("text-base font-medium")
        if error.hint:
            ui.label(error.hint)
        ui.link("Learn more about this error", f"/docs/errors#{error.code}")
        cells = [cell for cell in stored.get("errors") or () if "line" in cell]
        if cells:
            _show_bad_cells(cells)


def _show_bad_cells(cells: Sequence[Mapping[str, Any]]) -> None:
    names = ("line", "column", "value", "reason")
    with html.div().classes("inlay-job-cells"), html.table():
        with html.thead(), html.tr():
            for name in names:
                html.th(name.capitalize())
        with html.tbody():
            for cell in cells:
                with html.tr():
                    for name in names:
                        html.td("" if cell.get(name) is None else str(cell[name]))


def _show_counts(numbers: Sequence[tuple[str, str]]) -> None:
    with html.dl().classes("inlay-job-figures"):
        for name, value in numbers:
            with html.div():
                html.dt(name)
                html.dd(value)


def _show_timeline(job: Job) -> None:
    with html.section().classes("inlay-card"):
        html.h2("Timeline").classes("inlay-job-title")
        with html.ol().classes("inlay-job-steps"):
            for step in timeline(job):
                with html.li():
                    moment = html.span("" if step.at is None else _offset(job.created_at, step.at))
                    moment.classes("inlay-number inlay-note")
                    if step.at is not None:
                        moment.props["title"] = f"{step.at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
                    html.span(step.text)


def _offset(start: datetime, moment: datetime) -> str:
    seconds = (moment - start).total_seconds()
    return f"{start:%H:%M:%S} UTC" if seconds <= 0 else f"+ {duration(seconds)}"


def _show_request(job: Job) -> None:
    with html.section().classes("inlay-card"):
        html.h2("Request").classes("inlay-job-title")
        with html.dl().classes("inlay-job-request"):
            for name, text in request_lines(job):
                html.dt(name)
                html.dd(text)
