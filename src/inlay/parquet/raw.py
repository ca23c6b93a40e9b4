"""A Parquet file as raw bytes with a validated footer, the input of a splice."""

from __future__ import annotations

import base64
import functools
import io
import math
import operator
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

from inlay.parquet.thrift import LIST, FooterError, Struct, decode, decode_structs, encode_texts

_TIME_TYPE = {1: bool, 2: {}}
_LOGICAL_TYPE = {5: {1: int, 2: int}, 7: _TIME_TYPE, 8: _TIME_TYPE, 10: {2: bool}}
ELEMENT = {1: int, 2: int, 3: int, 4: bytes, 5: int, 6: int, 7: int, 8: int, 10: _LOGICAL_TYPE}

_MAX_DEPTH = 100
_SHARED, _SHARED_BYTES = 64, 64 << 10  # decoded schemas to keep, and the encoded bytes of each one
_INT32, _INT64, _FIXED_LEN_BYTE_ARRAY = 1, 2, 7
_REPEATED = 2
_TYPE_DEFINED_ORDER = 1

# Fields of the union LogicalType; an annotation is a tuple that begins with one of them.
_STRING, _MAP, _LIST, _ENUM, _DECIMAL, _DATE, _TIME, _TIMESTAMP = range(1, 9)
_INTEGER, _JSON, _BSON = 10, 12, 13
_MILLIS, _MICROS = 1, 2
_ANY_ZONE = None  # A converted type does not distinguish UTC instants from local times.
_CONVERTED: dict[int, tuple[Any, ...]] = {
    0: (_STRING,),
    1: (_MAP,),
    2: (_MAP,),
    3: (_LIST,),
    4: (_ENUM,),
    6: (_DATE,),
    7: (_TIME, _MILLIS, _ANY_ZONE),
    8: (_TIME, _MICROS, _ANY_ZONE),
    9: (_TIMESTAMP, _MILLIS, _ANY_ZONE),
    10: (_TIMESTAMP, _MICROS, _ANY_ZONE),
    **{11 + i: (_INTEGER, bytes((8 << i,)), False) for i in range(4)},
    **{15 + i: (_INTEGER, bytes((8 << i,)), True) for i in range(4)},
    19: (_JSON,),
    20: (_BSON,),
}
_CONVERTED_DECIMAL, _CONVERTED_MAP_KEY_VALUE = 5, 2
_IMPLIED_BY_PHYSICAL_TYPE = {_INT32: (_INTEGER, b"\x20", True), _INT64: (_INTEGER, b"\x40", True)}


@dataclass(frozen=True, slots=True)
class Element:
    """A node of the schema tree."""

    name: str
    physical: int | None
    length: int | None
    repetition: int
    children: int
    annotation: tuple[Any, ...]

    def matches(self, other: Element) -> bool:
        if _STORAGE(self) != _STORAGE(other) or len(self.annotation) != len(other.annotation):
            return False
        pairs = zip(self.annotation, other.annotation, strict=True)
        return all(a == b or a is _ANY_ZONE or b is _ANY_ZONE for a, b in pairs)


_STORAGE = operator.attrgetter("name", "physical", "length", "repetition", "children")


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf of the schema tree. Each row group has one column chunk for it."""

    path: str
    physical: int
    encoded_path: bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A top-level column: its elements, depth first, and the indexes of its leaves."""

    name: str
    elements: tuple[Element, ...]
    leaves: range


@dataclass(eq=False)
class Schema:
    """The schema tree of a file, with the order of its statistics and its Arrow schema.

    Files with the same encoded schema share one object.
    """

    columns: list[Column]
    leaves: list[Leaf]
    column_orders: list[int | None]
    arrow_schema: bytes

    def column(self, name: str) -> Column:
        found = [column for column in self.columns if column.name == name]
        if len(found) != 1:
            raise FooterError(f"{len(found)} columns are named {name!r}")
        return found[0]

    def difference(self, other: Schema, columns: Collection[str] | None = None) -> str | None:
        """Describe why column chunks of `other` do not fit this schema, or return None if they do."""
        if self is other:
            return None
        if columns is None:
            own_names, other_names = [c.name for c in self.columns], [c.name for c in other.columns]
            if own_names != other_names:
                return f"columns {own_names} instead of {other_names}"
            pairs = list(zip(self.columns, other.columns, strict=True))
        else:
            pairs = [(self.column(name), other.column(name)) for name in columns]
        return next((text for pair in pairs if (text := self._column_difference(other, *pair))), None)

    def _column_difference(self, other: Schema, column: Column, other_column: Column) -> str | None:
        if len(column.elements) != len(other_column.elements):
            return f"column {column.name} is nested differently"
        for left, right in zip(column.elements, other_column.elements, strict=True):
            if not left.matches(right):
                return f"column {column.name} is {left} instead of {right}"
        for i, j in zip(column.leaves, other_column.leaves, strict=True):
            if self.column_orders[i] != other.column_orders[j] and (
                self.column_orders[i] is not None or other.column_orders[j] != _TYPE_DEFINED_ORDER
            ):
                return f"the statistics of column {column.name} are ordered differently"
        if (
            self.arrow_schema != other.arrow_schema
            and any(element.physical == _INT64 and not element.annotation for element in column.elements)
            and self.durations(column) != other.durations(other_column)
        ):
            return f"column {column.name} has durations of different units"
        return None

    @functools.cached_property
    def arrow_types(self) -> dict[str, pa.DataType]:
        if not self.arrow_schema:
            return {}
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow_schema)))
        except (ValueError, OSError, pa.ArrowException) as error:
            raise FooterError(f"the Arrow schema cannot be read: {error}") from error
        return {field.name: field.type for field in schema}

    def durations(self, column: Column) -> list[str]:
        """Return the duration types of a column from the Arrow schema. Parquet stores only integers."""
        return re.findall(r"duration\[\w+\]", str(self.arrow_types.get(column.name)))


def read_schema(footer: Struct) -> Schema:
    """Decode the schema, the metadata and the column orders of a footer, or return an equal schema decoded before."""
    found = footer[2], footer.get(5, (LIST, b"")), footer.get(7, (LIST, b""))
    for kind, _ in found:
        if kind != LIST:
            raise FooterError(f"a field has the unexpected Thrift type {kind}")
    encoded = [bytes(value) for _, value in found]
    return (_read_schema if sum(map(len, encoded)) <= _SHARED_BYTES else _read_schema.__wrapped__)(*encoded)


@functools.lru_cache(_SHARED)
def _read_schema(encoded: bytes, metadata: bytes, orders: bytes) -> Schema:
    elements = decode_structs(encoded, ELEMENT)
    if not elements or 1 in elements[0]:
        raise FooterError("the schema has no root")
    walk = iter(elements[1:])
    columns: list[Column] = []
    leaves: list[Leaf] = []
    for _ in range(elements[0].number(5, 0)):
        first = len(leaves)
        subtree = tuple(_read_column(walk, leaves))
        columns.append(Column(subtree[0].name, subtree, range(first, len(leaves))))
    if next(walk, None) is not None:
        raise FooterError("the schema has more elements than its tree")
    return Schema(columns, leaves, _column_orders(orders, len(leaves)), _arrow_schema(metadata))


def _read_column(walk: Iterator[Struct], leaves: list[Leaf]) -> Iterator[Element]:
    """Yield the elements of the next top-level column, depth first, and append its leaves."""
    path: list[bytes] = []
    open_groups: list[int] = []
    while True:
        tree = next(walk, None)
        if tree is None:
            raise FooterError("the schema has fewer elements than its tree")
        element = _element(tree)
        yield element
        path.append(tree.text(4))
        if element.physical is not None:
            dotted = ".".join(part.decode("utf-8", "replace") for part in path)
            leaves.append(Leaf(dotted, element.physical, encode_texts(path)))
        open_groups.append(element.children)
        if len(open_groups) > _MAX_DEPTH:
            raise FooterError(f"the schema is nested more than {_MAX_DEPTH} levels deep")
        while open_groups and not open_groups[-1]:
            open_groups.pop()
            path.pop()
        if not open_groups:
            return
        open_groups[-1] -= 1


def _element(tree: Struct) -> Element:
    physical = tree.number(1) if 1 in tree else None
    children = tree.number(5, 0)
    if children < 0 or (children and physical is not None):
        raise FooterError("an element of the schema is neither a group nor a leaf")
    return Element(
        name=tree.text(4).decode("utf-8", "surrogateescape"),
        physical=physical,
        # Some writers set a meaningless length for other types.
        length=tree.number(2) if physical == _FIXED_LEN_BYTE_ARRAY else None,
        repetition=tree.number(3),
        children=children,
        annotation=_annotation(tree, physical),
    )


def _annotation(tree: Struct, physical: int | None) -> tuple[Any, ...]:
    found = _logical(tree.struct(10)) if 10 in tree else _converted(tree)
    return () if physical is not None and found == _IMPLIED_BY_PHYSICAL_TYPE.get(physical) else found


def _logical(union: Struct) -> tuple[Any, ...]:
    kind = _chosen(union)
    value = union[kind][1]
    if kind == _DECIMAL:
        return _DECIMAL, value.number(2), value.number(1)
    if kind in (_TIME, _TIMESTAMP):
        return kind, _chosen(value.struct(2)), value.number(1)
    if kind == _INTEGER:
        return _INTEGER, value.text(1), value.number(2)
    if kind in (_STRING, _MAP, _LIST, _ENUM, _DATE, _JSON, _BSON):
        return (kind,)
    return kind, bytes(value)  # Unknown types match if their encoding is equal.


def _chosen(union: Struct) -> int:
    if len(union) != 1:
        raise FooterError("a union does not have exactly one value")
    return next(iter(union))


def _converted(tree: Struct) -> tuple[Any, ...]:
    if 6 not in tree:
        return ()
    kind = tree.number(6)
    if kind == _CONVERTED_DECIMAL:
        return _DECIMAL, tree.number(8, 0), tree.number(7, 0)
    if kind == _CONVERTED_MAP_KEY_VALUE and tree.number(3, 0) == _REPEATED:
        return ()  # Old writers also annotate the inner group of a map.
    return _CONVERTED.get(kind, ("converted", kind))


def _column_orders(encoded: bytes, leaves: int) -> list[int | None]:
    if not encoded:
        return [None] * leaves
    orders = [next(iter(order), None) for order in decode_structs(encoded, {})]
    if len(orders) != leaves:
        raise FooterError(f"{len(orders)} column orders for {leaves} columns")
    return orders


def _arrow_schema(encoded: bytes) -> bytes:
    pairs = decode_structs(encoded, {1: bytes, 2: bytes}) if encoded else []
    return next((pair.text(2) for pair in pairs if pair.text(1) == b"ARROW:schema" and 2 in pair), b"")


MAGIC = b"PAR1"
_TAIL = struct.Struct("<I4s")
_MAX_FOOTER = 256 << 20
_MAX_CACHED_INDEXES = 16 << 20

_COLUMN_META = dict.fromkeys((1, 4, 6, 7, 9, 10, 11, 14, 15), int)
_COLUMN_CHUNK = {2: int, 3: _COLUMN_META, 4: int, 5: int, 6: int, 7: int}
_ROW_GROUP = {1: [_COLUMN_CHUNK], 2: int, 3: int, 4: [{1: int}], 5: int, 6: int, 7: int}
_FOOTER = {3: int, 4: [_ROW_GROUP], 6: bytes}  # `read_schema` decodes the schema once for many files.
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

# Readers work around mistakes of these writers (chunk sizes, binary statistics, the flag of compressed v2 pages) and
# recognize them by the `created_by` of the whole file. So their chunks cannot be mixed with others.
_FLAWED_BEFORE = {"parquet-mr": (1, 8), "parquet-cpp": (2, 0)}
_WRITER = re.compile(r"(parquet-mr|parquet-cpp)(?![\w-])(?: version (\d+)\.(\d+))?")

# Wrappers of fsspec and tempfile that pass every call on to a plain file, and the attribute with that file.
_PLAIN_FILE_ATTRIBUTES = {"LocalFileOpener": "f", "_TemporaryFileWrapper": "file"}


class SpliceRefused(Exception):  # noqa: N818  (an expected outcome, after which the file is rewritten)
    """The file cannot be spliced without a change in meaning. The message says why."""


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """The settings with which a column chunk was written, named like the options of pyarrow's writer."""

    path: str
    physical_type: str
    """BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY or FIXED_LEN_BYTE_ARRAY."""
    codec: str
    dictionary: bool
    """True if all data pages are dictionary-encoded."""
    distinct_share: float
    """Dictionary entries per row, or 0 without a dictionary."""
    encoding: str
    """The encoding of data pages without a dictionary, or PLAIN if there are none."""
    statistics: bool
    column_index: bool
    offset_index: bool
    bloom_filter_bytes: int
    """The size of the bit set, or 0 without a bloom filter."""
    page_version: int
    page_checksums: bool

    def bloom_filter_ndv(self, fpp: float = 0.05) -> int:
        """Return the number of distinct values for which pyarrow creates a bloom filter of this size."""
        return int(-self.bloom_filter_bytes * math.log(1 - fpp ** (1 / 8)))


@contextmanager
def refuse_invalid(name: str) -> Iterator[None]:
    try:
        yield
    except FooterError as error:
        raise SpliceRefused(f"{name}: {error}") from error


def plain_descriptor(file: Any) -> int | None:
    """Return the descriptor of a plain file, else None.

    Only known types count, because read() of other types, such as gzip files, returns other bytes than the descriptor.
    """
    inner = _PLAIN_FILE_ATTRIBUTES.get(type(file).__name__)
    plain = getattr(file, inner) if inner else file
    raw = plain.raw if isinstance(plain, io.BufferedReader | io.BufferedWriter | io.BufferedRandom) else plain
    if isinstance(raw, io.FileIO) and hasattr(os, "pread") and stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        return raw.fileno()
    return None


class Input:
    """Thread-safe random access to bytes in memory, a plain file or a seekable file object."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self._position = threading.Lock()  # Threads share the position of a file object.
        self.memory: memoryview | None = None
        self.descriptor = plain_descriptor(file)
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
            raise FooterError(f"bytes {start} to {start + length} are outside the file of {self.size} bytes")
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
    """The raw bytes of a Parquet file and its footer, whose byte ranges are inside the file and do not overlap.

    `file` is read when chunks are copied, so the caller must keep it open until then, and close it.
    """

    def __init__(self, file: BinaryIO | bytes | bytearray | memoryview | pa.Buffer, name: str = "") -> None:
        self.name = name or str(getattr(file, "name", "")) or "Parquet data"
        self.input = Input(file)
        with refuse_invalid(self.name):
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

    def row_group_rows(self, row_group: int) -> int:
        return self.row_groups[row_group].number(3)

    def chunk_settings(self, row_group: int) -> list[ChunkSettings]:
        chunks = self.row_groups[row_group].structs(1)
        with refuse_invalid(f"{self.name}: row group {row_group}"):
            return [
                self._settings(chunk, leaf.path, self.row_group_rows(row_group))
                for chunk, leaf in zip(chunks, self.schema.leaves, strict=True)
            ]

    def read(self, start: int, length: int) -> bytes:
        return bytes(self.input.read(start, length))

    def read_index(self, start: int, length: int) -> bytes:
        """Read a part of the page index. A contiguous page index is read only once."""
        low, high, dense = self._index_span
        if not dense:
            return self.read(start, length)
        if self._indexes is None:
            self._indexes = self.read(low, high - low)
        return self._indexes[start - low : start - low + length]

    def bloom_filter(self, meta: Struct) -> tuple[int, int, int] | None:
        """Return the start of a chunk's bloom filter, its length with header, and that of the bit set."""
        if 14 not in meta:
            return None
        start = meta.number(14)
        header, used = decode(self.read(start, min(64, self.end - start)), _BLOOM_HEADER)
        bits = header.number(1)
        if bits <= 0 or meta.number(15, used + bits) != used + bits:
            raise FooterError("the length of a bloom filter does not match its header")
        return start, used + bits, bits

    def copyable_bytes(self, row_group: int, without: Collection[str] = ()) -> int:
        """Return how many bytes of a row group a splice copies if it replaces the columns `without`."""
        replaced = {leaf for name in without for leaf in self.schema.column(name).leaves}
        chunks = self.row_groups[row_group].structs(1)
        with refuse_invalid(self.name):
            kept = [self._ranges(chunk.struct(3)) for at, chunk in enumerate(chunks) if at not in replaced]
        return sum(end - start for ranges in kept for start, end in ranges)

    def _read_footer(self) -> tuple[Struct, int]:
        size = self.input.size
        if size < 12:
            raise FooterError(f"{size} bytes are too few for a Parquet file")
        tail = self.read(max(size - 65536, 0), min(size, 65536))
        length, magic = _TAIL.unpack(tail[-8:])
        if magic != MAGIC:
            raise FooterError("the footer is encrypted" if magic == b"PARE" else "this is not a Parquet file")
        if not 0 < length <= min(size - 12, _MAX_FOOTER):
            raise FooterError(f"the footer length of {length} bytes is invalid in a file of {size} bytes")
        start = size - 8 - length
        data = tail[-8 - length : -8] if length + 8 <= len(tail) else self.read(start, length)
        footer, used = decode(data, _FOOTER)
        if 8 in footer or 9 in footer:
            raise FooterError("the file is encrypted or signed")
        if used != length:
            raise FooterError(f"{length - used} bytes follow the footer")
        return footer, start

    def _refuse_flawed_writers(self) -> None:
        created_by = self.footer.text(6).decode("utf-8", "replace") if 6 in self.footer else ""
        if known := _WRITER.match(created_by):
            version = (int(known[2] or 0), int(known[3] or 0))
            if version < _FLAWED_BEFORE[known[1]]:
                raise FooterError(f"files of {created_by!r} need workarounds that a splice would lose")

    def _check_row_groups(self) -> None:
        leaves = self.schema.leaves
        for group in self.row_groups:
            chunks = group.structs(1)
            if len(chunks) != len(leaves) or group.number(3) < 0 or 2 not in group:
                raise FooterError("a row group does not match the schema")
            for chunk, leaf in zip(chunks, leaves, strict=True):
                if 1 in chunk:
                    raise FooterError(f"column {leaf.path} is stored in another file")
                if 8 in chunk or 9 in chunk:
                    raise FooterError(f"column {leaf.path} is encrypted")
                meta = chunk.struct(3)
                if meta.number(1) != leaf.physical or meta.text(3) != leaf.encoded_path:
                    raise FooterError(f"a column chunk does not match column {leaf.path} of the schema")

    def _check_ranges(self) -> tuple[int, int, bool]:
        """Check all byte ranges. Returns the range of the page index, and whether to read it at once."""
        taken: list[tuple[int, int]] = []
        indexes: list[tuple[int, int]] = []
        for group in self.row_groups:
            for chunk in group.structs(1):
                taken += self._ranges(chunk.struct(3))
                indexes += [(chunk.number(at), chunk.number(at) + chunk.number(at + 1)) for at in (4, 6) if at in chunk]
        taken += indexes
        _check_disjoint(taken, self.end)
        low, high = min((low for low, _ in indexes), default=0), max((high for _, high in indexes), default=0)
        dense = high - low <= min(_MAX_CACHED_INDEXES, 4 * sum(end - start for start, end in indexes))
        return low, high, dense

    def _ranges(self, meta: Struct) -> list[tuple[int, int]]:
        """Return the byte ranges of a chunk's pages and of its bloom filter."""
        pages = chunk_extent(meta)
        if 15 in meta and 14 in meta:
            return [pages, (meta.number(14), meta.number(14) + meta.number(15))]
        bloom = self.bloom_filter(meta)
        return [pages, (bloom[0], bloom[0] + bloom[1])] if bloom else [pages]

    def _settings(self, chunk: Struct, path: str, rows: int) -> ChunkSettings:
        meta = chunk.struct(3)
        if meta.number(4) not in _CODECS:
            raise FooterError(f"the writer does not support codec {meta.number(4)} of column {path}")
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
        (start, end), at = chunk_extent(meta), meta.number(11, 0)
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
        """Yield the headers of the first data pages of a chunk, at most 1,000."""
        (start, end), at = chunk_extent(meta), meta.number(9)
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
        except FooterError:  # Long minimum and maximum values make headers longer than 1 KiB.
            return decode(self.read(at, min(1 << 20, end - at)), _PAGE_HEADER)


def _page_encoding(header: Struct) -> int:
    if 8 in header:
        return header.struct(8).number(4)
    return header.struct(5).number(2) if 5 in header else 0


def chunk_extent(meta: Struct) -> tuple[int, int]:
    """Return the byte range of a chunk's pages."""
    # An offset of 0 means that the page does not exist. A chunk without rows has no data page.
    offsets = [at for at in (meta.number(9), meta.number(10, 0), meta.number(11, 0)) if at > 0]
    start = min(offsets, default=len(MAGIC))
    end = start + meta.number(7)
    if start < end <= max(offsets, default=start):
        raise FooterError("a page offset points outside its column chunk")
    return start, end


def _check_disjoint(ranges: list[tuple[int, int]], end: int) -> None:
    ranges.sort()
    for low, high in ranges:
        if not len(MAGIC) <= low <= high <= end:
            raise FooterError(f"bytes {low} to {high} are outside the data of the file, which ends at {end}")
    for (_, high), (low, _) in pairwise(span for span in ranges if span[0] < span[1]):
        if low < high:
            raise FooterError(f"byte ranges overlap at byte {low}")
