"""The grammar of column types in SQL notation, such as `decimal(10,2)`, and their Arrow types.

    type      name [ "(" number { "," number } ")" ] { "[]" }
            | ("list" | "array") "<" type ">"
            | "map" "<" type "," type ">"
            | "struct" "<" field { "," field } ">"          field: name [":"] type

Names are case-insensitive. `parse_type` reads every name that `type_name` writes. Arrow's string type has no length, so
the 10 of `varchar(10)` is stored in the metadata of the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from inlay.errors import InvalidArgumentError, did_you_mean

__all__ = ["KNOWN_TYPES", "column_type_name", "length_of", "parse_column", "parse_type", "type_name", "with_length"]

# `type_name` writes the first name of each type.
_PLAIN: dict[pa.DataType, tuple[str, ...]] = {
    pa.bool_(): ("boolean", "bool", "logical"),
    pa.int8(): ("tinyint",),
    pa.int16(): ("smallint", "int16"),
    pa.int32(): ("integer", "int", "int32"),
    pa.int64(): ("bigint", "int64", "long"),
    pa.uint8(): ("utinyint", "uint8"),
    pa.uint16(): ("usmallint", "uint16"),
    pa.uint32(): ("uinteger", "uint32"),
    pa.uint64(): ("ubigint", "uint64"),
    pa.float32(): ("real", "float", "float32", "float4"),
    pa.float64(): ("double", "double precision", "float64", "float8"),
    pa.string(): ("text", "varchar", "string", "char", "character varying", "utf8"),
    pa.binary(): ("binary", "varbinary", "blob", "bytea"),
    pa.date32(): ("date", "date32"),
    pa.time64("us"): ("time", "time without time zone"),
    pa.timestamp("us"): ("timestamp", "datetime", "timestamp without time zone"),
    pa.timestamp("us", "UTC"): ("timestamp with time zone", "timestamptz"),
}
_NAMED = {name: type_ for type_, names in _PLAIN.items() for name in names}
_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}  # fractional digits of a second
_DECIMALS = ("decimal", "numeric", "dec")
_TEXTS = ("varchar", "char", "character varying", "text", "string")
_LENGTH = b"inlay:length"
KNOWN_TYPES = (*(names[0] for names in _PLAIN.values()), "varchar(n)", "decimal(p,s)", "timestamp(0|3|6|9)", "list<t>",
               "map<k,v>", "struct<name: t, ...>")  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[^\W\d]\w*)|(?P<number>\d+)|\"(?P<quoted>(?:[^\"]|\"\")*)\"|(?P<mark>\[\]|[<>(),:]))"
)
_MAX_DEPTH = 32


def parse_type(text: str) -> pa.DataType:
    """Parse a type such as `decimal(10,2)`, `timestamptz` or `list<bigint>`."""
    return _Parser(text).parse()


def parse_column(name: str, text: str) -> pa.Field:
    """Build a field from a column name and a type, which may have a length."""
    parser = _Parser(text)
    return with_length(pa.field(name, parser.parse()), parser.length)


def with_length(field: pa.Field, length: int | None) -> pa.Field:
    """Set or, with None, remove the maximum length of a text column."""
    others = {key: value for key, value in (field.metadata or {}).items() if key != _LENGTH}
    metadata = others if length is None else others | {_LENGTH: str(length).encode()}
    return field.with_metadata(metadata) if metadata else field.remove_metadata()


def length_of(field: pa.Field) -> int | None:
    """Return the maximum length of a text column in characters, or None."""
    stored = (field.metadata or {}).get(_LENGTH, b"")
    return int(stored) if stored.isdigit() else None


class _Parser:
    def __init__(self, text: str) -> None:
        self.length: int | None = None
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def parse(self) -> pa.DataType:
        type_ = self._type()
        if self._at < len(self._tokens):
            raise self._error()
        if self.length is not None and pa.types.is_nested(type_):
            raise self._error("Only a text column can have a length, not text inside a nested type.")
        return type_

    def _split(self) -> list[tuple[str, str]]:
        tokens, at, text = [], 0, self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise self._error()
            tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        return tokens

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error()
        name = self._name()
        nested = _NESTED.get(name)
        type_ = nested(self) if nested is not None and self._peek() == "<" else self._scalar(name)
        while self._take("[]"):
            type_ = pa.list_(type_)
        self._depth -= 1
        return type_

    def _name(self) -> str:
        """Consume the longest known name, such as `double precision` or `timestamp with time zone`."""
        parts: list[str] = []
        while self._at + len(parts) < len(self._tokens) and self._tokens[self._at + len(parts)][0] == "word":
            parts.append(self._tokens[self._at + len(parts)][1].lower())
        for count in range(len(parts), 0, -1):
            name = " ".join(parts[:count])
            if name in _NAMED or name in _DECIMALS or name in _NESTED or count == 1:
                self._at += count
                return name
        raise self._error()

    def _scalar(self, name: str) -> pa.DataType:
        numbers = self._numbers()
        if name in _DECIMALS:
            return self._decimal(numbers)
        known = _NAMED.get(name)
        if known is None:
            raise self._error(hint=did_you_mean(name, [*_NAMED, *_DECIMALS, *_NESTED]))
        if not numbers:
            return known
        if pa.types.is_timestamp(known) or pa.types.is_time(known):
            zoned = self._take_zone(known) or getattr(known, "tz", None)
            return self._with_digits(known, numbers, "UTC" if zoned else None)
        if name not in _TEXTS or len(numbers) != 1 or not numbers[0]:
            raise self._error()
        self.length = numbers[0]
        return known

    def _take_zone(self, known: pa.DataType) -> bool:
        """Consume `with time zone` or `without time zone` after the digits of a timestamp or time."""
        first, *rest = [token[1].lower() for token in self._tokens[self._at : self._at + 3]] or [""]
        if rest != ["time", "zone"] or first not in ("with", "without"):
            return False
        if first == "with" and not pa.types.is_timestamp(known):
            raise self._error()
        self._at += 3
        return first == "with"

    def _with_digits(self, known: pa.DataType, numbers: list[int], zone: str | None) -> pa.DataType:
        unit = _UNITS.get(numbers[0]) if len(numbers) == 1 else None
        if unit is None:
            raise self._error("The number of fractional digits of a second must be 0, 3, 6 or 9.")
        if pa.types.is_timestamp(known):
            return pa.timestamp(unit, zone)
        return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)

    def _decimal(self, numbers: list[int]) -> pa.DataType:
        precision, scale = (*numbers, 0)[:2] if len(numbers) in (1, 2) else (0, 0)
        if not 1 <= precision <= 76 or not 0 <= scale <= precision:
            raise self._error(
                "Write decimal(p,s) with a precision of 1 to 76 digits and a scale of at most p, such as decimal(18,2)."
            )
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)

    def _numbers(self) -> list[int]:
        if not self._take("("):
            return []
        numbers = [self._number()]
        while self._take(","):
            numbers.append(self._number())
        self._expect(")")
        return numbers

    def _number(self) -> int:
        kind, value = self._next()
        if kind != "number" or len(value) > 9:
            raise self._error()
        return int(value)

    def list(self) -> pa.DataType:
        self._expect("<")
        type_ = pa.list_(self._type())
        self._expect(">")
        return type_

    def map(self) -> pa.DataType:
        self._expect("<")
        key = self._type()
        self._expect(",")
        type_ = pa.map_(key, self._type())
        self._expect(">")
        return type_

    def struct(self) -> pa.DataType:
        self._expect("<")
        fields = [self._field()]
        while self._take(","):
            fields.append(self._field())
        self._expect(">")
        if len({field.name for field in fields}) < len(fields):
            raise self._error("A struct contains the same field name twice.")
        return pa.struct(fields)

    def _field(self) -> pa.Field:
        kind, name = self._next()
        if kind not in ("word", "quoted"):
            raise self._error()
        self._take(":")
        return pa.field(name.replace('""', '"') if kind == "quoted" else name, self._type())

    # ------------------------------------------------------------------------------------------------------ tokens
    def _peek(self) -> str | None:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else None

    def _take(self, mark: str) -> bool:
        found = self._at < len(self._tokens) and self._tokens[self._at] == ("mark", mark)
        self._at += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._error()

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._error()
        self._at += 1
        return self._tokens[self._at - 1]

    def _error(self, reason: str = "", hint: str | None = None) -> InvalidArgumentError:
        text = self._text if len(self._text) <= 100 else f"{self._text[:100]}..."
        return InvalidArgumentError(
            f"Unknown type {text!r}. {reason}".rstrip(), hint=hint or f"Known types: {', '.join(KNOWN_TYPES)}."
        )


_NESTED: dict[str, Callable[[_Parser], pa.DataType]] = {
    "list": _Parser.list,
    "array": _Parser.list,
    "map": _Parser.map,
    "struct": _Parser.struct,
}


def type_name(type_: pa.DataType) -> str:
    """Return the name of a type, as schemas and the page show it."""
    if type_ in _PLAIN:
        return _PLAIN[type_][0]
    for matches, write in _WRITERS:
        if matches(type_):
            return write(type_)
    return str(type_)


def column_type_name(field: pa.Field) -> str:
    """Return the name of a column's type, with its length if it has one."""
    length = length_of(field)
    return type_name(field.type) if length is None else f"varchar({length})"


def _write_time(type_: pa.DataType) -> str:
    digits = next(digits for digits, unit in _UNITS.items() if unit == type_.unit)
    name = f"timestamp({digits})" if pa.types.is_timestamp(type_) else f"time({digits})"
    return f"{name} with time zone" if getattr(type_, "tz", None) else name


def _write_fields(type_: pa.DataType) -> str:
    return ", ".join(f"{_quote(field.name)}: {type_name(field.type)}" for field in type_)


_WRITERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], str]]] = [
    (pa.types.is_decimal, lambda t: f"decimal({t.precision},{t.scale})"),
    (pa.types.is_timestamp, _write_time),
    (pa.types.is_time, _write_time),
    (pa.types.is_map, lambda t: f"map<{type_name(t.key_type)}, {type_name(t.item_type)}>"),
    (pa.types.is_struct, lambda t: f"struct<{_write_fields(t)}>"),
    (pa.types.is_list, lambda t: f"list<{type_name(t.value_type)}>"),
    (pa.types.is_large_list, lambda t: f"list<{type_name(t.value_type)}>"),
    (pa.types.is_large_string, lambda _: "text"),
    (pa.types.is_string_view, lambda _: "text"),
    (pa.types.is_large_binary, lambda _: "binary"),
    (pa.types.is_binary_view, lambda _: "binary"),
]


def _quote(name: str) -> str:
    return name if re.fullmatch(r"[^\W\d]\w*", name) else '"' + name.replace('"', '""') + '"'
