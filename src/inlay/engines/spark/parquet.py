"""Scans of Parquet files by Spark's own reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from inlay.engines.spark.session import get_session
from inlay.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["scan_parquet"]


def scan_parquet(files: Sequence[str], root: str, schema: pa.Schema, session: SparkSession | None) -> DataFrame:
    """Scan local files, whose paths below `root` hold the partition columns of `schema`."""
    if session is not None and not hasattr(session, "read"):
        raise InvalidArgumentError(f"The session must be a SparkSession, not {type(session).__name__}.")
    reader = (session or get_session()).read.schema(from_arrow_schema(schema)).option("basePath", f"file:{root}")
    columns = ["`" + name.replace("`", "``") + "`" for name in schema.names]
    return reader.parquet(*(f"file:{file}" for file in files)).select(*columns)
