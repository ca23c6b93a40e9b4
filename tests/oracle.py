"""What a merge means, in plain Python: dicts, lists and loops, nothing shared with the implementation.

Rows are dicts of plain values (see `lake.plain`): temporal values are integers on one common scale, so equal
instants are equal numbers whatever their unit. A dataset is a list of (path, rows); rows carry partition
columns like any other column.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Files = Sequence[tuple[str, list[Row]]]

#: strategy -> (key in both, key only in source, key only in target)
TRUTH = {
    "insert": ("keep", "insert", "keep"),
    "update": ("replace", "skip", "keep"),
    "upsert": ("replace", "insert", "keep"),
    "full_merge": ("replace", "insert", "delete"),
    "deduplicate": ("replace", "insert", "keep"),
}


class RefusedError(Exception):
    """The merge must be rejected; `kind` is null-key, duplicate-key or partition-move."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass
class Outcome:
    """The rows and files of the dataset after the merge."""

    files: dict[str, list[Row]] = field(default_factory=dict)  # every old file -> its rows, in order
    inserts: dict[tuple[Any, ...], list[Row]] = field(default_factory=dict)  # by partition, in source order
    changed: dict[str, list[int]] = field(default_factory=dict)  # old positions replaced by other bits or deleted
    source_count: int = 0
    before: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    @property
    def after(self) -> int:
        return self.before + self.inserted - self.deleted

    @property
    def touched(self) -> set[str]:
        return {path for path, positions in self.changed.items() if positions}

    @property
    def untouched(self) -> set[str]:
        """Files that must not change."""
        return set(self.files) - self.touched

    @property
    def emptied(self) -> set[str]:
        """Touched files without rows."""
        return {path for path in self.touched if not self.files[path]}

    @property
    def one_empty_file_stays(self) -> bool:
        """True if one empty file must be kept for the schema."""
        return bool(self.emptied) and self.emptied == set(self.files) and not self.inserts

    @property
    def rewritten(self) -> set[str]:
        """Touched files that still have rows."""
        return self.touched - self.emptied

    def rows(self) -> list[Row]:
        """All rows, old files first."""
        parts = [*self.files.values(), *self.inserts.values()]
        return [row for part in parts for row in part]


def exact(value: Any) -> Any:
    """Return a hashable value that is equal only for bit-equal values."""
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, dict):
        return ("struct", tuple((name, exact(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return ("list", tuple(exact(item) for item in value))
    return value


def exact_row(row: Row) -> tuple[tuple[str, Any], ...]:
    """Return a comparable value of a row that does not depend on the order of columns."""
    return tuple(sorted((name, exact(value)) for name, value in row.items()))


def key_part(value: Any) -> Any:
    """Normalize a key value: NaN equals NaN, -0.0 equals 0.0, strings compare as bytes."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value.encode() if isinstance(value, str) else value


def key_of(row: Row, keys: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the key tuple, or None if a part is NULL and the row cannot match."""
    values = [row[name] for name in keys]
    return None if any(value is None for value in values) else tuple(map(key_part, values))


def partition_of(row: Row, partitions: Sequence[str]) -> tuple[Any, ...]:
    return tuple(exact(row[name]) for name in partitions)


def _rank(value: Any) -> tuple[bool, Any]:
    return (False, 0) if value is None else (True, value.encode() if isinstance(value, str) else value)


def deduplicated(source: Sequence[Row], keys: Sequence[str], order_by: Sequence[str]) -> list[Row]:
    """Keep one row per key: the last by `order_by` (NULLs lowest), then by source order."""
    ranked = sorted(range(len(source)), key=lambda i: [_rank(source[i][name]) for name in order_by])
    winner = {key_of(source[i], keys): i for i in ranked}
    return [source[i] for i in sorted(winner.values())]


def checked_source(source: Sequence[Row], keys: Sequence[str], strategy: str, order_by: Sequence[str]) -> list[Row]:
    if any(key_of(row, keys) is None for row in source):
        raise RefusedError("null-key")
    if strategy == "deduplicate":
        return deduplicated(source, keys, order_by)
    if len({key_of(row, keys) for row in source}) < len(source):
        raise RefusedError("duplicate-key")
    return list(source)


def _refuse_moves(files: Files, by_key: dict[Any, Row], keys: Sequence[str], partitions: Sequence[str]) -> None:
    for row in (row for _, rows in files for row in rows):
        match = by_key.get(key_of(row, keys))
        if match is not None and partition_of(match, partitions) != partition_of(row, partitions):
            raise RefusedError("partition-move")


def _merge_file(
    path: str, rows: list[Row], by_key: dict[Any, Row], strategy: str, keys: Sequence[str], out: Outcome
) -> None:
    both, _, target_only = TRUTH[strategy]
    out.files[path], out.changed[path] = kept, changed = [], []
    for position, row in enumerate(rows):
        match = by_key.get(key_of(row, keys))
        action = target_only if match is None else both
        if action == "delete":
            out.deleted += 1
            changed.append(position)
            continue
        if action == "replace":
            same = exact_row(match) == exact_row(row)
            out.updated += 1
            out.unchanged += same
            changed.extend([] if same else [position])
        kept.append(match if action == "replace" else row)


def merge(
    files: Files,
    source: Iterable[Row],
    strategy: str,
    keys: Sequence[str],
    partitions: Sequence[str] = (),
    dedup_order_by: Sequence[str] = (),
) -> Outcome:
    """Merge `source` into `files` and return the outcome. Raises RefusedError."""
    source_rows = list(source)
    wanted = checked_source(source_rows, keys, strategy, dedup_order_by)
    by_key = {key_of(row, keys): row for row in wanted}
    if strategy != "insert":
        _refuse_moves(files, by_key, keys, partitions)
    out = Outcome(source_count=len(source_rows), before=sum(len(rows) for _, rows in files))
    for path, rows in files:
        _merge_file(path, rows, by_key, strategy, keys, out)
    if TRUTH[strategy][1] == "insert":
        known = {key_of(row, keys) for _, rows in files for row in rows}
        for row in wanted:
            if key_of(row, keys) not in known:
                out.inserts.setdefault(partition_of(row, partitions), []).append(row)
                out.inserted += 1
    return out
