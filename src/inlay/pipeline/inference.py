"""Which type a column of text has, and why it has no better one."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from inlay.pipeline.cells import BOOLEAN, FORMS, Reading, convert
from inlay.pipeline.exact import INTEGER, NUMBER, SPECIAL, CellText, inexact
from inlay.pipeline.kinds import AMBIGUOUS, CODES, NULL, Kind

__all__ = ["infer", "order_of", "why_text"]

_TIME = r"[T ][0-9]{2}:[0-9]{2}.*"
_ORDERS = ("day first", "month first")
_DATE = f"(?:{'|'.join(pattern for pattern, _ in FORMS.values())})(?:{_TIME})?"
_MOST_ODD = 0.2  # so small a share of odd cells makes others wonder why a column is text


def infer(values: pa.Array, day_first: bool | None = None) -> Kind:
    """The kind of a column of text."""
    cells = _filled(values)
    if not len(cells):
        return NULL
    first = cells[0].as_py()
    if re.fullmatch(BOOLEAN, first) and _all_match(cells, BOOLEAN):
        return Kind("boolean")
    if re.fullmatch(f"{NUMBER}|{SPECIAL}", first) and _all_match(cells, f"{NUMBER}|{SPECIAL}"):
        return _number_kind(cells)
    return _date_kind(cells, first, day_first)


def _filled(values: pa.Array) -> pa.Array:
    return pc.ascii_trim_whitespace(values.filter(pc.greater(pc.binary_length(values), 0)))


def why_text(values: pa.Array) -> str:
    """Why a column that was found to be text is neither numbers nor dates, although it nearly is; or nothing."""
    cells = _filled(values)
    if _all_match(cells, "[0-9]+"):
        return CODES
    for what, pattern in (("numbers", NUMBER), ("dates", _DATE)):
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
        exact=not inexact(CellText(cells), doubles).any(),
        floating=len(plain) < len(cells),
        whole=pc.max(whole).as_py() or 0,
        scale=pc.max(scale).as_py() or 0,
    )


def _are_integers(cells: pa.Array) -> bool:
    if not _all_match(cells, INTEGER):
        return False
    try:
        pc.cast(cells, pa.int64())
    except pa.ArrowInvalid:
        return False
    return True


def _date_kind(cells: pa.Array, first: str, day_first: bool | None) -> Kind:
    orders = _ORDERS if day_first is None else (order_of(day_first),)
    forms = [form for form, (pattern, _) in FORMS.items() if re.match(pattern, first)]
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
    days = pc.utf8_slice_codeunits(cells.filter(pc.match_substring_regex(cells, f"^{FORMS[orders[0]][0]}")), 0, 10)
    good = {order: len(days) - _count_bad(days, order) for order in orders} if len(days) else {}
    best = max(good.values(), default=0)
    usual = [order for order, count in good.items() if count == best]
    return usual[0] if len(usual) == 1 else "iso"


def _count_bad(days: pa.Array, form: str) -> int:
    bad = convert(days, Reading(pa.date32(), form, fixed=True)).bad
    return 0 if bad is None else int(bad.sum())


def _kind_in_form(cells: pa.Array, form: str) -> Kind | None:
    """The kind if every cell is a date, or every one a timestamp, in this form."""
    pattern = FORMS[form][0]
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
