"""Column types as people write them, `decimal(10,2)`, and as Arrow has them.

    type      name [ "(" number { "," number } ")" ] { "[]" }
            | ("list" | "array") "<" type ">"
            | "map" "<" type "," type ">"
            | "struct" "<" field { "," field } ">"          field: name [":"] type

Names are those of SQL, in any case. `type_name` writes what `parse_type` reads. Arrow's text has no length: that of
`varchar(10)` stands beside the type, in the metadata of a field.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from inlay.errors import InvalidArgumentError, did_you_mean

__all__ = ["KNOWN_TYPES", "column_type_name", "length_of", "parse_column", "parse_type", "type_name", "with_length"]

# the first name of each type is the one that is shown
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
_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}  # digits after the second
_DECIMALS = ("decimal", "numeric", "dec")
_TEXTS = ("varchar", "char", "character varying", "text", "string")
_LENGTH = b"inlay:length"
KNOWN_TYPES = (*(names[0] for names in _PLAIN.values()), "varchar(n)", "decimal(p,s)", "timestamp(0|3|6|9)", "list<t>",
               "map<k,v>", "struct<name: t, ...>")  # fmt: skip
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[^\W\d]\w*)|(?P<number>\d+)|\"(?P<quoted>(?:[^\"]|\"\")*)\"|(?P<mark>\[\]|[<>(),:]))"
)
_DEEPEST = 32


def parse_type(text: str) -> pa.DataType:
    """The Arrow type of a name such as `decimal(10,2)`, `timestamptz` or `list<bigint>`."""
    return _Parser(text).whole()


def parse_column(name: str, text: str) -> pa.Field:
    """A column of such a type."""
    parser = _Parser(text)
    return with_length(pa.field(name, parser.whole()), parser.length)


def with_length(field: pa.Field, length: int | None) -> pa.Field:
    """The same column with this length, or with none."""
    others = {key: value for key, value in (field.metadata or {}).items() if key != _LENGTH}
    said = others if length is None else others | {_LENGTH: str(length).encode()}
    return field.with_metadata(said) if said else field.remove_metadata()


def length_of(field: pa.Field) -> int | None:
    """How many characters a value of the column has at most."""
    said = (field.metadata or {}).get(_LENGTH, b"")
    return int(said) if said.isdigit() else None


class _Parser:
    def __init__(self, text: str) -> None:
        self.length: int | None = None
        self._text = text
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def whole(self) -> pa.DataType:
        type_ = self._type()
        if self._at < len(self._tokens):
            raise self._wrong()
        if self.length is not None and pa.types.is_nested(type_):
            raise self._wrong("Only a column of text itself has a length, no text inside of another type.")
        return type_

    def _split(self) -> list[tuple[str, str]]:
        tokens, at, text = [], 0, self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None or match.lastgroup is None:
                raise self._wrong()
            tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        return tokens

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong()
        name = self._name()
        nested = _NESTED.get(name)
        type_ = nested(self) if nested is not None and self._peek() == "<" else self._scalar(name)
        while self._take("[]"):
            type_ = pa.list_(type_)
        self._depth -= 1
        return type_

    def _name(self) -> str:
        """As many words as make a known name: `double precision`, `timestamp with time zone`."""
        words: list[str] = []
        while self._at + len(words) < len(self._tokens) and self._tokens[self._at + len(words)][0] == "word":
            words.append(self._tokens[self._at + len(words)][1].lower())
        for count in range(len(words), 0, -1):
            name = " ".join(words[:count])
            if name in _NAMED or name in _DECIMALS or name in _NESTED or count == 1:
                self._at += count
                return name
        raise self._wrong()

    def _scalar(self, name: str) -> pa.DataType:
        numbers = self._numbers()
        if name in _DECIMALS:
            return self._decimal(numbers)
        known = _NAMED.get(name)
        if known is None:
            raise self._wrong(meant=did_you_mean(name, [*_NAMED, *_DECIMALS, *_NESTED]))
        if not numbers:
            return known
        if pa.types.is_timestamp(known) or pa.types.is_time(known):
            zoned = self._takes_zone(known) or getattr(known, "tz", None)
            return self._with_digits(known, numbers, "UTC" if zoned else None)
        if name not in _TEXTS or len(numbers) != 1 or not numbers[0]:
            raise self._wrong()
        self.length = numbers[0]
        return known

    def _takes_zone(self, known: pa.DataType) -> bool:
        """`timestamp(3) with time zone` says so after the digits; a time of day has no zone."""
        first, *rest = [token[1].lower() for token in self._tokens[self._at : self._at + 3]] or [""]
        if rest != ["time", "zone"] or first not in ("with", "without"):
            return False
        if first == "with" and not pa.types.is_timestamp(known):
            raise self._wrong()
        self._at += 3
        return first == "with"

    def _with_digits(self, known: pa.DataType, numbers: list[int], zone: str | None) -> pa.DataType:
        unit = _UNITS.get(numbers[0]) if len(numbers) == 1 else None
        if unit is None:
            raise self._wrong("Digits after the second are 0, 3, 6 or 9.")
        if pa.types.is_timestamp(known):
            return pa.timestamp(unit, zone)
        return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)

    def _decimal(self, numbers: list[int]) -> pa.DataType:
        precision, scale = (*numbers, 0)[:2] if len(numbers) in (1, 2) else (0, 0)
        if not 1 <= precision <= 76 or not 0 <= scale <= precision:
            raise self._wrong(
                "Write decimal(p,s) with 1 to 76 digits in all, s of them after the point: decimal(18,2)."
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
            raise self._wrong()
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
            raise self._wrong("A name stands twice in a struct.")
        return pa.struct(fields)

    def _field(self) -> pa.Field:
        kind, name = self._next()
        if kind not in ("word", "quoted"):
            raise self._wrong()
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
            raise self._wrong()

    def _next(self) -> tuple[str, str]:
        if self._at >= len(self._tokens):
            raise self._wrong()
        self._at += 1
        return self._tokens[self._at - 1]

    def _wrong(self, why: str = "", meant: str | None = None) -> InvalidArgumentError:
        shown = self._text if len(self._text) <= 100 else f"{self._text[:100]}..."
        return InvalidArgumentError(
            f"Unknown type {shown!r}. {why}".rstrip(), hint=meant or f"Known types: {', '.join(KNOWN_TYPES)}."
        )


_NESTED: dict[str, Callable[[_Parser], pa.DataType]] = {
    "list": _Parser.list,
    "array": _Parser.list,
    "map": _Parser.map,
    "struct": _Parser.struct,
}


def type_name(type_: pa.DataType) -> str:
    """How a type is shown, and written in a schema."""
    if type_ in _PLAIN:
        return _PLAIN[type_][0]
    for fits, written in _WRITTEN:
        if fits(type_):
            return written(type_)
    return str(type_)


def column_type_name(field: pa.Field) -> str:
    """The same for a column, which may have a length."""
    length = length_of(field)
    return type_name(field.type) if length is None else f"varchar({length})"


def _timed(type_: pa.DataType) -> str:
    digits = next(digits for digits, unit in _UNITS.items() if unit == type_.unit)
    name = f"timestamp({digits})" if pa.types.is_timestamp(type_) else f"time({digits})"
    return f"{name} with time zone" if getattr(type_, "tz", None) else name


def _fields(type_: pa.DataType) -> str:
    return ", ".join(f"{_quoted(field.name)}: {type_name(field.type)}" for field in type_)


_WRITTEN: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], str]]] = [
    (pa.types.is_decimal, lambda t: f"decimal({t.precision},{t.scale})"),
    (pa.types.is_timestamp, _timed),
    (pa.types.is_time, _timed),
    (pa.types.is_map, lambda t: f"map<{type_name(t.key_type)}, {type_name(t.item_type)}>"),
    (pa.types.is_struct, lambda t: f"struct<{_fields(t)}>"),
    (pa.types.is_list, lambda t: f"list<{type_name(t.value_type)}>"),
    (pa.types.is_large_list, lambda t: f"list<{type_name(t.value_type)}>"),
    (pa.types.is_large_string, lambda _: "text"),
    (pa.types.is_string_view, lambda _: "text"),
    (pa.types.is_large_binary, lambda _: "binary"),
    (pa.types.is_binary_view, lambda _: "binary"),
]


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[^\W\d]\w*", name) else '"' + name.replace('"', '""') + '"'
