"""Merges into a managed dataset: a version is a list of files, and a merge drafts the next one.

New files lie under a directory of their own, where nobody looks; whoever keeps the list of versions makes the draft
true. Files never change once they are written, so a draft needs no lock and no second look at what it was made from.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Sequence
from typing import Any

from inlay.engines.base import Engine
from inlay.incremental.changes import Changes
from inlay.incremental.failures import failing_as
from inlay.incremental.options import MergeOptions
from inlay.incremental.plan import MergePlan
from inlay.incremental.progress import ProgressCallback, Reporter
from inlay.incremental.result import MergeResult
from inlay.incremental.run import MergeRun
from inlay.incremental.stage import Slot
from inlay.incremental.target import TargetState
from inlay.incremental.write import append_rows, check_rows
from inlay.storage import FileStat, LocalStore, Location

__all__ = ["Draft", "append_draft", "check_append", "merge_draft", "plan_draft"]


class Draft:
    """The next version of a dataset: the files it takes over, and new ones under `directory`."""

    def __init__(self, location: Location, files: Sequence[tuple[str, int]], directory: str) -> None:
        """`files` are paths in the dataset with their sizes. Nobody else may write into `directory`."""
        self.location = location
        self._files = [FileStat(path, size, 0, 0) for path, size in files]
        self._directory = directory
        self._replaced: dict[str, str] = {}
        self._given_out = 0
        self._put: list[str] = []
        self._removed: set[str] = set()

    # -------------------------------------------------------------------------------------------- as a transaction
    def snapshot(self) -> list[FileStat]:
        return self._files

    def rewriting(self, path: str) -> Slot:
        slot = self.adding("")
        self._replaced[path] = slot.path
        return slot

    def adding(self, directory: str) -> Slot:
        name = f"part-{self._given_out:05d}.parquet"
        path = posixpath.join(self._directory, directory, name)
        if not self._given_out and isinstance(self.location.store, LocalStore):
            self.location.store.make_directories(posixpath.dirname(self.location.full(path)))
        self._given_out += 1
        return Slot(self.location.full(path), path)

    def commit(self, puts: Sequence[Slot], removes: Sequence[str]) -> None:
        """Make the new files durable. The draft is complete then, and still nobody's."""
        _make_durable(self.location, [slot.path for slot in puts])
        self._put, self._removed = [slot.path for slot in puts], set(removes)

    # ------------------------------------------------------------------------------------------------ what it says
    def files(self, result: MergeResult) -> list[tuple[str, int, int]]:
        """Path, rows and bytes of every file of the new version: in the old order, then what was added."""
        put = set(self._put)
        replaced = {old: new for old, new in self._replaced.items() if new in put}
        gone, renewed = self._removed - set(replaced), set(replaced.values())
        kept = [file.path for file in self._files if file.path not in gone]
        added = [path for path in self._put if path not in renewed]
        paths = [replaced.get(path, path) for path in kept] + added
        told = {self.location.relative(file.path): file for file in result.files}
        return [(path, told[path].row_count, told[path].size_bytes or 0) for path in paths]


def _make_durable(location: Location, paths: Sequence[str]) -> None:
    """Files that are written survive a power cut from here on, and so do the directories that lead to them."""
    if not isinstance(location.store, LocalStore):
        return
    directories = set()
    for path in paths:
        location.store.sync_file(location.full(path))
        parent = posixpath.dirname(path)
        while parent:
            directories.add(parent)
            parent = posixpath.dirname(parent)
    for directory in sorted(directories, reverse=True):
        location.store.sync_directory(location.full(directory))
    if paths:
        location.store.sync_directory(location.path)
        location.store.sync_directory(posixpath.dirname(location.path))


def merge_draft(
    data: Any,
    draft: Draft,
    options: MergeOptions,
    engine: Engine,
) -> MergeResult:
    """Write what a merge into the draft's dataset changes. The draft says afterwards which files the version has."""
    run = MergeRun(options, engine, draft.location, data, cache=lambda _: None)
    with failing_as("merge", options.strategy.name, options.key_columns), contextlib.closing(run):
        return run.execute(draft)


def append_draft(
    data: Any,
    draft: Draft,
    engine: Engine,
    *,
    progress: ProgressCallback | None = None,
    empty: bool = False,
) -> list[tuple[str, int, int]]:
    """Write rows as new files in the types of the draft's dataset; with `empty` one also for no rows.

    Path, rows and bytes of each.
    """
    with failing_as("append"):
        target = TargetState.read(draft.location, draft.snapshot(), [], None, None, engine.footers)
        written = append_rows(data, draft, target, engine, Reporter(progress), empty=empty)
        draft.commit([slot for slot, _ in written], [])
    return [(slot.path, outcome.rows, outcome.size) for slot, outcome in written]


def plan_draft(
    data: Any,
    draft: Draft,
    options: MergeOptions,
    engine: Engine,
    *,
    most: int,
) -> tuple[MergePlan, Changes]:
    """What `merge_draft` would do, with so many rows of each kind of change at most; nothing is written."""
    run = MergeRun(options, engine, draft.location, data, cache=lambda _: None)
    with failing_as("plan", options.strategy.name, options.key_columns), contextlib.closing(run):
        return run.dry_run_with_changes(draft.snapshot(), most)


def check_append(data: Any, draft: Draft, engine: Engine) -> None:
    """Refuse what `append_draft` would refuse; nothing is written."""
    with failing_as("plan"):
        target = TargetState.read(draft.location, draft.snapshot(), [], None, None, engine.footers)
        check_rows(data, target, engine)
