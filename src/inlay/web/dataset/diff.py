"""The page that compares two versions of a dataset: counts, the first changed rows, and downloads of all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nicegui import events, html, ui

from inlay.errors import InlayError, QueryCancelledError, UnauthorizedError
from inlay.server import models
from inlay.web.dataset.actions import download_menu
from inlay.web.formatting import ago, count
from inlay.web.load.plan import show_changes, show_count, show_problem
from inlay.web.shell import Visitor, heading, page, report_errors, use_stylesheet
from inlay.web.widgets import shorten

if TYPE_CHECKING:
    from inlay.catalog import Dataset, Version
    from inlay.workspace.diffs import DiffSample

__all__ = ["diff_address", "operation"]

_MAX_VERSIONS = 1000
_MAX_KEY = 60  # characters of the names of key columns


def diff_address(dataset_id: str, old: int, new: int) -> str:
    return f"/datasets/{dataset_id}/diff?old={old}&new={new}"


def operation(version: Version) -> str:
    """Say what made a version."""
    if version.restores is not None:
        return f"Restored version {version.restores}"
    if version.operation == "create":
        return "Created"
    return "Deleted rows" if version.strategy == "delete" else f"Loaded with {version.strategy}"


@page("/datasets/{dataset_id}/diff", "Compare versions")
async def show(visitor: Visitor, dataset_id: str, old: int | None = None, new: int | None = None) -> None:
    use_stylesheet("load.css")
    use_stylesheet("dataset.css")
    dataset = (await visitor.read(lambda w: w.dataset(dataset_id))).dataset
    versions = (await visitor.read(lambda w: w.versions(dataset_id, _MAX_VERSIONS))).items
    ui.page_title(f"Compare versions of {dataset.label} · inlay")
    ui.link("Back to versions", f"/datasets/{dataset_id}?tab=versions")
    heading(f"Compare versions of {dataset.label}")
    if len(versions) < 2:
        html.p("This dataset has only one version. Each load creates another one.")
        return
    new = versions[0].version if new is None else new
    _DiffPage(visitor, dataset, versions, max(new - 1, versions[-1].version) if old is None else old, new)


class _DiffPage:
    """Two versions to choose, and below them what differs."""

    def __init__(self, visitor: Visitor, dataset: Dataset, versions: Sequence[Version], old: int, new: int) -> None:
        self._visitor, self._dataset, self._old, self._new = visitor, dataset, old, new
        self._cancel = threading.Event()
        names = {each.version: f"Version {each.version}: {_describe(each)}" for each in versions}
        with html.section(**{"aria-label": "Versions"}).classes("inlay-card inlay-diff-versions"):
            for label, value, other in (("Old version", old, new), ("New version", new, old)):
                select = ui.select(names, label=label, value=value if value in names else None)
                select.props("outlined dense options-dense").classes("inlay-diff-version")
                select.on_value_change(lambda event, other=other: self._choose(event, other))
        self._area = html.section(**{"aria-label": "Changes"}).classes("inlay-part")
        if old == new:
            with self._area:
                html.p("Choose two different versions.").classes("inlay-note")
            return
        with self._area, html.div(role="status").classes("inlay-busy"):
            ui.spinner(size="1.2em").props("aria-hidden=true")
            html.span("Comparing")
        ui.context.client.on_delete(self._cancel.set)
        ui.timer(0, report_errors(self._compare), once=True)

    def _choose(self, event: events.ValueChangeEventArguments[int], other: int) -> None:
        is_old = event.sender.props["label"] == "Old version"
        chosen = (event.value, other) if is_old else (other, event.value)
        self._cancel.set()
        ui.navigate.to(diff_address(self._dataset.id, *chosen))

    async def _compare(self) -> None:
        try:
            found = await self._visitor.read(
                lambda w: w.diff(self._dataset.id, self._old, self._new, self._cancel), "queries"
            )
        except (UnauthorizedError, QueryCancelledError):
            raise
        except InlayError as error:
            self._area.clear()
            with self._area:
                show_problem(error)
            return
        self._area.clear()
        with self._area, html.div().classes("inlay-card inlay-part"):
            self._show(found)

    def _show(self, found: DiffSample) -> None:
        rows = found.inserted + found.updated + found.deleted
        with html.div().classes("inlay-diff-head"):
            title = f"{count(rows, 'row')} changed from version {self._old} to version {self._new}"
            html.h2(title).classes("inlay-section-title")
            if rows:
                download_menu(f"/v1/datasets/{self._dataset.id}/diff?old={self._old}&new={self._new}")
        if not rows:
            html.p("Both versions have the same rows.").classes("inlay-note")
            return
        with html.ul().classes("inlay-counts"):
            for number, name in ((found.inserted, "inserted"), (found.updated, "updated"), (found.deleted, "deleted")):
                show_count(number, name, f"inlay-{name}")
        html.p(_key_note(found.key_columns)).classes("inlay-note")
        changes = models.Changes.model_validate(found.changes)
        show_changes(changes, found.inserted, found.updated, found.deleted)


def _describe(version: Version) -> str:
    return f"{operation(version)}, {ago(version.created_at)}"


def _key_note(key_columns: Sequence[str]) -> str:
    if key_columns:
        names = shorten(", ".join(key_columns), _MAX_KEY)
        return f"Changed rows with the same {names} count as updated."
    return (
        "The loads between these versions have no common key columns, so a changed row counts as deleted and inserted."
    )
