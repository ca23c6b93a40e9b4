"""Plans: the decision for each file, and `MergePlan`, which presents the decisions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy, to_numpy
from inlay.engines.base import NO_ROWS, Engine, FileMatch, GroupEdit, GroupMatch, Pick, RowNumbers, Source, Target
from inlay.engines.keys import contiguous, sortable_values
from inlay.errors import SchemaMismatchError
from inlay.incremental.conditions import reject_stored_outside
from inlay.incremental.display import Reporter
from inlay.incremental.prune import possible_files
from inlay.incremental.target import ELSEWHERE, Partitions, TargetState
from inlay.incremental.validate import MergeOptions, moved_error, row_text
from inlay.parquet.footers import Footer
from inlay.schema import lossless_cast

__all__ = [
    "Decision",
    "Decisions",
    "FilePlan",
    "IncrementalRewritePlan",
    "MergePlan",
    "decide",
    "keep_one_file",
]


@dataclass(slots=True)
class Decision:
    """The decision for one existing file: keep, rewrite or remove it."""

    number: int  # the position among the dataset's files
    footer: Footer
    reason: str
    match: FileMatch | None = None
    edits: list[GroupEdit] = field(default_factory=list)
    remove: bool = False
    updated: int = 0
    deleted: int = 0

    @property
    def own_schema(self) -> pa.Schema:
        return cast(pa.Schema, self.footer.schema)  # TargetState.read raised an error if a footer is unreadable

    @property
    def matched(self) -> int:
        return count_matches(self.match) if self.match else 0

    @property
    def rows_touched(self) -> int:
        """Count the rows of the row groups to encode."""
        if self.match is None:
            return self.footer.rows
        rows = self.match.group_rows
        return sum(rows[edit.group] for edit in self.edits if edit.rows_left(rows[edit.group]))

    @property
    def edited_bytes(self) -> int:
        """Estimate the bytes of the row groups to edit."""
        return self.footer.file.size * len(self.edits) // max(self.footer.groups, 1)


@dataclass(slots=True)
class Decisions:
    """All decisions of a merge. A file without a decision is kept."""

    target: TargetState
    partitions: Partitions
    numbers: npt.NDArray[np.int64]  # the partition number of each file
    files: list[Decision]
    new_rows: RowNumbers  # of the source
    updated: int
    deleted: int
    rows_in_scope: int
    stale: int = 0  # source rows without effect, because the stored rows are not older
    widened: list[Decision] = field(default_factory=list)  # files of which only column types change

    @property
    def inserted(self) -> int:
        return len(self.new_rows)

    @property
    def rows_after(self) -> int:
        return self.target.rows + self.inserted - self.deleted

    @property
    def touched(self) -> list[Decision]:
        return [decision for decision in self.files if decision.edits]

    @property
    def removed(self) -> list[str]:
        return [decision.footer.file.path for decision in self.files if decision.remove]

    def widen(self, narrower: Callable[[pa.Schema], list[str]]) -> None:
        """Rewrite all other files in which columns are `narrower` than they become."""
        known = {decision.number: decision for decision in self.files}
        for number, footer in enumerate(self.target.footers):
            decision = known.get(number) or Decision(number, footer, "")
            names = [] if decision.edits or decision.remove else narrower(decision.own_schema)
            if names:
                decision.reason = f"widens {'column' if len(names) == 1 else 'columns'} {', '.join(map(repr, names))}"
                self.widened.append(decision)
                if number not in known:
                    self.files.append(decision)

    def reasons_to_keep(self) -> list[str]:
        """Return the reason to keep each file, for files without a decision."""
        kinds = 2 * (self.target.footers.rows > 0) + (self.numbers == ELSEWHERE)
        reasons = [_reason(kind // 2, ELSEWHERE if kind % 2 else 0, None) for kind in range(4)]
        return [reasons[kind] for kind in kinds.tolist()]


def decide(
    target: TargetState,
    source: Source,
    options: MergeOptions,
    engine: Engine,
    report: Reporter,
    inside: Mapping[str, FileMatch] | None = None,
) -> Decisions:
    """Match the source's keys, reading key columns only, and decide about each file.

    `inside` has the rows in the scope of the merge by file, or is None if all rows are.

    Raises PartitionMoveError if the source has an existing key in another partition.
    """
    return _Decider(target, source, options, engine, report, inside).decide()


class _Decider:
    def __init__(
        self,
        target: TargetState,
        source: Source,
        options: MergeOptions,
        engine: Engine,
        report: Reporter,
        inside: Mapping[str, FileMatch] | None,
    ) -> None:
        self.inside = inside
        self.target, self.source, self.options, self.engine, self.report = target, source, options, engine, report
        self.strategy = options.strategy
        self.partitions = Partitions.of_target(source, target)
        self.numbers = self.partitions.numbers_of(target.footers)
        self.deletions = _deletions(source, options)
        self.stale_rows: dict[str, int] = {}  # matching rows by file that are not older than their source row

    def decide(self) -> Decisions:
        possible = self._possible()
        matches = self._match(possible)
        if self.inside is not None:
            location, keys = self.target.location, self.options.key_columns
            reject_stored_outside(location, self.source, matches, self.inside, keys)
        found = self._mark_sources(matches)
        if self.options.newer_by is not None:
            matches = self._without_stale(matches, self.options.newer_by)
        stale = found & ~self._mark_sources(matches) if self.options.newer_by is not None else NO_ROWS
        if self.strategy.replaces and self.target.partition_columns:
            self._reject_moves(np.flatnonzero(possible).tolist(), matches)
        # A merge reads few files of a large dataset. The others need no Decision object.
        candidates = range(len(self.numbers)) if self.strategy.deletes else np.flatnonzero(possible).tolist()
        files = [self._decide(number, matches) for number in candidates]
        if self.deletions is not None:
            found |= self.deletions
        new_rows = _numbers_where(~found) if self.strategy.inserts else NO_ROWS
        if not len(new_rows):
            keep_one_file(files, len(self.numbers))
        return Decisions(
            self.target,
            self.partitions,
            self.numbers,
            files,
            new_rows,
            updated=sum(decision.updated for decision in files),
            deleted=sum(decision.deleted for decision in files),
            rows_in_scope=self.target.rows if self.inside is None else sum(map(count_matches, self.inside.values())),
            stale=int(np.count_nonzero(stale)),
        )

    def _mark_sources(self, matches: Mapping[str, FileMatch]) -> npt.NDArray[np.bool_]:
        """Mark the source rows that match a row."""
        found = np.zeros(self.source.num_rows, np.bool_)
        for match in matches.values():
            for group in match.groups:
                found[group.sources] = True
        return found

    def _without_stale(self, matches: Mapping[str, FileMatch], column: str) -> dict[str, FileMatch]:
        """Leave out the matching rows whose value of a column is not older than that of their source row."""
        field, sources = self._in_stored_type(column)
        values = contiguous(sortable_values(sources))
        groups = [(match, group) for match in matches.values() for group in match.groups]
        picks = [Pick(match.path, group.group, group.positions) for match, group in groups]
        stored = self.engine.pick(self.target.location, picks, pa.schema([field.with_nullable(True)])) if picks else ()
        kept: dict[str, FileMatch] = {path: replace(match, groups=[]) for path, match in matches.items()}
        for (match, group), rows in zip(groups, stored, strict=True):
            newer = _is_newer(values.take(from_numpy(group.sources)), contiguous(sortable_values(rows.column(0))))
            if newer.any():
                fresh = replace(group, positions=group.positions[newer], sources=group.sources[newer])
                kept[match.path].groups.append(fresh)
            self.stale_rows[match.path] = self.stale_rows.get(match.path, 0) + int(np.count_nonzero(~newer))
        return kept

    def _in_stored_type(self, column: str) -> tuple[pa.Field, pa.ChunkedArray]:
        """Return a source column in the type of the dataset if all values fit, because stored values always do."""
        field, values = self.source.schema.field(column), self.source.column(column)
        stored = pa.schema([]) if self.target.schema is None else self.target.schema
        if column in stored.names:
            with contextlib.suppress(SchemaMismatchError):
                return stored.field(column), lossless_cast(values, stored.field(column).type, column)
        return field, values

    def _possible(self) -> npt.NDArray[np.bool_]:
        """Mark the files that neither their partition nor their statistics exclude."""
        footers = self.target.footers
        possible = np.zeros(len(footers), np.bool_)
        for _, index in self.source.indexes():
            possible |= possible_files(footers, index, self.options.key_columns, self.source.schema)
        if set(self.partitions.columns) <= set(self.options.key_columns):
            possible &= self.numbers != ELSEWHERE
        return possible

    def _match(self, possible: npt.NDArray[np.bool_]) -> dict[str, FileMatch]:
        targets = [self._target(number) for number in np.flatnonzero(possible).tolist()]
        self.report("match", 0, len(targets))
        matches: dict[str, FileMatch] = {}
        for match in self.engine.match(self.target.location, self.source, self.options.key_columns, targets):
            matches[match.path] = match
            self.report("match", len(matches), len(targets))
        return matches

    def _target(self, number: int) -> Target:
        footers = self.target.footers
        file, stored = footers.files[number], footers.schemas[int(footers.schema_numbers[number])].names
        keys = [name for name in self.options.key_columns if name not in stored]
        values = self.partitions.constants_of(file.path) if keys else {}
        return Target(file.path, {name: values[name] for name in keys if name in values}, file.size)

    def _reject_moves(self, possible: Sequence[int], matches: Mapping[str, FileMatch]) -> None:
        files = self.target.footers.files
        for number in possible:
            file = files[number]
            match = matches.get(file.path)
            if match is None or not match.groups:
                continue
            rows = np.concatenate([group.sources for group in match.groups])
            rows = rows if self.deletions is None else rows[~self.deletions[rows]]
            moved = self.partitions.moved_rows(rows, file.path, int(self.numbers[number]))
            if len(moved):
                keys = self.options.key_columns
                raise moved_error(
                    row_text(self.source.take(moved[:1], keys), keys, 0),
                    repr(self.target.location.display(file.path)),
                    self.partitions.display(int(self.partitions.rows[moved[0]])),
                    len(moved),
                )

    def _decide(self, number: int, matches: Mapping[str, FileMatch]) -> Decision:
        footer = self.target.footers[number]
        match = matches.get(footer.file.path)
        stale = self.stale_rows.get(footer.file.path, 0)
        decision = Decision(number, footer, _reason(footer.rows, int(self.numbers[number]), match, stale), match)
        if self.inside is not None and self.strategy.deletes:
            inside = self.inside.get(footer.file.path)
            if footer.rows and (inside is None or not inside.groups):
                decision.reason = "no row is in the scope"
            decision.match = match = match or (None if inside is None else replace(inside, groups=[]))
            decision.edits = [] if match is None else _scoped_edits(match, inside)
        elif match is None or not match.groups:
            decision.deleted = footer.rows if self.strategy.deletes else 0
        elif self.strategy.in_both != "keep":
            decision.edits = self._edits(match)
        if match is not None and decision.edits:
            decision.updated = sum(len(edit.positions) for edit in decision.edits)
            rows = match.group_rows
            decision.deleted = sum(rows[edit.group] - edit.rows_left(rows[edit.group]) for edit in decision.edits)
            if decision.deleted and (self.deletions is not None or self.inside is not None):
                decision.reason += f", {decision.deleted:,} to delete"
        if decision.deleted and decision.deleted == footer.rows:
            decision.remove, decision.edits = True, []
            why = "" if decision.matched else "no source key: "
            decision.reason = f"{why}all {footer.rows:,} rows are deleted ({decision.reason})"
        return decision

    def _edits(self, match: FileMatch) -> list[GroupEdit]:
        if self.strategy.in_both == "delete":
            return [GroupEdit(g.group, NO_ROWS, NO_ROWS, deleted=g.positions) for g in match.groups]
        if self.deletions is not None:
            return [_split_edit(g, self.deletions[g.sources]) for g in match.groups]
        keep = not self.strategy.deletes
        edits = [GroupEdit(g.group, g.positions, g.sources, keep) for g in match.groups]
        if not keep:
            found = {g.group for g in match.groups}
            edits += [
                GroupEdit(group, NO_ROWS, NO_ROWS, False)
                for group, rows in enumerate(match.group_rows)
                if group not in found and rows
            ]
        return sorted(edits, key=lambda edit: edit.group)


def keep_one_file(decisions: Sequence[Decision], files: int) -> None:
    """Keep one empty file if all `files` would be removed, so that the dataset keeps its schema."""
    if not decisions or sum(decision.remove for decision in decisions) < files:
        return
    first = decisions[0]
    first.remove = False
    first.edits = [GroupEdit(group, NO_ROWS, NO_ROWS, False) for group in range(first.footer.groups)]


def _deletions(source: Source, options: MergeOptions) -> npt.NDArray[np.bool_] | None:
    """Return which source rows delete, or None if the source has no operations."""
    if options.operation_column is None:
        return None
    found: npt.NDArray[np.bool_] = to_numpy(contiguous(source.column(options.operation_column)))
    return found


def _split_edit(match: GroupMatch, deleting: npt.NDArray[np.bool_]) -> GroupEdit:
    """Replace the matching rows, except those whose source row deletes."""
    replacing = ~deleting
    return GroupEdit(
        match.group, match.positions[replacing], match.sources[replacing], deleted=match.positions[deleting]
    )


def count_matches(match: FileMatch) -> int:
    return sum(len(group.positions) for group in match.groups)


def _scoped_edits(match: FileMatch, inside: FileMatch | None) -> list[GroupEdit]:
    """Replace the matching rows, and delete the other rows in the scope."""
    found = {group.group: group for group in match.groups}
    selected = {group.group: group.positions for group in inside.groups} if inside is not None else {}
    edits = []
    for group in sorted(selected):
        matching = found.get(group)
        positions, sources = (NO_ROWS, NO_ROWS) if matching is None else (matching.positions, matching.sources)
        deleted = selected[group][np.isin(selected[group], positions, invert=True)]
        edits.append(GroupEdit(group, positions, sources, deleted=deleted))
    return edits


def _is_newer(source: pa.Array, stored: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where source values are greater than stored ones. NULL is lowest, and NaN is highest."""
    greater: npt.NDArray[np.bool_] = to_numpy(pc.greater(source, stored), False)
    if pa.types.is_floating(source.type):
        greater |= to_numpy(pc.and_not(pc.is_nan(source), pc.is_nan(stored)), False)
    greater |= to_numpy(pc.and_(source.is_valid(), stored.is_null()))
    return greater


def _reason(rows: int, partition: int, match: FileMatch | None, stale: int = 0) -> str:
    where = " (partition not in the source)" if partition == ELSEWHERE else ""
    if match is None:
        return f"statistics or partition exclude the source's keys{where}" if rows else "the file has no rows"
    kept = f"{_matching(stale)} not older than the source" if stale else ""
    if not match.groups:
        return kept or f"no source key found in {match.scanned} of {len(match.group_rows)} row groups{where}"
    keys = sum(len(group.positions) for group in match.groups)
    where = f"in {len(match.groups)} of {len(match.group_rows)} row groups"
    return f"{_matching(keys)} {where}{f', {kept}' if kept else ''}"


def _matching(rows: int) -> str:
    return "1 matching row" if rows == 1 else f"{rows:,} matching rows"


def _numbers_where(chosen: npt.NDArray[np.bool_]) -> RowNumbers:
    """Compute `np.flatnonzero` in half the memory."""
    numbers: RowNumbers = np.empty(np.count_nonzero(chosen), np.int32 if len(chosen) < 2**31 else np.int64)
    filled = 0
    for start in range(0, len(chosen), 1 << 20):
        found = np.flatnonzero(chosen[start : start + (1 << 20)]) + start
        numbers[filled : filled + len(found)] = found
        filled += len(found)
    return numbers


@dataclass
class IncrementalRewritePlan:
    """The files of a dataset that a merge may rewrite, and those that it keeps.

    Attributes:
        affected_files: Files to rewrite or remove.
        unaffected_files: Files to keep unchanged.
        new_files: Files to create for new rows. A `*` stands for the part of a name that the commit generates.
        affected_rows: The number of rows in `affected_files`.

    Example:
        >>> import inlay
        >>> from inlay.incremental import plan_incremental_rewrite
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> plan_incremental_rewrite("people", [2], "id").affected_rows
        2
    """

    affected_files: list[str]
    unaffected_files: list[str]
    new_files: list[str]
    affected_rows: int


@dataclass(slots=True)
class FilePlan:
    """What a merge would do with one existing file, and why.

    Attributes:
        path: The path of the file.
        operation: `"rewritten"`, `"removed"` or `"preserved"`.
        reason: Why the merge rewrites, removes or keeps the file.
        row_count: The number of rows in the file.
        size_bytes: The size of the file.
        matched_rows: The number of rows whose key is in the source, without those that `newer_by` keeps.
        row_groups: The numbers of the row groups with matching rows.
        bytes_copied: The number of bytes that the rewrite would copy without decoding them.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> [file] = inlay.plan_merge({"id": [3]}, "people", "upsert", "id").files
        >>> file.operation, file.reason
        ('preserved', "statistics or partition exclude the source's keys")
    """

    path: str
    operation: Literal["rewritten", "removed", "preserved", "inserted"]
    reason: str
    row_count: int
    size_bytes: int | None = None
    matched_rows: int = 0
    row_groups: tuple[int, ...] = ()
    bytes_copied: int = 0


@dataclass
class MergePlan(IncrementalRewritePlan):
    """What a merge would do: exact counts, and the operation on each file with its reason.

    `plan_merge` returns it. `print(plan)` lists the touched files. A notebook shows the plan as a chart.

    Attributes:
        strategy: The strategy of the merge.
        source_count: The number of source rows.
        target_count_before: The number of rows in the dataset.
        target_count_after: The number of rows in the dataset after the merge.
        inserted: The number of rows to add.
        updated: The number of rows whose key is in the source and that the strategy replaces.
        deleted: The number of rows to delete.
        unchanged: The number of rows in `updated` that already equal their source row.
        rows_to_rewrite: The number of rows in the row groups to rewrite.
        bytes_to_rewrite: The size of the files to rewrite, without the bytes that the merge copies.
        replayed: True if the transaction of the merge is already committed, so that the merge would change nothing.
            `source_count` is then 0, because inlay doesn't read the source.
        stale: The number of source rows without effect, because `newer_by` finds the stored rows not older.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> plan = inlay.plan_merge({"id": [2, 3]}, "people", "full_merge", "id")
        >>> plan.inserted, plan.updated, plan.unchanged, plan.deleted
        (1, 1, 1, 1)
    """

    strategy: str = ""
    source_count: int = 0
    target_count_before: int = 0
    target_count_after: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0
    rows_to_rewrite: int = 0
    bytes_to_rewrite: int = 0
    replayed: bool = False
    stale: int = 0
    explain: InitVar[Callable[[], list[FilePlan]]] = list

    def __post_init__(self, explain: Callable[[], list[FilePlan]]) -> None:
        self._explain = explain

    @cached_property
    def files(self) -> list[FilePlan]:
        """The plan for each existing file, in path order."""
        return self._explain()  # computed on first access: a dataset may have very many files

    def to_dict(self) -> dict[str, Any]:
        """Convert the plan to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name, with `files` as a list of dicts.

        Example:
            >>> import inlay
            >>> inlay.plan_merge({"id": [1]}, "people", "upsert", "id").to_dict()["inserted"]
            1
        """
        return asdict(self) | {"files": [asdict(file) for file in self.files]}

    def __repr__(self) -> str:
        replayed = "already committed, nothing to do: " if self.replayed else ""
        stale = f", {self.stale:,} stale" if self.stale else ""
        head = (
            f"MergePlan({self.strategy}: {replayed}{self.inserted:,} to insert, {self.updated:,} to update"
            f" ({self.unchanged:,} unchanged), {self.deleted:,} to delete{stale};"
            f" {self.target_count_before:,} -> {self.target_count_after:,} rows;"
            f" {self.rows_to_rewrite:,} rows, {self.bytes_to_rewrite:,} bytes to rewrite)"
        )
        touched = [file for file in self.files if file.operation != "preserved"]
        lines = [f"  {file.operation:<9} {file.path}: {file.reason}" for file in touched[:20]]
        if len(touched) > 20:
            lines.append(f"  ... and {len(touched) - 20:,} more")
        lines.append(f"  {len(self.files) - len(touched):,} files unchanged")
        return "\n".join([head, *lines])

    def _repr_html_(self) -> str:
        from inlay.incremental.display import plan_html

        return plan_html(self)
