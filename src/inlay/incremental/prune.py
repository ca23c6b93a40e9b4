"""Pruning: which files can contain source keys, or rows that a condition selects.

Partition values and footer statistics exclude files without reading data. Reading columns confirms the rest. A file is
excluded only if it provably contains no such row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.engines.base import Target
from inlay.engines.keys import KeyRanges, canonical_type
from inlay.engines.selection import Selection, bound_guarantees
from inlay.incremental.target import TargetState, path_values

__all__ = ["Statistics", "possible_files", "selection_targets"]


class Statistics(Protocol):
    """The row counts of files, and the bounds of their columns."""

    rows: npt.NDArray[np.int64]

    def bounds(self, column: str, type_: pa.DataType) -> tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]:
        """Return lows and highs per file in the column's type, and a mask of the exact ranges."""


def possible_files(
    statistics: Statistics, index: KeyRanges, key_columns: Sequence[str], schema: pa.Schema
) -> npt.NDArray[np.bool_]:
    """Mark the files that the statistics of no key column exclude."""
    possible: npt.NDArray[np.bool_] = statistics.rows > 0
    for position, name in enumerate(key_columns):
        lows, highs, known = statistics.bounds(name, canonical_type(schema.field(name).type))
        possible &= index.touches(position, lows, highs, known)
    return possible


def selection_targets(target: TargetState, selection: Selection) -> list[Target]:
    """Return the files that may contain a selected row, with the values in their paths."""
    footers = target.footers
    directories = footers.files.directories
    constants = {directory: path_values(f"{directory}/", selection.schema) for directory in dict.fromkeys(directories)}
    guarantees = [selection.path_guarantees(constants[directory]) for directory in directories]
    for field in selection.bounded(footers.schemas):
        if field.name in footers.ranges and field.name not in target.partition_columns:
            bounds = footers.bounds(field.name, field.type)
            found = bound_guarantees(field.name, *bounds, footers.ranges[field.name].nulls)
            for at, proven in enumerate(found):
                guarantees[at] += proven
    allowed = selection.allows(guarantees)
    return [
        Target(file.path, constants[directory], file.size)
        for (file, rows), directory, is_allowed in zip(footers.files_and_rows(), directories, allowed, strict=True)
        if rows and is_allowed
    ]
