"""uvicorn's HTTP/1.1 protocol with limits on the time and the size of what is not a body, and on connections."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import sys
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from inlay.errors import ServiceBusyError
from inlay.server.middleware import MIN_BYTES_PER_SECOND
from inlay.server.problems import problem_response

__all__ = ["LimitedProtocol", "raise_file_limit"]

_HEADER_SECONDS = 15.0
_HEADER_BYTES = 64 << 10
_STALL_SECONDS = 60.0  # after which a client that reads too little of a response loses its connection
_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: discard unsent data
_MAX_FILES = 65_536
_OFFERED = (b"upgrade", b"http2-settings")  # headers with which a client offers another protocol
_MAX_OFFERS = 50  # in the requests of one piece of data
_OWN_FILES = 256  # open files that connections leave to the catalog, the storage, queries and Spark


def raise_file_limit() -> None:
    """Allow this process as many open files as the system lets it. The usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _max_connections() -> tuple[int, int]:
    """Return how many connections are served, and how many are accepted, to answer the others with 503."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _MAX_FILES if soft == resource.RLIM_INFINITY else min(soft, _MAX_FILES)
    own = min(_OWN_FILES, files // 2)
    return files - own, files - own // 2


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    error = ServiceBusyError("The service has too many open connections.", hint="Try again in a minute.")
    await problem_response(error, {"Connection": "close"})(scope, receive, send)


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections with slow or endless headers, or of clients that read too little. The parser has no limits.

    Limits the bytes of all headers and trailers of a request, and the bytes without the end of a header or of a chunk.
    A process that cannot open another file would fail requests in the middle, so it refuses connections before.
    """

    files_per_connection = 1
    _timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _header_bytes = 0
    _unfinished_bytes = 0
    _data = b""
    _offers = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        served, accepted = _max_connections()
        files = len(self.connections) * self.files_per_connection
        if files > accepted:
            transport.abort()
            return
        if files > served:
            self.app = _refuse
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        self._unfinished_bytes += len(data)
        self._data, self._offers = data, 0
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
        self._stop_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():  # it closes only after the client has read the response
            self._start_stall_timer()

    def timeout_keep_alive_handler(self) -> None:
        self._end()

    def _end(self) -> None:
        """Close the connection when the client has read the last response, or reads too little of it."""
        has_unread = self.transport.get_write_buffer_size() > 0
        self.transport.close()
        if has_unread:
            self._start_stall_timer()

    def _abort(self) -> None:
        """Reset the connection. Otherwise the kernel would keep the unread response for minutes."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

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
        if not self._ignores_offer():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished_bytes = 0
        if not self._ignores_offer():
            super().on_message_complete()

    def _ignores_offer(self) -> bool:
        """Return whether a client, such as Java's, offers a protocol that the service doesn't speak."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """Parse the request again without the offer, because the parser takes the body for data of that protocol."""
        stopped = sys.exc_info()[1]
        if not isinstance(stopped, HttpParserUpgrade) or not self._ignores_offer():
            return
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        kept = [(name, value) for name, value in self.headers if name not in (*_OFFERED, b"connection")]
        tokens = [token.strip() for name, value in self.headers if name == b"connection" for token in value.split(b",")]
        if tokens := [token for token in tokens if token.lower() not in _OFFERED]:
            kept.append((b"connection", b", ".join(tokens)))
        head = line + b"".join(b"%b: %b\r\n" % header for header in kept) + b"\r\n"
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in the base class
        self._data, self._offers = head + self._data[stopped.args[0] :], self._offers + 1
        if self._offers > _MAX_OFFERS:
            self.send_400_response("Too many requests at once offer another protocol.")
        else:
            super().data_received(self._data)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(_HEADER_SECONDS, self._end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_stall_timer(self) -> None:
        if self._stall_timer is None:
            unread = self.transport.get_write_buffer_size()
            self._stall_timer = self.loop.call_later(_STALL_SECONDS, self._check_stall, unread)

    def _check_stall(self, unread: int) -> None:
        """Abort, unless the client reads. A response in one piece can take longer than the time limit."""
        self._stall_timer = None
        if unread - self.transport.get_write_buffer_size() < _STALL_SECONDS * MIN_BYTES_PER_SECOND:
            self._abort()
        else:
            self._start_stall_timer()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
