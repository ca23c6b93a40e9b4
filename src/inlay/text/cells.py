"""Convert cells of text to typed values, exactly or not at all.

Arrow's casts are the fast path, but they read 007 as 7 and 0x1F as 31, and they round some numbers. Each fast path
therefore checks the whole column, and a column that fails the check is converted cell by cell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.errors import InvalidArgumentError
from inlay.schema import family, storage_type
from inlay.type_grammar import type_name

__all__ = [
    "BOOLEAN",
    "FORMS",
    "INTEGER",
    "NUMBER",
    "SPECIAL",
    "CellText",
    "Converted",
    "Reading",
    "are_kept",
    "check_readable",
    "convert",
    "convert_columns",
    "inexact",
    "odd_decimals",
    "plain_decimal",
    "reason",
    "rounded",
]


_SHORT_COLUMN = 1_000
_EXACT_DIGITS = {64: 15, 32: 7, 16: 3}  # bits of a float -> number of characters that it always keeps exactly
_DECIMAL_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
SPECIAL = r"(?i:[+-]?inf(?:inity)?|nan)"
INTEGER = r"0|-?[1-9][0-9]*"


class CellText:
    """An array of text with its offsets and bytes as numpy arrays."""

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        _, offsets, data = values.buffers()
        count = len(values)
        at = values.offset
        self.offsets = (
            np.frombuffer(offsets, np.int32)[at : at + count + 1]
            if offsets and count
            else np.zeros(count + 1, np.int32)
        )
        everything = np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)
        self.data = everything[self.offsets[0] : self.offsets[-1]]
        self.starts = self.offsets[:-1] - self.offsets[0]
        self.lengths = np.diff(self.offsets)

    def byte(self, at: int) -> np.ndarray:
        """Return the byte at a position of each cell; shorter cells return an arbitrary byte."""
        if not len(self.data):
            return np.zeros(len(self.starts), np.uint8)
        found: np.ndarray = self.data.take(self.starts + at, mode="clip")
        return found

    @property
    def holds_only_digits(self) -> bool:
        """Return True if all cells consist of digits, points and minus signs."""
        return not len(self.data) or bool(self.data.max() <= ord("9") and self.data.min() > ord("+"))

    @property
    def has_leading_zero(self) -> bool:
        """Return True if a cell is like 007 or -07.5, but not like 0.5 or 0."""
        first, second = self.byte(0), self.byte(1)
        zero = (first == ord("0")) & (second != ord(".")) & (self.lengths > 1)
        if zero.any():
            return True
        minus = (first == ord("-")) & (second == ord("0")) & (self.lengths > 2)
        return bool(minus.any() and (self.byte(2)[minus] != ord(".")).any())


def _risky(text: CellText, bits: int) -> np.ndarray:
    """Find cells that a float may round: cells with many digits or an exponent."""
    risky: np.ndarray = text.lengths > _EXACT_DIGITS[bits]
    if not text.holds_only_digits:
        risky = risky | _matches(text.values, "[a-zA-Z]")
    return np.flatnonzero(risky)


def inexact(text: CellText, doubles: pa.Array) -> np.ndarray:
    """Mark cells whose double prints as a different number."""
    found = np.zeros(len(text.lengths), bool)
    at = _risky(text, 64)
    if len(at):
        chosen = text.values.take(at)
        printed = pc.cast(doubles.take(at), pa.string())
        differs = ~pc.fill_null(pc.equal(chosen, printed), True).to_numpy(zero_copy_only=False)
        for where in np.flatnonzero(differs):
            found[at[where]] = not _prints_exactly(chosen[int(where)].as_py())
    return found


def rounded(text: CellText, floats: pa.Array) -> np.ndarray:
    """Mark numbers that became infinite or zero, and whole numbers that changed. Fractions may be rounded."""
    found = np.zeros(len(text.lengths), bool)
    at = _risky(text, floats.type.bit_width)
    if len(at):
        cells, values = text.values.take(at), floats.take(at).cast(pa.float64()).to_numpy(zero_copy_only=False)
        found[at] = np.isinf(values) & _matches(cells, "[0-9]") | (values == 0) & _matches(cells, "^[^eE]*[1-9]")
        for where in np.flatnonzero(_matches(cells, r"^[+-]?[0-9]+(?:\.0*)?$") & np.isfinite(values)):
            found[at[where]] |= int(values[where]) != Decimal(cells[int(where)].as_py())
    return found


def _matches(cells: pa.Array, pattern: str) -> np.ndarray:
    found: np.ndarray = pc.fill_null(pc.match_substring_regex(cells, pattern), False).to_numpy(zero_copy_only=False)
    return found


def are_kept(numbers: Sequence[bytes], type_: pa.DataType) -> bool:
    """Return True if Arrow keeps every number exactly as a double or decimal. Ignore other text."""
    cells = pa.array(numbers, pa.string())
    text = CellText(cells.filter(pc.match_substring_regex(cells, f"^(?:{NUMBER})$")))
    if pa.types.is_decimal(type_):
        return not odd_decimals(text, type_).any()
    return not inexact(text, pc.cast(text.values, pa.float64())).any()


def _prints_exactly(cell: str) -> bool:
    """Return True if the double nearest to a number prints as that number."""
    if cell.lower().lstrip("+-").startswith(("inf", "nan")):
        return True
    double = float(cell)
    try:
        if double in (float("inf"), float("-inf")) or Decimal(cell) != Decimal(repr(double)):
            return False
    except InvalidOperation:  # the exponent is out of range for a decimal
        return False
    # Beyond 2**53 a double cannot tell adjacent integers apart, so such an integer is probably an id.
    return abs(double) < 2**53 or "e" in cell.lower()


def odd_decimals(text: CellText, type_: pa.DataType) -> np.ndarray:
    """Mark cells that Arrow may cast wrongly: it misses an overflow of a decimal's full precision."""
    odd: np.ndarray = text.lengths + type_.scale >= _DECIMAL_DIGITS[type_.bit_width]
    if odd.any():
        length, point = pc.binary_length(text.values), pc.find_substring(text.values, ".")
        whole = pc.if_else(pc.less(point, 0), length, point)
        scale = pc.subtract(pc.subtract(length, whole), 1)
        fits = pc.and_(pc.less_equal(whole, type_.precision - type_.scale), pc.less_equal(scale, type_.scale))
        odd = odd & ~pc.fill_null(fits, True).to_numpy(zero_copy_only=False)
    return odd if text.holds_only_digits else odd | _matches(text.values, "[a-zA-Z]")


def plain_decimal(cell: str, type_: pa.DataType) -> str | None:
    """Write a number without an exponent; return None if the decimal type cannot hold it."""
    context = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    try:
        return f"{Decimal(cell).quantize(Decimal((0, (1,), -type_.scale)), context=context):f}"
    except (Inexact, InvalidOperation):
        return None


BOOLEAN = r"(?i:true|false)"
_TRUE = ("true", "t", "yes", "y", "on", "1")
_FALSE = ("false", "f", "no", "n", "off", "0")
# date format -> pattern at the start of a cell, and its replacement in ISO 8601
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
    """How to read the text of a column. A `fixed` type comes from the user and accepts more spellings.

    Inferred dates all have one `form`. A fixed date accepts every form, and `form` only decides the order of day
    and month.
    """

    type: pa.DataType
    form: str = "iso"
    fixed: bool = False
    length: int | None = None  # maximum number of characters


class Converted(NamedTuple):
    """Typed values with NULL for invalid cells; `bad` marks the invalid cells, or is None."""

    values: pa.Array
    bad: np.ndarray | None


def reason(type_: pa.DataType) -> str:
    kind = _REASONS.get(family(type_), "not a value")
    return f"{kind} that fits {type_name(type_)}"


def check_readable(column: str, type_: pa.DataType) -> None:
    """Reject a type that text cannot be converted to."""
    plain = storage_type(type_)
    if family(plain) in ("list", "struct", "map", "null", "duration"):
        raise InvalidArgumentError(f"Column {column!r}: inlay cannot convert text to {type_}.")
    try:
        convert(pa.array([], pa.string()), Reading(type_, fixed=True))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidArgumentError(f"Column {column!r}: inlay cannot convert text to {type_}.") from error


def convert(values: pa.Array, reading: Reading) -> Converted:
    """Convert text to values of the reading's type."""
    plain = storage_type(reading.type)
    kind = family(plain)
    if kind in ("text", "binary"):
        converted = _cast_text(values, plain, reading.length)
    else:
        text = _without_blanks(CellText(values))
        fast = _FAST.get(kind)
        found = fast(text, plain, reading) if fast else None
        converted = Converted(found, None) if found is not None else _convert_carefully(text, plain, reading)
    return converted if plain.equals(reading.type) else _wrapped(converted, reading.type)


def convert_columns(columns: Sequence[pa.Array], readings: Sequence[Reading]) -> list[Converted]:
    """Convert columns of text. Short columns of the same reading are converted together, because calls take time."""
    found: dict[int, Converted] = {}
    for reading, group in _groups(columns, readings):
        converted = convert(pa.concat_arrays([columns[at] for at in group]), reading)
        start = 0
        for at in group:
            end = start + len(columns[at])
            bad = None if converted.bad is None else converted.bad[start:end]
            found[at] = Converted(converted.values[start:end], bad if bad is not None and bad.any() else None)
            start = end
    return [
        found[at] if at in found else convert(values, reading)
        for at, (values, reading) in enumerate(zip(columns, readings, strict=True))
    ]


def _groups(columns: Sequence[pa.Array], readings: Sequence[Reading]) -> Iterator[tuple[Reading, list[int]]]:
    """Group the numbers of short columns by their reading, except text, which needs no conversion."""
    groups: dict[Reading, list[int]] = {}
    for at, (values, reading) in enumerate(zip(columns, readings, strict=True)):
        if len(values) <= _SHORT_COLUMN:
            groups.setdefault(reading, []).append(at)
    for reading, group in groups.items():
        is_plain = storage_type(reading.type).equals(reading.type)  # dictionaries are made per column
        if len(group) > 1 and is_plain and family(reading.type) not in ("text", "binary"):
            yield reading, group


def _wrapped(converted: Converted, type_: pa.DataType) -> Converted:
    """Wrap values in the extension or dictionary type of the target."""
    values = converted.values
    if isinstance(type_, pa.BaseExtensionType):
        return converted._replace(values=pa.ExtensionArray.from_storage(type_, values.cast(type_.storage_type)))
    encoded = values.dictionary_encode()
    capacity = 2 ** (type_.index_type.bit_width - pa.types.is_signed_integer(type_.index_type))
    if len(encoded.dictionary) > capacity:  # values beyond the capacity of the dictionary are invalid
        excess = pc.fill_null(pc.greater_equal(encoded.indices, capacity), False)
        values = pc.if_else(excess, pa.scalar(None, values.type), values)
        mask = excess.to_numpy(zero_copy_only=False)
        converted = Converted(values, mask if converted.bad is None else mask | converted.bad)
        encoded = values.dictionary_encode()
    return converted._replace(values=encoded.cast(type_))


def _without_blanks(text: CellText) -> CellText:
    """Replace quoted empty cells with NULL: only text has an empty value."""
    if text.lengths.all():  # also of every NULL, whose length may be anything
        return text
    lengths = pc.binary_length(text.values)
    if not pc.any(pc.equal(lengths, 0)).as_py():
        return text
    return CellText(pc.if_else(pc.greater(lengths, 0), text.values, pa.scalar(None, pa.string())))


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
    """Cast canonical integers only: no leading zeros and no -0."""
    typed = _cast(text.values, type_) if text.holds_only_digits else None
    if typed is None or type_.equals(pa.uint64()):
        return None
    wide = typed if typed.type.equals(pa.int64()) else typed.cast(pa.int64())
    numbers = (wide.fill_null(0) if wide.null_count else wide).to_numpy(zero_copy_only=False)
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
    named = (text.lengths == 4) | (text.lengths == 5) | (text.lengths == 0)  # the careful path reads 0 and 1
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
    """Mark changed numbers. Only a fixed float type may round fractions."""
    return rounded(text, floats) if reading.fixed else inexact(text, floats)


def _as_iso(values: pa.Array, reading: Reading) -> pa.Array:
    forms = {"slashed", "dotted", reading.form} if reading.fixed else {reading.form}
    for pattern, replacement in (FORMS[form] for form in sorted(forms - {"iso"})):
        values = pc.replace_substring_regex(values, f"^{pattern}", replacement)
    return values


# ------------------------------------------------------------------------------------------------- cell by cell
def _convert_carefully(text: CellText, type_: pa.DataType, reading: Reading) -> Converted:
    """Convert a column with surrounding blanks, unusual spellings or invalid cells."""
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
    """Cast all valid values, by halving the ranges that fail."""
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
    """Cast times of day through timestamps, because Arrow cannot cast text to times."""
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
    is_true, is_false = (pc.is_in(lowered, pa.array(texts, pa.string())) for texts in (_TRUE, _FALSE))
    return pc.if_else(is_true, "true", pc.if_else(is_false, "false", pa.scalar(None, pa.string())))


def _prepare_dates(cells: pa.Array, reading: Reading) -> pa.Array:
    iso = _as_iso(cells, reading)
    iso = pc.replace_substring_regex(iso, r" ?(?:UTC|GMT|[zZ])$", "Z")
    return _prepare_times(pc.replace_substring_regex(iso, r" ([+-][0-9]{2}:?[0-9]{2})$", r"\1"), reading)


def _prepare_times(cells: pa.Array, _: Reading) -> pa.Array:
    """Remove trailing zeros of a fractional second, which would exceed the precision of the type."""
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
