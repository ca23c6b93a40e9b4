"""The files of a version, the list that holds them, and how a version follows from the one before it.

A list is a line of JSON per file, sorted, below a line with the checksum. So a commit finds the files that it replaces
without reading the others.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from inlay.commit.sidecar import Put, Record, corrupt_record_error, require_inside
from inlay.storage import FileStat, Listing

__all__ = [
    "LINK_LENGTH",
    "FileList",
    "KeptFile",
    "KeptFiles",
    "apply",
    "files_of",
    "is_unchanged",
    "link_name",
    "next_version",
]

LINK_LENGTH = 12
_MAX_NAME = 255 - 1 - LINK_LENGTH  # bytes of a file name to which a link can append its end

_encode = json.JSONEncoder(separators=(",", ":")).encode


class KeptFile(NamedTuple):
    """A file of a version. The content of the link is intact while size and modification time are the same."""

    link: str
    size: int
    mtime_ns: int
    crc32: int | None
    footer: int | None

    @classmethod
    def of(cls, put: Put) -> KeptFile:
        return cls(put.link, put.size, put.mtime_ns, put.crc32, put.footer)


KeptFiles: TypeAlias = dict[str, KeptFile]  # by path in the dataset


def apply(files: KeptFiles, record: Record) -> KeptFiles:
    """Change the files of a version to those of the next one."""
    for path in record.removes:
        files.pop(path, None)
    for put in record.puts:
        files[put.target] = KeptFile.of(put)
    return files


def link_name(path: str, link: str) -> str:
    """Return the path of a link in the history and in views. It repeats the directories, for Hive partitions."""
    directory, slash, name = path.rpartition("/")
    if len(os.fsencode(name)) > _MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f"{directory}{slash}{name}.{link}"


class FileList:
    """The content of a list, whose checksum is correct."""

    def __init__(self, content: bytes, name: str) -> None:
        self._name = name
        checksum, _, self._lines = content.partition(b"\n")
        if checksum != _checksum(self._lines):
            raise corrupt_record_error(name, "its checksum does not match")

    @staticmethod
    def dump(files: KeptFiles) -> bytes:
        lines = "".join(sorted(f"{_encode((path, *kept))}\n" for path, kept in files.items())).encode()
        return _checksum(lines) + b"\n" + lines

    def all(self) -> KeptFiles:
        return self._parse(self._lines)

    def find(self, paths: Iterable[str]) -> KeptFiles:
        """Return the files at some paths, as far as the list has them."""
        return self._parse(b"".join(map(self._find_line, paths)))

    def _parse(self, lines: bytes) -> KeptFiles:
        """Reject paths that leave the dataset, because a list may come from an untrusted copy."""
        try:
            files = {path: KeptFile(*kept) for path, *kept in json.loads(b"[%b]" % lines[:-1].replace(b"\n", b","))}
            require_inside(files, (kept.link for kept in files.values()))
            return files
        except (ValueError, TypeError) as error:
            raise corrupt_record_error(self._name, error) from error

    def _find_line(self, path: str) -> bytes:
        """Return the line of a path by bisection, or nothing."""
        start = f"[{_encode(path)},".encode()
        low, high = 0, len(self._lines)  # Both are where lines begin.
        while low < high:
            middle = self._lines.rfind(b"\n", low, (low + high) // 2) + 1 or low
            end = self._lines.index(b"\n", middle) + 1
            if self._lines[middle:end] < start:
                low = end
            else:
                high = middle
        return self._lines[low : self._lines.find(b"\n", low) + 1] if self._lines.startswith(start, low) else b""


def _checksum(lines: bytes) -> bytes:
    return hashlib.sha256(lines).hexdigest().encode()


def next_version(
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


def files_of(found: FileList | None, records: Sequence[Record], paths: Collection[str] | None = None) -> KeptFiles:
    """Return files of a version: those of a list, changed by the later records, newest first."""
    files: KeptFiles = {}
    if found is not None:
        files = found.all() if paths is None else found.find(paths)
    for each in reversed(records):
        apply(files, each)
    return files if paths is None else {path: files[path] for path in paths if path in files}


def is_unchanged(head: Record, listing: Sequence[FileStat]) -> bool:
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
