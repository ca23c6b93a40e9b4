"""Damage of versions: a program that writes into a data file also changes the hard links to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from inlay.commit.entries import Entry
from inlay.commit.files import read_content, read_footer_checksum
from inlay.commit.kept import KeptFile, KeptFiles, link_name
from inlay.commit.records import VersionRecords
from inlay.commit.sidecar import stat_or_none
from inlay.storage import Location

__all__ = ["damaged_files", "damaged_versions", "is_damaged"]


def damaged_files(location: Location, files: KeptFiles) -> Iterator[str]:
    """Yield the paths of files whose links are missing, or whose content changed in place."""
    return (path for path, kept in files.items() if is_damaged(location.full(path), kept))


def is_damaged(link: str, kept: KeptFile) -> bool:
    status = stat_or_none(link)
    if status is None or status.st_size != kept.size:
        return True
    if status.st_mtime_ns == kept.mtime_ns:
        return False
    if not _has_kept_content(link, kept):
        return True
    with contextlib.suppress(OSError):  # The next reader of this copy of the dataset need not check it again.
        os.utime(link, ns=(status.st_atime_ns, kept.mtime_ns))
    return False


def _has_kept_content(link: str, kept: KeptFile) -> bool:
    if kept.crc32 is not None:
        return read_content(link).crc32 == kept.crc32
    return read_footer_checksum(link) == kept.footer


def damaged_versions(history: VersionRecords, entries: Sequence[Entry]) -> set[int]:
    """Return the versions with a damaged file. Check each link once, although several versions have it."""
    first = history.first_files(entries[0].version) if entries else {}
    links = {link_name(path, kept.link): (path, kept) for path, kept in first.items()}
    for entry in entries[1:]:
        for path, *values in entry.puts:
            links[link_name(path, values[0])] = path, KeptFile(*values)
    broken = history.broken_links(links)
    if not broken:
        return set()
    found, present = set(), {path: link_name(path, kept.link) for path, kept in first.items()}
    for number, entry in enumerate(entries):
        if number:
            for path in entry.removes:
                present.pop(path, None)
            present |= {path: link_name(path, link) for path, link, *_ in entry.puts}
        if not broken.isdisjoint(present.values()):
            found.add(entry.version)
    return found
