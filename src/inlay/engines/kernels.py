"""The work on one data file or row group, and the array operations that it needs."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy, to_numpy
from inlay.engines.absence import absence_column
from inlay.engines.base import NO_ROWS, Append, Combine, FileEdit, GroupEdit, Pick, RowNumbers, StageResult
from inlay.engines.keys import contiguous, sortable_values
from inlay.parquet.footers import open_parquet, read_batches, read_row_group, read_small_file
from inlay.parquet.reshape import Shape, reshape
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused
from inlay.parquet.writer import StreamingParquetWriter, WriterSettings, encode_row_group, rows_per_bytes
from inlay.pyarrow_features import byte_size
from inlay.schema import is_widening, lossless_cast, null_column, storage_type, widen_column
from inlay.storage import Location

__all__ = [
    "EditedPart",
    "OpenFile",
    "append_rows",
    "bit_equal",
    "cast_rows",
    "combine_files",
    "comparable",
    "edit_part",
    "file_settings",
    "join_parts",
    "list_items",
    "pick_rows",
    "replacement_rows",
    "rewrite_file",
    "take_rows",
]

TakeRows = Callable[[RowNumbers], pa.Table]
MapGroups = Callable[[Callable[[GroupEdit], "EditedGroup"], Sequence[GroupEdit]], Iterator["EditedGroup"]]
Mask = npt.NDArray[np.bool_]

MAX_DIFFERING = 20  # rows per data file that a dry run records
_SAMPLE_ROWS = 1000  # rows from which the size of the following rows is estimated
# Encoded bytes of a row group to decode at once, by whether the store is local. Each read of an object store is a
# request, so these reads are larger.
_DECODE_BYTES = {True: 8 << 20, False: 32 << 20}
_GATHER_BYTES = 1 << 30
_TEXT = frozenset((pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()))
_READ_AT_ONCE = 16 << 20  # Smaller files are read at once to be rewritten.


# ------------------------------------------------------------------------------------------------------ data files
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


def append_rows(location: Location, append: Append, take: TakeRows) -> StageResult:
    """Write source rows as a new data file, one row group at a time."""
    with (
        location.store.open_write(append.stage) as out,
        StreamingParquetWriter(out, append.schema, append.settings) as writer,
    ):
        for table in _row_groups(append, take):
            writer.write_table(table)
    return StageResult(append.stage, len(append.rows), _size(location, append.stage))


def combine_files(location: Location, combine: Combine) -> StageResult:
    """Write several data files as one with full row groups, sorted if `combine` says so."""
    with (
        location.store.open_write(combine.stage) as out,
        StreamingParquetWriter(out, combine.schema, combine.settings) as writer,
    ):
        for table in _regroup(_read_tables(location, combine), combine):
            writer.write_table(table)
    return StageResult(combine.stage, writer.rows, _size(location, combine.stage))


def pick_rows(location: Location, picks: Sequence[Pick], schema: pa.Schema) -> list[pa.Table]:
    """Read single rows of row groups, and only the columns of `schema`."""
    found = []
    for path, of_file in itertools.groupby(picks, lambda pick: pick.path):
        file = OpenFile(location, path)
        found += [_pick_rows(file, pick, schema) for pick in of_file]
    return found


def _pick_rows(file: OpenFile, pick: Pick, schema: pa.Schema) -> pa.Table:
    names = [name for name in file.schema.names if name in schema.names] if file.has_plain_names else None
    # Without a column, a table would have no rows.
    table = cast_rows(file.read_group(pick.group, names or None), schema)
    positions = pick.positions
    if pick.others:
        positions = np.setdiff1d(np.arange(table.num_rows), positions)[: pick.others]
    columns = [_take_values(contiguous(column), positions) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=schema)


def file_settings(location: Location, path: str) -> tuple[WriterSettings, int]:
    """Return the writer settings that match a data file, and its number of row groups."""
    file = OpenFile(location, path)
    return file.settings(), int(file.metadata.num_row_groups)


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

    def read_group(
        self, group: int, columns: list[str] | None = None, dictionaries: Collection[str] = frozenset()
    ) -> pa.Table:
        """Decode a row group, or some of its columns, and the text columns in `dictionaries` as dictionaries."""
        names = [name for name in columns or () if name in dictionaries and self.schema.field(name).type in _TEXT]
        return self._widen(read_row_group(self.location, self.path, self.metadata, group, columns, self.data, names))

    def read_batches(self, group: int, columns: list[str]) -> Iterator[pa.Table]:
        """Decode some columns of a row group in small pieces."""
        return map(self._widen, read_batches(self.location, self.path, self.metadata, group, columns, self.data))

    def _widen(self, table: pa.Table) -> pa.Table:
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


def _size(location: Location, path: str) -> int:
    stat = location.store.stat(path)
    return 0 if stat is None else stat.size


def cast_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast and reorder rows to `schema` without changing a value. Missing columns become NULL."""
    columns = [
        _fit_column(rows.column(f.name), f.type, f.name)
        if f.name in rows.column_names
        else null_column(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _fit_column(values: pa.ChunkedArray, to: pa.DataType, name: str) -> pa.ChunkedArray:
    return (widen_column if is_widening(values.type, to) else lossless_cast)(values, to, name)


def _row_groups(append: Append, take: TakeRows) -> Iterator[pa.Table]:
    """Yield row groups of the configured number of rows, or fewer if rows are large."""
    rows, limit = append.rows, append.settings.row_group_size
    while len(rows):
        count = min(limit, rows_per_bytes(append.settings.row_group_bytes, take(rows[:_SAMPLE_ROWS])))
        yield cast_rows(take(rows[:count]), append.schema)
        rows = rows[count:]


def _read_tables(location: Location, combine: Combine) -> Iterator[pa.Table]:
    for path in combine.paths:
        file = OpenFile(location, path)
        for group in range(file.metadata.num_row_groups):
            yield cast_rows(file.read_group(group), combine.schema)


def _regroup(tables: Iterator[pa.Table], combine: Combine) -> Iterator[pa.Table]:
    if combine.sort_by:
        whole = pa.concat_tables([combine.schema.empty_table(), *tables])
        by = pa.table({name: sortable_values(whole.column(name)) for name in combine.sort_by})
        order = pc.sort_indices(by, [(name, "ascending") for name in combine.sort_by])
        yield take_rows(whole, to_numpy(order).astype(np.int64))
        return
    pending: list[pa.Table] = []
    rows = size = 0
    max_bytes = combine.settings.row_group_bytes
    for table in tables:
        pending.append(table)
        rows, size = rows + table.num_rows, size + byte_size(table)
        if max_bytes is not None and size >= max_bytes and rows < combine.settings.row_group_size:
            yield pa.concat_tables(pending)
            pending, rows, size = [], 0, 0
        elif rows >= combine.settings.row_group_size:
            joined = pa.concat_tables(pending)
            full = rows - rows % combine.settings.row_group_size
            yield joined.slice(0, full)
            rest = joined.slice(full)
            pending, rows, size = [rest], rows - full, byte_size(rest)
    if rows:
        yield pa.concat_tables(pending)


# ------------------------------------------------------------------------------------------------- edits of a file
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
    without = {*missing, *(equal if edit.keep_others else [])} - set(file.widened)
    if dry_run:
        differing, same = _compare(file, edit, new, without)
        differing = list(dict.fromkeys([*differing, *file.widened]))
        first = np.flatnonzero(~same)[:MAX_DIFFERING]
        return EditedGroup(edit.group, left, int(same.sum()), differing if keeps_rows else None, [], first)
    settings = None
    as_dictionaries: Collection[str] = ()
    if len(edit.positions) < before:
        settings = WriterSettings.like(raw, edit.group, file.parquet_schema, before)
        as_dictionaries = settings.small_dictionaries
    same = np.ones(len(edit.positions), np.bool_)
    changed: list[str] = []
    pieces = []
    for batch in file.column_batches(edit.group, without) if keeps_rows else [None]:
        old = file.read_group(edit.group, batch, as_dictionaries)
        edited = _edit(old, edit, new)
        same &= edited.same
        encoded = [name for name in old.column_names if name in {*edited.changed, *file.widened}]
        changed += encoded
        if encoded:
            settings = settings or WriterSettings.like(raw, edit.group, file.parquet_schema, before)
            pieces.append((encode_row_group(edited.table.select(encoded), settings), encoded))
    return EditedGroup(
        edit.group,
        left,
        int(same.sum()),
        changed if keeps_rows else None,
        pieces,
        np.flatnonzero(~same)[:MAX_DIFFERING],
    )


def _compare(file: OpenFile, edit: GroupEdit, new: pa.Table | None, without: Collection[str]) -> tuple[list[str], Mask]:
    """Return which columns differ in the replaced rows, and which of these rows are equal in all columns.

    Once every row differs in some column, a further column is only decoded up to its first difference.
    """
    same = np.ones(len(edit.positions), np.bool_)
    changed: list[str] = []
    if new is None:
        return changed, same
    for names in file.columns_to_compare(edit.group, without):
        if names is None or len(names) > 1 or same.any():
            old = _rows_at(file.read_group(edit.group, names), edit.positions)
            changed += _compare_columns(old, replacement_rows(old, new), same)
        elif _differs(file, edit, names, new):
            changed += names
    return changed, same


def _differs(file: OpenFile, edit: GroupEdit, names: list[str], new: pa.Table) -> bool:
    first = 0
    for old in file.read_batches(edit.group, names):
        low, high = np.searchsorted(edit.positions, [first, first + old.num_rows])
        found = _rows_at(old, edit.positions[low:high] - first)
        fresh = replacement_rows(found, new.slice(low, high - low))
        if _compare_columns(found, fresh, np.zeros(high - low, np.bool_)):
            return True
        first += old.num_rows
    return False


def _rows_at(table: pa.Table, positions: RowNumbers) -> pa.Table:
    return table if len(positions) == table.num_rows else take_rows(table, positions)


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
    values = pa.chunked_array([_take_values(contiguous(new), rows)], new.type)
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
            kept = np.delete(np.arange(old.num_rows), edit.deleted)
            columns = [_take_used(column, kept) for column in columns]
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
    size = 0 if dry_run else _size(file.location, edit.stage)
    return StageResult(edit.stage, rows, size, unchanged, 0, rewritten, differing)


def _staged_writer(
    stack: contextlib.ExitStack, file: OpenFile, stage: str, schema: pa.Schema
) -> StreamingParquetWriter:
    out = stack.enter_context(file.location.store.open_write(stage))
    return stack.enter_context(StreamingParquetWriter(out, schema, file.settings()))


# ---------------------------------------------------------------------------------------------------------- arrays
# Arrow cannot take from, filter or compare view types.
_TAKEABLE = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


def take_rows(table: pa.Table, rows: RowNumbers) -> pa.Table:
    """Take rows of a table that may have columns of view types."""
    schema = table.schema
    if any(field.type in _TAKEABLE for field in schema):
        plain = pa.schema([field.with_type(_TAKEABLE.get(field.type, field.type)) for field in schema])
        return table.cast(plain).take(from_numpy(rows)).cast(schema)
    return table.take(from_numpy(rows))


def _take_values(array: pa.Array, rows: RowNumbers) -> pa.Array:
    if array.type in _TAKEABLE:
        return array.cast(_TAKEABLE[array.type]).take(from_numpy(rows)).cast(array.type)
    return array.take(from_numpy(rows))


def replace_rows(column: pa.ChunkedArray, positions: RowNumbers, values: pa.ChunkedArray) -> pa.Array:
    """Replace the rows at ascending `positions` with `values`, for every type."""
    array, fresh = contiguous(column), contiguous(values)
    if _has_mask_kernel(array.type) and not _is_text_to_gather(array, fresh):
        mask = np.zeros(len(array), np.bool_)
        mask[positions] = True
        return pc.replace_with_mask(array, from_numpy(mask), fresh)
    rows = np.arange(len(array))
    rows[positions] = np.arange(len(array), len(array) + len(positions))
    return _take_used(contiguous(pa.chunked_array([array, fresh])), rows)


def _take_used(array: pa.Array, rows: RowNumbers) -> pa.Array:
    """Take rows, without the values of a dictionary that no row has."""
    taken = _take_values(array, rows)
    return _without_unused_values(taken) if pa.types.is_dictionary(array.type) else taken


def _without_unused_values(array: pa.DictionaryArray) -> pa.DictionaryArray:
    """Drop the dictionary's unused values, which would accumulate, and which pyarrow may count in statistics."""
    used = np.sort(to_numpy(pc.unique(array.indices).drop_null()))
    if len(used) == len(array.dictionary):
        return array
    renumbered = np.zeros(len(array.dictionary), array.type.index_type.to_pandas_dtype())
    renumbered[used] = np.arange(len(used))
    indices = from_numpy(renumbered).take(array.indices)
    return pa.DictionaryArray.from_arrays(indices, array.dictionary.take(from_numpy(used)), ordered=array.type.ordered)


def _has_mask_kernel(type_: pa.DataType) -> bool:
    return not (
        pa.types.is_nested(type_)
        or pa.types.is_dictionary(type_)
        or pa.types.is_duration(type_)
        or pa.types.is_null(type_)  # pyarrow before 25 aborts the process
        or pa.types.is_boolean(type_)  # pyarrow before 26 returns wrong values for a slice
        or type_ in _TAKEABLE
        or isinstance(type_, pa.BaseExtensionType)
        or (pa.types.is_decimal(type_) and type_.bit_width < 128)
    )


def _is_text_to_gather(array: pa.Array, fresh: pa.Array) -> bool:
    """Return whether to gather text, which is faster but needs offsets for both arrays."""
    if array.type in (pa.large_string(), pa.large_binary()):
        return True
    return array.type in (pa.string(), pa.binary()) and bool(array.nbytes + fresh.nbytes <= _GATHER_BYTES)


def all_bits_equal(left: pa.Array, right: pa.Array) -> bool:
    """Return whether all rows of two arrays of one type have the same bits."""
    left, right = comparable(left), comparable(right)
    return bool(bit_equal(left, right).all()) if pa.types.is_nested(left.type) else bool(left.equals(right))


def bit_equal(left: pa.Array, right: pa.Array) -> Mask:
    """Return for each row whether two arrays of one type have the same bits. NULL equals NULL."""
    left, right = comparable(left), comparable(right)
    if not pa.types.is_nested(left.type) and left.equals(right):  # the most frequent case, and the fastest
        return np.ones(len(left), np.bool_)
    nulls = to_numpy(left.is_null()), to_numpy(right.is_null())
    same: Mask = nulls[0] == nulls[1]
    both = same & ~nulls[0]
    if both.any():
        same[both] = _equal_values(*(side if both.all() else side.filter(from_numpy(both)) for side in (left, right)))
    return same


def comparable(array: pa.Array) -> pa.Array:
    """Convert an array to a type whose equal values have equal bits."""
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


def _equal_values(left: pa.Array, right: pa.Array) -> Mask:
    type_ = left.type
    if pa.types.is_null(type_):
        return np.ones(len(left), np.bool_)
    if pa.types.is_struct(type_):
        same = np.ones(len(left), np.bool_)
        for left_field, right_field in zip(left.flatten(), right.flatten(), strict=True):
            same &= bit_equal(left_field, right_field)
        return same
    if pa.types.is_nested(type_):
        return _equal_lists(left, right)
    return to_numpy(pc.equal(left, right))


def _equal_lists(left: pa.Array, right: pa.Array) -> Mask:
    (left_items, lengths), (right_items, right_lengths) = list_items(left), list_items(right)
    same: Mask = lengths == right_lengths
    if not same.all():
        (left_items, lengths), (right_items, _) = (list_items(side.filter(from_numpy(same))) for side in (left, right))
    equal = bit_equal(left_items, right_items)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    same[same] = np.bincount(owners[~equal], minlength=len(lengths)) == 0
    return same


def list_items(lists: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the items of all lists in one array, and the length of each list."""
    if pa.types.is_map(lists.type):
        lengths = np.diff(to_numpy(lists.offsets)).astype(np.int64)
        entries = pa.StructArray.from_arrays([lists.keys, lists.items], ["key", "value"])
        return entries.slice(lists.offsets[0].as_py(), int(lengths.sum())), lengths
    return lists.flatten(), to_numpy(pc.list_value_length(lists)).astype(np.int64)
