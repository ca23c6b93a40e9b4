"""Fifty queries over twenty datasets, asked by twenty clients at once: `python -m benchmarks.queries`.

The service answers over HTTP, with its processes for queries, its limits and its JSON. Beside it DuckDB and polars
answer the same statements on the same Parquet files, to as many threads of one process, without any service: the limit
of what a service around such an engine can reach. Answers must agree.
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

# Each is asked of several datasets; {a} and {b} are two of them, {n} is a number.
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
    """So many statements, the same in every run."""
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
    ask: Callable[[str], list[tuple[Any, ...]]]
    pid: int  # its CPU time and that of what it started


def fill(client: httpx.Client, rows: int) -> dict[str, list[str]]:
    """All datasets, uploaded and converted; the files of each."""
    files = {}
    for number, table in enumerate(TABLES):
        upload = client.post("/v1/files", content=shop(number, rows), headers={"Content-Type": "text/csv"}).json()
        body = {"label": table, "table_name": table, "source": {"upload_id": upload["id"]}}
        made = client.post("/v1/datasets", json=body).raise_for_status().json()
        described = client.get(f"/v1/datasets/{made['id']}").raise_for_status().json()
        files[table] = [file["url"].removeprefix("file://") for file in described["files"]]
    return files


def inlay(service: Service) -> Contestant:
    def ask(sql: str) -> list[tuple[Any, ...]]:
        answer = service.client.post("/v1/query", json={"sql": _named(sql, "datasets.")}).raise_for_status().json()
        return [tuple(row) for row in answer["rows"]]

    return Contestant(ask, service.pid)


def _named(sql: str, prefix: str) -> str:
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

    def play(mine: list[str]) -> list[float]:
        taken = []
        for sql in mine:
            start = time.perf_counter()
            contestant.ask(sql)
            taken.append(time.perf_counter() - start)
        return taken

    before, start = _cpu(contestant.pid), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        latencies = [each for taken in pool.map(play, turns) for each in taken]
    return Figures(len(latencies), time.perf_counter() - start, _cpu(contestant.pid) - before, latencies)


def _cpu(pid: int) -> float:
    mine = processes.read(pid)
    family = [*([mine] if mine else []), *processes.descendants(pid)]
    return sum(process.own + process.waited for process in family)


def same(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> bool:
    """The same rows; dates and large numbers come as text over HTTP."""
    return len(left) == len(right) and all(
        len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(left, right, strict=True)
    )


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) or isinstance(right, float):
        return math.isclose(float(left), float(right), rel_tol=1e-9)
    return str(left) == str(right)


_HEAD = """# Queries under load

{date}, {cores} cores, {clients} clients at once. Each asks {queries} statements ({kinds} kinds over {tables} datasets
of {rows:,} rows) in an order of its own, {rounds} times. The service answers over HTTP in JSON, with its processes for
queries and their limits; DuckDB and polars answer the same statements on the same Parquet files inside of the measuring
process, without a service around them. Every statement gave the same rows everywhere. Run it with
`python -m benchmarks.queries`.

| | queries a second | CPU ms a query | median ms | 95 % within ms |
|---|---|---|---|---|
"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queries", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--report", type=Path, help="write a markdown report there")
    options = parser.parse_args(argv)
    statements = mix(options.queries)
    lines = []
    with tempfile.TemporaryDirectory(prefix="inlay-bench-") as work, serving(Path(work)) as service:
        files = fill(service.client, options.rows)
        contestants = {"inlay": inlay(service), "duckdb": duckdb(files), "polars": polars(files)}
        expected = {sql: contestants["duckdb"].ask(sql) for sql in statements}
        for name, contestant in contestants.items():
            wrong = [sql for sql in statements if not same(contestant.ask(sql), expected[sql])]
            if wrong:
                raise AssertionError(f"{name} answers differently: {wrong[0]}")
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
