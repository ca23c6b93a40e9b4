"""The one merge. Whatever the engine, the steps are these:

load source -> validate -> list files and footers -> prune -> match (key columns only) -> plan
-> stage (rewrite touched row groups, write inserts) -> verify -> commit -> MergeResult
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from inlay.engines import get_engine
from inlay.engines.base import Engine, FileEdit, FileMatch, GroupEdit, Target, Written
from inlay.errors import (
    ConcurrentModificationError,
    InvalidArgumentError,
    SchemaMismatchError,
)
from inlay.incremental.commit import (
    DEFAULT_LOCK_TIMEOUT,
    IncrementalFileManager,
    footer_cache,
    locate_dataset,
    read_consistently,
)
from inlay.incremental.failures import ProgressCallback, Reporter, failing_as
from inlay.incremental.plan import FilePlan, MergePlan
from inlay.incremental.prune import possible_files
from inlay.incremental.result import MergeFileMetadata, MergeResult, compute_merge_stats
from inlay.incremental.stage import new_file_settings, partition_chunks, plan_appends, verify_staged
from inlay.incremental.strategies import Strategy, get_strategy
from inlay.incremental.target import Partitions, TargetState
from inlay.incremental.validate import (
    Conformer,
    SchemaMode,
    check_schema_mode,
    fit_field,
    moved_error,
    normalize_keys,
    reject_duplicates,
    require_columns,
    validate_no_null_keys,
)
from inlay.parquet.footers import Footer
from inlay.parquet.writer import WriterSettings, check_choices
from inlay.storage import FileStat, Location

__all__ = ["merge", "plan_merge"]

_ATTEMPTS_ON_CONFLICT = 5


def merge(
    data: Any,
    path: str,
    strategy: str,
    key_columns: Sequence[str],
    partition_columns: Sequence[str] | None = None,
    filesystem: Any = None,
    compression: str | None = None,
    max_rows_per_file: int = 5_000_000,
    row_group_size: int | None = None,
    *,
    partition_by: Sequence[str] | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
    lock_timeout: float = DEFAULT_LOCK_TIMEOUT,
) -> MergeResult:
    """Merge rows into a Parquet dataset, rewriting only what must change.

    Strategies: `insert` adds new keys, `update` replaces existing ones, `upsert` does both, `full_merge` makes the
    dataset equal to the source, `deduplicate` reduces the source to one row per key and upserts it.

    `compression` and `row_group_size` concern new files; None means as the dataset's own files are, and for a new
    dataset snappy and 500,000 rows. The whole change becomes visible in one moment, or not at all.
    """
    options = _Options.check(
        strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
        schema_mode, dedup_order_by, progress,
    )  # fmt: skip
    location = locate_dataset(path, filesystem, storage_options)
    with failing_as("merge", options.strategy.name, options.key_columns):
        run = _Run(options, get_engine(engine, data), location, data, storage_options)
        with contextlib.closing(run):
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
    max_rows_per_file: int = 5_000_000,
    row_group_size: int | None = None,
    *,
    partition_by: Sequence[str] | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    schema_mode: SchemaMode = "strict",
    dedup_order_by: str | Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
    lock_timeout: float = DEFAULT_LOCK_TIMEOUT,  # noqa: ARG001  (a dry run waits for nobody)
) -> MergePlan:
    """What `merge` with the same arguments would do; the same checks, and nothing is written."""
    options = _Options.check(
        strategy, key_columns, partition_columns, partition_by, compression, max_rows_per_file, row_group_size,
        schema_mode, dedup_order_by, progress,
    )  # fmt: skip
    location = locate_dataset(path, filesystem, storage_options)
    with failing_as("plan", options.strategy.name, options.key_columns):
        run = _Run(options, get_engine(engine, data), location, data, storage_options)
        with contextlib.closing(run):
            return read_consistently(location, run.dry_run)


@dataclass(frozen=True, slots=True)
class _Options:
    strategy: Strategy
    key_columns: list[str]
    partition_columns: list[str] | None
    compression: str | None
    max_rows_per_file: int
    row_group_size: int | None
    schema_mode: SchemaMode
    dedup_order_by: list[str]
    progress: ProgressCallback | None

    @classmethod
    def check(
        cls,
        strategy: str,
        key_columns: Sequence[str],
        partition_columns: Sequence[str] | None,
        partition_by: Sequence[str] | None,
        compression: str | None,
        max_rows_per_file: int,
        row_group_size: int | None,
        schema_mode: SchemaMode,
        dedup_order_by: str | Sequence[str] | None,
        progress: ProgressCallback | None,
    ) -> _Options:
        if partition_by is not None and partition_columns is not None and list(partition_by) != list(partition_columns):
            raise InvalidArgumentError("partition_by is another name for partition_columns; give one of them.")
        given = partition_by if partition_columns is None else partition_columns
        chosen = get_strategy(strategy)
        if dedup_order_by is not None and not chosen.reduces_source:
            raise InvalidArgumentError('dedup_order_by goes with strategy="deduplicate".')
        check_schema_mode(schema_mode)
        check_choices(compression, row_group_size, max_rows_per_file)
        return cls(
            chosen,
            normalize_keys(key_columns),
            None if given is None else ([] if not given else normalize_keys(given, "partition column")),
            compression,
            max_rows_per_file,
            row_group_size,
            schema_mode,
            [] if dedup_order_by is None else normalize_keys(dedup_order_by, "dedup_order_by column"),
            progress,
        )


def _retrying(run: _Run, lock_timeout: float) -> MergeResult:
    """Where writers cannot wait for each other, whoever was second plans again on what is there now."""
    for attempt in range(_ATTEMPTS_ON_CONFLICT):
        try:
            with IncrementalFileManager(lock_timeout=lock_timeout) as files:
                files.open(run.location)
                return run.execute(files)
        except ConcurrentModificationError:
            if run.location.store.is_local or attempt + 1 == _ATTEMPTS_ON_CONFLICT:
                raise
            time.sleep(0.1 * 2**attempt * (1 + np.random.default_rng().random()))
    raise AssertionError("unreachable")


@dataclass(slots=True)
class _Decision:
    """What happens to one existing file."""

    footer: Footer
    reason: str
    match: FileMatch | None = None
    edits: list[GroupEdit] = field(default_factory=list)
    remove: bool = False

    @property
    def matched(self) -> int:
        return sum(len(group.positions) for group in self.match.groups) if self.match else 0


class _Run:
    """One merge on its way. The source is taken in once, also when the plan is made again."""

    def __init__(
        self,
        options: _Options,
        engine: Engine,
        location: Location,
        data: Any,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        self.options, self.location = options, location
        self.strategy = options.strategy
        self._report = Reporter(options.progress)
        engine = engine.merging(location, options.strategy.name)
        self.engine = engine if options.progress is None else engine.watched(self._report.tasks)
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
    def execute(self, files: IncrementalFileManager) -> MergeResult:
        self._plan(files.snapshot())
        self._stage_paths(files)
        rewritten = self._rewrite(dry_run=False)
        appended = self._append(files)
        puts = [(w.stage, files.replacement_name(d.footer.file.path)) for d, w in rewritten if w.stage is not None]
        puts += [(written.stage, path) for path, written in appended if written.stage is not None]
        self._verify([w for _, w in rewritten] + [w for _, w in appended])
        removed = [d.footer.file.path for d in self.decisions if d.remove]
        replaced = {d.footer.file.path: files.replacement_name(d.footer.file.path) for d, w in rewritten if w.stage}
        removed += [old for old, new in replaced.items() if old != new]
        if puts or removed:
            self._report("commit", 0, 1)
            files.commit(puts, removed)
        return self._result(rewritten, appended, replaced)

    def dry_run(self, files: Sequence[FileStat]) -> MergePlan:
        self._plan(files)
        return self._as_plan(self._rewrite(dry_run=True))

    # ----------------------------------------------------------------------------------------------------- planning
    def _plan(self, files: Sequence[FileStat]) -> None:
        options = self.options
        self.target = TargetState.read(
            self.location,
            files,
            options.key_columns,
            options.partition_columns,
            footer_cache(self.location),
            self.engine.footers,
        )
        self._load()
        self.partitions = Partitions.of(self._source, self.target.partition_columns, self.target.footers)
        self.numbers = self.partitions.numbers_of(self.target.footers)
        matches = self._match()
        # most files of a large dataset are neither read nor touched: nothing is decided about them
        looked_at = np.ones(len(self.numbers), np.bool_) if self.strategy.deletes else self.possible
        self.decisions = [self._decide(int(at), matches) for at in np.flatnonzero(looked_at)]
        found = np.zeros(self._source.num_rows, np.bool_)
        for match in matches.values():
            for group in match.groups:
                found[group.sources] = True
        self.new_rows = _numbers_where(~found) if self.strategy.inserts else np.empty(0, np.int64)
        self._keep_one_file()
        self._schemas = {id(d): self._schema_for(d) for d in self.decisions if d.edits}
        self._count()

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
        for bucket in self._source.buckets:
            validate_no_null_keys(bucket.read(self.options.key_columns), self.options.key_columns)
        if self.strategy.reduces_source:
            self._source.reduce(self.options.dedup_order_by)
            return
        for bucket, (_, index) in zip(self._source.buckets, self._source.indexes(), strict=True):
            reject_duplicates(bucket.read(self.options.key_columns), index)

    def _match(self) -> dict[str, FileMatch]:
        """Look for source keys where they can be: everywhere that partition and statistics do not exclude."""
        footers = self.target.footers
        self.possible = np.zeros(len(footers), np.bool_)
        for _, index in self._source.indexes():
            self.possible |= possible_files(footers, index, self.options.key_columns, self._source.schema)
        self.other_partition = self.numbers == -1
        if set(self.target.partition_columns) <= set(self.options.key_columns):
            self.possible &= ~self.other_partition
        targets = [
            Target(footers[at].file.path, self._constants(footers[at].file.path))
            for at in np.flatnonzero(self.possible)
        ]
        self._report("match", 0, len(targets))
        matches: dict[str, FileMatch] = {}
        for match in self.engine.match(self.location, self._source, self.options.key_columns, targets):
            matches[match.path] = match
            self._report("match", len(matches), len(targets))
        if self.strategy.replaces and self.target.partition_columns:
            self._reject_moves(matches)
        return matches

    def _constants(self, path: str) -> dict[str, pa.Scalar]:
        inside = self.target.schema.names if self.target.schema is not None else []
        keys = [name for name in self.options.key_columns if name not in inside]
        values = self.partitions.constants_of(path) if keys else {}
        return {name: values[name] for name in keys if name in values}

    def _reject_moves(self, matches: Mapping[str, FileMatch]) -> None:
        for at, footer in enumerate(self.target.footers):
            match = matches.get(footer.file.path)
            if match is None or not match.groups or self.numbers[at] == -2:
                continue
            rows = np.concatenate([group.sources for group in match.groups])
            moved = rows[self.partitions.rows[rows] != self.numbers[at]]
            if len(moved):
                row = self._source.take(moved[:1]).select(self.options.key_columns).to_pylist()[0]
                raise moved_error(
                    ", ".join(f"{name}={value!r}" for name, value in row.items()),
                    repr(self.location.shown(footer.file.path)),
                    self.partitions.shown(int(self.partitions.rows[moved[0]])),
                    len(moved),
                )

    def _decide(self, at: int, matches: Mapping[str, FileMatch]) -> _Decision:
        footer = self.target.footers[at]
        match = matches.get(footer.file.path)
        decision = _Decision(footer, self._reason(at, match), match)
        if self.strategy.deletes:
            decision.remove = footer.rows > 0 and decision.matched == 0
            if decision.remove:
                decision.reason = f"no source key: all {footer.rows:,} rows are deleted ({decision.reason})"
                return decision
        if self.strategy.replaces and match is not None and match.groups:
            decision.edits = self._edits(match)
        return decision

    def _edits(self, match: FileMatch) -> list[GroupEdit]:
        keep = not self.strategy.deletes
        edits = [GroupEdit(g.group, g.positions, g.sources, keep) for g in match.groups]
        if not keep:
            nothing = np.empty(0, np.int64)
            found = {g.group for g in match.groups}
            edits += [
                GroupEdit(group, nothing, nothing, keep)
                for group, rows in enumerate(match.group_rows)
                if group not in found and rows
            ]
        return sorted(edits, key=lambda edit: edit.group)

    def _reason(self, at: int, match: FileMatch | None) -> str:
        footer = self.target.footers[at]
        where = " (partition not in the source)" if self.other_partition[at] else ""
        if match is None:
            if footer.rows == 0:
                return "it has no rows"
            return f"statistics or partition exclude the source's keys{where}"
        if not match.groups:
            return f"no source key found in {match.scanned} of {len(match.group_rows)} row groups{where}"
        keys = sum(len(group.positions) for group in match.groups)
        return f"{keys:,} matching rows in {len(match.groups)} of {len(match.group_rows)} row groups"

    def _keep_one_file(self) -> None:
        """A dataset that loses all its rows keeps one empty file, so that its schema survives."""
        if not self.strategy.deletes or len(self.new_rows):
            return
        if all(decision.remove for decision in self.decisions) and self.decisions:
            first = self.decisions[0]
            nothing = np.empty(0, np.int64)
            first.remove = False
            first.edits = [GroupEdit(group, nothing, nothing, False) for group in range(first.footer.groups)]

    def _count(self) -> None:
        matched = sum(decision.matched for decision in self.decisions)
        self.updated = matched if self.strategy.replaces else 0
        self.inserted = len(self.new_rows)
        self.deleted = self.target.rows - matched if self.strategy.deletes else 0
        self.after = self.target.rows + self.inserted - self.deleted

    # ------------------------------------------------------------------------------------------------------ staging
    def _stage_paths(self, files: IncrementalFileManager) -> None:
        self._stages = {id(d): files.stage_path() for d in self.decisions if d.edits}

    def _rewrite(self, *, dry_run: bool) -> list[tuple[_Decision, Written]]:
        touched = [decision for decision in self.decisions if decision.edits]
        edits = [
            FileEdit(
                d.footer.file.path,
                "" if dry_run else self._stages[id(d)],
                d.edits,
                self._schemas[id(d)],
            )
            for d in touched
        ]
        results: list[tuple[_Decision, Written]] = []
        self._report("rewrite", 0, len(edits))
        for decision, written in zip(
            touched, self.engine.rewrite(self.location, self._source, edits, dry_run=dry_run), strict=True
        ):
            results.append((decision, written))
            self._report("rewrite", len(results), len(edits))
        return results

    def _schema_for(self, decision: _Decision) -> pa.Schema | None:
        """None while a file can keep its own schema: it has the same columns, and its types hold the new values."""
        schema, own = self._conformer.file_schema, decision.footer.schema
        if own is None or set(own.names) != set(schema.names):
            return schema
        narrower = [
            f for f in own if not f.type.equals(schema.field(f.name).type) or f.nullable < schema.field(f.name).nullable
        ]
        if not narrower or not decision.matched:
            return None
        rows = self._source.take(np.concatenate([edit.sources for edit in decision.edits]))
        try:
            for field_ in narrower:
                fit_field(rows.column(field_.name), field_)
        except SchemaMismatchError as error:
            if self.options.schema_mode == "evolve":
                return schema
            raise SchemaMismatchError(
                f"{error.message} The file is {self.location.shown(decision.footer.file.path)!r}.",
                hint='schema_mode="evolve" rewrites the file in the wider type that other files have.',
            ) from error
        return None

    def _append(self, files: IncrementalFileManager) -> list[tuple[str, Written]]:
        settings = self._settings()
        appends = plan_appends(
            self.new_rows,
            self.partitions,
            self._conformer.file_schema,
            settings,
            self.options.max_rows_per_file,
            files,
        )
        results: list[tuple[str, Written]] = []
        self._report("append", 0, len(appends))
        written = self.engine.append(self.location, self._source, [append for _, append in appends])
        for (path, _), outcome in zip(appends, written, strict=True):
            results.append((path, outcome))
            self._report("append", len(results), len(appends))
        return results

    def _settings(self) -> WriterSettings:
        return new_file_settings(self.location, self.target, self.options.compression, self.options.row_group_size)

    def _verify(self, written: Sequence[Written]) -> None:
        verify_staged(self.location, written)

    # ------------------------------------------------------------------------------------------------------ results
    def _result(
        self,
        rewritten: Sequence[tuple[_Decision, Written]],
        appended: Sequence[tuple[str, Written]],
        replaced: Mapping[str, str],
    ) -> MergeResult:
        outcomes = {id(decision): written for decision, written in rewritten if written.stage is not None}
        decided = {decision.footer.file.path: decision for decision in self.decisions}
        files = []
        for footer in self.target.footers:
            old, decision = footer.file, decided.get(footer.file.path)
            written = outcomes.get(id(decision))
            if decision is not None and decision.remove:
                entry = MergeFileMetadata(self.location.shown(old.path), 0, "removed", None)
            elif written is not None:
                shown = self.location.shown(replaced[old.path])
                entry = MergeFileMetadata(shown, written.rows, "rewritten", written.size)
            else:
                entry = MergeFileMetadata(self.location.shown(old.path), footer.rows, "preserved", old.size)
            files.append(entry)
        files += [MergeFileMetadata(self.location.shown(p), w.rows, "inserted", w.size) for p, w in appended]
        after = sum(file.row_count for file in files)
        stats = compute_merge_stats(
            strategy=self.strategy.name,
            target_before=self.target.rows,
            target_after=after,
            inserted_rows=self.inserted,
            updated_rows=self.updated,
            deleted_rows=self.deleted,
        )
        everything = [*outcomes.values(), *(written for _, written in appended)]
        return MergeResult.of(
            files,
            strategy=self.strategy.name,
            source_count=self._source.num_given,
            target_count_before=self.target.rows,
            target_count_after=stats.total,
            inserted=stats.inserted,
            updated=stats.updated,
            deleted=stats.deleted,
            unchanged=sum(written.unchanged for _, written in rewritten),
            bytes_written=sum(written.size for written in everything),
            bytes_copied=sum(written.bytes_copied for written in everything),
        )

    def _as_plan(self, rewritten: Sequence[tuple[_Decision, Written]]) -> MergePlan:
        changed = {id(decision): written for decision, written in rewritten if written.stage is not None}
        decided = {decision.footer.file.path: decision for decision in self.decisions}
        files = []
        for at, footer in enumerate(self.target.footers):
            shown, decision = self.location.shown(footer.file.path), decided.get(footer.file.path)
            plan = FilePlan(shown, "preserved", "", footer.rows, footer.file.size)
            if decision is None:
                plan.reason = self._reason(at, None)
            else:
                self._explain(plan, decision, is_changed=id(decision) in changed)
            files.append(plan)
        touched = [file for file in files if file.operation in ("rewritten", "removed")]
        groups = [d for d in self.decisions if id(d) in changed]
        return MergePlan(
            affected_files=[file.path for file in touched],
            unaffected_files=[file.path for file in files if file.operation == "preserved"],
            new_files=self._planned_names(),
            affected_rows=sum(file.row_count for file in touched),
            strategy=self.strategy.name,
            source_count=self._source.num_given,
            target_count_before=self.target.rows,
            target_count_after=self.after,
            inserted=self.inserted,
            updated=self.updated,
            deleted=self.deleted,
            unchanged=sum(written.unchanged for _, written in rewritten),
            files=files,
            rows_to_rewrite=sum(_rows_touched(decision) for decision in groups),
            bytes_to_rewrite=sum(_bytes_touched(decision) for decision in groups),
        )

    @staticmethod
    def _explain(plan: FilePlan, decision: _Decision, *, is_changed: bool) -> None:
        plan.operation = "removed" if decision.remove else "rewritten" if is_changed else "preserved"
        equal = "; all of them are equal already" if decision.edits and not is_changed else ""
        plan.reason = decision.reason + equal
        plan.matched_rows = decision.matched
        plan.row_groups = tuple(group.group for group in decision.match.groups) if decision.match else ()

    def _planned_names(self) -> list[str]:
        """New files get their final names only when they are written; a plan says where and how many."""
        chunks = partition_chunks(self.new_rows, self.partitions, self.options.max_rows_per_file)
        names = [
            f"{self.partitions.directory(number)}/part-*-{at:05d}.parquet" for at, (number, _) in enumerate(chunks)
        ]
        return [self.location.shown(name.lstrip("/")) for name in names]


def _numbers_where(chosen: np.ndarray) -> np.ndarray:
    """`np.flatnonzero` in half the memory, where a source of many rows needs it most."""
    numbers = np.empty(np.count_nonzero(chosen), np.int32 if len(chosen) < 2**31 else np.int64)
    filled = 0
    for start in range(0, len(chosen), 1 << 20):
        here = np.flatnonzero(chosen[start : start + (1 << 20)]) + start
        numbers[filled : filled + len(here)] = here
        filled += len(here)
    return numbers


def _rows_touched(decision: _Decision) -> int:
    return sum(group.rows for group in decision.match.groups) if decision.match else decision.footer.rows


def _bytes_touched(decision: _Decision) -> int:
    return round(decision.footer.file.size * _rows_touched(decision) / max(decision.footer.rows, 1))
