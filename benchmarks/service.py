"""A running service with default settings, for benchmarks that send requests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).resolve().parent.parent


class Service(NamedTuple):
    client: httpx.Client
    pid: int
    answered_after: float  # seconds from start to the first response of /healthz


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Service]:
    """Run a service with default settings, and stop it at the end of the block."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "inlay", "serve", "--port", str(port), "--data-dir", str(folder)]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        try:
            limits = httpx.Limits(max_connections=64)
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300, limits=limits) as client:
                _wait(lambda: client.get("/healthz").status_code == 200)
                answered = time.perf_counter() - start
                _wait(lambda: client.get("/readyz").status_code == 200)
                yield Service(client, process.pid, answered)
        finally:
            process.terminate()


def _wait(ready: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.TransportError):
            if ready():
                return
        if time.monotonic() > deadline:
            raise TimeoutError("the service is not ready")
        time.sleep(0.05)
