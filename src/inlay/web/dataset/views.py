"""The published views of a dataset: their addresses, and code that reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nicegui import html
from nicegui.element import Element

from inlay.web.shell import CopyButton

if TYPE_CHECKING:
    from inlay.catalog import View

__all__ = ["show_views", "view_code"]

_NAMES = {"delta": "Delta Lake", "iceberg": "Apache Iceberg"}


def show_views(views: Sequence[View], address: str) -> None:
    """Show the views of a dataset, whose tables are at an address."""
    for view in views:
        name = _NAMES[view.format]
        with html.section(**{"aria-label": f"{name} view"}).classes("inlay-card inlay-snippet"):
            if view.version is None:
                html.h3(f"{name} view")
            else:
                _show_copyable(f"{name} view", address, html.h3)
                html.p(_note(view, name)).classes("inlay-note")
                html.pre(address, tabindex=0).classes("inlay-code")
            if view.problem:
                html.p(f"The view cannot show version {view.newest}: {view.problem}").classes("inlay-problem")
            if view.version is not None:
                code = view_code(view.format, address)
                _show_copyable(f"Code for the {name} view", code, html.h4)
                html.pre(code, tabindex=0).classes("inlay-code")


def _show_copyable(title: str, text: str, heading: type[Element]) -> None:
    with html.div().classes("inlay-snippet-head"):
        heading(title)
        CopyButton(text, f"Copy {title}")


def _note(view: View, name: str) -> str:
    return (
        f"Programs that read {name} and can access the storage see the dataset as a read-only table at this address."
        f" The newest version in the table is {view.version}."
    )


def view_code(format_: str, address: str) -> str:
    return _CODE[format_](json.dumps(address), address.replace("'", "''"), json.dumps(_spark_url(address)))


def _spark_url(address: str) -> str:
    return address.replace("s3://", "s3a://", 1)


_CODE: dict[str, Callable[[str, str, str], str]] = {
    "delta": lambda python, sql, spark: (
        f"# polars; version=1 reads version 1\npl.scan_delta({python}).collect()\n\n"
        f"-- DuckDB\nSELECT * FROM delta_scan('{sql}');\n\n"
        f'# Spark\nspark.read.format("delta").load({spark})'
    ),
    "iceberg": lambda python, sql, spark: (
        f"# pyiceberg; scan(snapshot_id=1) reads version 1\ntable = StaticTable.from_metadata({python})\n"
        f"table.scan().to_arrow()\n\n# polars\npl.scan_iceberg(table).collect()\n\n"
        f"-- DuckDB\nSELECT * FROM iceberg_scan('{sql}');\n\n"
        f'# Spark\nspark.read.format("iceberg").load({spark})'
    ),
}
