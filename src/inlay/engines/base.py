"""The engine protocol, and the data that it exchanges with the layers above.

footers  read footers with the value ranges of key columns
load     read the source in the dataset's types and index its keys
match    find source keys in data files, reading key columns only
stage    write edited data files and new source rows as staged files
combine  write several data files as one staged file
alter    write data files with other columns as staged files
pick     read single rows of data files
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.engines.keys import KeyRanges, NullKeys, Repeats
from inlay.parquet.footers import Footer
from inlay.parquet.writer import WriterSettings
from inlay.storage import Content, FileStat, Location

__all__ = [
    "NO_ROWS",
    "Alteration",
    "Append",
    "Combine",
    "Conform",
    "Engine",
    "FileEdit",
    "FileMatch",
    "GroupEdit",
    "GroupMatch",
    "Pick",
    "RowNumbers",
    "Source",
    "StageResult",
    "StageResults",
    "TakeRows",
    "Target",
    "TaskProgress",
]

Conform = Callable[[pa.Table], pa.Table]  # casts source rows to the dataset's schema
TaskProgress = Callable[[int, int], None]  # called with (tasks done, tasks in total)
RowNumbers = npt.NDArray[np.int32 | np.int64]
TakeRows = Callable[[RowNumbers], pa.Table]


@dataclass(frozen=True, slots=True)
class Target:
    """A data file of `size` bytes to search. `constants` are the values of key columns in its path."""

    path: str
    constants: dict[str, pa.Scalar] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class GroupMatch:
    """The matching rows of a row group: ascending `positions`, and the source row of each one."""

    group: int
    rows: int
    positions: RowNumbers
    sources: RowNumbers


@dataclass(slots=True)
class FileMatch:
    """The matching rows of a data file. `scanned` counts the row groups that were searched."""

    path: str
    group_rows: list[int]
    scanned: int
    groups: list[GroupMatch]


NO_ROWS: RowNumbers = np.empty(0, np.int64)


@dataclass(slots=True)
class GroupEdit:
    """Source rows that replace the rows at `positions` of a row group, and ascending positions of rows to delete.

    Without `keep_others`, all rows that are not replaced are deleted, and `deleted` is empty.
    """

    group: int
    positions: RowNumbers
    sources: RowNumbers
    keep_others: bool = True
    deleted: RowNumbers = field(default_factory=lambda: NO_ROWS)

    def rows_left(self, rows: int) -> int:
        """Return how many of the row group's rows are not deleted."""
        return rows - len(self.deleted) if self.keep_others else len(self.positions)


@dataclass(slots=True)
class FileEdit:
    """A data file to rewrite as the staged file `stage`.

    `schema` is None if the file keeps its schema. In the `equal` columns, every replaced row has the value of its
    source row. `size` estimates the bytes of the row groups to edit. A file whose schema `widens` is written even if no
    row differs. If most columns keep their values, `is_mostly_copied` is True.
    """

    path: str
    stage: str
    groups: list[GroupEdit]
    schema: pa.Schema | None = None
    equal: tuple[str, ...] = ()
    size: int = 0
    widens: bool = False
    is_mostly_copied: bool = False


@dataclass(slots=True)
class Append:
    """Source rows to write as a new data file."""

    stage: str
    rows: RowNumbers
    schema: pa.Schema
    settings: WriterSettings


@dataclass(slots=True)
class Combine:
    """Data files to write as one, sorted by `sort_by`."""

    stage: str
    paths: list[str]
    schema: pa.Schema
    settings: WriterSettings
    sort_by: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Alteration:
    """A data file to write with the columns of `schema`, as the staged file `stage`, or to check if that is empty.

    `renamed` maps old column names to new ones.
    """

    path: str
    stage: str
    schema: pa.Schema
    renamed: dict[str, str] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True)
class Pick:
    """Rows of a row group to read: those at `positions`, or as many others as `others`."""

    path: str
    group: int
    positions: RowNumbers
    others: int = 0


@dataclass(slots=True)
class StageResult:
    """The result of one edit, append or combine. `stage` is None if no row changed.

    A dry run lists the first `differing` rows of each row group, as indexes into the positions of its `GroupEdit`.
    """

    stage: str | None
    rows: int
    size: int = 0
    unchanged: int = 0
    bytes_copied: int = 0
    groups_rewritten: int = 0
    differing: dict[int, RowNumbers] = field(default_factory=dict)
    content: Content | None = None  # of the staged file, if its writer computed the checksum


# Results arrive in the order of the requests. Closing the generator waits for running work.
StageResults = Generator[StageResult, None, None]


class Source(Protocol):
    """The source rows, numbered, in the dataset's types."""

    schema: pa.Schema
    num_rows: int
    input_rows: int  # before `reduce`
    null_keys: list[NullKeys]

    def indexes(self) -> Iterator[tuple[int, KeyRanges]]: ...
    def repeated_keys(self) -> Repeats: ...
    def column(self, name: str) -> pa.ChunkedArray: ...
    def take(self, rows: RowNumbers, columns: Sequence[str] | None = None) -> pa.Table: ...
    def reduce(self, order_by: Sequence[str]) -> None: ...
    def close(self) -> None: ...


class Engine(Protocol):
    """Reads, matches and writes the files of a merge.

    An engine gets back the values that it returned itself: `load` gets the result of `open`, `match` and `stage` get
    the result of `load`.
    """

    name: str

    def with_progress(self, on_tasks: TaskProgress) -> Engine:
        """Return this engine with progress reports. An exception of `on_tasks` cancels its tasks."""

    def bind(self, location: Location, operation: str) -> Engine:
        """Return this engine for one dataset and operation (a strategy, `append` or `compact`).

        Raises if the engine cannot write to this location.
        """

    def open(
        self,
        data: object,
        like: pa.Schema | None,
        storage_options: Mapping[str, Any] | None,
        read_options: Mapping[str, Any] | None,
    ) -> AbstractContextManager[Any]:
        """Open the source. The result has a `schema`, and can be loaded inside the block."""

    def load(self, data: Any, conform: Conform, key_columns: Sequence[str]) -> Source: ...

    def footers(self, location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]: ...

    def match(
        self, location: Location, source: Any, key_columns: Sequence[str], targets: Sequence[Target]
    ) -> Iterator[FileMatch]: ...

    def select(self, location: Location, selection: Any, targets: Sequence[Target]) -> Iterator[FileMatch]:
        """Find the rows of each file that a `Selection` selects."""

    def stage(
        self,
        location: Location,
        source: Any,
        edits: Sequence[FileEdit],
        appends: Sequence[Append],
        *,
        dry_run: bool = False,
    ) -> StageResults:
        """Yield the result of each edit, then of each append. A dry run writes nothing."""

    def combine(self, location: Location, combines: Sequence[Combine]) -> StageResults: ...

    def alter(self, location: Location, alterations: Sequence[Alteration]) -> StageResults: ...

    def pick(self, location: Location, picks: Sequence[Pick], schema: pa.Schema) -> Iterator[pa.Table]:
        """Yield the rows of each pick, cast to `schema`."""
