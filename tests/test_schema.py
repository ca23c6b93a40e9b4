"""Types: what two schemas have in common, and casts that return the same values or nothing at all."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.errors import SchemaMismatchError
from inlay.schema import common_type, family, lossless_cast, storage_type, unify
from tests import lake
from tests.arrow_types import TYPES, array_of

NAN = math.nan
TEXT8 = pa.dictionary(pa.int8(), pa.string())


def chunked(values: list[Any], kind: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([array_of(kind, values)], kind)


def same(left: Any, right: Any) -> bool:
    """Compare values: 1 equals 1.0 and Decimal("1.00"), NaN equals NaN, numbers never equal text or booleans."""
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def plain(values: pa.ChunkedArray) -> list[Any]:
    return [lake.plain(value) for value in values]


# ----------------------------------------------------------------------------------------------- casts, one by one
#: (values, their type, the type they are wanted in)
FITS: list[tuple[list[Any], pa.DataType, pa.DataType]] = [
    ([-128, 127, None], pa.int64(), pa.int8()),
    ([2**63], pa.uint64(), pa.decimal128(20, 0)),
    ([2**53, -(2**53)], pa.int64(), pa.float64()),
    ([2048, None], pa.int64(), pa.float16()),
    ([3.0, -0.0, None], pa.float64(), pa.int32()),
    ([0.5, NAN, math.inf, -0.0, None], pa.float64(), pa.float32()),
    ([1.5, NAN], pa.float64(), pa.float16()),
    ([0.5, NAN, None], pa.float16(), pa.float64()),
    ([Decimal("1.00")], pa.decimal128(5, 2), pa.int64()),
    ([7, None], pa.int8(), pa.decimal128(3, 0)),
    ([Decimal("1.10")], pa.decimal256(60, 2), pa.decimal32(3, 1)),
    ([Decimal("1.1")], pa.decimal64(3, 1), pa.decimal128(38, 10)),
    (["é", None], pa.string(), pa.large_string()),
    (["é", None], pa.string_view(), TEXT8),
    (["é", None], TEXT8, pa.string_view()),
    (["a"], pa.json_(), pa.string()),
    ([b"abc"], pa.binary(), pa.binary(3)),
    ([b"abc"], pa.binary(3), pa.large_binary()),
    ([b"x" * 16], pa.uuid(), pa.binary()),
    ([b"x" * 16, None], pa.binary(), pa.uuid()),
    ([1], pa.date32(), pa.date64()),
    ([86_400_000], pa.date64(), pa.date32()),
    ([1], pa.time32("s"), pa.time64("ns")),
    ([10**9], pa.time64("ns"), pa.time32("s")),
    ([10**9], pa.timestamp("ns"), pa.timestamp("s")),
    ([7], pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("ns", "UTC")),
    ([10**6], pa.duration("us"), pa.duration("s")),
    ([None, None], pa.null(), pa.uuid()),
    ([None], pa.null(), pa.list_(pa.int8())),
    ([[1, None], None, []], pa.list_(pa.int64()), pa.large_list(pa.int8())),
    ([[NAN, 0.5], None], pa.large_list(pa.float64()), pa.list_(pa.float32())),
    ([[1, 2], None], pa.list_(pa.int64()), pa.list_(pa.int64(), 2)),
    ([[1, 2], None], pa.list_(pa.int16(), 2), pa.list_(pa.int64())),
    ([[["a"], None], None], pa.list_(pa.list_(pa.string())), pa.list_(pa.large_list(pa.large_string()))),
    (
        [{"a": 1, "b": NAN}, None, {"a": None, "b": None}],
        pa.struct([("a", pa.int64()), ("b", pa.float64())]),
        pa.struct([("b", pa.float32()), ("a", pa.int8())]),
    ),
    ([[("a", 1), ("b", None)], None], pa.map_(pa.string(), pa.int64()), pa.map_(pa.large_string(), pa.int8())),
]

DOES_NOT_FIT: list[tuple[list[Any], pa.DataType, pa.DataType]] = [
    ([128], pa.int64(), pa.int8()),
    ([-1], pa.int64(), pa.uint64()),
    ([2**53 + 1], pa.int64(), pa.float64()),
    ([2**64 - 1], pa.uint64(), pa.float64()),
    ([2049], pa.int64(), pa.float16()),
    ([0.5], pa.float64(), pa.int64()),
    ([0.5], pa.float16(), pa.int64()),
    ([float(2**63)], pa.float64(), pa.int64()),
    ([NAN], pa.float64(), pa.int64()),
    ([math.inf], pa.float32(), pa.int32()),
    ([0.1], pa.float64(), pa.float32()),
    ([70_000.0], pa.float64(), pa.float16()),
    ([1e300], pa.float64(), pa.float32()),
    ([Decimal("1.05")], pa.decimal128(5, 2), pa.int64()),
    ([Decimal("1.05")], pa.decimal128(5, 2), pa.decimal128(5, 1)),
    ([Decimal("100.0")], pa.decimal128(4, 1), pa.decimal128(4, 2)),
    ([1000], pa.int64(), pa.decimal128(3, 0)),
    ([-(2**31)], pa.int32(), pa.decimal32(9, 2)),
    ([Decimal("-2147483648.00")], pa.decimal128(22, 2), pa.decimal32(9, 2)),
    ([[Decimal("21474836.48")]], pa.list_(pa.decimal128(22, 2)), pa.list_(pa.decimal32(5, 2))),
    ([1.0], pa.float64(), pa.decimal128(3, 0)),
    ([Decimal("1.0")], pa.decimal128(3, 1), pa.float64()),
    ([1], pa.int64(), pa.string()),
    (["1"], pa.string(), pa.int64()),
    ([True], pa.bool_(), pa.int64()),
    ([1], pa.int64(), pa.bool_()),
    (["a"], pa.string(), pa.binary()),
    ([b"a"], pa.binary(), pa.string()),
    ([b"ab"], pa.binary(), pa.binary(3)),
    ([1], pa.date64(), pa.date32()),
    ([1], pa.date32(), pa.timestamp("s")),
    ([0], pa.timestamp("s"), pa.date32()),
    ([0], pa.timestamp("us"), pa.timestamp("us", "UTC")),
    ([0], pa.timestamp("us", "UTC"), pa.timestamp("us")),
    ([1], pa.timestamp("ns"), pa.timestamp("us")),
    ([2**62], pa.timestamp("s"), pa.timestamp("ns")),
    ([1], pa.time64("ns"), pa.time64("us")),
    ([1], pa.duration("ns"), pa.duration("s")),
    ([2**62], pa.duration("s"), pa.duration("ns")),
    ([0], pa.duration("s"), pa.int64()),
    ([[1]], pa.list_(pa.int64()), pa.list_(pa.string())),
    ([[128]], pa.list_(pa.int64()), pa.list_(pa.int8())),
    ([[0.1]], pa.list_(pa.float64()), pa.list_(pa.float32())),
    ([[0]], pa.list_(pa.timestamp("us")), pa.list_(pa.timestamp("us", "UTC"))),
    ([[1]], pa.list_(pa.int64()), pa.list_(pa.int64(), 2)),
    ([{"a": 1}], pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ([{"a": 1, "b": 2}], pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.struct([("a", pa.int64())])),
    ([{"a": 1}], pa.struct([("a", pa.int64())]), pa.struct([("A", pa.int64())])),
    ([{"a": 1}], pa.struct([("a", pa.int64())]), pa.struct([("a", pa.string())])),
    ([[("a", 0.1)]], pa.map_(pa.string(), pa.float64()), pa.map_(pa.string(), pa.float32())),
    ([[("a", 1)]], pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.string())),
    ([[1]], pa.list_(pa.int64()), pa.int64()),
    ([str(i) for i in range(200)], pa.string(), TEXT8),
]


def name_of(value: Any) -> str:
    return str(value).replace(" ", "")[:60]


@pytest.mark.parametrize(("values", "kind", "to"), FITS, ids=name_of)
def test_values_that_fit_are_unchanged(values: list[Any], kind: pa.DataType, to: pa.DataType) -> None:
    before = chunked(values, kind)
    after = lossless_cast(before, to, "c")
    assert after.type == to
    assert same(plain(before), plain(after))


@pytest.mark.parametrize(("values", "kind", "to"), DOES_NOT_FIT, ids=name_of)
def test_values_that_do_not_fit_are_rejected(values: list[Any], kind: pa.DataType, to: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="'the column'") as caught:
        lossless_cast(chunked(values, kind), to, "the column")
    assert isinstance(caught.value, ValueError)
    assert str(kind) in str(caught.value)
    assert str(to) in str(caught.value)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()], ids=str)
def test_keys_are_never_cast_between_integers_and_floats(kind: pa.DataType) -> None:
    for values, source, to in (([1], pa.int64(), kind), ([1.0], kind, pa.int64())):
        assert lossless_cast(chunked(values, source), to, "id").to_pylist() == values
        with pytest.raises(SchemaMismatchError, match="'id'"):
            lossless_cast(chunked(values, source), to, "id", as_key=True)


def test_keys_of_other_types_are_cast_like_any_value() -> None:
    assert lossless_cast(chunked([1], pa.int64()), pa.int8(), "id", as_key=True).to_pylist() == [1]
    assert lossless_cast(chunked([0.5], pa.float32()), pa.float64(), "id", as_key=True).to_pylist() == [0.5]


def test_cast_to_the_same_type_returns_the_same_object() -> None:
    values = chunked([1, 2], pa.int64())
    assert lossless_cast(values, pa.int64(), "c") is values


def test_columns_without_chunks_are_cast() -> None:
    for kind, to in ((pa.uuid(), pa.binary()), (pa.binary(), pa.uuid()), (pa.int64(), TEXT8.index_type)):
        after = lossless_cast(pa.chunked_array([], kind), to, "c")
        assert (len(after), after.type) == (0, to)


# ------------------------------------------------------------------------------------------------- casts, at random
def leaf_values(kind: pa.DataType) -> st.SearchStrategy[Any] | None:
    """Generate values of number types, including those that casts are likely to change."""
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        return st.integers(-(2 ** (kind.bit_width - 1)) if signed else 0, 2 ** (kind.bit_width - signed) - 1)
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width) | st.integers(-2000, 2000).map(float)
    if pa.types.is_decimal(kind):
        whole = st.integers(-(10**kind.precision) + 1, 10**kind.precision - 1)
        return whole.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -kind.scale)))
    return None


@st.composite
def columns(draw: st.DrawFn, names: list[str]) -> pa.ChunkedArray:
    name = draw(st.sampled_from(names))
    kind, edges = TYPES[name]
    values = leaf_values(kind)
    one = st.sampled_from(edges) if values is None else st.sampled_from(edges) | values
    return chunked(draw(st.lists(st.none() | one, max_size=4)), kind)


NUMBERS = [name for name, (kind, _) in TYPES.items() if leaf_values(kind) is not None]


@given(columns(list(TYPES)), st.sampled_from(list(TYPES)))
def test_a_cast_returns_equal_values_or_raises(before: pa.ChunkedArray, name: str) -> None:
    check_cast(before, TYPES[name][0])


@given(columns(NUMBERS), st.sampled_from(NUMBERS))
def test_a_cast_of_numbers_returns_equal_values_or_raises(before: pa.ChunkedArray, name: str) -> None:
    check_cast(before, TYPES[name][0])


@given(columns(NUMBERS), st.sampled_from(NUMBERS))
def test_a_cast_of_nested_numbers_returns_equal_values_or_raises(before: pa.ChunkedArray, name: str) -> None:
    """Nested numbers are accepted exactly when plain numbers are."""
    kind, to = before.type, TYPES[name][0]
    rows = before.to_pylist()
    source, wanted = (pa.struct([("n", pa.list_(leaf))]) for leaf in (kind, to))
    nested = pa.chunked_array([pa.array([{"n": [value]} for value in rows], source)])
    bare_fits = check_cast(before, to)
    assert check_cast(nested, wanted) == bare_fits


def check_cast(before: pa.ChunkedArray, to: pa.DataType) -> bool:
    try:
        after = lossless_cast(before, to, "c")
    except SchemaMismatchError:
        return False
    assert after.type == to
    assert same(plain(before), plain(after))
    return True


# --------------------------------------------------------------------------------------------------- common types
COMMON: list[tuple[pa.DataType, pa.DataType, pa.DataType | None]] = [
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint32(), pa.int8(), pa.int64()),
    (pa.uint64(), pa.int8(), pa.decimal128(20, 0)),
    (pa.uint16(), pa.uint64(), pa.uint64()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.float16(), pa.float32(), pa.float32()),
    (pa.int16(), pa.float16(), pa.float32()),
    (pa.float32(), pa.int32(), pa.float64()),
    (pa.int64(), pa.float64(), None),
    (pa.int64(), pa.decimal128(10, 2), pa.decimal128(22, 2)),
    (pa.decimal128(10, 2), pa.decimal128(6, 4), pa.decimal128(12, 4)),
    (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
    (pa.decimal256(76, 0), pa.decimal128(38, 10), None),
    (pa.decimal128(10, 2), pa.float64(), None),
    (pa.string(), pa.large_string(), pa.string()),
    (TEXT8, pa.string(), TEXT8),
    (pa.string(), pa.binary(), None),
    (pa.binary(3), pa.binary(3), pa.binary(3)),
    (pa.binary(3), pa.binary(4), pa.binary()),
    (pa.binary(3), pa.large_binary(), pa.large_binary()),
    (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
    (pa.timestamp("ns"), pa.timestamp("us"), pa.timestamp("ns")),
    (pa.timestamp("s", "Asia/Tokyo"), pa.timestamp("ns", "UTC"), pa.timestamp("ns", "Asia/Tokyo")),
    (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
    (pa.timestamp("us"), pa.date32(), None),
    (pa.time32("s"), pa.time64("ns"), pa.time64("ns")),
    (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
    (pa.duration("s"), pa.duration("us"), pa.duration("us")),
    (pa.null(), pa.int8(), pa.int8()),
    (pa.int8(), pa.null(), pa.int8()),
    (pa.bool_(), pa.int8(), None),
    (pa.list_(pa.int8()), pa.list_(pa.int32()), pa.list_(pa.int32())),
    (pa.list_(pa.int8()), pa.list_(pa.string()), None),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8()), pa.list_(pa.int8())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 2)),
    (
        pa.struct([("a", pa.int8()), ("b", pa.string())]),
        pa.struct([("b", pa.string()), ("a", pa.int16())]),
        pa.struct([("a", pa.int16()), ("b", pa.string())]),
    ),
    (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), None),
    (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8()), ("b", pa.int8())]), None),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), pa.map_(pa.string(), pa.int16())),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.int8(), pa.int8()), None),
]


@pytest.mark.parametrize(("left", "right", "expected"), COMMON, ids=name_of)
def test_common_type(left: pa.DataType, right: pa.DataType, expected: pa.DataType | None) -> None:
    assert common_type(left, right) == expected


def test_nulls_of_a_struct_with_required_fields_can_be_stored() -> None:
    inner = pa.struct([pa.field("y", pa.string(), nullable=False)])
    type_ = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("in", inner, nullable=False)])
    column = lossless_cast(pa.chunked_array([pa.nulls(2), pa.nulls(1)]), type_, "c")
    file = io.BytesIO()
    pq.write_table(pa.table({"c": column}), file)
    assert pq.read_table(file)["c"].to_pylist() == [None, None, None]


@given(columns(list(TYPES)), columns(list(TYPES)))
def test_common_type_represents_the_values_of_both(left: pa.ChunkedArray, right: pa.ChunkedArray) -> None:
    wide = common_type(left.type, right.type)
    back = common_type(right.type, left.type)
    assert (wide is None) == (back is None)
    for values in (left, right) if wide is not None else ():
        if fits_the_unit(values, wide):
            assert check_cast(values, wide)


def fits_the_unit(values: pa.ChunkedArray, wide: pa.DataType) -> bool:
    """Allow casts to fail if a finer unit has a smaller range, or a dictionary has too many values."""
    if pa.types.is_dictionary(wide):
        return len(values) < 100
    unit = getattr(storage_type(wide), "unit", None)
    return unit is None or all(v is None or abs(v) < 2**63 for v in plain(values))


# --------------------------------------------------------------------------------------------------------- schemas
def test_unify_widens_keeps_order_and_adds_columns_as_nullable() -> None:
    first = pa.schema([pa.field("a", pa.int8(), nullable=False), ("b", pa.string())], metadata={"k": "v"})
    second = pa.schema([("b", pa.large_string()), pa.field("c", pa.int8(), nullable=False), ("a", pa.int16())])
    result = unify([first, second], ["x", "y"])
    assert result.equals(pa.schema([("a", pa.int16()), ("b", pa.string()), ("c", pa.int8())]))
    assert result.metadata == {b"k": b"v"}
    assert all(field.nullable for field in result)


def test_unify_keeps_not_null_if_all_files_have_it() -> None:
    required = pa.schema([pa.field("a", pa.int8(), nullable=False)])
    assert not unify([required, required], ["x", "y"]).field("a").nullable
    assert unify([required, pa.schema([("a", pa.int8())])], ["x", "y"]).field("a").nullable
    assert unify([required, pa.schema([("b", pa.int8())])], ["x", "y"]).field("a").nullable


def test_unify_names_files_with_incompatible_types() -> None:
    schemas = [pa.schema([("a", kind)]) for kind in (pa.int8(), pa.int16(), pa.string())]
    with pytest.raises(SchemaMismatchError, match=r"'a'.*'one'.*'three'"):
        unify(schemas, ["one", "two", "three"])


def test_unify_of_one_schema_is_that_schema() -> None:
    schema = pa.schema([("a", pa.uuid()), pa.field("b", pa.int8(), metadata={"unit": "m"})])
    assert unify([schema], ["x"]).equals(schema, check_metadata=True)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_has_the_family_of_its_storage(name: str) -> None:
    kind = TYPES[name][0]
    plain_type = storage_type(kind)
    assert not isinstance(plain_type, pa.BaseExtensionType)
    assert not pa.types.is_dictionary(plain_type)
    assert family(kind) == family(plain_type)
    assert common_type(kind, kind) == kind
