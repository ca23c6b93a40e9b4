"""Matching and staging as Spark jobs: tasks get row numbers and the location of the rows.

Rows are distributed in waves. A task works chunk by chunk (the rows of a row group, or a few thousand new rows), so
that its memory holds one chunk and one row group. A file that gets many rows is edited or written by several tasks, and
another task joins their parts.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from inlay.engines.base import (
    NO_ROWS,
    Append,
    FileEdit,
    FileMatch,
    GroupEdit,
    RowNumbers,
    StageResult,
    StageResults,
    Target,
)
from inlay.engines.columns import take_rows
from inlay.engines.edits import EditedPart, edit_part, join_parts, rewrite_file
from inlay.engines.kernels import append_rows
from inlay.engines.matching import match_files, open_target
from inlay.engines.selection import Selection, select_rows
from inlay.engines.source import ArrowSource
from inlay.engines.spark.source import Run, StoredKeys, StoredSource, sorted_keys
from inlay.engines.spark.tasks import Attempt, Chunk, ChunkRows, Piece, PieceWriter, Scratch, read_slabs
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused
from inlay.storage import Location

__all__ = ["DriverRows", "RowSupply", "StoredRows", "match", "stage"]

MIN_SPLIT_ROWS = 250_000  # a file that gets fewer rows is edited or written by one task
_WAVE_ROWS = 2_000_000  # rows to distribute at a time, or an eighth of the source if that is more
_CHUNK_ROWS = 65_536
_MAX_RESULT_BYTES = 1 << 20  # larger results of a task are written to a file

OpenScratch = Callable[[int], AbstractContextManager[Scratch]]  # for a number of bytes


# -------------------------------------------------------------------------------------------------------- matching
def match(run: Run, location: Location, supply: RowSupply, bundles: Sequence[Sequence[Target]]) -> Iterator[FileMatch]:
    """Send the sorted source keys to tasks, each of which searches a bundle of data files."""
    with supply.keys() as keys:
        yield from _receive(keys.scratch, run(_Match(location, keys), bundles))


def select(
    run: Run, location: Location, selection: Selection, scratch: Scratch, bundles: Sequence[Sequence[Target]]
) -> Iterator[FileMatch]:
    """Send the condition to tasks, each of which selects the rows of a bundle of data files."""
    yield from _receive(scratch, run(_Select(location, selection, scratch), bundles))


def _receive(scratch: Scratch, results: Iterator[list[FileMatch] | str]) -> Iterator[FileMatch]:
    for result in results:
        if not isinstance(result, str):
            yield from result
            continue
        yield from pickle.loads(scratch.store.read_bytes(result))  # noqa: S301  (written by inlay's tasks)
        scratch.store.remove(result)


def _send(scratch: Scratch, found: list[FileMatch]) -> list[FileMatch] | str:
    """Return the matches of a bundle, or the path of a file with them if they are large."""
    packed = pickle.dumps(found)
    if len(packed) < _MAX_RESULT_BYTES or not scratch.path:
        return found
    path = scratch.file("matches")
    with scratch.store.open_write(path) as out:
        out.write(packed)
    return path


@dataclass(frozen=True)
class _Select:
    location: Location
    selection: Selection
    scratch: Scratch

    def __call__(self, targets: Sequence[Target]) -> list[FileMatch] | str:
        found = [select_rows(self.location, self.selection, target) for target in targets]
        return _send(self.scratch, found)


@dataclass(frozen=True)
class _Match:
    location: Location
    keys: StoredKeys

    def __call__(self, targets: Sequence[Target]) -> list[FileMatch] | str:
        opened = [open_target(self.location, target) for target in targets]
        return _send(self.keys.scratch, list(match_files(self.location, self.keys, self.keys.columns, opened)))


# --------------------------------------------------------------------------------------------------------- staging
class _StageTask(NamedTuple):
    """The work of a task and the source rows for it, in chunks. `owner` is its edit or append.

    `size` estimates the bytes of data files that it reads.
    """

    owner: int
    work: Callable[[ChunkRows], Any]
    chunks: list[RowNumbers]
    size: int = 0

    @property
    def rows(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)


def stage(
    run: Run,
    location: Location,
    supply: RowSupply,
    edits: Sequence[FileEdit],
    appends: Sequence[Append],
    *,
    dry_run: bool,
    rows_per_task: int,
) -> StageResults:
    """Stage edits and appends. Split those of more than `rows_per_task` rows, unless it is 0."""
    tasks: list[_StageTask] = []
    joins: list[Callable[[Any], StageResult]] = []
    for edit in edits:
        tasks += _edit_tasks(len(joins), location, edit, rows_per_task, dry_run=dry_run)
        joins.append(functools.partial(_join, run, location, supply, edit))
    for append in appends:
        tasks += _append_tasks(len(joins), location, append, rows_per_task)
        joins.append(functools.partial(_join_new, run, location, append.stage))
    parts = np.bincount([task.owner for task in tasks], minlength=len(joins))
    results: list[Any] = []
    owner = 0
    for wave in _waves(tasks, supply.num_rows):
        with supply.distribute([rows for task in wave for rows in task.chunks]) as (scratch, chunks):
            rest = iter(chunks)
            size = sum(task.size + task.rows * supply.row_bytes for task in wave)
            results += run(Receive(scratch), [(task.work, [next(rest) for _ in task.chunks]) for task in wave], size)
        while owner < len(parts) and len(results) >= parts[owner]:
            own, results = results[: parts[owner]], results[parts[owner] :]
            yield own[0] if len(own) == 1 else joins[owner](own)
            owner += 1


def _waves(tasks: Sequence[_StageTask], source_rows: int) -> Iterator[list[_StageTask]]:
    """Group tasks so that the row numbers of a wave fit in the driver's memory."""
    limit = max(_WAVE_ROWS, source_rows // 8)
    wave: list[_StageTask] = []
    rows = 0
    for task in tasks:
        if wave and rows + task.rows > limit:
            yield wave
            wave, rows = [], 0
        wave.append(task)
        rows += task.rows
    if wave:
        yield wave


@dataclass(frozen=True)
class Receive:
    """Read the rows of a task's chunks, and run the work of the task on them."""

    scratch: Scratch

    def __call__(self, task: tuple[Callable[[ChunkRows], Any], list[Chunk]]) -> Any:
        work, chunks = task
        return work(ChunkRows(self.scratch, chunks))


def _append_tasks(at: int, location: Location, append: Append, rows_per_task: int) -> list[_StageTask]:
    """Split an append into parts of whole row groups."""
    rows, group = append.rows, append.settings.row_group_size
    limit = -(-max(rows_per_task, MIN_SPLIT_ROWS) // group) * group if rows_per_task else max(len(rows), 1)
    starts = range(0, len(rows), limit)
    if len(starts) < 2:
        return [_append_task(at, location, append)]
    parts = [replace(append, stage=f"{append.stage}.part{start}", rows=rows[start : start + limit]) for start in starts]
    return [_append_task(at, location, part) for part in parts]


def _append_task(at: int, location: Location, append: Append) -> _StageTask:
    starts = range(0, len(append.rows), _CHUNK_ROWS)
    work = AppendFile(location, replace(append, rows=NO_ROWS), len(append.rows))
    return _StageTask(at, work, [append.rows[start : start + _CHUNK_ROWS] for start in starts])


def _join_new(run: Run, location: Location, stage: str, parts: Sequence[StageResult]) -> StageResult:
    """Join the parts of a new file."""
    result: StageResult
    [result] = run(_JoinNew(location), [(stage, parts)])
    for part in parts:
        location.store.remove(str(part.stage))
    return result


@dataclass(frozen=True)
class _JoinNew:
    """Copy the row groups of files with the same schema to one file."""

    location: Location

    def __call__(self, task: tuple[str, Sequence[StageResult]]) -> StageResult:
        stage, parts = task
        store = self.location.store
        attempt = Attempt(self.location, stage)
        with contextlib.ExitStack() as stack:
            out = stack.enter_context(store.open_write(attempt.path))
            opened = [stack.enter_context(store.open_read(str(part.stage))) for part in parts]
            sources = [ParquetBytes(file, str(part.stage)) for file, part in zip(opened, parts, strict=True)]
            splicer = Splicer(out, sources[0])
            for source in sources:
                for group in range(len(source.row_groups)):
                    splicer.copy(source, group)
            splicer.finish()
            size = splicer.bytes_written
        return attempt.complete(StageResult(attempt.path, sum(part.rows for part in parts), size))


@dataclass(frozen=True)
class AppendFile:
    """Write `count` rows, which a task numbers from 0, as a new file."""

    location: Location
    append: Append
    count: int

    def __call__(self, rows: ChunkRows) -> StageResult:
        attempt = Attempt(self.location, self.append.stage)
        append = replace(self.append, stage=attempt.path, rows=np.arange(self.count))
        return attempt.complete(append_rows(self.location, append, rows.take))


def _edit_tasks(at: int, location: Location, edit: FileEdit, rows_per_task: int, *, dry_run: bool) -> list[_StageTask]:
    """Split an edit by row groups. A file whose schema changes is not split."""
    total = sum(len(group.sources) for group in edit.groups)
    limit = max(rows_per_task, MIN_SPLIT_ROWS) if rows_per_task else total
    parts: list[list[GroupEdit]] = [[]]
    rows = 0
    for group in edit.groups:
        if edit.schema is None and parts[-1] and rows + len(group.sources) > limit:
            parts.append([])
            rows = 0
        parts[-1].append(group)
        rows += len(group.sources)
    if len(parts) == 1:
        return [_edit_task(at, EditFile(location, _without_sources(edit), dry_run), edit.groups, edit.size)]
    sizes = [edit.size * len(groups) // len(edit.groups) for groups in parts]
    edits = [_without_sources(replace(edit, groups=groups)) for groups in parts]
    return [
        _edit_task(at, EditPart(location, part), groups, size)
        for part, groups, size in zip(edits, parts, sizes, strict=True)
    ]


def _edit_task(at: int, work: EditFile | EditPart, groups: Sequence[GroupEdit], size: int) -> _StageTask:
    return _StageTask(at, work, [group.sources for group in groups], size)


def _without_sources(edit: FileEdit) -> FileEdit:
    """Remove the source row numbers, which are not valid in a task."""
    return replace(edit, groups=[replace(group, sources=NO_ROWS) for group in edit.groups])


def _with_sources(edit: FileEdit, stage: str) -> FileEdit:
    """Number the source rows of all groups as a task does, from 0."""
    groups, start = [], 0
    for group in edit.groups:
        end = start + len(group.positions)
        groups.append(replace(group, sources=np.arange(start, end)))
        start = end
    return replace(edit, groups=groups, stage=stage)


@dataclass(frozen=True)
class EditFile:
    """Rewrite a file."""

    location: Location
    edit: FileEdit
    dry_run: bool

    def __call__(self, rows: ChunkRows) -> StageResult:
        attempt = Attempt(self.location, self.edit.stage)
        edit = _with_sources(self.edit, attempt.path)
        return attempt.complete(rewrite_file(self.location, edit, rows.take, map, dry_run=self.dry_run))


@dataclass(frozen=True)
class EditPart:
    """Edit some row groups of a file. Return None if it cannot be spliced."""

    location: Location
    edit: FileEdit

    def __call__(self, rows: ChunkRows) -> EditedPart | None:
        attempt = Attempt(self.location, f"{self.edit.stage}.part")
        try:
            return edit_part(self.location, _with_sources(self.edit, attempt.path), rows.take)
        except SpliceRefused:
            self.location.store.remove(attempt.path)
            return None


def _join(
    run: Run, location: Location, supply: RowSupply, edit: FileEdit, parts: Sequence[EditedPart | None]
) -> StageResult:
    """Join the parts of a file, or rewrite it in one task if a part could not be spliced."""
    edited = [part for part in parts if part is not None]
    result: StageResult | None = None
    if len(edited) == len(parts):
        [result] = run(_JoinParts(location), [(edit.path, edit.stage, edited)])
    for part in edited:
        location.store.remove(part.stage)
    if result is None:
        [result] = stage(run, location, supply, [edit], [], dry_run=False, rows_per_task=0)
    return result


@dataclass(frozen=True)
class _JoinParts:
    location: Location

    def __call__(self, task: tuple[str, str, list[EditedPart]]) -> StageResult | None:
        path, stage, parts = task
        attempt = Attempt(self.location, stage)
        try:
            return attempt.complete(join_parts(self.location, path, attempt.path, parts))
        except SpliceRefused:
            self.location.store.remove(attempt.path)
            return None


# --------------------------------------------------------------------------------------------- rows and their keys
class RowSupply(Protocol):
    """Provides the source's keys and rows to tasks. They exist until the context ends."""

    num_rows: int
    row_bytes: int

    def keys(self) -> AbstractContextManager[StoredKeys]: ...

    def distribute(self, wanted: Sequence[RowNumbers]) -> AbstractContextManager[tuple[Scratch, list[Chunk]]]:
        """Write a chunk for each list of row numbers."""


class DriverRows:
    """Rows in the driver, sent to tasks through a scratch directory or with the code."""

    def __init__(self, source: ArrowSource, open_scratch: OpenScratch) -> None:
        self._source, self._open_scratch = source, open_scratch
        self.num_rows = source.num_rows
        self.row_bytes = source.nbytes // max(source.num_rows, 1)

    @contextlib.contextmanager
    def keys(self) -> Iterator[StoredKeys]:
        source = self._source
        with self._open_scratch(source.nbytes) as scratch:
            with PieceWriter(scratch, "index") as out:
                groups = [[(start, out.add(sorted_keys(index)))] for start, index in source.indexes()]
            yield StoredKeys(scratch, source.schema, source.key_columns, groups)

    @contextlib.contextmanager
    def distribute(self, wanted: Sequence[RowNumbers]) -> Iterator[tuple[Scratch, list[Chunk]]]:
        source = self._source
        size = sum(map(len, wanted)) * self.row_bytes
        chunks: list[Chunk] = [[] for _ in wanted]
        with self._open_scratch(size) as scratch:
            with PieceWriter(scratch, "sent") as out:
                for bucket, shares in zip(source.buckets, _shares(source.starts, wanted), strict=True):
                    loaded = bucket.in_memory() if shares else bucket
                    for chunk, rows, positions in shares:
                        is_whole = len(rows) == len(wanted[chunk])
                        chunks[chunk].append(out.add(loaded.take(rows), None if is_whole else positions))
            yield scratch, chunks


class StoredRows:
    """Rows in a store. A job writes the rows of every bucket in the order of the chunks."""

    def __init__(self, source: StoredSource) -> None:
        self._source = source
        self.num_rows = source.num_rows
        self.row_bytes = sum(piece.length for b in source.buckets for piece in b.rows) // max(source.num_rows, 1)

    @contextlib.contextmanager
    def keys(self) -> Iterator[StoredKeys]:
        yield self._source.keys

    @contextlib.contextmanager
    def distribute(self, wanted: Sequence[RowNumbers]) -> Iterator[tuple[Scratch, list[Chunk]]]:
        source = self._source
        buckets = zip(source.buckets, _shares(source.starts, wanted), strict=True)
        routes = [_Route.of(bucket.rows, shares) for bucket, shares in buckets if shares]
        chunks: list[Chunk] = [[] for _ in wanted]
        paths = set()
        for result in source.run(_Send(source.scratch), routes):
            for chunk, piece in result:
                chunks[chunk].append(piece)
                paths.add(piece.path)
        yield source.scratch, chunks
        for path in paths:
            source.scratch.store.remove(path)


class _Share(NamedTuple):
    """The rows of one bucket that a chunk gets, and their positions in the chunk."""

    chunk: int
    rows: RowNumbers
    positions: RowNumbers


def _shares(starts: RowNumbers, wanted: Sequence[RowNumbers]) -> list[list[_Share]]:
    """List the shares of each bucket, chunk by chunk to save the driver's memory."""
    found: list[list[_Share]] = [[] for _ in starts[:-1]]
    for chunk, rows in enumerate(wanted):
        if not len(rows):
            continue
        numbers = np.searchsorted(starts, rows, side="right") - 1
        order = np.argsort(numbers, kind="stable").astype(np.int32)
        buckets, firsts = np.unique(numbers[order], return_index=True)
        for bucket, positions in zip(buckets, np.split(order, firsts[1:]), strict=True):
            found[bucket].append(_Share(chunk, (rows[positions] - starts[bucket]).astype(np.int32), positions))
    return found


class _Route(NamedTuple):
    """The rows of a bucket to send: for each row its chunk and its position in the chunk."""

    pieces: list[Piece]
    rows: RowNumbers
    chunks: RowNumbers
    positions: RowNumbers

    @classmethod
    def of(cls, pieces: list[Piece], shares: Sequence[_Share]) -> _Route:
        chunks = [np.full(len(share.rows), share.chunk, np.int32) for share in shares]
        parts = ([share.rows for share in shares], chunks, [share.positions for share in shares])
        return cls(pieces, *(np.concatenate(part) for part in parts))


@dataclass(frozen=True)
class _Send:
    """Write the rows of a bucket in the order of their chunks."""

    scratch: Scratch

    def __call__(self, route: _Route) -> list[tuple[int, Piece]]:
        sent, first = [], 0
        with PieceWriter(self.scratch, "sent") as out:
            for table in read_slabs(self.scratch, route.pieces):
                in_slab = np.flatnonzero((route.rows >= first) & (route.rows < first + table.num_rows))
                rows = take_rows(table.combine_chunks(), route.rows[in_slab] - first)
                first += table.num_rows
                chunks, starts = np.unique(route.chunks[in_slab], return_index=True)
                for chunk, start, end in zip(chunks, starts, [*starts[1:], len(in_slab)], strict=True):
                    positions = route.positions[in_slab[start:end]]
                    sent.append((int(chunk), out.add(rows.slice(start, end - start), positions)))
        return sent
