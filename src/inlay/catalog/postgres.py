"""PostgreSQL connections that stop waiting for a server that does not answer."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

__all__ = ["Outage", "connect"]

T = TypeVar("T")
_OUTAGE_SECONDS = 1.0


class _NoAnswerError(psycopg.OperationalError):
    """The server did not answer a statement in time."""


class _Connection(psycopg.Connection[Any]):
    """A connection that closes if a statement takes longer than `statement_seconds`.

    The server's own time limits are not enough, because a server that hangs does not enforce them.
    """

    statement_seconds: float

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        return super().wait(self._limited(gen), *arguments, **options)

    def _limited(self, operation: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run an operation of psycopg, which yields the events it waits for and receives those that occurred."""
        deadline = time.monotonic() + self.statement_seconds
        try:
            awaited = next(operation)
            while True:
                ready = yield awaited
                if not ready and time.monotonic() > deadline:
                    self.close()
                    raise _NoAnswerError(f"no answer within {self.statement_seconds:g} seconds")
                awaited = operation.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


class Outage:
    """Lets calls fail immediately for a moment after the server did not answer another call.

    Otherwise, each of many waiting requests would wait for the server in turn.
    """

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._until = 0.0

    def record(self, error: BaseException | None) -> None:
        if isinstance(error, (_NoAnswerError, psycopg.errors.ConnectionTimeout)):
            self._error, self._until = error, time.monotonic() + _OUTAGE_SECONDS

    @property
    def error(self) -> BaseException | None:
        """The error of the call that got no answer a moment ago, or None."""
        return self._error if time.monotonic() < self._until else None


def connect(statement_seconds: float, *arguments: Any, **options: Any) -> psycopg.Connection[Any]:
    """Connect like `psycopg.connect`, and limit the time of each statement."""
    connection = _Connection.connect(*arguments, **options)
    connection.statement_seconds = statement_seconds
    return connection
