"""Commits on a local disk: locking, rejections, errors, durability and recovery."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import threading
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from inlay.commit import local, snapshot
from inlay.commit.files import read_content
from inlay.commit.local import LocalJournal
from inlay.commit.sidecar import Put, Record, RecoveryReport, claim, commit_pending_error, recovery_error, unlock
from inlay.commit.snapshot import list_dataset_files, read_consistently
from inlay.commit.transaction import IncrementalFileManager, footer_cache, recover
from inlay.errors import (
    CommitPendingError,
    CommitStateUnknownError,
    ConcurrentModificationError,
    CorruptJournalError,
    DatasetIOError,
    InvalidArgumentError,
    LockTimeoutError,
)
from inlay.storage import FileStat, LocalStore, Location, locate
from tests.faults.scenarios import (
    BEFORE,
    PUTS,
    apply_files,
    build_files,
    dataset,
    directories,
    is_pending,
    leave_pending,
    leftovers,
    read_files,
    sidecar,
    stage,
)

AFTER_NAMES = sorted(PUTS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    build_files(root)
    return root


def names(root: Path) -> list[str]:
    return sorted(read_files(root))


def is_before(root: Path) -> bool:
    return {name: content for name, (content, _) in read_files(root).items()} == BEFORE


def is_after(root: Path) -> bool:
    return {name: content for name, (content, _) in read_files(root).items()} == PUTS


def opened(root: Path, **options: Any) -> IncrementalFileManager:
    manager = IncrementalFileManager(**options)
    manager.open(locate(dataset(root)))
    return manager


def record_external(manager: IncrementalFileManager) -> None:
    history = LocalJournal(manager.location).history
    assert history is not None
    history.record_external(manager.snapshot(), lambda: None)


def record_found_files(root: Path) -> None:
    """Record version 0, as the first commit does."""
    with opened(root) as manager:
        record_external(manager)


@pytest.fixture
def pending(root: Path) -> Path:
    """A dataset whose commit crashed after moving its first file."""
    leave_pending(root)
    assert is_pending(root)
    assert not is_before(root)
    assert not is_after(root)
    return root


# --------------------------------------------------------------------------------------------------------- locking
def test_lock_timeout_names_the_process_that_holds_the_lock(root: Path) -> None:
    with opened(root), pytest.raises(LockTimeoutError) as caught:
        opened(root, lock_timeout=0.05)
    message = str(caught.value)
    assert f"locked by process {os.getpid()} on {socket.gethostname()}" in message
    assert "waited 0.05 s" in message
    assert "ds" in message
    assert is_before(root)


def test_second_writer_waits_and_sees_the_commit_of_the_first(root: Path) -> None:
    first = opened(root)
    first.commit(list(stage(first, {"first.parquet": b"1"})))
    threading.Timer(0.3, first.cleanup_staging_files).start()
    started = time.monotonic()
    with opened(root, lock_timeout=30) as second:
        assert time.monotonic() - started > 0.2
        assert "first.parquet" in [file.path for file in second.snapshot()]


def test_lock_of_a_deleted_sidecar_does_not_count(root: Path) -> None:
    first = opened(root)
    waiting = IncrementalFileManager(lock_timeout=30)
    thread = threading.Thread(target=waiting.open, args=(locate(dataset(root)),))
    thread.start()
    time.sleep(0.1)
    shutil.rmtree(sidecar(root))
    first.cleanup_staging_files()
    thread.join(30)
    with pytest.raises(LockTimeoutError):
        opened(root, lock_timeout=0.05)
    waiting.cleanup_staging_files()


def test_failed_lock_attempts_leak_no_file_descriptors(root: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with opened(root), pytest.raises(LockTimeoutError):
        opened(root, lock_timeout=0.01)
    test_lock_of_a_deleted_sidecar_does_not_count(root)
    assert set(os.listdir("/proc/self/fd")) == before


def test_failed_recovery_releases_the_lock(pending: Path) -> None:
    (sidecar(pending) / "commit.json").write_bytes(b"{")
    with pytest.raises(CorruptJournalError):
        IncrementalFileManager().create_staging_directory(str(dataset(pending)))
    journal = LocalJournal(locate(dataset(pending)))
    journal.acquire(0)
    journal.release()


def test_locking_works_if_the_note_about_the_holder_cannot_be_written(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "ftruncate", refused)
    opened(root).cleanup_staging_files()
    opened(root, lock_timeout=0).cleanup_staging_files()


def test_note_about_the_holder_replaces_a_longer_one(root: Path) -> None:
    sidecar(root).mkdir()
    lock = sidecar(root) / "lock"
    lock.write_bytes(b"x" * 500)
    with opened(root):
        note = json.loads(lock.read_bytes())
    assert (note["pid"], note["host"]) == (os.getpid(), socket.gethostname())
    assert datetime.now(UTC) - datetime.fromisoformat(note["since"]) < timedelta(minutes=5)
    assert "." not in note["since"], "seconds are precise enough"


def test_sidecar_has_the_permissions_of_the_dataset(root: Path) -> None:
    dataset(root).chmod(0o770)
    usual = os.umask(0)
    try:
        with opened(root) as manager:
            (path, _), *_ = stage(manager, {"x.parquet": b"x"})
            made = {file.name: stat.S_IMODE(file.stat().st_mode) for file in [sidecar(root), *sidecar(root).iterdir()]}
    finally:
        os.umask(usual)
    assert made == {sidecar(root).name: 0o770, "lock": 0o666, Path(path).parent.name: 0o770}


def test_released_lock_has_no_note_about_its_holder(root: Path) -> None:
    sidecar(root).mkdir()
    opened(root).cleanup_staging_files()
    assert (sidecar(root) / "lock").read_bytes() == b""


# ----------------------------------------------------------------------------------------------------- rejections
@pytest.mark.parametrize("foreign", ["changed", "added", "removed", "replaced by equal bytes"])
def test_commit_fails_if_another_program_changed_the_dataset(root: Path, foreign: str) -> None:
    with opened(root) as manager:
        manager.snapshot()
        puts = list(stage(manager, {"a.parquet": b"ours"}))
        target = dataset(root) / "day=1/b.parquet"
        if foreign == "changed":
            target.write_bytes(b"theirs")
        elif foreign == "added":
            (dataset(root) / "new.parquet").write_bytes(b"theirs")
        elif foreign == "removed":
            target.unlink()
        else:
            copy = dataset(root) / ".copy"
            shutil.copyfile(target, copy)
            copy.rename(target)
        found = read_files(root)
        with pytest.raises(ConcurrentModificationError):
            manager.commit(puts)
    assert read_files(root) == found
    assert leftovers(root) == []


def test_commit_rejects_a_file_that_is_listed_twice(root: Path) -> None:
    with opened(root) as manager, pytest.raises(InvalidArgumentError, match="only once"):
        manager.commit(list(stage(manager, {"a.parquet": b"x"})), ["a.parquet"])
    assert is_before(root)


def test_partition_on_another_filesystem_is_rejected_before_the_commit_point(root: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != root.stat().st_dev, "needs two filesystems"
        (dataset(root) / "day=9").symlink_to(elsewhere)
        with opened(root) as manager, pytest.raises(DatasetIOError, match="not on the same filesystem"):
            manager.commit(list(stage(manager, {"a.parquet": b"x", "day=9/x.parquet": b"x"})))
        assert os.listdir(elsewhere) == []
        (dataset(root) / "day=9").unlink()
    assert is_before(root)
    assert leftovers(root) == []


def test_sidecar_of_a_mount_point_is_inside_the_dataset() -> None:
    """Files cannot be renamed into a mount point from outside."""
    assert os.path.ismount("/proc")
    assert LocalJournal(locate("/proc")).sidecar == "/proc/.inlay.txn"


# ------------------------------------------------------------------------------------------------------ the record
def test_corrupt_record_is_reported_and_nothing_changes(pending: Path) -> None:
    record = sidecar(pending) / "commit.json"
    record.write_bytes(record.read_bytes().replace(b"day=2", b"day=3"))
    tree = sorted(str(path) for path in pending.rglob("*"))
    content = read_files(pending)
    for attempt in (recover, list_dataset_files, lambda path: opened(pending)):
        with pytest.raises(CorruptJournalError, match=r"commit\.json.*checksum") as caught:
            attempt(str(dataset(pending)))
        assert caught.value.files == [str(record)]
    assert sorted(str(path) for path in pending.rglob("*")) == tree
    assert read_files(pending) == content


@pytest.mark.parametrize("damage", [b"", b"{", b'{"sha256": 1}', b"[]", b"\xff\xfe"])
def test_content_that_is_not_a_record_is_rejected(pending: Path, damage: bytes) -> None:
    (sidecar(pending) / "commit.json").write_bytes(damage)
    with pytest.raises(CorruptJournalError, match="inlay changed no files"):
        recover(dataset(pending))


@pytest.mark.parametrize(
    "name", ["../../outside.parquet", "/outside.parquet", "a/../../x.parquet", "", "a//b.parquet", "a/./b.parquet"]
)
def test_record_cannot_change_files_outside_the_dataset(root: Path, name: str) -> None:
    """A dataset may come from an untrusted source, and reading it completes its commits."""
    victim = root.parent / "outside.parquet"
    victim.write_bytes(b"private")
    sidecar(root).mkdir()
    (sidecar(root) / "commit.json").write_bytes(Record("evil", [], [name]).dump())
    with pytest.raises(CorruptJournalError, match="it contains the unsafe path"):
        list_dataset_files(str(dataset(root)))
    assert victim.read_bytes() == b"private"
    assert is_before(root)


def test_copied_dataset_with_a_pending_commit_recovers(pending: Path, tmp_path: Path) -> None:
    """Inodes and times differ, so size and checksum identify the files of the pending commit."""
    copy = tmp_path / "copy"
    shutil.copytree(pending, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    report = recover(dataset(copy))
    assert report.completed is not None
    assert len(report.files) == 5
    assert is_after(copy)
    assert leftovers(copy) == []


def test_copy_without_staged_files_is_rejected_and_unchanged(pending: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(pending, copy)
    staged = sorted(next(sidecar(copy).glob(".staging_*")).glob("*.stage"))
    staged[-1].unlink()
    shutil.rmtree(sidecar(copy) / "files")
    found = read_files(copy)
    with pytest.raises(CorruptJournalError, match="neither staged nor in place") as caught:
        recover(dataset(copy))
    assert (caught.value.operation, len(caught.value.files)) == ("recover", 1)
    assert caught.value.files[0].startswith(str(dataset(copy)))
    assert read_files(copy) == found
    assert is_pending(copy)
    assert staged[0].exists()


def test_commit_whose_staged_files_are_lost_completes_from_the_history(pending: Path) -> None:
    for staged in next(sidecar(pending).glob(".staging_*")).glob("*.stage"):
        staged.unlink()
    assert recover(dataset(pending)).completed
    assert is_after(pending)
    assert leftovers(pending) == []


def test_copy_with_a_damaged_staged_file_is_rejected_and_unchanged(pending: Path) -> None:
    staged = max(next(sidecar(pending).glob(".staging_*")).glob("*.stage"))
    staged.write_bytes(staged.read_bytes()[:-1] + b"?")
    found = read_files(pending)
    with pytest.raises(CorruptJournalError):
        list_dataset_files(str(dataset(pending)))
    assert read_files(pending) == found


# --------------------------------------------------------------------------------------------------------- errors
def fail_at_sidecar_sync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Let one sync of the sidecar directory fail."""
    seen = 0

    def sync(self: LocalStore, path: str) -> None:
        nonlocal seen
        seen += path.endswith(".ds.txn")
        if path.endswith(".ds.txn") and seen == number:
            raise OSError(errno.EIO, "disk failure")

    monkeypatch.setattr(LocalStore, "sync_directory", sync)


def test_failed_sync_at_the_commit_point_is_unknown_and_keeps_staged_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_at_sidecar_sync(patch, 5)  # The first two record version 0.
        with pytest.raises(CommitStateUnknownError, match="is unknown") as caught:
            apply_files(root)
    assert caught.value.operation == "commit"
    assert is_before(root)
    assert len(list(next(sidecar(root).glob(".staging_*")).glob("*.stage"))) == 4
    assert recover(dataset(root)).completed
    assert is_after(root)
    assert leftovers(root) == []


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_failed_sync_before_the_commit_point_changes_nothing(
    root: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = directories(root)
    with monkeypatch.context() as patch:
        fail_at_sidecar_sync(patch, number)
        with pytest.raises(OSError, match="disk failure"):
            apply_files(root)
    assert is_before(root)
    assert directories(root) == present
    assert leftovers(root) == []


def test_rename_that_succeeds_but_reports_failure_is_unknown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Network filesystems can lose the response to a successful rename."""
    rename = os.rename

    def lost(source: str, target: str) -> None:
        rename(source, target)
        if target.endswith("commit.json"):
            raise OSError(errno.EIO, "no response")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lost)
        with pytest.raises(CommitStateUnknownError):
            apply_files(root)
    recover(dataset(root))
    assert is_after(root)


def test_next_open_completes_a_pending_commit(pending: Path) -> None:
    with opened(pending) as manager:
        assert [file.path for file in manager.snapshot()] == AFTER_NAMES
    assert is_after(pending)
    assert leftovers(pending) == []


def test_next_listing_completes_a_pending_commit(pending: Path) -> None:
    assert list_dataset_files(str(dataset(pending))) == [str(dataset(pending) / name) for name in AFTER_NAMES]
    assert is_after(pending)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit, OSError])
def test_cleanup_keeps_staged_files_of_a_pending_commit(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The three methods of the requirements keep the files even without a `with` block."""

    def stop(self: LocalStore, source: str, target: str) -> None:
        raise error

    manager = opened(root)
    puts = list(stage(manager, PUTS))
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "move", stop)
        with pytest.raises((error, CommitPendingError)):
            manager.commit(puts, ["day=2/d.parquet"])
    manager.cleanup_staging_files()
    assert is_pending(root)
    recover(dataset(root))
    assert is_after(root)


def test_memory_error_after_the_commit_point_reports_a_pending_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error must not claim that nothing changed."""
    import pyarrow as pa

    import inlay

    def stop(self: LocalStore, source: str, target: str) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "move", stop)
        with pytest.raises(CommitPendingError):
            inlay.merge(pa.table({"id": [1]}), str(tmp_path / "ds"), "upsert", ["id"])
    assert inlay.read_parquet(str(tmp_path / "ds")).num_rows == 1


def test_failure_to_complete_an_earlier_commit_is_reported_as_such(
    pending: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: LocalStore, source: str, target: str) -> None:
        raise OSError(errno.EIO, "disk failure")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "move", stop)
        with pytest.raises(DatasetIOError, match=r"(?s)An earlier commit.*inlay recover --undo"):
            apply_files(pending)
    assert is_pending(pending)
    apply_files(pending)
    assert is_after(pending)


# ------------------------------------------------------------------------------------------ durability and leftovers
class Steps:
    """Record each sync, move, rename and removal below a directory, in order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = str(root)
        self.taken: list[str] = []
        fsync, move, rename = os.fsync, LocalStore.move, os.rename
        unlink, unlink_with_gil = os.unlink, LocalStore.unlink

        def synced(descriptor: int) -> None:
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self._record("sync", path, "" if os.path.isdir(path) or os.path.getsize(path) else "(empty)")
            fsync(descriptor)

        def moved(store: LocalStore, source: str, target: str) -> None:
            self._record("move to", target)
            move(store, source, target)

        def renamed(source: str, target: str) -> None:
            if target.endswith("commit.json"):  # Other renames only test for a filesystem boundary.
                self._record("rename to", target)
            rename(source, target)

        def removed(path: str, **options: Any) -> None:
            if not options:  # Deleting a tree passes a directory descriptor.
                self._record("remove", path)
            unlink(path, **options)

        def removed_with_gil(store: LocalStore, path: str) -> None:
            self._record("unlink", path)
            unlink_with_gil(store, path)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(LocalStore, "move", moved)
        monkeypatch.setattr(os, "rename", renamed)
        monkeypatch.setattr(os, "unlink", removed)
        monkeypatch.setattr(LocalStore, "unlink", removed_with_gil)

    def _record(self, step: str, path: str, remark: str = "") -> None:
        name = re.sub(r"(staging_|commit\.)\w{32}", r"\1*", path.removeprefix(self._root)) or "/"
        self.taken.append(f"{step} {name}{remark}")


_ROLLED_FORWARD = """
unlink /ds/.a.parquet.crc
unlink /ds/day=1/.b.parquet.crc
unlink /ds/day=2/.c.parquet.crc
unlink /ds/year=7/day=3/.e.parquet.crc
unlink /ds/day=2/.d.parquet.crc
move to /ds/a.parquet
move to /ds/day=1/b.parquet
move to /ds/day=2/c.parquet
move to /ds/year=7/day=3/e.parquet
unlink /ds/day=2/d.parquet
sync /ds
sync /ds/day=1
sync /ds/day=2
sync /ds/year=7/day=3
sync /.ds.txn/.staging_*
sync /.ds.txn/versions
remove /.ds.txn/commit.json
sync /.ds.txn
"""
_FOUND = """
remove /.ds.txn/commit.*.tmp
sync /.ds.txn
sync /.ds.txn/commit.*.tmp
sync /.ds.txn
sync /.ds.txn/files
sync /.ds.txn/files/day=1
sync /.ds.txn/files/day=2
sync /.ds.txn/versions
sync /.ds.txn
"""
_COMMITTED = f"""
sync /.ds.txn/.staging_*/1.stage
sync /.ds.txn/.staging_*/2.stage
sync /.ds.txn/.staging_*/3.stage
sync /.ds.txn/.staging_*/4.stage
remove /.ds.txn/commit.*.tmp
sync /.ds.txn/versions
sync /.ds.txn/commit.*.tmp
sync /.ds.txn/.staging_*
sync /.ds.txn
sync /
sync /ds
sync /ds/year=7
sync /ds
sync /.ds.txn/files
sync /.ds.txn/files/day=1
sync /.ds.txn/files/day=2
sync /.ds.txn/files/year=7
sync /.ds.txn/files/year=7/day=3
rename to /.ds.txn/commit.json
sync /.ds.txn
{_ROLLED_FORWARD.strip()}
"""
_RECOVERED = f"""
sync /.ds.txn
sync /
sync /
sync /ds
sync /ds/day=1
sync /ds/day=2
sync /ds/year=7
sync /ds/year=7/day=3
{_ROLLED_FORWARD.strip()}
"""


def test_commit_syncs_everything_in_a_safe_order(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_found_files(root)
    steps = Steps(root, monkeypatch)
    apply_files(root)
    assert steps.taken == _COMMITTED.split("\n")[1:-1]


def test_first_version_is_synced_in_a_safe_order(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each link is durable before the record of the version, and the draft that names the links before them."""
    with opened(root) as manager:
        steps = Steps(root, monkeypatch)
        record_external(manager)
    assert steps.taken == _FOUND.split("\n")[1:-1]


def test_recovery_syncs_everything_in_a_safe_order(pending: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(pending, monkeypatch)
    recover(dataset(pending))
    assert steps.taken == _RECOVERED.split("\n")[1:-1]


def test_replaced_files_keep_their_modes(root: Path) -> None:
    (dataset(root) / "day=1/b.parquet").chmod(0o600)
    apply_files(root)
    modes = {name: mode for name, (_, mode) in read_files(root).items()}
    assert modes["a.parquet"] == 0o640
    assert modes["day=1/b.parquet"] == 0o600


def test_recovery_deletes_leftovers_of_crashed_writers(root: Path) -> None:
    sidecar(root).mkdir()
    staging = sidecar(root) / ".staging_dead"
    staging.mkdir()
    (staging / "1.stage").write_bytes(b"half")
    (sidecar(root) / "commit.dead.tmp").write_bytes(b"{")
    (sidecar(root) / "footers.db-dead").write_bytes(b"half")
    (sidecar(root) / "notes.tmp").write_bytes(b"foreign")
    report = recover(dataset(root))
    (sidecar(root) / "notes.tmp").unlink()
    assert report.swept == [".staging_dead"]
    assert not report.completed
    assert leftovers(root) == []


def test_messages_of_incomplete_commits(root: Path) -> None:
    location, record = locate(dataset(root)), Record("id", [Put("s/1.stage", "day=1/a.parquet", 1)], ["b.parquet"])
    errors = [build(location, record, OSError("no room")) for build in (commit_pending_error, recovery_error)]
    assert [(type(error), error.message, error.operation, error.files) for error in errors] == [
        (
            CommitPendingError,
            f"The change to {str(dataset(root))!r} is committed, but not all of its files are in place: no room.",
            "commit",
            [f"{dataset(root)}/day=1/a.parquet"],
        ),
        (
            DatasetIOError,
            f"An earlier commit to {str(dataset(root))!r} cannot be completed: no room.",
            "recover",
            [f"{dataset(root)}/day=1/a.parquet"],
        ),
    ]


def test_recovery_reports_files_put_in_place_and_removed(pending: Path) -> None:
    report = recover(dataset(pending))
    assert report.completed
    assert report.files == [str(dataset(pending) / name) for name in [*PUTS, *sorted(BEFORE.keys() - PUTS.keys())]]


def test_fingerprint_covers_all_bytes(tmp_path: Path) -> None:
    content = os.urandom((2 << 20) + 7)
    (tmp_path / "large").write_bytes(content)
    assert read_content(str(tmp_path / "large")) == (len(content), zlib.crc32(content))


def test_report_is_true_if_recovery_changed_anything() -> None:
    assert not RecoveryReport()
    assert RecoveryReport(completed="a transaction")
    assert RecoveryReport(swept=[".staging_dead"])


def test_reader_completes_a_commit_but_does_not_sweep(pending: Path) -> None:
    staging = sidecar(pending) / ".staging_dead"
    staging.mkdir()
    list_dataset_files(str(dataset(pending)))
    assert is_after(pending)
    assert staging.exists()


def test_recovery_keeps_claimed_staging_directories(root: Path) -> None:
    sidecar(root).mkdir()
    staging = sidecar(root) / ".staging_alive"
    staging.mkdir()
    claimed = claim(str(staging))
    assert claimed is not None
    try:
        assert recover(dataset(root)).swept == []
    finally:
        unlock(claimed)
    assert recover(dataset(root)).swept == [".staging_alive"]


def test_reader_waits_while_another_process_completes_the_commit(pending: Path) -> None:
    journal = LocalJournal(locate(dataset(pending)))
    journal.acquire(1)
    threading.Timer(0.4, journal.release).start()
    assert len(list_dataset_files(str(dataset(pending)))) == len(PUTS)
    assert is_after(pending)


def test_reader_of_a_stuck_commit_learns_who_holds_the_lock(pending: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "LOCK_TIMEOUT", 0.2)
    journal = LocalJournal(locate(dataset(pending)))
    journal.acquire(1)
    try:
        with pytest.raises(LockTimeoutError, match=f"process {os.getpid()}"):
            list_dataset_files(str(dataset(pending)))
    finally:
        journal.release()
    assert is_pending(pending)


def test_permission_error_of_a_user_with_write_access_is_raised(pending: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: LocalJournal, timeout: float) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", self.sidecar)

    monkeypatch.setattr(LocalJournal, "acquire", refused)
    with pytest.raises(PermissionError):
        list_dataset_files(str(dataset(pending)))
    assert is_pending(pending)


def test_listing_keeps_staged_files_of_a_running_writer(root: Path) -> None:
    with opened(root) as manager:
        (path, _), *_ = stage(manager, {"x.parquet": b"x"})
        assert len(list_dataset_files(str(dataset(root)))) == len(BEFORE)
        assert Path(path).exists()


def test_recovering_a_missing_dataset_creates_nothing(tmp_path: Path) -> None:
    assert recover(tmp_path / "absent") == RecoveryReport()
    assert list(tmp_path.iterdir()) == []


# -------------------------------------------------------------------------------------------------------- failures
def test_failed_rename_at_the_commit_point_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(errno.EIO, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refused)
        with pytest.raises(OSError, match="no"):
            apply_files(root)
    assert is_before(root)
    assert leftovers(root) == []


def test_staged_file_missing_after_the_commit_point_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: LocalStore, source: str, target: str) -> None:
        os.unlink(source)
        raise FileNotFoundError(source)

    monkeypatch.setattr(LocalStore, "move", gone)
    with pytest.raises(CorruptJournalError, match=r"a\.parquet"):
        apply_files(root)


def test_sidecar_that_a_dry_run_deletes_is_created_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, lost = local.lock_path, [1]

    def flock(path: str, flags: int, deadline: float) -> int | None:
        if lost:
            lost.pop()
            shutil.rmtree(sidecar(root))
            raise FileNotFoundError(path)
        return real(path, flags, deadline)

    monkeypatch.setattr(local, "lock_path", flock)
    with opened(root):
        assert (sidecar(root) / "lock").exists()


def test_dataset_that_keeps_disappearing_is_an_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(path: str, flags: int, deadline: float) -> int | None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(local, "lock_path", flock)
    with pytest.raises(LockTimeoutError, match="waited 0 s"):
        opened(root, lock_timeout=0)


def test_sidecar_is_inside_the_dataset_if_the_parent_is_not_writable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test simulates the missing permission, because root may write everywhere."""
    make = LocalStore.make_directories

    def refused(store: LocalStore, path: str) -> list[str]:
        if path == str(sidecar(root)):
            raise PermissionError(path)
        return make(store, path)

    monkeypatch.setattr(LocalStore, "make_directories", refused)
    with opened(root) as manager:
        assert os.path.dirname(manager.create_staging_directory(dataset(root))).startswith(f"{dataset(root)}/")
        manager.commit(list(stage(manager, {"new.parquet": b"new"})))
    assert not sidecar(root).exists()
    assert list_dataset_files(dataset(root)) == [f"{dataset(root)}/{name}" for name in sorted([*BEFORE, "new.parquet"])]


def test_waiting_for_a_lock_can_be_interrupted(root: Path, replace_sleep: Any) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with opened(root):
        before = len(os.listdir("/proc/self/fd"))
        replace_sleep(interrupted)
        with pytest.raises(KeyboardInterrupt):
            opened(root)
        assert len(os.listdir("/proc/self/fd")) == before


def test_unreadable_note_names_another_process(root: Path) -> None:
    with opened(root):
        (sidecar(root) / "lock").write_bytes(b"{")
        with pytest.raises(LockTimeoutError, match=r"locked by another process; waited 0\.05 s"):
            opened(root, lock_timeout=0.05)


def test_record_of_another_format_is_rejected_and_nothing_changes(pending: Path) -> None:
    record = sidecar(pending) / "commit.json"
    content = json.loads(json.loads(record.read_bytes())["body"]) | {"format": 3}
    body = json.dumps(content)
    record.write_text(json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "body": body}))
    before = read_files(pending)
    with pytest.raises(CorruptJournalError, match="another version of inlay wrote it"):
        recover(dataset(pending))
    assert read_files(pending) == before


def test_cleanup_keeps_staged_files_if_the_journal_cannot_be_checked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(_: str) -> None:
        raise OSError(errno.EIO, "no response")

    manager = opened(root)
    staging = Path(manager.create_staging_directory(dataset(root)))
    with monkeypatch.context() as patch:
        patch.setattr(local, "stat_or_none", unseen)
        manager.cleanup_staging_files()
    assert staging.is_dir()
    assert recover(dataset(root)).swept == [staging.name]


# ---------------------------------------------------------------------------------------------------- required methods
def test_required_methods_reject_wrong_order_and_number(root: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="create_staging_directory"):
        IncrementalFileManager().snapshot()
    with pytest.raises(InvalidArgumentError, match="1 source files cannot replace 2 target files"):
        IncrementalFileManager().atomic_replace_files(["a"], ["b", "c"])
    IncrementalFileManager().atomic_replace_files([], [])
    with IncrementalFileManager() as manager:
        first = manager.create_staging_directory(dataset(root))
        assert manager.create_staging_directory(dataset(root)) == first
    assert is_before(root)


def test_required_methods_use_the_filesystem_of_the_manager(memory: MemoryFileSystem) -> None:
    memory.pipe_file("/lake/d/a.parquet", b"old")
    memory.pipe_file("/elsewhere/new", b"new")
    memory.pipe_file("/lake/d/b.parquet", b"old too")
    manager = IncrementalFileManager(memory)
    staging = manager.create_staging_directory("/lake/d")
    assert staging.startswith("/lake/.d.txn/.staging_")
    sources = ["/elsewhere/new", "elsewhere/new"]  # Both are paths of this filesystem.
    manager.atomic_replace_files(sources, ["/lake/d/a.parquet", "/lake/d/b.parquet"])
    manager.cleanup_staging_files()
    assert memory.cat_file("/lake/d/a.parquet") == memory.cat_file("/lake/d/b.parquet") == b"new"
    assert memory.cat_file("/elsewhere/new") == b"new", "a source outside the staging directory is copied, not moved"


def test_sources_outside_the_staging_directory_are_copied(root: Path, tmp_path: Path) -> None:
    large = os.urandom((3 << 20) + 5)
    (tmp_path / "large").write_bytes(large)
    (tmp_path / "link").symlink_to(tmp_path / "large")
    with IncrementalFileManager() as manager:
        manager.atomic_replace_files([str(tmp_path / "link")], [str(dataset(root) / "a.parquet")])
    assert (dataset(root) / "a.parquet").read_bytes() == large
    assert (tmp_path / "large").read_bytes() == large


def test_constant_changes_by_other_programs_are_a_conflict(root: Path) -> None:
    def read(_: Location, files: list[FileStat]) -> None:
        for file in files:
            (dataset(root) / file.path).write_bytes(b"in place" * len(os.listdir(root)))
        (dataset(root) / f"{len(files)}.parquet").write_bytes(b"x")

    with pytest.raises(ConcurrentModificationError, match="changes faster than inlay can read it"):
        read_consistently(locate(dataset(root)), read)


def test_commit_tolerates_a_directory_that_disappears_with_its_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = LocalStore.unlink

    def removed(store: LocalStore, path: str) -> None:
        unlink(store, path)
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)

    shutil.rmtree(dataset(root) / "day=2")
    (dataset(root) / "day=2").mkdir()
    (dataset(root) / "day=2/d.parquet").write_bytes(b"d")
    monkeypatch.setattr(LocalStore, "unlink", removed)
    with opened(root) as manager:
        manager.commit([], ["day=2/d.parquet"])
    assert not (dataset(root) / "day=2").exists()


def test_commit_works_if_the_parent_cannot_be_synced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = LocalStore.sync_directory

    def refused(store: LocalStore, path: str) -> None:
        if path == str(root):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        sync(store, path)

    sidecar(root).mkdir()
    monkeypatch.setattr(LocalStore, "sync_directory", refused)
    apply_files(root)
    assert is_after(root)


def test_path_of_a_file_is_rejected(root: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is a file\. A dataset is a directory"):
        list_dataset_files(str(dataset(root) / "a.parquet"))


def test_footer_cache_is_in_the_sidecar_or_the_home_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = locate(dataset(root))
    monkeypatch.setenv("HOME", "/somebody")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    digest = hashlib.sha256(f"LocalStore {dataset(root)}".encode()).hexdigest()[:32]
    assert footer_cache(location).path == f"/somebody/.cache/inlay/footers/{digest}.db"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert footer_cache(location).path == f"/elsewhere/inlay/footers/{digest}.db"
    sidecar(root).mkdir()
    assert footer_cache(location).path == str(sidecar(root) / "footers.db")
