"""Delimited text (CSV): the columns of a file, and splits of it as typed tables."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from inlay.errors import UnreadableUploadError
from inlay.pipeline.cells import Converted, convert
from inlay.pipeline.decode import Content, check_utf8
from inlay.pipeline.inference import infer, why_text
from inlay.pipeline.kinds import Kind, type_of
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.plan import SAMPLE_ROWS, Column, Parsed, Survey, read_sample, repetitive, schema_of
from inlay.pipeline.records import (
    Dialect,
    Records,
    Split,
    count_line_ends,
    ends_in_escape,
    find_records,
    make_splits,
    open_quote,
)
from inlay.pipeline.rejects import BadCell, Reject
from inlay.pipeline.sniff import NO_HEADER, column_names, sniff

__all__ = ["DelimitedText", "parse_cells", "survey"]

_BLANK = re.compile(rb"[\r\n]*")


# --------------------------------------------------------------------------------------------------------- survey
def survey(content: Content, given: ReadOptions, limits: Limits, split_bytes: int | None) -> Survey:
    """What a file holds, from its first rows; without `split_bytes` it is not cut."""
    sample, is_whole = read_sample(content, limits)
    options = sniff(sample, given, parse_cells).with_found(encoding=content.encoding)
    dialect = dialect_of(options)
    records = find_records(sample, dialect, 1)
    count = len(records.starts) - (0 if is_whole else 1)  # the last one may go on
    if count <= 0:
        raise UnreadableUploadError(_no_record(len(sample), is_whole=is_whole))
    if open_quote(sample[: int(records.ends[0])], dialect) is not None:
        raise UnreadableUploadError(f"Line {records.lines[0]}: a quote opens in the first record and is never closed.")
    first = read_record(sample[int(records.starts[0]) : int(records.ends[0])], options)
    names, warnings = column_names([cell if options.header and cell and cell.strip() else None for cell in first])
    if not options.header:
        warnings = [NO_HEADER] if given.header is None else []
    rows = _sample_rows(records, count, 1 if options.header else 0, len(sample))
    table = parse_cells(sample[rows.start : rows.end], options, len(names))
    reader = DelimitedText(options)
    kinds = reader.kinds(table, names)
    start = content.skip + rows.start
    return Survey(
        content=content,
        options=options,
        reader=reader,
        kinds=kinds,
        splits=make_splits(content, dialect, start, rows.line, split_bytes, limits) if split_bytes else [],
        repetitive=repetitive(table, names),
        warnings=warnings,
        sample=Split(0, start, content.skip + rows.end, rows.line),
    )


def _no_record(size: int, *, is_whole: bool) -> str:
    return "The file holds no records." if is_whole else f"The first record is larger than {size:,} bytes."


def _sample_rows(records: Records, count: int, header: int, size: int) -> Split:
    """The data rows of a sample, as a split of it."""
    if header == len(records.starts):
        return Split(0, size, size, int(records.lines[-1]) + 1)
    start, line = int(records.starts[header]), int(records.lines[header])
    last = min(count, header + SAMPLE_ROWS)
    return Split(0, start, int(records.ends[last - 1]) if last > header else start, line)


# -------------------------------------------------------------------------------------------------------- parsing
def dialect_of(options: ReadOptions) -> Dialect:
    return Dialect(options.delimiter or ",", options.quote or "", options.escape or "")


def parse_cells(
    data: bytes, options: ReadOptions, width: int | None = None, ragged: list[tuple[int, int]] | None = None
) -> pa.Table:
    """All cells as text; NULL is an empty cell without quotes or one of the null values.

    Records of another width than the others are left out, and their numbers (from 0) and widths put in `ragged`.
    """
    width = width or _width(data, options)
    names = [str(number) for number in range(width)]
    if _BLANK.fullmatch(data):
        return pa.table([pa.array([], pa.string())] * width, names=names)

    if options.escape or not data.endswith((b"\n", b"\r")):
        data += b"\n"  # at the very end an empty cell would pass for a quoted one

    def skip(row: Any) -> str:
        if ragged is not None:
            ragged.append((row.number - 1, row.actual_columns))
        return "skip"

    return _read_csv(data, options, names, skip)


def _read_csv(data: bytes, options: ReadOptions, names: Sequence[str], skip: Any = None, **more: Any) -> pa.Table:
    return pcsv.read_csv(
        pa.BufferReader(data),
        read_options=pcsv.ReadOptions(**(more or {"column_names": names}), block_size=len(data) + 1, use_threads=False),
        parse_options=pcsv.ParseOptions(
            delimiter=options.delimiter or ",",
            quote_char=options.quote or False,
            escape_char=options.escape or False,
            newlines_in_values=True,
            invalid_row_handler=skip,
        ),
        convert_options=pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=["", *_spellings(data, options)],
            check_utf8=False,
        ),
    )


def _spellings(data: bytes, options: ReadOptions) -> list[str]:
    """The null values as they stand in the text, with the blanks around them."""
    words = [re.escape(word) for word in sorted(options.null_values, key=len, reverse=True) if word.strip()]
    if not words:
        return list(options.null_values)
    blank = "[" + " \t".replace(options.delimiter or ",", "") + "]*"
    found = re.findall(f"{blank}(?:{'|'.join(words)}){blank}".encode(), data)
    return sorted({*options.null_values, *(spelling.decode() for spelling in found)})


def _width(data: bytes, options: ReadOptions) -> int:
    records = find_records(data, dialect_of(options), 1)
    return len(read_record(data[int(records.starts[0]) : int(records.ends[0])], options)) if len(records.starts) else 0


def read_record(record: bytes, options: ReadOptions) -> list[str | None]:
    """The cells of one record."""
    most = record.count((options.delimiter or ",").encode()) + 1
    names = [f"f{number}" for number in range(most)]
    try:
        table = _read_csv(record + b"\n", replace(options, null_values=()), names, autogenerate_column_names=True)
    except pa.ArrowInvalid:  # it is not complete
        return [None] * most
    return [column[0].as_py() or None for column in table.columns] if len(table) else [None]


@dataclass(frozen=True)
class DelimitedText:
    """How splits of one file are read."""

    options: ReadOptions

    def kinds(self, table: pa.Table, names: Sequence[str]) -> dict[str, Kind]:
        """What the columns of a sample hold."""
        return {name: self._kind(table.column(at).combine_chunks()) for at, name in enumerate(names)}

    def _kind(self, values: pa.Array) -> Kind:
        kind = infer(values, self.options.day_first)
        return replace(kind, note=why_text(values)) if kind.family == "text" and not kind.note else kind

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed:
        """Typed columns of a split; bad cells either reject their row or say how the column must be widened."""
        data = content.read(split.start, split.end)
        check_utf8(data, split.start)
        last: list[Reject] = []
        whole = self._without_open_record(data, split, last)
        ragged: list[tuple[int, int]] = []
        cells = parse_cells(whole, self.options, len(columns), ragged)
        typed, bad, met = self._convert(cells, columns)
        if typed is None:
            return Parsed(None, [], met)
        table = pa.table(typed, schema=schema_of(columns))
        if not bad and not ragged:
            return Parsed([table], last, met)
        records = find_records(whole, dialect_of(self.options), split.line)
        rejects = _Rejects(whole, records, cells, columns, bad, dict(ragged), last)
        return Parsed([table.filter(pa.array(~rejects.is_bad))], rejects, met)

    def _convert(
        self, cells: pa.Table, columns: Sequence[Column]
    ) -> tuple[list[pa.Array] | None, dict[int, np.ndarray], dict[str, Kind]]:
        """Typed columns (None if one must be widened first), masks of bad cells, and kinds that were met."""
        typed: list[pa.Array] = []
        bad: dict[int, np.ndarray] = {}
        met: dict[str, Kind] = {}
        for at, column in enumerate(columns):
            values = cells.column(at).combine_chunks()
            converted = _without_nulls(convert(values, column.reading), column)
            typed.append(converted.values)
            if column.fixed and converted.bad is not None:
                bad[at] = converted.bad
            elif converted.bad is not None or (column.is_open and values.null_count < len(values)):
                met[column.name] = infer(values, self.options.day_first)
        narrow = any(c.name in met and not (c.is_open and type_of(met[c.name]).equals(c.type)) for c in columns)
        return (None if narrow else typed), bad, met

    def _without_open_record(self, data: bytes, split: Split, rejects: list[Reject]) -> bytes:
        """A record that nothing ends would take in all that follows: it is rejected as a whole."""
        dialect = dialect_of(self.options)
        opened = open_quote(data, dialect) if split.last else None
        if opened is not None:
            why = "a quote opens here and is never closed"
        elif split.last and ends_in_escape(data, dialect):
            opened, why = len(data) - 1, "the file ends in the escape character"
        else:
            return data
        starts = find_records(data, dialect, split.line).starts
        start = int(starts[-1])
        cell = BadCell.of(split.line + count_line_ends(data[:opened]), None, data[opened:].decode(), why)
        rejects.append(Reject([cell], data[start:].decode(), len(starts) - 1))
        return data[:start]


def _without_nulls(converted: Converted, column: Column) -> Converted:
    """Where a column allows no NULLs they are bad cells; bad cells are NULL anyway."""
    if column.nullable or not converted.values.null_count:
        return converted
    return converted._replace(bad=np.asarray(converted.values.is_null()))


@dataclass(frozen=True)
class _Rejects:
    """Rejects in the order of the file, made one by one as they are asked for: there may be millions of them."""

    data: bytes
    records: Records
    cells: pa.Table
    columns: Sequence[Column]
    bad: dict[int, np.ndarray]  # by column, of the rows in `cells`
    ragged: dict[int, int]  # records that are not in `cells`: how many cells they have
    last: Sequence[Reject]

    def __post_init__(self) -> None:
        if len(self.records.starts) != self.cells.num_rows + len(self.ragged):
            raise UnreadableUploadError(
                f"Lines {self.records.lines[0]} to {self.records.lines[-1]} cannot be cut into records.",
                hint="Check the options quote, escape and delimiter.",
            )

    @cached_property
    def is_bad(self) -> np.ndarray:
        """Which rows of the table are not kept."""
        found: np.ndarray = np.any([np.zeros(self.cells.num_rows, bool), *self.bad.values()], axis=0)
        return found

    def __len__(self) -> int:
        return int(self.is_bad.sum()) + len(self.ragged) + len(self.last)

    def __iter__(self) -> Iterator[Reject]:
        numbers = np.setdiff1d(np.arange(len(self.records.starts)), list(self.ragged))  # of the rows in the table
        misfits = ((int(numbers[row]), int(row)) for row in np.flatnonzero(self.is_bad))
        for number, row in heapq.merge(misfits, ((number, -1) for number in sorted(self.ragged))):
            if number in self.ragged:
                yield self._reject(number, [self._short_row(number)])
            else:
                bad = [at for at, mask in self.bad.items() if mask[row]]
                yield self._reject(number, [self._bad_cell(number, row, at) for at in bad])
        yield from self.last

    def _reject(self, number: int, cells: list[BadCell]) -> Reject:
        return Reject(cells, self.data[self.records.starts[number] : self.records.ends[number]].decode(), number)

    def _short_row(self, number: int) -> BadCell:
        why = f"{self.ragged[number]} cells in a row of {len(self.columns)} columns"
        return BadCell.of(self.records.lines[number], None, None, why)

    def _bad_cell(self, number: int, row: int, at: int) -> BadCell:
        value, column = self.cells.column(at)[row].as_py(), self.columns[at]
        return BadCell.of(self.records.lines[number], column.name, value, column.reason(value))
