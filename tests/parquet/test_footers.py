"""Footers: exact, inexact and unknown ranges, and the footer cache."""

from __future__ import annotations

import datetime as dt
import functools
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.engines.keys import KeyIndex, canonical_keys, canonical_type
from inlay.errors import UnreadableFileError
from inlay.incremental import ParquetMetadataAnalyzer
from inlay.incremental.prune import possible_files
from inlay.parquet import footers as footers_module
from inlay.parquet.footer_cache import FooterCache, Footers, read_footers
from inlay.parquet.footers import (
    UNKNOWN,
    ColumnRange,
    bound_arrays,
    column_ranges,
    group_ranges,
    merge_ranges,
    open_parquet,
    python_range,
)
from inlay.parquet.layout import data_files
from inlay.storage import FileStat, LocalStore, Location, locate
from tests import lake
from tests.arrow_types import TYPES, array_of
from tests.merge_cases import KEY_VALUES

# --------------------------------------------------------------------------------------------------------- writers


def write_duckdb(table: pa.Table, path: Path) -> None:
    with duckdb.connect() as connection:
        connection.from_arrow(table).write_parquet(str(path))


def write_polars(table: pa.Table, path: Path) -> None:
    pl.DataFrame(table).write_parquet(path)


def write_datafusion(table: pa.Table, path: Path) -> None:
    context = datafusion.SessionContext()
    context.from_arrow(table, "t")
    context.sql(f"COPY t TO '{path}' STORED AS PARQUET").collect()


WRITERS: dict[str, Callable[[pa.Table, Path], None]] = {
    "pyarrow": pq.write_table,
    "pyarrow v2": lambda table, path: pq.write_table(table, path, data_page_version="2.0", version="2.6"),
    "duckdb": write_duckdb,
    "polars": write_polars,
    "datafusion": write_datafusion,
}
CREATED_BY = b"parquet-cpp-arrow version " + pa.__version__.encode()


def by_unknown_writer(path: Path) -> None:
    """Change the name of the writer of a file."""
    data = path.read_bytes()
    assert data.count(CREATED_BY) == 1
    path.write_bytes(data.replace(CREATED_BY, b"homegrown".ljust(len(CREATED_BY))))


def ranges(path: Path, column: str = "k") -> list[ColumnRange]:
    metadata = pq.read_metadata(path)
    return column_ranges(metadata, metadata.schema.to_arrow_schema(), column)


def stated(path: Path, column: str = "k") -> dict[str, Any]:
    kind = pq.read_schema(path).field(column).type
    return python_range(merge_ranges(ranges(path, column)), kind)


def written(folder: Path, writer: str, kind: pa.DataType, values: list[Any]) -> Path:
    path = folder / f"{writer}-{len(os.listdir(folder))}.parquet"
    WRITERS[writer](pa.table({"k": array_of(kind, values)}), path)
    return path


# ------------------------------------------------------------------------------------------------------- exactness
#: type -> values; low and high are the first and the last
EXACT: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 0, 127]),
    "int32": (pa.int32(), [-(2**31), 0, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 5, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint32": (pa.uint32(), [1, 2**31, 2**32 - 1]),
    "uint64": (pa.uint64(), [1, 2**63, 2**64 - 1]),
    "bool": (pa.bool_(), [False, True]),
    "string": (pa.string(), ["", "Z", "a", "é", "日", "\U0001f600"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x7f", b"\xff"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "timestamp us": (pa.timestamp("us"), [-(2**50), -1, 0, 2**50]),
    "timestamp zoned": (pa.timestamp("us", "UTC"), [-1, 0, 2**50]),
    "time": (pa.time64("us"), [0, 1, 86_399_999_999]),
    "decimal of 9": (pa.decimal128(9, 2), [Decimal("-9999999.99"), Decimal("0.00"), Decimal("9999999.99")]),
    "decimal of 18": (pa.decimal128(18, 4), [Decimal("-1.0000"), Decimal("99999999999999.9999")]),
    "decimal of 38": (pa.decimal128(38, 10), [Decimal(-(10**27)), Decimal("0E-10"), Decimal(10**27)]),
}

# Releases of these compare them wrongly, which is seen only in files with several pages.
DOUBTED = {("uint64", "polars"), ("decimal of 38", "polars"), ("decimal of 38", "datafusion")}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_ranges_equal_the_values(tmp_path: Path, writer: str, name: str) -> None:
    kind, values = EXACT[name]
    path = written(tmp_path, writer, kind, [*values[1:], None, values[0]])
    found = stated(path)
    column = lake.read_file(path).column("k")
    if (name, writer) in DOUBTED:
        assert found["exactness"] == "unknown"
        return
    assert found["exactness"] == "exact"
    assert found["null_count"] == 1
    assert pa.array([found["min"], found["max"]], column.type).equals(
        pa.array([column.drop_null().take([len(values) - 1])[0], column.drop_null().take([len(values) - 2])[0]])
    )


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(
    "values",
    [[1.5, 2.5], [-1.5, 0.25], [-2.5, -1.5], [-0.0, 0.0], [0.0], [-math.inf, math.inf], [-1e-40, 3e38]],
    ids=str,
)
def test_ranges_of_floats_equal_the_values(tmp_path: Path, writer: str, values: list[float]) -> None:
    kinds = [pa.float32(), pa.float64(), *([] if writer == "duckdb" or 3e38 in values else [pa.float16()])]
    for kind in kinds:
        path = written(tmp_path, writer, kind, [*values[1:], None, values[0]])
        found, stored = stated(path), lake.read_file(path).column("k").drop_null().to_pylist()
        assert (found["exactness"], found["min"], found["max"]) == ("exact", min(stored), max(stored))
        assert math.copysign(1, found["min"]) == (-1 if found["min"] < 0 else 1), "-0.0 and 0.0 are one bound"


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_nan_is_never_a_bound(tmp_path: Path, writer: str, kind: pa.DataType) -> None:
    assert stated(written(tmp_path, writer, kind, [math.nan]))["exactness"] == "unknown"
    found = stated(written(tmp_path, writer, kind, [1.5, math.nan, -1.5]))
    assert (found["min"], found["max"]) in [(-1.5, 1.5), (None, None)]


class NanBounds(NamedTuple):
    """The statistics of a writer that compares NaN like a number."""

    min_raw: float
    max_raw: float
    has_min_max: bool = True
    has_null_count: bool = False


@pytest.mark.parametrize("bounds", [(math.nan, 1.0), (1.0, math.nan), (math.nan, math.nan), (-math.nan, 1.0)])
def test_a_nan_bound_makes_the_range_unknown(bounds: tuple[float, float]) -> None:
    chunk: Any = SimpleNamespace(is_stats_set=True, statistics=NanBounds(*bounds))
    assert footers_module._chunk_range(chunk, footers_module._float_bound) == UNKNOWN


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("character", ["a", "é", "日", "\U0001f600", "\U0010ffff"])
def test_long_bounds_are_inexact(tmp_path: Path, writer: str, character: str) -> None:
    """Writers silently truncate bounds at 64 or 256 bytes, or at the end of the character before."""
    for size in (60, 61, 62, 63, 64, 65, 100, 255, 256, 257, 400):
        text = (character * size).encode()[:size].decode(errors="ignore")
        for value, kind in ((text + "x", pa.string()), (text.encode() + b"x", pa.binary())):
            path = written(tmp_path, writer, kind, [value])
            found = merge_ranges(ranges(path))
            raw = value.encode() if isinstance(value, str) else value
            assert found.exactness in ("exact", "inexact", "unknown")
            if found.exactness == "exact":
                assert (found.low, found.high) == (raw, raw)
            if len(raw) > 63:
                assert found.exactness != "exact"
            path.unlink()
    short = ["a" * 59, character]
    assert stated(written(tmp_path, writer, pa.string(), short))["exactness"] == "exact"


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.timestamp("us")], ids=str)
def test_range_of_only_nulls_is_exact(tmp_path: Path, writer: str, kind: pa.DataType) -> None:
    found = merge_ranges(ranges(written(tmp_path, writer, kind, [None, None])))
    assert found in (ColumnRange("exact", None, None, 2), UNKNOWN)
    if writer.startswith("pyarrow"):
        assert found.exactness == "exact"


@pytest.mark.parametrize("created_by", [b"homegrown", b"", b"parquet-mr version 1.8.1", b"fastparquet version 2024"])
def test_ranges_of_unknown_writers_are_unknown(tmp_path: Path, created_by: bytes) -> None:
    path = written(tmp_path, "pyarrow", pa.int64(), [1, 2])
    assert ranges(path)[0].exactness == "exact"
    path.write_bytes(path.read_bytes().replace(CREATED_BY, created_by.ljust(len(CREATED_BY))))
    assert pq.read_metadata(path).created_by.strip() == created_by.decode()
    assert ranges(path) == [UNKNOWN]


def test_key_in_a_file_of_an_unknown_writer_is_found(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    by_unknown_writer(tmp_path / "d/a.parquet")
    result = inlay.merge(lake.table([2, 9], ["x", "y"]), path, "upsert", ["id"])
    assert (result.updated, result.inserted) == (1, 1)


def test_ranges_without_statistics_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"k": [1, 2], "other": [3, 4]})
    pq.write_table(table, path, write_statistics=False)
    assert ranges(path) == [UNKNOWN]
    pq.write_table(table, path, write_statistics=["other"])
    assert ranges(path) == [UNKNOWN]
    assert stated(path, "other")["min"] == 3
    assert ranges(path, "no such column") == [UNKNOWN]


def test_range_of_int96_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": pa.array([1, 2], pa.timestamp("ns"))}), path, use_deprecated_int96_timestamps=True)
    assert pq.read_metadata(path).schema.column(0).physical_type == "INT96"
    assert ranges(path) == [UNKNOWN]


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.struct([("k", pa.int64())]), pa.map_(pa.int8(), pa.int8())])
def test_nested_columns_have_no_range(tmp_path: Path, kind: pa.DataType) -> None:
    value = {"list": [1], "struct": {"k": 1}, "map": [(1, 1)]}[str(kind).split("<")[0]]
    assert ranges(written(tmp_path, "pyarrow", kind, [value])) == [UNKNOWN]


def test_range_of_an_ambiguous_path_is_unknown(tmp_path: Path) -> None:
    """The column "a.b" and field b of the column a have the same path."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": [{"b": 1}], "a.b": [5]}), path)
    assert ranges(path, "a.b") == [UNKNOWN]
    pq.write_table(pa.table({"a.b": [5]}), path)
    assert stated(path, "a.b")["max"] == 5
    target = lake.write(tmp_path / "d", {"a.parquet": pa.table({"a": [{"b": 1}], "a.b": [5]})})
    result = inlay.merge(pa.table({"a": [{"b": 2}], "a.b": [5]}), target, "upsert", ["a.b"])
    assert (result.updated, result.inserted) == (1, 0)


# ------------------------------------------------------------------------------------------------ comparable bounds
DECIMALS = [Decimal("-12.30"), Decimal("0.00"), Decimal("45.60")]
SAME_VALUES: dict[str, list[tuple[pa.DataType, list[Any], dict[str, Any]]]] = {
    "decimals": [
        (pa.decimal128(4, 2), DECIMALS, {}),
        (pa.decimal128(4, 2), DECIMALS, {"store_decimal_as_integer": True}),
        (pa.decimal128(18, 5), DECIMALS, {"store_decimal_as_integer": True}),
        (pa.decimal128(38, 10), DECIMALS, {}),
        (pa.decimal256(76, 30), DECIMALS, {}),
        *((kind, DECIMALS, {}) for kind in (pa.decimal32(7, 3), pa.decimal64(15, 3)) if "decimal32" in TYPES),
    ],
    "instants": [
        (pa.timestamp("s"), [-5, 7], {}),
        (pa.timestamp("ms"), [-5000, 7000], {}),
        (pa.timestamp("us"), [-5_000_000, 7_000_000], {}),
        (pa.timestamp("ns"), [-5_000_000_000, 7_000_000_000], {}),
        (pa.timestamp("us", "Asia/Tokyo"), [-5_000_000, 7_000_000], {}),
    ],
    "times": [
        (pa.time32("s"), [5, 7], {}),
        (pa.time32("ms"), [5000, 7000], {}),
        (pa.time64("us"), [5_000_000, 7_000_000], {}),
        (pa.time64("ns"), [5_000_000_000, 7_000_000_000], {}),
    ],
    "durations": [
        (pa.duration("s"), [-5, 7], {}),
        (pa.duration("ms"), [-5000, 7000], {}),
        (pa.duration("us"), [-5_000_000, 7_000_000], {}),
        (pa.duration("ns"), [-5_000_000_000, 7_000_000_000], {}),
    ],
    "dates": [
        (pa.date32(), [-1, 20_000], {}),
        (pa.date64(), [-86_400_000, 20_000 * 86_400_000], {}),
    ],
    "whole numbers": [
        (pa.int8(), [5, 100], {}),
        (pa.int64(), [5, 100], {}),
        (pa.uint16(), [5, 100], {}),
        (pa.uint64(), [5, 100], {}),
    ],
    "texts": [
        (pa.string(), ["a", "é"], {}),
        (pa.large_string(), ["a", "é"], {}),
        (pa.string_view(), ["a", "é"], {}),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "é"], {}),
    ],
    "bytes": [
        (pa.binary(), [b"\0" * 16, b"\xff" * 16], {}),
        (pa.binary(16), [b"\0" * 16, b"\xff" * 16], {}),
        (pa.uuid(), [b"\0" * 16, b"\xff" * 16], {}),
    ],
}


@pytest.mark.parametrize("case", SAME_VALUES)
def test_equal_values_have_equal_bounds_in_every_type(tmp_path: Path, case: str) -> None:
    found = set()
    for kind, values, options in SAME_VALUES[case]:
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"k": array_of(kind, values)}), path, **options)
        found.add(merge_ranges(ranges(path)))
        shown = stated(path)
        column = pq.read_table(path).column("k")
        expected = [column[0].as_py(), column[-1].as_py()]
        if kind == pa.uuid():
            expected = [value.bytes for value in expected]
        assert [shown["min"], shown["max"]] == expected
    assert len(found) == 1
    assert found.pop().exactness == "exact"


def test_bounds_of_mixed_files_compare_in_the_type_of_the_dataset(tmp_path: Path) -> None:
    tables = {
        "a.parquet": pa.table({"k": pa.array([-5, 7], pa.timestamp("s"))}),
        "b.parquet": pa.table({"k": pa.array([1, 2], pa.timestamp("ns"))}),
    }
    location = locate(lake.write(tmp_path / "d", tables))
    found = read_footers(location, data_files(location), ["k"])
    lows, highs, known = found.bounds("k", pa.timestamp("ns"))
    assert lows.cast(pa.int64()).to_pylist() == [-5 * 10**9, 1]
    assert highs.cast(pa.int64()).to_pylist() == [7 * 10**9, 2]
    assert known.all()


def test_bounds_outside_the_type_are_unknown() -> None:
    outside = [ColumnRange("exact", 1, 2, 0), ColumnRange("exact", -(2**70), 2**70, 0)]
    for kind in (pa.int64(), pa.timestamp("ns"), pa.decimal128(5, 2)):
        lows, _, known = bound_arrays(outside, kind)
        assert not known.any()
        assert lows.null_count == 2
    lows, highs, known = bound_arrays([UNKNOWN, ColumnRange("inexact", 1, 2, 0), outside[0]], pa.int64())
    assert known.tolist() == [False, False, True]
    assert (lows.to_pylist(), highs.to_pylist()) == ([None, None, 1], [None, None, 2])


@pytest.mark.parametrize(
    ("groups", "whole"),
    [
        ([("exact", 1, 5, 0), ("exact", -3, 2, 1)], ("exact", -3, 5, 1)),
        ([("exact", 1, 5, 0), ("exact", None, None, 4)], ("exact", 1, 5, 4)),
        ([("exact", 1, 5, 0), ("inexact", 0, 9, 0)], ("inexact", 0, 9, 0)),
        ([("exact", 1, 5, 0), ("unknown", None, None, 0)], ("unknown", None, None, None)),
        ([("exact", 1, 5, None), ("exact", 1, 5, 2)], ("exact", 1, 5, None)),
        ([], ("exact", None, None, 0)),
    ],
)
def test_range_of_a_file_is_as_exact_as_its_least_exact_row_group(groups: list[Any], whole: Any) -> None:
    assert merge_ranges([ColumnRange(*group) for group in groups]) == ColumnRange(*whole)


def test_every_row_group_has_its_own_range(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": [1, 2, 9, 8, None, None]}), path, row_group_size=2)
    assert group_ranges(pq.read_metadata(path), "k", pa.int64()) == [
        ColumnRange("exact", 1, 2, 0),
        ColumnRange("exact", 8, 9, 0),
        ColumnRange("exact", None, None, 2),
    ]


# --------------------------------------------------------------------------------------------------------- pruning
def supports(writer: str, name: str) -> bool:
    """Return whether pyarrow reads back a type that a writer has written."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.parquet"
        try:
            WRITERS[writer](pa.table({"k": array_of(TYPES[name][0], TYPES[name][1])}), path)
            return pq.read_table(path).num_rows == 5
        except BaseException as error:  # polars panics
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return False


KEY_TYPES = [*KEY_VALUES, "bool", "duration_s", "duration_ns"]
ALL_VALUES = KEY_VALUES | {
    "bool": st.booleans(),
    "duration_s": st.integers(-(2**30), 2**30),
    "duration_ns": st.integers(-(2**62), 2**62),
}


@functools.cache
def supported(writer: str) -> list[str]:
    return [name for name in KEY_TYPES if supports(writer, name)]


def test_property_test_covers_writers_and_types() -> None:
    assert supported("pyarrow") == KEY_TYPES
    assert all(len(supported(writer)) >= 30 for writer in WRITERS)


def keys_in(column: pa.ChunkedArray) -> set[Any]:
    kinds = (lake.plain(value) for value in column)
    return {("nan" if math.isnan(v) else v + 0.0) if isinstance(v, float) else v for v in kinds if v is not None}


@pytest.mark.parametrize("writer", WRITERS)
@given(data=st.data())
def test_pruned_file_never_contains_the_key(writer: str, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(supported(writer)))
    kind = TYPES[name][0]
    pool = data.draw(st.lists(ALL_VALUES[name], min_size=1, max_size=6))
    inside = data.draw(st.lists(st.none() | st.sampled_from(pool), min_size=1, max_size=5))
    queried = data.draw(st.lists(st.sampled_from(pool), min_size=1, max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        for file, values in (("target", inside), ("source", queried)):
            (Path(folder) / file).mkdir()
            WRITERS[writer](pa.table({"k": array_of(kind, values)}), Path(folder) / file / "a.parquet")
        columns = [lake.read_file(Path(folder) / file / "a.parquet").column("k") for file in ("target", "source")]
        location = locate(f"{folder}/target")
        found = read_footers(location, data_files(location), ["k"])
        metadata = pq.read_metadata(f"{folder}/target/a.parquet")
    type_ = columns[0].type
    keys = canonical_keys(columns[1], type_).drop_null()
    schema = pa.schema([("k", type_)])
    common = keys_in(columns[0]) & keys_in(columns[1])
    if len(keys):
        possible = possible_files(found, KeyIndex([keys]), ["k"], schema)
        assert possible[0] or not common
        groups = bound_arrays(group_ranges(metadata, "k", type_), canonical_type(type_))
        assert KeyIndex([keys]).touches(0, *groups).any() or not common
    known = found[0].ranges["k"]
    if known.exactness == "exact" and known.low is not None:
        values = canonical_keys(columns[0], type_).drop_null()
        if pa.types.is_floating(values.type):
            values = values.filter(pc.invert(pc.is_nan(values)))
        order = values.take(pc.sort_indices(values))
        lows, highs, _ = bound_arrays([known], canonical_type(type_))
        assert (lows[0], highs[0]) == (order[0], order[-1])


# ------------------------------------------------------------------------------------------------- files and errors
def test_footers_are_in_the_order_of_the_files(tmp_path: Path) -> None:
    tables = {f"{i:03d}.parquet": lake.table(range(i, i + 3)) for i in range(100)}
    location = locate(lake.write(tmp_path / "d", tables))
    found = read_footers(location, data_files(location), ["id"])
    assert [footer.file.path for footer in found] == list(tables)
    assert [footer.ranges["id"].low for footer in found] == list(range(100))
    assert found.total_rows == 300
    assert len({id(footer.schema) for footer in found}) == 1


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a Parquet file at all", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_unreadable_footer_has_an_error(tmp_path: Path, content: bytes) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    (tmp_path / "d/b.parquet").write_bytes(content)
    location = locate(path)
    good, bad = read_footers(location, data_files(location), ["id"])
    assert (good.error, good.rows) == (None, 1)
    assert (bad.schema, bad.rows) == (None, 0)
    assert "b.parquet" in str(bad.error)
    with pytest.raises(UnreadableFileError, match=r"b\.parquet") as caught:
        open_parquet(location, "b.parquet")
    assert isinstance(caught.value, OSError)
    assert caught.value.files == [f"{path}/b.parquet"]
    analysed = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    assert [file.error is None for file in analysed] == [True, False]


# --------------------------------------------------------------------------------------------------------- the cache
class Counting(LocalStore):
    """A store that records the opened files."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open_footer(self, path: str) -> pa.NativeFile:
        self.opened.append(os.path.basename(path))
        return super().open_footer(path)


class Dataset:
    """A dataset of 20 small files with its own cache."""

    def __init__(self, root: Path) -> None:
        self.root = root / "d"
        tables = {f"{i:02d}.parquet": lake.table(range(10 * i, 10 * i + 10), w=pa.array(range(10))) for i in range(20)}
        lake.write(self.root, tables)
        self.store = Counting()
        self.cache = FooterCache(str(root / "footers.db"))

    def read(self, *columns: str) -> tuple[Footers, list[str]]:
        """Return the footers, and the files that were opened to read them."""
        location = Location(self.store, str(self.root), str(self.root))
        self.store.opened.clear()
        found = read_footers(location, data_files(location), columns or ["id"], self.cache)
        return found, sorted(self.store.opened)

    def fresh(self, *columns: str) -> Footers:
        location = locate(self.root)
        return read_footers(location, data_files(location), columns or ["id"])


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(tmp_path)


def plain(found: Footers) -> list[Any]:
    return [(f.file, f.rows, f.groups, f.schema, dict(f.ranges), f.error) for f in found]


def test_cached_footers_are_not_read_again(dataset: Dataset) -> None:
    first, opened = dataset.read()
    assert len(opened) == 20
    second, opened = dataset.read()
    assert opened == []
    assert plain(second) == plain(first) == plain(dataset.fresh())


def test_files_with_inodes_of_64_bits_are_cached(dataset: Dataset) -> None:
    location = locate(dataset.root)
    files = [file._replace(tag=2**64 - 1 - number) for number, file in enumerate(data_files(location))]
    read_footers(location, files, ["id"], dataset.cache)
    known, _ = dataset.cache.load(files, ["id"]) or (None, None)
    assert known is not None
    assert known.all()
    known, _ = dataset.cache.load([file._replace(tag=1) for file in files], ["id"]) or (None, None)
    assert known is not None
    assert not known.any()


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    shutil.copy2(path, other)
    other.replace(path)


CHANGES: dict[str, Callable[[Path], None]] = {
    "content": lambda path: pq.write_table(lake.table([1000], w=pa.array([0])), path),
    "mtime": lambda path: os.utime(path, ns=(0, 12345)),
    "inode": replaced,
    "name": lambda path: path.rename(path.with_name("99.parquet")) and None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_changed_files_are_read_again(dataset: Dataset, change: str) -> None:
    dataset.read()
    before = os.stat(dataset.root / "07.parquet")
    CHANGES[change](dataset.root / "07.parquet")
    found, opened = dataset.read()
    assert opened == ["99.parquet" if change == "name" else "07.parquet"]
    assert plain(found) == plain(dataset.fresh())
    after = os.stat(dataset.root / opened[0])
    if change == "inode":  # the same size and time, and yet another file
        assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    assert dataset.read()[1] == []


def test_changed_file_invalidates_the_ranges_of_all_columns(dataset: Dataset) -> None:
    dataset.read("id")
    dataset.read("w")
    pq.write_table(lake.table([1000], w=pa.array([777])), dataset.root / "07.parquet")
    dataset.read("id")
    found, opened = dataset.read("w")
    assert opened == ["07.parquet"]
    assert found[7].ranges["w"].high == 777


def test_cache_keeps_ranges_of_several_key_columns(dataset: Dataset) -> None:
    assert len(dataset.read("id")[1]) == 20
    assert len(dataset.read("w")[1]) == 20
    for columns in (["id"], ["w"], ["id", "w"], ["w", "id"], []):
        found, opened = dataset.read(*columns) if columns else dataset.read("id")
        assert opened == []
        assert plain(found) == plain(dataset.fresh(*columns))
    assert len(dataset.read("id", "v")[1]) == 20
    assert dataset.read("v", "w", "id")[1] == []


def test_removed_files_leave_the_cache(dataset: Dataset) -> None:
    dataset.read()
    (dataset.root / "03.parquet").unlink()
    pq.write_table(lake.table([1], w=pa.array([0])), dataset.root / "50.parquet")
    assert dataset.read()[1] == ["50.parquet"]
    names = dataset.cache._read().column("path").to_pylist()
    assert "03.parquet" not in names
    assert len(names) == 20


def test_cache_round_trips_every_kind_of_value(tmp_path: Path) -> None:
    columns = {
        "big": pa.array([-(2**63), 2**63 - 1]),
        "bigger": pa.array([0, 2**64 - 1], pa.uint64()),
        "huge": pa.array([Decimal(10**37), Decimal(-(10**37))], pa.decimal128(38, 0)),
        "text": ["", "é"],
        "raw": [b"\0", b"\xff"],
        "flag": [True, False],
        "long": ["x" * 100, "y" * 100],
        "null": pa.nulls(2, pa.int8()),
        "float": [1.5, 2.5],
        "digits": ["12", "9"],
    }
    tables = {f"{i:02d}.parquet": pa.table(columns) for i in range(16)}
    location = locate(lake.write(tmp_path / "d", tables))
    cache = FooterCache(str(tmp_path / "footers.db"))
    first = read_footers(location, data_files(location), list(columns), cache)
    known, again = cache.load(data_files(location), list(columns)) or (None, None)
    assert known is not None
    assert known.all()
    assert again is not None
    assert plain(again) == plain(first)
    assert first[0].ranges["bigger"].high == 2**64 - 1
    assert first[0].ranges["digits"] == ColumnRange("exact", b"12", b"9", 0)


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    cache = FooterCache(str(path))
    cache._write(change(cache._read()))


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "garbage": lambda path: path.write_bytes(b"garbage" * 1000),
    "empty": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "zeros inside": lambda path: path.write_bytes(path.read_bytes()[:1024] + b"\0" * (path.stat().st_size - 1024)),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\x01" + path.read_bytes()[-8:]),
    "schema gone": lambda path: rewritten(path, lambda table: table.replace_schema_metadata({})),
    "values of another kind": lambda path: rewritten(
        path, lambda table: table.set_column(4, "rows", pa.array(["x"] * len(table)))
    ),
    "of another version": lambda path: rewritten(path, lambda table: table.select(["path", "size"])),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_cache_is_deleted(dataset: Dataset, kind: str) -> None:
    first, _ = dataset.read()
    DAMAGE[kind](Path(dataset.cache.path))
    second, opened = dataset.read()
    assert plain(second) == plain(first)
    assert len(opened) == 20
    for _ in range(2):
        third, opened = dataset.read()
    assert plain(third) == plain(first)
    assert opened == []


def test_cache_that_cannot_be_written_is_not_an_error(dataset: Dataset) -> None:
    Path(dataset.cache.path).mkdir()
    for _ in range(2):
        found, opened = dataset.read()
        assert len(opened) == 20
        assert plain(found) == plain(dataset.fresh())


def test_file_names_that_are_not_unicode_bypass_the_cache(dataset: Dataset) -> None:
    dataset.read()
    shutil.copy(dataset.root / "00.parquet", os.fsencode(dataset.root) + b"/\xff.parquet")
    found, opened = dataset.read()
    assert "\udcff.parquet" in opened
    assert len(found) == 21
    assert plain(dataset.read()[0]) == plain(dataset.fresh())


def test_few_files_are_not_cached(tmp_path: Path) -> None:
    location = locate(lake.write(tmp_path / "d", {"a.parquet": lake.table([1])}))
    cache = FooterCache(str(tmp_path / "footers.db"))
    read_footers(location, data_files(location), ["id"], cache)
    assert not os.path.exists(cache.path)


def test_unreadable_files_are_not_cached(dataset: Dataset) -> None:
    (dataset.root / "04.parquet").write_bytes(b"broken")
    for _ in range(2):
        found, _ = dataset.read()
        assert found[4].error is not None
    assert dataset.read()[1] == ["04.parquet"]


READER = """
import sys
from inlay.parquet import footer_cache as footers
from inlay.parquet.layout import data_files
from inlay.storage import locate
location = locate(sys.argv[1])
cache = footers.FooterCache(sys.argv[2])
total = 0
for turn in range(15):
    columns = [["id"], ["w"], ["id", "w"]][(turn + int(sys.argv[3])) % 3]
    if turn % 5 == int(sys.argv[3]):
        cache.delete()
    found = footers.read_footers(location, data_files(location), columns, cache)
    assert [f.ranges["id"].low for f in found if "id" in f.ranges] in ([], list(range(0, 200, 10)))
    assert all(set(f.ranges) == set(columns) for f in found)
    total += found.total_rows
print(total)
"""


def test_processes_share_a_cache(dataset: Dataset) -> None:
    command = [sys.executable, "-W", "error", "-c", READER, str(dataset.root), dataset.cache.path]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    children = [subprocess.Popen([*command, str(n)], **pipes) for n in range(3)]
    for child in children:
        out, errors = child.communicate(timeout=120)
        assert (child.returncode, out.strip(), errors) == (0, str(15 * 200), "")
    assert plain(dataset.read()[0]) == plain(dataset.fresh())


def test_merge_sees_a_change_that_the_cache_does_not_know(tmp_path: Path) -> None:
    """Cached ranges never hide a key."""
    tables = {f"{i:02d}.parquet": lake.table(range(10 * i, 10 * i + 10)) for i in range(20)}
    path = lake.write(tmp_path / "d", tables)
    inlay.merge(lake.table([5], ["x"]), path, "update", ["id"])
    assert (tmp_path / ".d.txn/footers.db").exists()
    pq.write_table(lake.table([5000]), tmp_path / "d/07.parquet")
    result = inlay.merge(lake.table([5000, 75], ["x", "y"]), path, "upsert", ["id"])
    assert (result.updated, result.inserted) == (1, 1)


# -------------------------------------------------------------------------------------------------- trusted writers
@pytest.mark.parametrize(
    ("writer", "type_", "counts"),
    [
        ("parquet-cpp-arrow version 26.0.1", pa.decimal128(24, 4), True),
        ("parquet-cpp-arrow version 5.0.0", pa.decimal128(24, 4), True),
        ("parquet-cpp-arrow version 3.0.0", pa.decimal128(24, 4), False),
        ("parquet-cpp version 1.5.1-SNAPSHOT", pa.decimal128(24, 4), False),
        ("Polars", pa.decimal128(24, 4), False),
        ("parquet-rs version 57.0.0", pa.decimal128(24, 4), False),
        ("DuckDB version v2.0.0 (build x)", pa.decimal128(24, 4), True),
        ("Polars", pa.uint64(), False),
        ("Polars", pa.uint32(), True),
        ("Polars", pa.int64(), True),
        ("parquet-rs version 57.0.0", pa.uint64(), True),
        ("parquet-mr version 1.8.1", pa.int64(), False),
    ],
)
def test_bounds_are_trusted_if_the_writer_compares_correctly(writer: str, type_: pa.DataType, counts: bool) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": pa.array([1, 2], type_)}), sink)
    column = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema.column(0)
    assert footers_module._has_trusted_bounds(writer, column) is counts


def test_contradictory_bounds_are_unknown() -> None:
    statistics = SimpleNamespace(has_null_count=True, null_count=0, has_min_max=True, min_raw=5, max_raw=-5)
    chunk = SimpleNamespace(is_stats_set=True, statistics=statistics, num_values=2)
    assert footers_module._chunk_range(chunk, int).exactness == "unknown"


class _SharedList(list[Any]):
    """A list to which another thread appends something after each append."""

    def __init__(self, other: Any) -> None:
        super().__init__()
        self._other = other

    def append(self, item: Any) -> None:
        super().append(item)
        super().append(self._other)


def test_threads_that_add_schemas_at_the_same_time_get_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({name: [1]}), tmp_path / name)
    own, other = (pq.read_metadata(tmp_path / name) for name in ("a", "b"))
    schemas = footers_module._Schemas()
    schemas._known = _SharedList(footers_module._KnownSchema(other))
    assert schemas.of(own).arrow.names == ["a"]


# ------------------------------------------------------------------------------------------------- local footers
@pytest.mark.parametrize("columns", [1, 300], ids=["at the end", "longer than the end"])
def test_footers_are_read_from_the_ends_of_files(tmp_path: Path, columns: int) -> None:
    table = pa.table({f"column {n}": [n, n + 1] for n in range(columns)})
    pq.write_table(table, tmp_path / "a.parquet")
    (footer,) = read_footers(locate(tmp_path), data_files(locate(tmp_path)), ["column 0"])
    assert (footer.rows, footer.schema, footer.ranges) == (2, table.schema, {"column 0": ColumnRange("exact", 0, 1, 0)})
    with locate(tmp_path).store.open_footer(f"{tmp_path}/a.parquet") as opened:
        assert isinstance(opened, pa.BufferReader) == (columns == 1)


def test_a_damaged_end_is_reported_as_by_the_whole_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": range(10_000)}), tmp_path / "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    location, length = locate(tmp_path), int.from_bytes(content[-8:-4], "little")
    for damaged in (
        b"",
        b"PAR1",
        content[:-1],
        content[-8:],
        content[: -length - 8] + bytes(length) + content[-8:],
        content[:-8] + (2**31).to_bytes(4, "little") + b"PAR1",
        content[:-4] + b"PARE",
    ):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises((OSError, pa.ArrowInvalid)) as raised:
            pq.read_metadata(tmp_path / "a.parquet")
        (footer,) = read_footers(location, data_files(location), ["id"])
        assert str(raised.value).splitlines()[0] in str(footer.error)


def test_a_file_that_grew_after_the_listing_is_read_at_its_new_end(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    files = data_files(locate(tmp_path))
    pq.write_table(pa.table({"id": range(100_000)}), tmp_path / "a.parquet")
    (footer,) = read_footers(locate(tmp_path), files, ["id"])
    assert footer.rows == 100_000


def test_files_in_memory_are_not_read_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_bytes(b"1" * 10)
    files = [FileStat(str(tmp_path / name), 10, 0, 0) for name in "abc"]
    advised: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advised.append(arguments[1]))
    store, preadv = LocalStore(), os.preadv
    store.read_ahead([])
    store.read_ahead(files)
    assert advised == []
    store.read_ahead([*files, files[0]._replace(path=str(tmp_path / "missing"))])
    assert len(advised) == 3

    def wait(*_: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "preadv", wait)
    store.read_ahead(files)
    assert len(advised) == 6
    monkeypatch.setattr(os, "preadv", preadv)
