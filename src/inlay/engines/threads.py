"""Kernels on a pool of threads: what engines on one machine share."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

import pyarrow as pa

from inlay.engines.base import Append, Combine, Conform, FileEdit, Outcomes, Pick, Watch
from inlay.engines.buckets import ArrowSource, load_source
from inlay.engines.kernels import append_rows, combine_files, pick_rows, rewrite_file
from inlay.engines.source import open_batches
from inlay.parquet.footers import Footer, read_many
from inlay.storage import FileStat, Location

__all__ = ["ThreadedKernels", "bounded_map"]

T = TypeVar("T")
R = TypeVar("R")


class ThreadedKernels:
    """Everything but matching; memory is bounded by the row groups in flight."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def watched(self, watch: Watch) -> Self:  # noqa: ARG002  (every result is a sign of progress already)
        return self

    def working_at(self, location: Location, operation: str) -> Self:  # noqa: ARG002  (any place, any operation)
        return self

    def open(
        self, data: Any, like: pa.Schema | None, storage_options: Mapping[str, Any] | None
    ) -> pa.Table | pa.RecordBatchReader:
        return open_batches(data, like, storage_options)

    def load(self, data: Any, conform: Conform, key_columns: Sequence[str]) -> ArrowSource:
        return load_source(data, conform, key_columns)

    def footers(self, location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]:
        return read_many(location, files, columns)

    def stage(
        self,
        location: Location,
        source: ArrowSource,
        edits: Sequence[FileEdit],
        appends: Sequence[Append],
        *,
        dry_run: bool = False,
    ) -> Outcomes:
        yield from self._rewrite(location, source, edits, dry_run=dry_run)
        yield from self._append(location, source, appends)

    def _rewrite(
        self, location: Location, source: ArrowSource, edits: Sequence[FileEdit], *, dry_run: bool
    ) -> Outcomes:
        """Files side by side; row groups of one file side by side only when there are too few files."""
        outer = min(self.workers, len(edits)) or 1
        inner = max(1, self.workers // outer)
        with (
            ThreadPoolExecutor(outer, "inlay-file") as pool,
            ThreadPoolExecutor(inner, "inlay-group") as groups,
        ):

            def map_groups(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
                return map(function, items) if inner == 1 else bounded_map(groups, inner, function, items)

            yield from bounded_map(
                pool,
                outer,
                lambda edit: rewrite_file(location, edit, source.take, map_groups, dry_run=dry_run),
                edits,
            )

    def _append(self, location: Location, source: ArrowSource, appends: Sequence[Append]) -> Outcomes:
        with ThreadPoolExecutor(self.workers, "inlay-append") as pool:
            yield from bounded_map(
                pool, self.workers, lambda append: append_rows(location, append, source.take), appends
            )

    def combine(self, location: Location, combines: Sequence[Combine]) -> Outcomes:
        with ThreadPoolExecutor(self.workers, "inlay-combine") as pool:
            yield from bounded_map(pool, self.workers, lambda job: combine_files(location, job), combines)

    def pick(self, location: Location, picks: Sequence[Pick], schema: pa.Schema) -> Iterator[pa.Table]:
        return (pick_rows(location, pick, schema) for pick in picks)


def bounded_map(pool: ThreadPoolExecutor, workers: int, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """`map` in order, with no more results waiting than there are workers."""
    waiting: deque[Future[R]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
