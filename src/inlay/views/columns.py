"""The columns of a version: their types, their partition values, and statistics of them in each file."""

from __future__ import annotations

import base64
import decimal
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa

from inlay.errors import InvalidArgumentError, SchemaMismatchError, UnreadableFileError
from inlay.parquet.footer_cache import Footers, read_footers
from inlay.parquet.layout import infer_partition_type, parse_hive_partition_path, typed_partition_value
from inlay.schema import storage_type, unify, without_schema_copies
from inlay.storage import FileStat, Location
from inlay.views import DataFile

__all__ = ["MAX_STATISTICS", "Shape", "Statistics", "Value", "partition_values", "plain_values", "read_statistics"]

MAX_STATISTICS = 32  # columns, as in Delta Lake
Value: TypeAlias = int | str | decimal.Decimal
_READ_AT_ONCE = 10_000


@dataclass(slots=True)
class Shape:
    """The schemas and the kinds of partition values of a version, each with the number of its files.

    It changes with the files that a commit adds and removes, so that a commit need not read the other footers.
    """

    schemas: Counter[str] = field(default_factory=Counter)  # by schema as text
    kinds: dict[str, Counter[str]] = field(default_factory=dict)  # by partition column, then by kind of value

    @classmethod
    def load(cls, content: dict[str, Any]) -> Shape:
        return cls(Counter(content["schemas"]), {name: Counter(kinds) for name, kinds in content["kinds"].items()})

    def dump(self) -> dict[str, Any]:
        return {"schemas": dict(self.schemas), "kinds": {name: dict(kinds) for name, kinds in self.kinds.items()}}

    def changed(self, location: Location, added: Sequence[DataFile], removed: Sequence[DataFile]) -> Shape:
        """Return the shape after a commit."""
        shape = Shape.load(self.dump())
        shape.count(location, removed, -1)
        shape.count(location, added, 1)
        return shape

    def count(self, location: Location, files: Sequence[DataFile], sign: int) -> None:
        """Add or subtract files."""
        for part in _parts(files):
            footers = _read_footers(location, part, [])
            for number, schema in enumerate(footers.schemas):
                self.schemas[_encode(schema)] += sign * int((footers.schema_numbers == number).sum())
        self.schemas = +self.schemas
        for file in files:
            for name, text in parse_hive_partition_path(file.path).items():
                kinds = self.kinds.setdefault(name, Counter())
                kinds[_kind(text)] += sign
        self.kinds = {name: +kinds for name, kinds in self.kinds.items() if +kinds}

    @property
    def partition_columns(self) -> list[str]:
        files = self.schemas.total()
        for name, kinds in self.kinds.items():
            if kinds.total() != files:
                raise InvalidArgumentError(
                    f"Some files of the dataset are in directories of the partition column {name!r}, and others"
                    " are not, so it cannot be published as one table.",
                    hint="Move the files, so that all paths contain the same partition columns.",
                )
        return list(self.kinds)

    def schema(self) -> pa.Schema:
        """Return the columns of the dataset: those in files, then those only in paths."""
        schemas = [_decode(text) for text in self.schemas]
        partitions = self.partition_columns
        partial = [name for name in partitions if any(name not in schema.names for schema in schemas)]
        names = [f"file {number + 1}" for number in range(len(schemas))]
        stored = unify([_without(schema, partial) for schema in schemas], names) if schemas else pa.schema([])
        in_files = {field.name: storage_type(field.type) for schema in schemas for field in schema}
        types = {name: in_files.get(name) or _inferred_type(self.kinds[name]) for name in partitions}
        return pa.schema([*stored, *((name, types[name]) for name in partitions if name not in stored.names)])

    def require_one_type(self, schema: pa.Schema, convert: Callable[[pa.DataType], Any], format_: str) -> None:
        """Reject files whose types are not all those of the table, because readers would convert them differently."""
        for text in self.schemas:
            for each in _decode(text):
                if convert(each.type) != convert(schema.field(each.name).type):
                    raise SchemaMismatchError(
                        f"The column {each.name!r} is {each.type} in some files and {schema.field(each.name).type} in"
                        f" others, so it cannot be published as {format_}.",
                        hint="Run inlay.alter(path, widen={column: type}) to store it in one type.",
                    )


_SAMPLES = {"integer": "1", "date": "2024-01-01", "text": "text"}


def _kind(text: str | None) -> str:
    if text is None:
        return "null"
    type_ = infer_partition_type([text])
    return "integer" if pa.types.is_integer(type_) else "date" if pa.types.is_date(type_) else "text"


def _inferred_type(kinds: Iterable[str]) -> pa.DataType:
    return infer_partition_type([_SAMPLES[kind] for kind in kinds if kind != "null"])


def _without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in names], without_schema_copies(schema.metadata))


def _encode(schema: pa.Schema) -> str:
    return base64.b64encode(zlib.compress(schema.remove_metadata().serialize())).decode()


def _decode(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(zlib.decompress(base64.b64decode(text))))


def _parts(files: Sequence[DataFile]) -> Iterator[Sequence[DataFile]]:
    return (files[at : at + _READ_AT_ONCE] for at in range(0, len(files), _READ_AT_ONCE))


def _read_footers(location: Location, files: Sequence[DataFile], columns: Sequence[str]) -> Footers:
    footers = read_footers(location, [FileStat(file.name, file.size, file.mtime_ns, 0) for file in files], columns)
    for at, error in footers.errors.items():
        raise UnreadableFileError(error, operation="publish", files=[files[at].path])
    return footers


def partition_values(file: DataFile, schema: pa.Schema, columns: Sequence[str]) -> dict[str, pa.Scalar]:
    """Return the values in the path of a file, in the types of the columns."""
    values = {}
    for name, text in parse_hive_partition_path(file.path, columns).items():
        value = typed_partition_value(text, schema.field(name).type)
        if value is None:
            raise InvalidArgumentError(
                f"The path {file.path!r} contains {text!r} for the column {name!r} of type {schema.field(name).type}.",
                hint="Rename the directory, so that it contains a value of the column.",
            )
        values[name] = value
    return values


@dataclass(frozen=True, slots=True)
class Statistics:
    """The rows of a file, and of some columns the NULLs and the exact bounds, as far as the footer tells them."""

    rows: int
    nulls: dict[str, int]
    bounds: dict[str, tuple[Value, Value]]  # days or microseconds since 1970 for dates and timestamps


def read_statistics(
    location: Location, files: Sequence[DataFile], schema: pa.Schema, exclude: Sequence[str]
) -> Iterator[Statistics]:
    """Read the statistics of files from their footers.

    Bounds of floats are left out: footers do not tell which files contain NaN, and readers that prune by the bounds
    of the other values would lose the rows with NaN.
    """
    fields = [field for field in schema if field.name not in exclude and not pa.types.is_nested(field.type)]
    fields = fields[:MAX_STATISTICS]
    names = [field.name for field in fields]
    for part in _parts(files):
        footers = _read_footers(location, part, names)
        nulls = {name: footers.ranges[name].nulls.to_pylist() for name in names}
        bounds = {field.name: found for field in fields if (found := _bounds(footers, field))}
        for at, rows in enumerate(footers.rows.tolist()):
            yield Statistics(
                rows,
                {name: counts[at] for name, counts in nulls.items() if counts[at] is not None},
                {name: pair for name, pairs in bounds.items() if (pair := pairs[at]) is not None},
            )


def _bounds(footers: Footers, column: pa.Field) -> list[tuple[Value, Value] | None] | None:
    """Return the lowest and the highest value of a column in each file. Return None for types without such bounds."""
    type_ = storage_type(column.type)
    is_text = any(matches(type_) for matches in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))
    if not (is_text or any(matches(type_) for matches in _BOUNDED)):
        return None
    lows, highs, exact = footers.bounds(column.name, pa.large_string() if is_text else type_)
    pairs = zip(plain_values(lows), plain_values(highs), exact.tolist(), strict=True)
    return [(low, high) if is_exact and low is not None else None for low, high, is_exact in pairs]


_BOUNDED = (pa.types.is_integer, pa.types.is_decimal, pa.types.is_date32, pa.types.is_timestamp)


_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def plain_values(array: pa.Array) -> list[Any]:
    """Return values as Python values, dates and timestamps as days and microseconds since 1970."""
    if pa.types.is_timestamp(array.type):
        scale = _MICROSECONDS[array.type.unit]
        return [None if value is None else value * scale for value in array.view(pa.int64()).to_pylist()]
    plain = array.view(pa.int32()) if pa.types.is_date32(array.type) else array
    return list(plain.to_pylist())
