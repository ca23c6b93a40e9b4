"""Real services in processes of their own, what they stand on, and the ways in which that is taken away from them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from inlay.storage import locate
from tests.postgres import PostgresServer, _identity, find_programs
from tests.spark.cluster import DRIVER_CONF, _dies_with_us, session_members, spark_environment, wait_until

PATIENCE = 90.0
_TOPS = ("uploads", "datasets", "scratch")

# Short graces, so that what is to go can be seen to go.
SETTINGS = {
    "INLAY_DELETE_GRACE_SECONDS": "1",
    "INLAY_ORPHAN_GRACE_SECONDS": "3",
    "INLAY_KEEP_VERSIONS": "4",
    "INLAY_KEEP_DAYS": "0",
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass(frozen=True)
class Stand:
    """A catalog and a storage, and where Spark is."""

    folder: Path
    spark: str
    catalog: str = ""
    storage: str = ""
    lease_seconds: float = 600.0  # longer than any patience: what the dead held must be free at once
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)

    def environment(self) -> dict[str, str]:
        places = {"INLAY_DATA_DIR": str(self.folder / "data"), "INLAY_SPARK_MASTER": self.spark}
        places |= {"INLAY_LEASE_SECONDS": str(self.lease_seconds)}
        if self.spark.startswith("local"):
            places |= {"INLAY_SPARK_CONF": json.dumps(DRIVER_CONF)}
        named = {"INLAY_CATALOG_URL": self.catalog, "INLAY_STORAGE_URL": self.storage}
        return {**self.settings} | places | {name: value for name, value in named.items() if value}

    def files(self) -> set[str]:
        """Every file in the storage, by the address that the service would give it; and directories that hold none."""
        root = locate(self.storage or str(self.folder / "data"))
        found = {f"{top}/{file.path}" for top in _TOPS for file in root.store.walk(root.full(top), lambda _: True)}
        below = (step for top in _TOPS for step in os.walk(f"{self.folder}/data/{top}/"))
        empty = {path for path, directories, files in below if not directories and not files and path[-1] != "/"}
        return {self.address(path) for path in found} | empty

    def address(self, path: str) -> str:
        return f"{self.storage or self.folder / 'data'}/{path}"


@dataclass
class ServiceProcess:
    """`inlay serve`, on the same port whenever it is started."""

    stand: Stand
    name: str = "service"
    port: int = field(default_factory=free_port)
    program: tuple[str, ...] = ("-m", "inlay")
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.stand.folder / f"{self.name}.log"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*_dies_with_us(), sys.executable, *self.program, "serve", "--port", str(self.port)],
                cwd=self.stand.folder,
                env=spark_environment() | self.stand.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_open(self) -> None:
        """Until it has its catalog and its storage. Whoever needs Spark waits for it there."""
        self._wait_until("catalog", "storage")

    def wait_until_ready(self) -> None:
        self._wait_until("catalog", "storage", "spark")

    def _wait_until(self, *wanted: str) -> None:
        """What it lacks is told if that takes too long."""
        deadline = time.monotonic() + PATIENCE
        told: dict[str, str] = {}
        while True:
            with contextlib.suppress(httpx.TransportError):
                told = httpx.get(f"{self.url}/readyz", timeout=PATIENCE).json()["parts"]
                if all(told.get(part) == "ready" for part in wanted):
                    return
            self._require_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is not ready: {told}\n{self.tail()}")
            time.sleep(0.05)

    def _require_running(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}\n{self.tail()}")

    def signal(self, number: signal.Signals) -> None:
        self._require_running()
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it without a warning. Whatever it started ends by itself, soon."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        pid = self.process.pid
        wait_until(lambda: not session_members(pid), 20, f"the end of what {self.name} had started")

    def terminate(self, patience: float) -> int:
        """Ask it to end; its exit code."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(patience)

    def end(self) -> None:
        """Whatever state it is in."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @contextlib.contextmanager
    def opened(self) -> Iterator[ServiceProcess]:
        """It runs while the block runs, and whoever needs Spark waits for it there."""
        self.start()
        try:
            self.wait_until_open()
            yield self
        finally:
            self.end()

    @contextlib.contextmanager
    def serving(self) -> Iterator[ServiceProcess]:
        """It runs and is ready while the block runs."""
        with self.opened():
            self.wait_until_ready()
            yield self

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]


@dataclass
class MortalPostgres:
    """A PostgreSQL server that crashes and comes back with what it had."""

    server: PostgresServer

    @classmethod
    def start(cls) -> MortalPostgres:
        programs = find_programs()
        assert programs is not None, "No PostgreSQL that can be run."
        return cls(PostgresServer.start(programs))

    def crash(self) -> None:
        self.server.process.send_signal(signal.SIGQUIT)  # no checkpoint, no farewell: it recovers from its log
        self.server.process.wait(30)

    def come_back(self) -> None:
        before = self.server.process
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        with (self.server.directory / "log").open("ab") as log:
            self.server.process = subprocess.Popen(
                before.args, cwd=self.server.directory, env=environment, stdout=log, stderr=log, **_identity()
            )
        self.server._wait()

    def stop(self) -> None:
        if self.server.process.poll() is not None:
            self.come_back()
        self.server.stop()


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A filesystem that is soon full. Only root may mount one."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        raise PermissionError(os.fsdecode(mounted.stderr).strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
