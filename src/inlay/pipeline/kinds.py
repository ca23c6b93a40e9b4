"""What a column of text was seen to hold, what two such findings have in common, and the type that follows.

null -> boolean -> text
null -> integer -> double -> decimal -> text      by what the numbers need: a value is never changed
null -> date -> timestamp -> text
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa

__all__ = ["AMBIGUOUS", "CODES", "MIXED", "NULL", "TEXT", "Kind", "join", "type_of"]

_DECIMAL_DIGITS = 38
# why a column is text: what follows its name in a warning
AMBIGUOUS = "holds dates that can be read as day/month or month/day: they stay text (the option day_first says which)"
CODES = "looks like codes with leading zeros: kept as text"


@dataclass(frozen=True, slots=True)
class Kind:
    """`family` is null, boolean, number, date, timestamp, text, list or struct; the rest says more about some."""

    family: str
    integral: bool = True  # all fit a 64-bit integer
    exact: bool = True  # all are what their double prints
    floating: bool = False  # exponents, NaN or infinity
    whole: int = 0  # digits before the point
    scale: int = 0  # digits after it
    form: str = "iso"  # how dates are written
    unit: str = "us"
    zoned: bool = False
    note: str = ""  # why it is text although it looks like something else
    mixed: bool = False  # text because of values that are not
    items: Kind | None = None  # of a list
    fields: tuple[tuple[str, Kind], ...] = ()  # of a struct

    @property
    def is_open(self) -> bool:
        """Some place holds nothing yet but NULLs, empty lists or empty objects: its first values say what it is."""
        if self.family == "list":
            return self.items is None or self.items.is_open
        if self.family == "struct":
            return not self.fields or any(field.is_open for _, field in self.fields)
        return self.family == "null"


NULL = Kind("null")
TEXT = Kind("text")
MIXED = Kind("text", mixed=True)
_WRITTEN_AS_TEXT = frozenset({"text", "date", "timestamp"})


def type_of(kind: Kind) -> pa.DataType:
    """A column without any value is text: it is never dropped."""
    if kind.family == "number":
        return _number_type(kind)
    if kind.family == "list":
        return pa.list_(type_of(kind.items or NULL))
    if kind.family == "struct" and kind.fields:  # Parquet has no struct without fields
        return pa.struct([pa.field(name, type_of(field)) for name, field in kind.fields])
    if kind.family == "timestamp":
        return pa.timestamp(kind.unit, "UTC" if kind.zoned else None)
    return {"boolean": pa.bool_(), "date": pa.date32()}.get(kind.family, pa.string())


def _number_type(kind: Kind) -> pa.DataType:
    if kind.integral:
        return pa.int64()
    if kind.exact:
        return pa.float64()
    if not kind.floating and kind.whole + kind.scale <= _DECIMAL_DIGITS:
        return pa.decimal128(_DECIMAL_DIGITS, kind.scale)
    return pa.string()


def join(left: Kind, right: Kind) -> Kind:
    """The narrowest kind that holds both."""
    if "null" in (left.family, right.family):
        return right if left.family == "null" else left
    families = {left.family, right.family}
    if families == {"number"}:
        return _join_numbers(left, right)
    if families <= {"date", "timestamp"} and left.form == right.form and left.zoned == right.zoned:
        wider = left if left.family == "timestamp" else right
        return replace(wider, unit=max(left.unit, right.unit, key=("us", "ns").index))
    if len(families) == 1 and left.family in _JOIN_ALIKE:
        return _JOIN_ALIKE[left.family](left, right)
    mixed = left.mixed or right.mixed or not families <= _WRITTEN_AS_TEXT
    return replace(TEXT, note=left.note or right.note, mixed=mixed)


def _join_structs(left: Kind, right: Kind) -> Kind:
    fields = dict(left.fields)
    for name, kind in right.fields:
        fields[name] = join(fields[name], kind) if name in fields else kind
    return replace(left, fields=tuple(fields.items()))


def _join_lists(left: Kind, right: Kind) -> Kind:
    return replace(left, items=join(left.items or NULL, right.items or NULL))


_JOIN_ALIKE: dict[str, Callable[[Kind, Kind], Kind]] = {
    "boolean": lambda left, _: left,
    "struct": _join_structs,
    "list": _join_lists,
}


def _join_numbers(left: Kind, right: Kind) -> Kind:
    return Kind(
        "number",
        integral=left.integral and right.integral,
        exact=left.exact and right.exact,
        floating=left.floating or right.floating,
        whole=max(left.whole, right.whole),
        scale=max(left.scale, right.scale),
    )
