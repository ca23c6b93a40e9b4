"""Small queries from twenty concurrent clients: `python -m benchmarks.queries`.

inlay answers over HTTP in JSON, with its query processes and their limits. A plain service of forty lines answers over
HTTP without any of that, and DuckDB runs the same statements on the same Parquet files in threads of the measuring
process, without a service. No statement has the same text as another, except in the measurement of repeated ones.
All results must be equal. Contestants take turns in every round, so that a busy machine slows all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import io
import itertools
import math
import os
import random
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import orjson

from benchmarks import processes
from benchmarks.service import ROOT, Service, serving

TABLES = [f"shop_{number:02}" for number in range(6)]
REGIONS = ["north", "south", "east", "west", "centre", "coast", "hills", "islands"]
SEED = 7
CHECKED = 150  # statements whose results are compared
REPEATED = 50  # different statements in the measurement of repeated ones

# Each statement runs on several datasets: {a} and {b} are two datasets, and {n} is a number.
STATEMENTS = [
    "SELECT count(*) FROM {a}",
    "SELECT count(*), sum(qty), min(day), max(day) FROM {a} WHERE qty > {n}",
    "SELECT region, count(*) AS c, sum(qty) AS q FROM {a} GROUP BY region ORDER BY region",
    "SELECT id, qty FROM {a} WHERE customer = 'customer {n}' ORDER BY id",
    "SELECT id, customer, qty FROM {a} ORDER BY qty DESC, id LIMIT 20",
    "SELECT customer, sum(qty) AS q FROM {a} GROUP BY customer ORDER BY q DESC, customer LIMIT 10",
    "SELECT count(DISTINCT customer) FROM {a} WHERE region = 'coast'",
    "SELECT a.region, count(*) AS c FROM {a} a JOIN {b} b ON a.id = b.id WHERE b.qty = {n} GROUP BY 1 ORDER BY 1",
    "SELECT id, note FROM {a} WHERE note LIKE '%word {n} %' ORDER BY id LIMIT 50",
    "SELECT day, sum(qty) AS q FROM {a} WHERE id % 10 = {n} % 10 GROUP BY day ORDER BY day LIMIT 100",
]


def unique_statements() -> Iterator[str]:
    """Yield statements of all kinds without end, the same in every run. A comment makes each text unique."""
    chance = random.Random(SEED)
    for number in itertools.count():
        pair = [f"datasets.{table}" for table in chance.sample(TABLES, 2)]
        statement = STATEMENTS[number % len(STATEMENTS)].format(a=pair[0], b=pair[1], n=chance.randint(1, 40))
        yield f"{statement} /* {number} */"


def repeated_statements() -> Iterator[str]:
    return itertools.cycle(itertools.islice(unique_statements(), REPEATED))


def shop(number: int, rows: int) -> bytes:
    chance = random.Random(number)
    out = io.StringIO("id,customer,region,amount,qty,day,note\n")
    out.seek(0, io.SEEK_END)
    first = dt.date(2024, 1, 1)
    for at in range(rows):
        day = first + dt.timedelta(days=chance.randint(0, 364))
        note = " ".join(f"word {chance.randint(1, 999)}" for _ in range(3))
        out.write(
            f"{at},customer {chance.randint(1, 2000)},{chance.choice(REGIONS)},{chance.randint(0, 99999) / 100:.2f},"
            f"{chance.randint(0, 100)},{day},{note} end\n"
        )
    return out.getvalue().encode()


def fill(client: httpx.Client, rows: int) -> dict[str, str]:
    """Create all datasets in the service, and return the file of each."""
    files = {}
    for number, table in enumerate(TABLES):
        upload = client.post("/v1/files", content=shop(number, rows), headers={"Content-Type": "text/csv"}).json()
        body = {"label": table, "table_name": table, "source": {"upload_id": upload["id"]}}
        made = client.post("/v1/datasets", json=body).raise_for_status().json()
        [file] = client.get(f"/v1/datasets/{made['id']}").raise_for_status().json()["files"]
        files[table] = file["url"].removeprefix("file://")
    return files


# ------------------------------------------------------------------------------------------------------ contestants
class Contestant(NamedTuple):
    """`run` sends statements from so many clients at once, and returns the latency of each."""

    run: Callable[[list[str], int], list[float]]
    query: Callable[[str], list[tuple[Any, ...]]]
    pid: int  # the process whose CPU time counts, with its descendants


def over_http(port: int, pid: int) -> Contestant:
    def query(sql: str) -> list[tuple[Any, ...]]:
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/query", json={"sql": sql}, timeout=60).raise_for_status()
        return [tuple(row) for row in answer.json()["rows"]]

    return Contestant(lambda statements, clients: _send(port, statements, clients), query, pid)


def _send(port: int, statements: list[str], clients: int) -> list[float]:
    """Send statements over as many connections as there are clients, from one thread that costs little."""
    waiting, latencies = iter(statements), []
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:

        def send_next(connection: socket.socket) -> None:
            sql = next(waiting, None)
            if sql is None:
                selector.unregister(connection)
                return
            body = orjson.dumps({"sql": sql})
            head = "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            selector.modify(connection, selectors.EVENT_READ, (time.perf_counter(), bytearray()))

        for _ in range(clients):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ)
            send_next(connection)
        while selector.get_map():
            for key, _ in selector.select():
                connection, (start, received) = key.fileobj, key.data
                received += connection.recv(1 << 18)
                if _is_complete(received):
                    latencies.append(time.perf_counter() - start)
                    send_next(connection)
    return latencies


def _is_complete(received: bytearray) -> bool:
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise AssertionError(f"the service answered {bytes(received[:500])!r}")
    fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
    return len(body) >= int(fields.get(b"content-length", 1 << 60))


def in_process(files: dict[str, str]) -> Contestant:
    import duckdb

    connection = duckdb.connect(config={"threads": len(os.sched_getaffinity(0))})
    connection.execute("CREATE SCHEMA datasets")
    for table, path in files.items():
        connection.execute(f"CREATE VIEW datasets.{table} AS FROM read_parquet('{path}')")

    def query(sql: str) -> list[tuple[Any, ...]]:
        return connection.cursor().execute(sql).fetchall()

    def run_one(sql: str) -> float:
        start = time.perf_counter()
        query(sql)
        return time.perf_counter() - start

    def run(statements: list[str], clients: int) -> list[float]:
        with ThreadPoolExecutor(clients) as threads:
            return list(threads.map(run_one, statements))

    return Contestant(run, query, os.getpid())


@contextlib.contextmanager
def plain_service(files: dict[str, str]) -> Iterator[Contestant]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    tables = [f"{table}={path}" for table, path in files.items()]
    command = [sys.executable, "-m", "benchmarks.duckdb_service", str(port), *tables]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + 60
            contestant = over_http(port, process.pid)
            while True:
                with contextlib.suppress(httpx.TransportError):
                    contestant.query("SELECT 1")
                    break
                if time.monotonic() > deadline:
                    raise TimeoutError("the plain service is not ready")
                time.sleep(0.1)
            yield contestant
        finally:
            process.terminate()


# ------------------------------------------------------------------------------------------------------ measurement
class Figures(NamedTuple):
    wall: float
    cpu: float
    latencies: list[float]

    def row(self, name: str) -> str:
        cuts = statistics.quantiles(self.latencies, n=100)
        count = len(self.latencies)
        return (
            f"| {name} | {count / self.wall:.0f} | {self.cpu / count * 1000:.2f} | "
            f"{cuts[49] * 1000:.0f} | {cuts[98] * 1000:.0f} |"
        )

    def plus(self, other: Figures) -> Figures:
        return Figures(self.wall + other.wall, self.cpu + other.cpu, self.latencies + other.latencies)


def measure(contestant: Contestant, statements: list[str], clients: int) -> Figures:
    before, start = _cpu(contestant.pid), time.perf_counter()
    latencies = contestant.run(statements, clients)
    return Figures(time.perf_counter() - start, _cpu(contestant.pid) - before, latencies)


def _cpu(pid: int) -> float:
    own = processes.read(pid)
    if own is not None and pid == os.getpid():  # other contestants are children of this process
        return own.own
    family = [*([own] if own else []), *processes.descendants(pid)]
    return sum(process.own + process.waited for process in family)


def download(client: httpx.Client, stop: threading.Event) -> float:
    """Download datasets as CSV until the event, but at least all of them once. Return MB per second."""
    ids = [dataset["id"] for dataset in client.get("/v1/datasets").json()["datasets"]]
    size, start = 0, time.perf_counter()
    for number, dataset_id in enumerate(itertools.cycle(ids)):
        if number >= len(ids) and stop.is_set():
            return size / 1e6 / (time.perf_counter() - start)
        with client.stream("GET", f"/v1/datasets/{dataset_id}/data", params={"format": "csv"}) as answer:
            size += sum(map(len, answer.iter_raw()))
    raise AssertionError("an endless loop has ended")


def same(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> bool:
    """Return True if the rows are equal. Over HTTP, dates and large numbers are text."""
    return len(left) == len(right) and all(
        len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(left, right, strict=True)
    )


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return math.isclose(float(left), float(right), rel_tol=1e-9)
    return str(left) == str(right)


def check(contestants: dict[str, Contestant]) -> None:
    """Raise if a contestant does not return the rows of DuckDB in process."""
    for sql in itertools.islice(unique_statements(), CHECKED):
        expected = contestants[IN_PROCESS].query(sql)
        for name, contestant in contestants.items():
            if not same(contestant.query(sql), expected):
                raise AssertionError(f"{name} returns different rows: {sql}")


INLAY, PLAIN, IN_PROCESS = "inlay", "FastAPI + DuckDB, 40 lines", "DuckDB in process"
_COLUMNS = "| | queries per second | CPU ms per query | median ms | 99th percentile ms |\n|---|---|---|---|---|\n"
_HEAD = """# Queries under load

This report shows how many small SQL queries per second the service answers with many concurrent clients. `make
bench-queries BENCH_ARGS='--report docs/benchmarks/queries.md'` reproduces the first part; the tables hold all figures,
and there are no raw files.

Measured on {date} with {cores} cores and {clients} concurrent clients, {load}.
The statements are of {kinds} kinds, over {tables} datasets of {rows:,} rows. No text occurs twice, except in the row of
repeated statements ({repeated} texts). inlay answers over HTTP in JSON, with its query processes and their limits. The
plain service is `benchmarks/duckdb_service.py`: FastAPI and DuckDB in one process, without isolation and limits. DuckDB
in process runs the statements in threads of the measuring process, without a service. All contestants returned the same
rows for {checked} statements. Contestants take turns in {rounds} rounds of {queries} statements. On a busy machine,
compare the CPU time: a process with many running threads gets a larger share of the processors, and inlay runs one
query process for each processor.

"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queries", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", type=int, default=1000, help="statements per contestant and round")
    parser.add_argument("--report", type=Path, help="write a Markdown report to this file")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="inlay-bench-") as work, serving(Path(work)) as service:
        files = fill(service.client, options.rows)
        with plain_service(files) as plain:
            contestants = {INLAY: over_http(_port(service), service.pid), PLAIN: plain, IN_PROCESS: in_process(files)}
            check(contestants)
            lines = _compare(contestants, options)
            lines += _repeat(contestants[INLAY], options)
            lines += ["", *_download(service, contestants[INLAY], options)]
    print("\n".join(lines))
    if options.report:
        sections = options.report.read_text().partition("\n## ") if options.report.exists() else ("", "", "")
        report = _head(options) + _COLUMNS + "\n".join(lines) + "\n"
        options.report.write_text(report + "".join(sections[1:]))  # keeps the sections about single measurements


def _port(service: Service) -> int:
    port = service.client.base_url.port
    assert port is not None
    return port


def _head(options: argparse.Namespace) -> str:
    return _HEAD.format(
        date=dt.date.today().isoformat(),  # noqa: DTZ011
        cores=len(os.sched_getaffinity(0)),
        load=f"with a load average of {os.getloadavg()[1]:.0f} on the machine",
        kinds=len(STATEMENTS),
        tables=len(TABLES),
        repeated=REPEATED,
        checked=CHECKED,
        **vars(options),
    )


def _compare(contestants: dict[str, Contestant], options: argparse.Namespace) -> list[str]:
    statements = unique_statements()
    for contestant in contestants.values():  # warm up
        contestant.run(list(itertools.islice(statements, options.queries // 3)), options.clients)
    figures: dict[str, Figures] = {}
    for _ in range(options.rounds):
        for name, contestant in contestants.items():
            found = measure(contestant, list(itertools.islice(statements, options.queries)), options.clients)
            figures[name] = figures[name].plus(found) if name in figures else found
    return [found.row(name) for name, found in figures.items()]


def _repeat(contestant: Contestant, options: argparse.Namespace) -> list[str]:
    statements = list(itertools.islice(repeated_statements(), options.queries * 3))
    contestant.run(statements[:REPEATED], options.clients)
    return [measure(contestant, statements, options.clients).row("inlay, repeated statements")]


def _download(service: Service, contestant: Contestant, options: argparse.Namespace) -> list[str]:
    """Measure CSV downloads alone, and next to the queries of the other clients."""
    stop = threading.Event()
    stop.set()
    alone = download(service.client, stop)
    stop.clear()
    statements = [f"{sql} -- beside a download" for sql in itertools.islice(unique_statements(), options.queries)]
    with ThreadPoolExecutor(1) as threads:
        beside = threads.submit(download, service.client, stop)
        latencies = contestant.run(statements, options.clients)
        stop.set()
    slowest = statistics.quantiles(latencies, n=100)[98] * 1000
    return [
        f"One client downloads datasets as CSV at {alone:.0f} MB per second.",
        f"Next to {options.clients} clients that query, it downloads {beside.result():.0f} MB per second,",
        f"and the 99th percentile of their queries is {slowest:.0f} ms.",
    ]


if __name__ == "__main__":
    main()
