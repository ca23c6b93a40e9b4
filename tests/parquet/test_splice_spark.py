"""Spark as writer and reader of spliced files. Spark splits files by RowGroup.file_offset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.parquet.splicing import (
    GROUP,
    OPERATIONS,
    READERS,
    WRITERS,
    rows_of,
    sample,
    splice_file,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark_file(parquet_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spark") / "written"
    frame = parquet_spark.createDataFrame(sample()).coalesce(1)
    frame.write.option("parquet.block.row.count.limit", GROUP).parquet(str(folder))
    (path,) = folder.glob("*.parquet")
    return path


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("originals")
    paths = {name: folder / f"{name}.parquet" for name in WRITERS}
    for name, write in WRITERS.items():
        write(sample(), paths[name])
    return paths


@pytest.mark.parametrize("operation", OPERATIONS)
def test_spark_files(parquet_spark: Any, spark_file: Path, operation: str, tmp_path: Path) -> None:
    target = tmp_path / "spliced.parquet"
    expected = rows_of(splice_file(spark_file, operation, target))
    assert rows_of(parquet_spark.read.parquet(str(target)).toArrow()) == expected
    for name, read in READERS.items():
        assert rows_of(read(target)) == expected, name


def test_spark_keeps_its_own_metadata(spark_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "spliced.parquet"
    splice_file(spark_file, "replace", target)
    metadata = pq.ParquetFile(target).metadata
    assert b"org.apache.spark.sql.parquet.row.metadata" in metadata.metadata
    assert metadata.created_by == pq.ParquetFile(spark_file).metadata.created_by


# Short runs read one operation with Spark; test_splice_readers.py reads all of them with the other readers.
@pytest.mark.parametrize(
    "operation", [pytest.param(name, marks=[pytest.mark.long] * (name != "replace_columns")) for name in OPERATIONS]
)
@pytest.mark.parametrize("writer", WRITERS)
def test_spark_reads_files_of_others(
    parquet_spark: Any, originals: dict[str, Path], writer: str, operation: str, tmp_path: Path
) -> None:
    target = tmp_path / "spliced.parquet"
    expected = rows_of(splice_file(originals[writer], operation, target))
    frame = parquet_spark.read.parquet(str(target))
    assert rows_of(frame.toArrow()) == expected
    found = frame.where(f"id >= {GROUP - 3} AND id < {GROUP + 3}").toArrow()
    assert rows_of(found) == [row for row in expected if GROUP - 3 <= row["id"] < GROUP + 3]


@pytest.mark.parametrize("writer", WRITERS)
def test_small_splits_read_each_row_once(
    parquet_spark: Any, originals: dict[str, Path], writer: str, tmp_path: Path
) -> None:
    target = tmp_path / "spliced.parquet"
    expected = splice_file(originals[writer], "append", target)
    parquet_spark.conf.set("spark.sql.files.maxPartitionBytes", str(target.stat().st_size // 7))
    parquet_spark.conf.set("spark.sql.files.openCostInBytes", "0")
    try:
        frame = parquet_spark.read.parquet(str(target))
        splits = frame.selectExpr("spark_partition_id() AS p").distinct().count()
        assert rows_of(frame.toArrow()) == rows_of(expected)
        assert splits > 1
    finally:
        parquet_spark.conf.unset("spark.sql.files.maxPartitionBytes")
        parquet_spark.conf.unset("spark.sql.files.openCostInBytes")
