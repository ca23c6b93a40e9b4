"""Every check on a merge's input. All of them come before the first write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import numpy as np
import pyarrow as pa

from inlay.engines.arrays import bit_equal
from inlay.engines.key_faults import NullKeys, Repeats, null_keys
from inlay.engines.keys import KeyIndex, canonical_keys, contiguous, require_key_type
from inlay.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    PartitionMoveError,
    SchemaMismatchError,
    closest,
    did_you_mean,
    unknown,
)
from inlay.schema import lossless_cast, storage_type, without_copies

__all__ = [
    "Conformer",
    "SchemaMode",
    "TableLike",
    "normalize_keys",
    "reject_duplicates",
    "reject_null_keys",
    "validate_keys_and_schema",
    "validate_no_null_keys",
    "validate_partition_column_immutability",
]

SchemaMode = Literal["strict", "evolve"]
_EXAMPLES = 5  # of keys
_NAMES = 10


class TableLike(Protocol):
    """Minimal protocol for what the checks look at."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def num_rows(self) -> int: ...


def normalize_keys(key_columns: Sequence[str] | str, what: str = "key column") -> list[str]:
    """Key columns as a list of names, each once."""
    names = [key_columns] if isinstance(key_columns, str) else list(key_columns or ())
    if not names:
        raise InvalidArgumentError(f"At least one {what} is needed.")
    for name in names:
        if not name or not isinstance(name, str):
            raise InvalidArgumentError(f"A {what} is a name, not {name!r}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidArgumentError(f"The {what} {repeated[0]!r} is given twice.")
    return names


def check_schema_mode(mode: str) -> None:
    if mode not in get_args(SchemaMode):
        raise unknown("schema_mode", mode, get_args(SchemaMode))


def require_columns(names: Iterable[str], schema: pa.Schema, where: str, what: str) -> None:
    for name in names:
        if schema.get_field_index(name) >= 0:
            continue
        if schema.names.count(name) > 1:
            raise SchemaMismatchError(f"The {what} {name!r} exists more than once in {where}.")
        hint = did_you_mean(name, schema.names) or f"Columns: {', '.join(schema.names[:20])}."
        raise SchemaMismatchError(f"The {what} {name!r} does not exist in {where}.", hint=hint)


def require_distinct_names(schema: pa.Schema) -> None:
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise SchemaMismatchError(f"The source has more than one column named {repeated[0]!r}.")


def validate_keys_and_schema(source: TableLike, target: TableLike | None, key_columns: list[str]) -> None:
    """Key columns exist on both sides, columns fit, and no source key is NULL."""
    keys = normalize_keys(key_columns)
    require_columns(keys, source.schema, "the source", "key column")
    if target is not None and len(target.schema):
        conformer = Conformer(source.schema, target.schema, keys)
        if isinstance(source, pa.Table):
            conformer(source)
    if isinstance(source, pa.Table):
        validate_no_null_keys(source, keys)


def validate_no_null_keys(source_table: pa.Table, key_columns: Sequence[str]) -> None:
    """Reject NULL keys, with how many there are and where the first is."""
    keys = normalize_keys(key_columns)
    require_columns(keys, source_table.schema, "the source", "key column")
    reject_null_keys(null_keys(source_table.select(keys)), source_table.num_rows)


def reject_null_keys(found: Sequence[NullKeys], rows: int) -> None:
    for name, count, row, keys in found:
        raise NullKeyError(
            f"Key column {name!r} is NULL in {count:,} of {rows:,} source rows; the first is row {row}: "
            f"{row_text(keys, keys.column_names, 0)}.",
            hint="Remove these rows, fill in the keys, or choose other key columns.",
        )


def row_text(table: pa.Table, columns: Sequence[str], row: int) -> str:
    return ", ".join(f"{name}={_text(table.column(name)[row])}" for name in columns)


def _text(scalar: pa.Scalar) -> str:
    """As it would be written; of dates and times Python's own words say less, and drop nanoseconds."""
    return str(scalar.cast(pa.string())) if pa.types.is_temporal(scalar.type) else repr(scalar.as_py())


def reject_duplicates(repeats: Repeats) -> None:
    """Reject keys that the source has more than once, naming up to five."""
    count, keys = repeats
    if count:
        examples = dict.fromkeys(row_text(keys, keys.column_names, row) for row in range(len(keys)))
        repeating = "1 source row repeats" if count == 1 else f"{count:,} source rows repeat"
        raise DuplicateKeyError(
            f"{repeating} a key: {'; '.join(list(examples)[:_EXAMPLES])}.",
            hint='Remove the duplicates, or use strategy="deduplicate", which keeps the last row of each key.',
        )


def validate_partition_column_immutability(
    source_table: pa.Table,
    target_table: pa.Table,
    key_columns: Sequence[str],
    partition_columns: Sequence[str],
) -> None:
    """Reject keys that exist in the target with other values in a partition column."""
    keys = normalize_keys(key_columns)
    for table, where in ((source_table, "the source"), (target_table, "the dataset")):
        require_columns([*keys, *partition_columns], table.schema, where, "column")
    types = [target_table.schema.field(name).type for name in keys]
    index = KeyIndex(
        [canonical_keys(lossless_cast(source_table.column(n), t, n), t) for n, t in zip(keys, types, strict=True)]
    )
    targets = [canonical_keys(target_table.column(n), t) for n, t in zip(keys, types, strict=True)]
    rows = index.find(targets, (0, len(index)))
    hits = np.flatnonzero(rows >= 0)
    for name in partition_columns:
        before = target_table.column(name).take(pa.array(hits))
        after = lossless_cast(source_table.column(name), before.type, name).take(pa.array(rows[hits]))
        moved = np.flatnonzero(~bit_equal(contiguous(before), contiguous(after)))
        if len(moved):
            first = int(moved[0])
            raise moved_error(
                row_text(source_table, keys, int(rows[hits[first]])),
                f"{name}={_text(before[first])}",
                f"{name}={_text(after[first])}",
                len(moved),
            )


def moved_error(key: str, before: str, after: str, count: int) -> PartitionMoveError:
    return PartitionMoveError(
        f"Partition columns cannot change for existing keys: {key} is in {before} and the source has it in {after}"
        f" ({count:,} such {'row' if count == 1 else 'rows'}).",
        hint="A merge does not move rows between partitions: give them the value they had, or write the dataset anew.",
    )


@dataclass(frozen=True, slots=True)
class Conformer:
    """Brings source rows into the dataset's columns, order and types; an error names what does not fit."""

    source: pa.Schema
    target: pa.Schema | None
    key_columns: Sequence[str]
    partition_columns: Sequence[str] = ()
    mode: SchemaMode = "strict"

    def __post_init__(self) -> None:
        require_distinct_names(self.source)
        require_columns(self.key_columns, self.source, "the source", "key column")
        require_columns(self.partition_columns, self.source, "the source", "partition column")
        if self.target is not None:
            self._check_names(self.target)
        for name in self.key_columns:
            require_key_type(name, self.schema.field(name).type)

    def _check_names(self, target: pa.Schema) -> None:
        known = {*target.names, *self.partition_columns}
        require_columns(self.key_columns, pa.schema([*target, *self._path_fields()]), "the dataset", "key column")
        missing = [name for name in target.names if name not in self.source.names]
        extra = [name for name in self.source.names if name not in known]
        if self.mode == "strict" and (missing or extra):
            raise SchemaMismatchError(_names_differ(missing, extra), hint=_advice(missing, extra))
        required = [name for name in missing if not target.field(name).nullable]
        if required:
            raise SchemaMismatchError(f"Column {required[0]!r} must not be NULL, and the source does not have it.")

    def _path_fields(self) -> list[pa.Field]:
        inside = set() if self.target is None else set(self.target.names)
        fields = [self.source.field(name) for name in self.partition_columns if name not in inside]
        return [field.with_type(storage_type(field.type)) for field in fields]

    @property
    def added(self) -> list[pa.Field]:
        """The columns that an evolving dataset gains."""
        known = {*(self.target or self.source).names, *self.partition_columns}
        return [field.with_nullable(True) for field in self.source if field.name not in known]

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of new files: the dataset's (or the source's) columns without those that paths hold."""
        if self.target is not None:
            metadata = without_copies(self.target.metadata) if self.added else self.target.metadata
            return pa.schema([*self.target, *self.added], metadata)
        fields = [field for field in self.source if field.name not in self.partition_columns]
        return pa.schema(fields, self.source.metadata)

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.file_schema, *self._path_fields()], self.file_schema.metadata)

    def __call__(self, table: pa.Table) -> pa.Table:
        columns = []
        for field in self.schema:
            if field.name not in table.column_names:
                columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
                continue
            columns.append(fit_field(table.column(field.name), field, as_key=field.name in self.key_columns))
        return pa.Table.from_arrays(columns, schema=self.schema)


def fit_field(column: pa.ChunkedArray, field: pa.Field, *, as_key: bool = False) -> pa.ChunkedArray:
    """Source values in a column of the dataset; NULL keys have an error of their own."""
    fitted = lossless_cast(column, field.type, field.name, as_key=as_key)
    if not field.nullable and not as_key and fitted.null_count:
        raise SchemaMismatchError(
            f"Column {field.name!r} must not be NULL, and {fitted.null_count:,} source rows have no value."
        )
    return fitted


def _names_differ(missing: Sequence[str], extra: Sequence[str]) -> str:
    parts = []
    if missing:
        parts.append(f"the source lacks {_listed(missing)}")
    if extra:
        parts.append(f"the dataset does not have {_listed(extra, missing)}")
    return f"The columns of source and dataset differ: {'; '.join(parts)}."


def _advice(missing: Sequence[str], extra: Sequence[str]) -> str | None:
    """Evolving is no answer to a misspelled name: the column that was meant would be emptied."""
    if any(closest(name, missing) for name in extra):
        return "Name the columns of the source as those of the dataset."
    if missing:
        return 'Add them to the source. schema_mode="evolve" would set them to NULL in every row that is written.'
    return 'schema_mode="evolve" adds them to the dataset.'


def _listed(names: Sequence[str], meant: Sequence[str] = ()) -> str:
    """The first of them, each with the name that it was perhaps meant to be."""
    close = {name: closest(name, meant) for name in names[:_NAMES]}
    told = [f"{name!r} (did you mean {found[0]!r}?)" if found else repr(name) for name, found in close.items()]
    return ", ".join(told) + (f" and {len(names) - _NAMES:,} more" if len(names) > _NAMES else "")
