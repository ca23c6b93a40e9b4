"""Authentication, scopes and requests from other web sites."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from inlay.errors import CatalogUnavailableError, InvalidArgumentError
from inlay.server import serve
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.service import Api, expect, expect_problem, running

STATIC = "a-static-key-of-the-settings"


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Api]:
    """A service with one static API key."""
    with running(Workspace(Settings(data_dir=str(tmp_path), api_keys=("another", STATIC))), spark=False) as api:
        assert api.http.get("/v1/files", headers=bearer(STATIC)).json()["uploads"] == []  # the workspace is open
        yield api


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Api]:
    """A service without API keys."""
    with running(Workspace(Settings(data_dir=str(tmp_path))), spark=False) as api:
        assert api.get("/v1/files")["uploads"] == []
        yield api


def test_without_keys_everything_is_open(fresh: Api) -> None:
    assert fresh.upload("a\n1\n")


def test_a_wrong_key_is_rejected_also_by_an_open_service(fresh: Api) -> None:
    expect_problem(fresh.http.get("/v1/files", headers=bearer("whatever")), 401, "unauthorized")
    expect_problem(fresh.http.get("/v1/files", headers={"Cookie": "inlay_key=whatever"}), 401, "unauthorized")
    assert fresh.http.get("/v1/files").status_code == 200


@pytest.mark.parametrize("headers", [{}, bearer("wrong"), {"Authorization": f"Basic {STATIC}"}])
def test_with_keys_requests_without_a_key_are_rejected(locked: Api, headers: dict[str, str]) -> None:
    for method, path in [("GET", "/v1/files"), ("POST", "/v1/query"), ("GET", "/metrics"), ("GET", "/v1/jobs")]:
        body = {"json": {"sql": "SELECT 1"}} if method == "POST" else {}
        answer = locked.http.request(method, path, headers=headers, **body)  # type: ignore[arg-type]
        problem = expect_problem(answer, 401, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert STATIC not in str(problem)
    assert locked.http.get("/healthz").status_code == 200
    assert locked.http.get("/openapi.json").status_code == 200


def test_a_static_key_has_all_scopes(locked: Api) -> None:
    answer = locked.http.post("/v1/files", content=b"x", headers=bearer(STATIC))
    assert expect(answer, 201)["size_bytes"] == 1
    assert locked.http.get("/v1/files", headers=bearer("another")).status_code == 200


def test_a_stored_key_closes_the_service_for_good(fresh: Api) -> None:
    made = fresh.workspace.catalog.api_keys.create("mine")
    expect_problem(fresh.http.get("/v1/files"), 401, "unauthorized")
    assert fresh.http.get("/v1/files", headers=bearer(made.secret)).status_code == 200
    fresh.workspace.catalog.api_keys.revoke(made.key.id)
    for headers in ({}, bearer(made.secret)):  # no valid key is left
        expect_problem(fresh.http.get("/v1/files", headers=headers), 401, "unauthorized")


def test_the_use_of_a_key_is_recorded(fresh: Api) -> None:
    made = fresh.workspace.catalog.api_keys.create("mine")
    assert fresh.http.get("/v1/files", headers=bearer(made.secret)).status_code == 200
    assert fresh.workspace.catalog.api_keys.list().items[0].last_used_at is not None


def test_scopes(fresh: Api) -> None:
    reader = bearer(fresh.workspace.catalog.api_keys.create("reads", ["read"]).secret)
    writer = bearer(fresh.workspace.catalog.api_keys.create("writes", ["write"]).secret)
    assert fresh.http.get("/v1/files", headers=reader).status_code == 200
    assert fresh.http.get("/metrics", headers=reader).status_code == 200
    problem = expect_problem(fresh.http.post("/v1/files", content=b"x", headers=reader), 403, "forbidden")
    assert "write" in problem["detail"]
    assert fresh.http.post("/v1/files", content=b"x", headers=writer).status_code == 201
    expect_problem(fresh.http.get("/v1/files", headers=writer), 403, "forbidden")
    for method, path, body in [
        ("POST", "/v1/datasets", {"label": "x", "source": {"sql": "SELECT 1"}}),
        ("PUT", "/v1/datasets/data_x", {"label": "x"}),
        ("DELETE", "/v1/datasets/data_x", None),
        ("POST", "/v1/datasets/data_x/loads", {"source": {"sql": "SELECT 1"}, "strategy": "append"}),
        ("POST", "/v1/datasets/data_x/restore", {"version": 1}),
        ("DELETE", "/v1/files/upld_x", None),
        ("DELETE", "/v1/jobs/job_x", None),
    ]:
        expect_problem(fresh.http.request(method, path, json=body, headers=reader), 403, "forbidden")
    expect_problem(fresh.http.post("/v1/files/upld_x/preview", headers=reader), 404, "not_found")


def test_a_write_only_key_sees_no_rows(fresh: Api) -> None:
    """Neither rows of a query source nor rows of a plan."""
    writer = bearer(fresh.workspace.catalog.api_keys.create("writes", ["write"]).secret)
    query, inline = {"sql": "SELECT 1"}, {"inline": {"format": "csv", "content": "a\n1\n"}}
    load = "/v1/datasets/data_x/loads"
    for path, body in [
        ("/v1/datasets", {"label": "x", "source": query}),
        (load, {"source": query, "strategy": "append"}),
        (load, {"source": inline, "strategy": "append", "dry_run": True}),
    ]:
        problem = expect_problem(fresh.http.post(path, json=body, headers=writer), 403, "forbidden")
        assert "lacks the scope 'read'" in problem["detail"]
    expect_problem(
        fresh.http.post(load, json={"source": inline, "strategy": "append"}, headers=writer), 404, "not_found"
    )


def test_a_request_without_a_key_is_rejected_before_its_body_is_read(locked: Api) -> None:
    answer = locked.http.post("/v1/files", content=(b"x" * 65536 for _ in range(100)))
    expect_problem(answer, 401, "unauthorized")
    assert locked.files() == set()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_an_open_service_rejects_requests_from_other_web_sites(fresh: Api, headers: dict[str, str]) -> None:
    expect_problem(fresh.http.get("/v1/files", headers=headers), 403, "forbidden")
    expect_problem(fresh.http.post("/v1/files", content=b"x", headers=headers), 403, "forbidden")


def test_an_open_service_accepts_requests_from_its_own_pages(fresh: Api) -> None:
    host = httpx.URL(fresh.url).netloc.decode()
    for headers in (
        {"Origin": fresh.url},
        {"Host": "localhost"},
        {"Host": "inlay.localhost:1"},
        {"Host": "[::1]:8000"},
    ):
        assert fresh.http.get("/v1/files", headers={"Host": host} | headers).status_code == 200


def test_readiness_shows_reasons_to_readers_only(locked: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked.workspace, "health", lambda: {"catalog": "no route to db.internal", "spark": "ready"})
    stranger = expect(locked.http.get("/readyz"), 503)
    assert stranger == {"status": "not ready", "parts": {"catalog": "not ready", "spark": "ready"}}
    friend = expect(locked.http.get("/readyz", headers=bearer(STATIC)), 503)
    assert friend["parts"]["catalog"] == "no route to db.internal"


def test_unauthenticated_callers_do_not_see_the_catalog_address(fresh: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_: str) -> None:
        raise CatalogUnavailableError("The catalog at postgresql://db.internal cannot be used: no route.")

    monkeypatch.setattr(fresh.workspace.catalog.api_keys, "verify", away)
    problem = expect_problem(fresh.http.get("/v1/files", headers=bearer("made-up")), 503, "catalog_unavailable")
    assert "db.internal" not in json.dumps(problem)


def test_concurrent_readiness_requests_share_one_check(fresh: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []

    def look() -> dict[str, str]:
        looks.append(time.monotonic())
        time.sleep(0.5)
        return {"catalog": "ready"}

    monkeypatch.setattr(fresh.workspace, "health", look)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: fresh.http.get("/readyz").status_code, range(10)))
    assert (answers, len(looks)) == ([200] * 10, 1)


def test_idempotency_keys_belong_to_their_api_key(fresh: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    scopes: list[Any] = []

    def create(_: Any, *, idempotency_key: str, scope: str) -> Any:
        scopes.append((idempotency_key, scope))
        raise InvalidArgumentError("enough")

    monkeypatch.setattr(fresh.workspace, "create_dataset", create)
    keys = [fresh.workspace.catalog.api_keys.create(name) for name in ("one", "two")]
    for key in keys:
        fresh.try_to_create("a\n1\n", headers=bearer(key.secret) | {"Idempotency-Key": "same"})
    assert scopes == [("same", key.key.id) for key in keys]


def test_serve_beyond_loopback_requires_keys(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="open to everyone"):
        serve(Settings(host="0.0.0.0", port=0, data_dir=str(tmp_path)))
