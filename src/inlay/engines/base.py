"""What an engine does. The plan passes it plain data; it needs nothing from the layers above.

footers  read footers with the ranges of key columns
load     take the source in, in the dataset's types, with its keys indexed
match    find source keys in files, reading key columns only
stage    apply replacements and deletions to files, and write source rows as new ones, into staged files
combine  write several files as one
pick     read single rows of files
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from inlay.engines.key_faults import NullKeys, Repeats
from inlay.parquet.footers import Footer
from inlay.parquet.writer import WriterSettings
from inlay.storage import FileStat, Location

__all__ = [
    "Append",
    "Combine",
    "Conform",
    "Engine",
    "FileEdit",
    "FileMatch",
    "GroupEdit",
    "GroupMatch",
    "Outcomes",
    "Pick",
    "Source",
    "Target",
    "Written",
]

Conform = Callable[[pa.Table], pa.Table]


@dataclass(frozen=True, slots=True)
class Target:
    """A data file that may hold source keys. `constants` are key columns whose value its path gives."""

    path: str
    constants: dict[str, pa.Scalar] = field(default_factory=dict)


@dataclass(slots=True)
class GroupMatch:
    """Rows of one row group whose key is in the source: their positions, ascending, and the source rows."""

    group: int
    rows: int
    positions: np.ndarray
    sources: np.ndarray


@dataclass(slots=True)
class FileMatch:
    """Where source keys were found in a file; row groups that statistics exclude were not read."""

    path: str
    group_rows: list[int]
    scanned: int
    groups: list[GroupMatch]


@dataclass(slots=True)
class GroupEdit:
    """What to do to a row group: replace rows by source rows; keep the others, or delete them."""

    group: int
    positions: np.ndarray
    sources: np.ndarray
    keep_others: bool = True


@dataclass(slots=True)
class FileEdit:
    """A file to be rewritten into `stage`; `schema` is None while it keeps its own. In the `equal` columns no row
    differs from the source row that replaces it."""

    path: str
    stage: str
    groups: list[GroupEdit]
    schema: pa.Schema | None = None
    equal: tuple[str, ...] = ()


@dataclass(slots=True)
class Append:
    """Source rows that become a new file."""

    stage: str
    rows: np.ndarray
    schema: pa.Schema
    settings: WriterSettings


@dataclass(slots=True)
class Combine:
    """Files that become one, optionally sorted."""

    stage: str
    paths: list[str]
    schema: pa.Schema
    settings: WriterSettings
    sort_by: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Pick:
    """Rows of one row group: those at `positions`, or so many of the `others`."""

    path: str
    group: int
    positions: np.ndarray
    others: int = 0


@dataclass(slots=True)
class Written:
    """What an engine did for one edit or append; `stage` is None when nothing had to change. A dry run names
    the first replaced rows that differ, for each row group as they are numbered in its edit."""

    stage: str | None
    rows: int
    size: int = 0
    unchanged: int = 0
    bytes_copied: int = 0
    groups_rewritten: int = 0
    differing: dict[int, np.ndarray] = field(default_factory=dict)


class Source(Protocol):
    """The source rows, in the dataset's types."""

    schema: pa.Schema
    num_rows: int
    null_keys: list[NullKeys]

    def repeated_keys(self) -> Repeats: ...
    def column(self, name: str) -> pa.ChunkedArray: ...
    def take(self, rows: np.ndarray, columns: Sequence[str] | None = None) -> pa.Table: ...
    def close(self) -> None: ...


Watch = Callable[[int, int], None]  # tasks done, tasks in all
# in the order of what was asked for; who closes it early waits for what is begun, and may remove all of it then
Outcomes = Generator[Written, None, None]


class Engine(Protocol):
    name: str

    def watched(self, watch: Watch) -> Engine:
        """This engine, telling `watch` how far it is where its work runs elsewhere; what `watch` raises cancels."""

    def working_at(self, location: Location, operation: str) -> Engine:
        """This engine for one place and a strategy, append or compact; refuses, before anything is read, where it
        cannot work."""

    def open(self, data: Any, like: pa.Schema | None, storage_options: Mapping[str, Any] | None) -> Any: ...

    def load(self, data: Any, conform: Conform, key_columns: Sequence[str]) -> Source: ...

    def footers(self, location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]: ...

    def match(
        self, location: Location, source: Any, key_columns: Sequence[str], targets: Sequence[Target]
    ) -> Iterator[FileMatch]: ...

    def stage(
        self,
        location: Location,
        source: Any,
        edits: Sequence[FileEdit],
        appends: Sequence[Append],
        *,
        dry_run: bool = False,
    ) -> Outcomes:
        """What became of every edit, then of every append; a dry run finds out what would differ, and has none."""

    def combine(self, location: Location, combines: Sequence[Combine]) -> Outcomes: ...

    def pick(self, location: Location, picks: Sequence[Pick], schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows of every pick, in this schema."""
