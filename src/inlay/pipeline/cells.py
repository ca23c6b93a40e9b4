"""Cells of text and typed values: which type a column of text has, and text into typed values, exactly or not at all.

Arrow's own casts are the fast path, but they read 007 as 7, 0x1F as 31, 1e400 as infinity, round what a double
cannot hold, and wrap around where a decimal has too few digits. Each fast path therefore checks the whole column,
which costs a few nanoseconds a cell; only columns that fail are looked at cell by cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.errors import InvalidArgumentError
from inlay.pipeline.kinds import AMBIGUOUS, CODES, NULL, Kind
from inlay.schema import family, storage_type
from inlay.type_grammar import type_name

__all__ = [
    "Converted",
    "Reading",
    "are_kept",
    "check_readable",
    "convert",
    "infer",
    "order_of",
    "reason",
    "why_text",
]

_EXACT_DIGITS = {64: 15, 32: 7, 16: 3}  # a float of so many bits keeps every number of so few characters
_DECIMAL_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
_NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_SPECIAL = r"(?i:[+-]?inf(?:inity)?|nan)"
_INTEGER = r"0|-?[1-9][0-9]*"
_BOOLEAN = r"(?i:true|false)"
_TIME = r"[T ][0-9]{2}:[0-9]{2}.*"
_TRUE = ("true", "t", "yes", "y", "on", "1")
_FALSE = ("false", "f", "no", "n", "off", "0")
# how dates are written: a pattern at the start of a cell, and what makes ISO 8601 of it
_FORMS: dict[str, tuple[str, str]] = {
    "iso": (r"([0-9]{4})-([0-9]{2})-([0-9]{2})", r"\1-\2-\3"),
    "slashed": (r"([0-9]{4})/([0-9]{2})/([0-9]{2})", r"\1-\2-\3"),
    "dotted": (r"([0-9]{2})\.([0-9]{2})\.([0-9]{4})", r"\3-\2-\1"),
    "day first": (r"([0-9]{2})[/-]([0-9]{2})[/-]([0-9]{4})", r"\3-\2-\1"),
    "month first": (r"([0-9]{2})[/-]([0-9]{2})[/-]([0-9]{4})", r"\3-\1-\2"),
}
_ORDERS = ("day first", "month first")
_DATE = f"(?:{'|'.join(pattern for pattern, _ in _FORMS.values())})(?:{_TIME})?"
_MOST_ODD = 0.2  # so small a share of odd cells makes others wonder why a column is text
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


# ------------------------------------------------------------------------------------------------------- inference
def infer(values: pa.Array, day_first: bool | None = None) -> Kind:
    """The kind of a column of text."""
    cells = _filled(values)
    if not len(cells):
        return NULL
    first = cells[0].as_py()
    if re.fullmatch(_BOOLEAN, first) and _all_match(cells, _BOOLEAN):
        return Kind("boolean")
    if re.fullmatch(f"{_NUMBER}|{_SPECIAL}", first) and _all_match(cells, f"{_NUMBER}|{_SPECIAL}"):
        return _number_kind(cells)
    return _date_kind(cells, first, day_first)


def _filled(values: pa.Array) -> pa.Array:
    return pc.ascii_trim_whitespace(values.filter(pc.greater(pc.binary_length(values), 0)))


def why_text(values: pa.Array) -> str:
    """Why a column that was found to be text is neither numbers nor dates, although it nearly is; or nothing."""
    cells = _filled(values)
    if _all_match(cells, "[0-9]+"):
        return CODES
    for what, pattern in (("numbers", _NUMBER), ("dates", _DATE)):
        odd = cells.filter(pc.invert(pc.match_substring_regex(cells, f"^(?:{pattern})$")))
        if not len(odd):
            return f"holds {what} that cannot all be read in one way: they stay text"
        if len(odd) <= len(cells) * _MOST_ODD:
            return f"holds {what}, but also {odd[0].as_py()[:50]!r}: kept as text"
    return ""


def _all_match(cells: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(cells, f"^(?:{pattern})$")).as_py())


def _number_kind(cells: pa.Array) -> Kind:
    letters = pc.match_substring_regex(cells, "[a-zA-Z]")
    plain = cells.filter(pc.invert(letters))
    signs = pc.starts_with(plain, "-").cast(pa.int32())
    length, point = pc.binary_length(plain), pc.find_substring(plain, ".")
    has_point = pc.greater_equal(point, 0)
    whole = pc.subtract(pc.if_else(has_point, point, length), signs)
    scale = pc.if_else(has_point, pc.subtract(pc.subtract(length, point), 1), 0)
    doubles = pc.cast(cells, pa.float64())
    return Kind(
        "number",
        integral=len(plain) == len(cells) and _are_integers(cells),
        exact=not _inexact(_Text(cells), doubles).any(),
        floating=len(plain) < len(cells),
        whole=pc.max(whole).as_py() or 0,
        scale=pc.max(scale).as_py() or 0,
    )


def _are_integers(cells: pa.Array) -> bool:
    if not _all_match(cells, _INTEGER):
        return False
    try:
        pc.cast(cells, pa.int64())
    except pa.ArrowInvalid:
        return False
    return True


def _date_kind(cells: pa.Array, first: str, day_first: bool | None) -> Kind:
    orders = _ORDERS if day_first is None else (order_of(day_first),)
    forms = [form for form, (pattern, _) in _FORMS.items() if re.match(pattern, first)]
    found = [
        kind for form in forms if form not in _ORDERS or form in orders for kind in [_kind_in_form(cells, form)] if kind
    ]
    if len(found) > 1:
        return Kind("text", note=AMBIGUOUS)
    return found[0] if found else Kind("text", form=_usual_order(cells, orders))


def order_of(day_first: bool) -> str:
    return _ORDERS[0] if day_first else _ORDERS[1]


def _usual_order(cells: pa.Array, orders: Sequence[str]) -> str:
    """The order of day and month in which most cells are dates, for those who choose a date for such a column."""
    days = pc.utf8_slice_codeunits(cells.filter(pc.match_substring_regex(cells, f"^{_FORMS[orders[0]][0]}")), 0, 10)
    good = {order: len(days) - _count_bad(days, order) for order in orders} if len(days) else {}
    best = max(good.values(), default=0)
    usual = [order for order, count in good.items() if count == best]
    return usual[0] if len(usual) == 1 else "iso"


def _count_bad(days: pa.Array, form: str) -> int:
    bad = convert(days, Reading(pa.date32(), form, fixed=True)).bad
    return 0 if bad is None else int(bad.sum())


def _kind_in_form(cells: pa.Array, form: str) -> Kind | None:
    """The kind if every cell is a date, or every one a timestamp, in this form."""
    pattern = _FORMS[form][0]
    if _all_match(cells, pattern):
        dated = convert(cells, Reading(pa.date32(), form, fixed=True))
        return Kind("date", form=form) if dated.bad is None else None
    if not _all_match(cells, f"{pattern}(?:{_TIME})?"):
        return None
    for zoned in (False, True):
        for unit in ("us", "ns"):
            kind = Kind("timestamp", form=form, unit=unit, zoned=zoned)
            reading = Reading(pa.timestamp(unit, "UTC" if zoned else None), form, fixed=True)
            if convert(cells, reading).bad is None:
                return kind
    return None


# ------------------------------------------------------------------------------------------------------ conversion
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
        text = _Text(_blank_to_null(values))
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


class _Text:
    """An array of text and its raw parts."""

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
        """The byte at a position of each cell; of shorter cells any."""
        if not len(self.data):
            return np.zeros(len(self.starts), np.uint8)
        found: np.ndarray = self.data.take(self.starts + at, mode="clip")
        return found

    @property
    def holds_only_digits(self) -> bool:
        """Nothing but digits, points and minus signs."""
        return not len(self.data) or bool(self.data.max() <= ord("9") and self.data.min() > ord("+"))

    @property
    def has_leading_zero(self) -> bool:
        """A cell such as 007 or -07.5 (but 0.5 and 0 are none)."""
        first, second = self.byte(0), self.byte(1)
        zero = (first == ord("0")) & (second != ord(".")) & (self.lengths > 1)
        if zero.any():
            return True
        minus = (first == ord("-")) & (second == ord("0")) & (self.lengths > 2)
        return bool(minus.any() and (self.byte(2)[minus] != ord(".")).any())


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


def _fast_integers(text: _Text, type_: pa.DataType, _: Reading) -> pa.Array | None:
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


def _fast_floats(text: _Text, type_: pa.DataType, reading: Reading) -> pa.Array | None:
    typed = _cast(text.values, type_) if text.holds_only_digits else None
    if typed is None or (not reading.fixed and text.has_leading_zero):
        return None
    return None if _lost(text, typed, reading).any() else typed


def _fast_decimals(text: _Text, type_: pa.DataType, reading: Reading) -> pa.Array | None:
    if not text.holds_only_digits or (not reading.fixed and text.has_leading_zero) or _odd_decimals(text, type_).any():
        return None
    return _cast(text.values, type_)


def _fast_booleans(text: _Text, type_: pa.DataType, _: Reading) -> pa.Array | None:
    named = (text.lengths == 4) | (text.lengths == 5) | (text.lengths == 0)  # 0 and 1 are read with care
    return _cast(text.values, type_) if named.all() else None


def _fast_dates(text: _Text, type_: pa.DataType, reading: Reading) -> pa.Array | None:
    typed = _cast(text.values, type_) if reading.fixed else None
    return _cast(_as_iso(text.values, reading), type_) if typed is None else typed


_FAST: dict[str, Callable[[_Text, pa.DataType, Reading], pa.Array | None]] = {
    "integer": _fast_integers,
    "float": _fast_floats,
    "decimal": _fast_decimals,
    "boolean": _fast_booleans,
    "date": _fast_dates,
    "naive timestamp": _fast_dates,
    "zoned timestamp": _fast_dates,
}


def _lost(text: _Text, floats: pa.Array, reading: Reading) -> np.ndarray:
    """Cells that became another number than their type may make of them: inferred types may change none."""
    return _rounded(text, floats) if reading.fixed else _inexact(text, floats)


def _risky(text: _Text, bits: int) -> np.ndarray:
    """Where floats may differ from their cells: those with few digits and no exponent cannot."""
    risky: np.ndarray = text.lengths > _EXACT_DIGITS[bits]
    if not text.holds_only_digits:
        risky = risky | _matches(text.values, "[a-zA-Z]")
    return np.flatnonzero(risky)


def _inexact(text: _Text, doubles: pa.Array) -> np.ndarray:
    """Cells whose double prints as another number."""
    found = np.zeros(len(text.lengths), bool)
    at = _risky(text, 64)
    if len(at):
        chosen = text.values.take(at)
        printed = pc.cast(doubles.take(at), pa.string())
        differs = ~pc.fill_null(pc.equal(chosen, printed), True).to_numpy(zero_copy_only=False)
        for where in np.flatnonzero(differs):
            found[at[where]] = not _prints_exactly(chosen[int(where)].as_py())
    return found


def _rounded(text: _Text, floats: pa.Array) -> np.ndarray:
    """Numbers that became infinite or zero, and integers that became other ones. Fractions may be rounded."""
    found = np.zeros(len(text.lengths), bool)
    at = _risky(text, floats.type.bit_width)
    if len(at):
        cells, values = text.values.take(at), floats.take(at).cast(pa.float64()).to_numpy(zero_copy_only=False)
        found[at] = np.isinf(values) & _matches(cells, "[0-9]") | (values == 0) & _matches(cells, "^[^eE]*[1-9]")
        for where in np.flatnonzero(_matches(cells, "^[+-]?[0-9]+$") & np.isfinite(values)):
            found[at[where]] |= int(values[where]) != Decimal(cells[int(where)].as_py())
    return found


def _matches(cells: pa.Array, pattern: str) -> np.ndarray:
    found: np.ndarray = pc.fill_null(pc.match_substring_regex(cells, pattern), False).to_numpy(zero_copy_only=False)
    return found


def are_kept(numbers: Sequence[bytes], type_: pa.DataType) -> bool:
    """Whether Arrow's own parsers keep all of these in a double or a decimal; what is no number does not count."""
    cells = pa.array(numbers, pa.string())
    text = _Text(cells.filter(pc.match_substring_regex(cells, f"^(?:{_NUMBER})$")))
    if pa.types.is_decimal(type_):
        return not _odd_decimals(text, type_).any()
    return not _inexact(text, pc.cast(text.values, pa.float64())).any()


def _prints_exactly(cell: str) -> bool:
    """Whether the double nearest to a number prints as that number."""
    if cell.lower().lstrip("+-").startswith(("inf", "nan")):
        return True
    double = float(cell)
    if double in (float("inf"), float("-inf")) or Decimal(cell) != Decimal(repr(double)):
        return False
    # A whole number that no double keeps apart from its neighbours is no measurement, whatever it prints as.
    return abs(double) < 2**53 or "e" in cell.lower()


def _odd_decimals(text: _Text, type_: pa.DataType) -> np.ndarray:
    """Cells that Arrow's cast may get wrong: it does not see an overflow of all the digits that a decimal has."""
    odd: np.ndarray = text.lengths + type_.scale >= _DECIMAL_DIGITS[type_.bit_width]
    if odd.any():
        length, point = pc.binary_length(text.values), pc.find_substring(text.values, ".")
        whole = pc.if_else(pc.less(point, 0), length, point)
        scale = pc.subtract(pc.subtract(length, whole), 1)
        fits = pc.and_(pc.less_equal(whole, type_.precision - type_.scale), pc.less_equal(scale, type_.scale))
        odd = odd & ~pc.fill_null(fits, True).to_numpy(zero_copy_only=False)
    return odd if text.holds_only_digits else odd | _matches(text.values, "[a-zA-Z]")


def _plain_decimal(cell: str, type_: pa.DataType) -> str | None:
    """A number written without an exponent; None if the type does not hold it."""
    context = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    try:
        return f"{Decimal(cell).quantize(Decimal((0, (1,), -type_.scale)), context=context):f}"
    except (Inexact, InvalidOperation):
        return None


def _as_iso(values: pa.Array, reading: Reading) -> pa.Array:
    forms = {"slashed", "dotted", reading.form} if reading.fixed else {reading.form}
    for pattern, replacement in (_FORMS[form] for form in sorted(forms - {"iso"})):
        values = pc.replace_substring_regex(values, f"^{pattern}", replacement)
    return values


# ------------------------------------------------------------------------------------------------- cell by cell
def _carefully(text: _Text, type_: pa.DataType, reading: Reading) -> Converted:
    """The same for columns with odd cells: blanks around values, bad ones."""
    cells = pc.ascii_trim_whitespace(text.values)
    kind = family(type_)
    prepared = _PREPARE[kind](cells, reading) if kind in _PREPARE else cells
    typed, failed = _cast_each(prepared, type_)
    if kind == "float":
        failed |= _lost(_Text(prepared), typed, reading)
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
        return _matching(cells, _INTEGER)
    return _matching(pc.replace_substring_regex(cells, r"^\+([0-9])", r"\1"), r"-?[0-9]+")


def _prepare_numbers(cells: pa.Array, reading: Reading) -> pa.Array:
    if not reading.fixed:
        return _matching(cells, f"{_NUMBER}|{_SPECIAL}")
    return _matching(cells, rf"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|{_SPECIAL}")


def _prepare_decimals(cells: pa.Array, reading: Reading) -> pa.Array:
    numbers, type_ = _prepare_numbers(cells, reading), storage_type(reading.type)
    odd = _odd_decimals(_Text(numbers), type_)
    if not odd.any():
        return numbers
    plain = [_plain_decimal(cell, type_) for cell in numbers.filter(pa.array(odd)).to_pylist()]
    return pc.replace_with_mask(numbers, pa.array(odd), pa.array(plain, pa.string()))


def _prepare_booleans(cells: pa.Array, reading: Reading) -> pa.Array:
    if not reading.fixed:
        return _matching(cells, _BOOLEAN)
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
