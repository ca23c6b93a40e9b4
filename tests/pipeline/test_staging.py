"""Where a conversion works."""

from __future__ import annotations

from pathlib import Path

import pytest

from inlay.pipeline.conversion import _create_directories
from inlay.storage import LocalStore, locate


def test_new_directories_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(LocalStore, "sync_directory", lambda _, path: synced.append(path))
    made = _create_directories(locate(str(tmp_path / "datasets" / "one")), ["v1", "v1/rejects"])
    assert made == [
        str(tmp_path / path) for path in ("datasets", "datasets/one", "datasets/one/v1", "datasets/one/v1/rejects")
    ]
    assert set(synced) == {str(Path(path).parent) for path in made}
