"""Conversion of CSV and NDJSON to Parquet, side by side: `python -m benchmarks.convert --mb 500`.

Each contestant runs in a separate process. It converts a small file first, so that the measurement excludes imports and
start-up work, and then the large file. CPU time includes all descendants, such as the JVM and the Python workers of
Spark. A result counts only if the rows and the checksums of all columns are correct.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import functools
import importlib.metadata
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.spark import DEFAULT_JAVA

ROOT = Path(__file__).resolve().parent.parent
CORES = len(os.sched_getaffinity(0))
REHEARSALS = 8  # a service runs for a long time, so its JVM has compiled the code
TICKS = os.sysconf("SC_CLK_TCK")
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
COLUMNS = {
    "id": "BIGINT",
    "customer": "STRING",
    "amount": "DOUBLE",
    "qty": "BIGINT",
    "ratio": "DOUBLE",
    "day": "DATE",
    "seen": "TIMESTAMP_NTZ",
    "note": "STRING",
}
CHECKS = (
    "count(*), sum(id), count(DISTINCT customer), sum(CAST(round(CAST(amount AS DOUBLE) * 100) AS HUGEINT)), sum(qty), "
    "sum(CAST(round(CAST(ratio AS DOUBLE) * 1000000) AS HUGEINT)), sum(date_diff('day', DATE '2000-01-01', "
    "CAST(day AS DATE))), sum(CAST(epoch(CAST(seen AS TIMESTAMP)) AS HUGEINT)), sum(length(note)), "
    "sum(CAST(hash(note) % 1000003 AS HUGEINT)), sum(CAST(hash(customer) % 1000003 AS HUGEINT))"
)
Result = dict[str, Any]


# ------------------------------------------------------------------------------------------------------------ data
def _rows(count: int, seed: int) -> Iterator[tuple[Any, ...]]:
    rng = random.Random(seed)
    first, start = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)  # noqa: DTZ001
    for number in range(1, count + 1):
        note = " ".join(rng.choices(WORDS, k=rng.randint(1, 6)))
        if number % 500 == 0:
            note = f"two\nlines, {note}"
        elif number % 50 == 0:
            note = f"quoted, {note}"
        yield (
            number,
            f"{rng.choice(WORDS)}{rng.randint(1, 5000)}",
            f"{rng.randint(0, 10**7) / 100:.2f}",
            rng.randint(0, 200),
            f"{rng.random() * 100:.6f}",
            first + dt.timedelta(days=rng.randint(0, 2000)),
            start + dt.timedelta(seconds=rng.randint(0, 10**8)),
            note,
        )


def _as_csv(row: tuple[Any, ...]) -> str:
    *cells, note = row
    quoted = f'"{note}"' if "," in note or "\n" in note else note
    return ",".join([*map(str, cells), quoted]) + "\n"


def _as_json(row: tuple[Any, ...]) -> str:
    number, customer, amount, qty, ratio, day, seen, note = row
    return (
        f'{{"id": {number}, "customer": "{customer}", "amount": {amount}, "qty": {qty}, "ratio": {ratio}, '
        f'"day": "{day}", "seen": "{seen}", "note": {json.dumps(note)}}}\n'
    )


def make_file(path: Path, kind: str, size: int) -> None:
    """Write about `size` bytes, by repeating a block of rows with new ids."""
    write = _as_csv if kind == "csv" else _as_json
    block = list(_rows(min(200_000, max(1_000, size // 90)), 7))
    number = 0
    with open(path, "w", encoding="utf-8") as file:
        if kind == "csv":
            file.write(",".join(COLUMNS) + "\n")
        while file.tell() < size:
            for row in block:
                number += 1
                file.write(write((number, *row[1:])))
            file.flush()


# ----------------------------------------------------------------------------------------------------- contestants
def _inlay(kind: str) -> Callable[[str, str], None]:
    from inlay.constants import WORKER_MEMORY_BYTES
    from inlay.engines.spark.session import ServiceSession, get_session
    from inlay.parquet.writer import WriterSettings
    from inlay.pipeline import RawFile, ReadOptions, convert
    from inlay.storage import locate

    service = ServiceSession(WORKER_MEMORY_BYTES, uses_s3=False, directory=tempfile.gettempdir())
    spark = get_session(f"local[{CORES}]", service)
    settings = WriterSettings.managed()

    def run(source: str, target: str) -> None:
        folder, name = os.path.split(source)
        raw = RawFile(locate(folder), name, os.path.getsize(source))
        convert(
            spark, raw, ReadOptions.of(kind), into=locate(target), directory="data", rejects_directory="rejects",
            settings=settings,
        )  # fmt: skip

    return run


def _spark(kind: str, *, infers: bool = False) -> Callable[[str, str], None]:
    from inlay.engines.spark.session import get_session

    os.environ["INLAY_SPARK_CONF"] = json.dumps(DEFAULT_JAVA)
    spark = get_session(f"local[{CORES}]")
    schema = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())

    def run(source: str, target: str) -> None:
        # With a schema, Spark reads the file only once. Without multiLine, it splits at quoted line breaks.
        reader = spark.read.option("inferSchema", True) if infers else spark.read.schema(schema)
        reader = reader.option("timestampFormat", "yyyy-MM-dd HH:mm:ss")
        reader = reader.option("timestampNTZFormat", "yyyy-MM-dd HH:mm:ss")
        frame = reader.csv(source, header=True, multiLine=True) if kind == "csv" else reader.json(source)
        frame.write.option("compression", "zstd").parquet(f"{target}/data")

    return run


def _duckdb(kind: str) -> Callable[[str, str], None]:
    import duckdb

    def run(source: str, target: str) -> None:
        read = "read_csv" if kind == "csv" else "read_json"
        with duckdb.connect(config={"threads": CORES}) as connection:
            connection.execute(f"COPY (FROM {read}('{source}')) TO '{target}/data.parquet' (CODEC 'zstd')")

    return run


def _polars(kind: str) -> Callable[[str, str], None]:
    os.environ["POLARS_MAX_THREADS"] = str(CORES)
    import polars as pl

    def run(source: str, target: str) -> None:
        frame = pl.scan_csv(source, try_parse_dates=True) if kind == "csv" else pl.scan_ndjson(source)
        if kind == "json":
            frame = frame.with_columns(pl.col("day").str.to_date(), pl.col("seen").str.to_datetime())
        frame.sink_parquet(f"{target}/data.parquet", compression="zstd")

    return run


def _pyarrow(kind: str) -> Callable[[str, str], None]:
    import pyarrow as pa
    import pyarrow.csv as pcsv
    import pyarrow.json as pj
    import pyarrow.parquet as pq

    pa.set_cpu_count(CORES)

    def run(source: str, target: str) -> None:
        if kind == "csv":
            reader = pcsv.open_csv(source, parse_options=pcsv.ParseOptions(newlines_in_values=True))
        else:
            reader = pj.open_json(source, read_options=pj.ReadOptions(block_size=8 << 20))
        # The same encodings as inlay. With dictionaries for all columns, the default, pyarrow needs twice the CPU time.
        options = {"compression": "zstd", "data_page_version": "2.0", "use_dictionary": ["qty", "day"]}
        with reader, pq.ParquetWriter(f"{target}/data.parquet", reader.schema, **options) as writer:
            for batch in reader:
                writer.write_batch(batch)

    return run


CONTESTANTS: dict[str, tuple[Callable[[str], Callable[[str, str], None]], str]] = {
    "inlay": (_inlay, "inlay"),
    "spark": (_spark, "pyspark"),
    "spark-infers": (functools.partial(_spark, infers=True), "pyspark"),
    "duckdb": (_duckdb, "duckdb"),
    "polars": (_polars, "polars"),
    "pyarrow": (_pyarrow, "pyarrow"),
}


# ----------------------------------------------------------------------------------------------------- measurement
def _family() -> list[int]:
    """Return the ids of this process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _cpu(pids: list[int]) -> float:
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # user and system time of the process and of its ended children
    return total / TICKS


def _workers(pids: list[int]) -> list[int]:
    """Return the processes that do the work: Spark's Python workers, its JVM, or this process."""
    programs = {pid: _command(pid) for pid in pids[1:]}
    workers = [pid for pid, args in programs.items() if "python" in args[0] and "daemon" in " ".join(args)]
    return workers or [pid for pid, args in programs.items() if args[0].endswith("java")] or pids[:1]


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return [""]


def _peak_mb(pids: list[int]) -> float:
    peaks = [0]
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            peaks += [int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    return max(peaks) / 1024


def _reset_peaks(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")


def _measure(name: str, kind: str, small: str, source: str, target: str, repeats: int) -> list[Result]:
    run = CONTESTANTS[name][0](kind)
    for number in range(REHEARSALS):
        folder = f"{target}/rehearsal-{number}"
        os.makedirs(folder)
        run(small, folder)
    results = []
    for number in range(repeats):
        folder = f"{target}/run-{number}"
        os.makedirs(folder)
        before = _family()
        _reset_peaks(before)
        cpu, wall = _cpu(before), time.perf_counter()
        run(source, folder)
        wall = time.perf_counter() - wall
        after = _family()
        size = sum(p.stat().st_size for p in Path(folder).rglob("*.parquet")) / 1e6
        results.append(
            {"wall": wall, "cpu": _cpu(after) - cpu, "peak_mb": _peak_mb(_workers(after)), "mb": size, "out": folder}
        )
    return results


def _child(arguments: list[str]) -> None:
    name, kind, small, source, target, repeats = arguments
    try:
        result: Any = _measure(name, kind, small, source, target, int(repeats))
    except Exception as error:  # noqa: BLE001  (any error of a peer is its result)
        result = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(result))


def _checksum(folder: str) -> tuple[Any, ...]:
    import duckdb

    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT {CHECKS} FROM read_parquet('{folder}/**/*.parquet')").fetchone()
    assert found is not None
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------- report
def _compare(kind: str, names: list[str], megabytes: int, repeats: int, work: Path) -> dict[str, Result]:
    small, source = work / f"small.{kind}", work / f"large.{kind}"
    make_file(small, kind, 1 << 20)
    make_file(source, kind, megabytes << 20)
    results: dict[str, Result] = {}
    for name in names:
        target = work / f"{kind}-{name}"
        target.mkdir()
        command = [sys.executable, "-m", "benchmarks.convert", "--child", name, kind, str(small), str(source)]
        done = subprocess.run(
            [*command, str(target), str(repeats)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        output = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else done.stderr[-300:]
        results[name] = _summary(output)
        shutil.rmtree(target)
        print(kind, name, results[name], flush=True)
    source.unlink()
    return results


def _summary(runs: Any) -> Result:
    if isinstance(runs, str):
        return {"failed": runs}
    medians = {key: statistics.median(run[key] for run in runs) for key in ("wall", "cpu", "peak_mb", "mb")}
    return medians | {"checksum": _checksum(runs[-1]["out"])}


def _table(kind: str, megabytes: int, results: dict[str, Result]) -> str:
    right = results["inlay"].get("checksum") if "inlay" in results else None
    lines = [
        f"### {megabytes} MB of {kind.upper()}",
        "",
        "| | CPU s | relative to inlay | wall s | peak RSS of a worker, MB | Parquet, MB | same rows and checksums |",
        "|---|---|---|---|---|---|---|",
    ]
    base = results.get("inlay", {}).get("cpu")
    for name, result in results.items():
        version = importlib.metadata.version(CONTESTANTS[name][1])
        if "failed" in result:
            lines.append(f"| {name} {version} | failed: {result['failed']} | | | | | |")
            continue
        ratio = f"{result['cpu'] / base:.2f}x" if base else ""
        same = "yes" if result["checksum"] == right else "NO"
        lines.append(
            f"| {name} {version} | {result['cpu']:.2f} | {ratio} | {result['wall']:.2f} | "
            f"{result['peak_mb']:.0f} | {result['mb']:.1f} | {same} |"
        )
    return "\n".join([*lines, ""])


def _inline(work: Path, repeats: int) -> str:
    """Send a megabyte of inline data to a service that has just started, then to the warm service."""
    from benchmarks.service import serving

    make_file(work / "inline.csv", "csv", 1 << 20)
    content = (work / "inline.csv").read_text()[: 1 << 20]
    content = content[: content.rfind("\n") + 1]
    with serving(work / "service") as service:
        taken = []
        for number in range(repeats + 1):
            body = {"label": f"inline {number}", "source": {"inline": {"format": "csv", "content": content}}}
            start = time.perf_counter()
            service.client.post("/v1/datasets", json=body).raise_for_status()
            taken.append(time.perf_counter() - start)
    return (
        f"### {len(content) / (1 << 20):.1f} MiB of inline CSV\n\n"
        f"The service responds to `/healthz` {service.answered_after:.1f} s after its start. A request that creates a "
        f"dataset from inline data takes {taken[0]:.2f} s the first time, and {statistics.median(taken[1:]):.2f} s on "
        f"the warm service (median of {repeats}).\n"
    )


_HEAD = """# Conversion of uploads

This report compares how inlay and other tools convert CSV and JSON files to Parquet. `make bench-convert
BENCH_ARGS='--mb 500 --report docs/benchmarks/convert.md'` reproduces it; the tables hold all figures, and there
are no raw files.

Measured on {date} with {cores} cores and a load average of {load} at the start. Each contestant ran in a separate
process, one after another, on the same file, after {rehearsals} conversions of 1 MB. Figures are medians of
{repeats} runs. CPU time includes the JVM and all workers. All contestants infer the schema, except `spark`, which
gets the schema and so reads the file once instead of twice. All contestants write zstd. Only inlay checks that no
value changes (leading zeros, long numbers, dates) and stores rejects.

"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convert", description=__doc__)
    parser.add_argument("--mb", type=int, default=50)
    parser.add_argument("--formats", default="csv,json")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--report", type=Path, help="write a Markdown report to this file")
    parser.add_argument("--child", nargs=6, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.child:
        _child(options.child)
        return
    head = _HEAD.format(
        date=dt.date.today().isoformat(),  # noqa: DTZ011
        cores=CORES,
        load=f"{os.getloadavg()[0]:.1f}",
        repeats=options.repeats,
        rehearsals=REHEARSALS,
    )
    tables = []
    with tempfile.TemporaryDirectory(prefix="inlay-bench-") as work:
        for kind in options.formats.split(","):
            names = options.contestants.split(",")
            tables.append(_table(kind, options.mb, _compare(kind, names, options.mb, options.repeats, Path(work))))
        tables.append(_inline(Path(work), 2 * options.repeats))
    print("\n".join(tables))
    if options.report:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(head + "\n".join(tables))


if __name__ == "__main__":
    main()
