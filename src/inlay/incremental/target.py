"""The dataset before a merge: its files, their common schema and their partitions."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.base import Source
from inlay.errors import InvalidArgumentError, UnreadableFileError, did_you_mean
from inlay.parquet.footer_cache import FooterCache, Footers, read_footers
from inlay.parquet.footers import ReadMany
from inlay.parquet.layout import hive_segment, parse_hive_partition_path, typed_partition_value
from inlay.schema import unify
from inlay.storage import FileStat, Location

__all__ = ["ELSEWHERE", "UNKNOWN", "Partitions", "TargetState"]

# Partition numbers of files that are in no partition of the source.
ELSEWHERE = -1  # the source has no row in the file's partition
UNKNOWN = -2  # the path names no value for a partition column
UNREADABLE = -3  # the path names a value that does not fit the column's type


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
            readable = [file for number, file in enumerate(footers.files) if number not in footers.errors]
            footers = read_footers(location, readable, key_columns, cache, read)
        for number, error in sorted(footers.errors.items()):
            raise UnreadableFileError(error, operation="plan", files=[location.display(footers.files[number].path)])
        schema = _dataset_schema(location, footers)
        return cls(location, footers, schema, _partition_columns(footers, partition_columns))

    @property
    def rows(self) -> int:
        return self.footers.total_rows


def _dataset_schema(location: Location, footers: Footers) -> pa.Schema | None:
    if not footers.schemas:
        return None
    firsts = [footers.first_with_schema(number) for number in range(len(footers.schemas))]
    return unify(footers.schemas, [location.display(file.path) for file in firsts])


def _partition_columns(footers: Footers, requested: Sequence[str] | None) -> list[str]:
    """Return the partition columns in the paths. Reject a request that differs from them."""
    found = list(parse_hive_partition_path(footers.files[0].path)) if footers else []
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

    @classmethod
    def of(cls, source: Source, columns: Sequence[str], footers: Footers) -> Partitions:
        types = [source.schema.field(name).type for name in columns]
        values, rows = _numbered([_texts(source.column(name)) for name in columns], source.num_rows)
        _require_spelling(columns, values, types)
        partitions = cls(list(columns), values, rows, {}, types)
        for directory in dict.fromkeys(_directories(footers)) if columns else ():
            known = partitions.values_of(f"{directory}/")
            if known is not None:
                partitions.directories.setdefault(known, directory)
        return partitions

    def values_of(self, path: str) -> tuple[str | None, ...] | None:
        """Return the partition of a file, or None if its path lacks a valid value."""
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

    @property
    def _numbers(self) -> dict[tuple[str | None, ...], int]:
        return {values: number for number, values in enumerate(self.values)}

    def numbers_of(self, footers: Footers) -> npt.NDArray[np.int64]:
        """Return the partition number of each file, or ELSEWHERE, UNKNOWN or UNREADABLE."""
        if not self.columns:
            return np.zeros(len(footers), np.int64)
        numbers = self._numbers
        seen: dict[str, int] = {}
        directories = _directories(footers)
        for directory in dict.fromkeys(directories):
            values = self.values_of(f"{directory}/")
            seen[directory] = self._without_values(directory) if values is None else numbers.get(values, ELSEWHERE)
        return np.fromiter((seen[directory] for directory in directories), np.int64, len(directories))

    def _without_values(self, directory: str) -> int:
        is_complete = len(parse_hive_partition_path(f"{directory}/", self.columns)) == len(self.columns)
        return UNREADABLE if is_complete else UNKNOWN

    def directory(self, number: int) -> str:
        """Return the directory of existing files of a partition, or else a new directory."""
        if not self.columns:
            return ""
        values = self.values[number]
        if values in self.directories:
            return self.directories[values]
        return "/".join(hive_segment(column, value) for column, value in zip(self.columns, values, strict=True))

    def display(self, number: int) -> str:
        return ", ".join(f"{c}={v}" for c, v in zip(self.columns, self.values[number], strict=True))


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


def _directories(footers: Footers) -> list[str]:
    return [posixpath.dirname(file.path) for file in footers.files]


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(pa.string()).dictionary_encode()


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
        indices = [np.asarray(pc.fill_null(chunk.indices, len(values))) for chunk in unified.chunks]
        codes.append(np.concatenate(indices) if indices else np.empty(0, np.int64))
        dictionaries.append([*values, None])
    distinct, numbers = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    tuples = [tuple(d[code] for d, code in zip(dictionaries, row, strict=True)) for row in distinct]
    return tuples, numbers.reshape(-1)
