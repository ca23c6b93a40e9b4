"""The steps of a merge as functions of their own, with the names and arguments of the requirements.

Each function runs the code that a merge runs: the same statistics, partitions, key index and checks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from inlay.engines.base import Target
from inlay.engines.columns import bit_equal
from inlay.engines.keys import KeyIndex, canonical_keys, contiguous, find_null_keys
from inlay.engines.local import ArrowEngine
from inlay.engines.source import load_source
from inlay.errors import SchemaMismatchError
from inlay.incremental.conformer import Conformer
from inlay.incremental.metadata import ParquetFileMetadata, ParquetMetadataAnalyzer
from inlay.incremental.plan import IncrementalRewritePlan
from inlay.incremental.prune import possible_files
from inlay.incremental.target import ELSEWHERE, Partitions
from inlay.incremental.validate import (
    moved_error,
    normalize_keys,
    reject_null_keys,
    require_columns,
    row_text,
    value_text,
)
from inlay.parquet.footer_cache import Footers
from inlay.parquet.footers import Footer, open_parquet
from inlay.parquet.layout import hive_segment, parse_hive_partition_path, typed_partition_value
from inlay.schema import lossless_cast
from inlay.storage import FileStat, Filesystem, locate

__all__ = [
    "ConservativeMembershipChecker",
    "PartitionPruner",
    "SourceKeys",
    "TableLike",
    "confirm_affected_files",
    "plan_incremental_rewrite",
    "validate_keys_and_schema",
    "validate_no_null_keys",
    "validate_partition_column_immutability",
]

SourceKeys: TypeAlias = "pa.Table | pa.Array | pa.ChunkedArray | Sequence[Any]"


# ----------------------------------------------------------------------------------------------------- statistics
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

        Raises:
            InvalidArgumentError: `key_columns` is empty or repeats a name.
            KeyError: `source_keys` is a table without one of the key columns.
            ValueError: The values in `source_keys` have different types.

        Example:
            >>> import inlay
            >>> from inlay.incremental import ConservativeMembershipChecker, ParquetMetadataAnalyzer
            >>> inlay.write_dataset({"id": [1, 5]}, "people").row_count
            2
            >>> [file] = ParquetMetadataAnalyzer().analyze_dataset_files("people")
            >>> ConservativeMembershipChecker().file_might_contain_keys(file, "id", [6, 7])
            False
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

        Raises:
            InvalidArgumentError: `key_columns` is empty or repeats a name.
            KeyError: `source_keys` is a table without one of the key columns.
            ValueError: The values in `source_keys` have different types.

        Example:
            >>> import inlay
            >>> from inlay.incremental import ConservativeMembershipChecker, ParquetMetadataAnalyzer
            >>> rows = {"id": [1, 5], "day": ["mon", "tue"]}
            >>> inlay.write_dataset(rows, "days", partition_columns="day").row_count
            2
            >>> files = ParquetMetadataAnalyzer().analyze_dataset_files("days")
            >>> ConservativeMembershipChecker().files_that_might(files, "id", [5]).tolist()
            [False, True]
        """
        keys = _key_table(source_keys, normalize_keys(key_columns))
        if not keys.num_rows:
            return np.zeros(len(files), np.bool_)
        index = KeyIndex([canonical_keys(column, column.type) for column in keys.columns])
        return possible_files(_KnownStatistics(files), index, keys.column_names, keys.schema)


class _KnownStatistics:
    """The statistics in the metadata of files. A file without readable metadata can contain every key."""

    def __init__(self, files: Sequence[ParquetFileMetadata]) -> None:
        self.files = files
        self.rows = np.array([1 if file.error else file.total_rows for file in files], np.int64)

    def bounds(self, column: str, type_: pa.DataType) -> tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]:
        stats = [file.column_stats.get(column) or {} for file in self.files]
        known = np.array([_is_exact(each, int(rows)) for each, rows in zip(stats, self.rows, strict=True)], np.bool_)
        try:
            lows, highs = (_bound_array(stats, known, end, type_, column) for end in ("min", "max"))
        except (pa.ArrowException, TypeError, SchemaMismatchError, OverflowError):
            unknown = pa.nulls(len(stats), type_)  # keys that cannot be compared with the statistics exclude no file
            return unknown, unknown, np.zeros(len(stats), np.bool_)
        return lows, highs, known


def _is_exact(stats: Mapping[str, Any], rows: int) -> bool:
    bounds = stats.get("min"), stats.get("max")
    is_bounded = not any(bound is None or (isinstance(bound, float) and math.isnan(bound)) for bound in bounds)
    is_null = bounds == (None, None) and stats.get("null_count") == rows
    return (is_bounded or is_null) and stats.get("exactness", "exact") == "exact"


def _bound_array(
    stats: Sequence[Mapping[str, Any]], known: npt.NDArray[np.bool_], end: str, type_: pa.DataType, column: str
) -> pa.Array:
    values = pa.array([each.get(end) if is_known else None for each, is_known in zip(stats, known, strict=True)])
    return lossless_cast(pa.chunked_array([values]), type_, column).combine_chunks()


def _key_table(source_keys: SourceKeys, key_columns: Sequence[str]) -> pa.Table:
    """Return the keys that can match: those without NULL."""
    return _without_null_keys(_all_keys(source_keys, key_columns), key_columns)


def _without_null_keys(table: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """Drop rows with NULL in a key column, which match nothing."""
    valid = [np.asarray(canonical_keys(table.column(n), table.column(n).type).is_valid()) for n in key_columns]
    return table.filter(pa.array(np.logical_and.reduce(valid)))


def _all_keys(source_keys: SourceKeys, key_columns: Sequence[str]) -> pa.Table:
    if isinstance(source_keys, pa.Table):
        return source_keys.select(list(key_columns))
    if isinstance(source_keys, (pa.Array, pa.ChunkedArray)):
        return pa.table([source_keys], list(key_columns))
    rows = [key if isinstance(key, (tuple, list)) else (key,) for key in source_keys]
    return pa.table([pa.array([row[i] for row in rows]) for i in range(len(key_columns))], list(key_columns))


# ----------------------------------------------------------------------------------------------------- partitions
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

        Raises:
            InvalidArgumentError: `key_columns` is empty or repeats a name.
            KeyError: `source_keys` is a table without one of the key columns.
            ValueError: The values in `source_keys` have different types.

        Example:
            >>> import inlay
            >>> import pyarrow as pa
            >>> from inlay.incremental import ParquetMetadataAnalyzer, PartitionPruner
            >>> rows = {"id": [1, 2], "day": ["mon", "tue"]}
            >>> inlay.write_dataset(rows, "days", partition_columns="day").row_count
            2
            >>> files = ParquetMetadataAnalyzer().analyze_dataset_files("days")
            >>> schema = pa.schema({"day": pa.string()})
            >>> [path] = PartitionPruner().identify_candidate_files(files, ["id", "day"], [(2, "tue")], schema)
            >>> "day=tue" in path
            True
        """
        schema = partition_schema or pa.schema([])
        wanted = None if source_partitions is None else [dict(values) for values in source_partitions]
        if wanted is None:
            wanted = _partitions_of_keys(normalize_keys(key_columns), source_keys, schema)
        if wanted is None:
            return [file.path for file in file_metadata]
        columns = [name for name in (wanted[0] if wanted else ()) if all(name in values for values in wanted)]
        source = load_source(_partition_table(wanted, columns, schema), lambda rows: rows, [])
        footers = Footers.of([_footer_of_partition(file) for file in file_metadata], [])
        partitions = Partitions.of(source, columns, footers)
        known = np.array([partitions.values_of(file.path) is not None for file in footers.files], np.bool_)
        elsewhere = known & (partitions.numbers_of(footers) == ELSEWHERE) | (not wanted)
        return [file.path for file, is_elsewhere in zip(file_metadata, elsewhere, strict=True) if not is_elsewhere]


def _partitions_of_keys(
    key_columns: Sequence[str], source_keys: SourceKeys, schema: pa.Schema
) -> list[dict[str, Any]] | None:
    """Return the partitions of keys, or None if no key column is a partition column."""
    shared = [name for name in key_columns if schema.get_field_index(name) >= 0]
    partitions: list[dict[str, Any]] = _key_table(source_keys, key_columns).select(shared).to_pylist()
    return partitions if shared else None


def _partition_table(partitions: Sequence[Mapping[str, Any]], columns: Sequence[str], schema: pa.Schema) -> pa.Table:
    arrays = {name: _partition_values([values[name] for values in partitions], name, schema) for name in columns}
    return pa.table(arrays)


def _partition_values(values: Sequence[Any], name: str, schema: pa.Schema) -> pa.Array:
    """Return partition values in the type of the column, or as text if the type is not known or does not fit."""
    texts = [_partition_text(value) for value in values]
    type_ = schema.field(name).type if schema.get_field_index(name) >= 0 else pa.string()
    typed = [None if text is None else typed_partition_value(text, type_) for text in texts]
    fits = all(value is not None for text, value in zip(texts, typed, strict=True) if text is not None)
    return (
        pa.array([value.as_py() if value is not None else None for value in typed], type_) if fits else pa.array(texts)
    )


def _footer_of_partition(file: ParquetFileMetadata) -> Footer:
    """Return a footer whose path has the partition values of a file."""
    segments = [hive_segment(name, value) for name, value in (file.partition_values or {}).items()]
    return Footer(FileStat("/".join([*segments, "file.parquet"]), 0, 0, ""), 0, 0, None, {})


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
    return [path for path in candidate_files if _contains_key(path, table, filesystem)]


def _contains_key(path: str, keys: pa.Table, filesystem: Filesystem | None) -> bool:
    parent, _, name = path.rpartition("/")
    location = locate(parent or ".", filesystem)
    with open_parquet(location, name) as parquet:
        schema = parquet.schema_arrow
    constants = _path_values(path, keys.schema, schema)
    require_columns([n for n in keys.column_names if n not in constants], schema, "the dataset", "key column")
    source = load_source(_as_keys_of(keys, schema), lambda rows: rows, keys.column_names)
    matches = ArrowEngine().match(location, source, keys.column_names, [Target(name, constants)])
    return any(match.groups for match in matches)


def _path_values(path: str, keys: pa.Schema, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the values of key columns that only the path has."""
    texts = {name: text for name, text in parse_hive_partition_path(path).items() if name not in schema.names}
    typed = {name: typed_partition_value(texts[name], keys.field(name).type) for name in keys.names if name in texts}
    return {name: value for name, value in typed.items() if value is not None}


def _as_keys_of(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast keys to the types of a file."""
    stored = {name: schema.field(name).type for name in keys.column_names if name in schema.names}
    columns = {name: keys.column(name) for name in keys.column_names}
    return pa.table({n: lossless_cast(c, stored[n], n, as_key=True) if n in stored else c for n, c in columns.items()})


def plan_incremental_rewrite(
    dataset_path: str | os.PathLike[str],
    source_keys: SourceKeys,
    key_columns: str | Sequence[str],
    filesystem: Filesystem | None = None,
    partition_schema: pa.Schema | None = None,
    *,
    source_partitions: Iterable[Mapping[str, Any]] | None = None,
) -> IncrementalRewritePlan:
    """Find the files that may contain source keys, from paths and footers only.

    A file is unaffected if its partition values or its statistics prove that it contains no source key. `plan_merge`
    is exact: it also reads key columns.

    Args:
        dataset_path: The directory of the dataset.
        source_keys: The keys: a pyarrow Table with the key columns, a pyarrow Array or a sequence of values for one
            key column, or a sequence of tuples for several.
        key_columns: The name, or the names, of the key columns.
        filesystem: An fsspec or pyarrow filesystem that holds `dataset_path`.
        partition_schema: The types of the partition columns. Without it, partition values are compared as text, and
            key columns do not exclude partitions.
        source_partitions: The partitions of the source rows, each a mapping of partition columns to values. None
            derives the partitions from the keys, if partition columns are key columns.

    Returns:
        The affected files, the unaffected files and the number of rows in the affected files.

    Raises:
        InvalidArgumentError: `key_columns` is empty or repeats a name, or `dataset_path` is invalid.

    Example:
        >>> import inlay
        >>> from inlay.incremental import plan_incremental_rewrite
        >>> for day in ("2025-01-01", "2025-01-02"):
        ...     _ = inlay.write_dataset({"id": [1, 2], "day": [day] * 2}, "days", partition_columns="day")
        >>> plan = plan_incremental_rewrite("days", [1], "id", source_partitions=[{"day": "2025-01-02"}])
        >>> len(plan.affected_files), len(plan.unaffected_files)
        (1, 1)
    """
    keys = normalize_keys(key_columns)
    files = ParquetMetadataAnalyzer().analyze_dataset_files(dataset_path, filesystem)
    candidates = set(
        PartitionPruner().identify_candidate_files(
            files, keys, source_keys, partition_schema, source_partitions=source_partitions
        )
    )
    possible = ConservativeMembershipChecker().files_that_might(files, keys, source_keys)
    affected = [file for file, might in zip(files, possible, strict=True) if might and file.path in candidates]
    chosen = {file.path for file in affected}
    return IncrementalRewritePlan(
        affected_files=[file.path for file in affected],
        unaffected_files=[file.path for file in files if file.path not in chosen],
        new_files=[],
        affected_rows=sum(file.total_rows for file in affected),
    )


# ---------------------------------------------------------------------------------------------------------- checks
class TableLike(Protocol):
    """Any object with a schema and a row count, such as a pyarrow Table.

    Attributes:
        schema: The pyarrow schema.
        num_rows: The number of rows.

    Example:
        >>> import pyarrow as pa
        >>> from inlay.incremental import TableLike
        >>> table: TableLike = pa.table({"id": [1, 2]})
        >>> table.num_rows
        2
    """

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def num_rows(self) -> int: ...


def validate_keys_and_schema(source: TableLike, target: TableLike | None, key_columns: str | Sequence[str]) -> None:
    """Check key columns, the fit of source columns to the target, and NULL keys.

    Args:
        source: The source rows. Values and keys are checked only if this is a pyarrow Table.
        target: The target rows or their schema; None for a new dataset.
        key_columns: The name, or the names, of the key columns.

    Raises:
        InvalidArgumentError: `key_columns` is empty or repeats a name.
        SchemaMismatchError: A key column is missing, the columns differ, or a value does not fit its column.
        NullKeyError: A source key is NULL.

    Example:
        >>> import pyarrow as pa
        >>> from inlay.incremental import validate_keys_and_schema
        >>> source = pa.table({"id": [1, 2], "name": ["a", "b"]})
        >>> validate_keys_and_schema(source, None, "id")
    """
    keys = normalize_keys(key_columns)
    require_columns(keys, source.schema, "the source", "key column")
    if target is not None and len(target.schema):
        conformer = Conformer(source.schema, target.schema, keys)
        if isinstance(source, pa.Table):
            conformer(source)
    if isinstance(source, pa.Table):
        validate_no_null_keys(source, keys)


def validate_no_null_keys(source_table: pa.Table, key_columns: str | Sequence[str]) -> None:
    """Reject NULL keys. The error names the column, the number of rows and the first row.

    Args:
        source_table: The source rows.
        key_columns: The name, or the names, of the key columns.

    Raises:
        NullKeyError: A key column contains NULL.
        SchemaMismatchError: A key column does not exist.

    Example:
        >>> import pyarrow as pa
        >>> from inlay.incremental import validate_no_null_keys
        >>> validate_no_null_keys(pa.table({"id": [1, None]}), "id")
        Traceback (most recent call last):
            ...
        inlay.errors.NullKeyError: Key column 'id' is NULL in 1 of 2 source rows; the first is row 1: id=None.
        Hint: Remove these rows, fill in the keys, or choose other key columns.
    """
    keys = normalize_keys(key_columns)
    require_columns(keys, source_table.schema, "the source", "key column")
    reject_null_keys(find_null_keys(source_table.select(keys)), source_table.num_rows)


def validate_partition_column_immutability(
    source_table: pa.Table,
    target_table: pa.Table,
    key_columns: str | Sequence[str],
    partition_columns: Sequence[str],
) -> None:
    """Reject source keys that exist in the target with another value in a partition column.

    Args:
        source_table: The source rows.
        target_table: The target rows.
        key_columns: The name, or the names, of the key columns.
        partition_columns: The names of the partition columns.

    Raises:
        PartitionMoveError: A key exists in both tables with different values in a partition column.
        SchemaMismatchError: A column does not exist, or a source value does not fit the type of the target.

    Example:
        >>> import pyarrow as pa
        >>> from inlay.incremental import validate_partition_column_immutability
        >>> target = pa.table({"id": [1], "day": ["2025-01-01"]})
        >>> source = pa.table({"id": [1, 2], "day": ["2025-01-01", "2025-01-02"]})
        >>> validate_partition_column_immutability(source, target, "id", ["day"])
    """
    keys = normalize_keys(key_columns)
    for table, where in ((source_table, "the source"), (target_table, "the dataset")):
        require_columns([*keys, *partition_columns], table.schema, where, "column")
    types = [target_table.schema.field(name).type for name in keys]
    source_table = _without_null_keys(source_table, keys)
    index = KeyIndex(
        [canonical_keys(lossless_cast(source_table.column(n), t, n), t) for n, t in zip(keys, types, strict=True)]
    )
    targets = [canonical_keys(target_table.column(n), t) for n, t in zip(keys, types, strict=True)]
    rows = index.find(targets, (0, len(index)))
    hits = np.flatnonzero(rows >= 0)
    for name in partition_columns:
        before = target_table.column(name).take(pa.array(hits))
        after = lossless_cast(source_table.column(name), before.type, name).take(pa.array(rows[hits]))
        moved = np.flatnonzero(~bit_equal(contiguous(before), contiguous(after)))
        if len(moved):
            first = int(moved[0])
            raise moved_error(
                row_text(source_table, keys, int(rows[hits[first]])),
                f"{name}={value_text(before[first])}",
                f"{name}={value_text(after[first])}",
                len(moved),
            )
