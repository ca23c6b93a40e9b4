"""What a query answered, as a table and as a chart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

from nicegui import ui

from inlay.query.cells import json_values
from inlay.web import charting
from inlay.web.charting import Chart, default_chart
from inlay.web.grid import cells, grid_options
from inlay.web.wording import count, duration

if TYPE_CHECKING:
    from inlay.query import QueryResult
    from inlay.workspace import Workspace

__all__ = ["MOST_ROWS", "Answer", "ChartPanel", "ask", "show_table"]

MOST_ROWS = 10_000
_MOST_CHARACTERS = 16_000_000  # of all cells that are sent to a browser
_LETTERS_OF_A_NUMBER = 18
_KINDS = {"bar": "Bars", "line": "Line", "scatter": "Points"}
_ROW_NUMBER = -1


@dataclass(frozen=True, slots=True)
class Answer:
    columns: list[tuple[str, str]]  # name and type
    rows: list[list[Any]]
    row_count: int
    truncated: bool
    seconds: float

    @property
    def summary(self) -> str:
        """How much it is, how much of it is shown, and how long it took."""
        if self.truncated:
            rows = f"First {count(self.row_count, 'row')}, there are more"
        else:
            rows = count(self.row_count, "row")
        if len(self.rows) < self.row_count:
            rows += f", {len(self.rows):,} shown"
        return f"{rows} · {duration(self.seconds)}"


def ask(workspace: Workspace, sql: str, limit: int, cancel: Event) -> Answer:
    """Answer a query for people: as many rows as a browser can show."""
    with workspace.query(sql, min(limit, MOST_ROWS), None, cancel) as result:
        columns = [(column["name"], column["type"]) for column in result.columns()]
        rows = list(_within(_rows(result), _MOST_CHARACTERS))
        return Answer(columns, rows, result.row_count, result.truncated, result.execution_ms / 1000)


def _rows(result: QueryResult) -> Iterator[list[Any]]:
    for batch in result.batches():
        yield from cells(zip(*map(json_values, batch.columns), strict=True))


def _within(rows: Iterator[list[Any]], most: int) -> Iterator[list[Any]]:
    """Rows as long as they are not too much together."""
    for row in rows:
        most -= sum(len(cell) if isinstance(cell, str) else _LETTERS_OF_A_NUMBER for cell in row)
        if most < 0:
            return
        yield row


# ------------------------------------------------------------------------------------------------------------- showing
def show_table(answer: Answer) -> ui.element:
    grid = ui.aggrid(grid_options(answer.columns, answer.rows), auto_size_columns=False).classes("inlay-grid")
    return grid.style(f"height: min({len(answer.rows) * 32 + 42}px, 65vh); min-height: 6rem")


class ChartPanel:
    """A chart of the answer, and what of it is drawn how."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._names = [name for name, _ in answer.columns]
        self._types = [type_ for _, type_ in answer.columns]
        chart = default_chart(self._types, answer.rows)
        if chart is None:
            ui.label("There is nothing to draw: a chart needs two rows and a column of numbers.").classes("inlay-note")
            return
        self._make_controls(chart)
        self._note = ui.label().classes("inlay-note")
        self._place = ui.element("div").classes("w-full")
        self._draw()

    def _make_controls(self, chart: Chart) -> None:
        every = dict(enumerate(self._names))
        numbers = {at: self._names[at] for at in charting.numbers(self._types)}
        with ui.row().classes("w-full items-end gap-3"):
            self._kind = ui.toggle(_KINDS, value=chart.kind, on_change=self._draw).props("dense no-caps unelevated")
            self._x = ui.select(
                {_ROW_NUMBER: "row number", **every},
                value=_ROW_NUMBER if chart.x is None else chart.x,
                label="Across",
                on_change=self._draw,
            )
            self._y = ui.select(numbers, value=list(chart.y), label="Up", multiple=True, on_change=self._draw)
            for select in (self._x, self._y):
                select.props("dense outlined options-dense").classes("inlay-chart-choice")
            self._y.props("use-chips")

    def _draw(self) -> None:
        self._place.clear()
        chart = Chart(self._kind.value, None if self._x.value == _ROW_NUMBER else self._x.value, tuple(self._y.value))
        drawn = charting.most_rows(chart.kind)
        self._note.set_visibility(len(self._answer.rows) > drawn)
        self._note.text = f"The first {count(drawn, 'row')} of {len(self._answer.rows):,}."
        if chart.y:
            with self._place:
                options = charting.options(chart, self._names, self._types, self._answer.rows)
                ui.echart(options, renderer="svg").classes("inlay-chart")
