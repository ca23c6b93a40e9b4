"""Checks of a merge's arguments, keys and columns. All checks run before the first write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import pyarrow as pa

from inlay.constants import MAX_ROWS_PER_FILE
from inlay.engines.keys import NullKeys, Repeats, require_key_type, require_order_type
from inlay.errors import (
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    PartitionMoveError,
    SchemaMismatchError,
    close_matches,
    did_you_mean,
    unknown,
)
from inlay.incremental.display import ProgressCallback
from inlay.incremental.strategies import Strategy, get_strategy
from inlay.parquet.writer import check_write_options
from inlay.schema import (
    lossless_cast,
    null_column,
    require_distinct_names,
    storage_type,
    without_schema_copies,
)

__all__ = [
    "Conformer",
    "MergeOptions",
    "SchemaMode",
    "moved_error",
    "normalize_keys",
    "reject_duplicates",
    "reject_null_keys",
    "require_columns",
    "row_text",
    "value_text",
]


SchemaMode = Literal["strict", "evolve"]
_MAX_EXAMPLES = 5  # keys
_MAX_NAMES = 10  # columns


def normalize_keys(key_columns: str | Sequence[str], what: str = "key column") -> list[str]:
    """Turn one column name, or several, into a list of distinct names.

    Args:
        key_columns: A column name, or a sequence of column names.
        what: The noun for a column in error messages.

    Returns:
        The names, in the order in which they were passed.

    Raises:
        InvalidArgumentError: There is no name, a name is not a non-empty string, or a name occurs twice.

    Example:
        >>> from inlay.incremental import normalize_keys
        >>> normalize_keys("id")
        ['id']
        >>> normalize_keys(("region", "id"))
        ['region', 'id']
    """
    names = [key_columns] if isinstance(key_columns, str) else list(key_columns or ())
    if not names:
        raise InvalidArgumentError(f"Pass at least one {what}.")
    for name in names:
        if not name or not isinstance(name, str):
            raise InvalidArgumentError(f"A {what} must be the name of a column, not {name!r}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidArgumentError(f"The {what} {repeated[0]!r} occurs twice in the list.")
    return names


def check_schema_mode(mode: str) -> None:
    if mode not in get_args(SchemaMode):
        raise unknown("schema_mode", mode, get_args(SchemaMode))


def require_columns(names: Iterable[str], schema: pa.Schema, where: str, what: str) -> None:
    for name in names:
        if schema.get_field_index(name) >= 0:
            continue
        if schema.names.count(name) > 1:
            raise SchemaMismatchError(
                f"The {what} {name!r} exists more than once in {where}.", hint="Rename the duplicate columns."
            )
        hint = did_you_mean(name, schema.names) or f"The columns are: {', '.join(schema.names[:20])}."
        raise SchemaMismatchError(f"The {what} {name!r} does not exist in {where}.", hint=hint)


def reject_null_keys(found: Sequence[NullKeys], rows: int) -> None:
    for name, count, row, keys in found:
        raise NullKeyError(
            f"Key column {name!r} is NULL in {count:,} of {rows:,} source rows; the first is row {row}: "
            f"{row_text(keys, keys.column_names, 0)}.",
            hint="Remove these rows, fill in the keys, or choose other key columns.",
        )


def row_text(table: pa.Table, columns: Sequence[str], row: int) -> str:
    return ", ".join(f"{name}={value_text(table.column(name)[row])}" for name in columns)


def value_text(scalar: pa.Scalar) -> str:
    """Format a value. Arrow formats dates and times, because Python would drop nanoseconds."""
    return str(scalar.cast(pa.string())) if pa.types.is_temporal(scalar.type) else repr(scalar.as_py())


def reject_duplicates(repeats: Repeats) -> None:
    """Reject repeated source keys. The error shows up to five of them."""
    count, keys = repeats
    if count:
        examples = dict.fromkeys(row_text(keys, keys.column_names, row) for row in range(len(keys)))
        repeating = "1 source row repeats" if count == 1 else f"{count:,} source rows repeat"
        raise DuplicateKeyError(
            f"{repeating} a key: {'; '.join(list(examples)[:_MAX_EXAMPLES])}.",
            hint='Remove the duplicates, or pass strategy="deduplicate" to keep the last row of each key.',
        )


def moved_error(key: str, before: str, after: str, count: int) -> PartitionMoveError:
    return PartitionMoveError(
        f"Partition columns cannot change for existing keys: {key} is in {before} and the source has it in {after}"
        f" ({count:,} such {'row' if count == 1 else 'rows'}).",
        hint="A merge cannot move rows between partitions. Restore the old values of the partition columns in the"
        ' source, or rewrite the dataset with write_dataset(mode="overwrite").',
    )


@dataclass(frozen=True, slots=True)
class Conformer:
    """A function that casts source rows to the dataset's columns, order and types.

    The constructor rejects sources whose columns do not fit; a call rejects values that do not fit. Columns that only
    order the source, and that the dataset does not store, come last.
    """

    source: pa.Schema
    target: pa.Schema | None
    key_columns: Sequence[str]
    partition_columns: Sequence[str] = ()
    mode: SchemaMode = "strict"
    order_columns: Sequence[str] = ()

    def __post_init__(self) -> None:
        require_distinct_names(self.source, "The source")
        require_columns(self.key_columns, self.source, "the source", "key column")
        require_columns(self.partition_columns, self.source, "the source", "partition column")
        require_columns(self.order_columns, self.source, "the source", "dedup_order_by column")
        for name in self.order_columns:
            require_order_type(name, self.source.field(name).type)
        if self.target is not None:
            self._check_names(self.target)
        for name in self.key_columns:
            require_key_type(name, self.schema.field(name).type)

    def _check_names(self, target: pa.Schema) -> None:
        known = {*target.names, *self.partition_columns, *self.order_columns}
        passed = set(self.source.names)
        require_columns(self.key_columns, pa.schema([*target, *self._path_fields()]), "the dataset", "key column")
        missing = [name for name in target.names if name not in passed]
        extra = [name for name in self.source.names if name not in known]
        if self.mode == "strict" and (missing or extra):
            raise SchemaMismatchError(_differing_columns(missing, extra), hint=_hint(missing, extra))
        self._reject_other_case([*target.names, *self.partition_columns], extra)
        required = [name for name in missing if not target.field(name).nullable]
        if required:
            raise SchemaMismatchError(
                f"The source lacks column {required[0]!r}, which is not nullable in the dataset.",
                hint="Add the column to the source.",
            )

    @staticmethod
    def _reject_other_case(known: Sequence[str], added: Sequence[str]) -> None:
        """Reject new columns that DuckDB and Spark cannot distinguish from existing ones."""
        by_case = {name.casefold(): name for name in known}
        for name in added:
            if name.casefold() in by_case:
                raise SchemaMismatchError(
                    f"The new column {name!r} differs from column {by_case[name.casefold()]!r} only by case.",
                    hint="Rename the source column to the name in the dataset.",
                )

    def _path_fields(self) -> list[pa.Field]:
        inside = set() if self.target is None else set(self.target.names)
        fields = [self.source.field(name) for name in self.partition_columns if name not in inside]
        return [field.with_type(storage_type(field.type)) for field in fields]

    def _new_fields(self) -> list[pa.Field]:
        known = {*(self.target or self.source).names, *self.partition_columns}
        return [field for field in self.source if field.name not in known]

    @property
    def added(self) -> list[pa.Field]:
        """The columns that `schema_mode="evolve"` adds to the dataset."""
        return [field.with_nullable(True) for field in self._new_fields()] if self.mode == "evolve" else []

    @property
    def file_schema(self) -> pa.Schema:
        """The schema of new files: the columns of the dataset (or source) without path columns."""
        if self.target is not None:
            metadata = without_schema_copies(self.target.metadata) if self.added else self.target.metadata
            return pa.schema([*self.target, *self.added], metadata)
        fields = [field for field in self.source if field.name not in self.partition_columns]
        return pa.schema(fields, self.source.metadata)

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of the dataset's rows: the columns of new files, then the columns in paths."""
        return pa.schema([*self.file_schema, *self._path_fields()], self.file_schema.metadata)

    @property
    def schema(self) -> pa.Schema:
        if self.mode == "evolve":
            return self.stored_schema
        return pa.schema([*self.stored_schema, *self._new_fields()], self.file_schema.metadata)

    def __call__(self, table: pa.Table) -> pa.Table:
        found = dict(zip(table.column_names, table.columns, strict=True))
        schema = self.schema
        columns = [
            fit_field(found[field.name], field, as_key=field.name in self.key_columns)
            if field.name in found
            else null_column(table.num_rows, field.type)
            for field in schema
        ]
        return pa.Table.from_arrays(columns, schema=schema)


def fit_field(column: pa.ChunkedArray, field: pa.Field, *, as_key: bool = False) -> pa.ChunkedArray:
    """Cast source values to a field of the dataset. `reject_null_keys` handles NULL keys."""
    fitted = lossless_cast(column, field.type, field.name, as_key=as_key)
    if not field.nullable and not as_key and fitted.null_count:
        raise SchemaMismatchError(
            f"Column {field.name!r} is not nullable in the dataset, but is NULL in {fitted.null_count:,} source rows.",
            hint="Fill in the values, or remove these rows.",
        )
    return fitted


def _differing_columns(missing: Sequence[str], extra: Sequence[str]) -> str:
    parts = []
    if missing:
        parts.append(f"the source lacks {_list_columns(missing)}")
    if extra:
        parts.append(f"the dataset does not have {_list_columns(extra, missing)}")
    return f"The columns of source and dataset differ: {'; '.join(parts)}."


def _hint(missing: Sequence[str], extra: Sequence[str]) -> str | None:
    """Suggest `schema_mode="evolve"`, unless a typo would set the intended column to NULL."""
    if any(close_matches(name, missing) for name in extra):
        return "Rename the source columns to the names in the dataset."
    if missing:
        return (
            "Add the missing columns to the source, or pass"
            ' schema_mode="evolve" to set them to NULL in replaced and new rows.'
        )
    return 'Pass schema_mode="evolve" to add the new columns to the dataset.'


def _list_columns(names: Sequence[str], candidates: Sequence[str] = ()) -> str:
    """List the first names, each with the candidate that it resembles."""
    close = {name: close_matches(name, candidates) for name in names[:_MAX_NAMES]}
    listed = [f"{name!r} (did you mean {found[0]!r}?)" if found else repr(name) for name, found in close.items()]
    return ", ".join(listed) + (f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else "")


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """The checked arguments of a merge."""

    strategy: Strategy
    key_columns: list[str]
    partition_columns: list[str] | None
    compression: str | None
    max_rows_per_file: int
    row_group_size: int | None
    schema_mode: SchemaMode
    dedup_order_by: list[str]
    progress: ProgressCallback | None

    @classmethod
    def check(
        cls,
        strategy: str,
        key_columns: str | Sequence[str],
        partition_columns: str | Sequence[str] | None = None,
        partition_by: str | Sequence[str] | None = None,
        compression: str | None = None,
        max_rows_per_file: int = MAX_ROWS_PER_FILE,
        row_group_size: int | None = None,
        schema_mode: SchemaMode = "strict",
        dedup_order_by: str | Sequence[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> MergeOptions:
        chosen = get_strategy(strategy)
        if partition_by is not None and partition_columns is not None and list(partition_by) != list(partition_columns):
            raise InvalidArgumentError(
                "partition_by and partition_columns differ. They are two names for one argument: pass only one."
            )
        partitions = partition_by if partition_columns is None else partition_columns
        if dedup_order_by is not None and not chosen.reduces_source:
            raise InvalidArgumentError(f'dedup_order_by needs strategy="deduplicate"; the strategy is {chosen.name!r}.')
        check_schema_mode(schema_mode)
        check_write_options(compression, row_group_size, max_rows_per_file)
        return cls(
            chosen,
            normalize_keys(key_columns),
            normalize_keys(partitions, "partition column") if partitions else None if partitions is None else [],
            compression,
            max_rows_per_file,
            row_group_size,
            schema_mode,
            [] if dedup_order_by is None else normalize_keys(dedup_order_by, "dedup_order_by column"),
            progress,
        )
