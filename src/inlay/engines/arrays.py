"""What Arrow's own kernels lack: rows replaced and taken, and compared to the bit, for every type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.schema import storage_type

__all__ = ["bit_equal", "replace_rows", "take_rows", "take_values", "whole_array"]

_GATHERED_BYTES = 1 << 30


def replace_rows(column: pa.ChunkedArray, positions: np.ndarray, values: pa.ChunkedArray) -> pa.Array:
    """The column with the rows at `positions` (ascending) replaced by `values`."""
    array, fresh = whole_array(column), whole_array(values)
    if _has_mask_kernel(array.type) and not _is_text_to_gather(array, fresh):
        mask = np.zeros(len(array), np.bool_)
        mask[positions] = True
        return pc.replace_with_mask(array, pa.array(mask), fresh)
    rows = np.arange(len(array))
    rows[positions] = np.arange(len(array), len(array) + len(positions))
    return take_values(_concat([array, fresh]), rows)


def _has_mask_kernel(type_: pa.DataType) -> bool:
    """Arrow replaces in place for flat types only."""
    return not (
        pa.types.is_nested(type_)
        or pa.types.is_dictionary(type_)
        or pa.types.is_duration(type_)
        or pa.types.is_string_view(type_)
        or pa.types.is_binary_view(type_)
        or isinstance(type_, pa.BaseExtensionType)
        or (pa.types.is_decimal(type_) and type_.bit_width < 128)
    )


def _is_text_to_gather(array: pa.Array, fresh: pa.Array) -> bool:
    """Values of any length are replaced by a mask one by one; gathered, they cost a third. Offsets of 32 bits must
    hold both together."""
    if array.type in (pa.large_string(), pa.large_binary()):
        return True
    return array.type in (pa.string(), pa.binary()) and bool(array.nbytes + fresh.nbytes <= _GATHERED_BYTES)


def whole_array(column: pa.ChunkedArray) -> pa.Array:
    return _concat(column.chunks) if column.num_chunks != 1 else column.chunk(0)


def _concat(arrays: Sequence[pa.Array]) -> pa.Array:
    if arrays and pa.types.is_dictionary(arrays[0].type):
        return (
            whole_array(pa.chunked_array(arrays).unify_dictionaries())
            if len(arrays) > 1 and not _share(arrays)
            else _join(arrays)
        )
    return _join(arrays)


def _share(arrays: Sequence[pa.Array]) -> bool:
    first = arrays[0].dictionary
    return all(array.dictionary.equals(first) for array in arrays[1:])


def _join(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# Arrow cannot take from, filter or compare views
_TAKEABLE = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def take_values(array: pa.Array, rows: np.ndarray) -> pa.Array:
    if array.type in _TAKEABLE:
        return array.cast(_TAKEABLE[array.type]).take(pa.array(rows)).cast(array.type)
    return array.take(pa.array(rows))


def take_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Take, also for the view types that Arrow cannot take from."""
    schema = table.schema
    if any(field.type in _TAKEABLE for field in schema):
        plain = pa.schema([field.with_type(_TAKEABLE.get(field.type, field.type)) for field in schema])
        return table.cast(plain).take(pa.array(rows)).cast(schema)
    return table.take(pa.array(rows))


def bit_equal(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Row by row: are two arrays of one type the same to the bit, NULLs and NaNs included?"""
    left, right = _comparable(left), _comparable(right)
    if not pa.types.is_nested(left.type) and left.equals(right):  # the usual case, at the speed of memory
        return np.ones(len(left), np.bool_)
    nulls = np.asarray(left.is_null()), np.asarray(right.is_null())
    same: np.ndarray = nulls[0] == nulls[1]
    both = same & ~nulls[0]
    if both.any():
        same[both] = _equal_values(*(side if both.all() else side.filter(pa.array(both)) for side in (left, right)))
    return same


def _comparable(array: pa.Array) -> pa.Array:
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


def _equal_values(left: pa.Array, right: pa.Array) -> np.ndarray:
    type_ = left.type
    if pa.types.is_null(type_):
        return np.ones(len(left), np.bool_)
    if pa.types.is_struct(type_):
        same = np.ones(len(left), np.bool_)
        for mine, theirs in zip(left.flatten(), right.flatten(), strict=True):
            same &= bit_equal(mine, theirs)
        return same
    if pa.types.is_nested(type_):
        return _equal_lists(left, right)
    return np.asarray(pc.equal(left, right))


def _equal_lists(left: pa.Array, right: pa.Array) -> np.ndarray:
    mine, theirs = _items(left), _items(right)
    same: np.ndarray = mine[1] == theirs[1]
    if not same.all():
        mine, theirs = (_items(side.filter(pa.array(same))) for side in (left, right))
    values = bit_equal(mine[0], theirs[0])
    owners = np.repeat(np.arange(len(mine[1])), mine[1])
    differing = np.bincount(owners[~values], minlength=len(mine[1])) > 0
    same[same] = ~differing
    return same


def _items(lists: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The values of all lists in a row, and how many each has."""
    if pa.types.is_map(lists.type):
        lengths = np.diff(np.asarray(lists.offsets)).astype(np.int64)
        entries = pa.StructArray.from_arrays([lists.keys, lists.items], ["key", "value"])
        return entries.slice(lists.offsets[0].as_py(), int(lengths.sum())), lengths
    return lists.flatten(), np.asarray(pc.list_value_length(lists)).astype(np.int64)
