"""The versions of a dataset, newest first, with what each of them changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import html, ui

from inlay.incremental import STRATEGIES
from inlay.web import wording
from inlay.web.dataset.actions import ask_to_restore
from inlay.web.shell import guarded
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot, Version

__all__ = ["show_versions"]

_AT_ONCE = 50
_CHANGES = (("inserted", "good"), ("updated", "warn"), ("deleted", "bad"))
_SOURCES = {"upload": "from a file", "inline": "from the request itself", "query": "from a query"}


def _what_happened(version: Version) -> str:
    if version.operation == "restore":
        return f"Restored version {version.source.get('version')}"
    if version.operation == "create":
        return "Created"
    return f"Loaded: {version.strategy}"


async def show_versions(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    timeline = html.ol().classes("inlay-timeline")
    older = ui.button("Show older versions", icon="expand_more").props("flat no-caps").classes("self-center")
    shown = 0

    async def show_more() -> None:
        nonlocal shown
        page = await visitor.read(lambda w: w.versions(snapshot.dataset.id, _AT_ONCE, shown))
        shown += len(page.items)
        older.set_visibility(page.has_more)
        most = max((_changes(version) for version in page.items), default=0)
        with timeline:
            for version in page.items:
                _show(visitor, snapshot, version, most, may_write=may_write)

    older.on_click(guarded(show_more))
    await show_more()


def _changes(version: Version) -> int:
    return version.inserted + version.updated + version.deleted


def _show(visitor: Visitor, snapshot: Snapshot, version: Version, most: int, *, may_write: bool) -> None:
    dataset, number = snapshot.dataset, version.version
    is_current = number == dataset.version
    with html.li(**{"aria-label": f"Version {number}"}).classes("inlay-version"):
        html.div(f"{number}", **{"aria-hidden": "true"}).classes("inlay-version-mark" + " inlay-now" * is_current)
        with html.div().classes("inlay-card inlay-version-card"):
            with html.div().classes("inlay-version-head"):
                html.h3(f"Version {number}")
                html.span(_what_happened(version)).classes("inlay-version-what")
                if is_current:
                    html.span("current").classes("inlay-chip")
                html.time(wording.ago(version.created_at), title=f"{version.created_at:%Y-%m-%d %H:%M:%S} UTC")
            _show_changes(version, most)
            with html.div().classes("inlay-version-foot"):
                html.span(_told(version)).classes("inlay-note")
                if version.rejected_count:
                    ui.link(
                        f"{wording.count(version.rejected_count, 'row')} rejected",
                        f"/datasets/{dataset.id}/rejects?version={number}",
                    ).classes("inlay-rejected")
                with html.div().classes("inlay-version-ways"):
                    _show_ways(visitor, snapshot, version, may_write=may_write)


def _show_ways(visitor: Visitor, snapshot: Snapshot, version: Version, *, may_write: bool) -> None:
    number, restore = version.version, guarded(lambda: ask_to_restore(visitor, snapshot, version))
    if number != snapshot.version.version:
        ui.link("Look at it", f"/datasets/{version.dataset_id}?version={number}")
    if may_write and number != snapshot.dataset.version:
        ui.button("Restore", on_click=restore).props(f'flat dense no-caps aria-label="Restore version {number}"')


def _show_changes(version: Version, most: int) -> None:
    """Bars on one scale for all versions that are shown together."""
    told = [(name, colour, getattr(version, name)) for name, colour in _CHANGES if getattr(version, name)]
    if not told:
        return
    with html.div(**{"aria-hidden": "true"}).classes("inlay-changes"):
        for name, colour, rows in told:
            html.div(title=f"{rows:,} {name}").classes(f"inlay-change-{colour}").style(
                f"width: max({100 * rows / most:.3f}%, 3px)"
            )
    with html.div().classes("inlay-change-words"):
        for name, colour, rows in told:
            html.span(f"{rows:,} {name}").classes(f"inlay-word-{colour}")


def _told(version: Version) -> str:
    source = _SOURCES.get(version.source.get("type", ""), "")
    files = wording.count(version.file_count, "file")
    told = [f"{wording.count(version.row_count, 'row')} in {files}, {wording.size(version.size_bytes)}", source]
    if version.strategy in STRATEGIES:
        told.append(STRATEGIES[version.strategy].summary)
    return " · ".join(part for part in told if part)
