"""A test that ends its worker process fails once, and all other tests run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

CONFTEST = """
from tests.scheduling import GroupScheduling

def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log, lambda nodeid: nodeid.partition("::")[0])
"""
TESTS = """
import os, pytest

@pytest.mark.parametrize("number", range(5))
def test_number(number):
    if number in {ends}:
        os._exit(1)
"""
PROJECT = Path(__file__).parents[1]


def test_a_test_that_ends_its_worker_runs_once(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_one.py").write_text(TESTS.format(ends=[]))
    (tmp_path / "test_two.py").write_text(TESTS.format(ends=[2, 4]))
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "xdist",
            "-n",
            "2",
            "--dist",
            "loadfile",
            "-c",
            os.devnull,
            str(tmp_path),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"\b2 failed, 8 passed\b", run.stdout), run.stdout
    assert len(re.findall(r"^FAILED .*test_two.py::test_number\[[24]\]", run.stdout, re.MULTILINE)) == 2
