"""Readers other than inlay: each returns the sorted rows of a dataset as Python values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds

Row = dict[str, Any]


def files(path: Path) -> list[Path]:
    """Return the visible files, as a reader lists them that ignores extensions."""
    found = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return [file for file in found if not any(part[0] in "._" for part in file.relative_to(path).parts)]


def _pyarrow(path: Path) -> list[Row]:
    return ds.dataset(path, partitioning="hive").to_table().to_pylist()


def _polars(path: Path) -> list[Row]:
    return pl.read_parquet(files(path), hive_partitioning=True).to_dicts()


def _duckdb(path: Path) -> list[Row]:
    with duckdb.connect() as connection:
        found = [str(file) for file in files(path)]
        return connection.read_parquet(found, hive_partitioning=True).to_arrow_table().to_pylist()


def _pandas(path: Path) -> list[Row]:
    return pa.Table.from_pandas(pd.read_parquet(path, dtype_backend="pyarrow"), preserve_index=False).to_pylist()


def _spark(path: Path) -> list[Row]:
    from pyspark.sql import SparkSession

    return SparkSession.active().read.parquet(str(path)).toArrow().to_pylist()


READERS: dict[str, Callable[[Path], list[Row]]] = {
    "pyarrow": _pyarrow,
    "polars": _polars,
    "duckdb": _duckdb,
    "pandas": _pandas,
}


def assert_rows(path: Path, expected: list[Row], engine: Any = None) -> None:
    """Assert that every reader returns the expected rows, in any order. Spark reads the datasets of its engine."""
    for name, read in (READERS | ({"spark": _spark} if engine == "spark" else {})).items():
        assert sorted_rows(read(path)) == sorted_rows(expected), name


def sorted_rows(rows: list[Row]) -> list[Row]:
    """Sort rows and their columns."""
    return sorted((dict(sorted(row.items())) for row in rows), key=repr)
