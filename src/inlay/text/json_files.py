"""Read JSON: one record per line, one array of records, or consecutive records.

Arrow's parser reads a split if it can. Otherwise, and for columns with values of different types, inlay decodes the
records one by one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from inlay.arrays import from_integers
from inlay.errors import UnreadableUploadError
from inlay.schema import Path, family, nested_fields
from inlay.text.cells import CellText, are_kept, convert_columns
from inlay.text.decode import Content, check_utf8
from inlay.text.inference import NULL, TEXT, Kind, column_names, type_of
from inlay.text.json_absence import find_absent_fields, may_lack_columns, spelled_name
from inlay.text.json_objects import find_elements, find_objects, has_plain_gaps, object_splits
from inlay.text.json_template import read_templated
from inlay.text.json_values import (
    DATED,
    BadRecordError,
    absent_fields,
    as_text,
    columns_of,
    decode_value,
    fit,
    kind_of,
    unknown_field,
)
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import (
    REPETITIVE,
    SAMPLE_BYTES,
    SAMPLE_ROWS,
    BadCell,
    Column,
    Parsed,
    Reject,
    Survey,
    for_width,
    read_sample,
    schema_of,
)
from inlay.text.records import (
    Dialect,
    Split,
    count_byte,
    count_line_ends,
    find_records,
    line_ends,
    make_splits,
    positions_of,
)

__all__ = ["JsonRecords", "read_at_once", "read_object", "survey"]


_BLANK = np.zeros(256, bool)
_BLANK[list(b" \t\r\n")] = True
_CACHED = 256 << 10  # bytes that stay in the processor's cache
_CELL_BYTES = 8  # in memory
_SHORTEST_RECORD = 3  # in bytes
_LONGEST_RUN = 16
_ODD_NUMBER = re.compile(rb"(?<=[:\[, \t\r\n])-?[0-9](?:[0-9.]{14,}(?:[eE][+-]?[0-9]+)?|[0-9.]*[eE][+-]?[0-9]+)")
_TEXTUAL = frozenset({"text", "date", "timestamp"})
_PARSED_BY_ARROW = frozenset({"boolean", "integer"})
_MISSING = "the field is missing; write null to store NULL"
_MAX_SCALE = {128: 38 - _LONGEST_RUN, 256: 76 - _LONGEST_RUN}  # at a larger scale Arrow may overflow silently


def read_at_once(data: bytes, columns: Sequence[Column], split: Split, layout: str) -> pa.Table | None:
    """Parse a whole split with Arrow, or return None if it needs careful decoding."""
    physical = [_physical(column) for column in columns]
    text = data if layout == "lines" else _as_lines(data, split, layout)
    if not columns or not text or any(type_ is None for type_ in physical):
        return None
    schema = pa.schema([pa.field(c.name, type_) for c, type_ in zip(columns, physical, strict=True)])
    templated = read_templated(text, schema)
    if templated is not None:
        typed = [_typed(table, columns) for table in templated]
        return None if any(table is None for table in typed) else pa.concat_tables(typed)
    inexact = {leaf for type_ in physical for leaf in _leaves(type_) if family(leaf) in ("float", "decimal")}
    if inexact and not _are_numbers_kept(text, inexact):
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        table.validate()  # Arrow's parser keeps only one of several NULLs in a list
    except MemoryError:
        raise
    except pa.ArrowException:
        return None
    return _typed(table, columns) if table.num_rows == _count_lines(text) else None


def _physical(column: Column) -> pa.DataType | None:
    """Return the type that Arrow parses for a column, or None if it cannot."""
    if not column.fixed:
        return _physical_of(column.kind)
    kind = family(column.type)
    if column.kind.family in _TEXTUAL and not column.kind.mixed:
        return pa.string() if kind not in ("binary", "list", "struct", "map") else None
    if column.kind.family == "null" and kind in DATED:
        return pa.string()
    if column.kind.mixed or not all(map(_is_parsed_by_arrow, _leaves(column.type))):
        return pa.float64() if column.type.equals(pa.float32()) and not column.kind.mixed else None
    return column.type


def _physical_of(kind: Kind) -> pa.DataType | None:
    """Return the type that Arrow parses for a kind. Parts without values are null."""
    if kind.mixed or kind.family == "null":
        return None if kind.mixed else pa.null()
    if kind.family == "list":
        items = _physical_of(kind.items or Kind("null"))
        return None if items is None else pa.list_(items)
    if kind.family == "struct":
        if not kind.fields:
            return None
        fields = [(name, _physical_of(field)) for name, field in kind.fields]
        return None if any(type_ is None for _, type_ in fields) else pa.struct(fields)
    type_ = pa.string() if kind.family in _TEXTUAL else type_of(kind)
    return type_ if _is_parsed_by_arrow(type_) else None


def _leaves(type_: pa.DataType) -> Iterator[pa.DataType]:
    if pa.types.is_list(type_):
        yield from _leaves(type_.value_type)
    elif pa.types.is_struct(type_):
        for field in type_.fields:
            yield from _leaves(field.type)
    else:
        yield type_


def _is_parsed_by_arrow(type_: pa.DataType) -> bool:
    if pa.types.is_decimal(type_):
        return type_.bit_width in _MAX_SCALE and type_.scale <= _MAX_SCALE[type_.bit_width]
    return family(type_) in _PARSED_BY_ARROW or type_ in (pa.string(), pa.float64())


def _typed(table: pa.Table, columns: Sequence[Column]) -> pa.Table | None:
    arrays = [values.chunk(0) if values.num_chunks == 1 else values.combine_chunks() for values in table.columns]
    texts = [
        at
        for at, (column, array) in enumerate(zip(columns, arrays, strict=True))
        if array.type.equals(pa.string()) and (not column.type.equals(pa.string()) or column.length is not None)
    ]
    if any(map(_holds_empty_text, (arrays[at] for at in texts if family(columns[at].type) != "text"))):
        return None  # unlike in CSV, empty text is not NULL
    converted = convert_columns([arrays[at] for at in texts], [columns[at].reading for at in texts])
    if any(found.bad is not None for found in converted):
        return None
    for at, found in zip(texts, converted, strict=True):
        arrays[at] = found.values
    typed = [_as_numbers(array, column) for column, array in zip(columns, arrays, strict=True)]
    for column, array in zip(columns, typed, strict=True):
        if array is None or _exceeds_precision(array) or (array.null_count and not column.nullable):
            return None
    return pa.table(typed, schema=schema_of(columns))


def _holds_empty_text(array: pa.Array) -> bool:
    return not CellText(array).lengths.all() and bool(pc.any(pc.equal(pc.binary_length(array), 0)).as_py())


def _as_numbers(array: pa.Array, column: Column) -> pa.Array | None:
    if array.type.equals(column.type):
        return array
    return _narrowed(array) if column.type.equals(pa.float32()) else array.cast(column.type)


def _exceeds_precision(array: pa.Array) -> bool:
    """Return True if a value exceeds its decimal type. Arrow's parser accepts 4 as a decimal(1,1)."""
    if pa.types.is_list(array.type):
        return _exceeds_precision(array.flatten())
    if pa.types.is_struct(array.type):
        return any(map(_exceeds_precision, array.flatten()))
    if not pa.types.is_decimal(array.type):
        return False
    limit = Decimal(10) ** (array.type.precision - array.type.scale)
    return any(bound is not None and not -limit < bound < limit for bound in pc.min_max(array).as_py().values())


def _narrowed(doubles: pa.Array) -> pa.Array | None:
    """Cast to 32 bits, or return None if an integer changes or a number becomes zero or infinite."""
    array = doubles.cast(pa.float32())
    before, after = (values.cast(pa.float64()).fill_null(0).to_numpy() for values in (doubles, array))
    lost = (before != after) & ((before == np.trunc(before)) | (after == 0) | np.isinf(after))
    return None if lost[~np.isnan(before)].any() else array


def _as_lines(data: bytes, split: Split, layout: str) -> bytes | None:
    """Return the values of a split, one per line, or None if it contains anything else."""
    spans = find_objects(data)
    if not has_plain_gaps(data, spans, split, layout):
        return None
    lines = [data[start:end] for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)]
    return b"\n".join(line.replace(b"\n", b"\t") for line in lines)  # both are invalid in a string


def _count_lines(text: bytes) -> int:
    """Count the lines that are not blank."""
    array = np.frombuffer(text, np.uint8)
    ends = positions_of(array, ord("\n"))
    after = array[ends[ends < len(array) - 1] + 1]
    if text[:1].isspace() or _BLANK[after].any():
        return sum(1 for line in text.split(b"\n") if line.strip())
    return len(ends) + (0 if text.endswith(b"\n") else 1)


def _are_numbers_kept(text: bytes, types: Iterable[pa.DataType]) -> bool:
    """Return True if Arrow keeps every number. Only long numbers and exponents are at risk."""
    array = np.frombuffer(text, np.uint8)
    steps = range(0, len(array), _CACHED)
    if not any(_holds_odd_numbers(array[max(0, start - _LONGEST_RUN) : start + _CACHED]) for start in steps):
        return True
    numbers = _ODD_NUMBER.findall(text)
    return all(are_kept(numbers, type_) for type_ in types)


def _holds_odd_numbers(block: np.ndarray) -> bool:
    digits = (block - np.uint8(ord("."))) < np.uint8(12)  # a point, a slash, 0 to 9
    exponents = ((block[1:-1] | np.uint8(0x20)) == ord("e")) & digits[:-2]
    if exponents.any() and (exponents & ((block[2:] - np.uint8(ord("+"))) < np.uint8(15))).any():
        return True
    runs = digits
    for step in (1, 2, 4, 8):
        runs = runs[:-step] & runs[step:] if len(runs) > step else runs[:0]
    return bool(runs.any())


_LINES = Dialect(quote="")


# --------------------------------------------------------------------------------------------------------- records
class _Record(NamedTuple):
    line: int
    raw: bytes
    end: int  # offset in its split


def _records(data: bytes, split: Split, layout: str) -> Iterator[_Record]:
    """Yield the records of a split, and any other text as a record that will be rejected."""
    if layout == "lines":
        found = find_records(data, _LINES, split.line)
        for start, end, line in zip(found.starts.tolist(), found.ends.tolist(), found.lines.tolist(), strict=True):
            if not data[start:end].isspace():
                yield _Record(line, data[start:end], end)
        return
    lines = line_ends(data)
    for start, end in find_elements(data, split, layout):
        yield _Record(split.line + int(np.searchsorted(lines, start)), data[start:end], end)


def _decode(record: _Record) -> dict[str, Any] | BadCell:
    try:
        value = decode_value(record.raw.decode())
    except BadRecordError as error:
        return BadCell.of(record.line, None, None, str(error))
    except RecursionError:
        return BadCell.of(record.line, None, None, "nested too deeply")
    except ValueError as error:
        return BadCell.of(record.line, None, None, f"invalid JSON: {error}")
    if not isinstance(value, dict):
        return BadCell.of(record.line, None, None, "not an object")
    return value


def read_object(raw: str) -> dict[str, str | None]:
    """Return the values of a record as text, or nothing for an invalid record."""
    value = _decode(_Record(0, raw.encode(), 0))
    return {name: as_text(item) for name, item in value.items()} if isinstance(value, dict) else {}


# ---------------------------------------------------------------------------------------------------------- survey
def survey(content: Content, requested: ReadOptions, limits: Limits, split_bytes: int | None) -> Survey:
    """Survey a JSON file. Columns keep the order in which they appear."""
    options = requested.with_detected(layout=requested.layout or _layout(content), encoding=content.encoding)
    layout = str(options.layout)
    head = content.read(content.skip, min(content.size, content.skip + SAMPLE_BYTES[0]))
    skipped = _array_start(head) if layout == "array" else 0
    start, line = content.skip + skipped, 1 + count_line_ends(head[:skipped])
    sample = read_sample(content, limits)[0] if layout == "lines" else _complete_objects(content, start, limits)
    rows = list(itertools.islice(_records(sample, Split(0, start, content.size, line), layout), SAMPLE_ROWS))
    objects = [value for record in rows for value in [_decode(record)] if isinstance(value, dict)]
    found = columns_of(objects)
    limits.check_count(len(found))
    names, warnings = column_names([name or None for name in found])
    columns = dict(zip(names, found.values(), strict=True))
    kinds = {name: kind_of(values, options.day_first) for name, values in columns.items()}
    return Survey(
        content=content,
        options=options,
        reader=JsonRecords(options, _name_for_none(list(found), names), limits),
        kinds=kinds,
        splits=_splits(content, start, line, for_width(split_bytes, len(names)), limits, layout) if split_bytes else [],
        repetitive=[name for name, values in columns.items() if _is_repetitive(values)],
        warnings=warnings,
        sample=Split(0, start, start + (rows[-1].end if rows else 0), line),
    )


def _name_for_none(found: list[str], names: list[str]) -> str:
    """Return the column name of the field with an empty name, even if the sample lacks it."""
    return names[found.index("")] if "" in found else column_names([*names, None])[0][-1]


def _layout(content: Content) -> str:
    sample = b""
    for size in SAMPLE_BYTES:
        sample = content.read(content.skip, min(content.size, content.skip + size)).lstrip()
        if sample:
            break
    if sample.startswith(b"["):
        return "array"
    if sample and not sample.startswith(b"{"):
        raise UnreadableUploadError(
            f"The file is neither a JSON array nor JSON objects: it starts with {sample[:20]!r}."
        )
    return "lines" if not sample or _is_line_wise(sample) else "objects"


def _is_line_wise(sample: bytes) -> bool:
    """Return True if the file has one record per line."""
    lines = [line for line in sample.split(b"\n", 10)[:10] if line.strip()]
    if isinstance(_decode_leniently(lines[0]), dict):
        return True
    spans = find_objects(sample)
    if len(spans.ends) and isinstance(_decode_leniently(sample[: int(spans.ends[0])]), dict):
        return False
    return len(lines) == 1 or any(isinstance(_decode_leniently(line), dict) for line in lines)


def _decode_leniently(line: bytes) -> Any:
    return _decode(_Record(0, line.decode(errors="replace").encode(), 0))


def _array_start(head: bytes) -> int:
    start = len(head) - len(head.lstrip())
    if head[start : start + 1] != b"[":
        raise UnreadableUploadError("The file is not a JSON array.")
    return start + 1


def _complete_objects(content: Content, start: int, limits: Limits) -> bytes:
    """Return the beginning of an array up to its last complete value."""
    data = b""
    for size in (*SAMPLE_BYTES, limits.record_bytes):
        end = min(content.size, start + size)
        data = content.read(start, end)
        spans = find_objects(data)
        data = data[: spans.end if spans.closed is None else spans.closed]
        if end == content.size or spans.closed is not None or len(spans.ends) > SAMPLE_ROWS:
            break
        if len(spans.ends) and size >= SAMPLE_BYTES[-1]:
            break
    check_utf8(data, start)
    return data


def _splits(content: Content, start: int, line: int, split_bytes: int, limits: Limits, layout: str) -> list[Split]:
    if layout == "lines":
        return make_splits(content, _LINES, start, line, split_bytes, limits)
    return object_splits(content, start, line, split_bytes, limits, in_array=layout == "array")


def _is_repetitive(values: Sequence[Any]) -> bool:
    filled = [value for value in values if value is not None]
    scalar = all(isinstance(value, str | int) for value in filled)
    return bool(filled) and scalar and len(set(filled)) <= max(1, len(filled) * REPETITIVE)


# --------------------------------------------------------------------------------------------------------- parsing
@dataclass(frozen=True)
class JsonRecords:
    """The reader of the splits of one file."""

    options: ReadOptions
    unnamed: str  # column name of the field with an empty name
    limits: Limits

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed:
        data = content.read(split.start, split.end)
        check_utf8(data, split.start)
        self._check_cells(data, len(columns) * _CELL_BYTES)
        layout = str(self.options.layout)
        table = read_at_once(data, columns, split, layout)
        lacking = None if table is None else find_absent_fields(table, columns, data, split, layout)
        if table is None or lacking is None or may_lack_columns(table, columns, data):
            parsed = self._one_by_one(data, columns, split)
        else:
            parsed = Parsed([table], [], {}, lacking)
        expected = [column.name for column in columns if column.is_expected]
        return parsed._replace(met=parsed.met | dict.fromkeys(self._present(data, expected, split), NULL))

    def _check_cells(self, data: bytes, record_cells: int) -> None:
        """Reject data whose cells take too much memory. The shortest record also has a cell in every column."""
        if record_cells > _SHORTEST_RECORD * self.limits.ratio or record_cells * len(data) > self.limits.decoded_bytes:
            records = count_byte(np.frombuffer(data, np.uint8), ord("\n" if self.options.layout == "lines" else "{"))
            self.limits.check_size(records * record_cells, len(data))

    def _present(self, data: bytes, names: Sequence[str], split: Split) -> list[str]:
        """Return the names that are fields of records. Decode only data that may contain them."""
        spelled = [spelled_name(name) for name in names]
        if not names or not any(text in data for text in (b"\\", *spelled)):
            return []
        objects = [value for _, value in self._decoded(data, split) if isinstance(value, dict)]
        return [name for name in names if any(name in value for value in objects)]

    def _decoded(self, data: bytes, split: Split) -> Iterator[tuple[_Record, dict[str, Any] | BadCell]]:
        for record in _records(data, split, str(self.options.layout)):
            yield record, self._named(record, _decode(record))

    def _one_by_one(self, data: bytes, columns: Sequence[Column], split: Split) -> Parsed:
        rows: list[_Row] = []
        undecoded: list[Reject] = []
        for number, (record, value) in enumerate(self._decoded(data, split)):
            if isinstance(value, dict):
                rows.append(_Row(number, record, value))
            else:
                undecoded.append(Reject([value], record.raw.decode(), number))
        self.limits.check_count(len({name for row in rows for name in row.value}))
        return _fit_rows(rows, undecoded, columns, self.options.day_first)

    def _named(self, record: _Record, value: dict[str, Any] | BadCell) -> dict[str, Any] | BadCell:
        if not isinstance(value, dict) or "" not in value:
            return value
        if self.unnamed in value:
            reason = (
                f"an object contains the same name twice: inlay loads the field with an empty name as {self.unnamed!r}"
            )
            return BadCell.of(record.line, None, None, reason)
        return {name or self.unnamed: item for name, item in value.items()}


# ------------------------------------------------------------------------------------------------------ one by one
class _Row(NamedTuple):
    number: int
    record: _Record
    value: dict[str, Any]


def _fit_rows(
    rows: Sequence[_Row],
    undecoded: Sequence[Reject],
    columns: Sequence[Column],
    day_first: bool | None,
) -> Parsed:
    """Convert decoded records to typed columns. `undecoded` holds the rejects of decoding."""
    met = _unknown_columns(rows, columns, day_first)
    cells: dict[int, list[BadCell]] = {}
    typed: list[pa.Array] = []
    for column in columns:
        values = [row.value.get(column.name) for row in rows]
        fitted, wrong = fit(values, column.reading)
        wrong |= set() if column.nullable else {row for row, value in enumerate(values) if value is None}
        missing = {at for at, row in enumerate(rows) if column.is_required and column.name not in row.value}
        wrong |= missing
        kind = kind_of(values, day_first) if wrong or column.is_open else NULL
        if wrong and not column.fixed and pa.types.is_timestamp(column.type) and _widens_nothing(column, kind):
            kind = TEXT  # nanoseconds do not cover all years, and another split may need them
        if not column.fixed and kind != NULL:
            met[column.name] = kind
        if column.fixed or _widens_nothing(column, kind):  # no wider type holds the values
            for row in sorted(wrong):
                reason = _MISSING if row in missing else _reason(column, values[row])
                cell = BadCell.of(rows[row].record.line, column.name, as_text(values[row]), reason)
                cells.setdefault(row, []).append(cell)
        typed.append(fitted)
    known = {column.name: column.type for column in columns}
    wider = {column.name: column.widened(met[column.name]).type for column in columns if column.name in met}
    if any(name not in known or not wider[name].equals(known[name]) for name in met):
        return Parsed(None, [], met)
    return _loaded(rows, undecoded, cells, columns, typed, met)


def _absences(column: Column, rows: Sequence[_Row]) -> dict[int, Path]:
    """Map the positions of the rows that lack a column, or a field inside it, to the path of the first such field."""
    path = (column.name,)
    found: dict[int, Path] = {at: path for at, row in enumerate(rows) if column.name not in row.value}
    if column.fixed and nested_fields(column.type):
        for at, row in enumerate(rows):
            absent = next(absent_fields(row.value.get(column.name), column.type, path), None)
            found |= {} if absent is None else {at: absent}
    return found


def _reason(column: Column, value: object) -> str:
    unknown = unknown_field(value, column.type, column.name)
    return column.reason(value) if unknown is None else f"an object with the unknown field {unknown!r}"


def _widens_nothing(column: Column, kind: Kind) -> bool:
    return bool(column.widened(kind).type.equals(column.type))


def _loaded(
    rows: Sequence[_Row],
    undecoded: Sequence[Reject],
    cells: dict[int, list[BadCell]],
    columns: Sequence[Column],
    typed: Sequence[pa.Array],
    met: dict[str, Kind],
) -> Parsed:
    table = pa.table(list(typed), schema=schema_of(columns))
    lacking: dict[Path, pa.Array] = {}
    for column in columns:
        lacking |= _lines_by_path(_absences(column, rows), rows) if column.reports_absence else {}
    if cells:
        valid = pa.array([row not in cells for row in range(len(rows))])
        table = table.filter(valid)
        lacking = {path: lines.filter(valid) for path, lines in lacking.items()}
    bad = [Reject(cells[row], rows[row].record.raw.decode(), rows[row].number) for row in sorted(cells)]
    rejects = sorted([*bad, *undecoded], key=lambda reject: reject.row)
    return Parsed([table], rejects, met, lacking)


def _lines_by_path(absences: Mapping[int, Path], rows: Sequence[_Row]) -> dict[Path, pa.Array]:
    """Return for each absent field the lines of the records that lack it, and NULL for the other records."""
    lines: dict[Path, list[int | None]] = {path: [None] * len(rows) for path in absences.values()}
    for at, path in absences.items():
        lines[path][at] = rows[at].record.line
    return {path: from_integers(found, pa.int64()) for path, found in lines.items()}


def _unknown_columns(rows: Sequence[_Row], columns: Sequence[Column], day_first: bool | None) -> dict[str, Kind]:
    known = {column.name for column in columns}
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name in row.value.keys() - known:
            found.setdefault(name, []).append(row.value[name])
    return {name: kind_of(found[name], day_first) for name in _in_order(found, rows)}


def _in_order(found: dict[str, Any], rows: Sequence[_Row]) -> list[str]:
    """Deduplicate names, keeping first-seen order."""
    order: dict[str, None] = {}
    for row in rows if found else ():
        order |= dict.fromkeys(name for name in row.value if name in found)
    return list(order)
