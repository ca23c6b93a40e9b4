"""A fault at each system call of a commit: kill, interrupt, full disk or I/O error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.inject import KINDS, Expectation, Zygote, all_faults, expectation, sample, try_faults

pytestmark = pytest.mark.faults

SCENARIOS = (
    "files", "one-file", "required-methods", "initial", "token", "token-initial", "token-only", "versions", "undo",
    "restore", "forget", "keep",
    pytest.param("copies", marks=pytest.mark.long),  # Only the calls that keep files differ from "versions".
)  # fmt: skip


# The number of faults of each kind that short runs try, if not 4.
SAMPLES = {"files": 8, "token": 8, "versions": 8, "token-initial": 3, "token-only": 3, "restore": 3, "keep": 3}


@pytest.fixture(scope="module")
def expected(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Expectation]:
    known: dict[str, Expectation] = {}

    def get(scenario: str) -> Expectation:
        if scenario not in known:
            known[scenario] = expectation(zygote, scenario, tmp_path_factory.mktemp("whole"))
        return known[scenario]

    return get


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_fault_at_any_call_leaves_the_state_before_or_after(
    zygote: Zygote,
    expected: Callable[[str], Expectation],
    scenario: str,
    kind: str,
    tmp_path: Path,
    tally: Callable[[str, int, list[str]], None],
    thorough: bool,
) -> None:
    case = expected(scenario)
    faults = all_faults(case.counts, (kind,))
    if not thorough:
        faults = sample(faults, 40 if (scenario, kind) == ("files", "kill") else SAMPLES.get(scenario, 4))
    found = try_faults(zygote, faults, tmp_path, case)
    tally(f"{scenario}, {kind}", found.tried, found.violations)


def test_a_commit_makes_the_calls_that_faults_target(expected: Callable[[str], Expectation]) -> None:
    """Check the number of calls, because strace could have seen only a part of the commit."""
    counts = expected("files").counts
    assert counts["fsync"] >= 15
    assert counts["rename"] >= 5
    assert counts["write"] >= 5
    assert counts["unlink"] >= 2
    assert counts["mkdir"] >= 4
    assert counts["flock"] == 2  # acquires and releases the lock of the dataset directory
