"""Service processes, their catalog and storage, and ways to make them fail."""

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
from tests.postgres import PostgresServer, find_programs, server_user
from tests.spark.cluster import DRIVER_CONF, kill_on_parent_exit, session_members, spark_environment, wait_until

TIMEOUT_SECONDS = 90.0
_FOLDERS = ("uploads", "datasets", "scratch")

# Short grace periods, so that tests see the deletion of files, and no reserve, so that small disks can be filled.
SETTINGS = {
    "INLAY_DISK_RESERVE_BYTES": "0",
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
    """The catalog, storage and Spark server of one or more services."""

    folder: Path
    spark: str
    catalog: str = ""
    storage: str = ""
    lease_seconds: float = 600.0  # longer than all timeouts: a dead service must release its leases immediately
    settings: Mapping[str, str] = field(default_factory=lambda: SETTINGS)

    def environment(self) -> dict[str, str]:
        locations = {"INLAY_DATA_DIR": str(self.folder / "data"), "INLAY_SPARK_MASTER": self.spark}
        locations |= {"INLAY_LEASE_SECONDS": str(self.lease_seconds)}
        if self.spark.startswith("local"):
            locations |= {"INLAY_SPARK_CONF": json.dumps(DRIVER_CONF)}
        urls = {"INLAY_CATALOG_URL": self.catalog, "INLAY_STORAGE_URL": self.storage}
        return {**self.settings} | locations | {name: value for name, value in urls.items() if value}

    def files(self) -> set[str]:
        """Return the addresses of all files in the storage, and all empty directories."""
        root = locate(self.storage or str(self.folder / "data"))
        found = {
            f"{name}/{file.path}" for name in _FOLDERS for file in root.store.walk(root.full(name), lambda _: True)
        }
        tree = (step for name in _FOLDERS for step in os.walk(f"{self.folder}/data/{name}/"))
        empty = {path for path, directories, files in tree if not directories and not files and path[-1] != "/"}
        return {self.address(path) for path in found} | empty

    def address(self, path: str) -> str:
        """Return the URL or path under which the service lists a file."""
        return f"{self.storage or self.folder / 'data'}/{path}"


@dataclass
class ServiceProcess:
    """A process of `inlay serve`, which uses the same port after a restart."""

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
                [*kill_on_parent_exit(), sys.executable, *self.program, "serve", "--port", str(self.port)],
                cwd=self.stand.folder,
                env=spark_environment() | self.stand.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_open(self) -> None:
        """Wait until the catalog and the storage are ready. Spark starts with the first work."""
        self._wait_until("catalog", "storage")

    def wait_until_ready(self) -> None:
        """Start Spark with an upload, and wait until it is ready."""
        self.wait_until_open()
        upload = httpx.post(f"{self.url}/v1/files", content=b"a\n1\n", timeout=TIMEOUT_SECONDS).raise_for_status()
        httpx.delete(f"{self.url}/v1/files/{upload.json()['id']}", timeout=TIMEOUT_SECONDS).raise_for_status()
        self._wait_until("catalog", "storage", "spark")

    def _wait_until(self, *required: str) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        parts: dict[str, str] = {}
        while True:
            with contextlib.suppress(httpx.TransportError):
                parts = httpx.get(f"{self.url}/readyz", timeout=TIMEOUT_SECONDS).json()["parts"]
                if all(parts.get(part) == "ready" for part in required):
                    return
            self._require_running()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} is not ready: {parts}\n{self.tail()}")
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
        """Kill the process with SIGKILL, and wait until its child processes have ended."""
        self.signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        pid = self.process.pid
        wait_until(lambda: not session_members(pid), 20, f"the child processes of {self.name} to end")

    def terminate(self, timeout: float) -> int:
        """Send SIGTERM and return the exit code."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(timeout)

    def end(self) -> None:
        """Kill the process if it is running."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @contextlib.contextmanager
    def opened(self) -> Iterator[ServiceProcess]:
        """Run the service inside the block. Spark may still be starting."""
        self.start()
        try:
            self.wait_until_open()
            yield self
        finally:
            self.end()

    @contextlib.contextmanager
    def serving(self) -> Iterator[ServiceProcess]:
        """Run the service inside the block, with Spark ready."""
        with self.opened():
            self.wait_until_ready()
            yield self

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]


@dataclass
class MortalPostgres:
    """A PostgreSQL server that tests crash and restart with the same data."""

    server: PostgresServer

    @classmethod
    def start(cls) -> MortalPostgres:
        programs = find_programs()
        assert programs is not None, "No PostgreSQL server found."
        return cls(PostgresServer.start(programs))

    def crash(self) -> None:
        # SIGQUIT stops the server without a checkpoint, so that a restart recovers from its log.
        self.server.process.send_signal(signal.SIGQUIT)
        self.server.process.wait(30)

    def come_back(self) -> None:
        crashed = self.server.process
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        with (self.server.directory / "log").open("ab") as log:
            self.server.process = subprocess.Popen(
                crashed.args, cwd=self.server.directory, env=environment, stdout=log, stderr=log, **server_user()
            )
        self.server._wait()

    def stop(self) -> None:
        if self.server.process.poll() is not None:
            self.come_back()
        self.server.stop()


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small filesystem, which only root may do."""
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
