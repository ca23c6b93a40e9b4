"""Merges: `merge`, `plan_merge` and the steps that both run.

load source -> validate -> list files and footers -> prune -> match (key columns only) -> plan
-> stage (rewrite touched row groups, write inserts) -> verify -> commit -> MergeResult
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from inlay.commit.snapshot import read_consistently
from inlay.commit.transaction import (
    Journal,
    find_outcome,
    locate_dataset,
    open_journal,
)
from inlay.constants import LOCK_TIMEOUT, MAX_ROWS_PER_FILE
from inlay.engines import get_engine
from inlay.engines.base import (
    Engine,
)
from inlay.errors import wrap_errors
from inlay.incremental.display import ProgressCallback, progress_callback
from inlay.incremental.plan import MergePlan
from inlay.incremental.result import (
    MergeResult,
)
from inlay.incremental.run import MergeRun, execute_with_retries
from inlay.incremental.strategies import MergeStrategy
from inlay.incremental.validate import (
    MergeOptions,
    MissingColumns,
    SchemaMode,
    Scope,
    check_transaction,
)
from inlay.storage import FileStat, Filesystem, Location

__all__ = ["merge", "plan_merge"]


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
    missing_columns: MissingColumns = "error",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    use_merge: bool | None = None,
    read_options: Mapping[str, Any] | None = None,
    transaction: str | None = None,
    operation_column: str | None = None,
    newer_by: str | None = None,
    max_deleted: float | None = None,
    scope: Scope | None = None,
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
            - `"delete"`: delete existing rows whose key is in the source. The source needs only the key columns; inlay
              ignores the others. Keys that repeat or that the dataset lacks are no errors.
        key_columns: The name, or the names, of the columns that identify a row. Source keys must not be NULL and,
            except for `"deduplicate"` and `"delete"`, must be unique.
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
            - `"duckdb"`: DuckDB matches the keys of up to 250,000 source rows with SQL; needs `inlay[duckdb]`
            - `"spark"`: tasks of a Spark cluster; needs `inlay[spark]`
        storage_options: Arguments of the filesystem that the URL names, such as `{"endpoint_url": ...}` for S3.
            `{"single_writer": True}` allows an object store without conditional writes; use it only if no other
            process writes to the dataset.
        schema_mode: What happens if the columns of source and dataset differ. One of:
            - `"strict"`: reject new columns
            - `"evolve"`: add new columns to the dataset as nullable columns. Existing rows are NULL in them. Columns
              whose type does not hold the values of the source get a wider type in all files, if there is one.
        missing_columns: What happens to columns of the dataset that the source lacks, and to fields that single JSON
            records or dicts lack. One of:
            - `"error"`: reject the source
            - `"null"`: set them to NULL in replaced and new rows
            - `"keep"`: keep the stored values of matching rows, and encode only the columns that the source has. New
              rows are NULL in the missing columns, and rejected if they lack a partition column.
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
        transaction: A token of your choice, 1 to 1,000 characters, that identifies this merge, such as
            `"orders/batch-42"`. inlay commits the token together with the rows. If the dataset contains the token
            already, the merge reads no source, changes nothing, and returns the recorded result with `replayed=True`,
            even if the rows differ. So a merge whose outcome is unknown, for example after a crash, can be repeated.
            A dataset remembers at least its last 1,000 tokens and all tokens of the last 30 days.
        operation_column: For strategies `"upsert"` and `"deduplicate"`: the source column that says what each row does:
            `insert`, `update` or `delete`, `I`, `U` or `D`, or Debezium's `c`, `r`, `u` or `d`, in any case. Rows that
            insert or update are upserted; rows that delete need only their key. The dataset doesn't store the column.
        newer_by: A column such as `"updated_at"`. A matching row is replaced or deleted only if the source row's value
            is greater than the stored one. NULL is lowest, NaN is highest, and a tie keeps the stored row. So a batch
            that is repeated or late changes nothing. `"deduplicate"` without `dedup_order_by` keeps the newest row of
            each key. Not for `"insert"` and `"full_merge"`.
        max_deleted: The maximum number of rows that the merge may delete, as an integer, or their maximum share of the
            dataset's rows, or of the rows in `scope`, as a float from 0.0 to 1.0. A merge that would delete more raises
            an error and changes nothing.
        scope: For strategies `"full_merge"` and `"delete"`: the rows of the dataset that the merge is about, as a
            list of values for each column, such as `{"day": ["2025-01-01"]}`, or as an expression of
            `pyarrow.compute`. The merge never touches rows outside. A source row that is outside, or whose key is
            stored outside, is an error.

    Returns:
        The exact numbers of inserted, updated and deleted rows, and the operation on each file.

    Raises:
        InvalidArgumentError: An argument is invalid, or contradicts another argument or the dataset.
        NullKeyError: A key column of the source contains NULL.
        DuplicateKeyError: The source contains a key more than once.
        UnknownOperationError: A value in `operation_column` is no operation.
        DeletionLimitError: The merge would delete more rows than `max_deleted` allows.
        OutsideScopeError: A source row is outside `scope`, or its key is stored outside.
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
            completes the commit the next time it opens the dataset. Don't retry the merge without `transaction`.
        CommitStateUnknownError: The outcome of the commit is unknown. Retry with the same `transaction`. Without
            one, check the dataset before you retry.
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

        Repeat a merge without applying it twice:

        >>> inlay.merge({"id": [5], "price": [5.0]}, "prices", "insert", "id", transaction="batch-1").inserted
        1
        >>> again = inlay.merge({"id": [5], "price": [5.0]}, "prices", "insert", "id", transaction="batch-1")
        >>> again.inserted, again.replayed
        (1, True)
    """
    check_transaction(transaction)
    with progress_callback(progress) as on_progress:
        options = MergeOptions.check(
            strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
            schema_mode, dedup_order_by, on_progress, missing_columns, operation_column,
            newer_by, max_deleted, scope,
        )  # fmt: skip
        with _open_run(
            "merge", options, engine, use_merge, data, path, filesystem, storage_options, read_options
        ) as run:
            result = execute_with_retries(run, lock_timeout, transaction)
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
    missing_columns: MissingColumns = "error",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,  # noqa: ARG001  (a dry run takes no lock)
    use_merge: bool | None = None,
    read_options: Mapping[str, Any] | None = None,
    transaction: str | None = None,
    operation_column: str | None = None,
    newer_by: str | None = None,
    max_deleted: float | None = None,
    scope: Scope | None = None,
) -> MergePlan:
    """Plan a merge without writing anything: exact counts, and the operation on each file.

    The plan reads key columns, and compares matching rows with their source rows. It runs the same checks as `merge`.

    Args:
        data: The source rows. All arguments are those of `merge`: see `inlay.merge`.
        path: The directory of the dataset.
        strategy: `"insert"`, `"update"`, `"upsert"`, `"full_merge"`, `"deduplicate"` or `"delete"`.
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
        missing_columns: `"error"`, `"null"` or `"keep"`.
        dedup_order_by: For strategy `"deduplicate"`: the columns that determine the source row to keep.
        progress: True for a progress bar, or a callback.
        lock_timeout: Ignored: a plan takes no lock.
        use_merge: For engine `"duckdb"`: whether DuckDB uses its MERGE statement.
        read_options: How to read text files.
        transaction: The token of the merge. If the dataset contains the token already, the merge would change nothing:
            the plan has `replayed=True` and no changes.
        operation_column: The source column that says whether a row inserts, updates or deletes.
        newer_by: The column that tells whether a source row is newer than the stored row.
        max_deleted: The maximum number of rows, or share of the rows, that the merge may delete.
        scope: The rows of the dataset that the merge is about.

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
    check_transaction(transaction)
    with progress_callback(progress) as on_progress:
        options = MergeOptions.check(
            strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
            schema_mode, dedup_order_by, on_progress, missing_columns, operation_column,
            newer_by, max_deleted, scope,
        )  # fmt: skip
        with _open_run(
            "plan", options, engine, use_merge, data, path, filesystem, storage_options, read_options
        ) as run:
            return read_consistently(
                run.location, partial(_plan_transaction, run, open_journal(run.location), transaction)
            )


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


def _plan_transaction(
    run: MergeRun, journal: Journal, transaction: str | None, location: Location, files: Sequence[FileStat]
) -> MergePlan:
    if transaction is not None and find_outcome(journal, transaction) is not None:
        return run.plan_replay(location, files)
    return run.dry_run(location, files)
