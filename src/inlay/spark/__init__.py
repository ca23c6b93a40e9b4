"""Datasets as sources and sinks of Spark: the format `inlay` of DataFrames and streams, and `foreachBatch`."""

from __future__ import annotations

from inlay.errors import EngineNotInstalledError

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as _  # noqa: F401  (older releases lack it)
except ImportError as error:
    raise EngineNotInstalledError(
        f"inlay.spark needs pyspark 4.3 or newer: {error}.", hint="Run `pip install 'inlay[spark]'`."
    ) from error

from inlay.spark.batches import merge_batch
from inlay.spark.format import InlayDataSource

__all__ = ["InlayDataSource", "merge_batch"]
