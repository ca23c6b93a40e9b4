"""Pruning: which files can contain source keys.

Partition values and footer statistics exclude files without reading data. Reading the key columns confirms the rest.
A file is excluded only if it provably contains no source key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.engines.keys import KeyRanges, canonical_type

__all__ = ["Statistics", "possible_files"]


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
