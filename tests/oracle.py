"""What a merge means, in plain Python: dicts, lists and loops, nothing shared with the implementation.

Rows are dicts of plain values (see `lake.plain`): temporal values are integers on one common scale, so equal
instants are equal numbers whatever their unit. A dataset is a list of (path, rows); rows carry partition
columns like any other column.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
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
    "delete": ("delete", "skip", "keep"),
}


class RefusedError(Exception):
    """The merge must be rejected; `kind` is null-key, duplicate-key, partition-move or missing-column."""

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
    stale: int = 0

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
    return (False, 0) if value is None else (True, _moment(value))


def deduplicated(source: Sequence[Row], keys: Sequence[str], order_by: Sequence[str]) -> list[Row]:
    """Keep one row per key: the last by `order_by` (NULLs lowest), then by source order."""
    ranked = sorted(range(len(source)), key=lambda i: [_rank(source[i][name]) for name in order_by])
    winner = {key_of(source[i], keys): i for i in ranked}
    return [source[i] for i in sorted(winner.values())]


#: what an operation column may say -> whether the row deletes
OPERATIONS = {
    **dict.fromkeys(("insert", "Update", "I", "U", "c", "R", "u"), False),
    **dict.fromkeys(("delete", "DELETE", "D", "d"), True),
}


def is_newer(row: Row, stored: Row, column: str) -> bool:
    """NULL is oldest, NaN is newest, and a tie is not newer."""
    if row[column] is None:
        return False
    return stored[column] is None or _moment(row[column]) > _moment(stored[column])


def _moment(value: Any) -> Any:
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value.encode() if isinstance(value, str) else value


def checked_source(source: Sequence[Row], keys: Sequence[str], strategy: str, order_by: Sequence[str]) -> list[Row]:
    if any(key_of(row, keys) is None for row in source):
        raise RefusedError("null-key")
    if strategy in ("deduplicate", "delete"):
        return deduplicated(source, keys, order_by)
    if len({key_of(row, keys) for row in source}) < len(source):
        raise RefusedError("duplicate-key")
    return list(source)


def _refuse_moves(
    files: Files, by_key: dict[Any, Row], keys: Sequence[str], partitions: Sequence[str], newer_by: str | None
) -> None:
    for row in (row for _, rows in files for row in rows):
        match = by_key.get(key_of(row, keys))
        if match is not None and newer_by is not None and not is_newer(match, row, newer_by):
            continue
        known = [name for name in partitions if match is not None and name in match]
        if match is not None and partition_of(match, known) != partition_of(row, known):
            raise RefusedError("partition-move")


def _is_inside(row: Row, scope: dict[str, list[Any]]) -> bool:
    """Return whether each column that a row has is in the scope."""
    return all(row[name] in values for name, values in scope.items() if name in row)


def _refuse_rows_outside(files: Files, source: Sequence[Row], keys: Sequence[str], scope: dict[str, list[Any]]) -> None:
    stored = {key_of(row, keys) for _, rows in files for row in rows if not _is_inside(row, scope)}
    if any(not _is_inside(row, scope) or key_of(row, keys) in stored for row in source):
        raise RefusedError("outside-scope")


def completed(row: Row, columns: Sequence[str], old: Row | None) -> Row:
    """Return a source row with all columns. A column that it lacks is that of the old row, or NULL without one."""
    return {name: row[name] if name in row else (old or {}).get(name) for name in columns}


def _refuse_missing(rows: Iterable[Row], required: Iterable[str]) -> None:
    if any(name not in row for name in required for row in rows):
        raise RefusedError("missing-column")


def _merge_file(
    path: str,
    rows: list[Row],
    by_key: dict[Any, Row],
    strategy: str,
    keys: Sequence[str],
    columns: Sequence[str],
    keeps: bool,
    gone: set[Any],
    newer_by: str | None,
    outside: Sequence[int],
    out: Outcome,
) -> set[Any]:
    """Merge one file, and return the keys of source rows that had an effect."""
    both, _, target_only = TRUTH[strategy]
    out.files[path], out.changed[path] = kept, changed = [], []
    effective = set()
    for position, row in enumerate(rows):
        match = by_key.get(key_of(row, keys))
        action = target_only if match is None else both
        if position in outside:
            action = "keep"
        if match is not None and key_of(row, keys) in gone:
            action = "delete"
        if match is not None and newer_by is not None and not is_newer(match, row, newer_by):
            action = "keep"
        elif match is not None:
            effective.add(key_of(row, keys))
        if action == "delete":
            out.deleted += 1
            changed.append(position)
            continue
        if action == "replace":
            match = completed(match, columns, row if keeps else None)
            same = exact_row(match) == exact_row(row)
            out.updated += 1
            out.unchanged += same
            changed.extend([] if same else [position])
        kept.append(match if action == "replace" else row)
    return effective


def merge(
    files: Files,
    source: Iterable[Row],
    strategy: str,
    keys: Sequence[str],
    partitions: Sequence[str] = (),
    dedup_order_by: Sequence[str] = (),
    missing_columns: str = "error",
    columns: Sequence[str] = (),
    required: Sequence[str] = (),
    operation_column: str | None = None,
    newer_by: str | None = None,
    scope: dict[str, list[Any]] | None = None,
    max_deleted: float | None = None,
) -> Outcome:
    """Merge `source` into `files` and return the outcome. Raises RefusedError.

    `columns` are those of the dataset, in addition to those of its rows; `required` ones may not be NULL. A source row
    without one of them lacks the column, and `missing_columns` decides what happens then.
    """
    source_rows = list(source)
    names = dict.fromkeys([*columns, *(name for _, rows in files for row in rows for name in row)])
    if strategy != "delete":  # which needs only keys
        needed = {"error": names, "null": [*required, *partitions], "keep": []}[missing_columns] if files else []
        _refuse_missing([row for row in source_rows if not OPERATIONS.get(row.get(operation_column))], needed)
    columns = dict.fromkeys([*names, *(name for row in source_rows for name in row)])
    columns = [name for name in columns if name != operation_column]
    wanted = checked_source(source_rows, keys, strategy, dedup_order_by or ([newer_by] if newer_by else []))
    gone: set[Any] = set()
    if operation_column is not None:
        gone = {key_of(row, keys) for row in wanted if OPERATIONS[row[operation_column]]}
        wanted = [{name: value for name, value in row.items() if name != operation_column} for row in wanted]
    by_key = {key_of(row, keys): row for row in wanted}
    if TRUTH[strategy][0] == "replace":
        _refuse_moves(files, {key: row for key, row in by_key.items() if key not in gone}, keys, partitions, newer_by)
    if scope is not None:
        _refuse_rows_outside(files, wanted, keys, scope)
    out = Outcome(source_count=len(source_rows), before=sum(len(rows) for _, rows in files))
    effective: set[Any] = set()
    for path, rows in files:
        keeps = missing_columns == "keep"
        outside = [] if scope is None else [at for at, row in enumerate(rows) if not _is_inside(row, scope)]
        effective |= _merge_file(path, rows, by_key, strategy, keys, columns, keeps, gone, newer_by, outside, out)
    matched = {key_of(row, keys) for _, rows in files for row in rows} & by_key.keys()
    out.stale = len(matched - effective)
    if TRUTH[strategy][1] == "insert":
        known = {key_of(row, keys) for _, rows in files for row in rows} | gone
        new = [row for row in wanted if key_of(row, keys) not in known]
        _refuse_missing(new, [*required, *partitions] if files else [])
        for row in (completed(row, columns, None) for row in new):
            out.inserts.setdefault(partition_of(row, partitions), []).append(row)
            out.inserted += 1
    if max_deleted is not None:
        _refuse_deletions(
            out.deleted, sum(_is_inside(row, scope or {}) for _, rows in files for row in rows), max_deleted
        )
    return out


def _refuse_deletions(deleted: int, rows: int, limit: float) -> None:
    if deleted > (limit if isinstance(limit, int) else Fraction(str(limit)) * rows):
        raise RefusedError("deletion-limit")


def delete(files: Files, selects: Callable[[Row], bool | None]) -> Outcome:
    """Delete the rows for which `selects` returns True."""
    out = Outcome(before=sum(len(rows) for _, rows in files))
    for path, rows in files:
        out.changed[path] = [position for position, row in enumerate(rows) if selects(row)]
        out.files[path] = [row for row in rows if not selects(row)]
        out.deleted += len(out.changed[path])
    return out
