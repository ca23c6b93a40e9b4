"""A running service for tests, with real storage, catalog and Spark."""

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

BACKENDS = ("sqlite-disk", "postgresql-s3")
TIMEOUT_SECONDS = 120.0


@dataclass
class Api:
    """A client of a running service, with a method for each kind of request."""

    url: str
    workspace: Workspace
    service: Service
    http: httpx.Client

    def upload(self, content: bytes | str, content_type: str | None = "text/csv", **headers: str) -> str:
        """Upload content and return the id of the upload."""
        type_header = {"Content-Type": content_type} if content_type else {}
        data = content.encode() if isinstance(content, str) else content
        response = self.http.post("/v1/files", content=data, headers=type_header | headers)
        return str(expect(response, 201)["id"])

    def create(self, source: str | dict[str, Any], label: str = "some data", **more: Any) -> dict[str, Any]:
        """Create a dataset from CSV text or from a source."""
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
        """Wait for the end of a job and return the job."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while job["state"] in ("queued", "running"):
            assert time.monotonic() < deadline, job
            time.sleep(0.05)
            job = self.get(f"/v1/jobs/{job['id']}")
        return job

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.http.get("/readyz").status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def files(self) -> set[str]:
        """Return the paths of all files in the storage."""
        return {file.path for folder in ("uploads", "datasets") for file in self.workspace.storage.files_below(folder)}


def source_of(source: str | dict[str, Any]) -> dict[str, Any]:
    return source if isinstance(source, dict) else {"inline": {"format": "csv", "content": source}}


def expect(response: httpx.Response, status: int) -> Any:
    """Check the status of a response and return its JSON."""
    assert response.status_code == status, response.text
    return response.json() if response.content else None


def expect_problem(response: httpx.Response, status: int, code: str | None = None) -> dict[str, Any]:
    """Check that a response is a complete problem document and return it."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem: dict[str, Any] = expect(response, status)
    assert {"type", "title", "status", "detail", "code"} <= set(problem)
    assert problem["status"] == status
    assert problem["type"] == f"/docs/errors#{problem['code']}"
    assert code is None or problem["code"] == code, problem
    return problem


@contextlib.contextmanager
def running(workspace: Workspace, *, spark: bool = True, mounted: Any = None) -> Iterator[Api]:
    """Serve the workspace in a thread, and keep the Spark session, which all tests share."""
    workspace.spark.close = lambda: None  # type: ignore[method-assign]
    if not spark:
        workspace.spark.warm = lambda: None  # type: ignore[method-assign]
    app = create_app(workspace.settings, lambda _: workspace)
    if mounted is not None:
        app.mount("/", mounted)
    listener = socket.create_server(("127.0.0.1", 0))
    server = make_server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="uvicorn")
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS) as client:
            yield Api(url, workspace, app.state.service, client)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def settings_for(backend: str, request: pytest.FixtureRequest, directory: Path, **more: Any) -> Settings:
    """Return the settings of a service on SQLite and a disk, or on PostgreSQL and S3."""
    locations = {"data_dir": str(directory), "spark_master": "local[2]"}
    if backend == "postgresql-s3":
        server = request.getfixturevalue("postgres")
        locations |= {
            "catalog_url": server.url(server.create_database()),
            "storage_url": request.getfixturevalue("s3").bucket() + "/inlay",
        }
    return Settings(**locations, **({"delete_grace_seconds": 0.0, "lease_seconds": 5.0} | more))


@pytest.fixture(scope="module", params=BACKENDS)
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run a service with Spark, in which each test creates its own datasets."""
    cluster.local_session()
    settings = settings_for(request.param, request, tmp_path_factory.mktemp("service"), max_upload_bytes=4 << 20)
    with running(Workspace(settings)) as found:
        yield found


@pytest.fixture(scope="module")
def plain_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run a service on a disk that never starts Spark."""
    settings = Settings(data_dir=str(tmp_path_factory.mktemp("plain")), spark_master="local[2]")
    with running(Workspace(settings), spark=False) as found:
        yield found


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Parse server-sent events into names and data."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))
