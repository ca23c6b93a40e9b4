"""Random merges, what they must do to a dataset, and a process that does them on one engine until it is killed.

python -m tests.faults.merge_model ENGINE DATASET: a line of JSON in is a step, a line of JSON out says how it ended.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any, NamedTuple

import pyarrow as pa

import inlay
from inlay.errors import InlayError

KEYS, DAYS = 300, 2
STRATEGIES = ("insert", "update", "upsert", "full_merge", "deduplicate")
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32()), ("text", pa.string())])
# Errors after which a change may have happened.
OPEN_ENDS = ("commit_pending", "commit_state_unknown")
State = dict[int, str]  # the text of every key; its day follows from the key


class Step(NamedTuple):
    """One change; its rows follow from its number."""

    action: str
    number: int

    @classmethod
    def any(cls, chance: random.Random, number: int) -> Step:
        return cls(chance.choice((*STRATEGIES, "compact")), number)

    def rows(self) -> list[tuple[int, str]]:
        chance = random.Random(self.number)
        most = KEYS if self.action == "full_merge" else 60
        keys = chance.sample(range(KEYS), chance.randint(most // 2, most))
        if self.action == "deduplicate":
            keys += chance.choices(keys, k=20)
        return [(key, f"{self.number}.{at}") for at, key in enumerate(keys)]

    def table(self) -> pa.Table:
        return table_of(self.rows())

    def applied(self, before: State) -> State:
        """The state that must follow."""
        news = dict(self.rows())
        match self.action:
            case "compact":
                return before
            case "insert":
                return news | before
            case "update":
                return before | {key: text for key, text in news.items() if key in before}
            case "full_merge":
                return news
            case _:
                return before | news

    def counts(self, before: State) -> list[int]:
        """Rows that must be told to be inserted, updated and deleted."""
        if self.action == "compact":
            return [0, 0, 0]
        news = dict(self.rows()).keys()
        return [
            len(news - before.keys()) if self.action != "update" else 0,
            len(news & before.keys()) if self.action != "insert" else 0,
            len(before.keys() - news) if self.action == "full_merge" else 0,
        ]


def table_of(rows: list[tuple[int, str]]) -> pa.Table:
    columns = {"id": [key for key, _ in rows], "day": [key % DAYS for key, _ in rows], "text": [t for _, t in rows]}
    return pa.table(columns, schema=SCHEMA)


def state_of(table: pa.Table) -> State:
    """What a dataset holds; a key that is there twice or in the wrong place is no state at all."""
    rows = table.select(SCHEMA.names).to_pylist()
    found = {row["id"]: row["text"] for row in rows}
    assert len(found) == len(rows), f"{len(rows) - len(found)} keys are there twice"
    assert all(int(row["day"]) == row["id"] % DAYS for row in rows), "a row is in the wrong partition"
    return found


def take(step: Step, dataset: str, engine: str) -> list[int]:
    if step.action == "compact":
        inlay.compact(dataset)
        return [0, 0, 0]
    done = inlay.merge(step.table(), dataset, step.action, ["id"], engine=engine, max_rows_per_file=100)
    return [done.inserted, done.updated, done.deleted]


def main(engine: str, dataset: str) -> None:
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            answer = {"counts": take(Step(*json.loads(line)), dataset, engine)}
        except InlayError as error:
            answer = {"error": error.code, "message": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
