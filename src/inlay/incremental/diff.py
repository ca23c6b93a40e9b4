"""The rows that differ between two versions of a dataset.

Only files that one of the versions lacks are opened, and of these only row groups whose bytes the other version lacks
are decoded. Equal rows cancel out, first in each file that both versions have, then across all files. What remains is
paired by key columns.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.arrays import from_numpy, from_texts, to_numpy
from inlay.commit.snapshot import hold_snapshot
from inlay.commit.transaction import locate_dataset, open_journal
from inlay.engines.columns import cast_rows, take_rows
from inlay.engines.keys import canonical_keys
from inlay.engines.open_file import OpenFile
from inlay.engines.row_codes import count_earlier, number_rows, number_tuples
from inlay.errors import InvalidArgumentError, NotFoundError, SchemaMismatchError, wrap_errors
from inlay.incremental.target import columns_in_paths, path_values
from inlay.parquet.raw import ParquetBytes, SpliceRefused, chunk_extent, refuse_invalid
from inlay.schema import unify
from inlay.storage import Filesystem, Listing, Location

__all__ = ["CHANGE_COLUMN", "Comparison", "VersionFiles", "common_keys", "compare", "diff"]

CHANGE_COLUMN = "_change"
_BATCH_ROWS = 1 << 16

Integers = npt.NDArray[np.int64]
VersionKeys: TypeAlias = tuple[Sequence[str], int | None]  # key columns, and the version that a version restores


def diff(
    path: str | os.PathLike[str],
    old: int,
    new: int,
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.RecordBatchReader:
    """Read the rows that differ between two versions of a dataset.

    Only files and row groups that differ are read. Rows are equal if all of their values have the same bits: NaN
    equals NaN, and NULL equals NULL. Repeated rows are counted. If the merges between the versions have the same key
    columns, a deleted and an inserted row with the same key are an update. Otherwise, all differences are deletions and
    insertions. A column that one version lacks is NULL in its rows.

    No writer drops the versions until the stream ends or is deleted. The memory grows with the size of the largest
    changed file and with the number of changed rows. Rows of files that only one version has, as after an overwrite or
    a compaction, are all in memory.

    Args:
        path: The directory of the dataset.
        old: The number of a version, which `inlay.history` lists.
        new: The number of the version to compare with it. It may be older.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.

    Returns:
        A stream of rows: deletions, then updates, then insertions. The first column, `_change`, is `"delete"`,
        `"update_before"`, `"update_after"` or `"insert"`. Each `update_after` follows its `update_before`. The other
        columns are those of the changed files, with the columns in their Hive paths.

    Raises:
        InvalidArgumentError: A version is not a whole number.
        NotFoundError: A version does not exist or is no longer kept.
        DamagedVersionError: Another program changed a file of a version in place.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        SchemaMismatchError: A column has incompatible types in the versions, or is named `_change`.
        UnreadableFileError: A data file cannot be read.
        DatasetIOError: The storage failed.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2], "price": [1.0, 2.0]}, "prices").row_count
        2
        >>> inlay.merge({"id": [2, 3], "price": [2.5, 3.0]}, "prices", "upsert", "id").inserted
        1
        >>> for row in inlay.diff("prices", 1, 2).read_all().to_pylist():
        ...     print(row)
        {'_change': 'update_before', 'id': 2, 'price': 2.0}
        {'_change': 'update_after', 'id': 2, 'price': 2.5}
        {'_change': 'insert', 'id': 3, 'price': 3.0}
    """
    _require_numbers(old, new)
    stream = _read_diff(locate_dataset(path, filesystem, storage_options), old, new)
    # The generator has started, so its end or its deletion releases the versions.
    return pa.RecordBatchReader.from_batches(next(stream), stream)


def _require_numbers(*versions: Any) -> None:
    for version in versions:
        if not isinstance(version, int) or isinstance(version, bool):
            raise InvalidArgumentError(
                f"A version is a whole number, not {version!r}.",
                hint="Run `inlay history DATASET` to list the versions.",
            )


def _read_diff(location: Location, old: int, new: int) -> Iterator[Any]:
    """Yield the schema of the differing rows, then their batches."""
    with (
        wrap_errors("diff"),
        hold_snapshot(location, old) as before,
        hold_snapshot(location, new) as after,
    ):
        history = open_journal(location).require_history()

        def keys_of(number: int) -> VersionKeys:
            change = history.read(number).change
            return change.key_columns, change.restores

        comparison = compare(before, after, common_keys(keys_of, old, new))
        yield comparison.schema
        yield from comparison.batches()


def common_keys(keys_of: Callable[[int], VersionKeys], old: int, new: int) -> list[str]:
    """Return the key columns of the merges between two versions, or nothing if these differ.

    `keys_of` returns the key columns of a version and the version that it restores, or raises `NotFoundError`.
    """
    found = set()
    oldest, number = sorted((old, new))
    while number > oldest:
        with contextlib.suppress(NotFoundError):  # A restore can lead to versions that are no longer kept.
            keys, restores = keys_of(number)
            found.add(frozenset(keys))
            oldest = oldest if restores is None else min(oldest, restores)
        number -= 1
    found.discard(frozenset())
    return sorted(found.pop()) if len(found) == 1 else []


# -------------------------------------------------------------------------------------------------- files to compare
class VersionFiles(Protocol):
    """The files of a version, and the location that opens them."""

    @property
    def location(self) -> Location: ...
    @property
    def files(self) -> Listing: ...


class _Side(NamedTuple):
    """The files of one version that the other version lacks."""

    location: Location
    files: dict[str, _ChangedFile]


@dataclass(slots=True)
class _ChangedFile:
    """A file that differs between the versions. Row groups with equal `identities` may have the same bytes."""

    file: OpenFile
    identities: list[Hashable]  # of its row groups. None if the bytes may not tell the values
    constants: dict[str, pa.Scalar] = field(default_factory=dict)  # the values in the path
    same: set[int] = field(default_factory=set)  # row groups that the other version has too

    @classmethod
    def open(cls, location: Location, path: str) -> _ChangedFile:
        file = OpenFile(location, path)
        try:
            with file.raw() as raw, refuse_invalid(file.name):
                identities = [_describe_group(raw, at, path) for at in range(raw.num_row_groups)]
        except SpliceRefused:
            identities = [None] * file.metadata.num_row_groups
        return cls(file, identities)

    def read(self, schema: pa.Schema) -> pa.Table:
        """Read the rows of the row groups that only this version has."""
        groups = [group for group in range(self.file.metadata.num_row_groups) if group not in self.same]
        tables = [cast_rows(self._with_constants(self.file.read_group(group)), schema) for group in groups]
        return pa.concat_tables([schema.empty_table(), *tables])

    def _with_constants(self, rows: pa.Table) -> pa.Table:
        for name, value in self.constants.items():
            column = pa.repeat(value, rows.num_rows)
            at = rows.schema.get_field_index(name)
            rows = rows.append_column(name, column) if at < 0 else rows.set_column(at, name, column)
        return rows

    def digest(self, group: int) -> bytes:
        """Return a checksum of the column chunks of a row group, wherever they are in the file."""
        digest = hashlib.blake2b(digest_size=32)
        with self.file.raw() as raw:
            for chunk in raw.row_groups[group].structs(1):
                start, end = chunk_extent(chunk.struct(3))
                digest.update(raw.read(start, end - start))
        return digest.digest()


def _describe_group(raw: ParquetBytes, group: int, path: str) -> Hashable:
    """Return what row groups of the same bytes have in common, without reading these bytes."""
    columns = tuple((column.name, column.elements) for column in raw.schema.columns)
    metas = [chunk.struct(3) for chunk in raw.row_groups[group].structs(1)]
    chunks = tuple(tuple(meta.number(at) for at in (4, 5, 6, 7)) for meta in metas)  # codec, values and sizes
    return os.path.dirname(path), columns, raw.schema.arrow_schema, raw.row_group_rows(group), chunks


@dataclass(slots=True)
class _Sides:
    old: _Side
    new: _Side
    schema: pa.Schema

    @classmethod
    def of(cls, before: VersionFiles, after: VersionFiles) -> _Sides:
        same = _same_files(before, after)
        old, new = (_open_side(snapshot, same) for snapshot in (before, after))
        sides = (old, new) if old.files or new.files else (_first_file(before), _first_file(after))
        files = [(side.location, path, each) for side in reversed(sides) for path, each in side.files.items()]
        schemas = [_plain(each.file.schema) for _, _, each in files]
        in_paths = columns_in_paths([*before.files.directories, *after.files.directories], schemas)
        stored = [_without(schema, in_paths.names) for schema in schemas]
        unified = unify(stored, [each.file.name for *_, each in files]) if files else pa.schema([])
        schema = pa.schema([*unified, *in_paths])
        if CHANGE_COLUMN in schema.names:
            raise SchemaMismatchError(
                f"{before.location.uri!r} has a column {CHANGE_COLUMN!r}, which a diff adds.",
                hint="Rename the column before you compare later versions.",
            )
        for _, path, each in files:
            each.constants = path_values(path, in_paths)
        _skip_equal_groups(old, new)
        return cls(old, new, schema)

    def differing_rows(self) -> tuple[pa.Table, pa.Table]:
        """Return the rows that only the old version has, and those that only the new version has."""
        left: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        for path in dict.fromkeys([*self.old.files, *self.new.files]):
            pair = (self._read(self.old, path), self._read(self.new, path))
            for tables, rows in zip(left, _cancel(*pair), strict=True):
                tables.append(rows)
        return _cancel(*(pa.concat_tables([self.schema.empty_table(), *tables]) for tables in left))

    def _read(self, side: _Side, path: str) -> pa.Table:
        file = side.files.get(path)
        return self.schema.empty_table() if file is None else file.read(self.schema)


def _same_files(before: VersionFiles, after: VersionFiles) -> set[str]:
    """Return the paths of the files that both versions have. A restore makes new links to the same content."""
    found = {file.path: file for file in before.files}
    links = [snapshot.location.objects or {} for snapshot in (before, after)]
    return {
        file.path
        for file in after.files
        if file.path in found and (links[0].get(file.path) == links[1].get(file.path) or found[file.path] == file)
    }


def _open_side(snapshot: VersionFiles, same: set[str]) -> _Side:
    paths = [file.path for file in snapshot.files if file.path not in same]
    return _Side(snapshot.location, {path: _ChangedFile.open(snapshot.location, path) for path in paths})


def _first_file(snapshot: VersionFiles) -> _Side:
    """Return one file, for the schema of versions without differences."""
    paths = snapshot.files.paths[:1]
    return _Side(snapshot.location, {path: _ChangedFile.open(snapshot.location, path) for path in paths})


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return a schema without dictionaries, whose values differ between files, and without metadata."""
    return pa.schema(
        [
            field.with_type(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
            for field in schema.remove_metadata()
        ]
    )


def _without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names])


def _skip_equal_groups(old: _Side, new: _Side) -> None:
    """Skip row groups with the same bytes in both versions. Only groups of the same description are read for this."""
    sides = [[(file, at) for file in side.files.values() for at in range(len(file.identities))] for side in (old, new)]
    described = [{file.identities[at] for file, at in side} for side in sides]
    shared = (described[0] & described[1]) - {None}
    contents: list[dict[Hashable, list[tuple[_ChangedFile, int]]]] = [defaultdict(list), defaultdict(list)]
    for side, content in zip(sides, contents, strict=True):
        for file, at in side:
            if file.identities[at] in shared:
                content[file.identities[at], file.digest(at)].append((file, at))
    for found in contents[0].keys() & contents[1].keys():
        for pair in zip(contents[0][found], contents[1][found], strict=False):  # as many as both versions have
            for file, at in pair:
                file.same.add(at)


# ------------------------------------------------------------------------------------------------------ changed rows
@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows that differ between two versions: first the deletions, then the updates, then the insertions."""

    schema: pa.Schema
    _old: pa.Table
    _new: pa.Table
    _before: Integers  # the positions of updated rows in `_old`, and in `_after` those of the same rows in `_new`
    _after: Integers

    @property
    def deleted(self) -> int:
        return int(self._old.num_rows - len(self._before))

    @property
    def updated(self) -> int:
        return len(self._before)

    @property
    def inserted(self) -> int:
        return int(self._new.num_rows - len(self._after))

    @property
    def num_rows(self) -> int:
        return self.deleted + 2 * self.updated + self.inserted

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows from position `start` to `stop`."""
        for change, rows in self._parts(start, self.num_rows if stop is None else stop):
            table = pa.Table.from_arrays([pa.chunked_array([change]), *rows.columns], schema=self.schema)
            yield from table.to_batches(_BATCH_ROWS)

    def _parts(self, start: int, stop: int) -> Iterator[tuple[pa.Array, pa.Table]]:
        deleted = np.delete(np.arange(self._old.num_rows), self._before)[start:stop]
        yield _repeat("delete", deleted.size), take_rows(self._old, deleted)
        start, stop = max(start - self.deleted, 0), max(stop - self.deleted, 0)
        pairs = np.stack([self._before, self._after + self._old.num_rows], axis=1).reshape(-1)[start:stop]
        kinds = from_texts(["update_before", "update_after"])
        yield kinds.take(from_numpy((np.arange(pairs.size) + start) % 2)), self._take_of_both(pairs)
        start, stop = max(start - 2 * self.updated, 0), max(stop - 2 * self.updated, 0)
        inserted = np.delete(np.arange(self._new.num_rows), self._after)[start:stop]
        yield _repeat("insert", inserted.size), take_rows(self._new, inserted)

    def _take_of_both(self, positions: Integers) -> pa.Table:
        return take_rows(pa.concat_tables([self._old, self._new]), positions)


def compare(before: VersionFiles, after: VersionFiles, key_columns: Sequence[str]) -> Comparison:
    """Compare two versions. Deleted and inserted rows with the same key are updates."""
    sides = _Sides.of(before, after)
    old, new = sides.differing_rows()
    schema = pa.schema([pa.field(CHANGE_COLUMN, pa.string(), nullable=False), *sides.schema])
    return Comparison(schema, old, new, *_updates(old, new, key_columns))


def _cancel(old: pa.Table, new: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Remove the rows that both tables have, as often as both have them."""
    if not old.num_rows or not new.num_rows:
        return old, new
    codes = number_rows(pa.concat_tables([old, new]).columns, old.num_rows + new.num_rows)
    ours, theirs = codes[: old.num_rows], codes[old.num_rows :]
    return take_rows(old, _surplus(ours, theirs)), take_rows(new, _surplus(theirs, ours))


def _surplus(codes: Integers, others: Integers) -> Integers:
    counts = np.bincount(others, minlength=int(codes.max()) + 1)
    return np.flatnonzero(count_earlier(codes) >= counts[codes])


def _repeat(change: str, count: int) -> pa.Array:
    return pa.repeat(from_texts([change])[0], count)


def _updates(old: pa.Table, new: pa.Table, key_columns: Sequence[str]) -> tuple[Integers, Integers]:
    """Return the positions of rows with the same key in both tables. Rows that repeat a key are paired in order."""
    if not key_columns or not set(key_columns) <= set(old.column_names):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows = pa.concat_tables([old, new])
    keys = [canonical_keys(rows.column(name), rows.schema.field(name).type) for name in key_columns]
    codes = number_rows(keys, rows.num_rows)
    has_key = np.logical_and.reduce([to_numpy(column.is_valid()) for column in keys])
    sides = []
    for first, last in ((0, old.num_rows), (old.num_rows, rows.num_rows)):
        sides.append((codes[first:last], count_earlier(codes[first:last]), has_key[first:last]))
    pairs = number_tuples([np.concatenate([side[at] for side in sides]) for at in (0, 1)], rows.num_rows)
    at_old, at_new = np.flatnonzero(sides[0][2]), np.flatnonzero(sides[1][2])
    _, left, right = np.intersect1d(
        pairs[: old.num_rows][at_old], pairs[old.num_rows :][at_new], assume_unique=True, return_indices=True
    )
    return at_old[left], at_new[right]
