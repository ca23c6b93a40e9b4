"""Pure functions that do one file's or one row group's work."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.arrays import bit_equal, replace_rows, take_rows, take_values, whole_array
from inlay.engines.base import Append, Combine, FileEdit, GroupEdit, Pick, Written
from inlay.engines.keys import sortable_values
from inlay.parquet.footers import open_parquet, read_row_group
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused
from inlay.parquet.writer import StreamingParquetWriter, WriterSettings, encode_row_group, rows_within
from inlay.schema import lossless_cast
from inlay.storage import Location

__all__ = [
    "EditedPart",
    "append_rows",
    "combine_files",
    "edit_part",
    "file_settings",
    "join_parts",
    "pick_rows",
    "rewrite_file",
]

TakeRows = Callable[[np.ndarray], pa.Table]
_JUDGED_ROWS = 1000  # as large as the rows after them
# encoded bytes of a row group that are decoded at once; each time costs an object store a request
_PORTION_BYTES = {True: 8 << 20, False: 32 << 20}
MOST_DIFFERING = 20  # rows that a dry run names for each file
MapGroups = Callable[[Callable[[GroupEdit], "EditedGroup"], Sequence[GroupEdit]], Iterator["EditedGroup"]]


@dataclass(slots=True)
class EditedGroup:
    """An edited row group. `changed` columns differ (None: all, since rows are gone); `pieces` are encoded files of
    them, none after a dry run. Replaced rows that differ are numbered as in the edit."""

    group: int
    rows: int
    unchanged: int
    changed: list[str] | None
    pieces: list[tuple[pa.Buffer, list[str]]]
    differing: np.ndarray

    def put(self, splicer: Splicer, raw: ParquetBytes) -> None:
        pieces = [(ParquetBytes(fresh, "the new row group"), columns) for fresh, columns in self.pieces]
        if self.changed is None:
            splicer.replace(raw, self.group, pieces[0][0])
        else:
            splicer.replace_columns(raw, self.group, pieces)


@dataclass(slots=True)
class _Edited:
    table: pa.Table
    changed: list[str]
    same: np.ndarray  # which of the replaced rows

    @property
    def differing(self) -> np.ndarray:
        return np.flatnonzero(~self.same)


def _edit(old: pa.Table, edit: GroupEdit, new: pa.Table) -> _Edited:
    """Replace rows; where others are deleted, only the replaced ones remain, in their order."""
    same = np.ones(len(edit.positions), np.bool_)
    changed, columns = [], []
    whole = len(edit.positions) == old.num_rows
    for name in old.column_names:
        column, values = old.column(name), new.column(name)
        matched = whole_array(column) if whole else take_values(whole_array(column), edit.positions)
        equal = bit_equal(matched, whole_array(values))
        same &= equal
        if edit.keep_others or whole:
            differs = not equal.all()
            changed += [name] if differs else []
            columns.append(
                (whole_array(values) if whole else replace_rows(column, edit.positions, values)) if differs else column
            )
        else:
            changed.append(name)
            columns.append(whole_array(values))
    table = pa.Table.from_arrays(columns, schema=old.schema)
    return _Edited(table, changed, same)


def _fit(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Source rows in a file's own types and order; columns that the source does not have are NULL."""
    columns = [
        lossless_cast(rows.column(f.name), f.type, f.name)
        if f.name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows, f.type)])
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


# -------------------------------------------------------------------------------------------------------- files
class _OpenFile:
    """A data file opened for surgery: its raw bytes for copying, its decoded rows for editing."""

    def __init__(self, location: Location, path: str) -> None:
        self.location, self.path = location, path
        with open_parquet(location, path) as parquet:
            self.metadata, self.schema, self.parquet_schema = (
                parquet.metadata,
                parquet.schema_arrow,
                parquet.schema,
            )
        self.name = location.shown(path)

    def columns_besides(self, names: Sequence[str]) -> list[str] | None:
        """None is all of them, also where pyarrow would take a name for the path to a nested column."""
        every = self.schema.names
        if len(set(every)) < len(every) or any("." in name for name in every):
            return None
        return [name for name in every if name not in names]

    def portions(self, group: int, without: Sequence[str]) -> list[list[str] | None]:
        """The columns in portions of so many bytes that one of them needs little memory; None is all at once."""
        names = self.columns_besides(without)
        if names is None:
            return [None]
        sizes, portion, filled = self._sizes(group), list[str](), 0
        found: list[list[str] | None] = [portion]
        for name in names:
            if filled >= _PORTION_BYTES[self.location.store.is_local]:
                portion, filled = [], 0
                found.append(portion)
            portion.append(name)
            filled += sizes[name]
        return found

    def _sizes(self, group: int) -> Counter[str]:
        """Bytes of each top-level column, encoded but not compressed."""
        chunks = self.metadata.row_group(group)
        sizes: Counter[str] = Counter()
        for leaf in range(chunks.num_columns):
            chunk = chunks.column(leaf)
            sizes[chunk.path_in_schema.split(".", 1)[0]] += chunk.total_uncompressed_size
        return sizes

    def read_group(self, group: int, columns: list[str] | None = None) -> pa.Table:
        return read_row_group(self.location, self.path, self.metadata, group, columns)

    @contextlib.contextmanager
    def raw(self) -> Iterator[ParquetBytes]:
        with self.location.store.open_read(self.location.full(self.path)) as file:
            yield ParquetBytes(file, self.name)

    def settings(self) -> WriterSettings:
        """Settings like the file's own; pyarrow's defaults where its footer is beyond us."""
        rows = max((self.metadata.row_group(g).num_rows for g in range(self.metadata.num_row_groups)), default=0)
        try:
            with self.raw() as raw:
                if raw.num_row_groups:
                    return WriterSettings.like(raw.chunk_settings(0), self.parquet_schema, rows)
        except SpliceRefused:
            pass
        return WriterSettings(row_group_size=max(1, rows))


def rewrite_file(
    location: Location, edit: FileEdit, take: TakeRows, map_groups: MapGroups, *, dry_run: bool = False
) -> Written:
    """Apply an edit: by surgery where the file's own schema stays, else by writing every row group anew."""
    file = _OpenFile(location, edit.path)
    if edit.schema is None:
        try:
            return _splice(file, edit, take, map_groups, dry_run=dry_run)
        except SpliceRefused:
            if not dry_run:
                location.store.remove(edit.stage)
    return _rewrite(file, edit, take, dry_run=dry_run)


def _splice(file: _OpenFile, edit: FileEdit, take: TakeRows, map_groups: MapGroups, *, dry_run: bool) -> Written:
    with file.raw() as raw:

        def edit_group(group: GroupEdit) -> EditedGroup:
            return _edit_group(file, raw, group, take, edit.equal, dry_run=dry_run)

        edited = map_groups(edit_group, [group for group in edit.groups if len(group.positions)])
        assembly = _Assembly(file, raw, None if dry_run else edit.stage)
        with contextlib.closing(assembly):
            wanted = {group.group: group for group in edit.groups}
            for number in range(file.metadata.num_row_groups):
                group = wanted.get(number)
                if group is None:
                    assembly.copy(number)
                elif len(group.positions):
                    assembly.take_in(next(edited))
                else:
                    assembly.drop()
            return assembly.finish()


@dataclass(slots=True)
class EditedPart:
    """Some row groups of a file, edited: those that differ are a file of their own, `groups` says which with how
    many rows; `dropped` ones are gone."""

    stage: str
    groups: dict[int, int]
    dropped: list[int]
    unchanged: int
    bytes_copied: int = 0


def edit_part(location: Location, edit: FileEdit, take: TakeRows) -> EditedPart:
    """Edit the row groups that `edit` names, and leave the others to `join_parts`; may refuse as surgery does."""
    file = _OpenFile(location, edit.path)
    part = EditedPart(edit.stage, {}, [], 0)
    with file.raw() as raw, location.store.open_write(edit.stage) as out:
        splicer = Splicer(out, raw)
        for group in edit.groups:
            if not len(group.positions):
                part.dropped.append(group.group)
                continue
            edited = _edit_group(file, raw, group, take, edit.equal, dry_run=False)
            part.unchanged += edited.unchanged
            if edited.changed != []:
                edited.put(splicer, raw)
                part.groups[group.group] = edited.rows
        splicer.finish()
        part.bytes_copied = splicer.bytes_copied
    return part


def join_parts(location: Location, path: str, stage: str, parts: Sequence[EditedPart]) -> Written:
    """One file out of its edited parts and what they left alone; nothing is decoded."""
    file = _OpenFile(location, path)
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(file.raw())
        opened = [stack.enter_context(location.store.open_read(part.stage)) for part in parts]
        sources = [ParquetBytes(out, part.stage) for out, part in zip(opened, parts, strict=True)]
        found = {
            g: (s, at, n) for s, p in zip(sources, parts, strict=True) for at, (g, n) in enumerate(p.groups.items())
        }
        dropped = {group for part in parts for group in part.dropped}
        assembly = stack.enter_context(contextlib.closing(_Assembly(file, raw, stage)))
        for number in range(file.metadata.num_row_groups):
            if number in found:
                assembly.take_over(*found[number])
            elif number in dropped:
                assembly.drop()
            else:
                assembly.copy(number)
        written = assembly.finish()
    written.unchanged = sum(part.unchanged for part in parts)
    written.bytes_copied += sum(part.bytes_copied for part in parts)
    return written


def _edit_group(
    file: _OpenFile, raw: ParquetBytes, edit: GroupEdit, take: TakeRows, equal: Sequence[str], *, dry_run: bool
) -> EditedGroup:
    before = file.metadata.row_group(edit.group).num_rows
    stays_whole = edit.keep_others or len(edit.positions) == before
    new = take(edit.sources)
    settings: WriterSettings | None = None
    same = np.ones(len(edit.positions), np.bool_)
    changed: list[str] = []
    pieces = []
    for names in file.portions(edit.group, equal if edit.keep_others else []) if stays_whole else [None]:
        old = file.read_group(edit.group, names)
        edited = _edit(old, edit, _fit(new, old.schema))
        same &= edited.same
        changed += edited.changed
        if edited.changed and not dry_run:
            settings = settings or WriterSettings.like(raw.chunk_settings(edit.group), file.parquet_schema, before)
            pieces.append((encode_row_group(edited.table.select(edited.changed), settings), edited.changed))
    return EditedGroup(
        edit.group,
        before if stays_whole else len(edit.positions),
        int(same.sum()),
        changed if stays_whole else None,
        pieces,
        np.flatnonzero(~same)[:MOST_DIFFERING],
    )


class _Assembly:
    """The new file, begun only when the first row group really differs."""

    def __init__(self, file: _OpenFile, raw: ParquetBytes, stage: str | None) -> None:
        self.file, self.raw, self.stage = file, raw, stage
        self.out: BinaryIO | None = None
        self.splicer: Splicer | None = None
        self.kept: list[int] = []
        self.rows = self.unchanged = self.rewritten = self.taken_over = self.copyable = 0
        self.differing: dict[int, np.ndarray] = {}
        self.changed = False

    def copy(self, group: int) -> None:
        self.rows += self.file.metadata.row_group(group).num_rows
        if self.splicer is None:
            self.kept.append(group)
        else:
            self.splicer.copy(self.raw, group)

    def take_in(self, group: EditedGroup) -> None:
        self.unchanged += group.unchanged
        if group.changed == []:
            self.copy(group.group)
            return
        self._begin()
        self.rows += group.rows
        self.rewritten += 1
        _note(self.differing, group.group, group.differing)
        if self.splicer is not None:
            group.put(self.splicer, self.raw)
        elif group.changed is not None:
            self.copyable += self.raw.copyable_bytes(group.group, group.changed)

    def take_over(self, source: ParquetBytes, group: int, rows: int) -> None:
        """A row group that was edited already."""
        self._begin()
        self.rows += rows
        self.rewritten += 1
        if self.splicer is not None:
            before = self.splicer.bytes_copied
            self.splicer.copy(source, group)
            self.taken_over += self.splicer.bytes_copied - before

    def drop(self) -> None:
        self._begin()
        self.rewritten += 1

    def _begin(self) -> None:
        self.changed = True
        if self.stage is not None and self.splicer is None:
            self.out = self.file.location.store.open_write(self.stage)
            self.splicer = Splicer(self.out, self.raw)
            for group in self.kept:
                self.splicer.copy(self.raw, group)

    def finish(self) -> Written:
        if not self.changed:
            return Written(None, self.rows, unchanged=self.unchanged)
        if self.splicer is None or self.out is None:
            copyable = self.copyable + sum(map(self.raw.copyable_bytes, self.kept))
            return Written("", self.rows, 0, self.unchanged, copyable, self.rewritten, self.differing)
        self.splicer.finish()
        self.out.close()
        copied = self.splicer.bytes_copied - self.taken_over
        return Written(self.stage or "", self.rows, self.splicer.bytes_written, self.unchanged, copied, self.rewritten)

    def close(self) -> None:
        if self.out is not None:
            self.out.close()


def _note(found: dict[int, np.ndarray], group: int, differing: np.ndarray) -> None:
    """So many rows are named for a file, not more."""
    left = MOST_DIFFERING - sum(map(len, found.values()))
    if left > 0 and len(differing):
        found[group] = differing[:left]


def _rewrite(file: _OpenFile, edit: FileEdit, take: TakeRows, *, dry_run: bool) -> Written:
    """Decode and encode every row group; for files that surgery refuses or whose schema changes."""
    schema = edit.schema or file.schema
    wanted = {group.group: group for group in edit.groups}
    rows = unchanged = rewritten = 0
    differing: dict[int, np.ndarray] = {}
    with contextlib.ExitStack() as stack:
        writer = None if dry_run else _staged_writer(stack, file, edit.stage, schema)
        for number in range(file.metadata.num_row_groups):
            group = wanted.get(number)
            table = _fit(file.read_group(number), schema)
            if group is not None:
                new = _fit(take(group.sources), schema) if len(group.sources) else schema.empty_table()
                result = _edit(table, group, new)
                unchanged += int(result.same.sum())
                _note(differing, number, result.differing)
                rewritten += bool(result.changed) or not len(group.positions)
                table = result.table
            rows += table.num_rows
            if writer is not None and table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
    if not rewritten:
        if not dry_run:
            file.location.store.remove(edit.stage)
        return Written(None, rows, unchanged=unchanged)
    size = 0 if dry_run else _size(file.location, edit.stage)
    return Written(edit.stage, rows, size, unchanged, 0, rewritten, differing)


def _staged_writer(
    stack: contextlib.ExitStack, file: _OpenFile, stage: str, schema: pa.Schema
) -> StreamingParquetWriter:
    out = stack.enter_context(file.location.store.open_write(stage))
    return stack.enter_context(StreamingParquetWriter(out, schema, file.settings()))


def _size(location: Location, path: str) -> int:
    stat = location.store.stat(path)
    return 0 if stat is None else stat.size


def append_rows(location: Location, append: Append, take: TakeRows) -> Written:
    """Write source rows as a new file, a row group at a time."""
    with (
        location.store.open_write(append.stage) as out,
        StreamingParquetWriter(out, append.schema, append.settings) as writer,
    ):
        for table in _row_groups(append, take):
            writer.write_table(table)
    return Written(append.stage, len(append.rows), _size(location, append.stage))


def _row_groups(append: Append, take: TakeRows) -> Iterator[pa.Table]:
    """Source rows in row groups of the size asked for, or smaller ones where rows are large."""
    rows, most = append.rows, append.settings.row_group_size
    while len(rows):
        count = min(most, rows_within(append.settings.row_group_bytes, take(rows[:_JUDGED_ROWS])))
        yield _fit(take(rows[:count]), append.schema)
        rows = rows[count:]


def combine_files(location: Location, combine: Combine) -> Written:
    """Write several files as one; row groups are filled up on the way, and sorted as a whole if asked for."""
    with (
        location.store.open_write(combine.stage) as out,
        StreamingParquetWriter(out, combine.schema, combine.settings) as writer,
    ):
        for table in _regrouped(_tables(location, combine), combine):
            writer.write_table(table)
    return Written(combine.stage, writer.rows, _size(location, combine.stage))


def _tables(location: Location, combine: Combine) -> Iterator[pa.Table]:
    for path in combine.paths:
        file = _OpenFile(location, path)
        for group in range(file.metadata.num_row_groups):
            yield _fit(file.read_group(group), combine.schema)


def _regrouped(tables: Iterator[pa.Table], combine: Combine) -> Iterator[pa.Table]:
    if combine.sort_by:
        whole = pa.concat_tables([combine.schema.empty_table(), *tables])
        by = pa.table({name: sortable_values(whole.column(name)) for name in combine.sort_by})
        order = pc.sort_indices(by, [(name, "ascending") for name in combine.sort_by])
        yield take_rows(whole, order.to_numpy().astype(np.int64))
        return
    waiting: list[pa.Table] = []
    rows = size = 0
    most = combine.settings.row_group_bytes
    for table in tables:
        waiting.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if most is not None and size >= most and rows < combine.settings.row_group_size:
            yield pa.concat_tables(waiting)
            waiting, rows, size = [], 0, 0
        elif rows >= combine.settings.row_group_size:
            joined = pa.concat_tables(waiting)
            full = rows - rows % combine.settings.row_group_size
            yield joined.slice(0, full)
            rest = joined.slice(full)
            waiting, rows, size = [rest], rows - full, rest.nbytes
    if rows:
        yield pa.concat_tables(waiting)


def pick_rows(location: Location, pick: Pick, schema: pa.Schema) -> pa.Table:
    """Single rows of a row group."""
    table = _fit(_OpenFile(location, pick.path).read_group(pick.group), schema)
    positions = pick.positions
    if pick.others:
        positions = np.setdiff1d(np.arange(table.num_rows), positions)[: pick.others]
    columns = [take_values(whole_array(column), positions) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=schema)


def file_settings(location: Location, path: str) -> tuple[WriterSettings, int]:
    """How a file was written, and how many row groups it has."""
    file = _OpenFile(location, path)
    return file.settings(), int(file.metadata.num_row_groups)
