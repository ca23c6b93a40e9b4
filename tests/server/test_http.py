"""Common behavior of all requests: problems, limits, request ids, logs, metrics, documentation."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route

from inlay import errors
from inlay.server.middleware import JsonLines, PlainLines, request_id
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.service import TIMEOUT_SECONDS, Api, expect, expect_problem, running


# ------------------------------------------------------------------------------------------------------------- nothing
@pytest.mark.parametrize(
    "path", ["/v1/nope", "/v1/", "/v1/files/", "/v1/files/a/b", "/v1/datasets//", "/nope", "/v2/x"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PATCH"])
def test_an_unknown_path_is_a_problem(plain_api: Api, method: str, path: str) -> None:
    expect_problem(plain_api.http.request(method, path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/files", "GET, POST"),
        ("PUT", "/v1/query", "POST"),
        ("POST", "/v1/datasets/data_x", "DELETE, GET, PUT"),
        ("OPTIONS", "/v1/jobs/job_x", "DELETE, GET"),
        ("POST", "/healthz", "GET"),
    ],
)
def test_a_wrong_method_is_405_and_lists_the_allowed_methods(
    plain_api: Api, method: str, path: str, allowed: str
) -> None:
    answer = plain_api.http.request(method, path)
    expect_problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == allowed


def test_an_unknown_parameter_is_400(plain_api: Api) -> None:
    problem = expect_problem(plain_api.http.get("/v1/files?ofset=1&limit=1"), 400, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == ["ofset"]
    assert "offset" in problem["hint"]
    expect_problem(plain_api.http.get("/v1/jobs/job_x?a=1"), 400, "invalid_request")
    assert plain_api.http.get("/healthz?a=1").status_code == 200


def test_a_repeated_parameter_is_400(plain_api: Api) -> None:
    problem = expect_problem(plain_api.http.get("/v1/files?offset=x&limit=1&offset=2"), 400, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == ["offset"]


# -------------------------------------------------------------------------------------------------------------- bodies
@pytest.mark.parametrize(
    "content",
    [
        *(
            b"{",
            b"not json",
            b'{"sql": "SELECT 1"',
            b'"text"',
            b"[]",
            b"5",
            b"null",
            b"\xff\xfe",
            b'{"sql": "\\ud800"}',
        ),
        *(b"[" * 100_000, b'{"sql": ' + b"9" * 10_000 + b"}"),
    ],
)
def test_a_malformed_body_is_400(plain_api: Api, content: bytes) -> None:
    answer = plain_api.http.post("/v1/query", content=content, headers={"Content-Type": "application/json"})
    expect_problem(answer, 400)


@pytest.mark.parametrize(
    "body",
    [
        {"label": "x", "source": {"inline": {"format": "csv", "content": "a\n\ud800\n"}}},
        {"label": "\udfff", "source": {"inline": {"format": "csv", "content": "a\n1\n"}}},
        {"label": "a\0b", "source": {"inline": {"format": "csv", "content": "a\n1\n"}}},
        {
            "label": "x",
            "source": {"inline": {"format": "csv", "content": "a\n1\n"}},
            "schema": {"columns": [{"name": "\ud800", "type": "text"}]},
        },
    ],
    ids=["content", "label", "NUL", "column"],
)
def test_invalid_unicode_is_rejected_before_a_job_is_created(plain_api: Api, body: dict[str, Any]) -> None:
    answer = plain_api.http.post(
        "/v1/datasets", content=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    problem = expect_problem(answer, 400)
    assert "surrogate" in json.dumps(problem)
    assert plain_api.get("/v1/jobs")["count"] == 0


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx", "json"])
def test_a_body_that_is_not_json_is_415(plain_api: Api, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = plain_api.http.post("/v1/query", content=b'{"sql": "SELECT 1"}', headers=headers)
    assert "application/json" in expect_problem(answer, 415, "unsupported_media_type")["hint"]


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"])
def test_every_json_content_type_is_accepted(plain_api: Api, kind: str) -> None:
    answer = plain_api.http.post("/v1/query", content=b"{}", headers={"Content-Type": kind})
    expect_problem(answer, 400, "invalid_request")


def test_headers_have_a_limit(plain_api: Api) -> None:
    answer = plain_api.http.get("/v1/files", headers={"X-Long": "x" * 40_000})
    expect_problem(answer, 413, "request_too_large")
    assert plain_api.http.get("/v1/files", headers={"X-Long": "x" * 30_000}).status_code == 200


HALF = b"GET /healthz HTTP/1.1\r\nHost: local"


@pytest.mark.parametrize(("begun", "is_first"), [(b"", True), (HALF, True), (HALF, False)])
def test_incomplete_headers_time_out(
    plain_api: Api, monkeypatch: pytest.MonkeyPatch, begun: bytes, is_first: bool
) -> None:
    monkeypatch.setattr("inlay.server.protocol._HEADER_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", httpx.URL(plain_api.url).port), timeout=60) as connection:
        if not is_first:
            connection.sendall(HALF + b"host\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(begun)
        while connection.recv(65536):  # until the service closes the connection
            pass


_HEAD = b"Host: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_ENDLESS = {
    "a line": (b"GET /healthz?", b"x" * 1000),
    "headers": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n", b"a: b\r\n" * 100),
    "a header": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nx: ", b"x" * 1000),
    "trailers": (b"POST /v1/query HTTP/1.1\r\n" + _HEAD + b"0\r\n", b"a: b\r\n" * 100),
    "a chunk extension": (b"POST /v1/query HTTP/1.1\r\n" + _HEAD + b"1;", b"x" * 1000),
}


@pytest.mark.parametrize("kind", _ENDLESS)
def test_endless_headers_close_the_connection(plain_api: Api, kind: str) -> None:
    begin, more = _ENDLESS[kind]
    sent = 0
    with socket.create_connection(("127.0.0.1", httpx.URL(plain_api.url).port), timeout=60) as connection:
        connection.sendall(begin)
        with contextlib.suppress(ConnectionError):
            while sent < 10_000_000:
                connection.sendall(more)
                sent += len(more)
    assert sent < 10_000_000


def test_a_large_body_is_rejected_by_its_content_length(plain_api: Api) -> None:
    with socket.create_connection(("127.0.0.1", httpx.URL(plain_api.url).port)) as connection:
        head = b"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: 3000000"
        connection.sendall(b"POST /v1/query HTTP/1.1\r\n" + head + b"\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


# --------------------------------------------------------------------------------------------------------- unforeseen
def test_an_unexpected_error_is_500_without_internals(
    plain_api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the secret is Xanadu")

    monkeypatch.setattr(plain_api.workspace, "datasets", broken)
    answer = plain_api.http.get("/v1/datasets", headers={"X-Request-ID": "my-id"})
    problem = expect_problem(answer, 500, "failure")
    assert "Xanadu" not in answer.text
    assert "X-Request-ID" in problem["hint"]
    assert answer.headers["x-request-id"] == "my-id"
    [record] = [r for r in caplog.records if r.exc_info]
    assert "the secret is Xanadu" in str(record.exc_info)


def test_a_job_that_fails_unexpectedly_reveals_no_internals(
    plain_api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("the secret is Xanadu")

    monkeypatch.setattr(plain_api.workspace._conversions, "create", broken)
    answer = plain_api.try_to_create("a\n1\n")
    expect_problem(answer, 500, "failure")
    [job] = plain_api.get("/v1/jobs", state="failed", limit=1)["jobs"]
    assert job["error"]["code"] == "failure"
    assert "Xanadu" not in answer.text + json.dumps(job)
    assert "the secret is Xanadu" in caplog.text


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("CatalogUnavailableError", "The catalog is unavailable."),
        ("SparkUnavailableError", "No answer from db.internal."),
        ("StorageUnavailableError", "The storage is unavailable."),
        ("CommitStateUnknownError", "The catalog did not confirm the change. The change may be stored."),
    ],
)
def test_an_unavailable_part_is_503_and_only_the_log_has_addresses(
    plain_api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, detail: str
) -> None:
    def missing(*_: Any) -> Any:
        raise getattr(errors, name)("No answer from db.internal.")

    monkeypatch.setattr(plain_api.workspace, "datasets", missing)
    answer = plain_api.http.get("/v1/datasets")
    problem = expect_problem(answer, 503, getattr(errors, name).code)
    assert problem["detail"] == detail
    assert "db.internal" in caplog.text
    # Repeating a commit that may have taken place could change data twice.
    assert ("retry-after" in answer.headers) == (name != "CommitStateUnknownError")


# ------------------------------------------------------------------------------------------------------- ids and logs
@pytest.mark.parametrize("header", ["abc-123", "x" * 64, "A.b_c"])
def test_a_request_id_is_echoed(plain_api: Api, header: str) -> None:
    assert plain_api.http.get("/healthz", headers={"X-Request-ID": header}).headers["x-request-id"] == header


@pytest.mark.parametrize("header", [None, "", "x" * 65, "a b", "a:b", "<script>"])
def test_a_missing_or_invalid_request_id_is_generated(plain_api: Api, header: str | None) -> None:
    headers = {} if header is None else {"X-Request-ID": header}
    assert re.fullmatch("[0-9a-f]{32}", plain_api.http.get("/healthz", headers=headers).headers["x-request-id"])


def request_lines(caplog: pytest.LogCaptureFixture, count: int) -> list[logging.LogRecord]:
    """Wait for `count` log lines of requests. A client may see its response before the line."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        lines = [record for record in caplog.records if record.name == "inlay.requests"]
        if len(lines) >= count or time.monotonic() > deadline:
            return lines
        time.sleep(0.01)


def test_each_request_is_logged_on_one_line_without_secrets(plain_api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inlay")
    plain_api.http.get("/v1/files/upld_hidden")
    plain_api.http.post("/v1/query", json={"sql": "SELECT 'private'"})
    plain_api.http.post("/v1/query", json={"sql": "SELECT 1"}, headers={"Authorization": "Bearer very-secret"})
    lines = request_lines(caplog, 3)
    assert [getattr(r, "facts", {})["route"] for r in lines] == ["/v1/files/{upload_id}", "/v1/query", "(none)"]
    first = getattr(lines[0], "facts", {})
    assert set(first) == {"method", "route", "status", "ms", "bytes_in", "bytes_out"}
    assert (first["method"], first["status"]) == ("GET", 404)
    output = "".join(JsonLines().format(record) for record in caplog.records)
    for hidden in ("very-secret", "hidden", "private"):
        assert hidden not in output


def test_the_log_contains_no_messages_of_exceptions_or_other_libraries() -> None:
    """Both can contain text of a client."""
    try:
        try:
            raise ValueError("private")
        except ValueError as error:
            raise KeyError("private") from error
    except KeyError as error:
        failure = (KeyError, error, error.__traceback__)
    records = [
        logging.LogRecord("inlay.x", logging.ERROR, __file__, 1, "failed", (), failure),
        logging.LogRecord("asyncio", logging.ERROR, "/a/base_events.py", 7, "lost %s", ("private",), failure),
    ]
    for formatter in (JsonLines(), PlainLines()):
        own, other = map(formatter.format, records)
        assert "private" not in own + other
        assert "failed" in own
        assert "a message of asyncio, from base_events.py line 7" in other
        for text in ("KeyError", "ValueError", "test_http.py", "test_the_log_contains_no_messages"):
            assert text in own


def test_a_log_line_is_one_json_object() -> None:
    token = request_id.set("the-id")
    try:
        record = logging.LogRecord("inlay.x", logging.ERROR, "f", 1, "two\nlines %s", ("é",), None)
        record.facts = {"ms": 1.5}
        line = JsonLines().format(record)
    finally:
        request_id.reset(token)
    assert "\n" not in line
    fields = json.loads(line)
    assert fields.pop("time").endswith("+00:00")
    assert fields == {
        "level": "error", "logger": "inlay.x", "message": "two\nlines é", "request_id": "the-id", "ms": 1.5
    }  # fmt: skip


# --------------------------------------------------------------------------------------------------- the service itself
def test_health_and_readiness(plain_api: Api) -> None:
    assert plain_api.get("/healthz") == {"status": "ok"}
    found = expect(plain_api.http.get("/readyz"), 200)
    assert found["status"] == "ready"
    assert (found["parts"]["catalog"], found["parts"]["storage"]) == ("ready", "ready")
    assert found["parts"]["spark"] in ("not started", "ready")  # other tests of this process may have started it


def test_metrics(plain_api: Api) -> None:
    before = plain_api.http.get("/metrics").text
    plain_api.upload(b"x" * 1234)
    plain_api.http.get("/v1/files/upld_made_up")
    plain_api.http.request("BREW", "/v1/made-up/by/clients")
    answer = plain_api.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert uploaded(answer.text) - uploaded(before) == 1234
    assert 'inlay_http_requests_total{method="GET",route="/v1/files/{upload_id}",status="404"}' in answer.text
    assert 'inlay_http_request_seconds_bucket{le="0.005",method="POST",route="/v1/files"}' in answer.text
    assert 'inlay_jobs{state="succeeded"}' in answer.text
    assert "made" not in answer.text
    assert "BREW" not in answer.text


def uploaded(text: str) -> float:
    return float(re.findall(r"^inlay_uploaded_bytes_total (\S+)$", text, re.MULTILINE)[0])


@pytest.mark.parametrize("path", ["/docs", "/docs/errors"])
def test_the_documentation_pages_need_no_network(plain_api: Api, path: str) -> None:
    answer = plain_api.http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    loaded = re.findall(r"""(?:src|href)=["']([^"'#]+)|fetch\(["']([^"']+)""", answer.text)
    assert all((one or two).startswith("/") for one, two in loaded)
    assert "://" not in answer.text


def test_a_page_mounted_at_the_root_does_not_change_the_api(tmp_path: Path) -> None:
    workspace = Workspace(Settings(data_dir=str(tmp_path)))
    page = Starlette(routes=[Route("/{path:path}", lambda _: HTMLResponse("<h1>page</h1>", 404))])
    with running(workspace, spark=False, mounted=page) as api:
        assert api.http.get("/").text == "<h1>page</h1>"
        assert api.get("/v1/files")["uploads"] == []
        expect_problem(api.http.get("/v1/nope"), 404, "not_found")
        expect_problem(api.http.patch("/v1/files"), 405, "method_not_allowed")
        assert api.http.get("/docs").status_code == 200


def test_every_error_code_is_explained(plain_api: Api) -> None:
    page = plain_api.http.get("/docs/errors").text
    for name in errors.__all__:
        assert f'id="{getattr(errors, name).code}"' in page
    assert "The upload was already loaded" in page
