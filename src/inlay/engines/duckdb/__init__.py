"""The DuckDB engine: SQL matches source keys with target rows, kernels rewrite files.

Key columns of the row groups that can contain source keys are read into a temporary table. Native MERGE (DuckDB 1.4 or
newer), or UNION ALL with NOT EXISTS, then finds the rows to update and to insert.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import re
import tempfile
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple, Self

import duckdb
import numpy as np
import pyarrow as pa

from inlay.engines.base import FileMatch, RowNumbers, Target
from inlay.engines.duckdb import sql
from inlay.engines.keys import KeyIndex, canonical_keys, canonical_type
from inlay.engines.local import LocalEngine
from inlay.engines.matching import Hit, KeySearch, Unit, match_files, open_target
from inlay.engines.source import ArrowSource
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

# Limits of one statement: DuckDB keeps updated rows and RETURNING in memory, and Arrow the registered tables.
KEYS_AT_ONCE = 1_000_000
ROWS_AT_ONCE = 2_000_000
# Before 1.3, DuckDB reads whole files to find rows by number, and 1.1 can miss rows.
_READS_ROW_RANGES = [int(part) for part in re.findall(r"\d+", duckdb.__version__)[:2]] >= [1, 3]
_GLOB = re.compile(r"[*?\[\]{}\\]")  # read_parquet expands these characters


class DuckDBEngine(LocalEngine):
    """Opens a connection for each merge, or uses cursors of the caller's connection."""

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
        self._lock = threading.Lock()
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
            with self._lock:
                cursor = connection.cursor()
            with contextlib.closing(cursor), ThreadPoolExecutor(self.workers, "inlay-open") as pool:
                opened = list(pool.map(lambda target: open_target(location, target), targets))
                search = functools.partial(SqlSearch, Session(cursor, self.operation, native))
                yield from match_files(location, source, key_columns, opened, _map_once, search)

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


def _map_once(find: Callable[[Sequence[Unit]], list[Hit]], batches: Iterable[list[Unit]]) -> Iterator[list[Hit]]:
    """Search all row groups at once: a statement needs all of them to know which keys are new."""
    if units := [unit for batch in batches for unit in batch]:
        yield find(units)


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

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.cursor.execute(statement, list(values)).fetchall()

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


class _Work(NamedTuple):
    """The row groups of a statement, a view of the source keys, and a table of found keys.

    Target rows are numbered across all files. `starts` are the numbers of the first row of each row group.
    """

    view: str
    table: str
    keys: int
    units: Sequence[Unit]
    starts: Sequence[int]


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

    def find(self, units: Sequence[Unit]) -> list[Hit]:
        hits = []
        for first in range(0, len(self.index), KEYS_AT_ONCE):
            last = min(first + KEYS_AT_ONCE, len(self.index))
            near = [unit for unit in units if unit.span[0] < last and unit.span[1] > first]
            if near:
                with self._merge_errors(near):
                    hits += self._find_keys(near, first, last)
        return hits

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

    def _find_keys(self, units: Sequence[Unit], first: int, last: int) -> list[Hit]:
        keys = [sql.comparable_keys(pa.chunked_array([c.slice(first, last - first)])) for c in self.index.columns]
        rows = pa.array(self.index.rows(np.arange(first, last)))
        source = pa.table([*keys, rows], [*self.names, sql.SOURCE_ROW])
        session = self.session
        with (
            session.view("source_view", source) as view,
            session.temporary("target_keys") as table,
            session.temporary("merge_result") as result,
        ):
            work = _Work(view, table, last - first, units, _first_rows(units))
            session.run(sql.create_table(table, view, self.names))
            self._fill(work)
            if session.native:
                counts = self._merge_using_duckdb_merge(work)
                found = session.table(sql.matched_rows(table, view, self.names, session.clauses))
            else:
                counts = self._merge_using_union_all(work, result)
                found = session.table(sql.unified_rows(result))
        statement = "MERGE" if session.native else "UNION ALL"
        logger.debug("DuckDB ran %s on %d row groups: %d updated, %d inserted", statement, len(units), *counts)
        targets, sources = (column.to_numpy() for column in found.columns)
        self._check(counts, work, sources)
        return list(self._hits(work, targets, sources))

    def _merge_using_duckdb_merge(self, work: _Work) -> tuple[int, int]:
        """Run MERGE and return the numbers of updated and inserted rows that it reports."""
        session = self.session
        returned = session.table(sql.merge_into(work.table, work.view, self.names, session.clauses))
        with session.view("merge_actions", returned) as actions:
            return self._count(actions)

    def _merge_using_union_all(self, work: _Work, result: str) -> tuple[int, int]:
        """Find matched rows with a join and new rows with NOT EXISTS; return the number of each."""
        session = self.session
        session.run(sql.union_all(result, work.table, work.view, self.names, session.clauses))
        return self._count(result)

    def _count(self, actions: str) -> tuple[int, int]:
        counts = dict(self.session.run(sql.count_actions(actions)))
        return counts.get("UPDATE", 0), counts.get("INSERT", 0)

    def _check(self, counts: tuple[int, int], work: _Work, sources: RowNumbers) -> None:
        clauses = self.session.clauses
        expected = (len(sources) if clauses.update else 0, work.keys - len(np.unique(sources)) if clauses.insert else 0)
        if counts != expected:
            raise self._error(
                f"MERGE operation failed: DuckDB reports {counts[0]} updated and {counts[1]} inserted rows, "
                f"but its table contains {expected[0]} and {expected[1]}.",
                self._display(work.units),
            )

    def _hits(self, work: _Work, targets: RowNumbers, sources: RowNumbers) -> Iterator[Hit]:
        starts = np.asarray(work.starts)
        ends = starts + [unit.rows for unit in work.units]
        lows, highs = np.searchsorted(targets, starts), np.searchsorted(targets, ends)
        for unit, start, low, high in zip(work.units, starts, lows, highs, strict=True):
            if low < high:
                yield Hit.of(unit, targets[low:high] - start, sources[low:high], self.start)

    def _fill(self, work: _Work) -> None:
        """Fill the table of target keys. Arrow reads files that DuckDB does not read exactly.

        One statement reads all files of one layout.
        """
        through_arrow: list[int] = []
        layouts: dict[_Layout, list[list[int]]] = {}
        for _, group in groupby(range(len(work.units)), key=lambda at: work.units[at].file):
            of_file = list(group)
            layout = self._layout([work.units[at] for at in of_file])
            if layout is None:
                through_arrow += of_file
            else:
                layouts.setdefault(layout, []).append(of_file)
        for layout, files in layouts.items():
            try:
                self._read_files(work, layout, [file[0] for file in files])
            except duckdb.OutOfMemoryException:
                raise
            except duckdb.Error as error:
                logger.debug("DuckDB cannot read the keys of %d files, so Arrow reads them: %s", len(files), error)
                through_arrow += [at for file in files for at in file]
        for batch in _in_batches(through_arrow, work.units):
            self._read_through_arrow(work, batch)

    def _layout(self, units: Sequence[Unit]) -> _Layout | None:
        """Return the layout of one file's row groups, or None if Arrow must read them."""
        file = units[0].opened
        folded = [name.casefold() for name in file.schema.names]  # SQL ignores case
        unique = len(set(folded)) == len(folded) and {"filename", "file_row_number"}.isdisjoint(folded)
        path = self.location.full(file.target.path)
        if not (unique and self.location.store.is_local) or _GLOB.search(path):
            return None
        ranges = _ranges(units)
        columns = [
            self._stored_column(units, name, type_) for name, type_ in zip(self.columns, self.types, strict=True)
        ]
        return None if None in columns or (ranges and not _READS_ROW_RANGES) else _Layout(tuple(columns), ranges)

    def _stored_column(self, units: Sequence[Unit], name: str, type_: pa.DataType) -> _StoredColumn | None:
        file = units[0].opened
        if name in file.target.constants:
            return _StoredColumn(None, "")
        at = file.schema.get_field_index(name)
        rule = sql.read_rule(file.schema.field(at).type, type_) if at >= 0 and sql.is_plain_name(name) else None
        if rule is None or not (rule.is_computed or self._has_sound_statistics(units, name, type_)):
            return None
        columns = file.metadata.schema
        if columns.column(at).path != name:  # leaves of nested columns come first
            at = next(i for i in range(len(columns)) if columns.column(i).path == name)
        return _StoredColumn(rule, str(columns.column(at)))

    def _has_sound_statistics(self, units: Sequence[Unit], name: str, type_: pa.DataType) -> bool:
        """Return whether the statistics, by which DuckDB skips row groups, can be trusted."""
        _, _, known = self._bounds(units[0].opened, name, canonical_type(type_))
        return bool(known[[unit.group for unit in units]].all())

    def _read_files(self, work: _Work, layout: _Layout, firsts: Sequence[int]) -> None:
        """Read files of one layout. `firsts` are the indexes of their first units."""
        files = [work.units[at] for at in firsts]
        paths = [self.location.full(unit.opened.target.path) for unit in files]
        self._probe(paths[0], layout)
        starts = [work.starts[at] - _offset(unit) for at, unit in zip(firsts, files, strict=True)]
        columns = {"path": pa.array(paths), "first row": pa.array(starts, pa.int64())}
        expressions = []
        for at, (name, stored) in enumerate(zip(self.names, layout.columns, strict=True)):
            if stored.rule is None:
                columns[name] = self._constants(files, at)
                expressions.append(f"files.{sql.quoted(name)}")
            else:
                expressions.append(stored.rule.expression.format(f"scan.{sql.quoted(self.columns[at])}"))
        with self.session.view("files", pa.table(columns)) as view:
            scan = sql.scan_files(view, self.names, expressions, len(layout.ranges))
            bounds = [bound for range_ in layout.ranges for bound in range_]
            self.session.run(sql.fill_table(work.table, work.view, self.names, scan), [paths, *bounds])

    def _probe(self, path: str, layout: _Layout) -> None:
        """Check that DuckDB reports the expected path and types for a file."""
        read = [(name, s.rule) for name, s in zip(self.columns, layout.columns, strict=True) if s.rule is not None]
        seen = self.session.run(sql.probe_file([name for name, _ in read]), [path])
        if seen != [(path, *(rule.type for _, rule in read))]:
            raise duckdb.InvalidInputException(f"unexpected path or types: {seen}")

    def _constants(self, files: Sequence[Unit], at: int) -> pa.ChunkedArray:
        values = pa.array([unit.opened.target.constants[self.columns[at]] for unit in files])
        return sql.comparable_keys(canonical_keys(pa.chunked_array([values]), self.types[at]))

    def _read_through_arrow(self, work: _Work, batch: Sequence[int]) -> None:
        tables = []
        for at in batch:
            unit, start = work.units[at], work.starts[at]
            keys = [sql.comparable_keys(self._read(unit, i)) for i in range(len(self.columns))]
            rows = pa.array(np.arange(start, start + unit.rows))
            tables.append(pa.table([rows, *keys], [sql.TARGET_ROW, *self.names]))
        with self.session.view("target_view", pa.concat_tables(tables)) as view:
            self.session.run(sql.fill_table(work.table, work.view, self.names, sql.scan_view(view)))


class _StoredColumn(NamedTuple):
    """A key column of a file. `rule` is None if the path has the column's value."""

    rule: sql.ReadRule | None
    description: str


class _Layout(NamedTuple):
    """The key columns and ranges of rows that one statement can read from several files."""

    columns: tuple[Any, ...]
    ranges: tuple[tuple[int, int], ...]


def _offset(unit: Unit) -> int:
    return sum(unit.opened.group_rows[: unit.group])


def _first_rows(units: Sequence[Unit]) -> list[int]:
    starts, base = [], 0
    for _, group in groupby(units, key=lambda unit: unit.file):
        of_file = list(group)
        offsets = list(accumulate(of_file[0].opened.group_rows, initial=base))
        starts += [offsets[unit.group] for unit in of_file]
        base = offsets[-1]
    return starts


def _ranges(units: Sequence[Unit]) -> tuple[tuple[int, int], ...]:
    """Return the first and last rows of adjacent row groups, or nothing for a whole file."""
    ranges: list[tuple[int, int]] = []
    offsets = list(accumulate(units[0].opened.group_rows, initial=0))
    for unit in units:
        first, last = offsets[unit.group], offsets[unit.group + 1] - 1
        if ranges and ranges[-1][1] + 1 == first:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return () if ranges == [(0, offsets[-1] - 1)] else tuple(ranges)


def _in_batches(numbers: Sequence[int], units: Sequence[Unit]) -> Iterator[list[int]]:
    batch: list[int] = []
    rows = 0
    for at in numbers:
        batch.append(at)
        rows += units[at].rows
        if rows >= ROWS_AT_ONCE:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch
