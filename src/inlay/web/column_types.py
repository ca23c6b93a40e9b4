"""The columns of a file: what was found in them, and the types that somebody chose for them."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from nicegui import events, html, ui

from inlay.errors import InlayError
from inlay.type_grammar import parse_type
from inlay.web.grid import cells
from inlay.web.shell import guarded
from inlay.web.wording import count

if TYPE_CHECKING:
    from inlay.server.models import Preview, PreviewColumn

__all__ = ["ColumnTypes"]

_COMMON = (
    "text", "bigint", "integer", "double", "decimal(18,2)", "boolean", "date", "timestamp",
    "timestamp with time zone", "time",
)  # fmt: skip
_AT_FIRST = 50  # more columns are shown when asked for
_LONGEST_SAMPLE = 40


class ColumnTypes:
    """`chosen` holds the types that are not to be found out."""

    def __init__(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self.chosen: dict[str, str] = {}
        self._on_change = on_change
        self._rows: dict[str, _Row] = {}
        self._most = _AT_FIRST
        self._found: Preview | None = None
        self._place = ui.column().classes("w-full")

    def forget_others(self, names: Sequence[str]) -> None:
        """Columns that are there no more have no types."""
        self.chosen = {name: type_ for name, type_ in self.chosen.items() if name in names}

    def show(self, found: Preview) -> None:
        """What a preview found. Rows that are there stay there, with whoever is typing in them."""
        self._found = found
        shown = found.columns[: self._most]
        if [column.name for column in shown] != list(self._rows):
            self._build(found, shown)
        for column in shown:
            self._rows[column.name].show(column, column.name in self.chosen)

    def _build(self, found: Preview, shown: Sequence[PreviewColumn]) -> None:
        self._place.clear()
        with self._place:
            with html.table().classes("inlay-table inlay-columns"):
                with html.thead(), html.tr():
                    for name in ("Column", "Type", "Empty", "For example"):
                        html.th(name).props("scope=col")
                with html.tbody():
                    is_fixed = found.format == "parquet"
                    self._rows = {c.name: _Row(c.name, None if is_fixed else self._choose) for c in shown}
            if len(found.columns) > len(shown):
                more = f"Show {count(len(found.columns) - len(shown), 'more column')}"
                ui.button(more, on_click=self._show_all).props("flat no-caps")

    def _show_all(self) -> None:
        if self._found is not None:
            self._most = len(self._found.columns)
            self.show(self._found)

    async def _choose(self, name: str, type_: str | None) -> None:
        if type_ is None:
            self.chosen.pop(name, None)
        else:
            self.chosen[name] = type_
        await self._on_change()


class _Row:
    def __init__(self, name: str, choose: Callable[[str, str | None], Awaitable[None]] | None) -> None:
        self._name, self._choose = name, choose
        self._type = self._typed = ""
        with html.tr():
            with html.td().classes("inlay-what"):
                ui.label(name).classes("inlay-name inlay-column")
                self._bad = ui.label().classes("inlay-badge")
            with html.td():
                self._select = self._type_select() if choose else None
                self._plain = ui.label().classes("inlay-mono")
                self._plain.set_visibility(choose is None)
            with html.td().classes("inlay-fact"):
                self._share = ui.label()
            self._samples = html.td().classes("inlay-samples inlay-mono")

    def _type_select(self) -> ui.select:
        with ui.row().classes("items-center no-wrap gap-0"):
            select = ui.select(
                list(_COMMON), on_change=guarded(self._changed), new_value_mode="add-unique", validation=_problem_with
            )
            select.props("dense outlined options-dense hide-bottom-space").classes("inlay-type")
            select.props["aria-label"] = f"Type of {self._name}"
            select.on("input-value", self._type_in).on("blur", self._leave)
            self._reset = ui.button(icon="undo", on_click=guarded(functools.partial(self._pick, None)))
            self._reset.props("flat round dense size=sm")
            self._reset.props["aria-label"] = f"Back to the type that was found for {self._name}"
            self._reset.props["title"] = "Back to the type that was found"
        return select

    def show(self, column: PreviewColumn, is_chosen: bool) -> None:
        self._type = column.type
        self._plain.text = column.type
        self._share.text = f"{column.null_share:.0%}" if column.null_share in (0, 1) else f"{column.null_share:.1%}"
        self._bad.text = f"{column.bad_count:,} do not fit" if column.bad_count != 1 else "1 does not fit"
        self._bad.set_visibility(column.bad_count > 0)
        self._samples.clear()
        with self._samples:
            for sample in cells([column.samples])[0]:
                html.span(_shortened(sample)).classes("inlay-sample")
        if self._select is not None:
            self._reset.set_visibility(is_chosen)
            self._offer(self._select, column.type)

    def _type_in(self, event: events.GenericEventArguments) -> None:
        self._typed = str(event.args or "")

    def _leave(self) -> None:
        """Take what was typed, also without Enter."""
        if self._select is not None and self._typed not in ("", self._select.value):
            self._offer(self._select, self._typed)

    def _offer(self, select: ui.select, type_: str) -> None:
        if type_ not in select.options:
            select.set_options([*select.options, type_])
        select.set_value(type_)

    async def _changed(self, event: events.ValueChangeEventArguments[str | None]) -> None:
        self._typed = ""
        event.sender.run_method("hidePopup")
        if event.value and event.value != self._type and _problem_with(event.value) is None:
            self._type = event.value
            await self._pick(event.value)

    async def _pick(self, type_: str | None) -> None:
        if self._choose is not None:
            await self._choose(self._name, type_)


def _problem_with(type_: str | None) -> str | None:
    try:
        parse_type(type_ or "text")
    except InlayError as error:
        return f"{error.message} {error.hint or ''}".strip()
    return None


def _shortened(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_SAMPLE else f"{text[:_LONGEST_SAMPLE]}…"
