"""Operations on columns, checked against plain Python for every type."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.engines import columns
from inlay.engines.columns import bit_equal, filter_rows, filter_values, replace_rows
from tests import lake, oracle
from tests.arrow_types import TYPES, array_of

NAN = math.nan
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]


def chunked(kind: pa.DataType, values: list[Any], chunks: int = 1) -> pa.ChunkedArray:
    size = max(1, -(-len(values) // chunks))
    return pa.chunked_array([array_of(kind, values[i : i + size]) for i in range(0, len(values), size)], kind)


def exact(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return Python values that are equal if and only if they have the same bits."""
    return lake.exact_rows([{"v": lake.plain(value)} for value in column])


# --------------------------------------------------------------------------------------------------------- equality
def test_oracle_distinguishes_bits() -> None:
    assert oracle.exact_row({"v": 0.0}) != oracle.exact_row({"v": -0.0})
    assert oracle.exact_row({"v": NAN}) == oracle.exact_row({"v": NAN})
    assert oracle.exact_row({"v": None}) != oracle.exact_row({"v": 0})


@pytest.mark.parametrize("name", TYPES)
def test_bit_equal_agrees_with_python_for_every_type(name: str) -> None:
    kind, values = TYPES[name]
    rows = [*values, None]
    pairs = [(a, b) for a in rows for b in rows]
    left, right = array_of(kind, [a for a, _ in pairs]), array_of(kind, [b for _, b in pairs])
    wanted = [a == b for a, b in zip(exact(left), exact(right), strict=True)]
    assert bit_equal(left, right).tolist() == wanted
    assert bit_equal(left.slice(3, 11), right.slice(3, 11)).tolist() == wanted[3:14]
    assert bit_equal(left.slice(5), right.slice(0, len(right) - 5)).tolist() == [
        a == b for a, b in zip(exact(left)[5:], exact(right)[:-5], strict=True)
    ]
    assert bit_equal(left, left).all()
    assert bit_equal(left.slice(0, 0), right.slice(0, 0)).tolist() == []


@given(st.data())
def test_bit_equal_agrees_with_python_at_random(data: st.DataObject) -> None:
    kind, values = TYPES[data.draw(st.sampled_from(list(TYPES)))]
    one = st.none() | st.sampled_from(values)
    pairs = data.draw(st.lists(st.tuples(one, one), max_size=12))
    left, right = (array_of(kind, [pair[i] for pair in pairs]) for i in (0, 1))
    wanted = [a == b for a, b in zip(exact(left), exact(right), strict=True)]
    assert bit_equal(left, right).tolist() == wanted
    start, length = data.draw(st.integers(0, 6)), data.draw(st.integers(0, 6))
    cut = slice(start, start + length)
    assert bit_equal(left.slice(start, length), right.slice(start, length)).tolist() == wanted[cut]


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_bit_equal_distinguishes_nans_and_signed_zeros(kind: pa.DataType) -> None:
    left = pa.array([NAN, NAN, 0.0, 0.0, None, 1.0], kind)
    right = pa.array([NAN, OTHER_NAN, -0.0, 0.0, None, None], kind)
    assert bit_equal(left, right).tolist() == [True, False, False, True, True, False]
    nested = [pa.ListArray.from_arrays(pa.array(range(7), pa.int32()), side) for side in (left, right)]
    assert bit_equal(*nested).tolist() == [True, False, False, True, True, False]


def test_bit_equal_ignores_values_under_nulls() -> None:
    mask = pa.array([True, False])
    left = pa.StructArray.from_arrays([pa.array([1, 2])], ["x"], mask=mask)
    right = pa.StructArray.from_arrays([pa.array([9, 2])], ["x"], mask=mask)
    assert bit_equal(left, right).tolist() == [True, True]
    offsets = pa.array([0, 2, 3], pa.int32())
    lists = [pa.ListArray.from_arrays(offsets, pa.array(values), mask=mask) for values in ([1, 2, 3], [7, 8, 3])]
    assert bit_equal(*lists).tolist() == [True, True]


def test_bit_equal_compares_dictionaries_by_value() -> None:
    left = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int8()), pa.array(["a", "b", None]))
    right = pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, None], pa.int8()), pa.array(["b", "a", None]))
    assert bit_equal(left, right).tolist() == [True, True, True, True]


def test_bit_equal_distinguishes_lists_of_different_lengths() -> None:
    kind = pa.list_(pa.int64())
    left, right = pa.array([[1], [2, 3], [], [1]], kind), pa.array([[1, 2], [3], [], [1]], kind)
    assert bit_equal(left, right).tolist() == [False, False, True, True]


# ------------------------------------------------------------------------------------------------------ replacement
@pytest.mark.parametrize("name", TYPES)
def test_replace_rows_agrees_with_python_for_every_type(name: str) -> None:
    kind, values = TYPES[name]
    old, new = [*values, None, *values], [values[1], None, values[4]]
    for positions in ([0, 5, 10], [4, 5, 6], [2, 3, 9]):
        wanted = exact(chunked(kind, old))
        for position, value in zip(positions, exact(chunked(kind, new)), strict=True):
            wanted[position] = value
        result = replace_rows(chunked(kind, old, 3), np.array(positions), chunked(kind, new, 2))
        assert result.type == kind
        assert exact(result) == wanted
        result.validate(full=True)


@pytest.mark.parametrize("name", TYPES)
def test_filters_agree_with_python_for_every_type(name: str) -> None:
    kind, values = TYPES[name]
    column = chunked(kind, [*values, None, *values], 3)
    mask = np.arange(len(column)) % 3 != 1
    wanted = [value for value, keep in zip(exact(column), mask, strict=True) if keep]
    kept = filter_rows(pa.table({"v": column}), mask)["v"]
    plain = filter_values(columns.contiguous(column), mask)
    assert kept.type == plain.type == kind
    assert exact(kept) == exact(pa.chunked_array([plain])) == wanted
    plain.validate(full=True)


@given(st.data())
def test_replace_rows_agrees_with_python_at_random(data: st.DataObject) -> None:
    kind, values = TYPES[data.draw(st.sampled_from(list(TYPES)))]
    one = st.none() | st.sampled_from(values)
    old = data.draw(st.lists(one, min_size=1, max_size=12))
    positions = sorted(data.draw(st.sets(st.integers(0, len(old) - 1), max_size=len(old))))
    new = data.draw(st.lists(one, min_size=len(positions), max_size=len(positions)))
    wanted = exact(chunked(kind, old))
    for position, value in zip(positions, exact(chunked(kind, new)), strict=True):
        wanted[position] = value
    fresh = chunked(kind, new, 2) if new else pa.chunked_array([array_of(kind, [])], kind)
    result = replace_rows(chunked(kind, old, data.draw(st.integers(1, 3))), np.array(positions, np.int64), fresh)
    assert exact(result) == wanted


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_replace_rows_of_small_and_large_text(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(columns, "_GATHER_BYTES", limit)
    for kind in (pa.string(), pa.binary(), pa.large_string()):
        column = chunked(pa.string(), ["a", None, "b", "c"], 2).cast(kind)
        result = replace_rows(column, np.array([0, 3]), chunked(pa.string(), [None, "longer"]).cast(kind))
        assert result.cast(pa.string()).to_pylist() == [None, None, "b", "longer"]


def test_replace_rows_adds_dictionary_values() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    result = replace_rows(chunked(kind, ["a", "b", "a"]), np.array([1]), chunked(kind, ["z"]))
    assert (result.type, result.to_pylist()) == (kind, ["a", "z", "a"])
