"""The search for source keys in the row groups that statistics do not exclude.

Engines override `KeySearch.search` to search keys in their own way, or run this module elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.arrays import from_numpy, to_numpy
from inlay.engines.base import FileMatch, GroupMatch, RowNumbers, Target
from inlay.engines.keys import KeyIndex, canonical_keys, canonical_type
from inlay.parquet.footers import bound_arrays, group_ranges, open_parquet, read_row_group
from inlay.storage import Location

__all__ = ["Candidates", "Hit", "KeySearch", "MapBatches", "OpenTarget", "Unit", "match_files", "open_target"]

R = TypeVar("R")

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
        numbers = np.add(rows, start, dtype=np.int64) if start else rows
        narrow = np.int32 if not len(numbers) or numbers.max() < 2**31 else np.int64
        return cls(unit, positions.astype(np.int32, copy=False), numbers.astype(narrow, copy=False))


class Candidates(NamedTuple):
    """Rows of a row group that can match, and their key columns."""

    unit: Unit
    rows: RowNumbers
    columns: list[pa.ChunkedArray]


class MapBatches(Protocol):
    """Maps a function over batches of row groups, possibly in threads."""

    def __call__(self, function: Callable[[list[Unit]], R], batches: Iterable[list[Unit]], /) -> Iterable[R]: ...


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
        for hit in keys.search(units, map_batches):
            found.setdefault((hit.unit.file, hit.unit.group), []).append(hit)
    for at, file in enumerate(opened):
        numbers = range(len(file.group_rows))
        groups = [_group_match(g, file.group_rows[g], found[at, g]) for g in numbers if (at, g) in found]
        yield FileMatch(file.target.path, file.group_rows, sum((at, g) in scanned for g in numbers), groups)


def _group_match(group: int, rows: int, hits: Sequence[Hit]) -> GroupMatch:
    if len(hits) == 1:
        return GroupMatch(group, rows, hits[0].positions, hits[0].rows)
    positions = np.concatenate([hit.positions for hit in hits])
    order = np.argsort(positions, kind="stable")
    return GroupMatch(group, rows, positions[order], np.concatenate([hit.rows for hit in hits])[order])


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
            constant = canonical_keys(pa.chunked_array([pa.repeat(file.target.constants[name], 1)]), type_)
            values = pa.repeat(constant[0], count)
            return values, values, to_numpy(values.is_valid())
        if file.schema.get_field_index(name) < 0:
            return (
                bound_arrays([], type_) if not count else (pa.nulls(count, type_),) * 2 + (np.zeros(count, np.bool_),)
            )
        return bound_arrays(group_ranges(file.metadata, name, file.schema.field(name).type), type_)

    def search(self, units: Sequence[Unit], map_batches: MapBatches) -> Iterator[Hit]:
        """Find the matching rows of row groups."""
        for hits in map_batches(self._find, self.batches(units)):
            yield from hits

    def batches(self, units: Sequence[Unit]) -> Iterator[list[Unit]]:
        enough = min(_ROWS_PER_KEY * len(self.index), _MAX_ROWS_AT_ONCE)
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

    def _find(self, units: Sequence[Unit]) -> list[Hit]:
        ascending, others = self._read_leading(units)
        hits = [Hit.of(unit, *found, self.start) for unit, _, found in ascending]
        return hits + self._find_hashed(others) if others else hits

    def _find_hashed(self, leading: Sequence[tuple[Unit, pa.ChunkedArray]]) -> list[Hit]:
        """Find the matching rows of row groups whose leading key column does not ascend."""
        if len(self.columns) > 1:
            candidates = self._narrow(leading)
        else:
            candidates = [Candidates(unit, np.arange(unit.rows), [column]) for unit, column in leading]
        if not candidates:
            return []
        keys = [_stack(column) for column in zip(*(each.columns for each in candidates), strict=True)]
        found = self.index.find(keys, _joint_span([each.unit for each in candidates]))
        hits, offset = [], 0
        for unit, rows, columns in candidates:
            sources = found[offset : offset + len(columns[0])]
            offset += len(sources)
            at = np.flatnonzero(sources >= 0)
            if len(at):
                hits.append(Hit.of(unit, rows[at], sources[at], self.start))
        return hits

    def candidates(self, units: Sequence[Unit]) -> list[Candidates]:
        """Read the key columns of all rows whose leading key column occurs in the source."""
        ascending, others = self._read_leading(units)
        found = [Candidates(unit, rows, [column.take(from_numpy(rows))]) for unit, column, (rows, _) in ascending]
        return found + self._narrow(others) if others else found

    def _read_leading(
        self, units: Sequence[Unit]
    ) -> tuple[list[tuple[Unit, pa.ChunkedArray, tuple[RowNumbers, RowNumbers]]], list[tuple[Unit, pa.ChunkedArray]]]:
        """Read the leading key column, and search it in the row groups where it ascends strictly."""
        ascending, others = [], []
        for unit in units:
            column = self._read(unit, self.index.lead)
            found = self.index.find_in_ascending(column)
            if found is None:
                others.append((unit, column))
            elif len(found[0]):
                ascending.append((unit, column, found))
        return ascending, others

    def _narrow(self, leading: Sequence[tuple[Unit, pa.ChunkedArray]]) -> list[Candidates]:
        """Read all key columns of the rows whose leading key column occurs in the source."""
        span = _joint_span([unit for unit, _ in leading])
        possible = self.index.matches_lead(_stack([column for _, column in leading]), span)
        kept, offset = [], 0
        for unit, column in leading:
            rows = np.flatnonzero(possible[offset : offset + unit.rows])
            offset += unit.rows
            if len(rows):
                every = [column if i == self.index.lead else self._read(unit, i) for i in range(len(self.columns))]
                kept.append(Candidates(unit, rows, [each.take(from_numpy(rows)) for each in every]))
        return kept

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


def _stack(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """Stack a key column of several row groups."""
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def _joint_span(units: Sequence[Unit]) -> tuple[int, int]:
    return min(unit.span[0] for unit in units), max(unit.span[1] for unit in units)
