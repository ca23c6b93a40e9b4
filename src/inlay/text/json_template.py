"""Read JSON records that repeat a template, without a parser.

Programs write the same names in the same order, with the same blanks, in every record. The text around the values of a
record is then its template, and the quotes of the record tell where each value begins and ends. inlay cuts all values
out of the text at once, and compares all other text with the template. So a match proves the structure of every record.
Any other record, such as one with a missing field or a nested value, needs a parser.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.schema import family
from inlay.text.cells import CellText, Reading, convert
from inlay.text.json_objects import unescaped_quotes
from inlay.text.records import positions_of

__all__ = ["read_templated"]

_FIRST_BLOCK = 64 << 10  # shows quickly whether the records repeat a template
_BLOCK = 4 << 20  # positions in larger blocks exceed the processor's cache
_CACHED = 256 << 10
_FIRST_PRINTABLE = 32
_SHORT_COLUMN = 1_000
_FIELD = re.compile(
    rb'[ \t]*(?P<spelled>(?P<name>"[^"\\]*(?:\\.[^"\\]*)*")[ \t]*:[ \t]*)'
    rb'(?:"(?P<text>[^"\\]*(?:\\.[^"\\]*)*)"|(?P<bare>[^\s",:{}\[\]]+))[ \t]*'
)
_OPEN, _CLOSE = re.compile(rb"[ \t]*\{"), re.compile(rb"\}[ \t]*\r?\n")
_NULL, _NULL_TEXT = b"null", b'"\0\0"'  # the text stands for null in a column of text, and is invalid in JSON
_NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
_Block: TypeAlias = bytes | memoryview


def read_templated(text: bytes, schema: pa.Schema) -> list[pa.Table] | None:
    """Read lines of JSON, or return None if they do not repeat a template.

    The result is also None if a field is not in the schema, or if its type does not hold a value exactly.
    """
    text = text if text.endswith(b"\n") else text + b"\n"
    template = _Template.of(text[: text.index(b"\n") + 1], schema)
    if template is None:
        return None
    tables: list[pa.Table] = []
    has_nulls = False
    for block in _blocks(text, _BLOCK * (1 + len(template.fields) // 100)):
        table = None if has_nulls else template.read(block)
        if table is None:
            has_nulls = True
            table = template.read(*template.with_marked_nulls(block))
        if table is None:
            return None
        tables.append(table)
    return tables


def _blocks(text: bytes, later: int) -> Iterator[memoryview]:
    """Cut lines into blocks. The first one is small, so that other text is found quickly."""
    view, start, size = memoryview(text), 0, _FIRST_BLOCK
    while start < len(text):
        end = text.rfind(b"\n", start, start + size) + 1 or text.index(b"\n", start) + 1
        yield view[start:end]
        start, size = end, later


# -------------------------------------------------------------------------------------------------------- template
class _Field(NamedTuple):
    """A field of a template. Its value stands between the quotes number `quote` and `quote + 1` of a record."""

    name: str
    spelled: bytes  # the name with its quotes, the colon and blanks
    is_text: bool
    quote: int
    after: int  # bytes from the start of that quote to the value
    before: int  # bytes from the end of the value to the next quote


@dataclass(frozen=True)
class _Template:
    """The text around the values of a record: `gaps` before, between and behind them."""

    fields: list[_Field]
    gaps: list[bytes]
    schema: pa.Schema

    @classmethod
    def of(cls, line: bytes, schema: pa.Schema) -> _Template | None:
        """Return the template of a line, or None unless it is an object without nested values and unknown fields."""
        template = cls._of(line, schema)
        if template is None:
            return None
        return cls._of(bytes(template.with_marked_nulls(line)[0]), schema)

    @classmethod
    def _of(cls, line: bytes, schema: pa.Schema) -> _Template | None:
        opened = _OPEN.match(line)
        found: list[re.Match[bytes]] = []
        at = opened.end() if opened else 0
        while match := _FIELD.match(line, at):
            found.append(match)
            at = match.end() + (line[match.end() : match.end() + 1] == b",")
        if not opened or not found or at != found[-1].end() or not _CLOSE.fullmatch(line, at):
            return None
        try:
            names = [json.loads(match["name"]) for match in found]
        except ValueError:
            return None
        if len(set(names)) < len(names) or not set(names) <= set(schema.names):
            return None
        spans = [match.span("bare" if match["text"] is None else "text") for match in found]
        gaps = [line[a:b] for a, b in zip([0, *(end for _, end in spans)], [*(a for a, _ in spans), None], strict=True)]
        quotes = np.cumsum([gap.count(b'"') for gap in gaps]).tolist()
        fields = [
            _Field(
                names[number],
                match["spelled"],
                match["text"] is not None,
                quotes[number] - 1,
                len(gaps[number]) - gaps[number].rindex(b'"'),
                (gaps[number + 1] + gaps[0]).index(b'"'),
            )
            for number, match in enumerate(found)
        ]
        return cls(fields, gaps, schema)

    def with_marked_nulls(self, block: _Block) -> tuple[_Block, int]:
        """Replace each null in a column of text with a text of the same length. Also return the number of nulls.

        In valid JSON, only a field has a name in quotes before a colon. In other text, the record with such a
        replacement has more quotes than the template, or other text between them.
        """
        array = np.frombuffer(block, np.uint8)
        initials = positions_of(array, _NULL[0])
        nulls = initials[_holds(array, initials, _NULL)]
        texts = {field.name for field in self.schema if pa.types.is_string(field.type)}
        spelled: dict[int, list[bytes]] = {}  # by length
        for field in self.fields if len(nulls) else ():
            if field.name in texts:
                spelled.setdefault(len(field.spelled), []).append(field.spelled)
        marked = [_preceded(array, nulls, length, names) for length, names in spelled.items()]
        at = np.concatenate([*marked, np.zeros(0, np.int64)])
        array = array.copy()
        for offset, byte in enumerate(_NULL_TEXT):
            array[at + offset] = byte
        return array.data, len(at)

    def read(self, block: _Block, marked: int = 0) -> pa.Table | None:
        """Return the values of a block of lines with `marked` NULLs, or None if they differ from the template."""
        array = np.frombuffer(block, np.uint8)
        pieces = self._cut(block, unescaped_quotes(array))
        if pieces is None:
            return None
        controls = pieces.records * sum(byte < _FIRST_PRINTABLE for gap in self.gaps for byte in gap)
        if _count_controls(array) != controls + marked * _NULL_TEXT.count(b"\0"):
            return None
        found: dict[str, pa.Array] = {}
        for type_, is_text, numbers in self._groups(pieces.records):
            values = pieces.values(numbers)
            parsed = _read_text(values, type_, has_marks=marked > 0) if is_text else _read_bare(values, type_)
            if parsed is None:
                return None
            for at, number in enumerate(numbers):
                found[self.fields[number].name] = parsed[at * pieces.records : (at + 1) * pieces.records]
        columns = [found[f.name] if f.name in found else pa.nulls(pieces.records, f.type) for f in self.schema]
        return pa.table(columns, schema=self.schema)

    def _groups(self, records: int) -> Iterator[tuple[pa.DataType, bool, list[int]]]:
        """Group the numbers of the fields that are read together: few values of the same type."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        types = dict(zip(self.schema.names, self.schema.types, strict=True))
        for number, field in enumerate(self.fields):
            alone = number if records > _SHORT_COLUMN else None
            groups.setdefault((types[field.name], field.is_text, alone), []).append(number)
        for (type_, is_text, _), numbers in groups.items():
            yield type_, is_text, numbers

    def _cut(self, block: _Block, quotes: np.ndarray) -> _Pieces | None:
        """Cut all records into gaps and values, or return None if a record differs from the template."""
        records, rest = divmod(len(quotes), sum(gap.count(b'"') for gap in self.gaps))
        if rest or not records:
            return None
        grid = quotes.reshape(records, -1)
        offsets = np.empty(records * (len(self.gaps) + len(self.fields)) + 1, np.int32)
        bounds = offsets[:-1].reshape(records, -1)
        bounds[:, 0] = grid[:, 0] - self.gaps[0].index(b'"')
        offsets[-1] = len(block)
        for number, field in enumerate(self.fields):
            bounds[:, 2 * number + 1] = grid[:, field.quote] + field.after
            if field.quote + 1 < grid.shape[1]:
                bounds[:, 2 * number + 2] = grid[:, field.quote + 1] - field.before
            else:  # the next quote belongs to the next record
                bounds[:, -1] = offsets[bounds.shape[1] :: bounds.shape[1]] - len(self.gaps[-1])
        lengths = np.diff(offsets).reshape(records, -1)
        if offsets[0] or lengths.min() < 0 or (lengths[:, ::2] != [len(gap) for gap in self.gaps]).any():
            return None
        array = pa.StringArray.from_buffers(bounds.size, pa.py_buffer(offsets), pa.py_buffer(block))
        pieces = _Pieces(array, records, bounds.shape[1])
        return pieces if pieces.repeat(self.gaps) else None


def _holds(array: np.ndarray, starts: np.ndarray, text: bytes) -> np.ndarray:
    """Return a mask of the positions at which the array holds the text."""
    found = (starts >= 0) & (starts + len(text) <= len(array))
    for offset, byte in enumerate(text):
        found[found] = array[starts[found] + offset] == byte
    return found


def _preceded(array: np.ndarray, positions: np.ndarray, length: int, texts: list[bytes]) -> np.ndarray:
    """Return the positions with one of the texts, which all have this length, directly before them."""
    positions = positions[positions >= length]
    before = array[positions[:, None] + np.arange(-length, 0)].view(f"S{length}").ravel()
    return positions[np.isin(before, np.array(texts, f"S{length}"))]


def _count_controls(array: np.ndarray) -> int:
    steps = range(0, len(array), _CACHED)
    return sum(int(np.count_nonzero(array[start : start + _CACHED] < _FIRST_PRINTABLE)) for start in steps)


class _Pieces(NamedTuple):
    """A block as an array: gap, value, gap, value, ..., gap of each record."""

    array: pa.Array
    records: int
    width: int

    def repeat(self, gaps: list[bytes]) -> bool:
        """Return True if the gaps of every record, whose lengths are right, consist of these bytes."""
        at = np.arange(self.records * self.width, dtype=np.int32).reshape(self.records, -1)[:, ::2]
        data = self._take(at.ravel()).buffers()[2]
        size = sum(map(len, gaps))
        found = np.frombuffer(data, np.uint8, self.records * size).reshape(self.records, size)
        return bool((found == np.frombuffer(b"".join(gaps), np.uint8)).all())

    def values(self, numbers: list[int]) -> pa.Array:
        """Return the values of fields, one field after the other."""
        starts = np.arange(0, self.records * self.width, self.width, dtype=np.int32)
        return self._take((2 * np.array(numbers, np.int32)[:, None] + 1 + starts).ravel())

    def _take(self, numbers: np.ndarray) -> pa.Array:
        return pc.take(self.array, pa.array(numbers), boundscheck=False)


# ---------------------------------------------------------------------------------------------------------- values
def _read_text(values: pa.Array, type_: pa.DataType, *, has_marks: bool) -> pa.Array | None:
    if not pa.types.is_string(type_):
        return None
    if has_marks:
        values = _with_nulls(values, _NULL_TEXT[1:-1])
    text = CellText(values)
    backslashes = positions_of(text.data, ord("\\"))
    if not len(backslashes):
        return values
    rows = np.unique(np.searchsorted(text.starts, backslashes, "right") - 1)
    escaped = np.zeros(len(values), bool)
    escaped[rows] = True
    joined = '","'.join(values.take(pa.array(rows)).to_pylist())
    try:
        return pc.replace_with_mask(values, escaped, pa.array(json.loads(f'["{joined}"]'), pa.string()))
    except ValueError:  # an invalid escape, or half of a surrogate pair
        return None


def _read_bare(values: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Read numbers, booleans and null."""
    text = CellText(values)
    if not text.holds_only_digits:
        text = CellText(_with_nulls(values, _NULL))
        if text.values.null_count == len(values):
            return pa.nulls(len(values), type_)
    if not _are_literals(text, type_):
        return None
    converted = convert(text.values, Reading(type_))
    return converted.values if converted.bad is None else None


def _with_nulls(values: pa.Array, null: bytes) -> pa.Array:
    """Replace a text with NULLs, which take no bytes."""
    rows = pa.array(np.arange(len(values), dtype=np.int32))
    return values.take(pc.if_else(pc.equal(values, null.decode()), pa.scalar(None, pa.int32()), rows))


def _are_literals(text: CellText, type_: pa.DataType) -> bool:
    """Return True if all cells are literals of JSON that may have this type."""
    if np.count_nonzero(text.lengths == 0) != text.values.null_count:
        return False
    if pa.types.is_boolean(type_):
        return bool(pc.all(pc.is_in(text.values, pa.array(["true", "false", None]))).as_py())
    if family(type_) not in ("integer", "float", "decimal"):
        return False
    if text.holds_only_digits:
        return not _is_odd(text)
    return bool(pc.all(pc.match_substring_regex(text.values, _NUMBER)).as_py())


def _is_odd(text: CellText) -> bool:
    """Return True if a number of digits, points and minus signs may be invalid in JSON, like 007, .5, -.5 and 5."""
    point = ord(".")
    first, last = text.byte(0), text.data.take(text.starts + text.lengths - 1, mode="clip")
    is_negative = first == ord("-")
    return bool(
        text.has_leading_zero
        or (first == point).any()
        or (last == point).any()
        or (is_negative.any() and (text.byte(1)[is_negative] == point).any())
    )
