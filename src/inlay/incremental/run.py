"""The one merge. Whatever the engine and whoever commits, the steps are these:

load source -> validate -> list files and footers -> prune -> match (key columns only) -> plan
-> stage (rewrite touched row groups, write inserts) -> verify -> commit -> MergeResult
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from inlay.defaults import LOCK_TIMEOUT, MAX_ROWS_PER_FILE
from inlay.engines import get_engine
from inlay.engines.base import Append, Engine, FileEdit, Written
from inlay.engines.keys import canonical_type
from inlay.errors import ConcurrentModificationError, SchemaMismatchError
from inlay.incremental.changes import Changes, some_changes
from inlay.incremental.commit import (
    IncrementalFileManager,
    footer_cache,
    locate_dataset,
    read_consistently,
)
from inlay.incremental.decide import Decision, Decisions, decide
from inlay.incremental.failures import failing_as
from inlay.incremental.options import MergeOptions
from inlay.incremental.outcome import Rewritten, plan_of, result_of
from inlay.incremental.plan import MergePlan
from inlay.incremental.progress import ProgressCallback, Reporter
from inlay.incremental.progress_bar import listening
from inlay.incremental.result import MergeResult
from inlay.incremental.stage import Slot, Transaction, new_file_settings, plan_appends, verify_staged
from inlay.incremental.target import TargetState
from inlay.incremental.validate import (
    Conformer,
    SchemaMode,
    fit_field,
    reject_duplicates,
    reject_null_keys,
    require_columns,
)
from inlay.parquet.footer_cache import FooterCache
from inlay.storage import FileStat, Location

__all__ = ["MergeRun", "merge", "plan_merge"]

_ATTEMPTS_ON_CONFLICT = 5


def merge(
    data: Any,
    path: str,
    strategy: str,
    key_columns: Sequence[str],
    partition_columns: Sequence[str] | None = None,
    filesystem: Any = None,
    compression: str | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    row_group_size: int | None = None,
    *,
    partition_by: Sequence[str] | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> MergeResult:
    """Merge rows into a Parquet dataset, rewriting only what must change.

    Strategies: `insert` adds new keys, `update` replaces existing ones, `upsert` does both, `full_merge` makes the
    dataset equal to the source, `deduplicate` reduces the source to one row per key and upserts it.

    `compression` and `row_group_size` concern new files; None means as the dataset's own files are, and for a new
    dataset snappy and 500,000 rows. The whole change becomes visible in one moment, or not at all.

    `progress=True` shows a bar in a terminal or a notebook; a function is told every step instead, and cancels the
    merge by returning False.
    """
    with listening(progress) as told:
        options = MergeOptions.check(
            strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
            schema_mode, dedup_order_by, told,
        )  # fmt: skip
        with _running("merge", options, engine, data, path, filesystem, storage_options) as run:
            result = _retrying(run, lock_timeout)
        run.tell_committed()
    return result


def plan_merge(
    data: Any,
    path: str,
    strategy: str,
    key_columns: Sequence[str],
    partition_columns: Sequence[str] | None = None,
    filesystem: Any = None,
    compression: str | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    row_group_size: int | None = None,
    *,
    partition_by: Sequence[str] | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,  # noqa: ARG001  (a dry run waits for nobody)
) -> MergePlan:
    """What `merge` with the same arguments would do; the same checks, and nothing is written."""
    with listening(progress) as told:
        options = MergeOptions.check(
            strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
            schema_mode, dedup_order_by, told,
        )  # fmt: skip
        with _running("plan", options, engine, data, path, filesystem, storage_options) as run:
            return read_consistently(run.location, run.dry_run)


@contextlib.contextmanager
def _running(
    verb: str,
    options: MergeOptions,
    engine: str | Engine,
    data: Any,
    path: str,
    filesystem: Any,
    storage_options: Mapping[str, Any] | None,
) -> Iterator[MergeRun]:
    """A merge over these rows and this dataset while the block runs; what goes wrong is told as the verb's."""
    location = locate_dataset(path, filesystem, storage_options)
    with (
        failing_as(verb, options.strategy.name, options.key_columns),
        contextlib.closing(MergeRun(options, get_engine(engine, data), location, data, storage_options)) as run,
    ):
        yield run


def _retrying(run: MergeRun, lock_timeout: float) -> MergeResult:
    """Where writers cannot wait for each other, whoever was second plans again on what is there now."""
    attempt = 0
    while True:
        try:
            with IncrementalFileManager(lock_timeout=lock_timeout) as files:
                files.open(run.location)
                return run.execute(files)
        except ConcurrentModificationError:
            attempt += 1
            if run.location.store.is_local or attempt == _ATTEMPTS_ON_CONFLICT:
                raise
            time.sleep(0.05 * 2**attempt * (1 + np.random.default_rng().random()))


class MergeRun:
    """One merge on its way. The source is taken in once, also when the plan is made again."""

    def __init__(
        self,
        options: MergeOptions,
        engine: Engine,
        location: Location,
        data: Any,
        storage_options: Mapping[str, Any] | None = None,
        *,
        cache: Callable[[Location], FooterCache | None] = footer_cache,
    ) -> None:
        self.options, self.location = options, location
        self._report = Reporter(options.progress)
        engine = engine.working_at(location, options.strategy.name)
        self.engine = engine if options.progress is None else engine.watched(self._report.tasks)
        self._cache_of = cache
        self._data = data
        self._storage_options = storage_options
        self._source: Any = None
        self._conformer: Any = None

    def close(self) -> None:
        if self._source is not None:
            self._source.close()

    def tell_committed(self) -> None:
        self._report.committed()

    # ------------------------------------------------------------------------------------------------- the two ways
    def execute(self, files: Transaction) -> MergeResult:
        decisions = self._plan(files.snapshot())
        rewritten, appended = self._stage(decisions, files)
        verify_staged(self.location, [each.written for each in rewritten] + [written for _, written in appended])
        changed = [each for each in rewritten if each.changed]
        moved = [path for each in changed if (path := each.decision.footer.file.path) != each.slot.path]
        puts = [each.slot for each in changed] + [slot for slot, _ in appended]
        removes = [*decisions.removed, *moved]
        if puts or removes:
            self._report("commit", 0, 1)
            files.commit(puts, removes)
        return result_of(decisions, self.options.strategy, self._source.num_given, rewritten, appended)

    def dry_run(self, files: Sequence[FileStat]) -> MergePlan:
        return self._planned(*self._tried(files))

    def dry_run_with_changes(self, files: Sequence[FileStat], most: int) -> tuple[MergePlan, Changes]:
        """The same with some of the rows that would change, so many of each kind at most."""
        decisions, tried = self._tried(files)
        changes = some_changes(decisions, tried, self._source, self.engine, most)
        return self._planned(decisions, tried), changes

    def _tried(self, files: Sequence[FileStat]) -> tuple[Decisions, list[Rewritten]]:
        decisions = self._plan(files)
        return decisions, self._stage(decisions, None)[0]

    def _planned(self, decisions: Decisions, tried: Sequence[Rewritten]) -> MergePlan:
        return plan_of(decisions, self.options, self._source.num_given, tried)

    # ----------------------------------------------------------------------------------------------------- planning
    def _plan(self, files: Sequence[FileStat]) -> Decisions:
        options = self.options
        cache = self._cache_of(self.location)  # now: the sidecar that holds it may have come with the transaction
        self.target = TargetState.read(
            self.location, files, options.key_columns, options.partition_columns, cache, self.engine.footers
        )
        self._load()
        decisions = decide(self.target, self._source, options, self.engine, self._report)
        self._schemas = [self._schema_for(decision) for decision in decisions.touched]
        return decisions

    def _load(self) -> None:
        if self._source is not None:
            if not self._conform_to(self._conformer.source).schema.equals(self._conformer.schema):
                raise ConcurrentModificationError("The schema of the dataset changed while it was being merged into.")
            return
        opened = self.engine.open(self._data, self.target.schema, self._storage_options)
        self._conformer = self._conform_to(opened.schema)
        require_columns(self.options.dedup_order_by, self._conformer.schema, "the source", "dedup_order_by column")
        self._source = self.engine.load(opened, self._conformer, self.options.key_columns)
        self._data = None
        self._check_keys()

    def _conform_to(self, source: pa.Schema) -> Conformer:
        target, options = self.target, self.options
        return Conformer(source, target.schema, options.key_columns, target.partition_columns, options.schema_mode)

    def _check_keys(self) -> None:
        reject_null_keys(self._source.null_keys, self._source.num_given)
        if self.options.strategy.reduces_source:
            self._source.reduce(self.options.dedup_order_by)
        else:
            reject_duplicates(self._source.repeated_keys())

    def _schema_for(self, decision: Decision) -> pa.Schema | None:
        """None while a file can keep its own schema: it has the same columns, and its types hold the new values."""
        schema, own = self._conformer.file_schema, decision.own_schema
        if set(own.names) != set(schema.names):
            return schema
        narrower = [
            f for f in own if not f.type.equals(schema.field(f.name).type) or f.nullable < schema.field(f.name).nullable
        ]
        if not narrower or not decision.matched:
            return None
        try:
            matched = np.concatenate([edit.sources for edit in decision.edits])
            rows = self._source.take(matched, [field.name for field in narrower])
            for field in narrower:
                fit_field(rows.column(field.name), field)
        except SchemaMismatchError as error:
            if self.options.schema_mode == "evolve":
                return schema
            raise SchemaMismatchError(
                f"{error.message} The file is {self.location.shown(decision.footer.file.path)!r}.",
                hint='schema_mode="evolve" rewrites the file in the wider type that other files have.',
            ) from error
        return None

    def _equal_columns(self, decision: Decision) -> tuple[str, ...]:
        """Keys that were found are the same, to the bit unless they are floats: zero has two signs."""
        own, schema = decision.own_schema, self._source.schema
        types = {name: schema.field(name).type for name in self.options.key_columns if name in own.names}
        exact = (n for n, type_ in types.items() if not pa.types.is_floating(canonical_type(type_)))
        return tuple(name for name in exact if own.field(name).type.equals(types[name]))

    # ------------------------------------------------------------------------------------------------------ staging
    def _stage(
        self, decisions: Decisions, files: Transaction | None
    ) -> tuple[list[Rewritten], list[tuple[Slot, Written]]]:
        """Without a transaction a dry run: what would differ is found out, nothing is written."""
        touched = decisions.touched
        self._report("rewrite", 0, len(touched))
        paths = [decision.footer.file.path for decision in touched]
        slots = [Slot("", path) if files is None else files.rewriting(path) for path in paths]
        edits = [
            FileEdit(path, slot.stage, decision.edits, schema, self._equal_columns(decision))
            for path, slot, decision, schema in zip(paths, slots, touched, self._schemas, strict=True)
        ]
        appends = [] if files is None else self._appends(decisions, files)
        outcomes = self.engine.stage(
            self.location, self._source, edits, [append for _, append in appends], dry_run=files is None
        )
        with contextlib.closing(outcomes):
            told = self._told("rewrite", len(edits), outcomes)
            rewritten = [Rewritten(*each) for each in zip(touched, slots, told, strict=True)]
            if files is not None:
                self._report("append", 0, len(appends))
            added = [slot for slot, _ in appends]
            return rewritten, list(zip(added, self._told("append", len(added), outcomes), strict=True))

    def _told(self, phase: str, count: int, outcomes: Iterator[Written]) -> Iterator[Written]:
        """The next so many outcomes, each reported."""
        for done, written in enumerate(itertools.islice(outcomes, count), 1):
            self._report(phase, done, count)
            yield written

    def _appends(self, decisions: Decisions, files: Transaction) -> list[tuple[Slot, Append]]:
        options = self.options
        return plan_appends(
            decisions.new_rows,
            decisions.partitions,
            self._conformer.file_schema,
            new_file_settings(self.location, self.target, options.compression, options.row_group_size),
            options.max_rows_per_file,
            files,
        )
