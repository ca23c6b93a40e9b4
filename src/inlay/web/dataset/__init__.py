"""The page of a dataset, with tabs for its rows, columns, schema, versions and code snippets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from nicegui import events, html, ui

from inlay.errors import InlayError, NotFoundError, UnauthorizedError
from inlay.web import formatting
from inlay.web.dataset.actions import confirm_restore, show_actions
from inlay.web.dataset.columns import show_columns
from inlay.web.dataset.rows import show_rows
from inlay.web.dataset.schema import show_schema
from inlay.web.dataset.snippets import show_snippets
from inlay.web.dataset.versions import show_versions
from inlay.web.shell import CopyButton, Visitor, page, report_errors, use_stylesheet

if TYPE_CHECKING:
    from inlay.catalog import Snapshot

_POLL_SECONDS = 3.0


@page("/datasets/{dataset_id}", "Dataset")
async def show(visitor: Visitor, dataset_id: str, version: int | None = None, tab: str = "rows") -> None:
    use_stylesheet("dataset.css")
    snapshot = await visitor.read(lambda w: w.dataset(dataset_id, version))
    may_write = await visitor.may("write")
    ui.page_title(f"{snapshot.dataset.label} · inlay")
    _show_head(visitor, snapshot, may_write=may_write)
    _show_version_banner(visitor, snapshot, may_write=may_write)
    _poll(visitor, snapshot)
    _show_tabs(visitor, snapshot, tab, may_write=may_write)


def _show_head(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    dataset, version = snapshot.dataset, snapshot.version
    with html.div().classes("inlay-dataset-head"):
        with html.div().classes("inlay-dataset-names"):
            html.h1(dataset.label).classes("inlay-title")
            with html.div().classes("inlay-table-name"):
                html.code(f"datasets.{dataset.table_name}")
                CopyButton(f"datasets.{dataset.table_name}", "Copy table name")
        show_actions(visitor, snapshot, may_write=may_write)
    with html.dl().classes("inlay-figures"):
        for name, value, title in (
            ("Rows", f"{version.row_count:,}", None),
            ("Size", formatting.size(version.size_bytes), f"{version.size_bytes:,} bytes"),
            ("Version", f"{version.version}", None),
            ("Updated", formatting.ago(version.created_at), f"{version.created_at:%Y-%m-%d %H:%M:%S} UTC"),
        ):
            with html.div():
                html.dt(name)
                html.dd(value, **({"title": title} if title else {}))


def _show_version_banner(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    """Show a banner if the page shows an older version."""
    dataset, version = snapshot.dataset, snapshot.version
    if version.version == dataset.version:
        return
    with html.div(role="note").classes("inlay-banner"):
        html.span(f"Viewing version {version.version} of {dataset.version}").classes("grow")
        ui.link("View current version", f"/datasets/{dataset.id}")
        if may_write:
            restore = report_errors(lambda: confirm_restore(visitor, snapshot, version))
            ui.button("Restore this version", on_click=restore).props("flat dense no-caps")


# ---------------------------------------------------------------------------------------------------------------- tabs
Builder = Callable[[], Awaitable[None]]


def _show_tabs(visitor: Visitor, snapshot: Snapshot, first: str, *, may_write: bool) -> None:
    contents: dict[str, tuple[str, Builder]] = {
        "rows": ("Rows", lambda: show_rows(visitor, snapshot)),
        "columns": ("Columns", lambda: show_columns(visitor, snapshot)),
        "schema": ("Schema", lambda: show_schema(snapshot)),
        "versions": ("Versions", lambda: show_versions(visitor, snapshot, may_write=may_write)),
        "use": ("Use in code", lambda: show_snippets(visitor, snapshot)),
    }
    _Tabs(contents, first if first in contents else "rows", lambda tab: _address(snapshot, tab))


def _address(snapshot: Snapshot, tab: str) -> str:
    dataset, version = snapshot.dataset, snapshot.version.version
    older = f"version={version}&" if version != dataset.version else ""
    return f"/datasets/{dataset.id}?{older}tab={tab}"


class _Tabs:
    """Tabs with a title and a builder by name. The browser's address always contains the name of the open tab."""

    def __init__(
        self, contents: Mapping[str, tuple[str, Builder]], first: str, address_of: Callable[[str], str]
    ) -> None:
        self._builders = {name: build for name, (_, build) in contents.items()}
        self._address_of = address_of
        with ui.tabs().classes("inlay-tabs").props("align=left no-caps dense outside-arrows mobile-arrows") as tabs:
            named = {name: ui.tab(name, title) for name, (title, _) in contents.items()}
        tabs.value = named[first]
        self._panels = {name: _panel(title) for name, (title, _) in contents.items()}
        self._show(first)
        tabs.on_value_change(report_errors(self._open))
        ui.timer(0, report_errors(lambda: self._build(first)), once=True)

    async def _open(self, event: events.ValueChangeEventArguments[str]) -> None:
        ui.navigate.history.replace(self._address_of(event.value))
        self._show(event.value)
        await self._build(event.value)

    def _show(self, name: str) -> None:
        for each, panel in self._panels.items():
            panel.set_visibility(each == name)

    async def _build(self, name: str) -> None:
        build = self._builders.pop(name, None)
        if build is not None:
            with self._panels[name]:
                await build()


def _panel(title: str) -> ui.element:
    panel: ui.element = html.div(role="tabpanel", **{"aria-label": title})
    return panel.classes("inlay-panel")


# -------------------------------------------------------------------------------------------------------------- updates
def _poll(visitor: Visitor, snapshot: Snapshot) -> None:
    """Show a banner when the dataset gets a new version or is deleted."""
    dataset = snapshot.dataset
    notice = html.div(role="status").classes("inlay-live")
    known = dataset.version

    async def check() -> None:
        nonlocal known
        try:
            latest = (await visitor.read(lambda w: w.versions(dataset.id, 1))).items[0].version
        except NotFoundError:
            timer.cancel()
            _show_banner(notice, "This dataset was deleted.", "Back to datasets", "/")
        except UnauthorizedError:
            raise
        except InlayError:
            return  # The next check may succeed.
        else:
            if latest > known:
                known = latest
                text = f"Version {latest} is available."
                _show_banner(notice, text, f"View version {latest}", f"/datasets/{dataset.id}")

    timer = ui.timer(_POLL_SECONDS, report_errors(check))


def _show_banner(notice: ui.element, text: str, link: str, target: str) -> None:
    notice.clear()
    with notice, html.div().classes("inlay-banner"):
        html.span(text).classes("grow")
        ui.link(link, target)
