"""Infer the dialect of delimited text, the type of each column, and column names."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from inlay.text.cells import BOOLEAN, FORMS, INTEGER, NUMBER, SPECIAL, CellText, Reading, convert, inexact
from inlay.text.options import ReadOptions

__all__ = [
    "AMBIGUOUS",
    "CODES",
    "MIXED",
    "NO_HEADER",
    "NULL",
    "TEXT",
    "Kind",
    "column_names",
    "infer",
    "join",
    "order_of",
    "sniff",
    "type_of",
    "why_text",
]


_DECIMAL_DIGITS = 38
# the rest of a warning that starts with the name of a column
AMBIGUOUS = "stays text, because its dates may be day/month or month/day; set the option day_first to decide"
CODES = "stays text, because its numbers have leading zeros"


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a column's values.

    `family` is null, boolean, number, date, timestamp, text, list or struct. The other fields refine some families.
    """

    family: str
    integral: bool = True  # all values fit a 64-bit integer
    exact: bool = True  # all values equal the text of their double
    floating: bool = False  # some values have an exponent, or are NaN or infinity
    whole: int = 0  # digits before the point
    scale: int = 0  # digits after the point
    form: str = "iso"  # the date format, see FORMS
    unit: str = "us"
    zoned: bool = False
    note: str = ""  # why the column is text although its values look typed
    mixed: bool = False  # text because the values have different types
    items: Kind | None = None  # list
    fields: tuple[tuple[str, Kind], ...] = ()  # struct

    @property
    def is_open(self) -> bool:
        """Return True if some part has no values yet: only NULLs, empty lists or empty objects."""
        if self.family == "list":
            return self.items is None or self.items.is_open
        if self.family == "struct":
            return not self.fields or any(field.is_open for _, field in self.fields)
        return self.family == "null"

    @property
    def leaves(self) -> int:
        """Return the number of Parquet columns that store the values."""
        if self.family == "list":
            return (self.items or NULL).leaves
        return sum(field.leaves for _, field in self.fields) or 1


NULL = Kind("null")
TEXT = Kind("text")
MIXED = Kind("text", mixed=True)
_TEXT_FAMILIES = frozenset({"text", "date", "timestamp"})


def type_of(kind: Kind) -> pa.DataType:
    """Return the type of a kind. A column without values is text, and never dropped."""
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
    """Return the narrowest kind that holds both."""
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
    mixed = left.mixed or right.mixed or not families <= _TEXT_FAMILIES
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


_FEW = 1_000
_SHORT = 15  # characters of a number that a double always keeps exactly
_LETTER = re.compile(rf"(?!(?:{BOOLEAN}|{SPECIAL})\s*\Z)[a-zA-Z_]")
_LETTER_LINES = re.compile(r"(?:[a-zA-Z_][^\n]*(?:\n|\Z))+")
_INTEGERS = re.compile(rf"(?:(?:{INTEGER})(?:\n|\Z))+")
_PLAIN = r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBERS = re.compile(rf"(?:{_PLAIN}(?:\n|\Z))+")
_TIME = r"[T ][0-9]{2}:[0-9]{2}.*"
_ORDERS = ("day first", "month first")
_DATE = f"(?:{'|'.join(pattern for pattern, _ in FORMS.values())})(?:{_TIME})?"
_MAX_ODD = 0.2  # with at most this share of other cells, a warning explains why the column is text


def infer(values: pa.Array, day_first: bool | None = None) -> Kind:
    """Infer the kind of a column of text."""
    if (kind := _kind_of_few(values)) is not None:
        return kind
    cells = _filled(values)
    if not len(cells):
        return NULL
    first = cells[0].as_py()
    if re.fullmatch(BOOLEAN, first) and _all_match(cells, BOOLEAN):
        return Kind("boolean")
    if re.fullmatch(f"{NUMBER}|{SPECIAL}", first) and _all_match(cells, f"{NUMBER}|{SPECIAL}"):
        return _number_kind(cells)
    return _date_kind(cells, first, day_first)


def _kind_of_few(values: pa.Array) -> Kind | None:
    """Return the kind of a few short numbers or words, and None for all other cells.

    In a file of many columns, calls of Arrow take most of the time.
    """
    cells = _few_cells(values)
    if cells is None:
        return None
    if not cells:
        return NULL
    if _LETTER.match(cells[0]) and _start_with_letters(cells):
        return TEXT
    lines = "\n".join(cells)
    if not _NUMBERS.fullmatch(lines) or lines.count("\n") >= len(cells) or max(map(len, cells)) > _SHORT:
        return None
    if _INTEGERS.fullmatch(lines):
        return Kind("number", whole=max(map(len, lines.replace("-", "").split("\n"))))
    parts = [cell.lstrip("-").partition(".") for cell in cells]
    return Kind(
        "number",
        integral=False,
        whole=max(len(whole) for whole, _, _ in parts),
        scale=max(len(fraction) for _, _, fraction in parts),
    )


def _few_cells(values: pa.Array) -> list[str] | None:
    return [cell for cell in values.to_pylist() if cell] if len(values) <= _FEW else None


def _start_with_letters(cells: Sequence[str]) -> bool:
    """Return True if every line starts with a letter, as no number or date does."""
    return _LETTER_LINES.fullmatch("\n".join(cells)) is not None


def _filled(values: pa.Array) -> pa.Array:
    return pc.ascii_trim_whitespace(values.filter(pc.greater(pc.binary_length(values), 0)))


def why_text(values: pa.Array) -> str:
    """Explain why text that looks like numbers or dates stays text; return "" for other text."""
    few = _few_cells(values)
    if few and _start_with_letters(few):
        return ""
    cells = _filled(values)
    if _all_match(cells, "[0-9]+"):
        return CODES
    for name, pattern in (("numbers", NUMBER), ("dates", _DATE)):
        odd = cells.filter(pc.invert(pc.match_substring_regex(cells, f"^(?:{pattern})$")))
        if not len(odd):
            return f"stays text, because no single format reads all its {name}"
        if len(odd) <= len(cells) * _MAX_ODD:
            return f"stays text, because it holds {name} and also {odd[0].as_py()[:50]!r}"
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
    """Return the order of day and month that reads most cells, for a column with a fixed date type."""
    days = pc.utf8_slice_codeunits(cells.filter(pc.match_substring_regex(cells, f"^{FORMS[orders[0]][0]}")), 0, 10)
    good = {order: len(days) - _count_bad(days, order) for order in orders} if len(days) else {}
    best = max(good.values(), default=0)
    usual = [order for order, count in good.items() if count == best]
    return usual[0] if len(usual) == 1 else "iso"


def _count_bad(days: pa.Array, form: str) -> int:
    bad = convert(days, Reading(pa.date32(), form, fixed=True)).bad
    return 0 if bad is None else int(bad.sum())


def _kind_in_form(cells: pa.Array, form: str) -> Kind | None:
    """Return the kind if every cell is a date, or every cell a timestamp, in this form."""
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


_DELIMITERS = (",", "\t", ";", "|")
_SNIFFED_RECORDS = 200
_SNIFFED_BYTES = 256 << 10
_UNTYPED = ("null", "text")
_YEAR = re.compile("(?:19|20)[0-9]{2}")

NO_HEADER = (
    "The first row looks like data, not like a header: inlay loads it and names the columns column_1, column_2 ... "
    "Set the option header to change this."
)
ParseCells = Callable[[bytes, ReadOptions], pa.Table]


def sniff(sample: bytes, options: ReadOptions, parse_cells: ParseCells) -> ReadOptions:
    """Detect the delimiter, the quote and the header, unless the options set them."""
    head = sample[:_SNIFFED_BYTES]
    if len(sample) > len(head):
        head = head[: head.rfind(b"\n") + 1] or head
    text = head.decode(errors="replace")
    quote = options.quote if options.quote is not None else _sniff_quote(text)
    found = options.with_detected(quote=quote, escape="", delimiter=_sniff_delimiter(text, quote, options.delimiter))
    if found.header is not None:
        return found
    return replace(found, header=_sniff_header(parse_cells(head, replace(found, header=False))))


def _sniff_quote(text: str) -> str:
    if '"' in text:
        return '"'
    single = len(re.findall(r"(?:^|[,;|\t])'[^'\r\n]*'(?=[,;|\t\r\n]|$)", text, re.MULTILINE))
    return "'" if single > text.count("\n") else '"'


def _sniff_delimiter(text: str, quote: str, delimiter: str | None) -> str:
    if delimiter is not None:
        return delimiter
    scores = {delimiter: _score(text, delimiter, quote) for delimiter in _DELIMITERS}
    best = max(scores, key=lambda delimiter: scores[delimiter])
    return best if scores[best] > (0, 0) else ","


def _score(text: str, delimiter: str, quote: str) -> tuple[float, int]:
    """Return the share of records with the most common number of fields, and that number."""
    quoting: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    lines = io.StringIO(text.replace("\0", " "), newline="")
    widths: list[int] = []
    try:
        for record in csv.reader(lines, delimiter=delimiter, **quoting):
            widths += [len(record)] if record else []
            if len(widths) >= _SNIFFED_RECORDS:
                break
    except csv.Error:
        pass
    if not widths or widths[0] < 2:
        return (0, 0)
    usual, count = Counter(widths).most_common(1)[0]
    return (round(count / len(widths), 2), usual) if usual > 1 else (0, 0)


def _sniff_header(cells: pa.Table) -> bool:
    """Return False if the first record is evidently data: typed values like those below it."""
    if cells.num_columns == 0 or cells.num_rows == 0:
        return True
    tops: list[_Top] = []
    for column in cells.columns:
        tops.append(_Top.of(column.combine_chunks()))
        if tops[-1].is_name:
            return True
    typed = [top for top in tops if top.kind.family not in _UNTYPED]
    return all(top.is_unlike for top in typed) or _are_years(tops, typed)


class _Top(NamedTuple):
    """The first cell of a column and the cells below it, with the kind of each."""

    cell: str | None
    kind: Kind
    cells: pa.Array
    below: Kind

    @classmethod
    def of(cls, values: pa.Array) -> _Top:
        cells = values.slice(1)
        return cls(values[0].as_py(), infer(values.slice(0, 1)), cells, infer(cells))

    @property
    def is_name(self) -> bool:
        """Return True if the first cell is text and the values below are typed."""
        return self.kind.family == "text" and not self.kind.note and self.below.family not in _UNTYPED

    @property
    def is_unlike(self) -> bool:
        """Return True if the first cell has a different kind than the values below, such as a date above numbers."""
        return self.below.family not in _UNTYPED and join(self.kind, self.below).family == "text"

    @property
    def is_year(self) -> bool:
        """Return True if the first cell is a year and the values below are not all years."""
        values = self.cells.drop_null().to_pylist()
        return _YEAR.fullmatch(self.cell or "") is not None and not (values and all(map(_YEAR.fullmatch, values)))


def _are_years(tops: Sequence[_Top], typed: Sequence[_Top]) -> bool:
    """Return True if the header consists of consecutive years, as in a table with one column per year."""
    names = [top.cell for top in tops]
    if not all(top.is_year for top in typed) or not all(names[1:]) or len(set(names)) < len(names):
        return False
    if all(top.below.family == "null" for top in typed):
        return False
    years = [int(str(top.cell)) for top in typed]
    steps = {later - earlier for earlier, later in itertools.pairwise(years)}
    if len(years) == 1:
        return not typed[0].below.integral
    return len(steps) == 1 and (len(years) > 2 or steps <= {1, -1})


# ---------------------------------------------------------------------------------------------------------- names
def column_names(cells: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Return unique names for the cells of a header, and warnings about changed names."""
    names: list[str] = []
    warnings: list[str] = []
    written = {cell for cell in cells if cell}
    used: set[str] = set()
    numbers: dict[str, Iterator[int]] = {}  # next suffix of each name, so that many equal names stay fast
    for number, cell in enumerate(cells, 1):
        name = cell or f"column_{number}"
        if name in used or (not cell and name in written):
            others = (f"{name}_{next_}" for next_ in numbers.setdefault(name, itertools.count(2)))
            name = next(other for other in others if other not in used and other not in written)
        if name != cell:
            problem = f"has the same name {cell!r} as another column" if cell else "has no name"
            warnings.append(f"Column {number} {problem}: inlay loads it as {name!r}.")
        names.append(name)
        used.add(name)
    return names, warnings
