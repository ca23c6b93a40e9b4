"""A data file with its footer: reads row groups, and chooses the columns to decode at once."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa

from inlay.engines.base import GroupEdit
from inlay.parquet.footers import RowGroupReader, open_parquet, read_small_file
from inlay.parquet.reshape import Shape
from inlay.parquet.splice import ChunkSettings, ParquetBytes, SpliceRefused
from inlay.parquet.writer import WriterSettings
from inlay.schema import widen_column
from inlay.storage import Location

__all__ = ["OpenFile", "file_settings", "file_size"]

# Encoded bytes of a row group to decode at once, by whether the store is local. Each read of an object store is a
# request, so these reads are larger.
_DECODE_BYTES = {True: 8 << 20, False: 32 << 20}
_TEXT = frozenset((pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()))
_MAX_SMALL_SHARE = 0.1  # Above it, combining two dictionaries takes longer than decoding the values.
_READ_AT_ONCE = 16 << 20  # Smaller files are read at once to be rewritten.


def _has_small_dictionary(chunk: ChunkSettings) -> bool:
    text = chunk.dictionary and chunk.physical_type == "BYTE_ARRAY" and not chunk.bloom_filter_bytes
    return text and chunk.distinct_share <= _MAX_SMALL_SHARE


class OpenFile:
    """A data file with its footer read."""

    def __init__(self, location: Location, path: str, *, at_once: bool = False) -> None:
        self.location, self.path = location, path
        # One read instead of many: threads that return from a read wait for each other to get the GIL.
        self.data = read_small_file(location, path, _READ_AT_ONCE) if at_once else None
        with open_parquet(location, path, self.data) as parquet:
            self.metadata, self.schema, self.parquet_schema = parquet.metadata, parquet.schema_arrow, parquet.schema
        self.name = location.display(path)
        self.shape: Shape | None = None  # the wider types in which to decode columns

    @property
    def widened(self) -> list[str]:
        return [] if self.shape is None else self.shape.encoded

    def column_batches(self, group: int, without: Collection[str]) -> list[list[str] | None]:
        """Split the columns into batches that are decoded at once. None stands for all columns."""
        if not self.has_plain_names:
            return [None]
        sizes, batch, filled = self._column_sizes(group), list[str](), 0
        batches: list[list[str] | None] = [batch]
        for name in (name for name in self.schema.names if name not in without):
            if filled >= _DECODE_BYTES[self.location.store.is_local]:
                batch, filled = [], 0
                batches.append(batch)
            batch.append(name)
            filled += sizes[name]
        return batches

    def columns_to_compare(self, group: int, without: Collection[str]) -> list[list[str] | None]:
        """Split the columns like `column_batches`, but on a local disk into single columns, the smallest first."""
        if not self.has_plain_names or not self.location.store.is_local:
            return self.column_batches(group, without)
        sizes = self._column_sizes(group)
        return [[name] for name in sorted(set(self.schema.names) - set(without), key=lambda name: (sizes[name], name))]

    @property
    def has_plain_names(self) -> bool:
        """Return whether pyarrow can select columns by name. It reads a name with a dot as a path."""
        names = self.schema.names
        return len(set(names)) == len(names) and not any("." in name for name in names)

    def _column_sizes(self, group: int) -> Counter[str]:
        """Return the encoded, uncompressed bytes of each top-level column."""
        chunks = self.metadata.row_group(group)
        sizes: Counter[str] = Counter()
        for leaf in range(chunks.num_columns):
            chunk = chunks.column(leaf)
            sizes[chunk.path_in_schema.split(".", 1)[0]] += chunk.total_uncompressed_size
        return sizes

    def small_dictionaries(self, raw: ParquetBytes, group: int) -> list[str]:
        """Return the text columns of a row group that are faster to decode, and to edit, as dictionaries."""
        if not self.has_plain_names:
            return []
        try:
            found = {chunk.path for chunk in raw.chunk_settings(group) if _has_small_dictionary(chunk)}
        except SpliceRefused:
            return []
        return [field.name for field in self.schema if field.name in found and field.type in _TEXT]

    def read_group(self, group: int, columns: list[str] | None = None) -> pa.Table:
        """Decode a row group, or some of its columns."""
        with self.open_group(group) as opened:
            return opened.read(columns)

    def open_group(self, group: int, dictionaries: Sequence[str] = (), *, as_text: bool = False) -> OpenGroup:
        """Open a row group, whose text columns in `dictionaries` are decoded as dictionaries.

        With `as_text`, these columns become text afterwards, which is faster than decoding them as text.
        """
        reader = RowGroupReader(self.location, self.path, self.metadata, group, self.data, dictionaries)
        return OpenGroup(self, reader, dictionaries if as_text else ())

    def widen(self, table: pa.Table) -> pa.Table:
        """Convert columns to the wider types of `shape`."""
        for at, name in enumerate(table.column_names if self.shape is not None else ()):
            if self.shape is not None and name in self.shape.encoded:
                wide = self.shape.after.field(name)
                table = table.set_column(at, wide, widen_column(table.column(at), wide.type, name))
        return table

    def rows_left(self, edit: GroupEdit) -> int:
        return edit.rows_left(self.metadata.row_group(edit.group).num_rows)

    @contextlib.contextmanager
    def raw(self) -> Iterator[ParquetBytes]:
        if self.data is not None:
            yield ParquetBytes(self.data, self.name)
            return
        with self.location.store.open_read(self.location.full(self.path)) as file:
            yield ParquetBytes(file, self.name)

    def settings(self) -> WriterSettings:
        """Return the file's writer settings, or pyarrow's defaults if it cannot be spliced."""
        rows = max((self.metadata.row_group(g).num_rows for g in range(self.metadata.num_row_groups)), default=0)
        try:
            with self.raw() as raw:
                if raw.num_row_groups:
                    return WriterSettings.like(raw, 0, self.parquet_schema, rows)
        except SpliceRefused:
            pass
        return WriterSettings(row_group_size=max(1, rows))


class OpenGroup:
    """An opened row group of a data file. `texts` are decoded as dictionaries, and become text."""

    def __init__(self, file: OpenFile, reader: RowGroupReader, texts: Sequence[str]) -> None:
        self._file, self._reader, self._texts = file, reader, texts

    def __enter__(self) -> OpenGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """Decode some columns, or all."""
        return self._file.widen(self._as_text(self._reader.read(columns)))

    def batches(self, columns: list[str]) -> Iterator[pa.Table]:
        """Decode some columns in small pieces."""
        return map(self._file.widen, map(self._as_text, self._reader.batches(columns)))

    def _as_text(self, table: pa.Table) -> pa.Table:
        for at, name in enumerate(table.column_names if self._texts else ()):
            if name in self._texts:
                field = self._file.schema.field(name)
                # pyarrow reads dictionaries of large text as dictionaries of text.
                chunks = [chunk.dictionary_decode().cast(field.type) for chunk in table.column(at).chunks]
                table = table.set_column(at, field, pa.chunked_array(chunks, field.type))
        return table


def file_settings(location: Location, path: str) -> tuple[WriterSettings, int]:
    """Return the writer settings that match a data file, and its number of row groups."""
    file = OpenFile(location, path)
    return file.settings(), int(file.metadata.num_row_groups)


def file_size(location: Location, path: str) -> int:
    stat = location.store.stat(path)
    return 0 if stat is None else stat.size
