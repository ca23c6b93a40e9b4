"""Timestamps of 96 bits, which older writers have, span more years than a 64-bit count of nanoseconds, and Arrow does
not see it overflow: 9999-12-31 becomes a day in 1816. A look at all of them, read twice, says what holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.errors import UnreadableFileError

__all__ = ["int96_columns", "is_nanoseconds", "require_nanoseconds", "units_needed"]

_BATCH_ROWS = 16_384
_MOST_MILLIS = {"ns": (1 << 63) // 1_000_000, "us": (1 << 63) // 1_000}


def is_nanoseconds(type_: pa.DataType) -> bool:
    """The type that Arrow gives such columns, among others."""
    if pa.types.is_nested(type_):
        return any(is_nanoseconds(type_.field(at).type) for at in range(type_.num_fields))
    return pa.types.is_timestamp(type_) and bool(type_.unit == "ns")


def int96_columns(schema: pq.ParquetSchema) -> list[str]:
    """The paths of such columns."""
    columns = (schema.column(at) for at in range(len(schema)))
    return [column.path for column in columns if column.physical_type == "INT96"]


def units_needed(
    fine: pq.ParquetFile, coarse: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str]
) -> set[str]:
    """What the timestamps cannot do without: `ns digits`, the `us` of far years, or `none` holds them. The same file
    is given as read with nanoseconds, which may have wrapped, and with milliseconds, which cannot.
    """
    found: set[str] = set()
    for group in groups if columns else ():
        pairs = (file.iter_batches(_BATCH_ROWS, [group], columns, use_threads=False) for file in (fine, coarse))
        for left, right in zip(*pairs, strict=True):
            found |= _units_of(left, right)
    return found


def require_nanoseconds(
    open_as: Callable[..., pq.ParquetFile], shown: str, groups: Iterable[int] | None, columns: Sequence[str]
) -> None:
    """Refuse a file with timestamps in these columns that nanoseconds do not hold; None: in any row group."""
    with (
        open_as(coerce_int96_timestamp_unit="ns") as fine,
        open_as(coerce_int96_timestamp_unit="ms") as coarse,
    ):
        chosen = range(fine.num_row_groups) if groups is None else groups
        if units_needed(fine, coarse, chosen, columns) - {"ns digits"}:
            raise UnreadableFileError(
                f"{shown!r} holds INT96 timestamps before 1678 or after 2261 in {', '.join(columns)}, which cannot be "
                "read without changing them.",
                operation="read",
                files=[shown],
                hint="Write the file again with timestamps in microseconds; Spark does so with "
                "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS.",
            )


def _units_of(fine: pa.RecordBatch, coarse: pa.RecordBatch) -> set[str]:
    found = set()
    for left, right in zip(fine.columns, coarse.columns, strict=True):
        for nanos, millis in zip(_counts(left), _counts(right), strict=True):
            digits = (nanos - millis * 1_000_000) % 1_000  # wrapping around as they did
            far = np.abs(millis) >= _MOST_MILLIS["ns"]
            found |= {"ns digits"} if digits.any() else set()
            found |= {"us"} if far.any() else set()
            found |= {"none"} if (np.abs(millis) >= _MOST_MILLIS["us"]).any() else set()
    return found


def _counts(array: pa.Array) -> Iterator[np.ndarray]:
    """The integers of all timestamps in an array, however nested."""
    if pa.types.is_timestamp(array.type):
        yield array.cast(pa.int64()).drop_null().to_numpy()
    else:
        for child in array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]:
            yield from _counts(child)
