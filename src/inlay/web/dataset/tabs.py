"""Tabs whose content is made when it is first looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from nicegui import events, html, ui

from inlay.web.shell import guarded

__all__ = ["Tabs"]

Make = Callable[[], Awaitable[None]]


class Tabs:
    def __init__(self, contents: Mapping[str, tuple[str, Make]], first: str, address_of: Callable[[str], str]) -> None:
        """Name, title and content of each tab. The browser's address always leads to the tab that is shown."""
        self._makers = {name: make for name, (_, make) in contents.items()}
        self._address_of = address_of
        with ui.tabs().classes("inlay-tabs").props("align=left no-caps dense outside-arrows mobile-arrows") as tabs:
            named = {name: ui.tab(name, title) for name, (title, _) in contents.items()}
        tabs.value = named[first]
        self._panels = {name: _panel(title) for name, (title, _) in contents.items()}
        self._turn_to(first)
        tabs.on_value_change(guarded(self._choose))
        ui.timer(0, guarded(lambda: self._fill(first)), once=True)

    async def _choose(self, event: events.ValueChangeEventArguments[str]) -> None:
        ui.navigate.history.replace(self._address_of(event.value))
        self._turn_to(event.value)
        await self._fill(event.value)

    def _turn_to(self, name: str) -> None:
        for each, panel in self._panels.items():
            panel.set_visibility(each == name)

    async def _fill(self, name: str) -> None:
        make = self._makers.pop(name, None)
        if make is not None:
            with self._panels[name]:
                await make()


def _panel(title: str) -> ui.element:
    panel: ui.element = html.div(role="tabpanel", **{"aria-label": title})
    return panel.classes("inlay-panel")
