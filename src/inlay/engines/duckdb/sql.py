"""The SQL statements of the DuckDB engine. They contain only quoted names.

`target` is a temporary table of keys found in data files, with their row numbers (TARGET_ROW). `source` is the view of
the source keys with their row numbers (SOURCE_ROW).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from inlay.schema import storage_type

__all__ = ["SOURCE_ROW", "TARGET_ROW", "Clauses", "column_names", "comparable_keys", "quoted"]

# ruff: noqa: S608  (statements contain only quoted names)

TARGET_ROW, SOURCE_ROW = "target row", "source row"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def column_names(key_columns: Sequence[str]) -> list[str]:
    """Name the key columns in temporary tables. Names that SQL considers equal get a suffix."""
    taken = {TARGET_ROW, SOURCE_ROW}
    names = []
    for column in key_columns:
        name = column if is_plain_name(column) else "key column"
        while name.casefold() in taken:
            name += "_"
        names.append(name)
        taken.add(name.casefold())
    return names


def is_plain_name(name: str) -> bool:
    return bool(name) and "\x00" not in name


# ----------------------------------------------------------------------------------------------------------- types
def comparable_keys(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert canonical keys to types whose equality in SQL is key equality.

    Text becomes bytes because a connection can have a collation.
    """
    type_ = storage_type(keys.type)
    if pa.types.is_large_string(type_):
        return keys.cast(pa.large_binary())
    if pa.types.is_decimal256(type_):
        return _view(keys, pa.binary(32)).cast(pa.large_binary())
    if pa.types.is_floating(type_) or pa.types.is_temporal(type_):
        return _view(keys, pa.int32() if type_.bit_width == 32 else pa.int64())
    return keys


def _view(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.view(type_) for chunk in column.chunks], type_)


# ------------------------------------------------------------------------------------------------------ statements
def same_key(names: Sequence[str]) -> str:
    return " AND ".join(f"target.{quoted(name)} = source.{quoted(name)}" for name in names)


def create_table(table: str, target: str, names: Sequence[str]) -> str:
    keys = ", ".join(map(quoted, names))
    return (
        f"CREATE TEMP TABLE {quoted(table)} AS "
        f"SELECT {quoted(TARGET_ROW)}, CAST(NULL AS BIGINT) AS {quoted(SOURCE_ROW)}, {keys} FROM {quoted(target)}"
    )


class Clauses(NamedTuple):
    """Whether a strategy updates matched rows and inserts new ones.

    SQL deletes no rows. It updates the rows that strategy `delete` deletes, to tell which they are.
    """

    update: bool
    insert: bool

    @classmethod
    def of(cls, strategy: str) -> Clauses:
        return cls(update=strategy != "insert", insert=strategy not in ("update", "delete"))


def merge_into(table: str, view: str, names: Sequence[str], clauses: Clauses) -> str:
    update = f" WHEN MATCHED THEN UPDATE SET {quoted(SOURCE_ROW)} = source.{quoted(SOURCE_ROW)}"
    insert = " WHEN NOT MATCHED THEN INSERT BY NAME"
    return (
        f"MERGE INTO {quoted(table)} AS target USING {quoted(view)} AS source ON ({same_key(names)})"
        f"{update if clauses.update else ''}{insert if clauses.insert else ''} RETURNING merge_action, *"
    )


def matched_rows(table: str, view: str, names: Sequence[str], clauses: Clauses) -> str:
    """Select target rows with their source rows after MERGE."""
    if clauses.update:
        return (
            f"SELECT {quoted(TARGET_ROW)}, {quoted(SOURCE_ROW)} FROM {quoted(table)} "
            f"WHERE {quoted(TARGET_ROW)} IS NOT NULL AND {quoted(SOURCE_ROW)} IS NOT NULL ORDER BY {quoted(TARGET_ROW)}"
        )
    return (
        f"SELECT target.{quoted(TARGET_ROW)}, source.{quoted(SOURCE_ROW)} FROM {quoted(table)} AS target "
        f"JOIN {quoted(view)} AS source ON ({same_key(names)}) WHERE target.{quoted(TARGET_ROW)} IS NOT NULL ORDER BY 1"
    )


def union_all(result: str, table: str, view: str, names: Sequence[str], clauses: Clauses) -> str:
    matched = "UPDATE" if clauses.update else "KEEP"
    statement = (
        f"CREATE TEMP TABLE {quoted(result)} AS SELECT '{matched}' AS merge_action, "
        f"target.{quoted(TARGET_ROW)}, source.{quoted(SOURCE_ROW)} "
        f"FROM {quoted(table)} AS target JOIN {quoted(view)} AS source ON ({same_key(names)})"
    )
    if not clauses.insert:
        return statement
    return (
        f"{statement} UNION ALL SELECT 'INSERT', NULL, source.{quoted(SOURCE_ROW)} FROM {quoted(view)} AS source "
        f"WHERE NOT EXISTS (SELECT 1 FROM {quoted(table)} AS target WHERE {same_key(names)})"
    )


def unified_rows(result: str) -> str:
    return (
        f"SELECT {quoted(TARGET_ROW)}, {quoted(SOURCE_ROW)} FROM {quoted(result)} "
        f"WHERE {quoted(TARGET_ROW)} IS NOT NULL ORDER BY {quoted(TARGET_ROW)}"
    )


def count_actions(result: str) -> str:
    return f"SELECT merge_action, COUNT(*) FROM {quoted(result)} GROUP BY merge_action"
