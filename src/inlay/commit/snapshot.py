"""Consistent reads of a dataset: every reader sees the state before or after a commit, and no writer waits for it.

A snapshot lists the data files while no commit moves files. On a local disk, hard links in the sidecar keep the content
of these files readable after later commits replace or remove them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from inlay.commit.sidecar import Record, no_history_error, unlock
from inlay.commit.transaction import Journal, locate_dataset, open_journal
from inlay.constants import LOCK_TIMEOUT
from inlay.errors import ConcurrentModificationError, LockTimeoutError
from inlay.parquet.layout import data_files
from inlay.storage import FileStat, Filesystem, Listing, Location, discard_tree

__all__ = ["SNAPSHOT_SECONDS", "Snapshot", "hold_snapshot", "lease_snapshot", "list_dataset_files", "read_consistently"]

SNAPSHOT_SECONDS = 3600.0  # for which the files of a leased snapshot stay readable
_READ_ATTEMPTS = 20
_SHORT_WAIT = 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data files of a dataset at one moment. `location` opens them."""

    location: Location
    files: Listing
    _journal: Journal
    record: Record | None = None  # of the version

    def has_changed(self) -> bool:
        """Return whether `location` may open other content than that of the snapshot."""
        if self.record is not None and not self.location.store.is_local:
            history = self._journal.history
            return history is None or history.has_lost(self.record)
        if self.location.links is None:
            return _has_changed(self._journal, self.files)
        stats = [self.location.store.stat(self.location.full(file.path)) for file in self.files]
        return [stat and stat[1:] for stat in stats] != [file[1:] for file in self.files]


def list_dataset_files(dataset_path: str | os.PathLike[str], filesystem: Filesystem | None = None) -> list[str]:
    """List the Parquet files of a dataset, after completing a commit that a crash interrupted.

    Args:
        dataset_path: The path or URL of the dataset.
        filesystem: The fsspec or pyarrow filesystem that holds the dataset. By default the path or URL selects it.

    Returns:
        The sorted paths of the files, each beginning with `dataset_path`.

    Raises:
        ConcurrentModificationError: Other programs change the dataset faster than inlay can list it.
        InvalidArgumentError: `dataset_path` is a file.

    Example:
        >>> import inlay
        >>> result = inlay.write_dataset({"id": [1]}, "sales")
        >>> len(inlay.list_dataset_files("sales"))
        1
    """
    location = locate_dataset(dataset_path, filesystem)
    journal = open_journal(location)
    for attempt in range(_READ_ATTEMPTS):
        _finish_pending(journal)
        if not _is_pending(journal, attempt):
            files = data_files(location)
            if not _has_changed(journal, files):
                return [location.display(file.path) for file in files]
    raise _no_snapshot(journal)


def read_consistently(location: Location, read: Callable[[Location, Listing], T], version: int | None = None) -> T:
    """Call `read` with the location and the data files of one snapshot, and repeat it if the files change.

    The first attempt uses no links, because few reads coincide with a commit.
    """
    journal = open_journal(location)
    for attempt in range(_READ_ATTEMPTS):
        with _open_snapshot(journal, attempt, pin=attempt > 0, version=version) as snapshot:
            if snapshot is None:
                continue
            try:
                result = read(snapshot.location, snapshot.files)
            except (OSError, ValueError):
                if attempt + 1 == _READ_ATTEMPTS or not snapshot.has_changed():
                    raise
                continue
            if not snapshot.has_changed():
                return result
    raise _no_snapshot(journal)


@contextlib.contextmanager
def hold_snapshot(location: Location, version: int | None = None) -> Iterator[Snapshot]:
    """Yield one snapshot of a dataset or of one of its versions, whose files stay readable inside the block.

    If no hard links can keep the files readable, as on an object store, the end of the block raises
    `ConcurrentModificationError` if the dataset has changed.
    """
    journal = open_journal(location)
    for attempt in range(_READ_ATTEMPTS):
        with _open_snapshot(journal, attempt, pin=True, version=version) as snapshot:
            if snapshot is None:
                continue
            yield snapshot
            if snapshot.has_changed():
                raise ConcurrentModificationError(f"{location.uri!r} changed during the read.", hint="Read it again.")
            return
    raise _no_snapshot(journal)


def lease_snapshot(location: Location, version: int | None = None) -> Snapshot:
    """Return one snapshot that other processes can read after this call, for `SNAPSHOT_SECONDS` on a local disk.

    If no hard links can keep the files readable, readers must compare the files with those of the snapshot.
    """
    journal = open_journal(location)
    if version is not None:
        with hold_snapshot(location, version) as held:
            leased = journal.lease_links(held.files, SNAPSHOT_SECONDS, held.location)
        if leased is None:
            raise no_history_error(
                location,
                "processes of Spark need hard links to the files of the version, which cannot be created",
                "Read the version in one process: `inlay.read_parquet(path, version=...)`.",
            )
        return Snapshot(leased, held.files, journal, held.record)
    for attempt in range(_READ_ATTEMPTS):
        with _open_snapshot(journal, attempt, pin=False) as snapshot:
            if snapshot is None:
                continue
            leased = journal.lease_links(snapshot.files, SNAPSHOT_SECONDS)
            if not _has_changed(journal, snapshot.files):
                return Snapshot(leased or location, snapshot.files, journal)
            if leased is not None:
                discard_tree(location.store, str(leased.links))
    raise _no_snapshot(journal)


@contextlib.contextmanager
def _open_snapshot(
    journal: Journal, attempt: int, *, pin: bool, version: int | None = None
) -> Iterator[Snapshot | None]:
    """Yield a snapshot, or None if a commit interferes. With `pin`, links keep its files readable."""
    with contextlib.ExitStack() as stack:
        if version is not None:
            yield _pinned_version(journal, stack, version)
            return
        if journal.has_pending_commit() and not _finish_if_possible(journal):
            # The history has the files of the commit, which another process is completing.
            snapshot = _pinned_version(journal, stack)
            if snapshot is not None:
                yield snapshot
                return
        _finish_pending(journal)
        if _is_pending(journal, attempt):
            yield None
            return
        files = data_files(journal.location)
        if not pin:
            yield Snapshot(journal.location, files, journal)
            return
        if (snapshot := _pinned_version(journal, stack, listing=files)) is not None:
            yield snapshot
            return
        pinned = stack.enter_context(journal.pin(files))
        is_mixed = _has_changed(journal, files)
        yield None if is_mixed else Snapshot(pinned or journal.location, files, journal)


def _is_pending(journal: Journal, attempt: int) -> bool:
    """Return whether a commit is pending that only another user can complete. If so, wait for that user."""
    pending = journal.has_pending_commit()
    if pending:
        time.sleep(min(0.01 * 2**attempt, 0.5))
    return pending


def _pinned_version(
    journal: Journal,
    stack: contextlib.ExitStack,
    version: int | None = None,
    listing: Sequence[FileStat] | None = None,
) -> Snapshot | None:
    """Return a version that stays readable until the stack closes: an earlier one, or the newest.

    Return None if the newest version is not known, or is not the state of the dataset in `listing`.
    """
    history = journal.require_history() if version is not None else journal.history
    pinned = None
    if history is not None and (listing is not None or version is not None):
        pinned = history.pin(version)
    elif history is not None:
        pinned = history.pin_pending(journal.staged_path("commit.json"))
    if history is None or pinned is None:
        return None
    if pinned.descriptor is not None:
        stack.callback(unlock, pinned.descriptor)
    if listing is not None and not history.matches(pinned.files, listing):
        return None
    location = history.location_of(pinned.files)
    if listing is None:
        history.require_intact(pinned.record, pinned.files)
    return Snapshot(location, history.listing_of(location, pinned.files), journal, pinned.record)


def _no_snapshot(journal: Journal) -> ConcurrentModificationError:
    uri = journal.location.uri
    if journal.has_pending_commit() and not journal.is_writable():
        return ConcurrentModificationError(
            f"A commit to {uri!r} is pending, and you do not have the write permission to complete it.",
            hint="Run `inlay recover DATASET` as a user with write access.",
        )
    return ConcurrentModificationError(
        f"{uri!r} changes faster than inlay can read it.", hint="Retry when fewer programs write to this dataset."
    )


def _has_changed(journal: Journal, files: Listing) -> bool:
    """Return whether the listing `files` may show a commit that is only partly in place.

    The journal is checked first: such a commit is either still pending, or the new listing differs.
    """
    return journal.has_pending_commit() or data_files(journal.location) != files


def _finish_if_possible(journal: Journal) -> bool:
    """Complete a pending commit, unless its writer is still running or this user cannot write."""
    if not journal.is_writable():
        return False
    try:
        journal.acquire(0)
    except (LockTimeoutError, PermissionError):
        return False
    try:
        journal.recover(sweep=False)
    finally:
        journal.release()
    return True


def _finish_pending(journal: Journal) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    while journal.has_pending_commit() and journal.is_writable():
        try:
            journal.acquire(_SHORT_WAIT)  # Usually the commit's own writer completes it during this wait.
        except LockTimeoutError:
            if time.monotonic() >= deadline:
                raise
            continue
        except PermissionError:
            if journal.is_writable():
                raise
            return  # Only a user with write access can complete it.
        try:
            journal.recover(sweep=False)
        finally:
            journal.release()
