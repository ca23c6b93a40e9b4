"""Conversions between Arrow and numpy, compared with those of pyarrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.arrays import from_binary, from_integers, from_numpy, from_texts, scalar, to_numpy

INTEGERS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))
BOOLEANS = st.lists(st.none() | st.booleans())


@given(BOOLEANS | st.lists(st.none() | st.floats(allow_nan=False)) | INTEGERS, st.integers(0, 20), st.booleans())
def test_to_numpy_reads_slices_and_fills_nulls(values: list[float | None], start: int, chunked: bool) -> None:
    array = pa.array(values, None if any(v is not None for v in values) else pa.int64())
    part = array.slice(start)
    column = pa.chunked_array([part.slice(0, 1), part.slice(1)]) if chunked else part
    assert to_numpy(column, 1).tolist() == [1 if value is None else value for value in values[start:]]


def test_to_numpy_refuses_nulls_without_a_value_for_them() -> None:
    with pytest.raises(ValueError, match="1 values are NULL"):
        to_numpy(pa.array([1, None]))


def test_to_numpy_keeps_integers_exact_when_it_fills_nulls() -> None:
    assert to_numpy(pa.array([2**64 - 1, None], pa.uint64()), 0).tolist() == [2**64 - 1, 0]
    assert to_numpy(pa.array([127, None], pa.int8()), 200).tolist() == [127, 200]
    assert to_numpy(pa.array([1, None], pa.int8()), -1).tolist() == [1, -1]


def test_to_numpy_of_no_rows() -> None:
    assert to_numpy(pa.chunked_array([], pa.int32())).dtype == np.int32
    assert to_numpy(pa.nulls(0, pa.bool_())).dtype == np.bool_


@given(st.lists(st.booleans() | st.integers(0, 1)), st.data())
def test_from_numpy_makes_unknown_values_null(values: list[int], data: st.DataObject) -> None:
    known = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    for array in (np.array(values, np.bool_), np.array(values, np.int16), np.array(values, np.float64)[::-1][::-1]):
        made = from_numpy(array, np.array(known, np.bool_))
        made.validate(full=True)
        assert made.equals(pa.array(array, mask=~np.array(known, np.bool_)))
        assert from_numpy(array).equals(pa.array(array))


@given(INTEGERS)
def test_from_integers(values: list[int | None]) -> None:
    assert from_integers(values, pa.int64()).equals(pa.array(values, pa.int64()))


def test_from_integers_refuses_other_values() -> None:
    assert from_integers([2**64 - 1, None], pa.uint64()).equals(pa.array([2**64 - 1, None], pa.uint64()))
    assert from_integers([True, None, False], pa.bool_()).equals(pa.array([True, None, False]))
    with pytest.raises(OverflowError):
        from_integers([2**64], pa.int64())
    with pytest.raises(pa.ArrowInvalid):
        from_integers([300], pa.int8())
    with pytest.raises(TypeError):
        from_integers([b"12"], pa.int64())


@given(st.lists(st.none() | st.binary()), st.lists(st.text()))
def test_from_binary_and_texts(values: list[bytes | None], texts: list[str]) -> None:
    made = from_binary(values)
    made.validate(full=True)
    assert made.equals(pa.array(values, pa.large_binary()))
    assert from_texts(texts).equals(pa.array(texts, pa.string()))


def test_scalar() -> None:
    assert scalar(2.5, pa.float32()).equals(pa.scalar(2.5, pa.float32()))
    assert scalar(True, pa.bool_()).as_py() is True
