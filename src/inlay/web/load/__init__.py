"""Loading rows into a dataset: choose, see what it would do, do it, and take it back if it was wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.errors import BadRowsError, DuplicateKeyError, InlayError, JobCancelledError, UnauthorizedError
from inlay.server import models
from inlay.web.asking import confirm
from inlay.web.following import follow
from inlay.web.load.choices import Choices
from inlay.web.load.how import HowPanel
from inlay.web.load.plan import show_counts, show_plan
from inlay.web.load.problems import WayOut, show_problem
from inlay.web.load.source import SourcePanel
from inlay.web.shell import guarded, heading, page, style_with
from inlay.web.visitor import Visitor
from inlay.web.wording import count

if TYPE_CHECKING:
    from inlay.catalog import Job, Snapshot
    from inlay.workspace import Load, Ticket, Workspace


@page("/datasets/{dataset_id}/load", "Load")
async def show(visitor: Visitor, dataset_id: str, upload: str | None = None) -> None:
    style_with("load.css")
    snapshot = await visitor.read(lambda w: w.dataset(dataset_id))
    ui.page_title(f"Load into {snapshot.dataset.label} · inlay")
    loading = _Loading(visitor, snapshot)
    ui.timer(0, guarded(lambda: loading.begin(upload)), once=True)


class _Loading:
    """The page: a form, and below it what became of what was asked."""

    def __init__(self, visitor: Visitor, snapshot: Snapshot) -> None:
        self._visitor, self._dataset = visitor, snapshot.dataset
        self._place = f"/datasets/{self._dataset.id}"
        self._choices = Choices()
        self._asked: Load | None = None
        ui.link("Back to the dataset", self._place)
        heading(f"Load into {self._dataset.label}")
        self._now = ui.label().classes("inlay-note")
        self._show_now(snapshot.version.row_count, snapshot.version.version)
        with html.div().classes("inlay-part") as self._form:
            with _section("1", "Where the rows come from"):
                self._source = SourcePanel(visitor, self._dataset, self._choices, self._changed)
            with _section("2", "What becomes of them"):
                self._how = HowPanel(self._dataset, self._choices, self._changed)
            with html.div().classes("inlay-buttons"):
                self._look_button = _button("See what it would do", guarded(self._look))
                self._hint = ui.label().classes("inlay-note").props("role=status")
        self._area = html.div().classes("inlay-part")
        self._show_readiness()

    def _show_now(self, rows: int, version: int) -> None:
        self._now.text = f"{count(rows, 'row')} in version {version}"

    async def begin(self, upload: str | None) -> None:
        """What takes longer than the frame of the page."""
        await self._begin_source(upload)
        advice = await self._visitor.read(lambda w: w.advise_keys(self._dataset.id), "queries")
        self._how.take_advice(advice, changes=self._asked is None)
        self._show_readiness()

    async def _begin_source(self, upload: str | None) -> None:
        if upload is None:
            await self._source.offer()
            return
        try:
            await self._source.use_upload(upload)
        except InlayError:
            await self._source.offer()
            raise

    # ------------------------------------------------------------------------------------------------------ the dry run
    async def _changed(self) -> None:
        """What was said about other choices does not hold any more."""
        if self._choices.request(dry_run=True) != self._asked:
            self._area.clear()
        self._show_readiness()

    def _show_readiness(self) -> None:
        self._look_button.set_enabled(self._choices.missing is None)
        self._hint.text = self._choices.missing or ""

    async def _look(self) -> None:
        asked = self._choices.request(dry_run=True)
        job = await self._follow(lambda w: w.load(self._dataset.id, asked))
        if job is None:
            return
        plan = models.LoadPlan.of(job)
        with self._area, _section("3", "What it would do"):
            show_plan(plan)
            with html.div().classes("inlay-buttons"):
                text = f"Load, and delete {count(plan.deleted, 'row')}" if plan.deleted else "Load"
                button = _button(text, self._acting(lambda: self._load(asked, plan)))
                button.props("icon=check" + (" color=negative" if plan.deleted else ""))
                html.span(f"makes version {plan.version + 1}; version {plan.version} stays").classes("inlay-note")

    async def _follow(self, ask: Callable[[Workspace], Ticket]) -> Job | None:
        """The job when it has succeeded. When it has not, everything stays as it was chosen."""
        self._asked = self._choices.request(dry_run=True)
        self._area.clear()
        self._form.props("inert")
        with self._area:
            try:
                ticket = await self._visitor.write(ask)
                return await follow(self._visitor, ticket.job)
            except UnauthorizedError:
                raise
            except JobCancelledError as error:
                html.p(error.message, role="status")
            except InlayError as error:
                show_problem(error, self._way_out(error))
            finally:
                self._form.props(remove="inert")
        return None

    def _way_out(self, error: InlayError) -> WayOut | None:
        known = {
            BadRowsError.code: (
                "Correct them in the file, or set these rows aside: they stay with their reasons, the rest is loaded.",
                "Set these rows aside and look again",
                self._how.set_aside,
            ),
            DuplicateKeyError.code: (
                "Choose more key columns, remove the duplicates, or keep the last row of each key.",
                "Keep the last row of each key and look again",
                self._how.deduplicate,
            ),
        }
        if error.code not in known:
            return None
        advice, button, change = known[error.code]

        async def look_again() -> None:
            await change()
            await self._look()

        return WayOut(advice, button, self._acting(look_again))

    def _acting(self, act: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """A handler that outlives the button it belongs to."""

        async def run() -> None:
            with self._area:
                await guarded(act)()

        return run

    # --------------------------------------------------------------------------------------------------------- the load
    async def _load(self, asked: Load, plan: models.LoadPlan) -> None:
        """Do what was looked at, whatever the form says by now, unless the dataset is another one by now."""
        if await self._newest() != plan.version:
            self._area.clear()
            with self._area:
                html.p(
                    "Somebody else changed the dataset after this look. Look again: nothing was loaded.", role="alert"
                )
            return
        job = await self._follow(lambda w: w.load(self._dataset.id, replace(asked, dry_run=False)))
        if job is None:
            return
        done = models.LoadResult.of(job)
        self._form.set_visibility(False)
        self._show_now(done.row_count, done.version)
        with self._area, _done(f"Loaded as version {done.version}"):
            show_counts(done)
            if done.version != plan.version + 1:
                html.p("Somebody else changed the dataset after the dry run. These are the numbers of what was done.")
            with html.div().classes("inlay-buttons"):
                _button("See the dataset", lambda: ui.navigate.to(self._place))
                _button("Load more", lambda: ui.navigate.to(f"{self._place}/load")).props("flat")
                back = self._acting(lambda: self._undo(done.version))
                undo = _button(f"Undo: go back to version {done.version - 1}", back)
                undo.props("outline icon=undo")

    async def _undo(self, loaded: int) -> None:
        version, newest = loaded - 1, await self._newest()
        note = "What was loaded stays as a version."
        if newest != loaded:
            note = f"Somebody else made version {newest} meanwhile: that is taken back as well. {note}"
        if not await confirm(f"Go back to version {version}?", note, "Go back"):
            return
        job = await self._follow(lambda w: w.restore(self._dataset.id, version))
        if job is None:
            return
        snapshot = await self._visitor.read(lambda w: w.dataset(self._dataset.id))
        made = snapshot.version.version
        self._show_now(snapshot.version.row_count, made)
        with self._area, _done(f"Back to version {version}"):
            html.p(f"Version {made} has the rows of version {version}. What was loaded stays as version {loaded}.")
            with html.div().classes("inlay-buttons"):
                _button("See the dataset", lambda: ui.navigate.to(self._place))

    async def _newest(self) -> int:
        return (await self._visitor.read(lambda w: w.catalog.datasets.get(self._dataset.id))).version


def _button(text: str, act: Callable[[], Any]) -> ui.button:
    return ui.button(text, on_click=act).props("no-caps unelevated")


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
