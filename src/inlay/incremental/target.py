"""The dataset before a merge: its files, their common schema and their partitions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.arrays import to_numpy
from inlay.engines.absence import absence_column
from inlay.engines.base import RowNumbers, Source
from inlay.engines.keys import canonical_keys, canonical_type
from inlay.errors import InvalidArgumentError, SchemaMismatchError, UnreadableFileError, did_you_mean
from inlay.parquet.footer_cache import FooterCache, Footers, read_footers
from inlay.parquet.footers import ReadMany, open_parquet, read_row_group
from inlay.parquet.layout import (
    hive_segments,
    infer_partition_type,
    integer_spellings,
    new_file_extension,
    new_hive_segment,
    parse_hive_partition_path,
    typed_partition_value,
)
from inlay.schema import family, storage_type, unify, without_schema_copies
from inlay.storage import FileStat, Location

__all__ = [
    "ELSEWHERE",
    "Partitions",
    "TargetState",
    "columns_in_paths",
    "path_columns",
    "path_texts",
    "path_values",
]

ELSEWHERE = -1  # the partition number of a file in whose partition the source has no row


@dataclass(slots=True)
class TargetState:
    """The files of a dataset before a merge, with their common schema."""

    location: Location
    footers: Footers
    schema: pa.Schema | None  # None if the dataset has no files
    partition_columns: list[str]

    @classmethod
    def read(
        cls,
        location: Location,
        files: Sequence[FileStat],
        key_columns: Sequence[str],
        partition_columns: Sequence[str] | None,
        cache: FooterCache | None,
        read: ReadMany | None = None,
        *,
        skip_unreadable: bool = False,
    ) -> TargetState:
        """Read the footers of a dataset. `skip_unreadable` leaves out files that cannot be read, unless none can."""
        footers = read_footers(location, files, key_columns, cache, read)
        if skip_unreadable and 0 < len(footers.errors) < len(files):
            readable = footers.files.filter([number not in footers.errors for number in range(len(files))])
            footers = read_footers(location, readable, key_columns, cache, read)
        _require_readable(location, footers)
        columns = _partition_columns(footers, partition_columns)
        stored = [name for name in columns if any(name in schema.names for schema in footers.schemas)]
        if stored:
            footers = _read_again(location, footers, [*key_columns, *stored], cache, read)
        return cls(location, footers, _dataset_schema(location, footers, columns), columns)

    @property
    def rows(self) -> int:
        return self.footers.total_rows

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of the rows: those in files, then those only in paths."""
        schema = pa.schema([]) if self.schema is None else self.schema
        in_paths = [field for field in path_columns(self.footers) if field.name not in schema.names]
        return pa.schema([*schema, *in_paths], schema.metadata)

    def with_ranges(self, columns: Sequence[str], cache: FooterCache | None, read: ReadMany | None) -> TargetState:
        """Return the state with the value ranges of more columns."""
        if set(columns) <= self.footers.ranges.keys():
            return self
        wanted = [*self.footers.ranges, *columns]
        return replace(self, footers=_read_again(self.location, self.footers, wanted, cache, read))

    @property
    def new_file_extension(self) -> str:
        return new_file_extension(self.footers.files.paths)


def _read_again(
    location: Location, footers: Footers, columns: Sequence[str], cache: FooterCache | None, read: ReadMany | None
) -> Footers:
    """Read the value ranges of more columns. A file that was readable before may no longer be."""
    found = read_footers(location, footers.files, columns, cache, read)
    _require_readable(location, found)
    return found


def _require_readable(location: Location, footers: Footers) -> None:
    for number, error in sorted(footers.errors.items()):
        raise UnreadableFileError(error, operation="plan", files=[location.display(footers.files.paths[number])])


def _dataset_schema(location: Location, footers: Footers, partition_columns: Sequence[str]) -> pa.Schema | None:
    """Combine the schemas of all files. Leave out a partition column that only some files store."""
    if not footers.schemas:
        return None
    in_paths = [name for name in partition_columns if any(name not in schema.names for schema in footers.schemas)]
    firsts = [footers.first_with_schema(number) for number in range(len(footers.schemas))]
    schemas = [_without(schema, in_paths) for schema in footers.schemas]
    return unify(schemas, [location.display(file.path) for file in firsts])


def _without(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    if not set(names) & set(schema.names):
        return schema
    return pa.schema([field for field in schema if field.name not in names], without_schema_copies(schema.metadata))


def _partition_columns(footers: Footers, requested: Sequence[str] | None) -> list[str]:
    """Return the partition columns in the paths. Reject a request that differs from them."""
    found = list(parse_hive_partition_path(footers.files.paths[0])) if footers else []
    if requested is None:
        return found
    if footers and not found and requested:
        raise InvalidArgumentError(
            f"The dataset is not partitioned, so new files cannot be partitioned by {', '.join(requested)}.",
            hint="Omit partition_columns, or write the rows to a new dataset.",
        )
    if found and list(requested) != found:
        other = next((name for name in requested if name not in found), None)
        raise InvalidArgumentError(
            f"The dataset is partitioned by {', '.join(found)}, not by {', '.join(requested) or 'nothing'}.",
            hint=did_you_mean(other, found) or "Omit partition_columns to keep the partition columns of the dataset.",
        )
    return list(requested)


def path_columns(footers: Footers) -> pa.Schema:
    """Return the columns in the Hive paths, with the types in the files, or else inferred from all values."""
    return columns_in_paths(footers.files.directories, footers.schemas)


def columns_in_paths(directories: Iterable[str], schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns in the Hive paths, with their types in the schemas, or else inferred from all values."""
    values: dict[str, list[str | None]] = {}
    for directory in dict.fromkeys(directories):
        for name, value in parse_hive_partition_path(f"{directory}/").items():
            values.setdefault(name, []).append(value)
    stored = {field.name: storage_type(field.type) for schema in schemas for field in schema}
    return pa.schema([(name, stored.get(name) or infer_partition_type(texts)) for name, texts in values.items()])


def path_values(path: str, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the values in a path of the columns of a schema, in their types."""
    values = {}
    for name, text in parse_hive_partition_path(path, schema.names).items():
        value = typed_partition_value(text, schema.field(name).type)
        if value is None:
            raise InvalidArgumentError(
                f"The path {path!r} contains {text!r} for the column {name!r}, which is {schema.field(name).type}.",
                hint="Rename the directory, so that it contains a value of the column.",
            )
        values[name] = value
    return values


@dataclass(slots=True)
class Partitions:
    """The numbered partitions of the source rows, and their directories in the dataset.

    Values are parsed as the column's type, then compared as text: the directory `p=01` holds the integer 1.
    """

    columns: list[str]
    values: list[tuple[str | None, ...]]  # by partition number
    rows: npt.NDArray[np.int64]  # the partition number of each source row
    directories: dict[tuple[str | None, ...], str] = field(default_factory=dict)
    _types: list[pa.DataType] = field(default_factory=list)
    _segments: dict[tuple[str, str | None], str] = field(default_factory=dict)  # existing `column=value` by both
    absent: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)  # rows that lack the column at a position

    @classmethod
    def of(cls, source: Source, columns: Sequence[str], footers: Footers) -> Partitions:
        types = [source.schema.field(name).type for name in columns]
        values, rows = _numbered([path_texts(name, source.column(name)) for name in columns], source.num_rows)
        _require_spelling(columns, values, types)
        hidden = [(at, name) for at, name in enumerate(map(absence_column, columns)) if name in source.schema.names]
        absent = {at: to_numpy(source.column(name)) for at, name in hidden}
        partitions = cls(list(columns), values, rows, {}, types, absent=absent)
        for directory in dict.fromkeys(footers.files.directories) if columns else ():
            partitions._add(directory)
        return partitions

    @classmethod
    def of_target(cls, source: Source, target: TargetState) -> Partitions:
        """Return the partitions of a source. Reject paths that programs read differently, now or after the change.

        A source of which only the keys count can lack partition columns.
        """
        _require_one_layout(target)
        columns = [name for name in target.partition_columns if name in source.schema.names]
        partitions = cls.of(source, columns, target.footers)
        directories = list(dict.fromkeys(target.footers.files.directories))
        for position, column in enumerate(columns):
            partitions.require_one_type(column, position, directories)
        for column in target.partition_columns:
            _require_stored_values(target, column)
        return partitions

    def _add(self, directory: str) -> None:
        values = self.values_of(f"{directory}/")
        if values is not None:
            self.directories.setdefault(values, directory)
            segments = hive_segments(f"{directory}/")
            for column, value in zip(self.columns, values, strict=True):
                self._segments.setdefault((column, value), segments[column])

    def require_one_type(self, column: str, position: int, directories: Sequence[str]) -> None:
        """Reject new values that change the type of the paths, or that spell an existing number differently."""
        texts = {values[position] for values in self.values if (column, values[position]) not in self._segments}
        new = {text for text in texts if text is not None}
        existing = {text for d in directories if (text := parse_hive_partition_path(f"{d}/")[column]) is not None}
        type_ = self._types[position]
        if new and existing and not _fits_paths(new, existing, type_):
            raise SchemaMismatchError(
                f"Partition column {column!r} is {type_} in the source, with the new value {min(new)!r}. The paths of"
                f" the dataset contain {infer_partition_type(existing)} values, such as {min(existing)!r}.",
                hint="Convert the source column to the type of the paths.",
            )
        for number, spellings in integer_spellings([*existing, *new]).items():
            if len(spellings) > 1 and new & set(spellings):
                raise InvalidArgumentError(
                    f"Partition column {column!r} contains {' and '.join(map(repr, sorted(spellings)))}. Other programs"
                    f" read both as the number {number} from the paths.",
                    hint="Spell the number in one way, as the paths of the dataset do.",
                )

    def values_of(self, path: str) -> tuple[str | None, ...] | None:
        """Return the partition of a file, or None if its path lacks a value of the column's type."""
        found = parse_hive_partition_path(path, self.columns)
        if len(found) != len(self.columns):
            return None
        values = [typed_partition_value(found[c], t) for c, t in zip(self.columns, self._types, strict=True)]
        if any(value is None for value in values):
            return None
        return tuple(
            value.cast(pa.string()).as_py() if value.is_valid else None for value in values if value is not None
        )

    def constants_of(self, path: str) -> dict[str, pa.Scalar]:
        """Return the typed partition values in a file's path."""
        found = parse_hive_partition_path(path)
        typed = {
            c: typed_partition_value(found[c], t) for c, t in zip(self.columns, self._types, strict=True) if c in found
        }
        return {column: value for column, value in typed.items() if value is not None}

    def numbers_of(self, footers: Footers) -> npt.NDArray[np.int64]:
        """Return the partition number of each file, or ELSEWHERE."""
        if not self.columns:
            return np.zeros(len(footers), np.int64)
        numbers: dict[tuple[str | None, ...] | None, int] = {v: number for number, v in enumerate(self.values)}
        directories = footers.files.directories
        seen = {d: numbers.get(self.values_of(f"{d}/"), ELSEWHERE) for d in dict.fromkeys(directories)}
        return np.fromiter((seen[directory] for directory in directories), np.int64, len(directories))

    def moved_rows(self, rows: RowNumbers, path: str, number: int) -> RowNumbers:
        """Return the source rows, of `rows`, that are in another partition than a file."""
        moved: RowNumbers = rows[self.rows[rows] != number]
        if not self.absent or not len(moved):
            return moved
        stored = self.values_of(path)
        return np.array([row for row in moved.tolist() if self._differs(row, stored)], rows.dtype)

    def _differs(self, row: int, stored: tuple[str | None, ...] | None) -> bool:
        """Return whether a partition column that a source row does not lack has another value."""
        values = self.values[self.rows[row]]
        known = [at for at in range(len(values)) if at not in self.absent or not self.absent[at][row]]
        return stored is None or any(values[at] != stored[at] for at in known)

    def directory(self, number: int) -> str:
        """Return the directory of existing files of a partition, or else a new directory."""
        if not self.columns:
            return ""
        values = self.values[number]
        if values in self.directories:
            return self.directories[values]
        pairs = zip(self.columns, values, strict=True)
        return "/".join(self._segments.get(pair) or new_hive_segment(*pair) for pair in pairs)

    def display(self, number: int) -> str:
        return ", ".join(f"{c}={v}" for c, v in zip(self.columns, self.values[number], strict=True))


def _fits_paths(new: set[str], existing: set[str], type_: pa.DataType) -> bool:
    """Return whether new values of a type leave the type of the existing path values unchanged."""
    if family(type_) == "text":
        return True
    readable = all(typed_partition_value(text, type_) is not None for text in existing)
    return readable and infer_partition_type(existing) == infer_partition_type(existing | new)


def _require_one_layout(target: TargetState) -> None:
    """Reject files outside all partitions, and paths with other partition columns or in another order."""
    columns, files = target.partition_columns, target.footers.files
    for path in dict(zip(files.directories, files.paths, strict=True)).values():
        found = list(parse_hive_partition_path(path))
        if found != columns:
            raise InvalidArgumentError(
                f"The file {target.location.display(path)!r} is partitioned by {', '.join(found) or 'nothing'}, and"
                f" other files of the dataset by {', '.join(columns) or 'nothing'}.",
                hint="Move the file, so that all paths contain the same partition columns in the same order.",
            )


def _require_stored_values(target: TargetState, column: str) -> None:
    """Reject a file that stores another value of a partition column than its path contains."""
    footers = target.footers
    for number, schema in enumerate(footers.schemas):
        if column in schema.names:
            type_ = schema.field(column).type
            lows, highs, _ = footers.bounds(column, canonical_type(type_))
            nulls = footers.ranges[column].nulls
            for at in np.flatnonzero((footers.schema_numbers == number) & (footers.rows > 0)).tolist():
                path = footers.files.paths[at]
                text = parse_hive_partition_path(path)[column]
                value = _canonical(text, type_)
                if value is None or nulls[at].as_py() != 0 or not (lows[at] == highs[at] == value):
                    _require_stored_value(target.location, path, column, text, value)


@functools.lru_cache(1024)
def _canonical(text: str | None, type_: pa.DataType) -> pa.Scalar | None:
    value = typed_partition_value(text, type_)
    return None if value is None else canonical_keys(pa.chunked_array([pa.repeat(value, 1)]), type_)[0]


def _require_stored_value(
    location: Location, path: str, column: str, text: str | None, value: pa.Scalar | None
) -> None:
    """Read a partition column whose statistics do not prove that it stores the value of the path."""
    with open_parquet(location, path) as file:
        metadata = file.metadata
    for group in range(metadata.num_row_groups):
        # pyarrow reads a name with a dot as the path of a nested column.
        stored = read_row_group(location, path, metadata, group, None if "." in column else [column]).column(column)
        for found in canonical_keys(stored, stored.type).unique():
            if value is None or found.as_py() != value.as_py():
                raise InvalidArgumentError(
                    f"The file {location.display(path)!r} stores {found.as_py()!r} in the partition column {column!r},"
                    f" and its path contains {text!r}.",
                    hint="Move the file to the directory of its values, or rewrite it without the column.",
                )


def _require_spelling(
    columns: Sequence[str], values: Sequence[Sequence[str | None]], types: Sequence[pa.DataType]
) -> None:
    """Reject partition columns of a type that cannot be parsed from a path."""
    for position, (column, type_) in enumerate(zip(columns, types, strict=True)):
        value = next((each[position] for each in values if each[position] is not None), None)
        if value is not None and typed_partition_value(value, type_) is None:
            raise InvalidArgumentError(
                f"Column {column!r} cannot be a partition column: {value!r} in a path cannot be parsed as {type_}.",
                hint="Partition by text, whole numbers, dates or timestamps.",
            )


def path_texts(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a partition column as dictionary-encoded text."""
    try:
        return column.cast(pa.string()).dictionary_encode()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatchError(
            f"The partition column {name!r} is {column.type} in the source, and its values cannot be text in a path.",
            hint="Partition by text, whole numbers, dates or timestamps.",
        ) from error


def _numbered(
    columns: Sequence[pa.ChunkedArray], rows: int
) -> tuple[list[tuple[str | None, ...]], npt.NDArray[np.int64]]:
    """Return the distinct tuples of values, and for each row the number of its tuple."""
    if not columns:
        return [()], np.broadcast_to(np.int64(0), rows)  # a view: takes no memory per row
    codes, dictionaries = [], []
    for column in columns:
        unified = column.unify_dictionaries()
        values = unified.chunk(0).dictionary.to_pylist() if unified.num_chunks else []
        indices = [to_numpy(chunk.indices, len(values)) for chunk in unified.chunks]
        codes.append(np.concatenate(indices) if indices else np.empty(0, np.int64))
        dictionaries.append([*values, None])
    distinct, numbers = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    tuples = [tuple(d[code] for d, code in zip(dictionaries, row, strict=True)) for row in distinct]
    return tuples, numbers.reshape(-1)
