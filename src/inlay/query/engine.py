"""The query engine, which runs SQL in worker processes and finds the tables for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from threading import Event
from typing import Any, Literal

from inlay.errors import InvalidArgumentError, QueryError, QueryLimitError, QueryTimeoutError, error_from_dict
from inlay.query.caches import ResultCache, TableCache
from inlay.query.comparison import VersionPair
from inlay.query.deadlines import Deadline, StorageChecks
from inlay.query.pool import Pool, Reply, Worker, WorkerSettings
from inlay.query.result import Answer, QueryResult, json_document
from inlay.query.sql import explain, find_case_mistake, is_repeatable, respell, table_names
from inlay.query.steps import Call, Steps, run_in_loop, run_in_thread
from inlay.query.tables import Table, Tables
from inlay.type_grammar import column_type_name

__all__ = ["Format", "QueryEngine"]

Format = Literal["json", "csv", "arrow"]
_MAX_SQL_BYTES = 1 << 20
_VERSION = re.compile(r"(?P<name>.+)@(?P<version>[0-9]{1,18})")
_MAX_RESPELLINGS = 100
_PART_SECONDS = 60.0  # to encode a part of a large result or table, or to decode a table


class QueryEngine:
    """Runs SQL queries with DataFusion in a pool of worker processes. Thread-safe.

    With `finds_quickly`, queries of an event loop find tables in the loop instead of a thread. Queries of tables in an
    object store end with the error of `storage_checks` if the store does not answer. `processes` with an engine each
    divide the workers among them.
    """

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
        finds_quickly: bool = False,
        table_cache_bytes: int = 0,
        result_cache_bytes: int = 0,
        storage_checks: Callable[[], StorageChecks] | None = None,
        processes: int = 1,
    ) -> None:
        self._tables = tables
        self._finds_quickly = finds_quickly
        self._timeout = timeout_seconds
        self._max_rows = max_rows
        self._max_bytes = max_result_bytes
        self._storage_checks = storage_checks
        settings = WorkerSettings(
            memory=memory_limit_bytes,
            spill=spill_limit_bytes,
            threads=threads or min(4, os.cpu_count() or 1),
            s3=_s3_settings(storage_options or {}),
            disk_reserve=disk_reserve_bytes,
        )
        processors = max(1, len(os.sched_getaffinity(0)) // processes)
        self._pool = Pool(settings, os.fspath(spill_dir), max(1, concurrency // processes), processors)
        self._copies = TableCache(self._pool.directory, table_cache_bytes, self._decode)
        self._results = ResultCache(result_cache_bytes)

    @property
    def directory(self) -> str:
        """A directory for temporary data. `close` deletes it, or after a crash the next engine."""
        return self._pool.directory

    def warm(self) -> None:
        """Start a worker process, so that the first query does not wait for it."""
        self._pool.warm()

    def drop_unused_copies(self) -> None:
        """Delete decoded copies of tables that no query has used for a while."""
        self._copies.drop_unused()

    def close(self) -> None:
        self._pool.close()
        self._copies.close()

    def __enter__(self) -> QueryEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, sql: str, *, limit: int | None = None, timeout: float | None = None, cancel: Event | None = None
    ) -> QueryResult:
        """Run one statement. `limit` and `timeout` cannot exceed the engine's limits."""
        return QueryResult(run_in_thread(self._answer(sql, "arrow", limit, timeout, cancel)))

    async def answer(self, sql: str, form: Format, *, limit: int | None = None, timeout: float | None = None) -> Answer:
        """Run one statement from an event loop. Canceling the task stops the query."""
        return await run_in_loop(self._answer(sql, form, limit, timeout))

    def _answer(
        self, sql: str, form: Format, limit: int | None, timeout: float | None, cancel: Event | None = None
    ) -> Steps[Answer]:
        _check(sql, limit, timeout)
        deadline = Deadline(self._timeout if timeout is None else min(timeout, self._timeout), cancel)
        run = _Run(self._tables, self._copies, deadline, self._check_storage)
        if self._finds_quickly:
            run.find_all(table_names(sql))
        else:
            yield Call(lambda: run.find_all(table_names(sql)))
        max_rows = self._max_rows if limit is None else min(limit, self._max_rows)
        result_key = (sql, form, max_rows, run.versions)
        if (known := self._results.get(result_key)) is not None:
            return known
        limits = {"format": form, "max_rows": max_rows, "max_bytes": self._max_bytes}
        worker = yield from self._pool.take(deadline)
        try:
            reply = yield from run.query_respelled(worker, sql, limits)
            path = self._keep(worker) if "file" in reply.fields else None
        finally:
            self._pool.put_back(worker)
        if "error" in reply.fields:
            raise (yield Call(lambda: explain(reply.fields["error"], sql, self._tables.names)))
        if "too_large" in reply.fields:
            raise QueryLimitError(
                f"The query result is larger than {self._max_bytes:,} bytes.",
                hint="Add a LIMIT, or select fewer columns.",
            )
        answer = Answer(reply.fields, reply.body, path)
        if run.knew_all_tables and self._results.accepts(answer) and is_repeatable(sql):
            self._results.put(result_key, answer)
        return answer

    def compare(self, pair: VersionPair, *, sample: int, cancel: Event | None = None) -> Answer:
        """Compare two versions. Return the first deletions, updates and insertions, up to `sample` of each."""
        rows = {"sample": sample, "max_rows": 4 * sample}  # an update has two rows
        return run_in_thread(self._compare(pair, "arrow", rows, cancel))

    async def answer_comparison(self, pair: VersionPair, form: Format, *, offset: int, limit: int | None) -> Answer:
        """Compare two versions from an event loop. Return the rows from position `offset` on."""
        max_rows = self._max_rows if limit is None else min(limit, self._max_rows)
        rows = {"sample": None, "offset": offset, "max_rows": max_rows}
        return await run_in_loop(self._compare(pair, form, rows))

    def _compare(
        self, pair: VersionPair, form: Format, rows: Mapping[str, Any], cancel: Event | None = None
    ) -> Steps[Answer]:
        deadline = Deadline(self._timeout, cancel)
        if self._storage_checks is not None and pair.is_remote:
            deadline.check_storage(self._storage_checks())
        request = {"compare": pair.description, "format": form, "max_bytes": self._max_bytes, **rows}
        try:
            worker = yield from self._pool.take(deadline)
            try:
                reply = yield from worker.exchange(request, deadline)
                path = self._keep(worker) if "file" in reply.fields else None
            finally:
                self._pool.put_back(worker)
        except QueryTimeoutError as error:
            message = f"The diff took longer than {self._timeout:g} seconds and was stopped."
            raise QueryTimeoutError(message, hint=_compare_less("INLAY_QUERY_TIMEOUT_SECONDS")) from error
        except QueryLimitError as error:
            raise _diff_memory_error() from error
        if "problem" in reply.fields:
            problem = error_from_dict(reply.fields["problem"])
            raise _diff_memory_error() if isinstance(problem, QueryLimitError) else problem
        if "error" in reply.fields:
            raise explain(reply.fields["error"], "", list)
        if "too_large" in reply.fields:
            message = f"The rows that differ have more than {self._max_bytes:,} bytes."
            raise QueryLimitError(message, hint="Compare versions with fewer changes between them.")
        return Answer(reply.fields, reply.body, path)

    def _keep(self, worker: Worker) -> str:
        """Move the result file of a worker to a name that the next query does not use."""
        path = os.path.join(self._pool.directory, f"{os.urandom(8).hex()}.arrow")
        os.rename(worker.result_path, path)
        return path

    def _decode(self, table: Table, path: str, max_bytes: int) -> int | None:
        """Write a decoded copy of a table. Return its size, or None if it is larger than `max_bytes`."""
        request = {"decode": table.description, "path": path, "max_bytes": max_bytes}
        deadline = Deadline(_PART_SECONDS)
        self._check_storage(table, deadline)
        reply = run_in_thread(self._exchange(request, deadline))
        return reply.fields.get("size")

    def encode_answer(self, answer: Answer, form: Format, summary: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        """Yield the encoded rows of an answer in a file. In JSON, a summary comes before them."""
        if form == "json":
            return json_document(summary or answer.summary(), self._parts("json", answer=answer.path))
        if form == "csv":
            return self._parts("csv", answer=answer.path)
        return QueryResult(answer).to_arrow()

    def encode_table(self, table: Table) -> Iterator[bytes]:
        """Yield the rows of a table in local files as CSV, in storage order."""
        return self._parts("csv", table=table.description)

    def _parts(self, form: Format, **source: Any) -> Iterator[bytes]:
        """Yield encoded rows, part by part. Other queries can use the worker between two parts."""
        ahead = ThreadPoolExecutor(1, "inlay-query-part")
        try:
            at: Any = []
            encoding = ahead.submit(self._part, form, source, at)
            while at is not None:
                reply = encoding.result()
                at = reply.fields["next"]
                if at is not None:  # the worker encodes this part while the client reads the previous part
                    encoding = ahead.submit(self._part, form, source, at)
                yield reply.body
        finally:
            ahead.shutdown(wait=False, cancel_futures=True)

    def _part(self, form: Format, source: Mapping[str, Any], at: Any) -> Reply:
        return run_in_thread(self._exchange({"encode": form, "at": at, **source}, Deadline(_PART_SECONDS)))

    def _check_storage(self, table: Table, deadline: Deadline) -> None:
        if self._storage_checks is not None and table.is_remote:
            deadline.check_storage(self._storage_checks())

    def _exchange(self, request: Mapping[str, Any], deadline: Deadline) -> Steps[Reply]:
        worker = yield from self._pool.take(deadline)
        try:
            reply = yield from worker.exchange(request, deadline)
        finally:
            self._pool.put_back(worker)
        if "error" in reply.fields:
            raise explain(reply.fields["error"], "", list)
        return reply


def _compare_less(setting: str) -> str:
    return f"Compare versions with fewer changes between them, or increase {setting}."


def _diff_memory_error() -> QueryLimitError:
    return QueryLimitError(
        "The diff needs more memory than the limit allows.", hint=_compare_less("INLAY_QUERY_MEMORY_BYTES")
    )


class _Run:
    """One query. Remembers the tables that it found, so that it sees one version of each."""

    def __init__(
        self,
        tables: Tables,
        copies: TableCache,
        deadline: Deadline,
        check_storage: Callable[[Table, Deadline], object],
    ) -> None:
        self._tables = tables
        self._copies = copies
        self._deadline = deadline
        self._check_storage = check_storage
        self._found: dict[tuple[str, int | None], Table | None] = {}
        self._named: dict[str, Table] = {}
        self.knew_all_tables = True

    def find_all(self, names: Iterable[str]) -> None:
        self._named = {name: table for name in names if (table := self._find(name)) is not None}

    @property
    def versions(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, table.key) for name, table in self._named.items())

    def query_respelled(self, worker: Worker, sql: str, limits: Mapping[str, Any]) -> Steps[Reply]:
        """Query, and correct the case of unknown columns until the query succeeds."""
        first = reply = yield from self._query(worker, sql, limits)
        tried: set[str] = set()
        while "error" in reply.fields and len(tried) < _MAX_RESPELLINGS:
            mistake = find_case_mistake(reply.fields["error"])
            if mistake is None:
                break
            if mistake[0] in tried:
                return first
            tried.add(mistake[0])
            sql = respell(sql, *mistake)
            reply = yield from self._query(worker, sql, limits)
        return reply

    def _query(self, worker: Worker, sql: str, limits: Mapping[str, Any]) -> Steps[Reply]:
        tables = {name: (table.key, self._copies.use(table)) for name, table in self._named.items()}
        for name, (_, copy) in tables.items():
            if copy is None:
                self._check_storage(self._named[name], self._deadline)
        reply = yield from worker.exchange({"sql": sql, "tables": tables, **limits}, self._deadline)
        while "find" in reply.fields:
            found = yield Call(partial(self._describe, reply.fields["find"]))
            reply = yield from worker.exchange(found, self._deadline)
        return reply

    @cached_property
    def _all_tables(self) -> list[dict[str, Any]]:
        """The name and the columns (name, type, nullable) of each table."""
        return [
            {"name": name, "columns": [(f.name, column_type_name(f), f.nullable) for f in schema]}
            for name, schema in self._tables.schemas()
        ]

    def _describe(self, name: str | None) -> Any:
        """Return what a worker needs to know about a table, or about all tables."""
        self.knew_all_tables &= name is not None and name.lower() in self._named
        if name is None:
            return self._all_tables
        table = self._find(name)
        if table is None:
            return None
        self._check_storage(table, self._deadline)
        return table.description

    def _find(self, name: str) -> Table | None:
        versioned = _VERSION.fullmatch(name)
        key = (versioned["name"].lower(), int(versioned["version"])) if versioned else (name.lower(), None)
        if key not in self._found:
            self._found[key] = self._tables.find(*key)
        return self._found[key]


def _check(sql: str, limit: int | None, timeout: float | None) -> None:
    if limit is not None and limit < 0:
        raise InvalidArgumentError(f"limit is {limit}, but it must be 0 or more.")
    if timeout is not None and timeout <= 0:
        raise InvalidArgumentError(f"timeout is {timeout} seconds, but it must be positive.")
    if "\x00" in sql:
        raise QueryError("The SQL contains a NUL character.")
    try:
        size = len(sql.encode())
    except UnicodeEncodeError:
        raise QueryError("The SQL contains half a surrogate pair.") from None
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
