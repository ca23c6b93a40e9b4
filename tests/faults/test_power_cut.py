"""A power cut at any moment leaves the state before or after, whatever data is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inlay.commit.transaction import recover
from inlay.errors import InlayError
from tests.faults.inject import Fault, Zygote, all_faults, count_calls, new_root
from tests.faults.operations import OPTIONS, TRACED, Operation, parse
from tests.faults.powercut import Disk, Tree, crash_states, read_tree, write_tree
from tests.faults.scenarios import FILES, leftovers, scenario_named

pytestmark = pytest.mark.faults
Tally = Callable[[str, int, list[str]], None]


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """Return a directory in memory if possible, because the model simulates the disk."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory:
        yield Path(directory)


class Recording:
    """The operations of one run of a scenario, optionally after a run that was killed."""

    def __init__(self, zygote: Zygote, scenario: str, root: Path, killed_at: Fault | None = None) -> None:
        self.scenario = scenario_named(scenario)
        root.mkdir()
        self.scenario.build(root)
        self.initial = read_tree(root)
        self.before = self._content(root)
        self.operations: list[Operation] = []
        if killed_at is not None:
            killed = zygote.trace(scenario, root, *OPTIONS, "-e", killed_at.injection)
            assert killed.fired
            self.operations += parse(killed.log, root)
        self.start = len(self.operations)
        run = zygote.trace(scenario, root, *OPTIONS)
        assert run.acked
        self.operations += parse(run.log, root)
        self.after = self._content(root)
        self._check_model(root)
        assert leftovers(root) == []

    def _content(self, root: Path) -> dict[str, bytes]:
        return {path: content for path, (content, _) in self.scenario.read(root).items()}

    def _check_model(self, root: Path) -> None:
        """Check that the model without a power cut equals the real directory."""
        disk = Disk(self.initial)
        for operation in self.operations:
            disk.perform(operation)
        assert disk.live() == read_tree(root)

    def violations(self, parent: Path, operations: list[Operation] | None = None) -> tuple[int, list[str]]:
        """Return the number of tested crash states, and a description of each violation."""
        tried, found = 0, []
        performed = self.operations if operations is None else operations
        for number, acked, tree in crash_states(self.initial, performed, start=self.start):
            tried += 1
            if wrong := self._violation(parent / str(tried), acked, tree):
                found.append(f"after {performed[number].kind} {performed[number].path}: {wrong}")
        return tried, found

    def _violation(self, root: Path, acked: bool, tree: Tree) -> str | None:
        write_tree(root, tree)
        try:
            recover(root / "ds")
            state = self._content(root)
            left = leftovers(root)
        except InlayError as error:
            return repr(error)
        finally:
            shutil.rmtree(root)
        if state not in ((self.after,) if acked else (self.before, self.after)):
            return f"acknowledged, but found {sorted(state)}" if acked else f"a mix: {sorted(state)}"
        return f"leftover files: {left}" if left else None


@pytest.mark.parametrize(
    "scenario",
    [
        *("files", "initial", "required-methods", "token", "token-initial", "token-only", "versions", "undo"),
        *("restore", "forget", "keep"),
        pytest.param("copies", marks=pytest.mark.long),  # Only the calls that keep files differ from "versions".
    ],
)
def test_a_power_cut_leaves_the_state_before_or_after(
    zygote: Zygote, scenario: str, tmp_path: Path, fast: Path, tally: Tally
) -> None:
    recording = Recording(zygote, scenario, tmp_path / "recorded")
    tried, violations = recording.violations(fast)
    assert tried > (5 if scenario == "token-only" else 20)
    tally(f"power cut, {scenario}", tried, violations)


def _without(recording: Recording, kinds: tuple[type, ...]) -> list[Operation]:
    """Return the operations without the syncs of files (bytes) or directories (NoneType)."""
    disk = Disk(recording.initial)
    kept = []
    for operation in recording.operations:
        disk.perform(operation)
        entry = disk.live().get(operation.path) if operation.path != "." else None
        if not (operation.kind == "sync" and isinstance(entry, kinds)):
            kept.append(operation)
    return kept


@pytest.mark.parametrize(
    "omitted",
    [
        pytest.param((bytes, type(None)), id="all syncs", marks=pytest.mark.long),  # short runs omit each kind of sync
        pytest.param((bytes,), id="syncs of files"),
        pytest.param((type(None),), id="syncs of directories"),
    ],
)
def test_the_model_detects_missing_syncs(zygote: Zygote, omitted: tuple[type, ...], tmp_path: Path, fast: Path) -> None:
    """Check that the model finds violations if a program omits syncs."""
    recording = Recording(zygote, "files", tmp_path / "recorded")
    operations = _without(recording, omitted)
    assert len(operations) < len(recording.operations)
    _, violations = recording.violations(fast, operations)
    assert len(violations) > 20


def test_a_power_cut_after_a_crash_leaves_the_state_before_or_after(
    zygote: Zygote, tmp_path: Path, fast: Path, tally: Tally, thorough: bool
) -> None:
    """A power cut loses unsynced data of a killed process unless the next process syncs it."""
    counting = new_root(tmp_path, "counting")
    FILES["files"].build(counting)
    kills = [f for f in all_faults(count_calls(zygote, "files", counting), ("kill",)) if f.call in TRACED]
    tried, violations = 0, []
    for number, kill in enumerate(kills if thorough else kills[::50]):
        recording = Recording(zygote, "files", tmp_path / str(number), killed_at=kill)
        states, found = recording.violations(fast)
        tried += states
        violations += [f"{kill}: {text}" for text in found]
    tally("power cut after a kill", tried, violations)
