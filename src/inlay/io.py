"""The same merge behind one class per engine, and the function forms that name an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import pyarrow as pa

from inlay.engines import get_engine
from inlay.errors import InvalidArgumentError, unknown
from inlay.incremental import (
    MergePlan,
    MergeResult,
    MergeStats,
    WriteResult,
    compact,
    compute_merge_stats,
    merge,
    plan_merge,
    read_parquet,
    write_dataset,
)
from inlay.incremental.strategies import MergeStrategy, get_strategy

__all__ = [
    "DuckDBDatasetIO",
    "DuckDBParquetHandler",
    "PyArrowDatasetIO",
    "SparkDatasetIO",
    "merge_parquet_dataset_pyarrow",
]


class _DatasetIO:
    """Datasets through one engine. Every method is the function of the same name with the engine filled in."""

    engine: ClassVar[str]

    def __init__(self, *, filesystem: Any = None, storage_options: dict[str, Any] | None = None) -> None:
        self._where = {"filesystem": filesystem, "storage_options": storage_options}

    def _arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"engine": self._engine(), **self._where, **{k: v for k, v in given.items() if v is not None}}

    def _engine(self) -> Any:
        return self.engine

    def merge(
        self,
        data: Any,
        path: str,
        strategy: MergeStrategy,
        key_columns: Sequence[str] | str,
        partition_columns: Sequence[str] | None = None,
        **options: Any,
    ) -> MergeResult:
        keys = [key_columns] if isinstance(key_columns, str) else key_columns
        return merge(data, path, strategy, keys, partition_columns, **self._arguments(options))

    def plan_merge(
        self,
        data: Any,
        path: str,
        strategy: MergeStrategy,
        key_columns: Sequence[str],
        partition_columns: Sequence[str] | None = None,
        **options: Any,
    ) -> MergePlan:
        return plan_merge(data, path, strategy, key_columns, partition_columns, **self._arguments(options))

    def write_dataset(
        self, data: Any, path: str, *, mode: Literal["append", "overwrite"] = "append", **options: Any
    ) -> WriteResult:
        return write_dataset(data, path, mode=mode, **self._arguments(options))

    def compact(self, path: str, **options: Any) -> WriteResult:
        return compact(path, **self._arguments(options))

    def read_parquet(self, path: str, *, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:
        return read_parquet(path, columns=columns, **self._where | options)

    def write_parquet_dataset(
        self,
        data: Any,
        path: str,
        mode: Literal["append", "overwrite"] = "append",
        strategy: MergeStrategy | None = None,
        rewrite_mode: Literal["incremental", "full"] = "full",
        key_columns: Sequence[str] | str | None = None,
        **options: Any,
    ) -> MergeResult | WriteResult:
        """Write rows; with a strategy this is `merge`, whichever rewrite mode is asked for."""
        if rewrite_mode not in ("incremental", "full"):
            raise unknown("rewrite_mode", rewrite_mode, ["incremental", "full"])
        if strategy is None:
            if rewrite_mode == "incremental":
                raise InvalidArgumentError('rewrite_mode="incremental" needs a strategy and key_columns.')
            return self.write_dataset(data, path, mode=mode, **options)
        if key_columns is None:
            raise InvalidArgumentError(f"strategy={strategy!r} needs key_columns.")
        return self.merge(data, path, strategy, key_columns, **options)

    def merge_parquet_dataset(
        self,
        data: Any,
        path: str,
        key_columns: Sequence[str] | str,
        strategy: MergeStrategy = "upsert",
        **options: Any,
    ) -> MergeStats:
        """`merge`, reduced to its numbers."""
        result = self.merge(data, path, get_strategy(strategy).name, key_columns, **options)
        return compute_merge_stats(
            strategy=get_strategy(strategy).name,
            target_before=result.target_count_before,
            target_after=result.target_count_after,
            inserted_rows=result.inserted,
            updated_rows=result.updated,
            deleted_rows=result.deleted,
        )


class PyArrowDatasetIO(_DatasetIO):
    """Datasets through the pyarrow engine."""

    engine = "pyarrow"


class DuckDBDatasetIO(_DatasetIO):
    """Datasets through the DuckDB engine: SQL finds what matches. `DuckDBParquetHandler` is another name for it.

    Every merge has an in-memory database of its own, for which `threads`, `memory_limit` ("1GB") and
    `temp_directory` (where it spills) may be set. Of a `connection` that is given only cursors are used: its settings,
    views, tables and transaction stay as they are.
    """

    engine = "duckdb"

    def __init__(
        self,
        connection: Any = None,
        *,
        filesystem: Any = None,
        storage_options: dict[str, Any] | None = None,
        threads: int | None = None,
        memory_limit: str | None = None,
        temp_directory: str | None = None,
    ) -> None:
        super().__init__(filesystem=filesystem, storage_options=storage_options)
        self._settings = {
            "connection": connection,
            "threads": threads,
            "memory_limit": memory_limit,
            "temp_directory": temp_directory,
        }
        self._engine()  # settings that contradict each other are refused here

    def _engine(self, use_merge: bool | None = None) -> Any:
        return get_engine(self.engine, use_merge=use_merge, **self._settings)

    def merge(
        self,
        data: Any,
        path: str,
        strategy: MergeStrategy,
        key_columns: Sequence[str] | str,
        partition_columns: Sequence[str] | None = None,
        *,
        use_merge: bool | None = None,
        **options: Any,
    ) -> MergeResult:
        """Merge by native MERGE (`use_merge=True`), by UNION ALL (`False`), or by what the version allows (`None`)."""
        options["engine"] = self._engine(use_merge)
        return super().merge(data, path, strategy, key_columns, partition_columns, **options)

    def plan_merge(
        self,
        data: Any,
        path: str,
        strategy: MergeStrategy,
        key_columns: Sequence[str],
        partition_columns: Sequence[str] | None = None,
        *,
        use_merge: bool | None = None,
        **options: Any,
    ) -> MergePlan:
        options["engine"] = self._engine(use_merge)
        return super().plan_merge(data, path, strategy, key_columns, partition_columns, **options)


DuckDBParquetHandler = DuckDBDatasetIO


class SparkDatasetIO(_DatasetIO):
    """Datasets through the Spark engine, on a given session or on this process's own."""

    engine = "spark"

    def __init__(
        self, spark: Any = None, *, filesystem: Any = None, storage_options: dict[str, Any] | None = None
    ) -> None:
        super().__init__(filesystem=filesystem, storage_options=storage_options)
        self._spark = spark

    def _engine(self) -> Any:
        from inlay.engines.spark import SparkEngine

        return SparkEngine(self._spark)


def merge_parquet_dataset_pyarrow(
    data: Any, path: str, key_columns: Sequence[str] | str, strategy: MergeStrategy = "upsert", **options: Any
) -> MergeStats:
    """Merge with the pyarrow engine; returns inserted, updated, deleted and total."""
    return PyArrowDatasetIO().merge_parquet_dataset(data, path, key_columns, strategy, **options)
