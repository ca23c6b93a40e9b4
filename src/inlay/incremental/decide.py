"""What becomes of every file: where source keys are found, what is replaced and deleted, which rows are new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import pyarrow as pa

from inlay.engines.base import Engine, FileMatch, GroupEdit, Target
from inlay.incremental.options import MergeOptions
from inlay.incremental.progress import Reporter
from inlay.incremental.prune import possible_files
from inlay.incremental.target import ELSEWHERE, UNKNOWN, Partitions, TargetState
from inlay.incremental.validate import moved_error, row_text
from inlay.parquet.footers import Footer

__all__ = ["Decision", "Decisions", "decide"]

_NOTHING = np.empty(0, np.int64)


@dataclass(slots=True)
class Decision:
    """What happens to one existing file."""

    at: int  # its place among the dataset's files
    footer: Footer
    reason: str
    match: FileMatch | None = None
    edits: list[GroupEdit] = field(default_factory=list)
    remove: bool = False

    @property
    def own_schema(self) -> pa.Schema:
        """There is one: a dataset with a file that cannot be read is refused before anything is decided."""
        return cast(pa.Schema, self.footer.schema)

    @property
    def matched(self) -> int:
        return sum(len(group.positions) for group in self.match.groups) if self.match else 0

    @property
    def rows_touched(self) -> int:
        return sum(group.rows for group in self.match.groups) if self.match else self.footer.rows


@dataclass(slots=True)
class Decisions:
    """All that a merge is going to do. Files that nobody had to look at have no decision: they stay."""

    target: TargetState
    partitions: Partitions
    numbers: np.ndarray  # partition of every file
    files: list[Decision]
    new_rows: np.ndarray  # of the source
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
        """For every file why it stays as it is if nobody had to look at it; few reasons for many files."""
        kinds = 2 * (self.target.footers.rows > 0) + (self.numbers == ELSEWHERE)
        reasons = [_reason(kind // 2, ELSEWHERE if kind % 2 else 0, None) for kind in range(4)]
        return [reasons[kind] for kind in kinds.tolist()]


def decide(target: TargetState, source: Any, options: MergeOptions, engine: Engine, report: Reporter) -> Decisions:
    """Look for the source's keys, reading key columns only, and decide about every file; refuses rows that move."""
    return _Decider(target, source, options, engine, report).decide()


class _Decider:
    def __init__(
        self, target: TargetState, source: Any, options: MergeOptions, engine: Engine, report: Reporter
    ) -> None:
        self.target, self.source, self.options, self.engine, self.report = target, source, options, engine, report
        self.strategy = options.strategy
        self.partitions = Partitions.of(source, target.partition_columns, target.footers)
        self.numbers = self.partitions.numbers_of(target.footers)

    def decide(self) -> Decisions:
        possible = self._possible()
        matches = self._match(possible)
        # most files of a large dataset are neither read nor touched: nothing is decided about them
        looked_at = range(len(self.numbers)) if self.strategy.deletes else np.flatnonzero(possible).tolist()
        files = [self._decide(at, matches) for at in looked_at]
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

    def _possible(self) -> np.ndarray:
        """Files that partition and statistics do not exclude."""
        footers = self.target.footers
        possible = np.zeros(len(footers), np.bool_)
        for _, index in self.source.indexes():
            possible |= possible_files(footers, index, self.options.key_columns, self.source.schema)
        if set(self.target.partition_columns) <= set(self.options.key_columns):
            possible &= self.numbers != ELSEWHERE
        return possible

    def _match(self, possible: np.ndarray) -> dict[str, FileMatch]:
        paths = [self.target.footers.files[at].path for at in np.flatnonzero(possible).tolist()]
        targets = [Target(path, self._constants(path)) for path in paths]
        self.report("match", 0, len(targets))
        matches: dict[str, FileMatch] = {}
        for match in self.engine.match(self.target.location, self.source, self.options.key_columns, targets):
            matches[match.path] = match
            self.report("match", len(matches), len(targets))
        if self.strategy.replaces and self.target.partition_columns:
            self._reject_moves(matches)
        return matches

    def _constants(self, path: str) -> dict[str, pa.Scalar]:
        inside = cast(pa.Schema, self.target.schema).names  # there is a file, so there is a schema
        keys = [name for name in self.options.key_columns if name not in inside]
        values = self.partitions.constants_of(path) if keys else {}
        return {name: values[name] for name in keys if name in values}

    def _reject_moves(self, matches: Mapping[str, FileMatch]) -> None:
        for at, file in enumerate(self.target.footers.files):
            match = matches.get(file.path)
            if match is None or not match.groups or self.numbers[at] == UNKNOWN:
                continue
            rows = np.concatenate([group.sources for group in match.groups])
            moved = rows[self.partitions.rows[rows] != self.numbers[at]]
            if len(moved):
                keys = self.options.key_columns
                raise moved_error(
                    row_text(self.source.take(moved[:1], keys), keys, 0),
                    repr(self.target.location.shown(file.path)),
                    self.partitions.shown(int(self.partitions.rows[moved[0]])),
                    len(moved),
                )

    def _decide(self, at: int, matches: Mapping[str, FileMatch]) -> Decision:
        footer = self.target.footers[at]
        match = matches.get(footer.file.path)
        decision = Decision(at, footer, _reason(footer.rows, int(self.numbers[at]), match), match)
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

    def _keep_one_file(self, files: list[Decision], new_rows: np.ndarray) -> None:
        """A dataset that loses all its rows keeps one empty file, so that its schema survives."""
        if not self.strategy.deletes or len(new_rows) or not files or not all(d.remove for d in files):
            return
        first = files[0]
        first.remove = False
        first.edits = [GroupEdit(group, _NOTHING, _NOTHING, False) for group in range(first.footer.groups)]


def _reason(rows: int, partition: int, match: FileMatch | None) -> str:
    where = " (partition not in the source)" if partition == ELSEWHERE else ""
    if match is None:
        return f"statistics or partition exclude the source's keys{where}" if rows else "it has no rows"
    if not match.groups:
        return f"no source key found in {match.scanned} of {len(match.group_rows)} row groups{where}"
    keys = sum(len(group.positions) for group in match.groups)
    matching = "1 matching row" if keys == 1 else f"{keys:,} matching rows"
    return f"{matching} in {len(match.groups)} of {len(match.group_rows)} row groups"


def _numbers_where(chosen: np.ndarray) -> np.ndarray:
    """`np.flatnonzero` in half the memory, where a source of many rows needs it most."""
    numbers = np.empty(np.count_nonzero(chosen), np.int32 if len(chosen) < 2**31 else np.int64)
    filled = 0
    for start in range(0, len(chosen), 1 << 20):
        here = np.flatnonzero(chosen[start : start + (1 << 20)]) + start
        numbers[filled : filled + len(here)] = here
        filled += len(here)
    return numbers
