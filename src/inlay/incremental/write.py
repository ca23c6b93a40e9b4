"""Writes without keys: append rows as new files, or replace all files of a dataset."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from inlay.commit.sidecar import Change
from inlay.commit.transaction import IncrementalFileManager, StagedFile, Transaction, footer_cache, locate_dataset
from inlay.constants import LOCK_TIMEOUT, MAX_ROWS_PER_FILE
from inlay.engines import get_engine
from inlay.engines.base import Engine, StageResult
from inlay.errors import unknown, wrap_errors
from inlay.incremental.conformer import Conformer
from inlay.incremental.display import ProgressCallback, Reporter, progress_callback
from inlay.incremental.result import MergeFileMetadata, WriteResult
from inlay.incremental.stage import new_file_settings, plan_appends, verify_staged
from inlay.incremental.target import Partitions, TargetState
from inlay.incremental.validate import MissingColumns, SchemaMode, check_schema_mode, normalize_keys
from inlay.parquet.layout import parse_hive_partition_path, summary_files
from inlay.parquet.writer import check_write_options
from inlay.storage import FileStat, Filesystem

__all__ = ["append_rows", "commit_files", "write_dataset"]


def write_dataset(
    source: Any,
    path: str | os.PathLike[str],
    mode: Literal["append", "overwrite"] = "append",
    *,
    partition_columns: str | Sequence[str] | None = None,
    filesystem: Filesystem | None = None,
    compression: str | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    row_group_size: int | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
    read_options: Mapping[str, Any] | None = None,
) -> WriteResult:
    """Write rows to a dataset as new files, without comparing keys.

    The commit is atomic: inlay's readers see the dataset either before or after the write.

    Args:
        source: The rows to write: a pyarrow Table, RecordBatch, RecordBatchReader, Dataset or Scanner; a pandas or
            polars DataFrame, a DuckDB relation or any other object with `__arrow_c_stream__`; a Spark DataFrame; a
            dict of columns or a list of dicts; a list or iterator of record batches; or the path of a file, a
            directory or a glob of Parquet, Arrow, CSV or JSON files. See `inlay.merge`.
        path: The directory of the dataset: a local path or a URL that fsspec supports. The write creates the dataset
            if it does not exist.
        mode: What happens to existing files. One of:
            - `"append"`: keep them
            - `"overwrite"`: replace all of them in the same commit
        partition_columns: The columns by which the dataset is partitioned into `column=value` directories. None keeps
            the partition columns of an existing dataset; `[]` removes them (with `mode="overwrite"`).
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        compression: The codec of new files: `"snappy"`, `"zstd"`, `"gzip"`, `"brotli"`, `"lz4"` or `"none"`. None
            uses the codec of the existing files, or snappy.
        max_rows_per_file: The maximum number of rows in each file.
        row_group_size: The maximum number of rows in each row group. None uses the size in the existing files, or
            500,000 rows.
        engine: `"auto"`, `"pyarrow"`, `"duckdb"` or `"spark"`. `"auto"` is Spark if `source` is a Spark DataFrame or
            `INLAY_SPARK_MASTER` is set, and pyarrow otherwise.
        storage_options: Arguments of the filesystem that the URL names.
        schema_mode: What happens if the columns of an existing dataset differ (with `mode="append"`). One of:
            - `"strict"`: reject the source
            - `"evolve"`: add new columns as nullable columns; columns that the source lacks are NULL in the new rows
        progress: True shows a progress bar. A callback receives a `Progress` for each finished file and cancels the
            write by returning False.
        lock_timeout: How many seconds to wait for another writer on a local disk.
        read_options: For paths only: how to read text files, such as `{"delimiter": ";"}`. See `inlay.merge`.

    Returns:
        The new files and the removed files.

    Raises:
        InvalidArgumentError: An argument is invalid, or contradicts the dataset.
        SchemaMismatchError: The columns differ, or a source value does not fit the type of its column.
        UnreadableSourceError: `source` cannot be read.
        BadRowsError: Cells of a text file don't fit their columns. The error lists their lines, columns and values.
        EngineNotInstalledError: The engine needs a package that is not installed.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        ConcurrentModificationError: Another writer changed the dataset during the write.
        MergeCancelledError: `progress` returned False.
        DatasetMergeError: The write failed for another reason, such as a full disk.

    Example:
        >>> import inlay
        >>> rows = {"id": [1, 2, 3], "day": ["mon", "mon", "tue"]}
        >>> result = inlay.write_dataset(rows, "days", partition_columns="day")
        >>> result.row_count, len(result.files)
        (3, 2)
        >>> inlay.write_dataset({"id": [4], "day": ["tue"]}, "days").row_count
        1
        >>> inlay.read_parquet("days").num_rows
        4
    """
    if mode not in ("append", "overwrite"):
        raise unknown("mode", mode, ["append", "overwrite"])
    check_write_options(compression, row_group_size, max_rows_per_file)
    check_schema_mode(schema_mode)
    if partition_columns:
        partition_columns = normalize_keys(partition_columns, "partition column")
    location = locate_dataset(path, filesystem, storage_options)
    with (
        progress_callback(progress) as on_progress,
        wrap_errors("write"),
        IncrementalFileManager(lock_timeout=lock_timeout) as files,
    ):
        runner = get_engine(engine, source)
        files.open(location)
        found = files.snapshot()
        keep = found if mode == "append" else []
        layout = _layout(found) if partition_columns is None else partition_columns
        target = TargetState.read(
            location, keep, [], layout, footer_cache(location), runner.footers, skip_unreadable=True
        )
        # An empty file keeps the schema of a dataset without rows.
        written = append_rows(
            source, files, target, runner, Reporter(on_progress), storage_options, read_options,
            schema_mode=schema_mode, compression=compression, row_group_size=row_group_size,
            max_rows_per_file=max_rows_per_file, empty=not keep,
        )  # fmt: skip
        replaced = [] if mode == "append" else found
        change = Change(mode, inserted=count_rows(written), rows=target.rows + count_rows(written))
        return commit_files(change, files, written, [file.path for file in replaced])


def count_rows(written: Sequence[tuple[StagedFile, StageResult]]) -> int:
    return sum(outcome.rows for _, outcome in written)


def commit_files(
    change: Change,
    files: IncrementalFileManager,
    written: Sequence[tuple[StagedFile, StageResult]],
    removed: Sequence[str],
) -> WriteResult:
    summaries = summary_files(files.location) if written or removed else []
    if written or removed:
        files.commit([slot for slot, _ in written], [*removed, *summaries], change)
    display = files.location.display
    metadata = [MergeFileMetadata(display(slot.path), w.rows, "inserted", w.size) for slot, w in written]
    return WriteResult(
        change.operation,
        count_rows(written),
        metadata,
        [display(name) for name in removed],
        [display(name) for name in summaries],
    )


def append_rows(
    source: Any,
    files: Transaction,
    target: TargetState,
    engine: Engine,
    report: Reporter,
    storage_options: Mapping[str, Any] | None = None,
    read_options: Mapping[str, Any] | None = None,
    *,
    schema_mode: SchemaMode = "strict",
    compression: str | None = None,
    row_group_size: int | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    empty: bool = False,
) -> list[tuple[StagedFile, StageResult]]:
    """Check source rows, then stage them as new files in the dataset's types."""
    location = target.location
    runner = engine.bind(location, "append").with_progress(report.tasks)
    with runner.open(source, target.schema, storage_options, read_options) as opened:
        missing: MissingColumns = "null" if schema_mode == "evolve" else "error"
        conformer = Conformer(
            opened.schema, target.schema, [], target.partition_columns, schema_mode, missing_columns=missing
        )
        rows = runner.load(opened, conformer, [])
    with contextlib.closing(rows) as loaded:
        partitions = Partitions.of_target(loaded, target)
        settings = new_file_settings(location, target, compression, row_group_size)
        appends = plan_appends(
            np.arange(loaded.num_rows), partitions, conformer.file_schema, settings, max_rows_per_file, files,
            target.new_file_extension, empty=empty,
        )  # fmt: skip
        written: list[tuple[StagedFile, StageResult]] = []
        outcomes = runner.stage(location, loaded, [], [append for _, append in appends])
        with contextlib.closing(outcomes):
            for (slot, _), outcome in zip(appends, outcomes, strict=True):
                written.append((slot, outcome))
                report("append", len(written), len(appends))
    verify_staged(location, [outcome for _, outcome in written])
    return written


def _layout(found: Sequence[FileStat]) -> list[str]:
    return list(parse_hive_partition_path(found[0].path)) if found else []
