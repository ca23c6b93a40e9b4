"""Plans of loads (dry runs) as JSON, with a sample of the rows that would change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from inlay.catalog import DataFile, Snapshot
from inlay.engines.base import Engine
from inlay.engines.columns import bit_equal
from inlay.incremental.display import ProgressCallback
from inlay.incremental.managed import Draft, plan_delete_from_draft, plan_draft
from inlay.incremental.plan import FilePlan, MergePlan
from inlay.incremental.result import Changes, first_rows
from inlay.incremental.validate import MergeOptions
from inlay.pipeline import Conversion
from inlay.query.values import dumps, json_values
from inlay.storage import Location
from inlay.workspace.storage import ServiceStorage

__all__ = ["MAX_ROWS", "Planner", "changes_json"]

MAX_ROWS = 20  # of each kind
_MAX_COLUMNS = 30
_MAX_CHARACTERS = 200  # of a value
_CONTEXT_CHARACTERS = 40  # before the first difference of two long values


def changes_json(changes: Changes, key_columns: Sequence[str]) -> dict[str, Any]:
    """Return inserted and deleted rows, and the changed cells of updated rows."""
    names = [*key_columns, *(name for name in changes.inserted.schema.names if name not in key_columns)]
    columns = names[:_MAX_COLUMNS]
    return {
        "columns": columns,
        "inserted": _rows(changes.inserted, columns),
        "updated": _updated(changes.old, changes.new, key_columns),
        "deleted": _rows(changes.deleted, columns),
    }


def _rows(table: pa.Table, names: Sequence[str]) -> list[list[Any]]:
    columns = [_values(table, name) for name in names]
    return [[_shorten(value) for value in row] for row in zip(*columns, strict=True)]


def _values(table: pa.Table, name: str) -> list[Any]:
    return json_values(_array(table, name))


def _array(table: pa.Table, name: str) -> pa.Array:
    return table.column(name).combine_chunks() if table.num_rows else pa.array([], table.schema.field(name).type)


def _updated(old: pa.Table, new: pa.Table, key_columns: Sequence[str]) -> list[dict[str, Any]]:
    keys = _rows(new, key_columns) if key_columns else []
    rows: list[dict[str, Any]] = [
        {"key": dict(zip(key_columns, key, strict=True)), "cells": [], "more_cells": 0} for key in keys
    ]
    for name in new.schema.names:
        differing = np.flatnonzero(~bit_equal(_array(old, name), _array(new, name)))
        before, after = _values(old, name), _values(new, name)
        for at in differing:
            _add_cell(rows[at], name, before[at], after[at])
    return rows


def _add_cell(row: dict[str, Any], name: str, before: Any, after: Any) -> None:
    if len(row["cells"]) == _MAX_COLUMNS:
        row["more_cells"] += 1
        return
    old, new = _shorten_pair(before, after)
    row["cells"].append({"column": name, "old": old, "new": new})


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _is_long(value: Any) -> bool:
    return value is not None and len(_text(value)) > _MAX_CHARACTERS


def _shorten(value: Any, start: int = 0) -> Any:
    """Return a long value as text from `start` on, and any other value unchanged."""
    if not _is_long(value):
        return value
    text = _text(value)
    end = start + _MAX_CHARACTERS
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _shorten_pair(before: Any, after: Any) -> tuple[Any, Any]:
    """Shorten two long values so that both contain their first difference."""
    if not (_is_long(before) and _is_long(after)):
        return _shorten(before), _shorten(after)
    pairs = zip(_text(before), _text(after), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(0, same - _CONTEXT_CHARACTERS) if same > _MAX_CHARACTERS - _CONTEXT_CHARACTERS else 0
    return _shorten(before, start), _shorten(after, start)


_FILE_PLANS = {
    "append": ("preserved", "appended rows are written to new files"),
    "replace": ("removed", "the source replaces all rows"),
}


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans loads into one version of a dataset."""

    storage: ServiceStorage
    snapshot: Snapshot
    draft: Draft
    engine: Engine

    def plan_by_key(self, options: MergeOptions, rows: str) -> dict[str, Any]:
        """Plan a merge of the rows at an address."""
        plan, changes = plan_draft(rows, self.draft, options, self.engine, self.storage.options, limit=MAX_ROWS)
        return self._as_json(plan, changes, options.key_columns)

    def plan_condition(self, where: str, progress: ProgressCallback, max_deleted: float | None) -> dict[str, Any]:
        """Plan the deletion of the rows for which a condition is true."""
        plan, changes = plan_delete_from_draft(where, self.draft, self.engine, progress, max_deleted, limit=MAX_ROWS)
        return self._as_json(plan, changes, ())

    def _as_json(self, plan: MergePlan, changes: Changes, key_columns: Sequence[str]) -> dict[str, Any]:
        return {
            "inserted": plan.inserted,
            "updated": plan.updated,
            "deleted": plan.deleted,
            "unchanged": plan.unchanged,
            "stale": plan.stale,
            "row_count": plan.target_count_after,
            "files_rewritten": sum(file.operation != "preserved" for file in plan.files),
            "bytes_rewritten": plan.bytes_to_rewrite,
            "files": [self._file(file) for file in plan.files],
            "changes": changes_json(changes, key_columns),
        }

    def _file(self, file: FilePlan) -> dict[str, Any]:
        path = self.storage.in_storage(self.snapshot.dataset.id, self.draft.location.relative(file.path))
        return {
            "path": self.storage.address(path),
            "operation": file.operation,
            "reason": file.reason,
            "rows": file.row_count,
            "bytes": file.size_bytes,
        }

    def plan_keyless(
        self, strategy: str, converted: Conversion, scratch: Location, schema: pa.Schema
    ) -> dict[str, Any]:
        """Plan an append or a replace, after which the dataset has a schema."""
        removed = self.snapshot.files if strategy == "replace" else ()
        deleted = sum(file.rows for file in removed)
        inserted_files = [file.path for file in converted.files if file.rows]
        deleted_files = [self.storage.in_dataset(self.snapshot.dataset.id, file.path) for file in removed if file.rows]
        changes = Changes(
            inserted=first_rows(self.engine, scratch, inserted_files, schema, MAX_ROWS),
            old=schema.empty_table(),
            new=schema.empty_table(),
            deleted=first_rows(self.engine, self.draft.location, deleted_files, schema, MAX_ROWS),
        )
        return {
            "inserted": converted.rows,
            "updated": 0,
            "deleted": deleted,
            "unchanged": 0,
            "row_count": self.snapshot.version.row_count + converted.rows - deleted,
            "files_rewritten": 0,
            "bytes_rewritten": 0,
            "files": [self._keyless_file(file, *_FILE_PLANS[strategy]) for file in self.snapshot.files],
            "changes": changes_json(changes, ()),
        }

    def _keyless_file(self, file: DataFile, operation: str, reason: str) -> dict[str, Any]:
        path = self.storage.address(file.path)
        return {"path": path, "operation": operation, "reason": reason, "rows": file.rows, "bytes": file.bytes}
