"""SQL text: tokens and names, and readable errors for DataFusion's messages.

A message can repeat a megabyte of the query or of the data, so every search takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from inlay.errors import QueryError, QueryFailedError, QueryLimitError, did_you_mean

__all__ = [
    "explain",
    "find_case_mistake",
    "first_keyword",
    "is_repeatable",
    "quoted",
    "respell",
    "table_names",
    "tokens",
    "worker_error",
]

# A comment, text or quoted name that is not closed ends at the end of the SQL, which keeps the pattern linear.
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'[^']*(?:''[^']*)*(?:'|\Z)"""
    r"""|"(?P<quoted>[^"]*(?:""[^"]*)*)(?:"|\Z)|(?P<word>[^\W\d]\w*)|(?P<other>\d\w*|\S)""",
    re.DOTALL,
)
_CALL = re.compile(r"\s*\(")


def tokens(sql: str) -> Iterator[re.Match[str]]:
    """Yield tokens: a `word`, a `quoted` name, an `other` character, a comment or text."""
    return _TOKEN.finditer(sql)


def first_keyword(sql: str) -> str:
    """Return the first keyword of a statement in lower case, or "" if it has none."""
    for token in tokens(sql):
        if token["word"] is not None:
            return token["word"].lower()
        if token["other"] is not None and token["other"] != ";":
            return ""
    return ""


_TABLE = re.compile(
    r"""\bdatasets"?\s*\.\s*(?:"?default"?\s*\.\s*)?(?:"(?P<quoted>[^"]+)"|(?P<word>\w++))(?!\s*\.)""", re.IGNORECASE
)
_NAMED_SCHEMAS = ("default", "information_schema")
_MAX_TABLES = 50


def table_names(sql: str) -> list[str]:
    """Return names in lower case that are probably tables of the statement, at most 50.

    Names in text and comments are included, and unusual spellings are missing.
    """
    found = (name["quoted"] or name["word"] for name in _TABLE.finditer(sql))
    names = dict.fromkeys(name.lower() for name in found if name.lower() not in _NAMED_SCHEMAS)
    return list(names)[:_MAX_TABLES]


# The functions and keywords whose results differ between two runs of one statement on one state of its tables.
VOLATILE = frozenset({
    "current_date", "current_time", "current_timestamp", "file_row_index", "input_file_name", "localtime",
    "localtimestamp", "now", "rand", "random", "today", "uuid",
})  # fmt: skip
_REPEATABLE = frozenset({"select", "with", "values", ""})


def is_repeatable(sql: str) -> bool:
    """Return whether a statement has the same result whenever its tables are the same."""
    if first_keyword(sql) not in _REPEATABLE:
        return False
    names = (token["word"] or token["quoted"] or "" for token in tokens(sql))
    return VOLATILE.isdisjoint(name.lower() for name in names)


def _is(name: str) -> Callable[[re.Match[str]], bool]:
    def matches(token: re.Match[str]) -> bool:
        if token["quoted"] is not None:
            return token["quoted"].replace('""', '"') == name
        return token["word"] is not None and token["word"].lower() == name.lower()

    return matches


def _position_at(sql: str, offset: int) -> tuple[int, int]:
    """Return line and column, both starting at 1."""
    return sql.count("\n", 0, offset) + 1, offset - sql.rfind("\n", 0, offset)


def position_of(sql: str, name: str) -> tuple[int, int] | None:
    """Return the line and column of a name, outside text and comments."""
    token = next(filter(_is(name), tokens(sql)), None)
    return None if token is None else _position_at(sql, token.start())


def quoted(name: str) -> str:
    """Quote a name."""
    return '"' + name.replace('"', '""') + '"'


def respell(sql: str, name: str, exact: str) -> str:
    """Replace an unquoted column name, in any case, with the quoted `exact` name."""
    replacement = quoted(exact)

    def replace(token: re.Match[str]) -> str:
        is_name = token["word"] is not None and token["word"].lower() == name.lower()
        return replacement if is_name and not _CALL.match(sql, token.end()) else token.group()

    return _TOKEN.sub(replace, sql)


_POSITION = re.compile(r" at Line: (\d+), Column: (\d+)")
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
_NOT_THE_QUERY = re.compile(
    r"No files found|No such file|Object Store error|Parquet error|Internal error: (?!Function)|IO error|os error"
    r"|External error|\[Errno \d+\]"
)
_QUOTED = re.compile(r"'[^']*'")  # text of the query or of the data
_MAX_NAMES = 20
_MAX_LENGTH = 1000


def explain(text: str, sql: str, tables: Callable[[], Sequence[str]]) -> QueryError:
    """Return the error for a message of DataFusion."""
    unquoted = _QUOTED.sub("''", text)
    if "Resources exhausted" in unquoted or ("used disk space" in unquoted and "exceeded" in unquoted):
        return _exhausted(unquoted)
    for search, make_error in _KINDS:
        if found := search(text):
            return make_error(_Message(text, found, sql, tables))
    return (QueryFailedError if _NOT_THE_QUERY.search(unquoted) else QueryError)(f"{_plain(text)}.")


def worker_error(output: str, signal: int) -> QueryError:
    """Return the error for a worker process that ended during a query."""
    if "memory allocation" in output or "Cannot allocate memory" in output:
        return QueryLimitError("The query needs more memory than the limit allows.", hint=_SIMPLIFY)
    if signal == 9:
        return QueryLimitError(
            "The system stopped the query, probably because the machine has too little free memory.", hint=_SIMPLIFY
        )
    if signal in (6, 7, 11):
        return QueryLimitError("The query is too complex: the engine ran out of memory or stack.", hint=_SIMPLIFY)
    return QueryFailedError(
        "The query engine failed on this query.", hint="Rewrite the query. The service log has the details."
    )


def find_case_mistake(text: str) -> tuple[str, str] | None:
    """Return an unknown column and the only column that differs from it in case, or None."""
    found = _column_in(text)
    if found is None or found.name != found.name.lower():
        return None
    same = {known for known in found.known if known.lower() == found.name}
    return (found.name, same.pop()) if len(same) == 1 else None


_SIMPLIFY = "Filter earlier, select fewer columns, or aggregate in steps."


def _exhausted(text: str) -> QueryError:
    resource = "disk space" if "disk" in text.lower() else "memory"
    return QueryLimitError(f"The query needs more {resource} than the limit allows.", hint=_SIMPLIFY)


def _invalid_sql(message: _Message) -> QueryError:
    text = re.sub(r"\\(.)", lambda match: {"n": "\n", "t": "\t"}.get(match[1], match[1]), message.found["text"])
    found = _POSITION.search(text)
    position = (int(found[1]), int(found[2])) if found else None
    return QueryError(f"Invalid SQL: {_POSITION.sub('', text)[:_MAX_LENGTH]}.", position=position)


def _unknown_table(message: _Message) -> QueryError:
    catalog, schema, name = message.found
    position = position_of(message.sql, name)
    if schema not in ("datasets", "default", "none"):
        full_name = f"{schema}.{name}" if catalog == "inlay" else f"{catalog}.{schema}.{name}"
        return QueryError(
            f"There is no table {full_name}.", position=position, hint="Tables are named datasets.<table>."
        )
    tables = {table.lower(): table for table in message.tables()}
    bare, _, version = name.lower().partition("@")
    if version and bare in tables:
        return QueryError(f"The table datasets.{tables[bare]} has no version {version}.", position=position)
    meant = did_you_mean(bare, tables.values(), 3, lambda table: f"datasets.{table}")
    return QueryError(
        f"There is no table {name if schema == 'none' else f'datasets.{name}'}.",
        position=position,
        hint=meant or _list_names("tables", [*tables.values()]),
    )


def _unknown_column(message: _Message) -> QueryError:
    name, known = message.found
    return QueryError(
        f"There is no column {_as_in_sql(name)[:_MAX_LENGTH]}.",
        position=position_of(message.sql, name),
        hint=did_you_mean(name, known, 3, _as_in_sql) or _list_names("columns", [*map(_as_in_sql, known)]),
    )


def _unknown_function(message: _Message) -> QueryError:
    name, known = message.found.groups()
    return QueryError(
        f"There is no function {name}.",
        position=position_of(message.sql, name),
        hint=did_you_mean(name, [known], quote=str),
    )


class _Table(NamedTuple):
    """The parts of an unknown table's name."""

    catalog: str
    schema: str
    name: str


class _Column(NamedTuple):
    """The name of an unknown column, and the names of known columns."""

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


class _Message(NamedTuple):
    """A message of DataFusion and its query. `found` is what identified the message."""

    text: str
    found: Any
    sql: str
    tables: Callable[[], Sequence[str]]


_NOT_A_QUERY = re.compile(
    "^Error during planning: (DDL|DML|Statement) not supported: |unless information_schema is enabled"
)
_KINDS: tuple[tuple[Callable[[str], Any], Callable[[_Message], QueryError]], ...] = (
    (
        re.compile("RecursionLimitExceeded").search,
        lambda _: QueryError("The query is nested too deeply.", hint="Split the query into steps with WITH."),
    ),
    (
        re.compile("a single SQL statement").search,
        lambda _: QueryError("The SQL has several statements.", hint="Run one statement at a time."),
    ),
    (re.compile("No SQL statements were provided").search, lambda _: QueryError("The SQL is empty.")),
    (_NOT_A_QUERY.search, lambda message: QueryError(f"Only queries are allowed. {_plain(message.text)}.")),
    (_PARSER.search, _invalid_sql),
    (_table_in, _unknown_table),
    (_column_in, _unknown_column),
    (_FUNCTION.search, _unknown_function),
)


def _plain(text: str) -> str:
    text = text.partition(_BUG_REPORT)[0].strip()[: 4 * _MAX_LENGTH]
    while (shorter := _NOISE.sub("", text)) != text:
        text = shorter
    return text[:_MAX_LENGTH].rstrip(". \n")


def _name(qualified: str) -> str:
    """Return the last part of a qualified name such as x."A b"."""
    *_, last = _PART.finditer(qualified)
    return last[1].replace('""', '"') if last[1] is not None else last[2]


def _as_in_sql(column: str) -> str:
    """Quote a column name if SQL requires it."""
    return column if re.fullmatch(r"[a-z_][a-z0-9_]*", column) else quoted(column)


def _list_names(kind: str, names: Sequence[str]) -> str | None:
    if not names:
        return None
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"The {kind} are {', '.join(names[:_MAX_NAMES])}{more}."
