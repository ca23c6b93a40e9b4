"""One merge on its way: what it does when another writer was faster, and what is passed on to its engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.engines import buckets
from inlay.errors import ConcurrentModificationError
from inlay.incremental import run
from tests import lake

PATH = "/bucket/ds"


class Rival:
    """Adds a row to the dataset whenever a merge is about to rewrite files, so many times."""

    def __init__(self, path: str, times: int, filesystem: Any = None) -> None:
        self.path, self.times, self.filesystem = path, times, filesystem
        self.added: list[int] = []

    def __call__(self, step: inlay.Progress) -> None:
        if (step.phase, step.done) == ("rewrite", 0) and len(self.added) < self.times:
            self.added.append(100 + len(self.added))
            inlay.merge(lake.table(self.added[-1:]), self.path, "insert", ["id"], filesystem=self.filesystem)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_who_was_second_plans_again_on_what_is_there(memory: MemoryFileSystem, pauses: list[float]) -> None:
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


def test_who_is_always_second_gives_up_in_the_end(memory: MemoryFileSystem, pauses: list[float]) -> None:
    inlay.write_dataset(lake.table([1, 2]), PATH, filesystem=memory)
    rival = Rival(PATH, 1000, memory)
    with pytest.raises(ConcurrentModificationError):
        inlay.merge(lake.table([2], ["x"]), PATH, "upsert", ["id"], filesystem=memory, progress=rival)
    assert len(rival.added) == run._ATTEMPTS_ON_CONFLICT
    assert len(pauses) == run._ATTEMPTS_ON_CONFLICT - 1
    for attempt, pause in enumerate(pauses):
        assert 0.1 * 2**attempt <= pause < 0.2 * 2**attempt, "longer each time, and never two writers alike"
    assert sorted(inlay.read_parquet(PATH, filesystem=memory)["id"].to_pylist()) == [1, 2, *rival.added]


def test_on_a_disk_nobody_is_second_but_to_strangers(tmp_path: Path, pauses: list[float]) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})

    def stranger(step: inlay.Progress) -> None:
        if (step.phase, step.done) == ("rewrite", 0):
            lake.write(tmp_path / "d", {"stranger.parquet": lake.table([2])})

    with pytest.raises(ConcurrentModificationError, match="Something other than inlay"):
        inlay.merge(lake.table([1], ["x"]), path, "upsert", ["id"], progress=stranger)
    assert pauses == []
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (2, "v2")]


def test_new_files_are_as_they_were_chosen(tmp_path: Path) -> None:
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
    monkeypatch.setattr(buckets, "SPILL_BYTES", 10)
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 20)
    opened: list[int] = []
    cut = buckets._cut
    monkeypatch.setattr(buckets, "_cut", lambda *given: opened.append(len(made := cut(*given))) or made)
    reader = pa.RecordBatchReader.from_batches(source.schema, iter(source.to_batches(max_chunksize=2)))
    result = inlay.merge(reader, path, "upsert", ["id"])
    assert opened[0] > 3
    assert (result.updated, result.inserted, len(result.rewritten_files)) == (12, 0, 12)
    assert {row["v"] for row in lake.all_rows(path) if row["id"] % 100 == 0} == {"x"}
