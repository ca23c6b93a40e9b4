"""The rejected rows of a version, with the line, column and reason of each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nicegui import html, ui

from inlay.web.formatting import ago, count
from inlay.web.shell import Visitor, heading, page, pager, use_stylesheet
from inlay.web.widgets import bad_cells_table

if TYPE_CHECKING:
    from inlay.catalog import Version
    from inlay.workspace import Workspace

_PAGE_SIZE = 100
_MAX_VERSIONS = 1000
_MAX_LINKS = 20


@page("/datasets/{dataset_id}/rejects", "Rejected rows")
async def show(visitor: Visitor, dataset_id: str, version: int | None = None) -> None:
    use_stylesheet("home.css")
    use_stylesheet("preview.css")
    snapshot = await visitor.read(lambda w: w.dataset(dataset_id, version))
    versions = await visitor.read(lambda w: w.versions(dataset_id, _MAX_VERSIONS).items)
    with ui.column().classes("gap-1"):
        ui.link(snapshot.dataset.label, f"/datasets/{dataset_id}").classes("inlay-name")
        heading("Rejected rows", _summary(snapshot.version))
        _link_other_versions(snapshot.version, versions)
    if snapshot.version.rejected_count:
        await _RejectedRows(visitor, snapshot.version).build()


def _summary(version: Version) -> str:
    if not version.rejected_count:
        return f"The load of version {version.version} rejected no rows."
    rejected = count(version.rejected_count, "row")
    return f"The load of version {version.version} rejected {rejected} {ago(version.created_at)}."


def _link_other_versions(current: Version, versions: Sequence[Version]) -> None:
    others = [each for each in versions if each.rejected_count and each.version != current.version]
    if not others:
        return
    with ui.row().classes("items-center gap-2"):
        ui.label("Other versions with rejected rows:").classes("inlay-note")
        for version in others[:_MAX_LINKS]:
            text = f"Version {version.version} ({version.rejected_count:,})"
            ui.link(text, f"/datasets/{version.dataset_id}/rejects?version={version.version}")


class _RejectedRows:
    """One page of rejected rows, with a download link and a pager."""

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
            pager(offset, len(rows), self._version.rejected_count, _PAGE_SIZE, self._turn)

    def _read(self, workspace: Workspace, offset: int) -> list[dict[str, Any]]:
        return workspace.rejects(self._version.dataset_id, self._version.version, _PAGE_SIZE, offset)[1]
