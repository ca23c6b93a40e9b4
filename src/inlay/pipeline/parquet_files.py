"""Read Parquet uploads: keep every Arrow type, and write row groups with inlay's settings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from inlay.errors import SchemaMismatchError, UnreadableUploadError
from inlay.parquet.footers import int96_columns, int96_units
from inlay.parquet.writer import rows_per_bytes
from inlay.schema import family, lossless_cast, map_leaf_types, without_schema_copies
from inlay.text.decode import Content, InlineFile, RawFile, StorePath, decode
from inlay.text.inference import column_names
from inlay.text.options import Limits, ReadOptions
from inlay.text.reader import SAMPLE_ROWS, Column, Parsed, Survey, repetitive
from inlay.text.records import Split
from inlay.type_grammar import column_type_name, with_length

__all__ = ["ParquetRows", "survey"]


_BATCH_ROWS = 16_384
_BATCH_BYTES = 16 << 20
_SIZING_ROWS = 64
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
_SPLIT_BYTES = 64 << 20  # decoded bytes; smaller row groups share a task


def survey(
    raw: RawFile | InlineFile, options: ReadOptions, limits: Limits, split_bytes: int, decoded: StorePath | None
) -> Survey:
    """Survey a Parquet file. Splits are runs of row groups. `decoded` is where to store a decompressed file."""
    content = decode(raw, limits, decoded, text=False)
    if not content.size:
        raise UnreadableUploadError("The file is empty.")
    with _reading(), _parquet(content, "ns") as file:
        _check_limits(file, content.size, limits)
        unit = _unit_of_int96(content, file, only_first=decoded is None)
    with _reading(), _parquet(content, unit) as file:
        names, warnings = column_names(file.schema_arrow.names)
        schema = _renamed(file.schema_arrow, names)
        sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
        sample = _sample(file)
    return Survey(
        content=content,
        options=options,
        reader=ParquetRows(names, unit, schema.metadata, limits),
        kinds={},
        splits=_splits(sizes, min(_SPLIT_BYTES, split_bytes or _SPLIT_BYTES)),
        repetitive=[] if sample is None else repetitive(sample, names),
        warnings=warnings,
        schema=schema,
    )


@contextlib.contextmanager
def _parquet(content: Content, unit: str) -> Iterator[pq.ParquetFile]:
    with (
        _open(content) as source,
        pq.ParquetFile(
            source,
            pre_buffer=False,
            buffer_size=1 << 20,
            coerce_int96_timestamp_unit=unit,
            page_checksum_verification=True,
        ) as file,
    ):
        yield file


def _open(content: Content) -> pa.NativeFile:
    if isinstance(content.source, RawFile):
        return content.source.location.store.open_arrow(content.source.location.full(content.source.path))
    return pa.BufferReader(content.source.content)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Raise failures to read a file as errors of the upload, except a lack of memory."""
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise UnreadableUploadError(f"Invalid Parquet file: {str(error).splitlines()[0]}") from error


def _check_limits(file: pq.ParquetFile, encoded: int, limits: Limits) -> None:
    """Check the footer. A footer can be wrong, so that readers count what they decode, too."""
    limits.check_count(file.metadata.num_columns)
    if not file.metadata.num_columns:
        raise UnreadableUploadError("The Parquet file has no columns.")
    limits.check_names(file.schema_arrow.names)
    limits.check_size(_least_decoded_bytes(file), encoded)


def _least_decoded_bytes(file: pq.ParquetFile) -> int:
    """Return the size of the decoded values without the bytes of texts, which a footer does not tell."""
    total = 0
    for number in range(file.metadata.num_columns):
        column = file.schema.column(number)
        values = file.metadata.num_rows if not column.max_repetition_level else _count_values(file, number)
        total += values * max(1, _WIDTHS.get(column.physical_type, column.length))
    return total


def _count_values(file: pq.ParquetFile, column: int) -> int:
    return sum(file.metadata.row_group(i).column(column).num_values for i in range(file.num_row_groups))


def _sample(file: pq.ParquetFile) -> pa.Table | None:
    if not file.num_row_groups:
        return None
    return next(_batches(file, [0], min(SAMPLE_ROWS, _batch_rows(file, 0))), None)


def _renamed(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema of the converted file, without text lengths and dictionaries.

    The lengths are unchecked, and a dictionary only has room for the values of its own file.
    """
    fields = [
        with_length(field.with_name(name).with_type(_decoded(field.type)), None)
        for field, name in zip(schema, names, strict=True)
    ]
    return pa.schema(fields, without_schema_copies(schema.metadata))


def _decoded(type_: pa.DataType) -> pa.DataType:
    """Remove dictionaries from a type at any depth."""
    return map_leaf_types(type_, lambda leaf: leaf.value_type if pa.types.is_dictionary(leaf) else leaf)


def _without_dictionaries(table: pa.Table) -> pa.Table:
    fields = [field.with_type(_decoded(field.type)) for field in table.schema]
    schema = pa.schema(fields, table.schema.metadata)
    return table if schema.equals(table.schema) else table.cast(schema)


def _splits(sizes: Sequence[int], limit: int) -> list[Split]:
    """Group adjacent row groups into splits. `start` and `end` count row groups."""
    splits: list[Split] = []
    held = 0
    for number, size in enumerate(sizes):
        if splits and held + size <= limit:
            splits[-1] = splits[-1]._replace(end=number + 1)
            held += size
        else:
            splits.append(Split(len(splits), number, number + 1, 0))
            held = size
    return splits


def _batches(file: pq.ParquetFile, groups: Sequence[int], rows: int) -> Iterator[pa.Table]:
    """Yield row groups in batches. Arrow reads some nested types only as whole row groups."""
    for group in groups:
        started = False
        try:
            for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
                started = True
                yield pa.Table.from_batches([batch])
        except pa.ArrowNotImplementedError:
            if started:
                raise
            yield file.read_row_group(group, use_threads=False)


def _batch_rows(file: pq.ParquetFile, group: int) -> int:
    """Choose the rows of a batch by the decoded size of the first rows."""
    metadata = file.metadata.row_group(group)
    rows = min(_SIZING_ROWS, _BATCH_BYTES * metadata.num_rows // max(1, metadata.total_byte_size))
    first = next(map(_without_dictionaries, _batches(file, [group], max(1, rows))), None)
    return _BATCH_ROWS if first is None else min(_BATCH_ROWS, rows_per_bytes(_BATCH_BYTES, first))


def _unit_of_int96(content: Content, fine: pq.ParquetFile, *, only_first: bool) -> str:
    """Return the unit that holds every INT96 timestamp of the file exactly."""
    columns = int96_columns(fine.schema)
    if not columns:
        return "ns"
    with _parquet(content, "ms") as coarse:
        groups = range(min(1, fine.num_row_groups) if only_first else fine.num_row_groups)
        units = int96_units(fine, coarse, groups, columns)
    if len(units) > 1 or "none" in units:
        raise UnreadableUploadError(
            "A 64-bit timestamp cannot hold the file's INT96 timestamps: they combine nanoseconds with years "
            "outside 1677 to 2262, or exceed 290,000 years.",
            hint="Write the timestamps as microseconds.",
        )
    return "us" if "us" in units else "ns"


@dataclass(frozen=True)
class ParquetRows:
    """The reader of row groups, in batches of limited size."""

    names: list[str]
    int96: str  # unit of INT96 timestamps
    metadata: dict[bytes, bytes] | None
    limits: Limits

    def parse(self, content: Content, columns: Sequence[Column], split: Split) -> Parsed:
        return Parsed(self._tables(content, columns, split), [], {})

    def _tables(self, content: Content, columns: Sequence[Column], split: Split) -> Iterator[pa.Table]:
        decoded = 0
        with _reading(), _parquet(content, self.int96) as file:
            for group in range(split.start, split.end):
                for table in _batches(file, [group], _batch_rows(file, group)):
                    named = table.rename_columns(self.names).replace_schema_metadata(self.metadata)
                    plain = _without_dictionaries(named)
                    decoded += plain.nbytes
                    self.limits.check_size(decoded, content.size)
                    yield _checked(plain, columns)


def _checked(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Check limits of the target's columns that a Parquet type cannot express."""
    for column in columns:
        values = table.column(column.name)
        if column.length is not None and family(values.type) == "text":
            _check_length(values, column, column.length)
        elif _is_in_seconds(column.type) and family(values.type) == family(column.type):
            lossless_cast(values, column.type, column.name)
    return table


def _check_length(values: pa.ChunkedArray, column: Column, length: int) -> None:
    longest = pc.max(pc.utf8_length(values.cast(pa.large_string()))).as_py() or 0
    if longest > length:
        raise SchemaMismatchError(
            f"A value of column {column.name!r} has {longest:,} characters,"
            f" but the column is {column_type_name(column.field)}."
        )


def _is_in_seconds(type_: pa.DataType) -> bool:
    """Return True for units of seconds, which Parquet stores as milliseconds."""
    return type_ in (pa.timestamp("s"), pa.time32("s")) or (pa.types.is_timestamp(type_) and bool(type_.unit == "s"))
