# ruff: noqa: S608  (every name is quoted, nothing else is put in)
"""The SQL of the DuckDB engine as text. Names are quoted in one place; values and paths are bound, never written in.

`target` is a temporary table of keys found in files, with the row they stand in (PLACE); `source` is the view of the
source's keys with their row numbers (ROW).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from inlay.engines.keys import canonical_type
from inlay.schema import storage_type

__all__ = ["PLACE", "ROW", "Clauses", "Reading", "column_names", "key_form", "quoted", "reading_of"]

PLACE, ROW = "target row", "source row"
_OPTIONS = "file_row_number = true, filename = true, hive_partitioning = false, union_by_name = false"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def column_names(key_columns: Sequence[str]) -> list[str]:
    """Names for the key columns in tables of ours: their own, unless SQL could not tell them apart."""
    taken = {PLACE, ROW, "path", "first row"}
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


# --------------------------------------------------------------------------------------------------------------- types
class Reading(NamedTuple):
    """How a key column is read from a file: the type that DuckDB must see there, and its form for comparing."""

    type: str
    expression: str

    @property
    def is_computed(self) -> bool:
        return self.expression != "{}"


# The largest and the smallest number mean infinity, which has no microseconds.
_MICROSECONDS = (
    "CASE WHEN {0} = 'infinity' THEN 9223372036854775807 WHEN {0} = '-infinity' THEN -9223372036854775807 "
    "ELSE epoch_us({0}) END"
)
# DuckDB reads these from Parquet without changing a value. All others come through Arrow: floats, since NaN and -0.0
# have several bit patterns, and times, durations and timestamps in units that it would convert.
_READINGS = {
    pa.bool_(): Reading("BOOLEAN", "{}"),
    pa.int8(): Reading("TINYINT", "{}"),
    pa.int16(): Reading("SMALLINT", "{}"),
    pa.int32(): Reading("INTEGER", "{}"),
    pa.int64(): Reading("BIGINT", "{}"),
    pa.uint8(): Reading("UTINYINT", "{}"),
    pa.uint16(): Reading("USMALLINT", "{}"),
    pa.uint32(): Reading("UINTEGER", "{}"),
    pa.uint64(): Reading("UBIGINT", "{}"),
    pa.large_string(): Reading("VARCHAR", "encode({})"),
    pa.large_binary(): Reading("BLOB", "{}"),
    pa.date32(): Reading("DATE", "CAST({} - DATE '1970-01-01' AS INTEGER)"),
    pa.timestamp("us"): Reading("TIMESTAMP", _MICROSECONDS),
    pa.timestamp("us", "UTC"): Reading("TIMESTAMP WITH TIME ZONE", _MICROSECONDS),
}


def reading_of(in_file: pa.DataType, in_dataset: pa.DataType) -> Reading | None:
    """None where DuckDB would not read a key column exactly, or a file has it in another type than the dataset."""
    canonical = canonical_type(in_dataset)
    if isinstance(in_file, pa.BaseExtensionType) or canonical_type(in_file) != canonical:
        return None
    if pa.types.is_decimal128(canonical):
        return Reading(f"DECIMAL({canonical.precision},{canonical.scale})", "{}")
    return _READINGS.get(canonical)


def key_form(keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Canonical keys as whole numbers, bytes, booleans or decimals: what is equal in SQL is then the same key.

    Text becomes bytes because a connection may have a collation.
    """
    type_ = storage_type(keys.type)
    if pa.types.is_large_string(type_):
        return keys.cast(pa.large_binary())
    if pa.types.is_decimal256(type_):
        return _viewed(keys, pa.binary(32)).cast(pa.large_binary())
    if pa.types.is_floating(type_) or pa.types.is_temporal(type_):
        return _viewed(keys, pa.int32() if type_.bit_width == 32 else pa.int64())
    return keys


def _viewed(column: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.view(type_) for chunk in column.chunks], type_)


# ---------------------------------------------------------------------------------------------------------- statements
def same_key(names: Sequence[str]) -> str:
    return " AND ".join(f"target.{quoted(name)} = source.{quoted(name)}" for name in names)


def create_table(table: str, view: str, names: Sequence[str]) -> str:
    keys = ", ".join(map(quoted, names))
    return (
        f"CREATE TEMP TABLE {quoted(table)} AS SELECT CAST(NULL AS BIGINT) AS {quoted(PLACE)}, "
        f"CAST(NULL AS BIGINT) AS {quoted(ROW)}, {keys} FROM {quoted(view)} LIMIT 0"
    )


def fill_table(table: str, view: str, names: Sequence[str], scan: str) -> str:
    """Keep the keys that the source has, sorted as they are there: DuckDB takes far longer to update out of order."""
    keys = ", ".join(map(quoted, names))
    return (
        f"INSERT INTO {quoted(table)} ({quoted(PLACE)}, {keys}) SELECT {quoted(PLACE)}, {keys} FROM ({scan}) AS target "
        f"WHERE EXISTS (SELECT 1 FROM {quoted(view)} AS source WHERE {same_key(names)}) ORDER BY {keys}"
    )


def scan_view(view: str) -> str:
    return f"SELECT * FROM {quoted(view)}"


def scan_files(places: str, names: Sequence[str], expressions: Sequence[str], ranges: int) -> str:
    """Keys of files (bound: their paths) in ranges of rows (bound: first and last; none for whole files)."""
    columns = ", ".join(f"{e} AS {quoted(n)}" for e, n in zip(expressions, names, strict=True))
    where = " OR ".join(["scan.file_row_number BETWEEN ? AND ?"] * ranges)
    return (
        f'SELECT places."first row" + scan.file_row_number AS {quoted(PLACE)}, {columns} '
        f"FROM read_parquet(?, {_OPTIONS}) AS scan JOIN {quoted(places)} AS places ON scan.filename = places.path"
        + (f" WHERE {where}" if where else "")
    )


def probe_file(columns: Sequence[str]) -> str:
    types = "".join(f", typeof({quoted(name)})" for name in columns)
    return f"SELECT filename{types} FROM read_parquet(?, {_OPTIONS}) LIMIT 1"


class Clauses(NamedTuple):
    """What a strategy does with keys in both and keys only in the source. (Deleting is decided from what is left.)"""

    update: bool
    insert: bool

    @classmethod
    def of(cls, strategy: str) -> Clauses:
        return cls(update=strategy != "insert", insert=strategy != "update")


def merge_into(table: str, view: str, names: Sequence[str], clauses: Clauses) -> str:
    return (
        f"MERGE INTO {quoted(table)} AS target USING {quoted(view)} AS source ON ({same_key(names)})"
        + (f" WHEN MATCHED THEN UPDATE SET {quoted(ROW)} = source.{quoted(ROW)}" if clauses.update else "")
        + (" WHEN NOT MATCHED THEN INSERT BY NAME" if clauses.insert else "")
        + " RETURNING merge_action, *"
    )


def matched_rows(table: str, view: str, names: Sequence[str], clauses: Clauses) -> str:
    """The mapping after MERGE: as it was set, or looked up where the strategy leaves matched rows alone."""
    if clauses.update:
        return (
            f"SELECT {quoted(PLACE)}, {quoted(ROW)} FROM {quoted(table)} "
            f"WHERE {quoted(PLACE)} IS NOT NULL AND {quoted(ROW)} IS NOT NULL ORDER BY {quoted(PLACE)}"
        )
    return (
        f"SELECT target.{quoted(PLACE)}, source.{quoted(ROW)} FROM {quoted(table)} AS target "
        f"JOIN {quoted(view)} AS source ON ({same_key(names)}) WHERE target.{quoted(PLACE)} IS NOT NULL ORDER BY 1"
    )


def union_all(result: str, table: str, view: str, names: Sequence[str], clauses: Clauses) -> str:
    matched = "UPDATE" if clauses.update else "KEEP"
    statement = (
        f"CREATE TEMP TABLE {quoted(result)} AS SELECT '{matched}' AS merge_action, "
        f"target.{quoted(PLACE)}, source.{quoted(ROW)} "
        f"FROM {quoted(table)} AS target JOIN {quoted(view)} AS source ON ({same_key(names)})"
    )
    if not clauses.insert:
        return statement
    return (
        f"{statement} UNION ALL SELECT 'INSERT', NULL, source.{quoted(ROW)} FROM {quoted(view)} AS source "
        f"WHERE NOT EXISTS (SELECT 1 FROM {quoted(table)} AS target WHERE {same_key(names)})"
    )


def unified_rows(result: str) -> str:
    return (
        f"SELECT {quoted(PLACE)}, {quoted(ROW)} FROM {quoted(result)} "
        f"WHERE {quoted(PLACE)} IS NOT NULL ORDER BY {quoted(PLACE)}"
    )


def count_actions(result: str) -> str:
    return f"SELECT merge_action, COUNT(*) FROM {quoted(result)} GROUP BY merge_action"
