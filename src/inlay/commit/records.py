"""The records of the versions of a dataset, and the lists of their files, on any store.

<n>.json   the record of the commit that made version n, which never changes
<n>.all    all files of version n, see `commit/kept.py`; so few records are read
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from inlay.commit.entries import Entry
from inlay.commit.kept import FileList, KeptFile, KeptFiles, files_of
from inlay.commit.retention import Retention
from inlay.commit.sidecar import Record
from inlay.errors import CorruptJournalError, DamagedVersionError, NotFoundError
from inlay.storage import Location

__all__ = ["MIN_CHANGES", "READ_ATTEMPTS", "VersionRecords"]

T = TypeVar("T")

READ_ATTEMPTS = 50
_NUMBER = re.compile(r"[0-9]{8,}")
# A list of all files is written again after this many records, more for datasets of many files, or this many changes.
_FEW_RECORDS, _MAX_RECORDS = 8, 64
MIN_CHANGES = 64


class VersionRecords(ABC):
    """The records in a directory. A subclass keeps the files of the versions."""

    def __init__(self, location: Location, directory: str) -> None:
        self._location, self._versions = location, directory

    @property
    @abstractmethod
    def retention(self) -> Retention | None:
        """The limits that a user has set, or None for the default."""

    @abstractmethod
    def _names(self) -> Iterable[str]:
        """List the names in the directory."""

    @abstractmethod
    def _read_bytes(self, path: str) -> bytes: ...

    @abstractmethod
    def _write_list(self, head: Record, files: KeptFiles) -> None:
        """Write the list of all files of the newest version. It saves time, so a failure is no error."""

    @abstractmethod
    def damaged(self, files: KeptFiles) -> list[str]:
        """Return the paths of files of a version that are lost, or whose content changed."""

    @abstractmethod
    def broken_links(self, links: Mapping[str, tuple[str, KeptFile]]) -> set[str]:
        """Return the links, each with the path of its file, whose files are lost or have changed."""

    def require_intact(self, record: Record, files: KeptFiles) -> None:
        """Reject a version that cannot be read as it was."""
        damaged = self.damaged(files)
        if not damaged:
            return
        names = ", ".join(repr(self._location.display(path)) for path in damaged[:3])
        raise DamagedVersionError(
            f"Version {record.version} of {self._location.uri!r} is damaged: another program changed {len(damaged)} of"
            f" its files in place, such as {names}.",
            operation="read",
            files=[self._location.display(path) for path in damaged],
            hint="Read another version: `inlay history DATASET` lists them. Let other programs write a new file and"
            " rename it over the old one.",
        )

    def numbers(self) -> list[int]:
        """List the kept versions, oldest first."""
        return sorted(self._numbers("json"))

    def _numbers(self, kind: str) -> list[int]:
        suffix = f".{kind}"
        numbers = [name.removesuffix(suffix) for name in self._names() if name.endswith(suffix)]
        return [int(number) for number in numbers if _NUMBER.fullmatch(number)]

    def _path(self, number: int, kind: str = "json") -> str:
        return f"{self._versions}/{number:08d}.{kind}"

    def read(self, number: int) -> Record:
        """Return the record of a kept version."""
        path = self._path(number)
        try:
            return Record.load(self._read_bytes(path), path)
        except FileNotFoundError:
            raise self._missing(number) from None

    def _missing(self, number: int) -> NotFoundError:
        numbers = self.numbers()
        kept = f"Versions {numbers[0]} to {numbers[-1]} are kept" if numbers else "No version is kept"
        return NotFoundError(
            f"Version {number} of {self._location.uri!r} does not exist or is no longer kept. {kept}.",
            hint="Run `inlay history DATASET` to list the versions.",
        )

    def entries(self) -> list[Entry]:
        """Return the entries of the kept versions, oldest first."""
        cached = self._cached_entries()
        found = (cached.get(number) or self._read_entry(number) for number in self.numbers())
        return [entry for entry in found if entry is not None]

    def _cached_entries(self) -> Mapping[int, Entry]:
        """Return entries by version that need no read of their records. Versions may lack, and there may be others."""
        return {}

    def _read_entry(self, number: int) -> Entry | None:
        """Return the entry of a version, or None if a writer drops it at the same time."""
        record = self._read_any(number, "json")
        return None if record is None else Entry.of(record)

    def first_files(self, number: int) -> KeptFiles:
        """Return the files of the oldest kept version, although a writer may drop it at the same time."""
        try:
            record = self._read_any(number, "json", "drop", "past")
            return {} if record is None else self.files(record)
        except CorruptJournalError:
            if number in self.numbers():
                raise
            return {}

    def head(self) -> Record | None:
        """Return the record of the newest version. Only a caller with the lock knows that it stays the newest."""
        numbers = self.numbers()
        return self.read(numbers[-1]) if numbers else None

    def files(self, record: Record, paths: Collection[str] | None = None) -> KeptFiles:
        """Return the files of the version of a record, which may still be pending: all, or those at some paths."""
        return files_of(*self._read_files(record), paths)

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
            return FileList(self._read_bytes(path), path)
        return None

    def _read_any(self, number: int, *kinds: str) -> Record | None:
        for path in (self._path(number, kind) for kind in kinds):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return Record.load(self._read_bytes(path), path)
        return None

    def _retried(self, read: Callable[[], T]) -> T:
        """Repeat a read of several records that a writer renames at the same time."""
        for _ in range(READ_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError):
                return read()
        raise CorruptJournalError(
            f"The history of {self._location.uri!r} lacks a record in {self._versions!r}.",
            operation="read",
            files=[self._versions],
            hint="Restore the directory from a backup, or run `inlay forget DATASET` to begin a new history.",
        )

    def _head_files(self, head: Record, paths: Collection[str] | None = None) -> KeptFiles:
        """Return files of the newest version. Write their list again if that saves time later."""
        found, records = self._read_files(head)
        many_records = min(_MAX_RECORDS, _FEW_RECORDS + head.file_count // MIN_CHANGES)
        many_changes = max(head.file_count, MIN_CHANGES)
        if len(records) <= many_records and sum(len(each.paths) for each in records) <= many_changes:
            return files_of(found, records, paths)
        files = files_of(found, records)
        self._write_list(head, files)
        return files
