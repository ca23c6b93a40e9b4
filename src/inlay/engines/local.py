"""Engines that run kernels on a thread pool of this machine, and the pyarrow engine."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Self, TypeVar

import pyarrow as pa

from inlay.engines.alterations import alter_file
from inlay.engines.base import (
    Alteration,
    Append,
    Combine,
    Conform,
    FileEdit,
    FileMatch,
    Pick,
    StageResults,
    Target,
    TaskProgress,
)
from inlay.engines.edits import rewrite_file
from inlay.engines.kernels import append_rows, combine_files, pick_rows
from inlay.engines.matching import match_files, open_target
from inlay.engines.selection import Selection, select_rows
from inlay.engines.source import ArrowSource, load_source
from inlay.engines.streams import open_source
from inlay.engines.threads import bounded_map
from inlay.parquet.footers import Footer, read_many
from inlay.storage import FileStat, Location

__all__ = ["ArrowEngine", "LocalEngine"]

# Items per worker in progress or done, if their results are small. A slow item delays the results after it, and
# workers need other items until then.
_AHEAD = 3

T = TypeVar("T")
R = TypeVar("R")


class LocalEngine:
    """An engine without `match`, on a thread pool. Its memory holds a few row groups."""

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or len(os.sched_getaffinity(0))

    def with_progress(self, on_tasks: TaskProgress) -> Self:  # noqa: ARG002  (nothing runs remotely)
        return self

    def bind(self, location: Location, operation: str) -> Self:  # noqa: ARG002  (works on every location)
        return self

    def open(
        self,
        data: Any,
        like: pa.Schema | None,
        storage_options: Mapping[str, Any] | None,
        read_options: Mapping[str, Any] | None,
    ) -> AbstractContextManager[pa.Table | pa.RecordBatchReader]:
        return open_source(data, like, storage_options, read_options)

    def load(self, data: Any, conform: Conform, key_columns: Sequence[str]) -> ArrowSource:
        return load_source(data, conform, key_columns)

    def footers(self, location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]:
        return read_many(location, files, columns)

    def select(self, location: Location, selection: Selection, targets: Sequence[Target]) -> Iterator[FileMatch]:
        with ThreadPoolExecutor(self.workers, "inlay-select") as pool:
            select = functools.partial(select_rows, location, selection)
            yield from bounded_map(pool, _AHEAD * self.workers, select, targets)

    def stage(
        self,
        location: Location,
        source: ArrowSource,
        edits: Sequence[FileEdit],
        appends: Sequence[Append],
        *,
        dry_run: bool = False,
    ) -> StageResults:
        yield from self._rewrite(location, source, edits, dry_run=dry_run)
        with ThreadPoolExecutor(self.workers, "inlay-append") as pool:
            yield from bounded_map(
                pool, self.workers, lambda append: append_rows(location, append, source.take), appends
            )

    def _rewrite(
        self, location: Location, source: ArrowSource, edits: Sequence[FileEdit], *, dry_run: bool
    ) -> StageResults:
        """Rewrite files in parallel, and row groups too if there are fewer files than threads."""
        outer = min(self.workers, len(edits)) or 1
        inner = max(1, self.workers // outer)
        with ThreadPoolExecutor(outer, "inlay-file") as pool, ThreadPoolExecutor(inner, "inlay-group") as groups:

            def map_groups(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
                return map(function, items) if inner == 1 else bounded_map(groups, inner, function, items)

            rewrite = functools.partial(
                rewrite_file, location, take=source.take, map_groups=map_groups, dry_run=dry_run
            )
            yield from bounded_map(pool, _AHEAD * outer, rewrite, edits)

    def combine(self, location: Location, combines: Sequence[Combine]) -> StageResults:
        with ThreadPoolExecutor(self.workers, "inlay-combine") as pool:
            yield from bounded_map(pool, self.workers, lambda job: combine_files(location, job), combines)

    def alter(self, location: Location, alterations: Sequence[Alteration]) -> StageResults:
        with ThreadPoolExecutor(self.workers, "inlay-alter") as pool:
            yield from bounded_map(pool, self.workers, functools.partial(alter_file, location), alterations)

    def pick(self, location: Location, picks: Sequence[Pick], schema: pa.Schema) -> Iterator[pa.Table]:
        bundles = [list(of_file) for _, of_file in itertools.groupby(picks, lambda pick: pick.path)]
        with ThreadPoolExecutor(self.workers, "inlay-pick") as pool:
            read = functools.partial(pick_rows, location, schema=schema)
            for tables in bounded_map(pool, self.workers, lambda bundle: read(picks=bundle), bundles):
                yield from tables


class ArrowEngine(LocalEngine):
    """The pyarrow engine."""

    name = "pyarrow"

    def match(
        self, location: Location, source: ArrowSource, key_columns: Sequence[str], targets: Sequence[Target]
    ) -> Iterator[FileMatch]:
        with ThreadPoolExecutor(self.workers, "inlay-match") as pool:
            opened = list(pool.map(lambda target: open_target(location, target), targets))
            map_batches = functools.partial(bounded_map, pool, _AHEAD * self.workers)
            yield from match_files(location, source, key_columns, opened, map_batches)
