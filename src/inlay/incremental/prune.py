"""Pruning: which files can contain source keys.

Partition values and footer statistics exclude files without reading data. Reading the key columns confirms the rest.
A file is excluded only if it provably contains no source key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.commit.snapshot import read_consistently
from inlay.engines.base import Target
from inlay.engines.keys import KeyIndex, KeyRanges, canonical_keys, canonical_type
from inlay.engines.local import ArrowEngine
from inlay.engines.source import load_source
from inlay.errors import SchemaMismatchError
from inlay.incremental.validate import normalize_keys, require_columns
from inlay.parquet.footer_cache import Footers
from inlay.parquet.footers import column_ranges, merge_ranges, open_parquet, python_range
from inlay.parquet.layout import parse_hive_partition_path, typed_partition_value
from inlay.schema import lossless_cast
from inlay.storage import FileStat, Filesystem, Location, locate

__all__ = [
    "ConservativeMembershipChecker",
    "ParquetFileMetadata",
    "ParquetMetadataAnalyzer",
    "PartitionPruner",
    "RowGroupMetadata",
    "SourceKeys",
    "confirm_affected_files",
    "possible_files",
]

SourceKeys: TypeAlias = "pa.Table | pa.Array | pa.ChunkedArray | Sequence[Any]"


# ------------------------------------------------------------------------------------------------------- metadata
@dataclass(slots=True)
class RowGroupMetadata:
    """The row count, size and column statistics of one row group.

    Attributes:
        rows: The number of rows.
        size_bytes: The compressed size.
        column_stats: For each column a dict with `min`, `max`, `null_count` and `exactness`.

    Example:
        >>> import inlay
        >>> from inlay.incremental import ParquetMetadataAnalyzer
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> [file] = ParquetMetadataAnalyzer().analyze_dataset_files("people")
        >>> file.row_groups[0].column_stats["id"]["max"]
        2
    """

    rows: int
    size_bytes: int
    column_stats: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class ParquetFileMetadata:
    """The metadata of one data file: row count, statistics and partition values.

    Attributes:
        path: The path of the file.
        row_group_count: The number of row groups.
        total_rows: The number of rows.
        column_stats: For each column a dict with `min`, `max`, `null_count` and `exactness`. Only statistics whose
            exactness is `"exact"` can exclude the file.
        partition_values: The values in the path, as text, by partition column. NULL is None.
        row_groups: The metadata of each row group.
        size_bytes: The size of the file.
        error: Why the footer cannot be read; None if it can.

    Example:
        >>> import inlay
        >>> from inlay.incremental import ParquetMetadataAnalyzer
        >>> inlay.write_dataset({"id": [1, 2], "day": ["mon", "mon"]}, "days", partition_columns="day").row_count
        2
        >>> [file] = ParquetMetadataAnalyzer().analyze_dataset_files("days")
        >>> file.total_rows, file.partition_values, file.column_stats["id"]["min"]
        (2, {'day': 'mon'}, 1)
    """

    path: str
    row_group_count: int
    total_rows: int
    column_stats: dict[str, dict[str, Any]]
    partition_values: dict[str, Any] | None = None
    row_groups: list[RowGroupMetadata] = field(default_factory=list)
    size_bytes: int | None = None
    error: str | None = None


class ParquetMetadataAnalyzer:
    """A reader of footers for planning.

    Example:
        >>> import inlay
        >>> from inlay.incremental import ParquetMetadataAnalyzer
        >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
        2
        >>> [file] = ParquetMetadataAnalyzer().analyze_dataset_files("people")
        >>> file.row_group_count, file.total_rows
        (1, 2)
    """

    def analyze_dataset_files(
        self, dataset_path: str | os.PathLike[str], filesystem: Filesystem | None = None
    ) -> list[ParquetFileMetadata]:
        """Read the footers of all files of a dataset.

        Args:
            dataset_path: The directory of the dataset.
            filesystem: An fsspec or pyarrow filesystem that holds `dataset_path`.

        Returns:
            The metadata of each file, in path order. A file with an unreadable footer has an `error` and no
            statistics.

        Raises:
            InvalidArgumentError: `dataset_path` is not a valid path or URL.
            ConcurrentModificationError: The dataset changes faster than it can be read.
        """
        location = locate(dataset_path, filesystem)
        return read_consistently(location, self._analyze_all)

    def _analyze_all(self, location: Location, files: Sequence[FileStat]) -> list[ParquetFileMetadata]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8, "inlay-footers") as pool:
            return list(pool.map(lambda file: self._analyze(location, file), files))

    def _analyze(self, location: Location, file: FileStat) -> ParquetFileMetadata:
        path, partitions = location.display(file.path), parse_hive_partition_path(file.path)
        try:
            with open_parquet(location, file.path) as parquet:
                metadata, schema = parquet.metadata, parquet.schema_arrow
        except OSError as error:
            return ParquetFileMetadata(path, 0, 0, {}, partitions, [], file.size, str(error))
        ranges = {name: column_ranges(metadata, schema, name) for name in schema.names}
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            stats = {n: python_range(r[number], schema.field(n).type) for n, r in ranges.items()}
            size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            groups.append(RowGroupMetadata(group.num_rows, size, stats))
        whole = {n: python_range(merge_ranges(r), schema.field(n).type) for n, r in ranges.items()}
        return ParquetFileMetadata(path, len(groups), metadata.num_rows, whole, partitions, groups, file.size)


# -------------------------------------------------------------------------------------------------------- pruning
def possible_files(
    footers: Footers, index: KeyRanges, key_columns: Sequence[str], schema: pa.Schema
) -> npt.NDArray[np.bool_]:
    """Mark the files that the statistics of no key column exclude."""
    possible: npt.NDArray[np.bool_] = footers.rows > 0
    for position, name in enumerate(key_columns):
        lows, highs, known = footers.bounds(name, canonical_type(schema.field(name).type))
        possible &= index.touches(position, lows, highs, known)
    return possible


class ConservativeMembershipChecker:
    """A check of files against source keys by column statistics.

    Example:
        >>> import inlay
        >>> from inlay.incremental import ConservativeMembershipChecker, ParquetMetadataAnalyzer
        >>> inlay.write_dataset({"id": [1, 5]}, "people").row_count
        2
        >>> [file] = ParquetMetadataAnalyzer().analyze_dataset_files("people")
        >>> checker = ConservativeMembershipChecker()
        >>> checker.file_might_contain_keys(file, "id", [3]), checker.file_might_contain_keys(file, "id", [9])
        (True, False)
    """

    def file_might_contain_keys(
        self, file_metadata: ParquetFileMetadata, key_columns: str | Sequence[str], source_keys: SourceKeys
    ) -> bool:
        """Check whether a file can contain a source key.

        Args:
            file_metadata: The metadata of the file, from `ParquetMetadataAnalyzer`.
            key_columns: The name, or the names, of the key columns.
            source_keys: The keys: a pyarrow Table with the key columns, a pyarrow Array or a sequence of values for
                one key column, or a sequence of tuples for several.

        Returns:
            False only if the statistics prove that the file contains no source key.
        """
        return bool(self.files_that_might([file_metadata], key_columns, source_keys)[0])

    def files_that_might(
        self, files: Sequence[ParquetFileMetadata], key_columns: str | Sequence[str], source_keys: SourceKeys
    ) -> npt.NDArray[np.bool_]:
        """Check several files at once.

        Args:
            files: The metadata of the files.
            key_columns: The name, or the names, of the key columns.
            source_keys: The keys, as in `file_might_contain_keys`.

        Returns:
            For each file, False only if the statistics prove that the file contains no source key.
        """
        keys = _key_table(source_keys, normalize_keys(key_columns))
        possible = np.full(len(files), keys.num_rows > 0)
        for name in keys.column_names if keys.num_rows else ():
            column = keys.column(name)
            try:
                index = KeyIndex([canonical_keys(column, column.type)])
                lows, highs, known = _stated_bounds(files, name, canonical_type(column.type))
                possible &= index.touches(0, lows, highs, known) | _holds_nan(column)
            except (pa.ArrowException, TypeError, SchemaMismatchError, OverflowError):
                continue  # keys that cannot be compared with the statistics exclude no file
        return possible


def _holds_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column), min_count=0).as_py())


def _stated_bounds(
    files: Sequence[ParquetFileMetadata], column: str, type_: pa.DataType
) -> tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]:
    stats = [file.column_stats.get(column) or {} for file in files]
    known = np.array(
        [
            s.get("min") is not None and s.get("max") is not None and s.get("exactness", "exact") == "exact"
            for s in stats
        ],
        np.bool_,
    )
    lows, highs = (
        lossless_cast(
            pa.chunked_array([pa.array([s[end] if k else None for s, k in zip(stats, known, strict=True)])]),
            type_,
            column,
        ).combine_chunks()
        for end in ("min", "max")
    )
    return lows, highs, known


def _key_table(source_keys: SourceKeys, key_columns: Sequence[str]) -> pa.Table:
    """Return the keys that can match: those without NULL."""
    return _all_keys(source_keys, key_columns).drop_null()


def _all_keys(source_keys: SourceKeys, key_columns: Sequence[str]) -> pa.Table:
    if isinstance(source_keys, pa.Table):
        return source_keys.select(list(key_columns))
    if isinstance(source_keys, (pa.Array, pa.ChunkedArray)):
        return pa.table([source_keys], list(key_columns))
    rows = [key if isinstance(key, (tuple, list)) else (key,) for key in source_keys]
    return pa.table([pa.array([row[i] for row in rows]) for i in range(len(key_columns))], list(key_columns))


class PartitionPruner:
    """A check of files against source keys by partition values.

    Example:
        >>> import inlay
        >>> from inlay.incremental import ParquetMetadataAnalyzer, PartitionPruner
        >>> rows = {"id": [1, 2], "day": ["mon", "tue"]}
        >>> inlay.write_dataset(rows, "days", partition_columns="day").row_count
        2
        >>> files = ParquetMetadataAnalyzer().analyze_dataset_files("days")
        >>> found = PartitionPruner().identify_candidate_files(files, "id", [1], source_partitions=[{"day": "mon"}])
        >>> len(files), len(found)
        (2, 1)
    """

    def identify_candidate_files(
        self,
        file_metadata: Sequence[ParquetFileMetadata],
        key_columns: str | Sequence[str],
        source_keys: SourceKeys,
        partition_schema: pa.Schema | None = None,
        *,
        source_partitions: Iterable[Mapping[str, Any]] | None = None,
    ) -> list[str]:
        """Find the files whose partition contains source rows.

        Args:
            file_metadata: The metadata of the files, from `ParquetMetadataAnalyzer`.
            key_columns: The name, or the names, of the key columns.
            source_keys: The keys: a pyarrow Table with the key columns, a pyarrow Array or a sequence of values for
                one key column, or a sequence of tuples for several.
            partition_schema: The types of the partition columns. Without it, values are compared as text, and
                key columns do not exclude partitions.
            source_partitions: The partitions of the source rows, each a mapping of partition columns to values.
                None derives the partitions from the keys, if partition columns are key columns.

        Returns:
            The paths of the candidate files. A file with an unknown partition value is a candidate.
        """
        schema = partition_schema or pa.schema([])
        wanted = None if source_partitions is None else [dict(values) for values in source_partitions]
        if wanted is None:
            wanted = self._from_keys(normalize_keys(key_columns), source_keys, schema)
        return [file.path for file in file_metadata if wanted is None or self._fits(file, wanted, schema)]

    @staticmethod
    def _from_keys(
        key_columns: Sequence[str], source_keys: SourceKeys, schema: pa.Schema
    ) -> list[dict[str, Any]] | None:
        shared = [name for name in key_columns if schema.get_field_index(name) >= 0]
        if not shared:
            return None
        keys: list[dict[str, Any]] = _key_table(source_keys, key_columns).select(shared).to_pylist()
        return keys

    @staticmethod
    def _fits(file: ParquetFileMetadata, wanted: Sequence[dict[str, Any]], schema: pa.Schema) -> bool:
        texts = file.partition_values or {}
        known = {}
        for name, text in texts.items():
            type_ = schema.field(name).type if schema.get_field_index(name) >= 0 else pa.string()
            value = typed_partition_value(text, type_)
            if value is not None:
                known[name] = _partition_text(value)
        return any(
            all(name not in known or known[name] == _partition_text(value) for name, value in values.items())
            for values in wanted
        )


def _partition_text(value: Any) -> str | None:
    """Format a partition value as in a path, for comparison."""
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    text: str | None = scalar.cast(pa.string()).as_py() if scalar.is_valid else None
    return text


# ----------------------------------------------------------------------------------------------------- confirmation
def confirm_affected_files(
    candidate_files: Sequence[str],
    key_columns: str | Sequence[str],
    source_keys: SourceKeys,
    filesystem: Filesystem | None = None,
) -> list[str]:
    """Read the key columns of candidate files, and return the files that contain a source key.

    Args:
        candidate_files: The paths of the files.
        key_columns: The name, or the names, of the key columns.
        source_keys: The keys: a pyarrow Table with the key columns, a pyarrow Array or a sequence of values for one
            key column, or a sequence of tuples for several.
        filesystem: An fsspec or pyarrow filesystem that holds the files.

    Returns:
        The paths of the files with at least one matching row.

    Raises:
        InvalidArgumentError: `key_columns` is empty or repeats a name.
        SchemaMismatchError: A key column does not exist in a file, or a key does not fit the column's type.
        OSError: A file cannot be read.

    Example:
        >>> import inlay
        >>> from inlay.incremental import confirm_affected_files
        >>> inlay.write_dataset({"id": [1, 5]}, "people").row_count
        2
        >>> files = inlay.list_dataset_files("people")
        >>> len(confirm_affected_files(files, "id", [5])), len(confirm_affected_files(files, "id", [3]))
        (1, 0)
    """
    keys = normalize_keys(key_columns)
    if not candidate_files:
        return []
    table = _key_table(source_keys, keys)
    affected = []
    for path in candidate_files:
        parent, _, name = path.rpartition("/")
        location = locate(parent or ".", filesystem)
        with open_parquet(location, name) as parquet:
            schema = parquet.schema_arrow
        source = load_source(_as_keys_of(table, schema), lambda rows: rows, keys)
        matches = ArrowEngine().match(location, source, keys, [Target(name)])
        if any(match.groups for match in matches):
            affected.append(path)
    return affected


def _as_keys_of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    require_columns(table.column_names, schema, "the dataset", "key column")
    fitted = {
        name: lossless_cast(table.column(name), schema.field(name).type, name, as_key=True)
        for name in table.column_names
    }
    return pa.table(fitted)
