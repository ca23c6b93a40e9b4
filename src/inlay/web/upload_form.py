"""The drop zone for files, and the form that says how inlay reads a file."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from nicegui import events, ui
from nicegui.element import Element

from inlay.server import models
from inlay.web.formatting import ago, size, until
from inlay.web.shell import report_errors

__all__ = ["FormatForm", "Uploaded", "Uploader", "file_name", "upload_note"]

_NAME = re.compile(r';\s*name="([^"]*)"', re.IGNORECASE)
_FIELD_PROPS = "dense outlined options-dense"


# ------------------------------------------------------------------------------------------------------------- uploads
class Uploaded(NamedTuple):
    """A stored upload. `is_alone` is true if the visitor chose a single file."""

    id: str
    name: str
    size: int
    is_alone: bool


class Uploader(Element, component="uploader.js"):
    """A drop zone that accepts files dropped anywhere on its page."""

    def __init__(
        self,
        on_uploaded: Callable[[Uploaded], Awaitable[None]],
        *,
        multiple: bool = True,
        text: str = "Drop a file here, or click to choose",
    ) -> None:
        super().__init__()
        self._props["multiple"] = multiple
        self._props["text"] = text

        async def handle(event: events.GenericEventArguments) -> None:
            await on_uploaded(Uploaded(**event.args))

        self.on("uploaded", handle)


def file_name(content_type: str | None) -> str | None:
    """Return the file name that the drop zone passes as a parameter of the content type."""
    found = _NAME.search(content_type or "")
    return unquote(found[1]).strip() or None if found else None


def upload_note(upload: models.Upload) -> str:
    """Describe a pending upload: its size, its age, and when it is deleted."""
    expiry = f", expires {until(upload.expires_at)}" if upload.expires_at is not None else ""
    return f"{size(upload.size_bytes)}, {ago(upload.created_at)}{expiry}"


# --------------------------------------------------------------------------------------------------- format and options
class _Option(NamedTuple):
    """A reader option and its choices. If `accepts_other`, the visitor may type another value."""

    label: str
    choices: dict[Any, str]
    accepts_other: bool = False


_FORMATS = {"csv": "CSV, TSV", "json": "JSON", "parquet": "Parquet"}
_UNSET = ""  # The select shows None as an empty field, so this value stands for an option without a value.
_OPTIONS = {
    "delimiter": _Option(
        "Delimiter", {",": "Comma (,)", ";": "Semicolon (;)", "\t": "Tab", "|": "Bar (|)"}, accepts_other=True
    ),
    "header": _Option("First row", {True: "Column names", False: "Data"}),
    "quote": _Option("Quote character", {'"': 'Double (")', "'": "Single (')", "": "None"}),
    "encoding": _Option(
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
        accepts_other=True,
    ),
    "layout": _Option(
        "Layout", {"lines": "One record per line", "array": "Array of records", "objects": "Consecutive objects"}
    ),
    "day_first": _Option(
        "Read 05/04/2024 as",
        {_UNSET: "Text (ambiguous)", True: "April 5 (day first)", False: "May 4 (month first)"},
    ),
}
_OPTIONS_BY_FORMAT = {
    "csv": ("delimiter", "header", "quote", "encoding", "day_first"),
    "json": ("layout", "encoding", "day_first"),
    "parquet": (),
}


class FormatForm:
    """A form with the detected format and options of a file.

    `chosen_format` and `changes` hold the visitor's choices. inlay detects everything else each time it reads the file.
    """

    def __init__(self, format_: str, on_change: Callable[[], Awaitable[None]]) -> None:
        self.format = format_
        self.chosen_format: str | None = None
        self.changes: dict[str, Any] = {}
        self._detected: dict[str, Any] = {}
        self._on_change = on_change
        self._selects: dict[str, ui.select] = {}
        self._null_values: ui.input_chips | None = None
        with ui.row().classes("inlay-fields"):
            changed = report_errors(self._change_format)
            self._formats = ui.select(_FORMATS, label="Format", value=format_, on_change=changed).props(_FIELD_PROPS)
            self._options = ui.row().classes("inlay-fields")
        self._build()

    def show(self, format_: str, detected: Mapping[str, Any]) -> None:
        """Fill in the detected format and options."""
        self._detected = {name: _UNSET if value is None else value for name, value in detected.items()}
        if format_ != self.format:
            self.format = format_
            self._build()
        self._formats.set_value(format_)
        for name, select in self._selects.items():
            _select_value(select, self._detected.get(name, _UNSET))
        if self._null_values is not None:
            self._null_values.set_value(list(self._detected.get("null_values", [])))

    async def add_null_value(self, value: str) -> None:
        """Read cells with this text as NULL."""
        if self._null_values is not None:
            self._null_values.set_value([*self._null_values.value, value])

    def _build(self) -> None:
        self._options.clear()
        self._selects, self._null_values = {}, None
        with self._options:
            for name in _OPTIONS_BY_FORMAT[self.format]:
                self._selects[name] = self._select(name, _OPTIONS[name])
            if self.format == "csv":
                changed = report_errors(functools.partial(self._change, "null_values"))
                self._null_values = ui.input_chips("Read as NULL", on_change=changed, new_value_mode="add-unique")
                self._null_values.props(_FIELD_PROPS).props('hint="Type a value, such as n/a, and press Enter"')
                self._null_values.classes("inlay-wide")

    def _select(self, name: str, option: _Option) -> ui.select:
        select = ui.select(
            dict(option.choices),
            label=option.label,
            on_change=report_errors(functools.partial(self._change, name)),
            new_value_mode="add-unique" if option.accepts_other else None,
        )
        return select.props(_FIELD_PROPS)

    async def _change(self, name: str, event: events.ValueChangeEventArguments[Any]) -> None:
        if event.value is None or event.value == self._detected.get(name):  # `show` set the value.
            return
        if name in self._selects:
            event.sender.run_method("hidePopup")  # Pressing Enter right after typing leaves the popup open.
        self._detected[name] = event.value
        self.chosen_format = self.format
        self.changes[name] = None if event.value == _UNSET and name == "day_first" else event.value
        await self._on_change()

    async def _change_format(self, event: events.ValueChangeEventArguments[str]) -> None:
        if event.value != self.format:
            self.format = self.chosen_format = event.value
            self.changes, self._detected = {}, {}
            self._build()
            await self._on_change()


def _select_value(select: ui.select, value: Any) -> None:
    """Select a value, and add it to the choices if it is not one of them."""
    options = select.options
    assert isinstance(options, dict)  # noqa: S101
    if value not in options and value != _UNSET:
        select.set_options({**options, value: str(value)})
    select.set_value(value if value in select.options else None)
