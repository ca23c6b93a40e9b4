"""JSON: a record per line, one array of records, or records one after the other, as typed tables.

Splits are read by Arrow's parser where it can; where anything does not fit, and for columns whose values are of several
sorts, records are taken one by one.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from inlay.errors import UnreadableUploadError
from inlay.pipeline.arrow_json import read_at_once
from inlay.pipeline.decode import Content, check_utf8
from inlay.pipeline.fitting import fit
from inlay.pipeline.kinds import NULL, TEXT, Kind
from inlay.pipeline.objects import find_elements, find_objects, object_splits
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.plan import REPETITIVE, SAMPLE_BYTES, SAMPLE_ROWS, Column, Parsed, Survey, read_sample, schema_of
from inlay.pipeline.records import (
    Dialect,
    Split,
    count_line_ends,
    find_records,
    line_ends,
    make_splits,
)
from inlay.pipeline.rejects import BadCell, Reject
from inlay.pipeline.sniff import column_names
from inlay.pipeline.values import BadRecordError, as_text, columns_of, decode_value, kind_of

__all__ = ["JsonRecords", "read_object", "survey"]

_LINES = Dialect(quote="")


# --------------------------------------------------------------------------------------------------------- records
class _Record(NamedTuple):
    line: int
    raw: bytes
    end: int  # in its split


def _records(data: bytes, split: Split, layout: str) -> Iterator[_Record]:
    """The records of a split; whatever else stands there comes too, to be rejected."""
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
        return BadCell.of(record.line, None, None, f"not valid JSON: {error}")
    if not isinstance(value, dict):
        return BadCell.of(record.line, None, None, "not an object")
    return value


def read_object(raw: str) -> dict[str, str | None]:
    """The values of a record as text; of what is no record, none."""
    value = _decode(_Record(0, raw.encode(), 0))
    return {name: as_text(item) for name, item in value.items()} if isinstance(value, dict) else {}


# ---------------------------------------------------------------------------------------------------------- survey
def survey(content: Content, given: ReadOptions, limits: Limits, split_bytes: int | None) -> Survey:
    """Columns in the order in which they appear, with what their values are."""
    options = given.with_found(layout=given.layout or _layout(content), encoding=content.encoding)
    layout = str(options.layout)
    head = content.read(content.skip, min(content.size, content.skip + SAMPLE_BYTES[0]))
    skipped = _array_start(head) if layout == "array" else 0
    start, line = content.skip + skipped, 1 + count_line_ends(head[:skipped])
    sample = read_sample(content, limits)[0] if layout == "lines" else _complete_objects(content, start, limits)
    rows = list(itertools.islice(_records(sample, Split(0, start, content.size, line), layout), SAMPLE_ROWS))
    objects = [value for record in rows for value in [_decode(record)] if isinstance(value, dict)]
    found = columns_of(objects)
    names, warnings = column_names([name or None for name in found])
    columns = dict(zip(names, found.values(), strict=True))
    kinds = {name: kind_of(values, options.day_first) for name, values in columns.items()}
    return Survey(
        content=content,
        options=options,
        reader=JsonRecords(options, _name_for_none(list(found), names)),
        kinds=kinds,
        splits=_splits(content, start, line, split_bytes, limits, layout) if split_bytes else [],
        repetitive=[name for name, values in columns.items() if _is_repetitive(values)],
        warnings=warnings,
        sample=Split(0, start, start + (rows[-1].end if rows else 0), line),
    )


def _name_for_none(found: list[str], names: list[str]) -> str:
    """What a field without a name is called, also if the first one comes late."""
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
            "The file is neither a JSON array nor JSON objects.", hint=f"It starts with {sample[:20]!r}."
        )
    return "lines" if not sample or _is_line_wise(sample) else "objects"


def _is_line_wise(sample: bytes) -> bool:
    """Whether the first line is a record; if it is none, then neither is an object that begins there."""
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
    """The beginning of an array, as far as values are complete."""
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
    """How splits of one file are read."""

    options: ReadOptions
    unnamed: str  # what a field without a name is called

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed:
        data = content.read(split.start, split.end)
        check_utf8(data, split.start)
        table = read_at_once(data, columns, split, str(self.options.layout))
        parsed = self._one_by_one(data, columns, split) if table is None else Parsed([table], [], {})
        expected = [column.name for column in columns if column.is_expected]
        return parsed._replace(met=parsed.met | dict.fromkeys(self._there(data, expected, split), NULL))

    def _there(self, data: bytes, names: Sequence[str], split: Split) -> list[str]:
        """Which of the names are those of fields; only where they, or escapes that may spell them, stand at all."""
        spelled = [json.dumps(name, ensure_ascii=False).encode() for name in names]
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
        return _fit_rows(rows, undecoded, columns, self.options.day_first)

    def _named(self, record: _Record, value: dict[str, Any] | BadCell) -> dict[str, Any] | BadCell:
        if not isinstance(value, dict) or "" not in value:
            return value
        if self.unnamed in value:
            why = f"a name stands twice in an object: the field without a name is loaded as {self.unnamed!r}"
            return BadCell.of(record.line, None, None, why)
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
    """Typed columns of decoded records. `undecoded` are those that are no records."""
    met = _unknown_columns(rows, columns, day_first)
    cells: dict[int, list[BadCell]] = {}
    typed: list[pa.Array] = []
    for column in columns:
        values = [row.value.get(column.name) for row in rows]
        fitted, wrong = fit(values, column.reading)
        wrong |= set() if column.nullable else {row for row, value in enumerate(values) if value is None}
        kind = kind_of(values, day_first) if wrong or column.is_open else NULL
        if wrong and not column.fixed and pa.types.is_timestamp(column.type) and _widens_nothing(column, kind):
            kind = TEXT  # nanoseconds do not reach all years: another split may have them
        if not column.fixed and kind != NULL:
            met[column.name] = kind
        if column.fixed or _widens_nothing(column, kind):  # no other type would hold them
            for row in sorted(wrong):
                why = column.reason(values[row])
                cell = BadCell.of(rows[row].record.line, column.name, as_text(values[row]), why)
                cells.setdefault(row, []).append(cell)
        typed.append(fitted)
    known = {column.name: column.type for column in columns}
    wider = {column.name: column.widened(met[column.name]).type for column in columns if column.name in met}
    if any(name not in known or not wider[name].equals(known[name]) for name in met):
        return Parsed(None, [], met)
    return _loaded(rows, undecoded, cells, columns, typed, met)


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
    if cells:
        table = table.filter(pa.array([row not in cells for row in range(len(rows))]))
    bad = [Reject(cells[row], rows[row].record.raw.decode(), rows[row].number) for row in sorted(cells)]
    rejects = sorted([*bad, *undecoded], key=lambda reject: reject.row)
    return Parsed([table], rejects, met)


def _unknown_columns(rows: Sequence[_Row], columns: Sequence[Column], day_first: bool | None) -> dict[str, Kind]:
    known = {column.name for column in columns}
    found: dict[str, list[Any]] = {}
    for row in rows:
        for name in row.value.keys() - known:
            found.setdefault(name, []).append(row.value[name])
    return {name: kind_of(found[name], day_first) for name in _in_order(found, rows)}


def _in_order(found: dict[str, Any], rows: Sequence[_Row]) -> list[str]:
    """Names as they first appear; sets have no order."""
    order: dict[str, None] = {}
    for row in rows if found else ():
        order |= dict.fromkeys(name for name in row.value if name in found)
    return list(order)
