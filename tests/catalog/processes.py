"""Starts worker processes, releases them at the same moment, and ends them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
Worker = subprocess.Popen[str]


@contextmanager
def worker(command: str, url: str, *arguments: str) -> Iterator[Worker]:
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.catalog.worker", command, url, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def read(process: Worker) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go(process: Worker) -> None:
    stdin: IO[str] | None = process.stdin
    assert stdin is not None
    stdin.write("go\n")
    stdin.flush()
