"""The actions on a dataset: load, query, download, rename, delete, and restore."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from nicegui import html, ui

from inlay.errors import InlayError, UnauthorizedError
from inlay.web import formatting
from inlay.web.dataset.snippets import first_rows_sql
from inlay.web.progress import follow_job
from inlay.web.shell import Visitor, report_errors

if TYPE_CHECKING:
    from inlay.catalog import Snapshot, Version

__all__ = ["confirm_restore", "download_menu", "show_actions"]

_FORMATS = (
    ("csv", "CSV", "For spreadsheets"),
    ("parquet", "Parquet", "Typed and compact"),
    ("arrow", "Arrow", "Typed stream"),
)


def show_actions(visitor: Visitor, snapshot: Snapshot, *, may_write: bool) -> None:
    dataset = snapshot.dataset
    with html.div().classes("inlay-actions"):
        if may_write:
            _link("Load rows", f"/datasets/{dataset.id}/load", "upload", "unelevated color=primary")
        _link("Query with SQL", _sql_address(snapshot), "terminal", "outline")
        download_menu(f"/v1/datasets/{dataset.id}/data?version={snapshot.version.version}")
        if may_write:
            more = ui.button(icon="more_vert").props('flat round aria-label="Show more actions"')
            with more, ui.menu().props("auto-close"):
                rename = report_errors(lambda: _open_rename_dialog(visitor, snapshot))
                delete = report_errors(lambda: _confirm_delete(visitor, snapshot))
                delete_rows = f"/datasets/{dataset.id}/delete-rows"
                ui.menu_item("Delete rows", on_click=lambda: ui.navigate.to(delete_rows)).props("role=menuitem")
                ui.menu_item("Rename", on_click=rename).props("role=menuitem")
                ui.menu_item("Delete dataset", on_click=delete).props("role=menuitem")


def _link(text: str, target: str, icon: str, style: str) -> None:
    button = ui.button(text, icon=icon).props(f"no-caps {style}")
    button.props["href"] = target


def _sql_address(snapshot: Snapshot) -> str:
    """Return the address of the SQL page with a query for this version."""
    dataset, version = snapshot.dataset, snapshot.version.version
    sql = first_rows_sql(dataset.table_name, None if version == dataset.version else version)
    return f"/sql?q={quote(sql)}"


def download_menu(address: str) -> None:
    """Show a menu that downloads an address of the API in each format."""
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
    """A dialog with content, a cancel button, and a button that runs an action."""

    def __init__(self, title: str) -> None:
        with ui.dialog() as self._dialog, ui.card().classes("inlay-dialog"):
            html.h2(title).classes("inlay-subtitle")
            self.content = ui.column().classes("w-full gap-2")
            self._problem = html.div(role="alert").classes("inlay-problem")
            self._buttons = ui.row().classes("w-full justify-end")
        self._dialog.props["aria-label"] = title
        self._dialog.on_value_change(lambda event: None if event.value else self._dialog.delete())

    def open(self, label: str, action: Callable[[], Awaitable[None]], *, color: str = "primary") -> ui.button:
        """Open the dialog. If the action fails, the dialog shows the error and stays open."""

        async def run() -> None:
            if button.enabled:
                with self._busy(button, cancel):
                    await action()

        with self._buttons:
            cancel = ui.button("Cancel", on_click=self._dialog.close).props("flat no-caps")
            button = ui.button(label, on_click=report_errors(run)).props(f"unelevated no-caps color={color}")
        self.content.on("keydown.enter", report_errors(run))
        self._dialog.open()
        return button

    @contextlib.contextmanager
    def _busy(self, *buttons: ui.button) -> Iterator[None]:
        """Disable the buttons and keep the dialog open while the block runs. Shows an error of the block."""
        self._problem.clear()
        self._dialog.props("persistent")
        for button in buttons:
            button.disable()
        try:
            yield
        except UnauthorizedError:
            raise
        except InlayError as error:
            with self._problem:
                ui.label(str(error.message))
                if error.hint:
                    ui.label(error.hint).classes("inlay-note")
        finally:
            self._dialog.props(remove="persistent")
            for button in buttons:
                button.enable()


async def _open_rename_dialog(visitor: Visitor, snapshot: Snapshot) -> None:
    dataset = snapshot.dataset
    dialog = _Dialog("Rename dataset")
    with dialog.content:
        label = ui.input("Label", value=dataset.label).classes("w-full").props("autofocus maxlength=1000")
        name = ui.input("Table name", value=dataset.table_name).classes("w-full inlay-mono")
        ui.label("Queries that use the old table name will fail.").classes("inlay-note")

    async def rename() -> None:
        names = (label.value.strip(), name.value.strip())
        await visitor.write(lambda w: w.rename_dataset(dataset.id, *names))
        ui.navigate.reload()

    dialog.open("Rename", rename)


async def _confirm_delete(visitor: Visitor, snapshot: Snapshot) -> None:
    dataset = snapshot.dataset
    dialog = _Dialog("Delete this dataset?")
    with dialog.content:
        ui.label(dataset.label).classes("font-medium break-words")
        rows = formatting.count(dataset.row_count, "row")
        ui.label(f"This deletes {rows} and all older versions. You can't undo it.")
        typed = ui.input(f"Type {dataset.table_name} to confirm").classes("w-full").props("autofocus autocomplete=off")

    async def delete() -> None:
        await visitor.write(lambda w: w.delete_dataset(dataset.id))
        ui.navigate.to("/")

    button = dialog.open("Delete", delete, color="negative")
    button.bind_enabled_from(typed, "value", lambda text: text.strip() == dataset.table_name)


async def confirm_restore(visitor: Visitor, snapshot: Snapshot, version: Version) -> None:
    """Open a dialog that describes a restore and runs it."""
    dataset = snapshot.dataset
    dialog = _Dialog(f"Restore version {version.version}?")
    with dialog.content:
        ui.label(f"This creates version {dataset.version + 1} with the rows of version {version.version}.")
        with html.dl().classes("inlay-facts"):
            for name, value in (("Rows before", dataset.row_count), ("Rows after", version.row_count)):
                html.dt(name)
                html.dd(f"{value:,}")
        ui.label("inlay copies no data and keeps all versions.").classes("inlay-note")
        progress = html.div().classes("w-full")

    async def restore() -> None:
        submitted = await visitor.write(lambda w: w.restore(dataset.id, version.version))
        with progress:
            await follow_job(visitor, submitted.job)
        ui.navigate.to(f"/datasets/{dataset.id}?tab=versions")

    dialog.open("Restore", restore)
