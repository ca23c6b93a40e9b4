"""Read delimited text (CSV): survey the columns of a file, and parse its splits to typed tables."""

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
from inlay.text.cells import Converted, convert
from inlay.text.decode import Content, check_utf8
from inlay.text.inference import NO_HEADER, Kind, column_names, infer, sniff, type_of, why_text
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import (
    SAMPLE_ROWS,
    BadCell,
    Column,
    Parsed,
    Reject,
    Survey,
    read_sample,
    repetitive,
    schema_of,
)
from inlay.text.records import (
    Dialect,
    Records,
    Split,
    count_line_ends,
    ends_in_escape,
    find_records,
    make_splits,
    open_quote,
    positions_of,
    scan_quotes,
)

__all__ = ["DelimitedText", "parse_cells", "survey"]

_BLANK = re.compile(rb"[\r\n]*")


# --------------------------------------------------------------------------------------------------------- survey
def survey(content: Content, requested: ReadOptions, limits: Limits, split_bytes: int | None) -> Survey:
    """Survey a file by its first rows. Without `split_bytes`, make no splits."""
    sample, is_whole = read_sample(content, limits)

    def parse_head(head: bytes, options: ReadOptions) -> pa.Table:
        limits.check_count(_count_cells(_first_record(head, options), options))
        return parse_cells(head, options)

    options = sniff(sample, requested, parse_head).with_detected(encoding=content.encoding)
    dialect = dialect_of(options)
    records = find_records(sample, dialect, 1)
    count = len(records.starts) - (0 if is_whole else 1)  # the last record may be incomplete
    if count <= 0:
        raise UnreadableUploadError(_no_record(len(sample), is_whole=is_whole))
    if open_quote(sample[: int(records.ends[0])], dialect) is not None:
        raise UnreadableUploadError(f"Line {records.lines[0]}: the first record opens a quote and never closes it.")
    record = sample[int(records.starts[0]) : int(records.ends[0])]
    limits.check_count(_count_cells(record, options))
    first = read_record(record, options)
    names, warnings = column_names([cell if options.header and cell and cell.strip() else None for cell in first])
    if not options.header:
        warnings = [NO_HEADER] if requested.header is None else []
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
    return "The file holds no records." if is_whole else f"The first record exceeds {size:,} bytes."


def _sample_rows(records: Records, count: int, header: int, size: int) -> Split:
    """Return the data rows of a sample as a split."""
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
    """Parse all cells as text. An unquoted empty cell and the null values become NULL.

    Leave out records with a different number of cells, and append their numbers (from 0) and widths to `ragged`.
    """
    width = width or _width(data, options)
    names = [str(number) for number in range(width)]
    if _BLANK.fullmatch(data):
        return pa.table([pa.array([], pa.string())] * width, names=names)

    if options.escape or not data.endswith((b"\n", b"\r")):
        data += b"\n"  # pyarrow takes an empty cell at the end of the data for a quoted one

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
    """Return the null values as the text spells them, with surrounding blanks."""
    values = [re.escape(value) for value in sorted(options.null_values, key=len, reverse=True) if value.strip()]
    if not values:
        return list(options.null_values)
    blank = "[" + " \t".replace(options.delimiter or ",", "") + "]*"
    found = re.findall(f"{blank}(?:{'|'.join(values)}){blank}".encode(), data)
    return sorted({*options.null_values, *(spelling.decode() for spelling in found)})


def _width(data: bytes, options: ReadOptions) -> int:
    record = _first_record(data, options)
    return len(read_record(record, options)) if record else 0


def _first_record(data: bytes, options: ReadOptions) -> bytes:
    records = find_records(data, dialect_of(options), 1)
    return data[int(records.starts[0]) : int(records.ends[0])] if len(records.starts) else b""


def _count_cells(record: bytes, options: ReadOptions) -> int:
    """Count the cells of a record without parsing it."""
    delimiter = options.delimiter or ","
    at = positions_of(np.frombuffer(record, np.uint8), ord(delimiter))
    quoted = scan_quotes(record, dialect_of(options)).hold(at)
    escaped = record.count(f"{options.escape}{delimiter}".encode()) if options.escape else 0
    return len(at) - int(np.count_nonzero(quoted)) - escaped + 1


def read_record(record: bytes, options: ReadOptions) -> list[str | None]:
    """Return the cells of one record."""
    width = record.count((options.delimiter or ",").encode()) + 1
    names = [f"f{number}" for number in range(width)]
    try:
        table = _read_csv(record + b"\n", replace(options, null_values=()), names, autogenerate_column_names=True)
    except pa.ArrowInvalid:  # the record is incomplete
        return [None] * width
    return [column[0].as_py() or None for column in table.columns] if len(table) else [None]


@dataclass(frozen=True)
class DelimitedText:
    """The reader of the splits of one file."""

    options: ReadOptions

    def kinds(self, table: pa.Table, names: Sequence[str]) -> dict[str, Kind]:
        """Return the kinds of the columns of a sample."""
        return {name: self._kind(table.column(at).combine_chunks()) for at, name in enumerate(names)}

    def _kind(self, values: pa.Array) -> Kind:
        kind = infer(values, self.options.day_first)
        return replace(kind, note=why_text(values)) if kind.family == "text" and not kind.note else kind

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed:
        """Parse a split. An invalid cell rejects its row or requires a wider column."""
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
        """Return typed columns (None if a column needs widening), masks of invalid cells, and new kinds."""
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
        """Reject an unterminated last record as a whole, and return the data before it."""
        dialect = dialect_of(self.options)
        opened = open_quote(data, dialect) if split.last else None
        if opened is not None:
            reason = "the quote that opens here is never closed"
        elif split.last and ends_in_escape(data, dialect):
            opened, reason = len(data) - 1, "the file ends with the escape character"
        else:
            return data
        starts = find_records(data, dialect, split.line).starts
        start = int(starts[-1])
        cell = BadCell.of(split.line + count_line_ends(data[:opened]), None, data[opened:].decode(), reason)
        rejects.append(Reject([cell], data[start:].decode(), len(starts) - 1))
        return data[:start]


def _without_nulls(converted: Converted, column: Column) -> Converted:
    """Mark NULLs as invalid cells in a column that does not allow them."""
    if column.nullable or not converted.values.null_count:
        return converted
    return converted._replace(bad=np.asarray(converted.values.is_null()))


@dataclass(frozen=True)
class _Rejects:
    """Rejects in file order, created on demand because there may be millions."""

    data: bytes
    records: Records
    cells: pa.Table
    columns: Sequence[Column]
    bad: dict[int, np.ndarray]  # column number -> mask over the rows of `cells`
    ragged: dict[int, int]  # number of a record that `cells` lacks -> its number of cells
    last: Sequence[Reject]

    def __post_init__(self) -> None:
        if len(self.records.starts) != self.cells.num_rows + len(self.ragged):
            raise UnreadableUploadError(
                f"Cannot separate the records in lines {self.records.lines[0]} to {self.records.lines[-1]}.",
                hint="Check the options quote, escape and delimiter.",
            )

    @cached_property
    def is_bad(self) -> np.ndarray:
        """Return the mask of rejected rows of the table."""
        found: np.ndarray = np.any([np.zeros(self.cells.num_rows, bool), *self.bad.values()], axis=0)
        return found

    def __len__(self) -> int:
        return int(self.is_bad.sum()) + len(self.ragged) + len(self.last)

    def __iter__(self) -> Iterator[Reject]:
        numbers = np.setdiff1d(
            np.arange(len(self.records.starts)), list(self.ragged)
        )  # records that are rows of the table
        invalid = ((int(numbers[row]), int(row)) for row in np.flatnonzero(self.is_bad))
        for number, row in heapq.merge(invalid, ((number, -1) for number in sorted(self.ragged))):
            if number in self.ragged:
                yield self._reject(number, [self._ragged_row(number)])
            else:
                bad = [at for at, mask in self.bad.items() if mask[row]]
                yield self._reject(number, [self._bad_cell(number, row, at) for at in bad])
        yield from self.last

    def _reject(self, number: int, cells: list[BadCell]) -> Reject:
        return Reject(cells, self.data[self.records.starts[number] : self.records.ends[number]].decode(), number)

    def _ragged_row(self, number: int) -> BadCell:
        reason = f"the row has {self.ragged[number]} cells instead of {len(self.columns)}"
        return BadCell.of(self.records.lines[number], None, None, reason)

    def _bad_cell(self, number: int, row: int, at: int) -> BadCell:
        value, column = self.cells.column(at)[row].as_py(), self.columns[at]
        return BadCell.of(self.records.lines[number], column.name, value, column.reason(value))
