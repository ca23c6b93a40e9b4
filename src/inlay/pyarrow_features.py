"""Features that differ between the supported pyarrow releases, and errors that name a missing one."""

from __future__ import annotations

import functools
import inspect
import io
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inlay.errors import EngineNotInstalledError
from inlay.schema import storage_type

__all__ = ["WRITES_BLOOM_FILTERS", "byte_size", "encode_parquet", "sort_nulls_first"]

WRITES_BLOOM_FILTERS = "bloom_filter_options" in inspect.signature(pq.ParquetWriter.__init__).parameters
_MEASURABLE = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def sort_nulls_first(table: pa.Table) -> pa.Array:
    """Return the indices that sort a table by all of its columns, ascending."""
    try:
        return pc.sort_indices(table, [(name, "ascending", "at_start") for name in table.column_names])
    except ValueError:  # Sort keys have no null placement of their own before pyarrow 25.
        keys = [(name, "ascending") for name in table.column_names]
        return pc.sort_indices(table, keys, null_placement="at_start")


def byte_size(data: pa.Table | pa.RecordBatch) -> int:
    """Return the number of bytes that the rows occupy in memory."""
    try:
        return int(data.nbytes)
    except pa.ArrowTypeError:  # `nbytes` does not support views before pyarrow 24.
        return sum(map(_column_size, data.columns))


def _column_size(column: pa.ChunkedArray | pa.Array) -> int:
    try:
        return int(column.cast(_MEASURABLE.get(column.type, column.type)).nbytes)
    except pa.ArrowTypeError:
        return int(column.get_total_buffer_size())


def encode_parquet(table: pa.Table, options_for: Callable[[pa.Table], dict[str, Any]]) -> pa.Buffer:
    """Encode a table as a Parquet file with one row group, or raise if pyarrow cannot store a column."""
    try:
        encoded = _encode(table, _supported(options_for(table)))
    except pa.ArrowNotImplementedError:
        for name in table.column_names:
            _require_round_trip(table.select([name]))
        raise
    lists = [field.name for field in table.schema if _has_fixed_size_list(field.type)]
    if lists and not _reads_null_lists():
        _require_round_trip(table.select(lists))
    return encoded


def _supported(options: dict[str, Any]) -> dict[str, Any]:
    if not WRITES_BLOOM_FILTERS and (filters := options.pop("bloom_filter_options", None)):
        raise _refused(f"write the Bloom filter of column {next(iter(filters))!r}", "Install pyarrow 24 or newer")
    return options


def _encode(table: pa.Table, options: Mapping[str, Any]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **options) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)
    return sink.getvalue()


def _require_round_trip(table: pa.Table) -> None:
    for field in table.schema:
        try:
            pq.ParquetFile(pa.BufferReader(_encode(table.select([field.name]), {}))).read()
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise _refused(
                f"store the values of column {field.name!r} ({field.type}) in Parquet",
                "Install the newest pyarrow, or cast the column to another type",
            ) from error


def _has_fixed_size_list(type_: pa.DataType) -> bool:
    plain = storage_type(type_)
    if pa.types.is_nested(plain):
        children = (plain.field(i).type for i in range(plain.num_fields))
        return pa.types.is_fixed_size_list(plain) or any(map(_has_fixed_size_list, children))
    return False


@functools.cache
def _reads_null_lists() -> bool:
    """Check that pyarrow reads a NULL of a fixed-size list back: before pyarrow 26 such a file is unreadable."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"v": pa.nulls(1, pa.list_(pa.int8(), 1))}), sink)
    try:
        return bool(pq.ParquetFile(sink).read().num_rows)
    except pa.ArrowInvalid:
        return False


def _refused(action: str, hint: str) -> EngineNotInstalledError:
    return EngineNotInstalledError(f"pyarrow {pa.__version__} cannot {action}.", hint=f"{hint}.")
