"""A model of a disk that loses unsynced data in a power cut.

The data of a file is durable after a sync of the file, and a directory entry after a sync of the directory. A power cut
keeps any part of the rest. A rename between two directories is one step until one of the directories is synced. Then
only the entry in that directory is durable, so a power cut can leave the file in both directories, or in neither.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from tests.faults.operations import Operation

Tree = dict[str, bytes | None]  # path -> content; None is a directory
Choice = Literal["keep", "drop", "half"]
IGNORED = ("/lock", "/commit.trial.tmp", "/footers.db", "/footers.db-journal")

DATA: dict[str, float] = {"full": 1.0, "empty": 0.0, "half": 0.5}


@dataclass
class Edit:
    """Set one entry of a directory to a file or directory, or remove the entry (None)."""

    directory: int
    name: str
    node: int | None


@dataclass
class Step:
    """Edits that happen together, and their directories that were synced afterwards."""

    edits: list[Edit]
    synced: set[int] = field(default_factory=set)

    @property
    def directories(self) -> set[int]:
        return {edit.directory for edit in self.edits}

    @property
    def choices(self) -> tuple[Choice, ...]:
        if self.synced == self.directories:
            return ("keep",)
        return ("keep", "drop", "half") if self.synced else ("keep", "drop")

    def kept_edits(self, choice: Choice) -> Iterator[Edit]:
        for edit in self.edits:
            if choice == "keep" or (choice == "half" and edit.directory in self.synced):
                yield edit


class Disk:
    """The written data and directory entries, and the parts of them that are durable."""

    def __init__(self, tree: Mapping[str, bytes | None]) -> None:
        self._numbers = itertools.count(1)
        self._written: dict[int, bytes] = {}  # the data of files as programs see it
        self._durable: dict[int, bytes] = {}  # the data of files at their last sync
        self._steps: list[Step] = []
        self._directories: set[int] = {0}
        self._paths: dict[str, int] = {".": 0}
        self._initial: dict[tuple[int, str], int] = {}
        for path, content in sorted(tree.items()):
            self._add_initial(path, content)

    def _add_initial(self, path: str, content: bytes | None) -> None:
        node = self._new_node(path, content)
        parent, name = self._parent(path)
        self._initial[parent, name] = node

    def _new_node(self, path: str, content: bytes | None) -> int:
        node = self._paths[path] = next(self._numbers)
        if content is None:
            self._directories.add(node)
        else:
            self._written[node] = self._durable[node] = content
        return node

    def _parent(self, path: str) -> tuple[int, str]:
        pure = PurePosixPath(path)
        return self._paths[str(pure.parent)], pure.name

    # ---------------------------------------------------------------------------------------------- operations
    def perform(self, operation: Operation) -> None:
        if f"/{operation.path}".endswith(IGNORED):
            if operation.kind == "link":  # such as the link to the lock that shows whether links are possible
                self._create(Operation("create", operation.target))
            return
        getattr(self, f"_{operation.kind}")(operation)

    def _create(self, operation: Operation) -> None:
        if operation.path not in self._paths:
            node = self._new_node(operation.path, b"")
            self._steps.append(Step([Edit(*self._parent(operation.path), node)]))

    def _mkdir(self, operation: Operation) -> None:
        node = self._new_node(operation.path, None)
        self._steps.append(Step([Edit(*self._parent(operation.path), node)]))

    def _unlink(self, operation: Operation) -> None:
        self._steps.append(Step([Edit(*self._parent(operation.path), None)]))
        del self._paths[operation.path]

    _rmdir = _unlink

    def _rename(self, operation: Operation) -> None:
        node = self._paths.pop(operation.path)
        removal = Edit(*self._parent(operation.path), None)
        self._steps.append(Step([removal, Edit(*self._parent(operation.target), node)]))
        self._paths[operation.target] = node

    def _link(self, operation: Operation) -> None:
        node = self._paths[operation.target] = self._paths[operation.path]
        self._steps.append(Step([Edit(*self._parent(operation.target), node)]))

    def _write(self, operation: Operation) -> None:
        node = self._paths[operation.path]
        old, end = self._written[node], operation.offset + len(operation.data)
        self._written[node] = old[: operation.offset].ljust(operation.offset, b"\0") + operation.data + old[end:]

    def _copy(self, operation: Operation) -> None:
        begin, end = (int(part) for part in operation.data.split(b":"))
        data = self._written[self._paths[operation.target]][begin:end]
        self._write(Operation("write", operation.path, offset=operation.offset, data=data))

    def _truncate(self, operation: Operation) -> None:
        node = self._paths[operation.path]
        self._written[node] = self._written[node][: operation.offset].ljust(operation.offset, b"\0")

    def _sync(self, operation: Operation) -> None:
        node = self._paths[operation.path]
        if node in self._written:
            self._durable[node] = self._written[node]
            return
        for step in self._steps:
            step.synced |= step.directories & {node}

    def _ack(self, operation: Operation) -> None:
        pass

    # ------------------------------------------------------------------------------------------ resulting trees
    def live(self) -> Tree:
        """Return the tree that programs see while the power is on."""
        return self._tree(["keep"] * len(self._steps), self._written)

    def crashes(self) -> Iterator[Tree]:
        """Yield the trees that a power cut at this moment can leave."""
        for choices in self._choices():
            for share in DATA.values():
                yield self._tree(choices, self._torn(share))

    def _torn(self, share: float) -> dict[int, bytes]:
        torn = {}
        for node, durable in self._durable.items():
            written = self._written[node]
            torn[node] = durable if durable == written else written[: int(len(written) * share)]
        return torn

    def _choices(self) -> Iterator[list[Choice]]:
        """Yield which steps are lost: none, all, one, or all but one.

        The choice "half" separates the two ends of a rename.
        """
        base: list[Choice] = ["keep"] * len(self._steps)
        yield base
        unsynced = [i for i, step in enumerate(self._steps) if len(step.choices) > 1]
        worst: Choice
        for worst in ("drop", "half"):
            lost = list(base)
            for i in unsynced:
                lost[i] = worst if worst in self._steps[i].choices else "drop"
            yield lost
            for i in unsynced:
                yield [*lost[:i], "keep", *lost[i + 1 :]]
        for i in unsynced:
            for choice in self._steps[i].choices[1:]:
                yield [*base[:i], choice, *base[i + 1 :]]

    def _tree(self, choices: list[Choice], data: Mapping[int, bytes]) -> Tree:
        entries: dict[int, dict[str, int]] = {}
        for (directory, name), node in self._initial.items():
            entries.setdefault(directory, {})[name] = node
        for step, choice in zip(self._steps, choices, strict=True):
            for edit in step.kept_edits(choice):
                names = entries.setdefault(edit.directory, {})
                if edit.node is None:
                    names.pop(edit.name, None)
                else:
                    names[edit.name] = edit.node
        return dict(self._walk(0, "", entries, data))

    def _walk(
        self, node: int, prefix: str, entries: dict[int, dict[str, int]], data: Mapping[int, bytes]
    ) -> Iterator[tuple[str, bytes | None]]:
        for name, child in sorted(entries.get(node, {}).items()):
            if child in self._directories:
                yield prefix + name, None
                yield from self._walk(child, f"{prefix}{name}/", entries, data)
            else:
                yield prefix + name, data[child]


def read_tree(root: Path) -> Tree:
    paths = sorted(root.rglob("*"))
    contents = {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in paths}
    return {path: content for path, content in contents.items() if not f"/{path}".endswith(IGNORED)}


def write_tree(root: Path, tree: Tree) -> None:
    root.mkdir()
    for path, content in tree.items():  # parents precede their children
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def crash_states(tree: Tree, operations: Iterable[Operation], *, start: int = 0) -> Iterator[tuple[int, bool, Tree]]:
    """Yield each distinct tree after a power cut, as (operation number, acknowledged, tree)."""
    disk = Disk(tree)
    seen: set[tuple[bool, tuple[tuple[str, bytes | None], ...]]] = set()
    acked = False
    for number, operation in enumerate(operations):
        disk.perform(operation)
        acked = acked or operation.kind == "ack"
        if number < start:
            continue
        for state in disk.crashes():
            identity = (acked, tuple(sorted(state.items())))
            if identity not in seen:
                seen.add(identity)
                yield number, acked, state
