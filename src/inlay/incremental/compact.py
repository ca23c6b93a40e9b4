"""Compaction: combine the small files of a dataset."""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from inlay.commit.sidecar import Change
from inlay.commit.transaction import IncrementalFileManager, StagedFile, Transaction, footer_cache, locate_dataset
from inlay.constants import LOCK_TIMEOUT, MAX_ROWS_PER_FILE, TARGET_FILE_SIZE
from inlay.engines import get_engine
from inlay.engines.base import Combine, Engine, StageResult
from inlay.errors import InvalidArgumentError, NotFoundError, wrap_errors
from inlay.incremental.display import ProgressCallback, Reporter, progress_callback
from inlay.incremental.result import WriteResult
from inlay.incremental.stage import new_file_settings, verify_staged
from inlay.incremental.target import TargetState
from inlay.incremental.validate import normalize_keys, require_columns
from inlay.incremental.write import commit_files
from inlay.parquet.footers import Footer
from inlay.parquet.writer import WriterSettings, check_write_options
from inlay.schema import with_wide_indices
from inlay.storage import Filesystem

__all__ = ["compact"]


def compact(
    path: str | os.PathLike[str],
    *,
    target_file_size: int = TARGET_FILE_SIZE,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    sort_by: str | Sequence[str] | None = None,
    filesystem: Filesystem | None = None,
    compression: str | None = None,
    row_group_size: int | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> WriteResult:
    """Combine the small files of each partition into larger files.

    Adjacent files become one file of at most about `target_file_size` bytes. A file that is large enough is kept,
    unless its schema differs from the dataset's or `sort_by` is set. Rows keep their order unless `sort_by` is set.
    The commit is atomic: inlay's readers see the dataset either before or after the compaction.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        target_file_size: The maximum size in bytes of the files to combine into one.
        max_rows_per_file: The maximum number of rows in each new file.
        sort_by: The column, or the columns, by which to sort the rows of each new file, ascending. Every file is then
            written again.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        compression: The codec of new files. None uses the codec of the dataset's files.
        row_group_size: The maximum number of rows in each row group. None uses the size in the dataset's files.
        engine: `"auto"`, `"pyarrow"`, `"duckdb"` or `"spark"`. `"auto"` is Spark if `INLAY_SPARK_MASTER` is set, and
            pyarrow otherwise.
        storage_options: Arguments of the filesystem that the URL names.
        progress: True shows a progress bar. A callback receives a `Progress` for each new file and cancels the
            compaction by returning False.
        lock_timeout: How many seconds to wait for another writer on a local disk.

    Returns:
        The new files and the files that they replace.

    Raises:
        InvalidArgumentError: An argument is invalid.
        NotFoundError: There is no directory at `path`.
        SchemaMismatchError: A column in `sort_by` does not exist, or the schemas of the files cannot be combined.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        ConcurrentModificationError: Another writer changed the dataset during the compaction.
        MergeCancelledError: `progress` returned False.
        DatasetMergeError: The compaction failed for another reason, such as a full disk.

    Example:
        >>> import inlay
        >>> for number in range(3):
        ...     _ = inlay.write_dataset({"id": [number]}, "people")
        >>> result = inlay.compact("people")
        >>> len(result.removed_files), len(result.files), result.row_count
        (3, 1, 3)
    """
    check_write_options(compression, row_group_size, max_rows_per_file)
    if target_file_size < 1:
        raise InvalidArgumentError(f"target_file_size must be at least 1 byte, not {target_file_size!r}.")
    sorting = [] if sort_by is None else normalize_keys(sort_by, "sort column")
    location = locate_dataset(path, filesystem, storage_options)
    if not location.store.is_directory(location.path):
        raise NotFoundError(f"There is no dataset at {location.uri!r}.")
    with (
        progress_callback(progress) as on_progress,
        wrap_errors("compact"),
        IncrementalFileManager(lock_timeout=lock_timeout) as files,
    ):
        report = Reporter(on_progress)
        runner = get_engine(engine).bind(location, "compact").with_progress(report.tasks)
        files.open(location)
        target = TargetState.read(location, files.snapshot(), [], None, footer_cache(location), runner.footers)
        if target.schema is None:
            return WriteResult("compact", 0)
        require_columns(sorting, target.schema, "the dataset", "sort column")
        settings = new_file_settings(location, target, compression, row_group_size)
        bundles = list(_bundles(target, target_file_size, max_rows_per_file, bool(sorting)))
        schema = _schema(target, bundles)
        jobs = [_job(members, files, target.new_file_extension, schema, settings, sorting) for members in bundles]
        written = _combine(runner, target, jobs, report)
        return commit_files(
            Change("compact", rows=target.rows), files, written, [path for _, job in jobs for path in job.paths]
        )


def _bundles(target: TargetState, max_size: int, max_rows: int, rewrite_all: bool) -> Iterator[list[Footer]]:
    """Group adjacent files of a directory. A single file is a group only if it must change."""
    bundle: list[Footer] = []
    size = rows = 0
    for footer in target.footers:
        size, rows = size + footer.file.size, rows + footer.rows
        is_beside = not bundle or posixpath.dirname(bundle[0].file.path) == posixpath.dirname(footer.file.path)
        if bundle and not (is_beside and size <= max_size and rows <= max_rows):
            yield from _if_worthwhile(bundle, target.schema, rewrite_all)
            bundle, size, rows = [], footer.file.size, footer.rows
        bundle.append(footer)
    yield from _if_worthwhile(bundle, target.schema, rewrite_all)


def _if_worthwhile(bundle: list[Footer], schema: pa.Schema | None, rewrite_all: bool) -> Iterator[list[Footer]]:
    differs = any(not (f.schema is not None and schema is not None and f.schema.equals(schema)) for f in bundle)
    if len(bundle) > 1 or (bundle and (rewrite_all or differs)):
        yield bundle


def _schema(target: TargetState, bundles: Sequence[list[Footer]]) -> pa.Schema:
    """Return the schema of new files. Widen dictionary indices only if no old file remains."""
    are_all = sum(map(len, bundles)) == len(target.footers)
    return with_wide_indices(target.schema) if are_all else target.schema


def _job(
    members: Sequence[Footer],
    files: Transaction,
    extension: str,
    schema: pa.Schema,
    settings: WriterSettings,
    sorting: Sequence[str],
) -> tuple[StagedFile, Combine]:
    paths = [footer.file.path for footer in members]
    slot = files.stage_new_file(posixpath.dirname(paths[0]), extension)
    return slot, Combine(slot.stage, paths, schema, settings, list(sorting))


def _combine(
    runner: Engine, target: TargetState, jobs: Sequence[tuple[StagedFile, Combine]], report: Reporter
) -> list[tuple[StagedFile, StageResult]]:
    written: list[tuple[StagedFile, StageResult]] = []
    outcomes = runner.combine(target.location, [job for _, job in jobs])
    with contextlib.closing(outcomes):
        for (slot, _), outcome in zip(jobs, outcomes, strict=True):
            written.append((slot, outcome))
            report("compact", len(written), len(jobs))
    verify_staged(target.location, [outcome for _, outcome in written])
    return written
