"""Writers and readers of one dataset, each in a process that tests kill at any time.

Each commit of a writer adds the writer's name and a number to every file or, with the kind `merge`, sets the writer's
rows in every partition. A writer logs each commit before it starts and after it is acknowledged. A reader reads
repeatedly, and logs each mix of states that it sees.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from inlay.commit.snapshot import read_consistently
from inlay.commit.transaction import IncrementalFileManager
from inlay.errors import InlayError
from inlay.storage import locate
from tests.faults import version_soak
from tests.faults.scenarios import dataset, stage

NAMES = ("a.parquet", "day=1/b.parquet", "day=2/c.parquet")


def build_files(root: Path) -> None:
    for name in NAMES:
        path = dataset(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"[]")


def commit_files(root: Path, entry: str) -> None:
    with IncrementalFileManager(lock_timeout=60) as manager:
        manager.open(locate(dataset(root)))
        manager.snapshot()
        found = {name: json.loads((dataset(root) / name).read_bytes()) for name in NAMES}
        puts = {name: json.dumps([*entries, entry]).encode() for name, entries in found.items()}
        manager.commit(list(stage(manager, puts)))


def read_files(root: Path) -> list[list[str]]:
    """Return the entries of each file, read from one state of the dataset."""
    location = locate(dataset(root))
    return read_consistently(
        location, lambda at, files: [json.loads(Path(at.full(file.path)).read_bytes()) for file in files]
    )


def build_rows(root: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for day in range(3):
        directory = dataset(root) / f"day={day}"
        directory.mkdir(parents=True)
        table = pa.table({"id": pa.array([f"none-{day}"]), "n": pa.array([0], pa.int64())})
        pq.write_table(table, directory / "part.parquet")


def commit_rows(root: Path, entry: str) -> None:
    """Merge one row of the writer into each partition, with the number of the commit."""
    import pyarrow as pa

    import inlay

    writer, _, number = entry.partition(":")
    rows = {"id": [f"{writer}-{day}" for day in range(3)], "n": [int(number)] * 3, "day": [0, 1, 2]}
    inlay.merge(pa.table(rows), str(dataset(root)), "upsert", ["id"], ["day"])


def read_rows(root: Path) -> list[list[str]]:
    """Return the latest commit of each writer, for each partition."""
    import inlay

    days: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for row in inlay.read_parquet(str(dataset(root))).to_pylist():
        days[int(row["day"])].append(f"{row['id'].rpartition('-')[0]}:{row['n']}")
    return [sorted(entries) for entries in days.values()]


# kind -> functions that build the dataset, commit an entry, and read the state
KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path, str], None], Callable[[Path], list[list[str]]]]] = {
    "files": (build_files, commit_files, read_files),
    "merge": (build_rows, commit_rows, read_rows),
}


def log(descriptor: int, text: str) -> None:
    os.write(descriptor, f"{text}\n".encode())  # one call writes the complete line or nothing


def write(kind: str, root: Path, name: str) -> None:
    descriptor = os.open(root / f"log-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    number = 0
    while not (root / "stop").exists():
        number += 1
        entry = f"{name}:{number}"
        log(descriptor, f"tried {entry}")
        try:
            KINDS[kind][1](root, entry)
        except InlayError as error:
            log(descriptor, f"failed {entry} {error!r}")
        else:
            log(descriptor, f"acked {entry}")


def read(kind: str, root: Path, name: str) -> None:
    descriptor = os.open(root / f"log-{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while not (root / "stop").exists():
        states = KINDS[kind][2](root)
        mixed = any(state != states[0] for state in states)
        log(descriptor, f"mixed {states}" if mixed else "read")
        time.sleep(0.002)


ROLES = {
    "write": write,
    "read": read,
    "write versions": version_soak.write,
    "read versions": version_soak.read,
    "compact versions": version_soak.compact,
}
