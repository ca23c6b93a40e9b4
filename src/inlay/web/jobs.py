"""Jobs: all of them as they run, and each with what was asked, what was done when, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from nicegui import html, ui

from inlay.errors import InlayError, NotFoundError, error_from
from inlay.web.following import phase_of, share_of
from inlay.web.job_words import ICONS, KINDS, asked, counts, label_in, lasted, outcome, timeline
from inlay.web.shell import guarded, heading, page, style_with
from inlay.web.visitor import Visitor
from inlay.web.wording import ago, duration

if TYPE_CHECKING:
    from inlay.catalog import Job
    from inlay.workspace import Workspace

_LOOK_SECONDS = 1.0
_ROWS = 50
_MOST_ROWS = 1_000
_STATES = {"": "All", **{state: state.capitalize() for state in ICONS}}


class _Seen(NamedTuple):
    """A job, and what its dataset is called if there is one now."""

    job: Job
    label: str | None
    has_dataset: bool

    @property
    def name(self) -> str:
        return self.label or "a deleted dataset"


class _Labels:
    """What datasets are called, looked up once for each."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def see(self, workspace: Workspace, job: Job) -> _Seen:
        found = self._find(workspace, job.dataset_id) if job.dataset_id else None
        return _Seen(job, found or label_in(job), found is not None)

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
    style_with("jobs.css")
    heading("Jobs", "Uploads become datasets in jobs; loads, dry runs and restores are jobs, too.")
    jobs = _List(visitor, state if state in _STATES else "", may_cancel=await visitor.may("write"))
    await jobs.look()
    ui.timer(_LOOK_SECONDS, jobs.look)


class _List:
    def __init__(self, visitor: Visitor, state: str, *, may_cancel: bool) -> None:
        self._visitor, self._may_cancel = visitor, may_cancel
        self._limit = _ROWS
        self._labels = _Labels()
        self._rows: dict[str, _Row] = {}
        self._state = ui.select(_STATES, value=state, label="State", on_change=self._filter)
        self._state.props("dense outlined options-dense").classes("inlay-jobs-state")
        self._trouble = ui.label().classes("inlay-jobs-trouble").props("role=alert")
        self._trouble.set_visibility(False)
        with html.table().classes("inlay-jobs") as self._table:
            with html.thead(), html.tr():
                for name in ("State", "Job", "Started", "Took", "Progress", ""):
                    html.th(name)
            self._body = html.tbody()
        self._empty = ui.label().classes("inlay-card inlay-note")
        self._more = ui.button("Show more", on_click=guarded(self._show_more)).props("flat no-caps")

    async def look(self) -> None:
        """Show how it is now. Trouble is told in its place, once, and not in a new notice every second."""
        state, limit = self._state.value or None, self._limit

        def read(workspace: Workspace) -> tuple[list[_Seen], int]:
            found = workspace.jobs(state, limit=limit)
            return [self._labels.see(workspace, job) for job in found.items], found.count

        try:
            seen, total = await self._visitor.read(read)
        except InlayError as error:
            self._trouble.text = error.message
        else:
            self._show(seen, total)
            self._trouble.text = ""
        self._trouble.set_visibility(bool(self._trouble.text))

    def _show(self, seen: Sequence[_Seen], total: int) -> None:
        ids = [each.job.id for each in seen]
        for job_id in set(self._rows) - set(ids):
            self._rows.pop(job_id).delete()
        for place, each in enumerate(seen):
            row = self._rows.get(each.job.id)
            if row is None:
                with self._body:
                    row = self._rows[each.job.id] = _Row(self._visitor, each, may_cancel=self._may_cancel)
                row.move(place)
            row.show(each)
        self._table.set_visibility(bool(seen))
        self._empty.set_visibility(not seen)
        self._empty.text = "There is no such job." if self._state.value else "There are no jobs yet."
        self._more.set_visibility(total > len(seen) and self._limit < _MOST_ROWS)

    async def _filter(self) -> None:
        state = self._state.value
        ui.navigate.history.replace(f"/jobs?state={state}" if state else "/jobs")
        await self.look()

    async def _show_more(self) -> None:
        self._limit = min(self._limit + _ROWS, _MOST_ROWS)
        await self.look()


class _Row:
    """One line of the table. It stays the same elements while its job goes on, so that nobody loses their place."""

    def __init__(self, visitor: Visitor, seen: _Seen, *, may_cancel: bool) -> None:
        job = seen.job
        self._may_cancel = may_cancel
        with html.tr() as self._line:
            with html.td():
                self._state = _StateMark(job.state)
            with html.td().classes("inlay-jobs-name"):
                ui.link(KINDS.get(job.kind, job.kind), f"/jobs/{job.id}").classes("inlay-jobs-link")
                self._dataset = ui.element("span")
            with html.td():
                self._started = ui.label().classes("inlay-note")
            with html.td():
                self._took = ui.label().classes("inlay-number")
            with html.td().classes("inlay-jobs-progress"):
                self._phase = ui.label().classes("inlay-note inlay-jobs-outcome")
                self._bar = ui.linear_progress(value=0, show_value=False, size="4px").props('aria-label="Progress"')
            with html.td():
                self._cancel = _cancel_button(visitor, job.id)
        self._has_dataset: bool | None = None

    def move(self, place: int) -> None:
        self._line.move(target_index=place)

    def delete(self) -> None:
        self._line.delete()

    def show(self, seen: _Seen) -> None:
        job = seen.job
        self._state.show(job.state)
        if self._has_dataset != seen.has_dataset:
            self._has_dataset = seen.has_dataset
            self._show_dataset(seen)
        self._started.text = ago(job.started_at or job.created_at)
        self._took.text = lasted(job)
        self._phase.text = outcome(job) if job.has_ended else phase_of(job)
        _show_share(self._bar, job)
        self._bar.set_visibility(job.state == "running")
        self._cancel.set_visibility(self._may_cancel and not job.has_ended)
        self._cancel.set_enabled(not job.cancel_requested)

    def _show_dataset(self, seen: _Seen) -> None:
        self._dataset.clear()
        with self._dataset:
            if seen.has_dataset:
                ui.link(seen.name, f"/datasets/{seen.job.dataset_id}")
            else:
                ui.label(seen.name).classes("inlay-note")


class _StateMark:
    """A job's state as a word with a sign and a colour."""

    def __init__(self, state: str) -> None:
        with ui.element("span").classes("inlay-state") as self._mark:
            self._icon = ui.icon(ICONS[state]).props("aria-hidden=true")
            self._word = ui.label(state.capitalize())
        self._mark.props["data-state"] = state

    def show(self, state: str) -> None:
        if self._word.text != state.capitalize():
            self._mark.props["data-state"] = state
            self._icon.name = ICONS[state]
            self._word.text = state.capitalize()


def _show_share(bar: ui.linear_progress, job: Job) -> None:
    """How far a phase is; where that is not known, that something is going on."""
    bar.value = share_of(job)
    bar.props(remove="indeterminate") if bar.value else bar.props("indeterminate")


def _cancel_button(visitor: Visitor, job_id: str) -> ui.button:
    async def cancel() -> None:
        await visitor.write(lambda w: w.cancel_job(job_id))

    return ui.button("Cancel", on_click=guarded(cancel)).props("flat dense no-caps")


# ------------------------------------------------------------------------------------------------------------- one job
@page("/jobs/{job_id}", "Job")
async def show_one(visitor: Visitor, job_id: str) -> None:
    style_with("jobs.css")
    one = _One(visitor, job_id)
    await one.look()
    if not one.has_ended:
        one.follow(may_cancel=await visitor.may("write"))


class _One:
    def __init__(self, visitor: Visitor, job_id: str) -> None:
        self._visitor, self._job_id = visitor, job_id
        self._labels = _Labels()
        self._shown: _Seen | None = None
        self._head = html.div().classes("inlay-job-head")
        self._running = ui.row().classes("inlay-card w-full items-center no-wrap").props("role=status")
        self._running.set_visibility(False)
        self._body = html.div().classes("inlay-job")

    @property
    def has_ended(self) -> bool:
        return self._shown is not None and self._shown.job.has_ended

    async def look(self) -> None:
        seen = await self._visitor.read(lambda w: self._labels.see(w, w.job(self._job_id)))
        if seen != self._shown:
            self._shown = seen
            self._show(seen)

    def follow(self, *, may_cancel: bool) -> None:
        """Show how far the job is until it has ended."""
        self._running.set_visibility(True)
        with self._running:
            with ui.column().classes("grow gap-1"):
                phase = ui.label()
                bar = ui.linear_progress(value=0, show_value=False, size="6px").props('aria-label="Progress"')
            cancel = _cancel_button(self._visitor, self._job_id)
            cancel.set_visibility(may_cancel)

        async def again() -> None:
            await self.look()
            assert self._shown is not None  # noqa: S101  (it was found when the page was made)
            job = self._shown.job
            phase.text = f"{phase_of(job)} · {lasted(job)}"
            _show_share(bar, job)
            cancel.set_enabled(not job.cancel_requested)
            if job.has_ended:
                timer.cancel()
                self._running.set_visibility(False)

        timer = ui.timer(_LOOK_SECONDS / 2, guarded(again))

    def _show(self, seen: _Seen) -> None:
        job = seen.job
        self._head.clear()
        with self._head:
            heading(f"{KINDS.get(job.kind, job.kind)}: {seen.name}")
            with html.div().classes("inlay-job-facts"):
                _StateMark(job.state)
                ui.label(f"{ago(job.created_at)} · took {lasted(job)}" if job.has_ended else ago(job.created_at))
                ui.label(job.id).classes("inlay-mono")
        self._body.clear()
        with self._body:
            _show_end(seen)
            _show_timeline(job)
            _show_request(job)
        with self._head:
            ui.link("All jobs", "/jobs")


def _show_end(seen: _Seen) -> None:
    job = seen.job
    if job.error is not None:
        _show_error(job.error)
    numbers = counts(job)
    if numbers:
        with html.section().classes("inlay-card"):
            html.h2("What came of it").classes("inlay-job-title")
            _figures(numbers)
            if seen.has_dataset:
                version = (job.result or {}).get("version")
                at_version = f"?version={version}" if version and job.writes else ""
                ui.link(f"See {seen.name}", f"/datasets/{job.dataset_id}{at_version}")


def _show_error(told: Mapping[str, Any]) -> None:
    error = error_from(told)
    with ui.card().classes("inlay-error").props("role=alert"):
        ui.label(error.message).classes("text-base font-medium")
        if error.hint:
            ui.label(error.hint)
        ui.link("What this error means", f"/docs/errors#{error.code}")
        cells = [cell for cell in told.get("errors") or () if "line" in cell]
        if cells:
            _show_cells(cells)


def _show_cells(cells: Sequence[Mapping[str, Any]]) -> None:
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


def _figures(numbers: Sequence[tuple[str, str]]) -> None:
    with html.dl().classes("inlay-job-figures"):
        for name, value in numbers:
            with html.div():
                html.dt(name)
                html.dd(value)


def _show_timeline(job: Job) -> None:
    with html.section().classes("inlay-card"):
        html.h2("What happened").classes("inlay-job-title")
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
        html.h2("What was asked").classes("inlay-job-title")
        with html.dl().classes("inlay-job-request"):
            for name, text in asked(job):
                html.dt(name)
                html.dd(text)
