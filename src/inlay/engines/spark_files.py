"""Parquet files as a source that tasks read: some row groups each, in the order of paths."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from inlay.engines.source import open_batches, scanned
from inlay.engines.source_faults import unreadable
from inlay.engines.spark_source import Ingest, Ingested

__all__ = ["IngestFiles", "ParquetFiles"]

_TASK_BYTES = 32 << 20
_Groups = tuple[Any, list[int]]  # of a fragment


class ParquetFiles(NamedTuple):
    """A dataset of Parquet files and how tasks share its row groups."""

    dataset: Any
    tasks: list[list[Any]]  # fragments, each of some row groups
    size: int

    @classmethod
    def of(cls, dataset: Any) -> ParquetFiles | None:
        """None for what is no dataset of Parquet files."""
        import pyarrow.dataset as ds

        if not isinstance(dataset, ds.FileSystemDataset) or not isinstance(dataset.format, ds.ParquetFileFormat):
            return None
        fragments = list(dataset.get_fragments())
        with ThreadPoolExecutor(8, "inlay-source") as pool:  # every footer is read here
            groups = list(pool.map(lambda fragment: fragment.row_groups, fragments))
        sizes = [(f, g.id, g.total_byte_size) for f, mine in zip(fragments, groups, strict=True) for g in mine]
        tasks = [[fragment.subset(row_group_ids=ids) for fragment, ids in task] for task in _cut(sizes)]
        return cls(dataset, tasks, sum(size for _, _, size in sizes))

    @property
    def schema(self) -> pa.Schema:
        return self.dataset.schema

    def reader(self) -> pa.RecordBatchReader:
        """Its rows in this process."""
        return open_batches(self.dataset)


def _cut(groups: Sequence[tuple[Any, int, int]]) -> list[list[_Groups]]:
    """Neighbouring row groups (fragment, number, size), so many to a task that it is worth one."""
    tasks: list[list[_Groups]] = []
    weight = _TASK_BYTES
    for fragment, group, size in groups:
        if weight >= _TASK_BYTES:
            tasks.append([])
            weight = 0
        if not tasks[-1] or tasks[-1][-1][0] is not fragment:
            tasks[-1].append((fragment, []))
        tasks[-1][-1][1].append(group)
        weight += size
    return tasks


class _OutOfReachError(Exception):
    """The files of a source may lie on the driver's own disk."""


@dataclass(frozen=True)
class IngestFiles:
    """Take in a task's row groups. None where they cannot be reached."""

    ingest: Ingest
    schema: pa.Schema

    def __call__(self, fragments: Sequence[Any]) -> Ingested | None:
        try:
            return self.ingest.take_in(_batches(fragments, self.schema))
        except _OutOfReachError:
            return None


def _batches(fragments: Sequence[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        for fragment in fragments:
            yield from scanned(fragment, schema)
    except (FileNotFoundError, PermissionError) as error:
        raise _OutOfReachError from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable(error) from error
