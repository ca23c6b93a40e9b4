"""Scenarios for fault tests: each builds a dataset, changes it and reads its state.

The tests and the process that forks their children import this module, so it imports no test tools.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from inlay.commit.transaction import IncrementalFileManager, recover
from inlay.errors import CommitPendingError, InlayError
from inlay.storage import LocalStore, locate

State = Any

KEPT_IN_SIDECAR = {"lock", "footers.db", "footers.db-journal", "footers.db-wal", "footers.db-shm"}


@dataclass(frozen=True)
class Scenario:
    """A change of a dataset.

    `read` returns the state that a plain reader sees, as a comparable value.
    """

    name: str
    build: Callable[[Path], None]
    apply: Callable[[Path], None]
    read: Callable[[Path], State]
    repeatable: bool = True  # a repeated change has no further effect


def dataset(root: Path) -> Path:
    return root / "ds"


def sidecar(root: Path) -> Path:
    return root / ".ds.txn"


def is_pending(root: Path) -> bool:
    return (sidecar(root) / "commit.json").exists()


def leftovers(root: Path) -> list[str]:
    """List files that a completed or rejected change must not leave, such as staged files."""
    found = [str(path) for path in root.iterdir() if path not in (dataset(root), sidecar(root))]
    if sidecar(root).exists():
        found += [path.name for path in sidecar(root).iterdir() if path.name not in KEPT_IN_SIDECAR]
    for path in dataset(root).rglob("*"):
        if path.is_file() and path.suffix != ".parquet":
            found.append(str(path))
    return found


def directories(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in dataset(root).rglob("*") if path.is_dir()}


# ------------------------------------------------------------------------------------------ files with arbitrary bytes
def read_files(root: Path) -> dict[str, tuple[bytes, int]]:
    base = dataset(root)
    files = (path for path in base.rglob("*.parquet") if path.is_file())
    return {str(path.relative_to(base)): (path.read_bytes(), path.stat().st_mode & 0o777) for path in files}


BEFORE = {"a.parquet": b"a one", "day=1/b.parquet": b"b one", "day=2/c.parquet": b"c one" * 40, "day=2/d.parquet": b"d"}
PUTS = {
    "a.parquet": b"a two, longer",
    "day=1/b.parquet": b"b two",
    "day=2/c.parquet": b"c two" * 60,
    "year=7/day=3/e.parquet": b"e two",
}
REMOVES = ["day=2/d.parquet"]


def write_files(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = dataset(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def build_files(root: Path) -> None:
    write_files(root, BEFORE)
    (dataset(root) / "a.parquet").chmod(0o640)


def stage(manager: IncrementalFileManager, puts: dict[str, bytes]) -> Iterator[tuple[str, str]]:
    for target, content in puts.items():
        path = manager.stage_path()
        with manager.location.store.open_write(path) as file:
            file.write(content)
        yield path, target


def change_files(location: Any, puts: dict[str, bytes], removes: list[str]) -> None:
    with IncrementalFileManager() as manager:
        manager.open(location)
        present = {file.path for file in manager.snapshot()}
        manager.commit(list(stage(manager, puts)), [name for name in removes if name in present])


def apply_files(root: Path) -> None:
    change_files(locate(dataset(root)), PUTS, REMOVES)


def apply_one_file(root: Path) -> None:
    change_files(locate(dataset(root)), {"a.parquet": b"a two"}, [])


@contextlib.contextmanager
def failing_moves(moves: int) -> Iterator[None]:
    """Let files be moved into place this many times. Later moves fail."""
    move, left = LocalStore.move, iter(range(moves))

    def stop(store: LocalStore, source: str, target: str) -> None:
        if next(left, None) is None:
            raise OSError(errno.EIO, "the disk failed")
        move(store, source, target)

    with mock.patch.object(LocalStore, "move", stop):
        yield


def leave_pending(root: Path) -> None:
    """Interrupt a commit after it has moved its first file."""
    with failing_moves(1), contextlib.suppress(CommitPendingError):
        apply_files(root)


def apply_required_methods(root: Path) -> None:
    """Use the three methods that the requirements name, without a context manager."""
    manager = IncrementalFileManager()
    staging = manager.create_staging_directory(str(dataset(root)))
    sources, targets = [], []
    try:
        for number, name in enumerate(("a.parquet", "day=1/b.parquet")):
            sources.append(os.path.join(staging, f"staged-{number}"))
            targets.append(str(dataset(root) / name))
            Path(sources[-1]).write_bytes(b"two of " + name.encode())
        manager.atomic_replace_files(sources, targets)
    finally:
        manager.cleanup_staging_files()


def apply_recovery(root: Path) -> None:
    recover(dataset(root))


def apply_after_recovery(root: Path) -> None:
    """Make a second change after a crash has left the first one pending."""
    change_files(locate(dataset(root)), {"a.parquet": b"a three", "day=1/b.parquet": b"b three"}, [])


def build_nothing(root: Path) -> None:
    """Create nothing, because the change creates the dataset."""


def apply_initial(root: Path) -> None:
    change_files(locate(dataset(root)), {"day=1/a.parquet": b"a", "day=2/b.parquet": b"b"}, [])


FILES = {
    scenario.name: scenario
    for scenario in (
        Scenario("files", build_files, apply_files, read_files),
        Scenario("one-file", build_files, apply_one_file, read_files),
        Scenario("required-methods", build_files, apply_required_methods, read_files),
        Scenario("initial", build_nothing, apply_initial, read_files),
        Scenario("recovery", build_files, apply_recovery, read_files),
        Scenario("after-recovery", build_files, apply_after_recovery, read_files),
    )
}


def scenario_named(name: str) -> Scenario:
    from tests.faults.merges import MERGES

    return (FILES | MERGES)[name]


def outcome(scenario: Scenario, root: Path) -> str:
    """Run the change and return "acked", an error code, "interrupted" or "error: ..."."""
    try:
        scenario.apply(root)
    except InlayError as error:
        return error.code
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # noqa: BLE001  (the parent process reports any error)
        return f"error: {error!r}"
    return "acked"
