"""The footers of a whole dataset as one table, and the cache of that table on disk.

Planning needs the schema, the row count and the ranges of the key columns of each file. The table has one row per file
and no Python objects, so planning again costs little more than listing the files. A cached footer is valid while the
path, size, modification time and inode or ETag of its file are the same.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_binary, from_integers, from_numpy, from_texts, to_numpy
from inlay.parquet.footers import ColumnRange, Exactness, Footer, ReadMany, bound_arrays, integer_bounds, read_many
from inlay.storage import FileStat, Listing, Location

__all__ = ["FooterCache", "Footers", "read_footers"]

_EXACTNESS: tuple[Exactness, ...] = ("unknown", "inexact", "exact")
_EXACT = _EXACTNESS.index("exact")
_UNREADABLE = -1
_WORTH_CACHING = 16
_MAGIC = b"inlay footers 3\n"
# The cache cannot be read or written, is damaged, or cannot store a file name that is not Unicode.
_CACHE_ERRORS = (OSError, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError)


class _Ranges(NamedTuple):
    """The ranges of a column in many files.

    Bounds are int64. If int64 is too narrow, they are b"i" + digits for integers and b"b" + bytes for bytes.
    """

    exactness: pa.Array  # index into _EXACTNESS; null if the range was never read
    low: pa.Array
    high: pa.Array
    nulls: pa.Array

    @classmethod
    def of(cls, ranges: Sequence[ColumnRange]) -> _Ranges:
        return cls(
            from_integers([_EXACTNESS.index(r.exactness) for r in ranges], pa.int8()),
            _pack([r.low for r in ranges]),
            _pack([r.high for r in ranges]),
            from_integers([r.null_count for r in ranges], pa.int64()),
        )

    def at(self, index: int) -> ColumnRange:
        code, low, high, nulls = (column[index].as_py() for column in self)
        return ColumnRange(_EXACTNESS[code], _unpack(low), _unpack(high), nulls)


def _pack(values: Sequence[int | bytes | None]) -> pa.Array:
    try:
        return from_integers(values, pa.int64())
    except (OverflowError, TypeError):
        tagged = [b"b" + v if isinstance(v, bytes) else None if v is None else b"i%d" % v for v in values]
        return from_binary(tagged)


def _unpack(value: int | bytes | None) -> int | bytes | None:
    if not isinstance(value, bytes):
        return value
    return int(value[1:]) if value[:1] == b"i" else value[1:]


class Footers(Sequence[Footer]):
    """The footers of all files of one snapshot of a dataset, sorted by path."""

    def __init__(
        self,
        files: Iterable[FileStat],
        rows: npt.NDArray[np.int64],
        groups: npt.NDArray[np.int64],
        schemas: Sequence[pa.Schema],
        schema_numbers: npt.NDArray[np.int64],
        ranges: dict[str, _Ranges],
        errors: dict[int, str],
    ) -> None:
        self.files, self.rows, self.groups = Listing.of(files), rows, groups
        self.schemas, self.schema_numbers = list(schemas), schema_numbers
        self.ranges, self.errors = ranges, errors

    @classmethod
    def of(cls, footers: Sequence[Footer], columns: Sequence[str]) -> Footers:
        numbers: dict[int, int] = {}
        schemas: list[pa.Schema] = []
        for footer in footers:
            if footer.schema is not None and id(footer.schema) not in numbers:
                numbers[id(footer.schema)] = len(schemas)
                schemas.append(footer.schema)
        unknown = ColumnRange("unknown")
        return cls(
            [f.file for f in footers],
            np.array([f.rows for f in footers], np.int64),
            np.array([f.groups for f in footers], np.int64),
            schemas,
            np.array([_UNREADABLE if f.schema is None else numbers[id(f.schema)] for f in footers], np.int64),
            {c: _Ranges.of([f.ranges.get(c, unknown) for f in footers]) for c in columns},
            {at: f.error for at, f in enumerate(footers) if f.error is not None},
        )

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Footer]:
        return (self[at] for at in range(len(self)))

    def __getitem__(self, at: Any) -> Any:
        number = int(self.schema_numbers[at])
        readable = number != _UNREADABLE
        return Footer(
            self.files[at],
            int(self.rows[at]),
            int(self.groups[at]),
            self.schemas[number] if readable else None,
            {column: ranges.at(at) for column, ranges in self.ranges.items()} if readable else {},
            self.errors.get(int(at) % len(self)),
        )

    @property
    def total_rows(self) -> int:
        return int(self.rows.sum())

    def files_and_rows(self) -> Iterator[tuple[FileStat, int]]:
        return zip(self.files, self.rows.tolist(), strict=True)

    def first_with_schema(self, number: int) -> FileStat:
        return self.files[int(np.argmax(self.schema_numbers == number))]

    def bounds(self, column: str, type_: pa.DataType) -> tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]:
        """Return lows and highs per file in the column's type, and a mask of the exact ranges."""
        ranges = self.ranges[column]
        exact = to_numpy(ranges.exactness, _UNREADABLE) == _EXACT
        if pa.types.is_int64(ranges.low.type) and pa.types.is_int64(ranges.high.type):
            found = integer_bounds(ranges.low, ranges.high, exact, type_)
            if found is not None:
                return (*found, exact)
        return bound_arrays([ranges.at(index) for index in range(len(self))], type_)


# -------------------------------------------------------------------------------------------------------- joining
def _join(files: Sequence[FileStat], parts: Sequence[tuple[npt.NDArray[np.int64], Footers]]) -> Footers:
    """Join footers, each part with the positions of its files, in the order of the files."""
    order = np.argsort(np.concatenate([positions for positions, _ in parts]), kind="stable")
    schemas: list[pa.Schema] = []
    numbers = []
    for _, part in parts:
        indexes = [_index_of(schema, schemas) for schema in part.schemas]
        numbers.append(np.array([*indexes, _UNREADABLE], np.int64)[part.schema_numbers])
    return Footers(
        files,
        np.concatenate([part.rows for _, part in parts])[order],
        np.concatenate([part.groups for _, part in parts])[order],
        schemas,
        np.concatenate(numbers)[order],
        {column: _concat([part.ranges[column] for _, part in parts], order) for column in parts[0][1].ranges},
        {int(positions[at]): error for positions, part in parts for at, error in part.errors.items()},
    )


def _index_of(schema: pa.Schema, schemas: list[pa.Schema]) -> int:
    """Return the index of a schema in a list. Append it if it is not in the list."""
    for index, other in enumerate(schemas):
        if other.equals(schema, check_metadata=True):
            return index
    schemas.append(schema)
    return len(schemas) - 1


def _concat(parts: Sequence[_Ranges], order: npt.NDArray[np.int64]) -> _Ranges:
    columns = zip(*parts, strict=True)
    return _Ranges(*(pa.concat_arrays(_with_one_type(list(arrays))).take(from_numpy(order)) for arrays in columns))


def _with_one_type(arrays: list[pa.Array]) -> list[pa.Array]:
    if len({array.type for array in arrays}) == 1:
        return arrays
    return [a if pa.types.is_large_binary(a.type) else _tag_integers(a) for a in arrays]


def _tag_integers(integers: pa.Array) -> pa.Array:
    digits = integers.cast(pa.large_string()).cast(pa.large_binary())
    return pc.binary_join_element_wise(pa.scalar(b"i", pa.large_binary()), digits, pa.scalar(b"", pa.large_binary()))


# ---------------------------------------------------------------------------------------------------------- cache
def read_footers(
    location: Location,
    files: Sequence[FileStat],
    columns: Sequence[str],
    cache: FooterCache | None = None,
    read: ReadMany | None = None,
) -> Footers:
    """Return the footers of `files` with the ranges of `columns`, from the cache where it is valid."""
    found = cache.load(files, columns) if cache else None
    missing = np.arange(len(files)) if found is None else np.flatnonzero(~found[0])
    if found is not None and not len(missing):
        return found[1]
    unread = [files[at] for at in missing.tolist()]
    fresh = Footers.of((read or read_many)(location, unread, columns) if unread else [], columns)
    footers = fresh if found is None else _join(files, [(np.flatnonzero(found[0]), found[1]), (missing, fresh)])
    if cache:
        cache.save(footers)
    return footers


class FooterCache:
    """Footers on disk. A cache that is lost or damaged costs time, never correctness."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self, files: Sequence[FileStat], columns: Sequence[str]) -> tuple[npt.NDArray[np.bool_], Footers] | None:
        """Return a mask of the cached files and their footers, or None if nothing is cached."""
        if not files or not os.path.exists(self.path):
            return None
        try:
            return _find(self._read(), Listing.of(files), list(dict.fromkeys(columns)))
        except _CACHE_ERRORS:
            self.delete()
            return None

    def save(self, footers: Footers) -> None:
        """Store the footers of a dataset. Keep cached ranges of other columns that are still valid."""
        if len(footers) < _WORTH_CACHING and not os.path.exists(self.path):
            return
        if len(footers.errors) == len(footers):
            self.delete()
            return
        try:
            table = _as_table(footers)
            if os.path.exists(self.path):
                table = _with_other_columns(table, self._read())
            self._write(table)
        except _CACHE_ERRORS:
            self.delete()

    def _read(self) -> pa.Table:
        with open(self.path, "rb") as file:
            content = file.read()
        body = memoryview(content)[len(_MAGIC) + 4 :]
        checksum = content[len(_MAGIC) : len(_MAGIC) + 4]
        if not content.startswith(_MAGIC) or zlib.crc32(body) != int.from_bytes(checksum, "big"):
            raise ValueError("the cache is damaged")
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all().combine_chunks()
        _check(table)
        return table

    def _write(self, table: pa.Table) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        body = sink.getvalue()
        unfinished = f"{self.path}-{uuid.uuid4().hex}"
        try:
            with open(unfinished, "xb") as file:
                file.write(_MAGIC + zlib.crc32(body).to_bytes(4, "big"))
                file.write(body)
            os.replace(unfinished, self.path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)


# --------------------------------------------------------------------------------------------------- cached table
_IDENTITY = ("path", "size", "mtime_ns", "tag")
_PARTS = _Ranges._fields


def _check(table: pa.Table) -> None:
    numbers = [table.column(name) for name in ("rows", "groups", "schema")]
    if any(column.type != pa.int64() or column.null_count for column in numbers):
        raise TypeError("another version of inlay wrote the cache")
    if len(table) and not 0 <= pc.max(numbers[2]).as_py() < len(table.schema.metadata or ()):
        raise ValueError("the cache lacks a schema")


def _identity(files: Listing) -> dict[str, pa.Array]:
    return {name: _identities(values) for name, values in zip(_IDENTITY, files.columns, strict=True)}


def _identities(values: Sequence[Any]) -> pa.Array:
    if not isinstance(values[0], str):
        try:
            return from_numpy(np.fromiter(values, np.int64, len(values)))
        except OverflowError:  # The inodes of some network filesystems use all 64 bits.
            return from_numpy(np.fromiter(values, np.uint64, len(values)).view(np.int64))
    joined = "".join(values)
    if not joined.isascii():
        return from_texts(values)
    ends = np.cumsum(np.fromiter(map(len, ("", *values)), np.int64, len(values) + 1))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(joined.encode())]
    return pa.Array.from_buffers(pa.large_string(), len(values), buffers).cast(pa.string())


def _as_table(footers: Footers) -> pa.Table:
    readable = np.flatnonzero(footers.schema_numbers != _UNREADABLE)
    files = footers.files.filter((footers.schema_numbers != _UNREADABLE).tolist())
    columns = _identity(files) | {
        "rows": from_numpy(footers.rows[readable]),
        "groups": from_numpy(footers.groups[readable]),
        "schema": from_numpy(footers.schema_numbers[readable]),
    }
    for column, ranges in footers.ranges.items():
        columns |= {f"{part}:{column}": values.take(from_numpy(readable)) for part, values in ranges._asdict().items()}
    schemas = {b"%d" % at: schema.serialize().to_pybytes() for at, schema in enumerate(footers.schemas)}
    return pa.table(columns).replace_schema_metadata(schemas)


def _same_bytes(files: dict[str, pa.Array], cached: pa.Table) -> tuple[npt.NDArray[np.bool_], pa.Array]:
    """Return a mask of the files whose content is cached, and the cached row of each file."""
    paths = cached.column("path").combine_chunks()
    if paths.equals(files["path"]):
        rows = from_numpy(np.arange(len(paths)))
        identity = cached
    else:
        rows = pc.index_in(files["path"], paths)
        identity = cached.select(_IDENTITY).take(rows)
    same = [to_numpy(pc.equal(files[name], identity.column(name)), False) for name in _IDENTITY[1:]]
    return np.logical_and.reduce([to_numpy(rows.is_valid()), *same]), rows


def _drop_unused(
    schemas: Sequence[pa.Schema], numbers: npt.NDArray[np.int64]
) -> tuple[list[pa.Schema], npt.NDArray[np.int64]]:
    """Drop schemas that no file uses, and renumber the remaining schemas."""
    used = np.unique(numbers[numbers != _UNREADABLE])
    renumbered = np.full(len(schemas) + 1, _UNREADABLE)
    renumbered[used] = np.arange(len(used))
    return [schemas[number] for number in used], renumbered[numbers]


def _find(cached: pa.Table, files: Listing, columns: Sequence[str]) -> tuple[npt.NDArray[np.bool_], Footers] | None:
    if not {f"exactness:{column}" for column in columns} <= set(cached.column_names):
        return None
    known, rows = _same_bytes(_identity(files), cached)
    for column in columns:
        known &= to_numpy(cached.column(f"exactness:{column}").take(rows).is_valid())
    everything = known.all() and len(files) == len(cached)
    found = cached if everything else cached.take(rows.filter(from_numpy(known)))
    schemas, numbers = _drop_unused(_schemas_in(cached), to_numpy(found.column("schema")))
    return known, Footers(
        files if everything else files.filter(known.tolist()),
        to_numpy(found.column("rows")),
        to_numpy(found.column("groups")),
        schemas,
        numbers,
        {c: _Ranges(*(found.column(f"{part}:{c}").combine_chunks() for part in _PARTS)) for c in columns},
        {},
    )


def _schemas_in(cached: pa.Table) -> list[pa.Schema]:
    stored = cached.schema.metadata or {}
    return [pa.ipc.read_schema(pa.py_buffer(stored[b"%d" % at])) for at in range(len(stored))]


def _with_other_columns(table: pa.Table, before: pa.Table) -> pa.Table:
    """Add the cached ranges of columns that this merge did not read, for unchanged files."""
    same, rows = _same_bytes({name: table.column(name).combine_chunks() for name in _IDENTITY}, before)
    rows = pc.if_else(from_numpy(same), rows.cast(pa.int64()), pa.nulls(len(rows), pa.int64()))
    metadata = table.schema.metadata
    for name in before.column_names:
        if ":" in name and name not in table.column_names:
            table = table.append_column(name, before.column(name).take(rows))
    return table.replace_schema_metadata(metadata)
