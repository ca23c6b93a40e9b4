"""How a file is read: fields that show what was found out, and by which a person says it better."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nicegui import ui

from inlay.web.shell import guarded

__all__ = ["FIELDS", "Reading", "choices_of", "settled"]

_FORMATS = {"csv": "CSV", "json": "JSON", "parquet": "Parquet"}
_LABELS = {
    "delimiter": "Delimiter",
    "encoding": "Encoding",
    "header": "First row",
    "day_first": "Dates like 01/02/2024",
    "layout": "Layout",
}
_CHOICES: dict[str, dict[Any, str]] = {
    "delimiter": {",": "Comma ( , )", ";": "Semicolon ( ; )", "\t": "Tab", "|": "Bar ( | )", " ": "Space"},
    "encoding": {
        "utf-8": "UTF-8",
        "cp1252": "Windows-1252",
        "iso8859-1": "Latin-1",
        "iso8859-15": "Latin-9",
        "utf-16": "UTF-16",
        "cp1250": "Windows-1250",
        "cp1251": "Windows-1251",
        "shift_jis": "Shift JIS",
        "gb18030": "GB 18030",
    },
    "header": {True: "Names of the columns", False: "Data"},
    "day_first": {None: "As the file proves it", True: "1 February 2024", False: "2 January 2024"},
    "layout": {"lines": "A record on each line", "array": "One array", "objects": "Objects one after the other"},
}
#: format -> the options that a person is asked about
FIELDS = {"csv": ("delimiter", "encoding", "header", "day_first"), "json": ("layout", "encoding"), "parquet": ()}


def choices_of(name: str, found: Any) -> dict[Any, str]:
    """What an option can be, and what it is, in words."""
    known = _CHOICES[name]
    return known if found is None or found in known else known | {found: str(found)}


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were found or chosen, to be asked for as such: what is loaded is read as it was shown."""
    return {name: value for name, value in options.items() if value is not None}


class Reading:
    """`format` and `options` are what a person chose; what is not in them is to be found out."""

    def __init__(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self.format: str | None = None
        self.options: dict[str, Any] = {}
        self._on_change = guarded(on_change)
        self._is_showing = False
        with ui.element("div").classes("inlay-reading"):
            self._format = ui.select(_FORMATS, label="Format", on_change=self._choose_format)
            self._fields = {name: self._field(name) for name in _LABELS}

    def _field(self, name: str) -> ui.select:
        def choose(event: Any) -> Awaitable[None] | None:
            return self._changed(self.format, self.options | {name: event.value})

        field = ui.select(_CHOICES[name], label=_LABELS[name], on_change=choose)
        field.set_visibility(False)
        return field

    def _choose_format(self, event: Any) -> Awaitable[None] | None:
        return self._changed(event.value, {})

    def _changed(self, format: str | None, options: dict[str, Any]) -> Awaitable[None] | None:  # noqa: A002
        if self._is_showing:
            return None
        self.format, self.options = format, options
        return self._on_change()

    def show(self, format: str, options: Mapping[str, Any]) -> None:  # noqa: A002
        """As a file was read."""
        self._is_showing = True
        try:
            self._format.value = format
            for name, field in self._fields.items():
                field.set_visibility(name in FIELDS[format])
                if name in FIELDS[format]:
                    field.set_options(choices_of(name, options.get(name)), value=options.get(name))
        finally:
            self._is_showing = False
