"""A change of a dataset on an object store, and the promises that it must keep."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import inlay
from inlay.commit.transaction import IncrementalFileManager, open_journal, recover
from inlay.errors import InlayError
from inlay.storage import Location, locate
from tests.faults.scenarios import stage
from tests.versions import wrong_objects

BEFORE = {"a.parquet": b"a one", "day=1/b.parquet": b"b one", "day=2/d.parquet": b"d"}
REWRITTEN = {"a.parquet": b"a two, longer", "day=1/b.parquet": b"b two"}
ADDED = {"day=3/e.parquet": b"e two"}
REMOVED = ["day=2/d.parquet"]
AFTER = sorted((REWRITTEN | ADDED).items())

_OWN_NAME = re.compile(r"-inlay-[0-9a-f]{12}")


def plain(path: str) -> str:
    """Return the path that a file had before a commit rewrote it."""
    return _OWN_NAME.sub("", path)


@dataclass(frozen=True)
class Dataset:
    """A dataset on an object store, and a client that reads the store directly."""

    path: str
    direct: Any  # an fsspec filesystem without faults
    versions: int | None = None  # how many the dataset keeps

    def build(self) -> None:
        for name, content in BEFORE.items():
            self.direct.pipe_file(f"{self.path}/{name}", content)
        if self.versions is not None:
            inlay.keep(self.path, versions=self.versions, filesystem=self.direct)

    def content(self) -> list[tuple[str, bytes]]:
        """Return the bytes of each data file, under its name before a commit rewrote it."""
        self.direct.invalidate_cache()
        files = self.direct.find(self.path)
        return sorted((plain(name[len(self.path) + 1 :]), self.direct.cat_file(name)) for name in files)

    def hidden(self) -> list[str]:
        """List the files in the sidecar, without the log."""
        self.direct.invalidate_cache()
        parent, _, name = self.path.rpartition("/")
        root = f"{parent}/.{name}.txn"
        return [path for path in self.direct.find(root) if not path.startswith(f"{root}/log/")]

    def location(self, filesystem: Any = None) -> Location:
        return locate(self.path, filesystem or self.direct)

    def recover(self) -> None:
        recover(self.path, filesystem=self.direct)

    def wrong_versions(self) -> list[str]:
        """Describe versions that are neither the state before nor the state after, and what they have left behind."""
        location = self.location()
        history = open_journal(location).history
        if history is None:
            return []
        found = wrong_objects(location)
        for number in history.numbers():
            files = history.files(history.read(number))
            at = history.location_of(files)
            content = sorted((plain(path), at.store.read_bytes(at.full(path))) for path in files)
            if content not in (sorted(BEFORE.items()), AFTER):
                found.append(f"version {number} has other content: {[name for name, _ in content]}")
        return found


def change(location: Location) -> None:
    """Rewrite, add and remove files, as a merge does. A repeated change has no further effect."""
    with IncrementalFileManager() as manager:
        manager.open(location)
        puts, removes = {}, []
        for file in manager.snapshot():
            name = plain(file.path)
            if name in REWRITTEN:
                puts[manager.replacement_name(file.path)] = REWRITTEN[name]
            if name in REWRITTEN or name in ADDED or name in REMOVED:
                removes.append(file.path)
        puts |= {manager.replacement_name(name): content for name, content in ADDED.items()}
        manager.commit(list(stage(manager, puts)), removes)


def outcome(location: Location) -> str:
    try:
        change(location)
    except InlayError as error:
        return error.code
    except Exception as error:  # noqa: BLE001  (clients of stores raise errors of any type)
        return f"error: {error!r}"
    return "acked"


def violation(result: str, dataset: Dataset) -> str | None:
    """Describe the promise that a fault broke, or return None."""
    before, raw = sorted(BEFORE.items()), dataset.content()
    if result == "acked" and raw != AFTER:
        return "the change is acknowledged but incomplete"
    if result == "acked" and dataset.hidden():
        return f"the change is acknowledged but left {dataset.hidden()}"
    try:
        dataset.recover()
    except InlayError as error:
        return f"recovery failed: {error!r}"
    state = dataset.content()
    if state not in (before, AFTER):
        return f"the recovered state is neither the state before nor the state after: {[name for name, _ in state]}"
    if wrong := dataset.wrong_versions():
        return f"after recovery: {wrong}"
    if result == "commit_pending" and state != AFTER:
        return "reported as committed, but the change is missing"
    if result not in ("acked", "commit_pending", "commit_state_unknown") and state != before:
        return "reported as unchanged, but the change was made"
    again = outcome(dataset.location())
    if again != "acked" or dataset.content() != AFTER:
        return f"a retry ended with {again!r}"
    dataset.recover()
    return "; ".join(dataset.wrong_versions()) or None
