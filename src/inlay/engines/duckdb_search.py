"""Finding source keys in files with SQL: read key columns into a temporary table, merge the source's keys into it."""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pyarrow as pa

from inlay.engines import duckdb_sql as sql
from inlay.engines.keys import KeyIndex, canonical_keys, canonical_type
from inlay.engines.matching import Hit, KeySearch, Unit, hit
from inlay.errors import DatasetMergeError
from inlay.storage import Location

__all__ = ["Session", "SqlSearch"]

logger = logging.getLogger("inlay.engines.duckdb")

# what one statement works on: DuckDB keeps updated rows and RETURNING in memory, Arrow what it is given
KEYS_AT_ONCE = 1_000_000
ROWS_AT_ONCE = 2_000_000
# before 1.3 DuckDB reads whole files to find rows by number, and 1.1 can miss some
_FINDS_ROWS = [int(part) for part in re.findall(r"\d+", duckdb.__version__)[:2]] >= [1, 3]
_GLOB = re.compile(r"[*?\[\]{}\\]")  # read_parquet would take the path for a pattern


class Session:
    """A cursor, and how this merge uses it."""

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
        """A name for a temporary table that is gone afterwards, whether it came to be or not."""
        name = f"{prefix}_{uuid.uuid4().hex}"
        try:
            yield name
        finally:
            with _only_logged(f"drop {name}"):
                self.run(f"DROP TABLE IF EXISTS temp.{sql.quoted(name)}")


def _unregister_duckdb_table_safely(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    """Also when it was never registered; what went wrong before is what the caller hears about."""
    with _only_logged(f"unregister {name}"):
        connection.unregister(name)


@contextlib.contextmanager
def _only_logged(what: str) -> Iterator[None]:
    try:
        yield
    except duckdb.Error as error:
        logger.debug("Could not %s: %s", what, error)


class _Work(NamedTuple):
    """One statement's share: a view of source keys, the table of keys found, and the row groups to look in.

    Rows of files are numbered one file after the other; `starts` is the number of the first row of each row group.
    """

    view: str
    table: str
    keys: int
    units: Sequence[Unit]
    starts: Sequence[int]


class SqlSearch(KeySearch):
    """One bucket of source keys against many row groups, in SQL."""

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
                with self._failing(near):
                    hits += self._find_keys(near, first, last)
        return hits

    @contextlib.contextmanager
    def _failing(self, units: Sequence[Unit]) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            files = self._shown(units)
            logger.error(  # noqa: TRY400  (the cause goes up with the error)
                "MERGE operation failed: %s: %s (strategy %s, key columns %s, files %s)",
                type(error).__name__, error, self.session.strategy, self.columns, files,
            )  # fmt: skip
            raise self._error(f"MERGE operation failed: {error}", files) from error

    def _error(self, message: str, files: Sequence[str]) -> DatasetMergeError:
        strategy = self.session.strategy
        return DatasetMergeError(message, operation="merge", strategy=strategy, key_columns=self.columns, files=files)

    def _shown(self, units: Sequence[Unit]) -> list[str]:
        return list(dict.fromkeys(self.location.shown(unit.opened.target.path) for unit in units))

    def _find_keys(self, units: Sequence[Unit], first: int, last: int) -> list[Hit]:
        forms = [sql.key_form(pa.chunked_array([c.slice(first, last - first)])) for c in self.index.columns]
        rows = pa.array(self.index.rows(np.arange(first, last)))
        source = pa.table([*forms, rows], [*self.names, sql.ROW])
        session = self.session
        with (
            session.view("source_view", source) as view,
            session.temporary("target_keys") as table,
            session.temporary("merge_result") as result,
        ):
            work = _Work(view, table, last - first, units, _numbered(units))
            session.run(sql.create_table(table, view, self.names))
            self._fill(work)
            if session.native:
                counts = self._merge_using_duckdb_merge(work)
                found = session.table(sql.matched_rows(table, view, self.names, session.clauses))
            else:
                counts = self._merge_using_union_all(work, result)
                found = session.table(sql.unified_rows(result))
        places, sources = (column.to_numpy() for column in found.columns)
        self._check(counts, work, sources)
        return list(self._hits(work, places, sources))

    # --------------------------------------------------------------------------------------------------------- deciding
    def _merge_using_duckdb_merge(self, work: _Work) -> tuple[int, int]:
        """Rows updated and inserted, as MERGE itself reports them."""
        session = self.session
        returned = session.table(sql.merge_into(work.table, work.view, self.names, session.clauses))
        with session.view("merge_actions", returned) as actions:
            return self._counted(actions)

    def _merge_using_union_all(self, work: _Work, result: str) -> tuple[int, int]:
        """The same without MERGE: matched rows by a join, new ones by NOT EXISTS."""
        session = self.session
        session.run(sql.union_all(result, work.table, work.view, self.names, session.clauses))
        return self._counted(result)

    def _counted(self, actions: str) -> tuple[int, int]:
        counts = dict(self.session.run(sql.count_actions(actions)))
        return counts.get("UPDATE", 0), counts.get("INSERT", 0)

    def _check(self, counts: tuple[int, int], work: _Work, sources: np.ndarray) -> None:
        clauses = self.session.clauses
        expected = (
            len(sources) if clauses.update else 0,
            work.keys - len(np.unique(sources)) if clauses.insert else 0,
        )
        if counts != expected:
            raise self._error(
                f"MERGE operation failed: DuckDB reports {counts[0]} updated and {counts[1]} inserted rows, "
                f"its table shows {expected[0]} and {expected[1]}.",
                self._shown(work.units),
            )

    def _hits(self, work: _Work, places: np.ndarray, sources: np.ndarray) -> Iterator[Hit]:
        starts = np.asarray(work.starts)
        ends = starts + [unit.rows for unit in work.units]
        lows, highs = np.searchsorted(places, starts), np.searchsorted(places, ends)
        for unit, start, low, high in zip(work.units, starts, lows, highs, strict=True):
            if low < high:
                yield hit(unit, places[low:high] - start, sources[low:high], self.start)

    # ---------------------------------------------------------------------------------------------------------- reading
    def _fill(self, work: _Work) -> None:
        """Files that DuckDB reads exactly: one statement per kind of file. The others come through Arrow."""
        through_arrow: list[int] = []
        kinds: dict[_Kind, list[list[int]]] = {}
        for _, group in groupby(range(len(work.units)), key=lambda at: work.units[at].file):
            of_file = list(group)
            kind = self._kind([work.units[at] for at in of_file])
            if kind is None:
                through_arrow += of_file
            else:
                kinds.setdefault(kind, []).append(of_file)
        for kind, files in kinds.items():
            try:
                self._read_files(work, kind, [file[0] for file in files])
            except duckdb.OutOfMemoryException:
                raise
            except duckdb.Error as error:
                logger.debug("DuckDB does not read %d files as they are, Arrow does: %s", len(files), error)
                through_arrow += [at for file in files for at in file]
        for batch in _in_batches(through_arrow, work.units):
            self._read_through_arrow(work, batch)

    def _kind(self, units: Sequence[Unit]) -> _Kind | None:
        file = units[0].opened
        folded = [name.casefold() for name in file.schema.names]  # as SQL compares them
        unique = len(set(folded)) == len(folded) and {"filename", "file_row_number"}.isdisjoint(folded)
        path = self.location.full(file.target.path)
        if not (unique and self.location.store.is_local) or _GLOB.search(path):
            return None
        ranges = _ranges(units)
        columns = [self._stored(units, name, type_) for name, type_ in zip(self.columns, self.types, strict=True)]
        return None if None in columns or (ranges and not _FINDS_ROWS) else _Kind(tuple(columns), ranges)

    def _stored(self, units: Sequence[Unit], name: str, type_: pa.DataType) -> _Stored | None:
        file = units[0].opened
        if name in file.target.constants:
            return _Stored(None, "")
        at = file.schema.get_field_index(name)
        reading = sql.reading_of(file.schema.field(at).type, type_) if at >= 0 and sql.is_plain_name(name) else None
        if reading is None or not (reading.is_computed or self._has_sound_statistics(units, name, type_)):
            return None
        columns = file.metadata.schema
        if columns.column(at).path != name:  # nested columns stand before it
            at = next(i for i in range(len(columns)) if columns.column(i).path == name)
        return _Stored(reading, str(columns.column(at)))

    def _has_sound_statistics(self, units: Sequence[Unit], name: str, type_: pa.DataType) -> bool:
        """DuckDB skips row groups by statistics of its own accord: only where we would trust them too."""
        _, _, known = self._bounds(units[0].opened, name, canonical_type(type_))
        return bool(known[[unit.group for unit in units]].all())

    def _read_files(self, work: _Work, kind: _Kind, firsts: Sequence[int]) -> None:
        """Read files of one kind; `firsts` are their first row groups among the units."""
        files = [work.units[at] for at in firsts]
        paths = [self.location.full(unit.opened.target.path) for unit in files]
        self._probe(paths[0], kind)
        starts = [work.starts[at] - _offset(unit) for at, unit in zip(firsts, files, strict=True)]
        given = {"path": pa.array(paths), "first row": pa.array(starts, pa.int64())}
        expressions = []
        for at, (name, stored) in enumerate(zip(self.names, kind.columns, strict=True)):
            if stored.reading is None:
                given[name] = self._constants(files, at)
                expressions.append(f"places.{sql.quoted(name)}")
            else:
                expressions.append(stored.reading.expression.format(f"scan.{sql.quoted(self.columns[at])}"))
        with self.session.view("places", pa.table(given)) as places:
            scan = sql.scan_files(places, self.names, expressions, len(kind.ranges))
            bounds = [bound for range_ in kind.ranges for bound in range_]
            self.session.run(sql.fill_table(work.table, work.view, self.names, scan), [paths, *bounds])

    def _probe(self, path: str, kind: _Kind) -> None:
        """See that DuckDB finds in a file, under the path as given, the types that are expected of it."""
        read = [(name, s.reading) for name, s in zip(self.columns, kind.columns, strict=True) if s.reading is not None]
        seen = self.session.run(sql.probe_file([name for name, _ in read]), [path])
        if seen != [(path, *(reading.type for _, reading in read))]:
            raise duckdb.InvalidInputException(f"unexpected: {seen}")

    def _constants(self, files: Sequence[Unit], at: int) -> pa.ChunkedArray:
        values = pa.array([unit.opened.target.constants[self.columns[at]] for unit in files])
        return sql.key_form(canonical_keys(pa.chunked_array([values]), self.types[at]))

    def _read_through_arrow(self, work: _Work, batch: Sequence[int]) -> None:
        tables = []
        for at in batch:
            unit, start = work.units[at], work.starts[at]
            forms = [sql.key_form(self._read(unit, i)) for i in range(len(self.columns))]
            places = pa.array(np.arange(start, start + unit.rows))
            tables.append(pa.table([places, *forms], [sql.PLACE, *self.names]))
        with self.session.view("target_view", pa.concat_tables(tables)) as view:
            self.session.run(sql.fill_table(work.table, work.view, self.names, sql.scan_view(view)))


class _Stored(NamedTuple):
    """A key column in a file: how to read it and how Parquet describes it; without reading, its path gives it."""

    reading: sql.Reading | None
    description: str


class _Kind(NamedTuple):
    """What files of one statement have in common: key columns stored alike, and the rows to read (none: all)."""

    columns: tuple[Any, ...]
    ranges: tuple[tuple[int, int], ...]


def _offset(unit: Unit) -> int:
    return sum(unit.opened.group_rows[: unit.group])


def _numbered(units: Sequence[Unit]) -> list[int]:
    starts, base = [], 0
    for _, group in groupby(units, key=lambda unit: unit.file):
        of_file = list(group)
        offsets = list(accumulate(of_file[0].opened.group_rows, initial=base))
        starts += [offsets[unit.group] for unit in of_file]
        base = offsets[-1]
    return starts


def _ranges(units: Sequence[Unit]) -> tuple[tuple[int, int], ...]:
    """First and last rows of neighbouring row groups; nothing if these are all rows of the file."""
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
