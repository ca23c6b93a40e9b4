"""JSON by Arrow's parser with an explicit schema: all of a split at once, or nothing of it.

It would round numbers that a double cannot hold, so text with long numbers is checked first; and it stops at the first
thing that does not fit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from inlay.pipeline.cells import convert
from inlay.pipeline.exact import are_kept
from inlay.pipeline.fitting import DATED
from inlay.pipeline.kinds import Kind, type_of
from inlay.pipeline.objects import find_objects, has_plain_gaps
from inlay.pipeline.plan import Column, schema_of
from inlay.pipeline.records import Split, positions_of
from inlay.schema import family

__all__ = ["read_at_once"]

_BLANK = np.zeros(256, bool)
_BLANK[list(b" \t\r\n")] = True
_CACHED = 256 << 10  # so much at a time stays in the processor's cache
_LONGEST_RUN = 16
_ODD_NUMBER = re.compile(rb"(?<=[:\[, \t\r\n])-?[0-9](?:[0-9.]{14,}(?:[eE][+-]?[0-9]+)?|[0-9.]*[eE][+-]?[0-9]+)")
_TEXTUAL = frozenset({"text", "date", "timestamp"})
_PARSED_BY_ARROW = frozenset({"boolean", "integer"})
_MOST_SCALE = {128: 38 - _LONGEST_RUN, 256: 76 - _LONGEST_RUN}  # beyond it even shorter numbers may wrap around


def read_at_once(data: bytes, columns: Sequence[Column], split: Split, layout: str) -> pa.Table | None:
    """All of a split by Arrow's parser, or None if anything in it needs a closer look."""
    physical = [_physical(column) for column in columns]
    text = data if layout == "lines" else _as_lines(data, split, layout)
    if not columns or not text or any(type_ is None for type_ in physical):
        return None
    inexact = {leaf for type_ in physical for leaf in _leaves(type_) if family(leaf) in ("float", "decimal")}
    if inexact and not _are_numbers_kept(text, inexact):
        return None
    schema = pa.schema([pa.field(c.name, type_) for c, type_ in zip(columns, physical, strict=True)])
    try:
        table = pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
        )
        table.validate()  # of several NULLs in a list, Arrow's parser keeps one
    except pa.ArrowException:
        return None
    return _typed(table, columns) if table.num_rows == _count_lines(text) else None


def _physical(column: Column) -> pa.DataType | None:
    """What Arrow's parser is to make of a column; None if it cannot."""
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
    """Places without any value are null: the first value there needs a closer look."""
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
        return type_.bit_width in _MOST_SCALE and type_.scale <= _MOST_SCALE[type_.bit_width]
    return family(type_) in _PARSED_BY_ARROW or type_ in (pa.string(), pa.float64())


def _typed(table: pa.Table, columns: Sequence[Column]) -> pa.Table | None:
    typed = []
    for column, values in zip(columns, table.columns, strict=True):
        array = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
        if not array.type.equals(column.type) or column.length is not None:
            array = _converted(array, column)
        if array is None or _exceeds_precision(array) or (array.null_count and not column.nullable):
            return None
        typed.append(array)
    return pa.table(typed, schema=schema_of(columns))


def _exceeds_precision(array: pa.Array) -> bool:
    """Arrow's parser minds the scale of a decimal, but not its digits: 4 passes for a decimal(1,1)."""
    if pa.types.is_list(array.type):
        return _exceeds_precision(array.flatten())
    if pa.types.is_struct(array.type):
        return any(map(_exceeds_precision, array.flatten()))
    if not pa.types.is_decimal(array.type):
        return False
    limit = Decimal(10) ** (array.type.precision - array.type.scale)
    return any(bound is not None and not -limit < bound < limit for bound in pc.min_max(array).as_py().values())


def _converted(array: pa.Array, column: Column) -> pa.Array | None:
    if array.type.equals(pa.string()):
        return _convert_text(array, column)
    return _narrowed(array) if column.type.equals(pa.float32()) else array.cast(column.type)


def _narrowed(doubles: pa.Array) -> pa.Array | None:
    """As 32 bits, unless that makes another number of one that may have been an integer, or nothing of a small one."""
    array = doubles.cast(pa.float32())
    before, after = (values.cast(pa.float64()).fill_null(0).to_numpy() for values in (doubles, array))
    lost = (before != after) & ((before == np.trunc(before)) | (after == 0) | np.isinf(after))
    return None if lost[~np.isnan(before)].any() else array


def _convert_text(array: pa.Array, column: Column) -> pa.Array | None:
    """Text into dates and the like; unlike in a table of text, an empty text is not NULL."""
    if family(column.type) != "text" and pc.any(pc.equal(pc.binary_length(array), 0)).as_py():
        return None
    converted = convert(array, column.reading)
    return converted.values if converted.bad is None else None


def _as_lines(data: bytes, split: Split, layout: str) -> bytes | None:
    """The values of a split, one in a line; None if there is anything else in it."""
    spans = find_objects(data)
    if not has_plain_gaps(data, spans, split, layout):
        return None
    lines = [data[start:end] for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)]
    return b"\n".join(line.replace(b"\n", b"\t") for line in lines)  # within a text both are wrong, a blank is not


def _count_lines(text: bytes) -> int:
    """Lines that are not blank."""
    array = np.frombuffer(text, np.uint8)
    ends = positions_of(array, ord("\n"))
    after = array[ends[ends < len(array) - 1] + 1]
    if text[:1].isspace() or _BLANK[after].any():
        return sum(1 for line in text.split(b"\n") if line.strip())
    return len(ends) + (0 if text.endswith(b"\n") else 1)


def _are_numbers_kept(text: bytes, types: Iterable[pa.DataType]) -> bool:
    """Whether Arrow keeps all the numbers: only those of 16 digits and more, and with exponents, may change."""
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
