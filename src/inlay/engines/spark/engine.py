"""The Spark engine: Spark distributes, Arrow computes.

Every operation is a job whose tasks run the kernels of the pyarrow engine on data files. The bytes to process determine
the number of tasks (`max_tasks`), because a task costs Spark as much CPU time as a small file. There is no shuffle:
tasks open data files through `storage`, and read source rows from a scratch directory (`tasks`), or get them with the
code if they are few. The driver writes the rows of a small source, other tasks those of a large one (`source`). So no
row is converted to Spark's types. Spark can run a task again: a task writes a file with a name of its own, and renames
it at the end.

Only functions that Spark Connect supports are used: no RDD, no JVM gateway, no accumulators.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from inlay.engines.alterations import alter_file
from inlay.engines.base import (
    Alteration,
    Append,
    Combine,
    Conform,
    FileEdit,
    FileMatch,
    Pick,
    StageResult,
    StageResults,
    Target,
    TaskProgress,
)
from inlay.engines.files import open_path
from inlay.engines.kernels import combine_files, pick_rows
from inlay.engines.selection import Selection
from inlay.engines.source import ArrowSource, load_small_source, load_source
from inlay.engines.spark.jobs import DriverRows, RowSupply, StoredRows, match, select, stage
from inlay.engines.spark.session import get_session, parallelism, ship_package
from inlay.engines.spark.source import (
    Ingest,
    Ingested,
    IngestFiles,
    ParquetFiles,
    SparkFrame,
    StoredSource,
    make_buckets,
)
from inlay.engines.spark.tasks import (
    RESULT_DDL,
    Attempt,
    Kernel,
    Piece,
    PieceWriter,
    Scratch,
    TaskJobs,
    credentials,
    max_tasks,
    unpack,
)
from inlay.engines.streams import PATH_TYPES, open_rows, open_source, require_no_read_options
from inlay.errors import DatasetMergeError
from inlay.parquet.footers import Footer, read_many, with_shared_schemas
from inlay.storage import FileStat, LocalStore, Location, ObjectStore

__all__ = ["SparkEngine"]


_MIN_FOOTERS = 4_000  # a job takes a second or two, so the driver reads fewer footers itself
_KEY_SHARE = 8  # matching reads about this fraction of a file: its key columns, where statistics allow a match
_MAX_INLINE_BYTES = 2 << 20
_DRIVER_BYTES = 64 << 20  # the driver does not load a source that takes more memory


class SparkEngine:
    """The Spark engine."""

    name = "spark"

    def __init__(
        self, spark: Any = None, on_tasks: TaskProgress | None = None, location: Location | None = None
    ) -> None:
        """Use `spark` or the session of the process. Scratch directories are beside `location`."""
        self._session, self._on_tasks, self._location = spark, on_tasks, location

    def with_progress(self, on_tasks: TaskProgress) -> SparkEngine:
        return SparkEngine(self._session, on_tasks, self._location)

    def bind(self, location: Location, operation: str) -> SparkEngine:  # noqa: ARG002  (works on every location)
        return SparkEngine(self._session, self._on_tasks, location)

    @property
    def spark(self) -> Any:
        session = self._session if self._session is not None else get_session()
        ship_package(session)
        return session

    # ------------------------------------------------------------------------------------------------------- source
    @contextlib.contextmanager
    def open(
        self,
        data: Any,
        like: pa.Schema | None,
        storage_options: Mapping[str, Any] | None,
        read_options: Mapping[str, Any] | None,
    ) -> Iterator[pa.Table | pa.RecordBatchReader | SparkFrame | ParquetFiles]:
        if hasattr(data, "mapInArrow"):
            require_no_read_options(data, read_options)
            yield SparkFrame.of(data)
        elif isinstance(data, PATH_TYPES):
            with open_path(os.fspath(data), like, storage_options, read_options) as opened:
                files = ParquetFiles.of(opened)
                yield open_rows(opened) if files is None else files
        else:
            with open_source(data, like, storage_options, read_options) as rows:
                yield rows

    def load(self, data: Any, conform: Conform, key_columns: Sequence[str]) -> ArrowSource | StoredSource:
        if not isinstance(data, (SparkFrame, ParquetFiles)):
            return load_source(data, conform, key_columns)
        if isinstance(data, ParquetFiles) and data.size <= _DRIVER_BYTES:  # may take more memory when it is decoded
            small = load_small_source(data.reader(), conform, key_columns, _DRIVER_BYTES)
            if small is not None:
                return small
        scratch = None if self._location is None else Scratch.beside(self._location)
        if scratch is None:
            return load_source(data.reader(), conform, key_columns)
        try:
            ingest = Ingest(conform, list(key_columns), scratch, credentials())
            parts = self._ingest(data, ingest)
            if parts is not None:
                return self._make_source(parts, conform(data.schema.empty_table()), ingest)
        except BaseException:
            scratch.remove()
            raise
        scratch.remove()
        return load_source(data.reader(), conform, key_columns)

    def _ingest(self, data: SparkFrame | ParquetFiles, ingest: Ingest) -> list[Ingested] | None:
        """Read the source once in tasks. Return None if tasks cannot open its files."""
        if isinstance(data, ParquetFiles):
            parts = list(self._run(IngestFiles(ingest, data.schema), data.tasks))
            return None if None in parts else [part for part in parts if part.rows]
        session = data.frame.sparkSession
        ship_package(session)
        return list(self._jobs(session).collect(data.frame.mapInArrow(ingest, RESULT_DDL)))

    def _make_source(self, parts: Sequence[Ingested], empty: pa.Table, ingest: Ingest) -> ArrowSource | StoredSource:
        """Load a small source into the driver, and split a large one into buckets."""
        scratch = ingest.scratch
        if sum(part.size for part in parts) > _DRIVER_BYTES:
            return make_buckets(self._run, parts, empty.schema, ingest.key_columns, scratch)
        tables: list[pa.Table] = [empty]
        for part in parts:
            tables += [unpack(part.inline)] if part.inline is not None else map(scratch.read, part.pieces)
        scratch.remove()
        return load_source(pa.concat_tables(tables), lambda rows: rows, ingest.key_columns)

    # --------------------------------------------------------------------------------------------------- operations
    def footers(self, location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]:
        if len(files) < _MIN_FOOTERS:
            return read_many(location, files, columns)
        read = self._run(_FooterKernel(location, list(columns)), self._bundles(files, None))
        return with_shared_schemas([footer for bundle in read for footer in bundle])

    def match(
        self,
        location: Location,
        source: ArrowSource | StoredSource,
        key_columns: Sequence[str],  # noqa: ARG002  (the source has them)
        targets: Sequence[Target],
    ) -> Iterator[FileMatch]:
        if not targets:
            return iter(())
        size = sum(target.size for target in targets) // _KEY_SHARE
        return match(self._run, location, self._supply(source), self._bundles(targets, size))

    def select(self, location: Location, selection: Selection, targets: Sequence[Target]) -> Iterator[FileMatch]:
        size = sum(target.size for target in targets) // _KEY_SHARE
        with self._open_scratch(size) as scratch:
            yield from select(self._run, location, selection, scratch, self._bundles(targets, size))

    def stage(
        self,
        location: Location,
        source: ArrowSource | StoredSource,
        edits: Sequence[FileEdit],
        appends: Sequence[Append],
        *,
        dry_run: bool = False,
    ) -> StageResults:
        rows = sum(len(group.sources) for edit in edits for group in edit.groups)
        rows += sum(len(append.rows) for append in appends)
        rows_per_task = 0 if dry_run else max(1, rows // (2 * parallelism(self.spark)))
        supply = self._supply(source)
        return stage(self._run, location, supply, edits, appends, dry_run=dry_run, rows_per_task=rows_per_task)

    def _supply(self, source: ArrowSource | StoredSource) -> RowSupply:
        return StoredRows(source) if isinstance(source, StoredSource) else DriverRows(source, self._open_scratch)

    def combine(self, location: Location, combines: Sequence[Combine]) -> StageResults:
        for bundle in self._run(_CombineKernel(location), [[job] for job in combines]):
            yield from bundle

    def alter(self, location: Location, alterations: Sequence[Alteration]) -> StageResults:
        size = sum(alteration.size for alteration in alterations)
        for bundle in self._run(_AlterKernel(location), self._bundles(alterations, size)):
            yield from bundle

    def pick(self, location: Location, picks: Sequence[Pick], schema: pa.Schema) -> Iterator[pa.Table]:
        for tables in self._run(_PickKernel(location, schema), self._bundles(picks, None)):
            yield from tables

    # --------------------------------------------------------------------------------------------------------- jobs
    def _bundles(self, items: Sequence[Any], size: int | None) -> list[list[Any]]:
        """Bundle adjacent items of together `size` bytes into tasks."""
        tasks = max_tasks(self.spark, len(items), self._work(size))
        bounds = np.linspace(0, len(items), tasks + 1).astype(int)
        return [list(items[a:b]) for a, b in itertools.pairwise(bounds) if b > a]

    def _work(self, size: int | None) -> int | None:
        """Return `size`, or None for object stores, where requests take longer than the bytes."""
        return size if self._location is None or self._location.store.is_local else None

    def _run(self, kernel: Kernel, tasks: Sequence[Any], size: int | None = None) -> Iterator[Any]:
        """Run a kernel on tasks that process `size` bytes, and yield the results in order."""
        stores: list[Any] = []
        packed = [_pack(task, stores) for task in tasks]
        if not packed:
            return
        with self._open_scratch(sum(map(len, packed))) as scratch:
            with PieceWriter(scratch, "tasks") as out:
                pieces = [out.put(task) for task in packed]
            packed_tasks = _PackedTasks(scratch, pieces, stores)
            yield from self._jobs(self.spark).run(kernel, packed_tasks, size=self._work(size))

    @contextlib.contextmanager
    def _open_scratch(self, size: int) -> Iterator[Scratch]:
        """Yield a scratch directory, without a path if the bytes can be sent with the code."""
        scratch = None if self._location is None or size <= _MAX_INLINE_BYTES else Scratch.beside(self._location)
        try:
            yield scratch or Scratch(LocalStore())
        finally:
            if scratch is not None:
                scratch.remove()

    def _jobs(self, spark: Any) -> TaskJobs:
        return TaskJobs(spark, functools.partial(DatasetMergeError, operation="spark"), self._on_tasks)


# ---------------------------------------------------------------------------------------------------- on executors
@dataclass(frozen=True)
class _PackedTasks:
    """Pickled tasks, in a scratch directory or in memory."""

    scratch: Scratch
    pieces: list[Piece]
    stores: list[Any]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, task: int) -> Any:
        return _Unpacker(self.scratch.read_bytes(self.pieces[task]), self.stores).load()


class _Packer(pickle.Pickler):
    """Pickles a task without its stores, whose credentials must not be in files."""

    def __init__(self, out: io.BytesIO, stores: list[Any]) -> None:
        super().__init__(out)
        self._stores = stores

    def persistent_id(self, value: Any) -> int | None:
        if not isinstance(value, ObjectStore | FileSystem):
            return None
        known = next((at for at, store in enumerate(self._stores) if store is value), None)
        if known is None:
            self._stores.append(value)
        return len(self._stores) - 1 if known is None else known


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: bytes, stores: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(packed))
        self._stores = stores

    def persistent_load(self, store: int) -> Any:
        return self._stores[store]


def _pack(task: Any, stores: list[Any]) -> bytes:
    """Pickle a task. Its stores are appended to `stores`."""
    out = io.BytesIO()
    _Packer(out, stores).dump(task)
    return out.getvalue()


@dataclass(frozen=True)
class _FooterKernel:
    location: Location
    columns: list[str]

    def __call__(self, files: list[FileStat]) -> list[Footer]:
        return read_many(self.location, files, self.columns)


@dataclass(frozen=True)
class _PickKernel:
    location: Location
    schema: pa.Schema

    def __call__(self, picks: list[Pick]) -> list[pa.Table]:
        return pick_rows(self.location, picks, self.schema)


@dataclass(frozen=True)
class _CombineKernel:
    location: Location

    def __call__(self, combines: list[Combine]) -> list[StageResult]:
        results = []
        for combine in combines:
            attempt = Attempt(self.location, combine.stage)
            results.append(attempt.complete(combine_files(self.location, replace(combine, stage=attempt.path))))
        return results


@dataclass(frozen=True)
class _AlterKernel:
    location: Location

    def __call__(self, alterations: list[Alteration]) -> list[StageResult]:
        results = []
        for alteration in alterations:
            attempt = Attempt(self.location, alteration.stage)
            results.append(attempt.complete(alter_file(self.location, replace(alteration, stage=attempt.path))))
        return results
