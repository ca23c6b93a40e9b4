"""Directories beside datasets, and whose they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.parquet.sidecar import owner_of, sidecar
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
