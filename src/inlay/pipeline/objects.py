"""Where JSON values begin and end in an array, or one after the other, found without parsing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from inlay.errors import UnreadableUploadError
from inlay.pipeline.decode import Content
from inlay.pipeline.options import Limits
from inlay.pipeline.records import Split, count_line_ends

__all__ = ["Spans", "find_objects", "object_splits"]

_BLOCK = 8 << 20
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_DEPTH = np.zeros(256, np.int8)
_DEPTH[[ord("{"), ord("[")]] = 1
_DEPTH[[ord("}"), ord("]")]] = -1


class Spans(NamedTuple):
    """Objects and arrays at the outermost level: where they start and end, and how much of the text is settled.

    Text behind `end` belongs to a value that is not complete; `closed` is where the enclosing array ends.
    """

    starts: np.ndarray
    ends: np.ndarray
    end: int
    closed: int | None


def find_objects(data: bytes) -> Spans:
    """Scan text that starts outside of any value."""
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
    quotes = np.flatnonzero(array == _QUOTE)
    escaped = quotes[array[np.maximum(quotes - 1, 0)] == _BACKSLASH]
    if len(escaped):
        odd = [at for at in escaped.tolist() if _backslashes(array, at) % 2]
        quotes = np.setdiff1d(quotes, np.array(odd, np.int64), assume_unique=True)
    held: np.ndarray = np.searchsorted(quotes, positions) % 2 == 1
    return held


def _backslashes(array: np.ndarray, at: int) -> int:
    count = 0
    while count < at and array[at - count - 1] == _BACKSLASH:
        count += 1
    return count


def object_splits(
    content: Content, start: int, line: int, split_bytes: int, limits: Limits, *, in_array: bool
) -> list[Split]:
    """Splits that hold whole values, with what stands between them."""
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
                raise UnreadableUploadError(f"A record is larger than {limits.record_bytes:,} bytes.")
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
                _check_rest(held[1:] + file.read(1 << 20), line, in_array=in_array)
                yield position, line
                return
    if in_array:
        raise UnreadableUploadError("The array is never closed: the file seems to be cut short.")
    yield position + len(held), line


def _check_rest(rest: bytes, line: int, *, in_array: bool) -> None:
    if not in_array or rest.strip():
        raise UnreadableUploadError(f"Line {line}: a bracket closes what was never opened, or text follows the array.")
