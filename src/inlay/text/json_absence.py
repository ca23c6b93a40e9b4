"""Find the fields that JSON records lack, in a split that Arrow's parser has read.

Arrow's table doesn't tell an absent field from null. The text of the split does: where it has no escapes, a name in
quotes before a colon is a field. Only columns and objects with NULLs can lack a field, so most splits need no search.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy, to_numpy
from inlay.schema import Path, nested_fields
from inlay.text.json_objects import find_objects
from inlay.text.json_values import absent_fields, decode_value
from inlay.text.reader import Column
from inlay.text.records import Dialect, Split, find_records, line_ends

__all__ = ["find_absent_fields", "may_lack_columns", "spelled_name"]

_LINES = Dialect(quote="")
_MAX_SEARCHES = 100  # of fields in the text of a split


def find_absent_fields(
    table: pa.Table, columns: Sequence[Column], data: bytes, split: Split, layout: str
) -> dict[Path, pa.Array] | None:
    """Map the fields that records lack to the line of each such record, or return None if only decoding can tell."""
    lacking = _find_absent_columns(table, columns, data, split, layout)
    inside = None if lacking is None else _find_absent_members(table, columns, data, split, layout, lacking)
    return None if lacking is None or inside is None else lacking | inside


def spelled_name(name: str) -> bytes:
    return json.dumps(name, ensure_ascii=False).encode()


def _field_offsets(name: str, data: bytes) -> np.ndarray:
    """Return where fields with this name are, in text without escapes."""
    matches = re.finditer(re.escape(spelled_name(name)) + rb"\s*:", data)
    return np.fromiter((match.start() for match in matches), np.int64)


class _Spans(NamedTuple):
    starts: np.ndarray
    ends: np.ndarray


def _record_spans(data: bytes, layout: str) -> _Spans:
    found = find_records(data, _LINES, 1) if layout == "lines" else find_objects(data)
    return _Spans(found.starts, found.ends)


# --------------------------------------------------------------------------------------------------------- columns
def may_lack_columns(table: pa.Table, columns: Sequence[Column], data: bytes) -> bool:
    """Return True unless every NULL in a required column is an explicit null of the data."""
    nulls = {c.name: table.column(c.name).null_count for c in columns if c.is_required}
    is_nested = any(pa.types.is_nested(field.type) for field in table.schema)
    if sum(map(bool, nulls.values())) > _MAX_SEARCHES:
        return True
    return any(count and (is_nested or count > _explicit_nulls(name, data)) for name, count in nulls.items())


def _find_absent_columns(
    table: pa.Table, columns: Sequence[Column], data: bytes, split: Split, layout: str
) -> dict[Path, pa.Array] | None:
    """Return the lines of the records that lack a field, or None if only decoding can tell.

    If no record has a field, all of them get the line of the first.
    """
    found: dict[Path, pa.Array] = {}
    some: list[str] = []
    for name in (column.name for column in columns if column.reports_absence):
        nulls = table.column(name).null_count
        if nulls == table.num_rows and b"\\" not in data and spelled_name(name) not in data:
            found[(name,)] = from_numpy(np.full(table.num_rows, split.line))
        elif nulls:
            some.append(name)
    # Without escapes, a name in quotes before a colon is a field: see `_explicit_nulls`. Arrow rejects repeated fields.
    nested = {name for column in columns for name in _nested_names(column.type)}
    is_plain = b"\\" not in data and all(re.match(r"\w", name) and name not in nested for name in some)
    if some and not (is_plain and len(some) <= _MAX_SEARCHES):
        return None
    starts = _record_spans(data, layout).starts if some else np.empty(0, np.int64)
    if some and len(starts) != table.num_rows:
        return None
    for name in some:
        is_present = np.zeros(table.num_rows, bool)
        is_present[np.searchsorted(starts, _field_offsets(name, data), "right") - 1] = True
        if not is_present.all():
            lines = split.line + np.searchsorted(line_ends(data), starts)
            found[(name,)] = from_numpy(lines, ~is_present)
    return found


def _nested_names(type_: pa.DataType) -> Iterator[str]:
    """Yield the names of the fields inside a type."""
    if pa.types.is_nested(type_):
        for index in range(type_.num_fields):
            yield type_.field(index).name
            yield from _nested_names(type_.field(index).type)


def _explicit_nulls(name: str, data: bytes) -> int:
    """Count the nulls of a field in records without nested values, or return 0 for an unusual name.

    A name in quotes before a colon is a field, unless the first quote is escaped or ends another string. Only blanks
    and punctuation follow the end of a string.
    """
    if not re.match(r"\w", name):
        return 0
    return len(re.findall(rb"(?<!\\)" + re.escape(spelled_name(name)) + rb"\s*:\s*null", data))


# --------------------------------------------------------------------------------------------------------- members
class _Member(NamedTuple):
    """A column, or a field inside the objects of a column.

    For each record or object, `objects` has the number of its record, and `nulls` those in which the field is NULL.
    """

    path: Path
    objects: np.ndarray
    nulls: np.ndarray


def _members(array: pa.Array, path: Path, owners: np.ndarray) -> Iterator[_Member]:
    """Yield the fields inside a column, of whose values `owners` has the numbers of the records."""
    if pa.types.is_struct(array.type):
        valid = to_numpy(array.is_valid())
        for field, member in zip(array.type.fields, array.flatten(), strict=True):
            below = (*path, field.name)
            yield _Member(below, owners[valid], owners[valid & to_numpy(member.is_null())])
            yield from _members(member, below, owners)
    elif pa.types.is_list(array.type):
        lengths = to_numpy(pc.list_value_length(array), 0)
        yield from _members(array.flatten(), path, np.repeat(owners, lengths))


class _Count(NamedTuple):
    """The number of records or objects that should have a field, and in how many of them it may be absent."""

    path: Path
    objects: int
    nulls: int


def _counts(array: pa.Array, path: Path) -> Iterator[_Count]:
    """Yield the fields inside a column."""
    if pa.types.is_struct(array.type):
        for field, member in zip(array.type.fields, array.flatten(), strict=True):
            below = (*path, field.name)
            yield _Count(below, len(array) - array.null_count, member.null_count - array.null_count)
            yield from _counts(member, below)
    elif pa.types.is_list(array.type):
        yield from _counts(array.flatten(), path)


def _find_absent_members(
    table: pa.Table, columns: Sequence[Column], data: bytes, split: Split, layout: str, lacking: dict[Path, pa.Array]
) -> dict[Path, pa.Array] | None:
    """Find the fields that objects of columns with a fixed type lack."""
    checked = [column for column in columns if column.fixed and column.reports_absence]
    types = {column.name: column.type for column in checked if nested_fields(column.type)}
    inside = {name: list(_counts(table.column(name).combine_chunks(), (name,))) for name in types}
    doubtful = dict.fromkeys(count.path[-1] for counts in inside.values() for count in counts if count.nulls)
    if not doubtful:
        return {}
    text = _without_escapes(data)
    objects = _expected_fields(table, inside, lacking)
    searches = [name for name in doubtful if not _is_complete(name, text, objects[name])]
    if not searches:
        return {}
    spans = _record_spans(data, layout)
    if len(spans.starts) != table.num_rows or len(searches) > _MAX_SEARCHES:
        return None
    absent: dict[Path, np.ndarray] = {}
    unclear = np.zeros(table.num_rows, bool)
    known = {column.name for column in columns if column.reports_absence}
    members = list(_all_members(table, known, lacking))
    for name in searches:
        located, others = _locate(name, text, spans.starts, [each for each in members if each.path[-1] == name])
        absent |= {path: rows for path, rows in located.items() if path[0] in types and len(path) > 1}
        unclear |= others
    for row in np.flatnonzero(unclear).tolist():
        record = decode_value(data[spans.starts[row] : spans.ends[row]].decode())
        for name, type_ in types.items():
            for path in absent_fields(record.get(name), type_, (name,)):
                absent.setdefault(path, np.zeros(table.num_rows, bool))[row] = True
    lines = split.line + np.searchsorted(line_ends(data), spans.starts)
    return {path: from_numpy(lines, rows) for path, rows in absent.items() if rows.any()}


def _all_members(table: pa.Table, known: set[str], lacking: dict[Path, pa.Array]) -> Iterator[_Member]:
    """Yield all columns and the fields inside them. It is known which records lack some of the columns."""
    owners = np.arange(table.num_rows)
    for name in table.column_names:
        array = table.column(name).combine_chunks()
        if name in known:
            present = owners[to_numpy(lacking[(name,)].is_null())] if (name,) in lacking else owners
            yield _Member((name,), present, owners[:0])
        else:
            yield _Member((name,), owners, owners[to_numpy(array.is_null())])
        yield from _members(array, (name,), owners)


def _without_escapes(data: bytes) -> bytes | None:
    """Replace escapes in text, so that each quote begins or ends a string. Return None if a name has an escape."""
    if b"\\" not in data:
        return data
    text = data.replace(b"\\\\", b"\0\0").replace(b'\\"', b"\0\0")
    return None if re.search(rb'[\\\0][^"\\\0]*"\s*:', text) else text


def _is_plain(name: str) -> bool:
    return re.match(r"\w", name) is not None and b"\\" not in spelled_name(name)


def _expected_fields(
    table: pa.Table, inside: dict[str, list[_Count]], lacking: dict[Path, pa.Array]
) -> collections.Counter[str]:
    """Count the records and objects that should have a field of each name."""
    expected: collections.Counter[str] = collections.Counter()
    for name in table.column_names:
        expected[name] += lacking[(name,)].null_count if (name,) in lacking else table.num_rows
        for count in inside[name] if name in inside else _counts(table.column(name).combine_chunks(), (name,)):
            expected[count.path[-1]] += count.objects
    return expected


def _is_complete(name: str, text: bytes | None, objects: int) -> bool:
    """Return True if the text has a field of this name for each of the records and objects that should have it."""
    return text is not None and _is_plain(name) and text.count(spelled_name(name) + b":") == objects


def _locate(
    name: str, text: bytes | None, starts: np.ndarray, members: Sequence[_Member]
) -> tuple[dict[Path, np.ndarray], np.ndarray]:
    """Find the records in which fields of this name are absent, and those which only decoding can tell."""
    rows = len(starts)
    nulls = [np.bincount(member.nulls, minlength=rows) for member in members]
    every = np.sum(nulls, axis=0)
    if text is None or not _is_plain(name):
        return {}, every > 0
    present = np.bincount(np.searchsorted(starts, _field_offsets(name, text), "right") - 1, minlength=rows)
    absent = np.sum([np.bincount(member.objects, minlength=rows) for member in members], axis=0) - present
    # Either all NULLs of a record are absent fields, or those of one member are the only NULLs.
    found = {
        member.path: (absent > 0) & (own > 0) & ((absent == every) | (own == every))
        for member, own in zip(members, nulls, strict=True)
    }
    return found, (absent > 0) & ~np.any(list(found.values()), axis=0)
