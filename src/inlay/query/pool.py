"""The pool of worker processes that run queries."""

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
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Lock
from typing import Any

from inlay.errors import QueryBusyError, QueryCancelledError, QueryError, QueryFailedError, QueryTimeoutError
from inlay.query.disk import is_low, make_directory
from inlay.query.sql import worker_error

__all__ = ["Deadline", "Pool", "Worker", "WorkerSettings"]

_LOG = logging.getLogger(__name__)
_START_SECONDS = 120.0
_IDLE_SECONDS = 60.0
_QUERIES_PER_WORKER = 1000
_BASE_MEMORY = 384 << 20  # for the interpreter, libraries and threads
_POLL_SECONDS = 0.05
_CLAIM_ATTEMPTS = 10
# Allocators must not reserve memory, because reserved memory counts toward the limit of the process.
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
    """The limits of a worker process, and its S3 settings."""

    memory: int  # for query operators, which DataFusion accounts for
    spill: int
    threads: int
    s3: dict[str, Any]
    disk_reserve: int = 0  # free space below which queries use no disk

    @property
    def process_memory(self) -> int:
        return self.memory + self.memory // 2 + _BASE_MEMORY


class Deadline:
    """The time limit of a query, and the event that cancels it."""

    def __init__(self, seconds: float, cancel: Event | None = None) -> None:
        self.seconds = seconds
        self.cancel = cancel
        self._deadline = time.monotonic() + seconds

    def wait_seconds(self) -> float:
        """Return how long to wait before the next check. Raise if the query must stop."""
        if self.cancel is not None and self.cancel.is_set():
            raise QueryCancelledError("The query was canceled.")
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise QueryTimeoutError(
                f"The query took longer than {self.seconds:g} seconds and was stopped.",
                hint="Filter earlier, aggregate in steps, or increase INLAY_QUERY_TIMEOUT_SECONDS.",
            )
        return left if self.cancel is None else min(left, _POLL_SECONDS)


class Worker:
    """A worker process. It runs one query at a time."""

    def __init__(self, settings: WorkerSettings, directory: str) -> None:
        self.idle_since = time.monotonic()
        self._directory = make_directory(directory)
        self.result_path = os.path.join(self._directory, "result.arrow")
        self._output = open(os.memfd_create("inlay-worker"), "w+b")  # noqa: SIM115  # closed in `end`
        self._spare_memory = settings.memory // 2 + _BASE_MEMORY
        self._disk = directory, settings.disk_reserve
        self._queries = 0
        self._is_ready = False
        self._is_busy = False
        self._connection, self._process = self._start()
        limits = asdict(settings) | {"process_memory": settings.process_memory, "directory": self._directory}
        self._send(limits)

    def _start(self) -> tuple[Connection, subprocess.Popen[bytes]]:
        own_end, worker_end = socket.socketpair()
        with worker_end:
            process = subprocess.Popen(  # noqa: S603  # a module of inlay
                [sys.executable, "-P", "-m", "inlay.query.worker", str(worker_end.fileno())],
                stdin=subprocess.PIPE,  # closes when this process ends, which ends the worker
                stdout=subprocess.DEVNULL,
                stderr=self._output,
                pass_fds=[worker_end.fileno()],
                env=_environment(self._directory),
                cwd=self._directory,
                start_new_session=True,
            )
        return Connection(own_end.detach()), process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_healthy(self) -> bool:
        """Return whether the worker can run another query."""
        return not self._is_busy and self._queries < _QUERIES_PER_WORKER and self._memory() < self._spare_memory

    @property
    def is_disk_low(self) -> bool:
        return is_low(*self._disk)

    def wait_until_ready(self, cancel: Event | None) -> None:
        """Wait for the worker's imports, which do not count toward the timeout of a query."""
        if not self._is_ready:
            self._is_busy = True
            self._receive(Deadline(_START_SECONDS, cancel))
            self._is_ready, self._is_busy = True, False

    def exchange(self, message: Any, deadline: Deadline) -> dict[str, Any]:
        """Send a query or tables. Return the worker's reply, or its request for tables (`find`)."""
        self._is_busy = True
        self._send(message)
        reply = self._receive(deadline)
        if "find" not in reply:
            self._is_busy = False
            self._queries += 1
        return reply

    def _send(self, message: Any) -> None:
        with contextlib.suppress(ConnectionError):  # `_receive` reports that the worker ended
            self._connection.send_bytes(json.dumps(message).encode())

    def _receive(self, deadline: Deadline) -> dict[str, Any]:
        try:
            while not self._connection.poll(deadline.wait_seconds()):
                pass
            reply: dict[str, Any] = json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            raise self._exit_error() from None
        return reply

    def _exit_error(self) -> QueryError:
        code = self._process.wait()
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 10_000))
        output = self._output.read().decode("utf-8", "replace")
        _LOG.warning("a query worker exited with code %d", code)  # its output can contain text of the query
        return worker_error(output, -code)

    def _memory(self) -> int:
        with open(f"/proc/{self.pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def end(self) -> None:
        """Kill the process and delete its directory."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._connection.close()
        self._output.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class FairSemaphore:
    """A semaphore that threads acquire in the order of their requests."""

    def __init__(self, value: int) -> None:
        self._free = value
        self._waiting: deque[Event] = deque()
        self._lock = Lock()

    def acquire(self, deadline: Deadline) -> None:
        acquired = Event()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            self._waiting.append(acquired)
        try:
            while not acquired.wait(deadline.wait_seconds()):
                pass
        except BaseException:
            self._give_up(acquired)
            raise

    def _give_up(self, acquired: Event) -> None:
        with self._lock:
            if not acquired.is_set():
                self._waiting.remove(acquired)
                return
        self.release()

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class Pool:
    """At most `size` workers. The idle worker that was used last is reused first."""

    def __init__(self, settings: WorkerSettings, spill_dir: str, size: int) -> None:
        self._settings = settings
        self._size = size
        self._slots = FairSemaphore(size)
        self._idle: deque[Worker] = deque()
        self._lock = Lock()
        self._is_closed = False
        self._directory, self._owner = _claim_directory(spill_dir)

    def warm(self) -> None:
        with self._lock:
            if not self._idle and not self._is_closed:
                self._idle.append(Worker(self._settings, self._directory))

    @contextlib.contextmanager
    def worker(self, deadline: Deadline) -> Iterator[Worker]:
        self._acquire_slot(deadline)
        try:
            worker = self._take()
            try:
                worker.wait_until_ready(deadline.cancel)
                yield worker
            finally:
                self._put_back(worker)
        finally:
            self._slots.release()

    def _acquire_slot(self, deadline: Deadline) -> None:
        try:
            self._slots.acquire(deadline)
        except QueryTimeoutError:
            raise QueryBusyError(
                f"{self._size} queries are running, and none ended within {deadline.seconds:g} seconds.",
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
            if self._is_closed or not worker.is_healthy:
                ended.append(worker)
            else:
                worker.idle_since = time.monotonic()
                self._idle.append(worker)
            while len(self._idle) > 1 and self._idle[0].idle_since < time.monotonic() - _IDLE_SECONDS:
                ended.append(self._idle.popleft())
        for each in ended:
            each.end()
        if worker in ended:
            self.warm()  # for a query that waits

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
    """Create and lock a directory for this engine. Delete the directories of engines that have ended."""
    os.makedirs(spill_dir, exist_ok=True)
    for other in Path(spill_dir).glob("query-*"):
        if (lock := _lock(other)) is not None:
            shutil.rmtree(other, ignore_errors=True)
            os.close(lock)
    for _ in range(_CLAIM_ATTEMPTS):
        directory = tempfile.mkdtemp(prefix="query-", dir=spill_dir)
        if (lock := _lock(Path(directory))) is not None:
            return directory, lock  # otherwise another engine that starts now is deleting the directory
    raise QueryFailedError(
        f"Cannot lock a directory in {spill_dir!r}.", hint="Check the permissions and the filesystem of this directory."
    )


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
