"""A button that copies a text."""

from __future__ import annotations

from nicegui.element import Element

__all__ = ["CopyButton"]


class CopyButton(Element, component="copying.js"):
    def __init__(self, text: str, label: str) -> None:
        """`label` is what a screen reader says, such as "Copy the table name"."""
        super().__init__()
        self._props["text"] = text
        self._props["label"] = label
