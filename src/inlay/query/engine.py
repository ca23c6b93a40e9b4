"""Answers SELECTs: finds the tables they name, hands them to a worker process, and ends it when it must."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import time
from collections.abc import Mapping
from threading import Event
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from inlay.errors import InvalidArgumentError, QueryError, QueryLimitError
from inlay.query.messages import explain, mistaken_case
from inlay.query.pool import Patience, Pool, Worker, WorkerSettings
from inlay.query.result import QueryResult
from inlay.query.statements import respelled
from inlay.schema import holds

__all__ = ["QueryEngine", "Table", "Tables"]

_MAX_SQL_BYTES = 1 << 20
_VERSION = re.compile(r"(?P<name>.+)@(?P<version>[0-9]{1,18})")
_RESPELLINGS = 100


class Table(NamedTuple):
    """One immutable version of a table. Columns that a file lacks are NULL."""

    schema: pa.Schema
    files: list[str]  # absolute paths, or s3:// addresses
    # Whether float bounds in the files' statistics leave no NaN out, as in every file inlay writes. Otherwise
    # row groups of tables with floats are not skipped, since `v <> 3.25` would lose rows with NaN.
    exact_float_bounds: bool = False


class Tables(Protocol):
    """Where tables are found, by any spelling of their name; asked anew for every query."""

    def find(self, name: str, version: int | None) -> Table | None: ...
    def names(self) -> list[str]: ...


class QueryEngine:
    """DataFusion in a pool of processes; safe to use from many threads."""

    def __init__(
        self,
        tables: Tables,
        *,
        spill_dir: str | os.PathLike[str],
        timeout_seconds: float = 30.0,
        memory_limit_bytes: int = 512 << 20,
        spill_limit_bytes: int = 4 << 30,
        max_rows: int = 1_000_000,
        max_result_bytes: int = 256 << 20,
        concurrency: int = 8,
        threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._tables = tables
        self._timeout = timeout_seconds
        self._max_rows = max_rows
        self._max_bytes = max_result_bytes
        settings = WorkerSettings(
            memory=memory_limit_bytes,
            spill=spill_limit_bytes,
            threads=threads or min(4, os.cpu_count() or 1),
            s3=_s3_settings(storage_options or {}),
        )
        self._pool = Pool(settings, os.fspath(spill_dir), concurrency)

    def warm(self) -> None:
        """Start a process, so that the first query need not wait for it."""
        self._pool.warm()

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> QueryEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, sql: str, *, limit: int | None = None, timeout: float | None = None, cancel: Event | None = None
    ) -> QueryResult:
        """Answer one statement. `limit` and `timeout` can only lower the engine's own."""
        _check(sql, limit, timeout)
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        with self._pool.worker(Patience(seconds, cancel)) as worker:
            return _Run(self._tables, worker, Patience(seconds, cancel)).answer(
                sql, self._max_rows if limit is None else min(limit, self._max_rows), self._max_bytes
            )


class _Run:
    """One query in one worker: what it asks for on the way, and its answer."""

    def __init__(self, tables: Tables, worker: Worker, patience: Patience) -> None:
        self._tables = tables
        self._worker = worker
        self._patience = patience
        self._found: dict[tuple[str, int | None], Table | None] = {}  # one version of a table for the whole query

    def answer(self, sql: str, max_rows: int, max_bytes: int) -> QueryResult:
        started = time.perf_counter()
        path = self._worker.result_path
        limits = {"max_rows": max_rows, "max_bytes": max_bytes, "path": path}
        try:
            reply = self._respelling(sql, limits)
            if "error" in reply:
                raise explain(reply["error"], sql, self._tables.names)
            if "too_large" in reply:
                raise QueryLimitError(
                    f"The result is larger than {max_bytes:,} bytes.", hint="Add a LIMIT, or select fewer columns."
                )
            milliseconds = (time.perf_counter() - started) * 1000
            return QueryResult(pa.OSFile(path), reply["rows"], reply["truncated"], milliseconds)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def _respelling(self, sql: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Ask; where a column is unknown but for its case, write it as it is and ask again."""
        first = reply = self._ask(sql, limits)
        tried: set[str] = set()
        while "error" in reply and len(tried) < _RESPELLINGS:
            mistake = mistaken_case(reply["error"])
            if mistake is None:
                break
            if mistake[0] in tried:
                return first
            tried.add(mistake[0])
            sql = respelled(sql, *mistake)
            reply = self._ask(sql, limits)
        return reply

    def _ask(self, sql: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        request = {"sql": sql, "tables": self._names(sql), **limits}
        reply = self._worker.exchange(request, self._patience)
        while "find" in reply:
            reply = self._worker.exchange(self._find(reply["find"]), self._patience)
        return reply

    def _names(self, sql: str) -> list[str]:
        return self._tables.names() if sql.lstrip()[:4].lower() == "show" else []

    def _find(self, name: str) -> dict[str, Any] | None:
        versioned = _VERSION.fullmatch(name)
        key = (versioned["name"].lower(), int(versioned["version"])) if versioned else (name.lower(), None)
        if key not in self._found:
            self._found[key] = self._tables.find(*key)
        table = self._found[key]
        return None if table is None else _described(table)


def _described(table: Table) -> dict[str, Any]:
    return {
        "schema": base64.b64encode(table.schema.serialize()).decode(),
        "files": table.files,
        "prune": table.exact_float_bounds or not any(holds(field.type, pa.types.is_floating) for field in table.schema),
    }


def _check(sql: str, limit: int | None, timeout: float | None) -> None:
    if limit is not None and limit < 0:
        raise InvalidArgumentError(f"limit is {limit}; it must be 0 or more.")
    if timeout is not None and timeout <= 0:
        raise InvalidArgumentError(f"timeout is {timeout}; it must be positive.")
    if "\x00" in sql:
        raise QueryError("The SQL contains a NUL character.")
    size = len(sql.encode("utf-8", "surrogatepass"))
    if size > _MAX_SQL_BYTES:
        raise QueryLimitError(f"The SQL is {size:,} bytes long; {_MAX_SQL_BYTES:,} are allowed.")


def _s3_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of DataFusion's S3 client from those of s3fs and, where they are silent, the usual variables."""
    endpoint = (
        options.get("endpoint_url") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    region = (options.get("client_kwargs") or {}).get("region_name")
    return {
        "access_key_id": options.get("key") or os.environ.get("AWS_ACCESS_KEY_ID"),
        "secret_access_key": options.get("secret") or os.environ.get("AWS_SECRET_ACCESS_KEY"),
        "session_token": options.get("token") or os.environ.get("AWS_SESSION_TOKEN"),
        "region": region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        "endpoint": endpoint,
        "allow_http": str(endpoint).startswith("http://"),
    }
