"""Conditions on rows in SQL notation, such as `day < '2025-01-01' AND status = 'open'`, as pyarrow expressions.

    condition  term { "OR" term }          term  factor { "AND" factor }
    factor     "NOT" factor | "(" condition ")" | "TRUE" | "FALSE" | column [ test ]
    test       ("=" | "<>" | "!=" | "<" | "<=" | ">" | ">=") (value | column)
             | "IS" ["NOT"] "NULL" | ["NOT"] "IN" "(" value { "," value } ")"
             | ["NOT"] "BETWEEN" value "AND" value | ["NOT"] ("LIKE" | "ILIKE") text
    value      number | text | "TRUE" | "FALSE" | "NULL" | ("DATE" | "TIME" | "TIMESTAMP") text

A condition selects the rows for which it is true, so a comparison with NULL selects no row. NaN is equal to itself and
greater than all other numbers. `NOT` moves down to the tests, because a test of NULL is neither true nor false.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from inlay.errors import InvalidArgumentError, SchemaMismatchError, did_you_mean, short_repr
from inlay.schema import lossless_cast
from inlay.type_grammar import type_name

__all__ = ["check_syntax", "match_values", "parse_condition"]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'[^']*(?:''[^']*)*')|"(?P<quoted>[^"]*(?:""[^"]*)*)"|(?P<word>[^\W\d]\w*)"""
    r"""|(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?!\w)|(?P<mark><=|>=|<>|!=|[=<>(),]))"""
)
_NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_SWAPPED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}
_KEYWORDS = frozenset({"AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "LIKE", "ILIKE", "TRUE", "FALSE"})
_TYPED = frozenset({"DATE", "TIME", "TIMESTAMP"})
_MAX_DEPTH = 50
_MAX_TESTS = 1000
_HINT = (
    "Compare columns with values, such as: day < '2025-01-01' AND (status = 'open' OR amount IS NULL)."
    " Conditions know AND, OR, NOT, IN, BETWEEN, LIKE and IS NULL, but no functions."
)


def parse_condition(text: str, schema: pa.Schema) -> pc.Expression:
    """Parse a condition on the columns of a schema. Values get the types of their columns, exactly."""
    return _Parser(text, schema).parse()


def check_syntax(text: str) -> None:
    """Check a condition without knowing the columns."""
    _SyntaxParser(text).parse()


def match_values(values: Mapping[str, Sequence[Any]], schema: pa.Schema) -> pc.Expression:
    """Return the condition that each column has one of its values, which get the type of the column, exactly.

    NULL equals NULL, and NaN equals NaN.
    """
    return _join([_is_one_of(_typed_column(name, schema), each) for name, each in values.items()], is_and=True)


def _typed_column(name: str, schema: pa.Schema) -> _Column:
    type_ = schema.field(name).type
    return _Column(name, type_.value_type if pa.types.is_dictionary(type_) else type_)


def _is_one_of(column: _Column, values: Sequence[Any]) -> pc.Expression:
    _require_comparable(column)
    found = [_exact(value, column) for value in values]
    known = [value for value in found if value.is_valid]
    tests = [] if len(known) == len(found) else [pc.field(column.name).is_null()]
    if pa.types.is_floating(column.type):  # isin() distinguishes 0.0 and -0.0
        tests += [_compare(column, "=", value) for value in known]
    elif known:
        tests.append(column.expression.isin(pa.array([each.as_py() for each in known], column.type)))
    return _join(tests, is_and=False)


def _exact(value: Any, column: _Column) -> pa.Scalar:
    """Convert a Python value to the type of a column, exactly. Text is parsed."""
    try:
        value = value.as_py() if isinstance(value, pa.Scalar) and _is_text(value.type) else value
        if isinstance(value, str):
            return pa.scalar(value, column.type) if _is_text(column.type) else pa.scalar(value).cast(column.type)
        return lossless_cast(pa.chunked_array([pa.array([value])]), column.type, column.name)[0]
    except (pa.ArrowException, SchemaMismatchError, ValueError, TypeError, ArithmeticError):
        raise InvalidArgumentError(
            f"{short_repr(value)} is not a value of column {column.name!r}, which is {type_name(column.type)}.",
            hint="Pass a value of this type.",
        ) from None


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


class _Value(NamedTuple):
    """A value as it is written: text, a number, or a keyword in upper case."""

    kind: str
    text: str

    @property
    def literal(self) -> str:
        literal = short_repr(self.text)
        return literal if self.kind == "text" else literal.strip("'")


_NULL = _Value("word", "NULL")


class _Column(NamedTuple):
    name: str
    type: pa.DataType

    @property
    def expression(self) -> pc.Expression:
        found = pc.field(self.name)
        return found.cast(self.type) if pa.types.is_dictionary(self.type) else found


def _tokens(text: str) -> list[_Token]:
    found, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            _fail(f"unexpected {text[at:].lstrip()[:20]!r}")
        kind = str(match.lastgroup)
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return found


def _fail(reason: str, hint: str = _HINT) -> NoReturn:
    raise InvalidArgumentError(f"Invalid condition: {reason}.", hint=hint)


class _Parser:
    def __init__(self, text: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._tests = 0

    def parse(self) -> pc.Expression:
        if not self._tokens:
            _fail("it is empty")
        found = self._condition(negated=False)
        if self._at < len(self._tokens):
            _fail(f"unexpected {short_repr(self._tokens[self._at].text)}")
        return found

    # ----------------------------------------------------------------------------------------------------- conditions
    def _condition(self, *, negated: bool) -> pc.Expression:
        return self._chain("OR", lambda: self._term(negated=negated), is_and=negated)

    def _term(self, *, negated: bool) -> pc.Expression:
        return self._chain("AND", lambda: self._factor(negated=negated), is_and=not negated)

    def _chain(self, keyword: str, part: Callable[[], pc.Expression], *, is_and: bool) -> pc.Expression:
        parts = [part()]
        while self._take(keyword):
            parts.append(part())
        return _join(parts, is_and=is_and)

    def _factor(self, *, negated: bool) -> pc.Expression:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            _fail(f"it has more than {_MAX_DEPTH} nested levels")
        try:
            if self._take("NOT"):
                return self._factor(negated=not negated)
            if self._take("("):
                found = self._condition(negated=negated)
                self._require(")")
                return found
            return self._test(negated=negated)
        finally:
            self._depth -= 1

    def _test(self, *, negated: bool) -> pc.Expression:
        self._tests += 1
        if self._tests > _MAX_TESTS:
            _fail(f"it has more than {_MAX_TESTS:,} comparisons", "Use IN (...), or select the rows by their keys.")
        if (value := self._boolean()) is not None:
            return pc.scalar(value != negated)
        if self._starts_value():
            return self._comparison_with(self._value(), negated=negated)
        column = self._column()
        if self._take("IS"):
            negated ^= self._take("NOT")
            self._require("NULL")
            field = pc.field(column.name)
            return field.is_valid() if negated else field.is_null()
        if (operator := self._operator()) is not None:
            return self._compare(column, operator, negated=negated)
        return self._named_test(column, negated=negated ^ self._take("NOT"))

    def _named_test(self, column: _Column, *, negated: bool) -> pc.Expression:
        """Parse a test that a word names, or the test of a boolean column."""
        if self._take("IN"):
            return self._membership(column, negated=negated)
        if self._take("BETWEEN"):
            low = self._value()
            self._require("AND")
            bounds = [("<" if negated else ">=", low), (">" if negated else "<=", self._value())]
            return _join([_compare(column, op, self._scalar(each, column)) for op, each in bounds], is_and=not negated)
        for keyword, ignores_case in (("LIKE", False), ("ILIKE", True)):
            if self._take(keyword):
                return self._like(column, ignores_case=ignores_case, negated=negated)
        if not pa.types.is_boolean(column.type):
            _fail(f"no comparison follows the column {column.name!r}")
        return ~column.expression if negated else column.expression

    def _comparison_with(self, value: _Value, *, negated: bool) -> pc.Expression:
        """Parse a comparison whose value comes first."""
        operator = self._operator()
        if operator is None or self._starts_value():
            _fail(f"{value.literal} is not compared with a column")
        operator, column = _SWAPPED[operator], self._column()
        return _compare(column, _NEGATED[operator] if negated else operator, self._scalar(value, column))

    def _compare(self, column: _Column, operator: str, *, negated: bool) -> pc.Expression:
        operator = _NEGATED[operator] if negated else operator
        if self._starts_value():
            return _compare(column, operator, self._scalar(self._value(), column))
        other = self._column()
        _require_comparable(column)
        if not other.type.equals(column.type):
            _fail(
                f"column {column.name!r} is {type_name(column.type)}, and column {other.name!r} is"
                f" {type_name(other.type)}",
                "Compare columns of the same type.",
            )
        if pa.types.is_floating(column.type):
            return _compare_floats(operator, column.expression, other.expression)
        return _apply(operator, column.expression, other.expression)

    def _membership(self, column: _Column, *, negated: bool) -> pc.Expression:
        self._require("(")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        self._require(")")
        known = [self._scalar(value, column) for value in values if value.text != "NULL" or value.kind == "text"]
        if negated and len(known) < len(values):
            return pc.scalar(False)  # no value is known to differ from NULL
        if pa.types.is_floating(column.type):  # isin() distinguishes 0.0 and -0.0
            tests = [_compare(column, "<>" if negated else "=", value) for value in known]
            return _join(tests, is_and=negated) if tests else pc.scalar(False)
        found = column.expression.isin(pa.array([each.as_py() for each in known], column.type))
        return ~found & column.expression.is_valid() if negated else found

    def _like(self, column: _Column, *, ignores_case: bool, negated: bool) -> pc.Expression:
        value = self._value()
        if value.kind != "text":
            _fail(f"LIKE needs a text in quotes, not {value.literal}")
        if not self._is_text(column):
            _fail(f"LIKE compares text columns with text, and column {column.name!r} is {type_name(column.type)}")
        found = pc.match_like(column.expression, value.text, ignore_case=ignores_case)
        return ~found if negated else found

    # --------------------------------------------------------------------------------------------------------- tokens
    def _take(self, text: str) -> bool:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        is_found = token is not None and token.kind in ("word", "mark") and token.text.upper() == text
        self._at += is_found
        return is_found

    def _require(self, text: str) -> None:
        if not self._take(text):
            _fail(f"{text} is missing before {self._next_text()}")

    def _next_text(self) -> str:
        return short_repr(self._tokens[self._at].text) if self._at < len(self._tokens) else "the end"

    def _operator(self) -> str | None:
        for operator in _NEGATED:
            if self._take(operator):
                return operator
        return "<>" if self._take("!=") else None

    def _boolean(self) -> bool | None:
        """Take TRUE or FALSE, unless a comparison follows it."""
        follower = self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else None
        if follower is not None and follower.kind == "mark" and follower.text not in "()":
            return None
        return True if self._take("TRUE") else False if self._take("FALSE") else None

    def _starts_value(self) -> bool:
        rest = self._tokens[self._at : self._at + 2]
        if not rest or rest[0].kind in ("text", "number"):
            return bool(rest)
        keyword = rest[0].text.upper() if rest[0].kind == "word" else ""
        return keyword in ("TRUE", "FALSE", "NULL") or (keyword in _TYPED and len(rest) > 1 and rest[1].kind == "text")

    def _value(self) -> _Value:
        if not self._starts_value():
            _fail(f"a value is missing before {self._next_text()}")
        token = self._tokens[self._at]
        if token.kind == "word" and token.text.upper() in _TYPED:
            self._at += 1
            token = self._tokens[self._at]
        self._at += 1
        if token.kind == "text":
            return _Value("text", token.text[1:-1].replace("''", "'"))
        return _Value(token.kind, token.text.upper())

    def _column(self) -> _Column:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or token.kind not in ("word", "quoted") or self._is_keyword(token):
            _fail(f"a column is missing before {self._next_text()}")
        self._at += 1
        name = token.text.replace('""', '"') if token.kind == "quoted" else token.text
        return self._known_column(name, is_quoted=token.kind == "quoted")

    def _known_column(self, name: str, *, is_quoted: bool) -> _Column:
        names = [name] if name in self._schema.names else self._names_like(None if is_quoted else name)
        if not names and self._take("("):
            _fail(f"functions such as {short_repr(name)[1:-1]} are not supported")
        if len(names) != 1:
            known = self._schema.names
            _fail(
                f"{name!r} can be one of the columns {names}" if names else f"there is no column {short_repr(name)}",
                did_you_mean(name, known) or f"The columns are: {', '.join(known[:20])}.",
            )
        type_ = self._schema.field(names[0]).type
        return _Column(names[0], type_.value_type if pa.types.is_dictionary(type_) else type_)

    def _scalar(self, value: _Value, column: _Column) -> pa.Scalar:
        return _scalar(value, column)

    def _is_text(self, column: _Column) -> bool:
        return _is_text(column.type)

    def _names_like(self, name: str | None) -> list[str]:
        return [known for known in self._schema.names if name is not None and known.lower() == name.lower()]

    @staticmethod
    def _is_keyword(token: _Token) -> bool:
        return token.kind == "word" and token.text.upper() in _KEYWORDS


class _SyntaxParser(_Parser):
    """Parses a condition on columns that nobody knows. It accepts every name and value."""

    def __init__(self, text: str) -> None:
        super().__init__(text, pa.schema([]))

    def _known_column(self, name: str, *, is_quoted: bool) -> _Column:  # noqa: ARG002
        if self._take("("):
            _fail(f"functions such as {short_repr(name)[1:-1]} are not supported")
        return _Column(name, pa.bool_())

    def _scalar(self, value: _Value, column: _Column) -> pa.Scalar:
        return _scalar(value if value == _NULL else _Value("word", "TRUE"), column)

    def _is_text(self, column: _Column) -> bool:  # noqa: ARG002
        return True


def _join(parts: Sequence[pc.Expression], *, is_and: bool) -> pc.Expression:
    """Combine expressions as a balanced tree, because Arrow processes expressions recursively."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    left, right = _join(parts[:middle], is_and=is_and), _join(parts[middle:], is_and=is_and)
    return left & right if is_and else left | right


# ------------------------------------------------------------------------------------------------------------- values
def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_string_view(type_))


def _require_comparable(column: _Column) -> None:
    if pa.types.is_nested(column.type) or pa.types.is_null(column.type):
        _fail(f"column {column.name!r} is {type_name(column.type)}", "Test such a column with IS NULL or IS NOT NULL.")


def _scalar(value: _Value, column: _Column) -> pa.Scalar:
    """Convert a value to the type of a column, exactly."""
    _require_comparable(column)
    if value == _NULL:
        _fail("a comparison with NULL selects no row", f'Use "{column.name}" IS NULL or IS NOT NULL.')
    try:
        found = _convert(value, column.type)
    except (pa.ArrowException, ValueError, ArithmeticError, OverflowError):
        found = None
    if found is None:
        is_instant = pa.types.is_timestamp(column.type) and column.type.tz is not None
        hint = "Add the time zone, such as '2025-01-31 12:00:00Z'." if is_instant else "Pass a value of this type."
        _fail(f"{value.literal} is not a value of column {column.name!r}, which is {type_name(column.type)}", hint)
    return found


def _convert(value: _Value, type_: pa.DataType) -> pa.Scalar | None:
    if value.kind == "text":
        return pa.scalar(value.text, type_) if _is_text(type_) else pa.scalar(value.text).cast(type_)
    if value.kind == "word":
        return pa.scalar(value.text == "TRUE") if pa.types.is_boolean(type_) else None
    number = Decimal(value.text)
    if pa.types.is_integer(type_):
        return pa.scalar(int(number), type_) if number == int(number) else None
    if pa.types.is_decimal(type_):
        return pa.scalar(number, type_)
    return pa.scalar(float(number)).cast(type_) if pa.types.is_floating(type_) else None


# -------------------------------------------------------------------------------------------------------- comparisons
def _apply(operator: str, left: pc.Expression, right: pc.Expression | pa.Scalar) -> pc.Expression:
    compare: dict[str, Callable[[pc.Expression], pc.Expression]] = {
        "=": left.__eq__, "<>": left.__ne__, "<": left.__lt__, "<=": left.__le__, ">": left.__gt__, ">=": left.__ge__,
    }  # fmt: skip
    return compare[operator](right)


def _compare(column: _Column, operator: str, value: pa.Scalar) -> pc.Expression:
    left = column.expression
    if not pa.types.is_floating(column.type):
        return _apply(operator, left, value)
    if math.isnan(value.as_py()):
        return _compare_with_nan(operator, left)
    found = _apply(operator, left, value)
    return found | pc.is_nan(left) if operator in (">", ">=") else found


def _compare_with_nan(operator: str, left: pc.Expression) -> pc.Expression:
    if operator in ("=", ">="):
        return pc.is_nan(left)
    if operator in ("<>", "<"):
        return ~pc.is_nan(left)
    return left.is_valid() if operator == "<=" else pc.scalar(False)


def _compare_floats(operator: str, left: pc.Expression, right: pc.Expression) -> pc.Expression:
    if operator in ("<", "<="):
        return _compare_floats(_SWAPPED[operator], right, left)
    both = pc.is_nan(left) & pc.is_nan(right)
    found = _apply(operator, left, right)
    if operator == "<>":
        return found & ~both
    if operator == "=":
        return found | both
    return found | (pc.is_nan(left) & (~pc.is_nan(right) if operator == ">" else right.is_valid()))
