"""The history of a dataset on a local disk: a record of each version, and hard links that keep its files.

    <parent>/.<dataset>.txn/
        files/<directory>/<name>.<link>   a hard link to each file of a version; no name ends in `.parquet`
        versions/<n>.json                 the record of the commit that made version n, which never changes
        versions/<n>.all                  all files of version n, see `commit/kept.py`; so few records are read
        versions/<n>.drop                 the record of a version whose links are being deleted
        versions/<n>.past                 the record of a dropped version that later versions need

A link is durable before the record that names it, and each link belongs to consecutive versions. So readers need no
lock, a crashed writer leaves at most the links that its draft names, and dropping the oldest version deletes exactly
the links that its successor replaced.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TypeVar

from inlay.commit.access import share_access
from inlay.commit.files import link_into, open_directory, read_content, read_footer_checksum, write_durably
from inlay.commit.kept import LINK_LENGTH, FileList, KeptFile, KeptFiles, apply, link_name
from inlay.commit.published import PublishedViews
from inlay.commit.sidecar import Change, Put, Record, stat_or_none, unlock
from inlay.errors import CorruptJournalError, DamagedVersionError, InlayError, NotFoundError
from inlay.storage import FileStat, Listing, LocalStore, Location

__all__ = [
    "History",
    "PinnedVersion",
    "damaged_error",
    "damaged_files",
    "require_intact",
]

T = TypeVar("T")

# A list of all files is written again after this many records, more for datasets of many files, or this many changes.
_FEW_RECORDS, _MAX_RECORDS = 8, 64
_MIN_CHANGES = 64
_READ_ATTEMPTS = 50
_VERSION = re.compile(r"([0-9]{8,})\.json")


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """A version that no writer drops until `descriptor` closes."""

    record: Record
    files: KeptFiles
    descriptor: int


class History:
    """The versions in the sidecar of a dataset. Writers hold the lock of the dataset, and readers hold none."""

    def __init__(self, location: Location, sidecar: str) -> None:
        self._location, self._sidecar = location, sidecar
        self._store = LocalStore()
        self._links, self._versions = f"{sidecar}/files", f"{sidecar}/versions"

    def read_retention(self) -> bytes | None:
        try:
            return self._store.read_bytes(f"{self._versions}/retention")
        except FileNotFoundError:
            return None

    def write_retention(self, content: bytes) -> None:
        self._prepare_writing()
        draft = new_draft(self._sidecar)
        write_durably(draft, content)
        os.rename(draft, f"{self._versions}/retention")
        self._store.sync_directory(self._versions)

    # --------------------------------------------------------------------------------------------------- reading
    def exists(self) -> bool:
        return stat_or_none(self._versions) is not None

    def numbers(self) -> list[int]:
        """List the kept versions, oldest first."""
        return sorted(self._numbers("json"))

    def _numbers(self, kind: str) -> list[int]:
        try:
            names = os.listdir(self._versions)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [int(name.split(".")[0]) for name in names if re.fullmatch(rf"[0-9]{{8,}}\.{kind}", name)]

    def _path(self, number: int, kind: str = "json") -> str:
        return f"{self._versions}/{number:08d}.{kind}"

    def read(self, number: int) -> Record:
        """Return the record of a kept version."""
        path = self._path(number)
        try:
            return Record.load(self._store.read_bytes(path), path)
        except FileNotFoundError:
            raise self._missing(number) from None

    def _missing(self, number: int) -> NotFoundError:
        numbers = self.numbers()
        kept = f"Versions {numbers[0]} to {numbers[-1]} are kept" if numbers else "No version is kept"
        return NotFoundError(
            f"Version {number} of {self._location.uri!r} does not exist or is no longer kept. {kept}.",
            hint="Run `inlay history DATASET` to list the versions.",
        )

    def head(self) -> Record | None:
        """Return the record of the newest version. Only a caller with the lock knows that it stays the newest."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def files(self, record: Record, paths: Collection[str] | None = None) -> KeptFiles:
        """Return the files of the version of a record, which may still be pending: all, or those at some paths."""
        return _files(*self._read_files(record), paths)

    def _read_files(self, record: Record) -> tuple[FileList | None, list[Record]]:
        return self._retried(lambda: self._find_list(record))

    def _find_list(self, record: Record) -> tuple[FileList | None, list[Record]]:
        """Return the nearest list of all files, and the later records up to `record`, newest first."""
        number, records = record.version or 0, list[Record]()
        while (found := self._read_list(number)) is None:
            changes = record if number == record.version else self._read_any(number, "json", "drop", "past")
            if changes is None:
                raise FileNotFoundError(self._path(number))
            records.append(changes)
            if changes.is_first:
                return None, records
            number -= 1
        return found, records

    def _read_list(self, number: int) -> FileList | None:
        path = self._path(number, "all")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return FileList(self._store.read_bytes(path), path)
        return None

    def _read_any(self, number: int, *kinds: str) -> Record | None:
        for path in (self._path(number, kind) for kind in kinds):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return Record.load(self._store.read_bytes(path), path)
        return None

    def _retried(self, read: Callable[[], T]) -> T:
        """Repeat a read of several records that a writer renames at the same time."""
        for _ in range(_READ_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                return read()
        raise CorruptJournalError(
            f"The history of {self._location.uri!r} lacks a record in {self._versions!r}.",
            operation="read",
            files=[self._versions],
            hint="Restore the directory from a backup, or run `inlay forget DATASET` to begin a new history.",
        )

    def location_of(self, files: KeptFiles) -> Location:
        """Return a location that opens the files of a version through their links."""
        objects = {path: link_name(path, kept.link) for path, kept in files.items()}
        return replace(self._location, links=self._links, objects=objects)

    @property
    def links_location(self) -> Location:
        """A location that opens each link by its name."""
        return replace(self._location, path=self._links)

    def has_damaged(self, number: int, paths: Collection[str]) -> bool:
        """Return whether one of some files of a kept version is damaged."""
        files = self.files(self.read(number), paths)
        return next(damaged_files(self.location_of(files), files), None) is not None

    def matches(self, files: KeptFiles, listing: Sequence[FileStat]) -> bool:
        """Return whether a listing of the dataset shows the files of a version."""
        paths, sizes, times, _ = Listing.of(listing).columns
        if len(files) != len(paths):
            return False
        kept = map(files.get, paths)
        return all(k and k.size == s and k.mtime_ns == t for k, s, t in zip(kept, sizes, times, strict=True))

    # ------------------------------------------------------------------------------------------------------- pins
    def pin(self, number: int | None = None) -> PinnedVersion | None:
        """Keep a version (by default the newest) from being dropped. Return None if there is no version.

        The lock on its record ends with its process.
        """
        for _ in range(_READ_ATTEMPTS):
            wanted = max(self._numbers("json"), default=None) if number is None else number
            if wanted is None:
                return None
            try:
                pinned = self._pin(self._path(wanted))
            except FileNotFoundError:
                pinned = None
                if number is not None:
                    raise self._missing(number) from None
            if pinned is not None:
                return pinned
        raise self._missing(number or 0)

    def pin_pending(self, path: str) -> PinnedVersion | None:
        """Pin the version of the pending commit whose record is at `path`, or return None if there is none."""
        try:
            return self._pin(path)
        except FileNotFoundError:
            return None

    def _pin(self, path: str) -> PinnedVersion | None:
        """Pin the version of a record. Return None if a writer drops it at the same time."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            with open(descriptor, "rb", closefd=False) as file:
                record = Record.load(file.read(), path)
            if record.version is not None and _is_any(descriptor, path, self._path(record.version)):
                return PinnedVersion(record, self.files(record), descriptor)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    # --------------------------------------------------------------------------------------------------- recording
    def begin(self, record: Record, listing: Sequence[FileStat], count_rows: Callable[[], int | None]) -> Record:
        """Number a commit as the next version. Before that, record what other programs changed in the dataset."""
        self._prepare_writing()
        head = self.head()
        if head is not None and _is_unchanged(head, listing):
            files = self._head_files(head, record.paths)
        else:
            head, files = self.record_external(listing, count_rows)
        link = record.id[:LINK_LENGTH]
        puts = [self._described(put, link) for put in record.puts]
        return _next_version(replace(record, puts=puts), head, files, listing)

    def record_external(
        self, listing: Sequence[FileStat], count_rows: Callable[[], int | None]
    ) -> tuple[Record | None, KeptFiles]:
        """Record the changes of other programs as a version, if there are any. Return the newest version."""
        self._prepare_writing()
        head = self.head()
        files = self._head_files(head) if head else {}
        changed = [file for file in listing if not self._is_kept(files.get(file.path), file)]
        present = {file.path for file in listing}
        removed = [path for path in files if path not in present]
        if not changed and not removed:
            return head, files
        operation = "external" if head else "found"
        record = Record(uuid.uuid4().hex, removes=removed, change=Change(operation, rows=count_rows()))
        link = record.id[:LINK_LENGTH]
        record = replace(record, puts=[self._found(file, link) for file in changed])
        record = _next_version(record, head, files, listing, first=0)
        self._publish_external(record)
        apply(files, record)
        if len(record.puts) == len(files) > _MIN_CHANGES:  # A list is read faster than such a record.
            self._write_list(record, files)
        return record, files

    def _head_files(self, head: Record, paths: Collection[str] | None = None) -> KeptFiles:
        """Return files of the newest version. Write their list again if that saves time later."""
        found, records = self._read_files(head)
        many_records = min(_MAX_RECORDS, _FEW_RECORDS + head.file_count // _MIN_CHANGES)
        many_changes = max(head.file_count, _MIN_CHANGES)
        if len(records) <= many_records and sum(len(each.paths) for each in records) <= many_changes:
            return _files(found, records, paths)
        files = _files(found, records)
        self._write_list(head, files)
        return files

    def _prepare_writing(self) -> None:
        """Create the directories of the history, or make what a killed writer left there durable."""
        if self.exists():
            self._store.sync_directory(self._versions)
            return
        trial = f"{self._sidecar}/commit.trial.tmp"  # A sweep deletes drafts.
        os.link(f"{self._sidecar}/lock", trial)
        os.unlink(trial)
        for directory in (self._links, self._versions):
            for made in self._store.make_directories(directory):
                share_access(self._sidecar, made)
        self._store.sync_directory(self._sidecar)

    def remove_unused(self) -> None:
        """Remove the directories of a history without versions."""
        for directory in (self._versions, self._links):
            self._store.remove_empty_directory(directory)

    def _described(self, put: Put, link: str) -> Put:
        path = f"{self._sidecar}/{put.staged}"
        return put._replace(link=link, mtime_ns=os.stat(path).st_mtime_ns, footer=read_footer_checksum(path))

    def _found(self, file: FileStat, link: str) -> Put:
        footer = read_footer_checksum(self._location.full(file.path))
        return Put("", file.path, file.size, None, link, file.mtime_ns, footer)

    def _is_kept(self, kept: KeptFile | None, file: FileStat) -> bool:
        """Return whether a file of the dataset is the kept one. In a copy of a dataset, only the footer can tell."""
        if kept is None or kept.size != file.size:
            return False
        return kept.mtime_ns == file.mtime_ns or read_footer_checksum(self._location.full(file.path)) == kept.footer

    def _publish_external(self, record: Record) -> None:
        draft = new_draft(self._sidecar)
        try:
            write_durably(draft, record.dump())
            self._store.sync_directory(self._sidecar)
            with open_directory(self._location.path) as root:
                self._link_all(record, lambda put, link: link_into(root, put.target, link))
            os.rename(draft, self._path(record.version or 0))
        except BaseException:
            self.discard(record)
            self._store.remove(draft)
            raise
        self._store.sync_directory(self._versions)
        self._store.sync_directory(self._sidecar)

    def link_staged(self, record: Record) -> None:
        """Create the durable links of the staged files of a commit whose draft is durable."""
        if record.version is not None:
            self._link_all(record, lambda put, link: os.link(f"{self._sidecar}/{put.staged}", link))

    def _link_all(self, record: Record, create: Callable[[Put, str], None]) -> None:
        directories = {os.path.dirname(self._full(put.target, put.link)) for put in record.puts}
        parents = {self._links} if record.puts else set()
        for directory in sorted(directories):
            for made in self._store.make_directories(directory):
                share_access(os.path.dirname(made), made)
                parents.add(os.path.dirname(made))
        for put in record.puts:
            create(put, self._full(put.target, put.link))
        for directory in sorted(directories | parents):
            self._store.sync_directory(directory)

    def _full(self, path: str, link: str) -> str:
        return f"{self._links}/{link_name(path, link)}"

    def restage(self, put: Put) -> bool:
        """Link a lost staged file again from its link in the history. Return False if there is no such link."""
        kept, staged = self._full(put.target, put.link), f"{self._sidecar}/{put.staged}"
        status = stat_or_none(kept) if put.link else None
        if status is None or read_content(kept) != (put.size, put.crc32):
            return False
        self._store.remove(staged)
        self._store.make_directories(os.path.dirname(staged))
        os.link(kept, staged)
        return True

    def complete(self, record: Record, path: str, expired: Callable[[], Sequence[int]]) -> None:
        """Make the record at `path`, whose files are in place, the record of its version, and hide expired versions."""
        if record.undone is not None:
            self._store.remove(self._path(record.undone))
            self._store.sync_directory(self._versions)
            self._delete_links((path, link) for path, link, _ in record.replaced)
        elif record.version is not None:
            with contextlib.suppress(OSError, InlayError):  # A later commit drops these versions.
                self.finish_drops()
                self._mark_dropped(expired())
            with contextlib.suppress(FileExistsError):  # A crashed process has linked it.
                os.link(path, self._path(record.version))
            self._store.sync_directory(self._versions)

    def discard(self, record: Record) -> None:
        """Delete the links of a commit that did not happen."""
        if record.version is None or self._is_recorded(record):
            return
        self._delete_links((put.target, put.link) for put in record.puts)

    def _is_recorded(self, record: Record) -> bool:
        found = self._read_any(record.version or 0, "json", "drop", "past")
        return found is not None and found.id == record.id

    def _delete_links(self, links: Iterator[tuple[str, str]]) -> None:
        directories = set()
        for path, link in links:
            full = self._full(path, link)
            self._store.remove(full)
            directories.add(os.path.dirname(full))
        self._sync_or_remove(directories)

    def _sync_or_remove(self, directories: set[str]) -> None:
        """Make the deletion of links durable, and remove directories without links."""
        for directory in sorted(directories, reverse=True):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._store.sync_directory(directory)
            with contextlib.suppress(OSError):
                while directory != self._links:
                    os.rmdir(directory)
                    directory = os.path.dirname(directory)  # noqa: PLW2901  (continues with the parent)
                    self._store.sync_directory(directory)

    # ---------------------------------------------------------------------------------------------------- dropping
    def drop(self, numbers: Sequence[int]) -> tuple[list[int], int]:
        """Drop the oldest versions, up to the first that a reader has pinned. Return these and the freed bytes."""
        dropped = self._mark_dropped(numbers)
        if dropped:
            self._store.sync_directory(self._versions)
        freed = self.delete_dropped()
        self.finish_drops()
        return dropped, freed

    def _mark_dropped(self, numbers: Sequence[int]) -> list[int]:
        """Hide the oldest versions, up to the first that a reader has pinned. Their links are deleted later."""
        dropped: list[int] = []
        with contextlib.ExitStack() as stack:
            for number in sorted(numbers):
                if not self._lock_for_drop(number, stack):
                    break
                if dropped:  # A power cut must not keep a version without its successor, because they share links.
                    self._store.sync_directory(self._versions)
                os.rename(self._path(number), self._path(number, "drop"))
                dropped.append(number)
        return dropped

    def delete_dropped(self) -> int:
        """Delete the links of dropped versions, and return the freed bytes."""
        numbers = sorted(self._numbers("drop"))
        return sum(self._unlink(path) for number in numbers for path in self._links_of_dropped(number))

    def _lock_for_drop(self, number: int, stack: contextlib.ExitStack) -> bool:
        descriptor = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(unlock, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _links_of_dropped(self, number: int) -> list[str]:
        """Return the links of a dropped version that the next version replaced, here and in views."""
        successor = self._read_any(number + 1, "json", "drop", "past")
        names = [link_name(path, link) for path, link, _ in successor.replaced] if successor else []
        in_views = PublishedViews(self._location, self._sidecar).links_to_drop(number + 1, names)
        return [*(f"{self._links}/{name}" for name in names), *in_views]

    def _unlink(self, path: str) -> int:
        """Delete a link, and return the number of bytes that this frees."""
        status = stat_or_none(path)
        self._store.remove(path)
        return status.st_size if status is not None and status.st_nlink == 1 else 0

    def finish_drops(self) -> None:
        """Make the deletion of the links of dropped versions durable. A crashed process may not have deleted all."""
        numbers = sorted(self._numbers("drop"))
        links = [path for number in numbers for path in self._links_of_dropped(number)]
        self.delete_dropped()
        self._sync_or_remove({os.path.dirname(path) for path in links})
        for number in numbers:
            os.rename(self._path(number, "drop"), self._path(number, "past"))
        if numbers:
            self._remove_past()

    def _remove_past(self) -> None:
        """Delete the records that no kept version needs."""
        oldest = min(self._numbers("json"), default=0)
        base = max((number for number in self._numbers("all") if number <= oldest), default=-1)
        for kind, end in (("past", base + 1), ("all", base)):
            for number in self._numbers(kind):
                if number < end:
                    self._store.remove(self._path(number, kind))

    def _write_list(self, head: Record, files: KeptFiles) -> None:
        """Write the list of all files of the newest version. It saves time, so a failure is no error."""
        draft = new_draft(self._sidecar)
        with contextlib.suppress(OSError):
            write_durably(draft, FileList.dump(files))
            os.rename(draft, self._path(head.version or 0, "all"))
            self._store.sync_directory(self._versions)
        self._store.remove(draft)


def new_draft(sidecar: str) -> str:
    """Return a path for a new file that a sweep deletes if its writer crashes."""
    return f"{sidecar}/commit.{uuid.uuid4().hex}.tmp"


def require_intact(location: Location, pinned: PinnedVersion) -> None:
    """Reject a version that cannot be read as it was."""
    damaged = list(damaged_files(location, pinned.files))
    if damaged:
        raise damaged_error(location, pinned.record.version or 0, damaged)


def damaged_error(location: Location, version: int, damaged: Sequence[str]) -> DamagedVersionError:
    names = ", ".join(repr(location.display(path)) for path in damaged[:3])
    return DamagedVersionError(
        f"Version {version} of {location.uri!r} is damaged: another program changed {len(damaged)} of its files in"
        f" place, such as {names}.",
        operation="read",
        files=[location.display(path) for path in damaged],
        hint="Read another version: `inlay history DATASET` lists them. Let other programs write a new file and rename"
        " it over the old one.",
    )


def damaged_files(location: Location, files: KeptFiles) -> Iterator[str]:
    """Yield the paths of files whose links are missing, or whose content changed in place."""
    for path, kept in files.items():
        link = location.full(path)
        status = stat_or_none(link)
        if status is None or status.st_size != kept.size:
            yield path
        elif status.st_mtime_ns != kept.mtime_ns:
            if not _has_kept_content(link, kept):
                yield path
                continue
            with contextlib.suppress(OSError):  # The next reader of this copy of the dataset need not check it again.
                os.utime(link, ns=(status.st_atime_ns, kept.mtime_ns))


def _has_kept_content(link: str, kept: KeptFile) -> bool:
    if kept.crc32 is not None:
        return read_content(link).crc32 == kept.crc32
    return read_footer_checksum(link) == kept.footer


def _next_version(
    record: Record, head: Record | None, files: KeptFiles, listing: Sequence[FileStat], first: int = 1
) -> Record:
    """Return the record of the version after `head`, with its totals and the links that it replaces.

    `files` has at least those files of `head` that the record changes. `listing` shows all files of `head`.
    """
    replaced = [(path, files[path].link, files[path].size) for path in record.paths if path in files]
    replaced_bytes = sum(size for _, _, size in replaced)
    before = head or Record("")
    change = record.change
    if change.operation == "overwrite" and head is not None:
        change = replace(change, deleted=head.change.rows)
    return replace(
        record,
        change=change,
        version=first if head is None else (before.version or 0) + 1,
        is_first=head is None,
        at=datetime.now(UTC).isoformat(),
        file_count=before.file_count + len(record.puts) - len(replaced),
        total_bytes=before.total_bytes + sum(put.size for put in record.puts) - replaced_bytes,
        others=_checksum_others(record, listing),
        replaced=replaced,
        replaced_bytes=before.replaced_bytes + replaced_bytes,
    )


def _files(found: FileList | None, records: Sequence[Record], paths: Collection[str] | None = None) -> KeptFiles:
    """Return files of a version: those of a list, changed by the later records, newest first."""
    files: KeptFiles = {}
    if found is not None:
        files = found.all() if paths is None else found.find(paths)
    for each in reversed(records):
        apply(files, each)
    return files if paths is None else {path: files[path] for path in paths if path in files}


def _is_unchanged(head: Record, listing: Sequence[FileStat]) -> bool:
    """Return whether a listing equals the newest version, by its checksum instead of its list of files."""
    paths, sizes, times, _ = Listing.of(listing).columns

    def found(path: str) -> tuple[int, int] | None:
        at = bisect.bisect_left(paths, path)
        return (sizes[at], times[at]) if at < len(paths) and paths[at] == path else None

    return (
        all(found(put.target) == (put.size, put.mtime_ns) for put in head.puts)
        and not any(map(found, head.removes))
        and head.others == _checksum_others(head, listing)
    )


def _checksum_others(record: Record, listing: Sequence[FileStat]) -> str:
    """Return a checksum of paths, sizes and times of the files in a listing that a commit does not change."""
    changed = set(record.paths)
    *columns, _ = Listing.of(listing).columns
    is_other = [path not in changed for path in columns[0]]
    paths, sizes, times = (list(itertools.compress(column, is_other)) for column in columns)
    checksum = hashlib.sha256(os.fsencode("\0".join(paths)))
    checksum.update(repr((sizes, times)).encode())
    return checksum.hexdigest()


def _is_any(descriptor: int, *paths: str) -> bool:
    """Return whether an open file is at one of these paths."""
    opened = os.fstat(descriptor)
    return any((status := stat_or_none(path)) is not None and os.path.samestat(status, opened) for path in paths)
