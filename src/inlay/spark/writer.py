"""Writes to a dataset through the format `inlay`.

Tasks stage their rows as Arrow files beside the dataset. Spark passes the paths of the complete files to a Python
process beside the driver, which merges them in one commit. A stream's commit carries the query and the batch as its
transaction token, so a batch that Spark repeats changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import posixpath
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from inlay import incremental
from inlay.commit.sidecar import ABANDONED_SECONDS, STAGING_PREFIX, inner_sidecar_path, lease, sidecar_path
from inlay.commit.transaction import locate_dataset
from inlay.engines.spark.tasks import credentials, use_credentials
from inlay.errors import InvalidArgumentError
from inlay.spark.batches import batch_token, require_stream_options
from inlay.spark.options import WriteOptions
from inlay.spark.types import arrow_schema
from inlay.storage import LocalStore, Location, Store, discard_tree

__all__ = ["BatchWriter", "StreamWriter"]

_CREATE_ATTEMPTS = 5


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """The complete file of a task, without a path if it has no rows, and the query of a stream."""

    partition: int
    path: str
    query: str | None


@dataclass(frozen=True)
class _Job:
    """A write of rows that tasks stage. Tasks and the process that commits have the same job."""

    options: WriteOptions
    location: Location
    schema: pa.Schema
    credentials: Mapping[str, str]

    @classmethod
    def of(cls, options: WriteOptions, schema: Any) -> _Job:
        location = locate_dataset(options.path, storage_options=options.storage_options)
        return cls(options, location, arrow_schema(schema), credentials())

    # ------------------------------------------------------------------------------------------------------- tasks
    def stage(self, batches: Iterator[pa.RecordBatch], name: str, query: str | None) -> StagedRows:
        """Write the rows of a task to a file of its own in the staging directory `name`."""
        use_credentials(self.credentials)
        partition = TaskContext.get().partitionId()  # type: ignore[union-attr]
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return StagedRows(partition, "", query)
        path, out = _create_file(self.location, name)
        try:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            with out, pa.ipc.new_stream(out, self.schema, options=options) as writer:
                for batch in itertools.chain([first], batches):
                    # All tasks write the time zone UTC instead of the session's.
                    writer.write(batch.cast(self.schema))
        except BaseException:
            with contextlib.suppress(OSError):
                self.location.store.remove(path)
            raise
        return StagedRows(partition, path, query)

    # ------------------------------------------------------------------------------------------------------ commit
    def commit(self, messages: Sequence[StagedRows | None], transaction: str | None = None) -> None:
        """Merge the staged rows in the order of the partitions, and delete the files."""
        use_credentials(self.credentials)
        staged = sorted((each for each in messages if each is not None), key=lambda each: each.partition)
        rows = pa.RecordBatchReader.from_batches(
            self.schema, _read(self.location.store, [each.path for each in staged if each.path])
        )
        options = self.options
        if options.key_columns is None:
            incremental.write_dataset(rows, options.path, options.mode, engine="pyarrow", **options.arguments)
        else:
            arguments = options.arguments if transaction is None else options.arguments | {"transaction": transaction}
            incremental.merge(
                rows, options.path, options.strategy, options.key_columns, engine="pyarrow", **arguments
            )  # fmt: skip
        self.discard(messages)

    def discard(self, messages: Sequence[StagedRows | None], name: str | None = None) -> None:
        """Delete the staging directories of the messages, and the one with this name."""
        use_credentials(self.credentials)
        location = self.location
        found = {posixpath.dirname(each.path) for each in messages if each is not None and each.path}
        if name is not None:
            found |= {f"{parent(location)}/{STAGING_PREFIX}{name}" for parent in (sidecar_path, inner_sidecar_path)}
        for directory in found:
            discard_tree(location.store, directory)
            if isinstance(location.store, LocalStore):
                location.store.remove_empty_directory(posixpath.dirname(directory))


def _create_file(location: Location, name: str) -> tuple[str, BinaryIO]:
    """Create a file in a staging directory that several tasks use. No writer deletes the directory for a day."""
    attempts = 0
    while True:
        attempts += 1
        directory = _make_staging(location, name)
        path = f"{directory}/{uuid.uuid4().hex}.arrow"
        try:
            if isinstance(location.store, LocalStore):
                lease(directory, ABANDONED_SECONDS)
            return path, location.store.open_write(path)
        except FileNotFoundError:  # A writer deleted the directory before it had a lease.
            if attempts == _CREATE_ATTEMPTS:
                raise


def _make_staging(location: Location, name: str) -> str:
    outer, inner = (f"{parent(location)}/{STAGING_PREFIX}{name}" for parent in (sidecar_path, inner_sidecar_path))
    if not isinstance(location.store, LocalStore):
        return outer
    try:
        location.store.make_directories(outer)
    except PermissionError:
        location.store.make_directories(inner)
        return inner
    return outer


def _read(store: Store, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with store.open_arrow(path) as source, pa.ipc.open_stream(source) as reader:
            yield from reader


class BatchWriter(DataSourceArrowWriter):
    """Merges the rows of a DataFrame, or appends or replaces rows."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        self._job = _Job.of(options, schema)
        self._staging = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._job.stage(iterator, self._staging, None)

    def commit(self, messages: list[Any]) -> None:
        """Commit the rows of all tasks."""
        self._job.commit(messages)

    def abort(self, messages: list[Any]) -> None:
        """Delete the staged rows."""
        self._job.discard(messages, self._staging)


class StreamWriter(DataSourceStreamArrowWriter):
    """Merges each micro-batch of a stream exactly once."""

    def __init__(self, options: WriteOptions, schema: Any) -> None:
        require_stream_options(options.strategy if options.key_columns else None, options.arguments)
        self._job = _Job.of(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        context: Any = TaskContext.get()
        query, batch = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or batch is None:
            raise InvalidArgumentError("This task belongs to no micro-batch of a stream.")
        return self._job.stage(iterator, _staging_name(query, batch), query)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  (pyspark's name)
        """Commit the rows of a micro-batch, unless an earlier run of the query did."""
        query = next((each.query for each in messages if each is not None and each.path), None)
        if query is not None:  # A batch without rows changes nothing.
            self._job.commit(messages, batch_token(query, batchId))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803  (pyspark's name)
        """Delete the staged rows."""
        query = next((each.query for each in messages if each is not None), None)
        self._job.discard(messages, query and _staging_name(query, str(batchId)))


def _staging_name(query: str, batch: str) -> str:
    """Return the same name whenever Spark repeats a batch, so that its commit also deletes the files of killed runs."""
    return uuid.uuid5(uuid.UUID(query), batch).hex
