"""Cells of text into typed values, exactly or not at all.

Arrow's own casts are the fast path, but they read 007 as 7, 0x1F as 31 and change some numbers. Each fast path
therefore checks the whole column; only columns that fail are looked at cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.errors import InvalidArgumentError
from inlay.pipeline.exact import INTEGER, NUMBER, SPECIAL, CellText, inexact, odd_decimals, plain_decimal, rounded
from inlay.schema import family, storage_type
from inlay.type_grammar import type_name

__all__ = ["BOOLEAN", "FORMS", "Converted", "Reading", "check_readable", "convert", "reason"]

BOOLEAN = r"(?i:true|false)"
_TRUE = ("true", "t", "yes", "y", "on", "1")
_FALSE = ("false", "f", "no", "n", "off", "0")
# how dates are written: a pattern at the start of a cell, and what makes ISO 8601 of it
FORMS: dict[str, tuple[str, str]] = {
    "iso": (r"([0-9]{4})-([0-9]{2})-([0-9]{2})", r"\1-\2-\3"),
    "slashed": (r"([0-9]{4})/([0-9]{2})/([0-9]{2})", r"\1-\2-\3"),
    "dotted": (r"([0-9]{2})\.([0-9]{2})\.([0-9]{4})", r"\3-\2-\1"),
    "day first": (r"([0-9]{2})[/-]([0-9]{2})[/-]([0-9]{4})", r"\3-\2-\1"),
    "month first": (r"([0-9]{2})[/-]([0-9]{2})[/-]([0-9]{4})", r"\3-\1-\2"),
}
_REASONS = {
    "boolean": "not true or false",
    "integer": "not an integer",
    "float": "not a number",
    "decimal": "not a decimal",
    "date": "not a date",
    "naive timestamp": "not a timestamp without a zone",
    "zoned timestamp": "not a timestamp with a zone",
    "time": "not a time of day",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """How the text of a column becomes values. A `fixed` type was chosen by somebody and is read leniently.

    Inferred dates are all written in one `form`; where a date was chosen, any form will do, and `form` only says
    which of day and month is first.
    """

    type: pa.DataType
    form: str = "iso"
    fixed: bool = False
    length: int | None = None  # characters that a text has at most


class Converted(NamedTuple):
    """Typed values, NULL where a cell is bad; `bad` is None if no cell is."""

    values: pa.Array
    bad: np.ndarray | None


def reason(type_: pa.DataType) -> str:
    kind = _REASONS.get(family(type_), "not a value")
    return f"{kind} that fits {type_name(type_)}"


def check_readable(column: str, type_: pa.DataType) -> None:
    """Refuse types that no text can be read as."""
    plain = storage_type(type_)
    if family(plain) in ("list", "struct", "map", "null", "duration"):
        raise InvalidArgumentError(f"Column {column!r}: a cell of text cannot be read as {type_}.")
    try:
        convert(pa.array([], pa.string()), Reading(type_, fixed=True))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidArgumentError(f"Column {column!r}: a cell of text cannot be read as {type_}.") from error


def convert(values: pa.Array, reading: Reading) -> Converted:
    """Text into values of the reading's type."""
    plain = storage_type(reading.type)
    kind = family(plain)
    if kind in ("text", "binary"):
        converted = _cast_text(values, plain, reading.length)
    else:
        text = CellText(_blank_to_null(values))
        fast = _FAST.get(kind)
        found = fast(text, plain, reading) if fast else None
        converted = Converted(found, None) if found is not None else _carefully(text, plain, reading)
    return converted if plain.equals(reading.type) else _wrapped(converted, reading.type)


def _wrapped(converted: Converted, type_: pa.DataType) -> Converted:
    """Plain values in the extension or dictionary type that a target has."""
    values = converted.values
    if isinstance(type_, pa.BaseExtensionType):
        return converted._replace(values=pa.ExtensionArray.from_storage(type_, values.cast(type_.storage_type)))
    encoded = values.dictionary_encode()
    most = 2 ** (type_.index_type.bit_width - pa.types.is_signed_integer(type_.index_type))
    if len(encoded.dictionary) > most:  # values that the dictionary has no room for are bad cells
        excess = pc.fill_null(pc.greater_equal(encoded.indices, most), False)
        values = pc.if_else(excess, pa.scalar(None, values.type), values)
        mask = excess.to_numpy(zero_copy_only=False)
        converted = Converted(values, mask if converted.bad is None else mask | converted.bad)
        encoded = values.dictionary_encode()
    return converted._replace(values=encoded.cast(type_))


def _blank_to_null(values: pa.Array) -> pa.Array:
    """Quoted empty cells: no value of any type but text."""
    lengths = pc.binary_length(values)
    if (pc.min(lengths).as_py() or 1) > 0 and not pc.any(pc.equal(lengths, 0)).as_py():
        return values
    return pc.if_else(pc.greater(lengths, 0), values, pa.scalar(None, pa.string()))


def _cast_text(values: pa.Array, type_: pa.DataType, length: int | None) -> Converted:
    wrong = None
    if pa.types.is_fixed_size_binary(type_):
        wrong = pc.not_equal(pc.binary_length(values), type_.byte_width)
    elif length is not None:
        wrong = pc.greater(pc.utf8_length(values), length)
    if wrong is None or not pc.any(wrong).as_py():
        return Converted(_as_text_of(values, type_), None)
    kept = pc.if_else(wrong, pa.scalar(None, pa.string()), values)
    return Converted(_as_text_of(kept, type_), pc.fill_null(wrong, False).to_numpy(zero_copy_only=False))


def _as_text_of(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(type_):
        values = values.cast(pa.binary())
    return values if values.type.equals(type_) else pc.cast(values, type_)


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array | None:
    try:
        return pc.cast(values, type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None


_LOWEST = np.array([0, 0, *(10**digits for digits in range(1, 19)), np.iinfo(np.int64).max], np.int64)


def _fast_integers(text: CellText, type_: pa.DataType, _: Reading) -> pa.Array | None:
    """Right if every text is digits, as many as its number printed: no zeros in front, no -0."""
    typed = _cast(text.values, type_) if text.holds_only_digits else None
    if typed is None or type_.equals(pa.uint64()):
        return None
    numbers = typed.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    lengths = np.minimum(text.lengths, len(_LOWEST) - 1)
    negative = numbers < 0
    if negative.any():
        lengths = lengths - negative
        numbers = np.abs(numbers)
    is_canonical = (numbers >= _LOWEST[lengths]) | (text.lengths == 0)
    return typed if is_canonical.all() else None


def _fast_floats(text: CellText, type_: pa.DataType, reading: Reading) -> pa.Array | None:
    typed = _cast(text.values, type_) if text.holds_only_digits else None
    if typed is None or (not reading.fixed and text.has_leading_zero):
        return None
    return None if _lost(text, typed, reading).any() else typed


def _fast_decimals(text: CellText, type_: pa.DataType, reading: Reading) -> pa.Array | None:
    if not text.holds_only_digits or (not reading.fixed and text.has_leading_zero) or odd_decimals(text, type_).any():
        return None
    return _cast(text.values, type_)


def _fast_booleans(text: CellText, type_: pa.DataType, _: Reading) -> pa.Array | None:
    named = (text.lengths == 4) | (text.lengths == 5) | (text.lengths == 0)  # 0 and 1 are read with care
    return _cast(text.values, type_) if named.all() else None


def _fast_dates(text: CellText, type_: pa.DataType, reading: Reading) -> pa.Array | None:
    typed = _cast(text.values, type_) if reading.fixed else None
    return _cast(_as_iso(text.values, reading), type_) if typed is None else typed


_FAST: dict[str, Callable[[CellText, pa.DataType, Reading], pa.Array | None]] = {
    "integer": _fast_integers,
    "float": _fast_floats,
    "decimal": _fast_decimals,
    "boolean": _fast_booleans,
    "date": _fast_dates,
    "naive timestamp": _fast_dates,
    "zoned timestamp": _fast_dates,
}


def _lost(text: CellText, floats: pa.Array, reading: Reading) -> np.ndarray:
    """Cells that became another number than their type may make of them: inferred types may change none."""
    return rounded(text, floats) if reading.fixed else inexact(text, floats)


def _as_iso(values: pa.Array, reading: Reading) -> pa.Array:
    forms = {"slashed", "dotted", reading.form} if reading.fixed else {reading.form}
    for pattern, replacement in (FORMS[form] for form in sorted(forms - {"iso"})):
        values = pc.replace_substring_regex(values, f"^{pattern}", replacement)
    return values


# ------------------------------------------------------------------------------------------------- cell by cell
def _carefully(text: CellText, type_: pa.DataType, reading: Reading) -> Converted:
    """The same for columns with odd cells: blanks around values, bad ones."""
    cells = pc.ascii_trim_whitespace(text.values)
    kind = family(type_)
    prepared = _PREPARE[kind](cells, reading) if kind in _PREPARE else cells
    typed, failed = _cast_each(prepared, type_)
    if kind == "float":
        failed |= _lost(CellText(prepared), typed, reading)
        typed = pc.if_else(pa.array(failed), pa.scalar(None, type_), typed)
    missing = np.asarray(pc.is_null(prepared)) & ~np.asarray(pc.is_null(cells))
    bad = failed | missing
    return Converted(typed, bad if bad.any() else None)


def _cast_each(values: pa.Array, type_: pa.DataType) -> tuple[pa.Array, np.ndarray]:
    """Cast what can be; halves of what cannot are tried again."""
    failed = np.zeros(len(values), bool)
    cast = _cast_times if family(type_) == "time" else _cast
    pieces: list[pa.Array] = []

    def settle(start: int, count: int) -> None:
        typed = cast(values.slice(start, count), type_)
        if typed is not None:
            pieces.append(typed)
        elif count == 1:
            failed[start] = True
            pieces.append(pa.nulls(1, type_))
        else:
            settle(start, count // 2)
            settle(start + count // 2, count - count // 2)

    settle(0, len(values))
    return pa.concat_arrays(pieces), failed


def _cast_times(values: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Arrow casts no text to times of day; timestamps of one day have them."""
    stamps = _cast(pc.binary_join_element_wise("1970-01-01T", values, ""), pa.timestamp(type_.unit))
    return None if stamps is None else pc.cast(stamps, type_)


def _matching(cells: pa.Array, pattern: str) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(cells, f"^(?:{pattern})$"), cells, pa.scalar(None, pa.string()))


def _prepare_integers(cells: pa.Array, reading: Reading) -> pa.Array:
    if not reading.fixed:
        return _matching(cells, INTEGER)
    return _matching(pc.replace_substring_regex(cells, r"^\+([0-9])", r"\1"), r"-?[0-9]+")


def _prepare_numbers(cells: pa.Array, reading: Reading) -> pa.Array:
    if not reading.fixed:
        return _matching(cells, f"{NUMBER}|{SPECIAL}")
    return _matching(cells, rf"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|{SPECIAL}")


def _prepare_decimals(cells: pa.Array, reading: Reading) -> pa.Array:
    numbers, type_ = _prepare_numbers(cells, reading), storage_type(reading.type)
    odd = odd_decimals(CellText(numbers), type_)
    if not odd.any():
        return numbers
    plain = [plain_decimal(cell, type_) for cell in numbers.filter(pa.array(odd)).to_pylist()]
    return pc.replace_with_mask(numbers, pa.array(odd), pa.array(plain, pa.string()))


def _prepare_booleans(cells: pa.Array, reading: Reading) -> pa.Array:
    if not reading.fixed:
        return _matching(cells, BOOLEAN)
    lowered = pc.utf8_lower(cells)
    is_true, is_false = (pc.is_in(lowered, pa.array(words, pa.string())) for words in (_TRUE, _FALSE))
    return pc.if_else(is_true, "true", pc.if_else(is_false, "false", pa.scalar(None, pa.string())))


def _prepare_dates(cells: pa.Array, reading: Reading) -> pa.Array:
    iso = _as_iso(cells, reading)
    iso = pc.replace_substring_regex(iso, r" ?(?:UTC|GMT|[zZ])$", "Z")
    return _prepare_times(pc.replace_substring_regex(iso, r" ([+-][0-9]{2}:?[0-9]{2})$", r"\1"), reading)


def _prepare_times(cells: pa.Array, _: Reading) -> pa.Array:
    """Without zeros behind a fraction of a second, which would seem too fine for a type that holds it."""
    return pc.replace_substring_regex(cells, r"(:[0-9]{2}:[0-9]{2})(?:(\.[0-9]*[1-9])|\.)0+([^0-9.]|$)", r"\1\2\3")


_PREPARE: dict[str, Callable[[pa.Array, Reading], pa.Array]] = {
    "integer": _prepare_integers,
    "float": _prepare_numbers,
    "decimal": _prepare_decimals,
    "boolean": _prepare_booleans,
    "naive timestamp": _prepare_dates,
    "zoned timestamp": _prepare_dates,
    "date": _prepare_dates,
    "time": _prepare_times,
}
