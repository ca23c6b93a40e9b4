"""Real Spark processes on loopback: a standalone cluster, a Connect server, drivers.

Every process starts in a new session (setsid), so that all its children, such as executors and Python workers, can be
found and ended by pid. The kernel ends them too when the test process dies.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inlay.engines.spark.conf import spark_java_home
from inlay.engines.spark.session import current_session, get_session
from tests.spark import class_archive

C1 = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # starts in half the CPU time, but long scans are much slower
JAVA_OPTIONS = f"{C1} {class_archive.java_options()}".strip()
_SPARK = importlib.util.find_spec("pyspark")  # not imported, because every test process imports this file
assert _SPARK is not None
assert _SPARK.origin is not None
SPARK_HOME = Path(_SPARK.origin).parent
START_SECONDS = 90

# Settings of all drivers in tests.
DRIVER_CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


PROJECT = Path(__file__).parents[2]


def local_session() -> Any:
    """Return the session of this test process."""
    os.environ.setdefault("INLAY_SPARK_CONF", json.dumps(DRIVER_CONF))
    with contextlib.chdir(PROJECT):  # Workers import functions of tests from here, wherever the first test runs.
        return current_session() or get_session("local[2]")


def local_connect_url() -> str:
    """Start Spark Connect in the session of this process, and return its URL."""
    spark = local_session()
    service = getattr(getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$"), "MODULE$")
    service.start(spark._jsc.sc())  # a second call has no effect
    return f"sc://127.0.0.1:{service.localPort()}"


@dataclass(frozen=True)
class Cluster:
    """A standalone cluster. `workers` are the pids of its Worker daemons."""

    master: str
    master_pid: int
    workers: list[int]
    logs: Path

    def executors(self) -> dict[int, int]:
        """Map the pid of each running executor to the pid of its Worker."""
        backends = {p.pid: p for p in processes() if "CoarseGrainedExecutorBackend" in p.command}
        return {pid: p.session for pid, p in backends.items() if p.session in self.workers}

    def wait_for_executors(self, count: int, seconds: float = START_SECONDS) -> dict[int, int]:
        wait_until(lambda: len(self.executors()) >= count, seconds, f"{count} executors")
        return self.executors()


@dataclass(frozen=True)
class ConnectServer:
    url: str
    pid: int
    logs: Path


@contextlib.contextmanager
def standalone_cluster(workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[Cluster]:
    """Start a master and its workers, and wait until they are registered."""
    with _Processes("cluster") as run:
        daemon = {
            "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_HOST": "127.0.0.1",
        }
        package = "org.apache.spark.deploy"
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        master = run.start("master", ["spark-class", f"{package}.master.Master", *options], daemon)
        url = run.wait_for_line("master", r"Starting Spark master at (spark://\S+)").group(1)
        pids = []
        for number in range(workers):
            name = f"worker-{number}"
            size = ["-c", str(cores), "-m", memory, "-d", str(run.folder / name)]
            pids.append(run.start(name, ["spark-class", f"{package}.worker.Worker", *options, *size, url], daemon))
        for number in range(workers):
            run.wait_for_line(f"worker-{number}", r"Successfully registered with master")
        yield Cluster(url, master, pids, run.folder)


@contextlib.contextmanager
def connect_server(
    master: str = "local[2]", conf: dict[str, str] | None = None, **environment: str
) -> Iterator[ConnectServer]:
    """Start a Spark Connect server, and wait until it accepts connections."""
    settings = DRIVER_CONF | {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.python.daemon.module": "inlay.engines.spark.inlay_daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.ui.enabled": "false",
        **(conf or {}),
    }
    options = [argument for key, value in settings.items() for argument in ("--conf", f"{key}={value}")]
    service = "org.apache.spark.sql.connect.service.SparkConnectServer"
    with _Processes("connect") as run:
        pid = run.start("server", ["spark-submit", "--master", master, "--class", service, *options], environment)
        address = run.wait_for_line("server", r"Spark Connect server started at: \S*?:(\d+)")
        yield ConnectServer(f"sc://127.0.0.1:{address.group(1)}", pid, run.folder)


def spark_environment(*, java: bool = True, **changes: str) -> dict[str, str]:
    """Return an environment for Spark processes: loopback, this Python, no user settings."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "INLAY_"))
    }
    environment.pop("JAVA_HOME", None)
    if java and (home := spark_java_home(os.environ)) is not None:
        environment["JAVA_HOME"] = home
    loopback = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_PUBLIC_DNS": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return environment | loopback | changes


def start_driver(
    script: str, *arguments: str, folder: Path, java: bool = True, **environment: str
) -> subprocess.Popen[str]:
    """Start a Python script in a new process, because this process has a Spark session."""
    settings = {"INLAY_SPARK_CONF": json.dumps(DRIVER_CONF), **environment}
    return subprocess.Popen(
        [*kill_on_parent_exit(), sys.executable, "-c", script, *arguments],
        cwd=folder,
        env=spark_environment(java=java) | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_driver(
    script: str, *arguments: str, folder: Path, seconds: float = 120, java: bool = True, **environment: str
) -> Any:
    """Run a script, return the JSON of its last line, and end all its processes."""
    process = start_driver(script, *arguments, folder=folder, java=java, **environment)
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        end_session(process.pid)
        process.wait()
    assert process.returncode == 0, f"driver ended with {process.returncode}\n{out}\n{without_stacks(err)[-4000:]}"
    return json.loads(out.strip().splitlines()[-1])


def without_stacks(text: str) -> str:
    """Remove Java's stack traces, which hide the message."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("at "))


def python_without_inlay(folder: Path) -> str:
    """Write a command that runs this Python without inlay (-S skips its .pth file)."""
    packages = sysconfig.get_path("purelib")
    command = folder / "python"
    python = shlex.quote(sys.executable)
    command.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH":{shlex.quote(packages)} exec {python} -S "$@"\n')
    command.chmod(0o755)
    return str(command)


@dataclass(frozen=True)
class Process:
    pid: int
    session: int
    command: str


def processes() -> list[Process]:
    """List all running processes, without zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                command = (entry / "cmdline").read_text(errors="replace").replace("\0", " ")
                if state != "Z":
                    found.append(Process(int(entry.name), int(session), command))
    return found


def session_members(session: int) -> list[Process]:
    return [process for process in processes() if process.session == session]


def end_session(session: int) -> None:
    """Kill all processes of a session, twice to include processes that started meanwhile."""
    for _ in range(2):
        for process in session_members(session):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: not session_members(session), 5, f"the end of session {session}")


def wait_until(condition: Callable[[], object], seconds: float, description: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {description}")
        time.sleep(0.05)


def listening_addresses(session: int) -> set[str]:
    """Return the addresses, in the format of /proc/net, on which a session listens."""
    inodes = set()
    for process in session_members(session):
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes |= set(re.findall(r"^socket:\[(\d+)\]$", os.readlink(link)))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].split(":")[0])
    return found


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


@dataclass
class _Processes:
    """The processes of a cluster, their logs and their folder."""

    name: str
    folder: Path = field(init=False)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> _Processes:
        self.folder = Path(tempfile.mkdtemp(prefix=f"inlay-{self.name}-"))
        _active.append(self)
        return self

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> int:
        program, *arguments = command
        with open(self._log(name), "wb") as log:
            self.running[name] = subprocess.Popen(
                [*kill_on_parent_exit(), str(SPARK_HOME / "bin" / program), *arguments],
                cwd=self.folder,
                env=spark_environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.running[name].pid

    def wait_for_line(self, name: str, pattern: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def search() -> bool:
            if match := re.search(pattern, self._log(name).read_text(errors="replace")):
                found.append(match)
            elif self.running[name].poll() is not None:
                raise RuntimeError(f"{name} ended with {self.running[name].returncode}")
            return bool(found)

        wait_until(search, START_SECONDS, f"{pattern!r} from {name}")
        return found[0]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for process in reversed(self.running.values()):
            end_session(process.pid)
            process.wait()
        _active.remove(self)
        if kind is not None:
            print(self.tails(), file=sys.stderr)
        shutil.rmtree(self.folder, ignore_errors=True)

    def tails(self) -> str:
        logs = {name: without_stacks(self._log(name).read_text(errors="replace"))[-6000:] for name in self.running}
        return "\n".join(f"----- {name}\n{text}" for name, text in logs.items())

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


_active: list[_Processes] = []


def logs_of_running() -> str:
    """Return the last lines of all logs, for the report of a failed test."""
    return "\n".join(run.tails() for run in _active)


def kill_on_parent_exit() -> list[str]:
    """Return a command prefix that makes the kernel kill the command when this process ends."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
