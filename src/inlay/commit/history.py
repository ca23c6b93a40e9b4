"""The history of a dataset on a local disk: a record of each version, and hard links that keep its files.

    <parent>/.<dataset>.txn/
        files/<directory>/<name>.<link>   a hard link to each file of a version; no name ends in `.parquet`
        versions/<n>.json                 the record of the commit that made version n, which never changes
        versions/<n>.all                  all files of version n, see `commit/kept.py`; so few records are read
        versions/<n>.drop                 the record of a version whose links are being deleted
        versions/<n>.past                 the record of a dropped version that later versions need
        versions/entries                  a cache of what `inlay.history` shows, see `commit/entries.py`

A link is durable before the record that names it, and each link belongs to consecutive versions. So readers need no
lock, a crashed writer leaves at most the links that its draft names, and dropping the oldest version deletes exactly
the links that its successor replaced.

Where a link is impossible, a clone replaces it on filesystems that share blocks, or a copy if the user allows it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from inlay.commit.access import share_access
from inlay.commit.damage import damaged_files, is_damaged
from inlay.commit.entries import Entry, EntryCache
from inlay.commit.files import (
    is_link_refused,
    keep_file,
    open_directory,
    read_content,
    read_footer_checksum,
    write_durably,
)
from inlay.commit.kept import (
    LINK_LENGTH,
    FileList,
    KeptFile,
    KeptFiles,
    apply,
    is_unchanged,
    link_name,
    next_version,
)
from inlay.commit.published import PublishedViews
from inlay.commit.records import MIN_CHANGES, READ_ATTEMPTS, VersionRecords
from inlay.commit.retention import Retention
from inlay.commit.sidecar import Change, Put, Record, new_staging_name, stat_or_none, unlock
from inlay.errors import InlayError
from inlay.storage import FileStat, Listing, LocalStore, Location

__all__ = [
    "History",
    "PinnedVersion",
]


_ENTRIES_REWRITTEN = 1024  # versions after which the cache of entries is written again, without dropped versions


@dataclass(frozen=True, slots=True)
class PinnedVersion:
    """A version that no writer drops until `descriptor` closes. On an object store, it is None."""

    record: Record
    files: KeptFiles
    descriptor: int | None


class History(VersionRecords):
    """The versions in the sidecar of a dataset. Writers hold the lock of the dataset, and readers hold none."""

    def __init__(self, location: Location, sidecar: str) -> None:
        super().__init__(location, f"{sidecar}/versions")
        self._sidecar, self._links = sidecar, f"{sidecar}/files"
        self._entries = EntryCache(f"{self._versions}/entries")
        self._store = LocalStore()

    def _read_bytes(self, path: str) -> bytes:
        return self._store.read_bytes(path)

    @property
    def retention(self) -> Retention | None:
        """The limits that a user has set, or None for the default."""
        try:
            return Retention.load(self._store.read_bytes(f"{self._versions}/retention").decode())
        except FileNotFoundError:
            return None

    @property
    def _copies(self) -> bool:
        """Whether copies may replace links."""
        retention = self.retention
        return retention is not None and retention.copies

    def write_retention(self, retention: Retention) -> None:
        self._prepare_writing(copies=retention.copies)
        draft = new_draft(self._sidecar)
        write_durably(draft, retention.dump().encode())
        os.rename(draft, f"{self._versions}/retention")
        self._store.sync_directory(self._versions)

    # --------------------------------------------------------------------------------------------------- reading
    def exists(self) -> bool:
        return stat_or_none(self._versions) is not None

    def _names(self) -> Iterable[str]:
        try:
            return os.listdir(self._versions)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def location_of(self, files: KeptFiles) -> Location:
        """Return a location that opens the files of a version through their links."""
        objects = {path: link_name(path, kept.link) for path, kept in files.items()}
        return replace(self._location, links=self._links, objects=objects)

    def damaged(self, files: KeptFiles) -> list[str]:
        return list(damaged_files(self.location_of(files), files))

    def broken_links(self, links: Mapping[str, tuple[str, KeptFile]]) -> set[str]:
        return {name for name, (_, kept) in links.items() if is_damaged(f"{self._links}/{name}", kept)}

    def _cached_entries(self) -> Mapping[int, Entry]:
        return self._entries.read()

    def has_lost(self, record: Record) -> bool:
        """Return whether a file of a version has been deleted or changed in place."""
        return bool(self.damaged(self.files(record)))

    def stage(self, location: Location, files: KeptFiles, staged: Mapping[str, str]) -> None:  # noqa: ARG002
        """Link files of a version to staging paths."""
        for path, target in staged.items():
            keep_file(location.full(path), target, copies=True)

    def listing_of(self, location: Location, files: KeptFiles) -> Listing:
        """List the links of a version as if they were files of the dataset."""
        stats = ((path, os.stat(location.full(path))) for path in sorted(files))
        return Listing.of(FileStat(path, each.st_size, each.st_mtime_ns, each.st_ino) for path, each in stats)

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
        for _ in range(READ_ATTEMPTS):
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
            if record.version is not None and _is_any(descriptor, *self._paths_of(record, path)):
                return PinnedVersion(record, self.files(record), descriptor)
        except BlockingIOError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

    def _paths_of(self, record: Record, path: str) -> list[str]:
        """Return where a pinned record, opened at `path`, may be. A copy of a pending record would have no lock."""
        recorded = self._path(record.version or 0)
        return [recorded] if record.copied else [recorded, path]

    # --------------------------------------------------------------------------------------------------- recording
    def begin(self, record: Record, listing: Sequence[FileStat], count_rows: Callable[[], int | None]) -> Record:
        """Number a commit as the next version. Before that, record what other programs changed in the dataset."""
        record = replace(record, copied=not self._prepare_writing(copies=self._copies))
        head = self.head()
        if head is not None and is_unchanged(head, listing):
            files = self._head_files(head, record.paths)
        else:
            head, files = self.record_external(listing, count_rows)
        link = record.id[:LINK_LENGTH]
        puts = [self._described(put, link) for put in record.puts]
        return next_version(replace(record, puts=puts), head, files, listing)

    def record_external(
        self, listing: Sequence[FileStat], count_rows: Callable[[], int | None]
    ) -> tuple[Record | None, KeptFiles]:
        """Record the changes of other programs as a version, if there are any. Return the newest version."""
        self._prepare_writing(copies=self._copies)
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
        record = next_version(record, head, files, listing, first=0)
        self._publish_external(record)
        apply(files, record)
        if len(record.puts) == len(files) > MIN_CHANGES:  # A list is read faster than such a record.
            self._write_list(record, files)
        return record, files

    def _prepare_writing(self, *, copies: bool) -> bool:
        """Create the directories of the history, or make what a killed writer left there durable.

        Return whether the filesystem has hard links. Without them, raise OSError unless it has clones, or `copies`.
        """
        trial = new_draft(self._sidecar)
        keep_file(f"{self._sidecar}/lock", trial, copies=copies)
        is_linked = os.stat(trial).st_nlink > 1
        os.unlink(trial)
        if self.exists():
            self._store.sync_directory(self._versions)
            return is_linked
        self._store.remove_tree(self._links)  # A process that deleted the whole history crashed.
        for directory in (self._links, self._versions):
            for made in self._store.make_directories(directory):
                share_access(self._sidecar, made)
        self._store.sync_directory(self._sidecar)
        return is_linked

    def remove_unused(self) -> None:
        """Remove the directories of a history without versions."""
        for directory in (self._versions, self._links):
            self._store.remove_empty_directory(directory)

    def _described(self, put: Put, link: str) -> Put:
        path = self._staged(put)
        return put._replace(link=link, mtime_ns=os.stat(path).st_mtime_ns, footer=read_footer_checksum(path))

    def _found(self, file: FileStat, link: str) -> Put:
        footer = read_footer_checksum(self._location.full(file.path))
        return Put("", file.path, file.size, None, link, file.mtime_ns, footer)

    def _is_kept(self, kept: KeptFile | None, file: FileStat) -> bool:
        """Return whether a file of the dataset is the kept one. A copy of a dataset can have other times."""
        if kept is None or kept.size != file.size:
            return False
        if kept.mtime_ns == file.mtime_ns:
            return True
        path, link = self._location.full(file.path), self._full(file.path, kept.link)
        if read_footer_checksum(path) != kept.footer:
            return False
        status = stat_or_none(link)
        if status is None or status.st_ino == os.stat(path).st_ino or status.st_mtime_ns != kept.mtime_ns:
            return True  # The time of the link differs too: this is a copy of the dataset, or a program set the time.
        crc32 = read_content(link).crc32 if kept.crc32 is None else kept.crc32
        return read_content(path).crc32 == crc32

    def _publish_external(self, record: Record) -> None:
        draft = new_draft(self._sidecar)
        try:
            write_durably(draft, record.dump())
            self._store.sync_directory(self._sidecar)
            copies = self._copies
            with open_directory(self._location.path) as root:
                self._link_all(record, lambda put, link: keep_file(put.target, link, root=root, copies=copies))
            os.rename(draft, self._path(record.version or 0))
        except BaseException:
            self.discard(record)
            self._store.remove(draft)
            raise
        self._store.sync_directory(self._versions)
        self._store.sync_directory(self._sidecar)
        self._cache_entry(record)

    def link_staged(self, record: Record) -> None:
        """Create the durable links of the staged files of a commit whose draft is durable."""
        if record.version is not None:
            copies = self._copies
            self._link_all(record, lambda put, link: keep_file(self._staged(put), link, copies=copies))

    def _staged(self, put: Put) -> str:
        return f"{self._sidecar}/{put.staged}"

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
        kept, staged = self._full(put.target, put.link), self._staged(put)
        status = stat_or_none(kept) if put.link else None
        if status is None or read_content(kept) != (put.size, put.crc32):
            return False
        self._store.remove(staged)
        self._store.make_directories(os.path.dirname(staged))
        keep_file(kept, staged, copies=True)
        return True

    def complete(self, record: Record, path: str, expired: Callable[[], Sequence[int]]) -> None:
        """Make the record at `path`, whose files are in place, the record of its version, and hide expired versions."""
        if record.undone is not None:
            if self._entries.delete():  # The next version gets the same number.
                self._store.sync_directory(self._versions)
            self._store.remove(self._path(record.undone))
            self._store.sync_directory(self._versions)
            self._delete_links((path, link) for path, link, _ in record.replaced)
        elif record.version is not None:
            with contextlib.suppress(OSError, InlayError):  # A later commit drops these versions.
                self.finish_drops()
                self._mark_dropped(expired())
            self._keep_record(path, self._path(record.version))
            self._store.sync_directory(self._versions)
            self._cache_entry(record)

    def _cache_entry(self, record: Record) -> None:
        """Add a version to the cache of entries. The cache saves time, so a failure is no error."""
        with contextlib.suppress(OSError, InlayError):
            is_added = self._entries.append(Entry.of(record))
            if not is_added or (record.version or 0) % _ENTRIES_REWRITTEN == 0:
                self._write_entries()

    def _write_entries(self) -> None:
        self._entries.write(self.entries(), new_draft(self._sidecar))

    def _keep_record(self, path: str, kept: str) -> None:
        try:
            os.link(path, kept)
        except FileExistsError:  # A crashed process has linked it.
            pass
        except OSError as error:
            if not is_link_refused(error):
                raise
            if stat_or_none(kept) is None:  # A reader may have pinned the copy of a crashed process.
                draft = new_draft(self._sidecar)
                write_durably(draft, self._store.read_bytes(path))
                os.rename(draft, kept)
            # A power cut must not lose the copy after the caller has deleted the original.
            self._store.sync_directory(self._sidecar)

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
        if numbers:
            self._entries.delete()  # The paths of a version may be personal data.
        dropped = self._mark_dropped(numbers)
        if dropped:
            self._store.sync_directory(self._versions)
        freed = self.delete_dropped()
        self.finish_drops()
        if numbers:
            with contextlib.suppress(OSError, InlayError):
                self._write_entries()
        return dropped, freed

    def end(self) -> tuple[list[int], int]:
        """Delete all versions and the limits, or only the versions before the first that a reader has pinned."""
        numbers = self.numbers()
        with contextlib.ExitStack() as stack:
            pinned = [number for number in numbers if not self._lock_for_drop(number, stack)]
            if not pinned:
                return numbers, self._delete_all()
        return self.drop([number for number in numbers if number < pinned[0]])

    def _delete_all(self) -> int:
        links = [os.path.join(root, name) for root, _, names in os.walk(self._links) for name in names]
        freed = sum(self._unlink_size(path) for path in links)
        discarded = f"{self._sidecar}/{new_staging_name()}"  # A sweep deletes it if this process crashes.
        os.mkdir(discarded)
        for directory in (self._versions, self._links):
            os.rename(directory, f"{discarded}/{os.path.basename(directory)}")
            self._store.sync_directory(self._sidecar)
        self._store.remove_tree(discarded)
        return freed

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
        freed = self._unlink_size(path)
        self._store.remove(path)
        return freed

    def _unlink_size(self, path: str) -> int:
        status = stat_or_none(path)
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


def _is_any(descriptor: int, *paths: str) -> bool:
    """Return whether an open file is at one of these paths."""
    opened = os.fstat(descriptor)
    return any((status := stat_or_none(path)) is not None and os.path.samestat(status, opened) for path in paths)
