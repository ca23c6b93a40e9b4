"""Plain writes through the same commit: append new files, or replace all data files at once."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from inlay.engines import get_engine
from inlay.engines.base import Engine
from inlay.errors import InvalidArgumentError
from inlay.incremental.commit import DEFAULT_LOCK_TIMEOUT, IncrementalFileManager, footer_cache, locate_dataset
from inlay.incremental.failures import ProgressCallback, Reporter, failing_as
from inlay.incremental.result import MergeFileMetadata, WriteResult
from inlay.incremental.stage import new_file_settings, plan_appends, verify_staged
from inlay.incremental.target import Partitions, TargetState
from inlay.incremental.validate import Conformer, SchemaMode, check_schema_mode, normalize_keys
from inlay.parquet.layout import parse_hive_partition_path
from inlay.parquet.writer import check_choices
from inlay.storage import FileStat

__all__ = ["write_dataset"]


def write_dataset(
    source: Any,
    path: str,
    *,
    mode: Literal["append", "overwrite"] = "append",
    partition_columns: Sequence[str] | None = None,
    filesystem: Any = None,
    compression: str | None = None,
    max_rows_per_file: int = 5_000_000,
    row_group_size: int | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    progress: ProgressCallback | None = None,
    lock_timeout: float = DEFAULT_LOCK_TIMEOUT,
) -> WriteResult:
    """Write rows as new files. `append` leaves existing files alone; `overwrite` replaces all of them at once.

    Without `partition_columns` the dataset keeps the partitions that it has.
    """
    if mode not in ("append", "overwrite"):
        raise InvalidArgumentError(f"Unknown mode {mode!r}; known: append, overwrite.")
    check_choices(compression, row_group_size, max_rows_per_file)
    check_schema_mode(schema_mode)
    if partition_columns:
        partition_columns = normalize_keys(partition_columns, "partition column")
    location = locate_dataset(path, filesystem, storage_options)
    report = Reporter(progress)
    with failing_as("write"), IncrementalFileManager(lock_timeout=lock_timeout) as files:
        files.open(location)
        found = files.snapshot()
        keep = found if mode == "append" else []
        layout = _layout(found) if partition_columns is None else partition_columns
        target = TargetState.read(location, keep, [], layout, footer_cache(location))
        runner = get_engine(engine, source).watched(report.tasks)
        opened = runner.open(source, target.schema, storage_options)
        conformer = Conformer(opened.schema, target.schema, [], target.partition_columns, schema_mode)
        with contextlib.closing(runner.load(opened, conformer, [])) as loaded:
            partitions = Partitions.of(loaded, target.partition_columns, target.footers)
            settings = new_file_settings(location, target, compression, row_group_size)
            # a dataset without rows still has a schema: one file without rows keeps it
            appends = plan_appends(
                np.arange(loaded.num_rows), partitions, conformer.file_schema, settings, max_rows_per_file, files,
                empty=not keep,
            )  # fmt: skip
            written = []
            for outcome in runner.append(location, loaded, [append for _, append in appends]):
                written.append(outcome)
                report("append", len(written), len(appends))
        verify_staged(location, written)
        removed = [] if mode == "append" else [file.path for file in found]
        if appends or removed:
            files.commit([slot for slot, _ in appends], removed)
    metadata = [
        MergeFileMetadata(location.shown(slot.path), outcome.rows, "inserted", outcome.size)
        for (slot, _), outcome in zip(appends, written, strict=True)
    ]
    return WriteResult(mode, sum(w.rows for w in written), metadata, [location.shown(name) for name in removed])


def _layout(found: Sequence[FileStat]) -> list[str]:
    return list(parse_hive_partition_path(found[0].path)) if found else []
