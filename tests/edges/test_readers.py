"""Reading while writing: a snapshot outlives every change, and other tools read exactly the rows of the last commit."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import inlay
from inlay.engines import files, streams
from inlay.errors import CommitPendingError
from inlay.incremental import read
from tests import lake
from tests.edges.readers import Row, assert_rows, sorted_rows
from tests.faults.scenarios import KEPT_IN_SIDECAR, failing_moves

BEFORE: list[Row] = [{"id": number, "v": f"v{number}", "day": day} for number, day in ((1, 1), (2, 1), (3, 1), (4, 2))]
CHANGED: Row = {"id": 1, "v": "changed", "day": 1}
ADDED: Row = {"id": 5, "v": "added", "day": 3}

Change = Callable[[Path, Any], object]


def build(path: Path) -> Path:
    parts = {"day=1/a.parquet": [1, 2], "day=1/b.parquet": [3], "day=2/c.parquet": [4]}
    return Path(lake.write(path, {name: lake.table(ids) for name, ids in parts.items()}))


# No change waits for a lock, so a change that depends on a reader fails at once.
def merged(strategy: Any, *rows: Row) -> Change:
    return lambda path, engine: inlay.merge(list(rows), path, strategy, "id", engine=engine, lock_timeout=0)


def written(mode: Any, *rows: Row) -> Change:
    return lambda path, engine: inlay.write_dataset(list(rows), path, mode, engine=engine, lock_timeout=0)


def compacted(path: Path, engine: Any) -> object:
    return inlay.compact(path, engine=engine, lock_timeout=0)


#: change -> (function that makes it, rows after it)
CHANGES: dict[str, tuple[Change, list[Row]]] = {
    "insert": (merged("insert", CHANGED, ADDED), [*BEFORE, ADDED]),
    "update": (merged("update", CHANGED, ADDED), [CHANGED, *BEFORE[1:]]),
    "upsert": (merged("upsert", CHANGED, ADDED), [CHANGED, *BEFORE[1:], ADDED]),
    "deduplicate": (merged("deduplicate", BEFORE[0], CHANGED), [CHANGED, *BEFORE[1:]]),
    "full merge": (merged("full_merge", CHANGED, *BEFORE[2:], ADDED), [CHANGED, *BEFORE[2:], ADDED]),
    "removal of files": (merged("full_merge", *BEFORE[:2]), BEFORE[:2]),
    "append": (written("append", ADDED), [*BEFORE, ADDED]),
    "overwrite": (written("overwrite", CHANGED, ADDED), [CHANGED, ADDED]),
    "compaction": (compacted, BEFORE),
}


def rows_of(table: pa.Table) -> list[Row]:
    return sorted_rows(table.to_pylist())


def assert_globs(folder: Path, expected: list[Row]) -> None:
    """Assert that globs over the dataset and its sidecar find only the rows of the dataset."""
    glob = f"{folder}/**/*.parquet"
    ids = sorted(row["id"] for row in expected)
    with duckdb.connect() as connection:
        assert connection.sql(f"SELECT list(id ORDER BY id) FROM '{glob}'").fetchall() == [(ids,)]
    assert sorted(pl.read_parquet(glob)["id"]) == ids


def assert_no_links(path: Path) -> None:
    """Assert that the sidecar contains no link of a snapshot and no staged file."""
    assert {entry.name for entry in (path.parent / f".{path.name}.txn").iterdir()} <= KEPT_IN_SIDECAR


# ------------------------------------------------------------------------------------------------------- snapshots
@pytest.mark.long_on("duckdb-union", "spark")  # all engines commit with the same code
@pytest.mark.parametrize("change", CHANGES)
def test_a_held_snapshot_outlives_a_change(tmp_path: Path, engine: Any, change: str) -> None:
    path = build(tmp_path / "d")
    make, after = CHANGES[change]
    with inlay.open_dataset(path) as held:
        make(path, engine)
        assert_rows(path, after, engine)
        assert_globs(tmp_path, after)
        assert rows_of(inlay.read_parquet(path)) == sorted_rows(after)
        assert rows_of(held.to_table()) == sorted_rows(BEFORE)
    assert_no_links(path)
    assert_rows(path, after, engine)


def test_every_snapshot_keeps_the_rows_of_its_moment(tmp_path: Path, engine: Any) -> None:
    path = build(tmp_path / "d")
    upserted, overwritten = [CHANGED, *BEFORE[1:], ADDED], [*BEFORE[:2], ADDED]
    steps: list[tuple[Change, list[Row]]] = [
        (merged("upsert", CHANGED, ADDED), upserted),
        (compacted, upserted),
        (merged("full_merge", *BEFORE[1:]), BEFORE[1:]),
        (written("overwrite", *overwritten), overwritten),
        (merged("full_merge", ADDED), [ADDED]),
    ]
    held = []
    with contextlib.ExitStack() as stack:
        for make, after in steps:
            held.append(stack.enter_context(inlay.open_dataset(path)))
            make(path, engine)
            assert_rows(path, after, engine)
            assert_globs(tmp_path, after)
        for dataset, rows in zip(held, [BEFORE, *(after for _, after in steps)], strict=False):
            assert rows_of(dataset.to_table()) == sorted_rows(rows)
    assert_no_links(path)


@pytest.mark.long_on("duckdb-union", "spark")  # all engines commit with the same code
@pytest.mark.parametrize("change", CHANGES)
def test_a_read_that_a_change_overtakes_returns_one_state(
    tmp_path: Path, engine: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change the dataset between the listing of its files and the first row."""
    path = build(tmp_path / "d")
    make, after = CHANGES[change]
    original, left = read._dataset, [make]

    def overtaken(*arguments: Any) -> Any:
        dataset = original(*arguments)
        if left:
            left.pop()(path, engine)
        return dataset

    monkeypatch.setattr(read, "_dataset", overtaken)
    assert rows_of(inlay.read_parquet(path)) == sorted_rows(after)
    assert_no_links(path)


def test_readers_see_no_staged_file(tmp_path: Path, engine: Any) -> None:
    path = build(tmp_path / "d")
    seen: list[str] = []

    def observe(progress: inlay.Progress) -> None:
        if progress.phase != "commit":
            assert_rows(path, BEFORE, engine)
            assert_globs(tmp_path, BEFORE)
            seen.append(progress.phase)

    inlay.merge([CHANGED, ADDED], path, "upsert", "id", engine=engine, progress=observe)
    assert {"rewrite", "append"} <= set(seen)
    assert_rows(path, CHANGES["upsert"][1], engine)


@pytest.mark.long_on("duckdb-union", "spark")  # the location of the sidecar does not depend on the engine
def test_readers_see_nothing_of_a_sidecar_inside_the_dataset(tmp_path: Path, engine: Any) -> None:
    path = build(tmp_path / "d")
    (path / ".inlay.txn").mkdir()
    make, after = CHANGES["upsert"]
    with inlay.open_dataset(path) as held:
        make(path, engine)
        assert len(list((path / ".inlay.txn").iterdir())) > 1, "the sidecar contains the links of the snapshot"
        assert_rows(path, after, engine)
        assert_globs(path, after)
        assert rows_of(held.to_table()) == sorted_rows(BEFORE)
    assert_rows(path, after, engine)


# --------------------------------------------------------------------------------------------- datasets as sources
def test_a_held_snapshot_is_a_source_for_its_own_dataset(tmp_path: Path, engine: Any) -> None:
    path = build(tmp_path / "d")
    make, _ = CHANGES["upsert"]
    with inlay.open_dataset(path) as held:
        make(path, engine)
        result = inlay.merge(held, path, "full_merge", "id", engine=engine, lock_timeout=0)
        assert (result.updated, result.deleted) == (4, 1)
        assert_rows(path, BEFORE, engine)
    assert_no_links(path)


def test_a_dataset_is_its_own_source(tmp_path: Path, engine: Any) -> None:
    path = build(tmp_path / "d")
    assert inlay.merge(path, path, "full_merge", "id", engine=engine).unchanged == 4
    assert_rows(path, BEFORE, engine)


@pytest.mark.parametrize("moves", [0, 1])
def test_a_pending_commit_of_the_source_is_completed_first(tmp_path: Path, engine: Any, moves: int) -> None:
    source = build(tmp_path / "source")
    after = [CHANGED, *BEFORE[1:3], BEFORE[3] | {"v": "changed"}]
    with failing_moves(moves), pytest.raises(CommitPendingError):
        inlay.merge([after[0], after[3]], source, "upsert", "id")
    inlay.merge(source, tmp_path / "d", "upsert", "id", engine=engine)
    assert not (tmp_path / ".source.txn/commit.json").exists()
    for path in (source, tmp_path / "d"):
        assert_rows(path, after, engine)


@pytest.mark.long_on("duckdb-union", "spark")  # all engines open a source with the same code
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_source_during_a_merge_changes_no_row_of_the_merge(
    tmp_path: Path, engine: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change the source between the listing of its files and the first row."""
    source = build(tmp_path / "source")
    make, after = CHANGES[change]
    original = files.scan_fragments

    def change_first(*arguments: Any) -> Iterator[pa.RecordBatch]:
        make(source, "pyarrow")
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(streams, "scan_fragments", change_first)
        inlay.merge(source, tmp_path / "d", "upsert", "id", engine=engine)
    assert_rows(tmp_path / "d", BEFORE, engine)
    assert_rows(source, after, engine)
    assert_no_links(source)


# ------------------------------------------------------------------------------------------------ deleted datasets
def test_a_held_snapshot_outlives_its_dataset(tmp_path: Path, engine: Any) -> None:
    path = build(tmp_path / "d")
    with inlay.open_dataset(path) as held:
        shutil.rmtree(path)
        inlay.write_dataset([ADDED], path, engine=engine, lock_timeout=0)
        assert_rows(path, [ADDED], engine)
        inlay.merge([CHANGED], path, "upsert", "id", engine=engine, lock_timeout=0)
        assert rows_of(held.to_table()) == sorted_rows(BEFORE)
    assert_rows(path, [CHANGED, ADDED], engine)
    assert_no_links(path)


def test_a_dataset_that_another_tool_creates_again_is_read_again(tmp_path: Path, engine: Any) -> None:
    """The new files have the names, sizes and times of the old files, whose footers inlay has cached."""
    path = build(tmp_path / "d")
    inlay.merge([BEFORE[0]], path, "upsert", "id", engine=engine)
    old = {file: file.stat() for file in path.rglob("*.parquet")}
    shutil.rmtree(path)
    lake.write(path, {"day=1/a.parquet": lake.table([6, 7])})
    file = path / "day=1/a.parquet"
    assert file.stat().st_size == old[file].st_size
    os.utime(file, ns=(old[file].st_atime_ns, old[file].st_mtime_ns))
    assert rows_of(inlay.read_parquet(path)) == [{"day": 1, "id": 6, "v": "v6"}, {"day": 1, "id": 7, "v": "v7"}]
    result = inlay.merge([{"id": 7, "v": "changed", "day": 1}, ADDED], path, "upsert", "id", engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert_rows(path, [{"id": 6, "v": "v6", "day": 1}, {"id": 7, "v": "changed", "day": 1}, ADDED], engine)
