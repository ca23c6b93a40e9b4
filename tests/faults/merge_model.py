"""Random merges, a model of their results, and a process that runs them on one engine.

`python -m tests.faults.merge_model ENGINE DATASET` reads each step as a line of JSON from standard input and writes its
outcome as a line of JSON to standard output.
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
# Errors that do not tell whether the change was made.
UNCERTAIN_ERRORS = ("commit_pending", "commit_state_unknown")
State = dict[int, str]  # key -> text; the day is derived from the key


class Step(NamedTuple):
    """One change of the dataset. Its number determines its rows."""

    action: str
    number: int

    @classmethod
    def choose(cls, rng: random.Random, number: int) -> Step:
        return cls(rng.choice((*STRATEGIES, "compact")), number)

    def rows(self) -> list[tuple[int, str]]:
        rng = random.Random(self.number)
        limit = KEYS if self.action == "full_merge" else 60
        keys = rng.sample(range(KEYS), rng.randint(limit // 2, limit))
        if self.action == "deduplicate":
            keys += rng.choices(keys, k=20)
        return [(key, f"{self.number}.{position}") for position, key in enumerate(keys)]

    def table(self) -> pa.Table:
        return table_of(self.rows())

    def apply(self, before: State) -> State:
        """Return the expected state after this step."""
        source = dict(self.rows())
        match self.action:
            case "compact":
                return before
            case "insert":
                return source | before
            case "update":
                return before | {key: text for key, text in source.items() if key in before}
            case "full_merge":
                return source
            case _:
                return before | source

    def counts(self, before: State) -> list[int]:
        """Return the expected numbers of inserted, updated and deleted rows."""
        if self.action == "compact":
            return [0, 0, 0]
        keys = dict(self.rows()).keys()
        return [
            len(keys - before.keys()) if self.action != "update" else 0,
            len(keys & before.keys()) if self.action != "insert" else 0,
            len(before.keys() - keys) if self.action == "full_merge" else 0,
        ]


def table_of(rows: list[tuple[int, str]]) -> pa.Table:
    columns = {"id": [key for key, _ in rows], "day": [key % DAYS for key, _ in rows], "text": [t for _, t in rows]}
    return pa.table(columns, schema=SCHEMA)


def state_of(table: pa.Table) -> State:
    """Return the text of each key. Fail on duplicate keys and on rows in the wrong partition."""
    rows = table.select(SCHEMA.names).to_pylist()
    found = {row["id"]: row["text"] for row in rows}
    assert len(found) == len(rows), f"{len(rows) - len(found)} duplicate keys"
    assert all(int(row["day"]) == row["id"] % DAYS for row in rows), "a row is in the wrong partition"
    return found


def run_step(step: Step, dataset: str, engine: str) -> list[int]:
    if step.action == "compact":
        inlay.compact(dataset)
        return [0, 0, 0]
    result = inlay.merge(step.table(), dataset, step.action, ["id"], engine=engine, max_rows_per_file=100)
    return [result.inserted, result.updated, result.deleted]


def main(engine: str, dataset: str) -> None:
    for line in sys.stdin:
        response: dict[str, Any]
        try:
            response = {"counts": run_step(Step(*json.loads(line)), dataset, engine)}
        except InlayError as error:
            response = {"error": error.code, "message": str(error)}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
