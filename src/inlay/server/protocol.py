"""uvicorn's HTTP/1.1 protocol with limits on the time and the size of what is not a body."""

from __future__ import annotations

import asyncio
from typing import Any

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["LimitedProtocol"]

_HEADER_SECONDS = 15.0
_HEADER_BYTES = 64 << 10


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections with slow or endless headers. The parser itself has no limits.

    Limits the bytes of all headers and trailers of a request, and the bytes without the end of a header or of a chunk.
    """

    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _unfinished_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        super().data_received(data)
        if self._unfinished_bytes > _HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response("The request headers are too long.")
        cycle: Any = self.cycle  # None before the first request
        is_busy = cycle is not None and not cycle.response_complete
        if is_busy or self.transport.get_protocol() is not self:  # a web socket has its own protocol
            self._stop_timer()
        else:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._header_bytes = self._unfinished_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._unfinished_bytes = 0
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > _HEADER_BYTES:
            raise HttpParserError("the headers are too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._unfinished_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        super().on_message_complete()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_HEADER_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
