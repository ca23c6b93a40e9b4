"""The options of a load: strategy, key columns, order, and what to do with invalid rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from nicegui import html, ui

from inlay.incremental import STRATEGIES
from inlay.web.shell import report_errors
from inlay.workspace import Load, NewColumn, Source

if TYPE_CHECKING:
    from inlay.catalog import Dataset
    from inlay.incremental.strategies import Strategy
    from inlay.incremental.validate import MissingColumns
    from inlay.workspace.key_columns import KeyAdvice

__all__ = ["STRATEGY_CARDS", "LoadDraft", "StrategyForm", "default_strategy"]

_TITLES = {
    "upsert": "Upsert",
    "insert": "Insert",
    "update": "Update",
    "deduplicate": "Deduplicate",
    "full_merge": "Full merge",
    "delete": "Delete",
}
# The style and the description of a row, by what its strategy does with it.
_STYLES = {"keep": "kept", "replace": "new", "insert": "new", "skip": "skipped", "delete": "deleted"}
_EFFECTS = {"keep": "kept", "replace": "replaced", "insert": "inserted", "skip": "ignored", "delete": "deleted"}
_MISSING = {"error": "Refuse the source", "null": "Set them to NULL", "keep": "Keep the stored values"}
_ON_ERROR = {False: "Stop without loading", True: "Reject them and load the rest"}
_WIDTH, _HEIGHT, _STEP = 34, 15, 18  # pixels of a cell in a diagram, and between two cells
_COLUMNS = (("dataset", 4), ("source", 50), ("result", 116))


# ------------------------------------------------------------------------------------------------------- strategy cards
class Cell(NamedTuple):
    """A row of a diagram, with its key and style."""

    key: str
    style: str


@dataclass(frozen=True, slots=True)
class StrategyCard:
    """The description of a strategy, and the cells of its diagram."""

    name: str
    title: str
    summary: str
    description: str
    source: tuple[Cell, ...]
    result: tuple[Cell, ...]
    source_line: int  # The line of the first source cell. Cells with equal keys are in the same line.

    @property
    def needs_key(self) -> bool:
        return self.name in STRATEGIES


def _merge_card(strategy: Strategy) -> StrategyCard:
    effects = (strategy.only_in_target, strategy.in_both, strategy.only_in_source)
    target, both, source = (_EFFECTS[each] for each in effects)
    duplicates = (Cell("B", "skipped"),) if strategy.reduces_source else ()
    return StrategyCard(
        strategy.name,
        _TITLES[strategy.name],
        strategy.summary,
        f"Key in both: {both}. Only in the source: {source}. Only in the dataset: {target}.",
        (*duplicates, Cell("B", "new"), Cell("C", "new")),
        tuple(Cell(key, _STYLES[each]) for key, each in zip("ABC", effects, strict=True)),
        1 - len(duplicates),
    )


def _keyless_card(name: str, title: str, summary: str, effect: str) -> StrategyCard:
    source = (Cell("B", "new"), Cell("C", "new"))
    description = f"Source rows: inserted. Dataset rows: {effect}."
    result = (Cell("A", effect), Cell("B", effect), *source)
    return StrategyCard(name, title, summary, description, source, result, 2)


STRATEGY_CARDS: dict[str, StrategyCard] = {
    card.name: card
    for card in (
        *(_merge_card(STRATEGIES[name]) for name in _TITLES),
        _keyless_card("append", "Append", "Add all source rows, without comparing keys.", "kept"),
        _keyless_card("replace", "Replace all", "Replace all rows of the dataset with the source rows.", "deleted"),
    )
}


def _diagram(card: StrategyCard) -> str:
    """Draw a strategy as SVG. The diagram contains no data, and the style sheet sets its colors."""
    dataset = (Cell("A", "kept"), Cell("B", "kept"))
    columns = zip(_COLUMNS, (dataset, card.source, card.result), (0, card.source_line, 0), strict=True)
    lines = max(len(card.result), card.source_line + len(card.source))
    foot = lines * _STEP + 9
    parts = "".join(_diagram_column(name, x, line, cells, foot) for (name, x), cells, line in columns)
    arrow = f'<path class="inlay-pic-arrow" d="M92 {lines * _STEP / 2 - 2}h14m-5-4 5 4-5 4"/>'
    return f'<svg viewBox="0 0 154 {foot + 4}" class="inlay-pic" aria-hidden="true">{parts}{arrow}</svg>'


def _diagram_column(name: str, x: int, line: int, cells: Sequence[Cell], foot: int) -> str:
    drawn = "".join(_diagram_cell(cell, x, (line + at) * _STEP) for at, cell in enumerate(cells))
    return f'{drawn}<text class="inlay-pic-name" x="{x + _WIDTH / 2}" y="{foot}">{name}</text>'


def _diagram_cell(cell: Cell, x: int, y: int) -> str:
    box = f'<rect x="{x + 0.5}" y="{y + 0.5}" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="3"/>'
    return f'<g class="inlay-pic-{cell.style}">{box}<text x="{x + _WIDTH / 2}" y="{y + 11}">{cell.key}</text></g>'


# ---------------------------------------------------------------------------------------------------------------- draft
@dataclass(slots=True)
class LoadDraft:
    """The source and options that the visitor has chosen so far."""

    upload_id: str | None = None
    sql: str | None = None
    format: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    strategy: str = "append"
    key_columns: list[str] = field(default_factory=list)
    order_by: list[str] = field(default_factory=list)
    rejects_rows: bool = False
    columns: dict[str, str | NewColumn | None] = field(default_factory=dict)
    undecided: list[str] = field(default_factory=list)  # columns of the source that have no column in the dataset
    missing_columns: MissingColumns = "error"
    operation_column: str = ""
    newer_by: str | None = None
    max_deleted: float | None = None
    scope: str = ""  # such as "day=2025-01-01, 2025-01-02"

    @property
    def missing(self) -> str | None:
        """Name the choice that the visitor must still make, or return None."""
        if self.upload_id is None and self.sql is None:
            return "Choose the rows to load first."
        if STRATEGY_CARDS[self.strategy].needs_key and not self.key_columns:
            return "Choose the key columns that identify a row."
        undecided = [name for name in self.undecided if name != self._choices().get("operation_column")]
        if undecided and self.strategy != "delete":
            return f"Choose a column of the dataset for {undecided[0]}."
        if self._choices().get("scope") == {}:
            return "Write the scope as a column and its values, such as day=2025-01-01, 2025-01-02."
        return None

    def _choices(self) -> dict[str, Any]:
        """Return the options that the strategy has."""
        strategy = STRATEGIES.get(self.strategy)
        if strategy is None:
            return {}
        found: dict[str, Any] = {"max_deleted": self.max_deleted}
        if not strategy.needs_only_keys:
            found["missing_columns"] = self.missing_columns
        if strategy.name in ("upsert", "deduplicate"):
            found["operation_column"] = self.operation_column.strip() or None
        if strategy.in_both != "keep" and not strategy.deletes:
            found["newer_by"] = self.newer_by
        if strategy.name in ("full_merge", "delete"):
            found["scope"] = self._scope()
        return found

    def _scope(self) -> dict[str, list[str]] | None:
        """Return the values of the column, or an empty dict if the text has another form."""
        column, _, rest = self.scope.partition("=")
        values = [value.strip() for value in rest.split(",")]
        if not self.scope.strip():
            return None
        return {column.strip(): values} if column.strip() and all(values) else {}

    def forget_source(self) -> None:
        self.upload_id = self.sql = None
        self.columns, self.undecided = {}, []

    def set_format(self, format_: str | None, options: Mapping[str, Any]) -> None:
        self.format = format_
        self.options = {name: value for name, value in options.items() if value is not None}

    def request(self, *, dry_run: bool) -> Load:
        needs_key = STRATEGY_CARDS[self.strategy].needs_key
        return Load(
            source=Source(upload_id=self.upload_id, sql=self.sql, format=self.format, options=self.options),
            strategy=self.strategy,
            key_columns=self.key_columns if needs_key else (),
            dedup_order_by=self.order_by if self.strategy == "deduplicate" else (),
            dry_run=dry_run,
            on_error="quarantine" if self.rejects_rows else "fail",
            columns=dict(self.columns),
            **self._choices(),
        )


def default_strategy(advice: KeyAdvice) -> str:
    return "upsert" if advice.best else "append"


# ----------------------------------------------------------------------------------------------------------------- form
class StrategyForm:
    """A form that edits the options of a draft and calls `on_change` after each change by the visitor."""

    def __init__(self, dataset: Dataset, draft: LoadDraft, on_change: Callable[[], Awaitable[None]]) -> None:
        self._draft, self._on_change = draft, on_change
        self._is_strategy_chosen = False
        self._build_strategies()
        self._build_columns(dataset.schema.names)
        self._build_options(dataset.schema.names)
        self._build_on_error()
        self._show_strategy()

    async def reject_invalid_rows(self) -> None:
        self._on_error.value = self._draft.rejects_rows = True

    async def deduplicate(self) -> None:
        await self._choose_strategy("deduplicate")

    # ------------------------------------------------------------------------------------------------------- strategy
    def _build_strategies(self) -> None:
        with html.fieldset().classes("inlay-strategies"):
            html.legend("Strategy").classes("inlay-subtitle")
            self._radios = {name: self._radio(card) for name, card in STRATEGY_CARDS.items()}

    def _radio(self, card: StrategyCard) -> ui.element:
        name, about = card.name, f"about-{card.name}"
        labels = {"aria-label": card.title, "aria-describedby": about}
        with html.label().classes("inlay-strategy"):
            radio: ui.element = html.input_(type="radio", name="strategy", value=name, **labels)
            with html.div().classes("inlay-strategy-text"):
                html.strong(card.title)
                with html.div(id=about):
                    html.span(card.summary)
                    html.span(card.description).classes("inlay-visually-hidden")
            ui.html(_diagram(card), sanitize=False)
        return radio.on("change", report_errors(lambda: self._choose_strategy(name)))

    async def _choose_strategy(self, name: str) -> None:
        self._is_strategy_chosen = True
        self._draft.strategy = name
        self._show_strategy()
        await self._on_change()

    def _show_strategy(self) -> None:
        chosen = STRATEGY_CARDS[self._draft.strategy]
        for name, radio in self._radios.items():
            radio.props["checked"] = name == chosen.name
        self._keys_part.set_visibility(chosen.needs_key)
        self._order_part.set_visibility(chosen.name == "deduplicate")
        self._options_part.set_visibility(chosen.needs_key)

    # -------------------------------------------------------------------------------------------------- key and order
    def _build_columns(self, names: list[str]) -> None:
        with html.div().classes("inlay-part") as self._keys_part:
            html.h3("Key columns").classes("inlay-subtitle")
            html.p("A source row matches the dataset row with the same values in these columns.").classes("inlay-note")
            self._keys = self._select(names, "Key columns", self._choose_keys)
            self._suggestions = html.div(role="status").classes("inlay-advice")
            with self._suggestions:
                ui.spinner(size="1em").props("aria-hidden=true")
                html.span("Searching for unique columns")
        with html.div().classes("inlay-part") as self._order_part:
            html.h3("Deduplication order").classes("inlay-subtitle")
            html.p(
                "For each key, inlay keeps the last row in the order of these columns. "
                "If you choose none, it keeps the last row in the source."
            ).classes("inlay-note")
            self._order = self._select(names, "Order by", self._choose_order)

    @staticmethod
    def _select(names: list[str], label: str, choose: Callable[[], Awaitable[None]]) -> ui.select:
        select = ui.select(names, label=label, multiple=True, on_change=report_errors(choose))
        return select.classes("inlay-wide").props("use-chips outlined dense")

    async def _choose_keys(self) -> None:
        self._draft.key_columns = list(self._keys.value)
        await self._on_change()

    async def _choose_order(self) -> None:
        self._draft.order_by = list(self._order.value)
        await self._on_change()

    def show_advice(self, advice: KeyAdvice, *, apply: bool) -> None:
        """Suggest key columns. With `apply`, select the best ones and a strategy unless the visitor already did."""
        self._suggestions.clear()
        with self._suggestions:
            if advice.last_used:
                self._suggest(advice.last_used, "used by the last load")
            for names in advice.unique:
                if names != advice.last_used:
                    self._suggest(names, "unique in the dataset")
            if not advice.best:
                html.span("No column or pair of columns is unique in the dataset.")
        if apply and not self._is_strategy_chosen:
            self._draft.strategy = default_strategy(advice)
            self._show_strategy()
        if apply and not self._keys.value:
            self._keys.value = list(advice.best)

    def _suggest(self, names: tuple[str, ...], reason: str) -> None:
        def use() -> None:
            self._keys.value = list(names)

        with ui.button(on_click=use).props("outline dense no-caps").classes("inlay-suggestion"):
            html.span(" + ".join(names)).classes("inlay-mono")
            html.span(reason).classes("inlay-note")

    # -------------------------------------------------------------------------------------------------- more options
    def _build_options(self, names: list[str]) -> None:
        self._options_part = ui.expansion("More options").classes("inlay-expansion")
        with self._options_part, html.div().classes("inlay-fields"):
            self._missing = ui.select(_MISSING, label="Columns that the source lacks", value="error")
            self._newer_by = ui.select(names, label="Only newer rows by", clearable=True)
            self._operation = ui.input("Operation column", placeholder="op")
            self._max_deleted = ui.number("Maximum number or share of deleted rows", min=0)
            self._scope = ui.input("Only rows with", placeholder="day=2025-01-01, 2025-01-02")
        for each in (self._missing, self._newer_by, self._operation, self._max_deleted, self._scope):
            each.props("outlined dense").classes("inlay-wide")
            each.on_value_change(report_errors(self._choose_options))

    async def _choose_options(self) -> None:
        limit = self._max_deleted.value
        self._draft.missing_columns = self._missing.value
        self._draft.newer_by = self._newer_by.value
        self._draft.operation_column = self._operation.value or ""
        self._draft.max_deleted = int(limit) if limit is not None and limit == int(limit) else limit
        self._draft.scope = self._scope.value or ""
        await self._on_change()

    # --------------------------------------------------------------------------------------------------- invalid rows
    def _build_on_error(self) -> None:
        with html.fieldset().classes("inlay-plain-group"):
            html.legend("Invalid rows").classes("inlay-subtitle")
            self._on_error = ui.radio(_ON_ERROR, value=False, on_change=report_errors(self._choose_on_error))
            self._on_error.props("inline")

    async def _choose_on_error(self) -> None:
        self._draft.rejects_rows = bool(self._on_error.value)
        await self._on_change()
