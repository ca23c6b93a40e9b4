"""`inlay serve` as a separate process: start, large uploads, shutdown and failures."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service import TIMEOUT_SECONDS, expect, expect_problem
from tests.spark import cluster

ROOT = Path(__file__).parents[2]
MEGABYTE = 1 << 20


@dataclass
class Served:
    """A running `inlay serve`."""

    process: subprocess.Popen[str]
    url: str
    log: list[str]

    def peak_memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) * 1024

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log if line.startswith("{")]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "inlay", "serve", "--port", "0", *arguments]


def environment(**more: str) -> dict[str, str]:
    return cluster.spark_environment(INLAY_SPARK_CONF=json.dumps(cluster.DRIVER_CONF), **more)


def served(folder: Path, *arguments: str, **variables: str) -> contextlib.AbstractContextManager[Served]:
    defaults = ("--data-dir", str(folder / "data"), "--spark-master", "local[2]")
    return running(command(*defaults, *arguments), folder, **variables)


@contextlib.contextmanager
def running(program: list[str], folder: Path, timeout: float = TIMEOUT_SECONDS, **variables: str) -> Iterator[Served]:
    process = subprocess.Popen(
        program,
        cwd=folder, env=environment(**variables), stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr or ()))
    reader.start()
    try:
        yield Served(process, _url(process, log, timeout), log)
    finally:
        cluster.end_session(process.pid)
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def _url(process: subprocess.Popen[str], log: list[str], timeout: float) -> str:
    """Return the URL from the log."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and process.poll() is None:
        for line in list(log):
            if '"url"' in line:
                return str(json.loads(line)["url"])
        time.sleep(0.02)
    raise AssertionError("".join(log))


def stop(found: Served) -> int:
    found.process.send_signal(signal.SIGTERM)
    return found.process.wait(TIMEOUT_SECONDS)


def blocks(megabytes: int) -> Iterator[bytes]:
    block = os.urandom(MEGABYTE)
    for _ in range(megabytes):
        yield block


def check_memory(folder: Path, megabytes: int) -> None:
    """Two concurrent uploads, one with a Content-Length, do not fill the memory."""
    with served(folder) as found:
        answers: list[Any] = []

        def upload(**headers: str) -> None:
            answers.append(httpx.post(f"{found.url}/v1/files", content=blocks(megabytes), headers=headers, timeout=600))

        threads = [
            threading.Thread(target=upload),
            threading.Thread(target=upload, kwargs={"Content-Length": str(megabytes * MEGABYTE)}),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [expect(answer, 201)["size_bytes"] for answer in answers] == [megabytes * MEGABYTE] * 2
        assert found.peak_memory() < 300 * MEGABYTE
        kept = list((folder / "data" / "uploads").glob("*/raw"))
        assert [file.stat().st_size for file in kept] == [megabytes * MEGABYTE] * 2


@pytest.mark.spark
def test_an_upload_of_100_megabytes_is_streamed(tmp_path: Path) -> None:
    check_memory(tmp_path, 100)


@pytest.mark.spark
@pytest.mark.long  # short runs upload 100 MB above
@pytest.mark.timeout(1200)
def test_an_upload_of_a_gigabyte_is_streamed(tmp_path: Path) -> None:
    check_memory(tmp_path, 1024)


@pytest.mark.spark
def test_a_service_starts_works_and_stops(tmp_path: Path) -> None:
    with (
        served(tmp_path, INLAY_API_KEYS="key-of-the-service") as found,
        httpx.Client(base_url=found.url, timeout=TIMEOUT_SECONDS) as http,
    ):
        assert expect(http.get("/healthz"), 200) == {"status": "ok"}
        assert http.get("/v1/files").status_code == 401
        http.headers["Authorization"] = "Bearer key-of-the-service"
        assert expect(http.get("/v1/datasets"), 200)["datasets"] == []  # before Spark has started
        body = {"label": "x", "source": {"inline": {"format": "csv", "content": "a\n1\n"}}}
        assert expect(http.post("/v1/datasets", json=body), 201)["row_count"] == 1  # waits for Spark
        assert expect(http.get("/readyz"), 200)["parts"]["spark"] == "ready"
        job = expect(http.post("/v1/datasets", json=body, headers={"Prefer": "respond-async"}), 202)
        events = http.stream("GET", f"/v1/jobs/{job['id']}/events")
        with events as answer:
            assert answer.status_code == 200
            assert stop(found) == -signal.SIGTERM
        requests = [line for line in found.lines() if line["logger"] == "inlay.requests"]
        assert {"POST /v1/datasets 201", "GET /healthz 200"} <= {line["message"] for line in requests}
        assert "key-of-the-service" not in "".join(found.log)
    assert not cluster.session_members(found.process.pid)
    with served(tmp_path) as again:
        listed = expect(httpx.get(f"{again.url}/v1/datasets", timeout=TIMEOUT_SECONDS), 200)["datasets"]
        state = expect(httpx.get(f"{again.url}/v1/jobs/{job['id']}", timeout=TIMEOUT_SECONDS), 200)["state"]
        assert (len(listed), state) in [(2, "succeeded"), (1, "failed")]


def wait_for_spark(http: httpx.Client, state: str) -> None:
    def found() -> bool:
        return bool(http.get("/readyz").json()["parts"].get("spark") == state)

    cluster.wait_until(found, TIMEOUT_SECONDS, f"Spark in the state {state!r}")


@pytest.mark.spark
def test_spark_starts_with_an_upload_and_stops_without_work(tmp_path: Path) -> None:
    with (
        served(tmp_path, INLAY_SPARK_IDLE_SECONDS="0.5") as found,
        httpx.Client(base_url=found.url, timeout=TIMEOUT_SECONDS) as http,
    ):

        def java() -> list[cluster.Process]:
            return [p for p in cluster.session_members(found.process.pid) if "org.apache.spark" in p.command]

        wait_for_spark(http, "not started")
        assert not java()
        upload = expect(http.post("/v1/files", content=b"a\n1\n"), 201)["id"]
        cluster.wait_until(lambda: bool(java()), TIMEOUT_SECONDS, "a start of Spark without a job")
        for _ in range(2):
            body = {"label": "x", "source": {"inline": {"format": "csv", "content": "a\n1\n"}}}
            assert expect(http.post("/v1/datasets", json=body), 201)["row_count"] == 1
            assert list(tmp_path.glob("data/spill/query-*/blockmgr-*"))  # temporary data of Spark
            cluster.wait_until(lambda: not java(), TIMEOUT_SECONDS, "the end of Spark")
            wait_for_spark(http, "not started")
        assert expect(http.get("/v1/files"), 200)["uploads"][0]["id"] == upload


@pytest.mark.spark
@pytest.mark.long  # installs all dependencies; short runs start the same service above, in the environment of the tests
@pytest.mark.timeout(1200)
def test_make_serve_sets_up_and_serves(tmp_path: Path) -> None:
    """A new environment without test dependencies serves queries and the page."""
    arguments = f"--port 0 --data-dir '{tmp_path}' --spark-master local[2]"
    # the first run installs all dependencies
    with running(["make", "serve", f"SERVE_ARGS={arguments}"], ROOT, 10 * TIMEOUT_SECONDS) as found:
        body = {"label": "x", "source": {"inline": {"format": "csv", "content": "a\n1\n"}}}
        assert expect(httpx.post(f"{found.url}/v1/datasets", json=body, timeout=TIMEOUT_SECONDS), 201)["row_count"] == 1
        question = {"sql": "SELECT a FROM datasets.x"}
        assert expect(httpx.post(f"{found.url}/v1/query", json=question, timeout=TIMEOUT_SECONDS), 200)["rows"] == [[1]]
        assert "inlay" in httpx.get(found.url, timeout=TIMEOUT_SECONDS).raise_for_status().text
    assert not list(ROOT.glob(".venv-serve/lib/*/site-packages/pytest"))


def test_shutdown_does_not_wait_for_an_unreachable_cluster(tmp_path: Path) -> None:
    with served(tmp_path, "--spark-master", "sc://127.0.0.1:1") as found:
        httpx.get(f"{found.url}/", timeout=TIMEOUT_SECONDS).raise_for_status()  # long enough for Spark to start
        assert stop(found) == -signal.SIGTERM


def test_an_unreachable_master_is_reported_soon(tmp_path: Path) -> None:
    message = "The Spark master spark://127.0.0.1:1 does not respond: Connection refused."
    with served(tmp_path, "--spark-master", "spark://127.0.0.1:1") as found, httpx.Client(base_url=found.url) as http:
        body = {"label": "x", "source": {"inline": {"format": "csv", "content": "a\n1\n"}}}
        problem = expect_problem(http.post("/v1/datasets", json=body, timeout=15), 503, "spark_unavailable")
        assert problem["detail"] == message
        assert message in expect(http.get("/readyz", timeout=15), 503)["parts"]["spark"]


# ------------------------------------------------------------------------------------------------------- wrong settings
def refused(folder: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [*command("--data-dir", str(folder / "data")), *arguments],
        cwd=folder, env=environment(**variables), capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_a_taken_port_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, output = refused(tmp_path, "--port", str(other.getsockname()[1]))
    assert code == 2
    assert "--port" in output


def test_listening_beyond_loopback_requires_keys(tmp_path: Path) -> None:
    code, output = refused(tmp_path, "--host", "0.0.0.0")
    assert code == 2
    assert "inlay keys create" in output


def test_an_unavailable_catalog_stops_the_service(tmp_path: Path) -> None:
    code, output = refused(tmp_path, "--catalog-url", "postgresql+psycopg://nobody@127.0.0.1:1/none", "--json")
    assert code == 1
    assert json.loads(output.splitlines()[-1])["code"] == "catalog_unavailable"


@pytest.mark.parametrize("arguments", [(), ("--host", "0.0.0.0")])  # another address requires a look-up of keys
def test_a_catalog_that_does_not_answer_stops_the_service(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # accepts connections, but never answers
        url = f"postgresql+psycopg://nobody@127.0.0.1:{mute.getsockname()[1]}/none?connect_timeout=2"
        started = time.monotonic()
        code, output = refused(tmp_path, "--catalog-url", url, "--json", *arguments)
    assert time.monotonic() - started < 30
    assert code == 1
    assert json.loads(output.splitlines()[-1])["code"] == "catalog_unavailable"


def test_an_unwritable_storage_stops_the_service(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    code, output = refused(tmp_path, "--storage-url", str(tmp_path / "file" / "below"))
    assert code == 1
    assert "Cannot write to the storage" in output


def test_an_invalid_setting_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path, INLAY_KEEP_DAYS="many") == (
        2,
        "Error: INLAY_KEEP_DAYS is 'many'; it must be a number.\n",
    )
    assert "does not exist" in refused(tmp_path, "--config", "none.toml")[1]
