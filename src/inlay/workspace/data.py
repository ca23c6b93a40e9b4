"""The rows of one version, in the order of its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from inlay.catalog import DataFile, Snapshot
from inlay.incremental.failures import failing_as
from inlay.incremental.read import parquet_dataset
from inlay.query.forms import arrow_file, csv_file, parquet_file
from inlay.workspace.places import Places

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["Data"]

_BATCH_ROWS = 8192
_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class Data:
    """Nothing is read before it is asked for; memory holds a row group at a time."""

    snapshot: Snapshot
    places: Places

    @property
    def schema(self) -> pa.Schema:
        return self.snapshot.version.schema

    def batches(self, offset: int = 0, limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Row groups that lie before the first row are not read."""
        rows = self.snapshot.version.row_count if limit is None else limit
        skip, files = _files_from(self.snapshot.files, offset)
        with failing_as("read"):
            yield from _first(self._scan(files, skip), rows)

    def to_csv(self) -> Iterator[bytes]:
        return csv_file(self.schema, self.batches())

    def to_arrow(self) -> Iterator[bytes]:
        return arrow_file(self.schema, self.batches())

    def to_parquet(self) -> Iterator[bytes]:
        """One file, which is the data's own where it has one."""
        if len(self.snapshot.files) == 1:
            return self._bytes(self.snapshot.files[0])
        return parquet_file(self.schema, self.batches())

    def _bytes(self, file: DataFile) -> Iterator[bytes]:
        with failing_as("read"), self.places.root.store.open_read(self.places.root.full(file.path)) as opened:
            while block := opened.read(_BLOCK):
                yield block

    def _scan(self, files: Sequence[DataFile], skip: int) -> Iterator[pa.RecordBatch]:
        for group in self._row_groups(files):
            rows = group.row_groups[0].num_rows
            if skip < rows:
                yield from _without(skip, group.to_batches(schema=self.schema, batch_size=_BATCH_ROWS))
            skip = max(0, skip - rows)

    def _row_groups(self, files: Sequence[DataFile]) -> Iterator[ds.ParquetFileFragment]:
        """One at a time: a scan over several would hold them all."""
        for file in files:
            [fragment] = parquet_dataset(self.places.root, [file.path], self.schema).get_fragments()
            for number in range(fragment.num_row_groups):
                yield fragment.subset(row_group_ids=[number])


def _files_from(files: Sequence[DataFile], offset: int) -> tuple[int, Sequence[DataFile]]:
    """The files from the one that holds this row on, and how many of its rows lie before."""
    for number, file in enumerate(files):
        if offset < file.rows:
            return offset, files[number:]
        offset -= file.rows
    return 0, ()


def _without(skip: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if skip < batch.num_rows:
            yield batch.slice(skip)
        skip = max(0, skip - batch.num_rows)


def _first(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first rows; what comes after them is not asked for."""
    if not rows:
        return
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= batch.num_rows
        if rows <= 0:
            return
