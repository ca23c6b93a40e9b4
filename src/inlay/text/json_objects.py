"""Find the boundaries of JSON values in an array or in sequence, without parsing them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

import numpy as np

from inlay.errors import UnreadableUploadError
from inlay.text.decode import Content
from inlay.text.options import Limits
from inlay.text.records import Split, count_line_ends, positions_of

__all__ = ["Spans", "find_elements", "find_objects", "has_plain_gaps", "object_splits", "unescaped_quotes"]


_BLOCK = 8 << 20
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_DEPTH = np.zeros(256, np.int8)
_DEPTH[[ord("{"), ord("[")]] = 1
_DEPTH[[ord("}"), ord("]")]] = -1
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[^,"]+|,', re.DOTALL)


class Spans(NamedTuple):
    """Start and end of the outermost objects and arrays.

    Text after `end` belongs to an incomplete value. `closed` is where the enclosing array ends.
    """

    starts: np.ndarray
    ends: np.ndarray
    end: int
    closed: int | None


def find_objects(data: bytes) -> Spans:
    """Find the values in text that begins outside any value."""
    array = np.frombuffer(data, np.uint8)
    brackets = np.flatnonzero(_DEPTH[array])
    brackets = brackets[~_in_strings(array, brackets)]
    steps = _DEPTH[array[brackets]]
    depth = np.cumsum(steps, dtype=np.int64)
    below = np.flatnonzero(depth < 0)
    closed = None
    if len(below):
        closed = int(brackets[below[0]])
        brackets, steps, depth = brackets[: below[0]], steps[: below[0]], depth[: below[0]]
    starts = brackets[(depth == 1) & (steps == 1)]
    ends = brackets[(depth == 0) & (steps == -1)] + 1
    starts = starts[: len(ends)]
    return Spans(starts, ends, int(ends[-1]) if len(ends) else 0, closed)


def _in_strings(array: np.ndarray, positions: np.ndarray) -> np.ndarray:
    held: np.ndarray = np.searchsorted(unescaped_quotes(array), positions) % 2 == 1
    return held


def unescaped_quotes(array: np.ndarray) -> np.ndarray:
    """Return the positions of the quotes that no backslash escapes."""
    quotes, backslashes = positions_of(array, _QUOTE), positions_of(array, _BACKSLASH)
    if not len(backslashes):
        return quotes
    numbers = np.arange(len(backslashes))
    first = np.diff(backslashes, prepend=-2) != 1  # of consecutive backslashes
    in_row = numbers - np.maximum.accumulate(np.where(first, numbers, 0))
    escaped = backslashes[in_row % 2 == 0] + 1
    escaped = escaped[array.take(escaped, mode="clip") == _QUOTE]
    return np.delete(quotes, np.searchsorted(quotes, escaped)) if len(escaped) else quotes


# -------------------------------------------------------------------------------------------------------- elements
def has_plain_gaps(data: bytes, spans: Spans, split: Split, layout: str) -> bool:
    """Return True if a split contains only objects, blanks and correct commas."""
    comma = b"," if layout == "array" else b""
    wanted = [b"" if split.number == 0 else comma, *[comma] * (len(spans.starts) - 1), b""]
    if not len(spans.starts):
        wanted = [b""]
    return all(data[a:b].strip() == between for (a, b), between in zip(_gaps(data, spans), wanted, strict=True))


def _gaps(data: bytes, spans: Spans) -> Iterator[tuple[int, int]]:
    return zip([0, *spans.ends.tolist()], [*spans.starts.tolist(), len(data)], strict=True)


def find_elements(data: bytes, split: Split, layout: str) -> Iterator[tuple[int, int]]:
    """Yield the boundaries of the values of a split, and of any other text among them, in order.

    In an array, such text is the part between two commas; missing or extra commas raise an error.
    """
    spans = find_objects(data)
    values = [*zip(spans.starts.tolist(), spans.ends.tolist(), strict=True), None]
    is_behind = split.number > 0
    for (start, end), value in zip(_gaps(data, spans), values, strict=True):
        if layout == "array":
            yield from _between(data, start, end, split, is_behind=is_behind, is_before=value is not None)
        elif text := _stripped(data, start, end):
            yield text
        if value is not None:
            yield value
        is_behind = True


def _between(
    data: bytes, start: int, end: int, split: Split, *, is_behind: bool, is_before: bool
) -> Iterator[tuple[int, int]]:
    """Yield the scalar values in the gap between two objects or arrays."""
    pieces = _pieces(data, start, end)
    if len(pieces) == 1 and not is_behind and not is_before and _stripped(data, *pieces[0]) is None:
        return  # an empty array
    for number, piece in enumerate(pieces):
        ends_value, starts_value = is_behind and number == 0, is_before and number == len(pieces) - 1
        found = _stripped(data, *piece)
        if ends_value or starts_value:
            if found or (ends_value and starts_value):
                at = found[0] if found else piece[1]
                raise _misplaced(data, at, split, "a comma is missing between two values")
        elif found is None:
            raise _misplaced(data, piece[1], split, "a value is missing next to a comma")
        else:
            yield found


def _pieces(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Split the text at commas outside strings."""
    commas = [m.start() for m in _TOKEN.finditer(data, start, end) if m[0] == b","]
    return list(zip([start, *(comma + 1 for comma in commas)], [*commas, end], strict=True))


def _stripped(data: bytes, start: int, end: int) -> tuple[int, int] | None:
    text = data[start:end].lstrip()
    start = end - len(text)
    return (start, start + len(text.rstrip())) if text else None


def _misplaced(data: bytes, at: int, split: Split, reason: str) -> UnreadableUploadError:
    return _invalid(split.line + count_line_ends(data[:at]), split.start + at, reason)


def _invalid(line: int, offset: int, reason: str) -> UnreadableUploadError:
    return UnreadableUploadError(f"Invalid JSON in line {line}, at byte {offset} of the file: {reason}.")


# ---------------------------------------------------------------------------------------------------------- splits
def object_splits(
    content: Content, start: int, line: int, split_bytes: int, limits: Limits, *, in_array: bool
) -> list[Split]:
    """Cut the content between values into splits."""
    splits: list[Split] = []
    for end, ended in _cuts(content, start, line, split_bytes, limits, in_array=in_array):
        if end > start:
            splits.append(Split(len(splits), start, end, line))
        start, line = end, ended
    return splits


def _cuts(
    content: Content, start: int, line: int, split_bytes: int, limits: Limits, *, in_array: bool
) -> Iterator[tuple[int, int]]:
    last, position, held = start, start, b""
    with content.open() as file:
        file.seek(start)
        while block := file.read(_BLOCK):
            data = held + block
            spans = find_objects(data)
            if len(data) - spans.end > limits.record_bytes:
                raise UnreadableUploadError(
                    f"The record that starts after line {line} exceeds {limits.record_bytes:,} bytes."
                )
            settled = spans.end if spans.closed is None else spans.closed
            done = 0
            for end in spans.ends.tolist():
                if position + end - last >= split_bytes:
                    line += count_line_ends(data[done:end])
                    last, done = position + end, end
                    yield last, line
            line += count_line_ends(data[done:settled])
            position += settled
            held = data[settled:]
            if spans.closed is not None:
                _check_end(held, file, line, position, in_array=in_array)
                yield position, line
                return
    if in_array:
        reason = "the array is never closed, so the file is probably incomplete"
        raise _invalid(line + count_line_ends(held), content.size, reason)
    yield position + len(held), line


def _check_end(held: bytes, file: BinaryIO, line: int, position: int, *, in_array: bool) -> None:
    """Require a bracket that closes the array, and only blanks after it."""
    if not in_array or held[:1] != b"]":
        raise _invalid(line, position, f"unexpected {held[:1].decode()}")
    block, position = held[1:], position + 1
    while block:
        blank = len(block) - len(block.lstrip())
        if blank < len(block):
            reason = "text follows the array"
            raise _invalid(line + count_line_ends(block[:blank]), position + blank, reason)
        line, position = line + count_line_ends(block), position + len(block)
        block = file.read(_BLOCK)
