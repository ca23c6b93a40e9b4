"""The list of changes that no test notices: it speaks of the code as it is, and gives each change one reason."""

from __future__ import annotations

import tomllib
from collections import Counter

from tests.mutants.run import _EXPLAINED, _changes_of


def test_every_explained_change_is_one_of_the_code() -> None:
    groups = tomllib.loads(_EXPLAINED.read_text())["group"]
    explained = Counter(name for group in groups for name in group["changes"])
    assert explained.most_common(1)[0][1] == 1
    assert all(group["reason"].endswith(".") for group in groups)
    changes = {
        change.name for module in ("inlay.incremental", "inlay.parquet.splice") for change in _changes_of(module)
    }
    assert explained.keys() - changes == set()
