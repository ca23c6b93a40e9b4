"""Many small files into few large ones, through the same commit."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from inlay.engines import get_engine
from inlay.engines.base import Combine, Engine
from inlay.errors import InvalidArgumentError
from inlay.incremental.commit import DEFAULT_LOCK_TIMEOUT, IncrementalFileManager, footer_cache
from inlay.incremental.result import MergeFileMetadata, WriteResult
from inlay.incremental.run import Progress, ProgressCallback, new_file_settings, verify_staged
from inlay.incremental.target import TargetState
from inlay.incremental.validate import normalize_keys, require_columns
from inlay.parquet.footers import Footer
from inlay.parquet.writer import check_compression
from inlay.storage import locate

__all__ = ["compact"]

DEFAULT_FILE_SIZE = 128 << 20


def compact(
    path: str,
    *,
    target_file_size: int = DEFAULT_FILE_SIZE,
    max_rows_per_file: int = 5_000_000,
    sort_by: str | Sequence[str] | None = None,
    filesystem: Any = None,
    compression: str | None = None,
    row_group_size: int | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
    lock_timeout: float = DEFAULT_LOCK_TIMEOUT,
) -> WriteResult:
    """Combine small files of each partition, in path order, into files of about `target_file_size` bytes.

    Files that are large enough already, or that have another schema than the dataset's, are brought in line too if
    `sort_by` or the schema asks for it; otherwise they stay as they are.
    """
    check_compression(compression)
    if target_file_size < 1 or max_rows_per_file < 1:
        raise InvalidArgumentError("target_file_size and max_rows_per_file must be at least 1.")
    sorting = [] if sort_by is None else normalize_keys(sort_by, "sort column")
    location = locate(path, filesystem, storage_options)
    runner = get_engine(engine)
    with IncrementalFileManager(lock_timeout=lock_timeout) as files:
        files.open(location)
        target = TargetState.read(location, files.snapshot(), [], None, footer_cache(location))
        if target.schema is None:
            return WriteResult("compact", 0)
        require_columns(sorting, target.schema, "the dataset", "sort column")
        settings = new_file_settings(location, target, compression, row_group_size)
        combines: list[Combine] = []
        names: list[str] = []
        removed: list[str] = []
        for members in _bundles(target, target_file_size, max_rows_per_file, bool(sorting)):
            paths = [footer.file.path for footer in members]
            combines.append(Combine(files.stage_path(), paths, target.schema, settings, sorting))
            directory = posixpath.dirname(paths[0])
            names.append(posixpath.join(directory, f"part-{files.id[:12]}-{len(names):05d}.parquet"))
            removed += paths
        written = []
        for outcome in runner.combine(location, combines):
            written.append(outcome)
            if progress is not None:
                progress(Progress("compact", len(written), len(combines)))
        verify_staged(location, written)
        if combines:
            files.commit([(c.stage, name) for c, name in zip(combines, names, strict=True)], removed)
    metadata = [
        MergeFileMetadata(location.shown(name), w.rows, "inserted", w.size)
        for name, w in zip(names, written, strict=True)
    ]
    return WriteResult("compact", sum(w.rows for w in written), metadata, [location.shown(p) for p in removed])


def _bundles(target: TargetState, size: int, rows: int, everything: bool) -> Iterator[list[Footer]]:
    """Neighbouring files of one directory that together make one file; a file alone only if it must change."""
    bundle: list[Footer] = []
    for footer in target.footers:
        if bundle and not _fits(bundle, footer, size, rows):
            yield from _worthwhile(bundle, target.schema, everything)
            bundle = []
        bundle.append(footer)
    yield from _worthwhile(bundle, target.schema, everything)


def _fits(bundle: Sequence[Footer], footer: Footer, size: int, rows: int) -> bool:
    return (
        posixpath.dirname(bundle[0].file.path) == posixpath.dirname(footer.file.path)
        and sum(member.file.size for member in bundle) + footer.file.size <= size
        and sum(member.rows for member in bundle) + footer.rows <= rows
    )


def _worthwhile(bundle: list[Footer], schema: pa.Schema | None, everything: bool) -> Iterator[list[Footer]]:
    differs = any(not (f.schema is not None and schema is not None and f.schema.equals(schema)) for f in bundle)
    if len(bundle) > 1 or (bundle and (everything or differs)):
        yield bundle
