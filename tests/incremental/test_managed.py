"""Drafts: merges into an explicit list of files that never change."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from inlay.commit.transaction import StagedFile
from inlay.engines import get_engine
from inlay.errors import DatasetIOError, DuplicateKeyError
from inlay.incremental.managed import Draft, merge_draft, plan_draft
from inlay.incremental.validate import MergeOptions
from inlay.parquet import footer_cache
from inlay.storage import LocalStore, locate
from tests import lake
from tests.fake_engines import RecordingEngine, UnavailableEngine


class Managed:
    """A managed dataset with its versions in a list."""

    def __init__(self, root: Path) -> None:
        self.root = root
        lake.write(
            root / "v1", {"a.parquet": lake.table([1, 2], ["a", "b"]), "b.parquet": lake.table([5, 6], ["e", "f"])}
        )
        (root / "v1/stray.parquet").write_bytes(b"of nobody")
        self.versions = [["v1/a.parquet", "v1/b.parquet"]]

    def draft(self) -> Draft:
        files = [(path, (self.root / path).stat().st_size) for path in self.versions[-1]]
        return Draft(locate(self.root), files, f"v{len(self.versions) + 1}")

    def rows(self, version: int = -1) -> list[tuple[int, str]]:
        tables = [pq.read_table(self.root / path, partitioning=None) for path in self.versions[version]]
        return [(row["id"], row["v"]) for row in pa.concat_tables(tables).to_pylist()]


@pytest.fixture
def managed(tmp_path: Path) -> Managed:
    return Managed(tmp_path / "data_x")


def options(strategy: str) -> MergeOptions:
    return MergeOptions.check(strategy, ["id"])


def test_a_draft_keeps_unchanged_files(managed: Managed) -> None:
    draft = managed.draft()
    result = merge_draft(lake.table([2, 9], ["B", "i"]), draft, options("upsert"), get_engine("pyarrow"))
    assert (result.updated, result.inserted, result.target_count_after) == (1, 1, 5)
    files = draft.files(result)
    assert [path for path, _, _ in files] == ["v2/part-00000.parquet", "v1/b.parquet", "v2/part-00001.parquet"]
    assert [rows for _, rows, _ in files] == [2, 2, 1]
    assert [size for _, _, size in files] == [(managed.root / path).stat().st_size for path, _, _ in files]
    managed.versions.append([path for path, _, _ in files])
    assert managed.rows() == [(1, "a"), (2, "B"), (5, "e"), (6, "f"), (9, "i")]
    assert managed.rows(0) == [(1, "a"), (2, "b"), (5, "e"), (6, "f")]


def test_a_file_without_rows_leaves_the_next_version_only(managed: Managed) -> None:
    draft = managed.draft()
    result = merge_draft(lake.table([5, 6], ["e", "F"]), draft, options("full_merge"), get_engine("pyarrow"))
    assert (result.updated, result.unchanged, result.deleted) == (2, 1, 2)
    assert [path for path, _, _ in draft.files(result)] == ["v2/part-00000.parquet"]
    assert managed.rows(0) == [(1, "a"), (2, "b"), (5, "e"), (6, "f")]


def test_a_merge_without_changes_writes_nothing(managed: Managed) -> None:
    draft = managed.draft()
    result = merge_draft(lake.table([1], ["a"]), draft, options("upsert"), get_engine("pyarrow"))
    assert (result.updated, result.unchanged) == (1, 1)
    assert [path for path, _, _ in draft.files(result)] == managed.versions[0]
    assert [path.name for path in (managed.root / "v2").glob("*")] == []


def test_a_plan_writes_nothing(managed: Managed) -> None:
    plan, changes = plan_draft(
        lake.table([2, 9], ["B", "i"]), managed.draft(), options("upsert"), get_engine("pyarrow"), limit=5
    )
    assert [table.num_rows for table in (changes.inserted, changes.old, changes.new, changes.deleted)] == [1, 1, 1, 0]
    assert (plan.updated, plan.inserted, plan.deleted) == (1, 1, 0)
    assert [Path(path).name for path in plan.affected_files] == ["a.parquet"]
    assert not (managed.root / "v2").exists()


def test_a_rejected_merge_writes_nothing(managed: Managed) -> None:
    engine, twice = get_engine("pyarrow"), lake.table([2, 2], ["x", "y"])
    for call in (merge_draft, partial(plan_draft, limit=5)):
        with pytest.raises(DuplicateKeyError):
            call(twice, managed.draft(), options("upsert"), engine)
    assert not (managed.root / "v2").exists()


def test_a_version_that_only_loses_files_writes_none(managed: Managed) -> None:
    draft = managed.draft()
    result = merge_draft(lake.table([5, 6], ["e", "f"]), draft, options("full_merge"), get_engine("pyarrow"))
    assert (result.deleted, result.unchanged, result.target_count_after) == (2, 2, 2)
    assert [path for path, _, _ in draft.files(result)] == ["v1/b.parquet"]
    assert [path.name for path in (managed.root / "v2").glob("*")] == []


def test_a_version_without_rows_still_has_a_schema(managed: Managed) -> None:
    draft = managed.draft()
    result = merge_draft(lake.table([], []), draft, options("full_merge"), get_engine("pyarrow"))
    assert (result.deleted, result.target_count_after) == (4, 0)
    [(path, rows, _)] = draft.files(result)
    assert rows == 0
    assert pq.read_schema(managed.root / path).equals(pq.read_schema(managed.root / "v1/a.parquet"))


def test_versions_can_be_on_object_stores(memory: MemoryFileSystem) -> None:
    empty = Draft(locate("/versions/x", memory), [], "v1")
    first = empty.files(merge_draft(lake.table([1, 2]), empty, options("insert"), get_engine("pyarrow")))
    draft = Draft(locate("/versions/x", memory), [(path, size) for path, _, size in first], "v2")
    result = merge_draft(lake.table([2, 3]), draft, options("insert"), get_engine("pyarrow"))
    assert [path for path, _, _ in draft.files(result)] == ["v1/part-00000.parquet", "v2/part-00000.parquet"]
    assert sorted(memory.find("/versions")) == [f"/versions/x/v{n}/part-00000.parquet" for n in (1, 2)]


def test_new_files_are_synced_before_a_version_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    for name in ("sync_file", "sync_directory"):
        monkeypatch.setattr(LocalStore, name, lambda _, path: synced.append(path.removeprefix(str(tmp_path))))
    merged = lake.write(tmp_path / "x", {"v1/day=1/a.parquet": lake.table([1])})
    draft = Draft(locate(merged), [("v1/day=1/a.parquet", 1)], "v2")
    draft.commit([StagedFile(f"{merged}/v2/day=2/b.parquet", "v2/day=2/b.parquet")], [])
    assert synced == ["/x/v2/day=2/b.parquet", "/x/v2/day=2", "/x/v2", "/x", ""]


CALLS: dict[str, Callable[[Draft, Any], Any]] = {
    "merge": lambda draft, engine: merge_draft(lake.table([7]), draft, options("upsert"), engine),
    "plan": lambda draft, engine: plan_draft(lake.table([7]), draft, options("upsert"), engine, limit=1),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_names_the_operation(managed: Managed, name: str) -> None:
    with pytest.raises(DatasetIOError, match=rf"^The {name} failed and nothing changed: .*no answer") as caught:
        CALLS[name](managed.draft(), UnavailableEngine())
    assert (caught.value.operation, caught.value.strategy, caught.value.key_columns) == (name, "upsert", ["id"])


@pytest.mark.parametrize("name", CALLS)
def test_engines_are_bound_to_the_operation(
    managed: Managed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(footer_cache, "_WORTH_CACHING", 1)
    engine = RecordingEngine()
    CALLS[name](managed.draft(), engine)
    assert engine.calls == {
        "bind": (str(managed.root), "upsert"), "footers": 2, "open": (["id", "v"], None),
    }  # fmt: skip
    assert not (tmp_path / "cache").exists(), "a draft wrote a footer cache"


def test_new_files_of_a_version_have_distinct_names(managed: Managed) -> None:
    draft = managed.draft()
    slots = [draft.stage_replacement("v1/a.parquet"), draft.stage_new_file(""), draft.stage_new_file("")]
    assert [slot.path for slot in slots] == [f"v2/part-0000{n}.parquet" for n in range(3)]
    assert [slot.stage for slot in slots] == [str(managed.root / slot.path) for slot in slots]
