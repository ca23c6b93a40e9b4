"""The rows of a version, page by page, in any order and under any filter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from inlay.query.cells import text_values
from inlay.web.dataset.row_sql import View, count_sql, page_sql, table_sql
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot
    from inlay.workspace import Workspace

__all__ = ["Cells", "Rows", "table_of"]

Cells = list[list[str | None]]


class Rows:
    """What a visitor may read of one version, whatever is loaded meanwhile."""

    def __init__(self, visitor: Visitor, snapshot: Snapshot) -> None:
        self._visitor = visitor
        self._snapshot = snapshot
        self._stored = snapshot.version.row_count
        self._counts: dict[tuple[Any, ...], int] = {(): self._stored}
        self.schema = snapshot.version.schema.remove_metadata()

    async def total(self, view: View) -> int:
        if view.filters not in self._counts:
            found = await self._visitor.read(
                lambda w: _ask(w, count_sql(table_of(w, self._snapshot), self.schema, view.filters)), "queries"
            )
            self._counts = {(): self._stored, view.filters: found[0][0].as_py()}
        return self._counts[view.filters]

    async def page(self, view: View, start: int, stop: int, longest: int) -> Cells:
        """Cells with more letters than `longest` are cut."""
        if view.is_stored_order:
            table = await self._visitor.read(lambda w: self._in_stored_order(w, start, stop), "bytes")
            return _cells(table, longest)
        total = await self.total(view)
        return await self._visitor.read(lambda w: self._in_order(w, view, start, stop, total, longest), "queries")

    def _in_order(self, workspace: Workspace, view: View, start: int, stop: int, total: int, longest: int) -> Cells:
        page = page_sql(table_of(workspace, self._snapshot), self.schema, view, start, stop, total)
        cells = _cells(_ask(workspace, page.sql), longest)
        return cells[::-1] if page.is_reversed else cells

    def _in_stored_order(self, workspace: Workspace, start: int, stop: int) -> pa.Table:
        data = workspace.data(self._snapshot.dataset.id, self._snapshot.version.version)
        return pa.Table.from_batches(data.batches(start, stop - start), self.schema)


def table_of(workspace: Workspace, snapshot: Snapshot) -> str:
    """A version in SQL, by the name that its dataset has now: another one may have its old name."""
    return table_sql(workspace.catalog.datasets.get(snapshot.dataset.id).table_name, snapshot.version.version)


def _ask(workspace: Workspace, sql: str) -> pa.Table:
    with workspace.query(sql) as result:
        return result.read_all()


def _cells(table: pa.Table, longest: int) -> Cells:
    """Text to the last digit: a browser's numbers are not as exact as ours."""
    columns = [text_values(column.combine_chunks()) for column in table.columns]
    return [[_cut(cell, longest) for cell in row] for row in zip(*columns, strict=True)]


def _cut(cell: str | None, longest: int) -> str | None:
    return cell if cell is None or len(cell) <= longest else cell[:longest] + "…"
