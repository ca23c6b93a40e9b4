"""A drop zone for files, with progress, speed, time left and cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from nicegui import events
from nicegui.element import Element

__all__ = ["Uploaded", "Uploader"]


class Uploaded(NamedTuple):
    """A file that is in the storage now, and what it was called."""

    id: str
    name: str
    size: int


class Uploader(Element, component="uploader.js"):
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
            await on_uploaded(Uploaded(event.args["id"], event.args["name"], event.args["size"]))

        self.on("uploaded", tell)
