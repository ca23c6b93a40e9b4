"""The report of the merge benchmarks: `merge.json`, `merge.md` and the plot."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import report_scaling
from benchmarks.contestants import CONTESTANTS, ON_SPARK
from benchmarks.workloads import WORKLOADS

Raw = dict[str, Any]
FIGURES = ("cpu", "wall", "peak_mb", "growth_mb", "written_mb", "new_data_mb")
NAMES = {"cpu": "CPU", "wall": "wall", "peak_mb": "peak"}
UNITS = {"cpu": "s", "wall": "s", "peak_mb": "MB"}


class Verdict(NamedTuple):
    """Whether inlay meets one goal in one workload."""

    goal: str
    workload: str
    met: bool
    figures: str


def machine() -> dict[str, str]:
    """Describe the machine, without host names and paths."""
    cpu = [x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu[0].split(":", 1)[1].strip() if cpu else platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{pages / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
    }


def empty() -> Raw:
    return {"machine": machine(), "workloads": {}}


def load(out: Path) -> Raw:
    file = out / "merge.json"
    return json.loads(file.read_text()) | {"machine": machine()} if file.exists() else empty()


def minimum(runs: list[Raw]) -> Raw:
    """Return the minimum of each figure over the repeats, or the first run that failed."""
    bad = [run for run in runs if run["status"] != "ok"]
    if bad or not runs:
        return bad[0] if bad else {"status": "not run", "reason": "not run"}
    least = min(runs, key=lambda run: run["cpu"])
    kept = {name: least[name] for name in ("cpu_by", "versions") if name in least}
    return {"status": "ok", **kept} | {f: min(run[f] for run in runs) for f in FIGURES}


def summary(entry: Raw) -> dict[str, Raw]:
    return {name: minimum(runs) for name, runs in entry["results"].items()}


def _cell(value: float, base: float | None, digits: int) -> str:
    ratio = f" ({value / base:.2f}x)" if base else ""
    return f"{value:,.{digits}f}{ratio}"


def _row(name: str, result: Raw, base: Raw | None) -> str:
    if result["status"] != "ok":
        status = {"unsupported": "n/a", "timeout": "DID NOT FINISH"}.get(result["status"], result["status"])
        return f"| {name} | **{status}**: {result['reason']} | | | | |"
    reference = base if base and base is not result else {}
    cells = [_cell(result[f], reference.get(f), 2 if f in ("cpu", "wall") else 0) for f in FIGURES[:5]]
    return f"| {name} | {' | '.join(cells)} |"


def _table(results: dict[str, Raw], base_name: str) -> Iterator[str]:
    yield "| contestant | CPU s | wall s | peak RSS MB | growth MB | written MB |"
    yield "|---|---:|---:|---:|---:|---:|"
    base = results.get(base_name)
    base = base if base and base["status"] == "ok" else None
    for name, result in results.items():
        yield _row(name, result, base)


def _section(name: str, entry: Raw) -> Iterator[str]:
    yield f"\n### {name}: {entry['title']}\n"
    facts = f"{entry['rows']:,} rows in {entry['files']:,} files"
    if entry["kind"] == "merge":
        facts += f", {entry['touched_row_groups']:.1%} of the row groups hold changed rows"
    yield f"{facts}; scale {entry['scale']:g}, {entry['date']}, best of {entry['repeats']},"
    yield f"load average at the start {entry['load_average']:.1f}.\n"
    if entry.get("earlier"):
        yield f"Kept from an earlier run of the same workload: {', '.join(entry['earlier'])}.\n"
    yield from _table(summary(entry), "inlay" if entry["kind"] == "merge" else "inlay-cold")
    reduced = entry.get("reduced")
    if reduced:
        yield f"\nContestants that did not finish, compared with inlay at scale {reduced['scale']:g}:\n"
        yield from _table(summary(reduced), "inlay")


def _ok(results: dict[str, Raw], *names: str) -> bool:
    return all(results.get(name, {}).get("status") == "ok" for name in names)


def _clustered(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if name == "clustered" and _ok(results, "inlay", "reference"):
        mine, other = results["inlay"]["cpu"], results["reference"]["cpu"]
        figures = f"{mine:.2f} s against {other:.2f} s ({mine / other:.2f})"
        yield Verdict("clustered keys: at most 1/4 of the CPU of the reference", name, mine <= other / 4, figures)


def _no_worse(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if _ok(results, "inlay", "inlay-plan", "reference"):
        mine, other = results["inlay"]["cpu"], results["reference"]["cpu"]
        plan = results["inlay-plan"]["cpu"]
        figures = f"{mine:.2f} s against 1.2 x {other:.2f} + {plan:.2f} = {1.2 * other + plan:.2f} s"
        goal = "at most 1.2x the CPU of the reference, plus planning"
        yield Verdict(goal, name, mine <= 1.2 * other + plan, figures)


def _less(goal: str, name: str, results: dict[str, Raw], peer: str) -> Iterator[Verdict]:
    if not _ok(results, "inlay", peer):
        return
    mine, other = results["inlay"], results[peer]
    figures = [f"{NAMES[f]} {mine[f]:,.2f} against {other[f]:,.2f} {UNITS[f]}" for f in NAMES]
    worse = [NAMES[f] for f in NAMES if mine[f] >= other[f]]
    text = "; ".join(figures) + (f" (missed: {', '.join(worse)})" if worse else "")
    yield Verdict(goal, name, not worse, text)


def _peers(name: str, entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if entry["kind"] != "merge":
        return
    for peer in ("delta-rs", "pyiceberg"):
        yield from _less(f"less CPU, wall and peak memory than {peer}", name, results, peer)
    if entry.get("reduced"):
        at, smaller = f"{name} at scale {entry['reduced']['scale']:g}", summary(entry["reduced"])
        for peer in ("delta-rs", "pyiceberg"):
            yield from _less(f"less CPU, wall and peak memory than {peer}", at, smaller, peer)
    if entry["touched_row_groups"] <= 0.1:
        for peer in ("duckdb", "polars"):
            goal = f"less than rewriting everything with {peer} (if at most a tenth of the row groups change)"
            yield from _less(goal, name, results, peer)


def _deletions(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if name == "delete-1%":
        for peer in ("duckdb", "polars"):
            yield from _less(f"less than rewriting everything with {peer}, for deletions", name, results, peer)


def _given_columns(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if name == "given-columns" and _ok(results, "inlay", "inlay-whole-rows"):
        mine, other = results["inlay"]["cpu"], results["inlay-whole-rows"]["cpu"]
        goal = "updates of one of 20 columns: at most 1/4 of the CPU of replacing whole rows"
        yield Verdict(goal, name, mine <= other / 4, f"{mine:.2f} s against {other:.2f} s ({mine / other:.2f})")


def _replay(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    for mine in ("inlay", "inlay-replayed", "inlay-duckdb", "inlay-spark"):
        if name == "replay" and _ok(results, mine):
            data, calls = (results[mine][figure] * 1e6 for figure in ("new_data_mb", "written_mb"))
            figures = f"{mine}: {data:,.0f} bytes of data, {calls:,.0f} bytes in all write calls"
            yield Verdict("a batch that changes nothing writes no byte of data", name, not data, figures)


def _replan(name: str, entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if entry["kind"] == "replan" and _ok(results, "inlay-cold", "inlay-again", "pyarrow-footers"):
        again, footers = results["inlay-again"]["cpu"], results["pyarrow-footers"]["cpu"]
        cold = results["inlay-cold"]["cpu"]
        figures = f"{again:.3f} s against {footers:.2f} s of reading the footers ({again / footers:.1%}); "
        figures += f"first plan {cold:.2f} s"
        goal = "planning with cached footers takes under 5% of the CPU of reading the footers"
        yield Verdict(goal, name, again < footers / 20, figures)


def _spark(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if name == "random-1m" and _ok(results, "inlay", "inlay-spark"):
        mine, other = results["inlay-spark"]["cpu"], results["inlay"]["cpu"]
        figures = f"{mine:.2f} s against {other:.2f} s ({mine / other:.2f}x)"
        yield Verdict("on Spark, at most 1.5x the CPU of the pyarrow engine", name, mine <= 1.5 * other, figures)
    if name in ON_SPARK and _ok(results, "inlay-spark", "spark"):
        mine, other = results["inlay-spark"]["cpu"], results["spark"]["cpu"]
        figures = f"{mine:.2f} s against {other:.2f} s ({other / mine:.1f}x less)"
        yield Verdict("on Spark, at least 3x less CPU than Spark's join and rewrite", name, 3 * mine <= other, figures)


def _right(name: str, entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    """Fail for a failed or wrong run of inlay, which all other goals ignore."""
    for mine in (
        ("inlay", "inlay-duckdb", "inlay-spark", "inlay-plan", "inlay-whole-rows", "inlay-replayed")
        if entry["kind"] == "merge"
        else ("inlay-cold", "inlay-again")
    ):
        if mine not in results:  # `_unevaluated` lists it
            continue
        result = results[mine]
        text = "verified" if result["status"] == "ok" else f"{result['status']}: {result['reason']}"
        yield Verdict(f"{mine} finishes with the correct result", name, result["status"] == "ok", text)


def _unevaluated(raw: Raw) -> Iterator[str]:
    """List the contestants that did not run, failed, timed out or lack the operation."""
    for name, entry in raw["workloads"].items():
        if entry["kind"] != "merge":
            continue
        results = summary(entry)
        for peer in ("inlay", "inlay-duckdb", "inlay-spark", "reference", "delta-rs", "pyiceberg", "duckdb", "polars"):
            result = results.get(peer, {"status": "not run", "reason": "not run"})
            if result["status"] != "ok":
                yield f"- {name}, {peer}: {result['status']} ({result['reason']})"


def _merge_workloads(raw: Raw) -> Raw:
    return {name: entry for name, entry in raw["workloads"].items() if entry["kind"] != "scaling"}


def verdicts(raw: Raw) -> list[Verdict]:
    found: list[Verdict] = []
    for name, entry in _merge_workloads(raw).items():
        results = summary(entry)
        for rule in (_right, _clustered, _no_worse, _peers, _deletions, _given_columns, _replay, _replan, _spark):
            found += rule(name, entry, results)
    return sorted(found, key=lambda v: v.goal)


def _goals(raw: Raw) -> Iterator[str]:
    found = verdicts(raw)
    met = sum(v.met for v in found)
    yield f"\n## Goals\n\ninlay meets {met} of {len(found)} goals. The [notes](notes.md) explain the others.\n"
    yield "| goal | workload | | figures |\n|---|---|---|---|"
    for verdict in found:
        status = "met" if verdict.met else "**missed**"
        yield f"| {verdict.goal} | {verdict.workload} | {status} | {verdict.figures} |"
    missing = list(_unevaluated(raw))
    if missing:
        yield "\nNot compared at this scale, so the table above leaves them out:\n"
        yield from missing


ROWS_ON_SPARK = ("inlay", "inlay-spark", "spark", "spark-delta")
NO_DELTA = """
Delta Lake's MERGE on Spark is missing, because Delta has no release for Spark 4.3 yet. Its newest release, 4.4,
supports Spark 4.0 to 4.2, and its jars for 4.2 fail on 4.3 with a `NoSuchMethodError`. To measure it on an older
Spark, set `INLAY_BENCH_DELTA_JARS` and `INLAY_BENCH_DELTA_PYTHON`; see the [README](README.md)."""


def _spark_row(name: str, result: Raw, base: Raw) -> str:
    by = result["cpu_by"]
    cells = [f"{result['cpu']:.2f} ({result['cpu'] / base['cpu']:.2f}x)"]
    cells += [f"{by[role]:.2f}" for role in ("driver", "jvm", "workers")]
    cells += [f"{result['wall']:.2f}", f"{result['peak_mb']:,.0f}", f"{result['new_data_mb']:,.0f}"]
    return f"| {name} | {result['versions'].get('pyspark', '') if name != 'inlay' else ''} | {' | '.join(cells)} |"


def _on_spark(raw: Raw) -> Iterator[str]:
    """Compare inlay on Spark with Spark's join, Delta and the pyarrow engine, by process role."""
    yield "\n## On Spark\n\nEach session on `local[*]` is warm: it ran the same merge before the measurement."
    found = {name: summary(raw["workloads"][name]) for name in ON_SPARK if name in raw["workloads"]}
    for name, results in found.items():
        rows = [row for row in ROWS_ON_SPARK if _ok(results, row) and "cpu_by" in results[row]]
        yield f"\n{raw['workloads'][name]['title']} (scale {raw['workloads'][name]['scale']:g}):\n"
        yield "| | Spark | CPU s | driver | JVM | Python workers | wall s | peak RSS MB | new files MB |"
        yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
        yield from (_spark_row(row, results[row], results[rows[0]]) for row in rows)
    if not any(_ok(results, "spark-delta") for results in found.values()):
        yield NO_DELTA


def _versions(raw: Raw) -> str:
    found: dict[str, set[str]] = {}
    for entry in raw["workloads"].values():
        for runs in entry["results"].values():
            for run in runs:
                for package, version in run.get("versions", {}).items():
                    found.setdefault(package, set()).add(version)
    return ", ".join(f"{package} {'/'.join(sorted(v))}" for package, v in sorted(found.items()))


METHOD = """
## How the figures are measured

- Each contestant runs in a new process on a new copy of the dataset, and the contestants of a workload take turns.
  The measurement excludes imports, a rehearsal on 20 rows (for lazy imports), loading the source into memory,
  creating the Delta or Iceberg table from the same files, and verification. Each figure is the minimum over the
  repeats.
- CPU is the user and system time of the process and its descendants, such as Spark's JVM and Python workers. On a
  busy machine, trust CPU rather than wall time; differences under 40% can be noise. Ratios in parentheses are
  relative to inlay.
- Peak RSS is VmHWM, reset before the measurement. It includes the source table and the loaded libraries; growth is
  the part that the measured call added. With descendants, it is the largest sum of their resident memory, sampled
  ten times a second; memory that forked workers share counts once for each worker. Written is the number of bytes in
  write and copy calls (`wchar`), including copied row groups and sockets between processes.
- Spark sessions have 4 GB for the driver, and otherwise inlay's settings. They ran the same merge into two copies of
  the dataset before the measurement, so that the JVM has compiled the code. Spark's join and rewrite reads its
  source from a Parquet file; inlay has the source in memory as an Arrow table.
- Only inlay forces its files to disk (fsync) before it returns. The wall time of the others includes no fsync.
- A result counts only if its fingerprint (the count and the sum of row hashes, computed by DuckDB over the resulting
  files) equals the fingerprint of the expected state, computed by DuckDB from target and source.
- Files are compressed with snappy. In an upsert, 90% of the keys exist and 10% are new. Every column of an
  existing row except its key changes, which is the worst case for copying unchanged columns. In the strings
  workload, statistics exclude no file; in the others, new keys are larger than all old keys. A full_merge replaces
  81% of its changed rows, deletes 9% and adds 10%.
- DuckLake and Lance write changed rows into new files and mark the old rows as deleted, so that their readers skip
  them; inlay and delta-rs leave no marks. A plain Parquet reader can read the result of inlay, of the reference and
  of the rewrites. For verification, the tables of DuckLake and Lance are written as Parquet after the measurement.
- In `given-columns`, all contestants get the key and one column, except `inlay-whole-rows`, which gets all 20 columns
  and therefore another result. The rewrites join that column to the rows.
- In `replay`, all source rows are older than the stored rows, so the expected state is the target. A merge that
  changes nothing takes the lock, and caches footers if there are none; both files are deleted afterwards if the dataset
  has no other records. `inlay-replayed` committed its transaction before the measurement.
- `limit` merges nothing: it reads the touched files, writes the same bytes and forces them to disk.
- For a full_merge, DuckDB and polars only write the snapshot instead of reading and joining. The reference gets the
  list of touched files and the range of new keys.
"""


def _document(raw: Raw) -> Iterator[str]:
    yield "# Merge benchmarks\n"
    yield "This report compares the CPU time, wall time, memory and written bytes of merges in inlay and other tools."
    yield "`make bench` reproduces it; the raw figures are in [merge.json](merge.json).\n"
    host = raw["machine"]
    yield f"- Machine: {host['cpu']}, {host['cores']} cores, {host['memory']}, {host['kernel']}"
    yield f"- Versions: {_versions(raw)}\n- Report of {dt.datetime.now(dt.UTC).date().isoformat()}\n"
    yield "![CPU seconds per workload](merge.svg)"
    yield from _goals(raw)
    yield from _on_spark(raw)
    yield "\n## Workloads"
    for name in sorted(_merge_workloads(raw), key=list(WORKLOADS).index):
        yield from _section(name, raw["workloads"][name])
    yield "\n## Contestants\n\n| name | method |\n|---|---|"
    for name, entry in CONTESTANTS.items():
        yield f"| {name} | {entry.about} |"
    yield METHOD


def _plot(raw: Raw, file: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    merges = {n: summary(e) for n, e in raw["workloads"].items() if e["kind"] == "merge"}
    shown = [c for c in CONTESTANTS if c != "inlay-plan"]
    figure, axes = plt.subplots(figsize=(12, 5))
    width = 0.8 / len(shown)
    for index, contestant in enumerate(shown):
        bars = [(i, m[contestant]["cpu"]) for i, m in enumerate(merges.values()) if _ok(m, contestant)]
        positions = [i + (index - len(shown) / 2 + 0.5) * width for i, _ in bars]
        axes.bar(positions, [cpu for _, cpu in bars], width, label=contestant)
    axes.set_yscale("log")
    axes.set_ylabel("CPU seconds (log scale)")
    axes.set_xticks(range(len(merges)), list(merges), rotation=20, ha="right")
    axes.legend(ncols=(len(shown) + 1) // 2, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def write(raw: Raw, out: Path) -> None:
    """Write all files. The runner does this after each workload, so an interrupted run loses nothing."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "merge.json").write_text(json.dumps(raw, indent=1) + "\n")
    if _merge_workloads(raw):
        (out / "merge.md").write_text("\n".join(_document(raw)))
        _plot(raw, out / "merge.svg")
    if len(_merge_workloads(raw)) < len(raw["workloads"]):
        report_scaling.write(raw, out)
