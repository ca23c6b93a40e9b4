"""Attacks from the network: requests without a key, shapes of bodies, other web sites, and forged headers."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.postgres import PostgresServer
from tests.service import Api, expect_problem, running

KEY = "key-of-the-service"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def catalog_url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create_database())


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, catalog_url: str) -> Iterator[Api]:
    data_dir = str(tmp_path_factory.mktemp("locked") / "data")
    with running(Workspace(Settings(data_dir=data_dir, catalog_url=catalog_url, api_keys=(KEY,))), spark=False) as api:
        yield api


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, catalog_url: str) -> Iterator[Api]:
    data_dir = str(tmp_path_factory.mktemp("open") / "data")
    with running(Workspace(Settings(data_dir=data_dir, catalog_url=catalog_url)), spark=False) as api:
        yield api


# ------------------------------------------------------------------------------------------------------ before the body
@pytest.mark.parametrize(
    "path", ["/v1/query", "/v1/datasets", "/v1/datasets/data_x/loads", "/v1/files", "/v1/files/upld_x/preview"]
)
def test_without_a_key_no_byte_of_the_body_is_read(locked: Api, path: str) -> None:
    """The service answers while the client still owes the whole body."""
    url = httpx.URL(locked.url)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n\r\n"
    with socket.create_connection((url.host, url.port or 80), timeout=20) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_body_for_signing_in_is_small(locked: Api) -> None:
    answer = locked.http.post("/v1/session", json={"key": "x" * 9000})
    problem = expect_problem(answer, 413, "request_too_large")
    assert "8,192 bytes" in problem["detail"]


# ---------------------------------------------------------------------------------------------------- shapes of bodies
def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (json.dumps({f"f{number}": 1 for number in range(150_000)}), "more than 1,000 fields"),
        (json.dumps({"sql": [0] * 600_000}, separators=(",", ":")), "more than 500,000 values"),
        ('{"sql": ' + nested(40) + "}", "more than 32 nested levels"),
        ('{"sql": ' + nested(100_000) + "}", "invalid JSON: depth limit"),
        ('{"sql": "\\ud800"}', "invalid JSON: no low surrogate"),
        ('{"sql": NaN}', "invalid JSON"),
    ],
    ids=["fields", "values", "depth", "great depth", "surrogate", "NaN"],
)
def test_bodies_of_unusual_shape_get_a_short_error(fresh: Api, body: str, reason: str) -> None:
    answer = fresh.http.post("/v1/query", content=body, headers=JSON)
    problem = expect_problem(answer, 400, "invalid_request")
    assert reason in problem["detail"]
    assert len(answer.content) < 1000


def test_an_error_lists_a_hundred_fields_at_most(fresh: Api) -> None:
    answer = fresh.http.post("/v1/query", json={f"{number} {'x' * 1000}": 1 for number in range(1000)})
    problem = expect_problem(answer, 400, "invalid_request")
    assert len(problem["errors"]) == 100
    assert len(answer.content) < 100_000


# ------------------------------------------------------------------------------------------------------ other web sites
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),  # a link on another site
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),  # an image or a script
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "null", "Host": ""}, 403),
    ],
)
def test_requests_of_other_sites_are_refused(fresh: Api, headers: dict[str, str], status: int) -> None:
    answer = fresh.http.get("/v1/files", headers=headers)
    assert answer.status_code == status
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("[::1]:8000", 200),
        ("127.0.0.1.", 403),
        ("127.0.0.1@evil.example", 403),
        ("evil.example#@127.0.0.1", 403),
        ("127.0.0.1:80:80", 403),
        ("127.0.0.1,evil.example", 403),
        ("127.0.0.1/evil.example", 403),
        ("localhost evil.example", 403),
        ("[::1]evil.example", 403),
        ("", 403),
    ],
)
def test_without_keys_only_loopback_names_are_served(fresh: Api, host: str, status: int) -> None:
    assert fresh.http.get("/v1/files", headers={"Host": host}).status_code == status


@pytest.mark.parametrize("path", ["/docs", "/docs/errors"])
def test_no_site_shows_the_documentation_in_a_frame(fresh: Api, path: str) -> None:
    headers = fresh.http.get(path).headers
    assert headers["X-Frame-Options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


# ---------------------------------------------------------------------------------------------------------------- local
def test_only_the_owner_reads_the_data_directory(fresh: Api) -> None:
    path = Path(fresh.workspace.settings.data_dir)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
