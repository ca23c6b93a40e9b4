"""Conversions between Arrow and numpy that do not import pandas.

`pa.array`, `pa.scalar` and `Array.to_numpy` import pandas if it is installed, which takes 0.2 s and 40 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["from_binary", "from_integers", "from_numpy", "from_texts", "scalar", "to_numpy"]


def from_numpy(values: np.ndarray, known: np.ndarray | None = None) -> pa.Array:
    """Convert booleans or numbers to Arrow, numbers without a copy. Values that are not `known` become NULL."""
    valid = None if known is None or known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    if values.dtype == np.bool_:
        data, type_ = pa.py_buffer(np.packbits(values, bitorder="little")), pa.bool_()
    else:
        data, type_ = pa.py_buffer(np.ascontiguousarray(values)), pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [valid, data])


def from_integers(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Convert integers and None to Arrow. Raises OverflowError or ArrowInvalid for integers that the type lacks."""
    known = np.fromiter((value is not None for value in values), np.bool_, len(values))
    dtype = np.uint64 if pa.types.is_uint64(type_) else np.int64
    numbers = np.fromiter((0 if value is None else index(value) for value in values), dtype, len(values))
    return from_numpy(numbers, known).cast(type_)


def from_texts(values: Sequence[str]) -> pa.Array:
    return from_binary([value.encode() for value in values]).cast(pa.string())


def from_binary(values: Sequence[Any]) -> pa.Array:
    known = np.fromiter((value is not None for value in values), np.bool_, len(values))
    ends = np.cumsum([0, *(len(value or b"") for value in values)], dtype=np.int64)
    valid = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(value or b"" for value in values))]
    return pa.Array.from_buffers(pa.large_binary(), len(values), buffers)


def scalar(value: float | bool, type_: pa.DataType) -> pa.Scalar:
    return from_numpy(np.array([value])).cast(type_)[0]


def to_numpy(array: pa.Array | pa.ChunkedArray, missing: float | bool | None = None) -> np.ndarray:
    """Convert booleans or numbers to numpy, numbers without a copy. NULLs become `missing`, if it is not None."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays(array.chunks or [pa.nulls(0, array.type)])
    if array.null_count and missing is None:
        raise ValueError(f"{array.null_count} values are NULL")
    start, count, data = array.offset, len(array), array.buffers()[1]
    if pa.types.is_boolean(array.type):
        values = _bits(data, start, count)
    else:
        dtype = np.dtype(array.type.to_pandas_dtype())
        values = np.frombuffer(data, dtype, count, start * dtype.itemsize) if count else np.empty(0, dtype)
    if not array.null_count:
        return values
    fill = np.array(
        missing, np.promote_types(values.dtype, np.min_scalar_type(np.asarray(missing)))
    )  # keeps integers exact
    return np.where(_bits(array.buffers()[0], start, count), values, fill)


def _bits(data: Any, start: int, count: int) -> np.ndarray:
    if not count:
        return np.empty(0, np.bool_)
    first, skipped = divmod(start, 8)
    found: np.ndarray = np.unpackbits(np.frombuffer(data, np.uint8)[first:], None, skipped + count, "little")
    return found[skipped:].view(np.bool_)
