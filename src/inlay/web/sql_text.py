"""SQL as the editor needs it: which tables a text names, where a mistake stands, and what one could ask."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from inlay.catalog.names import RESERVED_WORDS
from inlay.query.statements import quoted, tokens

__all__ = ["Example", "TableInfo", "examples", "named_tables", "span_at", "written"]

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_MOST_EXAMPLES = 6
_AFTER_A_TABLE = frozenset(
    ("where", "on", "using", "join", "inner", "left", "right", "full", "outer", "cross", "natural", "semi", "anti",
     "lateral", "group", "having", "window", "qualify", "order", "limit", "offset", "fetch", "for", "tablesample",
     "union", "intersect", "except")
)  # fmt: skip


def written(name: str) -> str:
    """A name as it must be written in a query."""
    is_plain = _PLAIN.fullmatch(name) and name not in RESERVED_WORDS
    return name if is_plain else quoted(name)


# ------------------------------------------------------------------------------------------------------------- reading
def named_tables(sql: str) -> dict[str, str]:
    """The tables that a text names, complete or not, by each name that its columns can be asked for with."""
    marks = [token for token in tokens(sql) if any(token.group("word", "quoted", "other"))]
    found: dict[str, str] = {}
    for at, token in enumerate(marks):
        if _name(token) != "datasets":
            continue
        path = list(_path_after(marks, at + 1))
        if path:
            table = path[-1].lower().partition("@")[0]
            found[table] = table
            alias = _alias(marks, at + 1 + 2 * len(path))
            if alias is not None:
                found[alias.lower()] = table
    return found


def _name(token: re.Match[str]) -> str | None:
    return token["word"].lower() if token["word"] is not None else token["quoted"]


def _path_after(marks: Sequence[re.Match[str]], at: int) -> Iterator[str]:
    """The names that follow, each after a dot."""
    while at + 1 < len(marks) and marks[at]["other"] == ".":
        name = _name(marks[at + 1])
        if name is None:
            return
        yield name
        at += 2


def _alias(marks: Sequence[re.Match[str]], at: int) -> str | None:
    rest = marks[at : at + 2]
    if rest and _name(rest[0]) == "as":
        rest = rest[1:]
    name = _name(rest[0]) if rest else None
    return name if name and name not in _AFTER_A_TABLE else None


def span_at(sql: str, line: int, column: int) -> tuple[int, int] | None:
    """From where to where the piece reaches that stands at a line and column, or the last one before it."""
    lines = sql.split("\n")
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1
    spans = [token.span() for token in tokens(sql)]
    before = [span for span in spans if span[0] <= offset]
    return before[-1] if before else spans[0] if spans else None


# ------------------------------------------------------------------------------------------------------------ examples
class TableInfo(NamedTuple):
    """A table as a query sees it."""

    name: str
    rows: int
    schema: pa.Schema

    @property
    def written(self) -> str:
        return f"datasets.{written(self.name)}"


class Example(NamedTuple):
    meaning: str
    sql: str


def examples(tables: Sequence[TableInfo]) -> list[Example]:
    """Questions that the tables there are can answer; the one that can answer most is asked most."""
    if not tables:
        return [Example("Add two numbers", "SELECT 1 + 1 AS two")]
    richest = max(tables, key=lambda table: len(list(_questions(table))))
    asked = [*_questions(richest), *(_first_rows(table) for table in tables if table is not richest)]
    return asked[:_MOST_EXAMPLES]


def _questions(table: TableInfo) -> Iterator[Example]:
    yield _first_rows(table)
    texts, days, amounts = (_columns(table.schema, kind) for kind in (_is_text, _is_day, _is_amount))
    if texts:
        yield Example(
            f"Rows of {table.name} for each {texts[0]}",
            f"SELECT {written(texts[0])}, count(*) AS row_count\nFROM {table.written}\n"
            "GROUP BY 1\nORDER BY row_count DESC\nLIMIT 20",
        )
    if amounts:
        amount = written(amounts[0])
        yield Example(
            f"Range of {amounts[0]}",
            f"SELECT min({amount}) AS lowest, avg({amount}) AS mean, max({amount}) AS highest\nFROM {table.written}",
        )
    if days:
        yield Example(
            f"Rows of {table.name} by month",
            f"SELECT date_trunc('month', {written(days[0])}) AS month, count(*) AS row_count\nFROM {table.written}\n"
            "GROUP BY 1\nORDER BY 1",
        )


def _first_rows(table: TableInfo) -> Example:
    return Example(f"First rows of {table.name}", f"SELECT *\nFROM {table.written}\nLIMIT 100")


def _columns(schema: pa.Schema, belongs: Callable[[pa.DataType], bool]) -> list[str]:
    return [field.name for field in schema if belongs(field.type)]


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_amount(type_: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type_) or pa.types.is_decimal(type_))  # integers are often names of things


def _is_day(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))
