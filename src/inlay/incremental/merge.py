"""Merges: `merge`, `plan_merge` and the steps that both run.

load source -> validate -> list files and footers -> prune -> match (key columns only) -> plan
-> stage (rewrite touched row groups, write inserts) -> verify -> commit -> MergeResult
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from inlay.commit.snapshot import read_consistently
from inlay.commit.transaction import IncrementalFileManager, StagedFile, Transaction, footer_cache, locate_dataset
from inlay.constants import LOCK_TIMEOUT, MAX_ROWS_PER_FILE
from inlay.engines import get_engine
from inlay.engines.base import Append, Engine, FileEdit, Source, StageResult
from inlay.engines.keys import canonical_type
from inlay.errors import ConcurrentModificationError, SchemaMismatchError, wrap_errors
from inlay.incremental.display import ProgressCallback, Reporter, progress_callback
from inlay.incremental.plan import Decision, Decisions, MergePlan, decide
from inlay.incremental.result import Changes, FileRewrite, MergeResult, build_plan, build_result, sample_changes
from inlay.incremental.stage import new_file_settings, plan_appends, verify_staged
from inlay.incremental.strategies import MergeStrategy
from inlay.incremental.target import TargetState
from inlay.incremental.validate import (
    Conformer,
    MergeOptions,
    SchemaMode,
    fit_field,
    reject_duplicates,
    reject_null_keys,
    require_columns,
)
from inlay.parquet.footer_cache import FooterCache
from inlay.parquet.layout import parse_hive_partition_path, summary_files
from inlay.storage import FileStat, Filesystem, Location

__all__ = ["MergeRun", "merge", "plan_merge"]


_LONGEST_PAUSE = 2.0  # seconds between two attempts of a merge that conflicts with other writers


def merge(
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
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    use_merge: bool | None = None,
    read_options: Mapping[str, Any] | None = None,
) -> MergeResult:
    """Merge source rows into a Parquet dataset, rewriting only the row groups that change.

    inlay compares the source with the dataset by `key_columns`. `strategy` decides what happens to each key. A
    matching dataset row is replaced as a whole and keeps its position in its file. New rows go into new files. inlay
    runs every check before the first write, then commits all changes atomically: inlay's readers see the dataset
    either before or after the merge. A merge that fails before its commit changes nothing.

    Args:
        data: The source rows. One of:
            - a pyarrow Table, RecordBatch, RecordBatchReader, Dataset or Scanner. A reader can be read only once.
            - a pandas or polars DataFrame, a DuckDB relation, or any other object with `__arrow_c_stream__` or
              `__arrow_c_array__`
            - a Spark DataFrame
            - a dict of columns, or a list of dicts with one dict per row
            - a list, generator or other iterator of record batches or tables with one schema. An iterator can be read
              only once.
            - the path of a file, a directory or a glob of Parquet, Arrow (`.arrow`, `.feather`, `.ipc`), CSV (`.csv`,
              `.tsv`) or JSON files (`.json`, `.jsonl`, `.ndjson`: lines, consecutive objects or an array). Text files
              may be compressed with gzip or zstd. Their cells get the types of the dataset's columns; a cell that does
              not fit exactly is an error. See `read_options`.
        path: The directory of the dataset: a local path or a URL that fsspec supports, such as
            `s3://bucket/orders`. The merge creates the dataset if it does not exist.
        strategy: What happens to each key. One of:
            - `"insert"`: add source rows whose key is new; keep existing rows
            - `"update"`: replace existing rows whose key is in the source; ignore new keys
            - `"upsert"`: replace existing rows whose key is in the source, and add source rows whose key is new
            - `"full_merge"`: upsert, and delete existing rows whose key is not in the source, so that the dataset
              holds exactly the keys of the source
            - `"deduplicate"`: keep one source row per key (see `dedup_order_by`), then upsert the kept rows
        key_columns: The name, or the names, of the columns that identify a row. Source keys must not be NULL and,
            except for `"deduplicate"`, must be unique.
        partition_columns: The columns by which a new dataset is partitioned into `column=value` directories. For an
            existing dataset, inlay reads them from the paths of its files; pass None, or the same columns.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        compression: The codec of new files: `"snappy"`, `"zstd"`, `"gzip"`, `"brotli"`, `"lz4"` or `"none"`. None
            uses the codec of the dataset's files, or snappy for a new dataset. Rewritten files keep their codec.
        max_rows_per_file: The maximum number of rows in each new file.
        row_group_size: The maximum number of rows in each row group of new files. None uses the size in the
            dataset's files, or 500,000 rows for a new dataset. Rewritten files keep their row groups.
        partition_by: Another name for `partition_columns`. Pass only one of the two.
        engine: The engine that matches keys and writes files. The result is the same with every engine. One of:
            - `"auto"`: Spark if `data` is a Spark DataFrame or `INLAY_SPARK_MASTER` is set; pyarrow otherwise
            - `"pyarrow"`: all cores of this machine
            - `"duckdb"`: DuckDB matches the keys with SQL; needs `inlay[duckdb]`
            - `"spark"`: tasks of a Spark cluster; needs `inlay[spark]`
        storage_options: Arguments of the filesystem that the URL names, such as `{"endpoint_url": ...}` for S3.
            `{"single_writer": True}` allows an object store without conditional writes; use it only if no other
            process writes to the dataset.
        schema_mode: What happens if the columns of source and dataset differ. One of:
            - `"strict"`: reject the source
            - `"evolve"`: add new columns to the dataset as nullable columns. Columns that the source lacks become
              NULL in replaced and new rows. Existing rows are NULL in the new columns.
        dedup_order_by: For strategy `"deduplicate"` only: the column or columns that determine the source row to
            keep. The row with the highest values wins; NULL is lowest, NaN is highest; the later source row wins a
            tie. A column that the dataset does not store orders the source rows and is then dropped, unless
            `schema_mode="evolve"` adds it. None keeps the last source row of each key.
        progress: How to report progress. One of:
            - None or False: don't report progress
            - True: show a progress bar in a terminal or a notebook, and nothing if stderr is redirected
            - a callback: call it with a `Progress` for each finished file. The phases are `"match"`, `"rewrite"`,
              `"append"` and `"commit"`. Return False from the callback to cancel the merge.
        lock_timeout: How many seconds to wait for another writer on a local disk. On object stores, writers don't
            wait: a merge that finds a newer commit plans again, until this many seconds have passed.
        use_merge: For engine `"duckdb"` only: how DuckDB matches keys. True uses its MERGE statement (DuckDB 1.4 or
            newer), False uses UNION ALL, and None uses MERGE if DuckDB has it. The result is the same.
        read_options: For paths only: how to read text files. inlay detects the options that you leave out.
            - `format`: `"csv"`, `"json"`, `"parquet"` or `"arrow"`, for files whose name doesn't tell their format
            - `encoding`: such as `"latin-1"`. UTF-8, and UTF-16 with a byte order mark, need no option.
            - `day_first`: True reads 01/02/2024 as February 1, False as January 2
            - for CSV: `delimiter`, `quote`, `escape`, `header` (False: there is no line of column names) and
              `null_values` (a list of texts that stand for NULL, in addition to empty cells)
            - for JSON: `layout`: `"lines"`, `"array"` or `"objects"`

    Returns:
        The exact numbers of inserted, updated and deleted rows, and the operation on each file.

    Raises:
        InvalidArgumentError: An argument is invalid, or contradicts another argument or the dataset.
        NullKeyError: A key column of the source contains NULL.
        DuplicateKeyError: The source contains a key more than once.
        SchemaMismatchError: The columns differ, or a source value does not fit the type of its column.
        PartitionMoveError: A source key exists in another partition of the dataset.
        UnreadableSourceError: `data` cannot be read.
        BadRowsError: Cells of a text file don't fit their columns. The error lists their lines, columns and values.
        UnreadableFileError: A data file of the dataset cannot be read.
        EngineNotInstalledError: The engine needs a package that is not installed.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        ConcurrentModificationError: Another writer changed the dataset during the merge.
        MergeCancelledError: `progress` returned False.
        CommitPendingError: The merge is committed, but some files are not in their final location yet. inlay
            completes the commit the next time it opens the dataset. Don't retry the merge.
        CommitStateUnknownError: The outcome of the commit is unknown. Check the dataset before you retry.
        DatasetMergeError: The merge failed for another reason, such as a full disk. All errors are subclasses of
            `InlayError`.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2, 3], "price": [1.0, 2.0, 3.0]}, "prices").row_count
        3
        >>> result = inlay.merge({"id": [3, 4], "price": [3.5, 4.0]}, "prices", "upsert", "id")
        >>> result.updated, result.inserted, result.target_count_after
        (1, 1, 4)
        >>> inlay.read_parquet("prices").sort_by("id").column("price").to_pylist()
        [1.0, 2.0, 3.5, 4.0]

        Keep the latest of several changes to each key:

        >>> changes = {"id": [1, 1], "price": [9.0, 8.0], "at": [20, 10]}
        >>> inlay.merge(changes, "latest", "deduplicate", "id", dedup_order_by="at").inserted
        1
        >>> inlay.read_parquet("latest").to_pylist()
        [{'id': 1, 'price': 9.0, 'at': 20}]
    """
    with progress_callback(progress) as on_progress:
        options = MergeOptions.check(
            strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
            schema_mode, dedup_order_by, on_progress,
        )  # fmt: skip
        with _open_run(
            "merge", options, engine, use_merge, data, path, filesystem, storage_options, read_options
        ) as run:
            result = _execute_with_retries(run, lock_timeout)
        run.report_committed()
    return result


def plan_merge(
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
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,  # noqa: ARG001  (a dry run takes no lock)
    use_merge: bool | None = None,
    read_options: Mapping[str, Any] | None = None,
) -> MergePlan:
    """Plan a merge without writing anything: exact counts, and the operation on each file.

    The plan reads key columns, and compares matching rows with their source rows. It runs the same checks as `merge`.

    Args:
        data: The source rows. All arguments are those of `merge`: see `inlay.merge`.
        path: The directory of the dataset.
        strategy: `"insert"`, `"update"`, `"upsert"`, `"full_merge"` or `"deduplicate"`.
        key_columns: The name, or the names, of the columns that identify a row.
        partition_columns: The partition columns of a new dataset.
        filesystem: An fsspec or pyarrow filesystem that holds `path`.
        compression: The codec of new files.
        max_rows_per_file: The maximum number of rows in each new file.
        row_group_size: The maximum number of rows in each row group of new files.
        partition_by: Another name for `partition_columns`.
        engine: `"auto"`, `"pyarrow"`, `"duckdb"` or `"spark"`.
        storage_options: Arguments of the filesystem that the URL names.
        schema_mode: `"strict"` or `"evolve"`.
        dedup_order_by: For strategy `"deduplicate"`: the columns that determine the source row to keep.
        progress: True for a progress bar, or a callback.
        lock_timeout: Ignored: a plan takes no lock.
        use_merge: For engine `"duckdb"`: whether DuckDB uses its MERGE statement.
        read_options: How to read text files.

    Returns:
        The number of rows to insert, update and delete, and for each file its operation and the reason.

    Raises:
        InlayError: `merge` would reject the same arguments with the same error.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2], "price": [1.0, 2.0]}, "prices").row_count
        2
        >>> plan = inlay.plan_merge({"id": [2, 3], "price": [2.5, 3.0]}, "prices", "upsert", "id")
        >>> plan.updated, plan.inserted
        (1, 1)
        >>> [(file.operation, file.reason) for file in plan.files]
        [('rewritten', '1 matching row in 1 of 1 row groups')]
    """
    with progress_callback(progress) as on_progress:
        options = MergeOptions.check(
            strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
            schema_mode, dedup_order_by, on_progress,
        )  # fmt: skip
        with _open_run(
            "plan", options, engine, use_merge, data, path, filesystem, storage_options, read_options
        ) as run:
            return read_consistently(run.location, run.dry_run)


@contextlib.contextmanager
def _open_run(
    operation: str,
    options: MergeOptions,
    engine: str | Engine,
    use_merge: bool | None,
    data: Any,
    path: str | os.PathLike[str],
    filesystem: Filesystem | None,
    storage_options: Mapping[str, Any] | None,
    read_options: Mapping[str, Any] | None,
) -> Iterator[MergeRun]:
    location = locate_dataset(path, filesystem, storage_options)
    with (
        wrap_errors(operation, options.strategy.name, options.key_columns),
        contextlib.closing(
            MergeRun(
                options, get_engine(engine, data, use_merge=use_merge), location, data, storage_options, read_options
            )
        ) as run,
    ):
        yield run


def _execute_with_retries(run: MergeRun, lock_timeout: float) -> MergeResult:
    """Plan and commit. On an object store, plan again if another writer committed first."""
    deadline = time.monotonic() + lock_timeout
    longest = 0.1
    while True:
        try:
            with IncrementalFileManager(lock_timeout=lock_timeout) as files:
                files.open(run.location)
                return run.execute(files)
        except ConcurrentModificationError:
            if run.is_outdated or run.location.store.is_local or time.monotonic() >= deadline:
                raise
        # Random pauses let one writer through while the others wait.
        time.sleep(longest * np.random.default_rng().random())
        longest = min(2 * longest, _LONGEST_PAUSE)


class MergeRun:
    """One merge in progress. The run loads the source once, even if it plans several times."""

    _source: Source  # set by `_load`, like `_conformer`
    _conformer: Conformer

    def __init__(
        self,
        options: MergeOptions,
        engine: Engine,
        location: Location,
        data: Any,
        storage_options: Mapping[str, Any] | None = None,
        read_options: Mapping[str, Any] | None = None,
        *,
        cache: Callable[[Location], FooterCache | None] = footer_cache,
    ) -> None:
        self.options, self.location = options, location
        self._report = Reporter(options.progress)
        engine = engine.bind(location, options.strategy.name)
        self.engine = engine if options.progress is None else engine.with_progress(self._report.tasks)
        self._cache_of = cache
        self._data = data
        self._storage_options, self._read_options = storage_options, read_options
        self._is_loaded = False
        self.is_outdated = False  # True if the source rows were converted to a schema that has changed

    def close(self) -> None:
        if self._is_loaded:
            self._source.close()

    def report_committed(self) -> None:
        self._report.committed()

    # ---------------------------------------------------------------------------------------- execution and dry run
    def execute(self, files: Transaction) -> MergeResult:
        decisions = self._plan(files.snapshot())
        rewrites, appended = self._stage(decisions, files)
        verify_staged(self.location, [each.written for each in rewrites] + [written for _, written in appended])
        changed = [each for each in rewrites if each.changed]
        moved = [path for each in changed if (path := each.decision.footer.file.path) != each.slot.path]
        puts = [each.slot for each in changed] + [slot for slot, _ in appended]
        removes = [*decisions.removed, *moved]
        summaries = summary_files(self.location) if puts or removes else []
        if puts or removes:
            self._report("commit", 0, 1)
            files.commit(puts, [*removes, *summaries])
        return build_result(decisions, self.options.strategy, self._source.input_rows, rewrites, appended, summaries)

    def dry_run(self, location: Location, files: Sequence[FileStat]) -> MergePlan:
        self.location = location
        return self._build_plan(*self._stage_dry_run(files))

    def dry_run_with_changes(self, files: Sequence[FileStat], limit: int) -> tuple[MergePlan, Changes]:
        """Plan the merge, and read up to `limit` inserted, replaced and deleted rows each."""
        decisions, rewrites = self._stage_dry_run(files)
        schema = self._conformer.stored_schema
        changes = sample_changes(decisions, rewrites, self._source, schema, self.engine, limit)
        return self._build_plan(decisions, rewrites), changes

    def _stage_dry_run(self, files: Sequence[FileStat]) -> tuple[Decisions, list[FileRewrite]]:
        decisions = self._plan(files)
        return decisions, self._stage(decisions, None)[0]

    def _build_plan(self, decisions: Decisions, rewrites: Sequence[FileRewrite]) -> MergePlan:
        return build_plan(decisions, self.options, self._source.input_rows, rewrites)

    # ----------------------------------------------------------------------------------------------------- planning
    def _plan(self, files: Sequence[FileStat]) -> Decisions:
        options = self.options
        cache = self._cache_of(self.location)  # the transaction may just have created the sidecar that holds the cache
        self.target = TargetState.read(
            self.location, files, options.key_columns, self._requested_partitions(files), cache, self.engine.footers
        )
        self._load()
        decisions = decide(self.target, self._source, options, self.engine, self._report)
        self._schemas = [self._schema_for(decision) for decision in decisions.touched]
        return decisions

    def _requested_partitions(self, files: Sequence[FileStat]) -> list[str] | None:
        """Return the partition columns to check. A strategy without new files can update a flat dataset."""
        is_flat = not any(parse_hive_partition_path(file.path) for file in files[:1])
        return None if is_flat and not self.options.strategy.inserts else self.options.partition_columns

    def _load(self) -> None:
        if self._is_loaded:
            if not self._conform_to(self._conformer.source).schema.equals(self._conformer.schema):
                self.is_outdated = True
                raise ConcurrentModificationError(
                    f"Another writer changed the schema of {self.location.uri!r} during the merge.",
                    hint="Run the merge again.",
                )
            return
        with self.engine.open(self._data, self.target.schema, self._storage_options, self._read_options) as opened:
            self._conformer = self._conform_to(opened.schema)
            require_columns(self.options.partition_columns or (), opened.schema, "the source", "partition column")
            self._source = self.engine.load(opened, self._conformer, self.options.key_columns)
        self._is_loaded = True
        self._data = None
        self._check_keys()

    def _conform_to(self, source: pa.Schema) -> Conformer:
        target, options = self.target, self.options
        return Conformer(
            source,
            target.schema,
            options.key_columns,
            target.partition_columns,
            options.schema_mode,
            options.dedup_order_by,
        )

    def _check_keys(self) -> None:
        reject_null_keys(self._source.null_keys, self._source.input_rows)
        if self.options.strategy.reduces_source:
            self._source.reduce(self.options.dedup_order_by)
        else:
            reject_duplicates(self._source.repeated_keys())

    def _schema_for(self, decision: Decision) -> pa.Schema | None:
        """Return the schema of a rewritten file, or None if the file can keep its own.

        A file keeps its schema if it has the same columns and its types can hold the new values.
        """
        schema, own = self._conformer.file_schema, decision.own_schema
        if (set(own.names) ^ set(schema.names)) - set(self.target.partition_columns):
            return schema
        shared = [field for field in own if field.name in schema.names]
        narrower = [
            f
            for f in shared
            if not f.type.equals(schema.field(f.name).type) or f.nullable < schema.field(f.name).nullable
        ]
        if not narrower or not decision.matched:
            return None
        try:
            matched = np.concatenate([edit.sources for edit in decision.edits])
            rows = self._source.take(matched, [field.name for field in narrower])
            for field in narrower:
                fit_field(rows.column(field.name), field)
        except SchemaMismatchError as error:
            if self.options.schema_mode == "evolve":
                return schema
            raise SchemaMismatchError(
                f"{error.message} The file is {self.location.display(decision.footer.file.path)!r}.",
                hint='Pass schema_mode="evolve" to rewrite the file with the wider type of the other files.',
            ) from error
        return None

    def _equal_columns(self, decision: Decision) -> tuple[str, ...]:
        """Return the key columns whose matching values are bit-equal in source and file.

        Float keys are left out: 0.0 and -0.0 are equal keys with different bits.
        """
        own, schema = decision.own_schema, self._source.schema
        types = {name: schema.field(name).type for name in self.options.key_columns if name in own.names}
        exact = (n for n, type_ in types.items() if not pa.types.is_floating(canonical_type(type_)))
        return tuple(name for name in exact if own.field(name).type.equals(types[name]))

    # ------------------------------------------------------------------------------------------------------ staging
    def _stage(
        self, decisions: Decisions, files: Transaction | None
    ) -> tuple[list[FileRewrite], list[tuple[StagedFile, StageResult]]]:
        """Stage rewritten and new files. Without a transaction, only compare rows."""
        touched = decisions.touched
        self._report("rewrite", 0, len(touched))
        paths = [decision.footer.file.path for decision in touched]
        slots = [StagedFile("", path) if files is None else files.stage_replacement(path) for path in paths]
        edits = [
            FileEdit(path, slot.stage, decision.edits, schema, self._equal_columns(decision))
            for path, slot, decision, schema in zip(paths, slots, touched, self._schemas, strict=True)
        ]
        appends = [] if files is None else self._appends(decisions, files)
        outcomes = self.engine.stage(
            self.location, self._source, edits, [append for _, append in appends], dry_run=files is None
        )
        with contextlib.closing(outcomes):
            written = self._report_each("rewrite", len(edits), outcomes)
            rewrites = [FileRewrite(*each) for each in zip(touched, slots, written, strict=True)]
            if files is not None:
                self._report("append", 0, len(appends))
            added = [slot for slot, _ in appends]
            return rewrites, list(zip(added, self._report_each("append", len(added), outcomes), strict=True))

    def _report_each(self, phase: str, count: int, outcomes: Iterator[StageResult]) -> Iterator[StageResult]:
        for done, written in enumerate(itertools.islice(outcomes, count), 1):
            self._report(phase, done, count)
            yield written

    def _appends(self, decisions: Decisions, files: Transaction) -> list[tuple[StagedFile, Append]]:
        options = self.options
        return plan_appends(
            decisions.new_rows,
            decisions.partitions,
            self._conformer.file_schema,
            new_file_settings(self.location, self.target, options.compression, options.row_group_size),
            options.max_rows_per_file,
            files,
            self.target.new_file_extension,
        )
