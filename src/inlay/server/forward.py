"""Forwards requests and web sockets of an HTTP process to the main process, over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import httptools

from inlay.errors import ServiceStoppingError
from inlay.server.problems import problem_response

__all__ = ["Forwarding", "Tunnel"]

_BLOCK_BYTES = 1 << 16
_CONNECT_SECONDS = 10.0
_RETRY_SECONDS = 0.02
_FLUSH_SECONDS = 60.0  # for a client to read the rest of a web socket that has ended
_OF_CONNECTION = (b"connection", b"date", b"expect", b"keep-alive", b"transfer-encoding", b"upgrade")
_LOCAL_PATHS = ("/healthz", "/docs", "/docs/errors", "/openapi.json", "/login")
_LOCAL_POSTS = ("/v1/query", "/v1/files")


def _is_local(method: str, path: str) -> bool:
    """Return whether every process answers a request: reads, queries, uploads, and files from memory."""
    if path.startswith("/v1/"):
        return method in ("GET", "HEAD") or (method == "POST" and path in _LOCAL_POSTS)
    return path in _LOCAL_PATHS or path.startswith("/static/")


async def _connect(address: str) -> socket.socket:
    """Connect to the main process. Waits while its backlog is full, which event loops mistake for a connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(False)
    deadline = time.monotonic() + _CONNECT_SECONDS
    try:
        while True:
            try:
                connection.connect(address)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return connection
    except BaseException:
        connection.close()
        raise


# ------------------------------------------------------------------------------------------------------------ requests
class Forwarding:
    """ASGI middleware that forwards requests that only the main process answers, such as jobs and the page."""

    def __init__(self, app: Any, address: str) -> None:
        self._app, self._address = app, address

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or _is_local(scope["method"], scope["path"]):
            await self._app(scope, receive, send)
            return
        response = _Response(is_head=scope["method"] == "HEAD")
        try:
            reader, writer = await asyncio.open_unix_connection(sock=await _connect(self._address))
            sending = asyncio.create_task(_send_request(scope, receive, writer))
            try:
                async for message in response.messages(reader):
                    await send(message)
            finally:
                sending.cancel()
                writer.close()
        except (OSError, EOFError):
            if response.has_started:  # raise, so that the response does not look complete
                raise
            error = ServiceStoppingError("The main process of the service does not answer.", hint="Try again soon.")
            await problem_response(error)(scope, receive, send)


async def _send_request(scope: Any, receive: Any, writer: asyncio.StreamWriter) -> None:
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    names = [name for name, _ in scope["headers"]]
    is_chunked = b"transfer-encoding" in names
    headers = [(name, value) for name, value in scope["headers"] if name not in _OF_CONNECTION]
    # The main process must not close the connection after its response: it can respond before it has read the body, and
    # the rest of the body would then fail here before the response is read.
    headers += [(b"transfer-encoding", b"chunked")] if is_chunked else []
    writer.write(b"%b %b%b HTTP/1.1\r\n" % (scope["method"].encode(), scope["raw_path"], query))
    writer.write(b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n")
    with contextlib.suppress(ConnectionError):  # the main process may respond before it reads the body
        while (message := await receive())["type"] == "http.request":
            body = message.get("body", b"")
            writer.write(b"%x\r\n%b\r\n" % (len(body), body) if is_chunked and body else body)
            if is_chunked and not message.get("more_body"):
                writer.write(b"0\r\n\r\n")
            await writer.drain()
        writer.transport.abort()  # the client has disconnected


class _Response:
    """Parses a response into ASGI messages."""

    def __init__(self, *, is_head: bool) -> None:
        self.has_started = False
        self._is_head = is_head
        self._is_complete = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._parsed: list[dict[str, Any]] = []
        self._parser = httptools.HttpResponseParser(self)

    async def messages(self, reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
        while not self._is_complete:
            block = await reader.read(_BLOCK_BYTES)
            if not block:
                raise EOFError("The main process ended its response early.")
            self._parser.feed_data(block)
            parsed, self._parsed = self._parsed, []
            for message in parsed:
                self.has_started = True
                yield message

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _OF_CONNECTION:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        self._parsed.append({"type": "http.response.start", "status": status, "headers": self._headers})
        if self._is_head:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._parsed.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        if not self._is_complete:
            self._is_complete = True
            self._parsed.append({"type": "http.response.body", "body": b""})


# --------------------------------------------------------------------------------------------------------- web sockets
class _End(asyncio.Protocol):
    """One end of a tunnel. Writes what it receives to the other end."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.other: _End | None = None
        self._received: list[bytes] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def join(self, other: _End) -> None:
        self.other, other.other = other, self
        for data in self._received:
            other.transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._received.append(data)
        else:
            self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None:
            self.other.end()

    def end(self) -> None:
        """Close the connection. A client that reads nothing delays this only for a while."""
        self.transport.close()
        asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.transport.abort)


class Tunnel(_End):
    """The protocol of web sockets in an HTTP process: passes all bytes on to the main process."""

    def __init__(self, address: str, *, server_state: Any, **_: Any) -> None:
        super().__init__()
        self._address = address
        self._connections = server_state.connections

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._connections.add(self)
        transport.pause_reading()
        self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            connection = await _connect(self._address)
            _, other = await asyncio.get_running_loop().create_unix_connection(_End, sock=connection)
        except OSError:
            self.end()
        else:
            self.join(other)
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.discard(self)
        super().connection_lost(error)

    def shutdown(self) -> None:
        """End the tunnel when the process shuts down."""
        self.end()
