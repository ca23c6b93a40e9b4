"""Numbers that are written as text, and which of them Arrow's casts keep.

They read 1e400 as infinity, round what a double cannot hold, and wrap around where a decimal has too few digits. These
checks take a few nanoseconds a cell; only cells that may have been changed are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "INTEGER",
    "NUMBER",
    "SPECIAL",
    "CellText",
    "are_kept",
    "inexact",
    "odd_decimals",
    "plain_decimal",
    "rounded",
]

_EXACT_DIGITS = {64: 15, 32: 7, 16: 3}  # a float of so many bits keeps every number of so few characters
_DECIMAL_DIGITS = {32: 9, 64: 18, 128: 38, 256: 76}
NUMBER = r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
SPECIAL = r"(?i:[+-]?inf(?:inity)?|nan)"
INTEGER = r"0|-?[1-9][0-9]*"


class CellText:
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


def _risky(text: CellText, bits: int) -> np.ndarray:
    """Where floats may differ from their cells: those with few digits and no exponent cannot."""
    risky: np.ndarray = text.lengths > _EXACT_DIGITS[bits]
    if not text.holds_only_digits:
        risky = risky | _matches(text.values, "[a-zA-Z]")
    return np.flatnonzero(risky)


def inexact(text: CellText, doubles: pa.Array) -> np.ndarray:
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


def rounded(text: CellText, floats: pa.Array) -> np.ndarray:
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
    text = CellText(cells.filter(pc.match_substring_regex(cells, f"^(?:{NUMBER})$")))
    if pa.types.is_decimal(type_):
        return not odd_decimals(text, type_).any()
    return not inexact(text, pc.cast(text.values, pa.float64())).any()


def _prints_exactly(cell: str) -> bool:
    """Whether the double nearest to a number prints as that number."""
    if cell.lower().lstrip("+-").startswith(("inf", "nan")):
        return True
    double = float(cell)
    try:
        if double in (float("inf"), float("-inf")) or Decimal(cell) != Decimal(repr(double)):
            return False
    except InvalidOperation:  # an exponent that no decimal has
        return False
    # A whole number that no double keeps apart from its neighbours is no measurement, whatever it prints as.
    return abs(double) < 2**53 or "e" in cell.lower()


def odd_decimals(text: CellText, type_: pa.DataType) -> np.ndarray:
    """Cells that Arrow's cast may get wrong: it does not see an overflow of all the digits that a decimal has."""
    odd: np.ndarray = text.lengths + type_.scale >= _DECIMAL_DIGITS[type_.bit_width]
    if odd.any():
        length, point = pc.binary_length(text.values), pc.find_substring(text.values, ".")
        whole = pc.if_else(pc.less(point, 0), length, point)
        scale = pc.subtract(pc.subtract(length, whole), 1)
        fits = pc.and_(pc.less_equal(whole, type_.precision - type_.scale), pc.less_equal(scale, type_.scale))
        odd = odd & ~pc.fill_null(fits, True).to_numpy(zero_copy_only=False)
    return odd if text.holds_only_digits else odd | _matches(text.values, "[a-zA-Z]")


def plain_decimal(cell: str, type_: pa.DataType) -> str | None:
    """A number written without an exponent; None if the type does not hold it."""
    context = Context(prec=type_.precision, traps=[Inexact, InvalidOperation])
    try:
        return f"{Decimal(cell).quantize(Decimal((0, (1,), -type_.scale)), context=context):f}"
    except (Inexact, InvalidOperation):
        return None
