"""New files that several Spark tasks write, with the tasks run in this process."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.engines.base import Append, StageResult
from inlay.engines.kernels import append_rows
from inlay.engines.source import ArrowSource, load_source
from inlay.engines.spark import jobs
from inlay.engines.spark.tasks import Scratch
from inlay.parquet.writer import WriterSettings
from inlay.storage import LocalStore, locate

ROWS = 1_000
TABLE = pa.table(
    {
        "id": np.arange(ROWS),
        "x": [float("nan") if i % 400 == 7 else i / 7 for i in range(ROWS)],
        "text": [None if i % 11 == 0 else f"value {i % 5}" for i in range(ROWS)],
    }
)


class Tasks:
    """Runs the tasks of a job, pickled as in Spark, and records how many each job has."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def __call__(self, kernel: Any, tasks: Sequence[Any], size: int | None = None, /) -> Iterator[Any]:
        self.counts.append(len(tasks))
        for task in tasks:
            run, received = pickle.loads(pickle.dumps((kernel, task)))
            yield pickle.loads(pickle.dumps(run(received)))


@contextlib.contextmanager
def no_scratch(_: int) -> Iterator[Scratch]:
    yield Scratch(LocalStore())


def stage(folder: Path, source: ArrowSource, append: Append, rows_per_task: int) -> tuple[StageResult, Tasks]:
    run = Tasks()
    supply = jobs.DriverRows(source, no_scratch)
    [result] = jobs.stage(run, locate(str(folder)), supply, [], [append], dry_run=False, rows_per_task=rows_per_task)
    return result, run


@pytest.mark.parametrize("count", [0, 1, 100, 101, 250, 999, 1_000])
@pytest.mark.parametrize("rows_per_task", [0, 1, 150, 5_000])
def test_a_file_of_many_tasks_equals_the_file_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, rows_per_task: int
) -> None:
    monkeypatch.setattr(jobs, "MIN_SPLIT_ROWS", 100)
    monkeypatch.setattr(jobs, "_CHUNK_ROWS", 70)
    source = load_source(TABLE, lambda rows: rows, ["id"])
    rows = np.random.default_rng(count).permutation(ROWS)[:count]
    settings = WriterSettings(row_group_size=40)
    append = Append(str(tmp_path / "new.parquet"), rows, TABLE.schema, settings)
    result, run = stage(tmp_path, source, append, rows_per_task)
    alone = Append(str(tmp_path / "alone.parquet"), rows, TABLE.schema, settings)
    expected = append_rows(locate(str(tmp_path)), alone, source.take)
    assert (tmp_path / "new.parquet").read_bytes() == (tmp_path / "alone.parquet").read_bytes()
    assert (result.stage, result.rows, result.size) == (append.stage, expected.rows, expected.size)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone.parquet", "new.parquet"]
    part = {0: ROWS, 1: 120, 150: 160, 5_000: ROWS}[rows_per_task]
    tasks = max(1, -(-count // part))
    assert run.counts == ([tasks] if tasks == 1 else [tasks, 1])


def test_statistics_of_every_part_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MIN_SPLIT_ROWS", 100)
    source = load_source(TABLE, lambda rows: rows, ["id"])
    append = Append(str(tmp_path / "n.parquet"), np.arange(ROWS), TABLE.schema, WriterSettings(row_group_size=100))
    stage(tmp_path, source, append, 100)
    metadata = pq.read_metadata(tmp_path / "n.parquet")
    bounds = [metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)]
    assert [(each.min, each.max) for each in bounds] == [(low, low + 99) for low in range(0, ROWS, 100)]
    assert pq.read_table(tmp_path / "n.parquet").column("id").equals(TABLE.column("id"))
