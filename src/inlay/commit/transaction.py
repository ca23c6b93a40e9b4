"""Transactions on a dataset's files: stage, commit and recover.

`IncrementalFileManager` is one writer's transaction. The journal of the dataset (`commit/local.py` on a local disk,
`commit/object_store.py` on an object store) makes its commit atomic: readers see all of its changes or none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shutil
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from inlay.commit.local import LocalJournal
from inlay.commit.object_store import ObjectJournal
from inlay.commit.sidecar import Change, Record, RecoveryReport, StagedFile
from inlay.constants import LOCK_TIMEOUT
from inlay.errors import (
    CommitPendingError,
    CommitStateUnknownError,
    ConcurrentModificationError,
    InvalidArgumentError,
    wrap_errors,
)
from inlay.parquet.footer_cache import FooterCache
from inlay.parquet.layout import data_files
from inlay.storage import FileStat, Filesystem, Location, locate

__all__ = [
    "IncrementalFileManager",
    "RecoveryReport",
    "StagedFile",
    "Transaction",
    "find_outcome",
    "open_journal",
    "recover",
]

Journal: TypeAlias = LocalJournal | ObjectJournal


class Transaction(Protocol):
    """A transaction on a dataset's files, of a plain dataset or of one in the catalog."""

    def snapshot(self) -> Sequence[FileStat]:
        """List the data files. The commit fails if they change afterward."""

    def stage_replacement(self, path: str) -> StagedFile:
        """Reserve a staging path for a file that replaces an existing file."""

    def stage_new_file(self, directory: str, extension: str = ".parquet") -> StagedFile:
        """Reserve a staging path for a new file in a directory of the dataset."""

    def commit(
        self,
        puts: Sequence[StagedFile],
        removes: Sequence[str],
        change: Change = ...,
        *,
        token: str | None = None,
        outcome: Mapping[str, Any] | None = None,
    ) -> None: ...


def open_journal(location: Location) -> Journal:
    return LocalJournal(location) if location.store.is_local else ObjectJournal(location)


def find_outcome(journal: Journal, token: str) -> Mapping[str, Any] | None:
    """Return the outcome of a committed transaction, or None. A dataset that lost its data files knows no tokens."""
    outcome = journal.find_outcome(token)
    is_known = outcome is not None and (data_files(journal.location) or journal.has_early_tokens())
    return outcome if is_known else None


class IncrementalFileManager:
    """A transaction on one dataset that replaces, adds and removes files atomically.

    Opening a dataset takes its writer lock (on a local disk) and completes commits that a crash interrupted. Leaving
    the `with` block deletes staged files and releases the lock.

    Args:
        filesystem: The fsspec or pyarrow filesystem that holds the dataset. By default the path or URL selects it.
        lock_timeout: The seconds to wait for another writer of the dataset.

    Example:
        >>> import inlay
        >>> import pyarrow as pa
        >>> import pyarrow.parquet as pq
        >>> inlay.write_dataset({"id": [1]}, "sales").row_count
        1
        >>> [path] = inlay.list_dataset_files("sales")
        >>> with inlay.incremental.IncrementalFileManager() as manager:
        ...     staging = manager.create_staging_directory("sales")
        ...     pq.write_table(pa.table({"id": [1, 2]}), f"{staging}/new.parquet")
        ...     manager.atomic_replace_files([f"{staging}/new.parquet"], [path])
        >>> inlay.read_parquet("sales").num_rows
        2
    """

    def __init__(self, filesystem: Filesystem | None = None, *, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self._filesystem = filesystem
        self._lock_timeout = lock_timeout
        self._journal: Journal | None = None
        self.committed: Record | None = None
        self._staging: str | None = None
        self._snapshot: Sequence[FileStat] | None = None
        self._staged_count = 0
        self._added_count = 0
        self._renamed: Counter[str] = Counter()
        self.id = uuid.uuid4().hex

    def open(self, location: Location) -> None:
        """Take the writer lock, and complete or discard commits that a crash interrupted.

        Args:
            location: The location of the dataset.

        Raises:
            LockTimeoutError: Another writer holds the lock for longer than `lock_timeout`.
            CorruptJournalError: The record of a pending commit is damaged, or a file that it needs is missing.
            DatasetIOError: A pending commit cannot be completed.
            OSError: The directory of the dataset or its sidecar cannot be created.
            InlayError: The object store does not support conditional writes.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> from inlay.storage import locate
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     manager.open(locate("sales"))
            ...     len(manager.snapshot())
            1
        """
        self._journal = open_journal(location)
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
            self._staging = None  # The commit needs the staged files, or may need them.
        conflict = self._conflict() if isinstance(error, OSError) and self._is_overtaken() else None
        self.cleanup_staging_files()
        if conflict is not None:
            raise conflict from error

    @property
    def location(self) -> Location:
        return self.journal.location

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            raise InvalidArgumentError("No dataset is open.", hint="Call create_staging_directory(base_path) first.")
        return self._journal

    def snapshot(self) -> Sequence[FileStat]:
        """List the data files. The commit fails if another program changes them afterward.

        Returns:
            Path, size, modification time and inode or ETag of each data file, sorted by path.

        Raises:
            InvalidArgumentError: No dataset is open.
            OSError: The directory cannot be listed.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     [file] = manager.snapshot()
            >>> file.path.endswith(".parquet")
            True
        """
        self._snapshot = data_files(self.location)
        return self._snapshot

    def stage_path(self) -> str:
        """Reserve a path for a staged file.

        Returns:
            An absolute path in the dataset's store.

        Raises:
            InvalidArgumentError: No dataset is open.
            OSError: The staging directory cannot be created.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     manager.stage_path().startswith(staging)
            True
        """
        if self._staging is None:
            self._staging = self.journal.create_staging()
        self._staged_count += 1
        return self.journal.staged_path(f"{self._staging}/{self._staged_count}.stage")

    def stage_replacement(self, path: str) -> StagedFile:
        """Reserve a staging path for a file that replaces an existing file.

        Args:
            path: The path of the existing file, relative to the dataset.

        Returns:
            The staging path, and the path of the file after the commit.

        Raises:
            InvalidArgumentError: No dataset is open.
            OSError: The staging directory cannot be created.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     manager.stage_replacement("day=mon/a.parquet").path
            'day=mon/a.parquet'
        """
        return StagedFile(self.stage_path(), self.replacement_name(path))

    def stage_new_file(self, directory: str, extension: str = ".parquet") -> StagedFile:
        """Reserve a staging path for a new file with a unique name.

        Args:
            directory: The directory of the new file, relative to the dataset.
            extension: The end of its name.

        Returns:
            The staging path, and the path of the file after the commit.

        Raises:
            InvalidArgumentError: No dataset is open.
            OSError: The staging directory cannot be created.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     manager.stage_new_file("day=mon").path
            'day=mon/part-...-00000.parquet'
        """
        name = f"part-{self.id[:12]}-{self._added_count:05d}{extension}"
        self._added_count += 1
        return StagedFile(self.stage_path(), posixpath.join(directory, name))

    def replacement_name(self, path: str) -> str:
        """Choose the name of the file that replaces an existing file.

        Args:
            path: The path of the existing file, relative to the dataset.

        Returns:
            The same path on a local disk, or a new path on an object store, where no file is overwritten.

        Raises:
            InvalidArgumentError: No dataset is open.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     manager.replacement_name("a.parquet")
            'a.parquet'
        """
        if self.location.store.is_local:
            return path
        stem, extension = posixpath.splitext(path)
        name = f"{stem.rsplit('-inlay-', 1)[0]}-inlay-{self.id[:12]}"
        self._renamed[name] += 1  # Two files can have the same stem if someone restored an old file.
        suffix = f"-{self._renamed[name]}" if self._renamed[name] > 1 else ""
        return f"{name}{suffix}{extension}"

    def find_outcome(self, token: str) -> Mapping[str, Any] | None:
        """Look up a transaction that is committed already.

        Args:
            token: The token that `commit` received.

        Returns:
            The outcome that `commit` received, or None. A dataset that lost its data files knows no tokens.

        Raises:
            InvalidArgumentError: No dataset is open.
            CorruptJournalError: The record of the transaction is damaged.
            OSError: The record cannot be read.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> from inlay.storage import locate
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     manager.open(locate("sales"))
            ...     _ = manager.snapshot()
            ...     manager.commit([], token="batch-1", outcome={"rows": 0})
            ...     manager.find_outcome("batch-1"), manager.find_outcome("batch-2")
            ({'rows': 0}, None)
        """
        return find_outcome(self.journal, token)

    def commit(
        self,
        puts: Sequence[tuple[str, str] | StagedFile],
        removes: Sequence[str] = (),
        change: Change = Change(),  # noqa: B008  (frozen)
        *,
        token: str | None = None,
        outcome: Mapping[str, Any] | None = None,
    ) -> None:
        """Put staged files in place and remove files, atomically.

        Args:
            puts: Staged files, or pairs of a staging path and a target path relative to the dataset.
            removes: Paths to remove, relative to the dataset.
            change: The operation and its counts, for the history of the dataset.
            token: The token of the transaction, which is recorded together with the change.
            outcome: What `find_outcome` returns for this token: values that JSON can represent.

        Raises:
            InvalidArgumentError: No dataset is open, or a target path occurs twice.
            OSError: A staged file cannot be read, or the storage rejects the commit. The dataset is unchanged.
            ConcurrentModificationError: The data files changed since `snapshot`, or another writer committed first.
            CommitPendingError: The change is committed, but not all files are in place yet.
            CommitStateUnknownError: The storage failed at the commit point, and the outcome is unknown.

        Example:
            >>> import inlay
            >>> import pyarrow as pa
            >>> import pyarrow.parquet as pq
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     new = manager.stage_new_file("")
            ...     pq.write_table(pa.table({"id": [2]}), new.stage)
            ...     manager.commit([new])
            >>> inlay.read_parquet("sales").num_rows
            2
        """
        journal = self.journal
        touched = [*(put[1] for put in puts), *removes]
        if len(set(touched)) != len(touched):
            raise InvalidArgumentError("A commit can change each file only once.")
        prefix = len(journal.staged_path(""))
        prepared = journal.prepare([StagedFile(*put)._replace(stage=put[0][prefix:]) for put in puts])
        is_compared = self._snapshot is not None
        files = data_files(self.location) if is_compared or journal.history is not None else []
        if is_compared and files != self._snapshot:
            raise self._conflict()
        record = Record(self.id, prepared, list(removes), change=change, token=token, outcome=outcome)
        self.committed = journal.commit(record, files, is_new=self._snapshot == [])
        self._snapshot = None
        self.id = uuid.uuid4().hex

    def _is_overtaken(self) -> bool:
        """Return whether another writer of an object store changed the data files since `snapshot`."""
        if self._journal is None or self._snapshot is None or self.location.store.is_local:
            return False
        with contextlib.suppress(OSError):
            return data_files(self.location) != self._snapshot
        return False

    def _conflict(self) -> ConcurrentModificationError:
        return ConcurrentModificationError(
            f"Files of {self.location.uri!r} changed during the operation. Nothing was written.",
            hint="Retry when no other program writes to this dataset.",
        )

    def create_staging_directory(self, base_path: str | os.PathLike[str]) -> str:
        """Open a dataset and create a staging directory on its filesystem.

        Args:
            base_path: The path of the dataset.

        Returns:
            The path of the staging directory, in the sidecar of the dataset.

        Raises:
            InvalidArgumentError: `base_path` is not a valid path or URL.
            LockTimeoutError: Another writer holds the lock for longer than `lock_timeout`.
            CorruptJournalError: The record of a pending commit is damaged, or a file that it needs is missing.
            DatasetIOError: A pending commit cannot be completed.
            OSError: The directory of the dataset or its sidecar cannot be created.
            InlayError: The object store does not support conditional writes.

        Example:
            >>> import inlay
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     ".sales.txn/.staging_" in staging
            True
        """
        if self._journal is None:
            self.open(locate(base_path, self._filesystem))
        if self._staging is None:
            self._staging = self.journal.create_staging()
        return self.journal.staged_path(self._staging)

    def atomic_replace_files(
        self, source_files: list[str], target_files: list[str], filesystem: Filesystem | None = None
    ) -> None:
        """Replace each target file with the source file at the same position: all files or none.

        Args:
            source_files: Paths of staged files. Files outside the staging directory are copied.
            target_files: Paths of files in the dataset, as many as source files.
            filesystem: The filesystem to use if no dataset is open yet.

        Raises:
            InvalidArgumentError: The lists differ in length, or a target is outside the dataset or occurs twice.
            LockTimeoutError: Another writer holds the lock for longer than `lock_timeout`.
            OSError: A source file cannot be read, or the storage rejects the commit. The dataset is unchanged.
            ConcurrentModificationError: Another writer changed the dataset.
            CommitPendingError: The change is committed, but not all files are in place yet.
            CommitStateUnknownError: The storage failed at the commit point, and the outcome is unknown.

        Example:
            >>> import inlay
            >>> import pyarrow as pa
            >>> import pyarrow.parquet as pq
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> with IncrementalFileManager() as manager:
            ...     staging = manager.create_staging_directory("sales")
            ...     [target] = inlay.list_dataset_files("sales")
            ...     pq.write_table(pa.table({"id": [1, 2]}), f"{staging}/new.parquet")
            ...     manager.atomic_replace_files([f"{staging}/new.parquet"], [target])
            >>> inlay.read_parquet("sales").num_rows
            2
        """
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
            [(self._staged(s), self.location.relative(t)) for s, t in zip(source_files, target_files, strict=True)]
        )

    def _staged(self, source: str) -> str:
        """Return the path of a staged source file. Copy files from elsewhere to the staging directory."""
        store, path = self.location.store, locate(source, self._filesystem).path
        if path.startswith(self.journal.staged_path("")):
            return path
        staged = self.stage_path()
        with store.open_read(path) as original, store.open_write(staged) as copy:
            shutil.copyfileobj(original, copy)
        return staged

    def cleanup_staging_files(self) -> None:
        """Delete staged files and release the writer lock.

        The end of the `with` block calls this method.

        Example:
            >>> import inlay
            >>> import os
            >>> from inlay.incremental import IncrementalFileManager
            >>> inlay.write_dataset({"id": [1]}, "sales").row_count
            1
            >>> manager = IncrementalFileManager()
            >>> staging = manager.create_staging_directory("sales")
            >>> manager.cleanup_staging_files()
            >>> os.path.exists(staging)
            False
        """
        if self._journal is None:
            return
        if self._staging is not None:
            self._journal.discard_staging(self._staging)
            self._staging = None
        self._journal.release()
        self._journal = None


def recover(
    path: str | os.PathLike[str],
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    undo: bool = False,
) -> RecoveryReport:
    """Complete or undo an interrupted commit, and delete the staged files of crashed writers.

    Every other call on a dataset completes interrupted commits too. `recover` also reports what it did.

    Args:
        path: The path or URL of the dataset.
        filesystem: The fsspec or pyarrow filesystem that holds the dataset. By default the path or URL selects it.
        storage_options: Options for the fsspec filesystem that the URL selects, such as credentials.
        lock_timeout: The seconds to wait for another writer of the dataset.
        undo: True restores the files as they were before the interrupted commit, for example if a full disk or a
            missing permission keeps it from completing. Only for datasets on a local disk.

    Returns:
        The completed or undone commit, its files and the deleted staging directories. The report is false if nothing
        was done.

    Raises:
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout`.
        CorruptJournalError: The record of the pending commit is damaged, or a file that it needs is missing.
        InvalidArgumentError: `undo` is true, and the dataset is on an object store.
        DatasetIOError: The filesystem failed, so the pending commit is still not complete.

    Example:
        >>> import inlay
        >>> inlay.recover("sales")
        RecoveryReport(completed=None, files=[], swept=[], undone=None)
    """
    location = locate_dataset(path, filesystem, storage_options)
    journal = open_journal(location)
    if isinstance(journal, LocalJournal) and not journal.has_sidecar():
        return RecoveryReport()
    with wrap_errors("recovery"):
        journal.acquire(lock_timeout)
        try:
            report = journal.recover(sweep=True, undo=undo)
            if journal.history is not None:
                journal.history.finish_drops()
            return report
        finally:
            journal.release()


def locate_dataset(
    path: str | os.PathLike[str],
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Location:
    """Return the location of a dataset that exists or will be created. Reject the path of a file."""
    location = locate(path, filesystem, storage_options)
    with wrap_errors("opening of the dataset"):
        is_file = location.store.stat(location.path) is not None and not location.store.is_directory(location.path)
    if is_file:
        raise InvalidArgumentError(
            f"{location.uri!r} is a file. A dataset is a directory of Parquet files.",
            hint="Pass the path of the directory.",
        )
    return location


def footer_cache(location: Location) -> FooterCache:
    """Return the footer cache in the sidecar of a dataset, or in the user's cache directory.

    A read never creates a sidecar, so a dataset without one uses the user's cache directory.
    """
    return FooterCache(open_journal(location).cache_path or _private_cache(location))


def _private_cache(location: Location) -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(f"{type(location.store).__name__} {location.path}".encode()).hexdigest()
    return os.path.join(home, "inlay", "footers", f"{name[:32]}.db")
