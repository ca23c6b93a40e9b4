"""The entries of a history: what `inlay.history` shows of each version.

The record of a version has its entry. A cache, `versions/entries`, repeats the short ones, so that a long history is
read from one file: a line of JSON with a checksum for each version. It is never the truth: a version without an intact
line is read from its record, and the cache is deleted before a record that it may repeat.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from inlay.commit.kept import KeptFile
from inlay.commit.sidecar import Record, require_inside

__all__ = ["Entry", "EntryCache"]

_MAX_PATHS = 64  # of a version in the cache

_encode = json.JSONEncoder(separators=(",", ":")).encode


class Entry(NamedTuple):
    """A version, the change that made it, and the files that differ from those of the version before."""

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
    transaction: str | None
    restores: int | None
    puts: list[list[Any]]  # the path of each new file, with the values of its `KeptFile`
    removes: list[str]

    @classmethod
    def of(cls, record: Record) -> Entry:
        change = record.change
        return cls(
            record.version or 0,
            record.at,
            change.operation,
            change.strategy,
            list(change.key_columns),
            change.inserted,
            change.updated,
            change.deleted,
            change.rows,
            record.file_count,
            record.total_bytes,
            record.token,
            change.restores,
            [[put.target, *KeptFile.of(put)] for put in record.puts],
            list(record.removes),
        )


class EntryCache:
    """The cache of a history. Only a process with the lock of the dataset writes it."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> dict[int, Entry]:
        """Return the entries in the cache by version. Versions may lack, and there may be dropped ones."""
        try:
            with open(self._path, "rb") as file:
                lines = file.read().split(b"\n")
        except OSError:
            return {}
        parts = (line.split(b" ", 1) for line in lines if line)
        intact = [content for checksum, *rest in parts for content in rest if checksum == _checksum(content)]
        try:
            entries = {values[0]: Entry(*values) for values in json.loads(b"[%b]" % b",".join(intact))}
            files = [put for entry in entries.values() for put in entry.puts]
            require_inside([put[0] for put in files], [put[1] for put in files])
        except (ValueError, TypeError):
            return {}
        return entries

    def append(self, entry: Entry) -> bool:
        """Add an entry. Return False if there is no cache."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            os.lseek(descriptor, 0, os.SEEK_END)
            os.write(descriptor, b"\n" + _line(entry))  # begins a new line even after an append that a crash cut off
        finally:
            os.close(descriptor)
        return True

    def write(self, entries: Iterable[Entry], draft: str) -> None:
        """Replace the cache by a file that is written to `draft` first."""
        try:
            with open(draft, "wb") as file:
                file.write(b"\n".join(map(_line, entries)))
            os.rename(draft, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise

    def delete(self) -> bool:
        """Delete the cache. Return whether there was one."""
        try:
            os.unlink(self._path)
        except FileNotFoundError:
            return False
        return True


def _line(entry: Entry) -> bytes:
    """Return the line of an entry, or nothing if its record is as fast to read."""
    if len(entry.puts) + len(entry.removes) > _MAX_PATHS:
        return b""
    content = _encode(entry).encode()
    return b"%b %b" % (_checksum(content), content)


def _checksum(content: bytes) -> bytes:
    return b"%08x" % zlib.crc32(content)
