"""A snapshot of a dataset as a pyarrow Dataset, which polars, DuckDB and Spark can also scan with their own readers.

The readers of polars, DuckDB and Spark get the list of the snapshot's files and the types of all columns. They skip
partitions, row groups and columns by themselves. `_obstacle` knows where they would return other values than pyarrow:
then polars and DuckDB scan the pyarrow Dataset instead, and Spark, which cannot, refuses.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as pt

from inlay.commit.snapshot import Snapshot
from inlay.errors import EngineNotInstalledError, InvalidArgumentError, SchemaMismatchError
from inlay.incremental.read import Contents, open_files
from inlay.storage import LocalStore, Location

if TYPE_CHECKING:
    import duckdb
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["SnapshotDataset"]

# Snapshots that were scanned outside a `with` block. Their files stay readable until they are closed.
_open: dict[int, SnapshotDataset] = {}

_SAME_IN_ALL_READERS = (
    *(pt.is_boolean, pt.is_float32, pt.is_float64, pt.is_date32, pt.is_decimal128),
    *(pt.is_string, pt.is_large_string, pt.is_binary, pt.is_large_binary),
)
_GLOB = re.compile(r"([*?\[])")
_SPARK_GLOB = re.compile(r"[*?\[\]{}\\]")


class SnapshotDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A snapshot of a dataset, as a pyarrow Dataset that other libraries can scan too.

    `inlay.open_dataset` returns it. It has methods for polars, DuckDB and Spark. In a `with` block, it is readable
    until the end of the block. Otherwise it is readable until `close`, until Python deletes it or, if `scan_polars`,
    `duckdb` or `spark` was called, until the process ends.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2, 3]}, "people").row_count
        3
        >>> with inlay.open_dataset("people") as dataset:
        ...     dataset.count_rows()
        3
    """

    # pyarrow makes a dataset that `filter` returns without these attributes.
    _snapshot: Snapshot | None = None
    _contents: Contents
    _partitioning: ds.Partitioning
    _resources: ExitStack
    _in_block = False

    @classmethod
    def _of(cls, snapshot: Snapshot, contents: Contents, resources: ExitStack) -> Self:
        """Return the dataset of a snapshot, whose `resources` are released when the dataset is closed."""
        files = open_files(
            snapshot.location, [file.path for file in snapshot.files], contents.schema, contents.path_columns
        )
        dataset = cls(list(files.get_fragments()), files.schema, files.format, files.filesystem)
        dataset._snapshot, dataset._contents, dataset._resources = snapshot, contents, resources
        dataset._partitioning = files.partitioning
        return dataset

    @property
    def partitioning(self) -> ds.Partitioning | None:
        """The columns in the paths."""
        return None if self._snapshot is None else self._partitioning

    @property
    def version(self) -> int | None:
        """The number of the version, or None if the files are not those of a version."""
        record = self._require_open().record
        return None if record is None else record.version

    # ----------------------------------------------------------------------------------------------------- lifetime
    def __enter__(self) -> Self:
        self._require_open()
        self._in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._snapshot = None
        _open.pop(id(self), None)
        self._resources.__exit__(kind, error, traceback)

    def close(self) -> None:
        """Release the version, so that a later commit may drop it.

        The end of a `with` block does the same.

        Raises:
            ConcurrentModificationError: A writer committed meanwhile, and inlay could not keep the replaced files.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1, 2, 3]}, "people").row_count
            3
            >>> dataset = inlay.open_dataset("people")
            >>> dataset.count_rows()
            3
            >>> dataset.close()
        """
        if self._snapshot is not None:
            self.__exit__(None, None, None)

    def _require_open(self) -> Snapshot:
        if self._snapshot is None:
            raise InvalidArgumentError(
                "The dataset is closed, or it is the result of filter().",
                hint="Call scan_polars(), duckdb() or spark() on the dataset that inlay.open_dataset returned, before"
                " the end of its `with` block.",
            )
        return self._snapshot

    def _scanned(self) -> Snapshot:
        """Keep the files readable for a scan that does not refer to this object."""
        snapshot = self._require_open()
        if not self._in_block:
            _open[id(self)] = self
        return snapshot

    # ------------------------------------------------------------------------------------------------------ readers
    def scan_polars(self) -> pl.LazyFrame:
        """Scan the dataset lazily with polars.

        It reads only the columns, partitions and row groups that a query needs.

        Returns:
            A LazyFrame with the columns of the dataset. Collect it before the end of the `with` block.

        Raises:
            EngineNotInstalledError: polars is not installed.
            InvalidArgumentError: The dataset is closed.
            SchemaMismatchError: polars has no type for the values of a column.

        Example:
            >>> import inlay, polars as pl
            >>> inlay.write_dataset({"id": [1, 2, 3]}, "people").row_count
            3
            >>> with inlay.open_dataset("people") as dataset:
            ...     dataset.scan_polars().filter(pl.col("id") > 1).collect().rows()
            [(2,), (3,)]
        """
        snapshot = self._scanned()
        try:
            import polars as pl
        except ImportError as error:
            raise _not_installed("polars", "polars") from error
        _require_types("polars", self.schema, pt.is_decimal256)
        if _obstacle(snapshot.location, self._contents) is not None:
            return pl.scan_pyarrow_dataset(self)
        in_paths = self._contents.path_columns
        stored = pa.schema([field for field in self.schema if field.name not in in_paths.names])
        scan = pl.scan_parquet(
            self._files(),
            schema=_polars_schema(stored),
            glob=False,
            hive_partitioning=bool(in_paths.names),
            hive_schema=_polars_schema(in_paths) if in_paths.names else None,
            missing_columns="insert" if _has_missing_columns(self._contents) else "raise",
        )
        return scan.select(self.schema.names)

    def duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Scan the dataset lazily with DuckDB.

        It reads only the columns, partitions and row groups that a query needs.

        Args:
            connection: The connection of the relation. None uses DuckDB's default connection.

        Returns:
            A relation with the columns of the dataset. Run its queries before the end of the `with` block.

        Raises:
            EngineNotInstalledError: DuckDB is not installed.
            InvalidArgumentError: The dataset is closed, or `connection` is not one of DuckDB.
            SchemaMismatchError: DuckDB has no type for the values of a column, or two names differ only in case.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1, 2, 3]}, "people").row_count
            3
            >>> with inlay.open_dataset("people") as dataset:
            ...     dataset.duckdb().filter("id > 1").fetchall()
            [(2,), (3,)]
        """
        snapshot = self._scanned()
        try:
            import duckdb
        except ImportError as error:
            raise _not_installed("DuckDB", "inlay[duckdb]") from error
        _require_types("DuckDB", self.schema, _is_inexact_in_duckdb)
        _require_distinct_names("DuckDB", self.schema)
        connection = connection or duckdb.default_connection()
        if not isinstance(connection, duckdb.DuckDBPyConnection):
            raise InvalidArgumentError(f"The connection must be one of DuckDB, not {type(connection).__name__}.")
        if _obstacle(snapshot.location, self._contents) is not None:
            return connection.from_arrow(self)
        in_paths = self._contents.path_columns
        files = ", ".join(_text(_GLOB.sub(r"[\1]", file)) for file in self._files())
        columns = ", ".join('"' + name.replace('"', '""') + '"' for name in self.schema.names)
        options = f"union_by_name = {_has_missing_columns(self._contents)}, hive_partitioning = {bool(in_paths.names)}"
        if in_paths.names:
            types = connection.from_arrow(in_paths.empty_table()).types
            named = (f"{_text(name)}: {type_}" for name, type_ in zip(in_paths.names, types, strict=True))
            options += f", hive_types = {{{', '.join(named)}}}"
        return connection.sql(f"SELECT {columns} FROM read_parquet([{files}], {options})")  # noqa: S608  (quoted)

    def spark(self, session: SparkSession | None = None) -> DataFrame:
        """Scan the dataset lazily with Spark.

        It reads only the columns, partitions and row groups that a query needs.

        Args:
            session: The session of the DataFrame. None uses the active session, or starts a local one.

        Returns:
            A DataFrame with the columns of the dataset. Run its jobs before the end of the `with` block.

        Raises:
            EngineNotInstalledError: pyspark is not installed.
            InvalidArgumentError: The dataset is closed, or `session` is not one of Spark.
            SchemaMismatchError: Spark's Parquet reader would return other values, or two names differ only in case.
            SparkUnavailableError: No session can be started.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1, 2, 3]}, "people").row_count
            3
            >>> with inlay.open_dataset("people") as dataset:
            ...     dataset.spark().where("id > 1").count()
            2
        """
        location, files = self._scanned().location, self._files()
        try:
            engine = importlib.import_module("inlay.engines.spark.parquet")
        except ImportError as error:
            raise _not_installed("Spark", "inlay[spark]") from error
        obstacle = _obstacle(location, self._contents) or _obstacle_of_spark(self.schema, files, location)
        if obstacle is not None:
            option = "" if self.version is None else f'.option("version", {self.version})'
            raise SchemaMismatchError(
                f"Spark's Parquet reader cannot read this dataset exactly: {obstacle}.",
                hint=f'Read it with inlay\'s format: spark.read.format("inlay"){option}.load(path).',
            )
        _require_distinct_names("Spark", self.schema)
        return cast("DataFrame", engine.scan_parquet(files, location.root, self.schema, session))

    def _files(self) -> list[str]:
        snapshot = self._require_open()
        return [snapshot.location.full(file.path) for file in snapshot.files]


def _obstacle(location: Location, contents: Contents) -> str | None:
    """Return why readers of Parquet files could return other values than pyarrow, or None."""
    in_paths = contents.path_columns.names
    if not isinstance(location.store, LocalStore):
        return "its files are on an object store"
    if in_paths and "=" in location.root:
        return f"the path {location.root!r} contains a partition"
    if (odd := next((name for name in in_paths if not re.fullmatch(r"\w+", name)), None)) is not None:
        return f"the partition column {odd!r} has special characters"
    return next(_odd_columns(contents), None)


def _odd_columns(contents: Contents) -> Iterator[str]:
    for field in contents.schema:
        if not _is_same_in_all_readers(field.type):
            yield f"column {field.name!r} is {field.type}"
    for field in itertools.chain(*contents.footers.schemas):
        if field.name in contents.path_columns.names:
            yield f"column {field.name!r} is in the files and in their paths"
        elif field.type != contents.schema.field(field.name).type:
            yield f"the files have different types for column {field.name!r}"


def _obstacle_of_spark(schema: pa.Schema, files: Sequence[str], location: Location) -> str | None:
    if unsigned := next((field for field in schema if _has(field.type, pt.is_unsigned_integer)), None):
        return f"column {unsigned.name!r} is {unsigned.type}"
    if odd := next((path for path in files if _SPARK_GLOB.search(path)), None):
        return f"the path {odd!r} contains a wildcard"
    if empty := next((path for path in files if "=/" in path[len(location.root) :]), None):
        return f"the path {empty!r} has an empty partition value"
    return None


def _has_missing_columns(contents: Contents) -> bool:
    stored = len(contents.schema) - len(contents.path_columns)
    return any(len(schema) != stored for schema in contents.footers.schemas)


def _is_same_in_all_readers(type_: pa.DataType) -> bool:
    if pt.is_struct(type_):
        return all(_is_same_in_all_readers(field.type) for field in type_)
    if pt.is_list(type_) or pt.is_large_list(type_):
        return _is_same_in_all_readers(type_.value_type)
    if pt.is_timestamp(type_):
        return bool(type_.unit != "ns")
    return bool(pt.is_integer(type_)) or any(is_kind(type_) for is_kind in _SAME_IN_ALL_READERS)


def _is_inexact_in_duckdb(type_: pa.DataType) -> bool:
    """Return whether DuckDB cuts off digits of values of a type."""
    if pt.is_time64(type_) or pt.is_duration(type_) or (pt.is_timestamp(type_) and type_.tz is not None):
        return bool(type_.unit == "ns")
    return bool(pt.is_decimal256(type_))


def _has(type_: pa.DataType, is_kind: Callable[[pa.DataType], bool]) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _has(type_.storage_type, is_kind)
    if pt.is_dictionary(type_):
        return _has(type_.value_type, is_kind)
    return is_kind(type_) or any(_has(type_.field(at).type, is_kind) for at in range(type_.num_fields))


def _require_types(reader: str, schema: pa.Schema, is_inexact: Callable[[pa.DataType], bool]) -> None:
    for field in schema:
        if _has(field.type, is_inexact):
            raise SchemaMismatchError(
                f"{reader} cannot represent all values of column {field.name!r}, which is {field.type}.",
                hint="Read the other columns as a table: inlay.read_parquet(path, columns=[...]).",
            )


def _require_distinct_names(reader: str, schema: pa.Schema) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.casefold(), name)
        if other != name:
            raise SchemaMismatchError(
                f"{reader} cannot tell the columns {other!r} and {name!r} apart, because they differ only in case.",
                hint="Rename one of them with inlay.alter, or read the dataset with polars or pyarrow.",
            )


def _polars_schema(schema: pa.Schema) -> Any:
    import polars as pl

    return pl.DataFrame(schema.empty_table()).schema


def _text(value: str) -> str:
    """Return a text in SQL notation."""
    return "'" + value.replace("'", "''") + "'"


def _not_installed(reader: str, package: str) -> EngineNotInstalledError:
    return EngineNotInstalledError(f"{reader} is not installed.", hint=f"Run `pip install '{package}'`.")
