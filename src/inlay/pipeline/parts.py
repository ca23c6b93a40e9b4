"""Parts: Parquet files that tasks write per split, and that are joined without decoding."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from inlay.errors import ConversionFailedError
from inlay.parquet.splice import ParquetBytes, Splicer
from inlay.parquet.writer import StreamingParquetWriter, WriterSettings, combine_tables, rows_per_bytes
from inlay.storage import LocalStore, Location

__all__ = ["Group", "Joined", "OutFile", "Part", "join_parts", "plan_files", "write_part"]

_SMALL_BYTES = 1 << 20  # a smaller row group with less than half of the usual rows is combined with adjacent ones


class Group(NamedTuple):
    """A row group of a part."""

    part: str
    number: int
    rows: int
    size: int
    memory: int  # bytes of its decoded rows


class Part(NamedTuple):
    """A file that a task wrote; `path` is relative to the location."""

    path: str
    rows: int
    size: int
    groups: list[Group]


@dataclass(frozen=True)
class OutFile:
    """A planned data file: runs of row groups. A run of several row groups becomes one row group."""

    path: str
    runs: list[list[Group]]

    @property
    def rows(self) -> int:
        return sum(group.rows for run in self.runs for group in run)


class Joined(NamedTuple):
    path: str
    rows: int
    size: int


# --------------------------------------------------------------------------------------------------------- writing
def write_part(
    location: Location, path: str, tables: Iterable[pa.Table], schema: pa.Schema, settings: WriterSettings
) -> Part:
    """Write tables to a file of this attempt, in row groups of even size."""
    name = f"{path}.{uuid.uuid4().hex[:8]}.parquet"
    full = location.full(name)
    groups: list[tuple[int, int]] = []  # rows, and bytes in memory
    with location.store.open_write(full) as file, StreamingParquetWriter(file, schema, settings) as writer:
        for table in combine_tables(tables, settings.row_group_size, settings.row_group_bytes):
            step = _even(table.num_rows, min(settings.row_group_size, rows_per_bytes(settings.row_group_bytes, table)))
            rows = [min(step, table.num_rows - start) for start in range(0, table.num_rows, step)]
            size = table.nbytes
            groups += [(count, size * count // table.num_rows) for count in rows]
            writer.write_table(table, step)
    if isinstance(location.store, LocalStore):
        location.store.sync_file(full)
    status = location.store.stat(full)
    size = status.size if status else 0
    total = sum(rows for rows, _ in groups)
    shares = [
        Group(name, number, count, size * count // max(total, 1), memory)
        for number, (count, memory) in enumerate(groups)
    ]
    return Part(name, total, size, shares)


def _even(rows: int, limit: int) -> int:
    """Return the size of row groups that avoids a small last row group."""
    groups = -(-rows // limit)
    return max(1, -(-rows // max(groups, 1)))


# -------------------------------------------------------------------------------------------------------- planning
def plan_files(
    parts: Sequence[Part], directory: str, name: str, max_rows: int, settings: WriterSettings
) -> list[OutFile]:
    """Assign row groups to data files. Number the files only if there are several."""
    files: list[list[list[Group]]] = [[]]
    rows = 0
    for run in _runs([group for part in parts for group in part.groups], settings):
        count = sum(group.rows for group in run)
        if rows + count > max_rows and files[-1]:
            files.append([])
            rows = 0
        files[-1].append(run)
        rows += count
    if len(files) == 1:
        return [OutFile(f"{directory}/{name}.parquet", files[0])]
    return [OutFile(f"{directory}/{name}-{number:05}.parquet", runs) for number, runs in enumerate(files, 1)]


def _runs(groups: Sequence[Group], settings: WriterSettings) -> list[list[Group]]:
    """Combine adjacent small row groups up to the usual size; keep every other row group alone."""
    runs: list[list[Group]] = []
    for group in groups:
        joined = [*runs[-1], group] if runs else []
        if joined and all(_is_small(each, settings) for each in joined) and _fit_together(joined, settings):
            runs[-1].append(group)
        else:
            runs.append([group])
    return runs


def _is_small(group: Group, settings: WriterSettings) -> bool:
    return group.rows * 2 <= settings.row_group_size and group.size < _SMALL_BYTES


def _fit_together(groups: Sequence[Group], settings: WriterSettings) -> bool:
    memory = sum(group.memory for group in groups)
    return sum(group.rows for group in groups) <= settings.row_group_size and memory <= (
        settings.row_group_bytes or memory
    )


# --------------------------------------------------------------------------------------------------------- joining
def join_parts(location: Location, file: OutFile, base: str, stage: str, settings: WriterSettings) -> Joined:
    """Write a data file durably and verify its footer. `base` is any part; it provides the schema."""
    store = location.store
    target = location.full(file.path)
    # An object store shows an object only when it is complete; on disk the complete file is renamed.
    path = location.full(f"{stage}/join-{uuid.uuid4().hex}") if isinstance(store, LocalStore) else target
    with store.open_write(path) as out:
        _splice(location, file, base, out, settings)
    if isinstance(store, LocalStore):
        store.sync_file(path)
        store.move(path, target)
    return check_file(location, file.path, file.rows)


def _splice(location: Location, file: OutFile, base: str, out: object, settings: WriterSettings) -> None:
    opened = _Opened(location)
    splicer = Splicer(out, opened.bytes(base))  # type: ignore[arg-type]
    for run in file.runs:
        if len(run) == 1:
            splicer.copy(opened.bytes(run[0].part), run[0].number)
        else:
            merged = pa.concat_tables(opened.read(group) for group in run)
            sink = pa.BufferOutputStream()
            with StreamingParquetWriter(sink, merged.schema, settings) as writer:
                writer.write_table(merged.combine_chunks(), merged.num_rows)
            splicer.copy(ParquetBytes(sink.getvalue(), "joined row groups"), 0)
    splicer.finish()
    opened.close()


class _Opened:
    """The open part. Parts are read one after the other."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._path = ""
        self._file: object = None
        self._bytes: ParquetBytes | None = None

    def bytes(self, path: str) -> ParquetBytes:
        if self._bytes is None or path != self._path:
            self.close()
            self._file = self._location.store.open_read(self._location.full(path))
            self._path, self._bytes = path, ParquetBytes(self._file, path)
        return self._bytes

    def read(self, group: Group) -> pa.Table:
        with self._location.store.open_arrow(self._location.full(group.part)) as source, pq.ParquetFile(source) as file:
            return file.read_row_group(group.number, use_threads=False)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()  # type: ignore[attr-defined]
        self._file, self._bytes = None, None


def check_file(location: Location, path: str, rows: int) -> Joined:
    """Verify the number of rows of a written file."""
    full = location.full(path)
    with location.store.open_arrow(full) as source, pq.ParquetFile(source) as file:
        found = file.metadata.num_rows
    if found != rows:
        raise ConversionFailedError(f"{location.display(path)!r} has {found:,} rows after {rows:,} rows were written.")
    status = location.store.stat(full)
    return Joined(path, rows, status.size if status else 0)
