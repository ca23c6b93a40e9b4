"""The versions of a dataset: list, undo, restore, keep and forget them."""

from __future__ import annotations

import contextlib
import gc
import html
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from inlay.commit.damage import damaged_versions
from inlay.commit.entries import Entry
from inlay.commit.kept import KeptFile, KeptFiles
from inlay.commit.local import LocalJournal
from inlay.commit.retention import Retention, expired_versions
from inlay.commit.sidecar import EXTERNAL_OPERATIONS, Change, Record, StagedFile
from inlay.commit.transaction import IncrementalFileManager, locate_dataset, open_journal
from inlay.constants import LOCK_TIMEOUT
from inlay.errors import InlayError, InvalidArgumentError, NotFoundError, wrap_errors
from inlay.parquet.footer_cache import FooterCache
from inlay.parquet.layout import summary_files
from inlay.storage import Content, FileStat, Filesystem, Location

__all__ = [
    "ForgetReport",
    "OpenHistory",
    "Version",
    "VersionHistory",
    "forget",
    "history",
    "keep",
    "open_history",
    "restore",
    "undo",
    "version_of",
]

_COLUMNS = ("version", "at", "operation", "strategy", "inserted", "updated", "deleted", "rows", "files", "bytes")


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a dataset, and the change that made it.

    Attributes:
        version: The number of the version.
        at: The time of the commit, in UTC, as ISO 8601 text.
        operation: `"merge"`, `"delete"`, `"append"`, `"overwrite"`, `"alter"`, `"compact"`, `"undo"`, `"restore"`,
            `"write"` (files of the caller), `"found"` (the files before inlay's first commit), `"external"` (a
            change by another program) or `"create"` (the first version of a dataset of the service).
        strategy: The strategy of a merge, or of a load of the service.
        key_columns: The key columns of a merge.
        inserted: The number of rows added, if known, like `updated`, `deleted` and `rows`.
        updated: The number of rows replaced.
        deleted: The number of rows deleted.
        rows: The number of rows in the dataset.
        files: The number of data files.
        bytes: The size of the data files.
        transaction: The token of the transaction, if the caller passed one.
        external: True if another program made the change.
        damaged: True if another program changed a file of the version in place. The version cannot be read.
        restores: The version whose files an undo or a restore brought back.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1]}, "people").row_count
        1
        >>> [version] = inlay.history("people")
        >>> version.version, version.operation, version.rows
        (1, 'append', 1)
    """

    version: int
    at: str
    operation: str
    strategy: str | None
    key_columns: list[str]
    inserted: int | None
    updated: int | None
    deleted: int | None
    rows: int | None
    files: int
    bytes: int
    transaction: str | None = None
    external: bool = False
    damaged: bool = False
    restores: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert the version to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1]}, "people").row_count
            1
            >>> inlay.history("people")[0].to_dict()["operation"]
            'append'
        """
        return asdict(self)


class VersionHistory(tuple[Version, ...]):
    """The kept versions of a dataset, newest first. `print` and notebooks show a table.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1]}, "people").row_count
        1
        >>> [version.version for version in inlay.history("people")]
        [1]
    """

    __slots__ = ()

    def _cells(self) -> list[list[str]]:
        return [[_cell(version, column) for column in _COLUMNS] for version in self]

    def __repr__(self) -> str:
        rows = [list(_COLUMNS), *self._cells()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        )

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self._cells())
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(version: Version, column: str) -> str:
    value = getattr(version, column)
    if column == "operation":
        restored = "" if version.restores is None else f" to {version.restores}"
        return f"{value}{restored}{' (damaged)' if version.damaged else ''}"
    if column == "at":
        return str(value)[:19]
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """What `forget` or `keep` deleted.

    Attributes:
        versions: The numbers of the dropped versions.
        bytes_freed: The size of the deleted files that no other version has.
        pinned: The version that a running process reads. It and later versions were kept. None if all were dropped.

    Example:
        >>> import inlay
        >>> for number in range(3):
        ...     _ = inlay.write_dataset({"id": [number]}, "people")
        >>> inlay.forget("people", before=3).versions
        [1, 2]
    """

    versions: list[int] = field(default_factory=list)
    bytes_freed: int = 0
    pinned: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Convert the report to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name.

        Example:
            >>> import inlay
            >>> inlay.ForgetReport([1], 100).to_dict()
            {'versions': [1], 'bytes_freed': 100, 'pinned': None}
        """
        return asdict(self)


def history(
    path: str | os.PathLike[str],
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VersionHistory:
    """List the kept versions of a dataset, newest first.

    Every commit makes a version. The first commit to a directory that inlay has not seen records its files as
    version 0. By default, inlay keeps the last 10 versions as long as their files take less space than the dataset,
    and always the previous version. `keep` sets other limits. On an object store, there is no history until then.

    Args:
        path: The directory of the dataset.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.

    Returns:
        The versions, each with its operation and its counts of rows. Empty before the first commit.

    Raises:
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        DatasetIOError: The history cannot be read.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> inlay.merge({"id": [2, 3]}, "people", "upsert", "id").inserted
        1
        >>> for version in inlay.history("people"):
        ...     print(version.version, version.operation, version.rows)
        2 merge 3
        1 append 2
    """
    location = locate_dataset(path, filesystem, storage_options)
    with wrap_errors("read of the history"), _paused_collection():
        kept = open_journal(location).require_history()
        entries = kept.entries()
        damaged = damaged_versions(kept, entries)
        if damaged:  # The links of versions that a writer drops at the same time are missing.
            numbers = set(kept.numbers())
            entries = [entry for entry in entries if entry.version in numbers]
        return VersionHistory(version_of(entry, entry.version in damaged) for entry in reversed(entries))


@contextlib.contextmanager
def _paused_collection() -> Iterator[None]:
    """Pause the garbage collector, which would traverse the entries of thousands of versions several times."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def version_of(entry: Entry, damaged: bool = False) -> Version:
    """Return the version that an entry describes."""
    return Version(
        entry.version,
        entry.at,
        entry.operation,
        entry.strategy,
        entry.key_columns,
        entry.inserted,
        entry.updated,
        entry.deleted,
        entry.rows,
        entry.files,
        entry.bytes,
        entry.transaction,
        entry.operation in EXTERNAL_OPERATIONS,
        damaged,
        entry.restores,
    )


def undo(
    path: str | os.PathLike[str],
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> Version:
    """Revert the newest change of the rows. Called again, revert the change before it.

    The undo is a new version with the files of an earlier one: no row is encoded. A compaction after the reverted
    change is reverted too. A change by another program that no version contains yet is first recorded as a version,
    which is then reverted. `restore` brings an undone version back.

    Args:
        path: The directory of the dataset.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.
        lock_timeout: How many seconds to wait for another writer.

    Returns:
        The new version. `restores` is the version whose rows the dataset has again.

    Raises:
        NotFoundError: There is no earlier version, or it is no longer kept.
        DamagedVersionError: Another program changed a file in place, so its earlier content is lost.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        ConcurrentModificationError: Another program changed the dataset at the same time.
        DatasetIOError: The storage failed.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> inlay.merge({"id": [1]}, "people", "full_merge", "id").deleted
        1
        >>> inlay.undo("people").restores
        1
        >>> inlay.read_parquet("people").num_rows
        2
    """
    with open_history(path, filesystem, storage_options, lock_timeout, "undo") as opened:
        return opened.restore("undo", opened.version_to_undo())


def restore(
    path: str | os.PathLike[str],
    version: int,
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> Version:
    """Restore the rows of an earlier version, as a new version. No row is encoded.

    Args:
        path: The directory of the dataset.
        version: The number of the version, which `history` lists.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.
        lock_timeout: How many seconds to wait for another writer.

    Returns:
        The new version, or the newest version if it has the same files already.

    Raises:
        NotFoundError: The version does not exist or is no longer kept.
        DamagedVersionError: Another program changed a file of the version in place.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        ConcurrentModificationError: Another program changed the dataset at the same time.
        DatasetIOError: The storage failed.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1]}, "people").row_count
        1
        >>> inlay.write_dataset({"id": [2]}, "people").row_count
        1
        >>> inlay.restore("people", 1).version
        3
        >>> inlay.read_parquet("people").to_pydict()
        {'id': [1]}
    """
    with open_history(path, filesystem, storage_options, lock_timeout, "restore") as opened:
        return opened.restore("restore", version)


def keep(
    path: str | os.PathLike[str],
    *,
    versions: int | None = None,
    days: float | None = None,
    bytes: int | None = None,  # noqa: A002
    copies: bool = False,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> ForgetReport:
    """Set how many versions a dataset keeps, and drop those that exceed the limits.

    The limits replace all earlier ones, and each later commit applies them. A limit that is not passed does not
    apply. A version that a running process reads, and all later ones, are kept until it has finished.

    On an object store, the first call turns the history on, also before the dataset exists: later commits copy the
    objects that they replace. Readers there do not keep a version from being dropped.

    Args:
        path: The directory of the dataset.
        versions: The number of versions to keep, with the newest.
        days: How many days to keep a version after a newer one has replaced it.
        bytes: The maximum size of all files that the newest version does not have.
        copies: True keeps a copy of each data file that cannot be hard-linked, for example on a USB stick or if another
            user owns the file. Such a dataset takes more than twice its space.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.
        lock_timeout: How many seconds to wait for another writer.

    Returns:
        The dropped versions.

    Raises:
        InvalidArgumentError: A limit is negative, or `versions` is less than 1.
        NotFoundError: The dataset does not exist.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        DatasetIOError: The storage failed.

    Example:
        >>> import inlay
        >>> for number in range(4):
        ...     _ = inlay.write_dataset({"id": [number]}, "people")
        >>> inlay.keep("people", versions=2).versions
        [1, 2]
    """
    _check_limits(versions, days, bytes)
    retention = Retention(versions, days, bytes, copies)
    with open_history(path, filesystem, storage_options, lock_timeout, "keep", retention) as opened:
        return opened.drop(expired_versions(opened.history))


def _check_limits(versions: int | None, days: float | None, size: int | None) -> None:
    if versions is not None and versions < 1:
        raise InvalidArgumentError(f"versions must be at least 1, not {versions!r}: the newest version counts.")
    for name, limit in (("days", days), ("bytes", size)):
        if limit is not None and limit < 0:
            raise InvalidArgumentError(f"{name} must not be negative: {limit!r}.")


def forget(
    path: str | os.PathLike[str],
    before: int | None = None,
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> ForgetReport:
    """Delete versions below a number, with their links, copies and cached footers.

    On a local disk, a version that a running process reads, and all later ones, are kept: `pinned` in the report names
    it. The files of the dataset itself do not change.

    Args:
        path: The directory of the dataset.
        before: The number of the oldest version to keep. None deletes the whole history and the limits that `keep`
            has set: the next commit begins a new history, and on an object store there is none until you call `keep`.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.
        lock_timeout: How many seconds to wait for another writer.

    Returns:
        The dropped versions and the freed bytes.

    Raises:
        InvalidArgumentError: `before` is greater than the number of the newest version, or it is None and the dataset
            is published as a view.
        NotFoundError: The dataset does not exist.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        DatasetIOError: The storage failed.

    Example:
        >>> import inlay
        >>> for number in range(3):
        ...     _ = inlay.write_dataset({"id": [number]}, "people")
        >>> inlay.forget("people", before=3).versions
        [1, 2]
        >>> len(inlay.history("people"))
        1
    """
    with open_history(path, filesystem, storage_options, lock_timeout, "forget") as opened:
        if before is None:
            return opened.end()
        numbers = opened.history.numbers()
        newest = numbers[-1] if numbers else 0
        if before > newest:
            raise InvalidArgumentError(
                f"The newest version is {newest}, so the versions before {before} cannot all be deleted.",
                hint=f"Pass before={newest} to keep the newest version only.",
            )
        report = opened.drop([number for number in numbers if number < before])
        left = opened.history.numbers()
        return ForgetReport(report.versions, report.bytes_freed, left[0] if left and left[0] < before else None)


@contextlib.contextmanager
def open_history(
    path: str | os.PathLike[str],
    filesystem: Filesystem | None,
    storage_options: Mapping[str, Any] | None,
    lock_timeout: float,
    operation: str,
    retention: Retention | None = None,
) -> Iterator[OpenHistory]:
    location = locate_dataset(path, filesystem, storage_options)
    journal = open_journal(location)
    if retention is None:
        journal.require_history()
    # On an object store, a user begins the history of a dataset before the first write.
    is_known = journal.has_sidecar() if isinstance(journal, LocalJournal) else True
    if not is_known and not location.store.is_directory(location.path):
        raise NotFoundError(f"There is no dataset at {location.uri!r}.")
    with wrap_errors(operation), IncrementalFileManager(lock_timeout=lock_timeout) as files:
        files.open(location)
        if retention is not None:
            files.journal.write_retention(retention)
        yield OpenHistory(location, files)


class OpenHistory:
    """The history of a dataset whose lock this process holds."""

    def __init__(self, location: Location, files: IncrementalFileManager) -> None:
        self.location, self._files = location, files
        self.journal = files.journal
        self.history = self.journal.require_history()

    def snapshot(self) -> Sequence[FileStat]:
        return self._files.snapshot()

    def version_to_undo(self) -> int:
        """Return the version before the newest change of the rows."""
        record, _ = self.record_external(self._files.snapshot())
        while True:
            if record.change.operation == "undo" and record.change.restores is not None:
                record = self.history.read(record.change.restores)
            elif record.change.operation == "compact":
                record = self.history.read((record.version or 0) - 1)
            else:
                return (record.version or 0) - 1

    def record_external(self, listing: Sequence[FileStat]) -> tuple[Record, KeptFiles]:
        record, files = self.journal.record_external(listing)
        if record is None:
            raise NotFoundError(f"{self.location.uri!r} has no versions, because inlay has not written to it.")
        return record, files

    def restore(self, operation: str, number: int) -> Version:
        head, present = self.record_external(self._files.snapshot())
        if head.change.restores == number:
            return version_of(Entry.of(head))
        target = self.history.read(number)
        wanted = self.history.files(target)
        changed = {path: kept for path, kept in wanted.items() if not self._is_present(path, kept, present.get(path))}
        self.history.require_intact(target, changed)
        puts = self._stage(changed)
        names = {put.path for put in puts}
        removed = [path for path in present if (path not in wanted or path in changed) and path not in names]
        if not changed and not removed:
            return version_of(Entry.of(head))
        change = Change(operation, rows=target.change.rows, restores=number)
        self._files.commit(puts, [*removed, *summary_files(self.location)], change)
        return version_of(Entry.of(self._files.committed or head))

    def _is_present(self, path: str, kept: KeptFile, present: KeptFile | None) -> bool:
        """Return whether the dataset has a file of a version. Links that a restore made share the content."""
        if present is None or present[1:] != kept[1:]:
            return False
        if present.link == kept.link or kept.crc32 is not None or not self.location.store.is_local:
            return True
        links = self.history.location_of({path: kept}), self.history.location_of({path: present})
        return os.path.samefile(*(link.full(path) for link in links))

    def _stage(self, files: KeptFiles) -> list[StagedFile]:
        staged = {path: self._files.stage_path() for path in files}
        self.history.stage(self.history.location_of(files), files, staged)
        contents = {
            path: None if kept.crc32 is None else Content(kept.size, kept.crc32) for path, kept in files.items()
        }
        return [StagedFile(staged[path], self._files.replacement_name(path), contents[path]) for path in files]

    def end(self) -> ForgetReport:
        views = self.journal.views.read() if isinstance(self.journal, LocalJournal) else {}
        if views:
            raise InvalidArgumentError(
                f"{self.location.uri!r} is published as {' and '.join(sorted(views))}, and views need a history.",
                hint="Run inlay.unpublish(path) first, or pass `before` to keep the newest version.",
            )
        versions, freed = self.journal.end_history()
        self._delete_cache()
        left = self.journal.history
        return ForgetReport(versions, freed, min(left.numbers(), default=None) if left is not None else None)

    def drop(self, numbers: Sequence[int]) -> ForgetReport:
        journal = self.journal if isinstance(self.journal, LocalJournal) and numbers else None
        if journal is not None:  # Views keep the files of versions that they lack.
            with contextlib.suppress(InlayError):  # It may be what the dropped versions contain.
                journal.views.update_all(journal.require_history(), exact=False)
        versions, freed = self.history.drop(numbers)
        if journal is not None:
            journal.views.update_all(journal.require_history(), exact=True)
        self._delete_cache()
        return ForgetReport(versions, freed)

    def _delete_cache(self) -> None:
        if self.journal.cache_path is not None:
            FooterCache(self.journal.cache_path).delete()
