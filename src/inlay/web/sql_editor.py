"""The SQL editor: NiceGUI's CodeMirror, and beside it what our own script adds to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from nicegui import events, ui
from nicegui.element import Element

from inlay.query.statements import quoted
from inlay.type_grammar import type_name
from inlay.web.sql_text import TableInfo, named_tables, span_at, written

__all__ = ["Export", "Past", "Share", "SqlEditor"]

_ANSWER_SECONDS = 30.0
_EXPORT_SECONDS = 900.0
_LONGEST_TO_READ = 100_000
_FUNCTIONS = (
    "approx_distinct", "array_agg", "avg", "cast", "coalesce", "concat", "count", "date_part", "date_trunc", "extract",
    "lower", "max", "median", "min", "now", "nullif", "power", "regexp_like", "regexp_replace", "replace", "round",
    "row_number", "split_part", "sqrt", "stddev", "string_agg", "strpos", "substr", "sum", "to_timestamp", "trim",
    "upper",
)  # fmt: skip


class Past(NamedTuple):
    """A query that was run here, and when, in seconds."""

    text: str
    at: float


class Share(NamedTuple):
    """A link to a text, None if it is too long for one, and whether it is in the clipboard."""

    link: str | None
    copied: bool


class Export(NamedTuple):
    """A file that the browser has, or the problem that the service answered with."""

    rows: int = 0
    truncated: bool = False
    problem: Mapping[str, Any] | None = None


class _Companion(Element, component="sql_editor.js"):
    """The script beside the editor."""


class SqlEditor:
    def __init__(self, text: str, on_run: Callable[[], Awaitable[None]], on_opened: Callable[[bool], Awaitable[None]]):
        """`on_opened` is told whether the browser had a draft that took the place of the text."""
        self._code = ui.codemirror(
            text,
            language="SQL",
            indent="  ",
            line_wrapping=True,
            keymap={"Mod-Enter": on_run},
            on_change=self._see,
        ).classes("inlay-sql-editor")
        self._beside = _Companion()
        self._beside.props["editor"] = self._code.id
        self._beside.props["link"] = text
        self._tables: dict[str, TableInfo] = {}
        self._scopes: dict[str, str] = {}

        async def opened(event: events.GenericEventArguments) -> None:
            await on_opened(bool(event.args["restored"]))

        self._beside.on("opened", opened)

    # ----------------------------------------------------------------------------------------------------------- text
    @property
    def text(self) -> str:
        return self._code.value or ""

    def replace(self, text: str) -> None:
        self._code.value = text

    def insert(self, text: str) -> None:
        self._beside.run_method("insert", text)

    def mark(self, line: int, column: int) -> None:
        """Show where something is wrong."""
        span = span_at(self.text, line, column)
        if span is not None:
            self._code.decorations = [{"kind": "mark", "from": span[0], "to": span[1], "class": "inlay-sql-mistake"}]

    def unmark(self) -> None:
        self._code.decorations = []

    def go_to(self, line: int, column: int) -> None:
        self._beside.run_method("goTo", line, column)

    # ----------------------------------------------------------------------------------------------------- completion
    def know(self, tables: Sequence[TableInfo]) -> None:
        """What there is to be completed."""
        self._tables = {table.name.lower(): table for table in tables}
        names = [_completion(table.name, f"{table.rows:,} rows") for table in tables]
        self._beside.run_method("know", names, _FUNCTIONS)
        self._scopes = {}
        self._see()

    def _see(self) -> None:
        """Tell the browser the columns of the tables that the text names."""
        named = named_tables(self.text[:_LONGEST_TO_READ])
        scopes = {name: table for name, table in named.items() if table in self._tables}
        if scopes != self._scopes:
            self._scopes = scopes
            columns = {name: _columns(self._tables[table].schema) for name, table in scopes.items()}
            self._beside.run_method("see", columns)

    # ------------------------------------------------------------------------------------------- history, links, files
    def remember(self, text: str) -> None:
        """Keep a query among the last ones of this browser, and in its address."""
        self._beside.run_method("remember", text)

    async def past(self) -> list[Past]:
        kept = await self._beside.run_method("past", timeout=_ANSWER_SECONDS)
        return [Past(each["text"], each["at"] / 1000) for each in kept or ()]

    def forget(self) -> None:
        self._beside.run_method("forget")

    async def share(self, text: str) -> Share:
        return Share(**await self._beside.run_method("share", text, timeout=_ANSWER_SECONDS))

    async def export(self, text: str, media_type: str, name: str) -> Export:
        return Export(**await self._beside.run_method("fetchAs", text, media_type, name, timeout=_EXPORT_SECONDS))


def _completion(name: str, detail: str) -> dict[str, str]:
    return {"label": name, "apply": written(name), "quoted": quoted(name), "detail": detail}


def _columns(schema: pa.Schema) -> list[dict[str, str]]:
    return [_completion(field.name, type_name(field.type)) for field in schema]
