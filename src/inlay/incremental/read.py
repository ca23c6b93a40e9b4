"""Consistent reads of a dataset."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from inlay.commit.snapshot import hold_snapshot, read_consistently
from inlay.commit.transaction import footer_cache, locate_dataset
from inlay.errors import InvalidArgumentError, NotFoundError, wrap_errors
from inlay.incremental.target import TargetState, path_columns
from inlay.incremental.validate import require_columns
from inlay.parquet.footer_cache import Footers
from inlay.parquet.footers import has_nanoseconds, int96_columns, open_parquet, require_readable_timestamps
from inlay.storage import FileStat, Filesystem, Location, ObjectStore

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from inlay.incremental.dataset import SnapshotDataset

__all__ = ["Contents", "open_dataset", "open_files", "parquet_dataset", "read_parquet"]

_UNKNOWN_COLUMN = re.compile(r"No match for FieldRef\.Name\((?P<name>.*?)\) in ", re.DOTALL)


def read_parquet(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,  # noqa: A002
    version: int | None = None,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Read a dataset into memory, in its state before or after any concurrent commit.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        columns: The names of the columns to read, in this order. None reads all columns, including those that the
            Hive paths hold.
        filter: A pyarrow expression, such as `pyarrow.compute.field("price") > 2`. Only matching rows are returned.
        version: The number of an earlier version, which `inlay.history` lists. None reads the newest state.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.

    Returns:
        The rows, file by file in path order.

    Raises:
        InvalidArgumentError: `filter` is not a pyarrow expression.
        NotFoundError: There is no Parquet file at `path`, or the version is not kept.
        DamagedVersionError: Another program changed a file of the version in place.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        SchemaMismatchError: A column does not exist, or the schemas of the files cannot be combined.
        UnreadableFileError: A data file cannot be read.
        ConcurrentModificationError: The dataset changes faster than it can be read.
        DatasetIOError: The store cannot be read.

    Example:
        >>> import inlay
        >>> import pyarrow.compute as pc
        >>> inlay.write_dataset({"id": [1, 2, 3], "price": [1.0, 2.0, 3.0]}, "prices").row_count
        3
        >>> inlay.read_parquet("prices", columns=["id"], filter=pc.field("price") > 1.5).to_pydict()
        {'id': [2, 3]}
    """
    if filter is not None and type(filter).__name__ != "Expression":
        raise InvalidArgumentError(
            f"The filter must be a pyarrow expression, not {type(filter).__name__}.",
            hint='Pass an expression such as pyarrow.compute.field("price") > 2.',
        )
    location = locate_dataset(path, filesystem, storage_options)

    def read(pinned: Location, files: Sequence[FileStat]) -> pa.Table:
        wanted = None if columns is None else list(columns)
        dataset = _dataset(pinned, files)
        with _naming_unknown_columns(dataset.schema):
            return dataset.to_table(columns=wanted, filter=filter)

    with wrap_errors("read"):
        return read_consistently(location, read, version)


def open_dataset(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> SnapshotDataset:
    """Open a snapshot of a dataset for pyarrow, polars, DuckDB and Spark.

    They read only the columns, partitions and row groups that a query needs. Use the snapshot as a context manager. On
    a local disk, writers can commit inside the block, and the dataset keeps its old rows: hard links in the sidecar
    hold the replaced files until the block ends. Nobody waits for a lock. On an object store, this works if `keep` has
    turned the history on; otherwise, a commit inside the block raises an error at its end.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        version: The number of an earlier version, which `inlay.history` lists. None opens the newest state.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.

    Returns:
        A `pyarrow.dataset.Dataset` with the methods `scan_polars`, `duckdb` and `spark`.

    Raises:
        NotFoundError: There is no Parquet file at `path`, or the version is not kept.
        DamagedVersionError: Another program changed a file of the version in place.
        HistoryUnavailableError: The storage of the dataset cannot keep versions.
        UnreadableFileError: A data file cannot be read.
        ConcurrentModificationError: A writer committed inside the block, and inlay could not keep the replaced files.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2, 3]}, "people").row_count
        3
        >>> with inlay.open_dataset("people") as dataset:
        ...     sum(batch.num_rows for batch in dataset.to_batches())
        ...     dataset.duckdb().filter("id > 1").fetchall()
        3
        [(2,), (3,)]
    """
    from inlay.incremental.dataset import SnapshotDataset  # a slow import: see `open_files`

    location = locate_dataset(path, filesystem, storage_options)
    with wrap_errors("read"), contextlib.ExitStack() as stack:
        snapshot = stack.enter_context(hold_snapshot(location, version))
        contents = Contents.read(snapshot.location, snapshot.files)
        return SnapshotDataset._of(snapshot, contents, stack.pop_all())  # noqa: SLF001


@contextlib.contextmanager
def _naming_unknown_columns(schema: pa.Schema) -> Iterator[None]:
    """Translate pyarrow's error about a missing column."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if unknown := _UNKNOWN_COLUMN.match(str(error)):
            require_columns([unknown["name"]], schema, "the dataset", "column")
        raise


@dataclass(frozen=True, slots=True)
class Contents:
    """The schema of a dataset, and what its footers say about its files."""

    schema: pa.Schema  # with the columns in the Hive paths
    path_columns: pa.Schema
    footers: Footers

    @classmethod
    def read(cls, location: Location, files: Sequence[FileStat], columns: Sequence[str] = ()) -> Contents:
        """Read the footers of all files, with the ranges of `columns`."""
        if not files:
            raise NotFoundError(
                f"There is no Parquet file in {location.uri!r}.",
                hint="Check the path, or write rows with write_dataset.",
            )
        state = TargetState.read(location, files, columns, None, footer_cache(location))
        _check_timestamps(location, state.footers)
        return cls(state.row_schema, path_columns(state.footers), state.footers)


def open_files(location: Location, paths: Sequence[str], schema: pa.Schema, path_columns: pa.Schema) -> ds.Dataset:
    """Open files of a dataset as a pyarrow Dataset."""
    import pyarrow.dataset as ds  # a slow import: it imports pandas if pandas is installed

    return ds.dataset(
        [location.full(path) for path in paths],
        schema=schema,
        format="parquet",
        filesystem=_filesystem(location),
        partitioning=ds.partitioning(path_columns, flavor="hive"),
        partition_base_dir=location.root,
    )


def _dataset(location: Location, files: Sequence[FileStat]) -> ds.Dataset:
    contents = Contents.read(location, files)
    return open_files(location, [file.path for file in files], contents.schema, contents.path_columns)


def _check_timestamps(location: Location, footers: Footers) -> None:
    """Reject INT96 timestamps that pyarrow would change."""
    for number, schema in enumerate(footers.schemas):
        if not any(has_nanoseconds(field.type) for field in schema):
            continue
        with open_parquet(location, footers.first_with_schema(number).path) as first:
            if not int96_columns(first.schema):
                continue
        for position in np.flatnonzero(footers.schema_numbers == number).tolist():
            path = footers.files[position].path
            with open_parquet(location, path) as file:
                require_readable_timestamps(location, path, file.metadata, None)


def parquet_dataset(location: Location, paths: Sequence[str], schema: pa.Schema) -> ds.Dataset:
    """Open files with one schema as a pyarrow Dataset."""
    import pyarrow.dataset as ds  # a slow import: it imports pandas if pandas is installed

    files = [location.full(path) for path in paths]
    return ds.dataset(files, schema=schema, format="parquet", filesystem=_filesystem(location))


def _filesystem(location: Location) -> Filesystem | None:
    return location.store.filesystem if isinstance(location.store, ObjectStore) else None
