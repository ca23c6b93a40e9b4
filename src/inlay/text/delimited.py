"""Read delimited text (CSV): survey the columns of a file, and parse its splits to typed tables."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv

from inlay.errors import UnreadableUploadError
from inlay.text.cells import Converted, convert_columns
from inlay.text.decode import Content, check_utf8
from inlay.text.inference import NO_HEADER, Kind, column_names, infer, sniff, type_of, why_text
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import (
    BadCell,
    Column,
    Parsed,
    Reject,
    Rejects,
    Survey,
    for_width,
    read_sample,
    repetitive,
    rows_to_sample,
    schema_of,
)
from inlay.text.records import (
    Dialect,
    Records,
    Split,
    count_line_ends,
    cut_blocks,
    ends_in_escape,
    find_records,
    make_splits,
    open_quote,
    positions_of,
    scan_quotes,
)

__all__ = ["DelimitedText", "parse_cells", "survey"]

_BLANK = re.compile(rb"[\r\n]*")
_BLOCK_BYTES = 4 << 20  # Arrow parses larger blocks into memory outside the processor's cache, which it never reuses
_Block: TypeAlias = bytes | memoryview


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
    header = 1 if options.header else 0
    rows = _sample_rows(records, min(count, header + rows_to_sample(len(names))), header, len(sample))
    table = parse_cells(sample[rows.start : rows.end], options, len(names))
    reader = DelimitedText(options)
    kinds = reader.kinds(table, names)
    start = content.skip + rows.start
    return Survey(
        content=content,
        options=options,
        reader=reader,
        kinds=kinds,
        splits=make_splits(content, dialect, start, rows.line, for_width(split_bytes, len(names)), limits)
        if split_bytes
        else [],
        repetitive=repetitive(table, names),
        warnings=warnings,
        sample=Split(0, start, content.skip + rows.end, rows.line),
    )


def _no_record(size: int, *, is_whole: bool) -> str:
    return "The file holds no records." if is_whole else f"The first record exceeds {size:,} bytes."


def _sample_rows(records: Records, count: int, header: int, size: int) -> Split:
    """Return the data rows among the first `count` rows of a sample as a split."""
    if header == len(records.starts):
        return Split(0, size, size, int(records.lines[-1]) + 1)
    start, line = int(records.starts[header]), int(records.lines[header])
    return Split(0, start, int(records.ends[count - 1]) if count > header else start, line)


# -------------------------------------------------------------------------------------------------------- parsing
def dialect_of(options: ReadOptions) -> Dialect:
    return Dialect(options.delimiter or ",", options.quote or "", options.escape or "")


def parse_cells(
    data: _Block, options: ReadOptions, width: int | None = None, ragged: list[tuple[int, int]] | None = None
) -> pa.Table:
    """Parse all cells as text. An unquoted empty cell and the null values become NULL.

    Leave out records with a different number of cells, and append their numbers (from 0) and widths to `ragged`.
    """
    width = width or _width(data, options)
    names = [str(number) for number in range(width)]
    if _BLANK.fullmatch(data):
        return pa.table([pa.array([], pa.string())] * width, names=names)

    if options.escape or data[-1:] not in (b"\n", b"\r"):
        data = bytes(data) + b"\n"  # pyarrow takes an empty cell at the end of the data for a quoted one

    def skip(row: Any) -> str:
        if ragged is not None:
            ragged.append((row.number - 1, row.actual_columns))
        return "skip"

    return _read_csv(data, options, names, skip)


def _read_csv(data: _Block, options: ReadOptions, names: Sequence[str], skip: Any = None, **more: Any) -> pa.Table:
    return pcsv.read_csv(
        pa.BufferReader(pa.py_buffer(data)),
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


def _spellings(data: _Block, options: ReadOptions) -> list[str]:
    """Return the null values as the text spells them, with surrounding blanks."""
    values = [re.escape(value) for value in sorted(options.null_values, key=len, reverse=True) if value.strip()]
    if not values:
        return list(options.null_values)
    blank = "[" + " \t".replace(options.delimiter or ",", "") + "]*"
    found = re.findall(f"{blank}(?:{'|'.join(values)}){blank}".encode(), data)
    return sorted({*options.null_values, *(spelling.decode() for spelling in found)})


def _width(data: _Block, options: ReadOptions) -> int:
    record = _first_record(bytes(data), options)
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
        # The kind of an open column depends on all its values.
        size = len(whole) if any(c.is_open for c in columns) else for_width(_BLOCK_BYTES, len(columns), 100)
        tables: list[pa.Table] = []
        rejects: list[Rejects] = []
        met: dict[str, Kind] = {}
        start = row = 0
        for block in cut_blocks(whole, dialect_of(self.options), size):
            ragged: list[tuple[int, int]] = []
            cells = parse_cells(block, self.options, len(columns), ragged)
            typed, bad, met = self._convert(cells, columns)
            if typed is None:
                return Parsed(None, [], met if len(block) == len(whole) else self._kinds_met(whole, columns))
            tables.append(pa.table(typed, schema=schema_of(columns)))
            if bad or ragged:
                line = split.line + count_line_ends(memoryview(whole)[:start])
                text = bytes(block)
                records = find_records(text, dialect_of(self.options), line)
                found = _Rejects(text, records, cells, columns, bad, dict(ragged), row)
                tables[-1] = tables[-1].filter(pa.array(~found.is_bad))
                rejects.append(found)
            start, row = start + len(block), row + cells.num_rows + len(ragged)
        return Parsed([pa.concat_tables(tables)], _Chain([*rejects, last]), met)

    def _kinds_met(self, data: bytes, columns: Sequence[Column]) -> dict[str, Kind]:
        """Return the kinds of all values of the columns that need widening."""
        return self._convert(parse_cells(data, self.options, len(columns), []), columns)[2]

    def _convert(
        self, cells: pa.Table, columns: Sequence[Column]
    ) -> tuple[list[pa.Array] | None, dict[int, np.ndarray], dict[str, Kind]]:
        """Return typed columns (None if a column needs widening), masks of invalid cells, and new kinds."""
        typed: list[pa.Array] = []
        bad: dict[int, np.ndarray] = {}
        met: dict[str, Kind] = {}
        texts = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in cells.columns]
        converted_columns = convert_columns(texts, [column.reading for column in columns])
        for at, (column, values) in enumerate(zip(columns, texts, strict=True)):
            converted = _without_nulls(converted_columns[at], column)
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
class _Chain:
    """The rejects of the blocks of a split, one after the other."""

    parts: Sequence[Rejects]

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __iter__(self) -> Iterator[Reject]:
        return itertools.chain.from_iterable(self.parts)


@dataclass(frozen=True)
class _Rejects:
    """Rejects of a block in file order, created on demand because there may be millions."""

    data: bytes
    records: Records
    cells: pa.Table
    columns: Sequence[Column]
    bad: dict[int, np.ndarray]  # column number -> mask over the rows of `cells`
    ragged: dict[int, int]  # number of a record that `cells` lacks -> its number of cells
    first: int  # number of the first record of the block in its split

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
        return int(self.is_bad.sum()) + len(self.ragged)

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

    def _reject(self, number: int, cells: list[BadCell]) -> Reject:
        raw = self.data[self.records.starts[number] : self.records.ends[number]].decode()
        return Reject(cells, raw, self.first + number)

    def _ragged_row(self, number: int) -> BadCell:
        reason = f"the row has {self.ragged[number]} cells instead of {len(self.columns)}"
        return BadCell.of(self.records.lines[number], None, None, reason)

    def _bad_cell(self, number: int, row: int, at: int) -> BadCell:
        value, column = self.cells.column(at)[row].as_py(), self.columns[at]
        return BadCell.of(self.records.lines[number], column.name, value, column.reason(value))
