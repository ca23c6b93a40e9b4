"""Checks of the parts of a workspace, with a time limit that holds even if a part never answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from inlay.catalog import Catalog
from inlay.errors import CatalogUnavailableError, InlayError

__all__ = ["NO_ANSWER", "Check", "require_answer", "states"]

NO_ANSWER = "no answer"
_START_SECONDS = 20.0
T = TypeVar("T")


class Check(Generic[T]):
    """A call that may never return. It runs in a thread of its own, at most once at a time."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._run: Future[T] | None = None

    def start(self) -> Future[T]:
        """Start the check, unless an earlier run has not ended. Returns the future of the run."""
        with self._lock:
            if self._run is None or self._run.done():
                self._run = Future()
                # A thread that never ends must not keep the process alive.
                threading.Thread(target=self._call, args=(self._run,), name="inlay-check", daemon=True).start()
            return self._run

    def _call(self, run: Future[Any]) -> None:
        try:
            run.set_result(self._work())
        except Exception as error:  # noqa: BLE001  (raised to the caller)
            run.set_exception(error)


def states(checks: Mapping[str, Check[str | None]], seconds: float) -> dict[str, str]:
    """Return `ready`, the reason why not, or `no answer` for each part, within `seconds`.

    A check raises an `InlayError` if its part is unavailable, or returns the state of the part. None means `ready`.
    """
    deadline = time.monotonic() + seconds
    runs = {name: check.start() for name, check in checks.items()}
    return {name: _state(run, max(0.0, deadline - time.monotonic())) for name, run in runs.items()}


def require_answer(catalog: Catalog) -> None:
    """Raise if the catalog does not answer, so that a service that cannot start ends soon and says why."""
    try:
        Check(catalog.ping).start().result(_START_SECONDS)
    except TimeoutError as error:
        raise CatalogUnavailableError(
            f"The catalog at {catalog.location} did not answer within {_START_SECONDS:g} seconds.",
            hint="Check the address of the database, and that it accepts connections.",
        ) from error


def _state(run: Future[str | None], seconds: float) -> str:
    try:
        return run.result(seconds) or "ready"
    except TimeoutError:
        return NO_ANSWER
    except InlayError as error:
        return str(error)
