"""Operations on columns and rows that Arrow lacks for some types: take, replace, compare, cast."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy, to_numpy
from inlay.engines.base import RowNumbers
from inlay.engines.keys import contiguous
from inlay.schema import is_widening, lossless_cast, null_column, storage_type, widen_column

__all__ = [
    "Mask",
    "all_bits_equal",
    "bit_equal",
    "cast_rows",
    "comparable",
    "filter_rows",
    "filter_values",
    "list_items",
    "replace_rows",
    "take_rows",
    "take_values",
]

Mask = npt.NDArray[np.bool_]

_GATHER_BYTES = 1 << 30
# Arrow cannot take from, filter or compare view types.
_TAKEABLE = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def take_rows(table: pa.Table, rows: RowNumbers) -> pa.Table:
    """Take rows of a table that may have columns of view types."""
    schema = table.schema
    if any(field.type in _TAKEABLE for field in schema):
        plain = pa.schema([field.with_type(_TAKEABLE.get(field.type, field.type)) for field in schema])
        return table.cast(plain).take(from_numpy(rows)).cast(schema)
    return table.take(from_numpy(rows))


def take_values(array: pa.Array, rows: RowNumbers) -> pa.Array:
    if array.type in _TAKEABLE:
        return array.cast(_TAKEABLE[array.type]).take(from_numpy(rows)).cast(array.type)
    return array.take(from_numpy(rows))


def filter_rows(table: pa.Table, mask: Mask) -> pa.Table:
    """Keep the rows that `mask` marks, of a table that may have columns of view types."""
    columns = [filter_values(contiguous(column), mask) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def filter_values(array: pa.Array, mask: Mask) -> pa.Array:
    if array.type in _TAKEABLE:
        return array.cast(_TAKEABLE[array.type]).filter(from_numpy(mask)).cast(array.type)
    return array.filter(from_numpy(mask))


def replace_rows(column: pa.ChunkedArray, positions: RowNumbers, values: pa.ChunkedArray) -> pa.Array:
    """Replace the rows at ascending `positions` with `values`, for every type."""
    array, fresh = contiguous(column), contiguous(values)
    if _has_mask_kernel(array.type) and not _is_text_to_gather(array, fresh):
        mask = np.zeros(len(array), np.bool_)
        mask[positions] = True
        return pc.replace_with_mask(array, from_numpy(mask), fresh)
    rows = np.arange(len(array))
    rows[positions] = np.arange(len(array), len(array) + len(positions))
    return take_values(contiguous(pa.chunked_array([array, fresh])), rows)


def _has_mask_kernel(type_: pa.DataType) -> bool:
    return not (
        pa.types.is_nested(type_)
        or pa.types.is_dictionary(type_)
        or pa.types.is_duration(type_)
        or pa.types.is_null(type_)  # pyarrow before 25 aborts the process
        or pa.types.is_boolean(type_)  # pyarrow before 26 returns wrong values for a slice
        or type_ in _TAKEABLE
        or isinstance(type_, pa.BaseExtensionType)
        or (pa.types.is_decimal(type_) and type_.bit_width < 128)
    )


def _is_text_to_gather(array: pa.Array, fresh: pa.Array) -> bool:
    """Return whether to gather text, which is faster but needs offsets for both arrays."""
    if array.type in (pa.large_string(), pa.large_binary()):
        return True
    return array.type in (pa.string(), pa.binary()) and bool(array.nbytes + fresh.nbytes <= _GATHER_BYTES)


def all_bits_equal(left: pa.Array, right: pa.Array) -> bool:
    """Return whether all rows of two arrays of one type have the same bits."""
    left, right = comparable(left), comparable(right)
    return bool(bit_equal(left, right).all()) if pa.types.is_nested(left.type) else bool(left.equals(right))


def bit_equal(left: pa.Array, right: pa.Array) -> Mask:
    """Return for each row whether two arrays of one type have the same bits. NULL equals NULL."""
    left, right = comparable(left), comparable(right)
    if not pa.types.is_nested(left.type) and left.equals(right):  # the most frequent case, and the fastest
        return np.ones(len(left), np.bool_)
    if not left.null_count and not right.null_count:
        return _equal_values(left, right)
    nulls = to_numpy(left.is_null()), to_numpy(right.is_null())
    same: Mask = nulls[0] == nulls[1]
    both = same & ~nulls[0]
    if both.any():
        same[both] = _equal_values(*(side if both.all() else side.filter(from_numpy(both)) for side in (left, right)))
    return same


def comparable(array: pa.Array) -> pa.Array:
    """Convert an array to a type whose equal values have equal bits."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.cast(storage_type(array.type))
    type_ = array.type
    if type_ in _TAKEABLE:
        return array.cast(_TAKEABLE[type_])
    if pa.types.is_floating(type_):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[type_.bit_width]
        return array.view(bits)
    if pa.types.is_decimal(type_) and type_.bit_width < 128:
        return array.cast(pa.decimal128(type_.precision, type_.scale))
    return array


def _equal_values(left: pa.Array, right: pa.Array) -> Mask:
    type_ = left.type
    if pa.types.is_null(type_):
        return np.ones(len(left), np.bool_)
    if pa.types.is_struct(type_):
        same = np.ones(len(left), np.bool_)
        for left_field, right_field in zip(left.flatten(), right.flatten(), strict=True):
            same &= bit_equal(left_field, right_field)
        return same
    if pa.types.is_nested(type_):
        return _equal_lists(left, right)
    return to_numpy(pc.equal(left, right))


def _equal_lists(left: pa.Array, right: pa.Array) -> Mask:
    (left_items, lengths), (right_items, right_lengths) = list_items(left), list_items(right)
    same: Mask = lengths == right_lengths
    if not same.all():
        (left_items, lengths), (right_items, _) = (list_items(side.filter(from_numpy(same))) for side in (left, right))
    equal = bit_equal(left_items, right_items)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    same[same] = np.bincount(owners[~equal], minlength=len(lengths)) == 0
    return same


def list_items(lists: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the items of all lists in one array, and the length of each list."""
    if pa.types.is_map(lists.type):
        lengths = np.diff(to_numpy(lists.offsets)).astype(np.int64)
        entries = pa.StructArray.from_arrays([lists.keys, lists.items], ["key", "value"])
        return entries.slice(lists.offsets[0].as_py(), int(lengths.sum())), lengths
    return lists.flatten(), to_numpy(pc.list_value_length(lists)).astype(np.int64)


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast and reorder rows to `schema` without changing a value. Missing columns become NULL."""
    columns = [
        _fit_column(rows.column(f.name), f.type, f.name)
        if f.name in rows.column_names
        else null_column(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _fit_column(values: pa.ChunkedArray, to: pa.DataType, name: str) -> pa.ChunkedArray:
    return (widen_column if is_widening(values.type, to) else lossless_cast)(values, to, name)
