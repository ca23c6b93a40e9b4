"""The history of a dataset on an object store: a record of each version, and copies of replaced objects.

    <parent>/.<dataset>.txn/log/0.versions_<id>    shows that there is a history, and contains its limits
    <parent>/.<dataset>.versions/<id>/
        records/<n>.json, <n>.all                  as on a local disk, see `commit/records.py`
        records/<n>.drop                           hides the versions up to n; lists the copies that are being deleted
        files/<directory>/<name>.<link>            a copy of each object that a later version replaced

An object of the newest version is not copied before a commit replaces it, because inlay never writes to its name again.
That commit copies the object after the commit point and before it deletes the object. So a reader finds it at one of
two paths, and a crashed writer leaves no copy that the next writer does not know of.

The history is outside the sidecar, because every writer lists all objects there. Object stores have no locks, so
readers cannot keep a version from being dropped: then their next request fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from inlay.commit.history import PinnedVersion
from inlay.commit.kept import LINK_LENGTH, FileList, KeptFile, KeptFiles, is_unchanged, link_name, next_version
from inlay.commit.records import MIN_CHANGES, VersionRecords
from inlay.commit.retention import Retention, expired_versions
from inlay.commit.sidecar import Change, Put, Record
from inlay.errors import CorruptJournalError, InlayError
from inlay.parquet.layout import data_files
from inlay.storage import FileStat, Listing, Location, ObjectStore
from inlay.storage.fallback import FallbackStore

__all__ = ["ObjectHistory"]


class ObjectHistory(VersionRecords):
    """The versions of one history, as of the moment of its creation. `directory` is that of the history."""

    def __init__(self, location: Location, store: ObjectStore, id_: str, directory: str, marker: str) -> None:
        super().__init__(location, f"{directory}/records")
        self.id, self._marker = id_, marker
        self._copies = f"{directory}/files"
        self._store = store
        self._sizes: dict[str, int] | None = None  # of the objects in `records`
        self._contents: dict[str, bytes] = {}
        self._objects: tuple[dict[str, FileStat], dict[str, FileStat] | None] | None = None

    def forget_objects(self) -> None:
        """List the objects again when they are needed next."""
        self._sizes = self._objects = None

    # ---------------------------------------------------------------------------------------------------- records
    def _known_sizes(self) -> dict[str, int]:
        if self._sizes is None:
            self._sizes = {file.path: file.size for file in self._store.walk(self._versions, lambda _: True)}
        return self._sizes

    def _names(self) -> Iterable[str]:
        return self._known_sizes()

    def numbers(self) -> list[int]:
        dropped = max(self._numbers("drop"), default=-1)
        return [number for number in super().numbers() if number > dropped]

    def _read_bytes(self, path: str) -> bytes:
        if self._name(path) not in self._known_sizes():
            raise FileNotFoundError(path)
        if path not in self._contents:  # Records and lists never change.
            self._contents[path] = self._store.read_bytes(path)
        return self._contents[path]

    def _write(self, path: str, content: bytes) -> None:
        self._store.write_bytes(path, content)
        self._known_sizes()[self._name(path)] = len(content)
        self._contents[path] = content

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self._versions}/")

    def _write_list(self, head: Record, files: KeptFiles) -> None:
        with contextlib.suppress(OSError):
            self._write(self._path(head.version or 0, "all"), FileList.dump(files))

    def _retried(self, read: Callable[[], Any]) -> Any:
        def read_again() -> Any:
            try:
                return read()
            except FileNotFoundError:
                self._sizes = None  # Another process has removed records.
                raise

        return super()._retried(read_again)

    @property
    def retention(self) -> Retention | None:
        try:
            return Retention.load(self._store.read_bytes(self._marker).decode())
        except FileNotFoundError:
            return None

    # ----------------------------------------------------------------------------------------------------- reading
    def pin(self, number: int | None = None) -> PinnedVersion | None:
        """Return a version (by default the newest), or None if there is none. It may be dropped at any time."""
        numbers = self.numbers()
        if number is not None and number not in numbers:
            raise self._missing(number)
        if not numbers:
            return None
        record = self.read(numbers[-1] if number is None else number)
        return PinnedVersion(record, self.files(record), None)

    def pin_pending(self, path: str) -> None:
        """Return nothing: the objects of a pending commit are not complete."""

    def matches(self, files: KeptFiles, listing: Sequence[FileStat]) -> bool:
        """Return whether a listing of the dataset shows the files of a version."""
        return len(files) == len(listing) and all(_is_kept(files.get(file.path), file) for file in listing)

    def damaged(self, files: KeptFiles) -> list[str]:
        found = self._find(files)
        return [path for path in files if path not in found]

    def broken_links(self, links: Mapping[str, tuple[str, KeptFile]]) -> set[str]:
        return {name for name, (path, kept) in links.items() if not self._find({path: kept})}

    def has_lost(self, record: Record) -> bool:
        """Return whether an object of a version has been deleted or overwritten meanwhile."""
        self.forget_objects()
        return record.version not in self.numbers() or bool(self.damaged(self.files(record)))

    def location_of(self, files: KeptFiles) -> Location:
        """Return a location that opens the files of a version, wherever a commit moves them."""
        parent = self._location.path.rpartition("/")[0]
        full = {path: self._full(path, found) for path, found in self._find(files).items()}
        sizes = {full[path]: files[path].size for path in full}
        others = {full[path]: self._copy(path, files[path].link) for path in full}
        store = FallbackStore(self._store, sizes, others)
        objects = {path: name[len(parent) + 1 :] for path, name in full.items()}
        return replace(self._location, store=store, links=parent, objects=objects)

    def listing_of(self, location: Location, files: KeptFiles) -> Listing:  # noqa: ARG002
        """List the objects of a version as if they were files of the dataset."""
        found = self._find(files)
        return Listing.of(found[path]._replace(path=path) for path in sorted(found))

    def _full(self, path: str, found: FileStat) -> str:
        return self._location.full(path) if found.path == path else f"{self._copies}/{found.path}"

    def _copy(self, path: str, link: str) -> str:
        return f"{self._copies}/{link_name(path, link)}"

    def _find(self, files: KeptFiles) -> dict[str, FileStat]:
        """Return the object of each file that has one: in the dataset, or below the copies."""
        # The dataset is listed first: an object that is no longer there has a copy already.
        present, copies = self._objects or ({file.path: file for file in data_files(self._location)}, None)
        found = {path: present[path] for path, kept in files.items() if _is_kept(kept, present.get(path))}
        if len(found) < len(files):
            if copies is None:
                copies = {file.path: file for file in self._store.walk(self._copies, lambda _: True)}
            for path, kept in files.items():
                copy = copies.get(link_name(path, kept.link))
                if path not in found and copy is not None and copy.size == kept.size:
                    found[path] = copy
        self._objects = present, copies
        return found

    def stage(self, location: Location, files: KeptFiles, staged: Mapping[str, str]) -> None:
        """Copy files of a version to staging paths."""
        copies = [(location.full(path), target, files[path].size) for path, target in staged.items()]
        if not all(cast(ObjectStore, location.store).copy_all(copies)):
            raise FileNotFoundError("An object of the version was deleted meanwhile.")

    # --------------------------------------------------------------------------------------------------- recording
    def begin(self, record: Record, files: Sequence[FileStat]) -> Record:
        """Number a commit as the next version. `files` lists the dataset, which has no external changes."""
        head = self.head()
        changed = {} if head is None else self._head_files(head, record.paths)
        puts = [put._replace(link=record.id[:LINK_LENGTH]) for put in record.puts]
        return next_version(replace(record, puts=puts, history=self.id), head, changed, _with_tags(files))

    def find_external(self, files: Sequence[FileStat]) -> Record | None:
        """Return the changes of other programs since the newest version, as the record of the next one."""
        listing, head = _with_tags(files), self.head()
        if head is not None and is_unchanged(head, listing):
            return None
        kept = {} if head is None else self._head_files(head)
        changed = [file for file in files if not _is_kept(kept.get(file.path), file)]
        removed = kept.keys() - {file.path for file in files}
        if not changed and not removed:
            return None
        id_, change = uuid.uuid4().hex, Change("external" if head else "found")
        link = id_[:LINK_LENGTH]
        puts = [Put("", file.path, file.size, None, link, _number(file.tag)) for file in changed]
        record = Record(id_, puts, sorted(removed), change=change, history=self.id)
        return next_version(record, head, kept, listing, first=0)

    def expired(self, record: Record) -> list[int]:
        """Return the versions that the limits drop when a record becomes the newest version."""
        with contextlib.suppress(OSError, InlayError):  # A later commit drops them.
            return expired_versions(self, record)
        return []

    def keep_replaced(self, record: Record, expired: Sequence[int]) -> None:
        """Copy the objects that a commit is about to delete, unless no version needs them."""
        previous = (record.version or 0) - 1
        # Another program has already deleted or overwritten what an external change replaces.
        if not record.change.is_external and previous in self.numbers() and previous not in expired:
            self._store.copy_all(
                [(self._location.full(path), self._copy(path, link), size) for path, link, size in record.replaced]
            )

    def complete(self, record: Record, expired: Sequence[int]) -> None:
        """Write the record of a version, whose objects are complete."""
        puts = record.puts
        if not record.change.is_external:
            tags = self.placed_tags(puts)
            puts = [put._replace(mtime_ns=_number(tags.get(put.target, ""))) for put in puts]
        if record.is_first and len(puts) > MIN_CHANGES:  # A list is read faster than such a record.
            self._write_list(record, {put.target: KeptFile.of(put) for put in puts})
        self._write(self._path(record.version or 0), replace(record, puts=puts).dump())
        with contextlib.suppress(CorruptJournalError):  # A damaged record must not keep the commit from completing.
            self.drop(expired)

    def placed_tags(self, puts: Sequence[Put]) -> dict[str, str]:
        """Return the ETags of the new objects of a commit that are already in the dataset, by path."""
        sizes = {put.target: put.size for put in puts}
        if not sizes:
            return {}
        present = self._store.walk(self._location.path, lambda _: True)
        return {file.path: str(file.tag) for file in present if sizes.get(file.path) == file.size}

    # ---------------------------------------------------------------------------------------------------- dropping
    def drop(self, numbers: Sequence[int]) -> tuple[list[int], int]:
        """Hide the oldest versions, and delete their copies. Return these and the freed bytes."""
        self.finish_drops()
        if not numbers:
            return [], 0
        replaced = [each for number in numbers for each in self._replaced_by(number + 1)]
        copies = [(link_name(path, link), size) for path, link, size in replaced]
        self._write(self._path(max(numbers), "drop"), json.dumps(copies).encode() if copies else b"")
        return sorted(numbers), self.finish_drops()

    def size_of_copies(self) -> int:
        return sum(self._store.walk(self._copies, lambda _: True).sizes)

    def _replaced_by(self, number: int) -> Sequence[tuple[str, str, int]]:
        record = self._read_any(number, "json")
        return record.replaced if record is not None else []

    def _copies_in(self, path: str) -> list[tuple[str, int]]:
        """Return the copies that are being deleted, unless another process has already deleted them."""
        with contextlib.suppress(FileNotFoundError):
            content = self._contents.get(path) or self._store.read_bytes(path)
            return [(name, size) for name, size in json.loads(content or b"[]")]
        return []

    def finish_drops(self) -> int:
        """Delete the copies that only dropped versions need, and the records that no version needs."""
        freed, markers = 0, sorted(self._numbers("drop"))
        for path in (self._path(number, "drop") for number in markers):
            if self._known_sizes()[self._name(path)]:
                copies = self._copies_in(path)
                self._store.remove_all([f"{self._copies}/{name}" for name, _ in copies])
                self._write(path, b"")
                freed += sum(size for _, size in copies)
        numbers = self.numbers()
        oldest = numbers[0] if numbers else 0
        base = max((number for number in self._numbers("all") if number <= oldest), default=-1)
        past = [self._path(number) for number in self._numbers("json") if number <= base and number < oldest]
        past += [self._path(number, "all") for number in self._numbers("all") if number < base]
        past += [self._path(number, "drop") for number in markers[:-1]]
        self._store.remove_all(past)
        for path in past:
            del self._known_sizes()[self._name(path)]
        return freed


def _with_tags(files: Sequence[FileStat]) -> Listing:
    """Return a listing in which numbers that stand for the ETags replace the times: a copy has another time."""
    paths, sizes, _, tags = Listing.of(files).columns
    return Listing(paths, sizes, map(_number, tags), tags)


def _number(tag: str | int) -> int:
    return int.from_bytes(hashlib.sha256(str(tag).strip('"').encode()).digest()[:7], "big")


def _is_kept(kept: KeptFile | None, file: FileStat | None) -> bool:
    """Return whether an object of the dataset is that of a version."""
    if kept is None or file is None:
        return False
    return kept.size == file.size and kept.mtime_ns == _number(file.tag)
