"""From raw figures to `merge.json`, `merge.md` and the plots: minima, ratios, the bars that must hold."""

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
    """One bar for one workload."""

    bar: str
    workload: str
    holds: bool
    figures: str


def machine() -> dict[str, str]:
    """The machine in words: no host name, no path."""
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
    """The best of the repeats, figure by figure; a run that is not ok is the answer."""
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
        word = {"unsupported": "n/a", "timeout": "DID NOT FINISH"}.get(result["status"], result["status"])
        return f"| {name} | **{word}**: {result['reason']} | | | | |"
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
        yield f"\nWho did not finish, beside inlay at scale {reduced['scale']:g}:\n"
        yield from _table(summary(reduced), "inlay")


def _ok(results: dict[str, Raw], *names: str) -> bool:
    return all(results.get(name, {}).get("status") == "ok" for name in names)


def _clustered(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if name == "clustered" and _ok(results, "inlay", "reference"):
        mine, other = results["inlay"]["cpu"], results["reference"]["cpu"]
        figures = f"{mine:.2f} s against {other:.2f} s ({mine / other:.2f})"
        yield Verdict("clustered keys: at most 1/4 of the reference's CPU", name, mine <= other / 4, figures)


def _no_worse(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if _ok(results, "inlay", "inlay-plan", "reference"):
        mine, other = results["inlay"]["cpu"], results["reference"]["cpu"]
        plan = results["inlay-plan"]["cpu"]
        figures = f"{mine:.2f} s against 1.2 x {other:.2f} + {plan:.2f} = {1.2 * other + plan:.2f} s"
        bar = "at most 1.2x the reference's CPU plus planning"
        yield Verdict(bar, name, mine <= 1.2 * other + plan, figures)


def _less(bar: str, name: str, results: dict[str, Raw], peer: str) -> Iterator[Verdict]:
    if not _ok(results, "inlay", peer):
        return
    mine, other = results["inlay"], results[peer]
    figures = [f"{NAMES[f]} {mine[f]:,.2f} against {other[f]:,.2f} {UNITS[f]}" for f in NAMES]
    worse = [NAMES[f] for f in NAMES if mine[f] >= other[f]]
    told = "; ".join(figures) + (f" (fails: {', '.join(worse)})" if worse else "")
    yield Verdict(bar, name, not worse, told)


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
            bar = f"less than read all, rewrite all in {peer} (at most a tenth of the row groups touched)"
            yield from _less(bar, name, results, peer)


def _replan(name: str, entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if entry["kind"] == "replan" and _ok(results, "inlay-cold", "inlay-again", "pyarrow-footers"):
        again, footers = results["inlay-again"]["cpu"], results["pyarrow-footers"]["cpu"]
        cold = results["inlay-cold"]["cpu"]
        figures = f"{again:.3f} s against {footers:.2f} s of bare footer reading ({again / footers:.1%}); "
        figures += f"cold plan {cold:.2f} s"
        bar = "planning again costs under 5 % of cold footer reading"
        yield Verdict(bar, name, again < footers / 20, figures)


def _spark(name: str, _entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    if name == "random-1m" and _ok(results, "inlay", "inlay-spark"):
        mine, other = results["inlay-spark"]["cpu"], results["inlay"]["cpu"]
        figures = f"{mine:.2f} s against {other:.2f} s ({mine / other:.2f}x)"
        yield Verdict("on Spark at most 1.5x of the pyarrow engine's CPU", name, mine <= 1.5 * other, figures)
    if name in ON_SPARK and _ok(results, "inlay-spark", "spark"):
        mine, other = results["inlay-spark"]["cpu"], results["spark"]["cpu"]
        figures = f"{mine:.2f} s against {other:.2f} s ({other / mine:.1f}x less)"
        yield Verdict("on Spark at least 3x less CPU than its own join and rewrite", name, 3 * mine <= other, figures)


def _right(name: str, entry: Raw, results: dict[str, Raw]) -> Iterator[Verdict]:
    """Without this a failed or wrong run of inlay would merely leave its other bars out."""
    for mine in (
        ("inlay", "inlay-duckdb", "inlay-spark", "inlay-plan")
        if entry["kind"] == "merge"
        else ("inlay-cold", "inlay-again")
    ):
        if mine not in results:  # it is told as not run
            continue
        result = results[mine]
        told = "verified" if result["status"] == "ok" else f"{result['status']}: {result['reason']}"
        yield Verdict(f"{mine} finishes, with the right result", name, result["status"] == "ok", told)


def _unevaluated(raw: Raw) -> Iterator[str]:
    """What was not run, and comparisons that a failure, a time limit or the lack of an operation leaves out."""
    for name, entry in raw["workloads"].items():
        if entry["kind"] != "merge":
            continue
        results = summary(entry)
        for peer in ("inlay", "inlay-duckdb", "inlay-spark", "reference", "delta-rs", "pyiceberg", "duckdb", "polars"):
            result = results.get(peer, {"status": "not run", "reason": "not run"})
            if result["status"] != "ok":
                yield f"- {name}, {peer}: {result['status']} ({result['reason']})"


def _of_merges(raw: Raw) -> Raw:
    return {name: entry for name, entry in raw["workloads"].items() if entry["kind"] != "scaling"}


def verdicts(raw: Raw) -> list[Verdict]:
    found: list[Verdict] = []
    for name, entry in _of_merges(raw).items():
        results = summary(entry)
        for rule in (_right, _clustered, _no_worse, _peers, _replan, _spark):
            found += rule(name, entry, results)
    return sorted(found, key=lambda v: v.bar)


def _bars(raw: Raw) -> Iterator[str]:
    found = verdicts(raw)
    held = sum(v.holds for v in found)
    yield f"\n## Bars that must hold\n\n{held} of {len(found)} hold.\n"
    yield "| bar | workload | | figures |\n|---|---|---|---|"
    for verdict in found:
        word = "holds" if verdict.holds else "**does not hold**"
        yield f"| {verdict.bar} | {verdict.workload} | {word} | {verdict.figures} |"
    missing = list(_unevaluated(raw))
    if missing:
        yield "\nNot compared at this scale, so no verdict above:\n"
        yield from missing


ROWS_ON_SPARK = ("inlay", "inlay-spark", "spark", "spark-delta")
NO_DELTA = """
Delta Lake's MERGE on Spark is missing here: Delta has no release for Spark 4.3 yet (4.4, its newest, is for Spark 4.0
to 4.2, and its jars for 4.2 stop with a `NoSuchMethodError` on 4.3). With `INLAY_BENCH_DELTA_JARS` and
`INLAY_BENCH_DELTA_PYTHON` it is measured on the Spark that it is for: see the [README](README.md)."""


def _spark_row(name: str, result: Raw, base: Raw) -> str:
    by = result["cpu_by"]
    cells = [f"{result['cpu']:.2f} ({result['cpu'] / base['cpu']:.2f}x)"]
    cells += [f"{by[role]:.2f}" for role in ("driver", "jvm", "workers")]
    cells += [f"{result['wall']:.2f}", f"{result['peak_mb']:,.0f}", f"{result['new_data_mb']:,.0f}"]
    return f"| {name} | {result['versions'].get('pyspark', '') if name != 'inlay' else ''} | {' | '.join(cells)} |"


def _on_spark(raw: Raw) -> Iterator[str]:
    """inlay on Spark beside Spark's own ways and the pyarrow engine, by where the CPU went."""
    yield "\n## On Spark\n\nWarm sessions on `local[*]`, in which the same merge ran before."
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
## How it is measured

- Every contestant runs in a fresh process on a fresh copy of the dataset; contestants of one workload take
  turns. Imports, a rehearsal on 20 rows (which loads what libraries load lazily), loading the source into
  memory, making the Delta or Iceberg table from the same files, and verification are outside the clock. The
  best of the repeats counts, figure by figure.
- CPU is user + system time of the process and all processes below it, such as Spark's JVM and Python workers. On
  a busy machine trust CPU, not wall; differences under 40 % can be noise. Ratios in brackets are to inlay.
- Peak RSS is VmHWM, reset before the clock starts, and includes the source table and the loaded libraries;
  growth is what the timed call added. With other processes below it is the largest sum of their resident
  memory, looked at ten times a second; what forked workers share is counted once for each. Written is what the
  processes handed to write and copy calls (`wchar`), copied row groups and sockets between them included.
- Spark sessions have 4 GB for the driver and else inlay's settings; they have done the same merge into two copies
  of the dataset before the clock starts, so that the JVM has compiled what it runs. Spark's own join and rewrite
  reads its source from a Parquet file, inlay has it in memory as an Arrow table.
- Only inlay forces its files to disk (fsync) before it answers; the wall time of the others has none of that.
- A result counts only if its fingerprint (count and sum of row hashes, computed by DuckDB over the resulting
  files) equals that of the expected state computed by DuckDB from target and source.
- Files are snappy. Upserts have 90 % hits and 10 % new keys; every column of a hit but its key changes, the
  least favourable case for copying unchanged columns. In the strings workload no statistics help; new keys of
  the others lie above all old ones. Of a full_merge's changed rows 81 % are replaced, 9 % deleted, 10 % new.
- DuckLake and Lance write changed rows into new files and mark the old ones as deleted, which their readers then
  skip; inlay and delta-rs leave no marks. A plain reader of Parquet sees the result of inlay, of the reference and of
  the rewrites. What DuckLake and Lance hold is written out as Parquet for the verification, after the clock stopped.
- `limit` merges nothing: it reads the touched files, writes the same bytes and forces them to disk.
- For full_merge "read all, anti-join, rewrite all" shrinks to writing the snapshot, which is what DuckDB and
  polars do there. The reference is told the touched files and the range of new keys.
"""


def _document(raw: Raw) -> Iterator[str]:
    yield "# Merge benchmarks\n"
    yield "Written by `python -m benchmarks.run`; raw figures in [merge.json](merge.json).\n"
    host = raw["machine"]
    yield f"- Machine: {host['cpu']}, {host['cores']} cores, {host['memory']}, {host['kernel']}"
    yield f"- Versions: {_versions(raw)}\n- Report of {dt.datetime.now(dt.UTC).date().isoformat()}\n"
    yield "![CPU seconds per workload](merge.svg)"
    yield from _bars(raw)
    yield from _on_spark(raw)
    yield "\n## Workloads"
    for name in sorted(_of_merges(raw), key=list(WORKLOADS).index):
        yield from _section(name, raw["workloads"][name])
    yield "\n## Contestants\n\n| name | what it does |\n|---|---|"
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
        places = [i + (index - len(shown) / 2 + 0.5) * width for i, _ in bars]
        axes.bar(places, [cpu for _, cpu in bars], width, label=contestant)
    axes.set_yscale("log")
    axes.set_ylabel("CPU seconds (log scale)")
    axes.set_xticks(range(len(merges)), list(merges), rotation=20, ha="right")
    axes.legend(ncols=(len(shown) + 1) // 2, fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.grid(axis="y", alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def write(raw: Raw, out: Path) -> None:
    """All files, after every workload: an interrupted run loses nothing."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "merge.json").write_text(json.dumps(raw, indent=1) + "\n")
    if _of_merges(raw):
        (out / "merge.md").write_text("\n".join(_document(raw)))
        _plot(raw, out / "merge.svg")
    if len(_of_merges(raw)) < len(raw["workloads"]):
        report_scaling.write(raw, out)
