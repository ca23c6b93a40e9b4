"""The one place with writer settings: new files, and files that are to look like existing ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from inlay.errors import InvalidArgumentError
from inlay.parquet.splice import ChunkSettings

__all__ = ["DEFAULT_COMPRESSION", "DEFAULT_ROW_GROUP_SIZE", "WriterSettings", "check_compression"]

DEFAULT_COMPRESSION = "snappy"
DEFAULT_ROW_GROUP_SIZE = 500_000
_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
_CHOSEN_ENCODINGS = frozenset(
    {"DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"}
)


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Arguments of pyarrow's writer, and how many rows make a row group."""

    options: dict[str, Any] = field(default_factory=lambda: {"compression": DEFAULT_COMPRESSION})
    row_group_size: int = DEFAULT_ROW_GROUP_SIZE

    @classmethod
    def like(cls, chunks: Sequence[ChunkSettings], schema: pq.ParquetSchema, row_group_size: int) -> WriterSettings:
        """Settings that write as the given row group was written: codec, encodings, indexes, checksums."""
        options: dict[str, Any] = {
            "compression": {chunk.path: chunk.codec for chunk in chunks},
            "use_dictionary": [chunk.path for chunk in chunks if chunk.dictionary],
            "column_encoding": {
                c.path: c.encoding for c in chunks if not c.dictionary and c.encoding in _CHOSEN_ENCODINGS
            }
            or None,
            "write_statistics": [chunk.path for chunk in chunks if chunk.statistics],
            "write_page_index": any(chunk.offset_index for chunk in chunks),
            "write_page_checksum": any(chunk.page_checksums for chunk in chunks),
            "data_page_version": "2.0" if any(chunk.page_version == 2 for chunk in chunks) else "1.0",
            "bloom_filter_options": {
                c.path: {"ndv": c.bloom_filter_ndv(), "fpp": 0.05} for c in chunks if c.bloom_filter_bytes
            }
            or None,
            "use_compliant_nested_type": not any(".list.item" in chunk.path for chunk in chunks),
            **_physical_choices(schema),
        }
        return cls(options, max(1, row_group_size))

    def with_choice(self, compression: str | None, row_group_size: int | None) -> WriterSettings:
        """The same settings where the caller chose nothing."""
        options = self.options if compression is None else self.options | {"compression": compression}
        return WriterSettings(options, row_group_size or self.row_group_size)

    def open(self, sink: BinaryIO | pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
        codecs = self.options["compression"]
        if not isinstance(codecs, dict):
            return pq.ParquetWriter(sink, schema, **self.options)
        leaves = _leaves(schema, self.options["use_compliant_nested_type"])
        options = {name: _restricted(value, leaves) for name, value in self.options.items()}
        usual = next(iter(codecs.values()), DEFAULT_COMPRESSION)
        options["compression"] = {leaf: codecs.get(leaf, usual) for leaf in leaves}
        return pq.ParquetWriter(sink, schema, **options)


def _restricted(value: Any, leaves: Sequence[str]) -> Any:
    """What a setting says about the columns that are there."""
    if isinstance(value, dict):
        return {leaf: value[leaf] for leaf in leaves if leaf in value} or None
    return [leaf for leaf in leaves if leaf in value] if isinstance(value, list) else value


def _leaves(schema: pa.Schema, compliant: bool) -> list[str]:
    """The leaf paths as the writer will name them (for nested types that depends on how they are spelled)."""
    if not any(pa.types.is_nested(field.type) for field in schema):
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
        "use_deprecated_int96_timestamps": any(c.physical_type == "INT96" for c in columns),
    }


def check_compression(compression: str | None) -> None:
    if compression is not None and str(compression).lower() not in _CODECS:
        raise InvalidArgumentError(f"Unknown compression {compression!r}; known: {', '.join(_CODECS)}.")
