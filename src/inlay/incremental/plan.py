"""Plans: the decision for each file, and `MergePlan`, which presents the decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.engines.base import Engine, FileMatch, GroupEdit, RowNumbers, Source, Target
from inlay.incremental.display import Reporter
from inlay.incremental.prune import possible_files
from inlay.incremental.target import ELSEWHERE, Partitions, TargetState
from inlay.incremental.validate import MergeOptions, moved_error, row_text
from inlay.parquet.footers import Footer

__all__ = [
    "Decision",
    "Decisions",
    "FilePlan",
    "IncrementalRewritePlan",
    "MergePlan",
    "decide",
]


_NOTHING = np.empty(0, np.int64)


@dataclass(slots=True)
class Decision:
    """The decision for one existing file: keep, rewrite or remove it."""

    number: int  # the position among the dataset's files
    footer: Footer
    reason: str
    match: FileMatch | None = None
    edits: list[GroupEdit] = field(default_factory=list)
    remove: bool = False

    @property
    def own_schema(self) -> pa.Schema:
        return cast(pa.Schema, self.footer.schema)  # TargetState.read raised an error if a footer is unreadable

    @property
    def matched(self) -> int:
        return sum(len(group.positions) for group in self.match.groups) if self.match else 0

    @property
    def rows_touched(self) -> int:
        return sum(group.rows for group in self.match.groups) if self.match else self.footer.rows


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

    def reasons_to_keep(self) -> list[str]:
        """Return the reason to keep each file, for files without a decision."""
        kinds = 2 * (self.target.footers.rows > 0) + (self.numbers == ELSEWHERE)
        reasons = [_reason(kind // 2, ELSEWHERE if kind % 2 else 0, None) for kind in range(4)]
        return [reasons[kind] for kind in kinds.tolist()]


def decide(target: TargetState, source: Source, options: MergeOptions, engine: Engine, report: Reporter) -> Decisions:
    """Match the source's keys, reading key columns only, and decide about each file.

    Raises PartitionMoveError if the source has an existing key in another partition.
    """
    return _Decider(target, source, options, engine, report).decide()


class _Decider:
    def __init__(
        self, target: TargetState, source: Source, options: MergeOptions, engine: Engine, report: Reporter
    ) -> None:
        self.target, self.source, self.options, self.engine, self.report = target, source, options, engine, report
        self.strategy = options.strategy
        self.partitions = Partitions.of_target(source, target)
        self.numbers = self.partitions.numbers_of(target.footers)

    def decide(self) -> Decisions:
        possible = self._possible()
        matches = self._match(possible)
        # A merge reads few files of a large dataset. The others need no Decision object.
        candidates = range(len(self.numbers)) if self.strategy.deletes else np.flatnonzero(possible).tolist()
        files = [self._decide(number, matches) for number in candidates]
        found = np.zeros(self.source.num_rows, np.bool_)
        for match in matches.values():
            for group in match.groups:
                found[group.sources] = True
        new_rows = _numbers_where(~found) if self.strategy.inserts else _NOTHING
        self._keep_one_file(files, new_rows)
        matched = sum(decision.matched for decision in files)
        return Decisions(
            self.target,
            self.partitions,
            self.numbers,
            files,
            new_rows,
            updated=matched if self.strategy.replaces else 0,
            deleted=self.target.rows - matched if self.strategy.deletes else 0,
        )

    def _possible(self) -> npt.NDArray[np.bool_]:
        """Mark the files that neither their partition nor their statistics exclude."""
        footers = self.target.footers
        possible = np.zeros(len(footers), np.bool_)
        for _, index in self.source.indexes():
            possible |= possible_files(footers, index, self.options.key_columns, self.source.schema)
        if set(self.target.partition_columns) <= set(self.options.key_columns):
            possible &= self.numbers != ELSEWHERE
        return possible

    def _match(self, possible: npt.NDArray[np.bool_]) -> dict[str, FileMatch]:
        targets = [self._target(number) for number in np.flatnonzero(possible).tolist()]
        self.report("match", 0, len(targets))
        matches: dict[str, FileMatch] = {}
        for match in self.engine.match(self.target.location, self.source, self.options.key_columns, targets):
            matches[match.path] = match
            self.report("match", len(matches), len(targets))
        if self.strategy.replaces and self.target.partition_columns:
            self._reject_moves(matches)
        return matches

    def _target(self, number: int) -> Target:
        footers = self.target.footers
        path, stored = footers.files[number].path, footers.schemas[int(footers.schema_numbers[number])].names
        keys = [name for name in self.options.key_columns if name not in stored]
        values = self.partitions.constants_of(path) if keys else {}
        return Target(path, {name: values[name] for name in keys if name in values})

    def _reject_moves(self, matches: Mapping[str, FileMatch]) -> None:
        for number, file in enumerate(self.target.footers.files):
            match = matches.get(file.path)
            if match is None or not match.groups:
                continue
            rows = np.concatenate([group.sources for group in match.groups])
            moved = rows[self.partitions.rows[rows] != self.numbers[number]]
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
        decision = Decision(number, footer, _reason(footer.rows, int(self.numbers[number]), match), match)
        if self.strategy.deletes:
            decision.remove = footer.rows > 0 and decision.matched == 0
            if decision.remove:
                decision.reason = f"no source key: all {footer.rows:,} rows are deleted ({decision.reason})"
                return decision
        if self.strategy.replaces and match is not None and match.groups:
            decision.edits = self._edits(match)
        return decision

    def _edits(self, match: FileMatch) -> list[GroupEdit]:
        keep = not self.strategy.deletes
        edits = [GroupEdit(g.group, g.positions, g.sources, keep) for g in match.groups]
        if not keep:
            found = {g.group for g in match.groups}
            edits += [
                GroupEdit(group, _NOTHING, _NOTHING, False)
                for group, rows in enumerate(match.group_rows)
                if group not in found and rows
            ]
        return sorted(edits, key=lambda edit: edit.group)

    def _keep_one_file(self, files: list[Decision], new_rows: RowNumbers) -> None:
        """Keep one empty file if the merge deletes all rows, so that the dataset keeps its schema."""
        if not self.strategy.deletes or len(new_rows) or not files or not all(d.remove for d in files):
            return
        first = files[0]
        first.remove = False
        first.edits = [GroupEdit(group, _NOTHING, _NOTHING, False) for group in range(first.footer.groups)]


def _reason(rows: int, partition: int, match: FileMatch | None) -> str:
    where = " (partition not in the source)" if partition == ELSEWHERE else ""
    if match is None:
        return f"statistics or partition exclude the source's keys{where}" if rows else "the file has no rows"
    if not match.groups:
        return f"no source key found in {match.scanned} of {len(match.group_rows)} row groups{where}"
    keys = sum(len(group.positions) for group in match.groups)
    matching = "1 matching row" if keys == 1 else f"{keys:,} matching rows"
    return f"{matching} in {len(match.groups)} of {len(match.group_rows)} row groups"


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
        matched_rows: The number of rows whose key is in the source.
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
        head = (
            f"MergePlan({self.strategy}: {self.inserted:,} to insert, {self.updated:,} to update"
            f" ({self.unchanged:,} unchanged), {self.deleted:,} to delete;"
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
