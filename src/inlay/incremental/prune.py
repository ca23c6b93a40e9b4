"""Which files can hold which keys. A file is skipped only if its absence is proven.

Partition values and footer statistics exclude files without opening their data; what is left is confirmed by
reading key columns only.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from inlay.engines.arrow import ArrowEngine
from inlay.engines.base import Target
from inlay.engines.buckets import load_source
from inlay.engines.keys import KeyIndex, canonical_keys, canonical_type
from inlay.errors import SchemaMismatchError
from inlay.incremental.commit import read_consistently
from inlay.incremental.validate import normalize_keys, require_columns
from inlay.parquet.footer_cache import Footers
from inlay.parquet.footers import open_parquet, python_range, ranges_in, whole_range
from inlay.parquet.layout import parse_hive_partition_path, typed_partition_value
from inlay.schema import lossless_cast
from inlay.storage import FileStat, Location, locate

__all__ = [
    "ConservativeMembershipChecker",
    "ParquetFileMetadata",
    "ParquetMetadataAnalyzer",
    "PartitionPruner",
    "RowGroupMetadata",
    "confirm_affected_files",
    "possible_files",
]


# ------------------------------------------------------------------------------------------------------- metadata
@dataclass(slots=True)
class RowGroupMetadata:
    """Rows, bytes and column ranges of one row group."""

    rows: int
    size_bytes: int
    column_stats: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(slots=True)
class ParquetFileMetadata:
    """What planning knows of a file. Each entry of `column_stats` has min, max, null_count and exactness."""

    path: str
    row_group_count: int
    total_rows: int
    column_stats: dict[str, dict[str, Any]]
    partition_values: dict[str, Any] | None = None
    row_groups: list[RowGroupMetadata] = field(default_factory=list)
    size_bytes: int | None = None
    error: str | None = None


class ParquetMetadataAnalyzer:
    """Extract and analyze parquet file metadata for incremental rewrite planning."""

    def analyze_dataset_files(self, dataset_path: str, filesystem: Any = None) -> list[ParquetFileMetadata]:
        """The metadata of every file, in path order. A footer that cannot be read leaves `error` and no statistics."""
        location = locate(dataset_path, filesystem)
        return read_consistently(location, functools.partial(self._analyze_all, location))

    def _analyze_all(self, location: Location, files: Sequence[FileStat]) -> list[ParquetFileMetadata]:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8, "inlay-footers") as pool:
            return list(pool.map(lambda file: self._analyze(location, file), files))

    def _analyze(self, location: Location, file: FileStat) -> ParquetFileMetadata:
        shown, partitions = location.shown(file.path), parse_hive_partition_path(file.path)
        try:
            with open_parquet(location, file.path) as parquet:
                metadata, schema = parquet.metadata, parquet.schema_arrow
        except OSError as error:
            return ParquetFileMetadata(shown, 0, 0, {}, partitions, [], file.size, str(error))
        ranges = {name: ranges_in(metadata, schema, name) for name in schema.names}
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            stats = {n: python_range(r[number], schema.field(n).type) for n, r in ranges.items()}
            size = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            groups.append(RowGroupMetadata(group.num_rows, size, stats))
        whole = {n: python_range(whole_range(r), schema.field(n).type) for n, r in ranges.items()}
        return ParquetFileMetadata(shown, len(groups), metadata.num_rows, whole, partitions, groups, file.size)


# -------------------------------------------------------------------------------------------------------- pruning
def possible_files(footers: Footers, index: KeyIndex, key_columns: Sequence[str], schema: pa.Schema) -> np.ndarray:
    """Which files statistics do not exclude: a file is out if one key column's range holds no source key."""
    possible = footers.rows > 0
    for position, name in enumerate(key_columns):
        lows, highs, known = footers.bounds(name, canonical_type(schema.field(name).type))
        possible &= index.touches(position, lows, highs, known)
    return possible


class ConservativeMembershipChecker:
    """Conservative pruning using column statistics."""

    def file_might_contain_keys(
        self, file_metadata: ParquetFileMetadata, key_columns: Sequence[str], source_keys: Sequence[Any]
    ) -> bool:
        """False only if the statistics prove that no source key is in the file."""
        return bool(self.files_that_might([file_metadata], key_columns, source_keys)[0])

    def files_that_might(
        self, files: Sequence[ParquetFileMetadata], key_columns: Sequence[str], source_keys: Sequence[Any]
    ) -> np.ndarray:
        keys = _key_table(source_keys, normalize_keys(key_columns))
        possible = np.full(len(files), keys.num_rows > 0)
        for name in keys.column_names if keys.num_rows else ():
            column = keys.column(name)
            try:
                index = KeyIndex([canonical_keys(column.drop_null(), column.type)])
                lows, highs, known = _stated_bounds(files, name, canonical_type(column.type))
                possible &= index.touches(0, lows, highs, known) | _holds_nan(column)
            except (pa.ArrowException, TypeError, SchemaMismatchError, OverflowError):
                continue  # values that do not compare prove nothing
        return possible


def _holds_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and any(
        value.is_valid and value.as_py() != value.as_py() for value in column
    )


def _stated_bounds(
    files: Sequence[ParquetFileMetadata], column: str, type_: pa.DataType
) -> tuple[pa.Array, pa.Array, np.ndarray]:
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


def _key_table(source_keys: Any, key_columns: Sequence[str]) -> pa.Table:
    """Source keys as a table: from a table, an array, scalars (one key column) or tuples (several)."""
    if isinstance(source_keys, pa.Table):
        return source_keys.select(list(key_columns))
    if isinstance(source_keys, (pa.Array, pa.ChunkedArray)):
        return pa.table([source_keys], list(key_columns))
    rows = [key if isinstance(key, (tuple, list)) else (key,) for key in source_keys]
    return pa.table([pa.array([row[i] for row in rows]) for i in range(len(key_columns))], list(key_columns))


class PartitionPruner:
    """Identify candidate files based on partition values."""

    def identify_candidate_files(
        self,
        file_metadata: list[ParquetFileMetadata],
        key_columns: Sequence[str],
        source_keys: Sequence[Any],
        partition_schema: pa.Schema | None = None,
        *,
        source_partitions: Iterable[dict[str, Any]] | None = None,
    ) -> list[str]:
        """Files whose partition values the source has; a file with an unknown value stays.

        The source's partitions are `source_partitions` (column -> value), or follow from the keys where partition
        columns are key columns.
        """
        schema = partition_schema or pa.schema([])
        wanted = None if source_partitions is None else [dict(values) for values in source_partitions]
        if wanted is None:
            wanted = self._from_keys(normalize_keys(key_columns), source_keys, schema)
        return [file.path for file in file_metadata if wanted is None or self._fits(file, wanted, schema)]

    @staticmethod
    def _from_keys(
        key_columns: Sequence[str], source_keys: Sequence[Any], schema: pa.Schema
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
    """Partition values compare by how the path would spell them."""
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value)
    text: str | None = scalar.cast(pa.string()).as_py() if scalar.is_valid else None
    return text


# ----------------------------------------------------------------------------------------------------- confirmation
def confirm_affected_files(
    candidate_files: list[str], key_columns: Sequence[str], source_keys: Sequence[Any], filesystem: Any = None
) -> list[str]:
    """The candidate files that really contain a source key; only key columns are read."""
    keys = normalize_keys(key_columns)
    if not candidate_files:
        return []
    table = _key_table(source_keys, keys)
    affected = []
    for shown in candidate_files:
        parent, _, name = shown.rpartition("/")
        location = locate(parent or ".", filesystem)
        with open_parquet(location, name) as parquet:
            schema = parquet.schema_arrow
        source = load_source(_as_keys_of(table, schema), lambda rows: rows, keys)
        matches = ArrowEngine().match(location, source, keys, [Target(name)])
        if any(match.groups for match in matches):
            affected.append(shown)
    return affected


def _as_keys_of(table: pa.Table, schema: pa.Schema) -> pa.Table:
    require_columns(table.column_names, schema, "the dataset", "key column")
    fitted = {
        name: lossless_cast(table.column(name), schema.field(name).type, name, as_key=True)
        for name in table.column_names
    }
    return pa.table(fitted)
