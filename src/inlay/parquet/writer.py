"""The Parquet writer and its settings, for new files and for files that match existing ones."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inlay.arrays import from_numpy, to_numpy
from inlay.errors import InvalidArgumentError, SchemaMismatchError, unknown
from inlay.parquet.splice import ChunkSettings, ParquetBytes, Splicer
from inlay.pyarrow_features import byte_size, encode_parquet
from inlay.schema import WIDE_INDEX_BITS, contains_type, family, storage_type

__all__ = [
    "DEFAULT_COMPRESSION",
    "DEFAULT_ROW_GROUP_SIZE",
    "StreamingParquetWriter",
    "WriterSettings",
    "check_write_options",
    "combine_tables",
    "encode_row_group",
    "rows_per_bytes",
]

DEFAULT_COMPRESSION = "snappy"
DEFAULT_ROW_GROUP_SIZE = 500_000
MANAGED_ROW_GROUP_SIZE = 100_000
_ROW_GROUP_BYTES = 32 << 20
_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
_MAX_DISTINCT_SHARE = 0.5


def _is_stored_as_integer(type_: pa.DataType) -> bool:
    plain = storage_type(type_)
    return bool(pa.types.is_integer(plain) or (pa.types.is_temporal(plain) and not pa.types.is_interval(plain)))


def _is_variable_bytes(type_: pa.DataType) -> bool:
    return family(type_) in ("text", "binary") and not pa.types.is_fixed_size_binary(type_)


# Encodings that only an explicit choice of a writer produces, and the types that they support.
_FITS: dict[str, Callable[[pa.DataType], bool]] = {
    "DELTA_BINARY_PACKED": _is_stored_as_integer,
    "DELTA_LENGTH_BYTE_ARRAY": _is_variable_bytes,
    "DELTA_BYTE_ARRAY": _is_variable_bytes,
    "BYTE_STREAM_SPLIT": lambda type_: _is_stored_as_integer(type_) or pa.types.is_floating(type_),
}


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Options of pyarrow's writer, and the size of row groups."""

    options: dict[str, Any] = field(default_factory=lambda: {"compression": DEFAULT_COMPRESSION})
    row_group_size: int = DEFAULT_ROW_GROUP_SIZE
    known: tuple[str, ...] | None = None  # the leaf columns that `options` describes; None means all
    row_group_bytes: int | None = (
        _ROW_GROUP_BYTES  # memory limit of a row group; None if the caller chose row_group_size
    )
    # columns whose timestamps are INT96, and the types that the Arrow schema of their file declares
    int96: Mapping[str, pa.DataType | None] = field(default_factory=dict)
    packs_integers: bool = False  # Delta-encode integers without a dictionary: smaller, and five times as fast.

    @classmethod
    def like(cls, file: ParquetBytes, row_group: int, schema: pq.ParquetSchema, row_group_size: int) -> WriterSettings:
        """Derive settings from an existing row group: codec, encodings, indexes and checksums."""
        chunks = file.chunk_settings(row_group)
        options: dict[str, Any] = {
            "compression": {chunk.path: chunk.codec for chunk in chunks},
            "use_dictionary": [chunk.path for chunk in chunks if _has_useful_dictionary(chunk)],
            "column_encoding": {
                c.path: c.encoding for c in chunks if not _has_useful_dictionary(c) and c.encoding in _FITS
            }
            or None,
            "write_statistics": [chunk.path for chunk in chunks if chunk.statistics],
            "write_page_index": any(chunk.offset_index for chunk in chunks),
            "write_page_checksum": any(chunk.page_checksums for chunk in chunks),
            "data_page_version": "2.0" if any(chunk.page_version == 2 for chunk in chunks) else "1.0",
            "bloom_filter_options": {
                c.path: {"ndv": c.bloom_filter_ndv(), "fpp": 0.05}
                for c in chunks
                if c.bloom_filter_bytes and c.physical_type != "BOOLEAN"
            }
            or None,
            "use_compliant_nested_type": not any(".list.item" in chunk.path for chunk in chunks),
            **_physical_choices(schema),
        }
        columns = {chunk.path.split(".")[0] for chunk in chunks if chunk.physical_type == "INT96"}
        int96 = {name: file.schema.arrow_types.get(name) for name in columns}
        known = tuple(chunk.path for chunk in chunks)
        return cls(options, max(1, row_group_size), known, int96=int96)

    @classmethod
    def managed(cls) -> WriterSettings:
        """Return the settings of datasets in the catalog: small row groups, so that loads rewrite little."""
        return cls({"compression": "zstd", "data_page_version": "2.0"}, MANAGED_ROW_GROUP_SIZE, packs_integers=True)

    def override(self, compression: str | None, row_group_size: int | None) -> WriterSettings:
        """Apply the settings that the caller has chosen."""
        options = self.options if compression is None else self.options | {"compression": compression}
        if row_group_size is None:
            return replace(self, options=options)
        return replace(self, options=options, row_group_size=row_group_size, row_group_bytes=None)

    def for_table(self, table: pa.Table) -> dict[str, Any]:
        """Return pyarrow's writer options for a row group, with defaults for columns that are new."""
        leaves = _leaves(table.schema, self.options.get("use_compliant_nested_type", True))
        codecs = self.options["compression"]
        known = leaves if self.known is None else self.known
        options = {name: _restrict(value, leaves, known) for name, value in self.options.items()}
        if isinstance(codecs, dict):
            default = next(iter(codecs.values()), DEFAULT_COMPRESSION)
            options["compression"] = {leaf: codecs.get(leaf, default) for leaf in leaves}
        if options.get("column_encoding"):
            options["column_encoding"] = _supported(options["column_encoding"], table.schema) or None
        dictionaries = options.get("use_dictionary", True)
        if self.packs_integers and dictionaries is not True:
            plain = (field.name for field in table.schema if _is_stored_as_integer(field.type))
            times = Counter(leaves)  # The path `a.b` can be a column, and also field `b` of a column `a`.
            options["column_encoding"] = {
                n: "DELTA_BINARY_PACKED" for n in plain if n not in (dictionaries or ()) and times[n] <= 1
            }
        options["use_deprecated_int96_timestamps"] = self._writes_int96(table.schema)
        nan_columns = _nan_columns(table)
        if nan_columns:
            statistics = options.get("write_statistics", True)
            described = leaves if statistics is True else statistics or []
            options["write_statistics"] = [leaf for leaf in described if not _belongs(leaf, nan_columns)]
        return options

    def with_declared_units(self, table: pa.Table) -> pa.Table:
        """Cast INT96 timestamps, which pyarrow reads as nanoseconds, to the declared types if no value changes.

        INT96 has no unit. polars takes the unit from the Arrow schema, and refuses files with different units.
        """
        for name in self.int96.keys() & set(table.column_names):
            type_ = self.int96[name]
            if type_ is not None and pa.types.is_timestamp(type_):
                with contextlib.suppress(pa.ArrowInvalid):  # a value has nanoseconds
                    column, field_ = table[name].cast(type_), table.schema.field(name).with_type(type_)
                    table = table.set_column(table.column_names.index(name), field_, column)
        return table

    def require_one_kind_of_timestamps(self, schema: pa.Schema, origins: Mapping[str, str]) -> None:
        """Reject columns with 64-bit timestamps beside INT96. `origins` maps new names to those of these settings."""
        self._writes_int96(pa.schema([field.with_name(origins[field.name]) for field in schema]))

    def _writes_int96(self, schema: pa.Schema) -> bool:
        """Return whether to write timestamps as INT96. The writer has one switch for all columns."""
        timestamps = {field.name for field in schema if contains_type(field.type, pa.types.is_timestamp)}
        others = sorted(timestamps - self.int96.keys())
        if others and len(others) < len(timestamps):
            raise SchemaMismatchError(
                f"Column {others[0]!r} cannot be written, because column {min(timestamps & self.int96.keys())!r} has "
                "INT96 timestamps, and a file cannot mix INT96 and 64-bit timestamps.",
                hint="Rewrite the dataset with mode='overwrite'. All of its timestamps then have 64 bits.",
            )
        return bool(timestamps) and not others


def _has_useful_dictionary(chunk: ChunkSettings) -> bool:
    """Return False for a dictionary of mostly distinct values: it costs time and saves no space."""
    return chunk.dictionary and chunk.distinct_share <= _MAX_DISTINCT_SHARE


def _supported(encodings: Mapping[str, str], schema: pa.Schema) -> dict[str, str]:
    """Return the encodings that support the types of their columns, which may differ between files."""
    types = {field.name: field.type for field in schema}  # The paths of nested leaves are never in it.
    return {n: code for n, code in encodings.items() if n not in types or _FITS[code](storage_type(types[n]))}


def _restrict(value: Any, leaves: Sequence[str], known: Collection[str]) -> Any:
    """Restrict an option to existing columns. Columns unknown to the settings are switched on."""
    if isinstance(value, dict):
        return {leaf: value[leaf] for leaf in leaves if leaf in value} or None
    if isinstance(value, list):
        return [leaf for leaf in leaves if leaf in value or leaf not in known]
    return value


def _nan_columns(table: pa.Table) -> set[str]:
    """Return columns with NaN. Statistics ignore NaN, and some readers then skip its rows."""
    return {field.name for field in table.schema if _may_contain_nan(table.column(field.name), field.type)}


def _may_contain_nan(column: pa.ChunkedArray, type_: pa.DataType) -> bool:
    plain = storage_type(type_)
    if pa.types.is_nested(plain):
        return contains_type(plain, pa.types.is_floating)
    if not pa.types.is_floating(plain):
        return False
    if pa.types.is_float16(plain) or not plain.equals(column.type):
        return True
    return bool(pc.any(pc.is_nan(column), min_count=0).as_py())


def _belongs(leaf: str, columns: Collection[str]) -> bool:
    return any(leaf == name or leaf.startswith(f"{name}.") for name in columns)


def _require_wide_indices(table: pa.Table) -> None:
    """Reject more values than dictionary indices can number, because no reader could read the row group."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_dictionary(column.type) or column.type.index_type.bit_width >= WIDE_INDEX_BITS:
            continue
        index = column.type.index_type
        limit = 2 ** (index.bit_width - pa.types.is_signed_integer(index))
        if len(column) > limit and pc.count_distinct(column.cast(column.type.value_type)).as_py() > limit:
            raise SchemaMismatchError(
                f"Column {name!r} is a dictionary with {index} indices, so a row group can have at most {limit:,} "
                "distinct values.",
                hint="Rewrite the dataset with plain values or int32 indices in this column. `compact` widens the "
                "indices to int32 if it combines all files.",
            )


def rows_per_bytes(limit: int | None, sample: pa.Table) -> int:
    """Estimate how many rows like those of `sample` fit in `limit` bytes of memory (None: any)."""
    return sys.maxsize if limit is None else max(1, limit * sample.num_rows // max(byte_size(sample), 1))


def combine_tables(tables: Iterable[pa.Table], rows: int, size: int | None) -> Iterator[pa.Table]:
    """Concatenate tables until they have `rows` rows or `size` bytes. The last table may be smaller."""
    held: list[pa.Table] = []
    held_rows = held_size = 0
    for table in tables:
        held.append(table)
        held_rows, held_size = held_rows + table.num_rows, held_size + byte_size(table)
        if held_rows >= rows or (size is not None and held_size >= size):
            yield pa.concat_tables(held)
            held, held_rows, held_size = [], 0, 0
    if held_rows:
        yield pa.concat_tables(held)


def encode_row_group(table: pa.Table, settings: WriterSettings) -> pa.Buffer:
    """Encode a table as a Parquet file in memory with one row group, or none if it has no rows."""
    _require_wide_indices(table)
    table = _without_unused_values(settings.with_declared_units(table))
    return encode_parquet(table, settings.for_table)


def _without_unused_values(table: pa.Table) -> pa.Table:
    """Drop the unused values of dictionaries. They would accumulate, and pyarrow counts them in statistics.

    A column in several chunks keeps them, because pyarrow encodes a column with several dictionaries as plain values.
    """
    for at, column in enumerate(table.columns):
        if pa.types.is_dictionary(column.type) and column.num_chunks == 1:
            used = _used_values(column.chunk(0))
            table = table.set_column(at, table.schema.field(at), pa.chunked_array([used], column.type))
    return table


def _used_values(array: pa.DictionaryArray) -> pa.DictionaryArray:
    used = np.sort(to_numpy(pc.unique(array.indices).drop_null()))
    if len(used) == len(array.dictionary):
        return array
    renumbered = np.zeros(len(array.dictionary), array.type.index_type.to_pandas_dtype())
    renumbered[used] = np.arange(len(used))
    indices = from_numpy(renumbered).take(array.indices)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.take(from_numpy(used)), ordered=array.type.ordered)


class StreamingParquetWriter:
    """A writer that encodes each row group with the settings that fit it."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema, settings: WriterSettings) -> None:
        self._sink, self._schema, self._settings = sink, schema, settings
        self._first: pa.Buffer | None = None  # an only row group is written as it is, because splicing takes time
        self._splicer: Splicer | None = None
        self.rows = 0

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        step = row_group_size or self._settings.row_group_size
        for start in range(0, table.num_rows, step):
            self._append(table.slice(start, step))

    def _append(self, table: pa.Table) -> None:
        encoded = encode_row_group(table, self._settings)
        if not self.rows:
            self._first = encoded
        elif table.num_rows:
            if self._first is not None:
                self._splice(self._first)
                self._first = None
            self._splice(encoded)
        self.rows += table.num_rows

    def _splice(self, encoded: pa.Buffer) -> None:
        group = ParquetBytes(encoded, "a new row group")
        if self._splicer is None:
            self._splicer = Splicer(self._sink, group)
        self._splicer.copy(group, 0)

    def __enter__(self) -> StreamingParquetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        if not self.rows and self._first is None:
            self._append(self._schema.empty_table())
        if self._splicer is not None:
            self._splicer.finish()
        elif self._first is not None:
            self._sink.write(self._first)


def _leaves(schema: pa.Schema, compliant: bool) -> list[str]:
    """Return the paths of leaf columns as pyarrow's writer names them."""
    if not any(pa.types.is_nested(storage_type(field.type)) for field in schema):
        return list(schema.names)
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, use_compliant_nested_type=compliant).close()
    written = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [written.column(i).path for i in range(len(written))]


def _physical_choices(schema: pq.ParquetSchema) -> dict[str, Any]:
    columns = [schema.column(i) for i in range(len(schema))]
    return {
        "store_decimal_as_integer": any(
            c.physical_type in ("INT32", "INT64") and c.logical_type.type == "DECIMAL" for c in columns
        ),
    }


def check_write_options(compression: str | None, row_group_size: int | None, max_rows_per_file: int) -> None:
    """Reject invalid write options before any work is done."""
    if compression is not None and str(compression).lower() not in _CODECS:
        raise unknown("compression", compression, _CODECS)
    for name, value in (("row_group_size", row_group_size), ("max_rows_per_file", max_rows_per_file)):
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name} must be at least 1, not {value!r}.")
