"""Changes of a dataset's columns: rename, drop and widen."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from inlay.commit.sidecar import Change
from inlay.commit.snapshot import read_consistently
from inlay.commit.transaction import IncrementalFileManager, StagedFile, footer_cache, locate_dataset
from inlay.constants import LOCK_TIMEOUT
from inlay.engines import get_engine
from inlay.engines.base import Alteration, Engine, StageResult
from inlay.errors import InvalidArgumentError, NotFoundError, SchemaMismatchError, wrap_errors
from inlay.incremental.conformer import DECIMAL256_HINT
from inlay.incremental.display import ProgressCallback, Reporter, progress_callback
from inlay.incremental.plan import FilePlan
from inlay.incremental.result import MergeFileMetadata
from inlay.incremental.stage import verify_staged
from inlay.incremental.target import TargetState
from inlay.incremental.validate import normalize_keys, require_columns
from inlay.parquet.footers import Footer
from inlay.parquet.layout import summary_files
from inlay.parquet.reshape import Shape, alter_pandas_metadata
from inlay.schema import family, is_widening, needs_decimal256, without_schema_copies
from inlay.storage import FileStat, Filesystem, Location
from inlay.type_grammar import parse_type, type_name

__all__ = ["AlterPlan", "AlterResult", "alter", "plan_alter"]

_NULLABLE = "nullable"


@dataclass
class AlterResult:
    """The result of `alter`: what happened to each file.

    Attributes:
        row_count: The number of rows in the dataset.
        files: Each file of the dataset, in path order. The operation is `"rewritten"` or `"preserved"`.
        rewritten_files: The paths of rewritten files.
        preserved_files: The paths of unchanged files.
        bytes_written: The size of the rewritten files.
        bytes_copied: The number of bytes in `bytes_written` that were copied without decoding them.
        removed_summaries: The paths of removed `_metadata` and `_common_metadata` files, which other programs wrote and
            which no longer match the data files.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1], "price": [1.5]}, "prices").row_count
        1
        >>> result = inlay.alter("prices", rename={"price": "amount"})
        >>> len(result.rewritten_files), result.bytes_copied > 0
        (1, True)
    """

    row_count: int
    files: list[MergeFileMetadata] = field(default_factory=list)
    rewritten_files: list[str] = field(default_factory=list)
    preserved_files: list[str] = field(default_factory=list)
    bytes_written: int = 0
    bytes_copied: int = 0
    removed_summaries: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Convert the result to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name, with `files` as a list of dicts.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1], "note": ["x"]}, "notes").row_count
            1
            >>> inlay.alter("notes", drop="note").to_dict()["row_count"]
            1
        """
        return asdict(self)


@dataclass
class AlterPlan:
    """What `alter` would do with each file.

    Attributes:
        row_count: The number of rows in the dataset.
        files: The plan for each file, in path order.
        affected_files: The paths of the files to rewrite.
        unaffected_files: The paths of the files to keep unchanged.
        bytes_to_rewrite: The size of the column chunks to decode and encode.
        bytes_copied: The size of the column chunks to copy without decoding them.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1], "price": [1.5]}, "prices").row_count
        1
        >>> plan = inlay.plan_alter("prices", drop="price")
        >>> [(file.operation, file.reason) for file in plan.files]
        [('rewritten', "drops column 'price'")]
    """

    row_count: int
    files: list[FilePlan] = field(default_factory=list)
    affected_files: list[str] = field(default_factory=list)
    unaffected_files: list[str] = field(default_factory=list)
    bytes_to_rewrite: int = 0
    bytes_copied: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Convert the plan to a dict that `json.dumps` accepts.

        Returns:
            The attributes by name, with `files` as a list of dicts.

        Example:
            >>> import inlay
            >>> inlay.write_dataset({"id": [1], "note": ["x"]}, "notes").row_count
            1
            >>> inlay.plan_alter("notes", drop="note").to_dict()["row_count"]
            1
        """
        return asdict(self)


def alter(
    path: str | os.PathLike[str],
    *,
    rename: Mapping[str, str] | None = None,
    drop: str | Sequence[str] | None = None,
    widen: Mapping[str, str | pa.DataType | pa.Field] | None = None,
    filesystem: Filesystem | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,
) -> AlterResult:
    """Rename, drop and widen columns of a dataset, in all files and in one commit.

    Renaming and dropping decode nothing: inlay copies the column chunks and writes new footers. Widening decodes and
    encodes only the chunks of the widened columns. A change that could lose a value is refused before anything changes.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        rename: New names by column. Columns can swap their names.
        drop: The column, or the columns, to remove.
        widen: New types by column (by the old name of a renamed column): the name of a type such as `"bigint"` or
            `"decimal(12,4)"`, a pyarrow type, or `"nullable"` to allow NULL in a column that does not. A pyarrow field
            changes both. Allowed are wider integers, floats and decimals, timestamps and times of a finer unit, dates
            to timestamps without a time zone, and new nullable fields in structs.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        engine: `"auto"`, `"pyarrow"`, `"duckdb"` or `"spark"`. `"auto"` is Spark if `INLAY_SPARK_MASTER` is set, and
            pyarrow otherwise.
        storage_options: Arguments of the filesystem that the URL names.
        progress: True shows a progress bar. A callback receives a `Progress` for each file and cancels the change by
            returning False.
        lock_timeout: How many seconds to wait for another writer on a local disk.

    Returns:
        The operation on each file, and the number of bytes written and copied.

    Raises:
        InvalidArgumentError: An argument is invalid, names collide, or a column is a partition column in the paths.
        NotFoundError: There is no dataset at `path`.
        SchemaMismatchError: A column does not exist, or cannot be widened without losing values.
        LockTimeoutError: Another writer holds the lock for longer than `lock_timeout` seconds.
        ConcurrentModificationError: Another writer changed the dataset during the change.
        MergeCancelledError: `progress` returned False.
        DatasetMergeError: The change failed for another reason, such as a full disk.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2], "price": [1.5, 2.5], "note": ["x", "y"]}, "prices").row_count
        2
        >>> result = inlay.alter("prices", rename={"price": "amount"}, drop="note")
        >>> inlay.read_parquet("prices").to_pylist()
        [{'id': 1, 'amount': 1.5}, {'id': 2, 'amount': 2.5}]
    """
    changes = _Changes.check(rename, drop, widen)
    location = _locate(path, filesystem, storage_options)
    with (
        progress_callback(progress) as on_progress,
        wrap_errors("alter"),
        IncrementalFileManager(lock_timeout=lock_timeout) as files,
    ):
        report = Reporter(on_progress)
        runner = get_engine(engine).bind(location, "alter").with_progress(report.tasks)
        files.open(location)
        target = _read(location, files.snapshot(), runner)
        altered = changes.apply(target)
        slots = [files.stage_replacement(each.footer.file.path) for each in altered]
        written = _run(runner, location, altered, [slot.stage for slot in slots], report)
        verify_staged(location, written)
        summaries = _commit(files, altered, slots, written, report, target.rows)
        return _result(target, files, altered, slots, written, summaries)


def plan_alter(
    path: str | os.PathLike[str],
    *,
    rename: Mapping[str, str] | None = None,
    drop: str | Sequence[str] | None = None,
    widen: Mapping[str, str | pa.DataType | pa.Field] | None = None,
    filesystem: Filesystem | None = None,
    engine: str | Engine = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | bool | None = None,
    lock_timeout: float = LOCK_TIMEOUT,  # noqa: ARG001  (a plan takes no lock)
) -> AlterPlan:
    """Plan `alter` without writing anything.

    The plan decodes the columns to widen, and runs the same checks as `alter`.

    Args:
        path: The directory of the dataset. All arguments are those of `alter`: see `inlay.alter`.
        rename: New names by column.
        drop: The column, or the columns, to remove.
        widen: New types by column.
        filesystem: An fsspec or pyarrow filesystem that holds `path`.
        engine: `"auto"`, `"pyarrow"`, `"duckdb"` or `"spark"`.
        storage_options: Arguments of the filesystem that the URL names.
        progress: True for a progress bar, or a callback.
        lock_timeout: Ignored: a plan takes no lock.

    Returns:
        The operation on each file, and the number of bytes to rewrite and to copy.

    Raises:
        InlayError: `alter` would reject the same arguments with the same error.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2], "price": [1.5, 2.5]}, "prices").row_count
        2
        >>> inlay.plan_alter("prices", rename={"price": "amount"}).row_count
        2
    """
    changes = _Changes.check(rename, drop, widen)
    location = _locate(path, filesystem, storage_options)
    with progress_callback(progress) as on_progress, wrap_errors("alter"):
        report = Reporter(on_progress)
        runner = get_engine(engine).bind(location, "alter").with_progress(report.tasks)

        def plan(snapshot: Location, files: Sequence[FileStat]) -> AlterPlan:
            target = _read(snapshot, files, runner)
            altered = changes.apply(target)
            return _plan(target, altered, _run(runner, snapshot, altered, [""] * len(altered), report))

        return read_consistently(location, plan)


_NUMBERS = (
    *(pa.int16(), pa.int32(), pa.int64(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64()),
)
_WIDER = {
    "decimal": "a decimal type of up to 38 digits, with at least as many digits before and after the point",
    "date": "a timestamp type without a time zone",
    "naive timestamp": "a timestamp type of a finer unit without a time zone",
    "zoned timestamp": "a timestamp type of a finer unit with the same time zone",
    "time": "a time type of a finer unit",
    "duration": "a duration type of a finer unit",
    "struct": "a struct type with the same fields, or wider ones, and new nullable fields",
    "list": "a list type with wider values",
    "map": "a map type with the same keys and wider values",
}


def _hint(old: pa.DataType, new: pa.DataType) -> str:
    """Say which types are wider."""
    if needs_decimal256(old, new):
        return DECIMAL256_HINT
    wider = _WIDER.get(family(old)) or " or ".join(type_name(each) for each in _NUMBERS if _is_wider(old, each))
    return f"It can become {wider}." if wider else f"No type is wider than {type_name(old)}."


def _is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    return not new.equals(old) and is_widening(old, new)


# --------------------------------------------------------------------------------------------------------- changes
@dataclass(frozen=True)
class _Altered:
    """A file whose columns change."""

    footer: Footer
    schema: pa.Schema
    renamed: dict[str, str]
    reason: str


@dataclass(frozen=True)
class _Changes:
    """The checked arguments of `alter`."""

    renamed: dict[str, str]
    same: list[str]  # columns to rename to the names that they have
    dropped: list[str]
    widened: dict[str, str | pa.DataType | pa.Field]

    @classmethod
    def check(
        cls,
        rename: Mapping[str, str] | None,
        drop: str | Sequence[str] | None,
        widen: Mapping[str, str | pa.DataType | pa.Field] | None,
    ) -> _Changes:
        dropped = normalize_keys(drop, "column to drop") if drop else []
        renamed, widened = _mapping("rename", rename, "amount"), _mapping("widen", widen, "double")
        if not (renamed or dropped or widened):
            raise InvalidArgumentError("Pass at least one of rename, drop and widen.")
        for name in [*renamed, *renamed.values(), *widened]:
            if not name or not isinstance(name, str):
                raise InvalidArgumentError(f"A column name must be a text that is not empty, not {name!r}.")
        for name in dropped:
            if name in renamed or name in widened:
                other = "renamed" if name in renamed else "widened"
                raise InvalidArgumentError(f"Column {name!r} cannot be dropped and {other} at once.")
        changed = {old: new for old, new in renamed.items() if old != new}
        return cls(changed, [name for name in renamed if name not in changed], dropped, widened)

    def apply(self, target: TargetState) -> list[_Altered]:
        """Return the files that change. Reject changes that are impossible or lose values."""
        schema = target.schema or pa.schema([])
        require_columns(self.same, target.row_schema, "the dataset", "column")
        for name in [*self.renamed, *self.dropped, *self.widened]:
            if name in target.partition_columns:
                raise InvalidArgumentError(
                    f"Column {name!r} is a partition column: its name and values are in the paths of the files.",
                    hint="Write the rows to a new dataset with write_dataset(partition_columns=...) to change it.",
                )
            require_columns([name], schema, "the dataset", "column")
        if set(schema.names) <= {*self.dropped, *target.partition_columns}:
            raise InvalidArgumentError("A dataset needs at least one column, so not all columns can be dropped.")
        self._reject_collisions([*schema.names, *target.partition_columns])
        wider = {name: self._widened_field(schema.field(name), new) for name, new in self.widened.items()}
        altered = [self._altered(footer, wider) for footer in target.footers]
        return [each for each in altered if each is not None]

    def _reject_collisions(self, names: Sequence[str]) -> None:
        final = {name: self.renamed.get(name, name) for name in dict.fromkeys(names) if name not in self.dropped}
        by_case: dict[str, list[str]] = {}
        for old, new in final.items():
            by_case.setdefault(new.casefold(), []).append(old)
        for old, new in self.renamed.items():
            others = [name for name in by_case[new.casefold()] if name != old]
            if others:
                other = final[others[0]]
                same = "already exists" if other == new else f"differs from column {other!r} only by case"
                raise InvalidArgumentError(
                    f"Column {old!r} cannot be renamed to {new!r}, which {same}.", hint="Choose another name."
                )

    @staticmethod
    def _widened_field(old: pa.Field, new: str | pa.DataType | pa.Field) -> pa.Field:
        if isinstance(new, pa.Field):
            wide = old.with_type(new.type).with_nullable(new.nullable)
        elif isinstance(new, pa.DataType):
            wide = old.with_type(new)
        elif isinstance(new, str) and new.strip().lower() == _NULLABLE:
            wide = old.with_nullable(True)
        elif isinstance(new, str):
            wide = old.with_type(parse_type(new))
        else:
            raise InvalidArgumentError(
                f"The new type of column {old.name!r} must be the name of a type or a pyarrow type, not {new!r}."
            )
        if old.nullable and not wide.nullable:
            raise SchemaMismatchError(
                f"Column {old.name!r} allows NULL, so it cannot become a column that does not.",
                hint="Keep the column nullable.",
            )
        if not is_widening(old.type, wide.type):
            raise SchemaMismatchError(
                f"Column {old.name!r} cannot be widened from {old.type} to {wide.type}.",
                hint=_hint(old.type, wide.type),
            )
        return wide

    def _altered(self, footer: Footer, wider: Mapping[str, pa.Field]) -> _Altered | None:
        own = footer.schema
        if own is None:  # an unreadable file raised an error before
            return None
        fields, parts = [], []
        for old in own:
            wide = wider.get(old.name, old)
            changes = not wide.type.equals(old.type) or wide.nullable != old.nullable
            new = old.with_type(wide.type).with_nullable(wide.nullable) if changes else old
            if old.name in self.dropped:
                parts.append(f"drops column {old.name!r}")
                continue
            if changes:
                kind = new.type if not new.type.equals(old.type) else _NULLABLE
                parts.append(f"widens column {old.name!r} to {kind}")
            if old.name in self.renamed:
                parts.append(f"renames column {old.name!r} to {self.renamed[old.name]!r}")
            fields.append(new.with_name(self.renamed.get(old.name, old.name)))
        if not parts:
            return None
        if not fields:
            raise InvalidArgumentError(
                f"The file {footer.file.path!r} has no other columns, so not all of its columns can be dropped."
            )
        schema = pa.schema(fields)
        return _Altered(footer, schema.with_metadata(self._metadata(own, schema)), self.renamed, ", ".join(parts))

    def _metadata(self, own: pa.Schema, schema: pa.Schema) -> dict[bytes, bytes] | None:
        metadata = without_schema_copies(own.metadata)
        pandas = (own.metadata or {}).get(b"pandas")
        if pandas is None:
            return metadata
        return (metadata or {}) | {b"pandas": alter_pandas_metadata(pandas, Shape.of(own, schema, self.renamed))}


def _mapping(argument: str, value: Any, example: str) -> dict[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise InvalidArgumentError(
            f'{argument} must be a mapping such as {{"price": "{example}"}}, not {type(value).__name__}.'
        )
    return dict(value or {})


# ------------------------------------------------------------------------------------------------------------- run
def _locate(
    path: str | os.PathLike[str], filesystem: Filesystem | None, storage_options: Mapping[str, Any] | None
) -> Location:
    location = locate_dataset(path, filesystem, storage_options)
    if not location.store.is_directory(location.path):
        raise NotFoundError(f"There is no dataset at {location.uri!r}.")
    return location


def _read(location: Location, files: Sequence[FileStat], runner: Engine) -> TargetState:
    target = TargetState.read(location, files, [], None, footer_cache(location), runner.footers)
    if target.schema is None:
        raise NotFoundError(f"The dataset at {location.uri!r} has no data files, so it has no columns to change.")
    return target


def _run(
    runner: Engine, location: Location, altered: Sequence[_Altered], stages: Sequence[str], report: Reporter
) -> list[StageResult]:
    report("alter", 0, len(altered))
    jobs = [
        Alteration(each.footer.file.path, stage, each.schema, each.renamed, each.footer.file.size)
        for each, stage in zip(altered, stages, strict=True)
    ]
    written: list[StageResult] = []
    with contextlib.closing(runner.alter(location, jobs)) as outcomes:
        for outcome in outcomes:
            written.append(outcome)
            report("alter", len(written), len(jobs))
    return written


def _commit(
    files: IncrementalFileManager,
    altered: Sequence[_Altered],
    slots: Sequence[StagedFile],
    written: Sequence[StageResult],
    report: Reporter,
    rows: int,
) -> list[str]:
    """Commit the files. Return the summary files that were removed."""
    if not altered:
        return []
    moved = [old for each, slot in zip(altered, slots, strict=True) if (old := each.footer.file.path) != slot.path]
    puts = [slot._replace(content=outcome.content) for slot, outcome in zip(slots, written, strict=True)]
    summaries = summary_files(files.location)
    report("commit", 0, 1)
    files.commit(puts, [*moved, *summaries], Change("alter", rows=rows))
    report.committed()
    return summaries


def _result(
    target: TargetState,
    files: IncrementalFileManager,
    altered: Sequence[_Altered],
    slots: Sequence[StagedFile],
    written: Sequence[StageResult],
    summaries: Sequence[str],
) -> AlterResult:
    display = files.location.display
    done = {each.footer.file.path: (slot, out) for each, slot, out in zip(altered, slots, written, strict=True)}
    entries = []
    for file, rows in target.footers.files_and_rows():
        if file.path in done:
            slot, out = done[file.path]
            entries.append(MergeFileMetadata(display(slot.path), rows, "rewritten", out.size, out.bytes_copied))
        else:
            entries.append(MergeFileMetadata(display(file.path), rows, "preserved", file.size))
    entries.sort(key=lambda entry: entry.path)
    return AlterResult(
        target.rows,
        entries,
        [entry.path for entry in entries if entry.operation == "rewritten"],
        [entry.path for entry in entries if entry.operation == "preserved"],
        sum(out.size for out in written),
        sum(out.bytes_copied for out in written),
        [display(path) for path in summaries],
    )


def _plan(target: TargetState, altered: Sequence[_Altered], written: Sequence[StageResult]) -> AlterPlan:
    display = target.location.display
    done = {each.footer.file.path: (each, out) for each, out in zip(altered, written, strict=True)}
    entries = []
    for file, rows in target.footers.files_and_rows():
        if file.path in done:
            each, out = done[file.path]
            entry = FilePlan(display(file.path), "rewritten", each.reason, rows, file.size)
            entry.bytes_copied = out.bytes_copied
        else:
            entry = FilePlan(display(file.path), "preserved", "no column of the file changes", rows, file.size)
        entries.append(entry)
    rewritten = [entry for entry in entries if entry.operation == "rewritten"]
    return AlterPlan(
        target.rows,
        entries,
        [entry.path for entry in rewritten],
        [entry.path for entry in entries if entry.operation == "preserved"],
        sum(out.size for out in written),
        sum(entry.bytes_copied for entry in rewritten),
    )
