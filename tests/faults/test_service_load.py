"""A service under load: uploads, conversions, keyed loads, queries and downloads at the same time.

Every response must be right, every request that starts no job and no download must end soon, and the memory of all
processes must stay flat. `make soak` runs this test for ten minutes.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.faults.service_process import TIMEOUT_SECONDS, ServiceProcess, Stand
from tests.spark.cluster import session_members

# Long: short runs send concurrent requests of each kind in tests/server.
pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(7200)]
ROWS = 20_000
LONG = {"create", "load", "download"}  # requests that run a job or transfer a whole dataset
LIMIT_SECONDS = 2.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def table(rows: int, value: int) -> str:
    return "id,value,text\n" + "".join(f"{row},{value},text of row {row}\n" for row in range(rows))


@dataclass
class Load:
    """The clients of one service, and what they saw."""

    url: str
    end: float
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    violations: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, http: httpx.Client, kind: str, method: str, path: str, **options: object) -> httpx.Response:
        started = time.monotonic()
        answer = http.request(method, path, **options)  # type: ignore[arg-type]
        with self.lock:
            self.seconds[kind].append(time.monotonic() - started)
        self.expect(answer.is_success, f"{kind}: {answer.status_code} {answer.text[:300]}")
        return answer

    def expect(self, is_right: bool, violation: str) -> None:
        if not is_right:
            self.violations.append(violation)

    def create(self, http: httpx.Client, name: str, content: str) -> str:
        upload = self.send(http, "upload", "POST", "/v1/files", content=content, headers={"Content-Type": "text/csv"})
        body = {"label": name, "table_name": name, "source": {"upload_id": upload.json()["id"]}}
        return str(self.send(http, "create", "POST", "/v1/datasets", json=body).json()["id"])

    def query(self, http: httpx.Client, kind: str, sql: str) -> list[object]:
        rows: list[list[object]] = self.send(http, kind, "POST", "/v1/query", json={"sql": sql}).json()["rows"]
        return rows[0]

    # ---------------------------------------------------------------------------------------------------------- clients
    def run(self, client: Callable[[httpx.Client], None]) -> None:
        with httpx.Client(base_url=self.url, timeout=TIMEOUT_SECONDS) as http:
            while time.monotonic() < self.end:
                client(http)

    def ask(self, http: httpx.Client) -> None:
        """Query a dataset that no client changes."""
        number = random.randrange(ROWS)
        found = self.query(http, "query", f"SELECT count(*), max(text) FROM datasets.fixed WHERE id >= {number}")
        self.expect(found[0] == ROWS - number, f"the rows from {number} on are {found}")

    def watch(self, http: httpx.Client) -> None:
        """Query a dataset that another client loads. Each load sets one value in all rows."""
        least, largest, count = self.query(
            http, "query", "SELECT min(value), max(value), count(*) FROM datasets.loaded"
        )
        self.expect(least == largest and count == ROWS, f"a query saw a mixed version: {least}, {largest}, {count}")
        for path in ("/healthz", "/v1/datasets", "/v1/files", "/v1/jobs"):
            self.send(http, "list", "GET", path)

    def replace(self, http: httpx.Client) -> None:
        """Load new values by key."""
        source = {"inline": {"format": "csv", "content": table(ROWS, next(self.numbers))}}
        body = {"source": source, "strategy": "upsert", "key_columns": ["id"]}
        path = f"/v1/datasets/{self.loaded}/loads"
        result = self.send(http, "load", "POST", path, json=body).json()
        self.expect(result.get("updated") == ROWS, f"a load updated {result.get('updated')} rows")

    def convert(self, http: httpx.Client) -> None:
        """Create and delete a dataset."""
        name = f"made_{next(self.numbers)}"
        made = self.create(http, name, table(ROWS, 7))
        found = self.query(http, "query", f"SELECT count(*), min(value) FROM datasets.{name}")
        self.expect(found == [ROWS, 7], f"a new dataset has {found}")
        self.send(http, "delete", "DELETE", f"/v1/datasets/{made}")

    def download(self, http: httpx.Client) -> None:
        path = f"/v1/datasets/{self.fixed}/data"
        answer = self.send(http, "download", "GET", path, headers={"Accept": "text/csv"})
        self.expect(answer.text.count("\n") == ROWS + 1, f"a download has {len(answer.content)} bytes")

    def prepare(self) -> None:
        with httpx.Client(base_url=self.url, timeout=TIMEOUT_SECONDS) as http:
            self.fixed = self.create(http, "fixed", table(ROWS, 1))
            self.loaded = self.create(http, "loaded", table(ROWS, 1))
        self.seconds.clear()


def resident_bytes(session: int) -> int:
    """Return the memory of all processes of a service."""
    total = 0
    for process in session_members(session):
        try:
            total += int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * PAGE_BYTES
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total


def test_a_service_answers_soon_and_its_memory_stays_flat(tmp_path: Path) -> None:
    seconds = float(os.environ.get("INLAY_SOAK_SECONDS") or 60)
    with ServiceProcess(Stand(tmp_path, "local[2]")).opened() as service:
        assert service.process is not None
        load = Load(service.url, end=0)
        load.prepare()
        load.end = time.monotonic() + seconds
        clients = [load.ask] * 4 + [load.watch, load.replace, load.convert, load.download]
        memory = []
        with ThreadPoolExecutor(len(clients)) as pool:
            running = [pool.submit(load.run, client) for client in clients]
            while time.monotonic() < load.end:
                memory.append(resident_bytes(service.process.pid))
                time.sleep(seconds / 100)
            for each in running:
                each.result()
    slowest = {kind: max(taken) for kind, taken in load.seconds.items()}
    counts = {kind: len(taken) for kind, taken in load.seconds.items()}
    quarter = len(memory) // 4
    before, after = (statistics.median(part) / 2**20 for part in (memory[quarter : 2 * quarter], memory[-quarter:]))
    print(f"{counts} requests, slowest {slowest} s, memory {before:.0f} MiB, later {after:.0f} MiB")
    assert load.violations == []
    assert set(counts) == {"upload", "create", "query", "list", "load", "delete", "download"}
    assert {kind for kind, longest in slowest.items() if longest > LIMIT_SECONDS} <= LONG
    assert after < before * 1.15 + 64
