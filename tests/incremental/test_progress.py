"""The progress callback: its steps, and that a canceled merge leaves no trace."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.engines import source as source_module
from inlay.errors import MergeCancelledError
from inlay.incremental import Progress
from inlay.incremental.display import Reporter
from tests import lake

FILES = {f"{i}.parquet": lake.table(range(10 * i, 10 * i + 10)) for i in range(4)}
# keys in files 1 and 3, in none of the others, and three new ones
SOURCE = lake.table([15, 35, 36, 100, 101, 102], ["x"] * 6)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return lake.write(tmp_path / "d", FILES, row_group_size=5)


def merge(path: str, progress: Callable[[Progress], Any] | None, **options: Any) -> Any:
    arguments = {"strategy": "upsert", "key_columns": ["id"], "max_rows_per_file": 2} | options
    return inlay.merge(SOURCE, path, progress=progress, **arguments)


def steps_of(call: Callable[..., Any], *arguments: Any, **options: Any) -> list[tuple[str, int, int]]:
    reports: list[tuple[str, int, int]] = []
    call(*arguments, progress=lambda p: reports.append((p.phase, p.done, p.total)), **options)
    return reports


# ------------------------------------------------------------------------------------------------------ what it says
def test_a_merge_reports_the_files_of_each_phase(path: str) -> None:
    assert steps_of(merge, path) == [
        ("match", 0, 2),
        ("match", 1, 2),
        ("match", 2, 2),
        ("rewrite", 0, 2),
        ("rewrite", 1, 2),
        ("rewrite", 2, 2),
        ("append", 0, 2),
        ("append", 1, 2),
        ("append", 2, 2),
        ("commit", 0, 1),
        ("commit", 1, 1),
    ]


def test_a_merge_without_changes_reports_empty_phases(path: str) -> None:
    reports = steps_of(inlay.merge, lake.table([1000]), path, "update", ["id"])
    assert reports == [("match", 0, 0), ("rewrite", 0, 0), ("append", 0, 0), ("commit", 1, 1)]


def test_a_plan_reports_no_append_and_no_commit(path: str) -> None:
    reports = steps_of(inlay.plan_merge, SOURCE, path, "upsert", ["id"])
    assert [phase for phase, _, _ in reports] == ["match"] * 3 + ["rewrite"] * 3


def test_writes_and_compactions_report_their_files(path: str, tmp_path: Path) -> None:
    assert steps_of(inlay.write_dataset, SOURCE, path, max_rows_per_file=4) == [("append", 1, 2), ("append", 2, 2)]
    assert steps_of(inlay.compact, path) == [("compact", 1, 1)]


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_counts_rise_to_the_total_of_their_phase(path: str, strategy: str) -> None:
    reports = steps_of(merge, path, strategy=strategy)
    phases = list(dict.fromkeys(phase for phase, _, _ in reports))
    assert phases == ["match", "rewrite", "append", "commit"]
    for phase in phases:
        steps = [(done, total) for name, done, total in reports if name == phase]
        assert [done for done, _ in steps] == list(range(steps[0][0], steps[-1][1] + 1))
        assert len({total for _, total in steps}) == 1


@pytest.mark.parametrize("answer", [None, True, 0, "", [], "go on"], ids=repr)
def test_only_false_cancels_a_merge(path: str, answer: Any) -> None:
    assert merge(path, lambda _: answer).inserted == 3


def test_tasks_of_a_remote_engine_advance_the_phase() -> None:
    steps: list[tuple[str, int, int]] = []
    report = Reporter(lambda step: steps.append((step.phase, step.done, step.total)))
    report("match", 2, 10)
    for tasks in ((0, 0), (1, 4), (3, 4), (4, 4)):
        report.tasks(*tasks)
    assert steps == [("match", done, 10) for done in (2, 2, 2, 7, 10)]
    report("rewrite", 0, 8)
    report.tasks(1, 1)
    assert steps[-2:] == [("rewrite", 0, 8), ("rewrite", 8, 8)]


def test_progress_is_immutable() -> None:
    assert Progress("match", 1, 2) == Progress("match", 1, 2)
    assert inlay.Progress is Progress
    with pytest.raises(AttributeError):
        Progress("match", 1, 2).done = 2  # type: ignore[misc]


# -------------------------------------------------------------------------------------------------------- stopping it
class Stop(Exception):
    """An error that inlay does not know."""


STEPS = [
    ("match", 0),
    ("match", 1),
    ("match", 2),
    ("rewrite", 0),
    ("rewrite", 1),
    ("rewrite", 2),
    ("append", 0),
    ("append", 1),
    ("append", 2),
    ("commit", 0),
]


def at(step: tuple[str, int], action: Callable[[], Any]) -> Callable[[Progress], Any]:
    return lambda progress: action() if (progress.phase, progress.done) == step else None


def raising(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


ACTIONS: dict[str, tuple[Callable[[], Any], type[BaseException]]] = {
    "False": (lambda: False, MergeCancelledError),
    "an exception": (raising(Stop("enough")), Stop),
    "a ValueError": (raising(ValueError("enough")), ValueError),
    "an interrupt": (raising(KeyboardInterrupt()), KeyboardInterrupt),
    "an exit": (raising(SystemExit(3)), SystemExit),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]} {step[1]}")
def test_a_cancelled_merge_leaves_no_trace(path: str, tmp_path: Path, step: tuple[str, int], action: str) -> None:
    act, error = ACTIONS[action]
    before = lake.photograph(path)
    with pytest.raises(error) as caught:
        merge(path, at(step, act))
    assert type(caught.value) is error
    assert lake.photograph(path) == before
    assert os.listdir(tmp_path) == ["d"]
    result = merge(path, None)
    assert (result.updated, result.inserted) == (3, 3)


def test_no_thread_writes_after_a_merge_is_cancelled(tmp_path: Path) -> None:
    """A thread that is still writing would create files after the cleanup."""
    path = lake.write(tmp_path / "d", {f"{n:02}.parquet": lake.table([n]) for n in range(20)})
    with pytest.raises(MergeCancelledError) as caught:  # its traceback keeps alive whatever is not ended
        inlay.merge(
            lake.table(range(20), ["x"] * 20), path, "upsert", ["id"], progress=at(("rewrite", 1), lambda: False)
        )
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("inlay-")] == []
    assert caught.tb is not None


def test_the_error_of_a_cancelled_merge_names_the_phase(path: str) -> None:
    with pytest.raises(MergeCancelledError, match=r"rewrite 1 of 2\. Nothing changed") as caught:
        merge(path, at(("rewrite", 1), lambda: False))
    error = caught.value
    assert (error.operation, error.strategy, error.key_columns) == ("rewrite", "upsert", ["id"])
    assert (error.code, error.exit_code) == ("cancelled", 1)


def test_an_oserror_of_the_callback_is_not_a_conflict(path: str) -> None:
    """An OSError of the callback is a DatasetIOError with the OSError as cause."""
    before = lake.photograph(path)
    with pytest.raises(OSError, match="the terminal is closed"):
        merge(path, at(("append", 1), raising(BrokenPipeError("the terminal is closed"))))
    assert lake.photograph(path) == before


# ------------------------------------------------------------------------------------------ too late to stop anything
def test_the_last_report_cannot_cancel(path: str) -> None:
    result = merge(path, at(("commit", 1), lambda: False))
    assert (result.updated, result.inserted) == (3, 3)
    assert sum(row["v"] == "x" for row in lake.all_rows(path)) == 6


@pytest.mark.parametrize("error", [Stop("late"), BrokenPipeError("late"), KeyboardInterrupt()], ids=repr)
def test_an_exception_in_the_last_report_is_not_a_merge_error(path: str, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        merge(path, at(("commit", 1), raising(error)))
    assert caught.value is error
    assert sum(row["v"] == "x" for row in lake.all_rows(path)) == 6
    assert merge(path, None).unchanged == 6


# --------------------------------------------------------------------------------------------------- other operations
OPERATIONS: dict[str, tuple[Callable[..., Any], tuple[str, int]]] = {
    "plan": (lambda path, **o: inlay.plan_merge(SOURCE, path, "upsert", ["id"], **o), ("rewrite", 1)),
    "append": (lambda path, **o: inlay.write_dataset(SOURCE, path, max_rows_per_file=2, **o), ("append", 2)),
    "overwrite": (lambda path, **o: inlay.write_dataset(SOURCE, path, mode="overwrite", **o), ("append", 1)),
    "compact": (inlay.compact, ("compact", 1)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("action", ["False", "an exception", "an interrupt"])
def test_any_cancelled_operation_leaves_no_trace(path: str, tmp_path: Path, name: str, action: str) -> None:
    call, step = OPERATIONS[name]
    act, error = ACTIONS[action]
    before = lake.photograph(path)
    with pytest.raises(error):
        call(path, progress=at(step, act))
    assert lake.photograph(path) == before
    sidecar = tmp_path / ".d.txn"
    assert {entry.name for entry in sidecar.iterdir()} <= {"lock"} if sidecar.exists() else True


def test_a_cancelled_merge_creates_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(MergeCancelledError):
        merge(str(tmp_path / "new"), at(("commit", 0), lambda: False))
    assert not (tmp_path / "new").exists()


def test_a_cancelled_merge_removes_spilled_files(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spill = tmp_path / "spill"
    spill.mkdir()
    monkeypatch.setattr(source_module, "SPILL_BYTES", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(spill))
    during: list[int] = []

    def stop() -> bool:
        during.append(len(os.listdir(spill)))
        return False

    reader = pa.RecordBatchReader.from_batches(SOURCE.schema, iter(SOURCE.to_batches(max_chunksize=2)))
    with pytest.raises(MergeCancelledError):
        inlay.merge(reader, path, "upsert", ["id"], progress=at(("rewrite", 1), stop))
    assert during == [1]
    assert os.listdir(spill) == []


def test_a_cancelled_merge_on_an_object_store_leaves_no_trace(memory: MemoryFileSystem) -> None:
    change = lake.table([5], ["x"])
    inlay.merge(lake.table(range(10)), "memory://progress/d", "insert", ["id"])
    before = {name: memory.cat_file(name) for name in memory.find("/progress")}
    for step in (("rewrite", 1), ("commit", 0)):
        with pytest.raises(MergeCancelledError):
            inlay.merge(change, "memory://progress/d", "upsert", ["id"], progress=at(step, lambda: False))
        assert {name: memory.cat_file(name) for name in memory.find("/progress")} == before
