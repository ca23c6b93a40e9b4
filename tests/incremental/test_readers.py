"""Snapshots in polars and DuckDB: the same rows as with pyarrow, at every version, and only what a query needs."""

from __future__ import annotations

import datetime as dt
import gc
import sys
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.errors import EngineNotInstalledError, InvalidArgumentError, NotFoundError, SchemaMismatchError
from inlay.incremental.dataset import SnapshotDataset
from tests import lake

ODD = ["a/b", "50%", "é", None, "x y", "a=b", "it's", "[a]", "*", "a?", "{b}", "01", "a+b", "a:b"]


def rows(scan: pl.LazyFrame | duckdb.DuckDBPyRelation) -> pa.Table:
    return scan.collect().to_arrow() if isinstance(scan, pl.LazyFrame) else scan.to_arrow_table()


def require_same_rows(dataset: SnapshotDataset) -> None:
    """Check the rows, their order and the columns of both readers against pyarrow."""
    expected = dataset.to_table()
    for found in (rows(dataset.scan_polars()), rows(dataset.duckdb())):
        assert found.column_names == expected.column_names
        assert found.to_pylist() == expected.to_pylist()


def is_native(dataset: SnapshotDataset) -> bool:
    return "Parquet SCAN" in dataset.scan_polars().explain()


def test_the_readers_agree_at_every_version(tmp_path: Path) -> None:
    path = tmp_path / "d"
    inlay.write_dataset({"id": list(range(14)), "p": ODD, "v": ["old"] * 14}, path, partition_columns="p")
    inlay.keep(path, versions=9)
    inlay.merge({"id": [0, 2, 3], "p": ODD[:1] + ODD[2:4], "v": ["new"] * 3}, path, "upsert", "id")
    inlay.delete(path, "id > 8")
    inlay.write_dataset({"id": [20], "p": ["é"], "v": ["added"]}, path)
    expected = {v.version: inlay.read_parquet(path, version=v.version) for v in inlay.history(path)}
    assert len(expected) == 4
    for version, table in expected.items():
        with inlay.open_dataset(path, version) as dataset:
            assert dataset.version == version
            assert dataset.to_table().equals(table)
            assert is_native(dataset)
            require_same_rows(dataset)


def test_partition_values_of_other_programs(tmp_path: Path) -> None:
    names = ("p=", "p=__HIVE_DEFAULT_PARTITION__", "p=a%2Fb", "p=x")
    path = lake.write(tmp_path / "d", {f"{name}/a.parquet": lake.table([at]) for at, name in enumerate(names)})
    with inlay.open_dataset(path) as dataset:
        assert dataset.version is None
        assert is_native(dataset)
        assert dataset.to_table()["p"].to_pylist() == ["", None, "a/b", "x"]
        require_same_rows(dataset)


@pytest.mark.parametrize(
    ("values", "type_"),
    [(["2024-01-01", "2024-02-01"], pa.date32()), (["-7", "12"], pa.int64()), (["007", "12"], pa.string())],
)
def test_types_of_partition_columns(tmp_path: Path, values: list[str], type_: pa.DataType) -> None:
    path = lake.write(tmp_path / "d", {f"p={value}/a.parquet": lake.table([1]) for value in values})
    with inlay.open_dataset(path) as dataset:
        assert dataset.schema.field("p").type == type_
        assert is_native(dataset)
        require_same_rows(dataset)


def test_filters_and_columns_reach_the_files(tmp_path: Path) -> None:
    path = tmp_path / "d"
    rows_of = {"id": list(range(4000)), "p": [at // 1000 for at in range(4000)], "wide": ["x" * 50] * 4000}
    inlay.write_dataset(rows_of, path, partition_columns="p", row_group_size=100)
    inlay.merge({"id": [7], "p": [0], "wide": ["y"]}, path, "upsert", "id")
    with inlay.open_dataset(path) as dataset:
        plan = dataset.scan_polars().filter((pl.col("p") == 2) & (pl.col("id") == 2345)).select("id").explain()
        assert "p=2/" in plan
        assert "p=1/" not in plan
        assert "PROJECT 2/3 COLUMNS" in plan
        assert "SELECTION" in plan
        relation = dataset.duckdb().filter("p = 2 AND id = 2345").project("id")
        assert relation.fetchall() == [(2345,)]
        plan = relation.explain("analyze")
        assert "Scanning Files: 1/4" in plan
        assert "Row Groups Scanned: 1 / 10" in plan
        assert "wide" not in plan


TYPES: dict[str, pa.Array] = {
    "int8": pa.array([1, None, -1], pa.int8()),
    "uint64": pa.array([1, None, 2**64 - 1], pa.uint64()),
    "float32": pa.array([0.5, None, -0.0], pa.float32()),
    "bool": pa.array([True, None, False]),
    "text": pa.array(["é", None, ""], pa.large_string()),
    "bytes": pa.array([b"\x00", None, b""]),
    "date": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "ms": pa.array([-(2**40), None, 2**44], pa.timestamp("ms")),
    "utc": pa.array([dt.datetime(1900, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
    "decimal": pa.array([Decimal("1.10"), None, Decimal("-9.99")], pa.decimal128(20, 2)),
    "list": pa.array([[1, None], None, []], pa.list_(pa.int32())),
    "struct": pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}]),
    "list of struct": pa.array([[{"a": 1}], None, [None]]),
    # read through pyarrow
    "ns": pa.array([1, None, 3], pa.timestamp("ns")),
    "time": pa.array([dt.time(1, 2, 3), None, None], pa.time32("ms")),
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
}


@pytest.mark.parametrize("name", TYPES)
def test_values_of_each_type(tmp_path: Path, name: str) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1, 2, 3], "v": TYPES[name]})})
    with inlay.open_dataset(path) as dataset:
        assert is_native(dataset) == (name not in ("ns", "time", "dictionary", "fixed"))
        require_same_rows(dataset)


@pytest.mark.parametrize(
    ("type_", "readers"),
    [
        (pa.decimal256(50, 2), ("polars", "DuckDB")),
        (pa.list_(pa.decimal256(50, 2)), ("polars", "DuckDB")),
        (pa.timestamp("ns", "UTC"), ("DuckDB",)),
        (pa.time64("ns"), ("DuckDB",)),
        (pa.struct({"a": pa.duration("ns")}), ("DuckDB",)),
    ],
)
def test_types_that_a_reader_cannot_represent_are_refused(
    tmp_path: Path, type_: pa.DataType, readers: tuple[str, ...]
) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "odd": pa.nulls(1, type_)})})
    with inlay.open_dataset(path) as dataset:
        for name, scan in (("polars", dataset.scan_polars), ("DuckDB", dataset.duckdb)):
            if name in readers:
                with pytest.raises(SchemaMismatchError, match=f"{name} cannot represent .*'odd'"):
                    scan()
            else:
                assert rows(scan()).num_rows == 1


def test_columns_that_only_some_files_have(tmp_path: Path) -> None:
    path = tmp_path / "d"
    inlay.write_dataset({"id": [1, 2], "v": [1.5, 2.5]}, path)
    inlay.merge({"id": [3], "v": [3.5], "added": [[7]]}, path, "upsert", "id", schema_mode="evolve", compression="zstd")
    lake.write(path, {"z.parquet": pa.table({"added": [[8]], "id": [4]})})
    with inlay.open_dataset(path) as dataset:
        assert is_native(dataset)
        require_same_rows(dataset)
        assert rows(dataset.duckdb())["added"].null_count == 2


def test_files_with_different_types_are_read_through_pyarrow(tmp_path: Path) -> None:
    files = {"a.parquet": pa.table({"id": pa.array([1], pa.int32())}), "b.parquet": pa.table({"id": [2**40]})}
    path = lake.write(tmp_path / "d", files)
    with inlay.open_dataset(path) as dataset:
        assert not is_native(dataset)
        require_same_rows(dataset)


@pytest.mark.parametrize("name", ["year=7/d", "d"])
def test_paths_that_other_readers_would_misunderstand(tmp_path: Path, name: str) -> None:
    """The path above the dataset, the name of a partition column, and a column that is also in the path."""
    stored = pa.table({"id": [1], "my col": [2]})
    path = lake.write(tmp_path / name, {"year=8/my%20col=2/a.parquet": stored, "year=9/my%20col=3/*?.parquet": stored})
    with inlay.open_dataset(path) as dataset:
        assert not is_native(dataset)
        require_same_rows(dataset)


@pytest.mark.parametrize("name", ["*", "a[1]", "it's {b}", "a?b"])
def test_paths_with_wildcards(tmp_path: Path, name: str) -> None:
    path = lake.write(tmp_path / name, {f"p=1/{name}.parquet": lake.table([1]), "p=2/ab.parquet": lake.table([2])})
    with inlay.open_dataset(path) as dataset:
        assert is_native(dataset)
        require_same_rows(dataset)


def test_an_empty_dataset_keeps_its_columns(tmp_path: Path) -> None:
    inlay.write_dataset(pa.table({"id": pa.array([], pa.int64()), "v": pa.array([], pa.string())}), tmp_path / "d")
    with inlay.open_dataset(tmp_path / "d") as dataset:
        assert rows(dataset.scan_polars()).schema.names == ["id", "v"]
        assert dataset.duckdb().fetchall() == []
        assert [str(each) for each in dataset.duckdb().types] == ["BIGINT", "VARCHAR"]


def test_names_that_differ_in_case(tmp_path: Path) -> None:
    inlay.write_dataset({"id": [1], "ID": [2]}, tmp_path / "d")
    with inlay.open_dataset(tmp_path / "d") as dataset:
        assert dataset.scan_polars().collect().rows() == [(1, 2)]
        with pytest.raises(SchemaMismatchError, match="'id' and 'ID' apart"):
            dataset.duckdb()


def test_a_dataset_on_an_object_store(memory: MemoryFileSystem) -> None:
    inlay.write_dataset({"id": [1, 2], "p": ["a", "b"]}, "/r/d", filesystem=memory, partition_columns="p")
    with inlay.open_dataset("/r/d", filesystem=memory) as dataset:
        require_same_rows(dataset)
        assert dataset.duckdb().filter("p = 'b'").project("id").fetchall() == [(2,)]


def test_a_relation_belongs_to_the_connection_of_the_caller(tmp_path: Path) -> None:
    inlay.write_dataset({"id": [1, 2]}, tmp_path / "d")
    with inlay.open_dataset(tmp_path / "d") as dataset, duckdb.connect() as connection:
        connection.sql("CREATE TABLE names AS SELECT 2 AS id, 'two' AS name")
        relation = dataset.duckdb(connection)
        assert relation.join(connection.table("names"), "id").fetchall() == [(2, "two")]


def test_the_snapshot_is_a_pyarrow_dataset_for_other_libraries(tmp_path: Path) -> None:
    inlay.write_dataset({"id": [1, 2], "p": ["a", "b"]}, tmp_path / "d", partition_columns="p")
    with inlay.open_dataset(tmp_path / "d") as dataset:
        assert isinstance(dataset, ds.Dataset)
        assert dataset.partitioning.schema.names == ["p"]
        assert duckdb.sql("SELECT sum(id) FROM dataset WHERE p = 'b'").fetchall() == [(2,)]
        assert pl.scan_pyarrow_dataset(dataset).select("p").collect().height == 2
        filtered = dataset.filter(pc.field("id") > 1)
        assert filtered.count_rows() == 1
        assert inlay.merge(dataset, tmp_path / "copy", "upsert", "id").inserted == 2
        with pytest.raises(InvalidArgumentError, match="the result of filter"):
            filtered.scan_polars()
        assert filtered.partitioning is None


# ------------------------------------------------------------------------------------------------------------ lifetime
def test_the_block_keeps_the_version(tmp_path: Path) -> None:
    path = tmp_path / "d"
    inlay.write_dataset({"id": [1]}, path)
    with inlay.open_dataset(path) as dataset:
        scan, relation = dataset.scan_polars(), dataset.duckdb()
        inlay.write_dataset({"id": [2]}, path, mode="overwrite")
        inlay.compact(path)
        assert inlay.forget(path, before=2).pinned == 1
        assert scan.collect().rows() == relation.fetchall() == [(1,)]
    assert inlay.forget(path, before=2).versions == [1]
    with pytest.raises(InvalidArgumentError, match="closed"):
        dataset.scan_polars()
    with pytest.raises(InvalidArgumentError, match="closed"):
        dataset.__enter__()
    with pytest.raises(NotFoundError, match="no longer kept"):
        inlay.open_dataset(path, 1)


def forgotten(path: Path) -> list[int]:
    gc.collect()
    return inlay.forget(path, before=2).versions


def test_without_a_block_the_object_keeps_the_version(tmp_path: Path) -> None:
    path = tmp_path / "d"
    inlay.write_dataset({"id": [1]}, path)
    opened = [inlay.open_dataset(path), inlay.open_dataset(path, 1)]
    inlay.write_dataset({"id": [2]}, path, mode="overwrite")
    assert forgotten(path) == []
    opened.pop().close()
    assert forgotten(path) == []
    opened[0].close()
    opened.pop().close()
    again = inlay.open_dataset(path, 1)
    del again
    assert forgotten(path) == [1]


def test_without_a_block_a_scan_keeps_the_version_until_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "d"
    inlay.write_dataset({"id": [1]}, path)
    scan = inlay.open_dataset(path).scan_polars()
    inlay.write_dataset({"id": [2]}, path, mode="overwrite")
    assert forgotten(path) == []
    assert scan.collect().rows() == [(1,)]
    dataset = inlay.open_dataset(path)
    dataset.duckdb()
    dataset.close()
    inlay.write_dataset({"id": [3]}, path, mode="overwrite")
    assert forgotten(path) == []  # version 1 is pinned by the scan


@pytest.mark.parametrize(
    ("module", "scan", "package"),
    [
        ("polars", "scan_polars", "polars"),
        ("duckdb", "duckdb", "inlay[duckdb]"),
        ("inlay.engines.spark.parquet", "spark", "inlay[spark]"),
    ],
)
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, scan: str, package: str
) -> None:
    inlay.write_dataset({"id": [1]}, tmp_path / "d")
    monkeypatch.setitem(sys.modules, module, None)
    with inlay.open_dataset(tmp_path / "d") as dataset, pytest.raises(EngineNotInstalledError) as error:
        getattr(dataset, scan)()
    assert f"pip install '{package}'" in str(error.value.hint)


REFUSED_BY_SPARK = [
    ("a.parquet", pa.array([1], pa.uint32()), "column 'v' is uint32"),
    ("a.parquet", pa.array([{"a": 1}], pa.struct({"a": pa.timestamp("ns")})), "column 'v' is struct<a: timestamp"),
    ("p=/a.parquet", pa.array([1]), "empty partition value"),
    ("a*.parquet", pa.array([1]), "contains a wildcard"),
]


@pytest.mark.parametrize(("name", "column", "reason"), REFUSED_BY_SPARK)
def test_what_spark_reads_otherwise_is_refused(tmp_path: Path, name: str, column: pa.Array, reason: str) -> None:
    path = lake.write(tmp_path / "d", {name: pa.table({"id": [1], "v": column})})
    with inlay.open_dataset(path) as dataset, pytest.raises(SchemaMismatchError, match=reason):
        dataset.spark()


def test_a_refusal_names_the_version_to_read_otherwise(tmp_path: Path) -> None:
    inlay.write_dataset({"id": [1], "ID": [2]}, tmp_path / "names")
    inlay.write_dataset({"id": pa.array([1], pa.uint8())}, tmp_path / "d")
    with inlay.open_dataset(tmp_path / "names") as dataset, pytest.raises(SchemaMismatchError, match="apart"):
        dataset.spark()
    with inlay.open_dataset(tmp_path / "d") as dataset, pytest.raises(SchemaMismatchError, match='"version", 1'):
        dataset.spark()


def test_spark_cannot_read_an_object_store(memory: MemoryFileSystem) -> None:
    inlay.write_dataset({"id": [1]}, "/r/d", filesystem=memory)
    with inlay.open_dataset("/r/d", filesystem=memory) as dataset, pytest.raises(SchemaMismatchError, match="object"):
        dataset.spark()


def test_connections_of_other_kinds_are_refused(tmp_path: Path) -> None:
    inlay.write_dataset({"id": [1]}, tmp_path / "d")
    with inlay.open_dataset(tmp_path / "d") as dataset:
        with pytest.raises(InvalidArgumentError, match="one of DuckDB, not str"):
            dataset.duckdb(":memory:")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="a SparkSession, not str"):
            dataset.spark("local")  # type: ignore[arg-type]
