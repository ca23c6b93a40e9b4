"""Spark DataFrames as sources of every engine."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import inlay

pytestmark = pytest.mark.spark
QUERY = """
    SELECT id, timestamp'2024-07-01 12:00:00 UTC' AS instant, timestamp_ntz'2024-07-01 12:00:00' AS wall,
           date'2024-07-01' AS day, CAST(1.50 AS decimal(10, 2)) AS price,
           array(struct(timestamp'1969-12-31 23:59:59.000001 UTC' AS t)) AS nested,
           map('k', timestamp_ntz'2024-07-01 12:00:00') AS by_name
    FROM range(3)
"""
NOON = dt.datetime.fromisoformat("2024-07-01T12:00")
ROW = {
    "instant": NOON.replace(tzinfo=dt.UTC),
    "wall": NOON,
    "day": dt.date(2024, 7, 1),
    "price": Decimal("1.50"),
    "nested": [{"t": dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=dt.UTC)}],
    "by_name": [("k", NOON)],
}


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Kathmandu"])
def frame(request: Any, spark_session: Any) -> Iterator[Any]:
    before = spark_session.conf.get("spark.sql.session.timeZone")
    spark_session.conf.set("spark.sql.session.timeZone", request.param)
    yield spark_session.sql(QUERY)
    spark_session.conf.set("spark.sql.session.timeZone", before)


def test_the_session_time_zone_never_shifts_values(tmp_path: Path, frame: Any) -> None:
    for engine in ("pyarrow", "duckdb", "spark"):
        path = tmp_path / engine
        assert inlay.merge(frame, path, "upsert", "id", engine=engine).inserted == 3
        assert inlay.read_parquet(path).sort_by("id").to_pylist() == [{"id": n} | ROW for n in range(3)]
        foreign = pl.read_parquet(f"{path}/*.parquet")
        assert foreign["instant"].dt.epoch("s").to_list() == [int(ROW["instant"].timestamp())] * 3  # type: ignore[attr-defined]
        with duckdb.connect() as connection:
            found = connection.sql(f"SELECT DISTINCT epoch_us(instant), wall FROM '{path}/*.parquet'").fetchall()
        assert found == [(int(ROW["instant"].timestamp()) * 10**6, NOON)]  # type: ignore[attr-defined]
        for other in ("pyarrow", "duckdb", "spark"):
            assert inlay.merge(frame, path, "upsert", "id", engine=other).unchanged == 3


@pytest.mark.parametrize("name", ["pyarrow", "duckdb"])
def test_timestamps_are_keys(tmp_path: Path, frame: Any, name: str) -> None:
    path = tmp_path / "d"
    keys = pa.table({"instant": pa.array([ROW["instant"]], pa.timestamp("us", "UTC")), "id": [7]})
    inlay.write_dataset(keys, path)
    result = inlay.merge(frame.select("instant", "id").limit(1), path, "upsert", "instant", engine=name)
    assert (result.updated, result.inserted) == (1, 0)
