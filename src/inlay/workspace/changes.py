"""Some of the rows that a load would change, as JSON: few, and with long values shortened."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from inlay.engines.arrays import bit_equal
from inlay.incremental.changes import Changes
from inlay.query.cells import dumps, json_values

__all__ = ["MOST_ROWS", "changes_json"]

MOST_ROWS = 20  # of each kind
_MOST_COLUMNS = 30
_LONGEST = 200  # characters of a value
_BEFORE = 40  # of them before the place where two long values begin to differ


def changes_json(changes: Changes, key_columns: Sequence[str]) -> dict[str, Any]:
    """Whole rows of those that come and go, single cells of those that change."""
    names = [*key_columns, *(name for name in changes.inserted.schema.names if name not in key_columns)]
    shown = names[:_MOST_COLUMNS]
    return {
        "columns": shown,
        "inserted": _rows(changes.inserted, shown),
        "updated": _updated(changes.old, changes.new, key_columns),
        "deleted": _rows(changes.deleted, shown),
    }


def _rows(table: pa.Table, names: Sequence[str]) -> list[list[Any]]:
    columns = [_values(table, name) for name in names]
    return [[_shortened(value) for value in row] for row in zip(*columns, strict=True)]


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
            _add(rows[at], name, before[at], after[at])
    return rows


def _add(row: dict[str, Any], name: str, before: Any, after: Any) -> None:
    if len(row["cells"]) == _MOST_COLUMNS:
        row["more_cells"] += 1
        return
    old, new = _shortened_apart(before, after)
    row["cells"].append({"column": name, "old": old, "new": new})


# ---------------------------------------------------------------------------------------------------------- long values
def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _is_long(value: Any) -> bool:
    return value is not None and len(_text(value)) > _LONGEST


def _shortened(value: Any, start: int = 0) -> Any:
    """A long value's text from `start` on; values that are short enough stay what they are."""
    if not _is_long(value):
        return value
    text = _text(value)
    end = start + _LONGEST
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _shortened_apart(before: Any, after: Any) -> tuple[Any, Any]:
    """Both so that the place is shown where they begin to differ."""
    if not (_is_long(before) and _is_long(after)):
        return _shortened(before), _shortened(after)
    pairs = zip(_text(before), _text(after), strict=False)
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    start = max(0, same - _BEFORE) if same > _LONGEST - _BEFORE else 0
    return _shortened(before, start), _shortened(after, start)
