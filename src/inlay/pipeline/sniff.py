"""What nobody said about a delimited file: its delimiter, quote and header; and names for its columns."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from inlay.pipeline.inference import infer
from inlay.pipeline.kinds import Kind, join
from inlay.pipeline.options import ReadOptions

__all__ = ["NO_HEADER", "column_names", "sniff"]

_DELIMITERS = (",", "\t", ";", "|")
_SNIFFED_RECORDS = 200
_SNIFFED_BYTES = 256 << 10
_UNTYPED = ("null", "text")
_YEAR = re.compile("(?:19|20)[0-9]{2}")

NO_HEADER = (
    "The first row seems to be data, not names: it is loaded, and the columns are called column_1, column_2 ... "
    "(the option header says otherwise)."
)
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
    """The first record holds names unless it is evidently data: typed like the cells below it, or at all."""
    if cells.num_columns == 0 or cells.num_rows == 0:
        return True
    tops = [_Top.of(column.combine_chunks()) for column in cells.columns]
    typed = [top for top in tops if top.kind.family not in _UNTYPED]
    are_names = any(top.is_name for top in tops) or all(top.is_unlike for top in typed)
    return are_names or _are_years(tops, typed)


class _Top(NamedTuple):
    """The first cell of a column, and what it is; and the same for the cells below."""

    cell: str | None
    kind: Kind
    cells: pa.Array
    below: Kind

    @classmethod
    def of(cls, values: pa.Array) -> _Top:
        cells = values.slice(1)
        return cls(values[0].as_py(), infer(values.slice(0, 1)), cells, infer(cells))

    @property
    def is_name(self) -> bool:
        """Text above values that are something else."""
        return self.kind.family == "text" and not self.kind.note and self.below.family not in _UNTYPED

    @property
    def is_unlike(self) -> bool:
        """Something else than the values below: a date above numbers."""
        return self.below.family not in _UNTYPED and join(self.kind, self.below).family == "text"

    @property
    def is_year(self) -> bool:
        """A year above values that are none, if any."""
        values = self.cells.drop_null().to_pylist()
        return _YEAR.fullmatch(self.cell or "") is not None and not (values and all(map(_YEAR.fullmatch, values)))


def _are_years(tops: Sequence[_Top], typed: Sequence[_Top]) -> bool:
    """Names that are years, as in a table with a column for each: 2020, 2021 and so on above other numbers."""
    names = [top.cell for top in tops]
    if not all(top.is_year for top in typed) or not all(names[1:]) or len(set(names)) < len(names):
        return False
    if all(top.below.family == "null" for top in typed):
        return False
    years = [int(str(top.cell)) for top in typed]
    steps = {later - earlier for earlier, later in itertools.pairwise(years)}
    if len(years) == 1:
        return not typed[0].below.integral
    return len(steps) == 1 and (len(years) > 2 or steps <= {1, -1})


# ---------------------------------------------------------------------------------------------------------- names
def column_names(cells: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """Unique names for a header's cells, and warnings about those that were changed."""
    names: list[str] = []
    warnings: list[str] = []
    written = {cell for cell in cells if cell}
    used: set[str] = set()
    numbers: dict[str, Iterator[int]] = {}  # of each name the next one, so that many equal names take no longer
    for number, cell in enumerate(cells, 1):
        name = cell or f"column_{number}"
        if name in used or (not cell and name in written):
            others = (f"{name}_{next_}" for next_ in numbers.setdefault(name, itertools.count(2)))
            name = next(other for other in others if other not in used and other not in written)
        if name != cell:
            what = f"is called {cell!r} like another one" if cell else "has no name"
            warnings.append(f"Column {number} {what}: it is loaded as {name!r}.")
        names.append(name)
        used.add(name)
    return names, warnings
