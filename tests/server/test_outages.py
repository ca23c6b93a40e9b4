"""A service whose PostgreSQL or S3 does not answer, or refuses connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from inlay.catalog import Catalog
from tests.faults.tcp_proxy import FAULTS, TcpProxy
from tests.postgres import PostgresServer
from tests.s3 import S3Server
from tests.server.test_process import Served, served
from tests.service import TIMEOUT_SECONDS, expect, expect_problem

pytestmark = pytest.mark.spark
READY_SECONDS = 4.0  # the service promises 2 seconds; the rest is for a busy machine
SETTINGS = {
    "INLAY_CATALOG_TIMEOUT_SECONDS": "2",
    "INLAY_STORAGE_TIMEOUT_SECONDS": "2",
    "INLAY_QUERY_TIMEOUT_SECONDS": "3600",  # a query on a storage without an answer must end before
    "INLAY_LEASE_SECONDS": "60",
}


@dataclass
class Stand:
    """A service, the proxies before its catalog and its storage, and its data."""

    service: Served
    proxies: dict[str, TcpProxy]
    http: httpx.Client  # with an API key
    bucket: str
    dataset_id: str = ""
    upload_id: str = ""

    def addresses(self) -> list[str]:
        """Return texts that reveal the address of the catalog or the storage."""
        return [str(proxy.port) for proxy in self.proxies.values()] + [self.bucket, "postgresql", "127.0.0.1"]

    def prepare(self) -> None:
        self.upload_id = expect(self.http.post("/v1/files", content=b"id\n2\n", headers=CSV), 201)["id"]
        rows = "id\n" + "\n".join(map(str, range(100_000)))
        for label in ("unread", "stored"):
            body = {"label": label, "source": {"inline": {"format": "csv", "content": rows}}}
            self.dataset_id = expect(self.http.post("/v1/datasets", json=body), 201)["id"]

    def query(self, table: str) -> httpx.Response:
        return self.http.post("/v1/query", json={"sql": f"SELECT sum(id) FROM datasets.{table}"})


CSV = {"Content-Type": "text/csv"}
INLINE = {"inline": {"format": "csv", "content": "id\n3\n"}}
Request = Callable[[Stand], httpx.Response]
ON_STORAGE: dict[str, Request] = {
    "upload": lambda s: s.http.post("/v1/files", content=b"id\n1\n", headers=CSV),
    "preview": lambda s: s.http.post(f"/v1/files/{s.upload_id}/preview"),
    "download": lambda s: s.http.get(f"/v1/datasets/{s.dataset_id}/data", params={"format": "csv"}),
    "query": lambda s: s.query("unread"),  # a table that the service has cached needs no storage
    "create": lambda s: s.http.post("/v1/datasets", json={"label": "new", "source": INLINE}),
    "load": lambda s: s.http.post(
        f"/v1/datasets/{s.dataset_id}/loads", json={"source": INLINE, "strategy": "upsert", "key_columns": ["id"]}
    ),
    "append": lambda s: s.http.post(
        f"/v1/datasets/{s.dataset_id}/loads", json={"source": {"upload_id": s.upload_id}, "strategy": "append"}
    ),
}
ON_CATALOG: dict[str, Request] = {
    "list": lambda s: s.http.get("/v1/datasets"),
    "upload": ON_STORAGE["upload"],
    "query": ON_STORAGE["query"],
    "create": ON_STORAGE["create"],
    "delete": lambda s: s.http.delete(f"/v1/files/{s.upload_id}"),
    "without a valid key": lambda s: httpx.get(
        f"{s.service.url}/v1/datasets", headers={"Authorization": "Bearer inlay_wrong_key"}, timeout=TIMEOUT_SECONDS
    ),
}


@pytest.fixture(scope="module")
def stand(postgres: PostgresServer, s3: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("outages")
    database = postgres.create_database()
    bucket = s3.bucket().removeprefix("s3://")
    with (
        TcpProxy.to(str(postgres.directory / ".s.PGSQL.5432")) as catalog,
        TcpProxy.to((s3.host, s3.port)) as storage,
    ):
        url = f"postgresql+psycopg://postgres@127.0.0.1:{catalog.port}/{database}?connect_timeout=2"
        made = Catalog(url)
        made.migrate()
        key = made.api_keys.create("tests").secret
        made.close()
        variables = s3.environment() | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{storage.port}"} | SETTINGS
        arguments = ("--catalog-url", url, "--storage-url", f"s3://{bucket}/inlay")
        with served(folder, *arguments, **variables) as service:
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=service.url, timeout=TIMEOUT_SECONDS, headers=headers) as http:
                found = Stand(service, {"catalog": catalog, "storage": storage}, http, bucket)
                found.prepare()
                yield found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", ["catalog", "storage"])
def test_requests_end_in_time_and_name_the_part_without_its_address(stand: Stand, part: str, fault: str) -> None:
    requests = {"catalog": ON_CATALOG, "storage": ON_STORAGE}[part]
    with stand.proxies[part].fault(fault):
        for request in requests.values():
            answer = request(stand)
            problem = expect_problem(answer, 503, f"{part}_unavailable")
            assert not [text for text in stand.addresses() if text in answer.text], problem
    wait_for(stand, 200)
    assert expect(stand.http.get("/v1/datasets"), 200)["count"] == 2
    assert expect(stand.query("stored"), 200)["rows"] == [[4999950000]]
    assert expect(stand.http.get("/v1/files"), 200)["count"] == 1


def readiness(stand: Stand, headers: Any = None) -> httpx.Response:
    """Return the readiness, which the service must report in time."""
    started = time.monotonic()
    answer = httpx.get(f"{stand.service.url}/readyz", headers=headers, timeout=TIMEOUT_SECONDS)
    assert time.monotonic() - started < READY_SECONDS
    return answer


def wait_for(stand: Stand, status: int) -> None:
    """Wait until the readiness has a status. The service checks its parts at most once a second."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while readiness(stand).status_code != status:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("part", ["catalog", "storage"])
def test_readiness_is_reported_in_time(stand: Stand, part: str, fault: str) -> None:
    wait_for(stand, 200)
    with stand.proxies[part].fault(fault):
        wait_for(stand, 503)
        answer = readiness(stand)
        assert expect(answer, 503)["parts"][part] != "ready"
        assert not [text for text in stand.addresses() if text in answer.text]
        trusted = expect(readiness(stand, stand.http.headers), 503)["parts"]
        assert (part, fault) != ("storage", "refuse") or "s3://" in trusted["storage"]  # a reader sees the reason
    wait_for(stand, 200)
