"""CSV lines from Arrow columns, without a Python object for each cell.

Arrow computes the text of most types. Only floats with an exponent, small decimals and nested values, of which Arrow
writes another text than `text_values`, become Python objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from inlay.query.values import text_values

__all__ = ["csv_header", "csv_rows"]

_is: Any = pa.types
_TEXT = pa.large_string()
_SPECIAL = tuple(b',"\r\n')
_SPACE, _T, _COMMA, _E = b" T,E"
_FIXED_POINT = (1e-4, 1e16)  # outside of these bounds, Python writes floats with an exponent


def csv_header(schema: pa.Schema) -> bytes:
    names = [_quote(pa.array([field.name], _TEXT))[0].as_py() for field in schema]
    return (",".join(names) + "\r\n").encode()


def csv_rows(batch: pa.RecordBatch) -> bytes:
    """Return the lines of the rows. NULL is an empty cell, empty text a quoted one."""
    if not batch.num_columns:
        return b""
    ends = [","] * (batch.num_columns - 1) + ["\r\n"]
    parts = [part for column, end in zip(batch.columns, ends, strict=True) for part in (_cells(column), end)]
    texts = [pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts]
    lines = pc.binary_join_element_wise(*texts, pa.scalar("", _TEXT), null_handling="replace", null_replacement="")
    offsets, data = _buffers(lines)
    return data[offsets[0] : offsets[-1]].tobytes()


def _cells(column: pa.Array) -> pa.Array:
    convert = next((convert for matches, convert in _CONVERSIONS if matches(column.type)), _by_value)
    return convert(column)


def _text(column: pa.Array) -> pa.Array:
    return column.cast(_TEXT)


def _quote(values: pa.Array) -> pa.Array:
    """Quote texts with special characters and empty texts."""
    offsets, data = _buffers(values)
    used = data[offsets[0] : offsets[-1]]
    is_special = used == _SPECIAL[0]
    for character in _SPECIAL[1:]:
        is_special |= used == character
    positions = np.flatnonzero(is_special)
    needs_quotes = offsets[1:] == offsets[:-1]
    if not positions.size and not needs_quotes.any():
        return values
    needs_quotes[np.searchsorted(offsets, positions + offsets[0], side="right") - 1] = True
    mask = pc.and_(pa.array(needs_quotes), pc.is_valid(values))
    doubled = pc.replace_substring(values.filter(mask), '"', '""')
    mark = pa.scalar('"', _TEXT)
    return pc.replace_with_mask(values, mask, pc.binary_join_element_wise(mark, doubled, mark, pa.scalar("", _TEXT)))


def _dictionary(column: pa.DictionaryArray) -> pa.Array:
    return _cells(column.dictionary).take(column.indices)


def _timestamps(column: pa.Array) -> pa.Array:
    """Write `T` between date and time, and `Z` behind times with a zone."""
    if column.type.tz is not None:
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    texts = _text(column)
    offsets, data = _buffers(texts)
    return _array(texts, offsets, np.where(data == _SPACE, np.uint8(_T), data))


def _decimals(column: pa.Array) -> pa.Array:
    texts = _text(column)
    offsets, data = _buffers(texts)
    return _by_value(column) if (data[offsets[0] : offsets[-1]] == _E).any() else texts


def _floats(column: pa.Array) -> pa.Array:
    if not len(column):
        return pa.array([], _TEXT)
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    size = np.abs(values)
    is_plain = (size == 0) | ((size >= _FIXED_POINT[0]) & (size < _FIXED_POINT[1]))
    # JSON has the same text as Python for all other floats.
    document = np.frombuffer(orjson.dumps(np.where(is_plain, values, 0.0), option=orjson.OPT_SERIALIZE_NUMPY), np.uint8)
    joined = document[1:-1]
    commas = np.flatnonzero(joined == _COMMA)
    ends = np.append(commas, joined.size) - np.arange(commas.size + 1)
    texts = _array(column, np.concatenate(([0], ends)), joined[joined != _COMMA])
    others = pc.and_(pa.array(~is_plain), pc.is_valid(column))
    return pc.replace_with_mask(texts, others, pa.array(text_values(column.filter(others)), _TEXT))


def _by_value(column: pa.Array) -> pa.Array:
    return _quote(pa.array(text_values(column), _TEXT))


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any], pa.Array]], ...] = (
    (lambda t: isinstance(t, pa.BaseExtensionType), _by_value),
    (lambda t: _is.is_string(t) or _is.is_large_string(t), lambda column: _quote(_text(column))),
    (lambda t: _is.is_integer(t) or _is.is_boolean(t) or _is.is_date32(t) or _is.is_time(t), _text),
    (_is.is_dictionary, _dictionary),
    (_is.is_timestamp, _timestamps),
    (_is.is_decimal, _decimals),
    (_is.is_floating, _floats),
)


def _buffers(texts: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the offsets of the texts, and the bytes that the offsets count."""
    _, offsets, data = texts.buffers()
    first, after = texts.offset, texts.offset + len(texts) + 1
    counted = np.frombuffer(offsets, np.int64)[first:after] if offsets is not None else np.zeros(1, np.int64)
    return counted, np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)


def _array(like: pa.Array, offsets: np.ndarray[Any, Any], data: np.ndarray[Any, Any]) -> pa.Array:
    """Return texts from offsets and bytes that are NULL where `like` is."""
    valid = pa.array(like.is_valid()).buffers()[1] if like.null_count else None
    return pa.Array.from_buffers(
        _TEXT, len(like), [valid, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    )
