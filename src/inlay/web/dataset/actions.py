"""What can be done with a dataset: load, ask, download, rename, delete, restore."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.web import wording
from inlay.web.dataset.snippets import first_rows_sql
from inlay.web.following import follow
from inlay.web.shell import guarded
from inlay.web.visitor import Visitor

if TYPE_CHECKING:
    from inlay.catalog import Snapshot, Version

__all__ = ["ask_to_restore", "show_actions"]

_FORMATS = (
    ("csv", "CSV", "for spreadsheets"),
    ("parquet", "Parquet", "with types, small"),
    ("arrow", "Arrow", "stream"),
)


def show_actions(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    dataset = snapshot.dataset
    with html.div().classes("inlay-actions"):
        if may_write:
            _link("Load", f"/datasets/{dataset.id}/load", "upload", "unelevated color=primary")
        _link("Ask SQL", _sql_link(snapshot), "terminal", "outline")
        _download_menu(snapshot)
        if may_write:
            with ui.button(icon="more_vert").props('flat round aria-label="More"'), ui.menu().props("auto-close"):
                rename = guarded(lambda: _ask_to_rename(visitor, snapshot))
                delete = guarded(lambda: _ask_to_delete(visitor, snapshot))
                ui.menu_item("Rename", on_click=rename).props("role=menuitem")
                ui.menu_item("Delete", on_click=delete).props("role=menuitem")


def _link(text: str, target: str, icon: str, look: str) -> None:
    button = ui.button(text, icon=icon).props(f"no-caps {look}")
    button.props["href"] = target


def _sql_link(snapshot: Snapshot) -> str:
    """To the SQL page with a question about what is looked at."""
    dataset, version = snapshot.dataset, snapshot.version.version
    sql = first_rows_sql(dataset.table_name, None if version == dataset.version else version)
    return f"/sql?q={quote(sql)}"


def _download_menu(snapshot: Snapshot) -> None:
    address = f"/v1/datasets/{snapshot.dataset.id}/data?version={snapshot.version.version}"
    with (
        ui.button("Download", icon="download").props("no-caps outline icon-right=arrow_drop_down"),
        ui.menu().props("auto-close"),
    ):
        for kind, name, note in _FORMATS:
            with ui.item().props(f'clickable role=menuitem tag=a href="{address}&format={kind}"'), ui.item_section():
                ui.item_label(name)
                ui.item_label(note).props("caption")


# -------------------------------------------------------------------------------------------------------------- dialogs
class _Dialog:
    """A question with what it is about, an answer that may fail, and a place for the reason."""

    def __init__(self, title: str) -> None:
        with ui.dialog() as self._dialog, ui.card().classes("inlay-dialog"):
            html.h2(title).classes("inlay-subtitle")
            self.content = ui.column().classes("w-full gap-2")
            self._wrong = html.div(role="alert").classes("inlay-wrong")
            self._buttons = ui.row().classes("w-full justify-end")
        self._dialog.props["aria-label"] = title
        self._dialog.on_value_change(lambda event: None if event.value else self._dialog.delete())

    def ask(self, word: str, act: Callable[[], Awaitable[None]], *, colour: str = "primary") -> ui.button:
        """Show it, with a button that acts; what fails is told here and can be tried again."""

        async def answer() -> None:
            if button.enabled:
                with self._busy(button, cancel):
                    await act()

        with self._buttons:
            cancel = ui.button("Cancel", on_click=self._dialog.close).props("flat no-caps")
            button = ui.button(word, on_click=guarded(answer)).props(f"unelevated no-caps color={colour}")
        self.content.on("keydown.enter", guarded(answer))
        self._dialog.open()
        return button

    @contextlib.contextmanager
    def _busy(self, *buttons: ui.button) -> Iterator[None]:
        """Nobody closes it meanwhile or asks twice."""
        self._wrong.clear()
        self._dialog.props("persistent")
        for button in buttons:
            button.disable()
        try:
            yield
        except UnauthorizedError:
            raise
        except InlayError as error:
            self._tell(error)
        finally:
            self._dialog.props(remove="persistent")
            for button in buttons:
                button.enable()

    def _tell(self, error: InlayError) -> None:
        with self._wrong:
            ui.label(str(error.message))
            if error.hint:
                ui.label(error.hint).classes("inlay-note")


async def _ask_to_rename(visitor: Visitor, snapshot: Snapshot) -> None:
    dataset = snapshot.dataset
    asking = _Dialog("Rename")
    with asking.content:
        label = ui.input("Label", value=dataset.label).classes("w-full").props("autofocus maxlength=1000")
        name = ui.input("Table name", value=dataset.table_name).classes("w-full inlay-mono")
        ui.label("Queries that use the old table name will not find it any more.").classes("inlay-note")

    async def rename() -> None:
        wanted = (label.value.strip(), name.value.strip())
        await visitor.write(lambda w: w.rename_dataset(dataset.id, *wanted))
        ui.navigate.reload()

    asking.ask("Rename", rename)


async def _ask_to_delete(visitor: Visitor, snapshot: Snapshot) -> None:
    dataset = snapshot.dataset
    asking = _Dialog("Delete this dataset?")
    with asking.content:
        ui.label(dataset.label).classes("font-medium break-words")
        ui.label(f"{wording.count(dataset.row_count, 'row')} and all older versions go. This cannot be undone.")
        typed = ui.input(f"Type {dataset.table_name} to confirm").classes("w-full").props("autofocus autocomplete=off")

    async def delete() -> None:
        await visitor.write(lambda w: w.delete_dataset(dataset.id))
        ui.navigate.to("/")

    button = asking.ask("Delete", delete, colour="negative")
    button.bind_enabled_from(typed, "value", lambda text: text.strip() == dataset.table_name)


async def ask_to_restore(visitor: Visitor, snapshot: Snapshot, version: Version) -> None:
    """Say what a restore will do, do it, and show what it made."""
    dataset = snapshot.dataset
    asking = _Dialog(f"Restore version {version.version}?")
    with asking.content:
        ui.label(f"Version {dataset.version + 1} will have the rows of version {version.version}:")
        with html.dl().classes("inlay-facts"):
            for name, value in (("rows now", dataset.row_count), ("rows afterwards", version.row_count)):
                html.dt(name)
                html.dd(f"{value:,}")
        ui.label("No data moves, and no version goes: what is current now stays in the list.").classes("inlay-note")
        progress = html.div().classes("w-full")

    async def restore() -> None:
        ticket = await visitor.write(lambda w: w.restore(dataset.id, version.version))
        with progress:
            await follow(visitor, ticket.job)
        ui.navigate.to(f"/datasets/{dataset.id}?tab=versions")

    asking.ask("Restore", restore)
