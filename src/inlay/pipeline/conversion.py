"""An upload becomes typed Parquet files, as Spark jobs.

    survey   one task: decode, sniff, infer, cut into splits
    parse    a task for every split: parse, type, write a part, report; again where a column turned out to be wider
    join     a task for every data file: the parts' encoded row groups, copied

Nothing outside of the given directories is written; parts are gone in the end, and so is everything else if the
conversion fails or is cancelled.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias, get_args

import pyarrow as pa

from inlay.choices import OnError
from inlay.defaults import MAX_ROWS_PER_FILE
from inlay.engines.base import Watch
from inlay.errors import (
    BadRowsError,
    ConversionFailedError,
    InvalidArgumentError,
    UnreadableUploadError,
    did_you_mean,
)
from inlay.parquet.writer import WriterSettings
from inlay.pipeline.cells import check_readable
from inlay.pipeline.decode import Content, InlineFile, Place, RawFile
from inlay.pipeline.inference import order_of
from inlay.pipeline.jobs import Totals, run
from inlay.pipeline.kinds import NULL, TEXT, Kind, join
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.parts import Joined, OutFile, Part, check_file, join_parts, plan_files, write_part
from inlay.pipeline.plan import Column, Reader, Survey, schema_of
from inlay.pipeline.records import Split
from inlay.pipeline.rejects import MAX_SHOWN, REJECT_SCHEMA, BadCell, reject_tables
from inlay.pipeline.survey import Surveyor
from inlay.storage import LocalStore, Location, discard_tree

__all__ = ["NO_ROWS", "Chosen", "Conversion", "ConvertedFile", "convert", "lacks_rows", "plan_columns"]

SPLIT_BYTES = 16 << 20
Chosen: TypeAlias = pa.DataType | pa.Field  # a field says more: whether NULLs are allowed, how long a text may be
NO_ROWS = "The file has no data rows."


class ConvertedFile(NamedTuple):
    """A data file, relative to the location."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Conversion:
    """What became of an upload."""

    files: list[ConvertedFile]
    schema: pa.Schema
    rows: int
    rejected: int
    reject_files: list[str]
    options: ReadOptions
    warnings: list[str] = field(default_factory=list)
    jobs: list[Totals] = field(default_factory=list)  # that Spark ran for it, and the rows that it counted


def convert(
    spark: Any,
    raw: RawFile | InlineFile,
    options: ReadOptions,
    *,
    into: Location,
    directory: str,
    rejects_directory: str,
    overrides: Mapping[str, Chosen] | None = None,
    like: pa.Schema | None = None,
    on_error: OnError = "fail",
    name: str = "data",
    settings: WriterSettings | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    progress: Watch | None = None,
    limits: Limits | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> Conversion:
    """Convert an upload into `directory/name.parquet`, or numbered files if it has many rows."""
    if options.format == "parquet" and overrides:
        raise InvalidArgumentError("altering parquet schema is currently unsupported")
    if on_error not in get_args(OnError):
        raise InvalidArgumentError(f"on_error must be fail or quarantine, not {on_error!r}.")
    settings = settings or WriterSettings()
    settings = replace(settings, row_group_size=min(settings.row_group_size, max_rows_per_file))
    with _workplace(into, directory, rejects_directory) as stage:
        work = _Work(spark, into, stage, settings, progress)
        survey = work.survey(raw, Surveyor(options, limits or Limits(), split_bytes, Place(into, f"{stage}/decoded")))
        columns = plan_columns(survey, overrides or {}, like)
        reports, columns = work.parse(survey, columns)
        rejected = sum(report.rejected for report in reports)
        _check_expected(reports, columns)
        _check(reports, columns, rejected, on_error, survey)
        files = work.join([report.part for report in reports if report.part], directory, name, max_rows_per_file)
        reject_parts = [report.rejects for report in reports if report.rejects]
        rejects = work.join(reject_parts, rejects_directory, "rejects", max_rows_per_file) if reject_parts else []
        _make_durable(into, [directory, *([rejects_directory] if rejects else [])])
    return Conversion(
        files=[ConvertedFile(*file) for file in files],
        schema=survey.schema or schema_of(columns),
        rows=sum(file.rows for file in files),
        rejected=rejected,
        reject_files=[file.path for file in rejects],
        options=survey.options,
        warnings=survey.warnings + [column.warning for column in columns if column.warning],
        jobs=work.jobs,
    )


# --------------------------------------------------------------------------------------------------------- planning
def plan_columns(survey: Survey, overrides: Mapping[str, Chosen], like: pa.Schema | None) -> list[Column]:
    """The columns with the types that were found, or that somebody chose for them; of Parquet those of `like`."""
    if survey.schema is not None:
        return [Column.chosen(field, NULL) for field in like or () if field.name in survey.schema.names]
    kinds = survey.kinds
    if survey.options.format == "json":  # a field that no record has, or only a late one, is NULL and not missing
        wanted = [*(like.names if like is not None else []), *kinds, *overrides]
        kinds = {name: kinds.get(name, NULL) for name in wanted}
    if unknown := [name for name in overrides if name not in kinds]:
        raise _no_column(unknown[0], kinds)
    chosen = {field.name: field for field in like or ()} | {n: _as_field(n, type_) for n, type_ in overrides.items()}
    columns = []
    for name, kind in kinds.items():
        if name in chosen:
            if survey.options.format == "csv":
                check_readable(name, chosen[name].type)
            column = Column.chosen(chosen[name], _ordered(kind, survey.options.day_first))
            columns.append(replace(column, is_expected=name in overrides and name not in survey.kinds))
        else:
            columns.append(Column.inferred(name, kind))
    return columns


def _no_column(name: str, known: Iterable[str]) -> InvalidArgumentError:
    names = list(known)
    return InvalidArgumentError(
        f"There is no column {name!r} to give a type; the columns are: {', '.join(map(repr, names))}.",
        hint=did_you_mean(name, names),
    )


def _as_field(name: str, chosen: Chosen) -> pa.Field:
    return pa.field(name, chosen) if isinstance(chosen, pa.DataType) else chosen.with_name(name)


def _ordered(kind: Kind, day_first: bool | None) -> Kind:
    """The kind of a column, with the order of day and month that somebody said."""
    return kind if day_first is None else replace(kind, form=order_of(day_first))


def _widened(columns: Sequence[Column], reports: Sequence[Report]) -> list[Column]:
    """The columns as they must be to hold what was met, new ones at the end."""
    met = _together([report.met for report in reports])
    blocked = _together([report.met for report in reports if report.part is None])
    wider = []
    for column in columns:
        is_met = column.name in met and not column.fixed
        new = column.widened(met[column.name]) if is_met else column
        # Where a wider type was asked for and none is found, text holds everything.
        stuck = is_met and column.name in blocked and new.type.equals(column.type) and not column.is_open
        wider.append(Column.inferred(column.name, TEXT) if stuck else new)
    known = {column.name for column in columns}
    return wider + [Column.inferred(name, kind) for name, kind in met.items() if name not in known]


def _together(findings: Sequence[Mapping[str, Kind]]) -> dict[str, Kind]:
    met: dict[str, Kind] = {}
    for finding in findings:
        for name, kind in finding.items():
            met[name] = join(met[name], kind) if name in met else kind
    return met


def _check_expected(reports: Sequence[Report], columns: Sequence[Column]) -> None:
    """A type for a field that no record has is a mistake, unless there are no records."""
    there = {column.name for column in columns if not column.is_expected} | set(_together([r.met for r in reports]))
    missing = [column.name for column in columns if column.name not in there]
    if missing and any(report.rows or report.rejected for report in reports):
        raise _no_column(missing[0], [column.name for column in columns if column.name in there])


def _check(
    reports: Sequence[Report], columns: Sequence[Column], rejected: int, on_error: OnError, survey: Survey
) -> None:
    rows = sum(report.rows for report in reports)
    if rejected and on_error == "fail":
        bad = [cell for report in reports for cell in report.bad][:MAX_SHOWN]
        first = bad[0]
        where = f"line {first.line}" + (f", column {first.column!r}" if first.column else "")
        raise BadRowsError(
            f"{rejected:,} of {rows + rejected:,} rows do not fit; the first: {where}: {first.reason}.",
            errors=[cell._asdict() for cell in bad],
            rejected=rejected,
            hint="Correct them, choose other types, or set them aside and load the rest: on_error quarantine of a "
            "request, --on-error quarantine of a command.",
        )
    if lacks_rows(rows, rejected, columns, survey):
        raise UnreadableUploadError(NO_ROWS, hint="Without rows every column must be given a type.")


def lacks_rows(rows: int, rejected: int, columns: Sequence[Column], survey: Survey) -> bool:
    """Whether a file has neither rows nor, by its own or chosen types, a schema that does without them."""
    is_typed = survey.schema is not None or (bool(columns) and all(column.fixed for column in columns))
    return not rows and not is_typed and not (rejected and columns)


# ----------------------------------------------------------------------------------------------------------- stages
@dataclass(frozen=True)
class Report:
    """What a task made of a split: a part and rejects, or what columns must be able to hold first."""

    split: int
    rows: int = 0
    rejected: int = 0
    part: Part | None = None
    rejects: Part | None = None
    bad: list[BadCell] = field(default_factory=list)
    met: dict[str, Kind] = field(default_factory=dict)


class _Work:
    """The stages of one conversion."""

    def __init__(
        self, spark: Any, into: Location, stage: str, settings: WriterSettings, progress: Watch | None
    ) -> None:
        self._spark, self._into, self._stage, self._progress = spark, into, stage, progress
        self._settings = settings
        self.jobs: list[Totals] = []

    def _run(self, what: str, kernel: Any, tasks: Sequence[Any]) -> list[Any]:
        answers, totals = run(self._spark, what, kernel, tasks, self._progress)
        self.jobs.append(totals)
        counted = sum(getattr(answer, "rows", 0) for answer in answers)
        if totals.rows != counted:
            raise ConversionFailedError(f"Spark counted {totals.rows} rows, its tasks reported {counted}.")
        return answers

    def survey(self, raw: RawFile | InlineFile, surveyor: Surveyor) -> Survey:
        survey: Survey = self._run("survey", surveyor, [raw])[0]
        if "use_dictionary" not in self._settings.options:
            options = self._settings.options | {"use_dictionary": survey.repetitive or False}
            self._settings = replace(self._settings, options=options)
        return survey

    def parse(self, survey: Survey, columns: list[Column]) -> tuple[list[Report], list[Column]]:
        """Parse all splits; those that were read with types that do not last are read again."""
        reports: dict[int, Report] = {}
        waiting = survey.splits
        while waiting:
            schema = survey.schema or schema_of(columns)
            kernel = _Parser(survey.content, survey.reader, columns, schema, self._into, self._stage, self._settings)
            for report in self._run("parse", kernel, waiting):
                reports[report.split] = report
            wider = _widened(columns, list(reports.values()))
            stale = schema_of(wider) != schema_of(columns)
            waiting = [s for s in survey.splits if stale or reports[s.number].part is None]
            columns = wider
        if not survey.splits:
            schema = survey.schema or schema_of(columns)
            part = write_part(self._into, f"{self._stage}/part-0", (), schema, self._settings)
            return [Report(0, part=part)], columns
        return [reports[split.number] for split in survey.splits], columns

    def join(self, parts: Sequence[Part], directory: str, name: str, max_rows: int) -> list[Joined]:
        files = plan_files(parts, directory, name, max_rows, self._settings)
        if len(parts) == 1 and len(files) == 1 and all(len(run) == 1 for run in files[0].runs):
            self._into.store.move(self._into.full(parts[0].path), self._into.full(files[0].path))
            return [check_file(self._into, files[0].path, files[0].rows)]
        joined: list[Joined] = self._run("join", _Joiner(self._into, parts[0].path, self._stage, self._settings), files)
        return joined


@dataclass(frozen=True)
class _Parser:
    """The kernel of a split."""

    content: Content
    reader: Reader
    columns: list[Column]
    schema: pa.Schema
    into: Location
    stage: str
    settings: WriterSettings

    def __call__(self, split: Split) -> Report:
        report = self._report(split)
        pa.default_memory_pool().release_unused()  # or the next split's memory would come on top
        return report

    def _report(self, split: Split) -> Report:
        parsed = self.reader.parse(self.content, self.columns, split)
        if parsed.tables is None:
            return Report(split.number, met=parsed.met)
        part = self._write("part", split, parsed.tables, self.schema, self.settings)
        rejects = None
        if parsed.rejects:
            settings = WriterSettings({"compression": "zstd"}, self.settings.row_group_size)
            rejects = self._write("rejects", split, reject_tables(parsed.rejects), REJECT_SCHEMA, settings)
        bad = list(itertools.islice((cell for reject in parsed.rejects for cell in reject.cells), MAX_SHOWN))
        return Report(split.number, part.rows, len(parsed.rejects), part, rejects, bad, parsed.met)

    def _write(
        self, what: str, split: Split, tables: Iterable[pa.Table], schema: pa.Schema, settings: WriterSettings
    ) -> Part:
        return write_part(self.into, f"{self.stage}/{what}-{split.number:06}", tables, schema, settings)


@dataclass(frozen=True)
class _Joiner:
    """The kernel of a data file."""

    into: Location
    base: str
    stage: str
    settings: WriterSettings

    def __call__(self, file: OutFile) -> Joined:
        return join_parts(self.into, file, self.base, self.stage, self.settings)


# ----------------------------------------------------------------------------------------------------- work in place
@contextlib.contextmanager
def _workplace(into: Location, directory: str, rejects_directory: str) -> Iterator[str]:
    """A directory for parts. Whatever was made is gone if the conversion does not succeed."""
    stage = f"{directory}/.convert-{uuid.uuid4().hex}"
    places = [directory, rejects_directory]
    before = _files(into, places)
    made = _make_directories(into, [*places, stage])
    try:
        yield stage
    except BaseException:
        discard_tree(into.store, into.full(stage))
        for path in _files(into, places) - before:
            into.store.remove(path)
        _remove_empty(made)
        raise
    discard_tree(into.store, into.full(stage))
    _remove_empty(made)


def _files(into: Location, directories: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for directory in directories:
        root = into.full(directory)
        found |= {f"{root}/{status.path}" for status in into.store.walk(root, lambda _: True)}
    return found


def _make_directories(into: Location, directories: Sequence[str]) -> list[str]:
    """Those that were made, each with a name that survives a power cut."""
    if not isinstance(into.store, LocalStore):
        return []
    return [made for path in directories for made in into.store.make_durable_directories(into.full(path))]


def _remove_empty(directories: Sequence[str]) -> None:
    for path in reversed(directories):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _make_durable(into: Location, directories: Sequence[str]) -> None:
    """The names of new files and of directories that may be new."""
    if isinstance(into.store, LocalStore):
        for directory in directories:
            steps = directory.split("/")
            for depth in range(len(steps) + 1):
                into.store.sync_directory(into.full("/".join(steps[:depth])) if depth else into.path)
