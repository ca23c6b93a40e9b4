"""Run merges on 1, 2, 4, ... cores next to polars, which rewrites everything. Needs only pyarrow, fsspec and polars."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import data
from benchmarks.workloads import DATASETS, WORKLOADS

ROOT = Path(__file__).resolve().parent.parent
CONTESTANTS = {"inlay": "inlay_merge", "polars": "polars_rewrite"}
TITLES = ("keys-10", "keys-100", "random-1m", "full-clustered")
Figures = dict[tuple[str, int], dict[str, float]]

HEAD = """# Merges on many cores

This report shows how merges use the cores of a machine. `python -m benchmarks.cores --report docs/benchmarks/cores.md`
reproduces it on a machine with 16 cores; the tables hold all figures.

Measured on {date}{scale}. Each merge ran in a new process that could use only some of the machine's cores, on a
new copy of the dataset{where}. Figures are minimums of {repeats} runs, and contestants take turns. polars reads
everything, removes the rows with new versions, and writes everything into new files; for a snapshot it only writes.
inlay computes checksums, verifies what it wrote and commits.
"""


def _spec(workload: str, scale: float, root: Path, work: Path) -> dict[str, Any]:
    dataset, job = DATASETS[WORKLOADS[workload].dataset].scaled(scale), WORKLOADS[workload].scaled(scale)
    delta = asdict(data.make(dataset, job, root))
    shutil.copytree(delta["target"], work / "target")
    delta.pop("touched_row_groups")
    return delta | {
        "target": str(work / "target"),
        "work": str(work),
        "strategy": job.strategy,
        "key_columns": list(dataset.keys),
        "partition_columns": [],
        "row_group_size": dataset.rows // dataset.row_groups,
    }


def _run(contestant: str, cores: int, spec: dict[str, Any]) -> dict[str, Any]:
    def limit() -> None:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])

    found = subprocess.run(
        [sys.executable, "-m", f"benchmarks.contestants.{CONTESTANTS[contestant]}", json.dumps(spec)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
            "POLARS_MAX_THREADS": str(cores),
            "OMP_NUM_THREADS": str(cores),  # for pyarrow
        },
        preexec_fn=limit,
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(found.stdout)
    if result["status"] != "ok":
        raise SystemExit(f"{contestant} on {cores} cores: {result['reason']}")
    return result


def measure(workload: str, scale: float, cores: list[int], repeats: int, root: Path) -> Figures:
    figures: Figures = {}
    rows = set()
    for _ in range(repeats):
        for count in cores:
            for contestant in CONTESTANTS:
                with tempfile.TemporaryDirectory(dir=root) as work:
                    result = _run(contestant, count, _spec(workload, scale, root, Path(work)))
                    rows.add(sum(pq.read_metadata(file).num_rows for file in result["files"]))
                best = figures.setdefault((contestant, count), {"wall": float("inf"), "cpu": float("inf")})
                figures[contestant, count] = {name: min(best[name], result[name]) for name in best}
                print(f"{workload} {contestant} {count}: {figures[contestant, count]}", file=sys.stderr, flush=True)
    if len(rows) != 1:
        raise SystemExit(f"{workload}: the contestants disagree about the number of rows: {sorted(rows)}")
    return figures


def table(workload: str, figures: Figures, cores: list[int]) -> Iterator[str]:
    yield f"\n### {workload}: {WORKLOADS[workload].title}\n"
    yield "| cores | inlay wall s | CPU s | speed-up | polars wall s | CPU s | inlay / polars, wall | CPU |"
    yield "|---:|---:|---:|---:|---:|---:|---:|---:|"
    for count in cores:
        mine, other = figures["inlay", count], figures["polars", count]
        yield (
            f"| {count} | {mine['wall']:.2f} | {mine['cpu']:.2f} | "
            f"{figures['inlay', cores[0]]['wall'] / mine['wall']:.1f}x | {other['wall']:.2f} | {other['cpu']:.2f} | "
            f"{mine['wall'] / other['wall']:.2f}x | {mine['cpu'] / other['cpu']:.2f}x |"
        )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=__doc__)
    parser.add_argument("--workloads", default=",".join(TITLES))
    parser.add_argument("--cores", default="1,2,4,8,16")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "inlay-benchmarks")
    parser.add_argument("--report", type=Path, help="the file to write (default: standard output)")
    options = parser.parse_args(argv)
    cores = [int(count) for count in options.cores.split(",")]
    available = len(os.sched_getaffinity(0))
    if max(cores) > available:
        raise SystemExit(f"This machine has {available} cores. Pass --cores.")
    options.data.mkdir(parents=True, exist_ok=True)
    scale = "" if options.scale == 1 else f" with {options.scale:g} of the rows"
    where = " in memory" if options.data.is_relative_to("/dev/shm") else ""
    text = HEAD.format(date=dt.datetime.now(dt.UTC).date(), scale=scale, where=where, repeats=options.repeats)
    for workload in options.workloads.split(","):
        figures = measure(workload, options.scale, cores, options.repeats, options.data)
        text += "\n".join(table(workload, figures, cores)) + "\n"
    if options.report:
        options.report.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
