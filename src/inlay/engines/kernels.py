"""Pure functions over Arrow data that do one file's or one row group's work."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.base import Append, Combine, FileEdit, GroupEdit, Pick, Written
from inlay.engines.keys import sortable_values
from inlay.engines.source import take_rows
from inlay.parquet.footers import open_parquet, read_row_group
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused
from inlay.parquet.writer import StreamingParquetWriter, WriterSettings, encode_row_group, rows_within
from inlay.schema import lossless_cast, storage_type
from inlay.storage import Location

__all__ = [
    "EditedPart",
    "append_rows",
    "bit_equal",
    "combine_files",
    "edit_part",
    "file_settings",
    "join_parts",
    "pick_rows",
    "replace_rows",
    "rewrite_file",
]

TakeRows = Callable[[np.ndarray], pa.Table]
_JUDGED_ROWS = 1000  # as large as the rows after them
_GATHERED_BYTES = 1 << 30
MOST_DIFFERING = 20  # rows that a dry run names for each file
_NOTHING = np.empty(0, np.int64)
MapGroups = Callable[[Callable[[GroupEdit], "EditedGroup"], Sequence[GroupEdit]], Iterator["EditedGroup"]]


# ------------------------------------------------------------------------------------------------ column kernels
def replace_rows(column: pa.ChunkedArray, positions: np.ndarray, values: pa.ChunkedArray) -> pa.Array:
    """The column with the rows at `positions` (ascending) replaced by `values`."""
    array, fresh = _plain(column), _plain(values)
    if _has_mask_kernel(array.type) and not _is_text_to_gather(array, fresh):
        mask = np.zeros(len(array), np.bool_)
        mask[positions] = True
        return pc.replace_with_mask(array, pa.array(mask), fresh)
    rows = np.arange(len(array))
    rows[positions] = np.arange(len(array), len(array) + len(positions))
    return _take(_concat([array, fresh]), rows)


def _has_mask_kernel(type_: pa.DataType) -> bool:
    """Arrow replaces in place for flat types only."""
    return not (
        pa.types.is_nested(type_)
        or pa.types.is_dictionary(type_)
        or pa.types.is_duration(type_)
        or pa.types.is_string_view(type_)
        or pa.types.is_binary_view(type_)
        or isinstance(type_, pa.BaseExtensionType)
        or (pa.types.is_decimal(type_) and type_.bit_width < 128)
    )


def _is_text_to_gather(array: pa.Array, fresh: pa.Array) -> bool:
    """Values of any length are replaced by a mask one by one; gathered, they cost a third. Offsets of 32 bits must
    hold both together."""
    if array.type in (pa.large_string(), pa.large_binary()):
        return True
    return array.type in (pa.string(), pa.binary()) and bool(array.nbytes + fresh.nbytes <= _GATHERED_BYTES)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    return _concat(column.chunks) if column.num_chunks != 1 else column.chunk(0)


def _concat(arrays: Sequence[pa.Array]) -> pa.Array:
    if arrays and pa.types.is_dictionary(arrays[0].type):
        return (
            _plain(pa.chunked_array(arrays).unify_dictionaries())
            if len(arrays) > 1 and not _share(arrays)
            else _join(arrays)
        )
    return _join(arrays)


def _share(arrays: Sequence[pa.Array]) -> bool:
    first = arrays[0].dictionary
    return all(array.dictionary.equals(first) for array in arrays[1:])


def _join(arrays: Sequence[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


# Arrow cannot take from, filter or compare views
_TAKEABLE = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def _take(array: pa.Array, rows: np.ndarray) -> pa.Array:
    if array.type in _TAKEABLE:
        return array.cast(_TAKEABLE[array.type]).take(pa.array(rows)).cast(array.type)
    return array.take(pa.array(rows))


def bit_equal(left: pa.Array, right: pa.Array) -> np.ndarray:
    """Row by row: are two arrays of one type the same to the bit, NULLs and NaNs included?"""
    left, right = _comparable(left), _comparable(right)
    if not pa.types.is_nested(left.type) and left.equals(right):  # the usual case, at the speed of memory
        return np.ones(len(left), np.bool_)
    nulls = np.asarray(left.is_null()), np.asarray(right.is_null())
    same: np.ndarray = nulls[0] == nulls[1]
    both = same & ~nulls[0]
    if both.any():
        same[both] = _equal_values(*(side if both.all() else side.filter(pa.array(both)) for side in (left, right)))
    return same


def _comparable(array: pa.Array) -> pa.Array:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.cast(storage_type(array.type))
    type_ = array.type
    if type_ in _TAKEABLE:
        return array.cast(_TAKEABLE[type_])
    if pa.types.is_floating(type_):
        bits = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[type_.bit_width]
        return array.view(bits)
    if pa.types.is_decimal(type_) and type_.bit_width < 128:
        return array.cast(pa.decimal128(type_.precision, type_.scale))
    return array


def _equal_values(left: pa.Array, right: pa.Array) -> np.ndarray:
    type_ = left.type
    if pa.types.is_null(type_):
        return np.ones(len(left), np.bool_)
    if pa.types.is_struct(type_):
        same = np.ones(len(left), np.bool_)
        for mine, theirs in zip(left.flatten(), right.flatten(), strict=True):
            same &= bit_equal(mine, theirs)
        return same
    if pa.types.is_nested(type_):
        return _equal_lists(left, right)
    return np.asarray(pc.equal(left, right))


def _equal_lists(left: pa.Array, right: pa.Array) -> np.ndarray:
    mine, theirs = _items(left), _items(right)
    same: np.ndarray = mine[1] == theirs[1]
    if not same.all():
        mine, theirs = (_items(side.filter(pa.array(same))) for side in (left, right))
    values = bit_equal(mine[0], theirs[0])
    owners = np.repeat(np.arange(len(mine[1])), mine[1])
    differing = np.bincount(owners[~values], minlength=len(mine[1])) > 0
    same[same] = ~differing
    return same


def _items(lists: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The values of all lists in a row, and how many each has."""
    if pa.types.is_map(lists.type):
        lengths = np.diff(np.asarray(lists.offsets)).astype(np.int64)
        entries = pa.StructArray.from_arrays([lists.keys, lists.items], ["key", "value"])
        return entries.slice(lists.offsets[0].as_py(), int(lengths.sum())), lengths
    return lists.flatten(), np.asarray(pc.list_value_length(lists)).astype(np.int64)


# --------------------------------------------------------------------------------------------------- row groups
@dataclass(slots=True)
class EditedGroup:
    """An edited row group: `fresh` is its encoded file (None when nothing differs); `columns` None means all.
    Replaced rows that differ are numbered as in the edit."""

    group: int
    rows: int
    unchanged: int
    fresh: pa.Buffer | None = None
    columns: list[str] | None = None
    differing: np.ndarray = field(default_factory=lambda: _NOTHING)


@dataclass(slots=True)
class _Edited:
    table: pa.Table
    changed: list[str]
    unchanged: int
    differing: np.ndarray


def _edit(old: pa.Table, edit: GroupEdit, new: pa.Table) -> _Edited:
    """Replace rows; where others are deleted, only the replaced ones remain, in their order."""
    same = np.ones(len(edit.positions), np.bool_)
    changed, columns = [], []
    whole = len(edit.positions) == old.num_rows
    for name in old.column_names:
        column, values = old.column(name), new.column(name)
        matched = _plain(column) if whole else _take(_plain(column), edit.positions)
        equal = bit_equal(matched, _plain(values))
        same &= equal
        if edit.keep_others or whole:
            differs = not equal.all()
            changed += [name] if differs else []
            columns.append(
                (_plain(values) if whole else replace_rows(column, edit.positions, values)) if differs else column
            )
        else:
            changed.append(name)
            columns.append(_plain(values))
    table = pa.Table.from_arrays(columns, schema=old.schema)
    return _Edited(table, changed, int(same.sum()), np.flatnonzero(~same)[:MOST_DIFFERING])


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
        if not names or len(set(every)) < len(every) or any("." in name for name in every):
            return None
        return [name for name in every if name not in names]

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
            if edited.fresh is not None:
                splicer.replace(raw, group.group, ParquetBytes(edited.fresh, "the new row group"), edited.columns)
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
    old = file.read_group(edit.group, file.columns_besides(equal) if edit.keep_others else None)
    result = _edit(old, edit, _fit(take(edit.sources), old.schema))
    if not result.changed:
        return EditedGroup(edit.group, old.num_rows, result.unchanged)
    columns = None if result.table.num_rows != old.num_rows else result.changed
    if dry_run:
        fresh = pa.py_buffer(b"")
        return EditedGroup(edit.group, result.table.num_rows, result.unchanged, fresh, columns, result.differing)
    settings = WriterSettings.like(raw.chunk_settings(edit.group), file.parquet_schema, old.num_rows)
    table = result.table if columns is None else result.table.select(columns)
    return EditedGroup(edit.group, table.num_rows, result.unchanged, encode_row_group(table, settings), columns)


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
        if group.fresh is None:
            self.copy(group.group)
            return
        self._begin()
        self.rows += group.rows
        self.rewritten += 1
        _note(self.differing, group.group, group.differing)
        if self.splicer is not None:
            self.splicer.replace(self.raw, group.group, ParquetBytes(group.fresh, "the new row group"), group.columns)
        elif group.columns is not None:
            self.copyable += self.raw.copyable_bytes(group.group, group.columns)

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
                unchanged += result.unchanged
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
    columns = [_take(_plain(column), positions) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=schema)


def file_settings(location: Location, path: str) -> tuple[WriterSettings, int]:
    """How a file was written, and how many row groups it has."""
    file = _OpenFile(location, path)
    return file.settings(), int(file.metadata.num_row_groups)
