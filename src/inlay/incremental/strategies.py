"""What a merge means. The truth table is data; the code, the tests and the documentation are made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inlay.errors import unknown

__all__ = ["STRATEGIES", "MergeStrategy", "Strategy", "get_strategy"]

MergeStrategy = Literal["upsert", "insert", "update", "full_merge", "deduplicate"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """What happens to a key that is in both, only in the source, only in the target."""

    name: MergeStrategy
    in_both: Literal["keep", "replace"]
    only_in_source: Literal["insert", "skip"]
    only_in_target: Literal["keep", "delete"]
    summary: str
    reduces_source: bool = False

    @property
    def replaces(self) -> bool:
        return self.in_both == "replace"

    @property
    def inserts(self) -> bool:
        return self.only_in_source == "insert"

    @property
    def deletes(self) -> bool:
        return self.only_in_target == "delete"


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("insert", "keep", "insert", "keep", "Add rows with new keys; leave existing rows alone."),
        Strategy("update", "replace", "skip", "keep", "Replace rows whose key exists; ignore new keys."),
        Strategy("upsert", "replace", "insert", "keep", "Replace rows whose key exists and add the new ones."),
        Strategy(
            "full_merge",
            "replace",
            "insert",
            "delete",
            "Make the dataset equal to the source; delete what it lacks.",
        ),
        Strategy(
            "deduplicate",
            "replace",
            "insert",
            "keep",
            "Reduce the source to one row per key (the last wins), then upsert.",
            reduces_source=True,
        ),
    )
}


def get_strategy(name: str) -> Strategy:
    given = getattr(name, "value", name)
    found = STRATEGIES.get(given) if isinstance(given, str) else None
    if found is None:
        raise unknown("merge strategy", name, STRATEGIES)
    return found
