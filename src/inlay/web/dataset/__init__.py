"""One dataset: its rows, what its columns hold, its versions, and what can be done with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nicegui import html, ui

from inlay.errors import InlayError, NotFoundError, UnauthorizedError
from inlay.web import wording
from inlay.web.copying import CopyButton
from inlay.web.dataset.actions import ask_to_restore, show_actions
from inlay.web.dataset.columns import show_columns
from inlay.web.dataset.rows_view import show_rows
from inlay.web.dataset.schema import show_schema
from inlay.web.dataset.tabs import Tabs
from inlay.web.dataset.using import show_use
from inlay.web.dataset.versions import show_versions
from inlay.web.shell import guarded, page, style_with
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot

_LOOK_SECONDS = 3.0


@page("/datasets/{dataset_id}", "Dataset")
async def show(visitor: Visitor, dataset_id: str, version: int | None = None, tab: str = "rows") -> None:
    style_with("dataset.css")
    snapshot = await visitor.read(lambda w: w.dataset(dataset_id, version))
    may_write = await visitor.may("write")
    ui.page_title(f"{snapshot.dataset.label} · inlay")
    _show_head(visitor, snapshot, may_write=may_write)
    _show_older(visitor, snapshot, may_write=may_write)
    _watch(visitor, snapshot)
    _show_tabs(visitor, snapshot, tab, may_write=may_write)


def _show_head(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    dataset, version = snapshot.dataset, snapshot.version
    with html.div().classes("inlay-dataset-head"):
        with html.div().classes("inlay-dataset-names"):
            html.h1(dataset.label).classes("inlay-title")
            with html.div().classes("inlay-table-name"):
                html.code(f"datasets.{dataset.table_name}")
                CopyButton(f"datasets.{dataset.table_name}", "Copy the table name")
        show_actions(visitor, snapshot, may_write=may_write)
    with html.dl().classes("inlay-figures"):
        for name, value, title in (
            ("Rows", f"{version.row_count:,}", None),
            ("Size", wording.size(version.size_bytes), f"{version.size_bytes:,} bytes"),
            ("Version", f"{version.version}", None),
            ("Updated", wording.ago(version.created_at), f"{version.created_at:%Y-%m-%d %H:%M:%S} UTC"),
        ):
            with html.div():
                html.dt(name)
                html.dd(value, **({"title": title} if title else {}))


def _show_older(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    """Where somebody looks at what is not the current version, that is said."""
    dataset, version = snapshot.dataset, snapshot.version
    if version.version == dataset.version:
        return
    with html.div(role="note").classes("inlay-banner"):
        html.span(f"You look at version {version.version} of {dataset.version}.").classes("grow")
        ui.link("Show the current version", f"/datasets/{dataset.id}")
        if may_write:
            restore = guarded(lambda: ask_to_restore(visitor, snapshot, version))
            ui.button("Restore this version", on_click=restore).props("flat dense no-caps")


# ---------------------------------------------------------------------------------------------------------------- tabs
def _show_tabs(visitor: Visitor, snapshot: Snapshot, first: str, *, may_write: bool) -> None:
    contents: dict[str, tuple[str, Callable[[], Awaitable[None]]]] = {
        "rows": ("Rows", lambda: show_rows(visitor, snapshot)),
        "columns": ("Columns", lambda: show_columns(visitor, snapshot)),
        "schema": ("Schema", lambda: show_schema(snapshot)),
        "versions": ("Versions", lambda: show_versions(visitor, snapshot, may_write=may_write)),
        "use": ("Use it", lambda: show_use(visitor, snapshot)),
    }
    Tabs(contents, first if first in contents else "rows", lambda tab: _address(snapshot, tab))


def _address(snapshot: Snapshot, tab: str) -> str:
    dataset, version = snapshot.dataset, snapshot.version.version
    older = f"version={version}&" if version != dataset.version else ""
    return f"/datasets/{dataset.id}?{older}tab={tab}"


# ---------------------------------------------------------------------------------------------------------------- live
def _watch(visitor: Visitor, snapshot: Snapshot) -> None:
    """Say when somebody else has changed the dataset."""
    dataset = snapshot.dataset
    notice = html.div(role="status").classes("inlay-live")
    known = dataset.version

    async def look() -> None:
        nonlocal known
        try:
            newest = (await visitor.read(lambda w: w.versions(dataset.id, 1))).items[0].version
        except NotFoundError:
            timer.cancel()
            _tell(notice, "This dataset was deleted.", "Back to the datasets", "/")
        except UnauthorizedError:
            raise
        except InlayError:
            return  # it is only a look; another one follows
        else:
            if newest > known:
                known = newest
                _tell(notice, f"Version {newest} is there.", "Show it", f"/datasets/{dataset.id}")

    timer = ui.timer(_LOOK_SECONDS, guarded(look))


def _tell(notice: ui.element, words: str, link: str, target: str) -> None:
    notice.clear()
    with notice, html.div().classes("inlay-banner"):
        html.span(words).classes("grow")
        ui.link(link, target)
