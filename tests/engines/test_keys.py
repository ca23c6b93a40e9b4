"""Canonical keys, and the key index checked against a dict."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.engines import keys
from inlay.engines.keys import KeyIndex, canonical_keys, canonical_type, contiguous, require_key_type
from inlay.errors import InvalidArgumentError
from tests import lake
from tests.arrow_types import OTHERS, SCALARS, TYPES, array_of
from tests.merge_cases import KEY_VALUES

NAN, OTHER_NAN = math.nan, struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
KEY_TYPES = [*SCALARS, "bool"]
VALUES = KEY_VALUES | {"bool": st.booleans()}


def column(name: str, values: list[Any], chunks: int = 1) -> pa.ChunkedArray:
    kind = TYPES[name][0]
    size = max(1, -(-len(values) // chunks))
    parts = [array_of(kind, values[i : i + size]) for i in range(0, len(values), size)]
    return pa.chunked_array(parts, kind)


def canonical(name: str, values: list[Any], chunks: int = 1) -> pa.ChunkedArray:
    return canonical_keys(column(name, values, chunks), TYPES[name][0])


def key_of(value: Any) -> Any:
    """Return a value that a dict compares like a key: NaN equals NaN, -0.0 equals 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def keys_of(columns: list[pa.ChunkedArray]) -> list[tuple[Any, ...] | None]:
    rows = zip(*([key_of(lake.plain(v)) for v in c] for c in columns), strict=True)
    return [None if None in row else row for row in rows]


def expected(source: list[pa.ChunkedArray], target: list[pa.ChunkedArray]) -> list[int]:
    """Map each target row to the index of its matching source row, or -1."""
    index = {key: row for row, key in enumerate(keys_of(source)) if key is not None}
    return [-1 if key is None else index.get(key, -1) for key in keys_of(target)]


def distinct(columns: list[pa.ChunkedArray]) -> list[pa.ChunkedArray]:
    """Keep the first row of each key without NULL, as a validated source does."""
    rows: dict[Any, int] = {}
    for row, key in enumerate(keys_of(columns)):
        if key is not None:
            rows.setdefault(key, row)
    return [c.take(pa.array(list(rows.values()), pa.int64())) for c in columns]


def check(source: list[pa.ChunkedArray], target: list[pa.ChunkedArray]) -> None:
    source = distinct(source)
    index = KeyIndex(source)
    wanted = expected(source, target)
    assert len(index) == len(source[0])
    assert index.find(target, (0, len(index))).tolist() == wanted
    found = index.find_in_ascending(target[0]) if len(target) == 1 else None
    if found is not None:
        assert dict(zip(*(side.tolist() for side in found), strict=True)) == {
            position: row for position, row in enumerate(wanted) if row >= 0
        }
    possible = index.matches_lead(target[index.lead], (0, len(index)))
    assert all(possible[position] for position, row in enumerate(wanted) if row >= 0)


# ----------------------------------------------------------------------------------------- every type, against a dict
@pytest.mark.parametrize("name", KEY_TYPES)
def test_the_values_of_every_key_type_are_found(name: str) -> None:
    values = TYPES[name][1]
    check([canonical(name, values)], [canonical(name, [*values, None, *reversed(values)], chunks=3)])
    check([canonical(name, values[:2])], [canonical(name, values)])
    check([canonical(name, [])], [canonical(name, values)])
    check([canonical(name, values)], [canonical(name, [])])
    check([canonical(name, values)], [canonical(name, [None, None])])


@given(st.data())
def test_random_keys_of_every_type_are_found(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(KEY_TYPES))
    pool = data.draw(st.lists(VALUES[name], min_size=1, max_size=12))
    some = st.lists(st.sampled_from(pool), max_size=15)
    source, target = data.draw(some), data.draw(st.lists(st.none() | st.sampled_from(pool), max_size=15))
    check([canonical(name, source, 2)], [canonical(name, target, 3)])


@given(st.data())
def test_random_composite_keys_are_found(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(KEY_TYPES), min_size=2, max_size=4))
    pools = [data.draw(st.lists(VALUES[name], min_size=1, max_size=4)) for name in names]
    row = st.tuples(*(st.sampled_from(pool) for pool in pools))
    loose = st.tuples(*(st.none() | st.sampled_from(pool) for pool in pools))
    source, target = data.draw(st.lists(row, max_size=20)), data.draw(st.lists(loose, max_size=20))
    check(
        [canonical(name, [r[i] for r in source]) for i, name in enumerate(names)],
        [canonical(name, [r[i] for r in target], 2) for i, name in enumerate(names)],
    )


def test_composite_keys_of_many_values_do_not_overflow() -> None:
    rng = np.random.default_rng(3)
    rows = rng.integers(0, 50_000, (50_000, 5))
    source = [pa.chunked_array([pa.array(rows[:, i])]) for i in range(5)]
    index = KeyIndex(source)
    mixed = rows.copy()
    mixed[::2, 4] = rows[::-1][::2, 4]  # every column value exists, the tuples of even rows (mostly) do not
    target = [pa.chunked_array([pa.array(mixed[:, i])]) for i in range(5)]
    known = {tuple(row): number for number, row in enumerate(rows.tolist())}
    assert index.find(target, (0, len(index))).tolist() == [known.get(tuple(row), -1) for row in mixed.tolist()]


# -------------------------------------------------------------------------------------------------- what is the same
def find(name: str, source: list[Any], target: list[Any]) -> list[int]:
    index = KeyIndex([canonical(name, source)])
    return index.find([canonical(name, target)], (0, len(index))).tolist()


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_nans_are_equal_and_zeros_are_equal(name: str) -> None:
    assert find(name, [NAN, 0.0], [OTHER_NAN, -0.0, NAN, 0.0, None, 1.0]) == [0, 1, 0, 1, -1, -1]
    assert find(name, [-0.0, OTHER_NAN], [0.0, NAN]) == [0, 1]
    assert find(name, [math.inf, -math.inf], [-math.inf, math.inf]) == [1, 0]


def test_null_does_not_equal_null() -> None:
    for name in KEY_TYPES:
        values = TYPES[name][1]
        index = KeyIndex([canonical(name, [values[0], None])])
        assert index.find([canonical(name, [None, values[0]])], (0, 2)).tolist() == [-1, 0]
    pair = [canonical("int64", [1, None, 1]), canonical("string", ["a", "a", None])]
    assert KeyIndex(pair).find(pair, (0, 3)).tolist() == [0, -1, -1]


def test_text_is_compared_by_bytes_in_all_text_types() -> None:
    assert find("string", ["é", "e\u0301", "A"], ["e\u0301", "é", "a"]) == [1, 0, -1]
    assert find("string", ["a\0", "a"], ["a", "a\0", "a\0\0"]) == [1, 0, -1]
    for name in ("string", "large_string", "string_view", "dictionary", "dictionary_int8"):
        assert canonical_type(TYPES[name][0]) == pa.large_string()
    for name in ("binary", "large_binary", "binary_view", "fixed_size_binary", "uuid", "dictionary_binary"):
        assert canonical_type(TYPES[name][0]) == pa.large_binary()


def test_timestamps_are_equal_in_every_time_zone() -> None:
    berlin = pa.chunked_array([pa.array([0, 1], pa.timestamp("us", "Europe/Berlin"))])
    tokyo = pa.chunked_array([pa.array([1, 0], pa.timestamp("us", "Asia/Tokyo"))])
    kind = pa.timestamp("us", "Asia/Tokyo")
    index = KeyIndex([canonical_keys(berlin, kind)])
    assert index.find([canonical_keys(tokyo, kind)], (0, 2)).tolist() == [1, 0]


@pytest.mark.parametrize("name", KEY_TYPES)
def test_canonical_keys_have_the_canonical_type_and_keep_nulls(name: str) -> None:
    kind, values = TYPES[name]
    keys = canonical(name, [values[0], None, values[1]], chunks=2)
    assert keys.type == canonical_type(kind)
    assert keys.is_null().to_pylist() == [False, True, False]
    assert canonical_type(canonical_type(kind)) == canonical_type(kind)
    assert canonical_keys(pa.chunked_array([], kind), kind).type == canonical_type(kind)


def test_nulls_in_a_dictionary_are_null() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), pa.array(["a", None]))
    assert canonical_keys(pa.chunked_array([values]), values.type).to_pylist() == ["a", None, None]


@pytest.mark.parametrize("name", [name for name in OTHERS if pa.types.is_nested(OTHERS[name][0])] + ["null"])
def test_nested_columns_are_rejected_as_keys(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="'k'"):
        require_key_type("k", TYPES[name][0])


@pytest.mark.parametrize("name", [*SCALARS, "bool", "duration_s", "json"])
def test_flat_columns_are_accepted_as_keys(name: str) -> None:
    require_key_type("k", TYPES[name][0])
    assert canonical(name, TYPES[name][1]).null_count == 0


# ----------------------------------------------------------------------------------------------- duplicates and spans
@given(st.lists(st.tuples(st.sampled_from([0.0, -0.0, NAN, OTHER_NAN, 1.5]), st.integers(0, 2)), max_size=20))
def test_repeated_returns_all_rows_but_one_of_each_key(rows: list[tuple[float, int]]) -> None:
    for columns in (1, 2):
        parts = [canonical("float64", [k for k, _ in rows]), canonical("int64", [n for _, n in rows])][:columns]
        keys = keys_of(parts)
        repeated = KeyIndex(parts).repeated().tolist()
        remaining = [key for row, key in enumerate(keys) if row not in set(repeated)]
        assert len(set(repeated)) == len(repeated)
        assert sorted(map(repr, remaining)) == sorted(map(repr, set(keys)))


def test_nulls_are_not_repeated_keys() -> None:
    assert KeyIndex([canonical("int64", [None, None, 1, 1])]).repeated().tolist() == [3]


@given(st.data())
def test_span_contains_every_key_of_a_range(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([n for n in KEY_TYPES if not n.startswith("float")]))
    values = data.draw(st.lists(VALUES[name], min_size=1, max_size=15))
    keys = distinct([canonical(name, values)])
    index = KeyIndex(keys)
    low, high = index.columns[0][0], index.columns[0][-1]
    assert index.span(low, high) == (0, len(index))
    assert index.span(None, None) == (0, len(index))
    assert index.span(pa.scalar(None, low.type), pa.scalar(None, low.type)) == (0, len(index))
    at = data.draw(st.integers(0, len(index) - 1))
    one = index.columns[0][at]
    assert index.span(one, one) == (at, at + 1)
    target = canonical(name, values)
    hits = index.find([target.filter(pa.array([v.equals(one) for v in target]))], (at, at + 1))
    assert set(hits.tolist()) == {expected(keys, [pa.chunked_array([pa.array([one], one.type)])])[0]}


@given(st.data())
def test_touches_returns_ranges_that_contain_a_key(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["int64", "string", "date32", "decimal128", "uint64", "timestamp_ns", "bool"]))
    values = data.draw(st.lists(VALUES[name], min_size=1, max_size=10))
    bounds = [sorted(pair) for pair in data.draw(st.lists(st.tuples(VALUES[name], VALUES[name]), max_size=6))]
    lows, highs = (contiguous(canonical(name, [pair[i] for pair in bounds])) for i in (0, 1))
    known = np.array([data.draw(st.booleans()) for _ in bounds], np.bool_)
    wanted = [not k or any(lo <= v <= hi for v in values) for (lo, hi), k in zip(bounds, known, strict=True)]
    first = KeyIndex([canonical(name, values)])
    assert first.touches(0, lows, highs, known).tolist() == wanted
    second = KeyIndex([canonical("int64", list(range(len(values)))), canonical(name, values)])
    assert second.touches(1, lows, highs, known).tolist() == wanted


def test_a_range_without_values_contains_no_key() -> None:
    """A column that is all NULL has exact statistics and no bounds."""
    index = KeyIndex([canonical("int64", [1, 2])])
    nothing = pa.nulls(2, pa.int64())
    assert index.touches(0, nothing, nothing, np.array([True, False])).tolist() == [False, True]


# -------------------------------------------------------------------------------------------------- sorted targets
ASCENDING = ["int8", "int64", "uint64", "date32", "time32_ms", "time64_ns", "timestamp_us", "timestamp_ns_+05:30"]


@given(st.data())
def test_find_in_ascending_targets(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(ASCENDING))
    target = sorted(set(data.draw(st.lists(VALUES[name], min_size=1, max_size=30))))
    source = data.draw(st.lists(st.sampled_from(target) | VALUES[name], max_size=20))
    columns = distinct([canonical(name, source)])
    index = KeyIndex(columns)
    ascending = canonical(name, target, 2)
    found = index.find_in_ascending(ascending)
    if not len(index):
        assert found is None or len(found[0]) == 0
        return
    assert found is not None
    positions, rows = found
    wanted = expected(columns, [ascending])
    assert positions.tolist() == sorted(positions.tolist()) or index._order is not None
    assert dict(zip(positions.tolist(), rows.tolist(), strict=True)) == {p: r for p, r in enumerate(wanted) if r >= 0}


@pytest.mark.parametrize(
    "target",
    [[3, 2, 1], [1, 1, 2], [1, None, 2], []],
    ids=["descending", "repeating", "with NULL", "empty"],
)
def test_find_in_ascending_rejects_other_targets(target: list[int | None]) -> None:
    index = KeyIndex([canonical("int64", [1, 2])])
    keys = canonical("int64", target)
    assert index.find_in_ascending(keys) is None
    check([canonical("int64", [1, 2])], [keys])


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 0, 3, 1, 2]], ids=["sorted", "unsorted"])
def test_find_in_ascending_numbers_equal_keys_without_a_search(order: list[int]) -> None:
    keys = pa.chunked_array([pa.array([10, 20, 30, 40, 50])]).take(pa.array(order))
    found = KeyIndex([keys]).find_in_ascending(pa.chunked_array([pa.array([20, 30, 40])]))
    assert found is not None
    positions, rows = found
    assert positions.tolist() == [0, 1, 2]
    assert keys.take(pa.array(rows)).to_pylist() == [20, 30, 40]
    assert not positions.flags.owndata  # a view, because a snapshot matches every row of a dataset


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("int8", -128),
        ("uint8", 0),
        ("int16", -200),
        ("int32", -(1 << 31)),
        ("int64", -(1 << 63)),
        ("uint64", (1 << 64) - 256),
    ],
)
@pytest.mark.parametrize("in_order", [True, False])
def test_find_in_ascending_numbers_consecutive_keys_without_a_search(kind: str, first: int, *, in_order: bool) -> None:
    values = [first + n for n in range(256)]
    wanted = [values[3], values[255], values[0]]
    source = sorted(wanted) if in_order else wanted
    index = KeyIndex([pa.chunked_array([pa.array(source, kind)])])
    found = index.find_in_ascending(pa.chunked_array([pa.array(values, kind)]))
    assert found is not None
    assert dict(zip(found[0].tolist(), found[1].tolist(), strict=True)) == {
        values.index(key): source.index(key) for key in source
    }


def test_find_in_ascending_supports_only_single_numeric_keys() -> None:
    for name in ("string", "float64", "decimal128", "binary"):
        keys = canonical(name, sorted(TYPES[name][1][:2]))
        assert KeyIndex([keys]).find_in_ascending(keys) is None
    numbers = canonical("int64", [1, 2])
    assert KeyIndex([numbers, numbers]).find_in_ascending(numbers) is None


def test_rows_map_sorted_positions_to_source_rows() -> None:
    ascending = KeyIndex([canonical("int64", [1, 5, 9])])
    descending = KeyIndex([canonical("int64", [9, 5, 1])])
    assert ascending.rows(np.array([0, 2])).tolist() == [0, 2]
    assert descending.rows(np.array([0, 2])).tolist() == [2, 0]
    assert descending.columns[0].to_pylist() == [1, 5, 9]


def test_the_column_with_the_most_values_leads() -> None:
    few, many = canonical("int64", [i % 2 for i in range(50)]), canonical("string", [f"k{i}" for i in range(50)])
    assert KeyIndex([few, many]).lead == 1
    assert KeyIndex([many, few]).lead == 0
    assert KeyIndex([many]).lead == 0


@given(st.data())
def test_range_numbers_are_equal_for_equal_keys_and_ascend(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([n for n in KEY_TYPES if not n.startswith("float")]))
    values = data.draw(st.lists(VALUES[name], min_size=1, max_size=15))
    index = KeyIndex(distinct([canonical(name, values)]))
    cuts = index.columns[0].take(pa.array(range(0, len(index), 3)))
    keys = canonical(name, [None, *values])
    numbers = KeyIndex.range_numbers(cuts, contiguous(keys))
    assert numbers[0] == 0
    assert len({(key, int(p)) for key, p in zip(keys_of([keys]), numbers, strict=True)}) == len(set(keys_of([keys])))
    in_order = KeyIndex.range_numbers(cuts, index.columns[0])
    assert (np.diff(in_order) >= 0).all()
    assert in_order.max() <= len(cuts)


def test_columns_are_sorted_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index = KeyIndex([pa.chunked_array([[1, 2, 3]]), pa.chunked_array([[9, 7, 8]])])
    known = np.ones(1, np.bool_)
    assert index.touches(1, pa.array([7]), pa.array([7]), known).tolist() == [True]
    monkeypatch.setattr(keys.pc, "sort_indices", None)
    assert index.touches(1, pa.array([1]), pa.array([6]), known).tolist() == [False]
    assert index.touches(1, pa.array([8]), pa.array([20]), known).tolist() == [True]
