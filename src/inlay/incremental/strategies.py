"""The merge strategies as a table, which code, tests and documentation use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inlay.errors import unknown

__all__ = ["STRATEGIES", "MergeStrategy", "Strategy", "get_strategy"]

MergeStrategy = Literal["upsert", "insert", "update", "full_merge", "deduplicate", "delete"]


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a merge does with each key, by whether it is in the source and the target.

    Attributes:
        name: The name to pass as `strategy`.
        in_both: `"replace"` replaces the target row, `"keep"` keeps it, `"delete"` deletes it.
        only_in_source: `"insert"` adds the source row, `"skip"` ignores it.
        only_in_target: `"keep"` keeps the target row, `"delete"` deletes it.
        summary: One sentence for people.
        reduces_source: True if the merge first keeps one source row per key.
        replaces: True if `in_both` is `"replace"`.
        inserts: True if `only_in_source` is `"insert"`.
        deletes: True if `only_in_target` is `"delete"`.
        needs_only_keys: True if the merge reads only the key columns of the source.

    Example:
        >>> from inlay.incremental import STRATEGIES
        >>> STRATEGIES["full_merge"].only_in_target
        'delete'
    """

    name: MergeStrategy
    in_both: Literal["keep", "replace", "delete"]
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

    @property
    def needs_only_keys(self) -> bool:
        return self.in_both == "delete"


STRATEGIES: dict[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("insert", "keep", "insert", "keep", "Add rows with new keys; keep existing rows."),
        Strategy("update", "replace", "skip", "keep", "Replace rows whose key exists; ignore new keys."),
        Strategy("upsert", "replace", "insert", "keep", "Replace rows whose key exists; add rows with new keys."),
        Strategy(
            "full_merge", "replace", "insert", "delete", "Upsert, then delete rows whose key is not in the source."
        ),
        Strategy(
            "deduplicate",
            "replace",
            "insert",
            "keep",
            "Keep one source row per key (the last by default), then upsert.",
            reduces_source=True,
        ),
        Strategy("delete", "delete", "skip", "keep", "Delete rows whose key is in the source.", reduces_source=True),
    )
}


def get_strategy(name: str) -> Strategy:
    value = getattr(name, "value", name)  # of an enum
    found = STRATEGIES.get(value) if isinstance(value, str) else None
    if found is None:
        raise unknown("merge strategy", name, STRATEGIES)
    return found
