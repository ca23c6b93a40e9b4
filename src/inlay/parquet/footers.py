"""Parquet footers: schemas, row counts, trustworthy value ranges, and checks of INT96 timestamps."""

from __future__ import annotations

import contextlib
import decimal
import functools
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from inlay.arrays import from_binary, from_integers, from_numpy, to_numpy
from inlay.errors import UnreadableFileError
from inlay.schema import storage_type
from inlay.storage import FileStat, Location

__all__ = [
    "UNKNOWN",
    "ColumnRange",
    "Exactness",
    "Footer",
    "ReadMany",
    "RowGroupReader",
    "bound_arrays",
    "column_ranges",
    "group_ranges",
    "has_nanoseconds",
    "int96_columns",
    "int96_units",
    "integer_bounds",
    "merge_ranges",
    "open_parquet",
    "python_range",
    "read_many",
    "read_row_group",
    "read_small_file",
    "require_nanoseconds",
    "require_readable_timestamps",
    "with_shared_schemas",
]


_BATCH_ROWS = 16_384
_MAX_MILLIS = {"ns": (1 << 63) // 1_000_000, "us": (1 << 63) // 1_000}


def has_nanoseconds(type_: pa.DataType) -> bool:
    """Return whether a type is or contains nanosecond timestamps, as which Arrow reads INT96."""
    if pa.types.is_nested(type_):
        return any(has_nanoseconds(type_.field(at).type) for at in range(type_.num_fields))
    return pa.types.is_timestamp(type_) and bool(type_.unit == "ns")


def int96_columns(schema: pq.ParquetSchema) -> list[str]:
    """Return the paths of the INT96 columns."""
    columns = (schema.column(at) for at in range(len(schema)))
    return [column.path for column in columns if column.physical_type == "INT96"]


def int96_units(
    fine: pq.ParquetFile, coarse: pq.ParquetFile, groups: Iterable[int], columns: Sequence[str]
) -> set[str]:
    """Return which units the INT96 timestamps of a file need.

    "ns digits" means that some have nanoseconds, "us" that some exceed the range of nanoseconds, and "none" that some
    exceed the range of microseconds. `fine` is the file read in nanoseconds, which may have overflowed. `coarse` is
    the same file read in milliseconds.
    """
    found: set[str] = set()
    for group in groups if columns else ():
        pairs = (file.iter_batches(_BATCH_ROWS, [group], columns, use_threads=False) for file in (fine, coarse))
        for left, right in zip(*pairs, strict=True):
            found |= _units_of(left, right)
    return found


def require_nanoseconds(
    open_as: Callable[..., pq.ParquetFile], name: str, groups: Iterable[int] | None, columns: Sequence[str]
) -> None:
    """Reject a file if nanoseconds cannot represent its INT96 timestamps (groups None: all row groups)."""
    with (
        open_as(coerce_int96_timestamp_unit="ns") as fine,
        open_as(coerce_int96_timestamp_unit="ms") as coarse,
    ):
        chosen = range(fine.num_row_groups) if groups is None else groups
        if int96_units(fine, coarse, chosen, columns) - {"ns digits"}:
            raise UnreadableFileError(
                f"{name!r} contains INT96 timestamps before 1678 or after 2261 in {', '.join(columns)}, which inlay "
                "cannot read exactly.",
                operation="read",
                files=[name],
                hint="Rewrite the file with timestamps in microseconds. In Spark, set "
                "spark.sql.parquet.outputTimestampType=TIMESTAMP_MICROS.",
            )


def _units_of(fine: pa.RecordBatch, coarse: pa.RecordBatch) -> set[str]:
    found = set()
    for left, right in zip(fine.columns, coarse.columns, strict=True):
        for nanos, millis in zip(_counts(left), _counts(right), strict=True):
            digits = (nanos - millis * 1_000_000) % 1_000  # The difference overflows just as the nanoseconds did.
            far = np.abs(millis) >= _MAX_MILLIS["ns"]
            found |= {"ns digits"} if digits.any() else set()
            found |= {"us"} if far.any() else set()
            found |= {"none"} if (np.abs(millis) >= _MAX_MILLIS["us"]).any() else set()
    return found


def _counts(array: pa.Array) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the integers of all timestamps in an array, at any depth."""
    if pa.types.is_timestamp(array.type):
        yield to_numpy(array.cast(pa.int64()).drop_null())
    else:
        for child in array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]:
            yield from _counts(child)


_RESTORE_HINT = "Restore the file from a backup, or move it out of the dataset."
Exactness = Literal["exact", "inexact", "unknown"]

# Writers that fill min_value and max_value in the order that the format defines. Other files may only have the
# deprecated fields min and max, whose order is not defined for every type.
_TRUSTED_WRITERS = re.compile(
    r"parquet-cpp|parquet-rs|duckdb|polars|datafusion|parquet-mr version 1\.1\d", re.IGNORECASE
)
# Several writers compare decimals in bytes as text or as unsigned numbers, and large unsigned integers as signed ones.
_COMPARES_DECIMALS = re.compile(r"parquet-cpp-arrow version (?:[5-9]|\d\d)|duckdb", re.IGNORECASE)
_COMPARES_UNSIGNED_AS_SIGNED = re.compile("polars", re.IGNORECASE)
# Some writers truncate bounds silently, to 64 bytes or to the end of the last whole UTF-8 character before that. A
# bound of this length or more may not be a value of the column.
_MAX_TRUSTED_BYTES = 61
_READERS = 8
_BUNDLE = 64  # files per task
_SCHEMAS_COMPARED = 16
_UNREADABLE = (pa.ArrowException, OSError, ValueError)


class ColumnRange(NamedTuple):
    """The value range of a column in a file or row group, as comparable integers or bytes.

    Writers leave NaN out of the range of a float column, so an exact range says nothing about NaN.
    """

    exactness: Exactness
    low: int | bytes | None = None
    high: int | bytes | None = None
    null_count: int | None = None


UNKNOWN = ColumnRange("unknown")
_Decode = Callable[[Any], int | bytes | None]  # returns None for a raw bound that is not usable


class Footer(NamedTuple):
    """The part of a footer that planning needs. `schema` is None if the footer is unreadable."""

    file: FileStat
    rows: int
    groups: int
    schema: pa.Schema | None
    ranges: Mapping[str, ColumnRange]
    error: str | None = None


def bound_arrays(ranges: Sequence[ColumnRange], type_: pa.DataType) -> tuple[pa.Array, pa.Array, npt.NDArray[np.bool_]]:
    """Return lows and highs in the column's type, and a mask of the exact ranges."""
    exact = np.fromiter((r.exactness == "exact" for r in ranges), np.bool_, len(ranges))
    try:
        lows = _as_array([r.low if known else None for r, known in zip(ranges, exact, strict=True)], type_)
        highs = _as_array([r.high if known else None for r, known in zip(ranges, exact, strict=True)], type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError):
        nulls = pa.nulls(len(ranges), type_)
        return nulls, nulls, np.zeros(len(ranges), np.bool_)
    return lows, highs, exact


_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY = 86_400 * 10**9
_DECIMAL_SCALE = 76


def _as_array(values: list[int | bytes | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(type_):
        return _decimals(values, type_)
    if pa.types.is_boolean(type_):
        return from_integers([None if v is None else bool(v) for v in values], type_)
    if pa.types.is_temporal(type_):
        step = _step(type_)
        whole = values if step == 1 else [None if v is None else int(v) // step for v in values]
        return from_integers(whole, pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    if pa.types.is_large_string(type_) or pa.types.is_string(type_):
        return from_binary(values).cast(type_)
    if pa.types.is_floating(type_):
        return pa.array([None if v is None else _float_of(v) for v in values], pa.float64()).cast(type_)
    return from_integers(values, type_) if pa.types.is_integer(type_) else pa.array(values, type_)


def integer_bounds(
    low: pa.Array, high: pa.Array, exact: npt.NDArray[np.bool_], type_: pa.DataType
) -> tuple[pa.Array, pa.Array] | None:
    """Return the arrays of `bound_arrays` for integers and times without Python objects, else None."""
    temporal = pa.types.is_temporal(type_)
    if not (temporal or pa.types.is_integer(type_)):
        return None
    step = _step(type_) if temporal else 1
    stored = type_ if not temporal else pa.int32() if type_.bit_width == 32 else pa.int64()
    try:
        return _whole_steps(low, exact, step, stored).view(type_), _whole_steps(high, exact, step, stored).view(type_)
    except pa.ArrowInvalid:
        return None


def _whole_steps(values: pa.Array, exact: npt.NDArray[np.bool_], step: int, stored: pa.DataType) -> pa.Array:
    known = exact & to_numpy(values.is_valid())
    return from_numpy(np.where(known, to_numpy(values, 0), 0) // step, known).cast(stored)


_SIGN = 1 << 63


def _float_bound(raw: float | bytes) -> bytes | None:
    """Return 8 bytes that sort like floats, the same for -0.0 and 0.0. NaN is no bound."""
    value = struct.unpack("<e", raw)[0] if isinstance(raw, bytes) else raw
    if math.isnan(value):
        return None
    [magnitude] = struct.unpack(">q", struct.pack(">d", abs(value)))
    return int(_SIGN + (magnitude if value > 0 else -magnitude)).to_bytes(8, "big")


def _float_of(bound: int | bytes) -> float:
    """Return the float of a bound. Files with integers have integers as bounds."""
    if isinstance(bound, int):
        return float(bound)
    number = int.from_bytes(bound, "big") - _SIGN
    [value] = struct.unpack(">d", struct.pack(">q", abs(number)))
    return math.copysign(value, number)


def _step(type_: pa.DataType) -> int:
    return _DAY if pa.types.is_date32(type_) else _NANOSECONDS[getattr(type_, "unit", "ms")]


def _decimals(values: Sequence[int | bytes | None], type_: pa.DataType) -> pa.Array:
    step = 10 ** (_DECIMAL_SCALE - type_.scale)
    if any(int(v) % step for v in values if v is not None):
        raise ValueError("the bounds have more decimal places than the type")
    with decimal.localcontext(prec=200):
        whole = [None if v is None else decimal.Decimal(int(v) // step).scaleb(-type_.scale) for v in values]
        return pa.array(whole, type_)


# ------------------------------------------------------------------------------------------ reading one footer
def open_parquet(location: Location, path: str, data: pa.Buffer | None = None) -> pq.ParquetFile:
    """Open a data file, or its `data` in memory. Raise UnreadableFileError if it cannot be read."""
    with _unreadable_errors(location, path):
        return _open(location, path, data)


def read_small_file(location: Location, path: str, limit: int) -> pa.Buffer | None:
    """Read a local data file, or return None if it has more than `limit` bytes."""
    if not location.store.is_local:
        return None
    with _unreadable_errors(location, path), location.store.open_arrow(location.full(path)) as file:
        return file.read_buffer() if file.size() <= limit else None


def _open(location: Location, path: str, data: pa.Buffer | None = None, **options: Any) -> pq.ParquetFile:
    return pq.ParquetFile(
        location.store.open_arrow(location.full(path)) if data is None else pa.BufferReader(data),
        pre_buffer=not location.store.is_local,
        page_checksum_verification=True,  # A rewrite must not compute a new checksum for damaged pages.
        **options,
    )


def read_row_group(
    location: Location,
    path: str,
    metadata: pq.FileMetaData,
    group: int,
    columns: Sequence[str] | None = None,
    data: pa.Buffer | None = None,
    dictionaries: Sequence[str] = (),
) -> pa.Table:
    """Read a row group, or some of its columns, of a file whose footer is known.

    Text columns in `dictionaries` are read as dictionaries.
    """
    with RowGroupReader(location, path, metadata, group, data, dictionaries) as reader:
        return reader.read(columns)


class RowGroupReader:
    """Decodes columns of a row group, of a file whose footer is known and that is opened once.

    Text columns in `dictionaries` are read as dictionaries.
    """

    def __init__(
        self,
        location: Location,
        path: str,
        metadata: pq.FileMetaData,
        group: int,
        data: pa.Buffer | None = None,
        dictionaries: Sequence[str] = (),
    ) -> None:
        self._location, self._path, self._metadata, self._group = location, path, metadata, group
        with _damage_errors(location, path, group):
            self._parquet = _open(location, path, data, metadata=metadata, read_dictionary=list(dictionaries))

    def __enter__(self) -> RowGroupReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._parquet.close()

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Decode some columns, or all."""
        require_readable_timestamps(self._location, self._path, self._metadata, [self._group], columns)
        with _damage_errors(self._location, self._path, self._group):
            return self._parquet.read_row_group(self._group, columns=columns and list(columns), use_threads=False)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Decode some columns in small pieces, for callers that may not need all of them."""
        require_readable_timestamps(self._location, self._path, self._metadata, [self._group], columns)
        with _damage_errors(self._location, self._path, self._group):
            for batch in self._parquet.iter_batches(_BATCH_ROWS, [self._group], list(columns), use_threads=False):
                yield pa.Table.from_batches([batch])


@contextlib.contextmanager
def _damage_errors(location: Location, path: str, group: int) -> Iterator[None]:
    try:
        yield
    except MemoryError:  # Arrow's has two base classes
        raise
    except (pa.ArrowException, OSError) as error:
        name = location.display(path)
        raise UnreadableFileError(
            f"Cannot read row group {group} of {name!r}: {error}",
            operation="read",
            files=[name],
            hint=_RESTORE_HINT,
        ) from error


def require_readable_timestamps(
    location: Location,
    path: str,
    metadata: pq.FileMetaData,
    groups: Iterable[int] | None,
    columns: Sequence[str] | None = None,
) -> None:
    """Reject INT96 timestamps that cannot be read exactly (None: all row groups, all columns)."""
    chosen = [c for c in int96_columns(metadata.schema) if columns is None or c.split(".")[0] in columns]
    if chosen:
        open_as = functools.partial(_open, location, path, metadata=metadata)
        require_nanoseconds(open_as, location.display(path), groups, chosen)


@contextlib.contextmanager
def _unreadable_errors(location: Location, path: str) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        raise _unreadable_error(location, path, error) from error


def _unreadable_error(location: Location, path: str, error: Exception) -> UnreadableFileError:
    name = location.display(path)
    return UnreadableFileError(
        f"Cannot read {name!r}: {_reason(error)}", operation="read", files=[name], hint=_RESTORE_HINT
    )


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


_ReadRanges = Callable[[pq.FileMetaData], list["ColumnRange"]]


class _KnownSchema:
    """A Parquet schema that many files share: its Arrow schema, and how to read the ranges of its columns."""

    def __init__(self, metadata: pq.FileMetaData) -> None:
        self._parquet, self._key_values = metadata.schema, metadata.metadata
        self.arrow = self._parquet.to_arrow_schema()
        self._readers: dict[tuple[str, str], _ReadRanges] = {}

    def is_schema_of(self, metadata: pq.FileMetaData) -> bool:
        return bool(self._key_values == metadata.metadata and self._parquet.equals(metadata.schema))

    def range(self, metadata: pq.FileMetaData, column: str) -> ColumnRange:
        found = metadata.created_by or "", column
        read = self._readers.get(found) or self._readers.setdefault(found, _range_reader(metadata, self.arrow, column))
        groups = read(metadata)
        return groups[0] if len(groups) == 1 else merge_ranges(groups)


class _Schemas:
    """A cache of schemas. Files with the same Parquet schema share one object."""

    def __init__(self) -> None:
        self._known: list[_KnownSchema] = []

    def of(self, metadata: pq.FileMetaData) -> _KnownSchema:
        for known in self._known[:_SCHEMAS_COMPARED]:
            if known.is_schema_of(metadata):
                return known
        added = _KnownSchema(metadata)
        self._known.append(added)  # Another thread may append its schema at the same time.
        return added


def _read_footer(location: Location, file: FileStat, columns: Sequence[str], schemas: _Schemas) -> Footer:
    """Read one footer. An unreadable footer gets an error, and its file is never pruned."""
    try:
        with location.store.open_footer(location.full(file.path)) as opened:
            reader = pq.ParquetReader()  # `pq.read_metadata` also prepares to read columns by name
            reader.open(opened)
            metadata = reader.metadata
        known = schemas.of(metadata)
        ranges = {column: known.range(metadata, column) for column in columns}
        return Footer(file, metadata.num_rows, metadata.num_row_groups, known.arrow, ranges)
    except _UNREADABLE as error:
        return Footer(file, 0, 0, None, {}, str(_unreadable_error(location, file.path, error)))


def column_ranges(metadata: pq.FileMetaData, schema: pa.Schema, column: str) -> list[ColumnRange]:
    return _range_reader(metadata, schema, column)(metadata)


def group_ranges(metadata: pq.FileMetaData, column: str, arrow_type: pa.DataType) -> list[ColumnRange]:
    """Return the range of a top-level column in each row group."""
    return _typed_range_reader(metadata, column, arrow_type)(metadata)


def _range_reader(metadata: pq.FileMetaData, schema: pa.Schema, column: str) -> _ReadRanges:
    """Return a function that reads the ranges of a column from every footer of this schema and writer."""
    if schema.get_field_index(column) < 0:
        return _unknown_ranges
    return _typed_range_reader(metadata, column, schema.field(column).type)


def _typed_range_reader(metadata: pq.FileMetaData, column: str, arrow_type: pa.DataType) -> _ReadRanges:
    index = _leaf_index(metadata, column)
    decode = None if index is None else _decoder(metadata.schema.column(index), arrow_type)
    if (
        index is None
        or decode is None
        or not _has_trusted_bounds(metadata.created_by or "", metadata.schema.column(index))
    ):
        return _unknown_ranges
    return lambda footer: [
        _chunk_range(footer.row_group(group).column(index), decode) for group in range(footer.num_row_groups)
    ]


def _unknown_ranges(metadata: pq.FileMetaData) -> list[ColumnRange]:
    return [UNKNOWN] * metadata.num_row_groups


def _has_trusted_bounds(writer: str, column: pq.ColumnSchema) -> bool:
    """Return whether a writer is known to compare values of this column correctly."""
    if not _TRUSTED_WRITERS.search(writer):
        return False
    kind = column.logical_type.type
    if kind == "DECIMAL" and column.physical_type not in ("INT32", "INT64"):
        return _COMPARES_DECIMALS.search(writer) is not None
    if kind == "INT" and column.physical_type == "INT64" and _COMPARES_UNSIGNED_AS_SIGNED.search(writer):
        return bool(json.loads(column.logical_type.to_json()).get("isSigned", True))
    return True


def python_range(found: ColumnRange, type_: pa.DataType) -> dict[str, Any]:
    """Return a range as Python values of the column's type."""
    low, high = found.low, found.high
    if low is not None and high is not None:
        try:
            low, high = (_as_array([bound], _plain_type(type_))[0].as_py() for bound in (low, high))
        except (pa.ArrowException, ValueError, ImportError, OverflowError):
            return {"min": None, "max": None, "null_count": found.null_count, "exactness": "unknown"}
    return {"min": low, "max": high, "null_count": found.null_count, "exactness": found.exactness}


def _plain_type(type_: pa.DataType) -> pa.DataType:
    plain = storage_type(type_)
    if pa.types.is_floating(plain):
        return pa.float64()  # also represents float16, for which Arrow needs numpy objects
    return pa.large_string() if pa.types.is_string_view(plain) else plain


def _leaf_index(metadata: pq.FileMetaData, column: str) -> int | None:
    schema = metadata.schema
    found = [i for i in range(len(schema)) if schema.column(i).path == column]
    return found[0] if len(found) == 1 else None  # "a.b" can be a column, and also field b of column a.


def _chunk_range(chunk: pq.ColumnChunkMetaData, decode: _Decode) -> ColumnRange:
    statistics = chunk.statistics
    if statistics is None:
        return UNKNOWN
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        all_null = nulls is not None and nulls == chunk.num_values
        return ColumnRange("exact" if all_null else "unknown", None, None, nulls)
    low, high = decode(statistics.min_raw), decode(statistics.max_raw)
    if low is None or high is None or low > high:  # type: ignore[operator]  # both are numbers, or both are bytes
        return UNKNOWN
    truncated = isinstance(low, bytes) and isinstance(high, bytes) and max(len(low), len(high)) >= _MAX_TRUSTED_BYTES
    return ColumnRange("inexact" if truncated else "exact", low, high, nulls)


def merge_ranges(groups: Sequence[ColumnRange]) -> ColumnRange:
    """Merge the ranges of row groups. The result is only as exact as the least exact one."""
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


def _decoder(column: pq.ColumnSchema, arrow_type: pa.DataType) -> _Decode | None:
    """Return a function that makes raw bounds comparable across files: times in ns, decimals at one scale.

    Returns None if bounds are not usable: INT96 has no order, and lists repeat values.
    """
    physical, logical = column.physical_type, json.loads(column.logical_type.to_json())
    kind = logical.get("Type")
    if column.max_repetition_level > 0 or physical == "INT96" or kind == "Interval":
        return None
    if physical in ("FLOAT", "DOUBLE") or kind == "Float16":
        return _float_bound
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
    """Return the nanoseconds per stored unit. It can be finer than Arrow's: seconds are stored as ms."""
    if kind == "Date":
        return _DAY
    if kind in ("Timestamp", "Time"):
        return {"milliseconds": 10**6, "microseconds": 10**3, "nanoseconds": 1}[logical["timeUnit"]]
    return _NANOSECONDS[arrow_type.unit] if pa.types.is_duration(arrow_type) else 1


# ----------------------------------------------------------------------------------------------- many footers
ReadMany = Callable[[Location, Sequence[FileStat], Sequence[str]], list[Footer]]


def read_many(location: Location, files: Sequence[FileStat], columns: Sequence[str]) -> list[Footer]:
    """Read the footers of files with the ranges of columns.

    Remote footers are read by several threads, which mostly wait. Local footers are read by one thread with read-ahead:
    they are mostly Python work, and threads would double the CPU time.
    """
    schemas = _Schemas()
    store = location.store
    bundles = [files[start : start + _BUNDLE] for start in range(0, len(files), _BUNDLE)]

    def read_ahead(bundle: Sequence[FileStat]) -> None:
        store.read_ahead([file._replace(path=location.full(file.path)) for file in bundle])

    def read(bundle: Sequence[FileStat]) -> list[Footer]:
        return [_read_footer(location, file, columns, schemas) for file in bundle]

    def read_local(bundle: Sequence[FileStat], next_bundle: Sequence[FileStat]) -> list[Footer]:
        read_ahead(next_bundle)
        return read(bundle)

    def read_remote(bundle: Sequence[FileStat]) -> list[Footer]:
        read_ahead(bundle)
        return read(bundle)

    if store.is_local:
        found = map(read_local, bundles, [*bundles[1:], ()])
        return [footer for footers in found for footer in footers]
    with ThreadPoolExecutor(min(_READERS, len(bundles)), "inlay-footers") as pool:
        return [footer for footers in pool.map(read_remote, bundles) for footer in footers]


def with_shared_schemas(footers: Sequence[Footer]) -> list[Footer]:
    """Let equal schemas of footers from other processes share one object."""
    known: dict[bytes, pa.Schema] = {}
    return [
        footer
        if footer.schema is None
        else footer._replace(schema=known.setdefault(footer.schema.serialize().to_pybytes(), footer.schema))
        for footer in footers
    ]
