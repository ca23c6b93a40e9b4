"""Run the merge benchmarks: each contestant in a new process on a new copy of the dataset."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.contestants import Entry

ROOT = Path(__file__).resolve().parent.parent
REDUCED = 0.1
Result = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """Settings of the whole run."""

    interpreters: dict[str, Path]
    data: Path
    repeats: int
    time_limit: float
    contestants: list[str] | None  # None: all contestants of each workload
    runs: Path


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    add = parser.add_argument
    add(
        "--workloads",
        help="workloads or groups (merge, scaling), separated by commas; 'list' prints them (default: all)",
    )
    add("--contestants", help="contestants, separated by commas (default: all)")
    add("--scale", type=float, default=1.0, help="fraction of the rows and keys (default: 1.0)")
    add("--repeats", type=int, default=2, help="runs per contestant; the minimum counts (default: 2)")
    add("--out", type=Path, default=ROOT / "docs" / "benchmarks", help="directory of the report")
    add(
        "--data",
        type=Path,
        default=Path(tempfile.gettempdir()) / "inlay-benchmarks",
        help="directory of generated data",
    )
    add("--inlay-python", type=Path, default=ROOT / ".venv" / "bin" / "python")
    bench = os.environ.get("INLAY_BENCH_PYTHON", ROOT / ".venv-bench" / "bin" / "python")
    add("--bench-python", type=Path, default=Path(bench))
    add("--time-limit", type=float, default=600, help="seconds per run, including setup (default: 600)")
    add("--keep", action="store_true", help="keep figures of an earlier report that this run does not measure")
    return parser.parse_args(argv)


def _use_bench_environment(python: Path, argv: list[str]) -> None:
    """Restart in the environment of the peers, whose packages the harness needs too."""
    if not python.exists():
        raise SystemExit("No environment for the peers. Run `make bench` to create it, or pass --bench-python.")
    if Path(sys.prefix) != python.absolute().parent.parent:
        os.chdir(ROOT)
        os.execv(python, [str(python), "-m", "benchmarks.run", *argv])


def _copy(source: str, target: Path) -> None:
    """Copy a dataset and flush it to disk before the measurement."""
    subprocess.run(["cp", "-r", "--reflink=auto", source, str(target)], check=True)
    os.sync()


def _spawn(settings: Settings, environment: str, module: str, spec: Result) -> Result:
    """Run a contestant script and return its JSON result, or stop it at the time limit."""
    command = [str(settings.interpreters[environment]), "-m", f"benchmarks.contestants.{module}"]
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [*command, json.dumps(spec)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=settings.time_limit)
    except subprocess.TimeoutExpired:
        return {"status": "timeout", "reason": f"not finished after {settings.time_limit:.0f} s"}
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode or not out:
        last = (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"status": "failed", "reason": last[:500]}
    result: Result = json.loads(out)
    return result


def _hide_paths(settings: Settings, result: Result) -> Result:
    if "reason" in result:
        for path, name in ((settings.data, "<data>"), (ROOT, "<repository>"), (Path.home(), "~")):
            result["reason"] = result["reason"].replace(str(path), name)
    return result


class Case:
    """One workload at one scale: generates its data, and runs and verifies contestants."""

    def __init__(self, settings: Settings, name: str, scale: float) -> None:
        from benchmarks import data, fingerprint
        from benchmarks.contestants import contestants_of
        from benchmarks.measure import dataset_files
        from benchmarks.workloads import DATASETS, WORKLOADS

        self.settings, self.scale = settings, scale
        self.workload = WORKLOADS[name].scaled(scale)
        self.contestants = contestants_of(self.workload.kind)
        self.dataset = DATASETS[self.workload.dataset].scaled(scale)
        self.delta = data.make(self.dataset, self.workload, settings.data)
        self.fingerprint, target = fingerprint.of_files, self.delta.target
        if self.workload.kind != "replan":
            self.before = fingerprint.of_files(self.dataset, dataset_files(target))
            self.after = fingerprint.expected(self.dataset, self.workload, target, self.delta.source)
            self.replaced = self.after
        if self.workload.updated_columns:
            whole = replace(self.workload, updated_columns=())
            self.replaced = fingerprint.expected(self.dataset, whole, target, self.delta.source)

    def spec(self, work: Path, options: Result) -> Result:
        delta = {k: v for k, v in asdict(self.delta).items() if k != "touched_row_groups"}
        return delta | {
            "target": str(work / "target"),
            "work": str(work),
            "strategy": self.workload.strategy,
            "key_columns": list(self.dataset.keys),
            "partition_columns": self.dataset.partition_columns,
            "newer_by": self.workload.newer_by,
            "updated_columns": [] if options.get("whole_rows") else list(self.workload.updated_columns),
            "row_group_size": self.dataset.rows // self.dataset.row_groups,
            "options": options,
        }

    def run(self, name: str) -> Result:
        entry = self.contestants[name]
        with tempfile.TemporaryDirectory(dir=self.settings.runs) as folder:
            work = Path(folder)
            _copy(self.delta.target, work / "target")
            spec = self.spec(work, entry.options)
            result = _spawn(self.settings, entry.environment, entry.module, spec)
            self._verify(result, self._wanted(entry))
        return _hide_paths(self.settings, result)

    def _wanted(self, entry: Entry) -> str:
        if entry.leaves_target:
            return self.before
        return self.replaced if entry.options.get("whole_rows") else self.after

    def _verify(self, result: Result, wanted: str) -> None:
        if result["status"] == "ok":
            found = self.fingerprint(self.dataset, result.pop("files"))
            if found != wanted:
                result |= {"status": "WRONG", "reason": f"fingerprint {found} instead of {wanted}"}

    def replan(self) -> dict[str, Result]:
        """Read all footers, plan, and plan again, in three new processes on one copy of the files."""
        steps = {"pyarrow-footers": {"footers": True}, "inlay-cold": {}, "inlay-again": {}}
        with tempfile.TemporaryDirectory(dir=self.settings.runs) as folder:
            work = Path(folder)
            _copy(self.delta.target, work / "target")
            (work / ".target.txn").mkdir()  # every dataset that inlay wrote to has a sidecar
            results = {
                name: _spawn(self.settings, "inlay", "replan", self.spec(work, options))
                for name, options in steps.items()
            }
        for result in results.values():
            result.pop("files", None)
        return {name: _hide_paths(self.settings, result) for name, result in results.items()}


def _log(text: str) -> None:
    print(f"{dt.datetime.now(dt.UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


def _describe(result: Result) -> str:
    if result["status"] != "ok":
        return f"{result['status']}: {result['reason']}"
    return f"cpu {result['cpu']:.2f} s, wall {result['wall']:.2f} s, peak {result['peak_mb']:.0f} MB"


def _interleaved(case: Case, contestants: list[str], repeats: int) -> dict[str, list[Result]]:
    """Run all contestants in turn, `repeats` times. A contestant that failed does not run again."""
    results: dict[str, list[Result]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, earlier in results.items():
            if all(r["status"] == "ok" for r in earlier):
                earlier.append(case.run(name))
                _log(f"  {name}: {_describe(earlier[-1])}")
    return results


def _reduced(settings: Settings, name: str, scale: float, results: dict[str, list[Result]]) -> Result | None:
    """Measure contestants that timed out again, beside inlay, on a tenth of the data."""
    late = [c for c, runs in results.items() if runs[-1]["status"] == "timeout" and c != "inlay"]
    if not late or scale < 0.05:
        return None
    _log(f"  again at {scale * REDUCED:g} scale: {', '.join(late)}")
    case = Case(settings, name, scale * REDUCED)
    return {"scale": scale * REDUCED, "results": _interleaved(case, ["inlay", *late], settings.repeats)}


def _participants(settings: Settings, case: Case) -> list[str]:
    from benchmarks.contestants import takes_part

    if settings.contestants is not None:
        return [name for name in settings.contestants if name in case.contestants]
    return [name for name in case.contestants if takes_part(name, case.workload.name, case.workload.kind)]


def _measure(settings: Settings, name: str, scale: float) -> Result:
    _log(name)
    case = Case(settings, name, scale)
    kind = case.workload.kind
    # A scaling contestant repeats each step itself.
    repeats = 1 if kind == "scaling" else settings.repeats
    entry: Result = {
        "title": case.workload.title,
        "kind": kind,
        "scale": scale,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "load_average": os.getloadavg()[0],
        "files": case.dataset.files,
        "rows": case.dataset.total,
        "touched_row_groups": case.delta.touched_row_groups,
        "repeats": repeats,
    }
    if kind == "replan":
        rounds = [case.replan() for _ in range(repeats)]
        entry["results"] = {step: [r[step] for r in rounds] for step in rounds[0]}
        for step, runs in entry["results"].items():
            _log(f"  {step}: {_describe(runs[-1])}")
        return entry
    entry["results"] = _interleaved(case, _participants(settings, case), repeats)
    entry["reduced"] = _reduced(settings, name, scale, entry["results"])
    return entry


def with_earlier(entry: Result, earlier: Result | None) -> Result:
    """Add the contestants that only an earlier run of the workload measured, and mark them."""
    if earlier is None or earlier["scale"] != entry["scale"]:
        return entry
    kept = {name: runs for name, runs in earlier["results"].items() if name not in entry["results"]}
    return {
        **entry,
        "results": entry["results"] | kept,
        "reduced": entry.get("reduced") or earlier.get("reduced"),
        "earlier": sorted(kept),
    }


def chosen(text: str | None, known: list[str], groups: dict[str, list[str]]) -> list[str]:
    """Parse a comma-separated list of names. The name of a group stands for its members."""
    requested = text.split(",") if text else known
    names = [name for entry in requested for name in groups.get(entry, [entry])]
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"unknown: {', '.join(unknown)}; known: {', '.join([*groups, *known])}")
    return list(dict.fromkeys(names))


def main(argv: list[str]) -> None:
    options = _arguments(argv)
    _use_bench_environment(options.bench_python, argv)
    from benchmarks import report
    from benchmarks.contestants import CONTESTANTS
    from benchmarks.workloads import WORKLOADS

    if options.workloads == "list":
        print("\n".join(f"{name}: {workload.title}" for name, workload in WORKLOADS.items()))
        return
    kinds = {w.kind: [n for n, other in WORKLOADS.items() if other.kind == w.kind] for w in WORKLOADS.values()}
    workloads = chosen(
        options.workloads, list(WORKLOADS), {k: names for k, names in kinds.items() if k not in WORKLOADS}
    )
    interpreters = {"inlay": options.inlay_python.absolute(), "bench": options.bench_python.absolute()}
    for name in ("ducklake", "delta"):
        python = os.environ.get(f"INLAY_BENCH_{name.upper()}_PYTHON", options.inlay_python)
        interpreters[name] = Path(python).absolute()
    contestants = chosen(options.contestants, list(CONTESTANTS), {}) if options.contestants else None
    options.data.mkdir(parents=True, exist_ok=True)
    raw = report.load(options.out) if options.keep else report.empty()
    with tempfile.TemporaryDirectory(prefix="runs-", dir=options.data) as runs:
        settings = Settings(interpreters, options.data, options.repeats, options.time_limit, contestants, Path(runs))
        for name in workloads:
            earlier = raw["workloads"].get(name)
            raw["workloads"][name] = with_earlier(_measure(settings, name, options.scale), earlier)
            report.write(raw, options.out)
    _log("done")


if __name__ == "__main__":
    main(sys.argv[1:])
