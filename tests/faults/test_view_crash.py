"""Kills at system calls of commits with published views, of publish, unpublish and forget."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from inlay.commit.transaction import recover
from tests.faults.inject import Zygote, all_faults, count_calls, new_root, sample
from tests.faults.scenarios import dataset, is_pending, leftovers
from tests.faults.views import VIEWS, wrong_views

pytestmark = pytest.mark.faults


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", VIEWS)
def test_a_kill_at_any_call_leaves_whole_versions_and_the_next_call_catches_up(
    zygote: Zygote, scenario: str, tmp_path: Path, thorough: bool
) -> None:
    root, built = new_root(tmp_path, "root"), tmp_path / "built"
    VIEWS[scenario].build(root)
    before = VIEWS[scenario].read(root)
    copy(root, built)
    counts = count_calls(zygote, scenario, root)
    after = VIEWS[scenario].read(root)
    assert before != after
    assert wrong_views(root, is_recovered=True) == []
    faults = all_faults(counts, ("kill",))
    violations = []
    for fault in faults if thorough else sample(faults, 6 if scenario == "commit-published" else 2):
        copy(built, root)  # to the same path, because Iceberg's metadata contains paths
        run = zygote.trace(scenario, root, "-e", f"trace={fault.call}", "-e", fault.injection)
        assert run.fired
        violations += [f"{fault}: {found}" for found in violations_of(zygote, scenario, root, (before, after))]
    assert violations == []


def copy(root: Path, target: Path) -> None:
    """Copy files with their times and hard links."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", root, target], check=True)


def violations_of(zygote: Zygote, scenario: str, root: Path, allowed: tuple[Any, Any]) -> list[str]:
    found = wrong_views(root, is_recovered=False)
    if not is_pending(root) and VIEWS[scenario].read(root) not in allowed:
        found.append("a mix is visible")
    recover(dataset(root))
    found += [f"after the recovery: {each}" for each in wrong_views(root, is_recovered=True)]
    if VIEWS[scenario].read(root) not in allowed:
        found.append("the recovered state is a mix")
    again = zygote.run(scenario, root)
    if not again.acked or VIEWS[scenario].read(root) != allowed[1]:
        found.append(f"a retry failed: {again.outcome}")
    return [*found, *(f"after a retry: {each}" for each in [*wrong_views(root, is_recovered=True), *leftovers(root)])]
