"""What Parquet footers say: schema, rows, and value ranges that may be trusted."""

from __future__ import annotations

import contextlib
import decimal
import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.errors import UnreadableFileError
from inlay.parquet.int96 import int96_columns, require_nanoseconds
from inlay.schema import storage_type
from inlay.storage import FileStat, Location

__all__ = [
    "UNKNOWN",
    "ColumnRange",
    "Exactness",
    "Footer",
    "ReadMany",
    "bounds_of",
    "check_timestamps",
    "group_ranges",
    "integer_bounds",
    "open_parquet",
    "python_range",
    "ranges_in",
    "read_many",
    "read_row_group",
    "whole_range",
    "with_shared_schemas",
]

Exactness = Literal["exact", "inexact", "unknown"]

# Writers that fill min_value/max_value in the order the format defines. Others may only have the deprecated
# min/max fields, whose order is not defined for every type, so their ranges prove nothing.
_TRUSTED_WRITERS = re.compile(
    r"parquet-cpp|parquet-rs|duckdb|polars|datafusion|parquet-mr version 1\.1\d", re.IGNORECASE
)
# Bounds of decimals in bytes were compared as text or as unsigned numbers by several writers, also recent ones; those
# of large unsigned integers as signed ones.
_COMPARES_DECIMALS = re.compile(r"parquet-cpp-arrow version (?:[5-9]|\d\d)|duckdb", re.IGNORECASE)
_MISTAKES_UNSIGNED = re.compile("polars", re.IGNORECASE)
# Some writers cut long values without saying so, at 64 bytes or where the character before them ends: from that
# length on a bound may not be a value.
_CUT_AT = 61
_READERS = 8
_BUNDLE = 32  # files per task
_TAIL = 64 << 10  # bytes at the end of a file that hold most footers whole
_SCHEMAS_COMPARED = 16


class ColumnRange(NamedTuple):
    """The values of one column in one file or row group, as comparable raw values (int or bytes)."""

    exactness: Exactness
    low: int | bytes | None = None
    high: int | bytes | None = None
    null_count: int | None = None


UNKNOWN = ColumnRange("unknown")


class Footer(NamedTuple):
    """One file's footer, reduced to what planning needs. `schema` is None when it could not be read."""

    file: FileStat
    rows: int
    groups: int
    schema: pa.Schema | None
    ranges: Mapping[str, ColumnRange]
    error: str | None = None


def bounds_of(ranges: Sequence[ColumnRange], type_: pa.DataType) -> tuple[pa.Array, pa.Array, np.ndarray]:
    exact = np.fromiter((r.exactness == "exact" for r in ranges), np.bool_, len(ranges))
    try:
        lows = _as_array([r.low if known else None for r, known in zip(ranges, exact, strict=True)], type_)
        highs = _as_array([r.high if known else None for r, known in zip(ranges, exact, strict=True)], type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, ValueError):
        nothing = pa.nulls(len(ranges), type_)
        return nothing, nothing, np.zeros(len(ranges), np.bool_)
    return lows, highs, exact


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
_DECIMAL_SCALE = 76


def _as_array(values: list[int | bytes | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(type_):
        return _decimals(values, type_)
    if pa.types.is_boolean(type_):
        return pa.array([None if v is None else bool(v) for v in values], type_)
    if pa.types.is_temporal(type_):
        step = _step(type_)
        whole = values if step == 1 else [None if v is None else int(v) // step for v in values]
        return pa.array(whole, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    if pa.types.is_large_string(type_) or pa.types.is_string(type_):
        return pa.array(values, pa.large_binary()).cast(type_)
    return pa.array(values, type_)


def integer_bounds(
    low: pa.Array, high: pa.Array, exact: np.ndarray, type_: pa.DataType
) -> tuple[pa.Array, pa.Array] | None:
    """What `bounds_of` gives for integers and times, without a Python object per file; None for other types."""
    temporal = pa.types.is_temporal(type_)
    if not (temporal or pa.types.is_integer(type_)):
        return None
    step = _step(type_) if temporal else 1
    stored = type_ if not temporal else pa.int32() if type_.bit_width == 32 else pa.int64()
    try:
        return _whole_steps(low, exact, step, stored).view(type_), _whole_steps(high, exact, step, stored).view(type_)
    except pa.ArrowInvalid:
        return None


def _whole_steps(values: pa.Array, exact: np.ndarray, step: int, stored: pa.DataType) -> pa.Array:
    known = exact & values.is_valid().to_numpy(zero_copy_only=False)
    whole = np.where(known, values.fill_null(0).to_numpy(), 0) // step
    return pa.array(whole, mask=~known).cast(stored)


def _step(type_: pa.DataType) -> int:
    return _DAY if pa.types.is_date32(type_) else _NANOSECONDS[getattr(type_, "unit", "ms")]


def _decimals(values: Sequence[int | bytes | None], type_: pa.DataType) -> pa.Array:
    step = 10 ** (_DECIMAL_SCALE - type_.scale)
    if any(int(v) % step for v in values if v is not None):
        raise ValueError("bounds of another scale")
    with decimal.localcontext(prec=200):
        whole = [None if v is None else decimal.Decimal(int(v) // step).scaleb(-type_.scale) for v in values]
        return pa.array(whole, type_)


# ------------------------------------------------------------------------------------------ reading one footer
def open_parquet(location: Location, path: str) -> pq.ParquetFile:
    """Open a data file for reading; what cannot be read is an error that names it."""
    with _reading(location, path):
        return _open(location, path)


def _open(location: Location, path: str, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        location.store.open_arrow(location.full(path)),
        pre_buffer=not location.store.is_local,
        page_checksum_verification=True,  # or what is damaged would be written again with a checksum of its own
        **options,
    )


def read_row_group(
    location: Location, path: str, metadata: pq.FileMetaData, group: int, columns: Sequence[str] | None = None
) -> pa.Table:
    """A row group of a file whose footer is known, or some columns of it."""
    check_timestamps(location, path, metadata, [group], columns)
    try:
        with _open(location, path, metadata=metadata) as parquet:
            return parquet.read_row_group(group, columns=columns and list(columns), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        shown = location.shown(path)
        raise UnreadableFileError(
            f"Cannot read row group {group} of {shown!r}: {error}", operation="read", files=[shown]
        ) from error


def check_timestamps(
    location: Location,
    path: str,
    metadata: pq.FileMetaData,
    groups: Iterable[int] | None,
    columns: Sequence[str] | None = None,
) -> None:
    """Refuse timestamps that would not be read as they are; None: of any row group, in any column."""
    chosen = [c for c in int96_columns(metadata.schema) if columns is None or c.split(".")[0] in columns]
    if chosen:
        open_as = functools.partial(_open, location, path, metadata=metadata)
        require_nanoseconds(open_as, location.shown(path), groups, chosen)


@contextlib.contextmanager
def _reading(location: Location, path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UnreadableFileError(
            f"Cannot read {location.shown(path)!r}: {_reason(error)}",
            operation="read",
            files=[location.shown(path)],
            hint="Move the file out of the dataset, or restore it from a copy.",
        ) from error


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class _Schemas:
    """Arrow schemas by what files state. Most files share one: it is converted once and compared by identity."""

    def __init__(self) -> None:
        self._known: list[tuple[pq.ParquetSchema, dict[bytes, bytes] | None, pa.Schema]] = []

    def of(self, metadata: pq.FileMetaData) -> pa.Schema:
        stated, notes = metadata.schema, metadata.metadata
        for schema, others, arrow in self._known[:_SCHEMAS_COMPARED]:
            if others == notes and schema.equals(stated):
                return arrow
        arrow = stated.to_arrow_schema()
        self._known.append((stated, notes, arrow))
        return arrow


def _read_footer(location: Location, file: FileStat, columns: Sequence[str], schemas: _Schemas) -> Footer:
    """A footer that cannot be read proves nothing: the file stays a candidate, and says why."""
    try:
        with _reading(location, file.path), location.store.open_arrow(location.full(file.path)) as opened:
            metadata = pq.read_metadata(opened)
            schema = schemas.of(metadata)
            ranges = {c: whole_range(ranges_in(metadata, schema, c)) for c in columns}
            return Footer(file, metadata.num_rows, metadata.num_row_groups, schema, ranges)
    except UnreadableFileError as error:
        return Footer(file, 0, 0, None, {}, str(error))


def ranges_in(metadata: pq.FileMetaData, schema: pa.Schema, column: str) -> list[ColumnRange]:
    if schema.get_field_index(column) < 0:
        return [UNKNOWN] * metadata.num_row_groups
    return group_ranges(metadata, column, schema.field(column).type)


def group_ranges(metadata: pq.FileMetaData, column: str, arrow_type: pa.DataType) -> list[ColumnRange]:
    """The range of a top-level column in every row group."""
    index = _leaf_index(metadata, column)
    decode = None if index is None else _decoder(metadata.schema.column(index), arrow_type)
    if index is None or decode is None or not _compares(metadata.created_by or "", metadata.schema.column(index)):
        return [UNKNOWN] * metadata.num_row_groups
    return [_chunk_range(metadata.row_group(g).column(index), decode) for g in range(metadata.num_row_groups)]


def _compares(writer: str, column: Any) -> bool:
    """Whether a writer is known to find the least and the greatest value of such a column."""
    if not _TRUSTED_WRITERS.search(writer):
        return False
    kind = column.logical_type.type
    if kind == "DECIMAL" and column.physical_type not in ("INT32", "INT64"):
        return _COMPARES_DECIMALS.search(writer) is not None
    if kind == "INT" and column.physical_type == "INT64" and _MISTAKES_UNSIGNED.search(writer):
        return bool(json.loads(column.logical_type.to_json()).get("isSigned", True))
    return True


def python_range(found: ColumnRange, type_: pa.DataType) -> dict[str, Any]:
    """A range as people read it: values of the column's own type."""
    low, high = found.low, found.high
    if low is not None and high is not None:
        try:
            low, high = (_as_array([bound], _plain_type(type_))[0].as_py() for bound in (low, high))
        except (pa.ArrowException, ValueError, ImportError, OverflowError):
            return {"min": None, "max": None, "null_count": found.null_count, "exactness": "unknown"}
    return {"min": low, "max": high, "null_count": found.null_count, "exactness": found.exactness}


def _plain_type(type_: pa.DataType) -> pa.DataType:
    plain = storage_type(type_)
    return pa.large_string() if pa.types.is_string_view(plain) else plain


def _leaf_index(metadata: pq.FileMetaData, column: str) -> int | None:
    schema = metadata.schema
    found = [i for i in range(len(schema)) if schema.column(i).path == column]
    return found[0] if len(found) == 1 else None  # "a.b" can be a column, and also field b of a column a


def _chunk_range(chunk: Any, decode: Callable[[Any], int | bytes]) -> ColumnRange:
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return UNKNOWN
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        all_null = nulls is not None and nulls == chunk.num_values
        return ColumnRange("exact" if all_null else "unknown", None, None, nulls)
    low, high = decode(statistics.min_raw), decode(statistics.max_raw)
    if low > high:  # type: ignore[operator]  # both are numbers, or both are bytes
        return UNKNOWN
    cut = isinstance(low, bytes) and isinstance(high, bytes) and max(len(low), len(high)) >= _CUT_AT
    return ColumnRange("inexact" if cut else "exact", low, high, nulls)


def whole_range(groups: Sequence[ColumnRange]) -> ColumnRange:
    """One range for all row groups: only as good as the worst of them."""
    if any(group.exactness == "unknown" for group in groups):
        return UNKNOWN
    lows = [group.low for group in groups if group.low is not None]
    highs = [group.high for group in groups if group.high is not None]
    nulls = [group.null_count for group in groups]
    exactness: Exactness = "inexact" if any(g.exactness == "inexact" for g in groups) else "exact"
    return ColumnRange(
        exactness,
        min(lows, default=None),
        max(highs, default=None),
        None if None in nulls else sum(n for n in nulls if n is not None),
    )


def _decoder(column: Any, arrow_type: pa.DataType) -> Callable[[Any], int | bytes] | None:
    """How to read a raw bound as a value that compares across files (times in ns, decimals at one scale).

    None where bounds prove nothing: NaN is left out of float bounds, INT96 has no order, lists repeat.
    """
    physical, logical = column.physical_type, json.loads(column.logical_type.to_json())
    kind = logical.get("Type")
    if column.max_repetition_level > 0 or physical in ("FLOAT", "DOUBLE", "INT96") or kind in ("Float16", "Interval"):
        return None
    if kind == "Decimal":
        return _decimal_decoder(physical, logical["scale"])
    if physical not in ("INT32", "INT64"):
        return int if physical == "BOOLEAN" else bytes
    if kind == "Int" and not logical.get("isSigned", True):
        mask = 0xFFFFFFFF if physical == "INT32" else 0xFFFFFFFFFFFFFFFF
        return lambda raw: int(raw) & mask
    step = _stored_step(kind, logical, arrow_type)
    return int if step == 1 else lambda raw: int(raw) * step


def _decimal_decoder(physical: str, scale: int) -> Callable[[Any], int]:
    factor = 10 ** (_DECIMAL_SCALE - scale)
    if physical in ("INT32", "INT64"):
        return lambda raw: int(raw) * factor
    return lambda raw: int.from_bytes(raw, "big", signed=True) * factor


def _stored_step(kind: str | None, logical: dict[str, Any], arrow_type: pa.DataType) -> int:
    """Nanoseconds per stored unit; the stored unit can be finer than Arrow's (seconds are stored as ms)."""
    if kind == "Date":
        return _DAY
    if kind in ("Timestamp", "Time"):
        return {"milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}[logical["timeUnit"]]
    return _NANOSECONDS[arrow_type.unit] if pa.types.is_duration(arrow_type) else 1


# ----------------------------------------------------------------------------------------------- many footers
ReadMany = Callable[[Location, Sequence[FileStat], Sequence[str]], list[Footer]]


def read_many(location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]:
    """Remote footers are mostly waiting, so several are on their way at a time. Local ones are mostly Python: threads
    would only pass its lock around, at more than twice the CPU time, so the disk alone works ahead."""
    schemas = _Schemas()
    bundles = [files[start : start + _BUNDLE] for start in range(0, len(files), _BUNDLE)]

    def read(bundle: Sequence[FileStat]) -> list[Footer]:
        return [_read_footer(location, file, columns, schemas) for file in bundle]

    if location.store.is_local:
        return [footer for bundle in _read_ahead(location, bundles) for footer in read(bundle)]
    with ThreadPoolExecutor(min(_READERS, len(bundles)), "inlay-footers") as pool:
        return [footer for footers in pool.map(read, bundles) for footer in footers]


def _read_ahead(location: Location, bundles: Sequence[Sequence[FileStat]]) -> Iterator[Sequence[FileStat]]:
    """Ask the disk for the next bundle's footers while one is being worked on."""
    for bundle, following in zip(bundles, [*bundles[1:], ()], strict=True):
        for file in following:
            with contextlib.suppress(OSError):
                descriptor = os.open(location.full(file.path), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    start = max(file.size - _TAIL, 0)
                    os.posix_fadvise(descriptor, start, _TAIL, os.POSIX_FADV_WILLNEED)
                finally:
                    os.close(descriptor)
        yield bundle


def with_shared_schemas(footers: Sequence[Footer]) -> list[Footer]:
    """Footers that came from other processes, with one object for equal schemas again."""
    known: dict[bytes, pa.Schema] = {}
    return [
        footer
        if footer.schema is None
        else footer._replace(schema=known.setdefault(footer.schema.serialize().to_pybytes(), footer.schema))
        for footer in footers
    ]
