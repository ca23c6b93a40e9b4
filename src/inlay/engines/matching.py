"""The search for source keys in the row groups that statistics do not exclude.

Engines override `KeySearch.find` to search keys in their own way, or run this module elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.engines.base import FileMatch, GroupMatch, RowNumbers, Target
from inlay.engines.keys import KeyIndex, canonical_keys, canonical_type
from inlay.parquet.footers import bound_arrays, group_ranges, open_parquet, read_row_group
from inlay.storage import Location

__all__ = ["Hit", "KeySearch", "OpenTarget", "Unit", "match_files", "open_target"]

# Every search builds a hash table of the source keys, so it should search many rows for each of them.
_ROWS_PER_KEY = 4
_MAX_ROWS_AT_ONCE = 2_000_000


class SortedKeys(Protocol):
    """A source of which only the schema and the key indexes are known."""

    @property
    def schema(self) -> pa.Schema: ...
    def indexes(self) -> Iterator[tuple[int, KeyIndex]]: ...


class OpenTarget(NamedTuple):
    """A data file with its footer read."""

    target: Target
    metadata: pq.FileMetaData
    schema: pa.Schema
    group_rows: list[int]


class Unit(NamedTuple):
    """A row group to search. `span` is the slice of the sorted keys that it can contain."""

    file: int
    group: int
    rows: int
    span: tuple[int, int]
    opened: OpenTarget


class Hit(NamedTuple):
    """The matching rows of a row group: their positions, and the source row of each one."""

    unit: Unit
    positions: RowNumbers
    rows: RowNumbers

    @classmethod
    def of(cls, unit: Unit, positions: RowNumbers, rows: RowNumbers, start: int) -> Hit:
        """Make a hit from rows numbered within a bucket. `start` is the bucket's first row."""
        return cls(unit, positions.astype(np.int32), rows + start)


MapBatches = Callable[[Callable[[Sequence[Unit]], list[Hit]], Iterable[list[Unit]]], Iterable[list[Hit]]]


def open_target(location: Location, target: Target) -> OpenTarget:
    with open_parquet(location, target.path) as parquet:
        metadata = parquet.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return OpenTarget(target, metadata, parquet.schema_arrow, rows)


def match_files(
    location: Location,
    source: SortedKeys,
    key_columns: Sequence[str],
    opened: Sequence[OpenTarget],
    map_batches: MapBatches = map,
    search: Callable[..., KeySearch] | None = None,
) -> Iterator[FileMatch]:
    """Find the source keys in opened data files, one bucket of the source at a time."""
    found: dict[tuple[int, int], list[Hit]] = {}
    scanned: set[tuple[int, int]] = set()
    for start, index in source.indexes():
        if not len(index):
            continue
        keys = (search or KeySearch)(location, key_columns, source.schema, index, start)
        units = [unit for at, file in enumerate(opened) for unit in keys.units(at, file)]
        scanned.update((unit.file, unit.group) for unit in units)
        for hits in map_batches(keys.find, _batches(units, len(index))):
            for hit in hits:
                found.setdefault((hit.unit.file, hit.unit.group), []).append(hit)
    for at, file in enumerate(opened):
        numbers = range(len(file.group_rows))
        groups = [_group_match(g, file.group_rows[g], found[at, g]) for g in numbers if (at, g) in found]
        yield FileMatch(file.target.path, file.group_rows, sum((at, g) in scanned for g in numbers), groups)


def _batches(units: Sequence[Unit], keys: int) -> Iterator[list[Unit]]:
    enough = min(_ROWS_PER_KEY * keys, _MAX_ROWS_AT_ONCE)
    batch: list[Unit] = []
    rows = 0
    for unit in units:
        batch.append(unit)
        rows += unit.rows
        if rows >= enough:
            yield batch
            batch, rows = [], 0
    if batch:
        yield batch


def _group_match(group: int, rows: int, hits: Sequence[Hit]) -> GroupMatch:
    positions = np.concatenate([hit.positions for hit in hits])
    sources = np.concatenate([hit.rows for hit in hits])
    if len(hits) > 1:
        order = np.argsort(positions, kind="stable")
        positions, sources = positions[order], sources[order]
    return GroupMatch(group, rows, positions, sources)


class KeySearch:
    """A search for one bucket of source keys in many row groups."""

    def __init__(
        self, location: Location, columns: Sequence[str], schema: pa.Schema, index: KeyIndex, start: int
    ) -> None:
        self.location = location
        self.columns = list(columns)
        self.types = [schema.field(name).type for name in columns]
        self.index = index
        self.start = start

    def units(self, at: int, file: OpenTarget) -> Iterator[Unit]:
        """Yield the row groups of a file that statistics do not exclude."""
        count = len(file.group_rows)
        possible = np.fromiter((rows > 0 for rows in file.group_rows), np.bool_, count)
        bounds = [self._bounds(file, n, canonical_type(t)) for n, t in zip(self.columns, self.types, strict=True)]
        for position, ranges in enumerate(bounds):
            possible &= self.index.touches(position, *ranges)
        lows, highs, known = bounds[0]
        for group in np.flatnonzero(possible):
            span = self.index.span(lows[group], highs[group]) if known[group] else (0, len(self.index))
            yield Unit(at, int(group), file.group_rows[group], span, file)

    def _bounds(
        self, file: OpenTarget, name: str, type_: pa.DataType
    ) -> tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]:
        count = len(file.group_rows)
        if name in file.target.constants:
            constant = canonical_keys(pa.chunked_array([pa.array([file.target.constants[name]])]), type_)
            values = pa.repeat(constant[0], count)
            return values, values, np.asarray(values.is_valid())
        if file.schema.get_field_index(name) < 0:
            return (
                bound_arrays([], type_) if not count else (pa.nulls(count, type_),) * 2 + (np.zeros(count, np.bool_),)
            )
        return bound_arrays(group_ranges(file.metadata, name, file.schema.field(name).type), type_)

    def find(self, units: Sequence[Unit]) -> list[Hit]:
        """Find the matching rows of row groups.

        For a composite key, reads the leading column first, and the other columns only for possible rows.
        """
        lead = self.index.lead
        hits, hashed = [], []
        for unit in units:
            column = self._read(unit, lead)
            found = self.index.find_in_ascending(column)
            if found is None:
                hashed.append((unit, column))
            elif len(found[0]):
                hits.append(Hit.of(unit, *found, self.start))
        return hits + self._find_hashed(hashed) if hashed else hits

    def _find_hashed(self, leading: Sequence[tuple[Unit, pa.ChunkedArray]]) -> list[Hit]:
        units, parts = [unit for unit, _ in leading], [[column] for _, column in leading]
        span = min(unit.span[0] for unit in units), max(unit.span[1] for unit in units)
        rows_of: list[RowNumbers | None] = [None] * len(units)
        if len(self.columns) > 1:
            possible = self.index.matches_lead(_stack(parts, 0), span)
            units, parts, rows_of = self._narrow(units, parts, possible)
            if not units:
                return []
        found = self.index.find([_stack(parts, i) for i in range(len(self.columns))], span)
        hits, offset = [], 0
        for unit, part, rows in zip(units, parts, rows_of, strict=True):
            sources = found[offset : offset + len(part[0])]
            offset += len(part[0])
            at = np.flatnonzero(sources >= 0)
            if len(at):
                hits.append(Hit.of(unit, at if rows is None else rows[at], sources[at], self.start))
        return hits

    def _narrow(
        self, units: Sequence[Unit], parts: Sequence[list[pa.ChunkedArray]], possible: npt.NDArray[np.bool_]
    ) -> tuple[list[Unit], list[list[pa.ChunkedArray]], list[RowNumbers | None]]:
        """Return row groups with possible rows, and the key columns and positions of these rows."""
        kept, columns = [], []
        rows_of: list[RowNumbers | None] = []
        offset = 0
        for unit, part in zip(units, parts, strict=True):
            rows = np.flatnonzero(possible[offset : offset + unit.rows])
            offset += unit.rows
            if not len(rows):
                continue
            every = [part[0] if i == self.index.lead else self._read(unit, i) for i in range(len(self.columns))]
            kept.append(unit)
            columns.append([column.take(pa.array(rows)) for column in every])
            rows_of.append(rows)
        return kept, columns, rows_of

    def _read(self, unit: Unit, position: int) -> pa.ChunkedArray:
        """Read one key column of a row group."""
        file, name, type_ = unit.opened, self.columns[position], self.types[position]
        if name in file.target.constants:
            column = pa.chunked_array([pa.repeat(file.target.constants[name], unit.rows)])
        elif file.schema.get_field_index(name) >= 0:
            column = read_row_group(self.location, file.target.path, file.metadata, unit.group, [name]).column(name)
        else:
            column = pa.chunked_array([pa.nulls(unit.rows, type_)])
        return canonical_keys(column, type_)


def _stack(parts: Sequence[Sequence[pa.ChunkedArray]], position: int) -> pa.ChunkedArray:
    """Stack one key column of several row groups."""
    return pa.chunked_array([chunk for part in parts for chunk in part[position].chunks], parts[0][position].type)
