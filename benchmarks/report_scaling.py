"""The report of cost against size: `scaling.md` and `scaling.svg`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contestants import SCALING
from benchmarks.workloads import AXES, Axis

Raw = dict[str, Any]
STEPS = {"cold": "plan, footers read", "again": "plan, footers cached", "merge": "merge"}
COLUMNS = [(engine, step) for engine in SCALING for step in STEPS]


def seconds(raw: Raw, workload: str, engine: str, step: str) -> float | None:
    """Return the minimum CPU seconds of a step over the repeats, or None if a run failed or is missing."""
    runs = raw["workloads"].get(workload, {}).get("results", {}).get(engine, [])
    if not runs or any(run["status"] != "ok" for run in runs):
        return None
    return min(float(run["detail"][step]["cpu"]) for run in runs)


def per_file(raw: Raw, engine: str, few: str, many: str, files: int) -> float | None:
    """Return the CPU seconds that each of `files` additional files adds to a plan with cached footers."""
    low, high = seconds(raw, few, engine, "again"), seconds(raw, many, engine, "again")
    return None if low is None or high is None else (high - low) / files


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _table(raw: Raw, axis: Axis) -> Iterator[str]:
    yield f"\n## {axis.title}\n\nCPU seconds against {axis.label}.\n"
    yield "| " + " | ".join(["", *(f"{engine}: {STEPS[step]}" for engine, step in COLUMNS)]) + " |"
    yield "|---:" * (len(COLUMNS) + 1) + "|"
    for workload, size in axis.points.items():
        cells = [_cell(seconds(raw, workload, engine, step)) for engine, step in COLUMNS]
        yield f"| {size:,} | {' | '.join(cells)} |"


def _growth(raw: Raw) -> Iterator[str]:
    yield "\n## Cost of one more file in a plan\n"
    yield "CPU time with cached footers, from the first and last rows of the first two tables. The goal is that an"
    yield "unchanged file adds at most a twentieth of the cost of a changed file, so that the cost of a plan follows"
    yield "the changed files.\n"
    yield "| engine | unchanged file | changed file | |\n|---|---:|---:|---|"
    for engine in SCALING:
        idle = per_file(raw, engine, "files-100", "files-10000", 9_900)
        changed = per_file(raw, engine, "files-10000", "changed-400", 390)
        if idle is not None and changed is not None:
            status = "met" if 20 * idle <= changed else "**missed**"
            yield f"| {engine} | {idle * 1e6:,.0f} µs | {changed * 1e6:,.0f} µs | {status} |"


def _many_files(out: Path) -> Iterator[str]:
    """Yield the table of `python -m benchmarks.many_files`."""
    file = out / "many_files.json"
    if not file.exists():
        return
    yield "\n## Up to a million files\n"
    yield "One plan with cached footers in a new process, for a key that no file contains. Each file is a hard"
    yield "link, and the footers and the listing of the object store are synthetic. The store answers after 20 ms. It"
    yield "has 100 partitions, which inlay lists side by side. `.venv/bin/python -m benchmarks.many_files` measures it."
    yield "The goal for a million files is 5 s and 1,500 MB.\n"
    yield "| files | local: CPU s | wall s | peak MB | object store: CPU s | wall s | peak MB |\n|" + "---:|" * 7
    for files, costs in json.loads(file.read_text()).items():
        cells = [f"{c['cpu']:.2f} | {c['wall']:.2f} | {c['peak_mb']:,.0f}" for c in (costs["local"], costs["s3"])]
        yield f"| {int(files):,} | {' | '.join(cells)} |"


def _failures(raw: Raw) -> Iterator[str]:
    for name in dict.fromkeys(name for axis in AXES for name in axis.points):
        for engine, runs in raw["workloads"].get(name, {}).get("results", {}).items():
            yield from (f"- {name}, {engine}: {r['status']}: {r['reason']}" for r in runs if r["status"] != "ok")


def _facts(raw: Raw) -> str:
    entries = [raw["workloads"][name] for axis in AXES for name in axis.points if name in raw["workloads"]]
    scales = "/".join(sorted({f"{entry['scale']:g}" for entry in entries}))
    dates = " to ".join(sorted({entry["date"] for entry in entries}))
    return f"scale {scales}, {dates}, load average at the start at most {max(e['load_average'] for e in entries):.1f}"


def _document(raw: Raw, out: Path) -> Iterator[str]:
    host = raw["machine"]
    yield "# Cost against size\n"
    yield "This report shows how the CPU time of planning and merging grows with the number of files and source rows."
    yield "`make bench BENCH_ARGS='--workloads scaling --keep'` reproduces it; the raw figures are in"
    yield "[merge.json](merge.json).\n"
    yield f"- Machine: {host['cpu']}, {host['cores']} cores, {host['memory']}, {host['kernel']}"
    yield f"- {_facts(raw)}"
    yield "- Measured as in [merge.md](merge.md): CPU of all processes, warm Spark session, results verified by their"
    yield "  fingerprint. Each plan runs twice, and the minimum counts. The merge then uses the cached footers.\n"
    yield "![CPU seconds against size](scaling.svg)"
    yield from _growth(raw)
    for axis in AXES:
        yield from _table(raw, axis)
    yield from _many_files(out)
    if failures := list(_failures(raw)):
        yield "\n## Not measured\n"
        yield from failures
    yield ""


def _plot(raw: Raw, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(AXES), figsize=(12, 5), sharey=True)
    styles = dict(zip(STEPS, ("--", ":", "-"), strict=True))
    for axis, panel in zip(AXES, panels, strict=True):
        for at, (engine, step) in enumerate(COLUMNS):
            found = [(x, seconds(raw, name, engine, step)) for name, x in axis.points.items()]
            points = [(x, y) for x, y in found if y is not None]
            color = f"C{at // len(STEPS)}"
            label = f"{engine}: {STEPS[step]}"
            panel.plot(
                *zip(*points, strict=True) if points else ((), ()), styles[step], c=color, marker="o", label=label
            )
        panel.set(xscale="log", yscale="log", xlabel=axis.label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("CPU seconds (log scale)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(SCALING), fontsize="small", loc="upper center")
    figure.tight_layout(rect=(0, 0, 1, 0.86))
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def write_document(raw: Raw, out: Path) -> None:
    (out / "scaling.md").write_text("\n".join(_document(raw, out)))


def write(raw: Raw, out: Path) -> None:
    write_document(raw, out)
    _plot(raw, out / "scaling.svg")
