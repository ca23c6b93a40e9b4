"""Snapshots in Spark: the same rows as with pyarrow, at every version, and only what a query needs."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

import inlay
from inlay.errors import InlayError
from inlay.spark import InlayDataSource
from inlay.spark.options import ReadOptions
from inlay.spark.reader import SnapshotReader
from tests import lake

ODD = ["a/b", "50%", "é", None, "x y", "a=b", "it's", "[a]", "*", "01", "a+b", "a:b"]


def require_same_rows(dataset, session):
    frame = dataset.spark(session)
    expected = sorted(dataset.to_table().to_pylist(), key=str)
    assert frame.columns == dataset.schema.names
    assert sorted(frame.toArrow().to_pylist(), key=str) == expected


def test_spark_agrees_at_every_version(spark, tmp_path):
    path = tmp_path / "d"
    inlay.write_dataset({"id": list(range(12)), "p": ODD, "v": ["old"] * 12}, path, partition_columns="p")
    inlay.keep(path, versions=9)
    inlay.merge({"id": [0, 2, 3], "p": ODD[:1] + ODD[2:4], "v": ["new"] * 3}, path, "upsert", "id")
    inlay.merge({"id": [4], "p": ODD[4:5], "v": ["x"], "added": [1]}, path, "upsert", "id", schema_mode="evolve")
    for version in (1, 2, 3):
        with inlay.open_dataset(path, version) as dataset:
            require_same_rows(dataset, spark)


def test_filters_partitions_and_columns_reach_the_files(spark, tmp_path):
    path = tmp_path / "d"
    table = {"id": list(range(40)), "p": [at // 10 for at in range(40)], "wide": ["x" * 50] * 40}
    inlay.write_dataset(table, path, partition_columns="p")
    with inlay.open_dataset(path) as dataset:
        frame = dataset.spark(spark).where("p = 2 AND id = 25").select("id")
        assert [row.id for row in frame.collect()] == [25]
        plan = frame._jdf.queryExecution().toString()
    assert "PartitionFilters: [isnotnull(p" in plan
    assert "PushedFilters: [IsNotNull(id), EqualTo(id,25)]" in plan
    assert "ReadSchema: struct<id:bigint>" in plan


def test_types_and_nested_columns(spark, tmp_path):
    table = pa.table(
        {
            "id": [1, 2],
            "ms": pa.array([-(2**40), None], pa.timestamp("ms")),
            "utc": pa.array([dt.datetime(2024, 1, 1, tzinfo=dt.UTC), None], pa.timestamp("us", "UTC")),
            "decimal": pa.array([Decimal("1.10"), None], pa.decimal128(20, 2)),
            "date": pa.array([dt.date(1, 1, 1), None]),
            "nested": pa.array([[{"a": 1, "b": ["x"]}], None]),
            "my `col`": [1.5, None],
            "bytes": pa.array([b"\x00", None]),
        }
    )
    path = lake.write(tmp_path / "d", {"day=2024-01-01/a.parquet": table, "day=2024-01-02/b.parquet": table})
    with inlay.open_dataset(path) as dataset:
        require_same_rows(dataset, spark)


def test_the_format_reads_a_version_after_later_commits(tmp_path):
    """Planning leases links of the version, so that tasks find its files although it is dropped meanwhile."""
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1], "v": pa.array([7], pa.uint32())}, path)
    inlay.write_dataset({"id": [2], "v": pa.array([8], pa.uint32())}, path, mode="overwrite")
    options = {"path": path, "version": "1"}
    reader = SnapshotReader(ReadOptions.parse(options), InlayDataSource(options).schema())
    parts = reader.partitions()
    inlay.forget(path, before=2)
    assert [batch.to_pylist() for part in parts for batch in reader.read(part)] == [[{"id": 1, "v": 7}]]
    with pytest.raises(InlayError, match=r"Version 1 .* no longer kept"):
        reader.partitions()


def test_spark_loads_a_version(spark, tmp_path):
    path = str(tmp_path / "d")
    for number in (1, 2):
        inlay.write_dataset({"id": [number]}, path, mode="overwrite")
    spark.dataSource.register(InlayDataSource)
    frame = spark.read.format("inlay").option("version", 1).load(path)
    assert [row.id for row in frame.collect()] == [1]
