"""The query engine, which runs SQL in worker processes and finds the tables for it."""

from __future__ import annotations

import base64
import os
import re
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from threading import Event
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from inlay.errors import InlayError, InvalidArgumentError, QueryError, QueryLimitError, StorageFullError
from inlay.query.disk import MAX_BYTES_IN_MEMORY, disk_file, memory_file
from inlay.query.pool import Deadline, Pool, Worker, WorkerSettings
from inlay.query.result import QueryResult
from inlay.query.sql import explain, find_case_mistake, respell
from inlay.schema import contains_type
from inlay.type_grammar import column_type_name

__all__ = ["QueryEngine", "Table", "Tables"]

_MAX_SQL_BYTES = 1 << 20
_VERSION = re.compile(r"(?P<name>.+)@(?P<version>[0-9]{1,18})")
_MAX_RESPELLINGS = 100


class Table(NamedTuple):
    """One immutable version of a table. A column that a file lacks is NULL."""

    schema: pa.Schema
    files: list[str]  # absolute paths or s3:// URLs
    # Whether the files' statistics count NaN, as those of files that inlay writes do. If not, no row group of a
    # table with floats is skipped, because `v <> 3.25` would miss rows with NaN.
    exact_float_bounds: bool = False


class Tables(Protocol):
    """Finds tables by name, ignoring case. Every query calls it again."""

    def find(self, name: str, version: int | None) -> Table | None: ...
    def names(self) -> list[str]: ...
    def schemas(self) -> Iterable[tuple[str, pa.Schema]]:
        """Return the name and the schema of each table, without opening files."""


class QueryEngine:
    """Runs SQL queries with DataFusion in a pool of worker processes. Thread-safe."""

    def __init__(
        self,
        tables: Tables,
        *,
        spill_dir: str | os.PathLike[str],
        timeout_seconds: float = 30.0,
        memory_limit_bytes: int = 512 << 20,
        spill_limit_bytes: int = 4 << 30,
        disk_reserve_bytes: int = 0,
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
            disk_reserve=disk_reserve_bytes,
        )
        self._pool = Pool(settings, os.fspath(spill_dir), concurrency)

    def warm(self) -> None:
        """Start a worker process, so that the first query does not wait for it."""
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
        """Run one statement. `limit` and `timeout` cannot exceed the engine's limits."""
        _check(sql, limit, timeout)
        seconds = self._timeout if timeout is None else min(timeout, self._timeout)
        with self._pool.worker(Deadline(seconds, cancel)) as worker:
            return _Run(self._tables, worker, Deadline(seconds, cancel)).result(
                sql, self._max_rows if limit is None else min(limit, self._max_rows), self._max_bytes
            )


class _Run:
    """One query in one worker. Finds the tables that the worker requests."""

    def __init__(self, tables: Tables, worker: Worker, deadline: Deadline) -> None:
        self._tables = tables
        self._worker = worker
        self._deadline = deadline
        self._found: dict[tuple[str, int | None], Table | None] = {}  # a query sees one version of a table

    def result(self, sql: str, max_rows: int, max_bytes: int) -> QueryResult:
        started = time.perf_counter()
        is_low = self._worker.is_disk_low
        max_bytes = min(max_bytes, MAX_BYTES_IN_MEMORY) if is_low else max_bytes
        with memory_file() if is_low else disk_file(self._worker.result_path) as path:
            reply = self._query_respelled(sql, {"max_rows": max_rows, "max_bytes": max_bytes, "path": path})
            if "error" in reply:
                raise explain(reply["error"], sql, self._tables.names)
            if "too_large" in reply:
                raise _too_large(max_bytes, is_disk_low=is_low)
            milliseconds = (time.perf_counter() - started) * 1000
            return QueryResult(pa.OSFile(path), reply["rows"], reply["truncated"], milliseconds)

    def _query_respelled(self, sql: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        """Query, and correct the case of unknown columns until the query succeeds."""
        first = reply = self._query(sql, limits)
        tried: set[str] = set()
        while "error" in reply and len(tried) < _MAX_RESPELLINGS:
            mistake = find_case_mistake(reply["error"])
            if mistake is None:
                break
            if mistake[0] in tried:
                return first
            tried.add(mistake[0])
            sql = respell(sql, *mistake)
            reply = self._query(sql, limits)
        return reply

    def _query(self, sql: str, limits: Mapping[str, Any]) -> dict[str, Any]:
        reply = self._worker.exchange({"sql": sql, **limits}, self._deadline)
        while "find" in reply:
            name = reply["find"]
            found = self._all_tables if name is None else self._find(name)
            reply = self._worker.exchange(found, self._deadline)
        return reply

    @cached_property
    def _all_tables(self) -> list[dict[str, Any]]:
        """The name and the columns (name, type, nullable) of each table."""
        return [
            {"name": name, "columns": [(f.name, column_type_name(f), f.nullable) for f in schema]}
            for name, schema in self._tables.schemas()
        ]

    def _find(self, name: str) -> dict[str, Any] | None:
        versioned = _VERSION.fullmatch(name)
        key = (versioned["name"].lower(), int(versioned["version"])) if versioned else (name.lower(), None)
        if key not in self._found:
            self._found[key] = self._tables.find(*key)
        table = self._found[key]
        return None if table is None else _describe(table)


def _describe(table: Table) -> dict[str, Any]:
    return {
        "schema": base64.b64encode(table.schema.serialize()).decode(),
        "files": table.files,
        "prune": table.exact_float_bounds
        or not any(contains_type(field.type, pa.types.is_floating) for field in table.schema),
    }


def _too_large(max_bytes: int, *, is_disk_low: bool) -> InlayError:
    text = f"The query result is larger than {max_bytes:,} bytes"
    if is_disk_low:
        return StorageFullError(f"{text}, and the disk is almost full.", hint="Free disk space, or add a LIMIT.")
    return QueryLimitError(f"{text}.", hint="Add a LIMIT, or select fewer columns.")


def _check(sql: str, limit: int | None, timeout: float | None) -> None:
    if limit is not None and limit < 0:
        raise InvalidArgumentError(f"limit is {limit}, but it must be 0 or more.")
    if timeout is not None and timeout <= 0:
        raise InvalidArgumentError(f"timeout is {timeout} seconds, but it must be positive.")
    if "\x00" in sql:
        raise QueryError("The SQL contains a NUL character.")
    size = len(sql.encode("utf-8", "surrogatepass"))
    if size > _MAX_SQL_BYTES:
        raise QueryLimitError(f"The SQL has {size:,} bytes, but the limit is {_MAX_SQL_BYTES:,} bytes.")


def _s3_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return DataFusion's S3 settings from s3fs options or AWS environment variables."""
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
