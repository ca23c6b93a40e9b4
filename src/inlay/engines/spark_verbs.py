"""The verbs of a merge as jobs: tasks get row numbers and where to find the rows.

Rows are handed out in waves. A task works chunk by chunk (a row group's rows, or some thousand new ones), so that it
holds no more than a chunk and a row group. A file that gets more than its share of the rows is edited by several tasks,
and one more joins what they made.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from inlay.engines.base import Append, FileEdit, FileMatch, GroupEdit, Outcomes, Target, Written
from inlay.engines.exchange import Attempt, Chunk, ChunkRows, Scratch
from inlay.engines.kernels import EditedPart, append_rows, edit_part, join_parts, rewrite_file
from inlay.engines.matching import match_files, open_target
from inlay.engines.spark_source import Run, StoredKeys
from inlay.engines.spark_supply import Supply
from inlay.parquet.splice import SpliceRefused
from inlay.storage import Location

__all__ = ["match", "stage"]

WORTH_SPLITTING = 250_000  # rows that one file gets
_WAVE_ROWS = 2_000_000  # so many change hands at a time, or an eighth of the source if that is more
_CHUNK_ROWS = 65_536
_LARGE_ANSWER = 1 << 20
_NOTHING = np.empty(0, np.int64)


# ----------------------------------------------------------------------------------------------------------- matching
def match(run: Run, location: Location, supply: Supply, bundles: Sequence[Sequence[Target]]) -> Iterator[FileMatch]:
    """Sorted keys go to the tasks, only hits come back."""
    with supply.keys() as keys:
        store = keys.scratch.store
        for answer in run(_Match(location, keys), bundles):
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

    def __call__(self, targets: Sequence[Target]) -> list[FileMatch] | str:
        opened = [open_target(self.location, target) for target in targets]
        found = list(match_files(self.location, self.keys, self.keys.columns, opened))
        packed = pickle.dumps(found)
        if len(packed) < _LARGE_ANSWER or not self.keys.scratch.path:
            return found
        path = self.keys.scratch.file("hits")
        with self.keys.scratch.store.open_write(path) as out:
            out.write(packed)
        return path


# ------------------------------------------------------------------------------------------------------------- staging
class _Job(NamedTuple):
    """A task's work and the source rows that it wants, in chunks; `owner` is the edit or append that it serves."""

    owner: int
    work: Callable[[ChunkRows], Any]
    chunks: list[np.ndarray]

    @property
    def rows(self) -> int:
        return sum(len(chunk) for chunk in self.chunks)


def stage(
    run: Run,
    location: Location,
    supply: Supply,
    edits: Sequence[FileEdit],
    appends: Sequence[Append],
    *,
    dry_run: bool,
    share: int,
) -> Outcomes:
    """`share` is how many rows one task should get at most, as far as row groups allow; 0 splits nothing."""
    jobs = [job for at, edit in enumerate(edits) for job in _edit_jobs(at, location, edit, share, dry_run=dry_run)]
    jobs += [_append_job(at, location, append) for at, append in enumerate(appends, len(edits))]
    parts = np.bincount([job.owner for job in jobs], minlength=len(edits) + len(appends))
    answers: list[Any] = []
    owner = 0
    for wave in _waves(jobs, supply.num_rows):
        with supply.handed_out([rows for job in wave for rows in job.chunks]) as (scratch, chunks):
            rest = iter(chunks)
            answers += run(Receive(scratch), [(job.work, [next(rest) for _ in job.chunks]) for job in wave])
        while owner < len(parts) and len(answers) >= parts[owner]:
            mine, answers = answers[: parts[owner]], answers[parts[owner] :]
            yield mine[0] if len(mine) == 1 else _joined(run, location, supply, edits[owner], mine)
            owner += 1


def _waves(jobs: Sequence[_Job], source_rows: int) -> Iterator[list[_Job]]:
    """So many jobs at a time that the driver's share of the work, their rows' numbers, stays small."""
    most = max(_WAVE_ROWS, source_rows // 8)
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


@dataclass(frozen=True)
class Receive:
    """Work on rows that lie in the store, or came along."""

    scratch: Scratch

    def __call__(self, task: tuple[Callable[[ChunkRows], Any], list[Chunk]]) -> Any:
        work, chunks = task
        return work(ChunkRows(self.scratch, chunks))


# ------------------------------------------------------------------------------------------------------------- appends
def _append_job(at: int, location: Location, append: Append) -> _Job:
    starts = range(0, len(append.rows), _CHUNK_ROWS)
    work = AppendFile(location, replace(append, rows=_NOTHING), len(append.rows))
    return _Job(at, work, [append.rows[start : start + _CHUNK_ROWS] for start in starts])


@dataclass(frozen=True)
class AppendFile:
    """A new file. Appends travel without their rows' numbers: where they arrive these are 0, 1, 2, ..."""

    location: Location
    append: Append
    count: int

    def __call__(self, rows: ChunkRows) -> Written:
        attempt = Attempt(self.location, self.append.stage)
        append = replace(self.append, stage=attempt.path, rows=np.arange(self.count))
        return attempt.settle(append_rows(self.location, append, rows.take))


# --------------------------------------------------------------------------------------------------------------- edits
def _edit_jobs(at: int, location: Location, edit: FileEdit, share: int, *, dry_run: bool) -> list[_Job]:
    """An edit, or some of its row groups each; a file whose schema changes is written in one go."""
    total = sum(len(group.sources) for group in edit.groups)
    most = max(share, WORTH_SPLITTING) if share else total
    if edit.schema is not None or total <= most:
        return [_edit_job(at, EditFile(location, _travelling(edit), dry_run), edit.groups)]
    cuts: list[list[GroupEdit]] = [[]]
    rows = 0
    for group in edit.groups:
        if cuts[-1] and rows + len(group.sources) > most:
            cuts.append([])
            rows = 0
        cuts[-1].append(group)
        rows += len(group.sources)
    if len(cuts) == 1:
        return _edit_jobs(at, location, edit, 0, dry_run=dry_run)
    parts = [(EditPart(location, _travelling(replace(edit, groups=groups))), groups) for groups in cuts]
    return [_edit_job(at, part, groups) for part, groups in parts]


def _edit_job(at: int, work: EditFile | EditPart, groups: Sequence[GroupEdit]) -> _Job:
    return _Job(at, work, [group.sources for group in groups])


def _travelling(edit: FileEdit) -> FileEdit:
    """Without the numbers of source rows, which say nothing where the rows arrive."""
    return replace(edit, groups=[replace(group, sources=_NOTHING) for group in edit.groups])


def _arrived(edit: FileEdit, stage: str) -> FileEdit:
    """Source rows as they are numbered where they arrive: one group's after the other's."""
    groups, start = [], 0
    for group in edit.groups:
        end = start + len(group.positions)
        groups.append(replace(group, sources=np.arange(start, end)))
        start = end
    return replace(edit, groups=groups, stage=stage)


@dataclass(frozen=True)
class EditFile:
    location: Location
    edit: FileEdit
    dry_run: bool

    def __call__(self, rows: ChunkRows) -> Written:
        attempt = Attempt(self.location, self.edit.stage)
        edit = _arrived(self.edit, attempt.path)
        return attempt.settle(rewrite_file(self.location, edit, rows.take, map, dry_run=self.dry_run))


@dataclass(frozen=True)
class EditPart:
    """Some row groups of a file; None where surgery refuses."""

    location: Location
    edit: FileEdit

    def __call__(self, rows: ChunkRows) -> EditedPart | None:
        attempt = Attempt(self.location, f"{self.edit.stage}.part")
        try:
            return edit_part(self.location, _arrived(self.edit, attempt.path), rows.take)
        except SpliceRefused:
            self.location.store.remove(attempt.path)
            return None


def _joined(
    run: Run, location: Location, supply: Supply, edit: FileEdit, parts: Sequence[EditedPart | None]
) -> Written:
    made = [part for part in parts if part is not None]
    written: Written | None = None
    if len(made) == len(parts):
        [written] = run(_Join(location), [(edit.path, edit.stage, made)])
    for part in made:
        location.store.remove(part.stage)
    if written is None:
        [written] = stage(run, location, supply, [edit], [], dry_run=False, share=0)
    return written


@dataclass(frozen=True)
class _Join:
    location: Location

    def __call__(self, task: tuple[str, str, list[EditedPart]]) -> Written | None:
        path, stage, parts = task
        attempt = Attempt(self.location, stage)
        try:
            return attempt.settle(join_parts(self.location, path, attempt.path, parts))
        except SpliceRefused:
            self.location.store.remove(attempt.path)
            return None
