"""Forward and back through a long list."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from nicegui import ui

from inlay.web.shell import guarded

__all__ = ["pager"]


def pager(offset: int, shown: int, total: int, size: int, turn: Callable[[int], Awaitable[None]]) -> None:
    """Says which part is shown, and turns to the next; nothing if there is but one page."""
    if total <= size:
        return
    with ui.row().classes("items-center gap-2"):
        ui.label(f"{offset + 1:,} to {offset + shown:,} of {total:,}").classes("inlay-note")
        for name, target in (("Previous", offset - size), ("Next", offset + size)):
            button = ui.button(name, on_click=guarded(functools.partial(turn, target))).props("flat no-caps")
            button.set_enabled(0 <= target < total)
