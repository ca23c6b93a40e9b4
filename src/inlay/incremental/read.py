"""Consistent reads of a dataset."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from inlay.commit.snapshot import hold_snapshot, read_consistently
from inlay.commit.transaction import footer_cache, locate_dataset
from inlay.errors import InvalidArgumentError, NotFoundError, wrap_errors
from inlay.incremental.target import TargetState
from inlay.incremental.validate import require_columns
from inlay.parquet.footer_cache import Footers
from inlay.parquet.footers import has_nanoseconds, int96_columns, open_parquet, require_readable_timestamps
from inlay.parquet.layout import infer_partition_type, parse_hive_partition_path
from inlay.schema import storage_type
from inlay.storage import FileStat, Filesystem, Location, ObjectStore

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["open_dataset", "parquet_dataset", "read_parquet"]

_UNKNOWN_COLUMN = re.compile(r"No match for FieldRef\.Name\((?P<name>.*?)\) in ", re.DOTALL)


def read_parquet(
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,  # noqa: A002
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Read a dataset into memory, in its state before or after any concurrent commit.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        columns: The names of the columns to read, in this order. None reads all columns, including those that the
            Hive paths hold.
        filter: A pyarrow expression, such as `pyarrow.compute.field("price") > 2`. Only matching rows are returned.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.

    Returns:
        The rows, file by file in path order.

    Raises:
        InvalidArgumentError: `filter` is not a pyarrow expression.
        NotFoundError: There is no Parquet file at `path`.
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
        return read_consistently(location, read)


@contextlib.contextmanager
def open_dataset(
    path: str | os.PathLike[str],
    *,
    filesystem: Filesystem | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[ds.Dataset]:
    """Open a dataset as a pyarrow Dataset, to scan more rows than fit in memory.

    Use it as a context manager. On a local disk, writers can commit inside the block, and the dataset keeps its old
    rows: hard links in the sidecar hold the replaced files until the block ends. On an object store, and for a user who
    cannot write to the sidecar, a commit inside the block raises an error at its end.

    Args:
        path: The directory of the dataset: a local path or a URL that fsspec supports.
        filesystem: An fsspec or pyarrow filesystem that holds `path`. None chooses it by the URL.
        storage_options: Arguments of the filesystem that the URL names.

    Returns:
        A context manager that yields a `pyarrow.dataset.Dataset`.

    Raises:
        NotFoundError: There is no Parquet file at `path`.
        UnreadableFileError: A data file cannot be read.
        ConcurrentModificationError: A writer committed inside the block, and inlay could not keep the replaced files.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1, 2, 3]}, "people").row_count
        3
        >>> with inlay.open_dataset("people") as dataset:
        ...     sum(batch.num_rows for batch in dataset.to_batches())
        3
    """
    location = locate_dataset(path, filesystem, storage_options)
    with contextlib.ExitStack() as stack:
        with wrap_errors("read"):
            snapshot = stack.enter_context(hold_snapshot(location))
            dataset = _dataset(snapshot.location, snapshot.files)
        yield dataset  # outside wrap_errors: errors of the caller's block are not inlay's


@contextlib.contextmanager
def _naming_unknown_columns(schema: pa.Schema) -> Iterator[None]:
    """Translate pyarrow's error about a missing column."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if unknown := _UNKNOWN_COLUMN.match(str(error)):
            require_columns([unknown["name"]], schema, "the dataset", "column")
        raise


def _dataset(location: Location, files: Sequence[FileStat]) -> ds.Dataset:
    import pyarrow.dataset as ds  # a slow import: it imports pandas if pandas is installed

    if not files:
        raise NotFoundError(
            f"There is no Parquet file in {location.uri!r}.", hint="Check the path, or write rows with write_dataset."
        )
    state = TargetState.read(location, files, [], None, footer_cache(location))
    schema = cast(pa.Schema, state.schema)  # a dataset with files has a schema
    _check_timestamps(location, state.footers)
    paths = _path_columns(state.footers)
    return ds.dataset(
        [location.full(file.path) for file in files],
        schema=pa.schema([*schema, *(field for field in paths if field.name not in schema.names)], schema.metadata),
        format="parquet",
        filesystem=_filesystem(location),
        partitioning=ds.partitioning(paths, flavor="hive"),
        partition_base_dir=location.root,
    )


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


def _path_columns(footers: Footers) -> pa.Schema:
    """Return the columns in the Hive paths, with the types in the files, or else inferred from all values."""
    values: dict[str, list[str | None]] = {}
    for directory in dict.fromkeys(posixpath.dirname(file.path) for file in footers.files):
        for name, value in parse_hive_partition_path(f"{directory}/").items():
            values.setdefault(name, []).append(value)
    stored = {field.name: storage_type(field.type) for schema in footers.schemas for field in schema}
    return pa.schema([(name, stored.get(name) or infer_partition_type(texts)) for name, texts in values.items()])
