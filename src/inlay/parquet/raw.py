"""A Parquet file as bytes with a checked footer: what row-group surgery reads from."""

from __future__ import annotations

import io
import math
import os
import re
import stat
import struct
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import pyarrow as pa

from inlay.parquet.schema_tree import ELEMENT, Schema, read_schema
from inlay.parquet.thrift import FooterError, Struct, decode, decode_structs

MAGIC = b"PAR1"
_TAIL = struct.Struct("<I4s")
_MAX_FOOTER = 256 << 20
_MAX_CACHED_INDEXES = 16 << 20

_COLUMN_META = dict.fromkeys((1, 4, 6, 7, 9, 10, 11, 14, 15), int)
_COLUMN_CHUNK = {2: int, 3: _COLUMN_META, 4: int, 5: int, 6: int, 7: int}
_ROW_GROUP = {1: [_COLUMN_CHUNK], 2: int, 3: int, 4: [{1: int}], 5: int, 6: int, 7: int}
_FOOTER = {2: [ELEMENT], 3: int, 4: [_ROW_GROUP], 5: [{1: bytes, 2: bytes}], 6: bytes, 7: [{}]}
_BLOOM_HEADER = {1: int}
_ENCODING_STATS = {1: int, 2: int}
_PAGE_HEADER = {1: int, 3: int, 4: int, 5: {2: int}, 7: {1: int}, 8: {4: int}}

_PHYSICAL_TYPES = dict(
    enumerate(("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"))
)
_CODECS = {0: "none", 1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4", 6: "zstd", 7: "lz4"}
_ENCODINGS = {
    0: "PLAIN",
    3: "RLE",
    4: "BIT_PACKED",
    5: "DELTA_BINARY_PACKED",
    6: "DELTA_LENGTH_BYTE_ARRAY",
    7: "DELTA_BYTE_ARRAY",
    9: "BYTE_STREAM_SPLIT",
}
_DICTIONARY_ENCODINGS = frozenset((2, 8))
_DATA_PAGES = frozenset((0, 3))

# Readers mend what these writers got wrong (chunk sizes, binary statistics, the flag of compressed v2 pages),
# and they recognise them by the `created_by` of the whole file: such chunks mix with no others.
_FLAWED_BEFORE = {"parquet-mr": (1, 8), "parquet-cpp": (2, 0)}
_WRITER = re.compile(r"(parquet-mr|parquet-cpp)(?![\w-])(?: version (\d+)\.(\d+))?")


# Wrappers that hand on every call to a file of their own: fsspec's for local files, tempfile's.
_PLAIN_INSIDE = {"LocalFileOpener": "f", "_TemporaryFileWrapper": "file"}


class SpliceRefused(Exception):  # noqa: N818 - it is an answer, not a fault
    """The file cannot be spliced faithfully; the message says what stands against it."""


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """How one column chunk was written, in the words of pyarrow's writer."""

    path: str
    physical_type: str
    """BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY or FIXED_LEN_BYTE_ARRAY."""
    codec: str
    dictionary: bool
    """All data pages are dictionary-encoded; a chunk that fell back half-way is not."""
    distinct_share: float
    """Entries of the dictionary per row: near 1 the dictionary costs more than it saves; 0 without one."""
    encoding: str
    """Of the data pages that are not dictionary-encoded; PLAIN where all are."""
    statistics: bool
    column_index: bool
    offset_index: bool
    bloom_filter_bytes: int
    """Size of the bit set; 0 without bloom filter."""
    page_version: int
    page_checksums: bool

    def bloom_filter_ndv(self, fpp: float = 0.05) -> int:
        """The number of distinct values for which pyarrow makes a bloom filter of this size."""
        return int(-self.bloom_filter_bytes * math.log(1 - fpp ** (1 / 8)))


@contextmanager
def refusing(name: str) -> Iterator[None]:
    try:
        yield
    except FooterError as error:
        raise SpliceRefused(f"{name}: {error}") from error


def descriptor_of(file: Any) -> int | None:
    """The descriptor of a plain file.

    Only of types known to be nothing else: that of a gzip file belongs to other bytes than read() gives.
    """
    inner = _PLAIN_INSIDE.get(type(file).__name__)
    plain = getattr(file, inner) if inner else file
    raw = plain.raw if isinstance(plain, io.BufferedReader | io.BufferedWriter | io.BufferedRandom) else plain
    if isinstance(raw, io.FileIO) and hasattr(os, "pread") and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return raw.fileno()
    return None


class Input:
    """Random access to bytes in memory, a plain file or any seekable file object; several threads may read."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self._position = threading.Lock()  # of a file object, which seek() moves for everybody
        self.memory: memoryview | None = None
        self.descriptor = descriptor_of(file)
        if self.descriptor is not None:
            self.size = os.fstat(self.descriptor).st_size
        elif hasattr(file, "seek"):
            self.size = file.seek(0, os.SEEK_END)
        else:
            self.memory = memoryview(file).cast("B")
            self.size = len(self.memory)

    def _read_some(self, start: int, length: int) -> bytes:
        if self.descriptor is not None:
            return os.pread(self.descriptor, length, start)
        with self._position:
            self.file.seek(start)
            data: bytes = self.file.read(length)
        return data

    def read(self, start: int, length: int) -> bytes | memoryview:
        if start < 0 or length < 0 or start + length > self.size:
            raise FooterError(f"bytes {start} to {start + length} lie outside the file of {self.size} bytes")
        if self.memory is not None:
            return self.memory[start : start + length]
        data = self._read_some(start, length)
        while len(data) < length:
            more = self._read_some(start + len(data), length - len(data))
            if not more:
                raise FooterError(f"the file ends at byte {start + len(data)} of {self.size}")
            data += more
        return data


class ParquetBytes:
    """A Parquet file's raw bytes and its footer, checked: the byte ranges it names are inside and apart.

    `file` is read when chunks are copied, so keep it open until then; it is never closed here.
    """

    def __init__(self, file: BinaryIO | bytes | bytearray | memoryview | pa.Buffer, name: str = "") -> None:
        self.name = name or str(getattr(file, "name", "")) or "Parquet data"
        self.input = Input(file)
        with refusing(self.name):
            self.footer, self.end = self._read_footer()
            self._refuse_flawed_writers()
            self.schema: Schema = read_schema(self.footer)
            self.row_groups = self.footer.structs(4)
            self._check_row_groups()
            self._index_span = self._check_ranges()
        self._indexes: bytes | None = None

    @property
    def num_row_groups(self) -> int:
        return len(self.row_groups)

    @property
    def num_rows(self) -> int:
        return sum(group.number(3) for group in self.row_groups)

    def row_group_rows(self, row_group: int) -> int:
        return self.row_groups[row_group].number(3)

    def schema_matches(self, other: ParquetBytes) -> bool:
        """Whether chunks of `other` mean the same in this file, however their types are annotated."""
        return self.schema.difference(other.schema) is None

    def chunk_settings(self, row_group: int) -> list[ChunkSettings]:
        chunks = self.row_groups[row_group].structs(1)
        with refusing(f"{self.name}: row group {row_group}"):
            return [
                self._settings(chunk, leaf.path, self.row_group_rows(row_group))
                for chunk, leaf in zip(chunks, self.schema.leaves, strict=True)
            ]

    def read(self, start: int, length: int) -> bytes:
        return bytes(self.input.read(start, length))

    def read_index(self, start: int, length: int) -> bytes:
        """Part of the page index, which usually is one run of bytes and then read at once."""
        low, high, dense = self._index_span
        if not dense:
            return self.read(start, length)
        if self._indexes is None:
            self._indexes = self.read(low, high - low)
        return self._indexes[start - low : start - low + length]

    def bloom_filter(self, meta: Struct) -> tuple[int, int, int] | None:
        """Where a chunk's bloom filter starts, its length with header, and that of the bit set alone."""
        if 14 not in meta:
            return None
        start = meta.number(14)
        header, used = decode(self.read(start, min(64, self.end - start)), _BLOOM_HEADER)
        bits = header.number(1)
        if bits <= 0 or meta.number(15, used + bits) != used + bits:
            raise FooterError("the length of a bloom filter contradicts its header")
        return start, used + bits, bits

    def copyable_bytes(self, row_group: int, without: Collection[str] = ()) -> int:
        """How many bytes of a row group a splice takes over that replaces these columns (top-level names)."""
        replaced = {leaf for name in without for leaf in self.schema.column(name).leaves}
        chunks = self.row_groups[row_group].structs(1)
        with refusing(self.name):
            kept = [self._ranges(chunk.struct(3)) for at, chunk in enumerate(chunks) if at not in replaced]
        return sum(end - start for ranges in kept for start, end in ranges)

    def _read_footer(self) -> tuple[Struct, int]:
        size = self.input.size
        if size < 12:
            raise FooterError(f"{size} bytes are no Parquet file")
        tail = self.read(max(size - 65536, 0), min(size, 65536))
        length, magic = _TAIL.unpack(tail[-8:])
        if magic != MAGIC:
            raise FooterError("the footer is encrypted" if magic == b"PARE" else "this is no Parquet file")
        if not 0 < length <= min(size - 12, _MAX_FOOTER):
            raise FooterError(f"a footer of {length} bytes in a file of {size}")
        start = size - 8 - length
        data = tail[-8 - length : -8] if length + 8 <= len(tail) else self.read(start, length)
        footer, used = decode(data, _FOOTER)
        if 8 in footer or 9 in footer:
            raise FooterError("the file is encrypted or signed")
        if used != length:
            raise FooterError(f"{length - used} bytes follow it")
        return footer, start

    def _refuse_flawed_writers(self) -> None:
        created_by = self.footer.text(6).decode("utf-8", "replace") if 6 in self.footer else ""
        if known := _WRITER.match(created_by):
            version = (int(known[2] or 0), int(known[3] or 0))
            if version < _FLAWED_BEFORE[known[1]]:
                raise FooterError(f"files of {created_by!r} need work-arounds that a splice would lose")

    def _check_row_groups(self) -> None:
        leaves = self.schema.leaves
        for group in self.row_groups:
            chunks = group.structs(1)
            if len(chunks) != len(leaves) or group.number(3) < 0 or 2 not in group:
                raise FooterError("a row group does not fit the schema")
            for chunk, leaf in zip(chunks, leaves, strict=True):
                if 1 in chunk:
                    raise FooterError(f"column {leaf.path} lies in another file")
                if 8 in chunk or 9 in chunk:
                    raise FooterError(f"column {leaf.path} is encrypted")
                meta = chunk.struct(3)
                if meta.number(1) != leaf.physical or meta.text(3) != leaf.encoded_path:
                    raise FooterError(f"a column chunk does not fit column {leaf.path} of the schema")

    def _check_ranges(self) -> tuple[int, int, bool]:
        """Check that ranges are inside and apart; where the page index is, and if it is worth one read."""
        taken: list[tuple[int, int]] = []
        indexes: list[tuple[int, int]] = []
        for group in self.row_groups:
            for chunk in group.structs(1):
                taken += self._ranges(chunk.struct(3))
                indexes += [(chunk.number(at), chunk.number(at) + chunk.number(at + 1)) for at in (4, 6) if at in chunk]
        taken += indexes
        _check_apart(taken, self.end)
        low, high = min((low for low, _ in indexes), default=0), max((high for _, high in indexes), default=0)
        dense = high - low <= min(_MAX_CACHED_INDEXES, 4 * sum(end - start for start, end in indexes))
        return low, high, dense

    def _ranges(self, meta: Struct) -> list[tuple[int, int]]:
        """Where a chunk's pages and its bloom filter lie."""
        pages = extent_of(meta)
        if 15 in meta and 14 in meta:
            return [pages, (meta.number(14), meta.number(14) + meta.number(15))]
        bloom = self.bloom_filter(meta)
        return [pages, (bloom[0], bloom[0] + bloom[1])] if bloom else [pages]

    def _settings(self, chunk: Struct, path: str, rows: int) -> ChunkSettings:
        meta = chunk.struct(3)
        if meta.number(4) not in _CODECS:
            raise FooterError(f"codec {meta.number(4)} of column {path} is unknown to the writer")
        pages = self._data_pages(meta)
        first = next(pages, Struct())
        encodings = self._data_encodings(meta, first, pages)
        bloom = self.bloom_filter(meta)
        return ChunkSettings(
            path=path,
            physical_type=_PHYSICAL_TYPES.get(meta.number(1), "?"),
            codec=_CODECS[meta.number(4)],
            dictionary=bool(encodings) and encodings <= _DICTIONARY_ENCODINGS,
            distinct_share=self._dictionary_entries(meta) / max(rows, 1),
            encoding=_ENCODINGS.get(min(encodings - _DICTIONARY_ENCODINGS, default=0), "PLAIN"),
            statistics=12 in meta,
            column_index=6 in chunk,
            offset_index=4 in chunk,
            bloom_filter_bytes=bloom[2] if bloom else 0,
            page_version=2 if 8 in first else 1,
            page_checksums=4 in first,
        )

    def _dictionary_entries(self, meta: Struct) -> int:
        (start, end), at = extent_of(meta), meta.number(11, 0)
        if not start <= at < end:
            return 0
        header, _ = self._page_header(at, end)
        return max(header.struct(7).number(1), 0) if 7 in header else 0

    @staticmethod
    def _data_encodings(meta: Struct, first: Struct, others: Iterator[Struct]) -> frozenset[int]:
        if 13 in meta:
            stats = decode_structs(meta.text(13), _ENCODING_STATS)
            return frozenset(entry.number(2) for entry in stats if entry.number(1) in _DATA_PAGES)
        if _page_encoding(first) not in _DICTIONARY_ENCODINGS:
            return frozenset((_page_encoding(first),))
        return frozenset(_page_encoding(page) for page in (first, *others))

    def _data_pages(self, meta: Struct) -> Iterator[Struct]:
        """Headers of the data pages of a chunk; not more than any sane chunk has."""
        (start, end), at = extent_of(meta), meta.number(9)
        for _ in range(1000):
            if not start <= at < end:
                return
            header, used = self._page_header(at, end)
            if 5 in header or 8 in header:
                yield header
            if header.number(3) < 0:
                raise FooterError("a page has a negative size")
            at += used + header.number(3)

    def _page_header(self, at: int, end: int) -> tuple[Struct, int]:
        try:
            return decode(self.read(at, min(1024, end - at)), _PAGE_HEADER)
        except FooterError:  # long minimum and maximum values make long headers
            return decode(self.read(at, min(1 << 20, end - at)), _PAGE_HEADER)


def _page_encoding(header: Struct) -> int:
    if 8 in header:
        return header.struct(8).number(4)
    return header.struct(5).number(2) if 5 in header else 0


def extent_of(meta: Struct) -> tuple[int, int]:
    """First byte of a chunk's pages and the one after the last."""
    # An offset of 0 means that there is no such page: not even a data page where there are no rows.
    offsets = [at for at in (meta.number(9), meta.number(10, 0), meta.number(11, 0)) if at > 0]
    start = min(offsets, default=len(MAGIC))
    end = start + meta.number(7)
    if start < end <= max(offsets, default=start):
        raise FooterError("a page offset points outside its column chunk")
    return start, end


def _check_apart(ranges: list[tuple[int, int]], end: int) -> None:
    ranges.sort()
    for low, high in ranges:
        if not len(MAGIC) <= low <= high <= end:
            raise FooterError(f"bytes {low} to {high} are not in the data part of the file, which ends at {end}")
    for (_, high), (low, _) in pairwise(span for span in ranges if span[0] < span[1]):
        if low < high:
            raise FooterError(f"byte ranges overlap at {low}")
