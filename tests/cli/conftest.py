"""A fixture that runs `inlay` in this process and captures its output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from inlay.cli import run
from tests.cli.answer import Answer


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: str | Path, code: int = 0) -> Answer:
        capfd.readouterr()
        found = run([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert found == code, out + err
        assert "Traceback" not in err
        return Answer(found, out, err)

    return call
