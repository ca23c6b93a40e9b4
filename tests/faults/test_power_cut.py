"""A power cut at any moment: whatever the disk kept of what was not synced, the dataset is before or after."""

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
    """A place in memory where there is one: the model does the losing, so the disk need not be real."""
    memory = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as place:
        yield Path(place)


class Recording:
    """One run of a scenario (perhaps after another that was killed) as a list of operations."""

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
        self._require_faithful(root)
        assert leftovers(root) == []

    def _content(self, root: Path) -> dict[str, bytes]:
        return {path: content for path, (content, _) in self.scenario.read(root).items()}

    def _require_faithful(self, root: Path) -> None:
        """With the power on, the model holds exactly what the disk holds."""
        disk = Disk(self.initial)
        for operation in self.operations:
            disk.perform(operation)
        assert disk.live() == read_tree(root)

    def violations(self, place: Path, operations: list[Operation] | None = None) -> tuple[int, list[str]]:
        """How many crash states were tried, and what was wrong in which."""
        tried, found = 0, []
        performed = self.operations if operations is None else operations
        for number, acked, tree in crash_states(self.initial, performed, start=self.start):
            tried += 1
            if wrong := self._wrong(place / str(tried), acked, tree):
                found.append(f"after {performed[number].kind} {performed[number].path}: {wrong}")
        return tried, found

    def _wrong(self, root: Path, acked: bool, tree: Tree) -> str | None:
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
            return f"acknowledged but {sorted(state)}" if acked else f"a mix: {sorted(state)}"
        return f"left behind: {left}" if left else None


@pytest.mark.parametrize("scenario", ["files", "initial", "vocabulary"])
def test_a_power_cut_leaves_before_or_after(
    zygote: Zygote, scenario: str, tmp_path: Path, fast: Path, tally: Tally
) -> None:
    recording = Recording(zygote, scenario, tmp_path / "recorded")
    tried, violations = recording.violations(fast)
    assert tried > 20
    tally(f"power cut, {scenario}", tried, violations)


def _without(recording: Recording, kinds: tuple[type, ...]) -> list[Operation]:
    """The same run with some syncs left out, as a program would that forgot them."""
    disk = Disk(recording.initial)
    kept = []
    for operation in recording.operations:
        disk.perform(operation)
        entry = disk.live().get(operation.path) if operation.path != "." else None
        if not (operation.kind == "sync" and isinstance(entry, kinds)):
            kept.append(operation)
    return kept


@pytest.mark.parametrize(
    "forgotten", [(bytes, type(None)), (bytes,), (type(None),)], ids=["all", "those of files", "those of directories"]
)
def test_the_model_detects_missing_syncs(
    zygote: Zygote, forgotten: tuple[type, ...], tmp_path: Path, fast: Path
) -> None:
    """The control: a model that never complains proves nothing."""
    recording = Recording(zygote, "files", tmp_path / "recorded")
    operations = _without(recording, forgotten)
    assert len(operations) < len(recording.operations)
    _, violations = recording.violations(fast, operations)
    assert len(violations) > 20


def test_a_power_cut_after_a_crash_leaves_before_or_after(
    zygote: Zygote, tmp_path: Path, fast: Path, tally: Tally, thorough: bool
) -> None:
    """What a killed process left unsynced is lost by the next one's power cut, unless that one synced it."""
    counting = new_root(tmp_path, "counting")
    FILES["files"].build(counting)
    kills = [f for f in all_faults(count_calls(zygote, "files", counting), ("kill",)) if f.call in TRACED]
    tried, violations = 0, []
    for number, kill in enumerate(kills if thorough else kills[::6]):
        recording = Recording(zygote, "files", tmp_path / str(number), killed_at=kill)
        states, found = recording.violations(fast)
        tried += states
        violations += [f"{kill}: {text}" for text in found]
    tally("power cut after a kill", tried, violations)
