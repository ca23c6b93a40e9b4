"""Tests of column statistics over a real table, compared with plain Python."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.query import QueryEngine, Table
from inlay.query.values import text_values
from inlay.web.dataset import columns as module
from inlay.web.dataset.columns import Profile, profile
from inlay.web.dataset.schema import kind_of

NAME = 'a "column" <img src=x onerror=alert(1)>'


class OneTable:
    """Return a function that writes values to a table and profiles it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "data.parquet"
        self.schema = pa.schema([])

    def put(self, values: list[Any], type_: pa.DataType) -> None:
        self.schema = pa.schema([(NAME, type_)])
        pq.write_table(pa.table([pa.array(values, type_)], schema=self.schema), self.path, row_group_size=7)

    def find(self, name: str, version: int | None) -> Table | None:
        return Table(self.schema, [str(self.path)])

    def names(self) -> list[str]:
        return ["t"]


Look = Callable[[list[Any], pa.DataType], Profile]


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    tables = OneTable(tmp_path_factory.mktemp("profile"))
    with QueryEngine(tables, spill_dir=tables.path.parent / "spill", threads=2) as queries:

        def ask(sql: str) -> pa.Table:
            with queries.run(sql) as result:
                return result.read_all()

        def found(values: list[Any], type_: pa.DataType) -> Profile:
            tables.put(values, type_)
            return profile(ask, "datasets.t", tables.schema.field(0), len(values))

        yield found


integers = st.integers(-(2**63), 2**63 - 1) | st.integers(-30, 30)
moments = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))  # noqa: DTZ001
CASES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), integers),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "ubigint": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "double": (pa.float64(), st.floats()),
    "real": (pa.float32(), st.floats(width=32)),
    "decimal": (pa.decimal128(12, 3), st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-3))),
    "date": (pa.date32(), moments.map(dt.datetime.date)),
    "timestamp": (pa.timestamp("us"), moments),
    "zoned": (pa.timestamp("ms", "UTC"), moments.map(lambda m: m.replace(microsecond=0, tzinfo=dt.UTC))),
    "time": (pa.time64("us"), st.times()),
    "seconds": (pa.time32("s"), st.times().map(lambda t: t.replace(microsecond=0))),
    "text": (pa.string(), st.sampled_from(["", "a", "A", "it's", "ä", "NULL"]) | st.text(st.characters(codec="utf-8"))),
    "boolean": (pa.bool_(), st.booleans()),
}


def texts(values: list[Any], type_: pa.DataType) -> list[str]:
    return [str(text) for text in text_values(pa.array(values, type_))]


def as_stored(values: list[Any], type_: pa.DataType) -> list[Any]:
    return list(pa.array(values, type_).to_pylist())


@pytest.mark.parametrize("case", CASES)
def test_profile_matches_statistics_computed_in_python(look: Look, case: str) -> None:
    type_, one = CASES[case]

    @settings(max_examples=25)
    @given(values=st.lists(st.none() | one, max_size=40))
    def check(values: list[Any]) -> None:
        found = look(values, type_)
        real = [value for value in as_stored(values, type_) if value is not None]
        comparable = [value for value in real if not (isinstance(value, float) and math.isnan(value))]
        assert (found.rows, found.nulls) == (len(values), len(values) - len(real))
        assert found.nans == len(real) - len(comparable)
        assert found.distinct in (len(set(comparable)), len(set(map(repr, comparable))))  # 0.0 and -0.0 may be one
        if found.kind != "boolean":
            check_bounds(found, comparable, type_)
        if found.kind == "number":
            check_mean(found, comparable)
        check_bars(found, comparable, type_)

    check()


def check_bounds(found: Profile, comparable: list[Any], type_: pa.DataType) -> None:
    if not comparable:
        assert found.low is found.high is None
        return
    key = (lambda text: text.encode()) if found.kind == "text" else None
    expected = texts([min(comparable, key=key), max(comparable, key=key)], type_)
    assert [str(found.low).replace("-0.0", "0.0"), str(found.high).replace("-0.0", "0.0")] == [
        text.replace("-0.0", "0.0") for text in expected
    ]


def check_mean(found: Profile, comparable: list[Any]) -> None:
    if not comparable:
        assert found.mean is None
    elif all(map(math.isfinite, comparable)) and max(map(abs, comparable)) < 1e300:
        scale = max(1.0, *(abs(float(value)) for value in comparable))
        assert found.mean is not None
        assert abs(found.mean - statistics.fmean(map(float, comparable))) <= scale * 1e-9


def check_bars(found: Profile, comparable: list[Any], type_: pa.DataType) -> None:
    finite = [value for value in comparable if not isinstance(value, float) or math.isfinite(value)]
    if found.kind in ("text", "boolean"):
        frequent = sorted(Counter(comparable).items(), key=lambda item: (-item[1], _bytes(item[0])))[: len(found.bars)]
        labels = texts([value for value, _ in frequent], type_)
        assert [(bar.label, bar.rows) for bar in found.bars] == [
            (t, n) for t, (_, n) in zip(labels, frequent, strict=True)
        ]
        assert found.counted == len(comparable)
    else:
        assert sum(bar.rows for bar in found.bars) == len(finite)
        assert len(found.bars) <= module._BINS
        if finite:
            assert found.bars[0].rows
            assert found.bars[-1].rows


def _bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


@given(values=st.lists(st.integers(-500, 500), min_size=1, max_size=60))
@settings(max_examples=20)
def test_integer_bins_have_equal_width(look: Look, values: list[int]) -> None:
    found = look(values, pa.int64())
    low, width = min(values), math.ceil((max(values) - min(values) + 1) / module._BINS)
    counts = Counter((value - low) // width for value in values)
    assert [bar.rows for bar in found.bars] == [counts[step] for step in range((max(values) - low) // width + 1)]
    first = found.bars[0].label.split(" to ")
    assert first[0] == f"{low:,}"
    assert first[-1] == f"{min(low + width - 1, max(values)):,}"


def test_bars_have_labels(look: Look) -> None:
    days = [dt.date(2024, 1, 1) + dt.timedelta(days=day) for day in range(40)]
    assert [bar.label for bar in look(days, pa.date32()).bars[:2]] == [
        "2024-01-01 to 2024-01-02", "2024-01-03 to 2024-01-04",
    ]  # fmt: skip
    assert [tuple(bar) for bar in look([7, 7, 9], pa.int64()).bars] == [("7", 2), ("8", 0), ("9", 1)]
    assert [tuple(bar) for bar in look([0.5, 0.5], pa.float64()).bars] == [("0.5", 2)]
    assert look([0.0, 10.0], pa.float64()).bars[0].label == "0 to 0.5"


def test_unique_values_are_recognized(look: Look) -> None:
    assert look(["a", "b", None], pa.string()).is_unique
    assert not look(["a", "b", "a"], pa.string()).is_unique
    assert not look(["a"], pa.string()).is_unique
    assert not look([], pa.string()).is_unique


def test_profile_of_nested_values_counts_only_nulls(look: Look) -> None:
    for type_, value in ((pa.list_(pa.int64()), [1]), (pa.struct([("a", pa.int64())]), {"a": 1}), (pa.binary(), b"x")):
        assert kind_of(type_) == "other"
        found = look([value, None], type_)
        assert (found.nulls, found.distinct, found.bars) == (1, None, ())


def test_profile_of_many_rows_is_an_estimate(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT_ROWS", 1000)
    monkeypatch.setattr(module, "_SAMPLE_ROWS", 2000)
    found = look([f"value {number % 4}" for number in range(8000)], pa.string())
    assert not found.is_exact
    assert not found.is_unique
    assert found.distinct == 4
    assert {bar.label for bar in found.bars} == {f"value {number}" for number in range(4)}
    assert 0 < found.counted < 8000
    assert sum(bar.rows for bar in found.bars) == found.counted
    numbers = look([float(number % 500) for number in range(8000)], pa.float64())
    assert sum(bar.rows for bar in numbers.bars) == 8000  # the spread of numbers is never a sample's
    assert numbers.distinct is not None
    assert abs(numbers.distinct - 500) < 50
