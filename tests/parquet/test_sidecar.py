"""Directories beside datasets, and whose they are."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.parquet.sidecar import owner_of, sidecar, unlock
from inlay.storage import locate


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_a_sidecar_tells_its_owner(tmp_path: Path, name: str) -> None:
    location = locate(str(tmp_path / "lake"))
    owned = type(location)(location.store, f"{location.path}/{name}", name)
    assert owner_of(os.path.basename(sidecar(owned))) == name


@pytest.mark.parametrize("name", ["sales", ".sales", "sales.txn", ".txn", "..txn", ""])
def test_other_names_are_no_sidecars(name: str) -> None:
    assert owner_of(name) is None


def test_a_child_that_was_forked_meanwhile_does_not_keep_a_lock(tmp_path: Path) -> None:
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
