"""Cells of text against Decimal, float and datetime: a value is read exactly, or as its type allows, or not at all."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inlay.text.cells import Reading, convert
from inlay.text.inference import infer

_DIGITS = st.text("0123456789", min_size=1, max_size=45)
NUMBERS = st.one_of(
    st.tuples(st.sampled_from(["", "-"]), _DIGITS, st.one_of(st.just(""), _DIGITS.map(".{}".format))).map("".join),
    st.tuples(st.integers(-(10**40), 10**40), st.integers(-80, 80)).map("{0[0]}e{0[1]}".format),
    st.integers(0, 80).map(lambda zeros: "4" + "0" * zeros),
    st.integers(0, 60).map(lambda zeros: "1." + "5" + "0" * zeros),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.sampled_from(["9" * 38, "9" * 39, "9" * 77, "1e400", "1e-400", "1e39", "1e-60", "70000", "16777217", "2049"]),
)


def _read(cells: list[str], type_: pa.DataType, **more: Any) -> list[Any]:
    """Values, and NULL for bad cells; nothing else is NULL here."""
    found = convert(pa.array(cells, pa.string()), Reading(type_, fixed=True, **more))
    bad = np.zeros(len(cells), bool) if found.bad is None else found.bad
    values: list[Any] = found.values.to_pylist()
    assert [value is None for value in values] == bad.tolist()
    return values


@st.composite
def decimals(draw: st.DrawFn) -> pa.DataType:
    precision = draw(st.one_of(st.just(38), st.just(76), st.integers(1, 76)))
    scale = draw(st.integers(0, precision))
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _fits(number: Decimal, type_: pa.DataType) -> bool:
    digits = f"{number.copy_abs():f}".partition(".")
    return len(digits[0].lstrip("0")) <= type_.precision - type_.scale and len(digits[2].rstrip("0")) <= type_.scale


@given(st.lists(NUMBERS, min_size=1, max_size=10), decimals())
@example(["1", "9" * 39], pa.decimal128(38, 0))
@example(["4" + "0" * 36], pa.decimal128(38, 2))
@example(["9" * 78], pa.decimal256(76, 0))
@example(["9" * 38], pa.decimal128(38, 0))
def test_decimals_are_exact_or_rejected(cells: list[str], type_: pa.DataType) -> None:
    wanted = [Decimal(cell) if _fits(Decimal(cell), type_) else None for cell in cells]
    assert _read(cells, type_) == wanted


@given(st.lists(NUMBERS, min_size=1, max_size=10), st.sampled_from([pa.float64(), pa.float32(), pa.float16()]))
@example(["9007199254740993", "10000000000000001.0", "1" * 400], pa.float64())
@example(["16777217", "1e-60", "123456789.12"], pa.float32())
@example(["70000"], pa.float16())
def test_floats_round_only_fractions(cells: list[str], type_: pa.DataType) -> None:
    step = {64: 2.0**-52, 32: 2.0**-22, 16: 2.0**-9}[type_.bit_width]
    tiny = {64: 5e-324, 32: 2.0**-148, 16: 2.0**-23}[type_.bit_width]
    for cell, value in zip(cells, _read(cells, type_), strict=True):
        number = Decimal(cell)
        is_integer = re.fullmatch(r"-?[0-9]+(\.0*)?", cell) is not None
        with np.errstate(over="ignore"):
            nearest = float(type_.to_pandas_dtype()(float(cell)))
        is_lost = math.isinf(nearest) or (nearest == 0 and number != 0) or (is_integer and Decimal(nearest) != number)
        if value is None:
            assert is_lost
        else:
            assert not is_lost
            assert abs(Decimal(float(value)) - number) <= max(abs(number) * Decimal(step), Decimal(tiny))


@pytest.mark.parametrize("type_", [pa.int64(), pa.int32(), pa.uint64(), pa.decimal128(20, 0), pa.float64()])
def test_hexadecimal_is_not_a_number(type_: pa.DataType) -> None:
    assert _read(["0xABCDEF", "5"], type_) == [None, 5]


@given(st.lists(st.text("0123456789abcdefx+-. ", max_size=12).filter(str.strip), min_size=1, max_size=8))
@example(["0xABCDEF"])
def test_integers_are_exact_or_rejected(cells: list[str]) -> None:
    is_integer = [re.fullmatch(r"\s*[+-]?[0-9]+\s*", cell) is not None for cell in cells]
    assert _read(cells, pa.int64()) == [int(c) if good else None for c, good in zip(cells, is_integer, strict=True)]


@pytest.mark.parametrize(
    ("cells", "more", "wanted"),
    [
        (["31/12/2024", "n/a"], {"form": "day first"}, ["2024-12-31", None]),
        (["12/31/2024", "n/a"], {"form": "month first"}, ["2024-12-31", None]),
        (["31.12.2024", "2024-12-31", "2024/12/31", "x", "31/12/2024"], {}, ["2024-12-31"] * 3 + [None, None]),
        (["2024-02-30", "30.02.2024", " 2024-02-29 "], {}, [None, None, "2024-02-29"]),
    ],
)
def test_fixed_dates_accept_every_form(cells: list[str], more: dict[str, str], wanted: list[str | None]) -> None:
    assert [value and str(value) for value in _read(cells, pa.date32(), **more)] == wanted


@pytest.mark.parametrize(
    ("cells", "day_first", "form"),
    [
        (["31/12/2024", "01/02/2024", "n/a"], None, "day first"),
        (["n/a", "12/31/2024 10:00", "01/02/2024"], None, "month first"),
        (["n/a", "01/02/2024"], None, "iso"),
        (["n/a", "01/02/2024"], True, "day first"),
        (["n/a", "31/12/2024", "30/12/2024", "12/31/2024"], None, "day first"),
        (["x", "y"], None, "iso"),
    ],
)
def test_the_usual_date_order_of_a_text_column_is_detected(cells: list[str], day_first: bool | None, form: str) -> None:
    kind = infer(pa.array(cells), day_first)
    assert (kind.family, kind.form) == ("text", form)


@pytest.mark.parametrize(
    ("cell", "second"),
    [("10:00:01.000", 1), ("10:00:01.0", 1), ("10:00:01", 1), ("10:00:01.5", None), ("10:00:01.050", None),
     ("10:00:010", None), ("10:00:01.0.0", None), ("10:00:01.", None), ("1.0", None)],
)  # fmt: skip
def test_trailing_zeros_of_a_fraction_are_ignored(cell: str, second: int | None) -> None:
    for type_ in (pa.timestamp("s"), pa.timestamp("s", "UTC"), pa.time32("s")):
        day = "" if pa.types.is_time(type_) else "2024-01-31 "
        zone = "Z" if getattr(type_, "tz", None) else ""
        found = _read([f"{day}{cell}{zone}"], type_)[0]
        assert found is None if second is None else found.second == second
    assert _read(["2024-01-31 10:00:01.0.0", "2024-01-31 10:00:01.1.0"], pa.timestamp("ms")) == [None, None]
