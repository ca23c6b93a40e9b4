"""The processes that answer queries: started when needed, kept while they are well, killed when they are not."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Lock
from typing import Any

from inlay.errors import QueryBusyError, QueryCancelledError, QueryError, QueryFailedError, QueryTimeoutError
from inlay.query.messages import died

__all__ = ["Patience", "Pool", "Worker", "WorkerSettings"]

_LOG = logging.getLogger(__name__)
_START_SECONDS = 120.0
_IDLE_SECONDS = 60.0
_QUERIES_PER_WORKER = 1000
_BASE_MEMORY = 384 << 20  # the interpreter, the libraries, the threads
_LOOK_SECONDS = 0.05
_CLAIMS = 10
# Memory that is only reserved must not count as used, since what counts is limited.
_ENVIRONMENT = {
    "MIMALLOC_ARENA_EAGER_COMMIT": "0",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RUST_BACKTRACE": "0",
    "TZ": "UTC",
}
_INHERITED = ("PATH", "HOME", "LD_LIBRARY_PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True)
class WorkerSettings:
    memory: int  # of the operators that account for theirs
    spill: int
    threads: int
    s3: dict[str, Any]

    @property
    def process_memory(self) -> int:
        return self.memory + self.memory // 2 + _BASE_MEMORY


class Patience:
    """How long somebody waits, and whether they still do."""

    def __init__(self, seconds: float, cancel: Event | None = None) -> None:
        self.seconds = seconds
        self.cancel = cancel
        self._deadline = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds to wait before looking again; raises when it is over."""
        if self.cancel is not None and self.cancel.is_set():
            raise QueryCancelledError("The query was cancelled.")
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise QueryTimeoutError(
                f"The query took longer than {self.seconds:g} seconds and was stopped.",
                hint="Filter earlier or aggregate in steps; INLAY_QUERY_TIMEOUT_SECONDS allows more.",
            )
        return left if self.cancel is None else min(left, _LOOK_SECONDS)


class Worker:
    """One process, owned by one query at a time."""

    def __init__(self, settings: WorkerSettings, directory: str) -> None:
        self.idle_since = time.monotonic()
        self._directory = tempfile.mkdtemp(prefix="worker-", dir=directory)
        self.result_path = os.path.join(self._directory, "result.arrow")
        self._output = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  # closed in `end`
        self._spare_memory = settings.memory // 2 + _BASE_MEMORY
        self._answered = 0
        self._is_ready = False
        self._owes_answer = False
        self._connection, self._process = self._start()
        limits = asdict(settings) | {"process_memory": settings.process_memory, "directory": self._directory}
        self._send(limits)

    def _start(self) -> tuple[Connection, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: S603  # our own module
                [sys.executable, "-P", "-m", "inlay.query.worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,  # never written to: when it closes, the owner is gone
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                pass_fds=[theirs.fileno()],
                env=_environment(self._directory),
                cwd=self._directory,
                start_new_session=True,
            )
        return Connection(ours.detach()), process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_well(self) -> bool:
        """Whether it may answer another query."""
        return not self._owes_answer and self._answered < _QUERIES_PER_WORKER and self._memory() < self._spare_memory

    def wait_until_ready(self, cancel: Event | None) -> None:
        """Its imports take no query's time."""
        if not self._is_ready:
            self._owes_answer = True
            self._receive(Patience(_START_SECONDS, cancel))
            self._is_ready, self._owes_answer = True, False

    def exchange(self, message: Mapping[str, Any] | None, patience: Patience) -> dict[str, Any]:
        """Send a request, or the answer to a question; returns a question or the reply."""
        self._owes_answer = True
        self._send(message)
        reply = self._receive(patience)
        if "find" not in reply:
            self._owes_answer = False
            self._answered += 1
        return reply

    def _send(self, message: Mapping[str, Any] | None) -> None:
        with contextlib.suppress(ConnectionError):  # it has ended: receiving says how
            self._connection.send_bytes(json.dumps(message).encode())

    def _receive(self, patience: Patience) -> dict[str, Any]:
        try:
            while not self._connection.poll(patience.left()):
                pass
            reply: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._how_it_ended() from None
        return reply

    def _how_it_ended(self) -> QueryError:
        code = self._process.wait()
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 10_000))
        output = self._output.read().decode("utf-8", "replace")
        _LOG.warning("A query process ended with code %d: %s", code, output)
        return died(output, -code)

    def _memory(self) -> int:
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        """Kill it and remove what it left."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._connection.close()
        self._output.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class Turns:
    """Lets a number of threads in at a time, in the order in which they came."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[Event] = deque()
        self._lock = Lock()

    def take(self, patience: Patience) -> None:
        turn = Event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._waiting.append(turn)
        try:
            while not turn.wait(patience.left()):
                pass
        except BaseException:
            self._leave(turn)
            raise

    def _leave(self, turn: Event) -> None:
        with self._lock:
            if not turn.is_set():
                self._waiting.remove(turn)
                return
        self.give()  # it was called just now

    def give(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class Pool:
    """At most `size` workers; idle ones are reused, the last used first."""

    def __init__(self, settings: WorkerSettings, spill_dir: str, size: int) -> None:
        self._settings = settings
        self._size = size
        self._turns = Turns(size)
        self._idle: deque[Worker] = deque()
        self._lock = Lock()
        self._is_closed = False
        self._directory, self._owner = _claim_directory(spill_dir)

    def warm(self) -> None:
        with self._lock:
            if not self._idle and not self._is_closed:
                self._idle.append(Worker(self._settings, self._directory))

    @contextlib.contextmanager
    def worker(self, patience: Patience) -> Iterator[Worker]:
        self._take_turn(patience)
        try:
            worker = self._take()
            try:
                worker.wait_until_ready(patience.cancel)
                yield worker
            finally:
                self._put_back(worker)
        finally:
            self._turns.give()

    def _take_turn(self, patience: Patience) -> None:
        try:
            self._turns.take(patience)
        except QueryTimeoutError:
            raise QueryBusyError(
                f"{self._size} queries are being answered already, and none ended within {patience.seconds:g} seconds.",
                hint="Try again later.",
            ) from None

    def _take(self) -> Worker:
        with self._lock:
            if self._is_closed:
                raise QueryFailedError("The query engine is closed.")
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    return worker
                worker.end()
        return Worker(self._settings, self._directory)

    def _put_back(self, worker: Worker) -> None:
        ended = []
        with self._lock:
            if self._is_closed or not worker.is_well:
                ended.append(worker)
            else:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
            while len(self._idle) > 1 and self._idle[0].idle_since < time.monotonic() - _IDLE_SECONDS:
                ended.append(self._idle.popleft())
        for one in ended:
            one.end()
        if worker in ended:
            self.warm()  # somebody may be waiting for it

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            workers, self._idle = list(self._idle), deque()
        for worker in workers:
            worker.end()
        os.close(self._owner)
        shutil.rmtree(self._directory, ignore_errors=True)


def _environment(directory: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name in _INHERITED or name.startswith("AWS_")}
    return inherited | _ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TMPDIR": directory}


def _claim_directory(spill_dir: str) -> tuple[str, int]:
    """A directory of this engine's own, and the lock that says so; those of dead engines are removed."""
    os.makedirs(spill_dir, exist_ok=True)
    for other in Path(spill_dir).glob("query-*"):
        if (lock := _lock(other)) is not None:
            shutil.rmtree(other, ignore_errors=True)
            os.close(lock)
    for _ in range(_CLAIMS):
        directory = tempfile.mkdtemp(prefix="query-", dir=spill_dir)
        if (lock := _lock(Path(directory))) is not None:
            return directory, lock  # otherwise an engine that began just now took it for a dead one's
    raise QueryFailedError(f"No directory below {spill_dir!r} can be locked.")


def _lock(directory: Path) -> int | None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
