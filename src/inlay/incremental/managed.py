"""Merges into managed datasets, whose versions are lists of files in a catalog.

A merge writes the files of the next version, the draft, to a new directory. The catalog then publishes the draft.
Files never change once they are written, so a draft needs no lock and no check for concurrent changes.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from inlay.commit.sidecar import Change, StagedFile
from inlay.engines.base import Engine
from inlay.errors import DatasetMergeError, InlayError, wrap_errors
from inlay.incremental.delete import DeleteRun
from inlay.incremental.display import ProgressCallback
from inlay.incremental.plan import MergePlan
from inlay.incremental.result import Changes, MergeResult
from inlay.incremental.run import MergeRun
from inlay.incremental.validate import MergeOptions
from inlay.storage import FileStat, LocalStore, Location

__all__ = ["Draft", "delete_from_draft", "merge_draft", "plan_delete_from_draft", "plan_draft"]


class Draft:
    """The next version of a dataset: kept files, and new files in `directory`."""

    def __init__(self, location: Location, files: Sequence[tuple[str, int]], directory: str) -> None:
        """Start from `files`, paths with sizes. Only this draft may write to `directory`."""
        self.location = location
        self._files = [FileStat(path, size, 0, 0) for path, size in files]
        self._directory = directory
        self._replaced: dict[str, str] = {}
        self._slots = 0
        self._put: list[str] = []
        self._removed: set[str] = set()

    # --------------------------------------------------------------------------------------- the Transaction protocol
    def snapshot(self) -> list[FileStat]:
        return self._files

    def stage_replacement(self, path: str) -> StagedFile:
        slot = self.stage_new_file("")
        self._replaced[path] = slot.path
        return slot

    def stage_new_file(self, directory: str, extension: str = ".parquet") -> StagedFile:
        name = f"part-{self._slots:05d}{extension}"
        path = posixpath.join(self._directory, directory, name)
        if not self._slots and isinstance(self.location.store, LocalStore):
            self.location.store.make_directories(posixpath.dirname(self.location.full(path)))
        self._slots += 1
        return StagedFile(self.location.full(path), path)

    def commit(
        self,
        puts: Sequence[StagedFile],
        removes: Sequence[str],
        change: Change = Change(),  # noqa: ARG002, B008  (the catalog records the loads of managed datasets)
        *,
        token: str | None = None,  # noqa: ARG002
        outcome: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> None:
        """Make the new files durable. The catalog publishes them later."""
        _make_durable(self.location, [slot.path for slot in puts])
        self._put, self._removed = [slot.path for slot in puts], set(removes)

    # ------------------------------------------------------------------------------------------------- the new version
    def files(self, result: MergeResult) -> list[tuple[str, int, int]]:
        """Return path, row count and size of each file of the new version, new files last."""
        put = set(self._put)
        replaced = {old: new for old, new in self._replaced.items() if new in put}
        removed, rewritten = self._removed - set(replaced), set(replaced.values())
        kept = [file.path for file in self._files if file.path not in removed]
        added = [path for path in self._put if path not in rewritten]
        paths = [replaced.get(path, path) for path in kept] + added
        by_path = {self.location.relative(file.path): file for file in result.files}
        return [(path, by_path[path].row_count, by_path[path].size_bytes or 0) for path in paths]


def _make_durable(location: Location, paths: Sequence[str]) -> None:
    """Sync files and their parent directories to disk, so that they survive a power failure."""
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


@contextlib.contextmanager
def _named_errors(draft: Draft, operation: str, strategy: str, key_columns: Sequence[str] = ()) -> Iterator[None]:
    """Wrap errors. They name files by their paths in the dataset, because clients must not see where the storage is."""
    try:
        with wrap_errors(operation, strategy, key_columns):
            yield
    except InlayError as error:
        root = f"{draft.location.uri}/"
        error.message = error.message.replace(root, "")
        if isinstance(error, DatasetMergeError):
            error.files = [file.replace(root, "") for file in error.files]
        raise


def merge_draft(
    data: Any,
    draft: Draft,
    options: MergeOptions,
    engine: Engine,
    storage_options: Mapping[str, Any] | None = None,
) -> MergeResult:
    """Merge rows into the draft. `draft.files(result)` lists the files of the new version."""
    run = MergeRun(options, engine, draft.location, data, storage_options, cache=lambda _: None)
    with _named_errors(draft, "merge", options.strategy.name, options.key_columns), contextlib.closing(run):
        return run.execute(draft)


def plan_draft(
    data: Any,
    draft: Draft,
    options: MergeOptions,
    engine: Engine,
    storage_options: Mapping[str, Any] | None = None,
    *,
    limit: int,
) -> tuple[MergePlan, Changes]:
    """Plan `merge_draft` without writing, and read up to `limit` rows of each kind of change."""
    run = MergeRun(options, engine, draft.location, data, storage_options, cache=lambda _: None)
    with _named_errors(draft, "plan", options.strategy.name, options.key_columns), contextlib.closing(run):
        return run.dry_run_with_changes(draft.snapshot(), limit)


def delete_from_draft(
    where: str, draft: Draft, engine: Engine, progress: ProgressCallback, max_deleted: float | None
) -> MergeResult:
    """Delete the rows of the draft for which a condition is true."""
    with _named_errors(draft, "delete", "delete"):
        return DeleteRun(where, engine, draft.location, progress, max_deleted, cache=lambda _: None).execute(draft)


def plan_delete_from_draft(
    where: str, draft: Draft, engine: Engine, progress: ProgressCallback, max_deleted: float | None, *, limit: int
) -> tuple[MergePlan, Changes]:
    """Plan `delete_from_draft` without writing, and read up to `limit` of the rows to delete."""
    with _named_errors(draft, "plan", "delete"):
        run = DeleteRun(where, engine, draft.location, progress, max_deleted, cache=lambda _: None)
        return run.dry_run_with_changes(draft.snapshot(), limit)
