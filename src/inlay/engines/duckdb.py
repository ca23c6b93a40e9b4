"""The DuckDB engine: SQL decides which target rows match which source rows; rewriting is the shared kernels'.

Of the files only key columns of the row groups that can hold source keys are read, into a temporary table. Native
MERGE (DuckDB >= 1.4) or UNION ALL with NOT EXISTS then says what is updated and what is inserted.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import re
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Self

import duckdb

from inlay.engines.base import FileMatch, Target
from inlay.engines.buckets import ArrowSource
from inlay.engines.duckdb_search import Session, SqlSearch
from inlay.engines.matching import Hit, Unit, match_files, open_target
from inlay.engines.threads import ThreadedKernels
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


# ------------------------------------------------------------------------------------------------------------- version
def duckdb_version(connection: duckdb.DuckDBPyConnection) -> Version:
    """The version behind a connection, asked once; (0, 0, 0) if it cannot be found out."""
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


# -------------------------------------------------------------------------------------------------------------- engine
class DuckDBEngine(ThreadedKernels):
    """With a connection of its own for every merge, or the caller's, of which it only uses cursors."""

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
                f"{', '.join(self._settings)} would change the settings of your connection.",
                hint="Set them on the connection yourself, or leave the connection out.",
            )
        self._connection = connection
        self._lock = threading.Lock()
        self.operation = "upsert"

    def working_at(self, location: Location, operation: str) -> Self:
        _validate(location)
        engine = copy.copy(self)
        engine.operation = operation
        return engine

    def match(
        self,
        location: Location,
        source: ArrowSource,
        key_columns: Sequence[str],
        targets: Sequence[Target],
    ) -> Iterator[FileMatch]:
        _validate(location, *(location.full(target.path) for target in targets))
        with self._connected() as connection:
            native = self._uses_merge(connection)
            with self._lock:
                cursor = connection.cursor()
            with contextlib.closing(cursor), ThreadPoolExecutor(self.workers, "inlay-open") as pool:
                opened = list(pool.map(lambda target: open_target(location, target), targets))
                search = functools.partial(SqlSearch, Session(cursor, self.operation, native))
                yield from match_files(location, source, key_columns, opened, _all_at_once, search)

    @contextlib.contextmanager
    def _connected(self) -> Iterator[duckdb.DuckDBPyConnection]:
        if self._connection is not None:
            yield self._connection
            return
        with tempfile.TemporaryDirectory(prefix="inlay-duckdb-") as spill:
            config: dict[str, Any] = {
                "threads": self.workers,
                "temp_directory": spill,
                "preserve_insertion_order": False,
                "autoinstall_known_extensions": False,
            }
            with contextlib.closing(duckdb.connect(":memory:", config=config | self._settings)) as connection:
                yield connection

    def _uses_merge(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """Which implementation this merge uses, and only this one."""
        if self.use_merge is False:
            logger.info("Using UNION ALL (explicitly requested)")
            return False
        version = duckdb_version(connection)
        if supports_merge(version):
            how = "Using DuckDB MERGE (explicitly requested)"
            logger.info(how if self.use_merge else "Using DuckDB MERGE for merge operation (auto-detected)")
            return True
        if self.use_merge:
            raise DatasetMergeError(
                "DuckDB MERGE requested but not available. "
                f"Required version: >= 1.4.0, Current: {'.'.join(map(str, version))}",
                operation="merge",
                hint="Upgrade DuckDB (pip install --upgrade duckdb), or pass use_merge=False.",
            )
        logger.info("Using UNION ALL fallback for merge operation (DuckDB < 1.4.0 or MERGE unavailable)")
        return False


def _validate(location: Location, *paths: str) -> None:
    """Refuse paths that SQL could misread, although they are bound and never part of a statement."""
    for path in (location.given, location.path, *paths):
        PathValidator.validate_path_for_sql(path)


def _all_at_once(find: Callable[[Sequence[Unit]], list[Hit]], batches: Iterable[list[Unit]]) -> Iterator[list[Hit]]:
    """A statement decides about all files of its keys: only then does it know what is new."""
    if units := [unit for batch in batches for unit in batch]:
        yield find(units)
