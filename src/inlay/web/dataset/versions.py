"""The versions of a dataset, newest first, with the changes of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import html, ui

from inlay.incremental import STRATEGIES
from inlay.web import formatting
from inlay.web.dataset.actions import confirm_restore
from inlay.web.dataset.diff import diff_address, operation
from inlay.web.shell import Visitor, report_errors

if TYPE_CHECKING:
    from inlay.catalog import Snapshot, Version

__all__ = ["show_versions"]

_PAGE_SIZE = 50
_CHANGES = (("inserted", "good"), ("updated", "warn"), ("deleted", "bad"))
_DAMAGED = "A file of this version is missing, or another program changed it."
_SOURCES = {
    "upload": "from a file",
    "inline": "from inline data",
    "query": "from a query",
    "condition": "by a condition",
}


async def show_versions(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    compare = ui.link("Compare versions", f"/datasets/{snapshot.dataset.id}/diff").classes("inlay-compare")
    timeline = html.ol().classes("inlay-timeline")
    older = ui.button("Show older versions", icon="expand_more").props("flat no-caps").classes("self-center")
    offset = 0

    async def show_more() -> None:
        nonlocal offset
        page = await visitor.read(lambda w: w.versions(snapshot.dataset.id, _PAGE_SIZE, offset))
        offset += len(page.items)
        older.set_visibility(page.has_more)
        compare.set_visibility(page.count > 1)
        largest = max((version.inserted + version.updated + version.deleted for version in page.items), default=0)
        with timeline:
            for version in page.items:
                is_oldest = version is page.items[-1] and not page.has_more
                _show(visitor, snapshot, version, largest, may_write=may_write, has_predecessor=not is_oldest)

    older.on_click(report_errors(show_more))
    await show_more()


def _show(
    visitor: Visitor, snapshot: Snapshot, version: Version, largest: int, *, may_write: bool, has_predecessor: bool
) -> None:
    """Show a version. `largest` is the change that fills the whole bar."""
    dataset, number = snapshot.dataset, version.version
    is_current = number == dataset.version
    with html.li(**{"aria-label": f"Version {number}"}).classes("inlay-version"):
        html.div(f"{number}", **{"aria-hidden": "true"}).classes("inlay-version-mark" + " inlay-current" * is_current)
        with html.div().classes("inlay-card inlay-version-card"):
            with html.div().classes("inlay-version-head"):
                html.h3(f"Version {number}")
                html.span(operation(version))
                if is_current:
                    html.span("Current").classes("inlay-chip")
                if version.damaged:
                    html.span("Damaged", title=_DAMAGED).classes("inlay-chip inlay-damaged")
                html.time(formatting.ago(version.created_at), title=f"{version.created_at:%Y-%m-%d %H:%M:%S} UTC")
            _show_changes(version, largest)
            with html.div().classes("inlay-version-foot"):
                html.span(_summary(version)).classes("inlay-note")
                if version.rejected_count:
                    ui.link(
                        f"{formatting.count(version.rejected_count, 'row')} rejected",
                        f"/datasets/{dataset.id}/rejects?version={number}",
                    ).classes("inlay-rejected")
                with html.div().classes("inlay-version-actions"):
                    _show_actions(visitor, snapshot, version, may_write=may_write, has_predecessor=has_predecessor)


def _show_actions(
    visitor: Visitor, snapshot: Snapshot, version: Version, *, may_write: bool, has_predecessor: bool
) -> None:
    number, restore = version.version, report_errors(lambda: confirm_restore(visitor, snapshot, version))
    if has_predecessor:
        link = ui.link("Changes", diff_address(version.dataset_id, number - 1, number))
        link.props(f'aria-label="Changes of version {number}"')
    if number != snapshot.version.version:
        link = ui.link("View", f"/datasets/{version.dataset_id}?version={number}")
        link.props(f'aria-label="View version {number}"')
    if may_write and number != snapshot.dataset.version:
        ui.button("Restore", on_click=restore).props(f'flat dense no-caps aria-label="Restore version {number}"')


def _show_changes(version: Version, largest: int) -> None:
    changes = [(name, color, getattr(version, name)) for name, color in _CHANGES if getattr(version, name)]
    if not changes:
        return
    with html.div(**{"aria-hidden": "true"}).classes("inlay-changes"):
        for name, color, rows in changes:
            html.div(title=f"{rows:,} {name}").classes(f"inlay-change-{color}").style(
                f"width: max({100 * rows / largest:.3f}%, 3px)"
            )
    with html.div().classes("inlay-change-counts"):
        for name, color, rows in changes:
            html.span(f"{rows:,} {name}").classes(f"inlay-count-{color}")


def _summary(version: Version) -> str:
    source = _SOURCES.get(version.source.get("type", ""), "")
    files = formatting.count(version.file_count, "file")
    parts = [f"{formatting.count(version.row_count, 'row')} in {files}, {formatting.size(version.size_bytes)}", source]
    if version.strategy in STRATEGIES:
        parts.append(STRATEGIES[version.strategy].summary)
    return " · ".join(part for part in parts if part)
