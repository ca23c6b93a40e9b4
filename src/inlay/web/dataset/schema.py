"""The columns of a version with their types."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nicegui import html, ui

from inlay.web import wording
from inlay.web.dataset.schema_tree import Line, lines_of

if TYPE_CHECKING:
    from inlay.catalog import Snapshot

__all__ = ["show_schema"]


async def show_schema(snapshot: Snapshot) -> None:
    schema = snapshot.version.schema
    ui.label(wording.count(len(schema), "column")).classes("inlay-note")
    with (
        html.div(role="region", tabindex=0, **{"aria-label": "Schema"}).classes("inlay-schema-scroll"),
        html.table().classes("inlay-schema"),
    ):
        with html.thead(), html.tr():
            for title in ("Name", "Type", "May be NULL"):
                html.th(title, scope="col")
        with html.tbody():
            for line in lines_of(schema):
                _show_line(line)


def _show_line(line: Line) -> None:
    with html.tr().classes("inlay-schema-inner" if line.depth else ""):
        with html.td().style(f"padding-left: {0.75 + 1.5 * line.depth}rem"):
            html.span(line.name).classes("inlay-mono")
        with html.td():
            html.span(line.type).classes("inlay-type")
        html.td("yes" if line.nullable else "no")
