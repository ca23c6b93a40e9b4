"""Classes with the functions of inlay for one engine each, and the function names of the requirements."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from inlay.constants import LOCK_TIMEOUT, MAX_ROWS_PER_FILE, TARGET_FILE_SIZE
from inlay.engines import get_engine
from inlay.engines.base import Engine
from inlay.errors import InvalidArgumentError, unknown
from inlay.incremental import (
    MergePlan,
    MergeResult,
    MergeStats,
    MergeStrategy,
    WriteResult,
    compact,
    compute_merge_stats,
    merge,
    plan_merge,
    read_parquet,
    write_dataset,
)
from inlay.incremental.display import ProgressCallback
from inlay.incremental.strategies import get_strategy
from inlay.incremental.validate import SchemaMode
from inlay.storage import Filesystem

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

__all__ = [
    "DuckDBDatasetIO",
    "DuckDBParquetHandler",
    "PyArrowDatasetIO",
    "SparkDatasetIO",
    "merge_parquet_dataset_pyarrow",
]


def _passed(arguments: Mapping[str, Any], *without: str) -> dict[str, Any]:
    """Return the arguments of a method, from `locals()` in its first line, that are not None."""
    return {k: v for k, v in arguments.items() if v is not None and k not in ("self", "__class__", *without)}


# The arguments of write_parquet_dataset that choose between a merge and a write.
_CHOICES = ("data", "path", "mode", "strategy", "rewrite_mode", "key_columns", "use_merge")


def _stats(result: MergeResult) -> MergeStats:
    return compute_merge_stats(
        strategy=get_strategy(result.strategy).name,
        target_before=result.target_count_before,
        target_after=result.target_count_after,
        inserted_rows=result.inserted,
        updated_rows=result.updated,
        deleted_rows=result.deleted,
    )


class _DatasetIO:
    """The functions of inlay with a fixed engine, filesystem and storage options."""

    engine: ClassVar[str]

    def __init__(
        self, *, filesystem: Filesystem | None = None, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._storage: dict[str, Any] = {"filesystem": filesystem, "storage_options": storage_options}

    def _engine(self, **settings: Any) -> Engine:
        return get_engine(self.engine, **settings)

    def _arguments(self, passed: dict[str, Any], **settings: Any) -> dict[str, Any]:
        return {"engine": self._engine(**settings), **self._storage, **passed}

    def merge(
        self,
        data: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy,
        key_columns: str | Sequence[str],
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> MergeResult:
        """Merge source rows into a Parquet dataset.

        See `inlay.merge` for all arguments and errors.

        Returns:
            The exact numbers of inserted, updated and deleted rows, and the operation on each file.
        """
        return merge(**self._arguments(_passed(locals())))

    def plan_merge(
        self,
        data: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy,
        key_columns: str | Sequence[str],
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> MergePlan:
        """Plan a merge without writing anything.

        See `inlay.merge` for all arguments and errors.

        Returns:
            The number of rows to insert, update and delete, and for each file its operation and the reason.
        """
        return plan_merge(**self._arguments(_passed(locals())))

    def write_dataset(
        self,
        data: Any,
        path: str | os.PathLike[str],
        *,
        mode: Literal["append", "overwrite"] = "append",
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> WriteResult:
        """Write rows to a dataset as new files.

        See `inlay.write_dataset` for all arguments and errors.

        Args:
            data: The rows to write; the `source` of `inlay.write_dataset`.

        Returns:
            The new files and the removed files.
        """
        arguments = _passed(locals())
        return write_dataset(arguments.pop("data"), **self._arguments(arguments))

    def compact(
        self,
        path: str | os.PathLike[str],
        *,
        target_file_size: int = TARGET_FILE_SIZE,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        sort_by: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        row_group_size: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> WriteResult:
        """Combine the small files of a dataset.

        See `inlay.compact` for all arguments and errors.

        Returns:
            The new files and the files that they replace.
        """
        return compact(**self._arguments(_passed(locals())))

    def read_parquet(
        self,
        path: str | os.PathLike[str],
        *,
        columns: Sequence[str] | None = None,
        filter: ds.Expression | None = None,  # noqa: A002
        filesystem: Filesystem | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """Read a dataset into memory.

        See `inlay.read_parquet` for all arguments and errors.

        Returns:
            The rows, file by file in path order.
        """
        return read_parquet(**self._storage | _passed(locals()))

    def write_parquet_dataset(
        self,
        data: Any,
        path: str | os.PathLike[str],
        mode: Literal["append", "overwrite"] = "append",
        strategy: MergeStrategy | None = None,
        rewrite_mode: Literal["incremental", "full"] = "full",
        key_columns: str | Sequence[str] | None = None,
        *,
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> MergeResult | WriteResult:
        """Merge rows if `strategy` is set; otherwise write them as new files.

        See `inlay.merge` and `inlay.write_dataset` for the other arguments and errors.

        Args:
            mode: Without a strategy: `"append"` or `"overwrite"`.
            strategy: The strategy of a merge. None writes the rows without comparing keys.
            rewrite_mode: `"incremental"` requires a strategy. A merge is always incremental.
            key_columns: The key columns of a merge.

        Returns:
            The result of the merge or write.

        Raises:
            InvalidArgumentError: `rewrite_mode` is unknown, or `strategy` or `key_columns` is missing.
        """
        options = _passed(locals(), *_CHOICES)
        return self._merge_or_write(data, path, mode, strategy, rewrite_mode, key_columns, options, {})

    def _merge_or_write(
        self,
        data: Any,
        path: str | os.PathLike[str],
        mode: Literal["append", "overwrite"],
        strategy: MergeStrategy | None,
        rewrite_mode: str,
        key_columns: str | Sequence[str] | None,
        options: Mapping[str, Any],
        merge_options: Mapping[str, Any],
    ) -> MergeResult | WriteResult:
        if rewrite_mode not in ("incremental", "full"):
            raise unknown("rewrite_mode", rewrite_mode, ["incremental", "full"])
        if strategy is None:
            if rewrite_mode == "incremental":
                raise InvalidArgumentError('rewrite_mode="incremental" needs a strategy and key_columns.')
            return self.write_dataset(data, path, mode=mode, **options)
        if key_columns is None:
            raise InvalidArgumentError(f"strategy={strategy!r} needs key_columns.")
        return self.merge(data, path, strategy, key_columns, **options, **merge_options)

    def merge_parquet_dataset(
        self,
        data: Any,
        path: str | os.PathLike[str],
        key_columns: str | Sequence[str],
        strategy: MergeStrategy = "upsert",
        *,
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
    ) -> MergeStats:
        """Merge source rows and return only the row counts.

        See `inlay.merge` for all arguments and errors.

        Returns:
            The number of inserted, updated and deleted rows, and the number of rows after the merge.
        """
        return _stats(self.merge(**_passed(locals())))


class PyArrowDatasetIO(_DatasetIO):
    """The functions of inlay with the pyarrow engine.

    Each method has the arguments of the function with the same name, except `engine`. A `filesystem` or
    `storage_options` argument of a method overrides that of the constructor.

    Args:
        filesystem: The fsspec or pyarrow filesystem of all paths.
        storage_options: Arguments of the filesystems that URLs name.

    Example:
        >>> import inlay
        >>> io = inlay.PyArrowDatasetIO()
        >>> io.merge({"id": [1, 2]}, "people", "upsert", "id").inserted
        2
        >>> io.write_parquet_dataset({"id": [2, 3]}, "people", strategy="insert", key_columns="id").inserted
        1
        >>> io.merge_parquet_dataset({"id": [3]}, "people", "id")
        {'inserted': 0, 'updated': 1, 'deleted': 0, 'total': 3}
        >>> io.read_parquet("people").num_rows
        3
    """

    engine = "pyarrow"


class DuckDBDatasetIO(_DatasetIO):
    """The functions of inlay with the DuckDB engine, which matches keys with SQL.

    `DuckDBParquetHandler` is another name for this class. Each method has the arguments of the function with the same
    name, except `engine`. Without a `connection`, each merge uses its own in-memory database.

    Args:
        connection: A DuckDB connection to match keys with. inlay uses only cursors of it, and leaves its settings,
            tables, views and transaction unchanged.
        filesystem: The fsspec or pyarrow filesystem of all paths.
        storage_options: Arguments of the filesystems that URLs name.
        threads: The number of threads of the in-memory database.
        memory_limit: The memory limit of the in-memory database, such as `"1GB"`.
        temp_directory: The directory in which the in-memory database spills data to disk.

    Raises:
        InvalidArgumentError: Both `connection` and a setting of the in-memory database are passed.
        EngineNotInstalledError: DuckDB is not installed.

    Example:
        >>> import inlay
        >>> io = inlay.DuckDBDatasetIO(memory_limit="1GB", threads=2)
        >>> io.merge({"id": [1, 2]}, "people", "upsert", "id").inserted
        2
        >>> io.plan_merge({"id": [2, 3]}, "people", "upsert", "id", use_merge=False).inserted
        1
    """

    engine = "duckdb"

    def __init__(
        self,
        connection: DuckDBPyConnection | None = None,
        *,
        filesystem: Filesystem | None = None,
        storage_options: Mapping[str, Any] | None = None,
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
        self._engine()  # rejects contradictory settings now instead of in the first merge

    def _engine(self, **settings: Any) -> Engine:
        return get_engine(self.engine, **self._settings, **settings)

    def merge(
        self,
        data: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy,
        key_columns: str | Sequence[str],
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        use_merge: bool | None = None,
    ) -> MergeResult:
        """Merge source rows into a Parquet dataset.

        See `inlay.merge` for the other arguments and errors.

        Args:
            use_merge: How DuckDB matches keys. True uses its MERGE statement (DuckDB 1.4 or newer), False uses
                UNION ALL, and None uses MERGE if DuckDB has it. The result is the same.

        Returns:
            The exact numbers of inserted, updated and deleted rows, and the operation on each file.

        Raises:
            DatasetMergeError: `use_merge` is True and DuckDB is older than 1.4.
        """
        return merge(**self._arguments(_passed(locals(), "use_merge"), use_merge=use_merge))

    def plan_merge(
        self,
        data: Any,
        path: str | os.PathLike[str],
        strategy: MergeStrategy,
        key_columns: str | Sequence[str],
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        *,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        use_merge: bool | None = None,
    ) -> MergePlan:
        """Plan a merge without writing anything.

        See `inlay.merge` for the other arguments and errors.

        Args:
            use_merge: See `DuckDBDatasetIO.merge`.

        Returns:
            The number of rows to insert, update and delete, and for each file its operation and the reason.
        """
        return plan_merge(**self._arguments(_passed(locals(), "use_merge"), use_merge=use_merge))

    def write_parquet_dataset(
        self,
        data: Any,
        path: str | os.PathLike[str],
        mode: Literal["append", "overwrite"] = "append",
        strategy: MergeStrategy | None = None,
        rewrite_mode: Literal["incremental", "full"] = "full",
        key_columns: str | Sequence[str] | None = None,
        *,
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        use_merge: bool | None = None,
    ) -> MergeResult | WriteResult:
        """Merge rows if `strategy` is set; otherwise write them as new files.

        See `inlay.merge` and `inlay.write_dataset` for the other arguments and errors.

        Args:
            mode: Without a strategy: `"append"` or `"overwrite"`.
            strategy: The strategy of a merge. None writes the rows without comparing keys.
            rewrite_mode: `"incremental"` requires a strategy. A merge is always incremental.
            key_columns: The key columns of a merge.
            use_merge: For a merge: see `DuckDBDatasetIO.merge`.

        Returns:
            The result of the merge or write.

        Raises:
            InvalidArgumentError: `rewrite_mode` is unknown, or `strategy` or `key_columns` is missing.
        """
        options = _passed(locals(), *_CHOICES)
        only_merge = {"use_merge": use_merge}
        return self._merge_or_write(data, path, mode, strategy, rewrite_mode, key_columns, options, only_merge)

    def merge_parquet_dataset(
        self,
        data: Any,
        path: str | os.PathLike[str],
        key_columns: str | Sequence[str],
        strategy: MergeStrategy = "upsert",
        *,
        partition_columns: str | Sequence[str] | None = None,
        filesystem: Filesystem | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        partition_by: str | Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT,
        use_merge: bool | None = None,
    ) -> MergeStats:
        """Merge source rows and return only the row counts.

        See `inlay.merge` for all arguments and errors.

        Args:
            use_merge: See `DuckDBDatasetIO.merge`.

        Returns:
            The number of inserted, updated and deleted rows, and the number of rows after the merge.
        """
        return _stats(self.merge(**_passed(locals())))


DuckDBParquetHandler = DuckDBDatasetIO


class SparkDatasetIO(_DatasetIO):
    """The functions of inlay with the Spark engine, which runs tasks on a Spark cluster.

    Each method has the arguments of the function with the same name, except `engine`.

    Args:
        spark: The Spark session to use. inlay never reconfigures or stops it. None uses the active session, or starts
            one as `INLAY_SPARK_MASTER` and `INLAY_SPARK_CONF` say.
        filesystem: The fsspec or pyarrow filesystem of all paths.
        storage_options: Arguments of the filesystems that URLs name.

    Raises:
        EngineNotInstalledError: pyspark is not installed.

    Example:
        >>> import inlay
        >>> io = inlay.SparkDatasetIO()  # starts Spark in the first merge
        >>> io.engine
        'spark'
    """

    engine = "spark"

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        filesystem: Filesystem | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(filesystem=filesystem, storage_options=storage_options)
        self._spark = spark

    def _engine(self, **settings: Any) -> Engine:
        return get_engine(self.engine, spark=self._spark, **settings)


def merge_parquet_dataset_pyarrow(
    data: Any,
    path: str | os.PathLike[str],
    key_columns: str | Sequence[str],
    strategy: MergeStrategy = "upsert",
    *,
    partition_columns: str | Sequence[str] | None = None,
    filesystem: Filesystem | None = None,
    compression: str | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    row_group_size: int | None = None,
    partition_by: str | Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> MergeStats:
    """Merge source rows with the pyarrow engine and return only the row counts.

    See `inlay.merge` for all arguments and errors.

    Returns:
        The number of inserted, updated and deleted rows, and the number of rows after the merge.

    Example:
        >>> import inlay
        >>> inlay.merge_parquet_dataset_pyarrow({"id": [1, 2]}, "people", key_columns="id", strategy="insert")
        {'inserted': 2, 'updated': 0, 'deleted': 0, 'total': 2}
    """
    return PyArrowDatasetIO().merge_parquet_dataset(**_passed(locals()))
