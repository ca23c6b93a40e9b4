"""Transactions: a merge whose token is committed changes nothing and returns the recorded result."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.commit import tokens
from inlay.commit.sidecar import Record
from inlay.commit.tokens import LocalTokens
from inlay.commit.transaction import IncrementalFileManager
from inlay.errors import (
    CommitPendingError,
    CorruptJournalError,
    DatasetIOError,
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
)
from inlay.storage import LocalStore, locate
from tests.faults.scenarios import failing_moves

ROWS = {"id": [1, 2, 3], "n": [10, 20, 30]}
UPDATES = {"id": [2, 4], "n": [21, 40]}
TOKEN = "orders/batch-42"
# Tokens are looked up before an engine does any work: one case on Spark shows that it passes them on.
on_three_engines = pytest.mark.long_on("spark")


def dataset(root: Path, *, inside: bool = False) -> Path:
    path = root / "orders"
    if inside:
        (path / ".inlay.txn").mkdir(parents=True)
    inlay.write_dataset(ROWS, path)
    return path


def upsert(path: Path | str, rows: Any = None, token: str | None = TOKEN, **options: Any) -> inlay.MergeResult:
    return inlay.merge(UPDATES if rows is None else rows, path, "upsert", "id", transaction=token, **options)


def state(path: Path | str, **options: Any) -> dict[int, int]:
    rows = inlay.read_parquet(path, **options).to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["n"] for row in rows}


def counts(result: Any) -> tuple[int, ...]:
    return result.inserted, result.updated, result.deleted, result.target_count_before, result.target_count_after


def times_of_changes(root: Path) -> dict[Path, int]:
    """Return the time of the last change of each file and directory, without the lock and the footer cache."""
    found = [path for path in root.rglob("*") if path.name != "lock" and "footers.db" not in path.name]
    return {path: path.stat().st_mtime_ns for path in found if path.name != ".orders.txn"}


class Unreadable:
    """A source that fails if a merge reads it."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise AssertionError("the merge reads its source")


# ------------------------------------------------------------------------------------------------------------- replays
def test_a_committed_token_changes_nothing_and_returns_the_recorded_result(tmp_path: Path, engine: Any) -> None:
    path = dataset(tmp_path)
    first = upsert(path, engine=engine)
    assert (counts(first), first.replayed) == ((1, 1, 0, 3, 4), False)
    files = {file: file.read_bytes() for file in path.rglob("*.parquet")}
    again = upsert(path, Unreadable(), engine=engine)
    assert again.replayed
    assert counts(again) == counts(first)
    assert (again.rewritten_files, again.inserted_files) == (first.rewritten_files, first.inserted_files)
    assert again.bytes_written == first.bytes_written
    assert {file: file.read_bytes() for file in path.rglob("*.parquet")} == files
    assert state(path) == {1: 10, 2: 21, 3: 30, 4: 40}


@on_three_engines
def test_the_token_decides_and_not_the_rows(tmp_path: Path, engine: Any) -> None:
    path = dataset(tmp_path)
    upsert(path, engine=engine)
    assert upsert(path, {"id": [3], "n": [0]}, engine=engine).replayed
    assert not upsert(path, {"id": [3], "n": [31]}, "orders/batch-43", engine=engine).replayed
    assert not upsert(path, {"id": [3], "n": [32]}, None, engine=engine).replayed
    assert state(path)[3] == 32
    assert upsert(path, {"id": [3], "n": [31]}, "orders/batch-43", engine=engine).replayed
    assert state(path)[3] == 32


def test_a_replay_has_the_paths_of_its_own_call_and_leaves_out_preserved_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dataset(tmp_path)
    inlay.write_dataset({"id": [100], "n": [1]}, path)
    first = upsert(path)
    assert len(first.preserved_files) == 1
    monkeypatch.chdir(tmp_path)
    again = upsert("orders")
    assert again.rewritten_files == [file.replace(str(path), "orders") for file in first.rewritten_files]
    assert sorted(file.operation for file in again.files) == ["inserted", "rewritten"]
    assert again.preserved_files == []
    assert again.to_dict()["replayed"] is True
    assert "already committed" in repr(again)
    assert "already committed" in again._repr_html_()


def test_removed_summaries_are_recorded(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    pq.write_metadata(pa.schema([("id", pa.int64())]), path / "_common_metadata")
    first = upsert(path)
    assert upsert(path).removed_summaries == first.removed_summaries == [f"{path}/_common_metadata"]


@on_three_engines
def test_a_merge_that_changes_nothing_uses_its_token_up(tmp_path: Path, engine: Any) -> None:
    path = dataset(tmp_path)
    names = sorted(path.rglob("*.parquet"))
    first = upsert(path, ROWS, engine=engine)
    assert (first.updated, first.unchanged, first.replayed) == (3, 3, False)
    assert sorted(path.rglob("*.parquet")) == names
    assert upsert(path, UPDATES, engine=engine).replayed
    assert state(path) == dict(zip(ROWS["id"], ROWS["n"], strict=True))


@on_three_engines
@pytest.mark.parametrize(
    ("rows", "error"),
    [({"id": [None, 2], "n": [1, 2]}, NullKeyError), ({"id": [2, 2], "n": [1, 2]}, DuplicateKeyError)],
)
def test_a_refused_merge_does_not_use_its_token_up(tmp_path: Path, engine: Any, rows: Any, error: Any) -> None:
    path = dataset(tmp_path)
    with pytest.raises(error):
        upsert(path, rows, engine=engine)
    assert not list(path.glob(".inlay*"))
    assert not upsert(path, engine=engine).replayed


@on_three_engines
@pytest.mark.parametrize("strategy", ["update", "delete", "upsert"])
def test_a_merge_that_creates_no_files_uses_its_token_up(tmp_path: Path, engine: Any, strategy: str) -> None:
    path = tmp_path / "orders"
    rows, options = deletions(strategy)
    for replayed in (False, True):
        plan = inlay.plan_merge(rows, path, strategy, "id", transaction=TOKEN, engine=engine, **options)
        result = inlay.merge(rows, path, strategy, "id", transaction=TOKEN, engine=engine, **options)
        assert (counts(result), result.replayed, plan.replayed) == ((0,) * 5, replayed, replayed)
    assert [name for name in path.rglob("*") if name.is_file()] == []
    assert not upsert(path, ROWS, "other", engine=engine).replayed
    assert inlay.merge(rows, path, strategy, "id", transaction=TOKEN, engine=engine, **options).replayed
    assert state(path) == {1: 10, 2: 20, 3: 30}


def deletions(strategy: str) -> tuple[Any, dict[str, Any]]:
    """Return a batch that changes nothing in a missing dataset."""
    if strategy == "upsert":
        return [{"id": 1, "op": "d"}], {"operation_column": "op"}
    return UPDATES, {}


def create_with_a_token(path: str) -> None:
    upsert(path, ROWS, "other")


def create_without_a_token(path: str) -> None:
    upsert(path, ROWS, None)


def create_with_pyarrow(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    pq.write_table(pa.table(ROWS), f"{path}/a.parquet")
    upsert(path, ROWS, "other")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("create", [create_with_a_token, create_without_a_token, create_with_pyarrow])
def test_early_tokens_are_those_of_the_first_dataset_only(
    tmp_path: Path, create: Callable[[str], None], inside: bool
) -> None:
    path = tmp_path / "orders"
    if inside:
        (path / ".inlay.txn").mkdir(parents=True)

    def delete(token: str) -> bool:
        return inlay.merge(UPDATES, path, "delete", "id", transaction=token).replayed

    assert [delete("b1"), delete("b2"), delete("b1")] == [False, False, True]
    create(str(path))
    assert [delete("b1"), delete("b2")] == [True, True]
    assert state(path) == {1: 10, 2: 20, 3: 30}
    for file in path.glob("*.parquet"):
        file.unlink()
    assert delete("b2") is False
    create(str(path))
    assert [delete("b1"), delete("b2")] == [False, True]
    shutil.rmtree(path)
    create(str(path))
    assert delete("b2") is False


@pytest.mark.parametrize("fails", ["add", "unlink"])
def test_an_interrupted_merge_that_creates_no_files_is_completed(
    tmp_path: Path, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders"
    leave_pending(path, fails, monkeypatch, lambda: inlay.merge(UPDATES, path, "delete", "id", transaction=TOKEN))
    create_with_pyarrow(str(path))
    assert inlay.merge(UPDATES, path, "delete", "id", transaction=TOKEN).replayed
    assert state(path) == {1: 10, 2: 20, 3: 30}


def test_undo_and_restore_keep_tokens(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    inlay.keep(path, versions=10)
    upsert(path)
    inlay.undo(path)
    assert state(path) == dict(zip(ROWS["id"], ROWS["n"], strict=True))
    assert upsert(path).replayed
    assert not upsert(path, token="orders/batch-42, again").replayed
    inlay.restore(path, 1)
    assert upsert(path).replayed


@on_three_engines
def test_an_initial_load_records_its_token(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "orders"
    assert not upsert(path, engine=engine).replayed
    assert upsert(path, engine=engine).replayed
    assert state(path) == {2: 21, 4: 40}


def test_a_full_merge_that_deletes_all_rows_keeps_its_token(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    empty = pa.schema([("id", pa.int64()), ("n", pa.int64())]).empty_table()
    deleted = [inlay.merge(empty, path, "full_merge", "id", transaction=TOKEN).deleted for _ in range(2)]
    assert deleted == [3, 3]
    assert upsert(path).replayed


@on_three_engines
def test_a_plan_says_that_the_transaction_is_committed_and_writes_nothing(tmp_path: Path, engine: Any) -> None:
    path = dataset(tmp_path)
    plan = inlay.plan_merge(UPDATES, path, "upsert", "id", transaction=TOKEN, engine=engine)
    assert (plan.replayed, plan.inserted, plan.updated) == (False, 1, 1)
    assert not upsert(path, engine=engine).replayed
    found = times_of_changes(tmp_path)
    with IncrementalFileManager() as manager:
        manager.open(locate(path))  # a plan takes no lock
        plan = inlay.plan_merge(Unreadable(), path, "upsert", "id", transaction=TOKEN, engine=engine)
    assert (plan.replayed, plan.inserted, plan.updated, plan.affected_files) == (True, 0, 0, [])
    assert (plan.target_count_before, plan.target_count_after) == (4, 4)
    assert {file.reason for file in plan.files} == {"the transaction is already committed"}
    assert "already committed" in repr(plan)
    assert "already committed" in plan._repr_html_()
    assert times_of_changes(tmp_path) == found


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "not text of 0 characters"),
        ("x" * 1001, "not text of 1,001 characters"),
        (42, "not 42"),
        (b"batch", "not b'batch'"),
        ("half \ud800", "half of a surrogate pair"),
    ],
)
def test_a_token_that_is_not_text_of_1_to_1000_characters_is_refused(tmp_path: Path, token: Any, message: str) -> None:
    path = tmp_path / "orders"
    for call in (inlay.merge, inlay.plan_merge):
        with pytest.raises(InvalidArgumentError, match=message):
            call(UPDATES, path, "upsert", "id", transaction=token)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("token", ["x" * 1000, "../../etc/passwd", "a\0b", "日本 🙂", " ", "CON", "a\nb"])
@pytest.mark.parametrize("inside", [False, True])
def test_any_other_text_is_a_token(tmp_path: Path, token: str, inside: bool) -> None:
    path = dataset(tmp_path, inside=inside)
    assert [upsert(path, token=token).replayed for _ in range(2)] == [False, True]
    assert not upsert(path, token=token + " ").replayed if len(token) < 1000 else True


def test_methods_pass_the_token_on(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    io = inlay.PyArrowDatasetIO()
    assert not io.merge(UPDATES, path, "upsert", "id", transaction=TOKEN).replayed
    assert io.plan_merge(UPDATES, path, "upsert", "id", transaction=TOKEN).replayed
    assert io.write_parquet_dataset(UPDATES, path, strategy="upsert", key_columns="id", transaction=TOKEN).replayed
    assert io.merge_parquet_dataset(UPDATES, path, "id", transaction=TOKEN)["inserted"] == 1
    with pytest.raises(InvalidArgumentError, match="transaction needs a strategy"):
        io.write_parquet_dataset(UPDATES, path, transaction=TOKEN)


# --------------------------------------------------------------------------------------------- interrupted transactions
@on_three_engines
@pytest.mark.parametrize("moves", [0, 1])
@pytest.mark.parametrize("inside", [False, True])
def test_a_retry_of_a_pending_merge_completes_it(tmp_path: Path, engine: Any, moves: int, inside: bool) -> None:
    path = dataset(tmp_path, inside=inside)
    with failing_moves(moves), pytest.raises(CommitPendingError, match="Retry with the same transaction"):
        upsert(path, engine=engine)
    assert inlay.plan_merge(Unreadable(), path, "upsert", "id", transaction=TOKEN, engine=engine).replayed
    again = upsert(path, {"id": [2], "n": [0]}, engine=engine)
    assert (again.replayed, counts(again)) == (True, (1, 1, 0, 3, 4))
    assert state(path) == {1: 10, 2: 21, 3: 30, 4: 40}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("fails", ["move", "add", "unlink"])
def test_a_commit_that_failed_after_the_commit_point_keeps_its_token(
    tmp_path: Path, fails: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dataset(tmp_path, inside=inside)
    leave_pending(path, fails, monkeypatch)
    assert inlay.recover(path).completed
    assert upsert(path, {"id": [9], "n": [90]}).replayed
    assert state(path) == {1: 10, 2: 21, 3: 30, 4: 40}


@pytest.mark.parametrize("inside", [False, True])
def test_a_fault_at_any_step_of_writing_a_token_leaves_the_step_to_the_next_call(tmp_path: Path, inside: bool) -> None:
    add = LocalTokens.add
    for number in itertools.count():
        path = dataset(tmp_path / str(number), inside=inside)
        steps = iter(range(number))

        def fail_in_add(self: LocalTokens, record: Record, steps: Iterator[int] = steps) -> None:
            with pytest.MonkeyPatch.context() as patch:
                for owner, name in ((os, "makedirs"), (os, "rename"), (os, "fsync")):
                    patch.setattr(owner, name, fail_after(steps, getattr(owner, name)))
                add(self, record)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LocalTokens, "add", fail_in_add)
            with contextlib.suppress(CommitPendingError):
                upsert(path)
                break
        assert upsert(path, {"id": [9], "n": [90]}).replayed
        assert state(path) == {1: 10, 2: 21, 3: 30, 4: 40}
    assert number >= 3, "a fault in every step"


def fail_after(steps: Iterator[int], function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function work for as many calls as there are steps."""

    def call(*arguments: Any, **options: Any) -> Any:
        if next(steps, None) is None:
            _fail()
        return function(*arguments, **options)

    return call


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("fails", ["move", "add", "unlink"])
def test_an_undone_commit_does_not_leave_its_token(
    tmp_path: Path, fails: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = dataset(tmp_path, inside=inside)
    leave_pending(path, fails, monkeypatch)
    assert inlay.recover(path, undo=True).undone
    assert state(path) == dict(zip(ROWS["id"], ROWS["n"], strict=True))
    assert not list(path.glob(".inlay.tokens.*"))
    assert not list(tmp_path.rglob("tokens.*"))
    assert not upsert(path, {"id": [9], "n": [90]}).replayed
    assert upsert(path).replayed
    assert state(path) == {1: 10, 2: 20, 3: 30, 9: 90}


def leave_pending(
    path: Path, fails: str, monkeypatch: pytest.MonkeyPatch, merge: Callable[[], Any] | None = None
) -> None:
    """Interrupt a merge when it moves its files, adds its token, or deletes its record."""
    unlink = os.unlink
    with monkeypatch.context() as patch:
        if fails == "move":
            patch.setattr(LocalStore, "move", _fail)
        elif fails == "add":
            patch.setattr(LocalTokens, "add", _fail)
        else:
            patch.setattr(os, "unlink", lambda name: _fail() if str(name).endswith("commit.json") else unlink(name))
        with pytest.raises(CommitPendingError):
            upsert(path) if merge is None else merge()


def _fail(*_: object) -> None:
    raise OSError("the disk failed")


def test_undo_of_a_later_commit_keeps_earlier_tokens(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    upsert(path, token="first")
    with failing_moves(0), pytest.raises(CommitPendingError):
        upsert(path, {"id": [2], "n": [22]}, token="second")
    inlay.recover(path, undo=True)
    assert upsert(path, token="first").replayed
    assert not upsert(path, {"id": [2], "n": [22]}, token="second").replayed
    assert state(path)[2] == 22


def test_a_damaged_entry_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    upsert(path)
    [entry] = (tmp_path / ".orders.txn").glob("tokens.*/*")
    entry.write_bytes(entry.read_bytes()[:-9])
    before = state(path)
    for call in (inlay.merge, inlay.plan_merge):
        with pytest.raises(CorruptJournalError, match="record of a transaction") as raised:
            call(UPDATES, path, "upsert", "id", transaction=TOKEN)
        assert raised.value.files == [str(entry)]
    assert state(path) == before
    entry.unlink()
    assert not upsert(path).replayed


def test_a_damaged_entry_inside_the_dataset_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = dataset(tmp_path, inside=True)
    upsert(path)
    [entry] = (path / ".inlay.txn").glob("tokens.*/*")
    min(entry.iterdir()).rmdir()
    with pytest.raises(CorruptJournalError, match="record of a transaction"):
        upsert(path)


def test_an_entry_of_another_token_is_an_error(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    upsert(path)
    upsert(path, token="other")
    first, second = (tmp_path / ".orders.txn").glob("tokens.*/*")
    shutil.copy(first, second)
    token = TOKEN if second.name == tokens.entry_name(TOKEN) else "other"
    with pytest.raises(CorruptJournalError, match="belongs to another transaction"):
        upsert(path, token=token)


# ------------------------------------------------------------------------------- deleted, copied and moved datasets
def remake_with_inlay(path: Path) -> None:
    shutil.rmtree(path)
    inlay.write_dataset(ROWS, path)


def remake_with_pyarrow(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    pq.write_table(pa.table(ROWS), path / "a.parquet")


def remake_from_no_files(path: Path) -> None:
    for file in path.glob("*.parquet"):
        file.unlink()
    inlay.write_dataset(ROWS, path)


def remake_through_a_merge(path: Path) -> None:
    shutil.rmtree(path)
    inlay.merge(ROWS, path, "upsert", "id", transaction="other")


@pytest.mark.parametrize(
    "remake", [remake_with_inlay, remake_with_pyarrow, remake_from_no_files, remake_through_a_merge]
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_dataset_that_was_made_anew_knows_no_token(tmp_path: Path, remake: Any, inside: bool) -> None:
    path = dataset(tmp_path, inside=inside)
    upsert(path)
    remake(path)
    assert not inlay.plan_merge(UPDATES, path, "upsert", "id", transaction=TOKEN).replayed
    assert not upsert(path).replayed
    assert state(path) == {1: 10, 2: 21, 3: 30, 4: 40}
    assert upsert(path).replayed
    ledgers = [*tmp_path.glob(".orders.txn/tokens.*"), *path.glob(".inlay.txn/tokens.*")]
    assert len(ledgers) == 1, "the ledger of the deleted dataset is deleted"


def test_a_dataset_without_data_files_knows_no_token(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    upsert(path)
    for file in path.glob("*.parquet"):
        file.unlink()
    assert not inlay.plan_merge(UPDATES, path, "upsert", "id", transaction=TOKEN).replayed
    assert not upsert(path).replayed


@pytest.mark.parametrize("inside", [False, True])
def test_copies_and_moved_datasets_keep_their_tokens(tmp_path: Path, inside: bool) -> None:
    path = dataset(tmp_path / "a", inside=inside)
    upsert(path)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "c")
    for name in ("b", "c"):
        assert upsert(tmp_path / name / "orders").replayed


def test_a_copy_without_its_sidecar_knows_no_token(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    upsert(path)
    shutil.copytree(path, tmp_path / "copy")
    assert not upsert(tmp_path / "copy").replayed
    assert upsert(tmp_path / "copy").replayed


def test_a_copy_over_a_deleted_dataset_does_not_revive_tokens(tmp_path: Path) -> None:
    """The sidecar of the deleted dataset must not vouch for another dataset that has a witness of its own."""
    path, other = dataset(tmp_path), dataset(tmp_path / "other")
    upsert(path)
    upsert(other, {"id": [7], "n": [70]}, token="other")
    shutil.rmtree(path)
    shutil.copytree(other, path)
    assert not upsert(path).replayed


def test_overwriting_and_compacting_keep_tokens(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    upsert(path)
    inlay.compact(path)
    assert upsert(path).replayed
    inlay.write_dataset(ROWS, path, mode="overwrite")
    assert upsert(path).replayed


def test_a_mount_that_hides_the_tokens_is_refused(tmp_path: Path) -> None:
    """A container sees the dataset, but not the sidecar next to it: its writer must not guess."""
    path = dataset(tmp_path)
    upsert(path)
    shutil.copytree(path, tmp_path / "container/orders")
    (tmp_path / "container/orders/.inlay.txn").mkdir()
    for call in (inlay.merge, inlay.plan_merge):
        with pytest.raises(DatasetIOError, match="which this path does not show"):
            call(UPDATES, tmp_path / "container/orders", "upsert", "id", transaction="new")
    upsert(tmp_path / "container/orders", token=None)


def test_tokens_next_to_the_dataset_count_when_the_sidecar_inside_is_used(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    upsert(path)
    (path / ".inlay.txn").mkdir()
    assert upsert(path).replayed
    assert not upsert(path, token="inside").replayed
    assert upsert(path, token="inside").replayed


@pytest.mark.parametrize("inside", [False, True])
def test_other_readers_do_not_see_tokens(tmp_path: Path, inside: bool) -> None:
    path = tmp_path / "orders"
    if inside:
        (path / ".inlay.txn").mkdir(parents=True)
    rows = {"id": [1, 2], "day": ["mon", "tue"]}
    for number in range(3):
        inlay.merge(rows, path, "upsert", "id", "day", transaction=f"batch-{number}")
    assert ds.dataset(path, partitioning="hive").count_rows() == 2
    assert pl.read_parquet(path).height == 2
    for pattern in ("**/*.parquet", "*/*.parquet"):
        assert duckdb.sql(f"SELECT count(*) FROM '{path}/{pattern}'").fetchall() == [(2,)]
    if not inside:
        assert duckdb.sql(f"SELECT count(*) FROM read_parquet('{path}/**')").fetchall() == [(2,)]
    assert not [file for file in path.rglob("*") if file.is_file() and file.stat().st_size and "day=" not in str(file)]
    assert not [file for file in tmp_path.rglob("*.parquet") if "day=" not in str(file)]


@pytest.mark.parametrize("inside", [False, True])
def test_recover_has_nothing_to_do_and_keeps_tokens(tmp_path: Path, inside: bool) -> None:
    path = dataset(tmp_path, inside=inside)
    upsert(path)
    assert not inlay.recover(path)
    assert not inlay.recover(path, undo=True)
    assert len(inlay.list_dataset_files(path)) == 2
    assert upsert(path).replayed


# ------------------------------------------------------------------------------------------------------- trimming
def test_expired_entries_keeps_1000_tokens_and_30_days() -> None:
    now, day = time.time_ns(), 24 * 3600 * 10**9
    old = [(f"old-{number}", now - 31 * day - number) for number in range(1500)]
    recent = [(f"recent-{number}", now - 29 * day) for number in range(700)]
    assert set(tokens.expired_entries(old + recent)) == {f"old-{number}" for number in range(300, 1500)}
    assert tokens.expired_entries(old[:1000]) == []
    assert tokens.expired_entries([(path, now) for path, _ in old]) == []


def test_trimming_is_due_for_one_of_64_tokens() -> None:
    due = sum(tokens.is_trim_due(tokens.entry_name(f"batch-{number}")) for number in range(6400))
    assert 50 < due < 150


@pytest.mark.parametrize("inside", [False, True])
def test_a_commit_deletes_expired_tokens(tmp_path: Path, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = dataset(tmp_path, inside=inside)
    for number in range(4):
        upsert(path, {"id": [number], "n": [number]}, token=f"batch-{number}")
    sidecar = path / ".inlay.txn" if inside else tmp_path / ".orders.txn"
    for number in range(4):
        [entry] = sidecar.glob(f"tokens.*/{tokens.entry_name(f'batch-{number}')}")
        os.utime(entry, (number, number))
    monkeypatch.setattr(tokens, "KEPT_TOKENS", 3)
    monkeypatch.setattr(tokens, "is_trim_due", lambda _: True)
    upsert(path, token="last")
    plans = [inlay.plan_merge(ROWS, path, "upsert", "id", transaction=f"batch-{number}") for number in range(4)]
    assert [plan.replayed for plan in plans] == [False, False, True, True]


def test_a_lookup_reads_one_entry(tmp_path: Path) -> None:
    """The cost of a lookup does not depend on the number of tokens."""
    path = dataset(tmp_path)
    upsert(path)
    [ledger] = (tmp_path / ".orders.txn").glob("tokens.*")
    for number in range(2000):
        (ledger / f"{number:064x}").write_bytes(b"never read")
    listed: list[str] = []
    listdir, scandir = os.listdir, os.scandir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda name: listed.append(str(name)) or listdir(name))
        patch.setattr(os, "scandir", lambda name: listed.append(str(name)) or scandir(name))
        assert upsert(path).replayed
    assert not [name for name in listed if "tokens." in name]


# ---------------------------------------------------------------------------------------------------- concurrency
def test_threads_with_one_token_apply_it_once(tmp_path: Path) -> None:
    path = dataset(tmp_path)
    barrier = threading.Barrier(8)

    def run(number: int) -> inlay.MergeResult:
        barrier.wait()
        return upsert(path, {"id": [4], "n": [number]})

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(8)))
    [applied] = [number for number, result in enumerate(results) if not result.replayed]
    assert state(path)[4] == applied
    assert {counts(result) for result in results} == {(1, 0, 0, 3, 4)}


WRITER = """
import sys, inlay
for batch in range(10):
    rows = {"id": [batch], "n": [int(sys.argv[2])]}
    print(int(inlay.merge(rows, sys.argv[1], "upsert", "id", transaction=f"batch-{batch}").replayed), flush=True)
"""


def test_processes_with_the_same_tokens_apply_each_once(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    replayed = [writer.communicate(timeout=60)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    applied = [[number for number in range(3) if replayed[number][batch] == "0"] for batch in range(10)]
    assert state(path) == {batch: writer for batch, [writer] in enumerate(applied)}


# --------------------------------------------------------------------------------------------------- object stores
@on_three_engines
def test_an_object_store_remembers_tokens(memory: MemoryFileSystem, engine: Any) -> None:
    path = "memory://lake/orders"
    inlay.write_dataset(ROWS, path)
    first = upsert(path, engine=engine)
    again = upsert(path, Unreadable(), engine=engine)
    assert (first.replayed, again.replayed, counts(again)) == (False, True, counts(first))
    assert again.rewritten_files == first.rewritten_files
    assert inlay.plan_merge(Unreadable(), path, "upsert", "id", transaction=TOKEN, engine=engine).replayed
    assert upsert(path, ROWS, "unchanged", engine=engine).replayed is False
    assert upsert(path, ROWS, "unchanged", engine=engine).replayed
    assert state(path)[2] == 20


def test_tokens_outlive_the_log_of_an_object_store(memory: MemoryFileSystem) -> None:
    path = "memory://lake/orders"
    for number in range(15):
        upsert(path, {"id": [number], "n": [number]}, token=f"batch-{number}")
        upsert(path, {"id": [number], "n": [number]}, token=None)
    assert all(upsert(path, token=f"batch-{number}").replayed for number in range(15))


def test_an_object_store_dataset_that_was_made_anew_knows_no_token(memory: MemoryFileSystem) -> None:
    path = "memory://lake/orders"
    upsert(path, token="first")
    for token in (None, "second"):
        memory.rm("/lake/orders", recursive=True)
        assert not inlay.plan_merge(UPDATES, path, "upsert", "id", transaction="first").replayed
        assert not upsert(path, ROWS, token).replayed
        assert not upsert(path, token="first").replayed
        assert state(path) == {1: 10, 2: 21, 3: 30, 4: 40}
    ledgers = {name.split("/")[3] for name in memory.find("/lake/.orders.tokens")}
    assert len(ledgers) == 1, "the ledgers of deleted datasets are deleted"


@pytest.mark.parametrize("token", [None, "other"])
def test_early_tokens_of_an_object_store_are_those_of_the_first_dataset_only(
    memory: MemoryFileSystem, token: str | None
) -> None:
    path = "memory://lake/orders"

    def delete(token: str) -> bool:
        plan = inlay.plan_merge(UPDATES, path, "delete", "id", transaction=token)
        result = inlay.merge(UPDATES, path, "delete", "id", transaction=token)
        assert plan.replayed == result.replayed
        return result.replayed

    assert [delete("b1"), delete("b2"), delete("b1")] == [False, False, True]
    upsert(path, ROWS, token)
    assert [delete("b1"), delete("b2")] == [True, True]
    assert state(path) == {1: 10, 2: 20, 3: 30}
    memory.rm("/lake/orders", recursive=True)
    assert delete("b2") is False
    upsert(path, ROWS, token)
    assert [delete("b1"), delete("b2")] == [False, True]


def test_an_object_store_deletes_expired_tokens(memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "memory://lake/orders"
    monkeypatch.setattr(tokens, "KEPT_TOKENS", 3)
    monkeypatch.setattr(tokens, "KEPT_SECONDS", 0)
    for number in range(5):
        upsert(path, {"id": [number], "n": [number]}, token=f"batch-{number}")
    monkeypatch.setattr("inlay.commit.object_store.is_trim_due", lambda _: True)
    upsert(path, token="last")
    assert len(memory.find("/lake/.orders.tokens")) == 3
    assert upsert(path, token="last").replayed
    assert not upsert(path, token="batch-0").replayed


def test_threads_with_one_token_apply_it_once_on_an_object_store(memory: MemoryFileSystem) -> None:
    path = "memory://lake/orders"
    inlay.write_dataset(ROWS, path)
    barrier = threading.Barrier(4)

    def run(number: int) -> inlay.MergeResult:
        barrier.wait()
        return upsert(path, {"id": [4], "n": [number]})

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(4)))
    [applied] = [number for number, result in enumerate(results) if not result.replayed]
    assert state(path)[4] == applied
    assert {counts(result) for result in results} == {(1, 0, 0, 3, 4)}


def test_a_record_with_an_unsafe_ledger_is_refused() -> None:
    with pytest.raises(CorruptJournalError, match="unsafe path"):
        Record.load(Record("1", token="a", ledger="../x", outcome={}).dump(), "commit.json")
