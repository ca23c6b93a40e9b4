"""The form that maps the columns of a source to the columns of the dataset."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from nicegui import html, ui

from inlay.web.formatting import count
from inlay.web.shell import report_errors
from inlay.web.widgets import scrolling_table
from inlay.workspace import NewColumn

if TYPE_CHECKING:
    from inlay.web.load.strategy import LoadDraft

__all__ = ["MappingForm", "suggest_columns"]

_IGNORE, _ADD = "ignore", "add"
_MAX_ROWS = 100  # columns that the form lists
_MAX_NAMES = 10
_DEFAULT_TYPE = "text"


class SourceColumn(NamedTuple):
    """A column of the source with its detected type."""

    name: str
    type: str


def suggest_columns(source: Sequence[str], dataset: Sequence[str]) -> dict[str, str | None]:
    """Return for each source column the dataset column with the same or a similar name, or None."""
    free = [name for name in dataset if name not in source]
    similar: dict[str, list[str]] = {}
    for name in free:
        similar.setdefault(_plain(name), []).append(name)
    found: dict[str, str | None] = {}
    for name in source:
        matches = [name] if name in dataset else similar.get(_plain(name), [])
        is_free = len(matches) == 1 and matches[0] not in found.values()
        found[name] = matches[0] if is_free else None
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


class MappingForm:
    """Rows with a choice for each source column. The draft holds the choices that differ from the names."""

    def __init__(
        self,
        columns: Sequence[tuple[str, str]],
        dataset: Sequence[str],
        draft: LoadDraft,
        on_change: Callable[[], Awaitable[None]],
    ) -> None:
        self._columns = [SourceColumn(*column) for column in columns]
        self._dataset, self._draft, self._on_change = list(dataset), draft, on_change
        self._suggested = suggest_columns([column.name for column in self._columns], dataset)
        self._choices: dict[str, str | NewColumn | None] = {
            name: to for name, to in self._suggested.items() if to is not None
        }
        self._store()
        self._build()

    def _store(self) -> None:
        """Write the choices into the draft."""
        self._draft.columns = {name: to for name, to in self._choices.items() if to != name}
        self._draft.undecided = [column.name for column in self._columns if column.name not in self._choices]

    # ------------------------------------------------------------------------------------------------------------ form
    def _build(self) -> None:
        others = [column for column in self._columns if self._suggested[column.name] != column.name]
        listed = self._columns if len(self._columns) <= _MAX_ROWS else others[:_MAX_ROWS]
        self._note = ui.label().classes("inlay-note").props("role=status")
        self._show_note()
        with ui.expansion("Map columns", value=bool(others)).classes("inlay-expansion"):
            with scrolling_table("Columns of the source"):
                with html.thead(), html.tr():
                    for title in ("Column of the source", "Becomes"):
                        html.th(title, scope="col")
                with html.tbody():
                    for column in listed:
                        self._show_row(column)
            if len(listed) < len(self._columns):
                html.p(f"{count(len(self._columns) - len(listed), 'other column')} not listed.").classes("inlay-note")

    def _show_row(self, column: SourceColumn) -> None:
        with html.tr():
            with html.th(scope="row"):
                html.span(column.name).classes("inlay-mono")
                html.div(column.type).classes("inlay-column-note")
            with html.td(), html.div().classes("inlay-fields"):
                chosen = self._choices.get(column.name)
                options = {f"={name}": name for name in self._dataset}
                options |= {_ADD: "Add as a new column", _IGNORE: "Ignore this column"}
                select = ui.select(options, value=f"={chosen}" if chosen else None, with_input=len(options) > 12)
                select.props('outlined dense label="Choose"').props["aria-label"] = f"What {column.name} becomes"
                added = html.div().classes("inlay-fields")
                with added:
                    name = ui.input("New column", value=column.name).props("outlined dense")
                    kind = ui.input("Type", value=column.type or _DEFAULT_TYPE).props("outlined dense")
                name.props["aria-label"], kind.props["aria-label"] = (
                    f"New name of {column.name}",
                    f"Type of {column.name}",
                )
                added.set_visibility(False)

        async def choose() -> None:
            added.set_visibility(select.value == _ADD)
            if select.value is None:
                self._choices.pop(column.name, None)
            elif select.value == _ADD:
                self._choices[column.name] = NewColumn(name.value.strip(), kind.value.strip())
            else:
                self._choices[column.name] = None if select.value == _IGNORE else str(select.value)[1:]
            self._store()
            self._show_note()
            await self._on_change()

        for field in (select, name, kind):
            field.on_value_change(report_errors(choose))

    def _show_note(self) -> None:
        chosen = {to for to in self._choices.values() if isinstance(to, str)}
        missing = [name for name in self._dataset if name not in chosen]
        parts = []
        if self._draft.undecided:
            parts.append(f"The dataset lacks {count(len(self._draft.undecided), 'column')} of the source: "
                         f"{_join(self._draft.undecided)}. Choose a column of the dataset for each.")  # fmt: skip
        if missing:
            parts.append(f"The source lacks {count(len(missing), 'column')} of the dataset: {_join(missing)}.")
        self._note.text = " ".join(parts) or f"The source has all {count(len(self._dataset), 'column')} of the dataset."
        self._note.classes(replace="inlay-warning" if parts else "inlay-note")


def _join(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
