"""The metadata of data files: row counts, statistics and partition values, for people and for planning."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from inlay.commit.snapshot import read_consistently
from inlay.parquet.footers import column_ranges, merge_ranges, open_parquet, python_range
from inlay.parquet.layout import parse_hive_partition_path
from inlay.storage import FileStat, Filesystem, Location, locate

__all__ = ["ParquetFileMetadata", "ParquetMetadataAnalyzer", "RowGroupMetadata"]


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
            exactness is `"exact"` can exclude the file. The bounds of a float column leave out NaN.
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
            OSError: The directory cannot be listed.

        Example:
            >>> import inlay
            >>> from inlay.incremental import ParquetMetadataAnalyzer
            >>> inlay.write_dataset({"id": [1, 2]}, "people").row_count
            2
            >>> [(file.total_rows, file.error) for file in ParquetMetadataAnalyzer().analyze_dataset_files("people")]
            [(2, None)]
        """
        location = locate(dataset_path, filesystem)
        return read_consistently(location, self._analyze_all)

    def _analyze_all(self, location: Location, files: Sequence[FileStat]) -> list[ParquetFileMetadata]:
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
