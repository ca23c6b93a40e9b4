"""Values of Arrow columns as Python objects for JSON, and as the text of CSV cells."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import pyarrow as pa

__all__ = ["dumps", "json_values", "text_values"]

_is: Any = pa.types
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_values(array: pa.Array) -> list[Any]:
    """Convert a column to values that `json.dumps` accepts."""
    convert = next((convert for matches, convert in _CONVERSIONS if matches(array.type)), None)
    return list(array.to_pylist()) if convert is None else convert(array)


def text_values(array: pa.Array) -> list[str | None]:
    """Convert a column to the text of CSV cells. NULL stays None."""
    if _is.is_integer(array.type):
        return _as_text(array)
    return [value if value is None or isinstance(value, str) else dumps(value) for value in json_values(array)]


def _each(convert: Callable[[Any], Any]) -> Callable[[pa.Array], list[Any]]:
    return lambda array: [None if value is None else convert(value) for value in array.to_pylist()]


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _timestamps(array: pa.Array) -> list[Any]:
    if array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    return [None if text is None else text.replace(" ", "T", 1) for text in array.cast(pa.string()).to_pylist()]


def _as_text(array: pa.Array) -> list[Any]:
    return list(array.cast(pa.string()).to_pylist())


def _seconds(count: int, per_second: int) -> str:
    whole, rest = divmod(abs(count), per_second)
    digits = len(str(per_second)) - 1
    fraction = f".{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else ""
    return f"{'-' if count < 0 else ''}{whole}{fraction}S"


def _durations(array: pa.Array) -> list[Any]:
    per_second = _PER_SECOND[array.type.unit]
    counts = array.cast(pa.int64()).to_pylist()
    return [None if count is None else f"PT{_seconds(count, per_second)}" for count in counts]


def _interval(value: Any) -> str:
    parts = f"{value.months}M" * bool(value.months) + f"{value.days}D" * bool(value.days)
    return f"P{parts}T{_seconds(value.nanoseconds, 10**9)}"


def _lists(array: pa.Array) -> list[Any]:
    items = iter(json_values(array.flatten()))  # without the items of NULL lists
    lengths = array.value_lengths().to_pylist()
    return [None if length is None else [next(items) for _ in range(length)] for length in lengths]


def _fixed_lists(array: pa.Array) -> list[Any]:
    return _lists(array.cast(pa.list_(array.type.value_field)))


def _maps(array: pa.Array) -> list[Any]:
    entries = pa.struct([array.type.key_field, array.type.item_field])
    pairs = _lists(array.cast(pa.list_(pa.field("entries", entries, nullable=False))))
    return [None if row is None else [list(entry.values()) for entry in row] for row in pairs]


def _structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [json_values(column) for column in array.flatten()]
    rows = zip(*columns, strict=True) if columns else ([] for _ in range(len(array)))
    valid = array.is_valid().to_pylist()
    return [dict(zip(names, row, strict=True)) if is_valid else None for is_valid, row in zip(valid, rows, strict=True)]


def _decoded(array: pa.Array) -> list[Any]:
    return json_values(array.dictionary_decode())


def _stored(array: pa.Array) -> list[Any]:
    return json_values(array.storage)


_CONVERSIONS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], list[Any]]], ...] = (
    (lambda t: isinstance(t, pa.BaseExtensionType), _stored),
    (_is.is_dictionary, _decoded),
    (_is.is_floating, _each(_float)),
    (_is.is_decimal, _each(lambda value: format(value, "f"))),
    (_is.is_timestamp, _timestamps),
    (_is.is_date64, lambda array: _as_text(array.cast(pa.date32()))),
    (lambda t: _is.is_date32(t) or _is.is_time(t), _as_text),
    (_is.is_duration, _durations),
    (_is.is_interval, _each(_interval)),
    (lambda t: _is.is_binary(t) or _is.is_large_binary(t) or _is.is_fixed_size_binary(t), _each(_base64)),
    (_is.is_map, _maps),
    (_is.is_fixed_size_list, _fixed_lists),
    (lambda t: _is.is_list(t) or _is.is_large_list(t), _lists),
    (_is.is_struct, _structs),
)
