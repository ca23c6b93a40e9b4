"""Trials of changes in forks of a pytest process, with a small project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

_CODE = """
def step(a):
    while a > 0:
        a -= 1
    return a

def unused():
    return 3
"""
_TESTS = """
import pytest
from counted import step

def test_zero():
    assert step(0) == 0

@pytest.mark.parametrize("start", [1, 5])
def test_more(start, tmp_path):
    (tmp_path / "made").mkdir()
    assert step(start) == 0
"""


def _run_trials(folder: Path, trials: dict[str, list[str]], *options: str) -> dict[str, dict[str, Any]]:
    (folder / "counted.py").write_text(textwrap.dedent(_CODE))
    (folder / "test_counted.py").write_text(textwrap.dedent(_TESTS))
    listed = [{"name": name, "tests": [f"test_counted.py::{each}" for each in tests], "limit": 3.0}
              for name, tests in trials.items()]  # fmt: skip
    (folder / "trials").write_text("".join(json.dumps(each) + "\n" for each in listed))
    subprocess.run(
        [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.forks",
            "--rootdir", folder, "--basetemp", folder / "forks", "--trials", folder / "trials",
            "--outcomes", folder / "outcomes", *options, folder,
        ],
        cwd=folder, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), os.getcwd()])},
    )  # fmt: skip
    outcomes = [json.loads(line) for line in (folder / "outcomes").read_text().splitlines()]
    return {each["name"].split("/", 1)[-1]: each for each in outcomes}


def test_changes_are_noticed_by_their_tests(tmp_path: Path) -> None:
    own = f"{tmp_path.name}/counted.step: "
    outcomes = _run_trials(
        tmp_path,
        {
            own + "a >[ -> =] 0": ["test_zero"],
            own + "a [- -> +]= 1": ["test_more[1]"],
            own + "a > [0 -> 1]": ["test_zero", "test_more[5]"],
            own + "[1 -> 2]": ["test_zero"],
            own + "return [a -> None]": ["test_zero", "test_more[1]"],
        },
        "--changed=counted",
    )
    assert {name: outcome["outcome"] for name, outcome in outcomes.items()} == {
        "counted.step: a >[ -> =] 0": "noticed",
        "counted.step: a [- -> +]= 1": "too slow",
        "counted.step: a > [0 -> 1]": "noticed",
        "counted.step: [1 -> 2]": "not noticed",
        "counted.step: return [a -> None]": "noticed",
    }
    assert outcomes["counted.step: a > [0 -> 1]"]["by"] == "test_counted.py::test_more[5]"
    assert list((tmp_path / "forks").iterdir()) == []


def test_unchanged_code_passes_and_leaves_no_files(tmp_path: Path) -> None:
    (outcome,) = _run_trials(tmp_path, {"nothing changed": ["test_zero", "test_more[1]", "test_more[5]"]}).values()
    assert outcome["outcome"] == "not noticed"
    assert list((tmp_path / "forks").iterdir()) == []


def test_unknown_change_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        _run_trials(tmp_path, {"counted.step: a > [0 -> 7]": ["test_zero"]}, "--changed=counted")
