"""The format `inlay` of Spark's DataFrames and streams."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

from inlay.engines.spark.session import current_session, ship_package
from inlay.errors import InvalidArgumentError
from inlay.spark.options import ReadOptions, WriteOptions
from inlay.spark.reader import SnapshotReader, read_schema
from inlay.spark.writer import BatchWriter, StreamWriter

__all__ = ["InlayDataSource"]


class InlayDataSource(DataSource):
    """The format `inlay` of Spark's DataFrames and streams.

    Register it once per session: `spark.dataSource.register(inlay.spark.InlayDataSource)`. It reads and writes the
    datasets of inlay:

    - `spark.read.format("inlay").load(path)` reads one snapshot. The options `columns` ("id,price") and `filter`
      ("day >= '2025-01-01' AND id < 100") leave out columns, files and rows before Spark sees them. The option
      `version` reads an earlier version.
    - `df.write.format("inlay").mode("append").option("keys", "id").option("strategy", "upsert").save(path)` merges a
      DataFrame. Without `keys`, `mode("append")` appends its rows and `mode("overwrite")` replaces all rows.
    - `df.writeStream.format("inlay").option("keys", "id").option("checkpointLocation", ...).start(path)` merges each
      micro-batch of a stream exactly once.

    The other options are the arguments of `inlay.merge`, `inlay.write_dataset` and `inlay.read_parquet`: lists with
    commas, mappings as JSON.

    Example:
        >>> import inlay.spark
        >>> inlay.spark.InlayDataSource.name()
        'inlay'
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format.

        Registration calls this method in the process of the session, so it also sends this package to executors that
        lack it.

        Returns:
            The name `inlay`.

        Example:
            >>> import inlay.spark
            >>> inlay.spark.InlayDataSource.name()
            'inlay'
        """
        session = current_session()
        if session is not None:
            ship_package(session)
        return "inlay"

    def schema(self) -> Any:
        """Return the columns of the dataset in Spark's types.

        Returns:
            A `StructType`.

        Raises:
            InvalidArgumentError: An option is unknown or invalid.
            NotFoundError: There is no Parquet file at the path.
            SchemaMismatchError: A column does not exist, or Spark has no type for its values.
            UnreadableFileError: A data file cannot be read.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1]}, "people").row_count
            1
            >>> inlay.spark.InlayDataSource({"path": "people"}).schema().simpleString()
            'struct<id:bigint>'
        """
        return read_schema(ReadOptions.parse(self.options))

    def reader(self, schema: Any) -> SnapshotReader:
        """Return the reader of the columns in `schema`.

        Args:
            schema: The columns, as a `StructType`.

        Returns:
            A reader that Spark plans with.

        Raises:
            InvalidArgumentError: An option is unknown or invalid.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1]}, "people").row_count
            1
            >>> source = inlay.spark.InlayDataSource({"path": "people"})
            >>> len(source.reader(source.schema()).partitions())
            1
        """
        return SnapshotReader(ReadOptions.parse(self.options), schema)

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        """Return the writer of a DataFrame.

        Args:
            schema: The columns of the DataFrame, as a `StructType`.
            overwrite: Whether the mode is `"overwrite"`.

        Returns:
            A writer whose tasks stage rows, and whose commit merges them.

        Raises:
            InvalidArgumentError: An option is missing, unknown or invalid, or contradicts the mode.

        Example:
            >>> import inlay
            >>> from pyspark.sql.types import StructType
            >>> source = inlay.spark.InlayDataSource({"path": "people", "keys": "id"})
            >>> type(source.writer(StructType().add("id", "long"), overwrite=False)).__name__
            'BatchWriter'
        """
        return BatchWriter(WriteOptions.parse(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:  # noqa: N802  (pyspark's name)
        """Return the writer of a stream's micro-batches.

        Args:
            schema: The columns of the stream, as a `StructType`.
            overwrite: Whether the output mode is `"complete"`.

        Returns:
            A writer whose tasks stage rows, and whose commits merge them with the batch as transaction token.

        Raises:
            InvalidArgumentError: An option is missing, unknown or invalid, or has no meaning for a stream.

        Example:
            >>> import inlay
            >>> from pyspark.sql.types import StructType
            >>> source = inlay.spark.InlayDataSource({"path": "people", "keys": "id"})
            >>> type(source.streamWriter(StructType().add("id", "long"), overwrite=False)).__name__
            'StreamWriter'
        """
        if overwrite:
            raise InvalidArgumentError(
                'outputMode("complete") passes all rows of the result in each micro-batch.',
                hint='Use outputMode("update") with foreachBatch(inlay.spark.merge_batch(path, keys)).',
            )
        return StreamWriter(WriteOptions.parse(self.options, overwrite=False), schema)
