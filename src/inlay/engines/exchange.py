"""Rows on their way from task to task: pieces of files in a store that all tasks reach.

Neither the driver nor the JVM sees the rows; of every piece the driver knows where it lies and how many rows it has.
Whoever writes gives its file a name of its own, so that a task may be tried again.
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

from inlay.engines.base import Written
from inlay.engines.source import take_rows
from inlay.parquet.layout import sidecars
from inlay.storage import LocalStore, Location, Store

__all__ = ["Attempt", "Chunk", "ChunkRows", "Piece", "PieceWriter", "Scratch", "pack", "slabs", "unpack"]

_SLAB_BYTES = 48 << 20
_PLACE = np.dtype(np.int32)


class Piece(NamedTuple):
    """Rows in a part of a file; with `placed`, the places where they belong lie before them."""

    path: str
    offset: int
    length: int
    rows: int
    placed: bool = False


Chunk = list[Piece]  # rows that belong together, each at its place among them


def pack(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes | pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(packed)).read_all()


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory for the time of one merge; the sweep of dead staging finds it by its name."""

    store: Store
    path: str

    @classmethod
    def beside(cls, location: Location) -> Scratch | None:
        """Where the dataset's own staged files lie; None where nothing can be written."""
        name = f".staging_{uuid.uuid4().hex}"
        if not isinstance(location.store, LocalStore):
            return cls(location.store, f"{sidecars(location)[0]}/{name}")
        places = sidecars(location)
        for place in sorted(places, key=lambda p: not location.store.is_directory(p)):  # the one that is there first
            with contextlib.suppress(OSError):
                location.store.make_directories(f"{place}/{name}")
                return cls(location.store, f"{place}/{name}")
        return None

    def file(self, kind: str) -> str:
        return f"{self.path}/{kind}-{uuid.uuid4().hex[:16]}"

    def read(self, piece: Piece) -> pa.Table:
        return self.read_placed(piece)[0]

    def read_placed(self, piece: Piece) -> tuple[pa.Table, np.ndarray | None]:
        data = pa.py_buffer(self.store.read_range(piece.path, piece.offset, piece.length))
        if not piece.placed:
            return unpack(data), None
        size = piece.rows * _PLACE.itemsize
        return unpack(data.slice(size)), np.frombuffer(data.slice(0, size), _PLACE)

    def write(self, kind: str, table: pa.Table) -> Piece:
        with PieceWriter(self, kind) as writer:
            return writer.add(table)

    def remove(self) -> None:
        """Also the directory around it, if it is there for nothing else."""
        with contextlib.suppress(OSError):
            self.store.remove_tree(self.path)
        if isinstance(self.store, LocalStore):
            self.store.remove_empty_directory(self.path.rpartition("/")[0])


class PieceWriter:
    """A new file, piece after piece."""

    def __init__(self, scratch: Scratch, kind: str) -> None:
        self._store = scratch.store
        self.path = scratch.file(kind)
        self._stack = contextlib.ExitStack()
        self._out = self._stack.enter_context(self._store.open_write(self.path))
        self._end = 0

    def __enter__(self) -> PieceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is not None:
            self._store.remove(self.path)

    def add(self, table: pa.Table, places: np.ndarray | None = None) -> Piece:
        data = pack(table)
        if places is not None:
            data = places.astype(_PLACE).tobytes() + data
        self._out.write(data)
        piece = Piece(self.path, self._end, len(data), table.num_rows, places is not None)
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
