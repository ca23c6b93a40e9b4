"""The files of a version, and the list that holds them.

A list is a line of JSON per file, sorted, below a line with the checksum. So a commit finds the files that it replaces
without reading the others.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from inlay.commit.sidecar import Put, Record, corrupt_record_error, require_inside

__all__ = ["LINK_LENGTH", "FileList", "KeptFile", "KeptFiles", "apply", "link_name"]

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
