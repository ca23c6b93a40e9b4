"""What is wrong with a source that Arrow cannot read, in words, and what helps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from inlay.errors import UnreadableSourceError

__all__ = ["unreadable"]


class _Fault(NamedTuple):
    """What Arrow says of a file that it cannot read, what that means, and what helps."""

    said: re.Pattern[str]
    meaning: Callable[[re.Match[str]], str]
    hint: str


def _misfit(found: re.Match[str]) -> str:
    line = f"line {found['line']}, " if found["line"] else ""
    return f"{line}column {int(found['column']) + 1}: {found['value']!r} is no {found['type']}"


_FILE = re.compile(r"Could not read schema from ('.*?')\. Is this an? '")
_FAULTS = (
    _Fault(
        re.compile(
            r"In CSV column #(?P<column>\d+): (?:Row #(?P<line>\d+): )?"
            r"CSV conversion error to (?P<type>.+?): invalid value '(?P<value>.*)'"
        ),
        _misfit,
        "Correct it. An empty cell is NULL; `inlay upload` can set rows aside that do not fit.",
    ),
    _Fault(
        re.compile("Empty CSV file"),
        lambda _: "it is empty",
        "A CSV file begins with a line that names its columns.",
    ),
    _Fault(
        re.compile("Parquet magic bytes not found|Parquet file size is"),
        lambda _: "it is no Parquet file",
        "Files named .csv, .json, .jsonl or .ndjson are read as text, all others as Parquet.",
    ),
    _Fault(
        re.compile(r"Column\(\) changed from object to array"),
        lambda _: "it is one JSON array",
        "JSON is read with an object in each line: jq -c '.[]' makes that of an array.",
    ),
)


def unreadable(error: Exception) -> UnreadableSourceError:
    said = str(error).splitlines()[0]
    file = _FILE.search(said)
    name = f"The source {file[1]}" if file else "The source"
    for fault in _FAULTS:
        if found := fault.said.search(said):
            return UnreadableSourceError(f"{name} cannot be read: {fault.meaning(found)}.", hint=fault.hint)
    return UnreadableSourceError(f"The source cannot be read: {said}")
