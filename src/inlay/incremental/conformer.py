"""Casts source rows to the columns, order and types of a dataset."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.arrays import from_numpy
from inlay.engines.absence import absence_column, absent_path
from inlay.engines.keys import require_key_type, require_order_type
from inlay.errors import (
    InvalidArgumentError,
    SchemaMismatchError,
    UnknownOperationError,
    close_matches,
)
from inlay.incremental.validate import MissingColumns, SchemaMode, require_columns, row_text, value_text
from inlay.schema import (
    Path,
    lossless_cast,
    needs_decimal256,
    nested_fields,
    null_column,
    require_distinct_names,
    storage_type,
    wider_type,
    without_schema_copies,
)

__all__ = ["Conformer", "KeyConformer", "fit_field", "read_deletions"]

MISSING_CHOICES = (
    'missing_columns="keep" to keep the stored values of matching rows, or missing_columns="null" to set them to NULL'
)
DECIMAL256_HINT = (
    "inlay widens decimals to 38 digits at most: polars cannot read longer decimals, and DuckDB rounds them."
)
_MAX_NAMES = 10  # columns


@dataclass(frozen=True)
class Conformer:
    """A function that casts source rows to the dataset's columns, order and types.

    The constructor rejects sources whose columns do not fit; a call rejects values that do not fit. Columns that the
    dataset does not store come last: those that only order the source, and the operation column, which becomes a column
    of booleans (True for a row to delete). Rows to delete need no value in other columns.
    """

    source: pa.Schema
    target: pa.Schema | None
    key_columns: Sequence[str]
    partition_columns: Sequence[str] = ()
    mode: SchemaMode = "strict"
    order_columns: Sequence[str] = ()
    missing_columns: MissingColumns = "error"
    operation_column: str | None = None
    newer_by: str | None = None
    scope_columns: Sequence[str] = ()
    widened: frozenset[str] = frozenset()  # the columns of the dataset that get their type of `wider`

    def __post_init__(self) -> None:
        source = self.visible
        require_distinct_names(source, "The source")
        require_columns(self.key_columns, source, "the source", "key column")
        require_columns(self.order_columns, source, "the source", "dedup_order_by column")
        for name in self.order_columns:
            require_order_type(name, source.field(name).type)
        if self.newer_by is not None:
            require_columns([self.newer_by], source, "the source", "newer_by column")
            require_order_type(self.newer_by, source.field(self.newer_by).type, "newer_by")
            if self.newer_by in self.partition_columns:
                raise InvalidArgumentError(
                    f"The newer_by column {self.newer_by!r} cannot be a partition column: a newer row would move."
                )
        if self.operation_column is not None:
            self._check_operation_column(self.operation_column)
        self._check_names(with_missing=self.operation_column is None)
        for name in self.key_columns:
            require_key_type(name, self.schema.field(name).type)

    def _check_operation_column(self, name: str) -> None:
        require_columns([name], self.visible, "the source", "operation column")
        if name in (self.target.names if self.target is not None else ()) or name in self.partition_columns:
            raise SchemaMismatchError(
                f"The operation column {name!r} exists in the dataset. A merge never stores an operation column.",
                hint="Rename the operation column of the source.",
            )

    def _check_names(self, *, with_missing: bool) -> None:
        """Check the columns of source and dataset, with those that only written rows need."""
        if with_missing:
            required = [name for name in self.partition_columns if name not in self.kept]
            require_columns(required, self.visible, "the source", "partition column")
        if (target := self.target) is None:
            return
        known = {*target.names, *self.partition_columns, *self.order_columns, self.operation_column}
        passed = set(self.visible.names)
        require_columns(self.key_columns, pa.schema([*target, *self._path_fields()]), "the dataset", "key column")
        missing = [name for name in target.names if name not in passed]
        extra = [name for name in self.visible.names if name not in known]
        is_lacking = missing and with_missing and self.missing_columns == "error"
        is_strict = extra and self.mode == "strict"
        if is_lacking or is_strict:
            message = _differing_columns(missing if is_lacking else [], extra if is_strict else [], missing)
            raise SchemaMismatchError(message, hint=self._hint(missing, extra, is_lacking=bool(is_lacking)))
        self._reject_other_case([*target.names, *self.partition_columns], extra)
        not_nullable = [name for name in missing if not target.field(name).nullable]
        if not_nullable and with_missing and self.missing_columns == "null":
            raise SchemaMismatchError(
                f"The source lacks column {not_nullable[0]!r}, which is not nullable in the dataset.",
                hint="Add the column to the source.",
            )

    def _hint(self, missing: Sequence[str], extra: Sequence[str], *, is_lacking: bool) -> str:
        """Suggest another choice, unless a typo would leave the intended column without its values."""
        if any(close_matches(name, missing) for name in extra):
            return "Rename the source columns to the names in the dataset."
        if not is_lacking:
            return 'Pass schema_mode="evolve" to add the new columns to the dataset.'
        if not self.key_columns:  # rows are written without a merge
            return (
                "Add the missing columns to the source, or pass"
                ' schema_mode="evolve" to set them to NULL in the new rows.'
            )
        return f"Add the missing columns to the source, or pass {MISSING_CHOICES}."

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
        left_out = self.kept if self.target is None else self.kept | set(self.target.names)
        names = [name for name in self.partition_columns if name not in left_out and name in self.visible.names]
        fields = [self.visible.field(name) for name in names]
        return [field.with_type(storage_type(field.type)) for field in fields]

    def _new_fields(self) -> list[pa.Field]:
        known = {*(self.target or self.visible).names, *self.partition_columns, self.operation_column}
        return [field for field in self.visible if field.name not in known]

    @cached_property
    def visible(self) -> pa.Schema:
        """The columns of the source without hidden ones."""
        fields = [self.source.field(at) for at, name in enumerate(self.source.names) if absent_path(name) is None]
        return pa.schema(fields, self.source.metadata)

    @property
    def partly_absent(self) -> list[str]:
        """The dataset's columns that some rows of the source lack, if this is a merge into a dataset."""
        return [path[0] for path in self._absent_paths if len(path) == 1]

    @cached_property
    def _absent_paths(self) -> list[Path]:
        """The dataset's fields, at any depth, that some rows of the source lack."""
        if self.target is None or not self.key_columns:
            return []
        known = {*self.target.names, *self.partition_columns} - set(self.key_columns)
        found = [path for path in map(absent_path, self.source.names) if path is not None and path[0] in known]
        inside = {path for field in self.target for path in nested_fields(field.type, (field.name,))}
        return [path for path in found if len(path) == 1 or path in inside]

    @cached_property
    def kept(self) -> set[str]:
        """The columns of the dataset that the source lacks, and that keep their values."""
        if self.target is None or self.missing_columns != "keep":
            return set()
        return {*self.target.names, *self.partition_columns} - set(self.visible.names)

    @cached_property
    def wider(self) -> dict[str, pa.Field]:
        """The columns of the dataset that `schema_mode="evolve"` can widen for the values of a merge."""
        if self.target is None or self.mode != "evolve" or not self.key_columns:
            return {}
        fixed = {*self.partition_columns, *self.scope_columns}
        shared = set(self.visible.names) - fixed
        both = [field for field in self.target if field.name in shared]
        found = {field.name: self._wider_field(field, self.visible.field(field.name).type) for field in both}
        return {field.name: found[field.name] for field in both if not found[field.name].equals(field)}

    def _wider_field(self, field: pa.Field, source: pa.DataType) -> pa.Field:
        wide = wider_type(field.type, source) or field.type
        if field.name not in self.key_columns:
            return field.with_type(wide).with_nullable(True)
        return field if pa.types.is_date(field.type) else field.with_type(wide)

    @property
    def added(self) -> list[pa.Field]:
        """The columns that `schema_mode="evolve"` adds to the dataset."""
        return [field.with_nullable(True) for field in self._new_fields()] if self.mode == "evolve" else []

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The schema of new files: the columns of the dataset (or source) without path columns."""
        if self.target is not None:
            is_same = not self.added and not self.widened
            metadata = self.target.metadata if is_same else without_schema_copies(self.target.metadata)
            fields = [self.wider[field.name] if field.name in self.widened else field for field in self.target]
            return pa.schema([*fields, *self.added], metadata)
        outside = {*self.partition_columns, self.operation_column}
        return pa.schema([field for field in self.visible if field.name not in outside], self.source.metadata)

    @cached_property
    def stored_schema(self) -> pa.Schema:
        """The schema of the dataset's rows: the columns of new files, then the columns in paths."""
        return pa.schema([*self.file_schema, *self._path_fields()], self.file_schema.metadata)

    @cached_property
    def _fields(self) -> list[pa.Field]:
        """The fields to which the source is cast."""
        order_only = [] if self.mode == "evolve" else self._new_fields()
        hidden = self.partly_absent if self.missing_columns == "keep" else []
        operations = [] if self.operation_column is None else [self.operation_column]
        flags = [*(absence_column(name) for name in hidden), *operations]
        stored = [self.wider.get(field.name, field) for field in self.stored_schema if field.name not in self.kept]
        return [*stored, *order_only, *(pa.field(name, pa.bool_()) for name in flags)]

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of loaded rows. Rows to delete can be NULL in all columns."""
        nullable = self.operation_column is not None
        fields = [field.with_nullable(True) if nullable else field for field in self._fields]
        return pa.schema(fields, self.file_schema.metadata)

    def __call__(self, table: pa.Table) -> pa.Table:
        deletions = self._deletions(table)
        self._reject_deletions_of_unknown_age(table, deletions)
        if self.missing_columns != "null":
            self._reject_absent_fields(table, deletions)
        found = dict(zip(table.column_names, table.columns, strict=True))  # a look-up by name takes longer in a table
        columns = [self._fit(found, table.num_rows, field, deletions) for field in self._fields]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _deletions(self, table: pa.Table) -> pa.ChunkedArray | None:
        """Return which rows are to delete. Rows to write need all columns."""
        if self.operation_column is None:
            return None
        deletions = read_deletions(table, self.operation_column, self.key_columns)
        if len(deletions) and not pc.all(deletions).as_py():
            self._check_names(with_missing=True)
        return deletions

    def _reject_deletions_of_unknown_age(self, table: pa.Table, deletions: pa.ChunkedArray | None) -> None:
        """Reject rows to delete that lack the newer_by field: they would look older than any stored row."""
        hidden = absence_column(self.newer_by or "")
        if self.newer_by is None or deletions is None or hidden not in table.column_names:
            return
        absent = table.column(hidden).filter(deletions).drop_null()
        if len(absent):
            raise SchemaMismatchError(
                f"The field {self.newer_by!r} is missing in {absent[0]} of the source, a row that deletes.",
                hint="Add the field. A deletion needs its key and the newer_by column.",
            )

    def _reject_absent_fields(self, table: pa.Table, deletions: pa.ChunkedArray | None) -> None:
        """Reject rows that lack a field. `missing_columns="keep"` keeps whole columns, not fields inside objects."""
        for path in self._absent_paths:
            if self.missing_columns == "keep" and len(path) == 1:
                continue
            hidden = table.column(absence_column(*path))
            absent = (hidden if deletions is None else hidden.filter(pc.invert(deletions))).drop_null()
            if len(absent):
                raise _absence_error(path, str(absent[0]))

    def _fit(
        self, found: Mapping[str, pa.ChunkedArray], rows: int, field: pa.Field, deletions: pa.ChunkedArray | None
    ) -> pa.ChunkedArray:
        if field.name == self.operation_column:
            return deletions
        if absent_path(field.name) is not None:
            return found[field.name].is_valid()
        if field.name not in found:
            return null_column(rows, field.type)
        hidden = absence_column(field.name)
        optional = [found[hidden].is_valid()] if hidden in self._hidden else []
        optional += [] if deletions is None else [deletions]
        return fit_field(found[field.name], field, as_key=field.name in self.key_columns, optional=optional)

    @cached_property
    def _hidden(self) -> set[str]:
        """The hidden columns of loaded rows."""
        return {name for name in self.schema.names if absent_path(name) is not None}


def _absence_error(path: Path, row: str) -> SchemaMismatchError:
    name = ".".join(path)
    if len(path) > 1:
        return SchemaMismatchError(
            f"The source lacks the field {name!r} in {row}.",
            hint='Add the field (write null to store NULL), or pass missing_columns="null" to set it to NULL.',
        )
    return SchemaMismatchError(
        f"The field {name!r} is missing in {row} of the source, and exists in other rows.",
        hint=f"Add the field (write null to store NULL), or pass {MISSING_CHOICES}.",
    )


class KeyConformer(Conformer):
    """Casts the columns that a deletion needs to the dataset's types, and ignores the other columns."""

    def _check_names(self, *, with_missing: bool) -> None:  # noqa: ARG002  (needs only keys)
        known = pa.schema([*(self.target or self.source), *self._path_fields()])
        require_columns(self._needed, known, "the dataset", "column")

    def _reject_deletions_of_unknown_age(self, table: pa.Table, _: pa.ChunkedArray | None) -> None:
        super()._reject_deletions_of_unknown_age(table, from_numpy(np.ones(table.num_rows, np.bool_)))

    @property
    def _needed(self) -> list[str]:
        scope = [name for name in self.scope_columns if name in self.visible.names]
        return list(dict.fromkeys([*self.key_columns, *([] if self.newer_by is None else [self.newer_by]), *scope]))

    @property
    def added(self) -> list[pa.Field]:
        return []

    @property
    def _absent_paths(self) -> list[Path]:
        return []

    @property
    def wider(self) -> dict[str, pa.Field]:
        return {}

    @cached_property
    def _fields(self) -> list[pa.Field]:
        hidden = [name for name in map(absence_column, self.scope_columns) if name in self.source.names]
        stored = [self.stored_schema.field(name) for name in self._needed]
        return [*stored, *(pa.field(name, pa.bool_()) for name in hidden)]


_TEXT_TYPES = (pa.string(), pa.large_string(), pa.string_view())
_DELETIONS = {
    "insert": False, "i": False, "c": False, "r": False, "update": False, "u": False, "delete": True, "d": True
}  # fmt: skip


def read_deletions(table: pa.Table, name: str, key_columns: Sequence[str]) -> pa.ChunkedArray:
    """Return for each row whether its operation is a deletion. Reject values that are no operation."""
    column = table.column(name)
    if storage_type(column.type) not in _TEXT_TYPES:
        if len(column):
            raise _unknown_operation(table, name, key_columns, 0)
        return pa.chunked_array([], pa.bool_())
    texts = column.cast(pa.large_string())
    values = pc.unique(texts)
    deletions = [_DELETIONS.get((value or "").casefold()) for value in values.to_pylist()]
    if None in deletions:
        first = pc.index_in(texts, value_set=values.slice(deletions.index(None), 1)).is_valid()
        raise _unknown_operation(table, name, key_columns, pc.index(first, True).as_py())
    return pc.is_in(texts, value_set=values.filter(from_numpy(np.array(deletions, np.bool_))))


def _unknown_operation(table: pa.Table, name: str, key_columns: Sequence[str], row: int) -> UnknownOperationError:
    value = table.column(name)[row]
    return UnknownOperationError(
        f"Column {name!r} is {value_text(value) if value.is_valid else 'NULL'} in the source row with"
        f" {row_text(table, key_columns, row)}, which is no insert, update or delete.",
        hint="Use insert, update and delete, I, U and D, or c, r, u and d, in any case.",
    )


def fit_field(
    column: pa.ChunkedArray, field: pa.Field, *, as_key: bool = False, optional: Sequence[pa.ChunkedArray] = ()
) -> pa.ChunkedArray:
    """Cast source values to a field of the dataset. `reject_null_keys` handles NULL keys.

    Rows that one of the masks in `optional` marks may be NULL.
    """
    try:
        fitted = lossless_cast(column, field.type, field.name, as_key=as_key)
    except SchemaMismatchError as error:
        if needs_decimal256(field.type, column.type):
            raise SchemaMismatchError(error.message, hint=DECIMAL256_HINT) from error
        raise
    nulls = fitted.null_count
    if nulls and not field.nullable:
        wrong = functools.reduce(pc.and_not, optional, fitted.is_null())
        nulls = pc.sum(wrong).as_py()
    if not field.nullable and not as_key and nulls:
        raise SchemaMismatchError(
            f"Column {field.name!r} is not nullable in the dataset, but is NULL in {nulls:,} source"
            f" {'row' if nulls == 1 else 'rows'}.",
            hint="Fill in the values, or remove these rows.",
        )
    return fitted


def _differing_columns(missing: Sequence[str], extra: Sequence[str], candidates: Sequence[str]) -> str:
    parts = []
    if missing:
        parts.append(f"the source lacks {_list_columns(missing)}")
    if extra:
        parts.append(f"the dataset does not have {_list_columns(extra, candidates)}")
    return f"The columns of source and dataset differ: {'; '.join(parts)}."


def _list_columns(names: Sequence[str], candidates: Sequence[str] = ()) -> str:
    """List the first names, each with the candidate that it resembles."""
    close = {name: close_matches(name, candidates) for name in names[:_MAX_NAMES]}
    listed = [f"{name!r} (did you mean {found[0]!r}?)" if found else repr(name) for name, found in close.items()]
    return ", ".join(listed) + (f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else "")
