"""Errors of SQL queries."""

from __future__ import annotations

from typing import Any

from inlay.errors.base import InlayError

__all__ = [
    "QueryBusyError",
    "QueryCancelledError",
    "QueryError",
    "QueryFailedError",
    "QueryLimitError",
    "QueryTimeoutError",
]


class QueryError(InlayError, ValueError):
    """The SQL query is invalid. `position` is the (line, column) of the mistake, or None."""

    code = "invalid_query"
    exit_code = 2
    http_status = 400

    def __init__(self, message: str, *, position: tuple[int, int] | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.position = position

    def to_dict(self) -> dict[str, Any]:
        position = None if self.position is None else {"line": self.position[0], "column": self.position[1]}
        return super().to_dict() | {"position": position}


class QueryTimeoutError(QueryError, TimeoutError):
    """The query ran longer than its time limit."""

    code = "query_timeout"
    exit_code = 1
    http_status = 408


class QueryLimitError(QueryError):
    """The query needs more memory, disk space or rows than the limits allow."""

    code = "query_limit"
    http_status = 413


class QueryCancelledError(QueryError):
    """The query was canceled."""

    code = "query_cancelled"
    exit_code = 1
    http_status = 499  # nginx's status for a client that closed the connection


class QueryBusyError(QueryError):
    """Too many queries are running. Retry later."""

    code = "query_busy"
    exit_code = 4
    http_status = 503


class QueryFailedError(QueryError):
    """The query is valid, but running it failed."""

    code = "query_failed"
    exit_code = 1
    http_status = 500
