"""Tests of mounting the page on the service's application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPEN = """
import sys
from starlette.testclient import TestClient
from inlay.server import create_app
from inlay.settings import Settings
from inlay.web.mount import mount

app = create_app(Settings(data_dir=sys.argv[1]))
mount(app)
with TestClient(app, base_url="http://127.0.0.1") as client:
    print(client.get("/favicon.ico").status_code)
"""

# a tuple that another thread is building must not be seen
NO_LOOK = """
import gc

def look(*_):
    raise AssertionError("looked through the objects of the process")

gc.get_objects = gc.get_referrers = look
"""

# as where /dev/shm may not be written to
NO_SHARED_MEMORY = """
import errno
import multiprocessing.synchronize

def refused(*_):
    raise PermissionError(errno.EACCES, "Permission denied")

multiprocessing.synchronize._multiprocessing.SemLock = refused
"""


@pytest.mark.parametrize("without", [NO_LOOK, NO_SHARED_MEMORY], ids=["looking around", "shared memory"])
def test_page_opens_without_optional_parts(without: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", without + OPEN, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "200"), done.stderr
