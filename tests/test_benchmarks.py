"""The benchmark harness's own arithmetic: whose CPU counts, what a fingerprint sees, what the report concludes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import cores, data, fingerprint, processes, readers, report, report_scaling, run
from benchmarks.contestants import CONTESTANTS, ON_SPARK, SCALING, takes_part
from benchmarks.measure import measure
from benchmarks.workloads import AXES, DATASETS, WORKLOADS

# Works for as much CPU as each line on stdin says, and then says so.
WORKER = """
import sys, time
for line in sys.stdin:
    end = time.process_time() + float(line)
    while time.process_time() < end: pass
    print("done", flush=True)
"""
# Lets a child work for 0.6 s and forgets it.
FORGETFUL = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.stdin.readline()
if not os.fork():
    end = time.process_time() + 0.6
    while time.process_time() < end: pass
    os._exit(0)
try:
    os.wait()
except ChildProcessError:
    print("done", flush=True)
sys.stdin.readline()
"""


class Child:
    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def work(self, seconds: float) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    started = Child(WORKER)
    yield started
    started.end()


def test_cpu_and_memory_of_a_live_child_count(child: Child) -> None:
    child.work(0)
    result = measure(lambda: child.work(0.3))
    assert result["cpu_by"]["workers"] >= 0.28  # /proc counts in hundredths
    assert result["cpu"] == pytest.approx(sum(result["cpu_by"].values()))
    own = processes.proc_field(os.getpid(), "status", "VmRSS") / 1024
    assert result["peak_mb"] > own


def test_earlier_work_of_a_live_child_does_not_count(child: Child) -> None:
    child.work(0.3)
    assert measure(lambda: None)["cpu_by"]["workers"] < 0.1


def test_a_child_that_ends_during_the_measurement_counts() -> None:
    script = "import time\nwhile time.process_time() < 0.3: pass"
    result = measure(lambda: subprocess.run([sys.executable, "-c", script], check=True) and None)
    assert result["cpu"] >= 0.28


def test_an_orphaned_grandchild_counts() -> None:
    """As Spark's Python daemon, which ignores SIGCHLD: the time of its workers is added to nobody's."""
    forgetful = Child(FORGETFUL)
    try:
        result = measure(lambda: forgetful.work(0))
    finally:
        forgetful.end()
    assert result["cpu_by"]["workers"] >= 0.2


def test_descendants_are_found_through_generations(child: Child) -> None:
    child.work(0)
    assert processes.read(2**22 + 1) is None
    below = processes.descendants(os.getppid())
    assert os.getpid() in {p.pid for p in below}
    assert child._process.pid in {p.pid for p in below}


# ------------------------------------------------------------------------------------------------------ fingerprints
SMALL = replace(DATASETS["flat"], name="small-flat", files=3, rows=20)


def write(folder: Path, *tables: pa.Table) -> list[str]:
    folder.mkdir(exist_ok=True)
    for at, table in enumerate(tables):
        pq.write_table(table, folder / f"{at}.parquet")
    return [str(folder / f"{at}.parquet") for at in range(len(tables))]


def test_a_fingerprint_ignores_row_order_and_files(tmp_path: Path) -> None:
    rows = data.table(SMALL, np.arange(40), "one")
    whole = fingerprint.of_files(SMALL, write(tmp_path / "whole", rows))
    parts = [rows.slice(25).take(pa.array(np.arange(15)[::-1])), rows.slice(0, 25)]
    assert fingerprint.of_files(SMALL, write(tmp_path / "parts", *parts)) == whole
    changed = rows.set_column(5, "quantity", pa.array([-1, *rows["quantity"].to_pylist()[1:]], pa.int32()))
    assert fingerprint.of_files(SMALL, write(tmp_path / "changed", changed)) != whole
    assert fingerprint.of_files(SMALL, write(tmp_path / "fewer", rows.slice(1))) != whole
    assert fingerprint.of_files(SMALL, write(tmp_path / "twice", rows, rows.slice(0, 1))) != whole


def test_the_expected_state_replaces_matching_keys(tmp_path: Path) -> None:
    workload = replace(WORKLOADS["keys-100"], keys=10)
    delta = data.make(SMALL, workload, tmp_path)
    with pa.OSFile(delta.source, "rb") as file:
        source = pa.ipc.open_file(file).read_all()
    target = pq.read_table(delta.target)
    kept = target.filter(pa.array(~np.isin(target["id"].to_numpy(), source["id"].to_numpy())))
    assert len(kept) + len(source) == SMALL.total + 1  # nine hits, one new key
    files = write(tmp_path / "after", kept, source)
    assert fingerprint.of_files(SMALL, files) == fingerprint.expected(SMALL, workload, delta.target, delta.source)


def test_the_expected_state_keeps_columns_that_are_not_given(tmp_path: Path) -> None:
    workload = replace(WORKLOADS["given-columns"], keys=10, updated_columns=("quantity",))
    delta = data.make(SMALL, workload, tmp_path)
    with pa.OSFile(delta.source, "rb") as file:
        source = pa.ipc.open_file(file).read_all()
    updates = dict(zip(source["id"].to_pylist(), source["quantity"].to_pylist(), strict=True))
    target = pq.read_table(delta.target)
    rows = [row | {"quantity": updates.get(row["id"], row["quantity"])} for row in target.to_pylist()]
    assert len(updates) == 10
    after = pa.Table.from_pylist(rows, target.schema)
    assert after.drop_columns("quantity").equals(target.drop_columns("quantity"))
    assert not after.equals(target)
    files = write(tmp_path / "after", after)
    assert fingerprint.of_files(SMALL, files) == fingerprint.expected(SMALL, workload, delta.target, delta.source)


# ------------------------------------------------------------------------------------------------------------ report
def ran(cpu: float, **more: Any) -> dict[str, Any]:
    roles = {"driver": cpu, "jvm": 0.0, "workers": 0.0}
    return {"status": "ok", "cpu_by": roles, "versions": {}, **dict.fromkeys(report.FIGURES, cpu), **more}


def merged(**results: float) -> dict[str, Any]:
    runs = {name.replace("_", "-"): [ran(cpu)] for name, cpu in results.items()}
    facts = {"kind": "merge", "scale": 1.0, "touched_row_groups": 1.0, "title": "", "rows": 1, "files": 1}
    return {**facts, "results": runs, "repeats": 1, "date": "2026-01-01", "load_average": 0.0}


@pytest.mark.parametrize(("on_spark", "own", "met"), [(1.5, 4.5, [True, True]), (1.6, 4.7, [False, False])])
def test_goals_on_spark(on_spark: float, own: float, met: list[bool]) -> None:
    raw = {"workloads": {"random-1m": merged(inlay=1.0, inlay_spark=on_spark, spark=own)}}
    found = {v.goal: v.met for v in report.verdicts(raw) if v.goal.startswith("on Spark")}
    assert found == {
        "on Spark, at least 3x less CPU than Spark's join and rewrite": met[1],
        "on Spark, at most 1.5x the CPU of the pyarrow engine": met[0],
    }


@pytest.mark.parametrize(("cpu", "met"), [(1.0, True), (1.1, False)])
def test_the_goal_of_given_columns(cpu: float, met: bool) -> None:
    raw = {"workloads": {"given-columns": merged(inlay=cpu, inlay_whole_rows=4.0)}}
    assert [v.met for v in report.verdicts(raw) if v.goal.startswith("updates of one of 20 columns")] == [met]


@pytest.mark.parametrize("written", [0.0, 1e-6])
def test_the_goal_of_a_replay_is_that_no_data_is_written(written: float) -> None:
    entry = merged() | {"results": {"inlay-replayed": [ran(1.0, new_data_mb=written)]}}
    found = [v for v in report.verdicts({"workloads": {"replay": entry}}) if "no byte" in v.goal]
    assert [v.met for v in found] == [not written]
    assert f"inlay-replayed: {written * 1e6:.0f} bytes of data" in found[0].figures


def test_the_best_repeat_counts_and_a_failure_is_reported() -> None:
    assert report.minimum([ran(2.0), ran(1.0)])["cpu_by"]["driver"] == 1.0
    failed = {"status": "WRONG", "reason": "fingerprint"}
    assert report.minimum([ran(1.0), failed]) == failed


def test_results_of_earlier_runs_are_kept_and_named() -> None:
    entry = run.with_earlier(merged(inlay=1.0), merged(inlay=5.0, polars=2.0))
    assert entry["results"]["inlay"][0]["cpu"] == 1.0
    assert entry["earlier"] == ["polars"]
    assert "polars" not in run.with_earlier(merged(inlay=1.0), {**merged(polars=2.0), "scale": 0.1})["results"]


def test_documents_are_generated_from_any_subset(tmp_path: Path) -> None:
    raw = report.empty()
    raw["workloads"]["random-1m"] = merged(inlay=1.0, inlay_spark=1.4, spark=5.0)
    raw["workloads"]["files-100"] = {**merged(), "kind": "scaling"}
    text = "\n".join(report._document(raw))
    assert "(3.6x less)" in text
    assert report.NO_DELTA in text
    assert "files-100" not in text
    assert "| 100 |" in "\n".join(report_scaling._document(raw, tmp_path))
    cost = {"cpu": 1.5, "wall": 2.5, "peak_mb": 1234.0}
    (tmp_path / "many_files.json").write_text(json.dumps({"1000000": {"local": cost, "s3": cost}}))
    many = "| 1,000,000 | 1.50 | 2.50 | 1,234 | 1.50 | 2.50 | 1,234 |"
    assert many in "\n".join(report_scaling._document(raw, tmp_path))


def test_the_cost_of_a_file_is_the_slope_between_two_sizes() -> None:
    def planned(cpu: float) -> dict[str, Any]:
        detail = {step: {"cpu": cpu} for step in report_scaling.STEPS}
        return {"results": {"inlay": [{"status": "ok", "detail": detail}]}}

    raw = {"workloads": {"files-100": planned(0.1), "files-10000": planned(1.09)}}
    assert report_scaling.per_file(raw, "inlay", "files-100", "files-10000", 9_900) == pytest.approx(1e-4)
    assert report_scaling.per_file(raw, "inlay-duckdb", "files-100", "files-10000", 9_900) is None


# --------------------------------------------------------------------------------------------------------- selection
def test_names_and_groups_are_selected_in_order() -> None:
    known, groups = ["a", "b", "c"], {"both": ["b", "c"]}
    assert run.chosen(None, known, groups) == known
    assert run.chosen("both,a,b", known, groups) == ["b", "c", "a"]
    with pytest.raises(SystemExit, match="unknown: d"):
        run.chosen("d", known, groups)


def test_selection_of_contestants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("INLAY_BENCH_DELTA_JARS", raising=False)
    assert takes_part("inlay-spark", "keys-1", "merge")
    assert takes_part("spark", ON_SPARK[0], "merge")
    assert not takes_part("spark", "keys-1", "merge")
    assert not takes_part("spark-delta", ON_SPARK[0], "merge")
    monkeypatch.setenv("INLAY_BENCH_DELTA_JARS", "jars")
    assert takes_part("spark-delta", ON_SPARK[0], "merge")
    assert not takes_part("polars", "files-100", "scaling")


def test_every_point_of_an_axis_is_a_workload_and_every_engine_a_contestant() -> None:
    assert {WORKLOADS[name].kind for axis in AXES for name in axis.points} == {"scaling"}
    assert SCALING.keys() <= CONTESTANTS.keys()
    for name, size in AXES[0].points.items():
        assert DATASETS[WORKLOADS[name].dataset].files == size
        assert round(WORKLOADS[name].touched * size) == 10


# ---------------------------------------------------------------------------------------- readers during a commit
def test_reads_are_whole_mixed_or_failed() -> None:
    before, after, mixture = (10, 0), (10, 10), (10, 4)
    assert readers.classify([before, before, mixture, None, mixture, after]) == {"whole": 3, "mixed": 2, "failed": 1}
    for states in ([None, after], [before, None]):
        with pytest.raises(AssertionError, match="no commit was in progress"):
            readers.classify(states)


def test_readers_are_measured_during_a_commit() -> None:
    arguments = "--commits 1 --operations compact --layouts flat --readers listing"
    command = [sys.executable, "-m", "benchmarks.readers", *arguments.split()]
    *_, line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    operation, reader, whole, mixed, failed, *_, window = (cell.strip() for cell in line.strip("|").split("|"))
    assert (operation, reader, failed) == ("compact, flat", "listing", "0")
    assert int(whole) >= 3
    assert int(mixed) >= 0
    assert 0 < float(window) < 60_000


def test_the_cost_of_versions_is_measured_with_and_without_a_history() -> None:
    command = [sys.executable, "-m", "benchmarks.versions", "--scale", "0.002", "--repeats", "1"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    listed, *compared = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:])
    assert listed[0] == "list 21 versions"
    assert [cells[0].split()[0] for cells in compared] == ["commit", "`keys-1`:", "`clustered`:", "`small`:"]
    assert all(float(cells[-1].rstrip("x")) > 0 for cells in compared)


def test_merges_on_one_core_are_reported_next_to_polars(tmp_path: Path) -> None:
    options = ["--workloads", "keys-10", "--cores", "1", "--scale", "0.001", "--repeats", "1"]
    cores.main([*options, "--data", str(tmp_path / "data"), "--report", str(tmp_path / "cores.md")])
    [row] = [line for line in (tmp_path / "cores.md").read_text().splitlines() if line.startswith("| 1 |")]
    assert row.count("x |") == 3  # the speed-up, and the ratios of wall and CPU time
    assert list((tmp_path / "data").glob("tmp*")) == []


def test_merges_on_more_cores_than_the_machine_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Pass --cores"):
        cores.main(["--cores", "4096", "--data", str(tmp_path)])
