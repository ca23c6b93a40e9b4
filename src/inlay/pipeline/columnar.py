"""Parquet uploads: row groups are read as they are and written with our settings; every Arrow type stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inlay.errors import UnreadableUploadError
from inlay.pipeline.decode import Content, RawFile
from inlay.pipeline.options import Limits, ReadOptions
from inlay.pipeline.plan import REPETITIVE, SAMPLE_ROWS, Column, Parsed, Survey
from inlay.pipeline.records import Split
from inlay.pipeline.sniff import column_names

__all__ = ["ParquetRows", "survey"]

_BATCH_ROWS = 16_384
_SPLIT_BYTES = 64 << 20  # of decoded pages; row groups below it share a task


def survey(content: Content, options: ReadOptions, limits: Limits, split_bytes: int | None) -> Survey:  # noqa: ARG001
    """The file's own schema; splits are runs of row groups."""
    try:
        with _open(content) as source, pq.ParquetFile(source) as file:
            names, warnings = column_names(file.schema_arrow.names)
            schema = _renamed(file.schema_arrow, names)
            sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
            sample = next(_batches(file, [0], SAMPLE_ROWS), None) if file.num_row_groups else None
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(error) from error
    return Survey(
        content=content,
        options=options,
        reader=ParquetRows(names),
        kinds={},
        splits=_splits(sizes, min(_SPLIT_BYTES, split_bytes or _SPLIT_BYTES)),
        repetitive=[] if sample is None else _repetitive(sample, names),
        warnings=warnings,
        schema=schema,
    )


def _open(content: Content) -> pa.NativeFile:
    if isinstance(content.source, RawFile):
        return content.source.location.store.open_arrow(content.source.location.full(content.source.path))
    return pa.BufferReader(content.source.content)


def _unreadable(error: Exception) -> UnreadableUploadError:
    return UnreadableUploadError(f"The file is not valid Parquet: {str(error).splitlines()[0]}")


def _renamed(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)], schema.metadata)


def _splits(sizes: Sequence[int], most: int) -> list[Split]:
    """Neighbouring row groups, as many as make a split; `start` and `end` count row groups."""
    splits: list[Split] = []
    held = 0
    for number, size in enumerate(sizes):
        if splits and held + size <= most:
            splits[-1] = splits[-1]._replace(end=number + 1)
            held += size
        else:
            splits.append(Split(len(splits), number, number + 1, 0))
            held = size
    return splits


def _batches(file: pq.ParquetFile, groups: Sequence[int], rows: int) -> Iterator[pa.Table]:
    """Row groups in pieces; some nested types can only be read a whole row group at a time."""
    for group in groups:
        started = False
        try:
            for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                started = True
                yield pa.Table.from_batches([batch])
        except pa.ArrowNotImplementedError:
            if started:
                raise
            yield file.read_row_group(group, use_threads=False)


def _repetitive(sample: pa.Table, names: Sequence[str]) -> list[str]:
    found = []
    for name, column in zip(names, sample.columns, strict=True):
        try:
            distinct = pc.count_distinct(column).as_py()
        except (pa.ArrowNotImplementedError, pa.ArrowKeyError):
            continue  # nested values, for example
        if distinct <= max(1, (len(column) - column.null_count) * REPETITIVE):
            found.append(name)
    return found


@dataclass(frozen=True)
class ParquetRows:
    """Reads row groups in small batches, so that their size does not matter."""

    names: list[str]

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed:  # noqa: ARG002
        return Parsed(self._tables(content, split), [], {})

    def _tables(self, content: Content, split: Split) -> Iterator[pa.Table]:
        groups = list(range(split.start, split.end))
        try:
            with _open(content) as source, pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20) as file:
                for table in _batches(file, groups, _BATCH_ROWS):
                    yield table.rename_columns(self.names)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(error) from error
