"""What a person has chosen for a load so far, and what is still missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inlay.web.load.strategies import CHOICES
from inlay.workspace import Load, Source
from inlay.workspace.keys import KeyAdvice

__all__ = ["Choices", "Fit", "default_strategy", "fit_of", "settled"]


@dataclass(slots=True)
class Choices:
    upload_id: str | None = None
    sql: str | None = None
    format: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    strategy: str = "append"
    key_columns: list[str] = field(default_factory=list)
    order_by: list[str] = field(default_factory=list)
    sets_aside: bool = False

    @property
    def missing(self) -> str | None:
        """What is to be chosen before anything can be done."""
        if self.upload_id is None and self.sql is None:
            return "Choose first where the rows come from."
        if CHOICES[self.strategy].needs_key and not self.key_columns:
            return "Choose the key columns: they say which rows are the same."
        return None

    def read_as(self, format_: str | None, options: Mapping[str, Any]) -> None:
        self.format, self.options = format_, settled(options)

    def request(self, *, dry_run: bool) -> Load:
        by_key = CHOICES[self.strategy].needs_key
        return Load(
            source=Source(upload_id=self.upload_id, sql=self.sql, format=self.format, options=self.options),
            strategy=self.strategy,
            key_columns=self.key_columns if by_key else (),
            dedup_order_by=self.order_by if self.strategy == "deduplicate" else (),
            dry_run=dry_run,
            on_error="quarantine" if self.sets_aside else "fail",
        )


def settled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that were found or chosen, to be asked for as such: a file is loaded as it was shown."""
    return {name: value for name, value in options.items() if value is not None}


def default_strategy(advice: KeyAdvice) -> str:
    return "upsert" if advice.best else "append"


@dataclass(frozen=True, slots=True)
class Fit:
    """How the columns of a source and those of the dataset differ."""

    missing: list[str]
    extra: list[str]


def fit_of(source: Sequence[str], dataset: Sequence[str]) -> Fit:
    return Fit([name for name in dataset if name not in source], [name for name in source if name not in dataset])
