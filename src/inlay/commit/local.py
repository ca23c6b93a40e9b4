"""The journal of a dataset on a local disk: writers' lock, commit record, roll-forward and recovery.

    <parent>/.<dataset>.txn/   lock   readers.lock   commit.json   footers.db   .staging_<uuid>/<n>.stage

The commit point is the rename of the record to `commit.json`. Before the rename, a crash leaves the dataset
unchanged. After it, any process can complete the commit, as often as needed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime

from inlay.commit.sidecar import (
    STAGING_PREFIX,
    Put,
    Record,
    RecoveryReport,
    commit_pending_error,
    commit_unknown_error,
    inner_sidecar_path,
    is_claimed,
    is_cross_device,
    missing_file_error,
    new_staging_name,
    recovery_error,
    sidecar_path,
    stat_or_none,
    unlock,
)
from inlay.errors import CorruptJournalError, DatasetIOError, LockTimeoutError
from inlay.storage import LocalStore, Location, discard_tree

__all__ = ["LocalJournal"]


_READERS_TIMEOUT = 300  # seconds; after it the commit stays pending until the next open
_CHECKSUM_BLOCK = 1 << 20


class LocalJournal:
    """One process's access to the sidecar of a dataset on a local disk."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._store = LocalStore()
        self._lock: int | None = None
        self.sidecar = sidecar_path(location)

    def has_sidecar(self) -> bool:
        return stat_or_none(self.sidecar) is not None

    def _make_sidecar(self) -> None:
        try:
            made = self._store.make_directories(self.sidecar)
        except PermissionError:
            self.sidecar = inner_sidecar_path(self.location)
            made = self._store.make_directories(self.sidecar)
        for directory in made:
            self._store.sync_directory(os.path.dirname(directory))

    def _in_sidecar(self, name: str) -> str:
        return os.path.join(self.sidecar, name)

    @property
    def _journal(self) -> str:
        return self._in_sidecar("commit.json")

    @property
    def cache_path(self) -> str | None:
        return self._in_sidecar("footers.db") if os.access(self.sidecar, os.W_OK) else None

    # --------------------------------------------------------------------------------------------------- locking
    def acquire(self, timeout: float) -> None:
        self._make_sidecar()
        path = self._in_sidecar("lock")
        deadline = time.monotonic() + timeout
        while self._lock is None:
            try:
                descriptor = _flock(path, fcntl.LOCK_EX, deadline)
            except FileNotFoundError:  # A dry run created the sidecar for itself and has removed it again.
                if time.monotonic() >= deadline:
                    raise
                self._make_sidecar()
                continue
            if descriptor is None:
                raise LockTimeoutError(
                    f"{self.location.uri!r} is locked by {_holder(path)}; waited {timeout:g} s.",
                    hint="Retry when the other writer has finished, or pass a larger lock_timeout.",
                )
            if _is_open_at(path, descriptor):
                self._lock = descriptor
            else:  # The sidecar was deleted while this process waited.
                unlock(descriptor)
                self._make_sidecar()
        _note_holder(self._lock)

    def release(self) -> None:
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            try:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)  # Removes the note about the holder.
            finally:
                unlock(descriptor)

    @contextlib.contextmanager
    def read_lock(self) -> Iterator[bool]:
        """Keep commits from moving files inside the block. Yields False if the lock is unavailable."""
        descriptor = self._open_readers_lock()
        if descriptor is None:
            yield False
            return
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            yield True
        finally:
            unlock(descriptor)

    def _open_readers_lock(self) -> int | None:
        path = self._in_sidecar("readers.lock")
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):  # Users without write access can lock the file too.
            with contextlib.suppress(OSError):
                return os.open(path, flags | os.O_CLOEXEC, 0o666)
        return None

    # --------------------------------------------------------------------------------------------------- staging
    def create_staging(self) -> str:
        """Create a staging directory and return its name relative to the sidecar."""
        name = new_staging_name()
        os.mkdir(self._in_sidecar(name), 0o777)
        return name

    def discard_staging(self, staging: str) -> None:
        """Delete a staging directory, unless a pending commit may need its files."""
        try:
            if self.has_pending_commit():
                return
        except OSError:
            return
        discard_tree(self._store, self._in_sidecar(staging))

    def staged_path(self, name: str) -> str:
        return self._in_sidecar(name)

    # ---------------------------------------------------------------------------------------------------- commit
    def prepare(self, staged: str, target: str) -> Put:
        """Sync a staged file to disk and record its size and checksum."""
        path = self.staged_path(staged)
        replaced = self.location.full(target)
        self._require_reachable(replaced)
        status = stat_or_none(replaced)
        if status is not None:
            os.chmod(path, status.st_mode & 0o7777)
        size, checksum = _fingerprint(path)
        self._store.sync_file(path)
        return Put(staged, target, size, checksum)

    def _require_reachable(self, target: str) -> None:
        """Reject targets on another filesystem before the commit point, because renames there fail."""
        directory = os.path.dirname(target)
        while stat_or_none(directory) is None:
            directory = os.path.dirname(directory)
        if is_cross_device(self.sidecar, directory):
            raise DatasetIOError(
                f"{directory!r} is not on the same filesystem as {self.sidecar!r}, so files cannot be moved there.",
                operation="commit",
                hint="Keep the dataset on one filesystem. A partition cannot be a mount point or a link out of it.",
            )

    def commit(self, record: Record) -> None:
        for directory in self._staging_directories(record):
            self._store.sync_directory(directory)
        self._store.sync_directory(self.sidecar)
        self._sync_parent(self.sidecar)
        self._publish(record)
        self._complete(record)

    def _publish(self, record: Record) -> None:
        draft = self._in_sidecar(f"commit.{record.id}.tmp")
        try:
            with open(draft, "xb") as file:
                file.write(record.dump())
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, self._journal)  # This is the commit point.
        except OSError as error:
            if self.has_pending_commit():  # A network filesystem can report failure for a rename that succeeded.
                raise commit_unknown_error(self.location, error) from error
            self._store.remove(draft)
            raise
        try:
            self._store.sync_directory(self.sidecar)
        except OSError as error:
            raise commit_unknown_error(self.location, error) from error

    def _complete(self, record: Record) -> None:
        try:
            self.roll_forward(record)
        except CorruptJournalError:
            raise
        except Exception as error:  # No error past the commit point may claim that nothing changed.
            raise commit_pending_error(self.location, record, error) from error

    def roll_forward(self, record: Record, *, resumed: bool = False) -> None:
        """Move all files into place and delete the record. Repeating it has the same result."""
        readers = _flock(self._in_sidecar("readers.lock"), fcntl.LOCK_EX, time.monotonic() + _READERS_TIMEOUT)
        if readers is None:
            raise TimeoutError(errno.ETIMEDOUT, f"readers locked the dataset for {_READERS_TIMEOUT} s")
        try:
            self._make_directories(record, resumed=resumed)
            for name in record.paths:
                self._store.remove(_hadoop_checksum(self.location.full(name)))
            for put in record.puts:
                self._put(put, self.location.full(put.target))
            for name in record.removes:
                self._store.remove(self.location.full(name))
            # Syncing targets before sources ensures that a power cut cannot lose a moved file at both paths.
            self._sync(self._target_directories(record))
            self._sync(self._staging_directories(record) | {self.sidecar})
            os.unlink(self._journal)
            self._store.sync_directory(self.sidecar)
        finally:
            unlock(readers)

    def _make_directories(self, record: Record, *, resumed: bool) -> None:
        """Create the target directories and make them durable, including those of a crashed writer."""
        for put in record.puts:
            self._store.make_durable_directories(os.path.dirname(self.location.full(put.target)))
        if resumed:
            self._sync_parent(self.location.path)
            self._sync({above for path in self._target_directories(record) for above in self._up_to_root(path)})

    def _target_directories(self, record: Record) -> set[str]:
        return {os.path.dirname(self.location.full(name)) for name in record.paths}

    def _staging_directories(self, record: Record) -> set[str]:
        return {os.path.dirname(self.staged_path(put.staged)) for put in record.puts}

    def _up_to_root(self, directory: str) -> Iterator[str]:
        while len(directory) >= len(self.location.path):
            yield directory
            directory = os.path.dirname(directory)

    def _sync(self, directories: set[str]) -> None:
        for directory in sorted(directories):
            with contextlib.suppress(FileNotFoundError):  # Removing a file can remove its directory.
                self._store.sync_directory(directory)

    def _sync_parent(self, path: str) -> None:
        """Make the directory entry of `path` durable, because a crashed writer may have created it."""
        with contextlib.suppress(PermissionError):  # A parent that is not readable belongs to another user.
            self._store.sync_directory(os.path.dirname(path))

    def _put(self, put: Put, target: str) -> None:
        try:
            self._store.move(self.staged_path(put.staged), target)
        except FileNotFoundError:
            if not _matches(target, put):
                raise missing_file_error(self.location, put, self._journal) from None

    # -------------------------------------------------------------------------------------------------- recovery
    def has_pending_commit(self) -> bool:
        return stat_or_none(self._journal) is not None

    def recover(self, *, sweep: bool) -> RecoveryReport:
        """Complete a pending commit and, with `sweep`, delete staged files of crashed writers.

        The caller must hold the lock.
        """
        report = RecoveryReport()
        if self.has_pending_commit():
            record = Record.load(self._store.read_bytes(self._journal), self._journal)
            self._finish(record)
            report.completed = record.id
            report.files = record.display_files(self.location)
        if sweep:
            report.swept = self._sweep()
        return report

    def _finish(self, record: Record) -> None:
        """Complete another writer's commit. Before any file moves, check that all files exist."""
        try:
            for put in record.puts:
                if not _matches(self.staged_path(put.staged), put) and not _matches(
                    self.location.full(put.target), put
                ):
                    raise missing_file_error(self.location, put, self._journal)
            # The writer may have crashed between rename and sync. The record must be durable before a file moves.
            self._store.sync_directory(self.sidecar)
            self._sync_parent(self.sidecar)
            self.roll_forward(record, resumed=True)
        except OSError as error:
            raise recovery_error(self.location, record, error) from error

    def _sweep(self) -> list[str]:
        swept = []
        for name in sorted(os.listdir(self.sidecar)):
            if name.startswith(STAGING_PREFIX):
                if not is_claimed(self._in_sidecar(name)):  # Dry runs hold no lock, so they claim their directory.
                    self.discard_staging(name)
                    swept.append(name)
            elif (name.startswith("commit.") and name.endswith(".tmp")) or name.startswith("footers.db-"):
                self._store.remove(self._in_sidecar(name))  # A process that writes the cache now goes without it.
        return swept

    def is_writable(self) -> bool:
        return os.access(self.sidecar, os.W_OK)


def _hadoop_checksum(path: str) -> str:
    """Return the path of the checksum file that Hadoop and Spark write beside a data file.

    Spark cannot read a data file whose checksum file belongs to an older version of it.
    """
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.crc")


def _matches(path: str, put: Put) -> bool:
    status = stat_or_none(path)
    return status is not None and status.st_size == put.size and _fingerprint(path) == (put.size, put.crc32)


def _flock(path: str, mode: int, deadline: float) -> int | None:
    """Lock a file and return its descriptor, or None after the deadline.

    `flock` is released only when its own descriptor closes. `lockf` would be released when any descriptor of the file
    closes.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        pause = 0.005
        while True:
            try:
                fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(pause)
                pause = min(pause * 1.5, 0.25)
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_open_at(path: str, descriptor: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _note_holder(descriptor: int) -> None:
    note = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with contextlib.suppress(OSError):  # The note is optional: a full disk must not prevent the lock.
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)


def _holder(path: str) -> str:
    try:
        with open(path, "rb") as file:
            note = json.load(file)
        return f"process {note['pid']} on {note['host']} (since {note['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _fingerprint(path: str) -> tuple[int, int]:
    checksum = size = 0
    with open(path, "rb") as file:
        while block := file.read(_CHECKSUM_BLOCK):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
    return size, checksum
