"""What can be wrong with the keys of a source: NULLs, and rows that repeat a key.

Found where the keys are, part by part, and put together as if the source had been looked at in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from inlay.engines.keys import KeyIndex, canonical_keys

__all__ = ["NullKeys", "Repeats", "joined_nulls", "joined_repeats", "null_keys", "repeated_keys"]

_MOST_KEPT = 250


class NullKeys(NamedTuple):
    """NULLs in a key column: how many, the number of the first row that has one, and the keys of this row."""

    column: str
    nulls: int
    row: int
    keys: pa.Table


class Repeats(NamedTuple):
    """How many rows have the key of another one before them, and the keys of some, the smallest first."""

    rows: int
    keys: pa.Table


def null_keys(keys: pa.Table, first: int = 0) -> list[NullKeys]:
    """The columns of keys that have NULLs; `first` is the number of the first row."""
    found = []
    for name in keys.column_names:
        column = keys.column(name)
        if pa.types.is_dictionary(column.type):  # the NULL can also sit in the dictionary
            column = column.cast(column.type.value_type)
        if column.null_count:
            row = int(np.flatnonzero(np.asarray(column.is_null()))[0])
            found.append(NullKeys(name, column.null_count, first + row, keys.slice(row, 1)))
    return found


def joined_nulls(parts: Iterable[Sequence[NullKeys]], key_columns: Sequence[str]) -> list[NullKeys]:
    """Of parts in the order of the source."""
    found: dict[str, NullKeys] = {}
    for part in parts:
        for here in part:
            known = found.setdefault(here.column, here)
            if known is not here:
                found[here.column] = known._replace(nulls=known.nulls + here.nulls)
    return [found[name] for name in key_columns if name in found]


def repeated_keys(keys: pa.Table, rows: np.ndarray) -> Repeats:
    """`rows` are those that repeat a key; keys have the dataset's types."""
    if not len(rows):
        return Repeats(0, keys.slice(0, 0))
    columns = [canonical_keys(keys.column(f.name), f.type).take(pa.array(rows)) for f in keys.schema]
    index = KeyIndex(columns)
    smallest = rows[index.rows(np.arange(len(index)))[:_MOST_KEPT]]
    return Repeats(len(rows), pa.concat_tables([keys.slice(int(row), 1) for row in smallest]))


def joined_repeats(parts: Sequence[Repeats]) -> Repeats:
    keys = pa.concat_tables([part.keys for part in parts])
    return Repeats(sum(part.rows for part in parts), repeated_keys(keys, np.arange(len(keys))).keys)
