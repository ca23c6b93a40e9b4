"""Many small files into few large ones, through the same commit."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from inlay.defaults import LOCK_TIMEOUT, MAX_ROWS_PER_FILE, TARGET_FILE_SIZE
from inlay.engines import get_engine
from inlay.engines.base import Combine, Engine, Written
from inlay.errors import InvalidArgumentError, NotFoundError
from inlay.incremental.commit import IncrementalFileManager, footer_cache, locate_dataset
from inlay.incremental.failures import failing_as
from inlay.incremental.progress import ProgressCallback, Reporter
from inlay.incremental.progress_bar import listening
from inlay.incremental.result import WriteResult
from inlay.incremental.stage import Slot, Transaction, new_file_settings, verify_staged
from inlay.incremental.target import TargetState
from inlay.incremental.validate import normalize_keys, require_columns
from inlay.incremental.write import committed
from inlay.parquet.footers import Footer
from inlay.parquet.writer import WriterSettings, check_choices
from inlay.schema import with_roomy_indices

__all__ = ["compact"]


def compact(
    path: str,
    *,
    target_file_size: int = TARGET_FILE_SIZE,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    sort_by: str | Sequence[str] | None = None,
    filesystem: Any = None,
    compression: str | None = None,
    row_group_size: int | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> WriteResult:
    """Combine small files of each partition, in path order, into files of about `target_file_size` bytes.

    Files that are large enough already, or that have another schema than the dataset's, are brought in line too if
    `sort_by` or the schema asks for it; otherwise they stay as they are.
    """
    check_choices(compression, row_group_size, max_rows_per_file)
    if target_file_size < 1:
        raise InvalidArgumentError(f"target_file_size must be at least 1, not {target_file_size!r}.")
    sorting = [] if sort_by is None else normalize_keys(sort_by, "sort column")
    location = locate_dataset(path, filesystem, storage_options)
    if not location.store.is_directory(location.path):
        raise NotFoundError(f"There is no dataset at {location.given!r}.")
    with (
        listening(progress) as told,
        failing_as("compact"),
        IncrementalFileManager(lock_timeout=lock_timeout) as files,
    ):
        report = Reporter(told)
        runner = get_engine(engine).working_at(location, "compact").watched(report.tasks)
        files.open(location)
        target = TargetState.read(location, files.snapshot(), [], None, footer_cache(location), runner.footers)
        if target.schema is None:
            return WriteResult("compact", 0)
        require_columns(sorting, target.schema, "the dataset", "sort column")
        settings = new_file_settings(location, target, compression, row_group_size)
        bundles = list(_bundles(target, target_file_size, max_rows_per_file, bool(sorting)))
        jobs = [_job(members, files, _schema(target, bundles), settings, sorting) for members in bundles]
        written = _combined(runner, target, jobs, report)
        return committed("compact", files, written, [path for _, job in jobs for path in job.paths])


def _bundles(target: TargetState, size: int, rows: int, everything: bool) -> Iterator[list[Footer]]:
    """Neighbouring files of one directory that together make one file; a file alone only if it must change."""
    bundle: list[Footer] = []
    held_size = held_rows = 0
    for footer in target.footers:
        held_size, held_rows = held_size + footer.file.size, held_rows + footer.rows
        is_beside = not bundle or posixpath.dirname(bundle[0].file.path) == posixpath.dirname(footer.file.path)
        if bundle and not (is_beside and held_size <= size and held_rows <= rows):
            yield from _worthwhile(bundle, target.schema, everything)
            bundle, held_size, held_rows = [], footer.file.size, footer.rows
        bundle.append(footer)
    yield from _worthwhile(bundle, target.schema, everything)


def _worthwhile(bundle: list[Footer], schema: pa.Schema | None, everything: bool) -> Iterator[list[Footer]]:
    differs = any(not (f.schema is not None and schema is not None and f.schema.equals(schema)) for f in bundle)
    if len(bundle) > 1 or (bundle and (everything or differs)):
        yield bundle


def _schema(target: TargetState, bundles: Sequence[list[Footer]]) -> pa.Schema:
    """Where old files stay, readers take the types of one file for all."""
    are_all = sum(map(len, bundles)) == len(target.footers)
    return with_roomy_indices(target.schema) if are_all else target.schema


def _job(
    members: Sequence[Footer], files: Transaction, schema: pa.Schema, settings: WriterSettings, sorting: Sequence[str]
) -> tuple[Slot, Combine]:
    paths = [footer.file.path for footer in members]
    slot = files.adding(posixpath.dirname(paths[0]))
    return slot, Combine(slot.stage, paths, schema, settings, list(sorting))


def _combined(
    runner: Engine, target: TargetState, jobs: Sequence[tuple[Slot, Combine]], report: Reporter
) -> list[tuple[Slot, Written]]:
    written: list[tuple[Slot, Written]] = []
    outcomes = runner.combine(target.location, [job for _, job in jobs])
    with contextlib.closing(outcomes):
        for (slot, _), outcome in zip(jobs, outcomes, strict=True):
            written.append((slot, outcome))
            report("compact", len(written), len(jobs))
    verify_staged(target.location, [outcome for _, outcome in written])
    return written
