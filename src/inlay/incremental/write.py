"""Plain writes through the same commit: append new files, or replace all data files at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from inlay.defaults import LOCK_TIMEOUT, MAX_ROWS_PER_FILE
from inlay.engines import get_engine
from inlay.engines.base import Engine, Written
from inlay.errors import unknown
from inlay.incremental.commit import IncrementalFileManager, footer_cache, locate_dataset
from inlay.incremental.failures import failing_as
from inlay.incremental.progress import ProgressCallback, Reporter
from inlay.incremental.progress_bar import listening
from inlay.incremental.result import MergeFileMetadata, WriteResult
from inlay.incremental.stage import Slot, Transaction, new_file_settings, plan_appends, verify_staged
from inlay.incremental.target import Partitions, TargetState
from inlay.incremental.validate import Conformer, SchemaMode, check_schema_mode, normalize_keys
from inlay.parquet.layout import parse_hive_partition_path
from inlay.parquet.writer import check_choices
from inlay.storage import FileStat

__all__ = ["append_rows", "check_rows", "committed", "write_dataset"]


def write_dataset(
    source: Any,
    path: str,
    *,
    mode: Literal["append", "overwrite"] = "append",
    partition_columns: Sequence[str] | None = None,
    filesystem: Any = None,
    compression: str | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    row_group_size: int | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> WriteResult:
    """Write rows as new files. `append` leaves existing files alone; `overwrite` replaces all of them at once.

    Without `partition_columns` the dataset keeps the partitions that it has.
    """
    if mode not in ("append", "overwrite"):
        raise unknown("mode", mode, ["append", "overwrite"])
    check_choices(compression, row_group_size, max_rows_per_file)
    check_schema_mode(schema_mode)
    if partition_columns:
        partition_columns = normalize_keys(partition_columns, "partition column")
    location = locate_dataset(path, filesystem, storage_options)
    with (
        listening(progress) as told,
        failing_as("write"),
        IncrementalFileManager(lock_timeout=lock_timeout) as files,
    ):
        runner = get_engine(engine, source)
        files.open(location)
        found = files.snapshot()
        keep = found if mode == "append" else []
        layout = _layout(found) if partition_columns is None else partition_columns
        target = TargetState.read(location, keep, [], layout, footer_cache(location), runner.footers)
        # a dataset without rows still has a schema: one file without rows keeps it
        written = append_rows(
            source, files, target, runner, Reporter(told), storage_options,
            schema_mode=schema_mode, compression=compression, row_group_size=row_group_size,
            max_rows_per_file=max_rows_per_file, empty=not keep,
        )  # fmt: skip
        return committed(mode, files, written, [] if mode == "append" else [file.path for file in found])


def committed(
    mode: str, files: IncrementalFileManager, written: Sequence[tuple[Slot, Written]], removed: Sequence[str]
) -> WriteResult:
    """Make new files and removals true, and say which they are."""
    if written or removed:
        files.commit([slot for slot, _ in written], removed)
    shown = files.location.shown
    metadata = [MergeFileMetadata(shown(slot.path), w.rows, "inserted", w.size) for slot, w in written]
    return WriteResult(mode, sum(w.rows for _, w in written), metadata, [shown(name) for name in removed])


def append_rows(
    source: Any,
    files: Transaction,
    target: TargetState,
    engine: Engine,
    report: Reporter,
    storage_options: Mapping[str, Any] | None = None,
    *,
    schema_mode: SchemaMode = "strict",
    compression: str | None = None,
    row_group_size: int | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    empty: bool = False,
) -> list[tuple[Slot, Written]]:
    """Stage the source's rows, in the dataset's types, as new files; what does not fit is refused before the first."""
    location = target.location
    runner = engine.working_at(location, "append").watched(report.tasks)
    opened = runner.open(source, target.schema, storage_options)
    conformer = Conformer(opened.schema, target.schema, [], target.partition_columns, schema_mode)
    with contextlib.closing(runner.load(opened, conformer, [])) as loaded:
        partitions = Partitions.of(loaded, target.partition_columns, target.footers)
        settings = new_file_settings(location, target, compression, row_group_size)
        appends = plan_appends(
            np.arange(loaded.num_rows), partitions, conformer.file_schema, settings, max_rows_per_file, files,
            empty=empty,
        )  # fmt: skip
        written: list[tuple[Slot, Written]] = []
        outcomes = runner.stage(location, loaded, [], [append for _, append in appends])
        with contextlib.closing(outcomes):
            for (slot, _), outcome in zip(appends, outcomes, strict=True):
                written.append((slot, outcome))
                report("append", len(written), len(appends))
    verify_staged(location, [outcome for _, outcome in written])
    return written


def check_rows(source: Any, target: TargetState, engine: Engine) -> None:
    """Refuse rows that `append_rows` would refuse."""
    runner = engine.working_at(target.location, "append")
    opened = runner.open(source, target.schema, None)
    conformer = Conformer(opened.schema, target.schema, [], target.partition_columns)
    runner.load(opened, conformer, []).close()


def _layout(found: Sequence[FileStat]) -> list[str]:
    return list(parse_hive_partition_path(found[0].path)) if found else []
