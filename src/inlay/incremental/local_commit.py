"""Commit on a local disk: a lock, a journal whose rename is the commit point, and fsync where it counts.

    <parent>/.<dataset>.txn/   lock   readers.lock   commit.json   footers.db   .staging_<uuid>/<n>.stage

Everything before the rename to `commit.json` can be undone by forgetting it; everything after it can be done
again by anybody. Where the parent directory is not writable, the same lies inside the dataset as `.inlay.txn`.
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

from inlay.errors import (
    CommitStateUnknownError,
    CorruptJournalError,
    DatasetIOError,
    LockTimeoutError,
)
from inlay.incremental.journal import Put, Record, RecoveryReport, still_pending, unfinished
from inlay.parquet.sidecar import (
    STAGING,
    crosses,
    is_claimed,
    new_staging,
    sidecar,
    sidecar_inside,
    status_of,
    unlock,
)
from inlay.storage import LocalStore, Location, discard_tree

__all__ = ["LocalJournal"]

_READERS_PATIENCE = 300  # seconds; then the commit stays pending, and the next open completes it
_COPY_BLOCK = 1 << 20


class LocalJournal:
    """One process's hold on a dataset's sidecar directory."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self._store = LocalStore()
        self._lock: int | None = None
        self.sidecar = sidecar(location)

    # ---------------------------------------------------------------------------------------------- the sidecar
    def has_sidecar(self) -> bool:
        return status_of(self.sidecar) is not None

    def _make_sidecar(self) -> None:
        try:
            made = self._store.make_directories(self.sidecar)
        except PermissionError:
            self.sidecar = sidecar_inside(self.location)
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
            except FileNotFoundError:  # a plan made the sidecar for itself, and removed it
                if time.monotonic() >= deadline:
                    raise
                self._make_sidecar()
                continue
            if descriptor is None:
                raise LockTimeoutError(
                    f"{self.location.given!r} is being written by {_holder(path)}; waited {timeout:g} s.",
                    hint="Try again when it has finished, or wait longer with lock_timeout.",
                )
            if _is_still(path, descriptor):
                self._lock = descriptor
            else:  # somebody removed the sidecar while we waited
                unlock(descriptor)
                self._make_sidecar()
        _note_holder(self._lock)

    def release(self) -> None:
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            try:
                with contextlib.suppress(OSError):  # the note of who held it
                    os.ftruncate(descriptor, 0)
            finally:
                unlock(descriptor)

    @contextlib.contextmanager
    def reading(self) -> Iterator[bool]:
        """Keep commits from moving files while reading; yields False where that cannot be had."""
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
        for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):  # who may only read can still hold it
            with contextlib.suppress(OSError):
                return os.open(path, flags | os.O_CLOEXEC, 0o666)
        return None

    # --------------------------------------------------------------------------------------------------- staging
    def stage(self) -> str:
        """Make a staging directory; its name is relative to the sidecar."""
        name = new_staging()
        os.mkdir(self._in_sidecar(name), 0o777)
        return name

    def discard(self, staging: str) -> None:
        """Remove what is staged, unless a commit that is not complete may need it: then the next open does."""
        try:
            if self.pending():
                return
        except OSError:
            return
        discard_tree(self._store, self._in_sidecar(staging))

    def staged(self, name: str) -> str:
        return self._in_sidecar(name)

    # ---------------------------------------------------------------------------------------------------- commit
    def prepare(self, staged: str, target: str) -> Put:
        """Make a staged file durable and recognisable."""
        path = self.staged(staged)
        replaced = self.location.full(target)
        self._require_reachable(replaced)
        status = status_of(replaced)
        if status is not None:
            os.chmod(path, status.st_mode & 0o7777)
        size, checksum = _fingerprint(path)
        self._store.sync_file(path)
        return Put(staged, target, size, checksum)

    def _require_reachable(self, target: str) -> None:
        """After the commit point it would be too late to find that no rename leads to the target."""
        directory = os.path.dirname(target)
        while status_of(directory) is None:
            directory = os.path.dirname(directory)
        if crosses(self.sidecar, directory):
            raise DatasetIOError(
                f"{directory!r} lies on another filesystem than {self.sidecar!r}, so files cannot be moved there.",
                operation="commit",
                hint="Keep a dataset on one filesystem: no partition may be a mount or a link to another one.",
            )

    def commit(self, record: Record) -> None:
        for directory in {os.path.dirname(self.staged(put.staged)) for put in record.puts}:
            self._store.sync_directory(directory)
        self._store.sync_directory(self.sidecar)
        self._sync_parent(self.sidecar)
        self._publish(record)
        self._complete(record)

    def _publish(self, record: Record) -> None:
        """The commit point is the rename; if it cannot be made durable, nobody knows until the next open."""
        draft = self._in_sidecar(f"commit.{record.id}.tmp")
        try:
            with open(draft, "xb") as file:
                file.write(record.dump())
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, self._journal)
        except OSError as error:
            if self.pending():  # a network filesystem can lose the answer to a rename that it made
                raise self._unknown(error) from error
            self._store.remove(draft)
            raise
        try:
            self._store.sync_directory(self.sidecar)
        except OSError as error:
            raise self._unknown(error) from error

    def _unknown(self, error: OSError) -> CommitStateUnknownError:
        return CommitStateUnknownError(
            f"Whether the commit of {self.location.given!r} survives is not known: {error}.",
            operation="commit",
            hint="The next open of the dataset finishes it, or finds it undone; look before you retry.",
        )

    def _complete(self, record: Record) -> None:
        try:
            self.roll_forward(record)
        except CorruptJournalError:
            raise
        except Exception as error:  # whatever it is: nobody may be told that nothing changed
            raise still_pending(self.location, record, error) from error

    def roll_forward(self, record: Record, *, resumed: bool = False) -> None:
        """Put everything in its place; doing it again, or after half of it was done, ends the same."""
        readers = _flock(self._in_sidecar("readers.lock"), fcntl.LOCK_EX, time.monotonic() + _READERS_PATIENCE)
        if readers is None:
            raise TimeoutError(errno.ETIMEDOUT, f"readers held the dataset for {_READERS_PATIENCE} s")
        try:
            self._make_directories(record, resumed=resumed)
            for put in record.puts:
                self._put(put, self.location.full(put.target))
            for name in record.removes:
                self._store.remove(self.location.full(name))
            # where files went first, where they came from last: nothing is ever in neither place
            self._sync(self._target_directories(record))
            self._sync({os.path.dirname(self.staged(put.staged)) for put in record.puts} | {self.sidecar})
            os.unlink(self._journal)
            self._store.sync_directory(self.sidecar)
        finally:
            unlock(readers)

    def _make_directories(self, record: Record, *, resumed: bool) -> None:
        """A directory must be safe before a file moves into it, also one that a dead writer made."""
        for put in record.puts:
            self._store.make_durable_directories(os.path.dirname(self.location.full(put.target)))
        if resumed:
            self._sync_parent(self.location.path)
            self._sync({above for path in self._target_directories(record) for above in self._up_to_root(path)})

    def _target_directories(self, record: Record) -> set[str]:
        names = [*(put.target for put in record.puts), *record.removes]
        return {os.path.dirname(self.location.full(name)) for name in names}

    def _up_to_root(self, directory: str) -> Iterator[str]:
        while len(directory) >= len(self.location.path):
            yield directory
            directory = os.path.dirname(directory)

    def _sync(self, directories: set[str]) -> None:
        for directory in sorted(directories):
            with contextlib.suppress(FileNotFoundError):  # what was to be removed from it is gone with it
                self._store.sync_directory(directory)

    def _sync_parent(self, path: str) -> None:
        """Make the entry of a directory durable that a dead writer may have made; not ours if we may not look."""
        with contextlib.suppress(PermissionError):
            self._store.sync_directory(os.path.dirname(path))

    def _put(self, put: Put, target: str) -> None:
        try:
            self._store.move(self.staged(put.staged), target)
        except FileNotFoundError:
            if not _is(target, put):
                raise self._incomplete(put) from None

    def _incomplete(self, put: Put) -> CorruptJournalError:
        return CorruptJournalError(
            f"{self.location.shown(put.target)!r} is neither staged nor in place as the commit recorded in "
            f"{self._journal!r} needs it, so that cannot be finished. Nothing was touched.",
            operation="recover",
            files=[self.location.shown(put.target)],
            hint="The dataset was probably copied while it was written; copy it again, with its .txn directory.",
        )

    # -------------------------------------------------------------------------------------------------- recovery
    def pending(self) -> bool:
        return status_of(self._journal) is not None

    def recover(self, *, sweep: bool) -> RecoveryReport:
        """With the lock held: finish a committed transaction, and sweep what dead writers left."""
        report = RecoveryReport()
        if self.pending():
            record = Record.load(self._store.read_bytes(self._journal), self._journal)
            self._finish(record)
            report.completed = record.id
            report.files = [self.location.shown(put.target) for put in record.puts]
            report.files += [self.location.shown(name) for name in record.removes]
        if sweep:
            report.swept = self._sweep()
        return report

    def _finish(self, record: Record) -> None:
        """Complete what somebody else committed, if all of it is there (datasets get copied while they change)."""
        try:
            for put in record.puts:
                if not _is(self.staged(put.staged), put) and not _is(self.location.full(put.target), put):
                    raise self._incomplete(put)
            # its writer may have died between the rename and the sync: the record must be safe before a file moves
            self._store.sync_directory(self.sidecar)
            self._sync_parent(self.sidecar)
            self.roll_forward(record, resumed=True)
        except OSError as error:
            raise unfinished(self.location, record, error) from error

    def _sweep(self) -> list[str]:
        swept = []
        for name in sorted(os.listdir(self.sidecar)):
            if name.startswith(STAGING):
                if not is_claimed(self._in_sidecar(name)):  # by a plan, which needs no lock
                    self.discard(name)
                    swept.append(name)
            elif (name.startswith("commit.") and name.endswith(".tmp")) or name.startswith("footers.db-"):
                self._store.remove(self._in_sidecar(name))  # who is writing a cache now does without
        return swept

    def is_writable(self) -> bool:
        return os.access(self.sidecar, os.W_OK)


def _is(path: str, put: Put) -> bool:
    status = status_of(path)
    return status is not None and status.st_size == put.size and _fingerprint(path) == (put.size, put.crc32)


def _flock(path: str, mode: int, deadline: float) -> int | None:
    """A descriptor that holds the lock; None when the deadline passes. (`lockf` is lost when any other
    descriptor of the file closes; `flock` dies with its owner and only with it.)"""
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


def _is_still(path: str, descriptor: int) -> bool:
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
    with contextlib.suppress(OSError):  # a courtesy to those who wait; a full disk must not stop us here
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
        while block := file.read(_COPY_BLOCK):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
    return size, checksum
