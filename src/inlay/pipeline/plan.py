"""What is known about a conversion before its tasks run, and what a task makes of a split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from inlay.pipeline.cells import Reading, reason
from inlay.pipeline.decode import Content, check_utf8
from inlay.pipeline.kinds import Kind, join, type_of
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.records import Split
from inlay.pipeline.rejects import Reject
from inlay.type_grammar import length_of, with_length

__all__ = [
    "REPETITIVE",
    "SAMPLE_BYTES",
    "SAMPLE_ROWS",
    "Column",
    "Parsed",
    "Reader",
    "Survey",
    "read_sample",
    "repetitive",
    "schema_of",
]

SAMPLE_ROWS = 10_000
REPETITIVE = 0.2  # a dictionary pays if no larger share of a sample is distinct
SAMPLE_BYTES = (1 << 20, 4 << 20, 16 << 20)


@dataclass(frozen=True)
class Column:
    """A column as it is to be read. A `fixed` one was given its type; others may turn out to be wider."""

    name: str
    kind: Kind
    type: pa.DataType
    fixed: bool = False
    nullable: bool = True
    length: int | None = None  # characters that its texts have at most
    is_expected: bool = False  # chosen for a field that the sample does not show

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
        """Why a value does not fit."""
        if value is None:
            return "NULL in a column that allows none"
        return reason(self.type) if self.length is None else f"longer than {self.length} characters"

    @property
    def is_open(self) -> bool:
        """Its type, or a part of it, is still to be found."""
        return self.kind.is_open and not self.fixed

    def widened(self, kind: Kind) -> Column:
        return Column.inferred(self.name, join(self.kind, kind))

    @property
    def warning(self) -> str | None:
        """Why the column is text, if somebody may wonder."""
        if self.fixed or not self.type.equals(pa.string()):
            return None
        if self.kind.note:
            return f"Column {self.name!r} {self.kind.note}."
        return f"Column {self.name!r} holds values of several sorts: it is text." if self.kind.mixed else None


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([column.field for column in columns])


class Rejects(Sized, Iterable[Reject], Protocol):
    """As many as there are; they may be made one by one."""


class Parsed(NamedTuple):
    """A split's rows and rejects, or what its columns must be able to hold before it can be read.

    Of columns that are only expected, `met` says that they are there.
    """

    tables: Iterable[pa.Table] | None
    rejects: Rejects
    met: dict[str, Kind]


class Reader(Protocol):
    """Reads splits of one file."""

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed: ...


@dataclass(frozen=True)
class Survey:
    """What stage 1 found out about a file."""

    content: Content
    options: ReadOptions
    reader: Reader
    kinds: dict[str, Kind]  # of its columns, in order
    splits: list[Split]
    repetitive: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    sample: Split | None = None  # the rows that were looked at
    schema: pa.Schema | None = None  # where the file itself has one


def read_sample(content: Content, limits: Limits) -> tuple[bytes, bool]:
    """The beginning of the text, up to the end of a line, and whether that is all of it."""
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
    """Columns with few distinct values; of nested ones nothing is known."""
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
