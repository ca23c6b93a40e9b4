"""What the engine says about a query, said again for people: what is wrong, where, and what was probably meant.

It repeats names and values of the query and of the data, a megabyte of them if need be: whatever is looked for here is
found in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from inlay.errors import QueryError, QueryFailedError, QueryLimitError, did_you_mean
from inlay.query.statements import position_of, quoted

__all__ = ["died", "explain", "mistaken_case"]

_PLACE = re.compile(r" at Line: (\d+), Column: (\d+)")
_PARSER = re.compile(r'^SQL error: (?:Parser|Tokenizer)Error\("(?P<text>.*)"\)$', re.DOTALL)
_FUNCTION = re.compile(r"Invalid function '(?P<name>[^']*)'\.\s*Did you mean '(?P<known>[^']*)'")
_PART = re.compile(r'"((?:[^"]|"")*)"|([^.,"]+)')
_FIELD = re.compile(r'(?:"(?:[^"]|"")*"|[^,"])+')
_NOISE = re.compile(
    r"^(?:DataFusion error|Error during planning|Schema error|Execution error|Arrow error|SQL error|External error"
    r"|Internal error|Optimizer rule '\w+' failed\s*caused by|This feature is not implemented|Parquet error"
    r"|type_coercion\s*caused by):?\s*"
)
_BUG_REPORT = "This issue was likely caused by a bug in DataFusion"
_OUR_FAULT = re.compile(
    r"No files found|No such file|Object Store error|Parquet error|Internal error: (?!Function)|IO error|os error"
    r"|External error|\[Errno \d+\]"
)
_QUOTED = re.compile(r"'[^']*'")  # may be anything
_SHOWN = 20
_LONGEST = 1000


def explain(text: str, sql: str, tables: Callable[[], Sequence[str]]) -> QueryError:
    """The error for what DataFusion said."""
    own_words = _QUOTED.sub("''", text)
    if "Resources exhausted" in own_words or ("used disk space" in own_words and "exceeded" in own_words):
        return _exhausted(own_words)
    for search, tell in _KINDS:
        if found := search(text):
            return tell(_Said(text, found, sql, tables))
    return (QueryFailedError if _OUR_FAULT.search(own_words) else QueryError)(f"{_plain(text)}.")


def died(output: str, signal: int) -> QueryError:
    """The error for a process that ended while it answered."""
    if "memory allocation" in output or "Cannot allocate memory" in output:
        return QueryLimitError("The query needs more memory than one query may use.", hint=_LESS)
    if signal in (6, 7, 11):
        return QueryLimitError("The query is too complex: it used up the engine's memory or stack.", hint=_LESS)
    return QueryFailedError("The query engine failed on this query.", hint="Write it differently; the log says more.")


def mistaken_case(text: str) -> tuple[str, str] | None:
    """An unknown column's name and the one column that differs from it only by case, if that is what is wrong."""
    found = _column_in(text)
    if found is None or found.name != found.name.lower():
        return None
    same = {known for known in found.known if known.lower() == found.name}
    return (found.name, same.pop()) if len(same) == 1 else None


_LESS = "Filter earlier, select fewer columns, or aggregate in steps."


def _exhausted(text: str) -> QueryError:
    what = "disk space" if "disk" in text.lower() else "memory"
    return QueryLimitError(f"The query needs more {what} than one query may use.", hint=_LESS)


def _misspelled(said: _Said) -> QueryError:
    text = re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), said.found["text"])
    place = _PLACE.search(text)
    position = (int(place[1]), int(place[2])) if place else None
    return QueryError(f"The SQL cannot be read: {_PLACE.sub('', text)[:_LONGEST]}.", position=position)


def _unknown_table(said: _Said) -> QueryError:
    catalog, schema, name = said.found
    position = position_of(said.sql, name)
    if schema not in ("datasets", "default", "none"):
        shown = f"{schema}.{name}" if catalog == "inlay" else f"{catalog}.{schema}.{name}"
        return QueryError(f"There is no table {shown}.", position=position, hint="Tables are named datasets.<table>.")
    tables = {table.lower(): table for table in said.tables()}
    bare, _, version = name.lower().partition("@")
    if version and bare in tables:
        return QueryError(f"The table datasets.{tables[bare]} has no version {version}.", position=position)
    meant = did_you_mean(bare, tables.values(), 3, lambda table: f"datasets.{table}")
    return QueryError(
        f"There is no table {name if schema == 'none' else f'datasets.{name}'}.",
        position=position,
        hint=meant or _there_are("tables", [*tables.values()]),
    )


def _unknown_column(said: _Said) -> QueryError:
    name, known = said.found
    return QueryError(
        f"There is no column {_written(name)[:_LONGEST]}.",
        position=position_of(said.sql, name),
        hint=did_you_mean(name, known, 3, _written) or _there_are("columns", [*map(_written, known)]),
    )


def _unknown_function(said: _Said) -> QueryError:
    name, known = said.found.groups()
    return QueryError(
        f"There is no function {name}.",
        position=position_of(said.sql, name),
        hint=did_you_mean(name, [known], shown=str),
    )


class _Table(NamedTuple):
    """The parts of a table's name that is not known."""

    catalog: str
    schema: str
    name: str


class _Column(NamedTuple):
    """A column's name that is not known, and those that are."""

    name: str
    known: list[str]


def _table_in(text: str) -> _Table | None:
    _, found, rest = text.partition("table '")
    parts = rest[: max(rest.rfind("' not found"), 0)].split(".", 2)
    return _Table(*parts) if found and len(parts) == 3 and "'" not in parts[0] + parts[1] else None


def _column_in(text: str) -> _Column | None:
    _, found, rest = text.partition("No field named ")
    if not found or not rest.endswith("."):
        return None
    name, _, known = rest.removesuffix(".").partition("Valid fields are ")
    name = name.partition(". Did you mean ")[0].rstrip(". \n")
    fields = (field.strip() for field in _FIELD.findall(known))
    return _Column(_name(name), list(dict.fromkeys(_name(field) for field in fields if field))) if name else None


class _Said(NamedTuple):
    """What DataFusion said, the part that told its kind, and about what."""

    text: str
    found: Any
    sql: str
    tables: Callable[[], Sequence[str]]


_NO_QUERY = re.compile(
    "^Error during planning: (DDL|DML|Statement) not supported: |unless information_schema is enabled"
)
_KINDS: tuple[tuple[Callable[[str], Any], Callable[[_Said], QueryError]], ...] = (
    (
        re.compile("RecursionLimitExceeded").search,
        lambda _: QueryError("The query is nested too deeply.", hint="Use WITH."),
    ),
    (
        re.compile("a single SQL statement").search,
        lambda _: QueryError("Only one statement can be answered at a time."),
    ),
    (re.compile("No SQL statements were provided").search, lambda _: QueryError("There is no statement to answer.")),
    (_NO_QUERY.search, lambda said: QueryError(f"Only queries are answered. {_plain(said.text)}.")),
    (_PARSER.search, _misspelled),
    (_table_in, _unknown_table),
    (_column_in, _unknown_column),
    (_FUNCTION.search, _unknown_function),
)


def _plain(text: str) -> str:
    text = text.partition(_BUG_REPORT)[0].strip()[: 4 * _LONGEST]
    while (shorter := _NOISE.sub("", text)) != text:
        text = shorter
    return text[:_LONGEST].rstrip(". \n")


def _name(qualified: str) -> str:
    """The last part of a name such as x."A b"."""
    *_, last = _PART.finditer(qualified)
    return last[1].replace('""', '"') if last[1] is not None else last[2]


def _written(column: str) -> str:
    """A column's name as it must be written in a query."""
    return column if re.fullmatch(r"[a-z_][a-z0-9_]*", column) else quoted(column)


def _there_are(what: str, names: Sequence[str]) -> str | None:
    if not names:
        return None
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"The {what} are {', '.join(names[:_SHOWN])}{more}."
