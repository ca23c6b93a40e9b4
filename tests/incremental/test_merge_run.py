"""MergeRun: conflicts with other writers, and the arguments of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.engines import source as source_module
from inlay.errors import ConcurrentModificationError
from tests import lake

PATH = "/bucket/ds"


class Rival:
    """An engine that commits a row as another writer before each of the first rewrites."""

    def __init__(self, path: str, times: int, filesystem: Any = None) -> None:
        self.path, self.times, self.filesystem = path, times, filesystem
        self.added: list[int] = []

    def __call__(self, step: inlay.Progress) -> None:
        if (step.phase, step.done) == ("rewrite", 0) and len(self.added) < self.times:
            self.added.append(100 + len(self.added))
            inlay.merge(lake.table(self.added[-1:]), self.path, "insert", ["id"], filesystem=self.filesystem)


@pytest.fixture
def pauses(replace_sleep: Any) -> list[float]:
    found: list[float] = []
    replace_sleep(found.append)
    return found


def test_a_merge_that_loses_the_race_plans_again(memory: MemoryFileSystem, pauses: list[float]) -> None:
    inlay.write_dataset(lake.table([1, 2]), PATH, filesystem=memory)
    rival = Rival(PATH, 2, memory)
    source = lake.table([2, 101, 7], ["x", "y", "z"])
    result = inlay.merge(source, PATH, "upsert", ["id"], filesystem=memory, progress=rival)
    assert (result.updated, result.inserted, result.target_count_before, result.target_count_after) == (2, 1, 4, 5)
    rows = inlay.read_parquet(PATH, filesystem=memory).to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [
        (1, "v1"), (2, "x"), (7, "z"), (100, "v100"), (101, "y"),
    ]  # fmt: skip
    assert len(pauses) == 2


def test_a_merge_that_always_loses_the_race_fails(memory: MemoryFileSystem, pauses: list[float]) -> None:
    inlay.write_dataset(lake.table([1, 2]), PATH, filesystem=memory)
    rival = Rival(PATH, 1000, memory)
    source = lake.table([2], ["x"])
    with pytest.raises(ConcurrentModificationError):
        inlay.merge(source, PATH, "upsert", ["id"], filesystem=memory, progress=rival, lock_timeout=2)
    assert len(rival.added) == len(pauses) + 1 > 5
    for attempt, pause in enumerate(pauses):
        assert 0 <= pause < min(0.1 * 2**attempt, 2), "longer each time, and never two writers alike"
    assert sorted(inlay.read_parquet(PATH, filesystem=memory)["id"].to_pylist()) == [1, 2, *rival.added]


def test_a_conflict_on_a_local_disk_is_not_retried(tmp_path: Path, pauses: list[float]) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})

    def stranger(step: inlay.Progress) -> None:
        if (step.phase, step.done) == ("rewrite", 0):
            lake.write(tmp_path / "d", {"stranger.parquet": lake.table([2])})

    with pytest.raises(ConcurrentModificationError, match="changed during the operation"):
        inlay.merge(lake.table([1], ["x"]), path, "upsert", ["id"], progress=stranger)
    assert pauses == []
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (2, "v2")]


def test_new_files_use_the_writer_settings(tmp_path: Path) -> None:
    path = str(tmp_path / "d")
    rows = lake.table(range(25), p=[n % 2 for n in range(25)])
    inlay.merge(
        rows, path, "insert", ["id"], partition_columns=["p"], compression="gzip", row_group_size=4, max_rows_per_file=9
    )
    files = {file.relative_to(path): pq.read_metadata(file) for file in Path(path).rglob("*.parquet")}
    groups = [(file.parts[0], [m.row_group(g).num_rows for g in range(m.num_row_groups)]) for file, m in files.items()]
    assert sorted(groups) == [
        ("p=0", [4]), ("p=0", [4, 4, 1]), ("p=1", [3]), ("p=1", [4, 4, 1]),
    ]  # fmt: skip
    assert {m.row_group(0).column(0).compression for m in files.values()} == {"GZIP"}


def test_a_source_in_several_buckets_finds_the_files_of_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake.write(tmp_path / "d", {f"{n}.parquet": lake.table([100 * n, 100 * n + 50]) for n in range(12)})
    source = lake.table([100 * n for n in range(12)], ["x"] * 12)
    monkeypatch.setattr(source_module, "SPILL_BYTES", 10)
    monkeypatch.setattr(source_module, "_BUCKET_BYTES", 20)
    opened: list[int] = []
    split = source_module._split
    monkeypatch.setattr(source_module, "_split", lambda *a: opened.append(len(made := split(*a))) or made)
    reader = pa.RecordBatchReader.from_batches(source.schema, iter(source.to_batches(max_chunksize=2)))
    result = inlay.merge(reader, path, "upsert", ["id"])
    assert opened[0] > 3
    assert (result.updated, result.inserted, len(result.rewritten_files)) == (12, 0, 12)
    assert {row["v"] for row in lake.all_rows(path) if row["id"] % 100 == 0} == {"x"}
