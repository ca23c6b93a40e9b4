"""Classes with the functions of inlay for one engine each, and the function names of the requirements."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from inlay import incremental
from inlay.engines import get_engine
from inlay.engines.base import Engine
from inlay.errors import InvalidArgumentError, unknown
from inlay.incremental import MergeResult, MergeStats, MergeStrategy, WriteResult, compute_merge_stats
from inlay.incremental.display import ProgressCallback
from inlay.incremental.strategies import get_strategy
from inlay.incremental.validate import MissingColumns, SchemaMode, Scope
from inlay.storage import Filesystem

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pyspark.sql import SparkSession

__all__ = [
    "DuckDBDatasetIO",
    "DuckDBParquetHandler",
    "PyArrowDatasetIO",
    "SparkDatasetIO",
    "merge_parquet_dataset_pyarrow",
]

P = ParamSpec("P")
R = TypeVar("R")


def _method(function: Callable[P, R]) -> Callable[Concatenate[_DatasetIO, P], R]:
    """Turn a function of inlay into a method that passes the engine and the storage of its object."""
    original = inspect.signature(function)
    parameters = [each for each in original.parameters.values() if each.name != "engine"]
    owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = original.replace(parameters=[owner, *parameters])
    description = inspect.cleandoc(function.__doc__ or "")
    sections = re.findall(r"\n(?:Returns|Raises):\n.*?(?=\n\n|\Z)", description, re.DOTALL)

    @functools.wraps(function)
    def method(self: _DatasetIO, /, *arguments: P.args, **options: P.kwargs) -> R:
        passed = signature.bind(self, *arguments, **options).arguments
        del passed["self"]
        storage = {name: value for name, value in self._storage.items() if passed.get(name) is None}
        if "engine" in original.parameters:
            passed["engine"] = self._engine(use_merge=passed.pop("use_merge", None))
        return function(**passed | storage)  # type: ignore[call-arg]  # bound by name above

    method.__signature__ = signature  # type: ignore[attr-defined]
    method.__doc__ = (
        f"{description.partition(chr(10))[0]}\n\nSee `inlay.{function.__name__}` for all arguments and an example.\n"
        + "\n".join(sections)
    )
    return method


class _MergeOptions(TypedDict, total=False):
    partition_columns: str | Sequence[str] | None
    filesystem: Filesystem | None
    compression: str | None
    max_rows_per_file: int
    row_group_size: int | None
    partition_by: str | Sequence[str] | None
    storage_options: Mapping[str, Any] | None
    schema_mode: SchemaMode
    missing_columns: MissingColumns
    dedup_order_by: str | Sequence[str] | None
    progress: ProgressCallback | bool | None
    lock_timeout: float
    use_merge: bool | None
    read_options: Mapping[str, Any] | None
    transaction: str | None
    operation_column: str | None
    newer_by: str | None
    max_deleted: float | None
    scope: Scope | None


def _show_options(function: Callable[P, R]) -> Callable[P, R]:
    """Show the arguments of `merge` in the signature of a function that passes them on as `**options`."""
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    options = inspect.signature(incremental.merge).parameters
    more = [options[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in _MergeOptions.__annotations__]
    function.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return function


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

    merge = _method(incremental.merge)
    plan_merge = _method(incremental.plan_merge)
    delete = _method(incremental.delete)
    plan_delete = _method(incremental.plan_delete)
    write_dataset = _method(incremental.write_dataset)
    compact = _method(incremental.compact)
    alter = _method(incremental.alter)
    plan_alter = _method(incremental.plan_alter)
    read_parquet = _method(incremental.read_parquet)

    @_show_options
    def write_parquet_dataset(
        self,
        data: Any,
        path: str | os.PathLike[str],
        mode: Literal["append", "overwrite"] = "append",
        strategy: MergeStrategy | None = None,
        rewrite_mode: Literal["incremental", "full"] = "full",
        key_columns: str | Sequence[str] | None = None,
        **options: Unpack[_MergeOptions],
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
            InlayError: `inlay.merge` or `inlay.write_dataset` rejects the other arguments, or fails.

        Example:
            >>> import inlay
            >>> io = inlay.PyArrowDatasetIO()
            >>> io.write_parquet_dataset({"id": [1, 2]}, "people").row_count
            2
            >>> io.write_parquet_dataset({"id": [2, 3]}, "people", strategy="insert", key_columns="id").inserted
            1
        """
        if rewrite_mode not in ("incremental", "full"):
            raise unknown("rewrite_mode", rewrite_mode, ["incremental", "full"])
        if mode not in ("append", "overwrite"):
            raise unknown("mode", mode, ["append", "overwrite"])
        if strategy is None:
            if rewrite_mode == "incremental":
                raise InvalidArgumentError('rewrite_mode="incremental" needs a strategy and key_columns.')
            if key_columns is not None:
                raise InvalidArgumentError("key_columns needs a strategy.", hint='Pass strategy="upsert", for example.')
            options.pop("use_merge", None)  # a write matches no keys
            if options.pop("transaction", None) is not None:
                raise InvalidArgumentError("transaction needs a strategy.", hint='Pass strategy="upsert", for example.')
            return self.write_dataset(data, path, mode=mode, **options)  # type: ignore[misc]  # checked by the call
        get_strategy(strategy)
        if mode == "overwrite":
            raise InvalidArgumentError(
                f'mode="overwrite" contradicts strategy={strategy!r}, which keeps rows.',
                hint="Pass only one of mode and strategy.",
            )
        if key_columns is None:
            raise InvalidArgumentError(f"strategy={strategy!r} needs key_columns.")
        return self.merge(data, path, strategy, key_columns, **options)

    @_show_options
    def merge_parquet_dataset(
        self,
        data: Any,
        path: str | os.PathLike[str],
        key_columns: str | Sequence[str],
        strategy: MergeStrategy = "upsert",
        **options: Unpack[_MergeOptions],
    ) -> MergeStats:
        """Merge source rows and return only the row counts.

        See `inlay.merge` for all arguments and errors.

        Returns:
            The number of inserted, updated and deleted rows, and the number of rows after the merge.

        Raises:
            InlayError: `inlay.merge` rejects the same arguments, or fails, with the same error.

        Example:
            >>> import inlay
            >>> inlay.PyArrowDatasetIO().merge_parquet_dataset({"id": [1, 2]}, "people", "id")
            {'inserted': 2, 'updated': 0, 'deleted': 0, 'total': 2}
        """
        return _stats(self.merge(data, path, strategy, key_columns, **options))


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


@_show_options
def merge_parquet_dataset_pyarrow(
    data: Any,
    path: str | os.PathLike[str],
    key_columns: str | Sequence[str],
    strategy: MergeStrategy = "upsert",
    **options: Unpack[_MergeOptions],
) -> MergeStats:
    """Merge source rows with the pyarrow engine and return only the row counts.

    See `inlay.merge` for all arguments and errors.

    Returns:
        The number of inserted, updated and deleted rows, and the number of rows after the merge.

    Raises:
        InlayError: `inlay.merge` rejects the same arguments, or fails, with the same error.

    Example:
        >>> import inlay
        >>> inlay.merge_parquet_dataset_pyarrow({"id": [1, 2]}, "people", key_columns="id", strategy="insert")
        {'inserted': 2, 'updated': 0, 'deleted': 0, 'total': 2}
    """
    return PyArrowDatasetIO().merge_parquet_dataset(data, path, key_columns, strategy, **options)
