"""How programs get at a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import html, ui

from inlay.errors import UnauthorizedError
from inlay.server.auth import identify
from inlay.web.copying import CopyButton
from inlay.web.dataset.snippets import KEY_VARIABLE, Snippet, Target, snippets
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot

__all__ = ["show_use"]


async def show_use(visitor: Visitor, snapshot: Snapshot) -> None:
    target = await _target_of(visitor, snapshot)
    if target.needs_key:
        with html.div().classes("inlay-card inlay-key-note"):
            ui.label("This service asks for an API key.")
            ui.label(f"`inlay keys create NAME` makes one. Programs below take it from {KEY_VARIABLE}.")
    for snippet in snippets(target):
        _show(snippet)


async def _target_of(visitor: Visitor, snapshot: Snapshot) -> Target:
    """The dataset as this visitor reaches it."""
    is_current = snapshot.version.version == snapshot.dataset.version
    return Target(
        _origin(),
        snapshot.dataset.id,
        snapshot.dataset.table_name,
        version=None if is_current else snapshot.version.version,
        needs_key=await _needs_key(visitor),
        is_on_s3=snapshot.version.parquet_url.startswith("s3://"),
    )


def _origin() -> str:
    """Where the browser found this page: which scheme a proxy in front of the service speaks, only it knows."""
    client = ui.context.client
    return (client.environ or {}).get("HTTP_ORIGIN") or str(client.request.base_url).rstrip("/")


async def _needs_key(visitor: Visitor) -> bool:
    try:
        await identify(visitor.service, None)
    except UnauthorizedError:
        return True
    return False


def _show(snippet: Snippet) -> None:
    with html.section(**{"aria-label": snippet.title}).classes("inlay-card inlay-snippet"):
        with html.div().classes("inlay-snippet-head"):
            html.h3(snippet.title)
            CopyButton(snippet.code, f"Copy: {snippet.title}")
        html.p(snippet.note).classes("inlay-note")
        html.pre(snippet.code, tabindex=0).classes("inlay-code")
