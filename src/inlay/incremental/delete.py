"""Deletions by condition: `delete` and `plan_delete`.

A deletion is a merge without source rows: a condition instead of source keys says which rows of the dataset match.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from inlay.commit.snapshot import read_consistently
from inlay.commit.transaction import StagedFile, Transaction, footer_cache, locate_dataset
from inlay.conditions import check_syntax
from inlay.constants import LOCK_TIMEOUT, MAX_ROWS_PER_FILE
from inlay.engines import get_engine
from inlay.engines.base import NO_ROWS, Append, Engine, FileMatch, GroupEdit
from inlay.engines.selection import Condition, require_condition
from inlay.engines.source import load_source
from inlay.errors import wrap_errors
from inlay.incremental.conditions import RowCondition
from inlay.incremental.display import ProgressCallback, progress_callback
from inlay.incremental.plan import Decision, Decisions, MergePlan, keep_one_file
from inlay.incremental.result import MergeResult
from inlay.incremental.run import MergeRun, execute_with_retries
from inlay.incremental.strategies import STRATEGIES
from inlay.incremental.target import Partitions, TargetState
from inlay.incremental.validate import MergeOptions, check_max_deleted, reject_deletions
from inlay.parquet.footer_cache import FooterCache
from inlay.storage import FileStat, Filesystem, Location

__all__ = ["DeleteRun", "delete", "plan_delete"]


def delete(
    path: str | os.PathLike[str],
    where: Condition,
    *,
    filesystem: Filesystem | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    max_deleted: float | None = None,
) -> MergeResult:
    """Delete the rows of a Parquet dataset for which a condition is true.

    inlay reads the columns of the condition in the row groups that statistics don't exclude, and rewrites only the row
    groups that lose rows. A file without rows is removed, except the last one. A dataset that does not exist is not
    created.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        where: The condition. One of:
            - an expression of `pyarrow.compute`, such as `pc.field("day") < datetime.date(2025, 1, 1)`
            - text in SQL notation, such as `"day < '2025-01-01' AND status IN ('closed', 'void')"`: comparisons of
              columns with values or columns, `AND`, `OR`, `NOT`, `IN`, `BETWEEN`, `LIKE`, `ILIKE` and `IS NULL`
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        engine: `"auto"`, `"pyarrow"`, `"duckdb"` or `"spark"`. See `inlay.merge`.
        storage_options: Arguments of the filesystem that the URL names.
        progress: True for a progress bar, or a callback. See `inlay.merge`.
        lock_timeout: How many seconds to wait for another writer.
        max_deleted: The maximum number of rows to delete, or their maximum share as a float. See `inlay.merge`.

    Returns:
        The exact number of deleted rows, and the operation on each file.

    Raises:
        InvalidArgumentError: The condition is invalid, or does not fit the columns of the dataset.
        UnreadableFileError: A data file of the dataset cannot be read.
        DeletionLimitError: The condition selects more rows than `max_deleted` allows.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        DatasetMergeError: The deletion failed for another reason. All errors are subclasses of `InlayError`.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2, 3], "state": ["open", "void", None]}, "orders").row_count
        3
        >>> result = inlay.delete("orders", "state = 'void' OR id > 2")
        >>> result.deleted, result.target_count_after
        (2, 1)
    """
    with (
        progress_callback(progress) as on_progress,
        _open_run("delete", where, path, filesystem, engine, storage_options, on_progress, max_deleted) as run,
    ):
        result = execute_with_retries(run, lock_timeout)
        run.report_committed()
    return result


def plan_delete(
    path: str | os.PathLike[str],
    where: Condition,
    *,
    filesystem: Filesystem | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,  # noqa: ARG001  (a plan takes no lock)
    max_deleted: float | None = None,
) -> MergePlan:
    """Plan a deletion without writing anything: exact counts, and the operation on each file.

    Args:
        path: The directory of the dataset. All arguments are those of `inlay.delete`.
        where: An expression of `pyarrow.compute`, or a condition in SQL notation.
        filesystem: An fsspec or pyarrow filesystem that holds `path`.
        engine: `"auto"`, `"pyarrow"`, `"duckdb"` or `"spark"`.
        storage_options: Arguments of the filesystem that the URL names.
        progress: True for a progress bar, or a callback.
        lock_timeout: Ignored: a plan takes no lock.
        max_deleted: The maximum number of rows, or share of the rows, to delete.

    Returns:
        The number of rows to delete, and for each file its operation and the reason.

    Raises:
        InlayError: `delete` would reject the same arguments with the same error.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2, 3]}, "orders").row_count
        3
        >>> plan = inlay.plan_delete("orders", "id >= 2")
        >>> plan.deleted, [file.reason for file in plan.files]
        (2, ['2 matching rows in 1 of 1 row groups'])
    """
    with (
        progress_callback(progress) as on_progress,
        _open_run("plan", where, path, filesystem, engine, storage_options, on_progress, max_deleted) as run,
    ):
        return read_consistently(run.location, run.dry_run)


@contextlib.contextmanager
def _open_run(
    operation: str,
    where: Condition,
    path: str | os.PathLike[str],
    filesystem: Filesystem | None,
    engine: str | Engine,
    storage_options: Mapping[str, Any] | None,
    progress: ProgressCallback | None,
    max_deleted: float | None,
) -> Iterator[DeleteRun]:
    max_deleted = check_max_deleted(max_deleted)
    require_condition(where)
    location = locate_dataset(path, filesystem, storage_options)
    with wrap_errors(operation, "delete"):
        yield DeleteRun(where, get_engine(engine, None), location, progress, max_deleted)


class DeleteRun(MergeRun):
    """One deletion in progress."""

    def __init__(
        self,
        where: Condition,
        engine: Engine,
        location: Location,
        progress: ProgressCallback | None = None,
        max_deleted: float | None = None,
        *,
        cache: Callable[[Location], FooterCache | None] = footer_cache,
    ) -> None:
        options = MergeOptions(
            STRATEGIES["delete"], [], None, None, MAX_ROWS_PER_FILE, None, "strict", [], progress,
            max_deleted=max_deleted,
        )  # fmt: skip
        super().__init__(options, engine, location, None, cache=cache)
        self._where = where
        self._source = load_source(pa.table({}), lambda table: table, [])
        self._is_loaded = True

    @property
    def _row_schema(self) -> pa.Schema:
        return self.target.row_schema

    def _schema_for(self, decision: Decision) -> None:
        """A file keeps its schema."""

    def _appends(self, decisions: Decisions, files: Transaction) -> list[tuple[StagedFile, Append]]:  # noqa: ARG002
        return []

    def _plan(self, files: Sequence[FileStat]) -> Decisions:
        cache = self._cache_of(self.location)
        self.target = TargetState.read(self.location, files, [], None, cache, self.engine.footers)
        partitions = Partitions.of_target(self._source, self.target)
        matches: dict[str, FileMatch] = {}
        if files:
            condition = RowCondition.of(self._where, self.target, self.target.row_schema)
            self.target = self.target.with_ranges(condition.bounded, cache, self.engine.footers)
            matches = condition.select(self.target, self.engine, self._report)
        elif isinstance(self._where, str):
            check_syntax(self._where)
        rows, footers = self.target.rows, self.target.footers
        decisions = [self._decide(number, matches) for number in range(len(footers))]
        keep_one_file(decisions, len(decisions))
        self._schemas = [None] * sum(bool(decision.edits) for decision in decisions)
        deleted = sum(decision.deleted for decision in decisions)
        reject_deletions(deleted, rows, self.options.max_deleted)
        return Decisions(self.target, partitions, partitions.numbers_of(footers), decisions, NO_ROWS, 0, deleted, rows)

    def _decide(self, number: int, matches: Mapping[str, FileMatch]) -> Decision:
        footer = self.target.footers[number]
        match = matches.get(footer.file.path)
        decision = Decision(number, footer, _reason(footer.rows, match), match)
        if match is not None and match.groups:
            decision.edits = [GroupEdit(g.group, NO_ROWS, NO_ROWS, deleted=g.positions) for g in match.groups]
            decision.deleted = decision.matched
        if decision.deleted and decision.deleted == footer.rows:
            decision.remove, decision.edits = True, []
            decision.reason = f"all {footer.rows:,} rows are deleted ({decision.reason})"
        return decision


def _reason(rows: int, match: FileMatch | None) -> str:
    if match is None:
        return "statistics or partition exclude the condition" if rows else "the file has no rows"
    if not match.groups:
        return f"no matching row in {match.scanned} of {len(match.group_rows)} row groups"
    found = sum(len(group.positions) for group in match.groups)
    matching = "1 matching row" if found == 1 else f"{found:,} matching rows"
    return f"{matching} in {len(match.groups)} of {len(match.group_rows)} row groups"
