"""Keys in one comparable form, and an index that finds source keys in target key columns.

Engines agree on what "the same key" is because everything is brought into one form first: dictionaries and
extension types are unwrapped, text is bytewise, -0.0 becomes 0.0 and every NaN the same NaN. NULL equals nothing.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.errors import InvalidArgumentError
from inlay.schema import family, storage_type

__all__ = [
    "KeyIndex",
    "KeyRuns",
    "canonical_keys",
    "canonical_type",
    "contiguous",
    "require_key_type",
    "sortable_values",
]

_NOT_KEYS = frozenset({"list", "map", "struct", "null"})
_NO_ROW = -1


def require_key_type(column: str, type_: pa.DataType) -> None:
    if family(type_) in _NOT_KEYS or pa.types.is_nested(storage_type(type_)):
        raise InvalidArgumentError(f"Column {column!r} is {type_} and cannot be a key column.")


def canonical_type(type_: pa.DataType) -> pa.DataType:
    """The type in which keys of `type_` are compared: one that Arrow can hash, sort and search."""
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
    """Key values in the comparable form of `type_`, the dataset's type of this column."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    column = column.cast(canonical_type(type_))
    return _canonical_floats(column) if pa.types.is_floating(column.type) else column


def _canonical_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def sortable_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same order in a type that Arrow can sort."""
    return column if pa.types.is_nested(storage_type(column.type)) else canonical_keys(column, column.type)


class KeyIndex:
    """The keys of a source, sorted, ready to be sliced by a range and looked up."""

    def __init__(
        self, columns: Sequence[pa.ChunkedArray], *, is_sorted: bool = False, rows: np.ndarray | None = None
    ) -> None:
        """With `rows`, the keys are sorted, and these are the source rows that they come from."""
        self.columns = [contiguous(column) for column in columns]
        self._order = rows  # None: the source is sorted already
        if not is_sorted and rows is None and not (len(columns) == 1 and _is_sorted(self.columns[0])):
            names = [str(i) for i in range(len(columns))]
            order = pc.sort_indices(pa.table(self.columns, names), [(name, "ascending") for name in names])
            self.columns = [column.take(order) for column in self.columns]
            self._order = order.to_numpy().astype(np.int64)
        # of several columns, the one with the most values excludes most rows
        self.lead = max(range(len(columns)), key=self._distinct) if len(columns) > 1 else 0
        self._sorted = {0: self.columns[0]}  # the columns for themselves, as far as somebody asked

    def _distinct(self, position: int) -> int:
        sample = self.columns[position].slice(0, 10_000)
        return len(pc.unique(sample))

    def __len__(self) -> int:
        return len(self.columns[0])

    def rows(self, places: np.ndarray) -> np.ndarray:
        """The source rows at places of the sorted keys."""
        return places if self._order is None else self._order[places]

    def repeated(self) -> np.ndarray:
        """Source rows whose key equals the key before it in sorted order (every duplicate but the first)."""
        same = self.adjacent_equal([pa.chunked_array([column]) for column in self.columns])
        return self.rows(np.flatnonzero(same) + 1)

    @staticmethod
    def adjacent_equal(columns: Sequence[pa.ChunkedArray]) -> np.ndarray:
        """For every row of sorted keys but the last: does the next row have the same key?"""
        count = max(len(columns[0]) - 1, 0)
        same = np.ones(count, np.bool_)
        for column in columns:
            left, right = column.slice(0, count), column.slice(1)
            equal = pc.fill_null(pc.equal(left, right), False)
            if pa.types.is_floating(column.type):
                equal = pc.or_(equal, pc.and_(pc.is_nan(left), pc.is_nan(right)))
            same &= equal.to_numpy()
        return same

    @staticmethod
    def places(cuts: pa.Array, keys: pa.Array) -> np.ndarray:
        """Which range between sorted cut points every key belongs to; NULLs to the first."""
        places = np.zeros(len(keys), np.int64)
        known = np.asarray(keys.is_valid())
        places[known] = _search(cuts, keys.filter(pa.array(known)), keys.filter(pa.array(known)))[1]
        return places

    def touches(self, position: int, lows: pa.Array, highs: pa.Array, known: np.ndarray) -> np.ndarray:
        """Which ranges of key column `position` hold at least one source key; an unknown range might."""
        result = ~known
        inside = known & lows.is_valid().to_numpy(zero_copy_only=False)
        if inside.any():
            values = self._sorted_values(position)
            starts, ends = _search(values, lows.filter(pa.array(inside)), highs.filter(pa.array(inside)))
            result[inside] = starts < ends
        return result

    def _sorted_values(self, position: int) -> pa.Array:
        if position not in self._sorted:
            column = self.columns[position]
            self._sorted[position] = column.take(pc.sort_indices(column))
        return self._sorted[position]

    def runs(self, most: int) -> KeyRuns:
        """What `touches` needs, in little memory."""
        columns = [self._sorted_values(position).drop_null() for position in range(len(self.columns))]
        bounds = [np.linspace(0, len(c), min(most, len(c)) + 1).astype(np.int64) for c in columns]
        lows = [c.take(pa.array(b[:-1])) for c, b in zip(columns, bounds, strict=True)]
        highs = [c.take(pa.array(b[1:] - 1)) for c, b in zip(columns, bounds, strict=True)]
        return KeyRuns(lows, highs)

    def span(self, low: pa.Scalar | None, high: pa.Scalar | None) -> tuple[int, int]:
        """The part of the sorted keys whose first column lies in a range (all of it where nothing is known)."""
        if low is None or high is None or not low.is_valid:
            return 0, len(self)
        starts, ends = _search(self.columns[0], pa.array([low]), pa.array([high]))
        return int(starts[0]), int(ends[0])

    def find(self, targets: Sequence[pa.ChunkedArray], span: tuple[int, int]) -> np.ndarray:
        """For every target row the source row with its key, or -1."""
        start, end = span
        slices = [column.slice(start, end - start) for column in self.columns]
        places = _positions(targets[0], slices[0]) if len(slices) == 1 else _composite_positions(targets, slices)
        rows = np.full(len(places), _NO_ROW, np.int64)
        hits = places >= 0
        rows[hits] = self.rows(places[hits] + start)
        return rows

    def find_in_rising(self, target: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray] | None:
        """Positions and source rows, where a single numeric key rises strictly; None where it does not.

        Sorted data is common, and searching the few source keys in it beats hashing by far.
        """
        keys, values = (_numbers(column) if len(self.columns) == 1 else None for column in (self.columns[0], target))
        if keys is None or values is None or not (values[1:] > values[:-1]).all():
            return None
        start, end = np.searchsorted(keys, values[0]), np.searchsorted(keys, values[-1], side="right")
        wanted = keys[start:end]
        places = np.searchsorted(values, wanted)
        hits = np.flatnonzero(values[places] == wanted)
        return places[hits], self.rows(start + hits)

    def might_be(self, target: pa.ChunkedArray, span: tuple[int, int]) -> np.ndarray:
        """Which target rows have a value of the leading column that the source has at all."""
        start, end = span
        values = pc.unique(self.columns[self.lead].slice(start, end - start))
        return np.asarray(pc.is_in(target, value_set=values, skip_nulls=True))


class KeyRuns(NamedTuple):
    """Keys that lie elsewhere, summed up: every column's sorted values cut into runs, of which the ends are known."""

    lows: list[pa.Array]
    highs: list[pa.Array]

    def touches(self, position: int, lows: pa.Array, highs: pa.Array, known: np.ndarray) -> np.ndarray:
        """Which ranges of key column `position` might hold a source key; exact while every run is one value."""
        result = ~known
        inside = known & lows.is_valid().to_numpy(zero_copy_only=False)
        if inside.any():
            chosen = pa.array(inside)
            first = _search(self.highs[position], lows.filter(chosen), lows.filter(chosen))[0]
            end = _search(self.lows[position], highs.filter(chosen), highs.filter(chosen))[1]
            result[inside] = first < end
        return result


def _numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray | None:
    """Whole numbers, dates and times as integers in the same order; None for other types, NULLs or nothing."""
    type_ = column.type
    if column.null_count or not len(column) or not (pa.types.is_integer(type_) or pa.types.is_temporal(type_)):
        return None
    array = contiguous(column) if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_temporal(type_):
        array = array.view(pa.int32() if type_.bit_width == 32 else pa.int64())
    numbers: np.ndarray = array.to_numpy()
    return numbers


def _is_sorted(column: pa.Array) -> bool:
    if len(column) < 2 or pa.types.is_floating(column.type):
        return len(column) < 2
    return bool(pc.all(pc.less_equal(column.slice(0, len(column) - 1), column.slice(1)), skip_nulls=False).as_py())


def contiguous(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _search(values: pa.Array, lows: pa.Array, highs: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    if pa.types.is_decimal(values.type):  # Arrow cannot search these
        return _bisect(bisect.bisect_left, values, lows), _bisect(bisect.bisect_right, values, highs)
    find: Any = pc.search_sorted
    return (
        np.asarray(find(values, lows, side="left")).astype(np.int64),
        np.asarray(find(values, highs, side="right")).astype(np.int64),
    )


def _bisect(search: Callable[..., int], values: pa.Array, bounds: pa.Array) -> np.ndarray:
    places = (search(values, bound.as_py(), key=lambda scalar: scalar.as_py()) for bound in bounds)
    return np.fromiter(places, np.int64, len(bounds))


def _positions(needles: pa.ChunkedArray, values: pa.Array) -> np.ndarray:
    found = pc.index_in(needles, value_set=values, skip_nulls=True)
    return np.asarray(pc.fill_null(found, _NO_ROW)).astype(np.int64)


def _composite_positions(targets: Sequence[pa.ChunkedArray], keys: Sequence[pa.Array]) -> np.ndarray:
    """Number the distinct values of every column, so that a tuple of values becomes one integer."""
    wanted = np.zeros(len(targets[0]), np.int64)
    given = np.zeros(len(keys[0]), np.int64)
    absent = np.zeros(len(targets[0]), np.bool_)
    for target, key in zip(targets, keys, strict=True):
        distinct = pc.unique(key)
        codes = _positions(target, distinct)
        absent |= codes < 0
        given_codes = _positions(pa.chunked_array([key]), distinct)
        # compact what came before, so that the product of the numbers of values cannot overflow
        steps, given = np.unique(given, return_inverse=True)
        place = np.clip(np.searchsorted(steps, wanted), 0, max(len(steps) - 1, 0))
        if len(steps):
            absent |= steps[place] != wanted
        wanted = place * len(distinct) + codes
        given = given * len(distinct) + given_codes
    wanted[absent] = _NO_ROW
    return _positions(pa.chunked_array([pa.array(wanted)]), pa.array(given))
