"""Two caches of the query engine: decoded copies of tables on the disk, and results in memory.

Both are keyed by the versions of tables, which never change, so nothing in them can be out of date.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from threading import Lock, Thread
from typing import NamedTuple

from inlay.errors import QueryError
from inlay.query.result import Answer
from inlay.query.tables import Table

__all__ = ["ResultCache", "TableCache"]

_USES_BEFORE_COPY = 2  # a copy costs about as much as 30 queries of the table
_TABLE_SHARE = 4  # a table may use this fraction of the cache
_RESULT_SHARE = 64
_MAX_COUNTED = 10_000
_IDLE_SECONDS = 600.0  # after which a copy is deleted, because its version may be deleted too


class _Copy(NamedTuple):
    path: str
    size: int
    used_at: float


class TableCache:
    """Decoded copies of tables, which workers map into memory. Thread-safe.

    `decode(table, path, max_bytes)` writes the rows of a table to a file, and returns its size, or None if the file
    would exceed `max_bytes`. It runs in a thread of the cache, one table at a time.
    """

    def __init__(self, directory: str, max_bytes: int, decode: Callable[[Table, str, int], int | None]) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._decode = decode
        self._copies: OrderedDict[str, _Copy] = OrderedDict()  # the last used copy last
        self._uses: Counter[str] = Counter()
        self._queue: deque[Table] = deque()
        self._thread: Thread | None = None
        self._lock = Lock()

    def use(self, table: Table) -> str | None:
        """Return the path of the copy of a table, or None. The second use of a table requests a copy."""
        key = table.key
        with self._lock:
            if key in self._copies:
                self._copies[key] = self._copies[key]._replace(used_at=time.monotonic())
                self._copies.move_to_end(key)
                return self._copies[key].path
            if self._max_bytes > 0:
                self._count(table)
            return None

    def _count(self, table: Table) -> None:
        self._uses[table.key] += 1
        if self._uses[table.key] == _USES_BEFORE_COPY:
            self._queue.append(table)
            if self._thread is None:
                self._thread = Thread(target=self._run, name="inlay-query-cache", daemon=True)
                self._thread.start()
        if len(self._uses) > _MAX_COUNTED:
            self._uses.clear()

    def _run(self) -> None:
        while (table := self._next()) is not None:
            path = os.path.join(self._directory, f"{os.urandom(8).hex()}.table")
            try:
                size = self._decode(table, path, self._max_bytes // _TABLE_SHARE)
            except (QueryError, OSError):  # queries read the Parquet files, and report why if they cannot
                size = None
            with self._lock:
                if size is None:
                    _delete(path)
                else:
                    self._copies[table.key] = _Copy(path, size, time.monotonic())
                    self._evict()

    def _next(self) -> Table | None:
        with self._lock:
            if self._queue:
                return self._queue.popleft()
            self._thread = None
            return None

    def _evict(self) -> None:
        while sum(copy.size for copy in self._copies.values()) > self._max_bytes:
            self._drop(next(iter(self._copies)))

    def drop_unused(self) -> None:
        """Delete the copies that no query has used for ten minutes."""
        with self._lock:
            oldest = time.monotonic() - _IDLE_SECONDS
            for key in [key for key, copy in self._copies.items() if copy.used_at < oldest]:
                self._drop(key)

    def _drop(self, key: str) -> None:
        _delete(self._copies.pop(key).path)
        del self._uses[key]

    def close(self) -> None:
        """Wait until no thread uses the directory. Call this after the pool is closed, which ends a copy."""
        with self._lock:
            self._queue.clear()
            thread = self._thread
        if thread is not None:
            thread.join()


def _delete(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


class ResultCache:
    """Small answers of repeatable statements, by statement and versions of tables. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()  # the last used answer last
        self._lock = Lock()

    def get(self, key: Hashable) -> Answer | None:
        with self._lock:
            answer = self._answers.get(key)
            if answer is not None:
                self._answers.move_to_end(key)
            return answer

    def accepts(self, answer: Answer) -> bool:
        return answer.path is None and len(answer.body) <= self._max_bytes // _RESULT_SHARE

    def put(self, key: Hashable, answer: Answer) -> None:
        with self._lock:
            self._drop(key)
            self._answers[key] = answer
            self._bytes += answer.size
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._answers)))

    def _drop(self, key: Hashable) -> None:
        answer = self._answers.pop(key, None)
        self._bytes -= 0 if answer is None else answer.size
