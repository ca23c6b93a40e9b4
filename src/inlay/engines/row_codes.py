"""Numbers that stand for rows: two rows have the same number if all of their values have the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.arrays import from_numpy, to_numpy
from inlay.engines.columns import comparable, list_items
from inlay.engines.keys import contiguous

__all__ = ["count_earlier", "number_rows", "number_tuples"]

Integers = npt.NDArray[np.int64]

_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}  # One array can exceed 2 GiB of text.
_NULL = 0


def number_rows(columns: Sequence[pa.ChunkedArray], rows: int) -> Integers:
    """Number the distinct rows of columns of equal length. NULL equals NULL."""
    return number_tuples([_number_column(column) for column in columns], rows)


def number_tuples(numbers: Sequence[Integers], rows: int) -> Integers:
    """Number the distinct tuples of numbers that are at least 0."""
    codes = np.zeros(rows, np.int64)
    for each in numbers:
        # Both factors are at most the number of rows, so the product fits.
        codes = _number(from_numpy(codes * (int(each.max(initial=0)) + 1) + each))
    return codes


def count_earlier(codes: Integers) -> Integers:
    """Count for each row how many earlier rows have the same number."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    is_first = np.ones(len(codes), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    starts = np.flatnonzero(is_first)
    counts = np.empty(len(codes), np.int64)
    counts[order] = np.arange(len(codes)) - np.repeat(starts, np.diff(starts, append=len(codes)))
    return counts


def _number_column(column: pa.ChunkedArray) -> Integers:
    if column.type in _LARGE:
        column = column.cast(_LARGE[column.type])
    return _number_values(contiguous(column))


def _number_values(array: pa.Array) -> Integers:
    array = comparable(array)
    codes = np.full(len(array), _NULL, np.int64)
    if pa.types.is_null(array.type):
        return codes
    valid = to_numpy(array.is_valid())
    values = array if valid.all() else array.drop_null()
    codes[valid] = _number_valid(values) + 1
    return codes


def _number_valid(values: pa.Array) -> Integers:
    if pa.types.is_struct(values.type):
        return number_tuples([_number_values(field) for field in values.flatten()], len(values))
    if pa.types.is_nested(values.type):
        return _number_lists(*list_items(values))
    return _number(values)


def _number_lists(items: pa.Array, lengths: Integers) -> Integers:
    """Number lists by the bytes of the numbers of their items."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) * np.int64().itemsize
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(_number_values(items))]
    return _number(pa.Array.from_buffers(pa.large_binary(), len(lengths), buffers))


def _number(values: pa.Array) -> Integers:
    return to_numpy(values.dictionary_encode().indices).astype(np.int64)
