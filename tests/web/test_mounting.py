"""The page on the service's application."""

from __future__ import annotations

import subprocess
import sys

OPEN = """
import gc

def look(*_):
    raise AssertionError("a tuple that another thread is building must not be seen")

gc.get_objects = gc.get_referrers = look

from fastapi import FastAPI
from starlette.testclient import TestClient
from inlay.web.mounting import mount

app = FastAPI()
app.state.service = None
mount(app)
with TestClient(app) as client:
    print(client.get("/favicon.ico").status_code)
"""


def test_opening_leaves_the_objects_of_other_threads_alone() -> None:
    told = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, timeout=120, check=False)
    assert (told.returncode, told.stdout.strip()) == (0, "200"), told.stderr
