"""Read text files on threads of this machine: all files become one stream of rows with one schema.

A type can widen, and a JSON field can appear, in the last record of the last file. So every split is parsed before the
first row is returned. Parsed rows that exceed `KEPT_BYTES` wait in a temporary directory.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.absence import absence_column, absent_path
from inlay.engines.threads import bounded_map
from inlay.errors import (
    BadRowsError,
    InvalidArgumentError,
    SchemaMismatchError,
    UnreadableSourceError,
    UnreadableUploadError,
)
from inlay.pyarrow_features import byte_size
from inlay.schema import Path, null_column
from inlay.storage import LocalStore, Location
from inlay.text.columns import plan_columns, widened
from inlay.text.decode import RawFile, StorePath
from inlay.text.inference import Kind, join
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import MAX_BAD_CELLS, BadCell, Column, Survey, schema_of
from inlay.text.records import Split
from inlay.text.survey import survey_text

__all__ = ["TextFile", "open_text"]

SPLIT_BYTES = 8 << 20
KEPT_BYTES = 64 << 20
_LIMITS = Limits.none()
_MAX_NAMED_CELLS = 5  # invalid cells in the text of an error


class TextFile(NamedTuple):
    """A text file, and the name by which the user knows it."""

    name: str
    raw: RawFile
    options: ReadOptions


@contextlib.contextmanager
def open_text(files: Sequence[TextFile], like: pa.Schema | None) -> Iterator[pa.RecordBatchReader]:
    """Yield the rows of text files. Columns get the types of `like`, or types that hold all their values.

    Raises:
        BadRowsError: Cells do not fit the types of `like`, or records are malformed.
        UnreadableSourceError: A file is not text of its format.
    """
    workers = len(os.sched_getaffinity(0))
    with (
        tempfile.TemporaryDirectory(prefix="inlay-text-") as directory,
        ThreadPoolExecutor(workers, "inlay-text") as pool,
    ):
        decoded = Location(LocalStore(), directory, directory)
        surveys = list(bounded_map(pool, workers, _Surveyor(decoded), list(enumerate(files))))
        rows = _TextRows(_SurveyedFile.of(files, surveys, like), directory, may_be_empty=like is not None)
        rows.parse(pool, workers)
        yield rows.reader()


@contextlib.contextmanager
def _naming(file: TextFile) -> Iterator[None]:
    """Name the file in errors of the text kernels."""
    try:
        yield
    except UnreadableUploadError as error:
        raise UnreadableSourceError(
            f"Cannot read the source {file.name!r}: {error.message}", hint=error.hint
        ) from error


@dataclass(frozen=True)
class _Surveyor:
    decoded: Location

    def __call__(self, numbered: tuple[int, TextFile]) -> Survey:
        number, file = numbered
        with _naming(file):
            return survey_text(file.raw, file.options, _LIMITS, SPLIT_BYTES, StorePath(self.decoded, str(number)))


# --------------------------------------------------------------------------------------------------------- columns
class _SurveyedFile(NamedTuple):
    """A file and its columns. Files share inferred columns; `fixed` columns may differ in their date format."""

    file: TextFile
    survey: Survey
    fixed: dict[str, Column]
    inferred: dict[str, Kind]

    @classmethod
    def of(cls, files: Sequence[TextFile], surveys: Sequence[Survey], like: pa.Schema | None) -> list[_SurveyedFile]:
        # The merge itself rejects NULLs: its errors tell keys from other columns.
        target = None if like is None else pa.schema([field.with_nullable(True) for field in like])
        found = []
        for file, survey in zip(files, surveys, strict=True):
            planned = _plan_columns(survey, target)
            is_json = survey.options.format == "json"
            fixed = {
                c.name: replace(c, is_expected=c.name not in survey.kinds, reports_absence=is_json)
                for c in planned
                if c.fixed
            }
            found.append(cls(file, survey, fixed, {c.name: c.kind for c in planned if not c.fixed}))
        return found

    def columns(self, shared: Sequence[Column]) -> list[Column]:
        """Return the columns to parse. Only a JSON file can have columns that its sample lacks."""
        known = {column.name: column for column in shared} | self.fixed
        names = self.survey.kinds if self.survey.options.format == "csv" else known
        return [known[name] for name in names]


def _plan_columns(survey: Survey, target: pa.Schema | None) -> list[Column]:
    try:
        return plan_columns(survey, {}, target)
    except InvalidArgumentError as error:
        hint = "Pass the rows as JSON, Parquet or a table, which can hold such values."
        raise SchemaMismatchError(error.message, hint=hint) from error


def _inferred_columns(files: Sequence[_SurveyedFile]) -> list[Column]:
    kinds: dict[str, Kind] = {}
    for file in files:
        for name, kind in file.inferred.items():
            kinds[name] = join(kinds[name], kind) if name in kinds else kind
    is_json = files[0].survey.options.format == "json"
    return [replace(Column.inferred(name, kind), reports_absence=is_json) for name, kind in kinds.items()]


# ------------------------------------------------------------------------------------------------------------ rows
class _Task(NamedTuple):
    file: int
    split: Split


@dataclass
class _Parsed:
    """The result of a task. `table` and `path` are None if a column needs a wider type."""

    table: pa.Table | None = None
    path: str | None = None
    rows: int = 0
    rejected: int = 0
    bad: list[BadCell] = field(default_factory=list)
    met: dict[str, Kind] = field(default_factory=dict)
    lacking: frozenset[Path] = frozenset()  # the fields that some of its records lack

    @property
    def is_blocked(self) -> bool:
        return self.table is None and self.path is None


class _TextRows:
    """The parsed rows of text files."""

    def __init__(self, files: Sequence[_SurveyedFile], directory: str, *, may_be_empty: bool) -> None:
        self._files, self._directory, self._may_be_empty = files, directory, may_be_empty
        self._tasks = [_Task(number, split) for number, file in enumerate(files) for split in file.survey.splits]
        self._parsed: dict[_Task, _Parsed] = {}
        self._shared = _inferred_columns(files)
        self._kept_bytes = 0

    def parse(self, pool: ThreadPoolExecutor, workers: int) -> None:
        """Parse all splits, and parse them again when a column needs a wider type."""
        waiting = self._tasks
        while waiting:
            for task, parsed in zip(waiting, bounded_map(pool, workers, self._parse, waiting), strict=True):
                self._parsed[task] = self._keep(task, parsed)
            known = [*{name: column for file in self._files for name, column in file.fixed.items()}.values()]
            done = list(self._parsed.values())
            wider = widened([*known, *self._shared], [p.met for p in done], [p.met for p in done if p.is_blocked])
            shared = wider[len(known) :]
            is_stale = schema_of(shared) != schema_of(self._shared)
            waiting = [task for task in self._tasks if is_stale or self._parsed[task].is_blocked]
            self._shared = shared
            if is_stale:
                self._parsed.clear()
                self._kept_bytes = 0
        self._check()

    def _parse(self, task: _Task) -> _Parsed:
        file = self._files[task.file]
        with _naming(file.file):
            parsed = file.survey.reader.parse(file.survey.content, file.columns(self._shared), task.split)
        if parsed.tables is None:
            return _Parsed(met=parsed.met)
        table = pa.concat_tables(parsed.tables)
        for path, lines in parsed.lacking.items():
            table = table.append_column(absence_column(*path), lines)
        bad = list(itertools.islice((cell for reject in parsed.rejects for cell in reject.cells), MAX_BAD_CELLS))
        return _Parsed(table, None, table.num_rows, len(parsed.rejects), bad, parsed.met, frozenset(parsed.lacking))

    def _keep(self, task: _Task, parsed: _Parsed) -> _Parsed:
        """Write the rows to disk if memory holds many rows already."""
        if parsed.table is None:
            return parsed
        self._kept_bytes += byte_size(parsed.table)
        if self._kept_bytes <= KEPT_BYTES:
            return parsed
        path = os.path.join(self._directory, f"{task.file}-{task.split.number}.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, parsed.table.schema) as writer:
            writer.write_table(parsed.table)
        return replace(parsed, table=None, path=path)

    def _check(self) -> None:
        invalid = [(task, self._parsed[task]) for task in self._tasks if self._parsed[task].rejected]
        if invalid:
            cells = [(self._files[task.file].file.name, cell) for task, parsed in invalid for cell in parsed.bad]
            raise _bad_rows(cells, sum(p.rejected for _, p in invalid), sum(p.rows for p in self._parsed.values()))
        is_empty = not any(parsed.rows for parsed in self._parsed.values())
        if is_empty and not (self._may_be_empty and len(self._schema())):
            names = ", ".join(repr(file.file.name) for file in self._files[:3])
            raise UnreadableSourceError(
                f"Cannot read the source {names}: it has no data rows, so the types of its columns are unknown.",
                hint="Check the file. To write a dataset without rows, pass an empty pyarrow table.",
                is_empty=True,
            )

    def _schema(self) -> pa.Schema:
        """Return the columns of all files, without the dataset's columns that no JSON record has."""
        met = {name for parsed in self._parsed.values() for name in parsed.met}
        fixed = {
            name: column
            for file in self._files
            for name, column in file.fixed.items()
            if not column.is_expected or name in met
        }
        found = {column.name: column for column in self._shared} | fixed
        first_seen = dict.fromkeys(name for file in self._files for name in file.survey.kinds)
        return schema_of([found[name] for name in dict.fromkeys([*first_seen, *found])])

    def _hidden_fields(self, names: Sequence[str]) -> list[pa.Field]:
        """Return the hidden columns of the dataset's fields that only some rows lack."""
        lacking = {path for parsed in self._parsed.values() for path in parsed.lacking}
        for file in self._files:
            lacking |= {(name,) for other in self._files for name in other.fixed if name not in file.fixed}
        order = {name: at for at, name in enumerate(names)}
        paths = sorted((path for path in lacking if path[0] in order), key=lambda path: (order[path[0]], path))
        return [pa.field(absence_column(*path), pa.string()) for path in paths]

    def reader(self) -> pa.RecordBatchReader:
        schema = self._schema()
        schema = pa.schema([*schema, *self._hidden_fields(schema.names)])
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for task in self._tasks:
            name = self._files[task.file].file.name
            yield from _with_all_columns(self._take(self._parsed.pop(task)), schema, name).to_batches()

    @staticmethod
    def _take(parsed: _Parsed) -> pa.Table:
        if parsed.path is None:
            return parsed.table
        with pa.OSFile(parsed.path) as file, pa.ipc.open_stream(file) as reader:
            table = reader.read_all()
        os.unlink(parsed.path)
        return table


def _with_all_columns(table: pa.Table, schema: pa.Schema, file: str) -> pa.Table:
    """Return the columns of a schema. Those that the file lacks are NULL."""
    names = set(table.column_names)
    columns = []
    for each in schema:
        path = absent_path(each.name)
        if path is not None:
            columns.append(_absences(table, path, file))
        else:
            columns.append(table.column(each.name) if each.name in names else null_column(len(table), each.type))
    return pa.table(columns, schema=schema)


def _absences(table: pa.Table, path: Path, file: str) -> pa.Array | pa.ChunkedArray:
    """Return the file and line of each row that lacks a field, and NULL for other rows."""
    if absence_column(*path) in table.column_names:
        lines = table.column(absence_column(*path)).cast(pa.string())
        return pc.binary_join_element_wise(f"{file!r}, line ", lines, "")
    is_present = path[0] in table.column_names or len(path) > 1
    return pa.nulls(len(table), pa.string()) if is_present else pa.repeat(repr(file), len(table))


def _bad_rows(cells: Sequence[tuple[str, BadCell]], rejected: int, rows: int) -> BadRowsError:
    named = "; ".join(_describe(name, cell) for name, cell in cells[:_MAX_NAMED_CELLS])
    more = f"; and {rejected - _MAX_NAMED_CELLS:,} more rows" if rejected > _MAX_NAMED_CELLS else ""
    return BadRowsError(
        f"{rejected:,} of {rows + rejected:,} source rows are invalid: {named}{more}.",
        errors=[{"file": name} | cell._asdict() for name, cell in cells[:MAX_BAD_CELLS]],
        rejected=rejected,
        hint="Correct the rows. If a cell stands for NULL, name its text in the read option null_values. If the file is"
        " read wrongly, set the read options delimiter, quote or encoding.",
    )


def _describe(name: str, cell: BadCell) -> str:
    column = "" if cell.column is None else f", column {cell.column!r}"
    value = "" if cell.column is None else f"{'NULL' if cell.value is None else repr(cell.value)} is "
    return f"{name!r}, line {cell.line}{column}: {value}{cell.reason}"
