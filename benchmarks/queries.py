"""Fifty queries over twenty datasets from twenty concurrent clients: `python -m benchmarks.queries`.

The service answers over HTTP in JSON, with its query processes and their limits. DuckDB and polars run the same
statements on the same Parquet files in as many threads of one process, without a service. They show the upper limit
of a service on such an engine. All results must be equal.
"""

from __future__ import annotations

import argparse
import datetime as dt
import io
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks import processes
from benchmarks.service import Service, serving

TABLES = [f"shop_{number:02}" for number in range(20)]
REGIONS = ["north", "south", "east", "west", "centre", "coast", "hills", "islands"]
SEED = 7

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


def mix(count: int) -> list[str]:
    """Return `count` statements, the same in every run."""
    chance = random.Random(SEED)
    return [
        STATEMENTS[number % len(STATEMENTS)].format(
            **dict(zip("ab", chance.sample(TABLES, 2), strict=True)), n=chance.randint(1, 40)
        )
        for number in range(count)
    ]


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


# ------------------------------------------------------------------------------------------------------ contestants
class Contestant(NamedTuple):
    query: Callable[[str], list[tuple[Any, ...]]]
    pid: int  # the process whose CPU time counts, with its descendants


def fill(client: httpx.Client, rows: int) -> dict[str, list[str]]:
    """Create all datasets in the service, and return the files of each."""
    files = {}
    for number, table in enumerate(TABLES):
        upload = client.post("/v1/files", content=shop(number, rows), headers={"Content-Type": "text/csv"}).json()
        body = {"label": table, "table_name": table, "source": {"upload_id": upload["id"]}}
        made = client.post("/v1/datasets", json=body).raise_for_status().json()
        described = client.get(f"/v1/datasets/{made['id']}").raise_for_status().json()
        files[table] = [file["url"].removeprefix("file://") for file in described["files"]]
    return files


def inlay(service: Service) -> Contestant:
    def query(sql: str) -> list[tuple[Any, ...]]:
        result = service.client.post("/v1/query", json={"sql": _qualify(sql, "datasets.")}).raise_for_status().json()
        return [tuple(row) for row in result["rows"]]

    return Contestant(query, service.pid)


def _qualify(sql: str, prefix: str) -> str:
    for table in TABLES:
        sql = sql.replace(f" {table}", f" {prefix}{table}")
    return sql


def duckdb(files: dict[str, list[str]]) -> Contestant:
    import duckdb as peer

    connection = peer.connect(config={"threads": len(os.sched_getaffinity(0))})
    for table, paths in files.items():
        connection.execute(f"CREATE VIEW {table} AS FROM read_parquet({paths!r})")
    return Contestant(lambda sql: connection.cursor().execute(sql).fetchall(), os.getpid())


def polars(files: dict[str, list[str]]) -> Contestant:
    import polars as pl

    frames = {table: pl.scan_parquet(paths) for table, paths in files.items()}
    return Contestant(lambda sql: pl.SQLContext(frames, eager=True).execute(sql).rows(), os.getpid())


# ------------------------------------------------------------------------------------------------------ measurement
class Figures(NamedTuple):
    queries: int
    wall: float
    cpu: float
    latencies: list[float]

    def row(self, name: str) -> str:
        cuts = statistics.quantiles(self.latencies, n=20)
        return (
            f"| {name} | {self.queries / self.wall:.0f} | {self.cpu / self.queries * 1000:.1f} | "
            f"{statistics.median(self.latencies) * 1000:.0f} | {cuts[-1] * 1000:.0f} |"
        )


def measure(contestant: Contestant, statements: list[str], clients: int, rounds: int) -> Figures:
    chance = random.Random(SEED)
    turns = [chance.sample(statements, len(statements)) for _ in range(clients * rounds)]

    def run_client(own: list[str]) -> list[float]:
        taken = []
        for sql in own:
            start = time.perf_counter()
            contestant.query(sql)
            taken.append(time.perf_counter() - start)
        return taken

    before, start = _cpu(contestant.pid), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        latencies = [each for taken in pool.map(run_client, turns) for each in taken]
    return Figures(len(latencies), time.perf_counter() - start, _cpu(contestant.pid) - before, latencies)


def _cpu(pid: int) -> float:
    own = processes.read(pid)
    family = [*([own] if own else []), *processes.descendants(pid)]
    return sum(process.own + process.waited for process in family)


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


_HEAD = """# Queries under load

This report shows how many SQL queries per second the service answers with many concurrent clients. `make
bench-queries BENCH_ARGS='--report docs/benchmarks/queries.md'` reproduces it; the table holds all figures, and
there are no raw files.

Measured on {date} with {cores} cores and {clients} concurrent clients. Each client runs {queries} statements
({kinds} kinds, over {tables} datasets of {rows:,} rows) in its own order (rounds: {rounds}). The service answers
over HTTP in JSON, with its query processes and their limits. DuckDB and polars run the same statements on the same
Parquet files inside the measuring process, without a service. All contestants returned the same rows for each
statement.

| | queries per second | CPU ms per query | median ms | 95th percentile ms |
|---|---|---|---|---|
"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queries", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--report", type=Path, help="write a Markdown report to this file")
    options = parser.parse_args(argv)
    statements = mix(options.queries)
    lines = []
    with tempfile.TemporaryDirectory(prefix="inlay-bench-") as work, serving(Path(work)) as service:
        files = fill(service.client, options.rows)
        contestants = {"inlay": inlay(service), "duckdb": duckdb(files), "polars": polars(files)}
        expected = {sql: contestants["duckdb"].query(sql) for sql in statements}
        for name, contestant in contestants.items():
            wrong = [sql for sql in statements if not same(contestant.query(sql), expected[sql])]
            if wrong:
                raise AssertionError(f"{name} returns different rows: {wrong[0]}")
            lines.append(measure(contestant, statements, options.clients, options.rounds).row(name))
            print(lines[-1], flush=True)
    if options.report:
        head = _HEAD.format(
            date=dt.date.today().isoformat(),  # noqa: DTZ011
            cores=len(os.sched_getaffinity(0)),
            kinds=len(STATEMENTS),
            tables=len(TABLES),
            **vars(options),
        )
        options.report.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
