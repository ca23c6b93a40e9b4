"""Reading a dataset in one consistent state."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from inlay.errors import NotFoundError
from inlay.incremental.commit import footer_cache, holding, locate_dataset, read_consistently
from inlay.incremental.failures import failing_as
from inlay.incremental.target import TargetState
from inlay.incremental.validate import require_columns
from inlay.parquet.footer_cache import Footers
from inlay.parquet.footers import check_timestamps, open_parquet
from inlay.parquet.int96 import int96_columns, is_nanoseconds
from inlay.parquet.layout import infer_partition_type, parse_hive_partition_path
from inlay.storage import FileStat, Location, ObjectStore

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["open_dataset", "parquet_dataset", "read_parquet"]

_UNKNOWN_COLUMN = re.compile(r"No match for FieldRef\.Name\((?P<name>.*?)\) in ", re.DOTALL)


def read_parquet(
    path: str,
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,  # noqa: A002
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> pa.Table:
    """Read a dataset in one consistent state: exactly before or exactly after any merge."""
    location = locate_dataset(path, filesystem, storage_options)

    def read(files: Sequence[FileStat]) -> pa.Table:
        wanted = None if columns is None else list(columns)
        dataset = _dataset(location, files)
        with _naming_unknown_columns(dataset.schema):
            return dataset.to_table(columns=wanted, filter=filter)

    with failing_as("read"):
        return read_consistently(location, read)


@contextlib.contextmanager
def open_dataset(
    path: str,
    *,
    filesystem: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[ds.Dataset]:
    """A dataset in one consistent state, as a pyarrow dataset to scan in batches; for what does not fit in memory.

    Writers can prepare meanwhile, and their commits wait until the block ends. On object stores they do not wait: if
    one came in between, that is a ConcurrentModificationError at the end of the block.
    """
    location = locate_dataset(path, filesystem, storage_options)
    with contextlib.ExitStack() as stack:
        with failing_as("read"):
            dataset = _dataset(location, stack.enter_context(holding(location)))
        yield dataset  # what goes wrong in the caller's block is the caller's


@contextlib.contextmanager
def _naming_unknown_columns(schema: pa.Schema) -> Iterator[None]:
    """pyarrow says which column it did not find, in words of its own."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if unknown := _UNKNOWN_COLUMN.match(str(error)):
            require_columns([unknown["name"]], schema, "the dataset", "column")
        raise


def _dataset(location: Location, files: Sequence[FileStat]) -> ds.Dataset:
    import pyarrow.dataset as ds  # imports pandas where there is one

    if not files:
        raise NotFoundError(f"There is no Parquet file in {location.given!r}.")
    state = TargetState.read(location, files, [], None, footer_cache(location))
    inside = cast(pa.Schema, state.schema)  # there are files, and each of them can be read
    _check_timestamps(location, state.footers)
    paths = _path_columns(state.footers)
    return ds.dataset(
        [location.full(file.path) for file in files],
        schema=pa.schema([*inside, *(field for field in paths if field.name not in inside.names)], inside.metadata),
        format="parquet",
        filesystem=_filesystem(location),
        partitioning=ds.partitioning(paths, flavor="hive"),
        partition_base_dir=location.path,
    )


def _check_timestamps(location: Location, footers: Footers) -> None:
    """Refuse timestamps that would not be read as they are. Files of one schema were written by one program."""
    for number, schema in enumerate(footers.schemas):
        if not any(is_nanoseconds(field.type) for field in schema):
            continue
        with open_parquet(location, footers.first_with_schema(number).path) as first:
            if not int96_columns(first.schema):
                continue
        for at in np.flatnonzero(footers.schema_numbers == number).tolist():
            path = footers.files[at].path
            with open_parquet(location, path) as file:
                check_timestamps(location, path, file.metadata, None)


def parquet_dataset(location: Location, paths: Sequence[str], schema: pa.Schema) -> ds.Dataset:
    """Files of one schema, named one by one."""
    import pyarrow.dataset as ds  # imports pandas where there is one

    files = [location.full(path) for path in paths]
    return ds.dataset(files, schema=schema, format="parquet", filesystem=_filesystem(location))


def _filesystem(location: Location) -> Any:
    """The store as pyarrow takes it; None for the local disk."""
    return location.store.filesystem if isinstance(location.store, ObjectStore) else None


def _path_columns(footers: Footers) -> pa.Schema:
    """The columns that paths give, typed as readers type them."""
    values: dict[str, list[str | None]] = {}
    for file in footers.files:
        for name, value in parse_hive_partition_path(file.path).items():
            values.setdefault(name, []).append(value)
    return pa.schema([(name, infer_partition_type(texts)) for name, texts in values.items()])
