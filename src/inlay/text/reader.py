"""The protocol of readers: columns, splits, parsed rows and rejects of a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from inlay.schema import Path
from inlay.text.cells import Reading, reason
from inlay.text.decode import Content, check_utf8
from inlay.text.inference import Kind, join, type_of
from inlay.text.options import Limits, ReadOptions
from inlay.text.records import Split
from inlay.type_grammar import length_of, with_length

__all__ = [
    "MAX_BAD_CELLS",
    "REPETITIVE",
    "SAMPLE_BYTES",
    "SAMPLE_ROWS",
    "BadCell",
    "Column",
    "Parsed",
    "Reader",
    "Reject",
    "Rejects",
    "Survey",
    "for_width",
    "read_sample",
    "repetitive",
    "rows_to_sample",
    "schema_of",
    "shorten",
]


MAX_BAD_CELLS = 100  # invalid cells that an error lists
_MAX_VALUE = 1_000


class BadCell(NamedTuple):
    """An invalid cell. If `column` is None, the whole row is invalid."""

    line: int
    column: str | None
    value: str | None
    reason: str

    @classmethod
    def of(cls, line: int, column: str | None, value: str | None, reason: str) -> BadCell:
        text = None if value is None else value.encode("utf-8", "backslashreplace").decode()
        return cls(int(line), column, shorten(text, _MAX_VALUE), reason)


class Reject(NamedTuple):
    """A rejected row: its invalid cells, its text, and its number in the split."""

    cells: list[BadCell]
    raw: str
    row: int


def shorten(text: str | None, limit: int) -> str | None:
    return text if text is None or len(text) <= limit else text[:limit] + "..."


SAMPLE_ROWS = 10_000
_SAMPLE_CELLS, _MIN_SAMPLE_ROWS = 4_000_000, 100  # a file of very many columns has a smaller sample
REPETITIVE = 0.2  # largest share of distinct values for which a dictionary saves space
SAMPLE_BYTES = (1 << 20, 4 << 20, 16 << 20)


@dataclass(frozen=True)
class Column:
    """A column to read. An override or the target fixes its type; otherwise values may widen it."""

    name: str
    kind: Kind
    type: pa.DataType
    fixed: bool = False
    nullable: bool = True
    length: int | None = None  # maximum number of characters of its text
    is_expected: bool = False  # an override for a field that the sample lacks
    is_required: bool = False  # a JSON record without this field is invalid
    reports_absence: bool = False  # JSON records without this field are reported in `Parsed.lacking`

    @classmethod
    def inferred(cls, name: str, kind: Kind) -> Column:
        return cls(name, kind, type_of(kind))

    @classmethod
    def chosen(cls, field: pa.Field, kind: Kind) -> Column:
        return cls(field.name, kind, field.type, True, field.nullable, length_of(field))

    @property
    def reading(self) -> Reading:
        return Reading(self.type, self.kind.form, self.fixed, self.length)

    @property
    def field(self) -> pa.Field:
        return with_length(pa.field(self.name, self.type, self.nullable), self.length)

    def reason(self, value: object) -> str:
        """Explain why a value is invalid."""
        if value is None:
            return "NULL in a column that does not allow it"
        return reason(self.type) if self.length is None else f"longer than {self.length} characters"

    @property
    def is_open(self) -> bool:
        """Return True if the type, or a part of it, is not determined yet."""
        return self.kind.is_open and not self.fixed

    def widened(self, kind: Kind) -> Column:
        return Column.inferred(self.name, join(self.kind, kind))

    @property
    def warning(self) -> str | None:
        """Explain why an inferred column is text, if that may surprise the user."""
        if self.fixed or not self.type.equals(pa.string()):
            return None
        if self.kind.note:
            return f"Column {self.name!r} {self.kind.note}."
        return f"Column {self.name!r} is text, because its values have different types." if self.kind.mixed else None


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([column.field for column in columns])


class Rejects(Sized, Iterable[Reject], Protocol):
    """A sized iterable that may create its rejects on demand."""


class Parsed(NamedTuple):
    """The rows and rejects of a split, or the kinds of values that its columns cannot hold yet.

    `met` maps column names to kinds, and also contains the expected columns that the split has. `lacking` maps the
    paths of fields that some records lack to the line of each of these records; other records are NULL.
    """

    tables: Iterable[pa.Table] | None
    rejects: Rejects
    met: dict[str, Kind]
    lacking: dict[Path, pa.Array] = {}  # noqa: RUF012  (never changed)


class Reader(Protocol):
    """A reader of the splits of one file."""

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed: ...


@dataclass(frozen=True)
class Survey:
    """The result of surveying a file."""

    content: Content
    options: ReadOptions
    reader: Reader
    kinds: dict[str, Kind]  # by column, in order
    splits: list[Split]
    repetitive: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sample: Split | None = None  # the sampled rows
    schema: pa.Schema | None = None  # of a file that carries its own schema


def rows_to_sample(columns: int) -> int:
    return min(SAMPLE_ROWS, max(_MIN_SAMPLE_ROWS, _SAMPLE_CELLS // max(columns, 1)))


def for_width(size: int, columns: int, step: int = 10_000) -> int:
    """Return the size of a split or block in a file of many columns, each of which takes time per split and block."""
    return size * (1 + columns // step)


def read_sample(content: Content, limits: Limits) -> tuple[bytes, bool]:
    """Return the beginning of the text up to a line end, and whether it is the whole text."""
    data, end = b"", content.skip
    for size in (*SAMPLE_BYTES, limits.record_bytes):
        end = min(content.size, content.skip + size)
        data = content.read(content.skip, end)
        if end < content.size:
            data = data[: max(data.rfind(b"\n"), data.rfind(b"\r")) + 1]
        lines = data.count(b"\n") or data.count(b"\r")
        if end == content.size or lines > SAMPLE_ROWS or (lines > 1 and size >= SAMPLE_BYTES[-1]):
            break
    check_utf8(data, content.skip)
    return data, end == content.size


def repetitive(sample: pa.Table, names: Sequence[str]) -> list[str]:
    """Name the columns with few distinct values. Nested columns never count."""
    found = []
    for name, column in zip(names, sample.columns, strict=True):
        filled = len(column) - column.null_count
        try:
            distinct = pc.count_distinct(column).as_py()
        except (pa.ArrowNotImplementedError, pa.ArrowKeyError):
            continue
        if filled and distinct <= max(1, filled * REPETITIVE):
            found.append(name)
    return found
