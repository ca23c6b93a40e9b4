"""Reads the rows of dataset versions, for queries and downloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa

from inlay.catalog import Catalog, DataFile, Snapshot
from inlay.errors import NotFoundError, wrap_errors
from inlay.incremental.read import parquet_dataset
from inlay.query import QueryEngine, Table
from inlay.query.result import arrow_file, csv_file, parquet_file
from inlay.workspace.storage import ServiceStorage
from inlay.workspace.storage_faults import storage_faults

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["Data", "DatasetTables"]

_CACHED_VERSIONS = 128
_BATCH_ROWS = 8192
_BLOCK_BYTES = 1 << 18


class DatasetTables:
    """The datasets as tables of queries.

    Each query looks up the current version, so that loads, renames and deletions are visible immediately. The files of
    a version never change, so the files of current versions are cached.
    """

    def __init__(self, catalog: Catalog, storage: ServiceStorage) -> None:
        self._catalog, self._storage = catalog, storage
        self._current = lru_cache(_CACHED_VERSIONS)(self._version)

    def find(self, name: str, version: int | None) -> Table | None:
        current = self._catalog.datasets.current_version(name)
        if current is None:
            return None
        try:
            return self._current(*current) if version is None else self._version(current[0], version)
        except NotFoundError:
            if version is not None or current == self._catalog.datasets.current_version(name):
                return None
            return self.find(name, None)

    def names(self) -> list[str]:
        return list(self._catalog.datasets.table_names())

    def schemas(self) -> Sequence[tuple[str, pa.Schema]]:
        return self._catalog.datasets.schemas()

    def _version(self, dataset_id: str, version: int) -> Table:
        snapshot = self._catalog.versions.snapshot(dataset_id, version)
        return Table(snapshot.version.schema, self._storage.addresses(snapshot.files), exact_float_bounds=True)


@dataclass(frozen=True, slots=True)
class Data:
    """The rows of one version in storage order, read lazily, one row group at a time."""

    snapshot: Snapshot
    storage: ServiceStorage

    @property
    def schema(self) -> pa.Schema:
        return self.snapshot.version.schema

    def batches(self, offset: int = 0, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows from `offset` on, without reading the row groups before it."""
        rows = self.snapshot.version.row_count if limit is None else limit
        skip, files = _files_from(self.snapshot.files, offset)
        with storage_faults(self.storage), wrap_errors("read"):
            yield from _limit(self._scan(files, skip), rows)

    def to_csv(self, queries: QueryEngine) -> Iterator[bytes]:
        """Yield a CSV file. Query processes encode the rows of local files, so that this process stays responsive."""
        if not self.storage.root.store.is_local:
            return csv_file(self.schema, self.batches())
        return queries.encode_table(Table(self.schema, self.storage.addresses(self.snapshot.files)))

    def to_arrow(self) -> Iterator[bytes]:
        return arrow_file(self.schema, self.batches())

    def to_parquet(self) -> Iterator[bytes]:
        """Yield one Parquet file: the data file itself if the version has only one, and the file has all columns."""
        files = self.snapshot.files
        if len(files) == 1 and self._columns_of(files[0]) == self.schema.names:
            return self._bytes(files[0])
        return parquet_file(self.schema, self.batches())

    def _columns_of(self, file: DataFile) -> list[str]:
        [fragment] = parquet_dataset(self.storage.root, [file.path], self.schema).get_fragments()
        names: list[str] = fragment.physical_schema.names
        return names

    def _bytes(self, file: DataFile) -> Iterator[bytes]:
        root = self.storage.root
        with storage_faults(self.storage), wrap_errors("read"), root.store.open_read(root.full(file.path)) as opened:
            while block := opened.read(_BLOCK_BYTES):
                yield block

    def _scan(self, files: Sequence[DataFile], skip: int) -> Iterator[pa.RecordBatch]:
        for group in self._row_groups(files):
            rows = group.row_groups[0].num_rows
            if skip < rows:
                yield from _skip_rows(skip, group.to_batches(schema=self.schema, batch_size=_BATCH_ROWS))
            skip = max(0, skip - rows)

    def _row_groups(self, files: Sequence[DataFile]) -> Iterator[ds.ParquetFileFragment]:
        """Yield row groups one by one; scanning several would hold all of them in memory."""
        for file in files:
            [fragment] = parquet_dataset(self.storage.root, [file.path], self.schema).get_fragments()
            for number in range(fragment.num_row_groups):
                yield fragment.subset(row_group_ids=[number])


def _files_from(files: Sequence[DataFile], offset: int) -> tuple[int, Sequence[DataFile]]:
    """Return the number of rows to skip in the first remaining file, and the remaining files."""
    for number, file in enumerate(files):
        if offset < file.rows:
            return offset, files[number:]
        offset -= file.rows
    return 0, ()


def _skip_rows(skip: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if skip < batch.num_rows:
            yield batch.slice(skip)
        skip = max(0, skip - batch.num_rows)


def _limit(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the first rows without reading further batches."""
    if not rows:
        return
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
        if rows <= 0:
            return
