"""The rows that differ between two versions of a managed dataset, computed in a worker process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from inlay.errors import DamagedVersionError, wrap_errors
from inlay.storage import FileStat, Listing, Location, locate

if TYPE_CHECKING:
    from inlay.incremental.diff import Comparison

__all__ = ["Differences", "VersionPair"]


@dataclass(frozen=True)
class VersionPair:
    """Two versions of a managed dataset, each with the path and the size of its files."""

    address: str  # of the directory of the dataset
    name: str  # of the dataset, for messages
    old: int
    new: int
    old_files: Sequence[tuple[str, int]]
    new_files: Sequence[tuple[str, int]]
    key_columns: Sequence[str]
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_remote(self) -> bool:
        return "://" in self.address

    @property
    def description(self) -> dict[str, Any]:
        """What a worker needs to compare the versions."""
        return asdict(self)


class _Files(NamedTuple):
    location: Location
    files: Listing


class Differences:
    """The rows that differ, and their counts. Each version of a managed dataset has files that never change."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        from inlay.incremental.diff import compare  # queries do not need it

        pair = VersionPair(**description)
        opened = locate(pair.address, storage_options=pair.storage_options)
        location = replace(opened, uri=pair.name)  # messages do not show where the storage is
        old, new = (_Files(location, _listing(files)) for files in (pair.old_files, pair.new_files))
        with wrap_errors("diff"):
            _require_intact(pair, pair.old, old, set(new.files.paths))
            _require_intact(pair, pair.new, new, set(old.files.paths))
            self._found: Comparison = compare(old, new, pair.key_columns)
        self.schema: pa.Schema = self._found.schema

    @property
    def counts(self) -> dict[str, int]:
        return {name: getattr(self._found, name) for name in ("inserted", "updated", "deleted")}

    def rows(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `start` to `stop`: deletions, then updates as pairs, then insertions."""
        return self._found.batches(start, stop)

    def first_of_each_kind(self, count: int) -> Iterator[pa.RecordBatch]:
        """Yield the first deletions, updates and insertions, up to `count` of each."""
        sizes = (self._found.deleted, 2 * self._found.updated, self._found.inserted)
        starts = (0, sizes[0], sizes[0] + sizes[1])
        limits = (count, 2 * count, count)
        return itertools.chain.from_iterable(
            self.rows(start, start + min(size, limit)) for start, size, limit in zip(starts, sizes, limits, strict=True)
        )


def _listing(files: Sequence[tuple[str, int]]) -> Listing:
    return Listing.of(FileStat(path, size, 0, 0) for path, size in files).sorted()


def _require_intact(pair: VersionPair, number: int, side: _Files, same: set[str]) -> None:
    """Raise if a file to read is missing or has another size."""
    for file in side.files:
        if file.path in same:
            continue
        found = side.location.store.stat(side.location.full(file.path))
        if found is None or found.size != file.size:
            change = "is missing" if found is None else f"has {found.size:,} bytes instead of {file.size:,}"
            raise DamagedVersionError(
                f"Version {number} of {pair.name!r} is damaged: its file {file.path!r} {change}.",
                operation="diff",
                files=[file.path],
                hint="Restore the file from a backup, or compare other versions.",
            )
