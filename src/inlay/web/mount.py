"""Mounts the page on the service's application, with security headers and guarded sockets.

A page receives its content through a socket. Only the browser that loaded the page can use the page's socket: the
socket must send the browser cookie of the page's request, and its API key if the page has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mimetypes
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from importlib import import_module, resources
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import anyio.to_thread
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from inlay.errors import ForbiddenError, InlayError, NotFoundError, UnauthorizedError
from inlay.server.auth import SESSION_COOKIE, authenticate, require_own_page
from inlay.server.problems import problem_response

if TYPE_CHECKING:
    from nicegui import App, Client

    from inlay.server.dependencies import Service

__all__ = ["Protected", "mount", "mount_files"]

_PAGES = ("home", "dataset", "dataset.deletion", "dataset.diff", "preview", "rejects", "load", "sql", "jobs", "status")

STATIC = "/static"
_SOCKET = "/_nicegui_ws"
_PAGE_HEADER = "x-nicegui-content"  # NiceGUI sets this header on the pages that it renders.
_BROWSER_COOKIE = "inlay_browser"
_BROWSER = "inlay.browser"  # The key of the browser cookie's value in the scope of a request.
_BROWSER_VALUE = re.compile(r"[A-Za-z0-9_-]{32}")  # Of `secrets.token_urlsafe(24)`.
_POLICY_VIOLATION = 1008  # The close code of web sockets.
_OPEN_TIMEOUT_SECONDS = 20.0  # The workspace may still be opening.
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
    """ASGI middleware that sends strangers to the sign-in page, guards sockets, and adds security headers."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        if scope["type"] == "websocket" or scope["path"].startswith(_SOCKET):
            try:
                await require_own_page(connection)
                _require_own_socket(connection)
            except ForbiddenError as error:
                await _refuse(error, scope, receive, send)
                return
            await self._app(scope, receive, send)
            return
        try:
            await asyncio.wait_for(authenticate(connection), _OPEN_TIMEOUT_SECONDS)
        except UnauthorizedError as error:  # building a page costs much more than this answer
            await _ask_to_sign_in(error, connection)(scope, receive, send)
            return
        except (InlayError, TimeoutError):
            pass  # the page shows the error
        sent = connection.cookies.get(_BROWSER_COOKIE, "")
        is_known = _BROWSER_VALUE.fullmatch(sent) is not None
        scope[_BROWSER] = sent if is_known else secrets.token_urlsafe(24)
        await self._app(scope, receive, _with_headers(scope, send, sets_cookie=not is_known))


def _ask_to_sign_in(error: UnauthorizedError, connection: HTTPConnection) -> Response:
    if connection.url.path.startswith("/_nicegui"):
        return problem_response(error)
    response = RedirectResponse(login_address(connection), status_code=303, headers=_HEADERS)
    if SESSION_COOKIE in connection.cookies:  # a key that is invalid now
        response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response


def login_address(connection: HTTPConnection) -> str:
    """Return the address of the sign-in page, from which the visitor returns to the requested page."""
    return f"/login?next={quote(address_of(connection))}"


def address_of(connection: HTTPConnection) -> str:
    return connection.url.path + (f"?{connection.url.query}" if connection.url.query else "")


async def _refuse(error: ForbiddenError, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": error.message[:100]})
    else:
        await problem_response(error)(scope, receive, send)


def _with_headers(scope: Any, send: Any, *, sets_cookie: bool) -> Any:
    """Wrap `send` to add security headers, and for pages a content security policy and a new browser cookie."""
    secure = "; Secure" if scope["scheme"] == "https" else ""
    cookie = f"{_BROWSER_COOKIE}={scope[_BROWSER]}; HttpOnly; Path=/; SameSite=Lax{secure}"
    nonce = secrets.token_urlsafe(16)
    started: dict[str, Any] = {}
    body = bytearray()

    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            if _PAGE_HEADER in headers:
                headers["Content-Security-Policy"] = _POLICY.format(nonce=nonce)
                if sets_cookie:
                    headers.append("Set-Cookie", cookie)
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


# -------------------------------------------------------------------------------------------------------------- sockets
def _require_own_socket(connection: HTTPConnection) -> None:
    """Raise if a request opens a socket without the cookie of a page, or continues a socket of someone else."""
    from nicegui import core

    if _BROWSER_VALUE.fullmatch(connection.cookies.get(_BROWSER_COOKIE, "")) is None:
        raise ForbiddenError("Sockets require the cookie of a page.", hint="Load a page first, with cookies allowed.")
    opened = core.sio.environ.get(connection.query_params.get("sid"))
    if opened is not None and _identity(cookie_parser(opened.get("HTTP_COOKIE", ""))) != _identity(connection.cookies):
        raise ForbiddenError("This socket belongs to another browser or API key.", hint="Reload the page.")


def _identity(cookies: Mapping[str, str]) -> tuple[str | None, str | None]:
    return cookies.get(_BROWSER_COOKIE), cookies.get(SESSION_COOKIE)


def _may_connect(environ: Mapping[str, Any] | None, client: Client) -> bool:
    """Return whether a socket may receive the content of a page.

    A page without an API key has nothing to hide from a browser that has signed in since.
    """
    browser, key = _identity(cookie_parser((environ or {}).get("HTTP_COOKIE", "")))
    page_key = client.request.cookies.get(SESSION_COOKIE)
    return browser == client.request.scope[_BROWSER] and page_key in (None, key)


def _guard_sockets() -> None:
    """Let sockets use only the pages of their own browser and API key. NiceGUI lets any socket use any page."""
    from nicegui import Client, core

    accept = Client.accept_handshake

    def accept_own(self: Client, socket_id: str, tab_id: str, environ: dict[str, Any] | None) -> bool:
        return _may_connect(environ, self) and accept(self, socket_id, tab_id, environ)

    Client.accept_handshake = accept_own  # type: ignore[method-assign]
    handlers = core.sio.handlers["/"]
    del handlers["log"]  # It would write text of the browser to the log of the service.
    for event in ("event", "javascript_response", "ack"):
        handlers[event] = _for_own_page(handlers[event])


def _for_own_page(handle: Callable[[str, dict[str, Any]], None]) -> Callable[[str, Any], None]:
    """Wrap a handler of messages to ignore those for pages that the sender is not connected to."""
    from nicegui import core

    def handle_own(socket_id: str, message: Any) -> None:
        if isinstance(message, dict) and message.get("client_id") in core.sio.rooms(socket_id):
            handle(socket_id, message)

    return handle_own


# --------------------------------------------------------------------------------------------------------- application
def mount(app: FastAPI) -> None:
    """Serve the page at every path that no route of the application handles.

    NiceGUI supports one application per process, so call this once per process.
    """
    mount_files(app)
    page = _LazyPage(app.state.service)
    app.mount("/", page)
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with inner(app) as state, page.lifespan():
            yield state

    app.router.lifespan_context = lifespan


def mount_files(app: FastAPI) -> None:
    """Serve the sign-in page and the files of all pages."""
    files = _StaticFiles()
    app.mount(STATIC, files)
    app.router.routes.append(Route("/login", files, include_in_schema=False))


class _StaticFiles:
    """Answers requests for files of `static/` from memory. Anyone can send such requests, so they must cost little."""

    def __init__(self) -> None:
        folder = resources.files("inlay.web").joinpath("static")
        self._files = {file.name: _StaticFile.of(file.name, file.read_bytes()) for file in folder.iterdir()}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        name = scope["path"].rpartition("/")[2]
        file = self._files.get("login.html" if name == "login" else name)
        if file is None or scope["method"] not in ("GET", "HEAD"):
            await problem_response(NotFoundError("This file does not exist."))(scope, receive, send)
            return
        sent = dict(scope["headers"]).get(b"if-none-match")
        status, body = (304, b"") if sent == file.tag else (200, file.content)
        # httptools refuses a response whose body is shorter than its Content-Length, also if the status is 304.
        headers = [header for header in file.headers if status == 200 or header[0] != b"content-length"]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


class _StaticFile(NamedTuple):
    content: bytes
    tag: bytes
    headers: list[tuple[bytes, bytes]]

    @classmethod
    def of(cls, name: str, content: bytes) -> _StaticFile:
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {
            "Content-Type": mimetypes.guess_type(name)[0] or "application/octet-stream",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-cache",
            "ETag": tag,
            "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
            **_HEADERS,
        }
        return cls(content, tag.encode(), [(name.lower().encode(), value.encode()) for name, value in headers.items()])


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
    _guard_sockets()
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
    from inlay.web.shell import show_not_found

    for kind in (404, RequestValidationError):
        pages.add_exception_handler(kind, show_not_found)
    for name in _PAGES:
        import_module(f"inlay.web.{name}")
