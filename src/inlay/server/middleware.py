"""Around every request: an id, a line in the log, counters, limits, and an answer whatever happens."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect

from inlay.errors import InlayError, RequestTimeoutError, RequestTooLargeError, UnsupportedMediaTypeError
from inlay.server.metrics import Metrics
from inlay.server.problems import Answered, response_of, unexpected

__all__ = ["Limited", "Observed", "request_id"]

log = logging.getLogger("inlay.requests")
request_id: contextvars.ContextVar[str | None] = contextvars.ContextVar("inlay_request_id", default=None)

MAX_BODY_BYTES = 2 << 20
MAX_HEADER_BYTES = 32 << 10
IDLE_SECONDS = 60.0  # how long a client may be silent in the middle of a body
_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_UPLOADS = "/v1/files"
_JSON = re.compile(r"application/(?:[\w.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE)

Message = Any
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Receive, Send], Awaitable[None]]


# ------------------------------------------------------------------------------------------------------------ observed
@dataclass
class _Exchange:
    """What is known of a request and its answer when both are over."""

    id: str
    started: float = field(default_factory=time.perf_counter)
    status: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class Observed:
    def __init__(self, app: App, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(_id_of(Headers(scope=scope).get("x-request-id")))
        token = request_id.set(exchange.id)
        counted_in, counted_out = _counted(exchange, receive, send)
        try:
            await self._app(scope, counted_in, counted_out)
        except ClientDisconnect:
            exchange.status = exchange.status or 499
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if exchange.status:  # the answer has begun, and must not look complete
                raise
            await unexpected()(scope, counted_in, counted_out)
        finally:
            self._tell(scope, exchange)
            request_id.reset(token)

    def _tell(self, scope: Any, exchange: _Exchange) -> None:
        seconds = time.perf_counter() - exchange.started
        route = getattr(scope.get("route"), "path", None) or "(none)"
        self._metrics.answered(scope["method"], route, exchange.status, seconds)
        facts = {
            "method": scope["method"],
            "route": route,
            "status": exchange.status,
            "ms": round(seconds * 1000, 1),
            "bytes_in": exchange.bytes_in,
            "bytes_out": exchange.bytes_out,
        }
        log.info("%s %s %s", facts["method"], route, facts["status"], extra={"facts": facts})


def _id_of(given: str | None) -> str:
    return given if given is not None and _ID.fullmatch(given) else uuid.uuid4().hex


def _counted(exchange: _Exchange, receive: Receive, send: Send) -> tuple[Receive, Send]:
    async def counted_receive() -> Message:
        message = await receive()
        exchange.bytes_in += len(message.get("body", b""))
        return message

    async def counted_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = exchange.id
            headers["X-Content-Type-Options"] = "nosniff"
        exchange.bytes_out += len(message.get("body", b""))
        await send(message)

    return counted_receive, counted_send


# -------------------------------------------------------------------------------------------------------------- limits
class Limited:
    """Requests under /v1: headers are short, bodies come in time, and all but uploads are JSON that memory holds."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        most = None if scope["path"] == _UPLOADS else MAX_BODY_BYTES
        refused = _refused(Headers(scope=scope), most)
        if refused is not None:
            await response_of(refused)(scope, receive, send)
        else:
            await self._app(scope, _limited(receive, most), send)


def _refused(headers: Headers, most: int | None) -> InlayError | None:
    """What the headers alone tell against a request."""
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
        return RequestTooLargeError(f"The headers are larger than the {MAX_HEADER_BYTES:,} bytes that are allowed.")
    if most is None:
        return None
    length = headers.get("content-length", "")
    if length.isdigit() and int(length) > most:
        return _too_large(most)
    has_body = length not in ("", "0") or "transfer-encoding" in headers
    kind = headers.get("content-type", "")
    if has_body and not _JSON.fullmatch(kind):
        return UnsupportedMediaTypeError(
            f"The body must be JSON, not {kind[:100] or 'of no stated type'!r}.",
            hint="Send it with Content-Type: application/json.",
        )
    return None


def _too_large(most: int) -> RequestTooLargeError:
    return RequestTooLargeError(
        f"The body is larger than the {most:,} bytes that are allowed.",
        hint="Upload data with POST /v1/files and refer to it by upload_id.",
    )


def _limited(receive: Receive, most: int | None) -> Receive:
    size = 0
    whole = False

    async def limited() -> Message:
        nonlocal size, whole
        try:
            message = await (receive() if whole else asyncio.wait_for(receive(), IDLE_SECONDS))
        except TimeoutError:
            silence = RequestTimeoutError(f"Nothing came for {IDLE_SECONDS:.0f} seconds.")
            raise Answered(response_of(silence)) from None
        size += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if most is not None and size > most:
            raise Answered(response_of(_too_large(most)))
        return message

    return limited
