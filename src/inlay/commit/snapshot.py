"""Consistent reads of a dataset: every reader sees the state before or after a commit, and no writer waits for it.

A snapshot lists the data files while no commit moves files. On a local disk, hard links in the sidecar keep the content
of these files readable after later commits replace or remove them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from inlay.commit.transaction import Journal, locate_dataset, open_journal
from inlay.constants import LOCK_TIMEOUT
from inlay.errors import ConcurrentModificationError, LockTimeoutError
from inlay.parquet.layout import data_files
from inlay.storage import FileStat, Filesystem, Location

__all__ = ["Snapshot", "hold_snapshot", "list_dataset_files", "read_consistently"]

_READ_ATTEMPTS = 20
_SHORT_WAIT = 0.1
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The data files of a dataset at one moment. `location` opens them."""

    location: Location
    files: list[FileStat]
    _journal: Journal

    def has_changed(self) -> bool:
        """Return whether `location` may open other content than that of the snapshot."""
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
    return read_consistently(location, lambda _, files: [location.display(file.path) for file in files])


def read_consistently(location: Location, read: Callable[[Location, list[FileStat]], T]) -> T:
    """Call `read` with the location and the data files of one snapshot, and repeat it if the files change.

    The first attempt uses no links, because few reads coincide with a commit.
    """
    journal = open_journal(location)
    for attempt in range(_READ_ATTEMPTS):
        with _open_snapshot(journal, attempt, pin=attempt > 0) as snapshot:
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
def hold_snapshot(location: Location) -> Iterator[Snapshot]:
    """Yield one snapshot, whose files stay readable inside the block.

    If no hard links can keep the files readable, as on an object store, the end of the block raises
    `ConcurrentModificationError` if the dataset has changed.
    """
    journal = open_journal(location)
    for attempt in range(_READ_ATTEMPTS):
        with _open_snapshot(journal, attempt, pin=True) as snapshot:
            if snapshot is None:
                continue
            yield snapshot
            if snapshot.has_changed():
                raise ConcurrentModificationError(f"{location.uri!r} changed during the read.", hint="Read it again.")
            return
    raise _no_snapshot(journal)


@contextlib.contextmanager
def _open_snapshot(journal: Journal, attempt: int, *, pin: bool) -> Iterator[Snapshot | None]:
    """Yield a snapshot, or None if a commit interferes. With `pin`, links keep its files readable."""
    _finish_pending(journal)
    if journal.has_pending_commit():  # Only another user can complete this commit.
        time.sleep(min(0.01 * 2**attempt, 0.5))
        yield None
        return
    files = data_files(journal.location)
    if not pin:
        yield Snapshot(journal.location, files, journal)
        return
    with journal.pin(files) as pinned:
        is_mixed = _has_changed(journal, files)
        yield None if is_mixed else Snapshot(pinned or journal.location, files, journal)


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


def _has_changed(journal: Journal, files: list[FileStat]) -> bool:
    """Return whether the listing `files` may show a commit that is only partly in place.

    The journal is checked first: such a commit is either still pending, or the new listing differs.
    """
    return journal.has_pending_commit() or data_files(journal.location) != files


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
