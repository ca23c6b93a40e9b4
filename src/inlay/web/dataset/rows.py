"""The rows of a version in a grid that reads them page by page, with any order and filters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
from nicegui import events, html, ui
from nicegui.element import Element

from inlay.errors import InlayError, InvalidArgumentError, UnauthorizedError
from inlay.query.sql import quoted
from inlay.query.values import text_values
from inlay.text.cells import Reading, convert, reason
from inlay.type_grammar import type_name
from inlay.web import formatting
from inlay.web.dataset.schema import kind_of
from inlay.web.shell import Visitor, report_errors
from inlay.web.widgets import shorten

if TYPE_CHECKING:
    from inlay.catalog import Snapshot
    from inlay.workspace import Workspace

__all__ = ["Filter", "Rows", "Sort", "View", "count_sql", "operators_of", "page_sql", "show_rows", "table_of"]

Operator = Literal[
    "contains", "equals", "notEqual", "greaterThan", "lessThan", "isTrue", "isFalse", "blank", "notBlank"
]
Cells = list[list[str | None]]
MAX_TOP_K_OFFSET = 20_000
_BLOCK_SIZE = 100
_MAX_CELL, _MAX_DIALOG_CELL = 300, 20_000  # characters
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_is: Any = pa.types


class Sort(NamedTuple):
    column: str
    descending: bool


class Filter(NamedTuple):
    column: str
    operator: Operator
    value: str = ""


# ------------------------------------------------------------------------------------------------------------------ sql
@dataclass(frozen=True, slots=True)
class View:
    """The order and filters of the grid. Without any, rows come in the order of the files."""

    sorts: tuple[Sort, ...] = ()
    filters: tuple[Filter, ...] = ()

    @classmethod
    def of(cls, schema: pa.Schema, sorts: Sequence[Mapping[str, Any]], filters: Mapping[str, Any]) -> View:
        """Parse the sort and filter models of AG Grid, in which column `i` is called `c{i}`."""
        try:
            columns = {f"c{number}": name for number, name in enumerate(schema.names)}
            return cls(
                tuple(Sort(columns[each["colId"]], each["sort"] == "desc") for each in sorts),
                tuple(
                    Filter(columns[column], model["type"], str(model.get("filter") or ""))
                    for column, model in filters.items()
                ),
            )
        except (KeyError, TypeError) as error:
            raise InvalidArgumentError(
                f"The order or a filter of the grid is invalid: {error}.", hint="Reload the page."
            ) from error

    @property
    def is_stored_order(self) -> bool:
        return not self.sorts and not self.filters


class Page(NamedTuple):
    """A query for a page of rows. A reversed query returns them last to first."""

    sql: str
    is_reversed: bool


_NULLS: tuple[Operator, ...] = ("blank", "notBlank")
_COMPARED: tuple[Operator, ...] = ("equals", "notEqual", "greaterThan", "lessThan", *_NULLS)


def operators_of(type_: pa.DataType) -> tuple[Operator, ...]:
    """Return the filter operators for a type, with the default first."""
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


def count_sql(table: str, schema: pa.Schema, filters: Sequence[Filter]) -> str:
    return f"SELECT count(*) FROM {table}{_where(schema, filters)}"  # noqa: S608  (all parts are quoted)


def page_sql(table: str, schema: pa.Schema, view: View, start: int, stop: int, total: int) -> Page:
    """Build the query for rows `start` to `stop` of `total`.

    All columns take part in the order, so that pages never overlap. The second half is read in reverse order, because
    the engine keeps all rows before the page in memory. If these are many, sorting and numbering all rows is faster.
    """
    stop = min(stop, total)
    is_reversed = start > total - stop
    offset, count = total - stop if is_reversed else start, max(0, stop - start)
    source, order = f"{table}{_where(schema, view.filters)}", _order(schema, view.sorts, is_reversed)
    build = _top_rows if offset <= MAX_TOP_K_OFFSET else _numbered_rows
    return Page(build(schema, source, order, offset, count), is_reversed)


def _top_rows(schema: pa.Schema, source: str, order: str, offset: int, count: int) -> str:
    return f"SELECT {_columns(schema)} FROM {source} ORDER BY {order} LIMIT {count} OFFSET {offset}"  # noqa: S608


def _numbered_rows(schema: pa.Schema, source: str, order: str, offset: int, count: int) -> str:
    columns, number = _columns(schema), quoted("".join(schema.names) + "#")  # No column can have this name.
    window = f"ORDER BY {order} ROWS UNBOUNDED PRECEDING"  # The default frame, RANGE, does not support all types.
    numbered = f"SELECT {columns}, row_number() OVER ({window}) AS {number} FROM {source}"  # noqa: S608
    page = f"{number} > {offset} AND {number} <= {offset + count}"
    return f"SELECT {columns} FROM ({numbered}) WHERE {page} ORDER BY {number}"  # noqa: S608


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


def _condition(schema: pa.Schema, filter_: Filter) -> str:
    type_ = schema.field(filter_.column).type
    if filter_.operator not in operators_of(type_):
        raise InvalidArgumentError(
            f"The filter {filter_.operator!r} does not support the type {type_name(type_)} of column "
            f"{filter_.column!r}.",
            hint="Choose another filter.",
        )
    return _CONDITIONS[filter_.operator](quoted(filter_.column), type_, filter_.value)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _literal(value: str, type_: pa.DataType) -> str:
    """Return a literal of exactly the column's type, so that the engine does not cast the column."""
    if _is_text(type_):
        return _text(value)
    [exact] = text_values(_parsed(value.strip(), type_))
    return f"arrow_cast({_text(str(exact))}, {_text(str(_sql_type(type_)))})"


def _parsed(value: str, type_: pa.DataType) -> pa.Array:
    """Parse a typed value like a cell of a file. A timestamp without a time zone is read as UTC."""
    for readable in (type_, pa.timestamp(type_.unit)) if getattr(type_, "tz", None) else (type_,):
        found = convert(pa.array([value]), Reading(readable, fixed=True)).values
        if found.null_count == 0:
            return found if readable == type_ else found.cast(pa.int64()).cast(type_)
    raise InvalidArgumentError(f"{value[:100]!r} is {reason(type_)}.")


def _is_text(type_: pa.DataType) -> bool:
    return bool(_is.is_string(type_) or _is.is_large_string(type_))


def _sql_type(type_: pa.DataType) -> str | None:
    """Return the name of a type for `arrow_cast`, or None if its values cannot be compared."""
    if type_ in _SQL_TYPES:
        return _SQL_TYPES[type_]
    if _is.is_decimal(type_):
        return f"Decimal{type_.bit_width}({type_.precision}, {type_.scale})"
    if _is.is_timestamp(type_):
        return f"Timestamp({_UNITS[type_.unit]}, {_zone(type_.tz)})"
    if _is.is_time(type_):
        return f"Time{type_.bit_width}({_UNITS[type_.unit]})"
    return None


def _zone(name: str | None) -> str:
    return "None" if name is None else f'Some("{name}")'


_SQL_TYPES = {
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


# ----------------------------------------------------------------------------------------------------------------- rows
class Rows:
    """The rows of one version. Later loads do not affect them."""

    def __init__(self, visitor: Visitor, snapshot: Snapshot) -> None:
        self._visitor = visitor
        self._snapshot = snapshot
        self._stored = snapshot.version.row_count
        self._counts: dict[tuple[Any, ...], int] = {(): self._stored}
        self.schema = snapshot.version.schema.remove_metadata()

    async def total(self, view: View) -> int:
        if view.filters not in self._counts:
            found = await self._visitor.read(
                lambda w: _query(w, count_sql(table_of(w, self._snapshot), self.schema, view.filters)), "queries"
            )
            self._counts = {(): self._stored, view.filters: found[0][0].as_py()}
        return self._counts[view.filters]

    async def page(self, view: View, start: int, stop: int, limit: int) -> Cells:
        """Read rows `start` to `stop`. Cells are cut after `limit` characters."""
        if view.is_stored_order:
            table = await self._visitor.read(lambda w: self._read_stored(w, start, stop), "bytes")
            return _cells(table, limit)
        total = await self.total(view)
        return await self._visitor.read(lambda w: self._query_page(w, view, start, stop, total, limit), "queries")

    def _query_page(self, workspace: Workspace, view: View, start: int, stop: int, total: int, limit: int) -> Cells:
        page = page_sql(table_of(workspace, self._snapshot), self.schema, view, start, stop, total)
        cells = _cells(_query(workspace, page.sql), limit)
        return cells[::-1] if page.is_reversed else cells

    def _read_stored(self, workspace: Workspace, start: int, stop: int) -> pa.Table:
        data = workspace.data(self._snapshot.dataset.id, self._snapshot.version.version)
        return pa.Table.from_batches(data.batches(start, stop - start), self.schema)


def table_of(workspace: Workspace, snapshot: Snapshot) -> str:
    """Return the SQL name of a version.

    The dataset may have been renamed, and another dataset may now use its old name. So this reads the current name.
    """
    table_name = workspace.catalog.datasets.get(snapshot.dataset.id).table_name
    return f"datasets.{quoted(f'{table_name}@{snapshot.version.version}')}"


def _query(workspace: Workspace, sql: str) -> pa.Table:
    with workspace.query(sql) as result:
        return result.read_all()


def _cells(table: pa.Table, limit: int) -> Cells:
    """Convert all values to text, because numbers in a browser are less exact."""
    columns = [text_values(column.combine_chunks()) for column in table.columns]
    rows = zip(*columns, strict=True)
    return [[None if cell is None else shorten(cell, limit) for cell in row] for row in rows]


# ------------------------------------------------------------------------------------------------------------------ tab
async def show_rows(visitor: Visitor, snapshot: Snapshot) -> None:
    _RowsView(Rows(visitor, snapshot), snapshot)


class _RowsView:
    """The grid, and above it the row count and buttons to retry and to clear the filters."""

    def __init__(self, rows: Rows, snapshot: Snapshot) -> None:
        self._rows, self._stored = rows, snapshot.version.row_count
        self._latest = 0  # The key of the latest request. Responses to earlier requests don't change the status.
        with ui.row().classes("inlay-rows-bar"):
            self._status = ui.label(formatting.count(self._stored, "row")).props("role=status")
            self._retry = ui.button("Retry", icon="refresh").props("flat dense no-caps")
            self._clear = ui.button("Clear filters and order", icon="filter_alt_off").props("flat dense no-caps")
        self._retry.set_visibility(False)
        self._clear.set_visibility(False)
        self._grid = _Grid(rows.schema, self._stored, f"Rows of {snapshot.dataset.label}").classes("inlay-rows")
        self._grid.style(f"--rows: {min(self._stored, _BLOCK_SIZE)}")
        self._grid.on("rows_requested", report_errors(self._deliver))
        self._grid.on("opened", report_errors(self._open))
        self._retry.on_click(lambda: self._grid.run_method("retry"))
        self._clear.on_click(lambda: self._grid.run_method("reset"))

    async def _deliver(self, event: events.GenericEventArguments) -> None:
        request, cells, total = event.args, None, 0
        self._latest = max(self._latest, request["key"])
        try:
            view = View.of(self._rows.schema, request["sorts"], request["filters"])
            matching = await self._rows.total(view)
            start = max(0, int(request["start"]))
            stop = min(int(request["stop"]), start + _BLOCK_SIZE)  # A browser could request any number of rows.
            cells, total = await self._rows.page(view, start, stop, _MAX_CELL), matching
            self._retry.set_visibility(False)
            count = formatting.count(self._stored, "row")
            self._show_status(request, f"{total:,} of {count}" if view.filters else count)
        except UnauthorizedError:
            raise
        except InlayError as error:  # The visitor may still be typing the value of a filter.
            self._retry.set_visibility(True)
            self._show_status(request, str(error.message), "inlay-problem")
        finally:
            self._grid.run_method("deliver", request["key"], cells, total)

    def _show_status(self, request: dict[str, object], text: str, classes: str = "") -> None:
        if request["key"] == self._latest:
            self._status.text = text
            self._status.classes(replace=classes)
            self._clear.set_visibility(bool(request["sorts"] or request["filters"]))

    async def _open(self, event: events.GenericEventArguments) -> None:
        request, number = event.args, max(0, int(event.args["row"]))
        view = View.of(self._rows.schema, request["sorts"], request["filters"])
        for cells in await self._rows.page(view, number, number + 1, _MAX_DIALOG_CELL):
            _show_row(self._rows.schema, number, cells)


def _show_row(schema: pa.Schema, number: int, cells: list[str | None]) -> None:
    """Open a dialog with all values of a row."""
    with ui.dialog() as dialog, ui.card().classes("inlay-dialog inlay-row-dialog"):
        with ui.row().classes("w-full items-center no-wrap"):
            html.h2(f"Row {number + 1:,}").classes("inlay-subtitle grow")
            ui.button(icon="close", on_click=dialog.close).props('flat round dense aria-label="Close"')
        with html.dl().classes("inlay-row-values"):
            for field, cell in zip(schema, cells, strict=True):
                html.dt(field.name)
                html.dd("NULL" if cell is None else cell).classes("inlay-null" if cell is None else "")
    dialog.props["aria-label"] = f"Row {number + 1:,}"
    dialog.on_value_change(lambda event: None if event.value else dialog.delete())
    dialog.open()


class _Grid(Element, component="rows_grid.js"):
    def __init__(self, schema: pa.Schema, total: int, label: str) -> None:
        super().__init__()
        self._props["columns"] = [
            {
                "name": field.name,
                "type": type_name(field.type),
                "isNumber": kind_of(field.type) == "number",
                "operators": operators_of(field.type),
            }
            for field in schema
        ]
        self._props["total"] = total
        self._props["block"] = _BLOCK_SIZE
        self._props["label"] = label
