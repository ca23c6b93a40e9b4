"""The one place with writer settings: new files, and files that are to look like existing ones."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inlay.errors import InvalidArgumentError, SchemaMismatchError, unknown
from inlay.parquet.splice import ChunkSettings, ParquetBytes, Splicer
from inlay.schema import ROOMY_BITS, family, holds, storage_type

__all__ = [
    "DEFAULT_COMPRESSION",
    "DEFAULT_ROW_GROUP_SIZE",
    "StreamingParquetWriter",
    "WriterSettings",
    "check_choices",
    "encode_row_group",
    "portions",
    "rows_within",
]

DEFAULT_COMPRESSION = "snappy"
DEFAULT_ROW_GROUP_SIZE = 500_000
MANAGED_ROW_GROUP_SIZE = 100_000
_ROW_GROUP_BYTES = 32 << 20
_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
_WORTHWHILE_SHARE = 0.5


def _is_integer_inside(type_: pa.DataType) -> bool:
    plain = storage_type(type_)
    return bool(pa.types.is_integer(plain) or (pa.types.is_temporal(plain) and not pa.types.is_interval(plain)))


def _is_of_bytes(type_: pa.DataType) -> bool:
    return family(type_) in ("text", "binary") and not pa.types.is_fixed_size_binary(type_)


# Encodings that somebody chose, and the types that they fit.
_FITS: dict[str, Callable[[pa.DataType], bool]] = {
    "DELTA_BINARY_PACKED": _is_integer_inside,
    "DELTA_LENGTH_BYTE_ARRAY": _is_of_bytes,
    "DELTA_BYTE_ARRAY": _is_of_bytes,
    "BYTE_STREAM_SPLIT": lambda type_: _is_integer_inside(type_) or pa.types.is_floating(type_),
}


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Arguments of pyarrow's writer, and how many rows make a row group."""

    options: dict[str, Any] = field(default_factory=lambda: {"compression": DEFAULT_COMPRESSION})
    row_group_size: int = DEFAULT_ROW_GROUP_SIZE
    known: tuple[str, ...] | None = None  # the columns that `options` speak of; None: of any
    row_group_bytes: int | None = _ROW_GROUP_BYTES  # no larger in memory, unless the caller chose a number of rows
    int96: frozenset[str] = frozenset()  # columns whose timestamps are
    packs_integers: bool = False  # those without a dictionary, as differences: a fifth of the time, and smaller

    @classmethod
    def like(cls, chunks: Sequence[ChunkSettings], schema: pq.ParquetSchema, row_group_size: int) -> WriterSettings:
        """Settings that write as the given row group was written: codec, encodings, indexes, checksums."""
        options: dict[str, Any] = {
            "compression": {chunk.path: chunk.codec for chunk in chunks},
            "use_dictionary": [chunk.path for chunk in chunks if _pays(chunk)],
            "column_encoding": {c.path: c.encoding for c in chunks if not _pays(c) and c.encoding in _FITS} or None,
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
        int96 = frozenset(chunk.path.split(".")[0] for chunk in chunks if chunk.physical_type == "INT96")
        return cls(options, max(1, row_group_size), tuple(chunk.path for chunk in chunks), int96=int96)

    @classmethod
    def managed(cls) -> WriterSettings:
        """How files of managed datasets are written: small row groups, so that a load rewrites little."""
        return cls({"compression": "zstd", "data_page_version": "2.0"}, MANAGED_ROW_GROUP_SIZE, packs_integers=True)

    def with_choice(self, compression: str | None, row_group_size: int | None) -> WriterSettings:
        """The same settings where the caller chose nothing."""
        options = self.options if compression is None else self.options | {"compression": compression}
        if row_group_size is None:
            return replace(self, options=options)
        return replace(self, options=options, row_group_size=row_group_size, row_group_bytes=None)

    def for_table(self, table: pa.Table) -> dict[str, Any]:
        """The writer's arguments for one row group: what is said about its columns, and defaults for new ones."""
        leaves = _leaves(table.schema, self.options.get("use_compliant_nested_type", True))
        codecs = self.options["compression"]
        known = leaves if self.known is None else self.known
        options = {name: _restricted(value, leaves, known) for name, value in self.options.items()}
        if isinstance(codecs, dict):
            usual = next(iter(codecs.values()), DEFAULT_COMPRESSION)
            options["compression"] = {leaf: codecs.get(leaf, usual) for leaf in leaves}
        if options.get("column_encoding"):
            options["column_encoding"] = _suitable(options["column_encoding"], table.schema) or None
        dictionaries = options.get("use_dictionary", True)
        if self.packs_integers and dictionaries is not True:
            plain = (field.name for field in table.schema if _is_integer_inside(field.type))
            times = Counter(leaves)  # a column `a.b` and a field `b` of a column `a` cannot be told apart
            options["column_encoding"] = {
                n: "DELTA_BINARY_PACKED" for n in plain if n not in (dictionaries or ()) and times[n] <= 1
            }
        options["use_deprecated_int96_timestamps"] = self._writes_int96(table.schema)
        unbounded = _unbounded(table)
        if unbounded:
            stated = options.get("write_statistics", True)
            wanted = leaves if stated is True else stated or []
            options["write_statistics"] = [leaf for leaf in wanted if not _belongs(leaf, unbounded)]
        return options

    def _writes_int96(self, schema: pa.Schema) -> bool:
        """Whether the timestamps are INT96; the writer has one switch for all of them."""
        timestamps = {field.name for field in schema if holds(field.type, pa.types.is_timestamp)}
        others = sorted(timestamps - self.int96)
        if others and len(others) < len(timestamps):
            raise SchemaMismatchError(
                f"The timestamps of {others[0]!r} cannot be written beside those of "
                f"{min(timestamps & self.int96)!r}, which are INT96: a file has all of them so, or none.",
                hint="Write the dataset anew with mode='overwrite': its timestamps have 64 bits then.",
            )
        return bool(timestamps) and not others


def _pays(chunk: ChunkSettings) -> bool:
    """A dictionary of mostly distinct values costs half of the encoding time and saves nothing."""
    return chunk.dictionary and chunk.distinct_share <= _WORTHWHILE_SHARE


def _suitable(encodings: Mapping[str, str], schema: pa.Schema) -> dict[str, str]:
    """Those that fit: files whose columns have other types may have been written otherwise."""
    types = {field.name: field.type for field in schema}  # of nested columns nothing is said
    return {n: code for n, code in encodings.items() if n not in types or _FITS[code](storage_type(types[n]))}


def _restricted(value: Any, leaves: Sequence[str], known: Collection[str]) -> Any:
    """What a setting says about the columns that are there; a column it does not know is on."""
    if isinstance(value, dict):
        return {leaf: value[leaf] for leaf in leaves if leaf in value} or None
    if isinstance(value, list):
        return [leaf for leaf in leaves if leaf in value or leaf not in known]
    return value


def _unbounded(table: pa.Table) -> set[str]:
    """Columns that hold NaN. Bounds leave NaN out, and some readers then lose those rows: better no bounds."""
    return {field.name for field in table.schema if _may_hold_nan(table.column(field.name), field.type)}


def _may_hold_nan(column: pa.ChunkedArray, type_: pa.DataType) -> bool:
    plain = storage_type(type_)
    if pa.types.is_nested(plain):
        return holds(plain, pa.types.is_floating)
    if not pa.types.is_floating(plain):
        return False
    if pa.types.is_float16(plain) or not plain.equals(column.type):
        return True
    return bool(pc.any(pc.is_nan(column), min_count=0).as_py())


def _belongs(leaf: str, columns: Collection[str]) -> bool:
    return any(leaf == name or leaf.startswith(f"{name}.") for name in columns)


def _require_room(table: pa.Table) -> None:
    """Refuse more values than the indices of a dictionary can number: nothing could read the row group again."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not pa.types.is_dictionary(column.type) or column.type.index_type.bit_width >= ROOMY_BITS:
            continue
        index = column.type.index_type
        room = 2 ** (index.bit_width - pa.types.is_signed_integer(index))
        if len(column) > room and pc.count_distinct(column.cast(column.type.value_type)).as_py() > room:
            raise SchemaMismatchError(
                f"Column {name!r} is a dictionary with {index} indices: a row group has room for {room:,} values.",
                hint="Write the dataset anew with plain values, or with int32 indices, in this column; `compact` makes"
                " them int32 where it combines all files.",
            )


def rows_within(most: int | None, few: pa.Table) -> int:
    """How many rows such as these few fill so many bytes of memory; None is any number."""
    return sys.maxsize if most is None else max(1, most * few.num_rows // max(int(few.nbytes), 1))


def portions(tables: Iterable[pa.Table], rows: int, size: int | None) -> Iterator[pa.Table]:
    """Tables of at least so many rows, or bytes; smaller ones wait for each other, and what is left comes last."""
    held: list[pa.Table] = []
    held_rows = held_size = 0
    for table in tables:
        held.append(table)
        held_rows, held_size = held_rows + table.num_rows, held_size + table.nbytes
        if held_rows >= rows or (size is not None and held_size >= size):
            yield pa.concat_tables(held)
            held, held_rows, held_size = [], 0, 0
    if held_rows:
        yield pa.concat_tables(held)


def encode_row_group(table: pa.Table, settings: WriterSettings) -> pa.Buffer:
    """A Parquet file in memory with one row group (none without rows)."""
    _require_room(table)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, **settings.for_table(table)) as writer:
        if table.num_rows:
            writer.write_table(table, row_group_size=table.num_rows)
    return sink.getvalue()


class StreamingParquetWriter:
    """Writes tables as they come, row group by row group; each is encoded with the settings that suit it."""

    def __init__(self, sink: BinaryIO, schema: pa.Schema, settings: WriterSettings) -> None:
        self._sink, self._schema, self._settings = sink, schema, settings
        self._splicer: Splicer | None = None
        self.rows = 0

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        step = row_group_size or self._settings.row_group_size
        for start in range(0, table.num_rows, step):
            self._append(table.slice(start, step))

    def _append(self, table: pa.Table) -> None:
        group = ParquetBytes(encode_row_group(table, self._settings), "a new row group")
        if self._splicer is None:
            self._splicer = Splicer(self._sink, group)
        if table.num_rows:
            self._splicer.copy(group, 0)
        self.rows += table.num_rows

    def __enter__(self) -> StreamingParquetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()

    def close(self) -> None:
        if self._splicer is None:
            self._append(self._schema.empty_table())
        if self._splicer is not None:
            self._splicer.finish()


def _leaves(schema: pa.Schema, compliant: bool) -> list[str]:
    """The leaf paths as the writer will name them (for nested types that depends on how they are spelled)."""
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


def check_choices(compression: str | None, row_group_size: int | None, max_rows_per_file: int) -> None:
    """Refuse what the writer could only fail on later."""
    if compression is not None and str(compression).lower() not in _CODECS:
        raise unknown("compression", compression, _CODECS)
    for name, value in (("row_group_size", row_group_size), ("max_rows_per_file", max_rows_per_file)):
        if value is not None and value < 1:
            raise InvalidArgumentError(f"{name} must be at least 1, not {value!r}.")
