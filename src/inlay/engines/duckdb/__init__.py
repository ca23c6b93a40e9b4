"""The DuckDB engine: SQL matches source keys with target rows, kernels rewrite files.

Key columns of the rows that can match are read into a temporary table. Native MERGE (DuckDB 1.4 or newer), or UNION ALL
with NOT EXISTS, then finds the rows to update and to insert.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import os
import re
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self

import duckdb
import numpy as np
import pyarrow as pa

from inlay.engines.base import FileMatch, RowNumbers, Target
from inlay.engines.duckdb import sql
from inlay.engines.keys import KeyIndex
from inlay.engines.local import LocalEngine
from inlay.engines.matching import Candidates, Hit, KeySearch, MapBatches, Unit, match_files, open_target
from inlay.engines.source import ArrowSource
from inlay.engines.threads import bounded_map
from inlay.errors import DatasetMergeError, InvalidArgumentError
from inlay.storage import Location, PathValidator

__all__ = ["DuckDBEngine", "duckdb_version", "supports_merge"]

logger = logging.getLogger(__name__)

Version = tuple[int, int, int]
UseMerge = Literal[True, False, None]

MERGE_SINCE: Version = (1, 4, 0)
_UNKNOWN: Version = (0, 0, 0)
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+].*)?")
_versions: weakref.WeakKeyDictionary[Any, Version] = weakref.WeakKeyDictionary()

# With more keys, MERGE can take longer than the rest of the merge, so the search of the pyarrow engine replaces it.
MAX_KEYS = 250_000


_CONFIG: dict[str, Any] = {"preserve_insertion_order": False, "autoinstall_known_extensions": False}
_lock = threading.Lock()
_databases: dict[int, duckdb.DuckDBPyConnection] = {}  # by process ID


def _process_database() -> duckdb.DuckDBPyConnection:
    """Return an in-memory database of this process, because opening one takes longer than a small merge.

    A forked process opens its own, and has no threads of its parent's database to wait for.
    """
    process = os.getpid()
    if process not in _databases:
        _databases[process] = duckdb.connect(":memory:", config=_CONFIG | {"threads": 1, "temp_directory": ""})
    return _databases[process]


class DuckDBEngine(LocalEngine):
    """Uses cursors of one database per process, of a connection of its own if it has settings, or of the caller's."""

    name = "duckdb"

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection | None = None,
        *,
        use_merge: UseMerge = None,
        threads: int | None = None,
        memory_limit: str | None = None,
        temp_directory: str | None = None,
        workers: int | None = None,
    ) -> None:
        super().__init__(workers)
        self.use_merge = _check_use_merge(use_merge)
        settings = {"threads": threads, "memory_limit": memory_limit, "temp_directory": temp_directory}
        self._settings: dict[str, Any] = {k: v for k, v in settings.items() if v is not None}
        if connection is not None and self._settings:
            raise InvalidArgumentError(
                f"Cannot apply {', '.join(self._settings)} to a connection that you pass.",
                hint="Set them on the connection, or do not pass a connection.",
            )
        self._connection = connection
        self.operation = "upsert"

    def bind(self, location: Location, operation: str) -> Self:
        _validate(location)
        engine = copy.copy(self)
        engine.operation = operation
        return engine

    def match(
        self, location: Location, source: ArrowSource, key_columns: Sequence[str], targets: Sequence[Target]
    ) -> Iterator[FileMatch]:
        _validate(location, *(location.full(target.path) for target in targets))
        with self._connected() as connection:
            native = self._uses_merge(connection)
            with _lock:
                cursor = connection.cursor()
            with contextlib.closing(cursor), ThreadPoolExecutor(self.workers, "inlay-match") as pool:
                opened = list(pool.map(lambda target: open_target(location, target), targets))
                search = functools.partial(SqlSearch, Session(cursor, self.operation, native))
                map_batches = functools.partial(bounded_map, pool, self.workers)
                yield from match_files(location, source, key_columns, opened, map_batches, search)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[duckdb.DuckDBPyConnection]:
        if self._connection is not None or not self._settings:
            yield self._connection or _process_database()
            return
        with tempfile.TemporaryDirectory(prefix="inlay-duckdb-") as spill:
            config = _CONFIG | {"threads": self.workers, "temp_directory": spill} | self._settings
            with contextlib.closing(duckdb.connect(":memory:", config=config)) as connection:
                yield connection

    def _uses_merge(self, connection: duckdb.DuckDBPyConnection) -> bool:
        if self.use_merge is False:
            logger.info("Using UNION ALL (explicitly requested)")
            return False
        version = duckdb_version(connection)
        if supports_merge(version):
            requested = "Using DuckDB MERGE (explicitly requested)"
            logger.info(requested if self.use_merge else "Using DuckDB MERGE for merge operation (auto-detected)")
            return True
        if self.use_merge:
            raise DatasetMergeError(
                "DuckDB MERGE requested but not available. "
                f"Required version: >= 1.4.0, Current: {'.'.join(map(str, version))}",
                operation="merge",
                hint="Upgrade DuckDB (`pip install --upgrade duckdb`), or pass use_merge=False.",
            )
        logger.info("Using UNION ALL fallback for merge operation (DuckDB < 1.4.0 or MERGE unavailable)")
        return False


def _validate(location: Location, *paths: str) -> None:
    """Reject paths with characters that are special in SQL, although paths are bound."""
    for path in (location.uri, location.path, *paths):
        PathValidator.validate_path_for_sql(path)


# --------------------------------------------------------------------------------------------------------- version
def duckdb_version(connection: duckdb.DuckDBPyConnection) -> Version:
    """Return the DuckDB version of a connection, cached; (0, 0, 0) if it cannot be determined."""
    known = _versions.get(connection)
    if known is None:
        known = _versions[connection] = _detect_version(connection)
    return known


def _detect_version(connection: duckdb.DuckDBPyConnection) -> Version:
    try:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute("SELECT * FROM pragma_version()")
            names = [column[0] for column in cursor.description or ()]
            [row] = cursor.fetchall()
        found = _VERSION.fullmatch(row[names.index("library_version")])
        if found is None:
            raise ValueError(f"unexpected version {row!r}")
    except (duckdb.Error, LookupError, TypeError, ValueError) as error:
        logger.warning("Could not determine DuckDB version: %s", error)
        return _UNKNOWN
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


def supports_merge(version: Version) -> bool:
    return version >= MERGE_SINCE


def _check_use_merge(use_merge: UseMerge) -> UseMerge:
    if use_merge is None or use_merge is True or use_merge is False:
        return use_merge
    raise InvalidArgumentError(f"Invalid use_merge value: {use_merge!r}\nMust be True, False, or None for auto-detect")


# ---------------------------------------------------------------------------------------------------------- search
class Session:
    """A cursor with the strategy of the merge, and whether native MERGE is used."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, strategy: str, native: bool) -> None:
        self.cursor = cursor
        self.strategy = strategy
        self.native = native
        self.clauses = sql.Clauses.of(strategy)

    def run(self, statement: str) -> list[Any]:
        return self.cursor.execute(statement).fetchall()

    def table(self, statement: str) -> pa.Table:
        return self.cursor.sql(statement).to_arrow_table()

    @contextlib.contextmanager
    def view(self, prefix: str, table: pa.Table) -> Iterator[str]:
        name = f"{prefix}_{uuid.uuid4().hex}"
        try:
            self.cursor.register(name, table)
            yield name
        finally:
            _unregister_duckdb_table_safely(self.cursor, name)

    @contextlib.contextmanager
    def temporary(self, prefix: str) -> Iterator[str]:
        """Yield a name for a temporary table, and drop the table afterward if it exists."""
        name = f"{prefix}_{uuid.uuid4().hex}"
        try:
            yield name
        finally:
            with _log_errors(f"drop {name}"):
                self.run(f"DROP TABLE IF EXISTS temp.{sql.quoted(name)}")


def _unregister_duckdb_table_safely(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Unregister a view. Errors are only logged, so that they do not hide an earlier error."""
    with _log_errors(f"unregister {name}"):
        connection.unregister(name)


@contextlib.contextmanager
def _log_errors(action: str) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        logger.debug("Could not %s: %s", action, error)


class SqlSearch(KeySearch):
    """A search for one bucket of source keys in many row groups, in SQL."""

    def __init__(
        self,
        session: Session,
        location: Location,
        columns: Sequence[str],
        schema: pa.Schema,
        index: KeyIndex,
        start: int,
    ) -> None:
        super().__init__(location, columns, schema, index, start)
        self.session = session
        self.names = sql.column_names(columns)

    def search(self, units: Sequence[Unit], map_batches: MapBatches) -> Iterator[Hit]:
        if len(self.index) > MAX_KEYS:
            logger.info("Searching %d keys without SQL, because MERGE is slow above %d", len(self.index), MAX_KEYS)
            yield from super().search(units, map_batches)
        elif units:
            candidates = [each for found in map_batches(self.candidates, self.batches(units)) for each in found]
            with self._merge_errors(units):
                yield from self._find_keys(units, candidates)

    @contextlib.contextmanager
    def _merge_errors(self, units: Sequence[Unit]) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            files = self._display(units)
            logger.error(  # noqa: TRY400  (the raised error has the traceback)
                "MERGE operation failed: %s: %s (strategy %s, key columns %s, files %s)",
                type(error).__name__, error, self.session.strategy, self.columns, files,
            )  # fmt: skip
            raise self._error(f"MERGE operation failed: {error}", files) from error

    def _error(self, message: str, files: Sequence[str]) -> DatasetMergeError:
        strategy = self.session.strategy
        return DatasetMergeError(message, operation="merge", strategy=strategy, key_columns=self.columns, files=files)

    def _display(self, units: Sequence[Unit]) -> list[str]:
        return list(dict.fromkeys(self.location.display(unit.opened.target.path) for unit in units))

    def _find_keys(self, units: Sequence[Unit], candidates: Sequence[Candidates]) -> list[Hit]:
        """Run the statements on candidate rows, which are numbered across all row groups."""
        starts = np.cumsum([0, *(unit.rows for unit in units)])
        source, session = self._source_keys(), self.session
        with (
            session.view("source_view", source) as view,
            session.view("target_view", self._target_keys(units, starts, candidates, source.schema)) as candidate_view,
            session.temporary("target_keys") as table,
        ):
            session.run(sql.create_table(table, candidate_view, self.names))
            if session.native:
                counts = self._merge_using_duckdb_merge(table, view)
                matched = session.table(sql.matched_rows(table, view, self.names, session.clauses))
            else:
                counts, matched = self._merge_using_union_all(table, view)
        statement = "MERGE" if session.native else "UNION ALL"
        logger.debug("DuckDB ran %s on %d row groups: %d updated, %d inserted", statement, len(units), *counts)
        targets, sources = (column.to_numpy() for column in matched.columns)
        self._check(counts, units, sources)
        lows, highs = np.searchsorted(targets, starts[:-1]), np.searchsorted(targets, starts[1:])
        return [
            Hit.of(unit, targets[low:high] - start, sources[low:high], self.start)
            for unit, start, low, high in zip(units, starts, lows, highs, strict=False)
            if low < high
        ]

    def _source_keys(self) -> pa.Table:
        keys = [sql.comparable_keys(pa.chunked_array([column])) for column in self.index.columns]
        rows = pa.array(self.index.rows(np.arange(len(self.index))))
        return pa.table([*keys, rows], [*self.names, sql.SOURCE_ROW])

    def _target_keys(
        self, units: Sequence[Unit], starts: RowNumbers, candidates: Sequence[Candidates], schema: pa.Schema
    ) -> pa.Table:
        first_row = {(unit.file, unit.group): start for unit, start in zip(units, starts, strict=False)}
        rows = [pa.array(each.rows + first_row[each.unit.file, each.unit.group]) for each in candidates]
        columns = [[sql.comparable_keys(column) for column in each.columns] for each in candidates]
        keys = [
            pa.chunked_array([chunk for each in columns for chunk in each[at].chunks], schema.field(at).type)
            for at in range(len(self.names))
        ]
        return pa.table([pa.chunked_array(rows, pa.int64()), *keys], [sql.TARGET_ROW, *self.names])

    def _merge_using_duckdb_merge(self, table: str, view: str) -> tuple[int, int]:
        """Run MERGE and return the numbers of updated and inserted rows that it reports."""
        session = self.session
        returned = session.table(sql.merge_into(table, view, self.names, session.clauses))
        with session.view("merge_actions", returned) as actions:
            return self._count(actions)

    def _merge_using_union_all(self, table: str, view: str) -> tuple[tuple[int, int], pa.Table]:
        """Find matched rows with a join and new rows with NOT EXISTS; return the number of each."""
        session = self.session
        with session.temporary("merge_result") as result:
            session.run(sql.union_all(result, table, view, self.names, session.clauses))
            return self._count(result), session.table(sql.unified_rows(result))

    def _count(self, actions: str) -> tuple[int, int]:
        counts = dict(self.session.run(sql.count_actions(actions)))
        return counts.get("UPDATE", 0), counts.get("INSERT", 0)

    def _check(self, counts: tuple[int, int], units: Sequence[Unit], sources: RowNumbers) -> None:
        clauses = self.session.clauses
        is_new = np.ones(len(self.index), np.bool_)
        is_new[sources] = False
        expected = (len(sources) if clauses.update else 0, np.count_nonzero(is_new) if clauses.insert else 0)
        if counts != expected:
            raise self._error(
                f"MERGE operation failed: DuckDB reports {counts[0]} updated and {counts[1]} inserted rows, "
                f"but its table contains {expected[0]} and {expected[1]}.",
                self._display(units),
            )
