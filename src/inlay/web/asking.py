"""Asking before something is gone."""

from __future__ import annotations

from nicegui import html, ui

__all__ = ["confirm"]


async def confirm(question: str, consequence: str, button: str) -> bool:
    """Whether the visitor means it. Escape means no. What asks may be gone before the answer comes."""
    with ui.context.client.content, ui.dialog() as dialog, ui.card().classes("inlay-card"):
        html.h2(question).classes("inlay-heading")
        ui.label(consequence)
        with ui.row().classes("w-full justify-end"):
            ui.button("Keep it", on_click=lambda: dialog.submit(False)).props("flat autofocus")
            ui.button(button, on_click=lambda: dialog.submit(True)).props("color=negative")
    answer = await dialog
    dialog.clear()
    dialog.delete()
    return bool(answer)
