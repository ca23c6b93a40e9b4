"""What readers without inlay see during a commit: `python -m benchmarks.readers`.

For each operation, reader and layout, a writer commits to copies of one dataset, one after another. During each
commit, a reader in another process reads the same copy in a tight loop. The first read is over before the commit starts
and the last read starts after it, so they show the state before and after. Every other state is a mixture.

The writer also measures its window: the time from the first to the last rename or removal of a data file. With
`--busy-threads`, other Python threads of the writer's process compute meanwhile, as in a program that does other work.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import multiprocessing
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import inlay

FILES = 40
ROWS_PER_FILE = 250
PARTITIONS = 8
_ROWS = FILES * ROWS_PER_FILE

State = tuple[Any, ...] | None  # None: the read failed
Reader = Callable[[str], State]


# ------------------------------------------------------------------------------------------------------- operations
def rows(version: int) -> pa.Table:
    ids = list(range(_ROWS))
    return pa.table({"id": ids, "version": [version] * _ROWS, "part": [number * PARTITIONS // _ROWS for number in ids]})


def write(path: str, version: int, partition_columns: list[str]) -> None:
    inlay.write_dataset(
        rows(version), path, "overwrite", partition_columns=partition_columns, max_rows_per_file=ROWS_PER_FILE
    )


def upsert(path: str) -> None:
    inlay.merge(rows(1), path, "upsert", ["id"])


def overwrite(path: str) -> None:
    inlay.write_dataset(rows(1), path, "overwrite", max_rows_per_file=ROWS_PER_FILE)


def delete(path: str) -> None:
    inlay.merge(rows(1).slice(0, 0), path, "full_merge", ["id"])


def compact(path: str) -> None:
    inlay.compact(path)


OPERATIONS = {"upsert": upsert, "overwrite": overwrite, "compact": compact, "delete all rows": delete}
LAYOUTS: dict[str, list[str]] = {"flat": [], "partitioned": ["part"]}


# ---------------------------------------------------------------------------------------------------------- readers
def read_pyarrow() -> Reader:
    import pyarrow.dataset as ds

    def read(path: str) -> State:
        versions = ds.dataset(path, partitioning="hive").to_table(columns=["version"])["version"]
        return len(versions), sum(chunk.sum().as_py() or 0 for chunk in versions.chunks)

    return read


def read_duckdb() -> Reader:
    import duckdb

    connection = duckdb.connect()
    statement = "SELECT count(*), coalesce(sum(version), 0) FROM read_parquet(?)"
    return lambda path: connection.execute(statement, [f"{path}/**/*.parquet"]).fetchall()[0]


def read_polars() -> Reader:
    import polars as pl

    return lambda path: pl.scan_parquet(path).select(pl.len(), pl.col("version").sum()).collect().row(0)


def read_listing() -> Reader:
    """Read only the names and inodes: the shortest read, so it shows the writer's window alone."""

    def entries(path: str) -> Iterator[tuple[str, int]]:
        for entry in os.scandir(path):
            if not entry.name.startswith("."):
                yield from entries(entry.path) if entry.is_dir() else [(entry.path, entry.inode())]

    return lambda path: (hash(tuple(sorted(entries(path)))),)


def read_nothing() -> Reader:
    """Leave the processor to the writer: the window without another process."""

    def read(_: str) -> State:
        time.sleep(0.001)
        return ()

    return read


READERS = {
    "pyarrow": read_pyarrow,
    "duckdb": read_duckdb,
    "polars": read_polars,
    "listing": read_listing,
    "none": read_nothing,
}


class Read(NamedTuple):
    state: State
    seconds: float


def serve_reads(name: str, connection: Connection, stop: Event, count: Any) -> None:
    """Read each path from the connection in a loop until `stop` is set, then send all reads."""
    if name == "polars":  # It prints the stack of each failed read.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    read = READERS[name]()
    for path in iter(connection.recv, None):
        reads = []
        while not stop.is_set():
            start = time.perf_counter()
            state = _read_or_none(read, path)
            reads.append(Read(state, time.perf_counter() - start))
            count.value += 1
        connection.send(reads)


def _read_or_none(read: Reader, path: str) -> State:
    try:
        return read(path)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - A panic of polars is not an Exception.
        return None


class ReaderProcess:
    """A reader in another process."""

    def __init__(self, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._stop = context.Event()
        self._count = context.Value("q", 0, lock=False)
        self._process = context.Process(target=serve_reads, args=(name, other, self._stop, self._count), daemon=True)
        self._process.start()

    def read_during(self, path: str, change: Callable[[str], None]) -> list[Read]:
        self._stop.clear()
        self._connection.send(path)
        self._wait_for_reads(1)
        change(path)
        self._wait_for_reads(2)  # The first of them may have started before the end of the change.
        self._stop.set()
        reads: list[Read] = self._connection.recv()
        return reads

    def _wait_for_reads(self, reads: int) -> None:
        target = self._count.value + reads
        while self._count.value < target:
            if not self._process.is_alive():
                raise RuntimeError("The reader process ended.")
            time.sleep(0.0005)

    def end(self) -> None:
        self._connection.send(None)
        self._process.join()


# ------------------------------------------------------------------------------------------------------ measurement
class Window:
    """Time from the first to the last rename or removal of a data file, by Python's audit events."""

    def __init__(self) -> None:
        self._root = "\0"
        self._times: list[float] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.remove"):
            directory, name = os.path.split(os.fspath(arguments[1 if event == "os.rename" else 0]))
            if directory.startswith(self._root) and not name.startswith("."):
                self._times.append(time.perf_counter())

    @contextlib.contextmanager
    def measure(self, path: str) -> Iterator[list[float]]:
        self._root, self._times = path, []
        yield self._times
        self._root = "\0"


@contextlib.contextmanager
def busy_threads(count: int) -> Iterator[None]:
    stop = threading.Event()

    def compute() -> None:
        while not stop.is_set():
            sum(range(1000))

    threads = [threading.Thread(target=compute) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Outcome(NamedTuple):
    commits: int
    reads: Counter[str]
    read_seconds: float
    window_seconds: float

    def cells(self) -> list[str]:
        return [
            *(f"{self.reads[kind]}" for kind in KINDS),
            *(f"{self.reads[kind] / self.commits:.2f}" for kind in ("mixed", "failed")),
            *(f"{seconds * 1000:.2f}" for seconds in (self.read_seconds, self.window_seconds)),
        ]


KINDS = ("whole", "mixed", "failed")


def classify(states: list[State]) -> Counter[str]:
    before, after = states[0], states[-1]
    if before is None or after is None:
        raise AssertionError("A read failed although no commit was in progress.")
    return Counter("failed" if s is None else "whole" if s in (before, after) else "mixed" for s in states)


def measure(operation: str, layout: str, name: str, commits: int, window: Window, work: Path) -> Outcome:
    template = work / "template"
    write(str(template), 0, LAYOUTS[layout])
    reader, kinds, seconds, windows = ReaderProcess(name), Counter[str](), [], []
    for number in range(commits):
        path = str(shutil.copytree(template, work / f"copy-{number}"))
        with window.measure(path) as times:
            reads = reader.read_during(path, OPERATIONS[operation])
        kinds += classify([read.state for read in reads])
        seconds += [read.seconds for read in reads]
        windows.append(times[-1] - times[0])
        for directory in (path, f"{work}/.copy-{number}.txn"):
            shutil.rmtree(directory)
    reader.end()
    return Outcome(commits, kinds, statistics.fmean(seconds), statistics.fmean(windows))


_HEAD = """# What other readers see

This report shows how often a reader without inlay sees a commit half done. `make bench-readers` reproduces it; the
table holds all figures, and there are no raw files.

Measured on {date} with {cores} cores, {commits} commits per line and {busy} busy Python threads in the process of the
writer. One commit changes a dataset of {files} files (in {partitions} partitions, if it is partitioned): it rewrites
every file (upsert), replaces every file (overwrite), combines all files of a partition (compact) or removes all files
but one (delete all rows). Meanwhile one reader in another process reads the dataset in a tight loop: it lists the
directory, opens the files and sums a column. The reader `listing` lists names and inodes and opens nothing, and `none`
only sleeps.

A *whole* read returns exactly the rows before or after the commit, a *mixed* read returns other rows, and a *failed*
read raises an error, such as for a missing file. The last two columns are means in milliseconds: the time of one read,
and the window of the writer from the first to the last rename or removal of a data file.

"""
_COLUMNS = ["operation", "reader", *KINDS, "mixed per commit", "failed per commit", "read", "window"]


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readers", description=__doc__)
    parser.add_argument("--commits", type=int, default=30)
    parser.add_argument("--busy-threads", type=int, default=0)
    for option, values in (("operations", OPERATIONS), ("layouts", LAYOUTS), ("readers", READERS)):
        parser.add_argument(f"--{option}", nargs="+", choices=list(values), default=list(values))
    parser.add_argument("--report", type=Path, help="write a Markdown report to this file")
    options = parser.parse_args(argv)
    window, lines = Window(), [line(_COLUMNS), line(["---"] * len(_COLUMNS))]
    print(*lines, sep="\n")
    with busy_threads(options.busy_threads):
        for operation, layout, reader in itertools.product(options.operations, options.layouts, options.readers):
            with tempfile.TemporaryDirectory(prefix="inlay-bench-") as work:
                outcome = measure(operation, layout, reader, options.commits, window, Path(work))
            lines.append(line([f"{operation}, {layout}", reader, *outcome.cells()]))
            print(lines[-1], flush=True)
    if options.report:
        head = _HEAD.format(
            date=dt.date.today().isoformat(),  # noqa: DTZ011
            cores=len(os.sched_getaffinity(0)),
            commits=options.commits,
            busy=options.busy_threads or "no",
            files=FILES,
            partitions=PARTITIONS,
        )
        options.report.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
