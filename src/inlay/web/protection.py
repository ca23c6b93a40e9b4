"""What browsers are told to refuse on our behalf, and whom the page's socket does not talk to."""

from __future__ import annotations

import secrets
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection

from inlay.errors import ForbiddenError
from inlay.server.auth import require_own_page
from inlay.server.problems import response_of

__all__ = ["Protected"]

_SOCKET = "/_nicegui_ws"
_PAGE_MARK = "x-nicegui-content"  # NiceGUI's own header on the pages that it renders
_REFUSED = 1008  # web socket: against the rules
# The library evaluates the code that it sends and compiles templates, and sets styles: it needs these two exceptions.
# A script that data smuggles into a page that is open has no nonce; what the server renders is escaped. Nothing comes
# from or goes to another host.
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
    """Around the pages, inside whatever compresses them."""

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
        await self._app(scope, receive, send if scope["type"] == "websocket" else _protected(send))


async def _refuse(error: ForbiddenError, scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": _REFUSED, "reason": error.message[:100]})
    else:
        await response_of(error)(scope, receive, send)


def _protected(send: Any) -> Any:
    """Adds our headers, and to pages a policy with a nonce that only their own scripts know."""
    nonce = secrets.token_urlsafe(16)
    started: dict[str, Any] = {}
    body = bytearray()

    async def protected(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(_HEADERS)
            if _PAGE_MARK in headers:
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

    return protected
