"""Rows that did not fit, with their places and reasons."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.web.bad_cells import bad_cells_table
from inlay.web.paging import pager
from inlay.web.shell import heading, page, style_with
from inlay.web.visitor import Visitor
from inlay.web.wording import ago, count

if TYPE_CHECKING:
    from inlay.catalog import Dataset, Version
    from inlay.workspace import Workspace

_PAGE = 100
_VERSIONS = 1000


@page("/datasets/{dataset_id}/rejects", "Rejected rows")
async def show(visitor: Visitor, dataset_id: str, version: int | None = None) -> None:
    style_with("home.css")
    style_with("preview.css")
    snapshot = await visitor.read(lambda w: w.dataset(dataset_id, version))
    versions = await visitor.read(lambda w: [v for v in w.versions(dataset_id, _VERSIONS).items if v.rejected_count])
    with ui.column().classes("gap-1"):
        ui.link(snapshot.dataset.label, f"/datasets/{dataset_id}").classes("inlay-name")
        heading("Rejected rows", _told(snapshot.version))
        _choose_version(snapshot.dataset, snapshot.version, versions)
    if snapshot.version.rejected_count:
        await _Rejects(visitor, snapshot.version).build()


def _told(version: Version) -> str:
    if not version.rejected_count:
        return f"Every row of what made version {version.version} did fit."
    rejected = count(version.rejected_count, "row")
    return f"{rejected} of what made version {version.version} did not fit, {ago(version.created_at)}."


def _choose_version(dataset: Dataset, shown: Version, versions: list[Version]) -> None:
    """Leads to the rejects of the other versions that have some."""
    others = [version for version in versions if version.version != shown.version]
    if not others:
        return
    with ui.row().classes("items-center gap-2"):
        ui.label("Other versions with rejects:").classes("inlay-note")
        for version in others[:20]:
            text = f"version {version.version} ({version.rejected_count:,})"
            ui.link(text, f"/datasets/{dataset.id}/rejects?version={version.version}")


class _Rejects:
    """A page of them at a time."""

    def __init__(self, visitor: Visitor, version: Version) -> None:
        self._visitor, self._version = visitor, version

    async def build(self) -> None:
        address = f"/v1/datasets/{self._version.dataset_id}/rejects?format=csv&version={self._version.version}"
        with ui.row().classes("w-full items-center justify-between"):
            with html.a(href=address, download="").classes("inlay-download"):
                ui.icon("download").props("aria-hidden=true")
                ui.label("Download all as CSV")
            self._pager = ui.row().classes("items-center")
        self._table = ui.column().classes("w-full inlay-long")
        await self._turn(0)

    async def _turn(self, offset: int) -> None:
        rows = await self._visitor.read(functools.partial(self._read, offset=offset), "queries")
        self._table.clear()
        with self._table:
            bad_cells_table(rows)
        self._pager.clear()
        with self._pager:
            pager(offset, len(rows), self._version.rejected_count, _PAGE, self._turn)

    def _read(self, workspace: Workspace, offset: int) -> list[dict[str, Any]]:
        return workspace.rejects(self._version.dataset_id, self._version.version, _PAGE, offset)[1]
