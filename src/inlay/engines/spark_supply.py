"""Handing source rows to the tasks that want them, and keys to those that search: out of the driver, or out of the
store where the rows lie.

Either way a task is told where its rows are, in chunks, each at most what fits in memory beside a row group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from inlay.engines.arrays import take_rows
from inlay.engines.buckets import ArrowSource
from inlay.engines.exchange import Chunk, Piece, PieceWriter, Scratch, slabs
from inlay.engines.spark_source import StoredKeys, StoredSource, sorted_keys

__all__ = ["HeldRows", "StoredRows", "Supply"]

Room = Callable[[int], AbstractContextManager[Scratch]]  # for so many bytes


class Supply(Protocol):
    """Source rows and keys as tasks get them; they are there for the time of the block."""

    num_rows: int

    def keys(self) -> AbstractContextManager[StoredKeys]: ...

    def handed_out(self, wanted: Sequence[np.ndarray]) -> AbstractContextManager[tuple[Scratch, list[Chunk]]]:
        """A chunk for every list of row numbers."""


class _Share(NamedTuple):
    """What a chunk gets of one bucket: which rows, and their places in it."""

    chunk: int
    rows: np.ndarray
    places: np.ndarray


def _shares(starts: np.ndarray, wanted: Sequence[np.ndarray]) -> list[list[_Share]]:
    """For every bucket what is wanted from it, made chunk by chunk: this is the driver's memory."""
    found: list[list[_Share]] = [[] for _ in starts[:-1]]
    for chunk, rows in enumerate(wanted):
        if not len(rows):
            continue
        homes = np.searchsorted(starts, rows, side="right") - 1
        order = np.argsort(homes, kind="stable").astype(np.int32)
        buckets, firsts = np.unique(homes[order], return_index=True)
        for bucket, places in zip(buckets, np.split(order, firsts[1:]), strict=True):
            found[bucket].append(_Share(chunk, (rows[places] - starts[bucket]).astype(np.int32), places))
    return found


# ------------------------------------------------------------------------------------------------------- in the driver
class HeldRows:
    """Rows that the driver holds: it writes them where tasks find them, or sends them along if they are few."""

    def __init__(self, source: ArrowSource, room: Room) -> None:
        self._source, self._room = source, room
        self.num_rows = source.num_rows

    @contextlib.contextmanager
    def keys(self) -> Iterator[StoredKeys]:
        source = self._source
        with self._room(source.nbytes) as scratch:
            with PieceWriter(scratch, "index") as out:
                groups = [[(start, out.add(sorted_keys(index)))] for start, index in source.indexes()]
            yield StoredKeys(scratch, source.schema, source.key_columns, groups)

    @contextlib.contextmanager
    def handed_out(self, wanted: Sequence[np.ndarray]) -> Iterator[tuple[Scratch, list[Chunk]]]:
        source = self._source
        size = sum(map(len, wanted)) * source.nbytes // max(source.num_rows, 1)
        chunks: list[Chunk] = [[] for _ in wanted]
        with self._room(size) as scratch:
            with PieceWriter(scratch, "sent") as out:
                for bucket, shares in zip(source.buckets, _shares(source.starts, wanted), strict=True):
                    loaded = bucket.loaded() if shares else bucket
                    for chunk, rows, places in shares:
                        all_here = len(rows) == len(wanted[chunk])
                        chunks[chunk].append(out.add(loaded.take(rows), None if all_here else places))
            yield scratch, chunks


# -------------------------------------------------------------------------------------------------------- in the store
class StoredRows:
    """Rows that lie in the store: a job reads every bucket once and writes its rows in the order of the chunks."""

    def __init__(self, source: StoredSource) -> None:
        self._source = source
        self.num_rows = source.num_rows

    @contextlib.contextmanager
    def keys(self) -> Iterator[StoredKeys]:
        yield self._source.keys

    @contextlib.contextmanager
    def handed_out(self, wanted: Sequence[np.ndarray]) -> Iterator[tuple[Scratch, list[Chunk]]]:
        source = self._source
        chunks: list[Chunk] = [[] for _ in wanted]
        paths = set()
        for answer in source.run(_Send(source.scratch), self._routes(wanted)):
            for chunk, piece in answer:
                chunks[chunk].append(piece)
                paths.add(piece.path)
        yield source.scratch, chunks
        for path in paths:
            source.scratch.store.remove(path)

    def _routes(self, wanted: Sequence[np.ndarray]) -> list[_Route]:
        source = self._source
        return [
            _Route.of(bucket.rows, shares)
            for bucket, shares in zip(source.stored, _shares(source.starts, wanted), strict=True)
            if shares
        ]


class _Route(NamedTuple):
    """Which rows of a bucket go where: to which chunk, at which place in it."""

    pieces: list[Piece]
    rows: np.ndarray
    chunks: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, pieces: list[Piece], shares: Sequence[_Share]) -> _Route:
        chunks = [np.full(len(share.rows), share.chunk, np.int32) for share in shares]
        parts = ([share.rows for share in shares], chunks, [share.places for share in shares])
        return cls(pieces, *(np.concatenate(part) for part in parts))


@dataclass(frozen=True)
class _Send:
    """Write a bucket's rows in the order of the chunks that want them."""

    scratch: Scratch

    def __call__(self, route: _Route) -> list[tuple[int, Piece]]:
        sent, first = [], 0
        with PieceWriter(self.scratch, "sent") as out:
            for table in slabs(self.scratch, route.pieces):
                here = np.flatnonzero((route.rows >= first) & (route.rows < first + table.num_rows))
                mine = take_rows(table.combine_chunks(), route.rows[here] - first)
                first += table.num_rows
                chunks, starts = np.unique(route.chunks[here], return_index=True)
                for chunk, start, end in zip(chunks, starts, [*starts[1:], len(here)], strict=True):
                    places = route.places[here[start:end]]
                    sent.append((int(chunk), out.add(mine.slice(start, end - start), places)))
        return sent
