"""The work on one data file or row group, and the array operations that it needs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from inlay.engines.base import Append, Combine, FileEdit, GroupEdit, Pick, RowNumbers, StageResult
from inlay.engines.keys import contiguous, sortable_values
from inlay.parquet.footers import open_parquet, read_row_group
from inlay.parquet.splice import ParquetBytes, Splicer, SpliceRefused
from inlay.parquet.writer import StreamingParquetWriter, WriterSettings, encode_row_group, rows_per_bytes
from inlay.pyarrow_features import byte_size
from inlay.schema import lossless_cast, null_column, storage_type
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


# ------------------------------------------------------------------------------------------------------ data files
def rewrite_file(
    location: Location, edit: FileEdit, take: TakeRows, map_groups: MapGroups, *, dry_run: bool = False
) -> StageResult:
    """Apply an edit: splice the file, or rewrite it if its schema changes."""
    file = _OpenFile(location, edit.path)
    if edit.schema is None:
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


def pick_rows(location: Location, pick: Pick, schema: pa.Schema) -> pa.Table:
    """Read single rows of a row group."""
    table = _cast(_OpenFile(location, pick.path).read_group(pick.group), schema)
    positions = pick.positions
    if pick.others:
        positions = np.setdiff1d(np.arange(table.num_rows), positions)[: pick.others]
    columns = [_take_values(contiguous(column), positions) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=schema)


def file_settings(location: Location, path: str) -> tuple[WriterSettings, int]:
    """Return the writer settings that match a data file, and its number of row groups."""
    file = _OpenFile(location, path)
    return file.settings(), int(file.metadata.num_row_groups)


class _OpenFile:
    """A data file with its footer read."""

    def __init__(self, location: Location, path: str) -> None:
        self.location, self.path = location, path
        with open_parquet(location, path) as parquet:
            self.metadata, self.schema, self.parquet_schema = parquet.metadata, parquet.schema_arrow, parquet.schema
        self.name = location.display(path)

    def column_batches(self, group: int, without: Sequence[str]) -> list[list[str] | None]:
        """Split the columns into batches that are decoded at once. None stands for all columns."""
        names = self.schema.names
        # pyarrow reads a name with a dot as the path of a nested column.
        if len(set(names)) < len(names) or any("." in name for name in names):
            return [None]
        sizes, batch, filled = self._column_sizes(group), list[str](), 0
        batches: list[list[str] | None] = [batch]
        for name in (name for name in names if name not in without):
            if filled >= _DECODE_BYTES[self.location.store.is_local]:
                batch, filled = [], 0
                batches.append(batch)
            batch.append(name)
            filled += sizes[name]
        return batches

    def _column_sizes(self, group: int) -> Counter[str]:
        """Return the encoded, uncompressed bytes of each top-level column."""
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


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast and reorder rows to `schema` without changing a value. Missing columns become NULL."""
    columns = [
        lossless_cast(rows.column(f.name), f.type, f.name)
        if f.name in rows.column_names
        else null_column(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _row_groups(append: Append, take: TakeRows) -> Iterator[pa.Table]:
    """Yield row groups of the configured number of rows, or fewer if rows are large."""
    rows, limit = append.rows, append.settings.row_group_size
    while len(rows):
        count = min(limit, rows_per_bytes(append.settings.row_group_bytes, take(rows[:_SAMPLE_ROWS])))
        yield _cast(take(rows[:count]), append.schema)
        rows = rows[count:]


def _read_tables(location: Location, combine: Combine) -> Iterator[pa.Table]:
    for path in combine.paths:
        file = _OpenFile(location, path)
        for group in range(file.metadata.num_row_groups):
            yield _cast(file.read_group(group), combine.schema)


def _regroup(tables: Iterator[pa.Table], combine: Combine) -> Iterator[pa.Table]:
    if combine.sort_by:
        whole = pa.concat_tables([combine.schema.empty_table(), *tables])
        by = pa.table({name: sortable_values(whole.column(name)) for name in combine.sort_by})
        order = pc.sort_indices(by, [(name, "ascending") for name in combine.sort_by])
        yield take_rows(whole, order.to_numpy().astype(np.int64))
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
                edited.write(splicer, raw)
                part.groups[group.group] = edited.rows
        splicer.finish()
        part.bytes_copied = splicer.bytes_copied
    return part


def join_parts(location: Location, path: str, stage: str, parts: Sequence[EditedPart]) -> StageResult:
    """Join the edited parts of a file with its untouched row groups, without decoding them."""
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
                assembly.add_encoded(*found[number])
            elif number in dropped:
                assembly.drop()
            else:
                assembly.copy(number)
        result = assembly.finish()
    result.unchanged = sum(part.unchanged for part in parts)
    result.bytes_copied += sum(part.bytes_copied for part in parts)
    return result


def _splice(file: _OpenFile, edit: FileEdit, take: TakeRows, map_groups: MapGroups, *, dry_run: bool) -> StageResult:
    with file.raw() as raw:

        def edit_group(group: GroupEdit) -> EditedGroup:
            return _edit_group(file, raw, group, take, edit.equal, dry_run=dry_run)

        edited = map_groups(edit_group, [group for group in edit.groups if len(group.positions)])
        with contextlib.closing(_Assembly(file, raw, None if dry_run else edit.stage)) as assembly:
            edits = {group.group: group for group in edit.groups}
            for number in range(file.metadata.num_row_groups):
                group = edits.get(number)
                if group is None:
                    assembly.copy(number)
                elif len(group.positions):
                    assembly.add_edited(next(edited))
                else:
                    assembly.drop()
            return assembly.finish()


def _edit_group(
    file: _OpenFile, raw: ParquetBytes, edit: GroupEdit, take: TakeRows, equal: Sequence[str], *, dry_run: bool
) -> EditedGroup:
    before = file.metadata.row_group(edit.group).num_rows
    keeps_rows = edit.keep_others or len(edit.positions) == before
    new = take(edit.sources)
    settings: WriterSettings | None = None
    same = np.ones(len(edit.positions), np.bool_)
    changed: list[str] = []
    pieces = []
    for names in file.column_batches(edit.group, equal if edit.keep_others else []) if keeps_rows else [None]:
        old = file.read_group(edit.group, names)
        edited = _edit(old, edit, _cast(new, old.schema))
        same &= edited.same
        changed += edited.changed
        if edited.changed and not dry_run:
            settings = settings or WriterSettings.like(raw, edit.group, file.parquet_schema, before)
            pieces.append((encode_row_group(edited.table.select(edited.changed), settings), edited.changed))
    return EditedGroup(
        edit.group,
        before if keeps_rows else len(edit.positions),
        int(same.sum()),
        changed if keeps_rows else None,
        pieces,
        np.flatnonzero(~same)[:MAX_DIFFERING],
    )


@dataclass(slots=True)
class _EditedTable:
    table: pa.Table
    changed: list[str]
    same: Mask  # of the replaced rows


def _edit(old: pa.Table, edit: GroupEdit, new: pa.Table) -> _EditedTable:
    """Replace rows, and delete the other rows if the edit says so."""
    same = np.ones(len(edit.positions), np.bool_)
    changed, columns = [], []
    whole = len(edit.positions) == old.num_rows
    for name in old.column_names:
        column, values = old.column(name), new.column(name)
        matched = contiguous(column) if whole else _take_values(contiguous(column), edit.positions)
        equal = bit_equal(matched, contiguous(values))
        same &= equal
        if edit.keep_others or whole:
            differs = not equal.all()
            changed += [name] if differs else []
            columns.append(
                (contiguous(values) if whole else replace_rows(column, edit.positions, values)) if differs else column
            )
        else:
            changed.append(name)
            columns.append(contiguous(values))
    return _EditedTable(pa.Table.from_arrays(columns, schema=old.schema), changed, same)


class _Assembly:
    """The staged file of a splice. It is created when the first row group differs."""

    def __init__(self, file: _OpenFile, raw: ParquetBytes, stage: str | None) -> None:
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
        copied, size = self.splicer.bytes_copied - self.encoded_bytes, self.splicer.bytes_written
        return StageResult(self.stage or "", self.rows, size, self.unchanged, copied, self.rewritten)

    def close(self) -> None:
        if self.out is not None:
            self.out.close()


def _record_differing(found: dict[int, RowNumbers], group: int, differing: RowNumbers) -> None:
    """Record differing rows, at most `MAX_DIFFERING` per file."""
    left = MAX_DIFFERING - sum(map(len, found.values()))
    if left > 0 and len(differing):
        found[group] = differing[:left]


def _rewrite(file: _OpenFile, edit: FileEdit, take: TakeRows, *, dry_run: bool) -> StageResult:
    """Decode and encode every row group of a file that cannot be spliced."""
    schema = edit.schema or file.schema
    edits = {group.group: group for group in edit.groups}
    rows = unchanged = rewritten = 0
    differing: dict[int, RowNumbers] = {}
    with contextlib.ExitStack() as stack:
        writer = None if dry_run else _staged_writer(stack, file, edit.stage, schema)
        for number in range(file.metadata.num_row_groups):
            group = edits.get(number)
            table = _cast(file.read_group(number), schema)
            if group is not None:
                new = _cast(take(group.sources), schema) if len(group.sources) else schema.empty_table()
                result = _edit(table, group, new)
                unchanged += int(result.same.sum())
                _record_differing(differing, number, np.flatnonzero(~result.same))
                rewritten += bool(result.changed) or not len(group.positions)
                table = result.table
            rows += table.num_rows
            if writer is not None and table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
    if not rewritten:
        if not dry_run:
            file.location.store.remove(edit.stage)
        return StageResult(None, rows, unchanged=unchanged)
    size = 0 if dry_run else _size(file.location, edit.stage)
    return StageResult(edit.stage, rows, size, unchanged, 0, rewritten, differing)


def _staged_writer(
    stack: contextlib.ExitStack, file: _OpenFile, stage: str, schema: pa.Schema
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
        return table.cast(plain).take(pa.array(rows)).cast(schema)
    return table.take(pa.array(rows))


def _take_values(array: pa.Array, rows: RowNumbers) -> pa.Array:
    if array.type in _TAKEABLE:
        return array.cast(_TAKEABLE[array.type]).take(pa.array(rows)).cast(array.type)
    return array.take(pa.array(rows))


def replace_rows(column: pa.ChunkedArray, positions: RowNumbers, values: pa.ChunkedArray) -> pa.Array:
    """Replace the rows at ascending `positions` with `values`, for every type."""
    array, fresh = contiguous(column), contiguous(values)
    if _has_mask_kernel(array.type) and not _is_text_to_gather(array, fresh):
        mask = np.zeros(len(array), np.bool_)
        mask[positions] = True
        return pc.replace_with_mask(array, pa.array(mask), fresh)
    rows = np.arange(len(array))
    rows[positions] = np.arange(len(array), len(array) + len(positions))
    return _take_values(contiguous(pa.chunked_array([array, fresh])), rows)


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


def bit_equal(left: pa.Array, right: pa.Array) -> Mask:
    """Return for each row whether two arrays of one type have the same bits. NULL equals NULL."""
    left, right = _comparable(left), _comparable(right)
    if not pa.types.is_nested(left.type) and left.equals(right):  # the most frequent case, and the fastest
        return np.ones(len(left), np.bool_)
    nulls = np.asarray(left.is_null()), np.asarray(right.is_null())
    same: Mask = nulls[0] == nulls[1]
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
    return np.asarray(pc.equal(left, right))


def _equal_lists(left: pa.Array, right: pa.Array) -> Mask:
    (left_items, lengths), (right_items, right_lengths) = _list_items(left), _list_items(right)
    same: Mask = lengths == right_lengths
    if not same.all():
        (left_items, lengths), (right_items, _) = (_list_items(side.filter(pa.array(same))) for side in (left, right))
    equal = bit_equal(left_items, right_items)
    owners = np.repeat(np.arange(len(lengths)), lengths)
    same[same] = np.bincount(owners[~equal], minlength=len(lengths)) == 0
    return same


def _list_items(lists: pa.Array) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Return the items of all lists in one array, and the length of each list."""
    if pa.types.is_map(lists.type):
        lengths = np.diff(np.asarray(lists.offsets)).astype(np.int64)
        entries = pa.StructArray.from_arrays([lists.keys, lists.items], ["key", "value"])
        return entries.slice(lists.offsets[0].as_py(), int(lengths.sum())), lengths
    return lists.flatten(), np.asarray(pc.list_value_length(lists)).astype(np.int64)
