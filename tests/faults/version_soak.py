"""Writers, readers and a compactor of the versions of one dataset, each in a process that tests kill at any time.

Each merge has its change as transaction token, so the history alone tells the rows of every version: `Oracle` repeats
the changes on a dict. All three partitions always hold the same rows, so a mixture of two states is visible.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

import inlay
from inlay.errors import InlayError, NotFoundError
from tests.faults.scenarios import dataset

DAYS = 3
KEPT = 200
WRITERS = 8
_EXTRA_KEYS = 20
State = dict[str, int]  # the same rows in each partition


def build(root: Path) -> None:
    commit(root, "set:w0:0")
    inlay.keep(dataset(root), versions=KEPT)


def commit(root: Path, token: str) -> None:
    change, key, number = token.split(":")
    keys = {"id": [f"{key}-{day}" for day in range(DAYS)], "day": list(range(DAYS))}
    rows = pa.table(keys | ({} if change == "del" else {"n": pa.array([int(number)] * DAYS, pa.int64())}))
    strategy = {"set": "upsert", "add": "insert", "del": "delete"}[change]
    inlay.merge(rows, dataset(root), strategy, "id", ["day"], transaction=token)


def digest(rows: pa.Table) -> str:
    """Return a checksum of the rows of a partition, or "mixed" if the partitions differ."""
    states: list[State] = [{} for _ in range(DAYS)]
    for row in rows.to_pylist():
        states[int(row["day"])][row["id"].rpartition("-")[0]] = row["n"]
    is_mixed = any(state != states[0] for state in states) or rows.num_rows != DAYS * len(states[0])
    return "mixed" if is_mixed else checksum(states[0])


def checksum(state: State) -> str:
    return hashlib.sha256(json.dumps(sorted(state.items())).encode()).hexdigest()[:16]


class Oracle:
    """The rows of all versions that the history has shown."""

    def __init__(self) -> None:
        self.states: dict[int, State] = {}
        self.tokens: list[str] = []
        self.violations: list[str] = []

    def record(self, versions: Iterable[inlay.Version]) -> None:
        """Repeat the changes of new versions, newest first as `inlay.history` returns them."""
        for version in reversed(list(versions)):
            if version.damaged:
                self.violations.append(f"version {version.version} is damaged")
            if version.version not in self.states:
                self._add(version)

    def _add(self, version: inlay.Version) -> None:
        if self.states and version.version - 1 not in self.states:
            self.violations.append(f"version {version.version - 1} is lost")
        state = dict(self.states.get(version.version - 1, {}))
        if version.restores is not None:
            state = dict(self.states[version.restores])
        elif version.operation == "merge":
            change, key, number = str(version.transaction).split(":")
            self.tokens.append(str(version.transaction))
            if change == "del":
                del state[key]
            elif change == "set" or key not in state:
                state[key] = int(number)
        elif version.operation != "compact":
            self.violations.append(f"version {version.version} is of operation {version.operation}")
        self.states[version.version] = state

    def checksums(self) -> dict[int, str]:
        return {number: checksum(state) for number, state in self.states.items()}


# ----------------------------------------------------------------------------------------------------------- processes
def _until_stopped(root: Path, name: str, act: Callable[[random.Random], str]) -> None:
    """Repeat an action, and log each result with one call, which writes the complete line or nothing."""
    descriptor = os.open(root / f"log-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    rng = random.Random(name)
    while not (root / "stop").exists():
        try:
            line = act(rng)
        except InlayError as error:
            line = f"failed {error!r}"
        os.write(descriptor, f"{line}\n".encode())


def write(_: str, root: Path, name: str) -> None:
    writer = f"w{int(name.removeprefix('write')) % WRITERS}"

    def act(rng: random.Random) -> str:
        kind = rng.random()
        if kind < 0.04:
            return f"undone to {inlay.undo(dataset(root)).restores}"
        if kind < 0.08:
            return restore(root, rng)
        extra = f"x{rng.randrange(_EXTRA_KEYS)}"
        number = time.monotonic_ns()
        token = f"set:{writer}:{number}" if kind < 0.5 else f"{'add' if kind < 0.8 else 'del'}:{extra}:{number}"
        commit(root, token)
        return f"acked {token}"

    _until_stopped(root, name, act)


def restore(root: Path, rng: random.Random) -> str:
    number = rng.choice(inlay.history(dataset(root))).version
    try:
        return f"restored {inlay.restore(dataset(root), number).restores}"
    except NotFoundError:  # dropped in the meantime
        return "skipped"


def read(_: str, root: Path, name: str) -> None:
    def act(rng: random.Random) -> str:
        time.sleep(0.002)
        if rng.random() < 0.3:
            return read_version(root, rng)
        with inlay.open_dataset(dataset(root)) as opened:
            number, found = opened.version, digest(opened.to_table())
            if rng.random() < 0.3:
                time.sleep(rng.random() / 5)
                again = digest(opened.to_table())
                found = found if found == again else f"{found}, then {again}"
        return f"read {number} {found}"

    _until_stopped(root, name, act)


def read_version(root: Path, rng: random.Random) -> str:
    number = rng.choice(inlay.history(dataset(root))).version
    try:
        return f"read {number} {digest(inlay.read_parquet(dataset(root), version=number))}"
    except NotFoundError:  # dropped in the meantime
        return "skipped"


def compact(_: str, root: Path, name: str) -> None:
    def act(rng: random.Random) -> str:
        time.sleep(rng.random() / 2)
        return f"compacted {inlay.compact(dataset(root)).row_count}"

    _until_stopped(root, name, act)
