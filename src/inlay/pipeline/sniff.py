"""What nobody said about a delimited file: its delimiter, quote and header; and names for its columns."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from inlay.pipeline.cells import infer
from inlay.pipeline.options import ReadOptions

__all__ = ["column_names", "sniff"]

_DELIMITERS = (",", "\t", ";", "|")
_SNIFFED_RECORDS = 200
_SNIFFED_BYTES = 256 << 10

ParseCells = Callable[[bytes, ReadOptions], pa.Table]


def sniff(sample: bytes, options: ReadOptions, parse_cells: ParseCells) -> ReadOptions:
    """Find out what nobody said: delimiter, quote, header."""
    head = sample[:_SNIFFED_BYTES]
    if len(sample) > len(head):
        head = head[: head.rfind(b"\n") + 1] or head
    text = head.decode(errors="replace")
    quote = options.quote if options.quote is not None else _sniff_quote(text)
    found = options.with_found(quote=quote, escape="", delimiter=_sniff_delimiter(text, quote, options.delimiter))
    return found.with_found(header=_sniff_header(parse_cells(head, replace(found, header=False))))


def _sniff_quote(text: str) -> str:
    if '"' in text:
        return '"'
    single = len(re.findall(r"(?:^|[,;|\t])'[^'\r\n]*'(?=[,;|\t\r\n]|$)", text, re.MULTILINE))
    return "'" if single > text.count("\n") else '"'


def _sniff_delimiter(text: str, quote: str, given: str | None) -> str:
    if given is not None:
        return given
    scores = {delimiter: _score(text, delimiter, quote) for delimiter in _DELIMITERS}
    best = max(scores, key=lambda delimiter: scores[delimiter])
    return best if scores[best] > (0, 0) else ","


def _score(text: str, delimiter: str, quote: str) -> tuple[float, int]:
    """How many records have as many fields as the first, and how many fields that are."""
    quoting: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    lines = io.StringIO(text.replace("\0", " "), newline="")
    widths: list[int] = []
    try:
        for record in csv.reader(lines, delimiter=delimiter, **quoting):
            widths += [len(record)] if record else []
            if len(widths) >= _SNIFFED_RECORDS:
                break
    except csv.Error:
        pass
    if not widths or widths[0] < 2:
        return (0, 0)
    usual, count = Counter(widths).most_common(1)[0]
    return (round(count / len(widths), 2), usual) if usual > 1 else (0, 0)


def _sniff_header(cells: pa.Table) -> bool:
    """The first record is a header unless it looks like data: a typed cell on top, and no column that contradicts."""
    if cells.num_columns == 0 or cells.num_rows == 0:
        return True
    typed = contradicted = False
    for column in cells.columns:
        values = column.combine_chunks()
        top, below = infer(values.slice(0, 1)), infer(values.slice(1))
        typed |= top.family not in ("null", "text")
        contradicted |= top.family == "text" and not top.note and below.family not in ("null", "text")
    return contradicted or not typed


# ---------------------------------------------------------------------------------------------------------- names
def column_names(cells: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Unique names for a header's cells, and warnings about those that were changed."""
    names: list[str] = []
    warnings: list[str] = []
    taken = {cell for cell in cells if cell}
    for number, cell in enumerate(cells, 1):
        name = cell or f"column_{number}"
        if name in names or (not cell and name in taken):
            name = _numbered(name, {*names, *taken})
        if name != cell:
            what = f"is called {cell!r} like another one" if cell else "has no name"
            warnings.append(f"Column {number} {what}: it is loaded as {name!r}.")
        names.append(name)
    return names, warnings


def _numbered(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
