"""The page on the service's application. Its libraries take a second to import, so it opens in the background."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from fastapi import FastAPI

if TYPE_CHECKING:
    from inlay.server.service import Service

__all__ = ["mount"]

_KEPT_SECONDS = 30.0  # what somebody was doing on a page whose connection is lost


def mount(app: FastAPI) -> None:
    """Serve the page for every path that no route of the application takes.

    The page's library keeps one page for each process; so does this.
    """
    page = _Page(app.state.service)
    app.mount("/", page)
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state, page.living():
            yield state

    app.router.lifespan_context = lifespan


class _Page:
    """An application that may not be there yet: who comes early waits."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._opening: asyncio.Task[FastAPI] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._opening is not None  # noqa: S101 - requests come only while it lives
        app = await asyncio.shield(self._opening)
        await app(scope, receive, send)

    @contextlib.asynccontextmanager
    async def living(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            self._opening = asyncio.create_task(self._open(stack))
            yield
            await asyncio.wait([self._opening])

    async def _open(self, stack: contextlib.AsyncExitStack) -> FastAPI:
        app = await anyio.to_thread.run_sync(_make, self._service)
        await stack.enter_async_context(app.router.lifespan_context(app))
        return app


def _make(service: Service) -> FastAPI:
    os.environ.setdefault("MATPLOTLIB", "false")  # NiceGUI would import it wherever it is installed
    from nicegui import app as pages
    from nicegui import run, ui, ui_run_with

    from inlay.web import routes
    from inlay.web.protection import Protected

    pages.state.service = service
    pages.add_middleware(Protected)
    routes.register()
    host = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        host,
        title="inlay",
        favicon=routes.ICON,
        dark=None,
        language="en-US",
        reconnect_timeout=_KEPT_SECONDS,
        show_welcome_message=False,
    )
    # NiceGUI would make a pool of processes that nothing here uses, and whose locks need shared memory.
    run.setup = lambda: None
    # NiceGUI would look through all objects of the process for the server, which only a shutdown by the page needs.
    # A tuple that another thread is building must not be seen there: CPython fails that thread with a SystemError.
    ui_run_with.gc = SimpleNamespace(get_objects=tuple)  # type: ignore[assignment, attr-defined]
    return host
