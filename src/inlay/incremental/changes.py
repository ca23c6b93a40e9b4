"""Some of the rows that a merge would change, as they are and as they would be."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from inlay.engines.base import Engine, GroupEdit, Pick
from inlay.incremental.decide import Decision, Decisions
from inlay.incremental.outcome import Rewritten
from inlay.storage import Location

__all__ = ["Changes", "first_rows", "some_changes"]

_NOTHING = np.empty(0, np.int64)
_MOST_PLACES = 8  # row groups that are read again for the rows of one kind


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows in the types of the dataset; those of `old` and `new` belong together and differ."""

    inserted: pa.Table
    old: pa.Table
    new: pa.Table
    deleted: pa.Table


def first_rows(engine: Engine, location: Location, paths: Sequence[str], schema: pa.Schema, most: int) -> pa.Table:
    """Rows at the beginning of files, none of which is empty."""
    picks = [Pick(path, 0, _NOTHING, most) for path in paths[:_MOST_PLACES]]
    tables = engine.pick(location, picks, schema) if picks else []
    return pa.concat_tables([schema.empty_table(), *tables]).slice(0, most)


class _Replaced(NamedTuple):
    pick: Pick
    sources: np.ndarray


def some_changes(decisions: Decisions, tried: Sequence[Rewritten], source: Any, engine: Engine, most: int) -> Changes:
    """At most so many of each kind, out of a few row groups."""
    replaced = _first(_replaced(tried), most)
    deleted = list(itertools.islice(_deleted(decisions, most), _MOST_PLACES))
    picks = [*(each.pick for each in replaced), *deleted]
    tables = list(engine.pick(decisions.target.location, picks, source.schema)) if picks else []
    empty = source.schema.empty_table()
    wanted = np.concatenate([_NOTHING, *(each.sources for each in replaced)])
    return Changes(
        inserted=source.take(decisions.new_rows[:most]),
        old=pa.concat_tables([empty, *tables[: len(replaced)]]),
        new=source.take(wanted),
        deleted=pa.concat_tables([empty, *tables[len(replaced) :]]).slice(0, most),
    )


def _replaced(tried: Sequence[Rewritten]) -> Iterator[_Replaced]:
    """Rows that get other values, row group by row group."""
    for decision, _, written in tried:
        edits = {edit.group: edit for edit in decision.edits}
        for group, rows in written.differing.items():
            edit = edits[group]
            yield _Replaced(Pick(decision.footer.file.path, group, edit.positions[rows]), edit.sources[rows])


def _first(replaced: Iterator[_Replaced], most: int) -> list[_Replaced]:
    found: list[_Replaced] = []
    for pick, sources in itertools.islice(replaced, _MOST_PLACES):
        left = most - sum(len(each.sources) for each in found)
        if left <= 0:
            break
        found.append(_Replaced(Pick(pick.path, pick.group, pick.positions[:left]), sources[:left]))
    return found


def _deleted(decisions: Decisions, most: int) -> Iterator[Pick]:
    """Row groups that lose rows."""
    for decision in decisions.files:
        path = decision.footer.file.path
        if decision.remove:
            yield from (Pick(path, group, _NOTHING, most) for group in range(decision.footer.groups))
        for edit in decision.edits:
            if not edit.keep_others and _loses_rows(decision, edit):
                yield Pick(path, edit.group, edit.positions, most)


def _loses_rows(decision: Decision, edit: GroupEdit) -> bool:
    return decision.match is None or decision.match.group_rows[edit.group] > len(edit.positions)
