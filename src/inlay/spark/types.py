"""The types of Spark that hold every value of a type of a dataset."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from inlay.errors import SchemaMismatchError
from inlay.incremental.validate import require_columns
from inlay.schema import family, map_leaf_types, storage_type

__all__ = ["arrow_schema", "require_types", "spark_schema"]

_MAX_DIGITS = 38
_IN_MICROSECONDS = {
    "zoned timestamp": pa.timestamp("us", "UTC"),
    "naive timestamp": pa.timestamp("us"),
    "duration": pa.duration("us"),
}
_OF_FAMILY = {"text": pa.string(), "binary": pa.binary()}
_SAME = ("null", "boolean", "integer", "float", "date")
_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def arrow_schema(schema: Any) -> pa.Schema:
    """Return the schema of the batches that Spark exchanges with Python for a schema of Spark."""
    return to_arrow_schema(schema, timezone="UTC")


def spark_schema(schema: pa.Schema, columns: list[str] | None = None) -> Any:
    """Return the schema with which Spark reads columns of a dataset. Refuse types that Spark lacks."""
    require_columns(columns or (), schema, "the dataset", "column")
    fields = [field for field in schema if columns is None or field.name in columns]
    if columns is not None:
        fields.sort(key=lambda field: columns.index(field.name))
    return from_arrow_schema(pa.schema([pa.field(field.name, _readable(field)) for field in fields]))


def require_types(wanted: Any, schema: pa.Schema) -> None:
    """Raise unless each column of `wanted`, a schema of Spark, has its type in the dataset."""
    stored = spark_schema(schema, wanted.names)
    for field in wanted:
        if field.dataType != stored[field.name].dataType:
            raise SchemaMismatchError(
                f"Column {field.name!r} is {stored[field.name].dataType.simpleString()} in the dataset, not "
                f"{field.dataType.simpleString()}.",
                hint="Load the dataset again, without a schema or with this type.",
            )


def _readable(field: pa.Field) -> pa.DataType:
    def leaf(type_: pa.DataType) -> pa.DataType:
        found = _equal_type(type_)
        if found is None:
            raise SchemaMismatchError(
                f"Spark has no type for column {field.name!r}, which is {field.type}.",
                hint='Leave the column out: name the other columns with option("columns", "a,b").',
            )
        return found

    return map_leaf_types(storage_type(field.type), lambda type_: leaf(storage_type(type_)))


def _equal_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type that Spark has for all values of `type_`, or None."""
    kind = family(type_)
    if kind in ("zoned timestamp", "naive timestamp", "duration"):
        return None if type_.unit == "ns" else _IN_MICROSECONDS[kind]
    if kind == "decimal":
        return pa.decimal128(type_.precision, type_.scale) if type_.precision <= _MAX_DIGITS else None
    return _WIDER.get(type_) or _OF_FAMILY.get(kind, type_ if kind in _SAME else None)
