"""Rows on their way to a task, from the driver or from another task: pieces of files in a store that all tasks reach.

The JVM never sees the rows; who sends a task off tells it where its pieces lie and how many rows they have. Whoever
writes gives its file a name of its own, so that a task may be tried again. A few rows need no file: their pieces carry
them.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from inlay.engines.arrays import take_rows
from inlay.engines.base import Written
from inlay.parquet.sidecar import claim, new_staging, sidecar, sidecar_inside, unlock
from inlay.storage import LocalStore, Location, Store, discard_tree

__all__ = ["Attempt", "Chunk", "ChunkRows", "Piece", "PieceWriter", "Scratch", "pack", "slabs", "unpack"]

_SLAB_BYTES = 48 << 20
_PLACE = np.dtype(np.int32)


class Piece(NamedTuple):
    """Rows in a part of a file, or in `carried`; with `placed`, the places where they belong lie before them."""

    path: str
    offset: int
    length: int
    rows: int
    placed: bool = False
    carried: bytes | None = None


Chunk = list[Piece]  # rows that belong together, each at its place among them


def pack(table: pa.Table) -> bytes:
    packed: bytes = _packed(table, "lz4").to_pybytes()
    return packed


def _packed(table: pa.Table, compression: str | None) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpack(packed: bytes | pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(packed)).read_all()


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory for the time of one merge; the sweep of dead staging finds it by its name. Without a path there is
    none, and pieces carry what they hold."""

    store: Store
    path: str = ""

    @classmethod
    def beside(cls, location: Location) -> Scratch | None:
        """Where the dataset's own staged files lie; None where nothing can be written."""
        if not isinstance(location.store, LocalStore):
            return cls(location.store, f"{sidecar(location)}/{new_staging()}")
        for place in dict.fromkeys([sidecar(location), sidecar_inside(location)]):
            with contextlib.suppress(OSError):
                return cls(location.store, _claimed(location.store, place))
        return None

    def file(self, kind: str) -> str:
        return f"{self.path}/{kind}-{uuid.uuid4().hex[:16]}"

    def read(self, piece: Piece) -> pa.Table:
        return self.read_placed(piece)[0]

    def read_placed(self, piece: Piece) -> tuple[pa.Table, np.ndarray | None]:
        data = pa.py_buffer(self.read_bytes(piece))
        if not piece.placed:
            return unpack(data), None
        size = piece.rows * _PLACE.itemsize
        return unpack(data.slice(size)), np.frombuffer(data.slice(0, size), _PLACE)

    def read_bytes(self, piece: Piece) -> bytes:
        if piece.carried is not None:
            return piece.carried
        return self.store.read_range(piece.path, piece.offset, piece.length)

    def write(self, kind: str, table: pa.Table) -> Piece:
        with PieceWriter(self, kind) as writer:
            return writer.add(table)

    def remove(self) -> None:
        """Also the directory around it, if it is there for nothing else."""
        discard_tree(self.store, self.path)
        if self.path in _claims:
            unlock(_claims.pop(self.path))
        if isinstance(self.store, LocalStore):
            self.store.remove_empty_directory(self.path.rpartition("/")[0])


_claims: dict[str, int] = {}  # scratches of this process


def _claimed(store: LocalStore, place: str) -> str:
    """A new directory that no sweep removes while this process lives."""
    while True:
        path = f"{place}/{new_staging()}"
        store.make_directories(path)
        descriptor = claim(path)
        if descriptor is not None:
            _claims[path] = descriptor
            return path


class PieceWriter:
    """A new file, piece after piece; without a scratch to write it in, pieces that carry what they hold."""

    def __init__(self, scratch: Scratch, kind: str) -> None:
        self._store = scratch.store
        self.path = scratch.file(kind) if scratch.path else ""
        self._stack = contextlib.ExitStack()
        self._out = self._stack.enter_context(self._store.open_write(self.path)) if self.path else None
        self._end = 0

    def __enter__(self) -> PieceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is not None and self.path:
            self._store.remove(self.path)

    def add(self, table: pa.Table, places: np.ndarray | None = None) -> Piece:
        # on a disk, compressing costs more than it saves
        data = _packed(table, None if self.path and self._store.is_local else "lz4")
        if places is None:
            return self.put(data, table.num_rows)
        return self.put(places.astype(_PLACE).tobytes() + data.to_pybytes(), table.num_rows)._replace(placed=True)

    def put(self, data: bytes | pa.Buffer, rows: int = 0) -> Piece:
        if self._out is None:
            return Piece("", 0, len(data), rows, carried=bytes(data))
        self._out.write(data)
        piece = Piece(self.path, self._end, len(data), rows)
        self._end += len(data)
        return piece


def slabs(scratch: Scratch, pieces: Iterable[Piece]) -> Iterator[pa.Table]:
    """Pieces one after the other, so many at a time as memory is meant to hold."""
    waiting: list[pa.Table] = []
    for piece in pieces:
        waiting.append(scratch.read(piece))
        if sum(table.nbytes for table in waiting) >= _SLAB_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


class ChunkRows:
    """Rows by number, out of chunks that follow each other; only the chunk in use is in memory."""

    def __init__(self, scratch: Scratch, chunks: Sequence[Chunk]) -> None:
        self._scratch = scratch
        self._chunks = chunks
        self._starts = np.concatenate([[0], np.cumsum([sum(p.rows for p in c) for c in chunks])]).astype(np.int64)
        self._open: tuple[int, pa.Table] | None = None

    def take(self, rows: np.ndarray) -> pa.Table:
        """Numbers without gaps, ascending: they were numbered for this task."""
        first, end = int(rows[0]), int(rows[-1]) + 1
        at = int(np.searchsorted(self._starts, first, side="right")) - 1
        parts = []
        while first < end:
            start, stop = int(self._starts[at]), min(end, int(self._starts[at + 1]))
            if stop > first:
                parts.append(self._chunk(at).slice(first - start, stop - first))
                first = stop
            at += 1
        return pa.concat_tables(parts)

    def _chunk(self, at: int) -> pa.Table:
        if self._open is None or self._open[0] != at:
            self._open = None  # before the next one comes in
            self._open = (at, self._assembled(self._chunks[at]))
        return self._open[1]

    def _assembled(self, chunk: Chunk) -> pa.Table:
        read = [self._scratch.read_placed(piece) for piece in chunk]
        table = pa.concat_tables([part for part, _ in read])
        places = [where for _, where in read if where is not None]
        if len(read) == 1 or not places:
            return table
        order = np.empty(table.num_rows, np.int64)
        order[np.concatenate(places)] = np.arange(table.num_rows)
        return take_rows(table.combine_chunks(), order)


class Attempt:
    """A staged file of one attempt at a task: other attempts cannot see it before it is whole."""

    def __init__(self, location: Location, stage: str) -> None:
        self._store = location.store
        self._stage = stage
        self.path = f"{stage}.{uuid.uuid4().hex[:8]}" if stage else ""

    def settle(self, written: Written) -> Written:
        """Give the file the name that was asked for."""
        if not written.stage:
            return written
        self._store.move(self.path, self._stage)
        if not self._store.is_local:  # there a move is a copy
            self._store.remove(self.path)
        return replace(written, stage=self._stage)
