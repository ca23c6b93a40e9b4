"""Commits to real directories: several mounts, deleted datasets, missing permissions, long names, access rights."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.commit.local import LocalJournal
from inlay.errors import CommitPendingError, CorruptJournalError, DatasetIOError, InlayError, InvalidArgumentError
from inlay.storage import locate
from tests.edges.readers import Row, assert_rows
from tests.faults.scenarios import failing_moves

ROWS = {"id": [1, 2, 3], "n": [10, 20, 30]}
DAYS = {"id": [1, 2, 3], "day": ["mon", "tue", "wed"]}
# The journal, the lock and the sidecar do not depend on the engine: short runs try these commits on one engine.
on_one_engine = pytest.mark.long_on("duckdb", "duckdb-union", "spark")


def write(path: Path, engine: Any = "pyarrow", **rows: list[Any]) -> Path:
    inlay.write_dataset(rows or ROWS, path, engine=engine)
    return path


def rows_of(*ids: int) -> list[Row]:
    return [{"id": number, "n": 10 * number} for number in ids]


def records(columns: dict[str, list[Any]]) -> list[Row]:
    return pa.table(columns).to_pylist()


def assert_dataset(path: Path, expected: list[Row], engine: Any = None) -> None:
    """Assert the rows that inlay reads, which completes a pending commit, and then those of every other reader."""
    assert sorted(inlay.read_parquet(path).to_pylist(), key=repr) == sorted(expected, key=repr)
    assert_rows(path, expected, engine)


def listing(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


UPDATED: Row = {"id": 2, "n": 21}
UPSERTED = [*rows_of(1, 3, 4), UPDATED]


def interrupt(path: Path, engine: Any = "pyarrow", moves: int = 0) -> None:
    """Leave a pending upsert that has moved this many files."""
    with failing_moves(moves), pytest.raises(CommitPendingError):
        inlay.merge({"id": [2, 4], "n": [21, 40]}, path, "upsert", "id", engine=engine)


# ------------------------------------------------------------------------------------------------- mounts and links
COUNT = """
import sys, inlay
path, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for number in range(first, last):
    inlay.merge({"id": [number], "n": [10 * number]}, path, "upsert", "id", lock_timeout=60)
    print(number, flush=True)
"""


def in_mount(script: str, directory: Path, at: Path, *arguments: object) -> subprocess.Popen[str]:
    """Run a Python script in which `at` is a bind mount of `directory` that hides its parent."""
    at.mkdir(parents=True, exist_ok=True)
    run = " ".join(map(str, [sys.executable, '-c "$SCRIPT"', at, *arguments]))
    mount = f"mount --bind {directory} {at} && exec {run}"
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]
    environment = os.environ | {"SCRIPT": textwrap.dedent(script)}
    return subprocess.Popen(
        [*namespace, "sh", "-c", mount], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output


@on_one_engine
def test_writers_through_two_mounts_lose_no_update(tmp_path: Path, engine: Any) -> None:
    path = write(tmp_path / "host/sales")
    inside = in_mount(COUNT, path, tmp_path / "container/data", 100, 130)
    assert inside.stdout is not None
    assert inside.stdout.readline() == "100\n", "the process in the mount has begun to write"
    for number in range(4, 34):
        inlay.merge(rows_of(number), path, "upsert", "id", engine=engine, lock_timeout=60)
    finish(inside)
    assert_dataset(path, rows_of(*range(1, 34), *range(100, 130)), engine)


def test_symbolic_links_and_relative_paths_lead_to_one_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "data/sales")
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(tmp_path / "data")
    for each in (tmp_path / "link", Path("sales"), Path("../data/sales")):
        assert LocalJournal(locate(each)).sidecar == str(tmp_path / "data/.sales.txn")


@on_one_engine
def test_a_mount_that_hides_a_pending_commit_refuses_to_read_and_write(tmp_path: Path, engine: Any) -> None:
    path = write(tmp_path / "host/sales", engine)
    interrupt(path, engine)
    script = """
    import sys, inlay
    for call in (lambda p: inlay.read_parquet(p), lambda p: inlay.merge({"id": [9], "n": [9]}, p, "upsert", "id")):
        try:
            call(sys.argv[1])
        except inlay.InlayError as error:
            print(error.message)
    """
    first, second = finish(in_mount(script, path, tmp_path / "container/data")).splitlines()
    assert first == second
    assert "is pending in the directory next to the dataset, which this mount hides" in first
    assert_dataset(path, UPSERTED, engine)  # the writer's own path completes the commit
    finish(in_mount(COUNT, path, tmp_path / "container/data", 5, 6))
    assert_dataset(path, [*UPSERTED, *rows_of(5)], engine)


def test_a_commit_next_to_the_dataset_is_completed_before_the_sidecar_inside_is_used(
    tmp_path: Path, engine: Any
) -> None:
    path = write(tmp_path / "sales", engine)
    interrupt(path, engine)
    (path / ".inlay.txn").mkdir()
    inlay.merge({"id": [5], "n": [50]}, path, "upsert", "id", engine=engine)
    assert_dataset(path, [*UPSERTED, *rows_of(5)], engine)
    assert not (tmp_path / ".sales.txn/commit.json").exists()
    assert not (path / ".inlay.pending").exists()


@on_one_engine
def test_a_marker_without_a_commit_is_removed_by_the_next_writer(tmp_path: Path, engine: Any) -> None:
    path = write(tmp_path / "sales", engine)
    (path / ".inlay.pending").mkdir()
    assert_dataset(path, rows_of(1, 2, 3), engine)
    inlay.merge({"id": [4], "n": [40]}, path, "upsert", "id", engine=engine)
    assert not (path / ".inlay.pending").exists()
    assert_dataset(path, rows_of(1, 2, 3, 4), engine)


@on_one_engine
def test_a_filesystem_that_cannot_lock_directories_locks_a_file(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import fcntl

    real = fcntl.flock

    def flock(descriptor: int, mode: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(descriptor, mode)

    monkeypatch.setattr(fcntl, "flock", flock)
    path = write(tmp_path / "sales", engine)
    with inlay.incremental.IncrementalFileManager() as manager:
        manager.create_staging_directory(path)
        with pytest.raises(inlay.InlayError, match="is locked by process"):
            inlay.merge({"id": [4], "n": [40]}, path, "upsert", "id", engine=engine, lock_timeout=0)
    inlay.merge({"id": [4], "n": [40]}, path, "upsert", "id", engine=engine, lock_timeout=0)
    assert_dataset(path, rows_of(1, 2, 3, 4), engine)


# ------------------------------------------------------------------------------------------------- deleted datasets
@on_one_engine
@pytest.mark.parametrize("moves", [0, 1])
def test_a_pending_commit_does_not_resurrect_a_deleted_dataset(tmp_path: Path, engine: Any, moves: int) -> None:
    path = write(tmp_path / "sales", engine)
    interrupt(path, engine, moves)
    shutil.rmtree(path)
    with pytest.raises(InlayError, match="no Parquet file"):
        inlay.read_parquet(path)
    assert not path.exists()
    write(path, engine, id=[7], n=[70])
    assert_dataset(path, rows_of(7), engine)


def test_a_pending_commit_does_not_touch_a_dataset_that_was_created_again(tmp_path: Path, engine: Any) -> None:
    path = write(tmp_path / "sales", engine)
    interrupt(path, engine)
    shutil.rmtree(path)
    path.mkdir()
    pq.write_table(pa.table({"id": [7], "n": [70]}), path / "part-0.parquet")
    assert_dataset(path, rows_of(7), engine)
    inlay.merge({"id": [8], "n": [80]}, path, "upsert", "id", engine=engine)
    assert_dataset(path, rows_of(7, 8), engine)
    assert [entry.name for entry in (tmp_path / ".sales.txn").iterdir() if entry.name.startswith(".staging_")] == []


@on_one_engine
def test_a_copy_that_lost_the_marker_of_a_partial_commit_is_an_error(tmp_path: Path, engine: Any) -> None:
    path = write(tmp_path / "sales", engine)
    interrupt(path, engine, moves=1)
    (path / ".inlay.pending").rmdir()
    found = listing(path)
    with pytest.raises(CorruptJournalError, match="belongs to another directory"):
        inlay.read_parquet(path)
    assert listing(path) == found
    assert inlay.recover(path, undo=True).undone
    assert_dataset(path, rows_of(1, 2, 3), engine)


# ---------------------------------------------------------------------------------------------- before commit point
def test_a_partition_name_that_is_too_long_changes_nothing(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "places"
    stored = {"id": [1], "country": ["de"], "city": ["Ulm"]}
    inlay.write_dataset(stored, path, partition_columns=["country", "city"], engine=engine)
    before = sorted(path.rglob("*"))
    rows = {"id": [2, 3], "country": ["de", "fr"], "city": ["Bonn", "x" * 295]}
    calls: list[Callable[[], object]] = [
        lambda: inlay.write_dataset(rows, path, engine=engine),
        lambda: inlay.merge(rows, path, "upsert", ["id"], engine=engine),
    ]
    for call in calls:
        with pytest.raises(InlayError, match="File name too long"):
            call()
    assert sorted(path.rglob("*")) == before
    assert_dataset(path, records(stored), engine)


@pytest.mark.skipif(os.geteuid() != 0, reason="the test changes its user")
def test_a_partition_without_write_permission_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "days"
    stored = {"id": [1, 2], "day": ["mon", "tue"]}
    inlay.write_dataset(stored, path, partition_columns="day")
    before = listing(path)
    for each in [tmp_path, *tmp_path.rglob("*")]:
        os.chown(each, 65534, 65534)
    os.chown(path / "day=tue", 0, 0)
    (path / "day=tue").chmod(0o755)
    script = """
    import os, sys, inlay, fsspec.implementations.local
    inlay.merge({"id": [1]}, sys.argv[1] + ".other", "upsert", "id")  # Imports modules that only root can read.
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        inlay.merge({"id": [3, 4], "day": ["mon", "tue"]}, sys.argv[1], "upsert", ["id"])
    except inlay.InlayError as error:
        print(error.message)
    """
    for parent in tmp_path.parents:  # pytest's directories belong to root
        if parent.stat().st_uid == os.geteuid() and len(parent.parts) > 2:
            parent.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)],
        env=os.environ | {"HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "You do not have permission to write to" in done.stdout
    assert "day=tue" in done.stdout
    assert listing(path) == before
    assert_dataset(path, records(stored))


# ------------------------------------------------------------------------------------------------------------- undo
@on_one_engine
@pytest.mark.parametrize("moves", [0, 1, 2])
def test_undo_restores_the_files_before_the_commit(tmp_path: Path, engine: Any, moves: int) -> None:
    path = tmp_path / "days"
    inlay.write_dataset(DAYS, path, partition_columns="day", engine=engine)
    before = listing(path)
    rows = {"id": [1, 2, 4], "day": ["mon", "tue", "thu"], "new": [1, 2, 4]}
    with failing_moves(moves), pytest.raises(CommitPendingError):
        inlay.merge(rows, path, "full_merge", "id", schema_mode="evolve", engine=engine)
    report = inlay.recover(path, undo=True)
    assert report.undone
    assert report.completed is None
    assert listing(path) == before
    assert not list((tmp_path / ".days.txn").glob(".staging_*"))
    assert not inlay.recover(path, undo=True), "there is nothing left to undo"
    assert_dataset(path, records(DAYS), engine)
    inlay.merge(rows, path, "full_merge", "id", schema_mode="evolve", engine=engine)
    assert_dataset(path, records(rows), engine)


def test_a_crash_during_undo_is_completed_by_the_next_reader(tmp_path: Path, engine: Any) -> None:
    path = write(tmp_path / "sales", engine)
    interrupt(path, engine, moves=1)
    with failing_moves(0), pytest.raises(CommitPendingError):
        inlay.recover(path, undo=True)
    assert_dataset(path, rows_of(1, 2, 3), engine)


@on_one_engine
def test_undo_without_hard_links_is_an_error_that_changes_nothing(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refused)
    path = write(tmp_path / "sales", engine)
    interrupt(path, engine, moves=1)
    found = listing(path)
    with pytest.raises(CorruptJournalError, match=r"earlier content of .* is lost"):
        inlay.recover(path, undo=True)
    assert listing(path) == found
    assert_dataset(path, UPSERTED, engine)


def test_undo_on_an_object_store_is_rejected(memory: Any) -> None:
    inlay.write_dataset(ROWS, "memory://lake/sales")
    with pytest.raises(InvalidArgumentError, match="cannot be undone"):
        inlay.recover("memory://lake/sales", undo=True)


# ---------------------------------------------------------------------------------------------------- access rights
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_rewritten_files_keep_owner_group_mode_and_attributes(tmp_path: Path, engine: Any) -> None:
    path = write(tmp_path / "sales", engine)
    [file] = path.glob("*.parquet")
    os.chown(file, 1234, 4321)
    file.chmod(0o640)
    os.setxattr(file, "user.origin", b"vendor")
    inlay.merge({"id": [2], "n": [21]}, path, "update", "id", engine=engine)
    status = file.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 4321, 0o640)
    assert os.getxattr(file, "user.origin") == b"vendor"
    assert_dataset(path, [*rows_of(1, 3), UPDATED], engine)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change groups")
def test_the_group_of_the_dataset_can_use_the_sidecar(tmp_path: Path, engine: Any) -> None:
    path = tmp_path / "sales"
    path.mkdir()
    os.chown(path, 0, 4321)
    path.chmod(0o2775)
    usual = os.umask(0o022)
    try:
        inlay.write_dataset({"id": [1], "day": ["mon"]}, path, partition_columns="day", engine=engine)
    finally:
        os.umask(usual)
    for directory in (tmp_path / ".sales.txn", path / "day=mon"):
        status = directory.stat()
        assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (4321, 0o2775), directory
    [file] = path.rglob("*.parquet")
    assert file.stat().st_gid == 4321
    assert_dataset(path, [{"id": 1, "day": "mon"}], engine)


@on_one_engine
def test_a_no_op_leaves_nothing_behind(tmp_path: Path, engine: Any) -> None:
    inlay.merge(ROWS, tmp_path / "new/sales", "update", "id", engine=engine)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["upsert", "insert", "update", "no rows", "append", "compact", "rejected"])
def test_a_call_that_changes_nothing_leaves_nothing_beside_a_foreign_directory(tmp_path: Path, change: str) -> None:
    path, rows = tmp_path / "sales", pa.table(ROWS)
    path.mkdir()
    pq.write_table(rows, path / "a.parquet")
    before = sorted(tmp_path.rglob("*"))
    if change == "append":
        inlay.write_dataset(rows.slice(0, 0), path, mode="append")
    elif change == "compact":
        inlay.compact(path)
    elif change == "rejected":
        with pytest.raises(InlayError):
            inlay.merge(pa.concat_tables([rows, rows]), path, "upsert", "id")
    else:
        source, strategy = (rows.slice(0, 0), "upsert") if change == "no rows" else (rows, change)
        assert inlay.merge(source, path, strategy, "id").rewritten_files == []
    assert sorted(tmp_path.rglob("*")) == before


@on_one_engine
def test_a_rejected_initial_load_leaves_nothing_behind(tmp_path: Path, engine: Any) -> None:
    with pytest.raises(InlayError):
        inlay.merge({"id": [1, 1]}, tmp_path / "new/sales", "upsert", "id", engine=engine)
    assert list(tmp_path.iterdir()) == []


def test_unwritable_directories_are_named_by_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "sales")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(DatasetIOError, match="You do not have permission to write to"):
        inlay.merge({"id": [2], "n": [21]}, path, "update", "id")
