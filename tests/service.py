"""A running service for the tests: uvicorn on a free port of loopback, over real storage, catalog and Spark."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from inlay.server import create_app, make_server
from inlay.server.dependencies import Service
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.spark import cluster

STANDS = ("sqlite-disk", "postgresql-s3")
PATIENCE = 120.0


@dataclass
class Api:
    """A client of a running service, with the words of its use cases."""

    url: str
    workspace: Workspace
    service: Service
    http: httpx.Client

    def upload(self, content: bytes | str, content_type: str | None = "text/csv", **headers: str) -> str:
        """The id of a new upload."""
        told = {"Content-Type": content_type} if content_type else {}
        data = content.encode() if isinstance(content, str) else content
        answer = self.http.post("/v1/files", content=data, headers=told | headers)
        return str(expect(answer, 201)["id"])

    def create(self, source: str | dict[str, Any], label: str = "some data", **more: Any) -> dict[str, Any]:
        """A new dataset, of CSV text or of a source."""
        return expect(self.try_to_create(source, label, **more), 201)

    def try_to_create(self, source: str | dict[str, Any], label: str = "some data", **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        return self.http.post(
            "/v1/datasets", json={"label": label, "source": source_of(source), **more}, headers=headers
        )

    def load(self, dataset_id: str, source: str | dict[str, Any], strategy: str, *key: str, **more: Any) -> Any:
        return expect(self.try_to_load(dataset_id, source, strategy, *key, **more), 200 if more.get("dry_run") else 201)

    def try_to_load(
        self, dataset_id: str, source: str | dict[str, Any], strategy: str, *key: str, **more: Any
    ) -> httpx.Response:
        headers = more.pop("headers", {})
        body = {"source": source_of(source), "strategy": strategy, **({"key_columns": key} if key else {}), **more}
        return self.http.post(f"/v1/datasets/{dataset_id}/loads", json=body, headers=headers)

    def rows(self, sql: str) -> list[list[Any]]:
        found: list[list[Any]] = expect(self.http.post("/v1/query", json={"sql": sql}), 200)["rows"]
        return found

    def get(self, path: str, **params: Any) -> Any:
        return expect(self.http.get(path, params=params), 200)

    def wait(self, job: dict[str, Any]) -> dict[str, Any]:
        """The job when it has ended."""
        deadline = time.monotonic() + PATIENCE
        while job["state"] in ("queued", "running"):
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
            job = self.get(f"/v1/jobs/{job['id']}")
        return job

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.http.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def files(self) -> set[str]:
        """Everything in the storage."""
        return {file.path for top in ("uploads", "datasets") for file in self.workspace.storage.files_below(top)}


def source_of(source: str | dict[str, Any]) -> dict[str, Any]:
    return source if isinstance(source, dict) else {"inline": {"format": "csv", "content": source}}


def expect(answer: httpx.Response, status: int) -> Any:
    """The JSON of an answer that has this status."""
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def expect_problem(answer: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """The problem document of an answer, which is whole."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem: dict[str, Any] = expect(answer, status)
    assert {"type", "title", "status", "detail", "code"} <= set(problem)
    assert problem["status"] == status
    assert problem["type"] == f"/docs/errors#{problem['code']}"
    assert code is None or problem["code"] == code, problem
    return problem


@contextlib.contextmanager
def running(workspace: Workspace, *, spark: bool = True, mounted: Any = None) -> Iterator[Api]:
    """Serve the workspace in a thread of this process. Its Spark session is the process's, and stays."""
    workspace.spark.close = lambda: None  # type: ignore[method-assign]
    if not spark:
        workspace.spark.warm = lambda: None  # type: ignore[method-assign]
    app = create_app(workspace)
    if mounted is not None:
        app.mount("/", mounted)
    listener = socket.create_server(("127.0.0.1", 0))
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            yield Api(url, workspace, app.state.service, client)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def settings_for(stand: str, request: pytest.FixtureRequest, directory: Path, **more: Any) -> Settings:
    """What a service stands on: SQLite and a disk, or PostgreSQL and S3."""
    where = {"data_dir": str(directory), "spark_master": "local[2]"}
    if stand == "postgresql-s3":
        server = request.getfixturevalue("postgres")
        where |= {
            "catalog_url": server.url(server.create_database()),
            "storage_url": request.getfixturevalue("s3").bucket() + "/inlay",
        }
    return Settings(**where, **({"delete_grace_seconds": 0.0, "lease_seconds": 5.0} | more))


@pytest.fixture(scope="module", params=STANDS)
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service with Spark; tests make datasets of their own in it."""
    cluster.local_session()
    settings = settings_for(request.param, request, tmp_path_factory.mktemp("service"), max_upload_bytes=4 << 20)
    with running(Workspace(settings)) as found:
        yield found


@pytest.fixture(scope="module")
def plain_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service on a disk whose Spark is never asked for."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("plain")), spark_master="local[2]")
    with running(Workspace(settings), spark=False) as found:
        yield found


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Server-sent events: name and data."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
