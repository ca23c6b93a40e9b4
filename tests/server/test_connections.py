"""Connections that do not move, and more connections than the service can open files."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inlay.server import protocol
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.server.test_process import command, environment
from tests.server.test_process import running as running_program
from tests.service import TIMEOUT_SECONDS, Api, expect, expect_problem, running

LARGE = b"""{"sql": "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"}"""
DOCUMENT = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"


def post(path: bytes, body: bytes, more: bytes = b"") -> bytes:
    head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    return b"POST %b HTTP/1.1\r\n" % path + head + more + b"\r\n" + body


REQUESTS = {
    "a stream": post(b"/v1/query", LARGE),
    "a result in one piece": post(b"/v1/query", LARGE.replace(b"100000", b"14000")),
    "the last response": post(b"/v1/query", LARGE.replace(b"100000", b"14000"), b"Connection: close\r\n"),
    "pipelined requests": DOCUMENT * 50,
}


@contextlib.contextmanager
def connected(url: str, request: bytes, buffer: int = 2048) -> Iterator[socket.socket]:
    """Send a request on a connection with a small buffer for responses."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        connection.settimeout(TIMEOUT_SECONDS)
        connection.connect(("127.0.0.1", httpx.URL(url).port))
        connection.sendall(request)
        yield connection


def is_connected(connection: socket.socket) -> bool:
    """Return whether the peer has not closed or aborted a connection whose data nobody reads."""
    state = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state == 1  # established


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_client_that_reads_nothing_loses_its_connection(
    plain_api: Api, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(protocol, "_STALL_SECONDS", 0.3)
    with connected(plain_api.url, REQUESTS[kind]) as connection:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while is_connected(connection):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert plain_api.rows("SELECT 1") == [[1]]


@pytest.mark.parametrize("kind", ["a result in one piece", "the last response"])
def test_a_client_that_reads_slowly_gets_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Reading takes several times as long as the limits for clients that read too little and for idle connections."""
    monkeypatch.setattr(protocol, "_STALL_SECONDS", 0.5)
    monkeypatch.setattr("inlay.server.app._KEEP_ALIVE_SECONDS", 0.3)
    workspace = Workspace(Settings(data_dir=str(tmp_path)))
    with running(workspace, spark=False) as api, connected(api.url, REQUESTS[kind], 1 << 18) as connection:
        received = bytearray()
        while block := connection.recv(1 << 17):
            received += block
            time.sleep(0.02)
    assert received.count(b"x" * 1000) == 14_000


@pytest.mark.parametrize("path", [b"/v1/files", b"/v1/query", b"/v1/session"])
def test_a_body_that_trickles_in_times_out(plain_api: Api, monkeypatch: pytest.MonkeyPatch, path: bytes) -> None:
    """Each pause is short, but all pauses together are long."""
    monkeypatch.setattr("inlay.server.middleware.IDLE_SECONDS", 0.5)
    request = post(path, b" " * 8000)[:-8000]
    with connected(plain_api.url, request) as connection:
        connection.settimeout(0.05)
        answer = b""
        for _ in range(1000):
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(65536)
                break
            connection.sendall(b" ")
    assert answer.startswith(b"HTTP/1.1 408")


def test_a_service_with_too_many_connections_refuses_more_and_recovers(tmp_path: Path) -> None:
    files = 200
    limits = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))"
    start = "os.execv(sys.argv[1], sys.argv[1:])"
    limited = [sys.executable, "-c", f"{limits}; {start}", *command("--data-dir", str(tmp_path / "data"))]
    with running_program(limited, tmp_path) as found, contextlib.ExitStack() as stack:
        expect(httpx.get(f"{found.url}/v1/datasets", timeout=TIMEOUT_SECONDS), 200)
        for _ in range(2 * files):  # without a request
            stack.enter_context(socket.create_connection(("127.0.0.1", httpx.URL(found.url).port), TIMEOUT_SECONDS))
        with contextlib.suppress(httpx.TransportError):  # refused without a response
            expect_problem(httpx.get(f"{found.url}/healthz", timeout=TIMEOUT_SECONDS), 503, "service_busy")
        stack.close()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not _works(found.url):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert found.process.poll() is None


def test_connections_beyond_the_limit_get_a_problem(plain_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_max_connections", lambda: (0, 1000))
    with httpx.Client(base_url=plain_api.url) as other:
        answer = other.get("/healthz")
    expect_problem(answer, 503, "service_busy")
    assert (answer.headers["Connection"], answer.headers["Retry-After"]) == ("close", "5")


def test_connections_count_all_their_open_files(plain_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection of an HTTP process other than the main process can open another connection, to the main process."""
    monkeypatch.setattr(protocol, "_max_connections", lambda: (3, 1000))
    plain_api.get("/healthz")  # one connection that stays open
    for files, status in ((1, 200), (2, 503)):
        monkeypatch.setattr(protocol.LimitedProtocol, "files_per_connection", files)
        with socket.create_connection(("127.0.0.1", httpx.URL(plain_api.url).port), TIMEOUT_SECONDS) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 %d " % status)


def test_a_service_may_open_as_many_files_as_the_system_allows() -> None:
    program = (
        "import resource\nfrom inlay.server.protocol import raise_file_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\nraise_file_limit()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 300
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment()
    )
    assert done.stdout == "(300, 300)\n"


def _works(url: str) -> bool:
    try:
        answer = httpx.post(f"{url}/v1/query", json={"sql": "SELECT 1"}, timeout=TIMEOUT_SECONDS)
    except httpx.TransportError:
        return False
    return answer.status_code == 200 and answer.json()["rows"] == [[1]]


@pytest.mark.parametrize("pieces", [1, 2, 3], ids=["at once", "body apart", "head in pieces"])
@pytest.mark.parametrize("connection", [b"Upgrade, HTTP2-Settings", b"keep-alive, upgrade, http2-settings"])
def test_a_client_that_offers_another_protocol_is_answered_in_http(
    plain_api: Api, pieces: int, connection: bytes
) -> None:
    """Java's client offers HTTP/2 with its first request, and sends the body without waiting for an answer."""
    offer = b"Connection: %b\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n" % connection
    requests = [post(b"/v1/query", b'{"sql": "SELECT %d AS n"}' % number, offer) for number in (41, 42)]
    with connected(plain_api.url, b"") as client:
        for number, request in zip((41, 42), requests, strict=True):
            ends = {1: [], 2: [request.index(b"\r\n\r\n") + 4], 3: [30, request.index(b"\r\n\r\n") + 2]}[pieces]
            for start, end in itertools.pairwise([0, *ends, len(request)]):
                client.sendall(request[start:end])
                time.sleep(0.05)
            response = http.client.HTTPResponse(client)
            response.begin()
            assert response.status == 200
            assert json.loads(response.read())["rows"] == [[number]]


@pytest.mark.parametrize(("count", "answered"), [(3, 3), (300, 0)])
def test_pipelined_requests_that_offer_another_protocol_are_answered_up_to_a_limit(
    plain_api: Api, count: int, answered: int
) -> None:
    offer = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with connected(plain_api.url, offer * count) as client:
        received = client.recv(1 << 16)
        while answered and received.count(b"HTTP/1.1 200") < answered:
            received += client.recv(1 << 16)
        assert answered or b"HTTP/1.1 400" in received


def test_a_tunnel_is_refused(plain_api: Api) -> None:
    with connected(plain_api.url, b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
        assert client.recv(4096).startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
