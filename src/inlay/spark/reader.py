"""Reads of a dataset through the format `inlay`.

Planning lists the files of one snapshot. Tasks read row groups as Arrow batches. Between planning and tasks no process
of the reader runs, so a lease keeps the snapshot's files readable.

Spark shares one plan among all queries of a loaded DataFrame, whatever their filters. So the reader implements no
`pushFilters`: the filter is an option of the DataFrame.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from inlay.commit.sidecar import lease
from inlay.commit.snapshot import SNAPSHOT_SECONDS, hold_snapshot, lease_snapshot
from inlay.commit.transaction import locate_dataset
from inlay.conditions import parse_condition
from inlay.engines.files import SCAN_OPTIONS
from inlay.engines.selection import Selection
from inlay.engines.spark.source import plan_row_groups
from inlay.engines.spark.tasks import credentials, use_credentials
from inlay.errors import ConcurrentModificationError, wrap_errors
from inlay.incremental.read import Contents, open_files
from inlay.schema import family
from inlay.spark.options import ReadOptions
from inlay.spark.types import arrow_schema, require_types, spark_schema
from inlay.storage import FileStat, Location

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["SnapshotReader", "read_schema"]

_SPLIT_BYTES = 32 << 20  # A larger file is split into row groups.


def read_schema(options: ReadOptions) -> Any:
    """Return the schema of a dataset as a schema of Spark."""
    with wrap_errors("read"), hold_snapshot(_locate(options), options.version) as snapshot:
        contents = Contents.read(snapshot.location, snapshot.files)
        _select(options, contents)  # rejects a wrong filter before Spark plans
        return spark_schema(contents.schema, options.columns)


def _select(options: ReadOptions, contents: Contents) -> Selection | None:
    return None if options.condition is None else Selection.of(options.condition, contents.schema)


def _locate(options: ReadOptions) -> Location:
    return locate_dataset(options.path, storage_options=options.storage_options)


class Scan(InputPartition):
    """The files that one task reads, each with numbers of row groups, or [None] for all of them."""

    def __init__(self, plan: ScanPlan, parts: Sequence[tuple[FileStat, list[int | None]]]) -> None:
        self.plan, self.parts = plan, list(parts)


@dataclass(frozen=True)
class ScanPlan:
    """What all tasks of a read share."""

    location: Location
    schema: pa.Schema  # of the dataset
    path_columns: pa.Schema
    selection: Selection | None
    pruning: pc.Expression | None  # the same condition, if pyarrow may prune by statistics
    credentials: Mapping[str, str]

    def open(self, location: Location, files: Sequence[FileStat]) -> ds.Dataset:
        return open_files(location, [file.path for file in files], self.schema, self.path_columns)


class SnapshotReader(DataSourceReader):
    """Reads one snapshot of a dataset."""

    def __init__(self, options: ReadOptions, schema: Any) -> None:
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        """Plan the tasks."""
        location = _locate(self._options)
        with wrap_errors("read"):
            snapshot = lease_snapshot(location, self._options.version)
            contents = Contents.read(snapshot.location, snapshot.files)
            require_types(self._schema, contents.schema)
            selection = _select(self._options, contents)
            plan = ScanPlan(
                snapshot.location,
                contents.schema,
                contents.path_columns,
                selection,
                self._pruning(contents, selection),
                credentials(),
            )
            return [Scan(plan, parts) for parts in plan_row_groups(list(_row_groups(plan, snapshot.files)))]

    def _pruning(self, contents: Contents, selection: Selection | None) -> pc.Expression | None:
        """Return the condition, unless it names floats: pyarrow ignores that their statistics leave out NaN."""
        if selection is None or any(family(field.type) == "float" for field in selection.schema):
            return None
        return parse_condition(str(self._options.condition), contents.schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the row groups of a task in Spark's types."""
        if isinstance(partition, Scan):  # Spark passes another partition if there is none to read.
            use_credentials(partition.plan.credentials)
            yield from _read(partition, arrow_schema(self._schema))


def _row_groups(plan: ScanPlan, files: Sequence[FileStat]) -> Iterator[tuple[FileStat, int | None, int]]:
    """Yield (file, row group, bytes), with all row groups of a small file together. Skip files by their paths."""
    dataset = plan.open(plan.location, files)
    possible = {fragment.path for fragment in dataset.get_fragments(filter=plan.pruning)}
    for file, fragment in zip(files, dataset.get_fragments(), strict=True):
        if fragment.path not in possible:
            continue
        if file.size <= _SPLIT_BYTES:
            yield file, None, file.size
        else:
            yield from ((file, group.id, group.total_byte_size) for group in fragment.row_groups)


# ----------------------------------------------------------------------------------------------------------- tasks
def _read(scan: Scan, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    plan = scan.plan
    location = _readable_location(plan.location)
    files = [file for file, _ in scan.parts]
    columns = list(dict.fromkeys([*schema.names, *(plan.selection.schema.names if plan.selection else [])]))
    with wrap_errors("read"):
        try:
            for fragment, (_, groups) in zip(plan.open(location, files).get_fragments(), scan.parts, strict=True):
                part = fragment if None in groups else fragment.subset(row_group_ids=groups)
                for batch in part.to_batches(schema=plan.schema, columns=columns, filter=plan.pruning, **SCAN_OPTIONS):
                    rows = pa.Table.from_batches([batch])
                    if plan.selection is not None and plan.pruning is None:
                        rows = rows.take(plan.selection.rows(rows))
                    yield from rows.select(schema.names).cast(schema).to_batches()
        except FileNotFoundError as error:
            raise _expired(location) from error
        if location.links is None and any(_has_changed(location, file) for file in files):
            raise _expired(location)


def _readable_location(location: Location) -> Location:
    """Renew the lease of the snapshot. After its end, return the dataset, whose files may be unchanged."""
    if location.links is None:
        return location
    try:
        lease(location.links, SNAPSHOT_SECONDS)
    except OSError:
        return location if os.path.isdir(location.links) else replace(location, links=None)
    return location


def _has_changed(location: Location, file: FileStat) -> bool:
    found = location.store.stat(location.full(file.path))
    return found is None or found[1:] != file[1:]


def _expired(location: Location) -> ConcurrentModificationError:
    return ConcurrentModificationError(
        f"{location.uri!r} changed after Spark planned this read, and the files of that time are deleted.",
        hint='Load the dataset again: spark.read.format("inlay").load(path).',
    )
