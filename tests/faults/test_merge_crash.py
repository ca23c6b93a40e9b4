"""Faults at system calls of merges with every strategy, of writes, of compaction and of changed columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.inject import KINDS, Zygote, all_faults, expectation, sample, try_faults
from tests.faults.merges import MERGES

pytestmark = pytest.mark.faults
Tally = Callable[[str, int, list[str]], None]


@pytest.mark.parametrize("scenario", MERGES)
def test_a_sampled_fault_in_a_call_leaves_the_state_before_or_after(
    zygote: Zygote, scenario: str, tmp_path: Path, tally: Tally
) -> None:
    expected = expectation(zygote, scenario, tmp_path)
    faults = sample(all_faults(expected.counts, tuple(KINDS)), 6)
    found = try_faults(zygote, faults, tmp_path, expected)
    tally(f"{scenario}, sample", found.tried, found.violations)


@pytest.mark.long  # short runs try 6 faults of each scenario above
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", MERGES)
def test_every_fault_in_a_call_leaves_the_state_before_or_after(
    zygote: Zygote, scenario: str, kind: str, tmp_path: Path, tally: Tally
) -> None:
    expected = expectation(zygote, scenario, tmp_path)
    found = try_faults(zygote, all_faults(expected.counts, (kind,)), tmp_path, expected)
    tally(f"{scenario}, {kind}", found.tried, found.violations)
