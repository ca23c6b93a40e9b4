"""The SQL editor: NiceGUI's CodeMirror with completion, error marks, history, links and exports."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from nicegui import events, ui
from nicegui.element import Element

from inlay.catalog.names import RESERVED_WORDS
from inlay.query.sql import quoted, tokens
from inlay.type_grammar import type_name

__all__ = ["HistoryEntry", "SqlEditor", "TableInfo", "examples", "quote_if_needed", "tables_by_scope", "token_span"]

_ANSWER_TIMEOUT_SECONDS = 30.0
_EXPORT_TIMEOUT_SECONDS = 900.0
_MAX_SCANNED = 100_000  # characters
_MAX_EXAMPLES = 6
_UNQUOTED = re.compile(r"[a-z_][a-z0-9_]*")
_FUNCTIONS = (
    "approx_distinct", "array_agg", "avg", "cast", "coalesce", "concat", "count", "date_part", "date_trunc", "extract",
    "lower", "max", "median", "min", "now", "nullif", "power", "regexp_like", "regexp_replace", "replace", "round",
    "row_number", "split_part", "sqrt", "stddev", "string_agg", "strpos", "substr", "sum", "to_timestamp", "trim",
    "upper",
)  # fmt: skip
# Keywords that can follow a table name, and therefore are not its alias.
_KEYWORDS_AFTER_TABLE = frozenset(
    ("where", "on", "using", "join", "inner", "left", "right", "full", "outer", "cross", "natural", "semi", "anti",
     "lateral", "group", "having", "window", "qualify", "order", "limit", "offset", "fetch", "for", "tablesample",
     "union", "intersect", "except")
)  # fmt: skip


def quote_if_needed(name: str) -> str:
    """Quote an identifier unless SQL accepts it without quotes."""
    is_unquoted = _UNQUOTED.fullmatch(name) and name not in RESERVED_WORDS
    return name if is_unquoted else quoted(name)


# -------------------------------------------------------------------------------------------------------------- parsing
def tables_by_scope(sql: str) -> dict[str, str]:
    """Map table names and aliases in a query, which may be incomplete, to their tables."""
    significant = [token for token in tokens(sql) if any(token.group("word", "quoted", "other"))]
    found: dict[str, str] = {}
    for at, token in enumerate(significant):
        if _name(token) != "datasets":
            continue
        path = list(_path_after(significant, at + 1))
        if path:
            table = path[-1].lower().partition("@")[0]
            found[table] = table
            alias = _alias(significant, at + 1 + 2 * len(path))
            if alias is not None:
                found[alias.lower()] = table
    return found


def _name(token: re.Match[str]) -> str | None:
    return token["word"].lower() if token["word"] is not None else token["quoted"]


def _path_after(significant: Sequence[re.Match[str]], at: int) -> Iterator[str]:
    """Yield the names that follow, each after a dot."""
    while at + 1 < len(significant) and significant[at]["other"] == ".":
        name = _name(significant[at + 1])
        if name is None:
            return
        yield name
        at += 2


def _alias(significant: Sequence[re.Match[str]], at: int) -> str | None:
    rest = significant[at : at + 2]
    if rest and _name(rest[0]) == "as":
        rest = rest[1:]
    name = _name(rest[0]) if rest else None
    return name if name and name not in _KEYWORDS_AFTER_TABLE else None


def token_span(sql: str, line: int, column: int) -> tuple[int, int] | None:
    """Return the start and end offset of the token at a line and column, or of the last token before them."""
    lines = sql.split("\n")
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + column - 1
    spans = [token.span() for token in tokens(sql)]
    before = [span for span in spans if span[0] <= offset]
    return before[-1] if before else spans[0] if spans else None


# ------------------------------------------------------------------------------------------------------------ examples
class TableInfo(NamedTuple):
    """The name, row count and schema of a dataset's table."""

    name: str
    rows: int
    schema: pa.Schema

    @property
    def sql(self) -> str:
        return f"datasets.{quote_if_needed(self.name)}"


class Example(NamedTuple):
    title: str
    sql: str


def examples(tables: Sequence[TableInfo]) -> list[Example]:
    """Return example queries: all for the table that supports the most examples, and one for each other table."""
    if not tables:
        return [Example("Add two numbers", "SELECT 1 + 1 AS two")]
    best = max(tables, key=lambda table: len(list(_examples_of(table))))
    found = [*_examples_of(best), *(_first_rows(table) for table in tables if table is not best)]
    return found[:_MAX_EXAMPLES]


def _examples_of(table: TableInfo) -> Iterator[Example]:
    yield _first_rows(table)
    texts, times, amounts = (_matching_columns(table.schema, kind) for kind in (_is_text, _is_time, _is_amount))
    if texts:
        yield Example(
            f"Count the rows of {table.name} by {texts[0]}",
            f"SELECT {quote_if_needed(texts[0])}, count(*) AS row_count\nFROM {table.sql}\n"
            "GROUP BY 1\nORDER BY row_count DESC\nLIMIT 20",
        )
    if amounts:
        amount = quote_if_needed(amounts[0])
        yield Example(
            f"Minimum, mean, and maximum of {amounts[0]}",
            f"SELECT min({amount}) AS lowest, avg({amount}) AS mean, max({amount}) AS highest\nFROM {table.sql}",
        )
    if times:
        yield Example(
            f"Count the rows of {table.name} by month",
            f"SELECT date_trunc('month', {quote_if_needed(times[0])}) AS month, count(*) AS row_count\n"
            f"FROM {table.sql}\nGROUP BY 1\nORDER BY 1",
        )


def _first_rows(table: TableInfo) -> Example:
    return Example(f"First rows of {table.name}", f"SELECT *\nFROM {table.sql}\nLIMIT 100")


def _matching_columns(schema: pa.Schema, matches: Callable[[pa.DataType], bool]) -> list[str]:
    return [field.name for field in schema if matches(field.type)]


def _is_text(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _is_amount(type_: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type_) or pa.types.is_decimal(type_))  # Integers are often identifiers.


def _is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


# --------------------------------------------------------------------------------------------------------------- editor
class HistoryEntry(NamedTuple):
    """A query that this browser ran, and when, in seconds since 1970."""

    text: str
    at: float


class Share(NamedTuple):
    """A link to a query, or None if it is too long, and whether the clipboard has the link."""

    link: str | None
    copied: bool


class Export(NamedTuple):
    """The size of a saved file, or the problem that the service reported."""

    rows: int = 0
    truncated: bool = False
    problem: Mapping[str, Any] | None = None


class _Companion(Element, component="sql_editor.js"):
    """The script that extends the editor."""


class SqlEditor:
    """An editor. `on_opened` receives True if a draft from the browser replaced the text."""

    def __init__(self, text: str, on_run: Callable[[], Awaitable[None]], on_opened: Callable[[bool], Awaitable[None]]):
        self._code = ui.codemirror(
            text,
            language="SQL",
            indent="  ",
            line_wrapping=True,
            keymap={"Mod-Enter": on_run},
            on_change=self._update_scopes,
        ).classes("inlay-sql-editor")
        self._companion = _Companion()
        self._companion.props["editor"] = self._code.id
        self._companion.props["link"] = text
        self._tables: dict[str, TableInfo] = {}
        self._scopes: dict[str, str] = {}

        async def opened(event: events.GenericEventArguments) -> None:
            await on_opened(bool(event.args["restored"]))

        self._companion.on("opened", opened)

    # ------------------------------------------------------------------------------------------------------------ text
    @property
    def text(self) -> str:
        return self._code.value or ""

    def replace(self, text: str) -> None:
        self._code.value = text

    def insert(self, text: str) -> None:
        self._companion.run_method("insert", text)

    def mark(self, line: int, column: int) -> None:
        """Underline the token at this position."""
        span = token_span(self.text, line, column)
        if span is not None:
            self._code.decorations = [{"kind": "mark", "from": span[0], "to": span[1], "class": "inlay-sql-error"}]

    def unmark(self) -> None:
        self._code.decorations = []

    def go_to(self, line: int, column: int) -> None:
        self._companion.run_method("goTo", line, column)

    # ------------------------------------------------------------------------------------------------------ completion
    def set_tables(self, tables: Sequence[TableInfo]) -> None:
        """Set the tables that the editor completes."""
        self._tables = {table.name.lower(): table for table in tables}
        names = [_completion(table.name, f"{table.rows:,} rows") for table in tables]
        self._companion.run_method("setTables", names, _FUNCTIONS)
        self._scopes = {}
        self._update_scopes()

    def _update_scopes(self) -> None:
        """Send the columns of the tables in the query to the browser."""
        named = tables_by_scope(self.text[:_MAX_SCANNED])
        scopes = {name: table for name, table in named.items() if table in self._tables}
        if scopes != self._scopes:
            self._scopes = scopes
            columns = {name: _columns(self._tables[table].schema) for name, table in scopes.items()}
            self._companion.run_method("setScopes", columns)

    # ------------------------------------------------------------------------------------- history, links and exports
    def add_to_history(self, text: str) -> None:
        """Add a query to the browser's history, and put it into the address of the page."""
        self._companion.run_method("addToHistory", text)

    async def history(self) -> list[HistoryEntry]:
        entries = await self._companion.run_method("history", timeout=_ANSWER_TIMEOUT_SECONDS)
        return [HistoryEntry(each["text"], each["at"] / 1000) for each in entries or ()]

    def clear_history(self) -> None:
        self._companion.run_method("clearHistory")

    async def share(self, text: str) -> Share:
        return Share(**await self._companion.run_method("share", text, timeout=_ANSWER_TIMEOUT_SECONDS))

    async def export(self, text: str, media_type: str, name: str) -> Export:
        arguments = (text, media_type, name)
        return Export(**await self._companion.run_method("export", *arguments, timeout=_EXPORT_TIMEOUT_SECONDS))


def _completion(name: str, detail: str) -> dict[str, str]:
    return {"label": name, "apply": quote_if_needed(name), "quoted": quoted(name), "detail": detail}


def _columns(schema: pa.Schema) -> list[dict[str, str]]:
    return [_completion(field.name, type_name(field.type)) for field in schema]
