"""The pool of worker processes that run queries."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import math
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Condition, Thread, current_thread
from typing import Any, NamedTuple

import orjson

from inlay.errors import QueryBusyError, QueryError, QueryFailedError, QueryTimeoutError
from inlay.query.deadlines import Deadline
from inlay.query.disk import make_directory
from inlay.query.sql import worker_error
from inlay.query.steps import Readable, Steps, run_in_thread

__all__ = ["Pool", "Reply", "Worker", "WorkerSettings"]

_LOG = logging.getLogger(__name__)
_START_SECONDS = 120.0
_IDLE_SECONDS = 60.0
_QUERIES_PER_WORKER = 20_000
_LONG_SECONDS = 0.2  # a worker whose query runs longer is not available for short queries
_SIZE = struct.Struct("!i")  # of a message, as in multiprocessing.connection, which workers use
_BLOCK_BYTES = 1 << 20
_BASE_MEMORY = 384 << 20  # for the interpreter, libraries and threads
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


class Reply(NamedTuple):
    """A message of a worker: its fields, and the encoded rows of a result."""

    fields: dict[str, Any]
    body: bytes


class Worker:
    """A worker process. It runs one query at a time."""

    def __init__(self, settings: WorkerSettings, directory: str) -> None:
        self.idle_since = time.monotonic()
        self._directory = make_directory(directory)
        self.result_path = os.path.join(self._directory, "result.arrow")
        self._output = open(os.memfd_create("inlay-worker"), "w+b")  # noqa: SIM115  # closed in `end`
        self._spare_memory = settings.memory // 2 + _BASE_MEMORY
        self._queries = 0
        self._is_busy = False
        self._unread = b""
        self._socket, self._process = self._start()
        limits = asdict(settings) | {"process_memory": settings.process_memory, "directory": self._directory}
        self._send(limits)

    def _start(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
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
        return own_end, process

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def is_worn(self) -> bool:
        """Return whether a new worker should replace this worker."""
        return self._queries >= _QUERIES_PER_WORKER

    def is_healthy(self) -> bool:
        """Return whether the worker can run another query."""
        return not self._is_busy and self._memory() < self._spare_memory

    def wait_until_ready(self) -> None:
        """Wait for the worker's imports."""
        run_in_thread(self._receive(Deadline(_START_SECONDS)))

    def exchange(self, message: Any, deadline: Deadline) -> Steps[Reply]:
        """Send a query or tables. Return the worker's reply, or its request for tables (`find`)."""
        self._is_busy = True
        self._send(message)
        reply = yield from self._receive(deadline)
        if "find" not in reply.fields:
            self._is_busy = False
            self._queries += 1
        return reply

    def _send(self, message: Any) -> None:
        data = orjson.dumps(message)
        self._socket.setblocking(True)  # `_receive` and event loops change it
        with contextlib.suppress(ConnectionError):  # `_receive` reports that the worker ended
            self._socket.sendall(_SIZE.pack(len(data)) + data)

    def _receive(self, deadline: Deadline) -> Steps[Reply]:
        [size] = _SIZE.unpack((yield from self._read(_SIZE.size, deadline)))
        fields, _, body = (yield from self._read(size, deadline)).partition(b"\n")
        return Reply(orjson.loads(fields), body)

    def _read(self, size: int, deadline: Deadline) -> Steps[bytes]:
        """Read bytes as they arrive, so that an event loop never waits for the rest of a message."""
        blocks, missing = [self._unread], size - len(self._unread)
        while missing > 0:
            while not (yield Readable(self._socket.fileno(), deadline.wait_seconds())):
                pass
            try:
                block = self._socket.recv(_BLOCK_BYTES)
            except ConnectionError:
                block = b""
            if not block:
                raise self._exit_error()
            blocks.append(block)
            missing -= len(block)
        data = b"".join(blocks)
        self._unread = data[size:]
        return data[:size]

    def _exit_error(self) -> QueryError:
        code = self._process.wait()
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - 10_000))
        output = self._output.read().decode("utf-8", "replace")
        _LOG.warning("a query worker exited with code %d", code)  # its output can contain text of the query
        return worker_error(output, -code)

    def _memory(self) -> int:
        """Return the resident memory that belongs to this worker alone."""
        with open(f"/proc/{self.pid}/statm", "rb", buffering=0) as file:
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """Stop the process, without waiting for its end."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and delete its directory."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._socket.close()
        self._output.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class _Waiter:
    """A query that waits for a worker, until the descriptor is readable."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0)
        self.outcome: Worker | Exception | None = None

    def end(self, outcome: Worker | Exception) -> None:
        self.outcome = outcome
        os.eventfd_write(self.descriptor, 1)

    def worker(self) -> Worker | None:
        """Return the worker, or None before the end. Raise the error that prevented the start of a worker."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Pool:
    """At most `size` workers. Queries get a worker in the order of their requests.

    The idle worker that was used last is reused first. A thread starts the workers: so the start of a worker goes on if
    its query gives up, and a worn worker runs queries until its replacement is ready.
    """

    def __init__(self, settings: WorkerSettings, spill_dir: str, size: int, processors: int) -> None:
        self._settings = settings
        self._size = size
        self._processors = processors
        self._idle: deque[Worker] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._changed = Condition()  # guards all fields
        self._busy: dict[Worker, float] = {}  # when each query of a worker started
        self._count = 0  # of workers that run or start
        self._minimum = 0
        self._is_replacing = False  # whether a replacement of a worn worker is missing or starts
        self._spare_workers = 0  # replacements whose worn worker still runs
        self._starting: Worker | None = None
        self._starter: Thread | None = None
        self._is_resting = False  # whether the starter waits without a time limit; waking it for each query costs time
        self._ending: set[Thread] = set()
        self._is_closed = False
        self.directory, self._owner = _claim_directory(spill_dir)

    def warm(self) -> None:
        """Start a worker, and always keep one."""
        with self._changed:
            self._request_start()

    def take(self, deadline: Deadline) -> Steps[Worker]:
        """Return a worker. The wait counts toward the deadline."""
        deadline.wait_seconds()
        with self._changed:
            if self._is_closed:
                raise QueryFailedError("The query engine is closed.")
            worker = self._pop_idle()
            if worker is not None:
                self._busy[worker] = time.monotonic()
                return worker
            waiter = _Waiter()
            self._waiters.append(waiter)
            self._request_start()
        try:
            while not (yield Readable(waiter.descriptor, deadline.wait_seconds())):
                pass
            worker = waiter.worker()
        except BaseException as error:
            self._give_up(waiter)
            if isinstance(error, QueryTimeoutError):
                raise QueryBusyError(
                    f"No query process became free within {deadline.seconds:g} seconds.", hint="Try again later."
                ) from None
            raise
        finally:
            os.close(waiter.descriptor)
        assert worker is not None  # noqa: S101  # the descriptor is readable
        return worker

    def put_back(self, worker: Worker) -> None:
        """Hand the worker to the next query, or end it if it cannot run another query."""
        with self._changed:
            del self._busy[worker]
            is_replaced = worker.is_worn and self._spare_workers > 0
            if self._is_closed or is_replaced or not worker.is_healthy():
                self._spare_workers -= is_replaced
                self._end(worker)
                return
            if worker.is_worn and not self._is_replacing:
                self._is_replacing = True
                self._changed.notify()
            self._offer(worker)
            while len(self._idle) > 1 and self._idle[0].idle_since < time.monotonic() - _IDLE_SECONDS:
                self._end(self._idle.popleft())

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            while self._idle:
                self._end(self._idle.pop())
            if self._starting is not None:
                self._starting.kill()
            self._changed.notify()
            threads = [*self._ending, *filter(None, [self._starter])]
        for thread in threads:
            thread.join()
        os.close(self._owner)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _pop_idle(self) -> Worker | None:
        while self._idle:
            worker = self._idle.pop()
            if worker.is_alive:
                return worker
            self._end(worker)
        return None

    def _offer(self, worker: Worker) -> None:
        if self._waiters:
            self._busy[worker] = time.monotonic()
            self._waiters.popleft().end(worker)
        else:
            worker.idle_since = time.monotonic()
            self._idle.append(worker)

    def _give_up(self, waiter: _Waiter) -> None:
        with self._changed:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif isinstance(waiter.outcome, Worker):
                del self._busy[waiter.outcome]
                self._offer(waiter.outcome)

    def _end(self, worker: Worker) -> None:
        """Kill a worker, and clean up in a thread, because a process with much memory ends slowly."""
        worker.kill()
        self._count -= 1
        thread = Thread(target=self._clean_up, args=[worker], name="inlay-query-end", daemon=True)
        self._ending.add(thread)
        thread.start()
        self._changed.notify()

    def _clean_up(self, worker: Worker) -> None:
        worker.end()
        with self._changed:
            self._ending.discard(current_thread())

    # ------------------------------------------------------------------------------------------------ start of workers
    def _request_start(self) -> None:
        self._minimum = 1
        if self._starter is None:
            self._starter = Thread(target=self._start_workers, name="inlay-query-start", daemon=True)
            self._starter.start()
        elif self._is_resting:
            self._changed.notify()

    def _start_workers(self) -> None:
        while self._wait_until_needed():
            try:
                self._starting = worker = Worker(self._settings, self.directory)
                worker.wait_until_ready()
            except Exception as error:  # noqa: BLE001  # the query that waits raises it
                self._fail(error)
            else:
                self._add(worker)

    def _wait_until_needed(self) -> bool:
        """Wait until the pool needs another worker. Return False if the pool is closed."""
        with self._changed:
            while not self._is_closed:
                seconds = self._seconds_until_needed()
                if seconds <= 0:
                    self._count += 1
                    return True
                self._is_resting = seconds == math.inf
                self._changed.wait(None if self._is_resting else seconds)
            return False

    def _seconds_until_needed(self) -> float:
        if self._count < self._minimum or self._is_replacing:
            return 0.0
        if not self._waiters or self._count >= self._size:
            return math.inf
        now = time.monotonic()
        times = [now - since for since in self._busy.values()]
        available = self._count - sum(seconds >= _LONG_SECONDS for seconds in times)
        if available < self._processors:
            return 0.0
        return _LONG_SECONDS - max((seconds for seconds in times if seconds < _LONG_SECONDS), default=0.0)

    def _add(self, worker: Worker) -> None:
        with self._changed:
            self._starting = None
            self._spare_workers += self._is_replacing
            self._is_replacing = False
            if self._is_closed:
                self._end(worker)
            else:
                self._offer(worker)

    def _fail(self, error: Exception) -> None:
        with self._changed:
            if self._starting is not None:
                self._end(self._starting)
                self._starting = None
            else:
                self._count -= 1
            self._is_replacing = False
            self._minimum = 0  # until the next query
            if self._waiters:
                self._waiters.popleft().end(error)


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
