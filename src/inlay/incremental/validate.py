"""Checks of a merge's arguments, keys and columns. All checks run before the first write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from inlay.constants import MAX_ROWS_PER_FILE
from inlay.engines.keys import NullKeys, Repeats
from inlay.errors import (
    DeletionLimitError,
    DuplicateKeyError,
    InvalidArgumentError,
    NullKeyError,
    PartitionMoveError,
    SchemaMismatchError,
    did_you_mean,
    short_repr,
    unknown,
)
from inlay.incremental.display import ProgressCallback
from inlay.incremental.strategies import Strategy, get_strategy
from inlay.parquet.writer import check_write_options

__all__ = [
    "CheckedScope",
    "MergeOptions",
    "MissingColumns",
    "SchemaMode",
    "Scope",
    "check_max_deleted",
    "check_scope",
    "check_transaction",
    "incomplete_error",
    "moved_error",
    "normalize_keys",
    "reject_deletions",
    "reject_duplicates",
    "reject_null_keys",
    "require_columns",
    "row_text",
    "value_text",
]


SchemaMode = Literal["strict", "evolve"]
MissingColumns = Literal["error", "null", "keep"]
Scope: TypeAlias = Mapping[str, Iterable[Any]] | pc.Expression
CheckedScope: TypeAlias = Mapping[str, list[Any]] | pc.Expression
_MAX_EXAMPLES = 5  # keys
_MAX_TOKEN = 1000  # characters
_SCOPE_HINT = 'Pass a list of values for each column, such as {"day": ["2025-01-01"]}, or a pyarrow expression.'


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
            raise InvalidArgumentError(f"The {what} must be the name of a column, not {short_repr(name)}.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidArgumentError(f"The {what} {repeated[0]!r} occurs twice in the list.")
    return names


def check_schema_mode(mode: str) -> None:
    if mode not in get_args(SchemaMode):
        raise unknown("schema_mode", mode, get_args(SchemaMode))


def check_transaction(token: object) -> None:
    if token is None:
        return
    if not isinstance(token, str) or not 1 <= len(token) <= _MAX_TOKEN:
        size = f"text of {len(token):,} characters" if isinstance(token, str) else repr(token)
        raise InvalidArgumentError(f"transaction must be text of 1 to {_MAX_TOKEN:,} characters, not {size}.")
    if any("\ud800" <= character <= "\udfff" for character in token):
        raise InvalidArgumentError(f"transaction {token!r} contains half of a surrogate pair.")


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


def incomplete_error(key: str, count: int, lacking: str) -> SchemaMismatchError:
    rows = "1 new row lacks" if count == 1 else f"{count:,} new rows lack"
    return SchemaMismatchError(
        f"{rows} the {lacking}; the first is {key}.",
        hint='Add the column to the source, or pass strategy="update" to ignore rows with new keys.',
    )


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
    missing_columns: MissingColumns = "error"
    operation_column: str | None = None
    newer_by: str | None = None
    max_deleted: float | None = None
    scope: CheckedScope | None = None

    @property
    def reduce_by(self) -> list[str]:
        """The columns whose last row of each key remains if the strategy reduces the source."""
        newest = [] if self.newer_by is None else [self.newer_by]
        return self.dedup_order_by or newest

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
        missing_columns: MissingColumns = "error",
        operation_column: str | None = None,
        newer_by: str | None = None,
        max_deleted: float | None = None,
        scope: Scope | None = None,
    ) -> MergeOptions:
        chosen = get_strategy(strategy)
        keys = normalize_keys(key_columns)
        by, partitions = _partition_names(partition_by), _partition_names(partition_columns)
        if by is not None and partitions is not None and by != partitions:
            raise InvalidArgumentError(
                "partition_by and partition_columns differ. They are two names for one argument: pass only one."
            )
        partitions = by if partitions is None else partitions
        order = [] if dedup_order_by is None else normalize_keys(dedup_order_by, "dedup_order_by column")
        if dedup_order_by is not None and chosen.name != "deduplicate":
            raise InvalidArgumentError(f'dedup_order_by needs strategy="deduplicate"; the strategy is {chosen.name!r}.')
        if operation_column is not None:
            _check_operation_column(operation_column, chosen, [*keys, *(partitions or ()), *order])
        if newer_by is not None:
            _check_newer_by(newer_by, chosen, [*keys, *(partitions or ()), operation_column or ""])
        max_deleted = check_max_deleted(max_deleted)
        check_schema_mode(schema_mode)
        if missing_columns not in get_args(MissingColumns):
            raise unknown("missing_columns", missing_columns, get_args(MissingColumns))
        check_write_options(compression, row_group_size, max_rows_per_file)
        return cls(
            chosen,
            keys,
            partitions,
            compression,
            max_rows_per_file,
            row_group_size,
            schema_mode,
            order,
            progress,
            missing_columns,
            operation_column,
            newer_by,
            max_deleted,
            check_scope(scope, chosen.name),
        )


def _partition_names(columns: str | Iterable[str] | None) -> list[str] | None:
    """Return the names of partition columns. None means those of the dataset, an empty list means none."""
    names = columns if columns is None or isinstance(columns, str) else list(columns)
    return normalize_keys(names, "partition column") if names else None if names is None else []


def check_scope(scope: Scope | None, strategy: str) -> CheckedScope | None:
    """Return a scope whose values are lists, or an expression."""
    if scope is None:
        return None
    if strategy not in ("full_merge", "delete"):
        raise InvalidArgumentError(f'scope needs strategy="full_merge" or "delete"; the strategy is {strategy!r}.')
    if isinstance(scope, pc.Expression):
        return scope
    if not isinstance(scope, Mapping) or not scope:
        text = short_repr(scope) if isinstance(scope, Mapping | str) else type(scope).__name__
        raise InvalidArgumentError(f"Invalid scope: {text}.", hint=_SCOPE_HINT)
    return {name: _scope_values(name, values) for name, values in scope.items()}


def _scope_values(name: Any, values: Any) -> list[Any]:
    if not isinstance(name, str):
        raise InvalidArgumentError(f"A scope column must be the name of a column, not {short_repr(name)}.")
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
    if not is_list or getattr(values, "ndim", 1) != 1:  # pandas iterates over the names of columns
        raise InvalidArgumentError(
            f"The scope needs a list of values for column {name!r}, not {type(values).__name__}.", hint=_SCOPE_HINT
        )
    found = list(values)
    if not found:
        raise InvalidArgumentError(f"The scope has no values for column {name!r}.", hint=_SCOPE_HINT)
    return found


def check_max_deleted(limit: Any) -> float | None:
    """Return the limit as an int, a number of rows, or as a float, a share of them."""
    if limit is None:
        return None
    if isinstance(limit, int | np.integer) and not isinstance(limit, bool) and limit >= 0:
        return int(limit)
    if isinstance(limit, float | np.floating) and 0 <= limit <= 1:
        return float(limit)
    raise InvalidArgumentError(
        f"Invalid max_deleted: {limit!r}.",
        hint="Pass a number of rows such as 1000, or a share of the rows from 0.0 to 1.0 such as 0.05.",
    )


def reject_deletions(deleted: int, rows: int, limit: float | None) -> None:
    """Reject more deletions of `rows` than the limit: an integer is a number of rows, a float a share of them."""
    if limit is None:
        return
    allowed = limit if isinstance(limit, int) else Fraction(repr(limit)) * rows  # 0.29 * 100 is less than 29
    if deleted > allowed:
        raise DeletionLimitError(
            f"{deleted:,} of {rows:,} rows would be deleted, and max_deleted={limit!r} allows {int(allowed):,}."
            " Nothing changed.",
            hint="Check the source. To delete the rows, pass a larger max_deleted.",
        )


def _check_newer_by(name: str, strategy: Strategy, others: Sequence[str]) -> None:
    normalize_keys([name], "newer_by column")
    if strategy.in_both == "keep" or strategy.deletes:
        raise InvalidArgumentError(
            f"newer_by has no meaning with strategy={strategy.name!r}.",
            hint='Pass strategy="update", "upsert", "deduplicate" or "delete".',
        )
    if name in others:
        raise InvalidArgumentError(
            f"The newer_by column {name!r} cannot also be a key, partition or operation column: it never differs there."
        )


def _check_operation_column(name: str, strategy: Strategy, others: Sequence[str]) -> None:
    normalize_keys([name], "operation column")
    if strategy.name not in ("upsert", "deduplicate"):
        raise InvalidArgumentError(
            f'operation_column needs strategy="upsert" or "deduplicate"; the strategy is {strategy.name!r}.'
        )
    if name in others:
        raise InvalidArgumentError(
            f"The operation column {name!r} cannot also be a key, partition or dedup_order_by column."
        )
