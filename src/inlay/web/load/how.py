"""What is to become of the rows of a load: strategy, key columns, and rows that do not fit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nicegui import html, ui

from inlay.web.load.choices import Choices, default_strategy
from inlay.web.load.strategies import CHOICES, Choice, picture
from inlay.web.shell import guarded

if TYPE_CHECKING:
    from inlay.catalog import Dataset
    from inlay.workspace.keys import KeyAdvice

__all__ = ["HowPanel"]

_ON_ERROR = {False: "Stop, and change nothing", True: "Set them aside, and load the rest"}


class HowPanel:
    """Fills in how a load is done; `on_change` is called whenever a person changes something."""

    def __init__(self, dataset: Dataset, choices: Choices, on_change: Callable[[], Awaitable[None]]) -> None:
        self._choices, self._on_change = choices, on_change
        self._is_strategy_chosen = False
        self._build_strategies()
        self._build_keys(dataset.schema.names)
        self._build_on_error()
        self._show_choice()

    # ---------------------------------------------------------------------------------------------------- the strategy
    def _build_strategies(self) -> None:
        with html.fieldset().classes("inlay-strategies"):
            html.legend("Strategy").classes("inlay-subtitle")
            self._radios = {name: self._card(choice) for name, choice in CHOICES.items()}

    def _card(self, choice: Choice) -> ui.element:
        name, about = choice.name, f"about-{choice.name}"
        told = {"aria-label": choice.title, "aria-describedby": about}
        with html.label().classes("inlay-strategy"):
            radio: ui.element = html.input_(type="radio", name="strategy", value=name, **told)
            with html.div().classes("inlay-strategy-text"):
                html.strong(choice.title)
                with html.div(id=about):
                    html.span(choice.summary)
                    html.span(choice.meaning).classes("inlay-unseen")
            ui.html(picture(choice), sanitize=False)
        return radio.on("change", guarded(lambda: self._choose_strategy(name)))

    async def _choose_strategy(self, name: str) -> None:
        self._is_strategy_chosen = True
        self._choices.strategy = name
        self._show_choice()
        await self._on_change()

    def _show_choice(self) -> None:
        chosen = CHOICES[self._choices.strategy]
        for name, radio in self._radios.items():
            radio.props["checked"] = name == chosen.name
        self._keys_part.set_visibility(chosen.needs_key)
        self._order_part.set_visibility(chosen.name == "deduplicate")

    # -------------------------------------------------------------------------------------------------------- the keys
    def _build_keys(self, names: list[str]) -> None:
        with html.div().classes("inlay-part") as self._keys_part:
            html.h3("Key columns").classes("inlay-subtitle")
            html.p("Rows with the same values in these columns are the same row.").classes("inlay-note")
            self._keys = self._columns(names, "Key columns", self._choose_keys)
            self._advice = html.div(role="status").classes("inlay-advice")
            with self._advice:
                ui.spinner(size="1em").props("aria-hidden=true")
                html.span("Looking for columns that tell the rows apart")
        with html.div().classes("inlay-part") as self._order_part:
            html.h3("Which row wins").classes("inlay-subtitle")
            html.p("Of rows with the same key the last by these columns; without them the last in the source.").classes(
                "inlay-note"
            )
            self._order = self._columns(names, "Order by", self._choose_order)

    @staticmethod
    def _columns(names: list[str], label: str, choose: Callable[[], Awaitable[None]]) -> ui.select:
        field = ui.select(names, label=label, multiple=True, on_change=guarded(choose))
        return field.classes("inlay-wide").props("use-chips outlined dense")

    async def _choose_keys(self) -> None:
        self._choices.key_columns = list(self._keys.value)
        await self._on_change()

    async def _choose_order(self) -> None:
        self._choices.order_by = list(self._order.value)
        await self._on_change()

    def take_advice(self, advice: KeyAdvice, *, changes: bool) -> None:
        """Offer what was found, and begin with the best of it where nothing was chosen yet, if that may change."""
        self._advice.clear()
        with self._advice:
            if advice.remembered:
                self._offer(advice.remembered, "as in the last load")
            for names in advice.unique:
                if names != advice.remembered:
                    self._offer(names, "unique in the data")
            if not advice.best:
                html.span("No column and no pair of columns is unique in the data.")
        if changes and not self._is_strategy_chosen:
            self._choices.strategy = default_strategy(advice)
            self._show_choice()
        if changes and not self._keys.value:
            self._keys.value = list(advice.best)

    def _offer(self, names: tuple[str, ...], why: str) -> None:
        def take() -> None:
            self._keys.value = list(names)

        with ui.button(on_click=take).props("outline dense no-caps").classes("inlay-offer"):
            html.span(" + ".join(names)).classes("inlay-mono")
            html.span(why).classes("inlay-note")

    # --------------------------------------------------------------------------------------------- rows that do not fit
    def _build_on_error(self) -> None:
        with html.fieldset().classes("inlay-plain-group"):
            html.legend("Rows that do not fit").classes("inlay-subtitle")
            self._on_error = ui.radio(_ON_ERROR, value=False, on_change=guarded(self._choose_on_error)).props("inline")

    async def _choose_on_error(self) -> None:
        self._choices.sets_aside = bool(self._on_error.value)
        await self._on_change()

    # -------------------------------------------------------------------------------------- what is chosen for somebody
    async def set_aside(self) -> None:
        self._on_error.value = self._choices.sets_aside = True

    async def deduplicate(self) -> None:
        await self._choose_strategy("deduplicate")
