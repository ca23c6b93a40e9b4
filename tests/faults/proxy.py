"""A proxy on loopback that drops requests to S3, loses responses, or returns errors."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

_ERRORS = {
    500: ("InternalError", "We encountered an internal error."),
    503: ("SlowDown", "Please reduce your request rate."),
    409: ("ConditionalRequestConflict", "A conflicting operation is under way."),
}

# kind -> whether the k-th request is forwarded, and the status of the response (None resets the connection)
KINDS: dict[str, tuple[bool, int | None]] = {
    "reset": (False, None),
    "lost": (True, None),
    "500": (False, 500),
    "503": (False, 503),
    "409": (False, 409),
    "500 though done": (True, 500),
    "cut": (False, None),  # also drops all later requests
    "lost, then cut": (True, None),
}


# Returns the (status, code) of the error response to a request, from its method, path and headers, or None.
Rule: TypeAlias = Callable[[str, str, Mapping[str, str]], tuple[int, str] | None]


@dataclass
class Plan:
    """A fault at the k-th request, or a rule, and the requests that the proxy has received."""

    kind: str | None = None
    k: int = 0
    rule: Rule = lambda *_: None
    seen: list[str] = field(default_factory=list)
    fired: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self, request: str) -> tuple[bool, int | None] | None:
        """Record a request and return its action from `KINDS`, or None to forward it unchanged."""
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

    @contextlib.contextmanager
    def answer(self, rule: Rule) -> Iterator[Plan]:
        """Answer the requests that a rule selects with an error."""
        self.plan = Plan(rule=rule)
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
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore errors, because killed clients disconnect in the middle of a request."""


class _Handler(http.server.BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = self._read_chunks()
        action = self.proxy.plan.next(f"{self.command} {self.path}")
        if action is not None and not action[0]:
            self._send_fault(action[1])
            return
        if answer := self.proxy.plan.rule(self.command, self.path, self.headers):
            self._send_error_document(*answer, "The proxy answers this request.")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        status, names, content = self.proxy.forward(self.command, self.path, headers, body)
        if action is not None:
            self._send_fault(action[1])
        else:
            self._send_response(status, names, content)

    def _read_chunks(self) -> bytes:
        body = b""
        while size := int(self.rfile.readline().strip(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send_fault(self, status: int | None) -> None:
        if status is None:
            # With SO_LINGER 0, closing the connection resets it, so the client gets no response.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return
        self._send_error_document(status, *_ERRORS[status])

    def _send_error_document(self, status: int, code: str, message: str) -> None:
        text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
        self._send_response(status, [("Content-Type", "application/xml")], text.encode())

    def _send_response(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        declared = {name.lower(): value for name, value in headers}.get("content-length")
        length = declared if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Log nothing."""


for _method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._handle)
