"""The type grammar: names, lengths and round trips."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.errors import InvalidArgumentError
from inlay.type_grammar import (
    KNOWN_TYPES,
    column_type_name,
    length_of,
    parse_column,
    parse_type,
    type_name,
    with_length,
)

TYPES = {
    "boolean": pa.bool_(),
    "BIGINT": pa.int64(),
    " Int ": pa.int32(),
    "decimal(10,2)": pa.decimal128(10, 2),
    "NUMERIC ( 5 )": pa.decimal128(5, 0),
    "decimal(76, 10)": pa.decimal256(76, 10),
    "double precision": pa.float64(),
    "Double  Precision": pa.float64(),
    "varchar(255)": pa.string(),
    "text": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamp(9)": pa.timestamp("ns"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamp(3) with time zone": pa.timestamp("ms", "UTC"),
    "timestamp(3) without time zone": pa.timestamp("ms"),
    "time(3) without time zone": pa.time32("ms"),
    "timestamptz(0)": pa.timestamp("s", "UTC"),
    "time(3)": pa.time32("ms"),
    "bigint[]": pa.list_(pa.int64()),
    "array<list<date>>": pa.list_(pa.list_(pa.date32())),
    "map<text, decimal(3,1)>": pa.map_(pa.string(), pa.decimal128(3, 1)),
    'struct<a: int, "b c" text, d: struct<e: real[]>>': pa.struct(
        [
            ("a", pa.int32()),
            ("b c", pa.string()),
            ("d", pa.struct([("e", pa.list_(pa.float32()))])),
        ]
    ),
}


@pytest.mark.parametrize("text", TYPES)
def test_parse_type(text: str) -> None:
    assert parse_type(text) == TYPES[text]


@pytest.mark.parametrize(
    "text",
    ["", "money", "decimal", "decimal(0,0)", "decimal(77,1)", "decimal(5,6)", "decimal(1,2,3)", "int(3)", "list<int",
     "list<>", "struct<>", "map<text>", "timestamp(4)", "time(3) with time zone", "int int", "int;", "varchar(10,2)",
     "varchar(0)",
     "list<" * 40 + "int" + ">" * 40, "decimal(99999999999999,2)", "'int'", "x" * 1000],
)  # fmt: skip
def test_invalid_type_is_rejected_with_the_known_types(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Unknown type") as caught:
        parse_type(text)
    assert "bigint" in str(caught.value.hint)
    assert len(caught.value.message) < 300


def test_every_known_type_parses() -> None:
    plain = [name for name in KNOWN_TYPES if "(" not in name and "<" not in name]
    assert len(plain) > 10
    for name in plain:
        assert type_name(parse_type(name)) == name


scalars = st.sampled_from([type_ for type_ in TYPES.values() if not pa.types.is_nested(type_)])
types = st.recursive(
    scalars,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(scalars, inner).map(lambda pair: pa.map_(*pair)),
        st.dictionaries(st.text(min_size=1, max_size=8), inner, min_size=1, max_size=3).map(
            lambda fields: pa.struct(list(fields.items()))
        ),
    ),
    max_leaves=5,
)


@given(types)
def test_type_names_round_trip(type_: pa.DataType) -> None:
    assert parse_type(type_name(type_)) == type_


@given(st.text(max_size=40))
def test_any_text_parses_or_is_rejected(text: str) -> None:
    try:
        type_ = parse_type(text)
    except InvalidArgumentError:
        return
    assert parse_type(type_name(type_)) == type_


def test_struct_with_a_repeated_field_name_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="twice"):
        parse_type("struct<a: int, a: int>")


@pytest.mark.parametrize(
    ("text", "length"),
    [("varchar(255)", 255), ("CHAR ( 2 )", 2), ("character varying(3)", 3), ("text", None), ("decimal(5,2)", None)],
)
def test_length_is_kept_beside_the_type(text: str, length: int | None) -> None:
    field = parse_column("a", text)
    assert (field.type, length_of(field)) == (parse_type(text), length)
    assert parse_column("a", column_type_name(field)).equals(field, check_metadata=True)


@pytest.mark.parametrize(
    "text", ["varchar(5)[]", "list<varchar(5)>", "struct<a: int, b: char(2)>", "map<text(3), int>"]
)
def test_length_inside_a_nested_type_is_rejected(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="Only a text column can have a length"):
        parse_type(text)


def test_setting_a_length_keeps_other_metadata() -> None:
    field = pa.field("a", pa.string(), metadata={"unit": "km"})
    longer = with_length(with_length(field, 2), 3)
    assert (length_of(longer), longer.metadata[b"unit"]) == (3, b"km")
    assert with_length(longer, None).equals(field, check_metadata=True)
    assert with_length(parse_column("a", "char(2)"), None).metadata is None
