"""Commits on S3, through a proxy that drops requests, loses responses and returns errors."""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import s3fs

from inlay.commit.transaction import IncrementalFileManager
from inlay.errors import ConcurrentModificationError
from tests.faults.objects import AFTER, BEFORE, Dataset, outcome, violation
from tests.faults.proxy import KINDS, Proxy
from tests.faults.scenarios import stage
from tests.s3 import start_server

pytestmark = pytest.mark.faults
Tally = Callable[[str, int, list[str]], None]
_CASES = itertools.count()


@dataclass
class S3:
    """An S3 server, a proxy in front of it, and their clients."""

    host: str
    port: int
    proxy: Proxy
    requests: list[str] = field(default_factory=list)  # of one change without faults

    def client(self, url: str | None = None, *, retries: int = 1) -> Any:
        """Return a client that reports the first failure, or one that retries as users' clients do."""
        config = {"retries": {"total_max_attempts": retries}}
        client = s3fs.S3FileSystem(
            key="key",
            secret="secret",
            endpoint_url=url or f"http://{self.host}:{self.port}",
            config_kwargs=config,
            skip_instance_cache=True,
        )
        client.retries = retries
        return client

    def dataset(self, direct: Any, versions: int | None = None) -> Dataset:
        dataset = Dataset(f"bucket/case-{next(_CASES)}/ds", direct, versions)
        dataset.build()
        return dataset


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    server = start_server()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    proxy = Proxy(host, port)
    yield S3(host, port, proxy)
    proxy.stop()
    server.stop()


@pytest.fixture(scope="module")
def direct(s3: S3) -> Any:
    return s3.client()


@pytest.fixture(scope="module")
def proxied(s3: S3) -> Any:
    return s3.client(s3.proxy.url)


@pytest.fixture(scope="module")
def requests(s3: S3, direct: Any, proxied: Any) -> list[str]:
    return requests_of_change(s3, direct, proxied)


def requests_of_change(s3: S3, direct: Any, proxied: Any, versions: int | None = None) -> list[str]:
    """Return the requests of one change without faults."""
    dataset = s3.dataset(direct, versions)
    with s3.proxy.fault(None) as plan:
        assert outcome(dataset.location(proxied)) == "acked"
    assert dataset.content() == AFTER
    assert dataset.hidden() == []
    return plan.seen


def decisive_requests(requests: list[str]) -> list[int]:
    """Return the numbers of the commit point, the next request, the first copy and the mark."""
    commit = next(k for k, request in enumerate(requests, 1) if request.endswith("1.json"))
    copy = next(k for k, request in enumerate(requests, 1) if "/ds/a-inlay-" in request)
    done = next(k for k, request in enumerate(requests, 1) if request.endswith("1.done"))
    return [commit, commit + 1, copy, done]


@pytest.mark.timeout(900)
# Short runs leave out faults that a client sees as another fault in the list.
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[pytest.mark.long] * (kind in ("503", "cut", "lost, then cut"))) for kind in KINDS],
)
def test_a_fault_at_a_request_leaves_the_state_before_or_after(
    s3: S3, direct: Any, proxied: Any, requests: list[str], kind: str, tally: Tally, thorough: bool
) -> None:
    violations = []
    indices = range(1, len(requests) + 1) if thorough else decisive_requests(requests)
    for k in indices:
        dataset = s3.dataset(direct)
        with s3.proxy.fault(kind, k) as plan:
            result = outcome(dataset.location(proxied))
        assert plan.fired
        if found := violation(result, dataset):
            violations.append(f"{kind} at {k} {plan.seen[k - 1]} (result: {result}): {found}")
    tally(f"S3 requests, {kind}", len(indices), violations)


@pytest.mark.long  # The store in memory shows the same at each request, in a fraction of the time.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_at_a_request_of_a_commit_with_versions(
    s3: S3, direct: Any, proxied: Any, kind: str, tally: Tally
) -> None:
    violations = []
    requests = requests_of_change(s3, direct, proxied, versions=2)
    for k in range(1, len(requests) + 1):
        dataset = s3.dataset(direct, versions=2)
        with s3.proxy.fault(kind, k) as plan:
            result = outcome(dataset.location(proxied))
        assert plan.fired
        if found := violation(result, dataset):
            violations.append(f"{kind} at {k} {plan.seen[k - 1]} (result: {result}): {found}")
    tally(f"S3 requests with versions, {kind}", len(requests), violations)


@pytest.mark.parametrize("kind", ["reset", "lost", "503", "500 though done"])
def test_a_retrying_client_recognizes_its_own_commit(s3: S3, direct: Any, requests: list[str], kind: str) -> None:
    """A retry after a lost response finds a log entry that the client itself has written."""
    dataset = s3.dataset(direct)
    with s3.proxy.fault(kind, decisive_requests(requests)[0]) as plan:
        assert outcome(dataset.location(s3.client(s3.proxy.url, retries=3))) == "acked"
    assert plan.fired
    assert dataset.content() == AFTER
    assert dataset.hidden() == []


def test_the_next_open_settles_an_unknown_outcome(s3: S3, direct: Any, proxied: Any, requests: list[str]) -> None:
    dataset = s3.dataset(direct)
    with s3.proxy.fault("lost, then cut", decisive_requests(requests)[0]):
        assert outcome(dataset.location(proxied)) == "commit_state_unknown"
    assert dataset.content() == sorted(BEFORE.items())
    assert len(dataset.hidden()) == 3, "the commit may need the staged files"
    dataset.recover()
    assert dataset.content() == AFTER


def test_each_log_entry_has_one_winner(s3: S3, direct: Any) -> None:
    dataset = s3.dataset(direct)
    acked: list[str] = []
    threads = [threading.Thread(target=_add_two_files, args=(s3.client(), dataset, n, acked)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(acked) == 6
    assert sorted(name for name, _ in dataset.content() if name not in BEFORE) == sorted(acked)


def _add_two_files(client: Any, dataset: Dataset, number: int, acked: list[str]) -> None:
    for name in (f"w{number}-0.parquet", f"w{number}-1.parquet"):
        while name not in acked:
            with IncrementalFileManager() as manager:
                manager.open(dataset.location(client))
                manager.snapshot()
                try:
                    manager.commit(list(stage(manager, {name: b"x"})))
                except ConcurrentModificationError:
                    continue
                acked.append(name)
