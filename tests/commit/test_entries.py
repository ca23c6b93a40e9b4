"""The cache of what `inlay.history` shows: equal to the records, and never needed."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import inlay
from inlay.commit import history as history_module
from inlay.commit.entries import Entry, EntryCache
from inlay.commit.local import LocalJournal
from inlay.errors import CommitPendingError, CorruptJournalError
from inlay.storage import locate
from tests.faults.scenarios import failing_moves


def commit(path: Path, *numbers: int) -> None:
    for number in numbers:
        inlay.merge({"id": [number], "v": ["é"]}, path, "upsert", "id", transaction=f"batch-{number}")


def cache_path(path: Path) -> Path:
    return path.parent / f".{path.name}.txn" / "versions" / "entries"


def record_path(path: Path, number: int) -> Path:
    return cache_path(path).parent / f"{number:08d}.json"


def cached(path: Path) -> dict[int, Entry]:
    return EntryCache(str(cache_path(path))).read()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "d"
    commit(path, 1)
    inlay.keep(path, versions=5)
    commit(path, 2, 3)
    return path


def test_the_cache_repeats_the_records(path: Path) -> None:
    (path / "foreign.parquet").write_bytes(next(path.glob("*.parquet")).read_bytes())
    commit(path, 4)
    inlay.undo(path)
    shown = inlay.history(path)
    assert [version.operation for version in shown] == ["undo", "merge", "external", "merge", "merge"]
    assert sorted(cached(path)) == [1, 2, 3, 4, 5, 6]
    cache_path(path).unlink()
    assert inlay.history(path) == shown
    commit(path, 5)
    assert sorted(cached(path)) == [3, 4, 5, 6, 7], "the next commit writes a lost cache again"


def test_records_of_cached_versions_are_not_read(path: Path) -> None:
    shown = inlay.history(path)
    record_path(path, 2).write_bytes(b"unreadable")
    assert inlay.history(path) == shown
    cache_path(path).unlink()
    with pytest.raises(CorruptJournalError):
        inlay.history(path)


@pytest.mark.parametrize("cut", [1, 100, 400])
def test_an_append_that_a_crash_cut_off_costs_only_time(path: Path, cut: int) -> None:
    shown = inlay.history(path)
    content = cache_path(path).read_bytes()
    cache_path(path).write_bytes(content[:-cut] + b"\0" * (cut // 2))
    assert inlay.history(path) == shown
    commit(path, 4)
    assert [version.rows for version in inlay.history(path)] == [4, 3, 2, 1]
    assert 4 in cached(path)


@pytest.mark.parametrize(
    "text", [b"[1]", b'"text"', b"{", b'[1,"","",null,[],0,0,0,0,0,0,null,null,[["../x","a"]],[]]']
)
def test_other_content_is_ignored(path: Path, text: bytes) -> None:
    shown = inlay.history(path)
    cache_path(path).write_bytes(b"%08x %b" % (zlib.crc32(text), text))
    assert cached(path) == {}
    assert inlay.history(path) == shown


def test_a_cache_that_cannot_be_written_fails_no_commit(path: Path) -> None:
    cache_path(path).unlink()
    cache_path(path).mkdir()
    commit(path, 4)
    cache_path(path).rmdir()
    with mock.patch.object(EntryCache, "write", side_effect=OSError):
        inlay.forget(path, before=2)
    assert [version.version for version in inlay.history(path)] == [4, 3, 2]
    assert [found.name for found in cache_path(path).parent.parent.glob("*.tmp")] == []


def test_the_next_commit_with_the_number_of_an_undone_one_replaces_its_entry(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink

    def keep_pending(path: str, **options: Any) -> None:
        if str(path).endswith("commit.json"):
            raise OSError
        unlink(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr("os.unlink", keep_pending)
        with pytest.raises(CommitPendingError):
            commit(path, 4)
    assert 4 in cached(path)
    inlay.recover(path, undo=True)
    assert cached(path) == {}
    with failing_moves(0), pytest.raises(CommitPendingError):
        commit(path, 5)
    inlay.recover(path, undo=True)
    commit(path, 6)
    assert [version.transaction for version in inlay.history(path)] == ["batch-6", "batch-3", "batch-2", "batch-1"]


def test_dropped_versions_leave_the_cache(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inlay.forget(path, before=3)
    assert sorted(cached(path)) == [3]
    assert b"batch-2" not in cache_path(path).read_bytes()
    inlay.keep(path, versions=2)
    monkeypatch.setattr(history_module, "_ENTRIES_REWRITTEN", 6)
    commit(path, 4, 5)
    assert sorted(cached(path)) == [3, 4, 5]
    commit(path, 6)
    assert sorted(cached(path)) == [5, 6]


def test_versions_of_many_files_stay_in_their_records(tmp_path: Path) -> None:
    path = tmp_path / "d"
    inlay.write_dataset({"id": list(range(70)), "p": list(range(70))}, path, partition_columns="p")
    commit_many = {"id": [0], "p": [0], "v": [1]}
    inlay.merge(commit_many, path, "upsert", "id", schema_mode="evolve")
    assert sorted(cached(path)) == [2]
    assert [version.files for version in inlay.history(path)] == [70, 70]


def test_a_version_that_is_dropped_while_the_history_is_read_is_left_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = LocalJournal(locate(path))
    assert journal.history is not None
    read = EntryCache.read

    def read_and_drop(cache: EntryCache) -> dict[int, Entry]:
        found = read(cache)
        monkeypatch.setattr(EntryCache, "read", read)
        inlay.forget(path, before=3)
        return found

    monkeypatch.setattr(EntryCache, "read", read_and_drop)
    assert [version.version for version in inlay.history(path)] == [3]

    numbers = type(journal.history).numbers

    def list_and_drop(kept: history_module.History) -> list[int]:
        found = numbers(kept)
        monkeypatch.setattr(history_module.History, "numbers", numbers)
        inlay.forget(path, before=4)
        return found

    commit(path, 4)
    cache_path(path).unlink()
    monkeypatch.setattr(history_module.History, "numbers", list_and_drop)
    assert [version.version for version in inlay.history(path)] == [4]


def test_the_oldest_version_needs_its_files_only_while_it_is_kept(path: Path) -> None:
    inlay.forget(path, before=3)
    kept = LocalJournal(locate(path)).history
    assert kept is not None
    assert len(kept.first_files(3)) == 3
    for name in ("*.past", "*.all"):
        for found in cache_path(path).parent.glob(name):
            found.unlink()
    with pytest.raises(CorruptJournalError):
        kept.first_files(3)
    record_path(path, 3).rename(record_path(path, 3).with_suffix(".drop"))
    assert kept.first_files(3) == {}


def test_versions_before_the_removal_of_a_damaged_file_are_damaged(path: Path) -> None:
    first = min(path.glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    with first.open("ab") as file:
        inlay.delete(path, "id = 1")
        file.write(b"more")
    assert [version.damaged for version in inlay.history(path)] == [False, True, True, True]
