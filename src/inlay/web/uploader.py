"""A drop zone for files, with progress, speed, time left and cancel."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import unquote

from nicegui import events
from nicegui.element import Element

__all__ = ["Uploaded", "Uploader", "name_of"]

_NAME = re.compile(r';\s*name="([^"]*)"', re.IGNORECASE)


class Uploaded(NamedTuple):
    """A file that is in the storage now, and what it was called; `is_alone` if it was chosen without others."""

    id: str
    name: str
    size: int
    is_alone: bool


class Uploader(Element, component="uploader.js"):
    """Takes files from anywhere on the page that has it."""

    def __init__(
        self,
        on_uploaded: Callable[[Uploaded], Awaitable[None]],
        *,
        multiple: bool = True,
        text: str = "Drop files here, or click to choose",
    ) -> None:
        super().__init__()
        self._props["multiple"] = multiple
        self._props["text"] = text

        async def tell(event: events.GenericEventArguments) -> None:
            await on_uploaded(Uploaded(**event.args))

        self.on("uploaded", tell)


def name_of(content_type: str | None) -> str | None:
    """What an upload's file was called, which the drop zone says in a parameter of the content type."""
    found = _NAME.search(content_type or "")
    return unquote(found[1]).strip() or None if found else None
