"""Convert an upload to typed Parquet files with Spark jobs.

    survey   one task: decode the upload, detect its dialect and types, cut it into splits; parse a single split
    parse    one task per split: parse, type, write a part; repeated where a column needs a wider type
    join     one task per data file: copy the encoded row groups of its parts

A conversion writes only to its target directories. It removes its parts at the end, and all its files if it fails or
is canceled.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc

from inlay.constants import MAX_ROWS_PER_FILE, OnError
from inlay.engines.absence import absence_column
from inlay.engines.base import TaskProgress
from inlay.engines.spark.tasks import Kernel, TaskJobs
from inlay.errors import (
    BadRowsError,
    ConversionFailedError,
    InvalidArgumentError,
    UnreadableUploadError,
)
from inlay.incremental.conformer import Conformer
from inlay.parquet.writer import WriterSettings
from inlay.pipeline import parquet_files
from inlay.pipeline.mapping import ColumnMapping
from inlay.pipeline.parts import Joined, OutFile, Part, check_file, join_parts, plan_files, write_part
from inlay.pipeline.rejects import REJECT_SCHEMA, reject_tables
from inlay.schema import Path, nested_fields
from inlay.storage import LocalStore, Location, discard_tree
from inlay.text.columns import Override, join_kinds, no_column, plan_columns, widened
from inlay.text.decode import Content, InlineFile, RawFile, StorePath
from inlay.text.inference import Kind
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import (
    MAX_BAD_CELLS,
    BadCell,
    Column,
    Reader,
    Survey,
    schema_of,
)
from inlay.text.records import Split
from inlay.text.survey import survey_text

__all__ = [
    "NO_ROWS",
    "Conversion",
    "ConvertedFile",
    "Surveyor",
    "Totals",
    "convert",
    "lacks_rows",
    "run",
]


class Totals(NamedTuple):
    """Totals of a Spark job over its tasks, and the job group that names the job in Spark's event log."""

    job: str
    rows: int
    rejected: int


def run(
    spark: Any, name: str, kernel: Kernel, tasks: Sequence[Any], progress: TaskProgress | None = None
) -> tuple[list[Any], Totals]:
    """Run a kernel over tasks; return their results in order and the totals.

    Raises:
        InlayError: A task raised it.
    """
    job = f"inlay-{name}-{uuid.uuid4().hex}"
    jobs = TaskJobs(spark, ConversionFailedError, progress)
    results = jobs.run(kernel, tasks, tag=job, counted=("rows", "rejected"))
    return list(results), Totals(job, **results.totals)


@dataclass(frozen=True)
class Surveyor:
    """The kernel that surveys an upload: its dialect, its columns and its splits."""

    options: ReadOptions
    limits: Limits
    split_bytes: int
    decoded: StorePath | None  # where to store decoded text; None surveys only the beginning

    def __call__(self, raw: RawFile | InlineFile) -> Survey:
        survey = parquet_files.survey if self.options.format == "parquet" else survey_text
        return survey(raw, self.options, self.limits, self.split_bytes, self.decoded)


SPLIT_BYTES = 16 << 20
_KEPT_MEMORY = 64 << 20  # peak of a process that keeps its memory for the next split: the first use of memory is slow
NO_ROWS = "The file has no data rows."


class ConvertedFile(NamedTuple):
    """A data file; `path` is relative to the location."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Conversion:
    """The result of converting an upload."""

    files: list[ConvertedFile]
    schema: pa.Schema
    rows: int
    rejected: int
    reject_files: list[str]
    options: ReadOptions
    warnings: list[str] = field(default_factory=list)
    jobs: list[Totals] = field(default_factory=list)  # the Spark jobs of the conversion


def convert(
    spark: Any,
    raw: RawFile | InlineFile,
    options: ReadOptions,
    *,
    into: Location,
    directory: str,
    rejects_directory: str,
    overrides: Mapping[str, Override] | None = None,
    like: pa.Schema | None = None,
    mapping: ColumnMapping | None = None,
    conforms: bool = False,
    requires_fields: bool = False,
    marks_absence: bool = False,
    on_error: OnError = "fail",
    name: str = "data",
    settings: WriterSettings | None = None,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    progress: TaskProgress | None = None,
    limits: Limits | None = None,
    split_bytes: int = SPLIT_BYTES,
) -> Conversion:
    """Convert an upload to `directory/name.parquet`, or to numbered files if it has many rows.

    Columns get their names from `mapping`, and their types from `like`. If `conforms` is True, the files have exactly
    the columns of `like`, in its order, and a source with other columns is an error. If `requires_fields` is True, a
    JSON record that lacks a field of `like` is invalid; otherwise the field is NULL. If `marks_absence` is True,
    columns may be NULL whatever `like` says, and hidden columns tell which JSON records lack a field (see
    `engines.absence`).
    """
    if options.format == "parquet" and overrides:
        raise InvalidArgumentError("altering parquet schema is currently unsupported")
    if on_error not in get_args(OnError):
        raise InvalidArgumentError(f"on_error must be fail or quarantine, not {on_error!r}.")
    settings = settings or WriterSettings()
    settings = replace(settings, row_group_size=min(settings.row_group_size, max_rows_per_file))
    limits = limits or Limits()
    with _staging(into, directory, rejects_directory) as stage:
        surveyor = Surveyor(options, limits, split_bytes, StorePath(into, f"{stage}/decoded"))
        plan = _Plan(
            into,
            stage,
            settings,
            overrides or {},
            like,
            mapping or ColumnMapping(),
            conforms,
            requires_fields,
            marks_absence,
        )
        work = _Stages(spark, plan, limits, progress)
        survey, report = work.open(raw, surveyor)
        reports, columns = work.parse(survey, report)
        rejected = sum(report.rejected for report in reports)
        _check_expected(reports, columns)
        _check(reports, columns, rejected, on_error, survey)
        files = work.join([report.part for report in reports if report.part], directory, name, max_rows_per_file)
        reject_parts = [report.rejects for report in reports if report.rejects]
        rejects = work.join(reject_parts, rejects_directory, "rejects", max_rows_per_file) if reject_parts else []
        _make_durable(into, [directory, *([rejects_directory] if rejects else [])])
    return Conversion(
        files=[ConvertedFile(*file) for file in files],
        schema=plan.conformer(survey, columns).schema,
        rows=sum(file.rows for file in files),
        rejected=rejected,
        reject_files=[file.path for file in rejects],
        options=survey.options,
        warnings=survey.warnings + [column.warning for column in columns if column.warning],
        jobs=work.jobs,
    )


# --------------------------------------------------------------------------------------------------------- planning
def _check_expected(reports: Sequence[Report], columns: Sequence[Column]) -> None:
    """Reject an override for a field that no record has, unless there are no records."""
    present = {column.name for column in columns if not column.is_expected} | set(join_kinds([r.met for r in reports]))
    missing = [column.name for column in columns if column.name not in present]
    if missing and any(report.rows or report.rejected for report in reports):
        raise no_column(missing[0], [column.name for column in columns if column.name in present])


def _check(
    reports: Sequence[Report], columns: Sequence[Column], rejected: int, on_error: OnError, survey: Survey
) -> None:
    rows = sum(report.rows for report in reports)
    if rejected and on_error == "fail":
        bad = [cell for report in reports for cell in report.bad][:MAX_BAD_CELLS]
        first = bad[0]
        where = f"line {first.line}" + (f", column {first.column!r}" if first.column else "")
        raise BadRowsError(
            f"{rejected:,} of {rows + rejected:,} rows are invalid. The first is at {where}: {first.reason}.",
            errors=[cell._asdict() for cell in bad],
            rejected=rejected,
            hint="Correct the rows, change the column types, or load only the valid rows: set on_error to "
            "quarantine in a request, or pass --on-error quarantine to a command.",
        )
    if lacks_rows(rows, rejected, columns, survey):
        raise UnreadableUploadError(NO_ROWS, hint="Set a type for every column to create a dataset without rows.")


def lacks_rows(rows: int, rejected: int, columns: Sequence[Column], survey: Survey) -> bool:
    """Return True if a file has no rows, and neither the file nor overrides set all types."""
    is_typed = survey.schema is not None or (bool(columns) and all(column.fixed for column in columns))
    return not rows and not is_typed and not (rejected and columns)


# ----------------------------------------------------------------------------------------------------------- stages
@dataclass(frozen=True)
class Report:
    """The result of parsing a split: a part and rejects, or the kinds of values that need wider columns."""

    split: int
    rows: int = 0
    rejected: int = 0
    part: Part | None = None
    rejects: Part | None = None
    bad: list[BadCell] = field(default_factory=list)
    met: dict[str, Kind] = field(default_factory=dict)


@dataclass(frozen=True)
class _Plan:
    """The columns and files that the caller wants."""

    into: Location
    stage: str
    settings: WriterSettings
    overrides: Mapping[str, Override]
    like: pa.Schema | None
    mapping: ColumnMapping
    conforms: bool
    requires_fields: bool
    marks_absence: bool

    def columns(self, survey: Survey) -> list[Column]:
        """Return the columns to read, with their names in the file."""
        self.mapping.check(survey)
        like = None if self.like is None else self.mapping.in_file(self.like)
        columns = plan_columns(survey, self.overrides, like)
        if self.requires_fields and self.like is not None:
            required = self.mapping.required(self.like)
            columns = [replace(column, is_required=column.name in required) for column in columns]
        if self.marks_absence:
            marked = self.marked(survey)
            columns = [replace(c, nullable=True, reports_absence=(c.name,) in marked) for c in columns]
        return columns

    def marked(self, survey: Survey) -> list[Path]:
        """Return the fields of JSON records whose absence is marked, with the names of their columns in the file."""
        if not self.marks_absence or self.like is None or survey.options.format != "json":
            return []
        required = self.mapping.required(self.like)
        fields = [field for field in self.mapping.in_file(self.like) if field.name in required]
        return [path for field in fields for path in ((field.name,), *nested_fields(field.type, (field.name,)))]

    def conformer(self, survey: Survey, columns: Sequence[Column]) -> Conformer:
        """Return the function that casts parsed rows to the schema of the files."""
        schema = self.mapping.renamed(survey.schema or schema_of(columns))
        return Conformer(schema, self.like if self.conforms else None, ())

    def settings_for(self, survey: Survey) -> WriterSettings:
        if "use_dictionary" in self.settings.options:
            return self.settings
        return replace(self.settings, options=self.settings.options | {"use_dictionary": survey.repetitive or False})

    def parser(self, survey: Survey, columns: list[Column]) -> _Parser:
        conform, settings = self.conformer(survey, columns), self.settings_for(survey)
        return _Parser(
            survey.content, survey.reader, columns, self.mapping, self.marked(survey), conform, self.into, self.stage,
            settings,
        )  # fmt: skip


class _Opened(NamedTuple):
    """A survey, and the report of the only split of a small file."""

    survey: Survey
    report: Report | None = None

    @property
    def rows(self) -> int:
        return self.report.rows if self.report else 0

    @property
    def rejected(self) -> int:
        return self.report.rejected if self.report else 0


@dataclass(frozen=True)
class _Opener:
    """The kernel that surveys a file, and parses it if it is a single split: each job takes time."""

    surveyor: Surveyor
    plan: _Plan

    def __call__(self, raw: RawFile | InlineFile) -> _Opened:
        survey = self.surveyor(raw)
        if len(survey.splits) != 1:
            return _Opened(survey)
        return _Opened(survey, self.plan.parser(survey, self.plan.columns(survey))(survey.splits[0]))


class _Stages:
    """The stages of one conversion."""

    def __init__(self, spark: Any, plan: _Plan, limits: Limits, progress: TaskProgress | None) -> None:
        self._spark, self._plan, self._limits, self._progress = spark, plan, limits, progress
        self._into, self._stage, self._settings = plan.into, plan.stage, plan.settings
        self.jobs: list[Totals] = []

    def _run(self, name: str, kernel: Any, tasks: Sequence[Any]) -> list[Any]:
        results, totals = run(self._spark, name, kernel, tasks, self._progress)
        self.jobs.append(totals)
        reported = sum(getattr(result, "rows", 0) for result in results)
        if totals.rows != reported:
            raise ConversionFailedError(f"Spark counted {totals.rows:,} rows, but its tasks reported {reported:,}.")
        return results

    def open(self, raw: RawFile | InlineFile, surveyor: Surveyor) -> _Opened:
        opened: _Opened = self._run("survey", _Opener(surveyor, self._plan), [raw])[0]
        self._settings = self._plan.settings_for(opened.survey)
        return opened

    def parse(self, survey: Survey, report: Report | None) -> tuple[list[Report], list[Column]]:
        """Parse all splits, and parse them again when a column needs a wider type."""
        columns = self._plan.columns(survey)
        if not survey.splits:
            schema = self._plan.conformer(survey, columns).schema
            part = write_part(self._into, f"{self._stage}/part-0", (), schema, self._settings)
            return [Report(0, part=part)], columns
        reports: dict[int, Report] = {0: report} if report else {}
        waiting = [] if report else survey.splits
        while True:
            for found in self._run("parse", self._plan.parser(survey, columns), waiting) if waiting else ():
                reports[found.split] = found
            done = list(reports.values())
            wider = widened(columns, [r.met for r in done], [r.met for r in done if r.part is None])
            self._limits.check_count(sum(column.kind.leaves for column in wider))
            self._limits.check_names(column.name for column in wider)
            stale = schema_of(wider) != schema_of(columns)
            columns = wider
            waiting = [s for s in survey.splits if stale or reports[s.number].part is None]
            if not waiting:
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
    """The kernel that parses a split."""

    content: Content
    reader: Reader
    columns: list[Column]
    mapping: ColumnMapping
    marked: list[Path]
    conform: Conformer
    into: Location
    stage: str
    settings: WriterSettings

    def __call__(self, split: Split) -> Report:
        report = self._report(split)
        pool = pa.default_memory_pool()
        if pool.max_memory() > _KEPT_MEMORY:
            pool.release_unused()  # otherwise memory grows with the next split
        return report

    def _report(self, split: Split) -> Report:
        parsed = self.reader.parse(self.content, self.columns, split)
        if parsed.tables is None:
            return Report(split.number, met=parsed.met)
        part = self._write("part", split, self._tables(parsed.tables, parsed.lacking), self._schema, self.settings)
        rejects = None
        if parsed.rejects:
            settings = WriterSettings({"compression": "zstd"}, self.settings.row_group_size)
            rejects = self._write("rejects", split, reject_tables(parsed.rejects), REJECT_SCHEMA, settings)
        bad = list(itertools.islice((cell for reject in parsed.rejects for cell in reject.cells), MAX_BAD_CELLS))
        return Report(split.number, part.rows, len(parsed.rejects), part, rejects, bad, parsed.met)

    @property
    def _schema(self) -> pa.Schema:
        names = self.mapping.names
        hidden = [absence_column(str(names.get(name, name)), *inside) for name, *inside in self.marked]
        fields = [pa.field(name, pa.string()) for name in hidden]
        return pa.schema([*self.conform.schema, *fields], self.conform.schema.metadata)

    def _tables(self, tables: Iterable[pa.Table], lacking: Mapping[Path, pa.Array]) -> Iterator[pa.Table]:
        """Yield the rows of a split in the schema of the data files."""
        start = 0
        for table in tables:
            columns = self.conform(self.mapping(table)).columns
            for path in self.marked:
                lines = lacking.get(path, pa.nulls(start + len(table))).slice(start, len(table)).cast(pa.string())
                columns.append(pc.binary_join_element_wise("line ", lines, ""))
            start += len(table)
            yield pa.Table.from_arrays(columns, schema=self._schema)

    def _write(
        self, name: str, split: Split, tables: Iterable[pa.Table], schema: pa.Schema, settings: WriterSettings
    ) -> Part:
        return write_part(self.into, f"{self.stage}/{name}-{split.number:06}", tables, schema, settings)


@dataclass(frozen=True)
class _Joiner:
    """The kernel that joins parts into a data file."""

    into: Location
    base: str
    stage: str
    settings: WriterSettings

    def __call__(self, file: OutFile) -> Joined:
        return join_parts(self.into, file, self.base, self.stage, self.settings)


# --------------------------------------------------------------------------------------------------- staging and files
@contextlib.contextmanager
def _staging(into: Location, directory: str, rejects_directory: str) -> Iterator[str]:
    """Yield a directory for parts. Remove every file of a conversion that fails."""
    stage = f"{directory}/.convert-{uuid.uuid4().hex}"
    targets = [directory, rejects_directory]
    before = _files(into, targets)
    created = _create_directories(into, [*targets, stage])
    try:
        yield stage
    except BaseException:
        discard_tree(into.store, into.full(stage))
        for path in _files(into, targets) - before:
            into.store.remove(path)
        _remove_empty(created)
        raise
    discard_tree(into.store, into.full(stage))
    _remove_empty(created)


def _files(into: Location, directories: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for directory in directories:
        root = into.full(directory)
        found |= {f"{root}/{status.path}" for status in into.store.walk(root, lambda _: True)}
    return found


def _create_directories(into: Location, directories: Sequence[str]) -> list[str]:
    """Create directories durably; return the new ones."""
    if not isinstance(into.store, LocalStore):
        return []
    return [new for path in directories for new in into.store.make_durable_directories(into.full(path))]


def _remove_empty(directories: Sequence[str]) -> None:
    for path in reversed(directories):
        with contextlib.suppress(OSError):
            os.rmdir(path)


def _make_durable(into: Location, directories: Sequence[str]) -> None:
    """Sync the directories of new files, and their parents, which may be new too."""
    if isinstance(into.store, LocalStore):
        for directory in directories:
            steps = directory.split("/")
            for depth in range(len(steps) + 1):
                into.store.sync_directory(into.full("/".join(steps[:depth])) if depth else into.path)
