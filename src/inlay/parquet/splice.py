"""The splice: build a Parquet file from row groups and column chunks of other files without decoding.

Pages, bloom filters and column indexes are copied byte for byte. Offsets and offset indexes are adjusted. The rest of
the footer comes from the base file. If a splice would change the meaning of the data, it raises `SpliceRefused`, and
the caller rewrites the file instead.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO
from weakref import WeakSet

from inlay.parquet.raw import (
    MAGIC,
    ChunkSettings,
    Input,
    ParquetBytes,
    SpliceRefused,
    chunk_extent,
    plain_descriptor,
    refuse_invalid,
)
from inlay.parquet.thrift import I16, I32, I64, LIST, STRUCT, FooterError, Struct, decode, encode
from inlay.storage import Content

__all__ = ["ChunkSettings", "ParquetBytes", "SpliceRefused", "Splicer"]

_OFFSET_INDEX = {1: [{1: int}]}
_COPY_STEP = 8 << 20
_MAX_ORDINAL = (1 << 15) - 1
_NO_KERNEL_COPY = frozenset(
    (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY)
)


@dataclass(slots=True)
class _Pick:
    """A column chunk to write, and whether it counts as copied or as newly encoded."""

    source: ParquetBytes
    chunk: Struct
    kept: bool


@dataclass(slots=True)
class _Placed:
    """A column chunk in the new file, with the page index that `finish` writes."""

    chunk: Struct
    column_index: bytes
    offset_index: bytes


class Splicer:
    """A writer of one Parquet file with the schema and metadata of `base`.

    Row groups are written in the order of the calls. A source may be closed when the call that uses it returns. `out`
    must be empty and is neither closed nor synced. After an exception, discard the output.

    `bytes_written` is the size of the output so far. `bytes_copied` is the part of it that was copied from sources,
    without the chunks that `replace` took from `fresh`.
    """

    def __init__(self, out: BinaryIO, base: ParquetBytes) -> None:
        self._output = _Output(out)
        self._base = base
        self._admitted: WeakSet[ParquetBytes] = WeakSet((base,))
        self._row_groups: list[Struct] = []
        self._placed: list[_Placed] = []
        self._finished = False
        self.bytes_copied = 0
        self._output.write(MAGIC)

    @property
    def bytes_written(self) -> int:
        return self._output.end

    @property
    def content(self) -> Content:
        """The size and checksum of the finished file."""
        return Content(self._output.end, self._output.crc32)

    def copy(self, source: ParquetBytes, row_group: int) -> None:
        """Append an unchanged row group."""
        self._admit(source)
        group = source.row_groups[row_group]
        with refuse_invalid(source.name):
            self._append(group, [_Pick(source, chunk, kept=True) for chunk in group.structs(1)])

    def replace(
        self,
        source: ParquetBytes,
        row_group: int,
        fresh: ParquetBytes,
        columns: Collection[str] | None = None,
    ) -> None:
        """Append the first row group of `fresh`, or one of `source` with `columns` from `fresh`."""
        if columns is not None:
            self.replace_columns(source, row_group, [(fresh, columns)])
            return
        self._admit(fresh)
        group = fresh.row_groups[0]
        with refuse_invalid(fresh.name):
            self._append(group, [_Pick(fresh, chunk, kept=False) for chunk in group.structs(1)])

    def replace_columns(
        self,
        source: ParquetBytes,
        row_group: int,
        pieces: Sequence[tuple[ParquetBytes, Collection[str]]],
        *,
        keeps_order: bool = False,
    ) -> None:
        """Append a row group of `source` in which some top-level columns come from other files.

        Each piece is a file and the columns to take from its first row group, which must have as many rows.

        The result keeps the `sorting_columns` of `source` if none of them is replaced, or if the new values have the
        same order (`keeps_order`). Otherwise it takes those of the piece if there is only one, else none.
        """
        self._admit(source)
        group = source.row_groups[row_group]
        replaced: dict[int, _Pick] = {}
        for fresh, columns in pieces:
            with refuse_invalid(fresh.name):
                replaced |= _pick_columns(source, group, fresh, columns)
        with refuse_invalid(source.name):
            sorting = _sorting(group)
            if not keeps_order and any(column.number(1) in replaced for column in sorting):
                sorting = _translated_sorting(source, pieces[0][0]) if len(pieces) == 1 else []
            self._mix(source, group, replaced, sorting)

    def finish(self) -> None:
        """Write the page indexes and the footer."""
        self._check_open()
        self._finished = True
        self._write_indexes()
        footer = Struct(self._base.footer)
        footer.put(3, I64, sum(group.number(3) for group in self._row_groups))
        footer.put(4, LIST, self._row_groups)
        with refuse_invalid(self._base.name):
            data = encode(footer)
        self._output.write(data + len(data).to_bytes(4, "little") + MAGIC)
        self._output.finish()

    def _check_open(self) -> None:
        if self._finished:
            raise ValueError("the file is already finished")

    def _admit(self, source: ParquetBytes) -> None:
        self._check_open()
        if source in self._admitted:
            return
        with refuse_invalid(source.name):
            difference = self._base.schema.difference(source.schema)
        if difference:
            raise SpliceRefused(f"{source.name} does not match {self._base.name}: {difference}")
        self._admitted.add(source)

    def _mix(
        self, source: ParquetBytes, group: Struct, replaced: Mapping[int, _Pick], sorting: Sequence[Struct]
    ) -> None:
        kept = [_Pick(source, chunk, kept=True) for chunk in group.structs(1)]
        picks = [replaced.get(leaf, pick) for leaf, pick in enumerate(kept)]
        mixed = Struct(group)
        if sorting:
            mixed.put(4, LIST, list(sorting))
        else:
            mixed.pop(4, None)
        metas = [pick.chunk.struct(3) for pick in picks]
        mixed.put(2, I64, sum(meta.number(6) for meta in metas))
        if 6 in mixed:
            mixed.put(6, I64, sum(meta.number(7) for meta in metas))
        self._append(mixed, picks)

    def _append(self, group: Struct, picks: Sequence[_Pick]) -> None:
        start = self._output.end
        placed = [self._copy_pages(pick) for pick in picks]
        for pick, each in zip(picks, placed, strict=True):
            self._copy_bloom_filter(pick, each.chunk.struct(3))
        self._output.flush_copies()
        group = Struct(group)
        group.put(1, LIST, [each.chunk for each in placed])
        if 5 in group:
            group.put(5, I64, start)
        group.pop(7, None)
        if len(self._row_groups) <= _MAX_ORDINAL:
            group.put(7, I16, len(self._row_groups))
        self._row_groups.append(group)
        self._placed += placed

    def _copy(self, pick: _Pick, start: int, length: int) -> int:
        self.bytes_copied += length if pick.kept else 0
        return self._output.copy(pick.source.input, start, length)

    def _copy_pages(self, pick: _Pick) -> _Placed:
        chunk, meta = Struct(pick.chunk), Struct(pick.chunk.struct(3))
        start, end = chunk_extent(meta)
        shift = self._copy(pick, start, end - start)
        for field in (9, 10, 11):
            if meta.number(field, 0) > 0:
                meta.put(field, I64, meta.number(field) + shift)
        # The field is deprecated and points outside the chunk in many files. The format then requires 0.
        chunk.put(2, I64, chunk.number(2) + shift if start <= chunk.number(2, 0) < end else 0)
        chunk.put(3, STRUCT, meta)
        column_index, offset_index = (
            pick.source.read_index(chunk.number(at), chunk.number(at + 1)) if at in chunk else b"" for at in (6, 4)
        )
        return _Placed(chunk, column_index, _moved_offset_index(offset_index, shift, start, end))

    def _copy_bloom_filter(self, pick: _Pick, meta: Struct) -> None:
        if found := pick.source.bloom_filter(meta):
            start, length, _ = found
            meta.put(14, I64, start + self._copy(pick, start, length))
            meta.put(15, I32, length)

    def _write_indexes(self) -> None:
        """Write all column indexes, then all offset indexes, because readers fetch each kind at once."""
        for field, parts in (
            (6, [(each.chunk, each.column_index) for each in self._placed]),
            (4, [(each.chunk, each.offset_index) for each in self._placed]),
        ):
            position = self._output.end
            for chunk, data in parts:
                if field in chunk:
                    chunk.put(field, I64, position)
                    chunk.put(field + 1, I32, len(data))
                    position += len(data)
            self._output.write(b"".join(data for _, data in parts))


def _pick_columns(
    source: ParquetBytes, group: Struct, fresh: ParquetBytes, columns: Collection[str]
) -> dict[int, _Pick]:
    """Map leaves of `source` to the chunks of `fresh` that replace them."""
    new = fresh.row_groups[0]
    if group.number(3) != new.number(3):
        raise FooterError(f"{new.number(3)} rows cannot replace columns of {group.number(3)} rows")
    if difference := source.schema.difference(fresh.schema, columns):
        raise FooterError(f"it does not match {source.name}: {difference}")
    return {
        old_leaf: _Pick(fresh, new.structs(1)[new_leaf], kept=False)
        for name in columns
        for old_leaf, new_leaf in zip(source.schema.column(name).leaves, fresh.schema.column(name).leaves, strict=True)
    }


def _sorting(group: Struct) -> list[Struct]:
    return group.structs(4) if 4 in group else []


def _translated_sorting(source: ParquetBytes, fresh: ParquetBytes) -> list[Struct]:
    """Return the sorting columns of `fresh`, numbered as in `source`, or none if one is missing."""
    paths = dict(enumerate(leaf.path for leaf in fresh.schema.leaves))
    positions = {leaf.path: at for at, leaf in enumerate(source.schema.leaves)}
    sorting = []
    for column in _sorting(fresh.row_groups[0]):
        path = paths.get(column.number(1))
        if path not in positions:
            return []
        translated = Struct(column)
        translated.put(1, I32, positions[path])
        sorting.append(translated)
    return sorting


def _moved_offset_index(data: bytes, shift: int, start: int, end: int) -> bytes:
    if not data or not shift:
        return data
    index, _ = decode(data, _OFFSET_INDEX)
    for page in index.structs(1):
        if not start <= page.number(1) < end:
            raise FooterError("the offset index points outside its column chunk")
        page.put(1, I64, page.number(1) + shift)
    return encode(index)


class _Output:
    """An append-only output that combines copies of adjacent bytes."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.descriptor = plain_descriptor(out)
        self.position = self.crc32 = 0
        self._pending: tuple[Input, int, int] | None = None
        if self.descriptor is not None:
            out.flush()
            if os.fstat(self.descriptor).st_size:
                raise ValueError("the output file is not empty, but offsets in a Parquet file count from its start")

    @property
    def end(self) -> int:
        return self.position + (self._pending[2] if self._pending else 0)

    def copy(self, source: Input, start: int, length: int) -> int:
        """Schedule a copy. Returns the difference between the new and the old offset."""
        shift = self.end - start
        if self._pending and self._pending[0] is source and self._pending[1] + self._pending[2] == start:
            self._pending = (source, self._pending[1], self._pending[2] + length)
        else:
            self.flush_copies()
            self._pending = (source, start, length)
        return shift

    def flush_copies(self) -> None:
        if self._pending is None:
            return
        source, start, length = self._pending
        self._pending = None
        while length:
            step = self._copy_in_kernel(source, start, length)
            if not step:
                step = min(length, _COPY_STEP)
                self.write(source.read(start, step))
            start += step
            length -= step

    def _copy_in_kernel(self, source: Input, start: int, length: int) -> int:
        if source.descriptor is None or self.descriptor is None or not hasattr(os, "copy_file_range"):
            return 0
        try:
            done = os.copy_file_range(source.descriptor, self.descriptor, min(length, 1 << 30), start, self.position)
        except OSError as error:
            if error.errno not in _NO_KERNEL_COPY:
                raise
            return 0
        for offset in range(0, done, _COPY_STEP):
            self._account(source.read(start + offset, min(done - offset, _COPY_STEP)))
        return done

    def _account(self, data: bytes | memoryview) -> None:
        self.position += len(data)
        self.crc32 = zlib.crc32(data, self.crc32)

    def write(self, data: bytes | memoryview) -> None:
        self.flush_copies()
        view = memoryview(data)
        while view:
            done = self._write_some(view)
            self._account(view[:done])
            view = view[done:]

    def _write_some(self, view: memoryview) -> int:
        if self.descriptor is not None:
            return os.pwrite(self.descriptor, view, self.position)
        done: int | None = self.out.write(view)
        return len(view) if done is None else done  # Some file objects return None.

    def finish(self) -> None:
        self.flush_copies()
        if self.descriptor is not None:
            self.out.seek(self.position)
        self.out.flush()
