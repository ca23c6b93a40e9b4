"""Conversion of CSV and NDJSON to Parquet side by side: `python -m benchmarks.convert --mb 500`.

Every contestant runs in a process of its own: it converts a small file first, so that nothing is measured that is
imported or started once, and then the large one. CPU time is that of the process and all its descendants, the JVM
and Python workers of Spark included. Results count only if the rows and the checksums of all columns are right.
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

ROOT = Path(__file__).resolve().parent.parent
CORES = len(os.sched_getaffinity(0))
REHEARSALS = 8  # a service has run for a while: its JVM has compiled what it uses
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
    """About `size` bytes: a block of rows, again and again with other ids."""
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
    from inlay.engines.spark_session import get_session
    from inlay.parquet.writer import WriterSettings
    from inlay.pipeline import RawFile, ReadOptions, convert
    from inlay.storage import locate

    spark = get_session(f"local[{CORES}]")
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
    from inlay.engines.spark_session import get_session

    spark = get_session(f"local[{CORES}]")
    schema = ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())

    def run(source: str, target: str) -> None:
        # With the schema given it need not read the file twice; without multiLine it cuts quoted line ends.
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
        # As inlay chooses them: with dictionaries for every column, its default, it takes twice the CPU time.
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
    """This process and all its descendants."""
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
            total += sum(map(int, fields[11:15]))  # user and system time, its own and of children that ended
    return total / TICKS


def _workers(pids: list[int]) -> list[int]:
    """Processes that do the work: Spark's Python workers, else its JVM, else this one."""
    programs = {pid: _command(pid) for pid in pids[1:]}
    workers = [pid for pid, words in programs.items() if "python" in words[0] and "daemon" in " ".join(words)]
    return workers or [pid for pid, words in programs.items() if words[0].endswith("java")] or pids[:1]


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


def _forget_peaks(pids: list[int]) -> None:
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
        _forget_peaks(before)
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
        answer: Any = _measure(name, kind, small, source, target, int(repeats))
    except Exception as error:  # noqa: BLE001  (whatever a peer raises is its result)
        answer = f"{type(error).__name__}: {error}"[:300]
    print(json.dumps(answer))


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
        answer = json.loads(done.stdout.strip().splitlines()[-1]) if done.stdout.strip() else done.stderr[-300:]
        results[name] = _summary(answer)
        shutil.rmtree(target)
        print(kind, name, results[name], flush=True)
    source.unlink()
    return results


def _summary(answer: Any) -> Result:
    if isinstance(answer, str):
        return {"failed": answer}
    middle = {key: statistics.median(run[key] for run in answer) for key in ("wall", "cpu", "peak_mb", "mb")}
    return middle | {"checksum": _checksum(answer[-1]["out"])}


def _table(kind: str, megabytes: int, results: dict[str, Result]) -> str:
    right = results["inlay"].get("checksum") if "inlay" in results else None
    lines = [
        f"### {megabytes} MB of {kind.upper()}",
        "",
        "| | CPU s | against inlay | wall s | peak RSS of a worker, MB | Parquet, MB | same rows and checksums |",
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
    """A megabyte within a request, to a service that has just started and then to one that is warm."""
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
        f"### {len(content) / (1 << 20):.1f} MiB of CSV within a request\n\n"
        f"A service answers `/healthz` {service.answered_after:.1f} s after its start. From the request to a dataset "
        f"that can be asked: {taken[0]:.2f} s for the first one, {statistics.median(taken[1:]):.2f} s on a warm "
        f"service (median of {repeats}).\n"
    )


_HEAD = """# Conversion of uploads

{date}, {cores} cores, load {load} when it began. Each contestant ran in a process of its own, one after the other,
on the same file, after {rehearsals} conversions of 1 MB; figures are medians of {repeats}. CPU time includes the JVM
and all workers. All find out the schema themselves, as inlay does; Spark's own reader once more with the schema given,
which spares it one of two passes. Everybody writes zstd. Only inlay checks that no value changes (leading zeros, long
numbers, dates) and keeps rejects.

Run it with `python -m benchmarks.convert --mb 500`.

"""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.convert", description=__doc__)
    parser.add_argument("--mb", type=int, default=50)
    parser.add_argument("--formats", default="csv,json")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--report", type=Path, help="write a markdown report there")
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
