"""Mounts the page on the service's application, with security headers and a guarded socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator
from importlib import import_module, resources
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection

from inlay.errors import ForbiddenError
from inlay.server.auth import require_own_page
from inlay.server.problems import problem_response

if TYPE_CHECKING:
    from nicegui import App

    from inlay.server.dependencies import Service

__all__ = ["Protected", "mount"]

_PAGES = ("home", "dataset", "preview", "rejects", "load", "sql", "jobs", "status")

_SOCKET = "/_nicegui_ws"
_PAGE_HEADER = "x-nicegui-content"  # NiceGUI sets this header on the pages that it renders.
_POLICY_VIOLATION = 1008  # The close code of web sockets.
_RECONNECT_SECONDS = 30.0  # NiceGUI keeps the state of a page this long after its connection is lost.
# NiceGUI evaluates code, compiles templates and sets styles, and therefore needs `unsafe-eval` and `unsafe-inline`.
# A script injected through data has no nonce, and the browser contacts no other host.
_POLICY = (
    "default-src 'self'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Protected:
    """ASGI middleware that adds security headers and accepts sockets only from the service's own pages."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] == "websocket" or scope["path"].startswith(_SOCKET):
            try:
                await require_own_page(HTTPConnection(scope))
            except ForbiddenError as error:
                await _refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send if scope["type"] == "websocket" else _with_headers(send))


async def _refuse(error: ForbiddenError, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message[:100]})
    else:
        await problem_response(error)(scope, receive, send)


def _with_headers(send: Any) -> Any:
    """Wrap `send` to add security headers, and for pages a content security policy with a nonce."""
    nonce = secrets.token_urlsafe(16)
    started: dict[str, Any] = {}
    body = bytearray()

    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            if _PAGE_HEADER in headers:
                headers["Content-Security-Policy"] = _POLICY.format(nonce=nonce)
                started.update(message)
                return
        elif started:
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            page = bytes(body).replace(b"<script", f'<script nonce="{nonce}"'.encode())
            MutableHeaders(scope=started)["Content-Length"] = str(len(page))
            await send(started)
            message = {"type": "http.response.body", "body": page}
        await send(message)

    return send_with_headers


def mount(app: FastAPI) -> None:
    """Serve the page at every path that no route of the application handles.

    NiceGUI supports one application per process, so call this once per process.
    """
    page = _LazyPage(app.state.service)
    app.mount("/", page)
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state, page.lifespan():
            yield state

    app.router.lifespan_context = lifespan


class _LazyPage:
    """The page's application, built in the background. Early requests wait until it is ready."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._opening: asyncio.Task[FastAPI] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert self._opening is not None  # noqa: S101  (requests arrive only within the lifespan)
        app = await asyncio.shield(self._opening)
        await app(scope, receive, send)

    @contextlib.asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            self._opening = asyncio.create_task(self._open(stack))
            yield
            await asyncio.wait([self._opening])

    async def _open(self, stack: contextlib.AsyncExitStack) -> FastAPI:
        app = await anyio.to_thread.run_sync(_build, self._service)
        await stack.enter_async_context(app.router.lifespan_context(app))
        return app


def _build(service: Service) -> FastAPI:
    os.environ.setdefault("MATPLOTLIB", "false")  # Otherwise NiceGUI imports matplotlib if it is installed.
    from nicegui import app as pages
    from nicegui import run, ui, ui_run_with

    from inlay.web.shell import ICON

    pages.state.service = service
    pages.add_middleware(Protected)
    _register_pages(pages)
    host = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    ui.run_with(
        host,
        title="inlay",
        favicon=ICON,
        dark=None,
        language="en-US",
        reconnect_timeout=_RECONNECT_SECONDS,
        show_welcome_message=False,
    )
    # Without this, NiceGUI starts a process pool that inlay doesn't use and whose locks need shared memory.
    run.setup = lambda: None
    # Without this, NiceGUI searches all objects of the process for the server, to let a page shut it down. The search
    # can see a tuple that another thread is still building, and CPython then fails that thread with a SystemError.
    ui_run_with.gc = SimpleNamespace(get_objects=tuple)  # type: ignore[assignment, attr-defined]
    return host


def _register_pages(pages: App) -> None:
    """Import the module of every page, which registers the page."""
    from inlay.web.shell import STATIC, show_not_found

    pages.add_static_files(STATIC, str(resources.files("inlay.web").joinpath("static")))
    for kind in (404, RequestValidationError):
        pages.add_exception_handler(kind, show_not_found)
    for name in _PAGES:
        import_module(f"inlay.web.{name}")
