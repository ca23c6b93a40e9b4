"""Faults during the recovery of a commit that an earlier crash left pending."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.inject import (
    KINDS,
    Expectation,
    Fault,
    Zygote,
    all_faults,
    count_calls,
    expectation,
    sample,
    try_faults,
)
from tests.faults.scenarios import FILES, State, apply_after_recovery, is_pending

pytestmark = pytest.mark.faults
Tally = Callable[[str, int, list[str]], None]

# stage -> the call (and its number) at which a kill leaves the commit pending, in the order of a commit. The first two
# calls of unlink test for hard links, and the next five remove the checksum files of Hadoop, one for each file.
STAGES = {
    "nothing moved": ("unlink", 3),
    "first file moved": ("rename", 2),
    "all but one moved": ("rename", -1),
    "not yet removed": ("unlink", 8),
    "only the record left": ("unlink", 9),
}


class Pending:
    """Datasets that a killed writer left with a pending commit."""

    def __init__(self, zygote: Zygote, parent: Path) -> None:
        self._zygote = zygote
        self._parent = parent
        complete = expectation(zygote, "files", parent)
        self.after: State = complete.after
        self._renames = complete.counts["rename"]
        self._known: dict[tuple[str, str], Expectation] = {}

    def at(self, stage: str) -> Path:
        """Return the root of a dataset whose writer was killed at this stage."""
        root = self._parent / stage.replace(" ", "-")
        if not root.exists():
            root.mkdir()
            FILES["files"].build(root)
            call, n = STAGES[stage]
            n = self._first_move() + n - 1 if call == "rename" and n > 0 else n if n > 0 else self._renames
            fault = Fault("kill", call, n)
            run = self._zygote.trace("files", root, "-e", f"trace={call}", "-e", fault.injection)
            assert run.fired
            assert is_pending(root), f"{stage}: no commit is pending"
        return root

    def _first_move(self) -> int:
        """Return the number of the first rename of a data file.

        Earlier renames check each directory for a mount point, and publish the record at the commit point.
        """
        return self._renames - 3

    def expectation(self, scenario: str, stage: str) -> Expectation:
        if (scenario, stage) not in self._known:
            self._known[scenario, stage] = self._observe(scenario, stage)
        return self._known[scenario, stage]

    def _observe(self, scenario: str, stage: str) -> Expectation:
        base = self.at(stage)
        counted = self._parent / f"counted-{scenario}-{base.name}"
        shutil.copytree(base, counted)
        counts = count_calls(self._zygote, scenario, counted)
        after = FILES[scenario].read(counted)
        return Expectation(scenario, self.after, after, counts, base)


@pytest.fixture(scope="module")
def pending(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Pending:
    return Pending(zygote, tmp_path_factory.mktemp("pending"))


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_recovery_succeeds_after_a_fault_in_an_earlier_recovery(
    zygote: Zygote, pending: Pending, kind: str, stage: str, tmp_path: Path, tally: Tally, thorough: bool
) -> None:
    expected = pending.expectation("recovery", stage)
    assert expected.after == pending.after
    faults = all_faults(expected.counts, (kind,))
    found = try_faults(zygote, faults if thorough else sample(faults, 4), tmp_path, expected)
    tally(f"recovery with {stage}, {kind}", found.tried, found.violations)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_in_a_write_that_first_recovers_another_commit(
    zygote: Zygote, pending: Pending, kind: str, tmp_path: Path, tally: Tally, thorough: bool
) -> None:
    """The writer's result describes its own change, never the commit that it recovers."""
    expected = pending.expectation("after-recovery", "first file moved")
    assert expected.after != pending.after
    faults = all_faults(expected.counts, (kind,))
    found = try_faults(zygote, faults if thorough else sample(faults, 6), tmp_path, expected)
    tally(f"change after a crash, {kind}", found.tried, found.violations)


def test_stages_have_the_expected_number_of_moved_files(pending: Pending) -> None:
    moved = {stage: len(_new_files(pending.at(stage), pending.after)) for stage in STAGES}
    assert moved == {
        "nothing moved": 0,
        "first file moved": 1,
        "all but one moved": 3,
        "not yet removed": 4,
        "only the record left": 4,
    }


def _new_files(root: Path, after: State) -> list[str]:
    return [name for name, content in FILES["files"].read(root).items() if after.get(name) == content]


def test_a_second_change_works_at_every_stage(pending: Pending, tmp_path: Path) -> None:
    for stage in STAGES:
        root = tmp_path / stage
        shutil.copytree(pending.at(stage), root)
        apply_after_recovery(root)
        state = FILES["files"].read(root)
        assert state["a.parquet"][0] == b"a three"
        assert state["day=2/c.parquet"] == pending.after["day=2/c.parquet"]
        assert "day=2/d.parquet" not in state
