"""Sidecars: their owners and their locks."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.commit.sidecar import sidecar_owner, sidecar_path, unlock
from inlay.storage import locate


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_sidecar_name_identifies_its_dataset(tmp_path: Path, name: str) -> None:
    location = locate(str(tmp_path / "lake"))
    dataset = type(location)(location.store, f"{location.path}/{name}", name)
    assert sidecar_owner(os.path.basename(sidecar_path(dataset))) == name


@pytest.mark.parametrize("name", ["sales", ".sales", "sales.txn", ".txn", "..txn", ""])
def test_other_names_are_not_sidecars(name: str) -> None:
    assert sidecar_owner(name) is None


def test_forked_child_does_not_keep_a_released_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    child = subprocess.Popen(["sleep", "60"], pass_fds=[descriptor])
    try:
        unlock(descriptor)
        with path.open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        child.kill()
        child.wait()
