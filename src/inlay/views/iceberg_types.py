"""The types of Apache Iceberg for Arrow types, and the IDs of its fields.

A signature is the type as plain data: a name, or a tuple of the kind of a nested type and the signatures of its parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from inlay.schema import storage_type
from inlay.views import inexpressible_error

if TYPE_CHECKING:
    from pyiceberg.types import IcebergType

__all__ = ["Ids", "Numbering", "all_ids", "iceberg_type", "is_promotion", "name_mapping", "signature_of"]

#: The IDs of fields by name, each with those of its nested fields. A name keeps its ID for ever.
Ids: TypeAlias = dict[str, tuple[int, "Ids"]]

_TYPES = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
}


def signature_of(arrow: pa.DataType, column: str) -> Any:
    """Return the type of Iceberg for an Arrow type, or raise an error that names the column.

    Nested types are tuples with the signatures of their parts.
    """
    type_, types = storage_type(arrow), pa.types
    found: Any = _TYPES.get(type_)
    if types.is_timestamp(type_) and type_.unit != "ns" and type_.tz in (None, "UTC"):
        found = "timestamptz" if type_.tz else "timestamp"
    elif types.is_fixed_size_binary(type_):
        found = ("fixed", type_.byte_width)
    elif types.is_decimal(type_) and type_.precision <= 38 and 0 <= type_.scale <= type_.precision:
        found = ("decimal", type_.precision, type_.scale)
    elif types.is_struct(type_) and type_.num_fields:
        fields = [type_.field(at) for at in range(type_.num_fields)]
        found = ("struct", *((each.name, signature_of(each.type, column)) for each in fields))
    elif types.is_map(type_):
        found = ("map", signature_of(type_.key_type, column), signature_of(type_.item_type, column))
    elif types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        found = ("list", signature_of(type_.value_type, column))
    if found is None:
        raise inexpressible_error("iceberg", column, f"it has no type for {arrow}")
    return found


class Numbering:
    """Assigns the next ID to each new name."""

    def __init__(self, ids: Ids) -> None:
        self._next = itertools.count(max(all_ids(ids), default=0) + 1)

    def add(self, ids: Ids, fields: Iterable[tuple[str, Any]]) -> Ids:
        """Return the IDs of old and new fields."""
        result = {name: (number, dict(nested)) for name, (number, nested) in ids.items()}
        for name, signature in fields:
            number, nested = result[name] if name in result else (next(self._next), {})
            result[name] = number, self.add(nested, _parts(signature))
        return result


def _parts(signature: Any) -> list[tuple[str, Any]]:
    if not isinstance(signature, tuple) or signature[0] in ("fixed", "decimal"):
        return []
    kind, *parts = signature
    if kind == "struct":
        return parts
    return list(zip(("element",) if kind == "list" else ("key", "value"), parts, strict=True))


def all_ids(ids: Ids) -> Iterator[int]:
    for number, nested in ids.values():
        yield number
        yield from all_ids(nested)


def name_mapping(ids: Ids) -> list[dict[str, Any]]:
    return [
        {"field-id": number, "names": [name]} | ({"fields": name_mapping(nested)} if nested else {})
        for name, (number, nested) in ids.items()
    ]


def iceberg_type(signature: Any, ids: Ids) -> IcebergType:
    from pyiceberg import types

    if isinstance(signature, str):
        simple: IcebergType = getattr(types, _CLASSES[signature])()
        return simple
    kind, *parts = signature
    if kind == "fixed":
        return types.FixedType(*parts)
    if kind == "decimal":
        return types.DecimalType(*parts)
    of = {name: iceberg_type(part, ids[name][1]) for name, part in _parts(signature)}
    number = {name: ids[name][0] for name in of}
    if kind == "list":
        return types.ListType(element_id=number["element"], element=of["element"], element_required=False)
    if kind == "map":
        return types.MapType(
            key_id=number["key"],
            key_type=of["key"],
            value_id=number["value"],
            value_type=of["value"],
            value_required=False,
        )
    return types.StructType(*(types.NestedField(number[name], name, of[name], required=False) for name in of))


_CLASSES = {
    "boolean": "BooleanType",
    "int": "IntegerType",
    "long": "LongType",
    "float": "FloatType",
    "double": "DoubleType",
    "date": "DateType",
    "time": "TimeType",
    "timestamp": "TimestampType",
    "timestamptz": "TimestamptzType",
    "string": "StringType",
    "binary": "BinaryType",
}


_PROMOTIONS = {("int", "long"), ("float", "double")}


def is_promotion(old: Any, new: Any) -> bool:
    if old == new or (isinstance(old, str) and (old, new) in _PROMOTIONS):
        return True
    if not isinstance(old, tuple) or not isinstance(new, tuple) or old[0] != new[0]:
        return False
    if old[0] == "decimal":
        return bool(old[2] == new[2] and old[1] <= new[1])
    if old[0] != "struct":
        return len(old) == len(new) and all(map(is_promotion, old[1:], new[1:]))
    fields = dict(new[1:])
    return all(is_promotion(type_, fields[name]) for name, type_ in old[1:] if name in fields)
