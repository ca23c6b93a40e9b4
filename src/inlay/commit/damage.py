"""Damage of versions: a program that writes into a data file also changes the hard links to it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

from inlay.commit.entries import Entry
from inlay.commit.files import read_content, read_footer_checksum
from inlay.commit.history import History, PinnedVersion, link_name
from inlay.commit.kept import KeptFile, KeptFiles
from inlay.commit.sidecar import stat_or_none
from inlay.errors import DamagedVersionError
from inlay.storage import Location

__all__ = ["damaged_error", "damaged_files", "damaged_versions", "require_intact"]


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


def damaged_versions(history: History, entries: Sequence[Entry]) -> set[int]:
    """Return the versions with a damaged file. Check each link once, although several versions have it."""
    first = history.first_files(entries[0].version) if entries else {}
    links = {link_name(path, kept.link): kept for path, kept in first.items()}
    for entry in entries[1:]:
        links |= {link_name(path, values[0]): KeptFile(*values) for path, *values in entry.puts}
    # A location that opens links by their own names.
    at = replace(history.location_of({}), objects={link: link for link in links})
    broken = set(damaged_files(at, links))
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
