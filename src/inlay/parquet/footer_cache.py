"""The footers of a whole dataset, as one table, and that table on disk.

Planning needs, per file, the schema, the row count and the ranges of the key columns. Ten thousand files are ten
thousand rows here and no Python objects, so that planning again costs little more than listing the files. The cache
is keyed by what identifies the bytes (path, size, mtime, inode or etag): only what changed is read.
"""

from __future__ import annotations

import contextlib
import os
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.parquet.footers import ColumnRange, Exactness, Footer, ReadMany, bounds_of, integer_bounds, read_many
from inlay.storage import FileStat, Location

__all__ = ["FooterCache", "Footers", "read_footers"]

_EXACTNESS: tuple[Exactness, ...] = ("unknown", "inexact", "exact")
_EXACT = _EXACTNESS.index("exact")
_UNREADABLE = -1
_WORTH_CACHING = 16
_MAGIC = b"inlay footers 2\n"
# a cache that cannot be read or written, that holds nonsense, or that cannot hold a name that is not Unicode
_TROUBLE = (OSError, pa.ArrowException, ValueError, KeyError, TypeError, OverflowError)


class _Known(NamedTuple):
    """A column's ranges in many files. Bounds are int64, or (b"i" + digits | b"b" + bytes) where that is too narrow."""

    exactness: pa.Array  # index into _EXACTNESS; null: nobody looked
    low: pa.Array
    high: pa.Array
    nulls: pa.Array

    @classmethod
    def of(cls, ranges: Sequence[ColumnRange]) -> _Known:
        return cls(
            pa.array([_EXACTNESS.index(r.exactness) for r in ranges], pa.int8()),
            _packed([r.low for r in ranges]),
            _packed([r.high for r in ranges]),
            pa.array([r.null_count for r in ranges], pa.int64()),
        )

    def __getitem__(self, at: Any) -> ColumnRange:
        code, low, high, nulls = (column[at].as_py() for column in self)
        return ColumnRange(_EXACTNESS[code], _unpacked(low), _unpacked(high), nulls)


def _packed(values: Sequence[int | bytes | None]) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except (pa.ArrowException, OverflowError):
        tagged = [b"b" + v if isinstance(v, bytes) else None if v is None else b"i%d" % v for v in values]
        return pa.array(tagged, pa.large_binary())


def _unpacked(value: int | bytes | None) -> int | bytes | None:
    if not isinstance(value, bytes):
        return value
    return int(value[1:]) if value[:1] == b"i" else value[1:]


class Footers(Sequence[Footer]):
    """The footers of all files of a dataset at one moment, in path order."""

    def __init__(
        self,
        files: Sequence[FileStat],
        rows: np.ndarray,
        groups: np.ndarray,
        schemas: Sequence[pa.Schema],
        schema_numbers: np.ndarray,
        known: dict[str, _Known],
        errors: dict[int, str],
    ) -> None:
        self.files, self.rows, self.groups = files, rows, groups
        self.schemas, self.schema_numbers = list(schemas), schema_numbers
        self.known, self.errors = known, errors

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
            {c: _Known.of([f.ranges.get(c, unknown) for f in footers]) for c in columns},
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
            {column: known[at] for column, known in self.known.items()} if readable else {},
            self.errors.get(int(at) % len(self)),
        )

    @property
    def total_rows(self) -> int:
        return int(self.rows.sum())

    def files_and_rows(self) -> Iterator[tuple[FileStat, int]]:
        return zip(self.files, self.rows.tolist(), strict=True)

    def first_with_schema(self, number: int) -> FileStat:
        return self.files[int(np.argmax(self.schema_numbers == number))]

    def bounds(self, column: str, type_: pa.DataType) -> tuple[pa.Array, pa.Array, np.ndarray]:
        """Lowest and highest value per file in the column's type, and where both are exact."""
        known = self.known[column]
        exact = np.asarray(known.exactness) == _EXACT
        if pa.types.is_int64(known.low.type) and pa.types.is_int64(known.high.type):
            found = integer_bounds(known.low, known.high, exact, type_)
            if found is not None:
                return (*found, exact)
        return bounds_of([known[at] for at in range(len(self))], type_)


# --------------------------------------------------------------------------------------------------- joining two
def _joined(files: Sequence[FileStat], parts: Sequence[tuple[np.ndarray, Footers]]) -> Footers:
    """Footers of some files and footers of the others, in the order of the files."""
    order = np.argsort(np.concatenate([places for places, _ in parts]), kind="stable")
    schemas: list[pa.Schema] = []
    numbers = []
    for _, part in parts:
        places = [_place_of(schema, schemas) for schema in part.schemas]
        numbers.append(np.array([*places, _UNREADABLE], np.int64)[part.schema_numbers])
    return Footers(
        files,
        np.concatenate([part.rows for _, part in parts])[order],
        np.concatenate([part.groups for _, part in parts])[order],
        schemas,
        np.concatenate(numbers)[order],
        {column: _concat([part.known[column] for _, part in parts], order) for column in parts[0][1].known},
        {int(places[at]): error for places, part in parts for at, error in part.errors.items()},
    )


def _place_of(schema: pa.Schema, schemas: list[pa.Schema]) -> int:
    for at, other in enumerate(schemas):
        if other.equals(schema, check_metadata=True):
            return at
    schemas.append(schema)
    return len(schemas) - 1


def _concat(parts: Sequence[_Known], order: np.ndarray) -> _Known:
    columns = zip(*parts, strict=True)
    return _Known(*(pa.concat_arrays(_alike(list(arrays))).take(pa.array(order)) for arrays in columns))


def _alike(arrays: list[pa.Array]) -> list[pa.Array]:
    if len({array.type for array in arrays}) == 1:
        return arrays
    return [a if pa.types.is_large_binary(a.type) else _tagged(a) for a in arrays]


def _tagged(integers: pa.Array) -> pa.Array:
    digits = integers.cast(pa.large_string()).cast(pa.large_binary())
    return pc.binary_join_element_wise(pa.scalar(b"i", pa.large_binary()), digits, pa.scalar(b"", pa.large_binary()))


# ------------------------------------------------------------------------------------------------------- the cache
def read_footers(
    location: Location,
    files: Sequence[FileStat],
    columns: Sequence[str],
    cache: FooterCache | None = None,
    read: ReadMany | None = None,
) -> Footers:
    """The footers of `files` with the ranges of `columns`, from the cache where the bytes are known."""
    found = cache.load(files, columns) if cache else None
    missing = np.arange(len(files)) if found is None else np.flatnonzero(~found[0])
    if found is not None and not len(missing):
        return found[1]
    wanted = [files[at] for at in missing.tolist()]
    fresh = Footers.of((read or read_many)(location, wanted, columns) if wanted else [], columns)
    footers = fresh if found is None else _joined(files, [(np.flatnonzero(found[0]), found[1]), (missing, fresh)])
    if cache:
        cache.save(footers)
    return footers


class FooterCache:
    """Footers on disk. Losing them costs time, never correctness: any trouble means "not cached"."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self, files: Sequence[FileStat], columns: Sequence[str]) -> tuple[np.ndarray, Footers] | None:
        """Which files are known with the ranges of `columns`, and their footers; None where that is nothing."""
        if not files or not os.path.exists(self.path):
            return None
        try:
            return _find(self._read(), files, list(dict.fromkeys(columns)))
        except _TROUBLE:
            self.forget()
            return None

    def save(self, footers: Footers) -> None:
        """Remember the footers of a dataset, and what was known of other columns of the same bytes."""
        if len(footers) < _WORTH_CACHING and not os.path.exists(self.path):
            return
        try:
            table = _as_table(footers)
            if os.path.exists(self.path):
                table = _with_other_columns(table, self._read())
            self._write(table)
        except _TROUBLE:
            self.forget()

    def _read(self) -> pa.Table:
        with open(self.path, "rb") as file:
            content = file.read()
        body = memoryview(content)[len(_MAGIC) + 4 :]
        stated = content[len(_MAGIC) : len(_MAGIC) + 4]
        if not content.startswith(_MAGIC) or zlib.crc32(body) != int.from_bytes(stated, "big"):
            raise ValueError("not what was written")
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

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path)


# ------------------------------------------------------------------------------------------- the table in the cache
_IDENTITY = ("path", "size", "mtime_ns", "tag")
_PARTS = _Known._fields


def _check(table: pa.Table) -> None:
    numbers = [table.column(name) for name in ("rows", "groups", "schema")]
    if any(column.type != pa.int64() or column.null_count for column in numbers):
        raise TypeError("not what this version writes")
    if len(table) and not 0 <= pc.max(numbers[2]).as_py() < len(table.schema.metadata or ()):
        raise ValueError("schemas are missing")


def _identity(files: Sequence[FileStat]) -> dict[str, pa.Array]:
    return {name: pa.array(values) for name, values in zip(_IDENTITY, zip(*files, strict=True), strict=True)}


def _as_table(footers: Footers) -> pa.Table:
    readable = np.flatnonzero(footers.schema_numbers != _UNREADABLE)
    files = footers.files if len(readable) == len(footers) else [footers.files[at] for at in readable.tolist()]
    columns = _identity(files) | {
        "rows": pa.array(footers.rows[readable]),
        "groups": pa.array(footers.groups[readable]),
        "schema": pa.array(footers.schema_numbers[readable]),
    }
    for column, known in footers.known.items():
        columns |= {f"{part}:{column}": values.take(pa.array(readable)) for part, values in known._asdict().items()}
    schemas = {b"%d" % at: schema.serialize().to_pybytes() for at, schema in enumerate(footers.schemas)}
    return pa.table(columns).replace_schema_metadata(schemas)


def _same_bytes(files: dict[str, pa.Array], cached: pa.Table) -> tuple[np.ndarray, pa.Array]:
    """Which files the cache knows, and the row of each there."""
    paths = cached.column("path").combine_chunks()
    if paths.equals(files["path"]):
        rows = pa.array(np.arange(len(paths)))
        there = cached
    else:
        rows = pc.index_in(files["path"], paths)
        there = cached.select(_IDENTITY).take(rows)
    same = [pc.equal(files[name], there.column(name)).fill_null(False).to_numpy() for name in _IDENTITY[1:]]
    return np.logical_and.reduce([np.asarray(rows.is_valid()), *same]), rows


def _used(schemas: Sequence[pa.Schema], numbers: np.ndarray) -> tuple[list[pa.Schema], np.ndarray]:
    """The schemas that some of the files have, and the numbers of those: files that are gone leave none behind."""
    used = np.unique(numbers[numbers != _UNREADABLE])
    places = np.full(len(schemas) + 1, _UNREADABLE)
    places[used] = np.arange(len(used))
    return [schemas[number] for number in used], places[numbers]


def _find(cached: pa.Table, files: Sequence[FileStat], columns: Sequence[str]) -> tuple[np.ndarray, Footers] | None:
    if not {f"exactness:{column}" for column in columns} <= set(cached.column_names):
        return None
    known, rows = _same_bytes(_identity(files), cached)
    for column in columns:
        known &= cached.column(f"exactness:{column}").take(rows).is_valid().to_numpy()
    everything = known.all() and len(files) == len(cached)
    mine = cached if everything else cached.take(rows.filter(pa.array(known)))
    schemas, numbers = _used(_schemas_in(cached), mine.column("schema").to_numpy())
    return known, Footers(
        files if everything else [file for file, is_known in zip(files, known, strict=True) if is_known],
        mine.column("rows").to_numpy(),
        mine.column("groups").to_numpy(),
        schemas,
        numbers,
        {c: _Known(*(mine.column(f"{part}:{c}").combine_chunks() for part in _PARTS)) for c in columns},
        {},
    )


def _schemas_in(cached: pa.Table) -> list[pa.Schema]:
    stored = cached.schema.metadata or {}
    return [pa.ipc.read_schema(pa.py_buffer(stored[b"%d" % at])) for at in range(len(stored))]


def _with_other_columns(table: pa.Table, before: pa.Table) -> pa.Table:
    """Ranges of columns that this merge did not ask for, where the bytes are the same."""
    same, rows = _same_bytes({name: table.column(name).combine_chunks() for name in _IDENTITY}, before)
    rows = pc.if_else(pa.array(same), rows.cast(pa.int64()), None)
    metadata = table.schema.metadata
    for name in before.column_names:
        if ":" in name and name not in table.column_names:
            table = table.append_column(name, before.column(name).take(rows))
    return table.replace_schema_metadata(metadata)
