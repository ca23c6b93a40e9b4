"""PostgreSQL connections that stop waiting for a server that does not answer."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

__all__ = ["connect"]

T = TypeVar("T")


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
                    raise psycopg.OperationalError(f"no answer within {self.statement_seconds:g} seconds")
                awaited = operation.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def connect(statement_seconds: float, *arguments: Any, **options: Any) -> psycopg.Connection[Any]:
    """Connect like `psycopg.connect`, and limit the time of each statement."""
    connection = _Connection.connect(*arguments, **options)
    connection.statement_seconds = statement_seconds
    return connection
