"""What versions cost: `python -m benchmarks.versions`.

Each step runs with and without a history, in turn, in one process, which prints the least CPU time of several runs.
Without a history, the sidecar keeps no links and no records, as on a filesystem without hard links.

history    list a history of 10,000 commits
commit     commit 10 changed files among 100,000
merge      the workloads `keys-1`, `clustered` and `small` of `make bench`
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

import inlay
from benchmarks import data
from benchmarks.many_files import make_files
from benchmarks.measure import Spec
from benchmarks.workloads import DATASETS, WORKLOADS
from inlay.commit.local import LocalJournal
from inlay.commit.transaction import IncrementalFileManager
from inlay.storage import locate

MERGES = ("keys-1", "clustered", "small")


def cpu(call: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call in all threads."""
    start = time.process_time()
    call()
    return time.process_time() - start


@contextlib.contextmanager
def history_of(enabled: bool) -> Iterator[None]:
    with contextlib.nullcontext() if enabled else mock.patch.object(LocalJournal, "history", None):
        yield


def least(call: Callable[[bool], float], repeats: int) -> tuple[float, float]:
    """Return the least cost with and without a history. The runs alternate, so that both meet the same machine."""
    costs = [(call(True), call(False)) for _ in range(repeats)]
    return min(cost for cost, _ in costs), min(cost for _, cost in costs)


# ------------------------------------------------------------------------------------------------------------- history
def measure_history(folder: Path, commits: int, repeats: int) -> str:
    path = folder / "d"
    path.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), path / "a.parquet")
    for number in range(commits):
        commit(path, ["a.parquet"], number)
        if not number:
            inlay.keep(path, versions=2 * commits)
    cost = min(cpu(lambda: inlay.history(path)) for _ in range(repeats))
    assert len(inlay.history(path)) == commits + 1
    return f"| list {commits + 1:,} versions | {cost * 1000:.0f} ms | | |"


def commit(path: Path, names: list[str], number: int) -> None:
    """Replace files of a dataset, as a merge does after it has planned and staged."""
    with IncrementalFileManager() as manager:
        manager.open(locate(path))
        manager.snapshot()
        puts = []
        for name in names:
            staged = manager.stage_path()
            pq.write_table(pa.table({"id": [number]}), staged)
            puts.append((staged, name))
        manager.commit(puts)


# -------------------------------------------------------------------------------------------------------------- commit
def measure_commit(folder: Path, files: int, repeats: int) -> str:
    for enabled in (True, False):
        make_files(folder / str(enabled) / "d", files)
    changed = [f"part={partition:03}/000001.parquet" for partition in range(10)]
    counts = iter(range(10**6))

    def run(enabled: bool) -> float:
        with history_of(enabled):
            return cpu(lambda: commit(folder / str(enabled) / "d", changed, next(counts)))

    least(run, 1)  # the first commit with a history links all files
    return row(f"commit {len(changed)} of {files:,} files", *least(run, repeats))


def row(title: str, with_history: float, without: float) -> str:
    return f"| {title} | {with_history:.3f} s | {without:.3f} s | {with_history / without:.2f}x |"


# --------------------------------------------------------------------------------------------------------------- merge
def measure_merge(folder: Path, name: str, scale: float, repeats: int) -> str:
    workload = WORKLOADS[name].scaled(scale)
    dataset = DATASETS[workload.dataset].scaled(scale)
    delta = data.make(dataset, workload, folder / "data")
    source = Spec(delta.target, delta.source, "", workload.strategy, list(dataset.keys), []).load_source()

    def run(enabled: bool) -> float:
        path = folder / "work" / "d"
        shutil.copytree(delta.target, path, copy_function=os.link)  # inlay replaces files, and changes none
        with history_of(enabled):
            inlay.merge(source.slice(0, 1), path, "upsert", list(dataset.keys))  # links all files of a found directory
            cost = cpu(lambda: inlay.merge(source, path, "upsert", list(dataset.keys)))
        shutil.rmtree(path.parent)
        return cost

    run(True)
    return row(f"`{name}`: {workload.title}", *least(run, repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", default=["history", "commit", *MERGES])
    parser.add_argument("--scale", type=float, default=1.0, help="the fraction of the data, such as 0.01")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print("| step | with a history | without | ratio |\n|---|---:|---:|---:|", flush=True)
    for step in arguments.steps:
        with tempfile.TemporaryDirectory() as folder:
            if step == "history":
                line = measure_history(Path(folder), round(10_000 * arguments.scale), arguments.repeats)
            elif step == "commit":
                line = measure_commit(Path(folder), round(100_000 * arguments.scale), arguments.repeats)
            else:
                line = measure_merge(Path(folder), step, arguments.scale, arguments.repeats)
        print(line, flush=True)


if __name__ == "__main__":
    main()
