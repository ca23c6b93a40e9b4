"""The layout of a dataset: Hive paths, their types, and data files."""

from __future__ import annotations

import datetime as dt
import gc
import weakref
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.errors import InvalidArgumentError
from inlay.parquet.layout import (
    NULL_PARTITION,
    data_files,
    hive_segment,
    infer_partition_type,
    new_hive_segment,
    parse_hive_partition_path,
    typed_partition_value,
)
from inlay.storage import LocalStore, Location, PathValidator, locate

PATHS: dict[str, dict[str, Any]] = {
    "f.parquet": {},
    "plain/f.parquet": {},
    "a=1/f.parquet": {"a": "1"},
    "/top/a=1/b=2/c=3/f.parquet": {"a": "1", "b": "2", "c": "3"},
    "s3://bucket/x=y/table/a=1/f.parquet": {"x": "y", "a": "1"},
    "a=1\\b=2\\f.parquet": {"a": "1", "b": "2"},
    "a=1\\b=2/f.parquet": {"a": "1\\b=2"},
    "a=/f.parquet": {"a": ""},
    "a=x=y/f.parquet": {"a": "x=y"},
    "a=%2F%25%3D/f.parquet": {"a": "/%="},
    "a%20b=c%20d/f.parquet": {"a b": "c d"},
    "a=b+c/f.parquet": {"a": "b+c"},
    "a=%C3%BC/f.parquet": {"a": "ü"},
    "a=ü/f.parquet": {"a": "ü"},
    f"a={NULL_PARTITION}/f.parquet": {"a": None},
    "=x/f.parquet": {},
    "a=1/f=2.parquet": {"a": "1"},
    "a=1/a=2/f.parquet": {"a": "2"},
}


@pytest.mark.parametrize("path", PATHS)
def test_parse_hive_partition_path(path: str) -> None:
    assert parse_hive_partition_path(path) == PATHS[path]
    assert list(parse_hive_partition_path(path)) == list(PATHS[path])


def test_only_requested_columns_are_parsed() -> None:
    path = "x=0/a=1/b=2/f.parquet"
    assert parse_hive_partition_path(path, ["b", "a"]) == {"a": "1", "b": "2"}
    assert parse_hive_partition_path(path, []) == {}
    assert parse_hive_partition_path("a%20b=1/f.parquet", ["a b"]) == {"a b": "1"}


@pytest.mark.parametrize(
    ("value", "segment"),
    [
        (1, "p=1"),
        ("2025-01-01", "p=2025-01-01"),
        (dt.date(2025, 1, 1), "p=2025-01-01"),
        ("a b", "p=a b"),
        ("a/b", "p=a%2Fb"),
        ("a=b", "p=a%3Db"),
        ("50%", "p=50%25"),
        ("a\\b", "p=a%5Cb"),
        ("x:y?*", "p=x%3Ay%3F%2A"),
        ("it's; --", "p=it%27s%3B -%2D"),
        ("ü", "p=ü"),
        ("a\u200bb", "p=a%E2%80%8Bb"),
        (None, f"p={NULL_PARTITION}"),
    ],
)
def test_hive_segment(value: Any, segment: str) -> None:
    assert hive_segment("p", value) == segment


def test_no_column_name_creates_a_hidden_directory(tmp_path: Path) -> None:
    for column in (".x", "_x"):
        (tmp_path / hive_segment(column, 1)).mkdir()
        (tmp_path / hive_segment(column, 1) / "f.parquet").touch()
    found = [file.path for file in data_files(locate(tmp_path))]
    assert [parse_hive_partition_path(path) for path in found] == [{".x": "1"}, {"_x": "1"}]


@pytest.mark.parametrize(("value", "reason"), [(NULL_PARTITION, "reserved for NULL"), ("", "Spark cannot read")])
def test_values_without_a_directory_are_rejected(value: str, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"'p'.*{reason}"):
        new_hive_segment("p", value)


NAMES = st.text(min_size=1, max_size=8).filter(lambda t: t.encode("utf-8", "ignore").decode() == t)


@given(NAMES, st.none() | NAMES)
def test_any_value_round_trips(column: str, value: str | None) -> None:
    if value == NULL_PARTITION:
        return
    segment = hive_segment(column, value)
    assert "/" not in segment
    assert "\\" not in segment
    assert "\0" not in segment
    PathValidator.validate_path_for_sql(f"d/{segment}/f.parquet")
    assert parse_hive_partition_path(f"d/{segment}/f.parquet") == {column: value}


@pytest.mark.parametrize("value", ["a b", "a=b", "50%", "ü", "a+b", "x:y", None, "#"])
def test_pyarrow_reads_the_same_values(tmp_path: Path, value: str | None) -> None:
    folder = tmp_path / "d" / hive_segment("p", value)
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1]}), folder / "f.parquet")
    partitioning = ds.partitioning(pa.schema([("p", pa.string())]), flavor="hive")
    table = ds.dataset(tmp_path / "d", partitioning=partitioning).to_table()
    assert table.column("p").to_pylist() == [value]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2", "0"], pa.int64()),
        (["1", "007"], pa.string()),
        (["-0"], pa.string()),
        (["-01"], pa.string()),
        (["1", None], pa.int64()),
        (["9" * 18], pa.int64()),
        (["9" * 19], pa.string()),
        (["1", "x"], pa.string()),
        (["1.5"], pa.string()),
        (["+1"], pa.string()),
        (["2024-02-29", "1999-12-31"], pa.date32()),
        (["2024-02-29", "1"], pa.string()),
        (["2024-2-9"], pa.string()),
        (["2024-02-29", "2024-02-30"], pa.string()),
        ([""], pa.string()),
        ([None], pa.string()),
        ([], pa.string()),
        (["٣"], pa.string()),
    ],
)
def test_infer_partition_type(values: list[str | None], kind: pa.DataType) -> None:
    assert infer_partition_type(values) == kind


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("01", pa.int8(), 1),
        ("-1", pa.int64(), -1),
        ("1.50", pa.decimal128(5, 2), Decimal("1.50")),
        ("2024-02-29", pa.date32(), dt.date(2024, 2, 29)),
        ("x", pa.string(), "x"),
        ("", pa.string(), ""),
        ("x", pa.dictionary(pa.int8(), pa.string()), "x"),
        ("7", pa.dictionary(pa.int8(), pa.int64()), 7),
        ("true", pa.bool_(), True),
        ("0.5", pa.float64(), 0.5),
    ],
)
def test_typed_partition_value(text: str, kind: pa.DataType, value: Any) -> None:
    found = typed_partition_value(text, kind)
    assert found is not None
    assert found.as_py() == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("x", pa.int64()),
        ("300", pa.int8()),
        ("", pa.int64()),
        ("2024-02-30", pa.date32()),
        ("x", pa.list_(pa.int8())),
        ("x" * 15, pa.uuid()),
    ],
)
def test_path_values_outside_the_type_are_none(text: str, kind: pa.DataType) -> None:
    assert typed_partition_value(text, kind) is None


def test_null_partition_has_the_type_of_the_column() -> None:
    found = typed_partition_value(None, pa.date32())
    assert found is not None
    assert (found.type, found.is_valid) == (pa.date32(), False)


def test_data_files_are_relative_sorted_and_only_parquet(tmp_path: Path) -> None:
    for name in ("b.parquet", "a=2/x.parquet", "a=10/x.parquet", "a=2/y.txt", "_x/z.parquet", "_x=1/z.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [file.path for file in data_files(locate(tmp_path))]
    assert found == ["_x=1/z.parquet", "a=10/x.parquet", "a=2/x.parquet", "b.parquet"]


def test_files_without_an_extension_are_opened_once_and_keep_no_store(tmp_path: Path) -> None:
    class Counting(LocalStore):
        opened = 0

        def read_range(self, path: str, offset: int, length: int) -> bytes:
            self.opened += 1
            return super().read_range(path, offset, length)

    pq.write_table(pa.table({"id": [1]}), tmp_path / "000000_0")
    store = Counting()
    for _ in range(2):
        assert len(data_files(Location(store, str(tmp_path), str(tmp_path)))) == 1
    assert store.opened == 1
    kept = weakref.ref(store)
    del store
    gc.collect()
    assert kept() is None
