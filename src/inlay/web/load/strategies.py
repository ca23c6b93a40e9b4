"""The strategies of a load for people: a name, a sentence, and a small picture of what becomes of which row.

Sentences and pictures of loads by key are made from the truth table that the merge itself obeys. The picture has three
columns: the dataset with the keys A and B, the source with B and C, and the dataset afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from inlay.incremental import STRATEGIES
from inlay.incremental.strategies import Strategy

__all__ = ["CHOICES", "Cell", "Choice", "picture"]

_TITLES = {
    "upsert": "Upsert",
    "insert": "Insert",
    "update": "Update",
    "deduplicate": "Deduplicate",
    "full_merge": "Full merge",
}
#: what the truth table says of a row -> how its cell looks
_KINDS = {"keep": "kept", "replace": "new", "insert": "new", "skip": "skipped", "delete": "gone"}
_WORDS = {"keep": "kept", "replace": "replaced", "insert": "inserted", "skip": "ignored", "delete": "deleted"}
_WIDTH, _HEIGHT, _STEP = 34, 15, 18
_COLUMNS = (("dataset", 4), ("source", 50), ("after", 116))


class Cell(NamedTuple):
    key: str
    kind: str


@dataclass(frozen=True, slots=True)
class Choice:
    name: str
    title: str
    summary: str
    meaning: str  # the truth table in words
    source: tuple[Cell, ...]
    after: tuple[Cell, ...]
    source_line: int  # where its cells begin, so that equal keys lie side by side

    @property
    def needs_key(self) -> bool:
        return self.name in STRATEGIES


def _by_key(strategy: Strategy) -> Choice:
    told = (strategy.only_in_target, strategy.in_both, strategy.only_in_source)
    target, both, source = (_WORDS[each] for each in told)
    repeated = (Cell("B", "skipped"),) if strategy.reduces_source else ()
    return Choice(
        strategy.name,
        _TITLES[strategy.name],
        strategy.summary,
        f"Key in both: {both}. Only in the source: {source}. Only in the dataset: {target}.",
        (*repeated, Cell("B", "new"), Cell("C", "new")),
        tuple(Cell(key, _KINDS[each]) for key, each in zip("ABC", told, strict=True)),
        1 - len(repeated),
    )


def _whole(name: str, title: str, summary: str, meaning: str, old: str) -> Choice:
    source = (Cell("B", "new"), Cell("C", "new"))
    return Choice(name, title, summary, meaning, source, (Cell("A", old), Cell("B", old), *source), 2)


CHOICES: dict[str, Choice] = {
    choice.name: choice
    for choice in (
        *(_by_key(STRATEGIES[name]) for name in _TITLES),
        _whole(
            "append",
            "Append",
            "Add all rows of the source; look at no keys.",
            "Rows of the source: inserted. Rows of the dataset: kept.",
            "kept",
        ),
        _whole(
            "replace",
            "Replace all",
            "Take the source in place of everything that is there.",
            "Rows of the source: inserted. Rows of the dataset: deleted.",
            "gone",
        ),
    )
}


# ------------------------------------------------------------------------------------------------------------- pictures
def picture(choice: Choice) -> str:
    """An SVG whose colours come from the style sheet; nothing in it is data."""
    dataset = (Cell("A", "kept"), Cell("B", "kept"))
    columns = zip(_COLUMNS, (dataset, choice.source, choice.after), (0, choice.source_line, 0), strict=True)
    lines = max(len(choice.after), choice.source_line + len(choice.source))
    foot = lines * _STEP + 9
    parts = "".join(_column(name, x, line, cells, foot) for (name, x), cells, line in columns)
    arrow = f'<path class="inlay-pic-arrow" d="M92 {lines * _STEP / 2 - 2}h14m-5-4 5 4-5 4"/>'
    return f'<svg viewBox="0 0 154 {foot + 4}" class="inlay-pic" aria-hidden="true">{parts}{arrow}</svg>'


def _column(name: str, x: int, line: int, cells: Sequence[Cell], foot: int) -> str:
    drawn = "".join(_cell(cell, x, (line + at) * _STEP) for at, cell in enumerate(cells))
    return f'{drawn}<text class="inlay-pic-name" x="{x + _WIDTH / 2}" y="{foot}">{name}</text>'


def _cell(cell: Cell, x: int, y: int) -> str:
    box = f'<rect x="{x + 0.5}" y="{y + 0.5}" width="{_WIDTH - 1}" height="{_HEIGHT - 1}" rx="3"/>'
    return f'<g class="inlay-pic-{cell.kind}">{box}<text x="{x + _WIDTH / 2}" y="{y + 11}">{cell.key}</text></g>'
