"""Preview a conversion on the first rows of an upload, with the code of the conversion."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from inlay.engines.base import TaskProgress
from inlay.errors import InvalidArgumentError, NotUtf8Error
from inlay.pipeline.conversion import NO_ROWS, Surveyor, lacks_rows, run
from inlay.text.columns import Override, plan_columns
from inlay.text.decode import InlineFile, RawFile, decode, guess_encoding
from inlay.text.delimited import read_record
from inlay.text.json_files import read_object
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import MAX_BAD_CELLS, BadCell, Column, Parsed, Reject, Survey, schema_of
from inlay.text.records import Split

__all__ = ["Preview", "PreviewColumn", "PreviewReject", "preview"]


_ROWS = 50
_SAMPLES = 5
_MAX_EXTRA_CELLS = 1_000  # a rejected row with more cells is shown without its cells


class PreviewColumn(NamedTuple):
    """A column as a conversion would load it, judged by the sampled rows."""

    name: str
    type: pa.DataType
    samples: list[Any]
    null_share: float
    bad_count: int  # invalid cells of the column in the sampled rows


class PreviewReject(NamedTuple):
    """A row that a conversion would reject, with its number among the first rows and its original cells."""

    row: int
    cells: list[str | None]  # in column order; the row may have fewer
    bad_cells: list[BadCell]


@dataclass(frozen=True)
class Preview:
    """The first rows of an upload, and the options and columns that the sampled rows imply."""

    format: str
    options: ReadOptions
    columns: list[PreviewColumn]
    rows: list[dict[str, Any]]
    bad_cells: list[BadCell]
    warnings: list[str]
    rejects: list[PreviewReject]  # rejects among the first rows
    rows_seen: int  # sampled rows, including rejects
    rows_rejected: int


def preview(
    spark: Any,
    raw: RawFile | InlineFile,
    options: ReadOptions | None = None,
    *,
    encoding: str | None = None,
    overrides: Mapping[str, Override] | None = None,
    like: pa.Schema | None = None,
    limits: Limits | None = None,
    progress: TaskProgress | None = None,
) -> Preview:
    """Preview an upload. Without options, read it with `encoding` and detect its format."""
    kernel = _Previewer(
        options,
        options.encoding if options else encoding,
        dict(overrides or {}),
        like,
        limits or Limits(),
    )
    found: Preview = run(spark, "preview", kernel, [raw], progress)[0][0]
    return found


@dataclass(frozen=True)
class _Previewer:
    options: ReadOptions | None
    encoding: str | None
    overrides: dict[str, Override]
    like: pa.Schema | None
    limits: Limits

    def __call__(self, raw: RawFile | InlineFile) -> Preview:
        try:
            return self._preview(raw, self.encoding, [])
        except NotUtf8Error as error:
            if self.encoding is not None:
                raise
            guess = guess_encoding(raw)
            warning = f"{error.message} The preview reads it as {guess}. To load it, pass this encoding."
            return self._preview(raw, guess, [warning])

    def _preview(self, raw: RawFile | InlineFile, encoding: str | None, warnings: list[str]) -> Preview:
        options = self.options or ReadOptions(_suggest_format(raw, self.limits, encoding))
        if options.format == "parquet" and self.overrides:
            raise InvalidArgumentError("altering parquet schema is currently unsupported")
        survey: Survey = Surveyor(replace(options, encoding=encoding), self.limits, 0, None)(raw)
        stored = survey.kinds if survey.schema is None else survey.schema.names
        like = [each for each in self.like or () if each.name in stored]  # a preview shows no fields that are missing
        columns = plan_columns(survey, self.overrides, pa.schema(like))
        parsed, columns = _parse(survey, columns)
        table = _first_rows(parsed, survey, columns)
        warnings = warnings + survey.warnings + [column.warning for column in columns if column.warning]
        if len(table) or parsed.rejects:
            missing = [column.name for column in columns if column.is_expected and column.name not in parsed.met]
            warnings += [f"The first rows have no field {name!r}, for which you set a type." for name in missing]
        if lacks_rows(len(table), len(parsed.rejects), columns, survey):
            warnings.append(f"{NO_ROWS} Set a type for every column to create a dataset without rows.")
        bad_cells = [cell for reject in parsed.rejects for cell in reject.cells]
        bad = Counter(cell.column for cell in bad_cells)
        return Preview(
            format=options.format,
            options=survey.options,
            columns=[_describe(field, table.column(at), bad[field.name]) for at, field in enumerate(table.schema)],
            rows=_as_rows(table.slice(0, _ROWS)),
            bad_cells=bad_cells[:MAX_BAD_CELLS],
            warnings=warnings,
            rejects=[_describe_reject(r, table.column_names, survey.options) for r in parsed.rejects if r.row < _ROWS],
            rows_seen=len(table) + len(parsed.rejects),
            rows_rejected=len(parsed.rejects),
        )


def _suggest_format(raw: RawFile | InlineFile, limits: Limits, encoding: str | None) -> str:
    content = decode(raw, limits, None, encoding)
    head = content.read(0, min(content.size, 1 << 16))
    if head.startswith(b"PAR1"):
        return "parquet"
    return "json" if head[content.skip :].lstrip()[:1] in (b"{", b"[") else "csv"


def _parse(survey: Survey, columns: list[Column]) -> tuple[Parsed, list[Column]]:
    """Parse the sample. Widen a column only if its values are of several types."""
    split = survey.sample or (survey.splits[0] if survey.splits else Split(0, 0, 0, 1))
    parsed = survey.reader.parse(survey.content, columns, split)
    while parsed.tables is None:
        columns = [c.widened(parsed.met[c.name]) if c.name in parsed.met and not c.fixed else c for c in columns]
        parsed = survey.reader.parse(survey.content, columns, split)
    return parsed, columns


def _first_rows(parsed: Parsed, survey: Survey, columns: list[Column]) -> pa.Table:
    schema = survey.schema or schema_of(columns)
    tables = list(itertools.islice(parsed.tables or (), 1))
    return tables[0] if tables else schema.empty_table()


def _describe_reject(reject: Reject, names: Sequence[str], options: ReadOptions) -> PreviewReject:
    if options.format == "json":
        cells = [read_object(reject.raw).get(name) for name in names]
    else:
        is_short = reject.raw.count(options.delimiter or ",") <= len(names) + _MAX_EXTRA_CELLS
        cells = read_record(reject.raw.encode(), options)[: len(names)] if is_short else []
    return PreviewReject(reject.row, cells, reject.cells)


def _as_rows(table: pa.Table) -> list[dict[str, Any]]:
    columns = [_as_python(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _as_python(values: pa.ChunkedArray) -> list[Any]:
    """Convert values to Python. Years outside Python's range become text."""
    try:
        found: list[Any] = values.to_pylist()
    except (OverflowError, ValueError):
        found = [str(scalar.cast(pa.string())) if scalar.is_valid else None for scalar in values]
    return found


def _describe(field: pa.Field, values: pa.ChunkedArray, bad_count: int) -> PreviewColumn:
    head = _as_python(values.slice(0, 1_000))
    samples: list[Any] = []
    for value in head:
        if value is not None and value not in samples and len(samples) < _SAMPLES:
            samples.append(value)
    return PreviewColumn(field.name, field.type, samples, values.null_count / max(len(values), 1), bad_count)
