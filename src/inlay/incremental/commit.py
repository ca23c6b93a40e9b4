"""Before or after, never between: staging, atomic replacement and recovery of a dataset's files.

`IncrementalFileManager` is one writer's transaction. It takes the writers' lock, finishes what a crash left, gives
out staging paths, and makes all staged files true in one moment. How that moment is made differs between local
disks (`local_commit`) and object stores (`object_commit`); what it means does not.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from inlay.defaults import LOCK_TIMEOUT
from inlay.errors import (
    CommitPendingError,
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidArgumentError,
    LockTimeoutError,
)
from inlay.incremental.failures import failing_as
from inlay.incremental.journal import Record, RecoveryReport
from inlay.incremental.local_commit import LocalJournal
from inlay.incremental.object_commit import ObjectJournal
from inlay.incremental.stage import Slot
from inlay.parquet.footer_cache import FooterCache
from inlay.parquet.layout import data_files
from inlay.storage import FileStat, Location, locate

__all__ = ["IncrementalFileManager", "RecoveryReport", "holding", "list_dataset_files", "read_consistently", "recover"]

_READ_ATTEMPTS = 20
_SHORT_WAIT = 0.1
T = TypeVar("T")


def _journal(location: Location) -> LocalJournal | ObjectJournal:
    return LocalJournal(location) if location.store.is_local else ObjectJournal(location)


class IncrementalFileManager:
    """One transaction on one dataset: stage files, then replace, add and remove them atomically."""

    def __init__(self, filesystem: Any = None, *, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self._filesystem = filesystem
        self._lock_timeout = lock_timeout
        self._journal: LocalJournal | ObjectJournal | None = None
        self._staging: str | None = None
        self._snapshot: list[FileStat] | None = None
        self._given_out = 0
        self._added = 0
        self._renamed: Counter[str] = Counter()
        self.id = uuid.uuid4().hex

    # -------------------------------------------------------------------------------------------------- protocol
    def open(self, location: Location) -> None:
        """Take the writers' lock and finish or sweep whatever a crash left."""
        self._journal = _journal(location)
        self._journal.acquire(self._lock_timeout)
        try:
            self._journal.recover(sweep=True)
        except BaseException:
            self._journal.release()
            raise

    def __enter__(self) -> IncrementalFileManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, (CommitPendingError, CommitStateUnknownError)):
            self._staging = None  # committed, or perhaps committed: the staged files are not ours to remove
        overtaken = self._changed_meanwhile() if isinstance(error, OSError) and self._is_overtaken() else None
        self.cleanup_staging_files()
        if overtaken is not None:
            raise overtaken from error

    @property
    def location(self) -> Location:
        return self._opened.location

    @property
    def _opened(self) -> LocalJournal | ObjectJournal:
        if self._journal is None:
            raise InvalidArgumentError("create_staging_directory(base_path) comes first.")
        return self._journal

    def snapshot(self) -> list[FileStat]:
        """List the data files; the commit will refuse if anybody changes them in between."""
        self._snapshot = data_files(self.location)
        return self._snapshot

    def stage_path(self) -> str:
        """A fresh place for a staged file, as an absolute path in the dataset's store."""
        if self._staging is None:
            self._staging = self._opened.stage()
        self._given_out += 1
        return self._opened.staged(f"{self._staging}/{self._given_out}.stage")

    def rewriting(self, path: str) -> Slot:
        """A place for what replaces a file."""
        return Slot(self.stage_path(), self.replacement_name(path))

    def adding(self, directory: str) -> Slot:
        """A place for a new file, under a name that nobody else gives."""
        name = f"part-{self.id[:12]}-{self._added:05d}.parquet"
        self._added += 1
        return Slot(self.stage_path(), posixpath.join(directory, name))

    def replacement_name(self, path: str) -> str:
        """The name of a rewritten file: its own, or a new one where files cannot be exchanged in place."""
        if self.location.store.is_local:
            return path
        stem, extension = posixpath.splitext(path)
        name = f"{stem.rsplit('-inlay-', 1)[0]}-inlay-{self.id[:12]}"
        self._renamed[name] += 1  # a file may have come back under the name that its successor had
        more = f"-{self._renamed[name]}" if self._renamed[name] > 1 else ""
        return f"{name}{more}{extension}"

    def commit(self, puts: Sequence[tuple[str, str]], removes: Sequence[str] = ()) -> None:
        """Make staged files (absolute path, path in the dataset) and removals true in one moment."""
        journal = self._opened
        touched = [*(target for _, target in puts), *removes]
        if len(set(touched)) != len(touched):
            raise InvalidArgumentError("A commit can touch each file only once.")
        prefix = journal.staged("")
        prepared = [journal.prepare(staged[len(prefix) :], target) for staged, target in puts]
        if self._snapshot is not None and data_files(self.location) != self._snapshot:
            raise self._changed_meanwhile()
        journal.commit(Record(self.id, prepared, list(removes)))
        self._snapshot = None
        self.id = uuid.uuid4().hex

    def _is_overtaken(self) -> bool:
        """Where writers do not wait for each other, a file that cannot be read any more may have been replaced."""
        if self._journal is None or self._snapshot is None or self.location.store.is_local:
            return False
        with contextlib.suppress(OSError):
            return data_files(self.location) != self._snapshot
        return False

    def _changed_meanwhile(self) -> ConcurrentModificationError:
        return ConcurrentModificationError(
            f"Files of {self.location.given!r} changed while the merge was being prepared; nothing was written.",
            hint="Something other than inlay writes to this dataset. Run the merge again when it has finished.",
        )

    # ------------------------------------------------------------------------------------- the required vocabulary
    def create_staging_directory(self, base_path: str) -> str:
        """Create a staging directory for a dataset, beside it and on the same filesystem."""
        if self._journal is None:
            self.open(locate(base_path, self._filesystem))
        if self._staging is None:
            self._staging = self._opened.stage()
        return self._opened.staged(self._staging)

    def atomic_replace_files(self, source_files: list[str], target_files: list[str], filesystem: Any = None) -> None:
        """Replace every target file by the source file at the same position: all of them or none."""
        if len(source_files) != len(target_files):
            raise InvalidArgumentError(
                f"{len(source_files)} source files cannot replace {len(target_files)} target files."
            )
        if not source_files:
            return
        if self._journal is None:
            self._filesystem = filesystem or self._filesystem
            base = posixpath.commonpath([posixpath.dirname(name) for name in target_files])
            self.open(locate(base, self._filesystem))
        self.commit(
            [(self._adopted(s), self.location.relative(t)) for s, t in zip(source_files, target_files, strict=True)]
        )

    def _adopted(self, source: str) -> str:
        """A file staged by the caller elsewhere joins this transaction's staging directory."""
        store, path = self.location.store, locate(source, self._filesystem).path
        if path.startswith(self._opened.staged("")):
            return path
        place = self.stage_path()
        with store.open_read(path) as original, store.open_write(place) as copy:
            shutil.copyfileobj(original, copy)
        return place

    def cleanup_staging_files(self) -> None:
        """Remove what is staged and let other writers in."""
        if self._journal is None:
            return
        if self._staging is not None:
            self._journal.discard(self._staging)
            self._staging = None
        self._journal.release()
        self._journal = None


def recover(
    path: str | os.PathLike[str],
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> RecoveryReport:
    """Finish or undo what a crash left. Every other call does this too; this one says what it did."""
    location = locate_dataset(path, filesystem, storage_options)
    journal = _journal(location)
    if isinstance(journal, LocalJournal) and not journal.has_sidecar():
        return RecoveryReport()
    journal.acquire(lock_timeout)
    try:
        return journal.recover(sweep=True)
    finally:
        journal.release()


def locate_dataset(
    path: str | os.PathLike[str], filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> Location:
    """Where a dataset is, or will be; a single file is not one."""
    location = locate(path, filesystem, storage_options)
    with failing_as("opening of the dataset"):
        is_file = location.store.stat(location.path) is not None and not location.store.is_directory(location.path)
    if is_file:
        raise InvalidArgumentError(f"{location.given!r} is a file; a dataset is a directory of Parquet files.")
    return location


def footer_cache(location: Location) -> FooterCache:
    """The cache of a dataset: in its sidecar, or the user's own where there is none (reading never makes one)."""
    return FooterCache(_journal(location).cache_path or _private_cache(location))


def _private_cache(location: Location) -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(f"{type(location.store).__name__} {location.path}".encode()).hexdigest()
    return os.path.join(home, "inlay", "footers", f"{name[:32]}.db")


def list_dataset_files(dataset_path: str, filesystem: Any = None) -> list[str]:
    """All Parquet files of a dataset, sorted; a commit that a crash interrupted is finished first."""
    location = locate_dataset(dataset_path, filesystem)
    return read_consistently(location, lambda files: [location.shown(file.path) for file in files])


def read_consistently(location: Location, read: Callable[[list[FileStat]], T]) -> T:
    """Run `read` on one state of the dataset: exactly before or exactly after any commit."""
    journal = _journal(location)
    for attempt in range(_READ_ATTEMPTS):
        with _settled(journal, attempt) as (settled, protected):
            if not settled:
                continue
            files = data_files(location)
            try:
                result = read(files)
            except (OSError, ValueError):
                if protected or attempt + 1 == _READ_ATTEMPTS or not _moved(journal, files):
                    raise
                continue
            if protected or not _moved(journal, files):
                return result
    raise _restless(journal)


@contextlib.contextmanager
def holding(location: Location) -> Iterator[list[FileStat]]:
    """One state of the dataset for as long as the block runs: commits wait, or, where they cannot be made to, one
    that came in between is an error at its end."""
    journal = _journal(location)
    for attempt in range(_READ_ATTEMPTS):
        with _settled(journal, attempt) as (settled, protected):
            if not settled:
                continue
            files = data_files(location)
            yield files
            if not protected and _moved(journal, files):
                raise ConcurrentModificationError(
                    f"{location.given!r} changed while it was being read.", hint="Read it again."
                )
            return
    raise _restless(journal)


@contextlib.contextmanager
def _settled(journal: LocalJournal | ObjectJournal, attempt: int) -> Iterator[tuple[bool, bool]]:
    """Whether no commit is half done, and whether none can be while the block runs."""
    _finish_pending(journal)
    with journal.reading() as protected:
        pending = journal.pending()  # committed between the look and the lock, or not ours to finish
        if pending and not journal.is_writable():
            time.sleep(min(0.01 * 2**attempt, 0.5))
        yield not pending, protected


def _restless(journal: LocalJournal | ObjectJournal) -> ConcurrentModificationError:
    given = journal.location.given
    if journal.pending() and not journal.is_writable():
        return ConcurrentModificationError(
            f"A commit to {given!r} is not complete, and without write permission it cannot be completed.",
            hint="Call inlay.recover(path) as somebody who may write there.",
        )
    return ConcurrentModificationError(f"{given!r} changes faster than it can be read.")


def _moved(journal: LocalJournal | ObjectJournal, files: list[FileStat]) -> bool:
    """Whether a listing may show a commit half done. In this order: then that one is either still pending, or
    was completed before the second listing, which differs."""
    return journal.pending() or data_files(journal.location) != files


def _finish_pending(journal: LocalJournal | ObjectJournal) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    while journal.pending() and journal.is_writable():
        try:
            journal.acquire(_SHORT_WAIT)  # most often its own writer finishes it meanwhile
        except LockTimeoutError:
            if time.monotonic() >= deadline:
                raise
            continue
        except PermissionError:
            if journal.is_writable():
                raise
            return  # who may write completes it
        try:
            journal.recover(sweep=False)
        finally:
            journal.release()
