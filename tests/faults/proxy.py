"""A proxy on loopback that loses, refuses or cuts requests to an S3 server."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_ERRORS = {
    500: ("InternalError", "We encountered an internal error."),
    503: ("SlowDown", "Please reduce your request rate."),
    409: ("ConditionalRequestConflict", "A conflicting operation is under way."),
}

# what happens to the k-th request: is it forwarded, and what does the client get
KINDS: dict[str, tuple[bool, int | None]] = {
    "reset": (False, None),
    "lost": (True, None),
    "500": (False, 500),
    "503": (False, 503),
    "409": (False, 409),
    "500 though done": (True, 500),
    "cut": (False, None),  # and so is everything that follows
    "lost, then cut": (True, None),
}


@dataclass
class Plan:
    """One fault: what happens to which request, and what was seen of it."""

    kind: str | None = None
    k: int = 0
    seen: list[str] = field(default_factory=list)
    fired: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, request: str) -> tuple[bool, int | None] | None:
        """None: let it pass."""
        with self.lock:
            self.seen.append(request)
            index = len(self.seen)
            if self.kind is None or index < self.k:
                return None
            if index == self.k:
                self.fired = True
                return KINDS[self.kind]
            return (False, None) if self.kind.endswith("cut") else None


class Proxy:
    def __init__(self, host: str, port: int) -> None:
        self.plan = Plan()
        self._upstream = (host, port)
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def fault(self, kind: str | None, k: int = 0) -> Iterator[Plan]:
        self.plan = Plan(kind, k)
        try:
            yield self.plan
        finally:
            self.plan = Plan()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def forward(
        self, method: str, path: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(*self._upstream, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that are killed leave in the middle of a request."""


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._chunks()
        fate = self.proxy.plan.next(f"{self.command} {self.path}")
        if fate is not None and not fate[0]:
            self._answer_fault(fate[1])
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        status, names, content = self.proxy.forward(self.command, self.path, headers, body)
        if fate is not None:
            self._answer_fault(fate[1])
        else:
            self._answer(status, names, content)

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().strip(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer_fault(self, status: int | None) -> None:
        if status is None:
            # an answer that never comes: the connection is reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        code, message = _ERRORS[status]
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        self._answer(status, [("Content-Type", "application/xml")], text.encode())

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        stated = {name.lower(): value for name, value in headers}.get("content-length")
        length = stated if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Nothing on stderr."""


for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._handle)
