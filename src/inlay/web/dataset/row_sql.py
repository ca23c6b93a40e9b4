"""SQL for the grid: pages of rows in any order and under any filter, in which no row comes twice or is missed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from inlay.errors import InvalidArgumentError
from inlay.pipeline.cells import Reading, convert, reason
from inlay.query.cells import text_values
from inlay.query.statements import quoted
from inlay.type_grammar import type_name

__all__ = ["Filter", "Operator", "Page", "Sort", "View", "count_sql", "operators_of", "page_sql", "table_sql"]

Operator = Literal[
    "contains", "equals", "notEqual", "greaterThan", "lessThan", "isTrue", "isFalse", "blank", "notBlank"
]
MANY_BEFORE = 20_000
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_is: Any = pa.types


class Sort(NamedTuple):
    column: str
    descending: bool


class Filter(NamedTuple):
    column: str
    operator: Operator
    value: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What a person asked of a grid. Without sorts and filters it is the data as it is stored."""

    sorts: tuple[Sort, ...] = ()
    filters: tuple[Filter, ...] = ()

    @classmethod
    def of(cls, schema: pa.Schema, sorts: Sequence[Mapping[str, Any]], filters: Mapping[str, Any]) -> View:
        """From what the grid tells, in which columns are called c0, c1, ..."""
        try:
            columns = {f"c{number}": name for number, name in enumerate(schema.names)}
            return cls(
                tuple(Sort(columns[each["colId"]], each["sort"] == "desc") for each in sorts),
                tuple(
                    Filter(columns[place], told["type"], str(told.get("filter") or ""))
                    for place, told in filters.items()
                ),
            )
        except (KeyError, TypeError) as error:
            raise InvalidArgumentError(f"The grid asked for something that is not there: {error}.") from error

    @property
    def is_stored_order(self) -> bool:
        return not self.sorts and not self.filters


class Page(NamedTuple):
    """A query for some rows; of one that reads from the far end they come in reverse."""

    sql: str
    is_reversed: bool


# ---------------------------------------------------------------------------------------------------------- operators
_NULLS: tuple[Operator, ...] = ("blank", "notBlank")
_COMPARED: tuple[Operator, ...] = ("equals", "notEqual", "greaterThan", "lessThan", *_NULLS)


def operators_of(type_: pa.DataType) -> tuple[Operator, ...]:
    """What can be asked of a column; the first one is the usual one."""
    if _is_text(type_):
        return ("contains", *_COMPARED)
    if _is.is_boolean(type_):
        return ("isTrue", "isFalse", *_NULLS)
    return _COMPARED if _sql_type(type_) is not None else _NULLS


_CONDITIONS: Mapping[Operator, Callable[[str, pa.DataType, str], str]] = {
    "contains": lambda name, _, value: f"strpos(lower({name}), lower({_text(value)})) > 0",
    "equals": lambda name, type_, value: f"{name} = {_literal(value, type_)}",
    "notEqual": lambda name, type_, value: f"{name} <> {_literal(value, type_)}",
    "greaterThan": lambda name, type_, value: f"{name} > {_literal(value, type_)}",
    "lessThan": lambda name, type_, value: f"{name} < {_literal(value, type_)}",
    "isTrue": lambda name, _, __: name,
    "isFalse": lambda name, _, __: f"NOT {name}",
    "blank": lambda name, _, __: f"{name} IS NULL",
    "notBlank": lambda name, _, __: f"{name} IS NOT NULL",
}


# -------------------------------------------------------------------------------------------------------------- queries
def table_sql(table_name: str, version: int) -> str:
    """One version of a table, whatever is loaded meanwhile."""
    return f"datasets.{quoted(f'{table_name}@{version}')}"


def count_sql(table: str, schema: pa.Schema, filters: Sequence[Filter]) -> str:
    return f"SELECT count(*) FROM {table}{_where(schema, filters)}"  # noqa: S608  (all parts are quoted)


def page_sql(table: str, schema: pa.Schema, view: View, start: int, stop: int, total: int) -> Page:
    """Rows `start` to `stop` of `total`.

    Every column takes part in the order, so that only rows that are equal in all of them have no place of their own.
    The far half is read from the other end: the engine keeps no more rows than lie before the page. Where those are
    many, it is quicker to sort everything and to number the rows.
    """
    stop = min(stop, total)
    is_far = start > total - stop
    offset, count = total - stop if is_far else start, max(0, stop - start)
    source, order = f"{table}{_where(schema, view.filters)}", _order(schema, view.sorts, is_far)
    build = _first_rows if offset <= MANY_BEFORE else _numbered_rows
    return Page(build(schema, source, order, offset, count), is_far)


def _first_rows(schema: pa.Schema, source: str, order: str, offset: int, count: int) -> str:
    return f"SELECT {_columns(schema)} FROM {source} ORDER BY {order} LIMIT {count} OFFSET {offset}"  # noqa: S608


def _numbered_rows(schema: pa.Schema, source: str, order: str, offset: int, count: int) -> str:
    columns, place = _columns(schema), quoted("".join(schema.names) + "#")  # a name that no column has
    window = f"ORDER BY {order} ROWS UNBOUNDED PRECEDING"  # the usual range is not there for all types
    numbered = f"SELECT {columns}, row_number() OVER ({window}) AS {place} FROM {source}"  # noqa: S608
    wanted = f"{place} > {offset} AND {place} <= {offset + count}"
    return f"SELECT {columns} FROM ({numbered}) WHERE {wanted} ORDER BY {place}"  # noqa: S608


def _columns(schema: pa.Schema) -> str:
    return ", ".join(map(quoted, schema.names))


def _order(schema: pa.Schema, sorts: Sequence[Sort], is_reversed: bool) -> str:
    chosen = {sort.column: sort.descending for sort in sorts}
    ranks = chosen | {name: False for name in schema.names if name not in chosen}
    nulls = "FIRST" if is_reversed else "LAST"
    return ", ".join(
        f"{quoted(name)} {'DESC' if descending is not is_reversed else 'ASC'} NULLS {nulls}"
        for name, descending in ranks.items()
    )


def _where(schema: pa.Schema, filters: Sequence[Filter]) -> str:
    conditions = [_condition(schema, each) for each in filters]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


def _condition(schema: pa.Schema, asked: Filter) -> str:
    type_ = schema.field(asked.column).type
    if asked.operator not in operators_of(type_):
        raise InvalidArgumentError(f"A {type_name(type_)} cannot be asked for {asked.operator!r}.")
    return _CONDITIONS[asked.operator](quoted(asked.column), type_, asked.value)


# ---------------------------------------------------------------------------------------------------- names and values
def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _literal(value: str, type_: pa.DataType) -> str:
    """A value of exactly the column's type, so that no column is cast to compare it."""
    if _is_text(type_):
        return _text(value)
    [exact] = text_values(_parsed(value.strip(), type_))
    return f"arrow_cast({_text(str(exact))}, {_text(str(_sql_type(type_)))})"


def _parsed(value: str, type_: pa.DataType) -> pa.Array:
    """What a person typed, read as a cell of a file would be; a moment without a zone is meant as shown, in UTC."""
    for readable in (type_, pa.timestamp(type_.unit)) if getattr(type_, "tz", None) else (type_,):
        found = convert(pa.array([value]), Reading(readable, fixed=True)).values
        if found.null_count == 0:
            return found if readable == type_ else found.cast(pa.int64()).cast(type_)
    raise InvalidArgumentError(f"{value[:100]!r} is {reason(type_)}.")


def _is_text(type_: pa.DataType) -> bool:
    return bool(_is.is_string(type_) or _is.is_large_string(type_))


def _sql_type(type_: pa.DataType) -> str | None:
    """What `arrow_cast` calls a type that values can be compared in."""
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if _is.is_decimal(type_):
        return f"Decimal{type_.bit_width}({type_.precision}, {type_.scale})"
    if _is.is_timestamp(type_):
        return f"Timestamp({_UNITS[type_.unit]}, {_zone(type_.tz)})"
    if _is.is_time(type_):
        return f"Time{type_.bit_width}({_UNITS[type_.unit]})"
    return None


def _zone(name: str | None) -> str:
    return "None" if name is None else f'Some("{name}")'


_PLAIN = {
    pa.int8(): "Int8",
    pa.int16(): "Int16",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.uint8(): "UInt8",
    pa.uint16(): "UInt16",
    pa.uint32(): "UInt32",
    pa.uint64(): "UInt64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.date32(): "Date32",
}
