"""Canonical key values, the sorted key index of a source, and NULL and repeated keys.

Keys are compared in a canonical form, so that all engines agree which keys are equal: dictionaries and extension types
are decoded, text is compared by its bytes, -0.0 equals 0.0, and all NaNs are equal. NULL equals nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy, scalar, to_numpy
from inlay.errors import InvalidArgumentError
from inlay.schema import family, storage_type

__all__ = [
    "KeyIndex",
    "KeyRanges",
    "KeyRuns",
    "NullKeys",
    "Repeats",
    "canonical_keys",
    "canonical_type",
    "contiguous",
    "find_null_keys",
    "find_repeats",
    "join_null_keys",
    "join_repeats",
    "require_key_type",
    "require_order_type",
    "sortable_values",
]

Integers = npt.NDArray[np.int64]
RowNumbers = npt.NDArray[np.int32 | np.int64]
Mask = npt.NDArray[np.bool_]

_NOT_KEYS = frozenset({"list", "map", "struct", "null"})
_NO_ROW = -1
_MAX_REPEATS = 250  # keys that an error message can list


# -------------------------------------------------------------------------------------------------- canonical keys
def require_key_type(column: str, type_: pa.DataType) -> None:
    if family(type_) in _NOT_KEYS or pa.types.is_nested(storage_type(type_)):
        raise InvalidArgumentError(
            f"Column {column!r} cannot be a key column: its type is {type_}.",
            hint="Choose key columns of a number, text, binary, boolean, date or time type.",
        )


def require_order_type(column: str, type_: pa.DataType, role: str = "dedup_order_by") -> None:
    if pa.types.is_nested(storage_type(type_)):
        raise InvalidArgumentError(
            f"Column {column!r} cannot be a {role} column: its type is {type_}, which has no order.",
            hint="Choose columns of a number, text, binary, boolean, date or time type.",
        )


def canonical_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which keys of `type_` are compared."""
    plain = storage_type(type_)
    kind = family(plain)
    if kind == "text":
        return pa.large_string()
    if kind == "binary":
        return pa.large_binary()
    if kind == "decimal" and plain.bit_width < 128:
        return pa.decimal128(plain.precision, plain.scale)
    if pa.types.is_float16(plain):
        return pa.float32()
    if kind == "zoned timestamp":
        return pa.timestamp(plain.unit, "UTC")
    return plain


def canonical_keys(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Convert key values to the canonical form of `type_`, the column's type in the dataset."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    column = column.cast(canonical_type(type_))
    return _canonical_floats(column) if pa.types.is_floating(column.type) else column


def _canonical_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    zero, nan = scalar(0.0, column.type), scalar(math.nan, column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def sortable_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a column to a type that Arrow can sort, keeping the order of its values."""
    return column if pa.types.is_nested(storage_type(column.type)) else canonical_keys(column, column.type)


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type) and not _share_dictionary(column.chunks):
        column = column.unify_dictionaries()
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _share_dictionary(chunks: Sequence[pa.Array]) -> bool:
    return all(chunk.dictionary.equals(chunks[0].dictionary) for chunk in chunks[1:])


# ------------------------------------------------------------------------------------------------------- key index
class KeyRanges(Protocol):
    """Source keys that can be compared with the value ranges of footers."""

    def touches(self, position: int, lows: pa.Array, highs: pa.Array, known: Mask) -> Mask:
        """Return which ranges of a key column can contain a source key; unknown ranges can."""


class KeyIndex:
    """The sorted keys of a source."""

    def __init__(
        self, columns: Sequence[pa.ChunkedArray], *, is_sorted: bool = False, rows: Integers | None = None
    ) -> None:
        """Sort the keys, unless `rows` has the source rows of keys that are sorted."""
        self.columns = [contiguous(column) for column in columns]
        self._order = rows  # None if the source itself is sorted
        if not is_sorted and rows is None and not (len(columns) == 1 and _is_sorted(self.columns[0])):
            order = _sort_order(self.columns)
            self.columns = [column.take(from_numpy(order)) for column in self.columns]
            self._order = order
        # The key column with the most distinct values excludes the most target rows.
        self.lead = max(range(len(columns)), key=self._distinct) if len(columns) > 1 else 0
        self._sorted = {0: self.columns[0]}  # key columns sorted on their own, added on first use

    @functools.cached_property
    def _numbers(self) -> RowNumbers:
        """The positions of all keys, of which views take no memory."""
        return np.arange(len(self), dtype=np.int32 if len(self) < 2**31 else np.int64)

    def _distinct(self, position: int) -> int:
        sample = self.columns[position].slice(0, 10_000)
        return len(pc.unique(sample))

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, positions: Integers) -> Integers:
        """Return the source rows at positions of the sorted keys."""
        return positions if self._order is None else self._order[positions]

    def repeated(self) -> Integers:
        """Return the source rows whose key equals the previous key in sorted order."""
        same = self.adjacent_equal([pa.chunked_array([column]) for column in self.columns])
        return self.rows(np.flatnonzero(same) + 1)

    @staticmethod
    def adjacent_equal(columns: Sequence[pa.ChunkedArray]) -> Mask:
        """Return whether each sorted key equals the next one, for all keys but the last."""
        count = max(len(columns[0]) - 1, 0)
        same = np.ones(count, np.bool_)
        for column in columns:
            left, right = column.slice(0, count), column.slice(1)
            equal = pc.equal(left, right)
            if pa.types.is_floating(column.type):
                equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
            same &= to_numpy(equal, False)
        return same

    @staticmethod
    def range_numbers(bounds: pa.Array, keys: pa.Array) -> Integers:
        """Return the number of the range between sorted bounds that contains each key; 0 for NULL."""
        numbers = np.zeros(len(keys), np.int64)
        known = to_numpy(keys.is_valid())
        numbers[known] = _search(bounds, keys.filter(from_numpy(known)), keys.filter(from_numpy(known)))[1]
        return numbers

    def touches(self, position: int, lows: pa.Array, highs: pa.Array, known: Mask) -> Mask:
        """Return which ranges of a key column contain a source key; True for unknown ranges."""
        values = self._sorted_values(position)
        if _ends_with_nan(values):
            return np.ones(len(known), np.bool_)
        result = ~known
        inside = known & to_numpy(lows.is_valid())
        if inside.any():
            starts, ends = _search(values, lows.filter(from_numpy(inside)), highs.filter(from_numpy(inside)))
            result[inside] = starts < ends
        return result

    def _sorted_values(self, position: int) -> pa.Array:
        if position not in self._sorted:
            column = self.columns[position]
            self._sorted[position] = column.take(pc.sort_indices(column))
        return self._sorted[position]

    def runs(self, limit: int) -> KeyRuns:
        """Summarize each key column as at most `limit` runs of sorted values."""
        columns = [self._sorted_values(position).drop_null() for position in range(len(self.columns))]
        bounds = [np.linspace(0, len(c), min(limit, len(c)) + 1).astype(np.int64) for c in columns]
        lows = [c.take(from_numpy(b[:-1])) for c, b in zip(columns, bounds, strict=True)]
        highs = [c.take(from_numpy(b[1:] - 1)) for c, b in zip(columns, bounds, strict=True)]
        return KeyRuns(lows, highs)

    def span(self, low: pa.Scalar | None, high: pa.Scalar | None) -> tuple[int, int]:
        """Return the slice of the sorted keys whose first column is in a range."""
        if low is None or high is None or not low.is_valid or _ends_with_nan(self.columns[0]):
            return 0, len(self)
        starts, ends = _search(self.columns[0], pa.repeat(low, 1), pa.repeat(high, 1))
        return int(starts[0]), int(ends[0])

    def find(self, targets: Sequence[pa.ChunkedArray], span: tuple[int, int]) -> Integers:
        """Map each target row to the index of its matching source row, or -1."""
        start, end = span
        slices = [column.slice(start, end - start) for column in self.columns]
        positions = _positions(targets[0], slices[0]) if len(slices) == 1 else _composite_positions(targets, slices)
        rows = np.full(len(positions), _NO_ROW, np.int64)
        hits = positions >= 0
        rows[hits] = self.rows(positions[hits] + start)
        return rows

    def find_in_ascending(self, target: pa.ChunkedArray) -> tuple[RowNumbers, RowNumbers] | None:
        """Find matching rows if a single numeric key ascends strictly, otherwise return None.

        Sorted data is common, and searching it for the few source keys is much faster than hashing.
        """
        keys, values = (_numbers(column) if len(self.columns) == 1 else None for column in (self.columns[0], target))
        if keys is None or values is None or not (values[1:] > values[:-1]).all():
            return None
        start, end = np.searchsorted(keys, values[0]), np.searchsorted(keys, values[-1], side="right")
        wanted = keys[start:end]
        if np.array_equal(wanted, values):  # as in a snapshot of the dataset
            return self._numbers[: len(values)], self._numbered_rows(start, end)
        if int(values[-1]) - int(values[0]) == len(values) - 1:  # consecutive integers
            first = values[:1].astype(np.int64)  # int8 cannot hold all differences of int8; uint64 wraps around twice
            return wanted.astype(np.int64, copy=False) - first, self._numbered_rows(start, end)
        positions = np.searchsorted(values, wanted)
        hits = np.flatnonzero(values[positions] == wanted)
        return positions[hits], self.rows(start + hits)

    def _numbered_rows(self, start: int, end: int) -> RowNumbers:
        """Return the source rows of a slice of the sorted keys, as a view."""
        return (self._numbers if self._order is None else self._order)[start:end]

    def matches_lead(self, target: pa.ChunkedArray, span: tuple[int, int]) -> Mask:
        """Return which target values of the leading key column occur in the source."""
        start, end = span
        values = pc.unique(self.columns[self.lead].slice(start, end - start))
        return to_numpy(pc.is_in(target, value_set=values, skip_nulls=True))


class KeyRuns(NamedTuple):
    """The first and last value of each run of sorted keys, per key column."""

    lows: list[pa.Array]
    highs: list[pa.Array]

    def touches(self, position: int, lows: pa.Array, highs: pa.Array, known: Mask) -> Mask:
        """Return which ranges of key column `position` overlap a run; True for unknown ranges."""
        if _ends_with_nan(self.highs[position]):
            return np.ones(len(known), np.bool_)
        result = ~known
        inside = known & to_numpy(lows.is_valid())
        if inside.any():
            chosen = from_numpy(inside)
            first = _search(self.highs[position], lows.filter(chosen), lows.filter(chosen))[0]
            end = _search(self.lows[position], highs.filter(chosen), highs.filter(chosen))[1]
            result[inside] = first < end
        return result


def _sort_order(columns: Sequence[pa.Array]) -> Integers:
    """Return the rows in the order of their keys. Rows with equal keys have no defined order."""
    numbers = _numbers(columns[0]) if len(columns) == 1 else None
    if numbers is not None:
        return np.argsort(numbers)  # several times as fast as Arrow's sort
    names = [str(i) for i in range(len(columns))]
    order = pc.sort_indices(pa.table(columns, names), [(name, "ascending") for name in names])
    found: Integers = to_numpy(order).astype(np.int64)
    return found


def _is_sorted(column: pa.Array) -> bool:
    if len(column) < 2 or pa.types.is_floating(column.type):
        return len(column) < 2
    numbers = _numbers(column)
    if numbers is not None:
        return bool((numbers[1:] >= numbers[:-1]).all())
    return bool(pc.all(pc.less_equal(column.slice(0, len(column) - 1), column.slice(1)), skip_nulls=False).as_py())


def _ends_with_nan(values: pa.Array) -> bool:
    """Return whether sorted values contain NaN, which no range of a footer includes."""
    known = len(values) - values.null_count
    return pa.types.is_floating(values.type) and known > 0 and math.isnan(values[known - 1].as_py())


def _search(values: pa.Array, lows: pa.Array, highs: pa.Array) -> tuple[Integers, Integers]:
    """Find where each range starts and ends among sorted values, whose NULLs come last."""
    known = values.slice(0, len(values) - values.null_count)
    return _bisect(known, lows, "left"), _bisect(known, highs, "right")


def _bisect(values: pa.Array, bounds: pa.Array, side: Literal["left", "right"]) -> Integers:
    """Find the position of each bound, like `pc.search_sorted` of pyarrow 26."""
    numbers, wanted = _ordered_numbers(values), _ordered_numbers(bounds)
    if numbers is not None and wanted is not None:
        return np.searchsorted(numbers, wanted, side)
    is_before = pc.less if side == "left" else pc.less_equal
    first, end = np.zeros(len(bounds), np.int64), np.full(len(bounds), len(values), np.int64)
    while (unsettled := np.flatnonzero(first < end)).size:
        middle = (first[unsettled] + end[unsettled]) // 2
        before = to_numpy(is_before(values.take(from_numpy(middle)), bounds.take(from_numpy(unsettled))))
        first[unsettled[before]] = middle[before] + 1
        end[unsettled[~before]] = middle[~before]
    return first


def _ordered_numbers(array: pa.Array) -> np.ndarray | None:
    """Return numbers, dates and times in numpy's order, NaN last; None for other types."""
    return to_numpy(array) if pa.types.is_floating(array.type) else _numbers(array)


def _numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray | None:
    """Return integers, dates and times as integers; None for other types, NULLs or no rows."""
    type_ = column.type
    if column.null_count or not len(column) or not (pa.types.is_integer(type_) or pa.types.is_temporal(type_)):
        return None
    array = contiguous(column) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_temporal(type_):
        array = array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    return to_numpy(array)


def _positions(needles: pa.ChunkedArray, values: pa.Array) -> Integers:
    found = pc.index_in(needles, value_set=values, skip_nulls=True)
    return to_numpy(found, _NO_ROW).astype(np.int64)


def _composite_positions(targets: Sequence[pa.ChunkedArray], keys: Sequence[pa.Array]) -> Integers:
    """Find composite keys, each encoded as one integer from the codes of its values."""
    wanted = np.zeros(len(targets[0]), np.int64)
    known = np.zeros(len(keys[0]), np.int64)
    absent = np.zeros(len(targets[0]), np.bool_)
    for target, key in zip(targets, keys, strict=True):
        distinct = pc.unique(key)
        codes = _positions(target, distinct)
        absent |= codes < 0
        key_codes = _positions(pa.chunked_array([key]), distinct)
        # Renumbering the codes of the previous columns keeps the product below the integer limit.
        steps, known = np.unique(known, return_inverse=True)
        position = np.clip(np.searchsorted(steps, wanted), 0, max(len(steps) - 1, 0))
        if len(steps):
            absent |= steps[position] != wanted
        wanted = position * len(distinct) + codes
        known = known * len(distinct) + key_codes
    wanted[absent] = _NO_ROW
    return _positions(pa.chunked_array([from_numpy(wanted)]), from_numpy(known))


# ------------------------------------------------------------------------------------------ NULL and repeated keys
class NullKeys(NamedTuple):
    """The NULLs of a key column: their count, and the first row that has one."""

    column: str
    nulls: int
    row: int
    keys: pa.Table


class Repeats(NamedTuple):
    """The number of rows that repeat an earlier key, and the smallest repeated keys."""

    rows: int
    keys: pa.Table


def find_null_keys(keys: pa.Table, first: int = 0) -> list[NullKeys]:
    """Find the key columns that have NULLs. `first` is the number of the first row."""
    found = []
    for name in keys.column_names:
        column = keys.column(name)
        if pa.types.is_dictionary(column.type):  # a dictionary can contain NULL as a value
            column = column.cast(column.type.value_type)
        if column.null_count:
            row = int(np.flatnonzero(to_numpy(column.is_null()))[0])
            found.append(NullKeys(name, column.null_count, first + row, keys.slice(row, 1)))
    return found


def join_null_keys(parts: Iterable[Sequence[NullKeys]], key_columns: Sequence[str]) -> list[NullKeys]:
    """Join the NULL keys of parts that follow each other in the source."""
    found: dict[str, NullKeys] = {}
    for part in parts:
        for nulls in part:
            first = found.setdefault(nulls.column, nulls)
            if first is not nulls:
                found[nulls.column] = first._replace(nulls=first.nulls + nulls.nulls)
    return [found[name] for name in key_columns if name in found]


def find_repeats(keys: pa.Table, rows: Integers) -> Repeats:
    """Summarize the `rows` that repeat a key. `keys` have the dataset's types."""
    if not len(rows):
        return Repeats(0, keys.slice(0, 0))
    columns = [canonical_keys(keys.column(f.name), f.type).take(from_numpy(rows)) for f in keys.schema]
    index = KeyIndex(columns)
    smallest = rows[index.rows(np.arange(len(index)))[:_MAX_REPEATS]]
    return Repeats(len(rows), pa.concat_tables([keys.slice(int(row), 1) for row in smallest]))


def join_repeats(parts: Sequence[Repeats]) -> Repeats:
    keys = pa.concat_tables([part.keys for part in parts])
    return Repeats(sum(part.rows for part in parts), find_repeats(keys, np.arange(len(keys))).keys)
