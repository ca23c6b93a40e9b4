"""A service with several HTTP processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from inlay.catalog import Catalog
from inlay.server import processes
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.server.test_process import Served, refused, served, stop
from tests.service import TIMEOUT_SECONDS, events, expect, expect_problem
from tests.spark import cluster

PROCESSES = 3
PROGRAM = "inlay.server.process"


@dataclass
class Group:
    """The processes of a service, and a client with a connection to each of them."""

    service: Served
    folder: Path
    clients: dict[int, httpx.Client] = field(default_factory=dict)

    @property
    def main(self) -> int:
        return self.service.process.pid

    def others(self) -> list[int]:
        """Return the process ids of the HTTP processes other than the main process."""
        return [
            process.pid
            for process in cluster.session_members(self.main)
            if PROGRAM in Path(f"/proc/{process.pid}/cmdline").read_text(errors="replace")
        ]

    def client_of(self, pid: int) -> httpx.Client:
        """Return a client whose connection the process serves."""
        while pid not in self.clients:
            made = httpx.Client(base_url=self.service.url, timeout=TIMEOUT_SECONDS)
            if self.clients.setdefault(_server_of(made), made) is not made:
                made.close()
        return self.clients[pid]

    def all_clients(self) -> list[httpx.Client]:
        return [self.client_of(pid) for pid in (self.main, *self.others())]

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{self.service.url}/readyz", timeout=TIMEOUT_SECONDS).status_code == 200
            return False

        cluster.wait_until(is_ready, TIMEOUT_SECONDS, "the readiness of all processes")


def _server_of(client: httpx.Client) -> int:
    """Return the id of the process that serves the connection of a client."""
    client.get("/healthz").raise_for_status()
    with client.stream("GET", "/healthz") as answer:
        stream = answer.extensions["network_stream"]
        own, other = (stream.get_extra_info(name)[1] for name in ("client_addr", "server_addr"))
        answer.read()  # otherwise the client closes the connection
    [inode] = [
        line[9]
        for line in map(str.split, Path("/proc/net/tcp").read_text().splitlines())
        if (line[1][9:], line[2][9:]) == (f"{other:04X}", f"{own:04X}")
    ]
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(link) == f"socket:[{inode}]":
                return int(link.parts[2])
    raise AssertionError("No process serves the connection.")


@contextlib.contextmanager
def group_of(folder: Path, *arguments: str, **variables: str) -> Iterator[Group]:
    with served(folder, "--http-processes", str(PROCESSES), *arguments, **variables) as service:
        group = Group(service, folder)
        group.wait_until_ready()
        yield group
        for client in group.clients.values():
            client.close()


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Three processes, which the tests that use this fixture leave alive."""
    with group_of(tmp_path_factory.mktemp("group"), INLAY_DELETE_GRACE_SECONDS="0") as found:
        yield found


def create(http: httpx.Client, name: str, content: str) -> str:
    body = {"label": name, "table_name": name, "source": {"inline": {"format": "csv", "content": content}}}
    return str(expect(http.post("/v1/datasets", json=body), 201)["id"])


def query(http: httpx.Client, sql: str) -> list[list[Any]]:
    rows: list[list[Any]] = expect(http.post("/v1/query", json={"sql": sql}), 200)["rows"]
    return rows


# ------------------------------------------------------------------------------------------------------------- requests
def test_every_process_answers_and_counts_its_requests(group: Group) -> None:
    assert len(group.others()) == PROCESSES - 1
    for client in group.all_clients():
        assert query(client, "SELECT 1") == [[1]]
        assert expect(client.get("/openapi.json"), 200)["info"]["title"] == "inlay"
    text = group.client_of(group.main).get("/metrics").text
    served_by = dict(re.findall(r'requests_total\{method="POST",process="(\d)",route="/v1/query",.*?\} (\S+)', text))
    assert sorted(served_by) == ["1", "2", "3"]
    assert all(float(count) >= 1 for count in served_by.values())
    assert 'inlay_jobs{state="queued"}' in text
    assert text.count("# TYPE inlay_http_requests_total counter") == 1
    assert [client.get("/metrics").status_code for client in group.all_clients()] == [200] * PROCESSES


def test_readiness_names_the_processes(group: Group) -> None:
    for client in group.all_clients():
        assert expect(client.get("/readyz"), 200)["parts"]["processes"] == "ready"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/datasets/data_none", 404),
        ("PATCH", "/v1/datasets/data_none", 405),
        ("DELETE", "/v1/jobs/job_none", 404),
        ("BREW", "/v1/query", 400),
        ("HEAD", "/metrics", 404),
        ("GET", "/v1/unknown", 404),
        ("GET", "/unknown?a=%20b&c", 404),
        ("GET", "/login", 200),
        ("HEAD", "/login", 200),
        ("GET", "/static/sql.css", 200),
        ("GET", "/", 200),
    ],
)
def test_every_process_gives_the_same_answer(group: Group, method: str, path: str, status: int) -> None:
    answers = [client.request(method, path) for client in group.all_clients()]
    assert [answer.status_code for answer in answers] == [status] * PROCESSES
    names = {tuple(sorted(set(answer.headers) - {"retry-after"})) for answer in answers}
    assert len(names) == 1, names
    assert all(len(answer.headers.get_list("date")) == 1 for answer in answers)


@pytest.mark.spark
def test_uploads_and_jobs_work_through_every_process(group: Group) -> None:
    for number, client in enumerate(group.all_clients()):
        upload = expect(client.post("/v1/files", content=b"a,b\n1,2\n", headers={"Content-Type": "text/csv"}), 201)
        preview = expect(client.post(f"/v1/files/{upload['id']}/preview"), 200)
        assert [column["name"] for column in preview["columns"]] == ["a", "b"]
        body = {"label": "made", "table_name": f"made_{number}", "source": {"upload_id": upload["id"]}}
        made = expect(client.post("/v1/datasets", json=body), 201)
        for other in group.all_clients():
            assert query(other, f"SELECT * FROM datasets.made_{number}") == [[1, 2]]
        expect(client.delete(f"/v1/datasets/{made['id']}"), 204)
        for other in group.all_clients():
            expect_problem(other.get(f"/v1/datasets/{made['id']}"), 404)


@pytest.mark.spark
def test_the_progress_of_a_job_is_seen_in_every_process(group: Group) -> None:
    rows = "id\n" + "\n".join(map(str, range(100_000)))
    for client in group.all_clients():
        body = {"label": "followed", "source": {"inline": {"format": "csv", "content": rows}}}
        job = expect(client.post("/v1/datasets", json=body, headers={"Prefer": "respond-async"}), 202)

        def follow(other: httpx.Client, job: dict[str, Any] = job) -> list[str]:
            with other.stream("GET", f"/v1/jobs/{job['id']}/events") as answer:
                return [f"{name} {data['state']}" for name, data in events(answer.iter_lines())]

        with ThreadPoolExecutor(PROCESSES) as pool:
            for seen in pool.map(follow, group.all_clients()):
                assert seen[-1] == "end succeeded"
        for other in group.all_clients():
            assert expect(other.get(f"/v1/jobs/{job['id']}"), 200)["state"] == "succeeded"


@pytest.mark.spark
def test_a_replaced_dataset_is_never_read_old_in_another_process(group: Group) -> None:
    clients = group.all_clients()
    made = create(clients[0], "replaced", "value\n0\n")
    for number in range(1, 10):
        source = {"inline": {"format": "csv", "content": f"value\n{number}\n"}}
        client = clients[number % PROCESSES]
        expect(client.post(f"/v1/datasets/{made}/loads", json={"source": source, "strategy": "replace"}), 201)
        for other in clients * 2:  # the second time from the caches
            assert query(other, "SELECT value FROM datasets.replaced") == [[number]]
            assert other.get(f"/v1/datasets/{made}/data", params={"format": "csv"}).text.split() == [
                "value",
                str(number),
            ]


def test_a_forwarded_body_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with group_of(tmp_path, INLAY_API_KEYS="key-of-the-service") as group:
        url = httpx.URL(group.service.url)
        head = b"POST /v1/datasets HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n"
        for _ in range(8):  # connections reach each of the processes
            with socket.create_connection((url.host, url.port or 80), timeout=20) as connection:
                connection.sendall(head)
                assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")
        for size in (10_000, 10_000_000):  # the rest of the body arrives after the response
            content = {"content": b" " * size, "headers": {"Content-Type": "application/json"}}
            answers = [group.client_of(group.others()[0]).post("/v1/datasets", **content) for _ in range(20)]
            assert [answer.status_code for answer in answers] == [401] * 20


def test_requests_wait_while_the_main_process_accepts_no_connections(group: Group) -> None:
    address = f"{group.service.url}/v1/jobs/job_none"
    with ThreadPoolExecutor(400) as pool:  # more than the backlog of the main process
        os.kill(group.main, signal.SIGSTOP)
        try:
            answers = [pool.submit(httpx.delete, address, timeout=TIMEOUT_SECONDS) for _ in range(400)]
            time.sleep(1)
        finally:
            os.kill(group.main, signal.SIGCONT)
        assert {answer.result().status_code for answer in answers} == {404}


# ---------------------------------------------------------------------------------------------------------------- keys
def test_a_revoked_key_is_refused_by_every_process_at_once(tmp_path: Path) -> None:
    with group_of(tmp_path) as group, contextlib.closing(Catalog(f"sqlite:///{tmp_path}/data/catalog.db")) as catalog:
        clients = group.all_clients()
        assert {client.get("/v1/datasets").status_code for client in clients} == {200}
        key = catalog.api_keys.create("tests")
        assert {client.get("/v1/datasets").status_code for client in clients} == {401}
        for client in clients:
            client.headers["Authorization"] = f"Bearer {key.secret}"
            assert query(client, "SELECT 1") == [[1]]
            client.get("/metrics").raise_for_status()
        catalog.api_keys.revoke(key.key.id)
        for client in clients:
            for path in ("/v1/datasets", "/metrics"):
                expect_problem(client.get(path), 401)
            expect_problem(client.post("/v1/query", json={"sql": "SELECT 1"}), 401)


# --------------------------------------------------------------------------------------------------- ends of processes
def test_a_killed_process_is_replaced(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        victim, survivor = group.others()
        lost, kept = group.client_of(victim), group.client_of(survivor)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            lost.post("/v1/query", json={"sql": "SELECT 1"})
        for client in (kept, group.client_of(group.main)):
            assert query(client, "SELECT 1") == [[1]]
        cluster.wait_until(lambda: len(set(group.others()) - {victim}) == PROCESSES - 1, 60, "another process")
        group.wait_until_ready()
        assert survivor in group.others()
        for client in group.all_clients():
            assert query(client, "SELECT 1") == [[1]]


def test_a_service_with_a_process_that_hangs_is_not_ready(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        main, hanging = group.client_of(group.main), group.others()[0]
        os.kill(hanging, signal.SIGSTOP)
        try:
            time.sleep(1.1)  # readiness is checked at most once a second
            parts = expect(main.get("/readyz"), 503)["parts"]
            assert parts["processes"] == "2 of 3 processes are ready"
            main.get("/metrics").raise_for_status()
        finally:
            os.kill(hanging, signal.SIGCONT)
        group.wait_until_ready()


def test_all_processes_end_with_the_main_process(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        for client in group.all_clients():
            query(client, "SELECT 1")
        group.service.process.kill()
        group.service.process.wait()
        cluster.wait_until(lambda: not cluster.session_members(group.main), 20, "the end of all processes")
        cluster.wait_until(lambda: not _uses(tmp_path), 20, "the end of all query workers")


def test_a_process_ends_if_the_main_process_ends_while_it_asks(tmp_path: Path) -> None:
    """The connection is reset, because it has unread answers."""
    own_end, other_end = socket.socketpair()
    with other_end:
        process = processes._start_program(other_end)
    settings = dataclasses.asdict(Settings(data_dir=str(tmp_path)))
    own_end.sendall(json.dumps({"settings": settings, "address": "\0nobody"}).encode() + b"\n")
    own_end.sendall(b'{"ask": 1}\n' * 5)
    assert own_end.recv(1)
    own_end.close()
    try:
        assert process.wait(TIMEOUT_SECONDS) == 1
    finally:
        process.kill()
        process.wait()


def test_a_process_that_fails_to_start_or_sends_nonsense_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_RESTART_SECONDS", 0.0)
    programs = ["printf nonsense >&0", "printf 'nonsense\n' >&0; sleep 1000"]  # the first ends in the middle of a line
    started: list[subprocess.Popen[bytes]] = []

    def start(control: socket.socket) -> subprocess.Popen[bytes]:
        if len(started) == len(programs):
            found.set()
            raise BlockingIOError("Resource temporarily unavailable")
        started.append(subprocess.Popen(["sh", "-c", programs[len(started)]], stdin=control.fileno()))
        return started[-1]

    async def run() -> None:
        group = processes.Processes(Settings(http_processes=2))
        group.start(lambda: None)
        assert await asyncio.to_thread(found.wait, TIMEOUT_SECONDS)
        found.clear()
        assert await asyncio.to_thread(found.wait, TIMEOUT_SECONDS)  # it tries again after a failure
        await group.stop()
        group.forwarded.close()

    found = threading.Event()
    monkeypatch.setattr(processes, "_start_program", start)
    asyncio.run(run())
    assert [process.returncode for process in started] == [0, -signal.SIGKILL]


def _uses(folder: Path) -> list[str]:
    """Return the processes whose working directory is in a folder."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target.startswith(str(folder)) and link.parts[2] != str(os.getpid()):
                found.append(f"{link}: {target}")
    return found


def test_a_stop_signal_lets_every_process_complete_its_requests(tmp_path: Path) -> None:
    series = "generate_series(1, 60000) a, generate_series(1, 20000) b"
    slow = f"SELECT count(*) FROM {series} WHERE a.value % 7 = b.value % 7"
    with group_of(tmp_path, INLAY_QUERY_TIMEOUT_SECONDS="3600") as group:
        clients = group.all_clients()
        answers: list[int] = []

        def ask(client: httpx.Client) -> None:
            answers.append(client.post("/v1/query", json={"sql": slow}).status_code)

        threads = [threading.Thread(target=ask, args=[client]) for client in clients]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert stop(group.service) == -signal.SIGTERM
        for thread in threads:
            thread.join()
        assert answers == [200] * PROCESSES
        assert not cluster.session_members(group.main)
        assert not [line for line in group.service.lines() if line["level"] in ("warning", "error")]


def test_a_port_of_another_service_is_not_shared(tmp_path: Path) -> None:
    with group_of(tmp_path) as group:
        port = str(httpx.URL(group.service.url).port)
        (tmp_path / "other").mkdir()
        code, output = refused(tmp_path / "other", "--port", port, "--http-processes", "2")
        assert (code, "Cannot listen on" in output) == (2, True)


# -------------------------------------------------------------------------------------------------------------- limits
@pytest.mark.parametrize(("processes", "workers"), [(1, 8), (2, 4), (3, 2), (8, 1)])
def test_processes_divide_the_query_workers(tmp_path: Path, processes: int, workers: int) -> None:
    workspace = Workspace(Settings(data_dir=str(tmp_path), http_processes=processes))
    assert workspace.query_engine._pool._size == workers
    workspace.close()
