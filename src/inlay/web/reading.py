"""How a file is read: what was found out about it, in fields that can be changed."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from nicegui import events, ui

from inlay.web.shell import guarded

__all__ = ["ReadingForm"]

_FORMATS = {"csv": "CSV, TSV", "json": "JSON", "parquet": "Parquet"}
_UNSAID = ""  # in the place of None, which would be nothing chosen


class _Choice(NamedTuple):
    """A field of one option; what is not among its choices may be typed if it is `free`."""

    label: str
    choices: dict[Any, str]
    free: bool = False


_CHOICES = {
    "delimiter": _Choice("Delimiter", {",": "comma ,", ";": "semicolon ;", "\t": "tab", "|": "bar |"}, free=True),
    "header": _Choice("First line", {True: "names of columns", False: "data"}),
    "quote": _Choice("Quotes", {'"': 'double "', "'": "single '", "": "none"}),
    "encoding": _Choice(
        "Encoding",
        {
            "utf-8": "UTF-8",
            "cp1252": "Windows-1252 (Western Europe)",
            "iso8859-1": "Latin-1",
            "cp1250": "Windows-1250 (Central Europe)",
            "cp1251": "Windows-1251 (Cyrillic)",
            "utf-16": "UTF-16",
            "shift_jis": "Shift JIS",
            "gb18030": "GB 18030",
        },
        free=True,
    ),
    "layout": _Choice("Layout", {"lines": "a record per line", "array": "one array", "objects": "objects in a row"}),
    "day_first": _Choice("05/04/2024 is", {_UNSAID: "unclear, so text", True: "5 April", False: "May 4"}),
}
_FIELDS = {
    "csv": ("delimiter", "header", "quote", "encoding", "day_first"),
    "json": ("layout", "encoding", "day_first"),
    "parquet": (),
}


class ReadingForm:
    """What people say stands in `stated_format` and `changes`; everything else is found out anew each time."""

    def __init__(self, format_: str, on_change: Callable[[], Awaitable[None]]) -> None:
        self.format = format_
        self.stated_format: str | None = None
        self.changes: dict[str, Any] = {}
        self._found: dict[str, Any] = {}
        self._on_change = on_change
        self._selects: dict[str, ui.select] = {}
        self._nulls: ui.input_chips | None = None
        with ui.row().classes("inlay-fields"):
            changed = guarded(self._change_format)
            self._formats = ui.select(_FORMATS, label="Format", value=format_, on_change=changed).props(_LOOK)
            self._place = ui.row().classes("inlay-fields")
        self._build()

    def show(self, format_: str, found: Mapping[str, Any]) -> None:
        """Fill in what was found out."""
        self._found = {name: _UNSAID if value is None else value for name, value in found.items()}
        if format_ != self.format:
            self.format = format_
            self._build()
        self._formats.set_value(format_)
        for name, select in self._selects.items():
            _offer(select, self._found.get(name, _UNSAID))
        if self._nulls is not None:
            self._nulls.set_value(list(self._found.get("null_values", [])))

    async def add_null_value(self, value: str) -> None:
        """Let cells with this text mean nothing."""
        if self._nulls is not None:
            self._nulls.set_value([*self._nulls.value, value])

    def _build(self) -> None:
        self._place.clear()
        self._selects, self._nulls = {}, None
        with self._place:
            for name in _FIELDS[self.format]:
                self._selects[name] = self._select(name, _CHOICES[name])
            if self.format == "csv":
                changed = guarded(functools.partial(self._change, "null_values"))
                self._nulls = ui.input_chips("Cells that mean nothing", on_change=changed, new_value_mode="add-unique")
                self._nulls.props(_LOOK).props('hint="for example n/a; Enter adds one"').classes("inlay-wide")

    def _select(self, name: str, choice: _Choice) -> ui.select:
        select = ui.select(
            dict(choice.choices),
            label=choice.label,
            on_change=guarded(functools.partial(self._change, name)),
            new_value_mode="add-unique" if choice.free else None,
        )
        return select.props(_LOOK)

    async def _change(self, name: str, event: events.ValueChangeEventArguments[Any]) -> None:
        if event.value is None or event.value == self._found.get(name):  # it was filled in, not chosen
            return
        if name in self._selects:
            event.sender.run_method("hidePopup")  # Enter after fast typing would leave it open
        self._found[name] = event.value
        self.stated_format = self.format
        self.changes[name] = None if event.value == _UNSAID and name == "day_first" else event.value
        await self._on_change()

    async def _change_format(self, event: events.ValueChangeEventArguments[str]) -> None:
        if event.value != self.format:
            self.format = self.stated_format = event.value
            self.changes, self._found = {}, {}
            self._build()
            await self._on_change()


_LOOK = "dense outlined options-dense"


def _offer(select: ui.select, value: Any) -> None:
    """Choose a value, also one that was not thought of."""
    options = select.options
    assert isinstance(options, dict)  # noqa: S101
    if value not in options and value != _UNSAID:
        select.set_options({**options, value: str(value)})
    select.set_value(value if value in select.options else None)
