"""The verbs of a merge whose source lies in a store: tasks get row numbers, and fetch the rows from each other.

Rows change hands in waves. For each, a first job reads every bucket once and writes its rows in the order in which
files want them; a second one does the files' work, chunk by chunk (a row group's rows, or some thousand new ones). So
a bucket is read a few times, not once for every file, and no task holds more than a chunk and a row group. A file that
gets more than its share of the rows is edited by several tasks, and one more joins what they made.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from inlay.engines.base import Append, FileEdit, FileMatch, GroupEdit, Target, Written
from inlay.engines.exchange import Attempt, Chunk, ChunkRows, Piece, PieceWriter, Scratch, slabs
from inlay.engines.kernels import EditedPart, edit_part, join_parts
from inlay.engines.matching import match_files, open_target
from inlay.engines.source import take_rows
from inlay.engines.spark_source import Run, StoredKeys, StoredSource
from inlay.parquet.splice import SpliceRefused
from inlay.storage import Location

__all__ = ["append_stored", "match_stored", "rewrite_stored"]

WORTH_SPLITTING = 250_000  # rows that one file gets
_WAVE_ROWS = 2_000_000  # so many change hands at a time, or an eighth of the source if that is more
_CHUNK_ROWS = 65_536
_LARGE_ANSWER = 1 << 20
_NOTHING = np.empty(0, np.int64)

Kernel = Callable[[Any, Any], Any]


# ----------------------------------------------------------------------------------------------------------- matching
def match_stored(
    run: Run, location: Location, source: StoredSource, bundles: Sequence[Sequence[Target]]
) -> Iterator[FileMatch]:
    store = source.scratch.store
    for answer in run(_Match(location, source.keys), bundles):
        if not isinstance(answer, str):
            yield from answer
            continue
        yield from pickle.loads(store.read_bytes(answer))  # noqa: S301  (our own tasks' answers)
        store.remove(answer)


@dataclass(frozen=True)
class _Match:
    """Hits, or the file that holds them where they are too many for Spark to carry."""

    location: Location
    keys: StoredKeys

    def __call__(self, targets: Sequence[Target], _: Any) -> list[FileMatch] | str:
        opened = [open_target(self.location, target) for target in targets]
        found = list(match_files(self.location, self.keys, self.keys.columns, opened))
        packed = pickle.dumps(found)
        if len(packed) < _LARGE_ANSWER:
            return found
        path = self.keys.scratch.file("hits")
        with self.keys.scratch.store.open_write(path) as out:
            out.write(packed)
        return path


# ------------------------------------------------------------------------------------------------------------- routing
class _Job(NamedTuple):
    """A task's description and the source rows that it wants, in chunks."""

    owner: int
    description: Any
    chunks: list[np.ndarray]

    @property
    def rows(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)


def _waves(jobs: Sequence[_Job], source: StoredSource) -> Iterator[list[_Job]]:
    """So many jobs at a time that the driver's share of the work, their rows' numbers, stays small."""
    most = max(_WAVE_ROWS, source.num_rows // 8)
    wave: list[_Job] = []
    rows = 0
    for job in jobs:
        if wave and rows + job.rows > most:
            yield wave
            wave, rows = [], 0
        wave.append(job)
        rows += job.rows
    if wave:
        yield wave


class _Route(NamedTuple):
    """Which rows of a bucket go where: to which chunk, at which place in it."""

    pieces: list[Piece]
    rows: np.ndarray
    chunks: np.ndarray
    places: np.ndarray


@contextlib.contextmanager
def _routed(run: Run, source: StoredSource, wave: Sequence[_Job]) -> Iterator[list[list[Chunk]]]:
    """The chunks of every job, as pieces; they are there for the time of the block."""
    wanted = [rows for job in wave for rows in job.chunks]
    found: list[Chunk] = [[] for _ in wanted]
    paths = set()
    for answer in run(_Send(source.scratch), _routes(source, wanted)):
        for chunk, piece in answer:
            found[chunk].append(piece)
            paths.add(piece.path)
    chunks = iter(found)
    yield [[next(chunks) for _ in job.chunks] for job in wave]
    for path in paths:
        source.scratch.store.remove(path)


def _routes(source: StoredSource, wanted: Sequence[np.ndarray]) -> list[_Route]:
    """A route for every bucket that is wanted from, made chunk by chunk: this is the driver's memory."""
    found: list[list[tuple[np.ndarray, ...]]] = [[] for _ in source.stored]
    for chunk, rows in enumerate(wanted):
        if not len(rows):
            continue
        homes = np.searchsorted(source.starts, rows, side="right") - 1
        order = np.argsort(homes, kind="stable").astype(np.int32)
        buckets, starts = np.unique(homes[order], return_index=True)
        for bucket, places in zip(buckets, np.split(order, starts[1:]), strict=True):
            mine = (rows[places] - source.starts[bucket]).astype(np.int32)
            found[bucket].append((mine, np.full(len(mine), chunk, np.int32), places))
    return [
        _Route(bucket.rows, *(np.concatenate(parts) for parts in zip(*mine, strict=True)))
        for bucket, mine in zip(source.stored, found, strict=True)
        if mine
    ]


@dataclass(frozen=True)
class _Send:
    """Write a bucket's rows in the order of the chunks that want them."""

    scratch: Scratch

    def __call__(self, route: _Route, _: Any) -> list[tuple[int, Piece]]:
        sent, first = [], 0
        with PieceWriter(self.scratch, "sent") as out:
            for table in slabs(self.scratch, route.pieces):
                here = np.flatnonzero((route.rows >= first) & (route.rows < first + table.num_rows))
                mine = take_rows(table.combine_chunks(), route.rows[here] - first)
                first += table.num_rows
                chunks, starts = np.unique(route.chunks[here], return_index=True)
                for chunk, start, end in zip(chunks, starts, [*starts[1:], len(here)], strict=True):
                    places = route.places[here[start:end]]
                    sent.append((int(chunk), out.add(mine.slice(start, end - start), places)))
        return sent


@dataclass(frozen=True)
class _Receive:
    """A kernel whose rows lie in the store."""

    scratch: Scratch
    kernel: Kernel

    def __call__(self, task: tuple[Any, list[Chunk]], _: Any) -> Any:
        description, chunks = task
        return self.kernel(description, ChunkRows(self.scratch, chunks))


# ------------------------------------------------------------------------------------------------------------- appends
def append_stored(run: Run, kernel: Kernel, source: StoredSource, appends: Sequence[Append]) -> Iterator[Written]:
    jobs = [_append_job(at, append) for at, append in enumerate(appends)]
    receive = _Receive(source.scratch, _Numbered(kernel))
    for wave in _waves(jobs, source):
        with _routed(run, source, wave) as routed:
            yield from run(receive, [(job.description, chunks) for job, chunks in zip(wave, routed, strict=True)])


def _append_job(at: int, append: Append) -> _Job:
    starts = range(0, len(append.rows), _CHUNK_ROWS)
    description = (replace(append, rows=_NOTHING), len(append.rows))
    return _Job(at, description, [append.rows[start : start + _CHUNK_ROWS] for start in starts])


@dataclass(frozen=True)
class _Numbered:
    """Appends travel without their rows' numbers: where they arrive these are 0, 1, 2, ..."""

    kernel: Kernel

    def __call__(self, task: tuple[Append, int], rows: ChunkRows) -> Any:
        append, count = task
        return self.kernel(replace(append, rows=np.arange(count)), rows)


# --------------------------------------------------------------------------------------------------------------- edits
def rewrite_stored(
    run: Run, kernel: Kernel, location: Location, source: StoredSource, edits: Sequence[FileEdit], share: int
) -> Iterator[Written]:
    """`share` is how many rows one task should get at most, as far as row groups allow; 0 splits nothing."""
    jobs = [job for at, edit in enumerate(edits) for job in _edit_jobs(at, edit, share)]
    parts = np.bincount([job.owner for job in jobs], minlength=len(edits))
    receive = _Receive(source.scratch, _Edit(kernel, location))
    answers: list[Any] = []
    owner = 0
    for wave in _waves(jobs, source):
        with _routed(run, source, wave) as routed:
            answers += run(receive, [(job.description, chunks) for job, chunks in zip(wave, routed, strict=True)])
        while owner < len(edits) and len(answers) >= parts[owner]:
            mine, answers = answers[: parts[owner]], answers[parts[owner] :]
            yield mine[0] if len(mine) == 1 else _joined(run, kernel, location, source, edits[owner], mine)
            owner += 1


def _edit_jobs(at: int, edit: FileEdit, share: int) -> list[_Job]:
    """An edit, or some of its row groups each; a file whose schema changes is written in one go."""
    total = sum(len(group.sources) for group in edit.groups)
    most = max(share, WORTH_SPLITTING) if share else total
    if edit.schema is not None or total <= most:
        return [_edit_job(at, edit, is_part=False)]
    cuts: list[list[GroupEdit]] = [[]]
    rows = 0
    for group in edit.groups:
        if cuts[-1] and rows + len(group.sources) > most:
            cuts.append([])
            rows = 0
        cuts[-1].append(group)
        rows += len(group.sources)
    return [_edit_job(at, replace(edit, groups=groups), is_part=len(cuts) > 1) for groups in cuts]


def _edit_job(at: int, edit: FileEdit, *, is_part: bool) -> _Job:
    groups = [replace(group, sources=_NOTHING) for group in edit.groups]
    return _Job(at, (replace(edit, groups=groups), is_part), [group.sources for group in edit.groups])


@dataclass(frozen=True)
class _Edit:
    """A file or a part of one; None where surgery refuses a part."""

    kernel: Kernel
    location: Location

    def __call__(self, task: tuple[FileEdit, bool], rows: ChunkRows) -> Written | EditedPart | None:
        edit, is_part = task
        edit = replace(edit, groups=_numbered(edit.groups))
        if not is_part:
            whole: Written = self.kernel(edit, rows)
            return whole
        attempt = Attempt(self.location, f"{edit.stage}.part")
        try:
            return edit_part(self.location, replace(edit, stage=attempt.path), rows.take)
        except SpliceRefused:
            self.location.store.remove(attempt.path)
            return None


def _numbered(groups: Sequence[GroupEdit]) -> list[GroupEdit]:
    """Source rows as they are numbered where they arrive: one group's after the other's."""
    numbered, start = [], 0
    for group in groups:
        end = start + len(group.positions)
        numbered.append(replace(group, sources=np.arange(start, end)))
        start = end
    return numbered


def _joined(
    run: Run,
    kernel: Kernel,
    location: Location,
    source: StoredSource,
    edit: FileEdit,
    parts: Sequence[EditedPart | None],
) -> Written:
    made = [part for part in parts if part is not None]
    written: Written | None = None
    if len(made) == len(parts):
        [written] = run(_Join(location), [(edit.path, edit.stage, made)])
    for part in made:
        location.store.remove(part.stage)
    if written is None:
        [written] = rewrite_stored(run, kernel, location, source, [edit], share=0)
    return written


@dataclass(frozen=True)
class _Join:
    location: Location

    def __call__(self, task: tuple[str, str, list[EditedPart]], _: Any) -> Written | None:
        path, stage, parts = task
        attempt = Attempt(self.location, stage)
        try:
            return attempt.settle(join_parts(self.location, path, attempt.path, parts))
        except SpliceRefused:
            self.location.store.remove(attempt.path)
            return None
