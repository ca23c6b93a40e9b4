"""Find the records of delimited text, whose quoted fields may contain line ends.

A quote opens only at the start of a field; a quote inside a field (5" pipe) is an ordinary character, so counting
quotes is not enough. The scan assumes that opening and closing quotes alternate, checks this for a whole block at once,
and walks from quote to quote only in blocks that fail the check.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

import numpy as np

from inlay.errors import UnreadableUploadError
from inlay.text.decode import Content
from inlay.text.options import Limits

__all__ = [
    "Dialect",
    "Records",
    "Split",
    "count_byte",
    "count_line_ends",
    "cut_blocks",
    "ends_in_escape",
    "find_records",
    "line_ends",
    "make_splits",
    "open_quote",
    "positions_of",
    "scan_quotes",
]

_LF, _CR = 10, 13
_BLOCK = 256 << 10  # stays in the processor's cache
_CACHED = 256 << 10


@dataclass(frozen=True, slots=True)
class Dialect:
    """The special characters of delimited text; an empty string means none."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""


class Split(NamedTuple):
    """Whole records: the bytes from `start` to `end`, beginning on physical line `line`.

    Only the `last` split can contain an unclosed quote; every other split ends between records.
    """

    number: int
    start: int
    end: int
    line: int
    last: bool = True


class Quotes(NamedTuple):
    """Quoted spans in ascending order. `inside` is True if the last span is still open at the end."""

    opens: np.ndarray
    closes: np.ndarray
    inside: bool

    def hold(self, positions: np.ndarray) -> np.ndarray:
        """Return a mask of the positions inside quotes."""
        span = np.searchsorted(self.opens, positions, "right") - 1
        known = span >= 0
        held = np.zeros(len(positions), bool)
        held[known] = positions[known] <= self.closes[span[known]]
        return held

    @property
    def opened(self) -> int:
        """Return where the last quoted field opens. A doubled quote closes and reopens a span."""
        at = len(self.opens) - 1
        while at > 0 and self.opens[at] == self.closes[at - 1] + 1:
            at -= 1
        return int(self.opens[at])


def scan_quotes(data: bytes, dialect: Dialect, *, inside: bool = False) -> Quotes:
    """Return the quoted spans of a block that begins at the start of a line."""
    if not dialect.quote:
        return Quotes(np.zeros(0, np.int64), np.zeros(0, np.int64), inside=False)
    array = np.frombuffer(data, np.uint8)
    at = positions_of(array, ord(dialect.quote))
    if dialect.escape:
        escaped = _escaped(data, dialect.escape)
        at = np.setdiff1d(at, escaped, assume_unique=True)
        array = array.copy()
        array[escaped] = ord(dialect.escape)  # an escaped character neither starts nor ends a field
    ends = at[0 if inside else 1 :: 2]
    starts = at[1 if inside else 0 :: 2]
    if not _alternate(array, starts, ends, dialect):
        starts, ends = _walk(array, at, dialect, inside=inside)
    return _spans(starts, ends, len(data), inside=inside)


def positions_of(array: np.ndarray, byte: int) -> np.ndarray:
    """Find a byte, in steps that stay in the processor's cache."""
    steps = range(0, len(array), _CACHED)
    found = [np.flatnonzero(array[start : start + _CACHED] == byte) + start for start in steps]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def count_byte(array: np.ndarray, byte: int) -> int:
    """Count a byte, in steps that stay in the processor's cache."""
    steps = range(0, len(array), _CACHED)
    return sum(int(np.count_nonzero(array[start : start + _CACHED] == byte)) for start in steps)


def _spans(starts: np.ndarray, ends: np.ndarray, size: int, *, inside: bool) -> Quotes:
    opens = np.concatenate([[-1], starts]) if inside else starts
    still_open = len(opens) > len(ends)
    return Quotes(opens, np.concatenate([ends, [size]]) if still_open else ends, still_open)


def _alternate(array: np.ndarray, starts: np.ndarray, ends: np.ndarray, dialect: Dialect) -> bool:
    """Return True if every opening quote starts a field, and every closing quote ends one or is doubled."""
    allowed = np.zeros(256, bool)
    allowed[[_LF, _CR, ord(dialect.delimiter), ord(dialect.quote)]] = True
    before = array[starts[starts > 0] - 1]
    after = array[ends[ends < len(array) - 1] + 1]
    if not (allowed[before].all() and allowed[after].all()):
        return False
    # An opening quote directly after a quote continues a field only if that quote is the previous closing quote.
    doubled = starts[starts > 0][before == ord(dialect.quote)]
    return not len(doubled) or bool(np.isin(doubled - 1, ends).all())


def _walk(array: np.ndarray, at: np.ndarray, dialect: Dialect, *, inside: bool) -> tuple[np.ndarray, np.ndarray]:
    """Walk from quote to quote, for text whose quotes do not alternate."""
    starts_field = {_LF, _CR, ord(dialect.delimiter)}
    before = array[np.maximum(at - 1, 0)].tolist()
    positions = at.tolist()
    starts, ends = [], []
    number = 0
    while number < len(positions):
        position = positions[number]
        if not inside:
            if position == 0 or before[number] in starts_field:
                starts.append(position)
                inside = True
        elif number + 1 < len(positions) and positions[number + 1] == position + 1:
            number += 1
        else:
            ends.append(position)
            inside = False
        number += 1
    return np.array(starts, np.int64), np.array(ends, np.int64)


def _escaped(data: bytes, escape: str) -> np.ndarray:
    pattern = re.compile(re.escape(escape.encode()) + b".", re.DOTALL)
    return np.array([match.start() + 1 for match in pattern.finditer(data)], np.int64)


def count_line_ends(data: bytes | memoryview) -> int:
    """Count physical line ends: LF, CR LF and lone CR."""
    array = np.frombuffer(data, np.uint8)
    count = count_byte(array, _LF)
    if returns := count_byte(array, _CR):
        pairs = (array[:-1] == _CR) & (array[1:] == _LF)
        count += returns - int(np.count_nonzero(pairs))
    return count


def line_ends(data: bytes) -> np.ndarray:
    """Return the position of the last byte of every line end."""
    array = np.frombuffer(data, np.uint8)
    ends = array == _LF
    if b"\r" in data:
        lone = array == _CR
        lone[:-1] &= array[1:] != _LF
        ends = ends | lone
    return np.flatnonzero(ends)


# --------------------------------------------------------------------------------------------------------- records
class Records(NamedTuple):
    """The records of a split that are not blank: start, end without the line end, and line."""

    starts: np.ndarray
    ends: np.ndarray
    lines: np.ndarray


def find_records(data: bytes, dialect: Dialect, first_line: int) -> Records:
    lines = line_ends(data)
    escaped = _escaped(data, dialect.escape) if dialect.escape else np.empty(0, np.int64)
    cuts = np.setdiff1d(lines[~scan_quotes(data, dialect).hold(lines)], escaped, assume_unique=True)
    starts = np.concatenate([[0], cuts + 1])
    ends = np.concatenate([cuts, [len(data)]])
    array = np.frombuffer(data, np.uint8)
    crlf = (ends > starts) & (ends < len(data))
    crlf[crlf] = (array[ends[crlf]] == _LF) & (array[ends[crlf] - 1] == _CR) & ~np.isin(ends[crlf] - 1, escaped)
    ends = ends - crlf
    filled = ends > starts
    starts, ends = starts[filled], ends[filled]
    return Records(starts, ends, first_line + np.searchsorted(lines, starts))


def ends_in_escape(data: bytes, dialect: Dialect) -> bool:
    """Return True if the data ends with an escape that has nothing to escape."""
    if not dialect.escape:
        return False
    stripped = data.rstrip(dialect.escape.encode())
    return (len(data) - len(stripped)) % 2 == 1


def open_quote(data: bytes, dialect: Dialect) -> int | None:
    """Return where an unclosed quote opens, or None."""
    if not dialect.quote or dialect.quote.encode() not in data:
        return None
    quotes = scan_quotes(data, dialect)
    return quotes.opened if quotes.inside else None


# ---------------------------------------------------------------------------------------------------------- splits
def make_splits(
    content: Content, dialect: Dialect, start: int, line: int, split_bytes: int, limits: Limits
) -> list[Split]:
    """Cut the content between records into splits of about `split_bytes`. Do not scan a single split."""
    if content.size - start <= split_bytes:
        return [Split(0, start, content.size, line)] if content.size > start else []
    splits: list[Split] = []
    with content.open() as file:
        file.seek(start)
        for end, ended in _cuts(file, dialect, start, line, split_bytes, limits):
            splits.append(Split(len(splits), start, end, line, last=end == content.size))
            start, line = end, ended
    return splits


def _cuts(
    file: BinaryIO, dialect: Dialect, start: int, line: int, split_bytes: int, limits: Limits
) -> Iterator[tuple[int, int]]:
    """Yield the end of each split and the physical line that follows it."""
    last, position, inside, suspect = start, start, False, line
    held = b""
    while block := file.read(max(_BLOCK, len(held))):  # growing blocks avoid copying a long line repeatedly
        data = held + block
        whole = _whole_lines(data, dialect)
        if position + len(data) - last > split_bytes + limits.record_bytes:
            raise _too_large(suspect if inside else line, limits)
        data, held = data[:whole], data[whole:]
        view = memoryview(data)
        quotes = scan_quotes(data, dialect, inside=inside)
        opens, closes = quotes.opens.tolist(), quotes.closes.tolist()
        if quotes.inside and quotes.opened >= 0:
            suspect = line + count_line_ends(view[: quotes.opened])
        done = 0
        while (cut := _cut(data, opens, closes, last + split_bytes - position - 1, dialect)) is not None:
            line += count_line_ends(view[done:cut])
            last, done = position + cut, cut
            yield last, line
        line += count_line_ends(view[done:])
        position += len(data)
        inside = quotes.inside
    if position + len(held) > last:
        yield position + len(held), line


def _whole_lines(data: bytes, dialect: Dialect) -> int:
    """Return the length of a block up to its last unescaped line end."""
    end = len(data)
    while (found := data.rfind(b"\n", 0, end)) >= 0:
        if not dialect.escape or data[found - 1 : found] != dialect.escape.encode():
            return found + 1
        end = found
    # Use lone CRs only if there are no LFs. The last byte may be half of a CR LF.
    return data.rfind(b"\r", 0, len(data) - 1) + 1 if not dialect.escape else 0


def _cut(data: bytes, opens: list[int], closes: list[int], target: int, dialect: Dialect) -> int | None:
    """Return the end of the first record that ends at or after `target`."""
    at = max(target, 0)
    end_of_line = b"\n" if data.find(b"\n", at) >= 0 else b"\r"
    while (found := data.find(end_of_line, at)) >= 0:
        span = bisect.bisect_right(opens, found) - 1
        if span >= 0 and found <= closes[span]:
            at = max(closes[span], found) + 1
        elif dialect.escape and data[found - 1 : found] == dialect.escape.encode():
            at = found + 1
        else:
            return found + 1
    return None


def cut_blocks(data: bytes, dialect: Dialect, size: int) -> Iterator[memoryview]:
    """Cut the data of a split between records into blocks of at least `size` bytes, except the last one."""
    view, start = memoryview(data), 0
    if len(data) > size:
        quotes = scan_quotes(data, dialect)
        opens, closes = quotes.opens.tolist(), quotes.closes.tolist()
        while len(data) - start > size and (end := _cut(data, opens, closes, start + size - 1, dialect)) is not None:
            yield view[start:end]
            start = end
    if start < len(data) or not data:
        yield view[start:]


def _too_large(line: int, limits: Limits) -> UnreadableUploadError:
    return UnreadableUploadError(
        f"The record that starts in line {line} exceeds {limits.record_bytes:,} bytes.",
        hint="Check for a quote that is never closed: it turns the rest of the file into one record.",
    )
