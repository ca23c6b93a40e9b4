"""Changes of the columns of one data file. Only columns whose type changes are decoded and encoded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pyarrow as pa

from inlay.engines.base import Alteration, StageResult
from inlay.engines.open_file import OpenFile
from inlay.parquet.raw import ParquetBytes
from inlay.parquet.reshape import Shape, reshape
from inlay.parquet.splice import Splicer, SpliceRefused
from inlay.parquet.writer import StreamingParquetWriter, WriterSettings, encode_row_group
from inlay.schema import widen_column
from inlay.storage import Location

__all__ = ["alter_file"]


def alter_file(location: Location, alteration: Alteration) -> StageResult:
    """Write a data file with other columns.

    Without a `stage`, only check the values. The `size` of the result is then that of the chunks to encode.
    """
    file = OpenFile(location, alteration.path, at_once=bool(alteration.stage))
    shape = Shape.of(file.schema, alteration.schema, alteration.renamed)
    try:
        return _splice(file, shape, alteration.stage)
    except SpliceRefused:
        return _rewrite(file, shape, alteration.stage)


def _splice(file: OpenFile, shape: Shape, stage: str) -> StageResult:
    settings = file.settings()
    settings.require_one_kind_of_timestamps(shape.after, shape.origins)
    groups = [group for group in range(file.metadata.num_row_groups) if file.metadata.row_group(group).num_rows]
    with file.raw() as raw:
        template = None
        if shape.encoded:
            template = ParquetBytes(encode_row_group(shape.encoded_schema.empty_table(), settings), "the new columns")
        view = reshape(raw, shape, template)
        if not stage:
            for group in groups:
                for _ in _encoded_columns(file, shape, group):
                    pass
            copied = sum(view.copyable_bytes(group, shape.encoded) for group in groups)
            origins = [shape.origins[name] for name in shape.encoded]
            encoded = sum(raw.copyable_bytes(group) - raw.copyable_bytes(group, origins) for group in groups)
            return StageResult("", file.metadata.num_rows, encoded, bytes_copied=copied)
        with file.location.store.open_write(stage) as out:
            splicer = Splicer(out, view)
            for group in groups:
                pieces = []
                for table in _encoded_columns(file, shape, group):
                    own = WriterSettings.like(raw, group, file.parquet_schema, table.num_rows)
                    pieces.append((ParquetBytes(encode_row_group(table, own), "the new columns"), table.column_names))
                if pieces:
                    splicer.replace_columns(view, group, pieces, keeps_order=True)
                else:
                    splicer.copy(view, group)
            splicer.finish()
    return StageResult(
        stage,
        file.metadata.num_rows,
        splicer.content.size,
        bytes_copied=splicer.bytes_copied,
        groups_rewritten=len(groups) if shape.encoded else 0,
        content=splicer.content,
    )


def _encoded_columns(file: OpenFile, shape: Shape, group: int) -> Iterator[pa.Table]:
    """Decode the columns to encode in some batches, in their new types."""
    origins = {shape.origins[name] for name in shape.encoded}
    if not origins:
        return
    for names in file.column_batches(group, set(file.schema.names) - origins):
        yield _widened(file.read_group(group, names), shape, shape.encoded)


def _widened(table: pa.Table, shape: Shape, names: Sequence[str]) -> pa.Table:
    """Return columns of a file under their new names, in their new types."""
    fields = [shape.after.field(name) for name in names if shape.origins[name] in table.column_names]
    columns = [widen_column(table.column(shape.origins[f.name]), f.type, shape.origins[f.name]) for f in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _rewrite(file: OpenFile, shape: Shape, stage: str) -> StageResult:
    """Decode and encode every row group of a file that cannot be spliced."""
    schema = shape.after
    with contextlib.ExitStack() as stack:
        writer = None
        if stage:
            out = stack.enter_context(file.location.store.open_write(stage))
            writer = stack.enter_context(StreamingParquetWriter(out, schema, file.settings()))
        for group in range(file.metadata.num_row_groups):
            table = _widened(file.read_group(group), shape, schema.names).replace_schema_metadata(schema.metadata)
            if writer is not None and table.num_rows:
                writer.write_table(table, row_group_size=table.num_rows)
    stat = file.location.store.stat(stage or file.location.full(file.path))
    rows, groups = file.metadata.num_rows, file.metadata.num_row_groups
    return StageResult(stage, rows, 0 if stat is None else stat.size, groups_rewritten=groups)
