"""Results of merges and writes, their statistics, and samples of changed rows."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.commit.transaction import StagedFile
from inlay.engines.base import NO_ROWS, Engine, GroupEdit, Pick, RowNumbers, Source, StageResult
from inlay.engines.columns import cast_rows
from inlay.engines.edits import replacement_rows
from inlay.errors import InlayError
from inlay.incremental.plan import Decision, Decisions, FilePlan, MergePlan
from inlay.incremental.stage import partition_chunks
from inlay.incremental.strategies import MergeStrategy, Strategy
from inlay.incremental.target import TargetState
from inlay.incremental.validate import MergeOptions
from inlay.storage import FileStat, Location

__all__ = [
    "Changes",
    "FileRewrite",
    "MergeFileMetadata",
    "MergeResult",
    "MergeStats",
    "WriteResult",
    "build_plan",
    "build_replay_plan",
    "build_result",
    "compute_merge_stats",
    "first_rows",
    "record_result",
    "replay_result",
    "sample_changes",
]


Operation = Literal["rewritten", "inserted", "preserved", "removed"]


@dataclass(slots=True)
class MergeFileMetadata:
    """One file of the dataset and what the merge did with it.

    Attributes:
        path: The path of the file.
        row_count: The number of rows after the merge.
        operation: `"rewritten"`, `"inserted"` (a new file), `"preserved"` or `"removed"`.
        size_bytes: The size of the file; None if it was removed.
        bytes_copied: The number of bytes in `size_bytes` that were copied without decoding them.

    Example:
        >>> import inlay
        >>> [file] = inlay.merge({"id": [1, 2]}, "people", "upsert", "id").files
        >>> file.operation, file.row_count
        ('inserted', 2)
    """

    path: str
    row_count: int
    operation: Operation
    size_bytes: int | None = None
    bytes_copied: int = 0


def _paths(files: Sequence[MergeFileMetadata], operation: Operation) -> list[str]:
    return [file.path for file in files if file.operation == operation]


@dataclass(slots=True)
class MergeResult:
    """The result of a merge: exact row counts, and the operation on each file.

    `target_count_before + inserted - deleted == target_count_after` is always true. `print(result)` shows one line. A
    notebook shows the result as a chart.

    Attributes:
        strategy: The strategy of the merge.
        source_count: The number of source rows, before `"deduplicate"` reduces them.
        target_count_before: The number of rows in the dataset before the merge.
        target_count_after: The number of rows in the dataset after the merge.
        inserted: The number of rows added.
        updated: The number of rows whose key is in the source and that the strategy replaces.
        deleted: The number of rows deleted.
        files: Each file of the dataset, and each removed file, in path order.
        rewritten_files: The paths of rewritten files.
        inserted_files: The paths of new files.
        preserved_files: The paths of unchanged files.
        removed_files: The paths of removed files.
        unchanged: The number of rows in `updated` that already equaled their source row.
        bytes_written: The size of rewritten and new files.
        bytes_copied: The number of bytes in `bytes_written` that were copied without decoding them.
        removed_summaries: The paths of removed `_metadata` and `_common_metadata` files, which other programs wrote and
            which no longer match the data files.
        replayed: True if the transaction of the merge had been committed before: this call changed nothing, and all
            other attributes are those of the first merge. `files` then leaves out preserved files.
        stale: The number of source rows without effect, because `newer_by` found the stored rows not older.

    Example:
        >>> import inlay
        >>> inlay.merge({"id": [1, 2]}, "people", "upsert", "id").inserted
        2
        >>> inlay.merge({"id": [2, 3]}, "people", "full_merge", "id")
        MergeResult(full_merge: 1 inserted, 1 updated (1 unchanged), 1 deleted; 2 -> 2 rows;
          files: 1 rewritten, 1 new, 0 removed, 0 untouched)
    """

    strategy: str
    source_count: int
    target_count_before: int
    target_count_after: int
    inserted: int
    updated: int
    deleted: int
    files: list[MergeFileMetadata] = field(default_factory=list)
    rewritten_files: list[str] = field(default_factory=list)
    inserted_files: list[str] = field(default_factory=list)
    preserved_files: list[str] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    unchanged: int = 0
    bytes_written: int = 0
    bytes_copied: int = 0
    removed_summaries: list[str] = field(default_factory=list)
    replayed: bool = False
    stale: int = 0

    @classmethod
    def of(cls, files: Sequence[MergeFileMetadata], **counts: Any) -> MergeResult:
        """Build a result from the operations on files.

        Args:
            files: The files, in any order.
            **counts: The other attributes, such as `strategy` and `inserted`.

        Returns:
            A result with the paths of the files grouped by operation.

        Raises:
            TypeError: A count is missing, or an attribute does not exist.

        Example:
            >>> from inlay.incremental import MergeFileMetadata, MergeResult
            >>> files = [MergeFileMetadata("people/a.parquet", 2, "inserted")]
            >>> counts = {"target_count_before": 0, "target_count_after": 2, "inserted": 2, "updated": 0, "deleted": 0}
            >>> MergeResult.of(files, strategy="insert", source_count=2, **counts).inserted_files
            ['people/a.parquet']
        """
        ordered = sorted(files, key=lambda file: file.path)
        return cls(
            files=ordered,
            rewritten_files=_paths(ordered, "rewritten"),
            inserted_files=_paths(ordered, "inserted"),
            preserved_files=_paths(ordered, "preserved"),
            removed_files=_paths(ordered, "removed"),
            **counts,
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name, with `files` as a list of dicts.

        Example:
            >>> import inlay
            >>> inlay.merge({"id": [1]}, "people", "upsert", "id").to_dict()["inserted"]
            1
        """
        return asdict(self)

    def __repr__(self) -> str:
        replayed = "already committed, nothing changed now: " if self.replayed else ""
        stale = f", {self.stale:,} stale" if self.stale else ""
        untouched = "" if self.replayed else f", {len(self.preserved_files):,} untouched"
        return (
            f"MergeResult({self.strategy}: {replayed}{self.inserted:,} inserted, {self.updated:,} updated"
            f" ({self.unchanged:,} unchanged), {self.deleted:,} deleted{stale}; {self.target_count_before:,} ->"
            f" {self.target_count_after:,} rows; files: {len(self.rewritten_files):,} rewritten,"
            f" {len(self.inserted_files):,} new, {len(self.removed_files):,} removed{untouched})"
        )

    def _repr_html_(self) -> str:
        from inlay.incremental.display import result_html

        return result_html(self)


@dataclass(slots=True)
class WriteResult:
    """The result of `write_dataset` or `compact`: the files written and removed.

    Attributes:
        mode: `"append"`, `"overwrite"` or `"compact"`.
        row_count: The number of rows written.
        files: The new files.
        removed_files: The paths of the removed files.
        removed_summaries: The paths of removed `_metadata` and `_common_metadata` files, which other programs wrote and
            which no longer match the data files.

    Example:
        >>> import inlay
        >>> result = inlay.write_dataset({"id": [1, 2]}, "people", mode="overwrite")
        >>> result.row_count, len(result.files), result.removed_files
        (2, 1, [])
    """

    mode: str
    row_count: int
    files: list[MergeFileMetadata] = field(default_factory=list)
    removed_files: list[str] = field(default_factory=list)
    removed_summaries: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name, with `files` as a list of dicts.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1, 2]}, "people").to_dict()["row_count"]
            2
        """
        return asdict(self)


class MergeStats(dict[str, int]):
    """The row counts of a merge, as a dict whose keys are also attributes.

    Attributes:
        inserted: The number of rows added.
        updated: The number of rows replaced.
        deleted: The number of rows deleted.
        total: The number of rows after the merge.

    Example:
        >>> import inlay
        >>> stats = inlay.merge_parquet_dataset_pyarrow({"id": [1, 2]}, "people", "id")
        >>> stats["inserted"], stats.total
        (2, 2)
    """

    def __getattr__(self, name: str) -> int:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def compute_merge_stats(
    *,
    strategy: MergeStrategy,
    target_before: int,
    target_after: int,
    inserted_rows: int,
    updated_rows: int,
    deleted_rows: int,
) -> MergeStats:
    """Build the statistics of a merge, and check that the row counts add up.

    Args:
        strategy: The strategy of the merge, for error messages.
        target_before: The number of rows before the merge.
        target_after: The number of rows after the merge.
        inserted_rows: The number of rows added.
        updated_rows: The number of rows replaced.
        deleted_rows: The number of rows deleted.

    Returns:
        The statistics.

    Raises:
        InlayError: A count is negative, or `target_before + inserted_rows - deleted_rows != target_after`.

    Example:
        >>> from inlay.incremental import compute_merge_stats
        >>> counts = {"inserted_rows": 1, "updated_rows": 1, "deleted_rows": 0}
        >>> compute_merge_stats(strategy="upsert", target_before=2, target_after=3, **counts)
        {'inserted': 1, 'updated': 1, 'deleted': 0, 'total': 3}
    """
    if min(target_before, target_after, inserted_rows, updated_rows, deleted_rows) < 0:
        raise InlayError(
            f"A row count of {strategy!r} is negative: {target_before} before, {target_after} after,"
            f" {inserted_rows} inserted, {updated_rows} updated, {deleted_rows} deleted.",
            hint="Pass counts of rows, which are never negative.",
        )
    if target_before + inserted_rows - deleted_rows != target_after:
        raise InlayError(
            f"The row counts of {strategy!r} do not add up: {target_before} before + {inserted_rows} inserted"
            f" - {deleted_rows} deleted is not {target_after} after."
        )
    return MergeStats(inserted=inserted_rows, updated=updated_rows, deleted=deleted_rows, total=target_after)


class FileRewrite(NamedTuple):
    """A file with matching rows, and the outcome of rewriting it."""

    decision: Decision
    slot: StagedFile
    written: StageResult

    @property
    def changed(self) -> bool:
        return self.written.stage is not None


def build_result(
    decisions: Decisions,
    strategy: Strategy,
    source_count: int,
    rewrites: Sequence[FileRewrite],
    appended: Sequence[tuple[StagedFile, StageResult]],
    removed_summaries: Sequence[str],
) -> MergeResult:
    location = decisions.target.location
    changed = {each.decision.footer.file.path: each for each in rewrites if each.changed}
    removed = set(decisions.removed)
    files = []
    for file, rows in decisions.target.footers.files_and_rows():
        if file.path in removed:
            entry = MergeFileMetadata(location.display(file.path), 0, "removed", None)
        elif file.path in changed:
            _, slot, written = changed[file.path]
            entry = MergeFileMetadata(
                location.display(slot.path), written.rows, "rewritten", written.size, written.bytes_copied
            )
        else:
            entry = MergeFileMetadata(location.display(file.path), rows, "preserved", file.size)
        files.append(entry)
    files += [MergeFileMetadata(location.display(slot.path), w.rows, "inserted", w.size) for slot, w in appended]
    stats = compute_merge_stats(
        strategy=strategy.name,
        target_before=decisions.target.rows,
        target_after=sum(file.row_count for file in files),
        inserted_rows=decisions.inserted,
        updated_rows=decisions.updated,
        deleted_rows=decisions.deleted,
    )
    everything = [*(each.written for each in changed.values()), *(written for _, written in appended)]
    return MergeResult.of(
        files,
        strategy=strategy.name,
        source_count=source_count,
        target_count_before=decisions.target.rows,
        target_count_after=stats.total,
        inserted=stats.inserted,
        updated=stats.updated,
        deleted=stats.deleted,
        unchanged=sum(each.written.unchanged for each in rewrites),
        bytes_written=sum(written.size for written in everything),
        bytes_copied=sum(written.bytes_copied for written in everything),
        removed_summaries=[location.display(path) for path in removed_summaries],
        stale=decisions.stale,
    )


_PATH_LISTS = {f"{operation}_files" for operation in get_args(Operation)}


def record_result(result: MergeResult, location: Location) -> dict[str, Any]:
    """Return a result as JSON values with the touched files only, whose paths are relative to the dataset."""
    counts = {name: value for name, value in asdict(result).items() if name not in _PATH_LISTS}
    touched = [asdict(file) for file in result.files if file.operation != "preserved"]
    return counts | {
        "files": [file | {"path": location.relative(file["path"])} for file in touched],
        "removed_summaries": [location.relative(path) for path in result.removed_summaries],
    }


def replay_result(recorded: Mapping[str, Any], location: Location) -> MergeResult:
    """Return the result that `record_result` recorded."""
    files = [MergeFileMetadata(**file | {"path": location.display(file["path"])}) for file in recorded["files"]]
    summaries = [location.display(path) for path in recorded["removed_summaries"]]
    counts = {name: value for name, value in recorded.items() if name != "files"}
    return MergeResult.of(files, **counts | {"removed_summaries": summaries, "replayed": True})


def build_plan(
    decisions: Decisions,
    options: MergeOptions,
    source_count: int,
    rewrites: Sequence[FileRewrite],
) -> MergePlan:
    location, footers = decisions.target.location, decisions.target.footers
    changed = {id(each.decision): each.written for each in rewrites if each.changed}
    plans = {d.number: _file_plan(location, d, changed.get(id(d))) for d in decisions.files}
    touched = {number: file for number, file in plans.items() if file.operation != "preserved"}
    return MergePlan(
        affected_files=[file.path for file in touched.values()],
        unaffected_files=location.display_all(path for n, path in enumerate(footers.files.paths) if n not in touched),
        new_files=_planned_names(decisions, options.max_rows_per_file),
        affected_rows=sum(file.row_count for file in touched.values()),
        strategy=options.strategy.name,
        source_count=source_count,
        target_count_before=decisions.target.rows,
        target_count_after=decisions.rows_after,
        inserted=decisions.inserted,
        updated=decisions.updated,
        deleted=decisions.deleted,
        unchanged=sum(each.written.unchanged for each in rewrites),
        stale=decisions.stale,
        rows_to_rewrite=sum(decision.rows_touched for decision in decisions.files if id(decision) in changed),
        bytes_to_rewrite=sum(
            (file.size_bytes or 0) - file.bytes_copied for file in touched.values() if file.operation == "rewritten"
        ),
        explain=partial(_all_file_plans, location, footers.files, footers.rows, decisions.reasons_to_keep(), plans),
    )


def build_replay_plan(target: TargetState, options: MergeOptions) -> MergePlan:
    location, footers = target.location, target.footers
    reasons = ["the transaction is already committed"] * len(footers)
    return MergePlan(
        affected_files=[],
        unaffected_files=[location.display(file.path) for file in footers.files],
        new_files=[],
        affected_rows=0,
        strategy=options.strategy.name,
        target_count_before=target.rows,
        target_count_after=target.rows,
        replayed=True,
        explain=partial(_all_file_plans, location, footers.files, footers.rows, reasons, {}),
    )


def _all_file_plans(
    location: Location,
    files: Sequence[FileStat],
    rows: npt.NDArray[np.int64],
    reasons: Sequence[str],
    plans: Mapping[int, FilePlan],
) -> list[FilePlan]:
    entries = enumerate(zip(files, rows.tolist(), reasons, strict=True))
    return [
        plans.get(number) or FilePlan(location.display(file.path), "preserved", reason, count, file.size)
        for number, (file, count, reason) in entries
    ]


def _file_plan(location: Location, decision: Decision, changed: StageResult | None) -> FilePlan:
    equal = ", all equal to their source rows" if decision.edits and changed is None else ""
    return FilePlan(
        path=location.display(decision.footer.file.path),
        operation="removed" if decision.remove else "preserved" if changed is None else "rewritten",
        reason=decision.reason + equal,
        row_count=decision.footer.rows,
        size_bytes=decision.footer.file.size,
        matched_rows=decision.matched,
        row_groups=tuple(group.group for group in decision.match.groups) if decision.match else (),
        bytes_copied=0 if changed is None else changed.bytes_copied,
    )


def _planned_names(decisions: Decisions, max_rows: int) -> list[str]:
    """Name the new files, with `*` for the part of the name that only the commit generates."""
    partitions, display = decisions.partitions, decisions.target.location.display
    extension = decisions.target.new_file_extension
    chunks = partition_chunks(decisions.new_rows, partitions, max_rows)
    return [
        display(posixpath.join(partitions.directory(number), f"part-*-{position:05d}{extension}"))
        for position, (number, _) in enumerate(chunks)
    ]


_MAX_ROW_GROUPS = 8  # to read for one kind of change


@dataclass(frozen=True, slots=True)
class Changes:
    """A sample of changed rows. Row i of `new` replaces row i of `old`."""

    inserted: pa.Table
    old: pa.Table
    new: pa.Table
    deleted: pa.Table


def first_rows(engine: Engine, location: Location, paths: Sequence[str], schema: pa.Schema, limit: int) -> pa.Table:
    """Read the first rows of non-empty files, at most `limit`."""
    picks = [Pick(path, 0, NO_ROWS, limit) for path in paths[:_MAX_ROW_GROUPS]]
    tables = engine.pick(location, picks, schema) if picks else []
    return pa.concat_tables([schema.empty_table(), *tables]).slice(0, limit)


class _Replaced(NamedTuple):
    pick: Pick
    sources: RowNumbers


def sample_changes(
    decisions: Decisions,
    rewrites: Sequence[FileRewrite],
    source: Source,
    schema: pa.Schema,
    engine: Engine,
    limit: int,
) -> Changes:
    """Read up to `limit` inserted, replaced and deleted rows each, from a few row groups."""
    replaced = _first(_replaced(rewrites), limit)
    deleted = list(itertools.islice(_deleted(decisions, limit), _MAX_ROW_GROUPS))
    picks = [*(each.pick for each in replaced), *deleted]
    tables = list(engine.pick(decisions.target.location, picks, schema)) if picks else []
    empty = schema.empty_table()
    old = pa.concat_tables([empty, *tables[: len(replaced)]])
    sources = np.concatenate([NO_ROWS, *(each.sources for each in replaced)])

    def take(rows: RowNumbers) -> pa.Table:
        return source.take(rows) if len(rows) else empty  # strategy delete loads only key columns

    return Changes(
        inserted=cast_rows(take(decisions.new_rows[:limit]), schema),
        old=old,
        new=replacement_rows(old, take(sources)),
        deleted=pa.concat_tables([empty, *tables[len(replaced) :]]).slice(0, limit),
    )


def _replaced(rewrites: Sequence[FileRewrite]) -> Iterator[_Replaced]:
    """Yield the rows with different values, one row group at a time."""
    for decision, _, written in rewrites:
        edits = {edit.group: edit for edit in decision.edits}
        for group, rows in written.differing.items():
            edit = edits[group]
            yield _Replaced(Pick(decision.footer.file.path, group, edit.positions[rows]), edit.sources[rows])


def _first(replaced: Iterator[_Replaced], limit: int) -> list[_Replaced]:
    found: list[_Replaced] = []
    for pick, sources in itertools.islice(replaced, _MAX_ROW_GROUPS):
        left = limit - sum(len(each.sources) for each in found)
        if left <= 0:
            break
        found.append(_Replaced(Pick(pick.path, pick.group, pick.positions[:left]), sources[:left]))
    return found


def _deleted(decisions: Decisions, limit: int) -> Iterator[Pick]:
    """Yield the deleted rows, one row group at a time."""
    for decision in decisions.files:
        path = decision.footer.file.path
        if decision.remove:
            yield from (Pick(path, group, NO_ROWS, limit) for group in range(decision.footer.groups))
        for edit in decision.edits:
            if len(edit.deleted):
                yield Pick(path, edit.group, edit.deleted[:limit])
            elif not edit.keep_others and _loses_rows(decision, edit):
                yield Pick(path, edit.group, edit.positions, limit)


def _loses_rows(decision: Decision, edit: GroupEdit) -> bool:
    return decision.match is None or decision.match.group_rows[edit.group] > len(edit.positions)
