"""The edits of one data file: replaces and deletes rows, and copies row groups and columns that stay equal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from inlay.arrays import to_numpy
from inlay.engines.absence import absence_column
from inlay.engines.base import NO_ROWS, FileEdit, GroupEdit, RowNumbers, StageResult, TakeRows
from inlay.engines.columns import (
    Mask,
    all_bits_equal,
    bit_equal,
    cast_rows,
    filter_rows,
    filter_values,
    replace_rows,
    take_rows,
    take_values,
)
from inlay.engines.keys import contiguous
from inlay.engines.open_file import OpenFile, OpenGroup, file_size
from inlay.parquet.reshape import Shape, reshape
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused
from inlay.parquet.writer import StreamingParquetWriter, WriterSettings, encode_row_group
from inlay.schema import lossless_cast
from inlay.storage import Location

__all__ = ["EditedPart", "edit_part", "join_parts", "replacement_rows", "rewrite_file"]

MapGroups = Callable[[Callable[[GroupEdit], "EditedGroup"], Sequence[GroupEdit]], Iterator["EditedGroup"]]

MAX_DIFFERING = 20  # rows per data file that a dry run records


def rewrite_file(
    location: Location, edit: FileEdit, take: TakeRows, map_groups: MapGroups, *, dry_run: bool = False
) -> StageResult:
    """Apply an edit: splice the file, or rewrite it if its schema changes."""
    file = OpenFile(location, edit.path, at_once=not dry_run and not edit.is_mostly_copied)
    if edit.schema is not None and edit.widens and edit.schema.names == file.schema.names:
        file.shape = Shape.of(file.schema, edit.schema, {})
    if edit.schema is None or file.shape is not None:
        try:
            return _splice(file, edit, take, map_groups, dry_run=dry_run)
        except SpliceRefused:
            if not dry_run:
                location.store.remove(edit.stage)
    return _rewrite(file, edit, take, dry_run=dry_run)


@dataclass(slots=True)
class EditedGroup:
    """An edited row group.

    `changed` are the columns that differ, or None if rows were deleted. `pieces` are their encoded columns, empty in a
    dry run. `differing` are indexes of the replaced rows that differ.
    """

    group: int
    rows: int
    unchanged: int
    changed: list[str] | None
    pieces: list[tuple[pa.Buffer, list[str]]]
    differing: RowNumbers

    def write(self, splicer: Splicer, raw: ParquetBytes) -> None:
        pieces = [(ParquetBytes(fresh, "the new row group"), columns) for fresh, columns in self.pieces]
        if self.changed is None:
            splicer.replace(raw, self.group, pieces[0][0])
        else:
            splicer.replace_columns(raw, self.group, pieces)


@dataclass(slots=True)
class EditedPart:
    """Edited row groups of a file. `groups` maps those that differ to their number of rows."""

    stage: str
    groups: dict[int, int]
    dropped: list[int]
    unchanged: int
    bytes_copied: int = 0


def edit_part(location: Location, edit: FileEdit, take: TakeRows) -> EditedPart:
    """Edit the row groups that `edit` names, for `join_parts`. Raises SpliceRefused."""
    file = OpenFile(location, edit.path)
    part = EditedPart(edit.stage, {}, [], 0)
    with file.raw() as raw, location.store.open_write(edit.stage) as out:
        splicer = Splicer(out, raw)
        for group in edit.groups:
            if not file.rows_left(group):
                part.dropped.append(group.group)
                continue
            edited = _edit_group(file, raw, group, take, edit.equal, dry_run=False)
            part.unchanged += edited.unchanged
            if edited.changed != []:
                edited.write(splicer, raw)
                part.groups[group.group] = edited.rows
        splicer.finish()
        part.bytes_copied = splicer.bytes_copied
    return part


def join_parts(location: Location, path: str, stage: str, parts: Sequence[EditedPart]) -> StageResult:
    """Join the edited parts of a file with its untouched row groups, without decoding them."""
    file = OpenFile(location, path)
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
                assembly.add_encoded(*found[number])
            elif number in dropped:
                assembly.drop()
            else:
                assembly.copy(number)
        result = assembly.finish()
    result.unchanged = sum(part.unchanged for part in parts)
    result.bytes_copied += sum(part.bytes_copied for part in parts)
    return result


def _splice(file: OpenFile, edit: FileEdit, take: TakeRows, map_groups: MapGroups, *, dry_run: bool) -> StageResult:
    with file.raw() as raw:

        def edit_group(group: GroupEdit) -> EditedGroup:
            return _edit_group(file, raw, group, take, edit.equal, dry_run=dry_run)

        edits = {group.group: group for group in edit.groups}
        if file.widened:  # in every row group
            groups = range(file.metadata.num_row_groups)
            edits = {group: edits.get(group) or GroupEdit(group, NO_ROWS, NO_ROWS) for group in groups}
        edited = map_groups(edit_group, [group for group in edits.values() if file.rows_left(group)])
        base = raw if file.shape is None else _reshaped(file, raw, file.shape)
        with contextlib.closing(_Assembly(file, base, None if dry_run else edit.stage)) as assembly:
            for number in range(file.metadata.num_row_groups):
                group = edits.get(number)
                if group is None:
                    assembly.copy(number)
                elif file.rows_left(group):
                    assembly.add_edited(next(edited))
                else:
                    assembly.drop()
            return assembly.finish()


def _reshaped(file: OpenFile, raw: ParquetBytes, shape: Shape) -> ParquetBytes:
    settings = file.settings()
    settings.require_one_kind_of_timestamps(shape.after, shape.origins)
    template = encode_row_group(shape.encoded_schema.empty_table(), settings)
    return reshape(raw, shape, ParquetBytes(template, "the new columns"))


def _edit_group(
    file: OpenFile, raw: ParquetBytes, edit: GroupEdit, take: TakeRows, equal: Sequence[str], *, dry_run: bool
) -> EditedGroup:
    before = file.metadata.row_group(edit.group).num_rows
    left = edit.rows_left(before)
    keeps_rows = left == before
    new = take(edit.sources) if len(edit.sources) else None
    # A column that the source lacks keeps its values.
    names = set(file.schema.names)
    missing = (names if keeps_rows else set()) if new is None else names - set(new.column_names)
    without = {*missing, *equal} - set(file.widened)
    texts = file.small_dictionaries(raw, edit.group)
    # Few rows are faster to replace in a dictionary, and many in the text.
    open_group = partial(file.open_group, edit.group, texts, as_text=2 * len(edit.positions) > before)
    if dry_run:
        differing, same = _compare(file, open_group, edit, new, without)
        differing = list(dict.fromkeys([*differing, *file.widened]))
        first = np.flatnonzero(~same)[:MAX_DIFFERING]
        return EditedGroup(edit.group, left, int(same.sum()), differing if keeps_rows else None, [], first)
    same = np.ones(len(edit.positions), np.bool_)
    changed: list[str] = []
    pieces = []
    with open_group() as opened:
        for batch in file.column_batches(edit.group, without) if keeps_rows else [None]:
            old = opened.read(batch)
            edited = _edit(old, edit, new)
            same &= edited.same
            encoded = [name for name in old.column_names if name in {*edited.changed, *file.widened}]
            changed += encoded
            if encoded:
                settings = WriterSettings.like(raw, edit.group, file.parquet_schema, before)
                pieces.append((encode_row_group(edited.table.select(encoded), settings), encoded))
    return EditedGroup(
        edit.group,
        left,
        int(same.sum()),
        changed if keeps_rows else None,
        pieces,
        np.flatnonzero(~same)[:MAX_DIFFERING],
    )


def _compare(
    file: OpenFile,
    open_group: Callable[[], OpenGroup],
    edit: GroupEdit,
    new: pa.Table | None,
    without: Collection[str],
) -> tuple[list[str], Mask]:
    """Return which columns differ in the replaced rows, and which of these rows are equal in all columns.

    Once every row differs in some column, a further column is only decoded up to its first difference.
    """
    same = np.ones(len(edit.positions), np.bool_)
    changed: list[str] = []
    if new is None:
        return changed, same
    with open_group() as opened:
        for names in file.columns_to_compare(edit.group, without):
            if names is None or len(names) > 1 or same.any():
                old = _rows_at(opened.read(names), edit.positions)
                changed += _compare_columns(old, replacement_rows(old, new), same)
            elif _differs(opened, edit, names, new):
                changed += names
    return changed, same


def _differs(opened: OpenGroup, edit: GroupEdit, names: list[str], new: pa.Table) -> bool:
    first = 0
    for old in opened.batches(names):
        low, high = np.searchsorted(edit.positions, [first, first + old.num_rows])
        if low < high:
            found = _rows_at(old, edit.positions[low:high] - first)
            fresh = replacement_rows(found, new.slice(low, high - low))
            if _compare_columns(found, fresh, np.zeros(high - low, np.bool_)):
                return True
        first += old.num_rows
    return False


def _rows_at(table: pa.Table, positions: RowNumbers) -> pa.Table:
    if len(positions) == table.num_rows:
        return table
    if 2 * len(positions) < table.num_rows:
        return take_rows(table, positions)
    mask = np.zeros(table.num_rows, np.bool_)
    mask[positions] = True
    return filter_rows(table, mask)


def replacement_rows(old: pa.Table, new: pa.Table) -> pa.Table:
    """Return the rows that replace `old`: source rows in its columns and types.

    A column or a field that the source lacks keeps its values.
    """
    present = set(new.column_names)
    columns = []
    for field, column in zip(old.schema, old.columns, strict=True):
        if field.name in present:
            values = lossless_cast(new.column(field.name), field.type, field.name)
            hidden = absence_column(field.name)
            columns.append(_with_kept_cells(column, values, new.column(hidden)) if hidden in present else values)
        else:
            columns.append(column)
    return pa.Table.from_arrays(columns, schema=old.schema)


def _with_kept_cells(old: pa.ChunkedArray, new: pa.ChunkedArray, absent: pa.ChunkedArray) -> pa.ChunkedArray:
    rows = np.flatnonzero(~to_numpy(absent))
    if len(rows) == len(new):
        return new
    values = pa.chunked_array([take_values(contiguous(new), rows)], new.type)
    return pa.chunked_array([replace_rows(old, rows, values)], old.type)


def _compare_columns(old: pa.Table, new: pa.Table, same: Mask) -> list[str]:
    """Return which columns differ, and clear the differing rows in `same`."""
    changed = []
    for name, left, right in zip(old.column_names, old.columns, new.columns, strict=True):
        arrays = contiguous(left), contiguous(right)
        if same.any():
            equal = bit_equal(*arrays)
            same &= equal
            changed += [] if equal.all() else [name]
        elif not all_bits_equal(*arrays):
            changed.append(name)
    return changed


@dataclass(slots=True)
class _EditedTable:
    table: pa.Table
    changed: list[str]
    same: Mask  # of the replaced rows


def _edit(old: pa.Table, edit: GroupEdit, rows: pa.Table | None) -> _EditedTable:
    """Replace rows with the source `rows`, and delete rows."""
    same = np.ones(len(edit.positions), np.bool_)
    found = _rows_at(old, edit.positions)
    new = found if rows is None else replacement_rows(found, rows)
    changed = _compare_columns(found, new, same) if len(same) else []
    left = edit.rows_left(old.num_rows)
    if left == len(edit.positions):
        columns = [contiguous(column) for column in new.columns]
    else:
        columns = [
            replace_rows(column, edit.positions, values)
            if name in changed
            else (contiguous(column) if len(edit.deleted) else column)
            for name, column, values in zip(old.column_names, old.columns, new.columns, strict=True)
        ]
        if len(edit.deleted):
            kept = np.ones(old.num_rows, np.bool_)
            kept[edit.deleted] = False
            columns = [filter_values(column, kept) for column in columns]
    if left < old.num_rows:
        changed = list(old.column_names)
    return _EditedTable(pa.Table.from_arrays(columns, schema=old.schema), changed, same)


class _Assembly:
    """The staged file of a splice. It is created when the first row group differs."""

    def __init__(self, file: OpenFile, raw: ParquetBytes, stage: str | None) -> None:
        self.file, self.raw, self.stage = file, raw, stage
        self.out: BinaryIO | None = None
        self.splicer: Splicer | None = None
        self.kept: list[int] = []  # row groups to copy once the file exists
        self.rows = self.unchanged = self.rewritten = self.encoded_bytes = self.copyable = 0
        self.differing: dict[int, RowNumbers] = {}
        self.changed = False

    def copy(self, group: int) -> None:
        self.rows += self.file.metadata.row_group(group).num_rows
        if self.splicer is None:
            self.kept.append(group)
        else:
            self.splicer.copy(self.raw, group)

    def add_edited(self, group: EditedGroup) -> None:
        self.unchanged += group.unchanged
        if group.changed == []:
            self.copy(group.group)
            return
        self._begin()
        self.rows += group.rows
        self.rewritten += 1
        _record_differing(self.differing, group.group, group.differing)
        if self.splicer is not None:
            group.write(self.splicer, self.raw)
        elif group.changed is not None:
            self.copyable += self.raw.copyable_bytes(group.group, group.changed)

    def add_encoded(self, source: ParquetBytes, group: int, rows: int) -> None:
        """Add a row group that `edit_part` wrote."""
        self._begin()
        self.rows += rows
        self.rewritten += 1
        if self.splicer is not None:
            before = self.splicer.bytes_copied
            self.splicer.copy(source, group)
            self.encoded_bytes += self.splicer.bytes_copied - before

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

    def finish(self) -> StageResult:
        if not self.changed:
            return StageResult(None, self.rows, unchanged=self.unchanged)
        if self.splicer is None or self.out is None:
            copyable = self.copyable + sum(map(self.raw.copyable_bytes, self.kept))
            return StageResult("", self.rows, 0, self.unchanged, copyable, self.rewritten, self.differing)
        self.splicer.finish()
        self.out.close()
        copied, content = self.splicer.bytes_copied - self.encoded_bytes, self.splicer.content
        return StageResult(
            self.stage or "", self.rows, content.size, self.unchanged, copied, self.rewritten, content=content
        )

    def close(self) -> None:
        if self.out is not None:
            self.out.close()


def _record_differing(found: dict[int, RowNumbers], group: int, differing: RowNumbers) -> None:
    """Record differing rows, at most `MAX_DIFFERING` per file."""
    left = MAX_DIFFERING - sum(map(len, found.values()))
    if left > 0 and len(differing):
        found[group] = differing[:left]


def _rewrite(file: OpenFile, edit: FileEdit, take: TakeRows, *, dry_run: bool) -> StageResult:
    """Decode and encode every row group of a file that cannot be spliced."""
    schema = edit.schema or file.schema
    edits = {group.group: group for group in edit.groups}
    rows = unchanged = rewritten = 0
    differing: dict[int, RowNumbers] = {}
    with contextlib.ExitStack() as stack:
        writer = None if dry_run else _staged_writer(stack, file, edit.stage, schema)
        for number in range(file.metadata.num_row_groups):
            group = edits.get(number)
            table = cast_rows(file.read_group(number), schema)
            if group is not None:
                result = _edit(table, group, take(group.sources) if len(group.sources) else None)
                unchanged += int(result.same.sum())
                _record_differing(differing, number, np.flatnonzero(~result.same))
                rewritten += bool(result.changed) or not group.rows_left(table.num_rows)
                table = result.table
            rows += table.num_rows
            if writer is not None and table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
    if not rewritten and not edit.widens:
        if not dry_run:
            file.location.store.remove(edit.stage)
        return StageResult(None, rows, unchanged=unchanged)
    size = 0 if dry_run else file_size(file.location, edit.stage)
    return StageResult(edit.stage, rows, size, unchanged, 0, rewritten, differing)


def _staged_writer(
    stack: contextlib.ExitStack, file: OpenFile, stage: str, schema: pa.Schema
) -> StreamingParquetWriter:
    out = stack.enter_context(file.location.store.open_write(stage))
    return stack.enter_context(StreamingParquetWriter(out, schema, file.settings()))
