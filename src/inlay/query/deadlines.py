"""Limits on how long a query runs, and how long it waits for a storage that does not answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event
from typing import Any

from inlay.errors import QueryCancelledError, QueryTimeoutError, StorageUnavailableError

__all__ = ["Deadline", "StorageChecks"]

_SLOW_SECONDS = 5.0  # a storage that has not answered a check for this long explains the end of a query
_POLL_SECONDS = 0.05  # between checks of the event that cancels a query, or of the storage


class Deadline:
    """The time limit of a query, and the event that cancels it."""

    def __init__(self, seconds: float, cancel: Event | None = None) -> None:
        self.seconds = seconds
        self._cancel = cancel
        self._storage: StorageChecks | None = None
        self._deadline = time.monotonic() + seconds

    def check_storage(self, checks: StorageChecks) -> None:
        """Stop the query if the storage that it reads does not answer."""
        self._storage = self._storage or checks

    def wait_seconds(self) -> float:
        """Return how long to wait before the next call. Raise if the query must stop."""
        if self._cancel is not None and self._cancel.is_set():
            raise QueryCancelledError("The query was canceled.")
        left = self._deadline - time.monotonic()
        waits = [left]
        if self._storage is not None:
            waits.append(self._storage.wait_seconds(is_last=left <= 0))
        if left <= 0:
            raise QueryTimeoutError(
                f"The query took longer than {self.seconds:g} seconds and was stopped.",
                hint="Filter earlier, aggregate in steps, or increase INLAY_QUERY_TIMEOUT_SECONDS.",
            )
        return min(waits) if self._cancel is None else min(*waits, _POLL_SECONDS)


class StorageChecks:
    """Checks of a storage while a query reads from it.

    DataFusion repeats requests to an object store for minutes. A check starts every quarter of the storage's time limit
    and has the other three quarters to end, so a query ends within the limit after the storage stops answering.

    Args:
        start: Starts a check, whose future raises if the storage cannot be read.
        seconds: The time limit of a request to the storage.
    """

    def __init__(self, start: Callable[[], Future[Any]], seconds: float) -> None:
        self._start, self._seconds = start, seconds
        self._check: Future[Any] | None = None
        self._next_at = time.monotonic() + seconds / 4
        self._started_at = 0.0

    def wait_seconds(self, *, is_last: bool) -> float:
        """Return how long to wait before the next call. Raise if the storage does not answer, or cannot be read.

        The last call, at the end of the query, raises if a check has waited for some seconds.
        """
        now = time.monotonic()
        if self._check is None and now >= self._next_at:
            self._check = self._start()
            self._started_at = now
        if self._check is not None and self._check.done():
            self._check.result()
            self._check, self._next_at = None, now + self._seconds / 4
        if self._check is None:
            return self._next_at - now
        if now - self._started_at >= min(self._seconds * 3 / 4, _SLOW_SECONDS if is_last else math.inf):
            raise StorageUnavailableError(f"The storage did not answer within {self._seconds:g} seconds.")
        return _POLL_SECONDS
