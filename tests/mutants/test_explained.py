"""explained.toml: each entry is a change of the current code and has one reason."""

from __future__ import annotations

import tomllib
from collections import Counter

from tests.mutants.run import _EXPLAINED, _changes_of


def test_every_explained_change_exists() -> None:
    groups = tomllib.loads(_EXPLAINED.read_text())["group"]
    explained = Counter(name for group in groups for name in group["changes"])
    assert explained.most_common(1)[0][1] == 1
    assert all(group["reason"].endswith(".") for group in groups)
    modules = ("inlay.incremental", "inlay.commit", "inlay.parquet.splice")
    changes = {change.name for module in modules for change in _changes_of(module)}
    assert explained.keys() - changes == set()
