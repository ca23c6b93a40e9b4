"""Row-group surgery: a new Parquet file out of row groups and column chunks of others; no page is decoded.

Pages, bloom filters and column indexes are copied byte for byte; only what names a position in the file
(page, chunk and row-group offsets, offset indexes) is written anew, and the rest of the footer is the base
file's. Whatever cannot be done faithfully raises `SpliceRefused`, and the caller rewrites the file instead.
"""

from __future__ import annotations

import errno
import os
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
    descriptor_of,
    extent_of,
    refusing,
)
from inlay.parquet.thrift import I16, I32, I64, LIST, STRUCT, FooterError, Struct, decode, encode

__all__ = ["ChunkSettings", "ParquetBytes", "SpliceRefused", "Splicer"]

_OFFSET_INDEX = {1: [{1: int}]}
_COPY_STEP = 8 << 20
_MAX_ORDINAL = (1 << 15) - 1
_NO_KERNEL_COPY = frozenset(
    (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY)
)


@dataclass(slots=True)
class _Pick:
    """A column chunk to be written: where it is, and whether it counts as copied rather than made anew."""

    source: ParquetBytes
    chunk: Struct
    kept: bool


@dataclass(slots=True)
class _Placed:
    """A column chunk in the new file; its page index waits for the end of the data."""

    chunk: Struct
    column_index: bytes
    offset_index: bytes


class Splicer:
    """Writes a new Parquet file; `base` gives schema, key-value metadata, created_by and column orders.

    Row groups come in the order of the calls. A source may be closed as soon as the call that names it
    returns, since bloom filters follow their row group and page indexes are held until `finish`. `out` must
    be empty; it is neither closed nor synced. After an exception the output is worthless: throw it away.

    `bytes_written` is the size of the output so far; `bytes_copied` is the part of it that was taken over
    from sources byte for byte, without the chunks that `replace` took from `fresh`.
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

    def copy(self, source: ParquetBytes, row_group: int) -> None:
        """Append a row group as it is."""
        self._admit(source)
        group = source.row_groups[row_group]
        with refusing(source.name):
            self._append(group, [_Pick(source, chunk, kept=True) for chunk in group.structs(1)])

    def replace(
        self,
        source: ParquetBytes,
        row_group: int,
        fresh: ParquetBytes,
        columns: Collection[str] | None = None,
    ) -> None:
        """Append the first row group of `fresh` in place of one of `source`; with `columns` only their chunks."""
        if columns is not None:
            self.replace_columns(source, row_group, [(fresh, columns)])
            return
        self._admit(fresh)
        group = fresh.row_groups[0]
        with refusing(fresh.name):
            self._append(group, [_Pick(fresh, chunk, kept=False) for chunk in group.structs(1)])

    def replace_columns(
        self,
        source: ParquetBytes,
        row_group: int,
        pieces: Sequence[tuple[ParquetBytes, Collection[str]]],
    ) -> None:
        """Append a row group of `source` in which some columns (top-level names) come from elsewhere.

        A piece is a file of its columns, or of more; its first row group must have as many rows.

        `sorting_columns` stay if none of the columns they name is replaced; else a single piece states them or none.
        """
        self._admit(source)
        group = source.row_groups[row_group]
        replaced: dict[int, _Pick] = {}
        for fresh, columns in pieces:
            with refusing(fresh.name):
                replaced |= _picked(source, group, fresh, columns)
        with refusing(source.name):
            sorting = _sorting(group)
            if any(column.number(1) in replaced for column in sorting):
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
        with refusing(self._base.name):
            data = encode(footer)
        self._output.write(data + len(data).to_bytes(4, "little") + MAGIC)
        self._output.finish()

    def _check_open(self) -> None:
        if self._finished:
            raise ValueError("this file is finished")

    def _admit(self, source: ParquetBytes) -> None:
        self._check_open()
        if source in self._admitted:
            return
        with refusing(source.name):
            difference = self._base.schema.difference(source.schema)
        if difference:
            raise SpliceRefused(f"{source.name} does not fit {self._base.name}: {difference}")
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
        placed = [self._place_pages(pick) for pick in picks]
        for pick, place in zip(picks, placed, strict=True):
            self._place_bloom_filter(pick, place.chunk.struct(3))
        self._output.settle()
        group = Struct(group)
        group.put(1, LIST, [place.chunk for place in placed])
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

    def _place_pages(self, pick: _Pick) -> _Placed:
        chunk, meta = Struct(pick.chunk), Struct(pick.chunk.struct(3))
        start, end = extent_of(meta)
        shift = self._copy(pick, start, end - start)
        for field in (9, 10, 11):
            if meta.number(field, 0) > 0:
                meta.put(field, I64, meta.number(field) + shift)
        # Deprecated, and outside of the chunk in many files: then 0, as the format asks for by now.
        chunk.put(2, I64, chunk.number(2) + shift if start <= chunk.number(2, 0) < end else 0)
        chunk.put(3, STRUCT, meta)
        column_index, offset_index = (
            pick.source.read_index(chunk.number(at), chunk.number(at + 1)) if at in chunk else b"" for at in (6, 4)
        )
        return _Placed(chunk, column_index, _moved_offset_index(offset_index, shift, start, end))

    def _place_bloom_filter(self, pick: _Pick, meta: Struct) -> None:
        if found := pick.source.bloom_filter(meta):
            start, length, _ = found
            meta.put(14, I64, start + self._copy(pick, start, length))
            meta.put(15, I32, length)

    def _write_indexes(self) -> None:
        """All column indexes, then all offset indexes: readers fetch each kind as one run of bytes."""
        for field, parts in (
            (6, [(place.chunk, place.column_index) for place in self._placed]),
            (4, [(place.chunk, place.offset_index) for place in self._placed]),
        ):
            position = self._output.end
            for chunk, data in parts:
                if field in chunk:
                    chunk.put(field, I64, position)
                    chunk.put(field + 1, I32, len(data))
                    position += len(data)
            self._output.write(b"".join(data for _, data in parts))


def _picked(source: ParquetBytes, group: Struct, fresh: ParquetBytes, columns: Collection[str]) -> dict[int, _Pick]:
    """The chunks of a piece, by the leaf of `source` that each takes the place of."""
    new = fresh.row_groups[0]
    if group.number(3) != new.number(3):
        raise FooterError(f"{new.number(3)} rows cannot replace columns of {group.number(3)} rows")
    if difference := source.schema.difference(fresh.schema, columns):
        raise FooterError(f"it does not fit {source.name}: {difference}")
    return {
        mine: _Pick(fresh, new.structs(1)[theirs], kept=False)
        for name in columns
        for mine, theirs in zip(source.schema.column(name).leaves, fresh.schema.column(name).leaves, strict=True)
    }


def _sorting(group: Struct) -> list[Struct]:
    return group.structs(4) if 4 in group else []


def _translated_sorting(source: ParquetBytes, fresh: ParquetBytes) -> list[Struct]:
    """The sorting columns that `fresh` states, numbered as in `source`; none if one is not there."""
    paths = dict(enumerate(leaf.path for leaf in fresh.schema.leaves))
    positions = {leaf.path: at for at, leaf in enumerate(source.schema.leaves)}
    stated = []
    for column in _sorting(fresh.row_groups[0]):
        path = paths.get(column.number(1))
        if path not in positions:
            return []
        translated = Struct(column)
        translated.put(1, I32, positions[path])
        stated.append(translated)
    return stated


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
    """Appends to `out`, from memory or other files; adjacent copies become one."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.descriptor = descriptor_of(out)
        self.position = 0
        self._pending: tuple[Input, int, int] | None = None
        if self.descriptor is not None:
            out.flush()
            if os.fstat(self.descriptor).st_size:
                raise ValueError("the output file is not empty: offsets in a Parquet file count from its start")

    @property
    def end(self) -> int:
        return self.position + (self._pending[2] if self._pending else 0)

    def copy(self, source: Input, start: int, length: int) -> int:
        """How far the bytes move."""
        shift = self.end - start
        if self._pending and self._pending[0] is source and self._pending[1] + self._pending[2] == start:
            self._pending = (source, self._pending[1], self._pending[2] + length)
        else:
            self.settle()
            self._pending = (source, start, length)
        return shift

    def settle(self) -> None:
        """Carry out what `copy` put off."""
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
        self.position += done
        return done

    def write(self, data: bytes | memoryview) -> None:
        self.settle()
        view = memoryview(data)
        while view:
            done = self._write_some(view)
            self.position += done
            view = view[done:]

    def _write_some(self, view: memoryview) -> int:
        if self.descriptor is not None:
            return os.pwrite(self.descriptor, view, self.position)
        done: int | None = self.out.write(view)
        return len(view) if done is None else done  # some file objects do not say

    def finish(self) -> None:
        self.settle()
        if self.descriptor is not None:
            self.out.seek(self.position)
        self.out.flush()
