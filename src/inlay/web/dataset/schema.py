"""The schema of a version: its columns and nested fields with their types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pyarrow as pa
from nicegui import html, ui

from inlay.type_grammar import type_name
from inlay.web import formatting

if TYPE_CHECKING:
    from inlay.catalog import Snapshot

__all__ = ["Kind", "Line", "kind_of", "schema_lines", "show_schema"]

Kind = Literal["number", "time", "text", "boolean", "other"]
_is: Any = pa.types


def kind_of(type_: pa.DataType) -> Kind:
    if _is.is_integer(type_) or _is.is_floating(type_) or _is.is_decimal(type_):
        return "number"
    if _is.is_date(type_) or _is.is_timestamp(type_) or _is.is_time(type_):
        return "time"
    if _is.is_string(type_) or _is.is_large_string(type_):
        return "text"
    return "boolean" if _is.is_boolean(type_) else "other"


class Line(NamedTuple):
    """A column or a nested field."""

    depth: int
    name: str
    type: str
    nullable: bool


def schema_lines(fields: Iterable[pa.Field], depth: int = 0) -> Iterator[Line]:
    """Yield a line for every column and nested field, depth first."""
    for field in fields:
        yield Line(depth, field.name, _outer_type(field.type), field.nullable)
        yield from schema_lines(_nested_fields(field.type), depth + 1)


def _outer_type(type_: pa.DataType) -> str:
    """Return the name of a type without the fields of its structs."""
    if _is.is_struct(type_):
        return "struct"
    if _is_list(type_):
        return f"list<{_outer_type(type_.value_type)}>"
    if _is.is_map(type_):
        return f"map<{_outer_type(type_.key_type)}, {_outer_type(type_.item_type)}>"
    return type_name(type_)


def _nested_fields(type_: pa.DataType) -> list[pa.Field]:
    if _is.is_struct(type_):
        return list(type_)
    if _is_list(type_):
        return _nested_fields(type_.value_type)
    return _nested_fields(type_.item_type) if _is.is_map(type_) else []


def _is_list(type_: pa.DataType) -> bool:
    return bool(_is.is_list(type_) or _is.is_large_list(type_) or _is.is_fixed_size_list(type_))


async def show_schema(snapshot: Snapshot) -> None:
    schema = snapshot.version.schema
    ui.label(formatting.count(len(schema), "column")).classes("inlay-note")
    with (
        html.div(role="region", tabindex=0, **{"aria-label": "Schema"}).classes("inlay-schema-scroll"),
        html.table().classes("inlay-schema"),
    ):
        with html.thead(), html.tr():
            for title in ("Name", "Type", "Nullable"):
                html.th(title, scope="col")
        with html.tbody():
            for line in schema_lines(schema):
                _show_line(line)


def _show_line(line: Line) -> None:
    with html.tr().classes("inlay-schema-inner" if line.depth else ""):
        with html.td().style(f"padding-left: {0.75 + 1.5 * line.depth}rem"):
            html.span(line.name).classes("inlay-mono")
        with html.td():
            html.span(line.type).classes("inlay-type")
        html.td("Yes" if line.nullable else "No")
