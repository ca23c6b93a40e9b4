"""Scenarios for fault tests: each builds a dataset, changes it and reads its state.

The tests and the process that forks their children import this module, so it imports no test tools.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import inlay
from inlay.commit.damage import damaged_files
from inlay.commit.local import LocalJournal
from inlay.commit.transaction import IncrementalFileManager, recover
from inlay.errors import CommitPendingError, InlayError
from inlay.parquet.layout import data_files
from inlay.storage import LocalStore, Location, locate

State = Any

KEPT_IN_SIDECAR = {
    "lock",
    "footers.db",
    "footers.db-journal",
    "footers.db-wal",
    "footers.db-shm",
    "files",
    "versions",
    "no_history",
    "views.json",
}


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
    is_commit: bool = True  # a reported error means that nothing has changed


def dataset(root: Path) -> Path:
    return root / "ds"


def sidecar(root: Path) -> Path:
    return root / ".ds.txn"


def is_pending(root: Path) -> bool:
    return (sidecar(root) / "commit.json").exists()


def leftovers(root: Path) -> list[str]:
    """List files that a completed or rejected change must not leave, such as staged files."""
    views = {root / "ds.delta", root / "ds.iceberg"}
    found = [str(path) for path in root.iterdir() if path not in {dataset(root), sidecar(root)} | views]
    if sidecar(root).exists():
        names = {path.name for path in sidecar(root).iterdir()} - KEPT_IN_SIDECAR
        found += sorted(names - {f"tokens.{ledger}" for ledger in ledgers(root)})
    found += [str(path) for ledger in ledgers(root).values() for path in ledger if path.endswith(".tmp")]
    for path in dataset(root).rglob("*"):
        if path.is_file() and path.suffix != ".parquet":
            found.append(str(path))
    return found + wrong_history(root)


def wrong_history(root: Path) -> list[str]:
    """Describe links that no version needs, damaged versions, and a newest version that is not the dataset."""
    location = locate(dataset(root))
    history = LocalJournal(location).history
    numbers = [] if history is None or is_pending(root) else history.numbers()
    if history is None or not numbers:
        return []
    needed, found, files = set(), list[str](), {}
    for number in numbers:
        files = history.files(history.read(number))
        at = history.location_of(files)
        needed |= {at.full(path) for path in files}
        found += [f"version {number} has a damaged file {path}" for path in damaged_files(at, files)]
    links = {str(path) for path in (sidecar(root) / "files").rglob("*") if path.is_file()}
    found += [f"a link that no version needs: {path}" for path in links - needed]
    if not found and _contents(history.location_of(files), sorted(files)) != _contents(
        location, [file.path for file in data_files(location)]
    ):
        found.append(f"version {numbers[-1]} is not the dataset")
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        found.append(f"versions are missing: {numbers}")
    return found


def ledgers(root: Path) -> dict[str, list[str]]:
    """Return the entries of each ledger whose witness is in the dataset. A ledger without entries is a leftover."""
    witnesses = [path.name.removeprefix(".inlay.tokens.") for path in dataset(root).glob(".inlay.tokens.*")]
    names = {name.removeprefix("early-") for name in witnesses}
    paths = {name: sidecar(root) / f"tokens.{name}" for name in names}
    return {name: sorted(each.name for each in path.iterdir()) for name, path in paths.items() if any(path.iterdir())}


def _contents(location: Location, paths: list[str]) -> dict[str, bytes | None]:
    """Return the bytes of each file, and None for a file that the next commit records as a foreign change."""
    contents = {path: Path(location.full(path)).read_bytes() for path in paths}
    present = {path: Path(location.path, path) for path in paths}
    return {
        path: None if present[path].exists() and present[path].read_bytes() == FOREIGN else content
        for path, content in contents.items()
    }


def directories(root: Path) -> set[str]:
    found = (str(path.relative_to(root)) for path in dataset(root).rglob("*") if path.is_dir())
    return {re.sub(r"\.early-\w+", ".early", path) for path in found}  # each run chooses a name


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
FOREIGN = b"b of another program"


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


TOKEN, OUTCOME = "orders/batch-42", {"rows": 5}


def apply_with_token(root: Path) -> None:
    """Commit a transaction, or find that it is committed. Its change would have a further effect if repeated."""
    with IncrementalFileManager() as manager:
        manager.open(locate(dataset(root)))
        path = dataset(root) / "a.parquet"
        puts = PUTS | {"a.parquet": path.read_bytes() + b" again" if path.exists() else b"a one"}
        present = {file.path for file in manager.snapshot()}
        found = manager.find_outcome(TOKEN)
        if found is None:
            removes = [name for name in REMOVES if name in present]
            manager.commit(list(stage(manager, puts)), removes, token=TOKEN, outcome=OUTCOME)
        else:
            assert found == OUTCOME
            assert "day=1/b.parquet" in present
            assert not set(REMOVES) & present


def apply_token_only(root: Path) -> None:
    """Commit a transaction that changes no files."""
    with IncrementalFileManager() as manager:
        manager.open(locate(dataset(root)))
        manager.snapshot()
        if manager.find_outcome(TOKEN) is None:
            manager.commit([], token=TOKEN, outcome=OUTCOME)


def read_files_and_tokens(root: Path) -> dict[str, tuple[bytes, int]]:
    paths = [sidecar(root) / f"tokens.{ledger}" / name for ledger, names in ledgers(root).items() for name in names]
    entries = {f"token {path.name}": (path.read_bytes(), 0) for path in paths if path.suffix != ".tmp"}
    return read_files(root) | entries


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


def build_versions(root: Path) -> None:
    """Build a dataset with two versions, of which the next commit drops one, and with a change by another program."""
    build_files(root)
    apply_one_file(root)
    inlay.keep(dataset(root), versions=2)
    (dataset(root) / "day=1/b.parquet").unlink()
    write_files(root, {"day=1/b.parquet": FOREIGN})


def _refuse_links(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EPERM, "Operation not permitted")


def build_copies(root: Path) -> None:
    """Build a dataset without hard links, whose next commit drops a version."""
    build_files(root)
    with mock.patch("os.link", _refuse_links):
        inlay.keep(dataset(root), versions=2, copies=True)
        apply_one_file(root)


def apply_copies(root: Path) -> None:
    with mock.patch("os.link", _refuse_links):
        apply_files(root)


def build_restorable(root: Path) -> None:
    build_files(root)
    apply_files(root)
    inlay.keep(dataset(root), versions=2)


def apply_restore(root: Path) -> None:
    if any(content == PUTS["a.parquet"] for content, _ in read_files(root).values()):
        inlay.undo(dataset(root))


def build_history(root: Path) -> None:
    """Build a dataset with three versions that share links."""
    build_files(root)
    apply_files(root)
    inlay.keep(dataset(root), versions=9)
    change_files(locate(dataset(root)), {"a.parquet": b"a three", "day=2/f.parquet": b"f"}, ["day=1/b.parquet"])


def apply_restore_of_a_version(root: Path) -> None:
    inlay.restore(dataset(root), 1)


def apply_forget(root: Path) -> None:
    inlay.forget(dataset(root), before=1)


def apply_keep(root: Path) -> None:
    inlay.keep(dataset(root), versions=2)


def read_files_and_versions(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return the files of the dataset and of all kept versions."""
    found = read_files(root)
    history = LocalJournal(locate(dataset(root))).history
    for number in history.numbers() if history is not None else ():
        files = history.files(history.read(number))
        at = history.location_of(files)
        found |= {f"version {number} {path}": (Path(at.full(path)).read_bytes(), 0) for path in files}
    return found


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
        Scenario("token", build_files, apply_with_token, read_files_and_tokens),
        Scenario("token-initial", build_nothing, apply_with_token, read_files_and_tokens),
        Scenario("token-only", build_files, apply_token_only, read_files_and_tokens),
        Scenario("versions", build_versions, apply_files, read_files),
        Scenario("copies", build_copies, apply_copies, read_files),
        Scenario("undo", build_restorable, apply_restore, read_files),
        Scenario("restore", build_history, apply_restore_of_a_version, read_files_and_versions),
        Scenario("forget", build_history, apply_forget, read_files_and_versions, is_commit=False),
        Scenario("keep", build_history, apply_keep, read_files_and_versions, is_commit=False),
        Scenario("recovery", build_files, apply_recovery, read_files),
        Scenario("after-recovery", build_files, apply_after_recovery, read_files),
    )
}


def scenario_named(name: str) -> Scenario:
    from tests.faults.merges import MERGES
    from tests.faults.views import VIEWS

    return (FILES | MERGES | VIEWS)[name]


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
