"""Plain writes through the same commit: append new files, or replace all data files at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from inlay.engines import get_engine
from inlay.engines.base import Engine
from inlay.errors import InvalidArgumentError, NotFoundError
from inlay.incremental.commit import (
    DEFAULT_LOCK_TIMEOUT,
    IncrementalFileManager,
    footer_cache,
    read_consistently,
)
from inlay.incremental.result import MergeFileMetadata, WriteResult
from inlay.incremental.run import Progress, ProgressCallback, new_file_settings, plan_appends, verify_staged
from inlay.incremental.target import Partitions, TargetState
from inlay.incremental.validate import Conformer, SchemaMode, normalize_keys
from inlay.parquet.footers import Footers, read_footers
from inlay.parquet.layout import infer_partition_type, parse_hive_partition_path
from inlay.parquet.writer import check_compression
from inlay.schema import unify
from inlay.storage import FileStat, Location, ObjectStore, locate

__all__ = ["read_parquet", "write_dataset"]


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
    """Write rows as new files. `append` leaves existing files alone; `overwrite` replaces all of them at once."""
    if mode not in ("append", "overwrite"):
        raise InvalidArgumentError(f"Unknown mode {mode!r}; known: append, overwrite.")
    check_compression(compression)
    if partition_columns is not None and len(partition_columns):
        partition_columns = normalize_keys(partition_columns, "partition column")
    location = locate(path, filesystem, storage_options)
    runner = get_engine(engine, source)
    with IncrementalFileManager(lock_timeout=lock_timeout) as files:
        files.open(location)
        found = files.snapshot()
        keep = found if mode == "append" else []
        target = TargetState.read(location, keep, [], partition_columns, footer_cache(location))
        opened = runner.open(source)
        conformer = Conformer(opened.schema, target.schema, [], target.partition_columns, schema_mode)
        loaded = runner.load(opened, conformer, [])
        try:
            partitions = Partitions.of(loaded, target.partition_columns, target.footers)
            settings = new_file_settings(location, target, compression, row_group_size)
            rows = np.arange(loaded.num_rows)
            schema = conformer.file_schema
            # a dataset without rows still has a schema: one file without rows keeps it
            appends = plan_appends(rows, partitions, schema, settings, max_rows_per_file, files, empty=not keep)
            written = []
            for outcome in runner.append(location, loaded, [append for _, append in appends]):
                written.append(outcome)
                if progress is not None:
                    progress(Progress("append", len(written), len(appends)))
        finally:
            loaded.close()
        verify_staged(location, written)
        names = [name for name, _ in appends]
        removed = [] if mode == "append" else [file.path for file in found]
        puts = [(w.stage, name) for name, w in zip(names, written, strict=True) if w.stage is not None]
        if puts or removed:
            files.commit(puts, removed)
    metadata = [
        MergeFileMetadata(location.shown(name), w.rows, "inserted", w.size)
        for name, w in zip(names, written, strict=True)
    ]
    return WriteResult(mode, sum(w.rows for w in written), metadata, [location.shown(name) for name in removed])


def read_parquet(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,  # noqa: A002
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Read a dataset in one consistent state: exactly before or exactly after any merge."""
    location = locate(path, filesystem, storage_options)
    return read_consistently(location, functools.partial(_read, location, columns, filter))


def _read(
    location: Location,
    columns: Sequence[str] | None,
    condition: ds.Expression | None,
    files: Sequence[FileStat],
) -> pa.Table:
    if not files:
        raise NotFoundError(f"There is no Parquet file in {location.given!r}.")
    footers = read_footers(location, files, [], footer_cache(location))
    dataset = ds.dataset(
        [location.full(file.path) for file in files],
        schema=dataset_schema(location, footers),
        format="parquet",
        filesystem=location.store.filesystem if isinstance(location.store, ObjectStore) else None,
        partitioning=ds.partitioning(partition_schema(footers), flavor="hive"),
        partition_base_dir=location.path,
    )
    return dataset.to_table(columns=None if columns is None else list(columns), filter=condition)


def partition_schema(footers: Footers) -> pa.Schema:
    """The columns that paths give, typed as readers type them."""
    values: dict[str, list[str | None]] = {}
    for footer in footers:
        for name, value in parse_hive_partition_path(footer.file.path).items():
            values.setdefault(name, []).append(value)
    return pa.schema([(name, infer_partition_type(texts)) for name, texts in values.items()])


def dataset_schema(location: Location, footers: Footers) -> pa.Schema:
    distinct = list({id(footer.schema): footer for footer in footers if footer.schema is not None}.values())
    schema = unify([f.schema for f in distinct], [location.shown(f.file.path) for f in distinct])
    paths = [field for field in partition_schema(footers) if field.name not in schema.names]
    return pa.schema([*schema, *paths], schema.metadata)
