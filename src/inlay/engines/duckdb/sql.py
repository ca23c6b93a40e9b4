"""The SQL statements of the DuckDB engine. Values and paths are bound parameters.

`target` is a temporary table of keys found in data files, with their row numbers (TARGET_ROW). `source` is the view of
the source keys with their row numbers (SOURCE_ROW).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from inlay.engines.keys import canonical_type
from inlay.schema import storage_type

__all__ = ["SOURCE_ROW", "TARGET_ROW", "Clauses", "ReadRule", "column_names", "comparable_keys", "quoted", "read_rule"]

# ruff: noqa: S608  (statements contain only quoted names)

TARGET_ROW, SOURCE_ROW = "target row", "source row"
_OPTIONS = "file_row_number = true, filename = true, hive_partitioning = false, union_by_name = false"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def column_names(key_columns: Sequence[str]) -> list[str]:
    """Name the key columns in temporary tables. Names that SQL considers equal get a suffix."""
    taken = {TARGET_ROW, SOURCE_ROW, "path", "first row"}
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
class ReadRule(NamedTuple):
    """The type that DuckDB must report for a key column, and the SQL of its comparable value."""

    type: str
    expression: str

    @property
    def is_computed(self) -> bool:
        return self.expression != "{}"


# DuckDB reads the largest and smallest integer as infinity, for which epoch_us fails.
_MICROSECONDS = (
    "CASE WHEN {0} = 'infinity' THEN 9223372036854775807 WHEN {0} = '-infinity' THEN -9223372036854775807 "
    "ELSE epoch_us({0}) END"
)
# DuckDB reads these types from Parquet without changing a value. Arrow reads all others: floats, because NaN and 0.0
# have several bit patterns, and times, durations and timestamps in units that DuckDB converts.
_READ_RULES = {
    pa.bool_(): ReadRule("BOOLEAN", "{}"),
    pa.int8(): ReadRule("TINYINT", "{}"),
    pa.int16(): ReadRule("SMALLINT", "{}"),
    pa.int32(): ReadRule("INTEGER", "{}"),
    pa.int64(): ReadRule("BIGINT", "{}"),
    pa.uint8(): ReadRule("UTINYINT", "{}"),
    pa.uint16(): ReadRule("USMALLINT", "{}"),
    pa.uint32(): ReadRule("UINTEGER", "{}"),
    pa.uint64(): ReadRule("UBIGINT", "{}"),
    pa.large_string(): ReadRule("VARCHAR", "encode({})"),
    pa.large_binary(): ReadRule("BLOB", "{}"),
    pa.date32(): ReadRule("DATE", "CAST({} - DATE '1970-01-01' AS INTEGER)"),
    pa.timestamp("us"): ReadRule("TIMESTAMP", _MICROSECONDS),
    pa.timestamp("us", "UTC"): ReadRule("TIMESTAMP WITH TIME ZONE", _MICROSECONDS),
}


def read_rule(in_file: pa.DataType, in_dataset: pa.DataType) -> ReadRule | None:
    """Return how DuckDB reads a key column, or None if only Arrow reads it exactly."""
    canonical = canonical_type(in_dataset)
    if isinstance(in_file, pa.BaseExtensionType) or canonical_type(in_file) != canonical:
        return None
    if pa.types.is_decimal128(canonical):
        return ReadRule(f"DECIMAL({canonical.precision},{canonical.scale})", "{}")
    return _READ_RULES.get(canonical)


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


def create_table(table: str, view: str, names: Sequence[str]) -> str:
    keys = ", ".join(map(quoted, names))
    return (
        f"CREATE TEMP TABLE {quoted(table)} AS SELECT CAST(NULL AS BIGINT) AS {quoted(TARGET_ROW)}, "
        f"CAST(NULL AS BIGINT) AS {quoted(SOURCE_ROW)}, {keys} FROM {quoted(view)} LIMIT 0"
    )


def fill_table(table: str, view: str, names: Sequence[str], scan: str) -> str:
    """Insert the scanned keys that the source has, sorted, which makes updates faster."""
    keys = ", ".join(map(quoted, names))
    return (
        f"INSERT INTO {quoted(table)} ({quoted(TARGET_ROW)}, {keys}) "
        f"SELECT {quoted(TARGET_ROW)}, {keys} FROM ({scan}) AS target "
        f"WHERE EXISTS (SELECT 1 FROM {quoted(view)} AS source WHERE {same_key(names)}) ORDER BY {keys}"
    )


def scan_view(view: str) -> str:
    return f"SELECT * FROM {quoted(view)}"


def scan_files(files: str, names: Sequence[str], expressions: Sequence[str], ranges: int) -> str:
    """Scan keys of files. Bound parameters: the paths, then the bounds of each row range."""
    columns = ", ".join(f"{e} AS {quoted(n)}" for e, n in zip(expressions, names, strict=True))
    where = " OR ".join(["scan.file_row_number BETWEEN ? AND ?"] * ranges)
    return (
        f'SELECT files."first row" + scan.file_row_number AS {quoted(TARGET_ROW)}, {columns} '
        f"FROM read_parquet(?, {_OPTIONS}) AS scan JOIN {quoted(files)} AS files ON scan.filename = files.path"
        + (f" WHERE {where}" if where else "")
    )


def probe_file(columns: Sequence[str]) -> str:
    types = "".join(f", typeof({quoted(name)})" for name in columns)
    return f"SELECT filename{types} FROM read_parquet(?, {_OPTIONS}) LIMIT 1"


class Clauses(NamedTuple):
    """Whether a strategy updates matched rows and inserts new ones. SQL does not delete rows."""

    update: bool
    insert: bool

    @classmethod
    def of(cls, strategy: str) -> Clauses:
        return cls(update=strategy != "insert", insert=strategy != "update")


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
