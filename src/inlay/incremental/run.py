"""One merge in progress: loads the source, plans, stages files and commits."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from inlay.arrays import to_numpy
from inlay.commit.sidecar import Change
from inlay.commit.transaction import (
    IncrementalFileManager,
    StagedFile,
    Transaction,
    footer_cache,
)
from inlay.engines.absence import absence_column
from inlay.engines.base import (
    NO_ROWS,
    Alteration,
    Append,
    Engine,
    FileEdit,
    RowNumbers,
    Source,
    StageResult,
)
from inlay.engines.keys import canonical_type
from inlay.engines.streams import PATH_TYPES
from inlay.errors import ConcurrentModificationError, SchemaMismatchError, UnreadableSourceError
from inlay.incremental.conditions import RowCondition, reject_rows_outside
from inlay.incremental.conformer import Conformer, KeyConformer, fit_field
from inlay.incremental.display import Reporter
from inlay.incremental.plan import Decision, Decisions, MergePlan, decide
from inlay.incremental.result import (
    Changes,
    FileRewrite,
    MergeResult,
    build_plan,
    build_replay_plan,
    build_result,
    record_result,
    replay_result,
    sample_changes,
)
from inlay.incremental.stage import new_file_settings, plan_appends, verify_staged
from inlay.incremental.target import TargetState
from inlay.incremental.validate import (
    MergeOptions,
    incomplete_error,
    reject_deletions,
    reject_duplicates,
    reject_null_keys,
    require_columns,
    row_text,
)
from inlay.parquet.footer_cache import FooterCache
from inlay.parquet.layout import parse_hive_partition_path, summary_files
from inlay.schema import without_schema_copies
from inlay.storage import FileStat, Location

__all__ = ["MergeRun", "execute_with_retries"]

_LONGEST_PAUSE = 2.0  # seconds between two attempts of a merge that conflicts with other writers


def execute_with_retries(run: MergeRun, lock_timeout: float, transaction: str | None = None) -> MergeResult:
    """Plan and commit, unless the transaction is committed. On an object store, plan again after a conflict."""
    deadline = time.monotonic() + lock_timeout
    longest = 0.1
    while True:
        try:
            with IncrementalFileManager(lock_timeout=lock_timeout) as files:
                files.open(run.location)
                outcome = None if transaction is None else files.find_outcome(transaction)
                return run.execute(files, transaction) if outcome is None else replay_result(outcome, run.location)
        except ConcurrentModificationError:
            if run.is_outdated or run.location.store.is_local or time.monotonic() >= deadline:
                raise
        # Random pauses let one writer through while the others wait.
        time.sleep(longest * np.random.default_rng().random())
        longest = min(2 * longest, _LONGEST_PAUSE)


class MergeRun:
    """One merge in progress. The run loads the source once, even if it plans several times."""

    _source: Source  # set by `_load`, like `_conformer`
    _conformer: Conformer
    _kept: Collection[str] = ()  # the columns that keep their values

    def __init__(
        self,
        options: MergeOptions,
        engine: Engine,
        location: Location,
        data: Any,
        storage_options: Mapping[str, Any] | None = None,
        read_options: Mapping[str, Any] | None = None,
        *,
        cache: Callable[[Location], FooterCache | None] = footer_cache,
    ) -> None:
        self.options, self.location = options, location
        self._report = Reporter(options.progress)
        engine = engine.bind(location, options.strategy.name)
        self.engine = engine if options.progress is None else engine.with_progress(self._report.tasks)
        self._cache_of = cache
        self._data = data
        self._storage_options, self._read_options = storage_options, read_options
        self._is_loaded = False
        self.is_outdated = False  # True if the source rows were converted to a schema that has changed

    def close(self) -> None:
        if self._is_loaded:
            self._source.close()

    def report_committed(self) -> None:
        self._report.committed()

    # ---------------------------------------------------------------------------------------- execution and dry run
    def execute(self, files: Transaction, token: str | None = None) -> MergeResult:
        decisions = self._plan(files.snapshot())
        rewrites, appended = self._stage(decisions, files)
        verify_staged(self.location, [each.written for each in rewrites] + [written for _, written in appended])
        changed = [each for each in rewrites if each.changed]
        moved = [path for each in changed if (path := each.decision.footer.file.path) != each.slot.path]
        staged = [(each.slot, each.written) for each in changed] + appended
        puts = [slot._replace(content=written.content) for slot, written in staged]
        removes = [*decisions.removed, *moved]
        summaries = summary_files(self.location) if puts or removes else []
        result = build_result(decisions, self.options.strategy, self._source.input_rows, rewrites, appended, summaries)
        if puts or removes or token is not None:
            self._report("commit", 0, 1)
            outcome = None if token is None else record_result(result, self.location)
            files.commit(puts, [*removes, *summaries], self._change(result), token=token, outcome=outcome)
        return result

    def _change(self, result: MergeResult) -> Change:
        strategy, keys = self.options.strategy.name, self.options.key_columns
        operation = "merge" if keys else strategy  # A deletion by condition has no keys.
        counts = (result.inserted, result.updated, result.deleted, result.target_count_after)
        return Change(operation, strategy, keys, *counts)

    def dry_run(self, location: Location, files: Sequence[FileStat]) -> MergePlan:
        self.location = location
        return self._build_plan(*self._stage_dry_run(files))

    def plan_replay(self, location: Location, files: Sequence[FileStat]) -> MergePlan:
        """Plan a merge whose transaction is committed already: it changes nothing."""
        target = TargetState.read(location, files, [], None, self._cache_of(location), self.engine.footers)
        return build_replay_plan(target, self.options)

    def dry_run_with_changes(self, files: Sequence[FileStat], limit: int) -> tuple[MergePlan, Changes]:
        """Plan the merge, and read up to `limit` inserted, replaced and deleted rows each."""
        decisions, rewrites = self._stage_dry_run(files)
        changes = sample_changes(decisions, rewrites, self._source, self._row_schema, self.engine, limit)
        return self._build_plan(decisions, rewrites), changes

    @property
    def _row_schema(self) -> pa.Schema:
        """The schema of the dataset's rows after the merge."""
        return self._conformer.stored_schema

    def _stage_dry_run(self, files: Sequence[FileStat]) -> tuple[Decisions, list[FileRewrite]]:
        decisions = self._plan(files)
        return decisions, self._stage(decisions, None)[0]

    def _build_plan(self, decisions: Decisions, rewrites: Sequence[FileRewrite]) -> MergePlan:
        return build_plan(decisions, self.options, self._source.input_rows, rewrites)

    # ----------------------------------------------------------------------------------------------------- planning
    def _plan(self, files: Sequence[FileStat]) -> Decisions:
        options = self.options
        cache = self._cache_of(self.location)  # the transaction may just have created the sidecar that holds the cache
        self.target = TargetState.read(
            self.location, files, options.key_columns, self._requested_partitions(files), cache, self.engine.footers
        )
        scope = None
        if options.scope is not None and files:
            scope = RowCondition.of(options.scope, self.target, self.target.row_schema)
            self.target = self.target.with_ranges(scope.bounded, cache, self.engine.footers)
        self._load(scope.columns if scope is not None else [*self._scope_without_files()])
        inside = None if scope is None else scope.select(self.target, self.engine, self._report)
        decisions = decide(self.target, self._source, options, self.engine, self._report, inside)
        reject_deletions(decisions.deleted, decisions.rows_in_scope, options.max_deleted)
        self._reject_incomplete_rows(decisions.new_rows)
        self._widen(decisions)
        self._schemas = [self._schema_for(decision) for decision in decisions.touched]
        return decisions

    def _scope_without_files(self) -> Mapping[str, list[Any]]:
        """Return the part of a scope whose columns a source can show although there is no dataset."""
        return self.options.scope if isinstance(self.options.scope, Mapping) else {}

    def _requested_partitions(self, files: Sequence[FileStat]) -> list[str] | None:
        """Return the partition columns to check. A strategy without new files can update a flat dataset."""
        is_flat = not any(parse_hive_partition_path(file.path) for file in files[:1])
        return None if is_flat and not self.options.strategy.inserts else self.options.partition_columns

    def _load(self, scope_columns: Sequence[str]) -> None:
        self._scope_columns = list(scope_columns)
        if self._is_loaded:
            if not self._conform_to(self._conformer.source).schema.equals(self._conformer.schema):
                self.is_outdated = True
                raise ConcurrentModificationError(
                    f"Another writer changed the schema of {self.location.uri!r} during the merge.",
                    hint="Run the merge again.",
                )
            return
        with self._open() as opened:
            self._conformer = self._conform_to(opened.schema)
            self._kept = self._conformer.kept
            options = self.options
            if not options.strategy.needs_only_keys and options.operation_column is None:
                required = [name for name in options.partition_columns or () if name not in self._conformer.kept]
                require_columns(required, opened.schema, "the source", "partition column")
            self._source = self.engine.load(opened, self._conformer, self.options.key_columns)
        self._is_loaded = True
        self._data = None
        self._reject_rows_outside()
        self._check_keys()

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        """Open the source. A source without rows that has no columns, such as `[]`, gets those of the dataset."""
        with contextlib.ExitStack() as stack:
            try:
                rows = self.engine.open(self._data, self._like(), self._storage_options, self._read_options)
                opened = stack.enter_context(rows)
            except UnreadableSourceError as error:
                # An empty file may be a failed export, which must not delete all rows.
                would_delete = self.options.strategy.deletes and isinstance(self._data, PATH_TYPES)
                if not error.is_empty or self.target.schema is None or would_delete:
                    raise
                opened = self._no_rows()
            yield opened

    def _no_rows(self) -> pa.Table:
        schema, options = self.target.row_schema, self.options
        passed = dict.fromkeys([*options.dedup_order_by, options.operation_column])
        added = [pa.field(name, pa.string()) for name in passed if name is not None and name not in schema.names]
        return pa.schema([*schema, *added]).empty_table()

    def _reject_rows_outside(self) -> None:
        """Reject source rows outside the scope, before rows with repeated keys are dropped."""
        options, only_keys, scope = self.options, self.options.strategy.needs_only_keys, self.options.scope
        may_lack = only_keys or options.missing_columns == "keep"
        if only_keys and not self.target.footers:
            names = self._source.schema.names
            scope = {name: values for name, values in self._scope_without_files().items() if name in names}
        if scope is None:
            return
        schema = self.target.row_schema if self.target.footers else self._conformer.stored_schema
        reject_rows_outside(self._source, scope, self.target, schema, options.key_columns, may_lack=may_lack)

    def _like(self) -> pa.Schema | None:
        """Return the types that the cells of text files get."""
        schema, options = self.target.schema, self.options
        if schema is not None and options.schema_mode == "evolve":
            schema = pa.schema([self._longest_integer(field) for field in schema], schema.metadata)
        if schema is None or not options.strategy.needs_only_keys:
            return schema
        needed = {*options.key_columns, options.newer_by, *self._scope_columns}
        return pa.schema([field for field in schema if field.name in needed])

    def _longest_integer(self, field: pa.Field) -> pa.Field:
        """Read integers of text files as int64, so that the values can widen the column."""
        is_short = pa.types.is_integer(field.type) and field.type.bit_width < 64
        is_stored = field.name not in self.target.partition_columns
        return field.with_type(pa.int64()) if is_short and is_stored else field

    def _conform_to(self, source: pa.Schema) -> Conformer:
        target, options = self.target, self.options
        only_keys = options.strategy.needs_only_keys
        needed = {*options.key_columns, *(name for name in self._scope_columns if name in source.names)}
        return (KeyConformer if only_keys else Conformer)(
            source,
            target.schema,
            options.key_columns,
            [name for name in target.partition_columns if not only_keys or name in needed],
            options.schema_mode,
            options.dedup_order_by,
            options.missing_columns,
            options.operation_column,
            options.newer_by,
            self._scope_columns,
        )

    def _check_keys(self) -> None:
        reject_null_keys(self._source.null_keys, self._source.input_rows)
        if self.options.strategy.reduces_source:
            self._source.reduce(self.options.reduce_by)
        else:
            reject_duplicates(self._source.repeated_keys())

    def _reject_incomplete_rows(self, new_rows: RowNumbers) -> None:
        """Reject new rows that lack a partition column, a column of the scope, or a column that is not nullable."""
        scoped, keys = [] if self.options.strategy.needs_only_keys else self._scope_columns, self.options.key_columns
        required = [(field.name, "column") for field in self.target.schema or () if not field.nullable]
        kinds = dict([*required, *((name, "scope column") for name in scoped)])
        for name, kind in (kinds | dict.fromkeys(self.target.partition_columns, "partition column")).items():
            rows = self._rows_without(name, new_rows)
            if len(rows):
                why = ", which is not nullable in the dataset" if kind == "column" else ""
                key = row_text(self._source.take(rows[:1], keys), keys, 0)
                raise incomplete_error(key, len(rows), f"{kind} {name!r}{why}")

    def _rows_without(self, name: str, rows: RowNumbers) -> RowNumbers:
        """Return the source rows, of `rows`, that lack a column."""
        if name in self._conformer.kept:
            return rows
        hidden = absence_column(name)
        if hidden not in self._source.schema.names or not len(rows):
            return NO_ROWS
        lacking: RowNumbers = rows[to_numpy(self._source.take(rows, [hidden]).column(hidden))]
        return lacking

    def _widen(self, decisions: Decisions) -> None:
        """Widen the columns that do not hold the values of the source, in all files."""
        if not self._conformer.wider:
            return
        used = np.concatenate([NO_ROWS, decisions.new_rows, *(e.sources for d in decisions.touched for e in d.edits)])
        fields = [field for field in self.target.schema or () if field.name in self._conformer.wider and len(used)]
        widened = frozenset(field.name for field in fields if not self._fits(used, [field]))
        self._conformer = replace(self._conformer, widened=widened)
        if widened:
            decisions.widen(self._narrower)

    def _fits(self, rows: RowNumbers, fields: Sequence[pa.Field]) -> bool:
        try:
            self._fit(rows, fields)
        except SchemaMismatchError:
            return False
        return True

    def _fit(self, rows: RowNumbers, fields: Sequence[pa.Field]) -> None:
        """Raise SchemaMismatchError if source rows don't fit the fields."""
        hidden = {field.name: absence_column(field.name) for field in fields}
        hidden = {name: column for name, column in hidden.items() if column in self._source.schema.names}
        table = self._source.take(rows, [*(field.name for field in fields), *hidden.values()])
        for field in fields:
            optional = [table.column(hidden[field.name])] if field.name in hidden else []
            fit_field(table.column(field.name), field, optional=optional)

    def _narrower(self, own: pa.Schema) -> list[str]:
        """Return the columns of a file that this merge widens."""
        schema = self._conformer.file_schema
        return [
            field.name
            for field in own
            if field.name in self._conformer.widened and not field.equals(schema.field(field.name))
        ]

    def _widened_schema(self, own: pa.Schema) -> pa.Schema:
        """Return the schema of a file after its columns are widened."""
        schema, names = self._conformer.file_schema, self._narrower(own)
        wide = {name: schema.field(name) for name in names}
        return pa.schema([wide.get(field.name, field) for field in own], without_schema_copies(own.metadata))

    def _schema_for(self, decision: Decision) -> pa.Schema | None:
        """Return the schema of a rewritten file, or None if the file can keep its own.

        A file keeps its schema if it only loses rows, or has the same columns and its types can hold the new values.
        """
        schema, own = self._conformer.file_schema, decision.own_schema
        if self._narrower(own):
            is_complete = not set(schema.names) - set(own.names) - self._conformer.kept
            return self._widened_schema(own) if is_complete else schema
        if not decision.updated and decision.deleted < decision.footer.rows:
            return None
        kept = self._conformer.kept
        if (set(own.names) ^ set(schema.names)) - set(self.target.partition_columns) - kept:
            return schema
        shared = [field for field in own if field.name in schema.names and field.name not in kept]
        narrower = [
            f
            for f in shared
            if not f.type.equals(schema.field(f.name).type) or f.nullable < schema.field(f.name).nullable
        ]
        if not narrower or not decision.updated:
            return None
        try:
            self._fit(np.concatenate([edit.sources for edit in decision.edits]), narrower)
        except SchemaMismatchError as error:
            if self.options.schema_mode == "evolve":
                return schema
            raise SchemaMismatchError(
                f"{error.message} The file is {self.location.display(decision.footer.file.path)!r}.",
                hint='Pass schema_mode="evolve" to rewrite the file with the wider type of the other files.',
            ) from error
        return None

    def _equal_columns(self, decision: Decision) -> tuple[str, ...]:
        """Return the key columns whose matching values are bit-equal in source and file.

        Float keys are left out: 0.0 and -0.0 are equal keys with different bits.
        """
        own, schema = decision.own_schema, self._source.schema
        types = {name: schema.field(name).type for name in self.options.key_columns if name in own.names}
        exact = (n for n, type_ in types.items() if not pa.types.is_floating(canonical_type(type_)))
        return tuple(name for name in exact if own.field(name).type.equals(types[name]))

    # ------------------------------------------------------------------------------------------------------ staging
    def _stage(
        self, decisions: Decisions, files: Transaction | None
    ) -> tuple[list[FileRewrite], list[tuple[StagedFile, StageResult]]]:
        """Stage rewritten and new files. Without a transaction, only compare rows."""
        touched, widened = decisions.touched, decisions.widened
        count = len(touched) + len(widened)
        self._report("rewrite", 0, count)
        paths = [decision.footer.file.path for decision in [*touched, *widened]]
        slots = [StagedFile("", path) if files is None else files.stage_replacement(path) for path in paths]
        edits = [
            FileEdit(
                path, slot.stage, decision.edits, schema, self._equal_columns(decision), decision.edited_bytes,
                schema is not None and bool(self._narrower(decision.own_schema)),
                2 * len(self._kept) > len(decision.own_schema),
            )
            for path, slot, decision, schema in zip(paths, slots, touched, self._schemas, strict=False)
        ]  # fmt: skip
        alterations = [
            Alteration(path, slot.stage, self._widened_schema(decision.own_schema), {}, decision.footer.file.size)
            for path, slot, decision in zip(paths[len(touched) :], slots[len(touched) :], widened, strict=True)
        ]
        appends = [] if files is None else self._appends(decisions, files)
        outcomes = self.engine.stage(
            self.location, self._source, edits, [append for _, append in appends], dry_run=files is None
        )
        with contextlib.closing(outcomes):
            written = list(self._report_each("rewrite", count, itertools.islice(outcomes, len(edits))))
            with contextlib.closing(self.engine.alter(self.location, alterations)) as altered:
                written += self._report_each("rewrite", count, altered, len(edits))
            rewrites = [FileRewrite(*each) for each in zip([*touched, *widened], slots, written, strict=True)]
            if files is not None:
                self._report("append", 0, len(appends))
            added = [slot for slot, _ in appends]
            return rewrites, list(zip(added, self._report_each("append", len(added), outcomes), strict=True))

    def _report_each(
        self, phase: str, count: int, outcomes: Iterator[StageResult], before: int = 0
    ) -> Iterator[StageResult]:
        for done, written in enumerate(itertools.islice(outcomes, count), before + 1):
            self._report(phase, done, count)
            yield written

    def _appends(self, decisions: Decisions, files: Transaction) -> list[tuple[StagedFile, Append]]:
        options = self.options
        return plan_appends(
            decisions.new_rows,
            decisions.partitions,
            self._conformer.file_schema,
            new_file_settings(self.location, self.target, options.compression, options.row_group_size),
            options.max_rows_per_file,
            files,
            self.target.new_file_extension,
        )
