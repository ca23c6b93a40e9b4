"""The Spark engine: Spark distributes, Arrow computes.

Every verb is a job of tasks that run the same kernels as the pyarrow engine, one task per file or bundle of small
files. There is no shuffle: tasks open the target's files through `storage`, and the source rows that belong to a file
through files in a scratch directory (`exchange`), or get them along with the code if they are few. Rows of a small
source come from the driver, those of a large one from other tasks (`spark_source`). So nothing passes through Spark's
own types, and only numbers through the JVM. Tasks may be tried again: a task writes under a name of its own attempt
and then renames.

Only what works under Spark Connect too is used: no RDD, no JVM gateway, no accumulators.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow.fs import FileSystem

from inlay.engines.base import Append, Combine, Conform, FileEdit, FileMatch, Outcomes, Pick, Target, Watch, Written
from inlay.engines.buckets import ArrowSource, load_source
from inlay.engines.exchange import Attempt, Piece, PieceWriter, Scratch, unpack
from inlay.engines.kernels import combine_files, pick_rows
from inlay.engines.source import PATHS, open_batches, open_path
from inlay.engines.spark_files import IngestFiles, ParquetFiles
from inlay.engines.spark_jobs import parallelism
from inlay.engines.spark_session import get_session, ship_package
from inlay.engines.spark_source import Ingest, Ingested, SparkFrame, StoredSource, make_buckets
from inlay.engines.spark_supply import HeldRows, StoredRows, Supply
from inlay.engines.spark_tasks import ANSWERS_DDL, Kernel, TaskJobs, credentials, most_tasks
from inlay.engines.spark_verbs import match, stage
from inlay.errors import DatasetMergeError
from inlay.parquet.footers import Footer, read_many, with_shared_schemas
from inlay.storage import FileStat, LocalStore, Location, ObjectStore

__all__ = ["SparkEngine"]

_FOOTERS_WORTH_A_JOB = 4_000
_SHIPPED_WITH_CODE = 2 << 20
_DRIVER_BYTES = 64 << 20  # a DataFrame that is larger stays with the executors


class SparkEngine:
    name = "spark"

    def __init__(self, spark: Any = None, watch: Watch | None = None, location: Location | None = None) -> None:
        """`location` is where the rows go to; large DataFrames are laid down beside it."""
        self._given, self._watch, self._location = spark, watch, location

    def watched(self, watch: Watch) -> SparkEngine:
        return SparkEngine(self._given, watch, self._location)

    def working_at(self, location: Location, operation: str) -> SparkEngine:  # noqa: ARG002  (any place, any operation)
        return SparkEngine(self._given, self._watch, location)

    @property
    def spark(self) -> Any:
        session = self._given if self._given is not None else get_session()
        ship_package(session)
        return session

    # --------------------------------------------------------------------------------------------------- source
    def open(
        self, data: Any, like: pa.Schema | None, storage_options: Mapping[str, Any] | None
    ) -> pa.Table | pa.RecordBatchReader | SparkFrame | ParquetFiles:
        if hasattr(data, "mapInArrow"):
            return SparkFrame.of(data)
        if isinstance(data, PATHS):
            data = open_path(data, like, storage_options)
            files = ParquetFiles.of(data)
            if files is not None and files.size > _DRIVER_BYTES:
                return files
        return open_batches(data, like, storage_options)

    def load(self, data: Any, conform: Conform, key_columns: Sequence[str]) -> ArrowSource | StoredSource:
        if not isinstance(data, (SparkFrame, ParquetFiles)):
            return load_source(data, conform, key_columns)
        scratch = None if self._location is None else Scratch.beside(self._location)
        if scratch is None:
            return load_source(data.reader(), conform, key_columns)
        try:
            ingest = Ingest(conform, list(key_columns), scratch, credentials())
            parts = self._taken_in(data, ingest)
            if parts is not None:
                return self._settled(parts, conform(data.schema.empty_table()), ingest)
        except BaseException:
            scratch.remove()
            raise
        scratch.remove()
        return load_source(data.reader(), conform, key_columns)

    def _taken_in(self, data: SparkFrame | ParquetFiles, ingest: Ingest) -> list[Ingested] | None:
        """One pass over the source, whatever its size; None where tasks cannot reach it."""
        if isinstance(data, ParquetFiles):
            taken = list(self._run(IngestFiles(ingest, data.schema), data.tasks))
            return None if None in taken else [part for part in taken if part.rows]
        session = data.frame.sparkSession
        ship_package(session)
        return list(self._jobs(session).collect(data.frame.mapInArrow(ingest, ANSWERS_DDL)))

    def _settled(self, parts: Sequence[Ingested], empty: pa.Table, ingest: Ingest) -> ArrowSource | StoredSource:
        """What turns out to be small goes on in the driver."""
        scratch = ingest.scratch
        if sum(part.size for part in parts) > _DRIVER_BYTES:
            return make_buckets(self._run, parts, empty.schema, ingest.key_columns, scratch)
        tables: list[pa.Table] = [empty]
        for part in parts:
            tables += [unpack(part.inline)] if part.inline is not None else map(scratch.read, part.pieces)
        scratch.remove()
        return load_source(pa.concat_tables(tables), lambda rows: rows, ingest.key_columns)

    # ---------------------------------------------------------------------------------------------------- verbs
    def footers(self, location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]:
        """A job costs a second or two: worth it from some thousands of footers on."""
        if len(files) < _FOOTERS_WORTH_A_JOB:
            return read_many(location, files, columns)
        read = self._run(_FooterKernel(location, list(columns)), self._bundles(files))
        return with_shared_schemas([footer for bundle in read for footer in bundle])

    def match(
        self,
        location: Location,
        source: ArrowSource | StoredSource,
        key_columns: Sequence[str],  # noqa: ARG002  (the source knows them)
        targets: Sequence[Target],
    ) -> Iterator[FileMatch]:
        return match(self._run, location, self._supply(source), self._bundles(targets)) if targets else iter(())

    def stage(
        self,
        location: Location,
        source: ArrowSource | StoredSource,
        edits: Sequence[FileEdit],
        appends: Sequence[Append],
        *,
        dry_run: bool = False,
    ) -> Outcomes:
        """All in one job, or in waves of them."""
        rows = sum(len(group.sources) for edit in edits for group in edit.groups)
        share = 0 if dry_run else max(1, rows // (2 * parallelism(self.spark)))
        return stage(self._run, location, self._supply(source), edits, appends, dry_run=dry_run, share=share)

    def _supply(self, source: ArrowSource | StoredSource) -> Supply:
        return StoredRows(source) if isinstance(source, StoredSource) else HeldRows(source, self._room)

    def combine(self, location: Location, combines: Sequence[Combine]) -> Outcomes:
        for bundle in self._run(_CombineKernel(location), [[job] for job in combines]):
            yield from bundle

    def pick(self, location: Location, picks: Sequence[Pick], schema: pa.Schema) -> Iterator[pa.Table]:
        return self._run(_PickKernel(location, schema), picks)

    # ----------------------------------------------------------------------------------------------------- jobs
    def _bundles(self, items: Sequence[Any]) -> list[list[Any]]:
        """Neighbouring items, so many to a task that there are a few tasks for every core."""
        tasks = min(len(items), most_tasks(self.spark)) or 1
        bounds = np.linspace(0, len(items), tasks + 1).astype(int)
        return [list(items[a:b]) for a, b in itertools.pairwise(bounds) if b > a]

    def _run(self, kernel: Kernel, tasks: Sequence[Any]) -> Iterator[Any]:
        """What the kernel says about every task, in order."""
        stores: list[Any] = []
        packed = [_pack(task, stores) for task in tasks]
        if not packed:
            return
        with self._room(sum(map(len, packed))) as scratch:
            with PieceWriter(scratch, "tasks") as out:
                pieces = [out.put(task) for task in packed]
            yield from self._jobs(self.spark).run(kernel, _PackedTasks(scratch, pieces, stores))

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[Scratch]:
        """Where tasks find so many bytes; what is small, or has no place to lie, travels with the code."""
        place = None if self._location is None or size <= _SHIPPED_WITH_CODE else Scratch.beside(self._location)
        try:
            yield place or Scratch(LocalStore())
        finally:
            if place is not None:
                place.remove()

    def _jobs(self, spark: Any) -> TaskJobs:
        return TaskJobs(spark, functools.partial(DatasetMergeError, operation="spark"), self._watch)


# ------------------------------------------------------------------------------------------------------ on executors
@dataclass(frozen=True)
class _PackedTasks:
    """Tasks that lie in a scratch directory, or travel along as bytes."""

    scratch: Scratch
    pieces: list[Piece]
    stores: list[Any]

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, task: int) -> Any:
        return _Unpacker(self.scratch.read_bytes(self.pieces[task]), self.stores).load()


class _Packer(pickle.Pickler):
    """Leaves out the stores, which hold credentials and travel with the code: what it writes may lie in files."""

    def __init__(self, out: io.BytesIO, stores: list[Any]) -> None:
        super().__init__(out)
        self._stores = stores

    def persistent_id(self, found: Any) -> int | None:
        if not isinstance(found, ObjectStore | FileSystem):
            return None
        known = next((at for at, store in enumerate(self._stores) if store is found), None)
        if known is None:
            self._stores.append(found)
        return len(self._stores) - 1 if known is None else known


class _Unpacker(pickle.Unpickler):
    def __init__(self, packed: bytes, stores: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(packed))
        self._stores = stores

    def persistent_load(self, place: int) -> Any:
        return self._stores[place]


def _pack(task: Any, stores: list[Any]) -> bytes:
    """A task as bytes; stores in it are added to those given."""
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

    def __call__(self, pick: Pick) -> pa.Table:
        return pick_rows(self.location, pick, self.schema)


@dataclass(frozen=True)
class _CombineKernel:
    location: Location

    def __call__(self, combines: list[Combine]) -> list[Written]:
        written = []
        for combine in combines:
            attempt = Attempt(self.location, combine.stage)
            written.append(attempt.settle(combine_files(self.location, replace(combine, stage=attempt.path))))
        return written
