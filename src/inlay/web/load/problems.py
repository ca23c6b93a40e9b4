"""What went wrong, in the place where it was tried: with the cells that are to blame, and with what can be done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from nicegui import html, ui

from inlay.errors import BadRowsError, InlayError
from inlay.web.bad_cells import bad_cells_table

__all__ = ["WayOut", "show_problem", "show_warnings"]

_CELLS = 20


class WayOut(NamedTuple):
    """What may help, in words for people and as a button."""

    advice: str
    button: str
    act: Callable[[], Awaitable[None]]


def show_problem(error: InlayError, way_out: WayOut | None = None) -> None:
    with html.div(role="alert").classes("inlay-problem"):
        html.p(error.message).classes("inlay-problem-message")
        advice = way_out.advice if way_out is not None else error.hint
        if advice:
            html.p(advice)
        if isinstance(error, BadRowsError):
            bad_cells_table(error.errors[:_CELLS])
            if len(error.errors) > _CELLS:
                html.p(f"and {len(error.errors) - _CELLS} more")
        if way_out is not None:
            with html.div().classes("inlay-buttons"):
                ui.button(way_out.button, on_click=way_out.act).props("outline no-caps")


def show_warnings(warnings: Sequence[str]) -> None:
    if warnings:
        with html.ul().classes("inlay-warning"):
            for warning in warnings:
                html.li(warning)
