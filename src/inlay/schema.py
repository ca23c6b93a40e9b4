"""Common types of schemas that differ, and casts that never change a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from inlay.errors import SchemaMismatchError

__all__ = [
    "WIDE_INDEX_BITS",
    "Path",
    "common_type",
    "contains_type",
    "family",
    "is_widening",
    "lossless_cast",
    "map_leaf_types",
    "needs_decimal256",
    "nested_fields",
    "null_column",
    "require_distinct_names",
    "storage_type",
    "unify",
    "widen_column",
    "wider_type",
    "with_wide_indices",
    "without_schema_copies",
]

Path: TypeAlias = tuple[str, ...]  # of a field: its column, and the fields of structs that lead to it

_is: Any = pa.types
WIDE_INDEX_BITS = 32  # Dictionary indices of this width can number all values of a row group.

_FAMILIES: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("null", _is.is_null),
    ("boolean", _is.is_boolean),
    ("integer", _is.is_integer),
    ("float", _is.is_floating),
    ("decimal", _is.is_decimal),
    ("text", lambda t: _is.is_string(t) or _is.is_large_string(t) or _is.is_string_view(t)),
    (
        "binary",
        lambda t: _is.is_binary(t) or _is.is_large_binary(t) or _is.is_binary_view(t) or _is.is_fixed_size_binary(t),
    ),
    ("zoned timestamp", lambda t: _is.is_timestamp(t) and t.tz is not None),
    ("naive timestamp", _is.is_timestamp),
    ("date", _is.is_date),
    ("time", _is.is_time),
    ("duration", _is.is_duration),
    ("map", _is.is_map),
    ("list", lambda t: _is.is_list(t) or _is.is_large_list(t) or _is.is_fixed_size_list(t)),
    ("struct", _is.is_struct),
)
# Casts between these families are allowed if every single value fits.
_CROSS_FAMILY_CASTS = {
    ("integer", "float"),
    ("float", "integer"),
    ("integer", "decimal"),
    ("decimal", "integer"),
}
_NESTED = frozenset({"list", "map", "struct"})
_UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_EXACT_FLOAT = {16: pa.float32(), 32: pa.float64()}


def storage_type(type_: pa.DataType) -> pa.DataType:
    """Return the plain type inside dictionary and extension types."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif _is.is_dictionary(type_):
            type_ = type_.value_type
        else:
            return type_


def with_wide_indices(schema: pa.Schema) -> pa.Schema:
    """Widen dictionary indices, so that they can number the values of all files of a dataset."""

    def widen(type_: pa.DataType) -> pa.DataType:
        if not _is.is_dictionary(type_) or type_.index_type.bit_width >= WIDE_INDEX_BITS:
            return type_
        return pa.dictionary(pa.int32(), type_.value_type, type_.ordered)

    return pa.schema([field.with_type(map_leaf_types(field.type, widen)) for field in schema], schema.metadata)


def map_leaf_types(type_: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Replace the leaf types of a nested type with `change(leaf)`."""

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(map_leaf_types(field.type, change))

    if _is.is_struct(type_):
        return pa.struct([changed(field) for field in type_])
    if _is.is_map(type_):
        return pa.map_(changed(type_.key_field), changed(type_.item_field), keys_sorted=type_.keys_sorted)
    if _is.is_fixed_size_list(type_):
        return pa.list_(changed(type_.value_field), type_.list_size)
    if _is.is_large_list(type_):
        return pa.large_list(changed(type_.value_field))
    if _is.is_list(type_):
        return pa.list_(changed(type_.value_field))
    return change(type_)


def contains_type(type_: pa.DataType, matches: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type or any type nested in it meets a condition."""
    plain = storage_type(type_)
    if _is.is_nested(plain):
        return any(contains_type(plain.field(i).type, matches) for i in range(plain.num_fields))
    return matches(plain)


def family(type_: pa.DataType) -> str:
    plain = storage_type(type_)
    return next((name for name, matches in _FAMILIES if matches(plain)), str(plain))


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that represents all values of both types, or None. Prefer `left`."""
    if left.equals(right) or family(right) == "null":
        return left
    if family(left) == "null":
        return right
    if _is.is_dictionary(left) and _is.is_dictionary(right):
        value = common_type(left.value_type, right.value_type)
        index = max(left.index_type, right.index_type, key=lambda t: t.bit_width)
        return None if value is None else pa.dictionary(index, value, left.ordered and right.ordered)
    kind = (family(left), family(right))
    if kind[0] != kind[1]:
        return _common_across(left, right, kind)
    widen = _WIDEN.get(kind[0])
    return left if widen is None else widen(storage_type(left), storage_type(right))


def _common_across(left: pa.DataType, right: pa.DataType, kind: tuple[str, str]) -> pa.DataType | None:
    if kind[0] != "integer":
        return _common_across(right, left, (kind[1], kind[0])) if kind[1] == "integer" else None
    integer, other = storage_type(left), storage_type(right)
    if kind[1] == "decimal":
        return _widen_decimal(pa.decimal128(_DIGITS[integer.bit_width], 0), other)
    if kind[1] == "float" and integer.bit_width < 64:
        return _widen_float(_EXACT_FLOAT.get(integer.bit_width, pa.float32()), other)
    return None


def _widen_integer(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    signs = _is.is_signed_integer(left), _is.is_signed_integer(right)
    if signs[0] == signs[1]:
        return max(left, right, key=lambda t: t.bit_width)
    signed, unsigned = (left, right) if signs[0] else (right, left)
    bits = max(signed.bit_width, unsigned.bit_width * 2)
    return pa.decimal128(20, 0) if bits > 64 else {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]


def _widen_float(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return max(left, right, key=lambda t: t.bit_width)


def _widen_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scale = max(left.scale, right.scale)
    precision = max(left.precision - left.scale, right.precision - right.scale) + scale
    if precision > 76:
        return None
    wide = precision > 38 or _is.is_decimal256(left) or _is.is_decimal256(right)
    return pa.decimal256(precision, scale) if wide else pa.decimal128(precision, scale)


def _widen_unit(
    make: Callable[[str, pa.DataType], pa.DataType],
) -> Callable[[pa.DataType, pa.DataType], pa.DataType]:
    def widen(left: pa.DataType, right: pa.DataType) -> pa.DataType:
        return left if _UNITS[left.unit] >= _UNITS[right.unit] else make(right.unit, left)

    return widen


def _widen_binary(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    fixed = [_is.is_fixed_size_binary(type_) for type_ in (left, right)]
    if all(fixed):
        return left if left.byte_width == right.byte_width else pa.binary()
    return right if fixed[0] else left


def _widen_list(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    value = common_type(left.value_type, right.value_type)
    if value is None:
        return None
    if _is.is_fixed_size_list(left) and not (_is.is_fixed_size_list(right) and left.list_size == right.list_size):
        return pa.list_(left.value_field.with_type(value))
    return left if value.equals(left.value_type) else pa.list_(left.value_field.with_type(value))


def _widen_struct(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    fields = []
    for field in left.fields:
        other = right.field(field.name) if right.get_field_index(field.name) >= 0 else None
        merged = None if other is None else _common_field(field, other)
        if merged is None:
            return None
        fields.append(merged)
    return pa.struct(fields) if len(fields) == right.num_fields else None


def _widen_map(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    key, item = common_type(left.key_type, right.key_type), common_type(left.item_type, right.item_type)
    return None if key is None or item is None else pa.map_(key, item)


_WIDEN: dict[str, Callable[[pa.DataType, pa.DataType], pa.DataType | None]] = {
    "integer": _widen_integer,
    "float": _widen_float,
    "decimal": _widen_decimal,
    "binary": _widen_binary,
    "naive timestamp": _widen_unit(lambda unit, _: pa.timestamp(unit)),
    "zoned timestamp": _widen_unit(lambda unit, like: pa.timestamp(unit, like.tz)),
    "time": _widen_unit(lambda unit, _: pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)),
    "duration": _widen_unit(lambda unit, _: pa.duration(unit)),
    "list": _widen_list,
    "struct": _widen_struct,
    "map": _widen_map,
}


def _common_field(left: pa.Field, right: pa.Field) -> pa.Field | None:
    type_ = common_type(left.type, right.type)
    return None if type_ is None else left.with_type(type_).with_nullable(left.nullable or right.nullable)


def require_distinct_names(schema: pa.Schema, owner: str) -> None:
    if len(set(schema.names)) < len(schema):
        repeated = next(name for name in schema.names if schema.names.count(name) > 1)
        raise SchemaMismatchError(
            f"{owner} has more than one column named {repeated!r}.", hint="Rename the duplicate columns."
        )


def unify(schemas: Sequence[pa.Schema], names: Sequence[str]) -> pa.Schema:
    """Combine the schemas of files: the columns and order of the first file, widened by the other files."""
    for schema, name in zip(schemas, names, strict=True):
        require_distinct_names(schema, f"The file {name!r}")
    first = schemas[0]
    fields = {field.name: field for field in first}
    for schema, name in zip(schemas[1:], names[1:], strict=True):
        for field in schema:
            known = fields.get(field.name)
            merged = field.with_nullable(True) if known is None else _common_field(known, field)
            if merged is None:
                raise SchemaMismatchError(
                    f"Files of the dataset have incompatible types: column {field.name!r} is "
                    f"{fields[field.name].type} in {names[0]!r} and {field.type} in {name!r}.",
                    hint="Rewrite one of the files so that the column has the same type in both.",
                )
            fields[field.name] = merged
        for missing in fields.keys() - set(schema.names):
            fields[missing] = fields[missing].with_nullable(True)
    unified = pa.schema(fields.values())
    return unified.with_metadata(first.metadata if unified.equals(first) else without_schema_copies(first.metadata))


# Metadata keys under which programs store a copy of the schema, which they trust more than the schema of the file.
_SCHEMA_COPIES = frozenset(
    {
        b"ARROW:schema",
        b"pandas",
        b"org.apache.spark.sql.parquet.row.metadata",
        b"parquet.avro.schema",
        b"avro.schema",
        b"iceberg.schema",
    }
)


def without_schema_copies(metadata: Mapping[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    """Remove copies of a schema that no longer matches the file from its metadata."""
    return {key: value for key, value in (metadata or {}).items() if key not in _SCHEMA_COPIES} or None


def lossless_cast(values: pa.ChunkedArray, to: pa.DataType, column: str, *, as_key: bool = False) -> pa.ChunkedArray:
    """Cast values to another type. Raise SchemaMismatchError if any value would change."""
    if values.type.equals(to):
        return values
    if not _is_castable(values.type, to, as_key=as_key):
        raise SchemaMismatchError(_mismatch(column, values.type, to))
    try:
        result = _cast(values, to)
        if not _keeps_values(values, result):
            raise pa.ArrowInvalid("the cast changes values")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise SchemaMismatchError(f"{_mismatch(column, values.type, to)} ({_first_line(error)})") from error
    return result


def is_widening(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of a type is a value of the new type. Structs may get new nullable fields."""
    if old.equals(new):
        return True
    if any(isinstance(type_, pa.BaseExtensionType) or _is.is_dictionary(type_) for type_ in (old, new)):
        return False
    if needs_decimal256(old, new):  # polars cannot read its values, and DuckDB rounds them
        return False
    if _is.is_date(old) and _is.is_timestamp(new):
        return new.tz is None
    kind = family(old)
    return kind == family(new) and (_is_wider_nested if kind in _NESTED else _is_wider_scalar)(old, new)


def _is_wider_scalar(old: pa.DataType, new: pa.DataType) -> bool:
    kinds = ("integer", "float", "decimal", "naive timestamp", "zoned timestamp", "time", "duration")
    if family(old) == "text":  # Parquet stores all of them alike
        return True
    common = common_type(old, new) if family(old) in kinds else None
    return common is not None and bool(common.equals(new))


def needs_decimal256(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a type has decimals of more than 38 digits, and an old type has none."""
    return has_decimal256(new) and not has_decimal256(old)


def has_decimal256(type_: pa.DataType) -> bool:
    plain = storage_type(type_)
    children = (plain.field(at).type for at in range(plain.num_fields))
    return bool(_is.is_decimal256(plain)) or any(map(has_decimal256, children))


def _is_wider_nested(old: pa.DataType, new: pa.DataType) -> bool:
    if _is.is_map(old):
        return bool(old.key_type.equals(new.key_type) and is_widening(old.item_type, new.item_type))
    if not _is.is_struct(old):
        return bool(old.id == new.id and is_widening(old.value_type, new.value_type))
    added = [field for field in new.fields if old.get_field_index(field.name) < 0]
    return all(field.nullable for field in added) and all(_is_wider_field(field, new) for field in old.fields)


def _is_wider_field(field: pa.Field, struct: pa.DataType) -> bool:
    if struct.get_field_index(field.name) < 0:
        return False
    new = struct.field(field.name)
    return new.nullable >= field.nullable and is_widening(field.type, new.type)


def wider_type(old: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that widens `old` to hold values of a source, or None if there is none."""
    new = _join_types(old, source)
    return new if new is not None and is_widening(old, new) else None


def _join_types(old: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    if _is.is_date(old) and family(source) == "naive timestamp":
        return storage_type(source)
    if family(old) != family(source):
        return old if family(source) == "null" else None
    if _is.is_struct(old):
        return _join_structs(old, storage_type(source))
    if _is.is_map(old):
        item = _join_types(old.item_type, source.item_type)
        return None if item is None else pa.map_(old.key_field, old.item_field.with_type(item), old.keys_sorted)
    if _is.is_nested(old):
        value = _join_types(old.value_type, source.value_type)
        return None if value is None else _list_of(old, value)
    return common_type(old, source)


def _join_structs(old: pa.DataType, source: pa.DataType) -> pa.DataType | None:
    fields = []
    for field in old.fields:
        at = source.get_field_index(field.name)
        type_ = None if at < 0 else _join_types(field.type, source.field(at).type)
        if type_ is None:
            return None
        fields.append(field.with_type(type_))
    added = [field.with_nullable(True) for field in source.fields if old.get_field_index(field.name) < 0]
    return pa.struct([*fields, *added])


def _list_of(type_: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Return a list type of the same kind with another type of values."""
    item = type_.value_field.with_type(value)
    if _is.is_fixed_size_list(type_):
        return pa.list_(item, type_.list_size)
    return pa.large_list(item) if _is.is_large_list(type_) else pa.list_(item)


def widen_column(values: pa.ChunkedArray, to: pa.DataType, column: str) -> pa.ChunkedArray:
    """Convert values to a type that `is_widening` allows. New fields are NULL."""
    if values.type.equals(to):
        return values
    return pa.chunked_array([_widen_array(chunk, to, column) for chunk in values.chunks], to)


def _widen_array(array: pa.Array, to: pa.DataType, column: str) -> pa.Array:
    old = array.type
    if old.equals(to):
        return array
    if _is.is_struct(to) and _is.is_struct(old):
        children = [
            _widen_array(array.field(old.get_field_index(field.name)), field.type, f"{column}.{field.name}")
            if old.get_field_index(field.name) >= 0
            else null_column(len(array), field.type).combine_chunks()
            for field in to.fields
        ]
        return pa.StructArray.from_arrays(children, fields=to.fields, mask=array.is_null())
    if _is.is_nested(to) and _is.is_nested(old):
        array = pa.concat_arrays([array])
        if _is.is_map(to):
            fields = [to.key_field, to.item_field]
            child = pa.StructArray.from_arrays(
                [array.keys, _widen_array(array.items, to.item_type, column)], fields=fields
            )
        else:
            child = _widen_array(array.values, to.value_type, column)
        own = array.buffers()[: 1 if _is.is_fixed_size_list(to) else 2]
        return pa.Array.from_buffers(to, len(array), own, array.null_count, array.offset, [child])
    return _widen_leaves(array, to, column)


def _widen_leaves(array: pa.Array, to: pa.DataType, column: str) -> pa.Array:
    try:
        if _is.is_date(array.type) and _is.is_timestamp(to):
            return array.cast(pa.timestamp("s")).cast(to)
        return lossless_cast(pa.chunked_array([array]), to, column).combine_chunks()
    except (pa.ArrowInvalid, SchemaMismatchError) as error:
        reason = _first_line(error.__cause__ or error)
        raise SchemaMismatchError(
            f"Column {column!r} is {array.type} and cannot become {to}: not every value fits. ({reason})",
            hint="Choose a type that holds all values, such as timestamps in a coarser unit.",
        ) from error


def _is_castable(source: pa.DataType, to: pa.DataType, *, as_key: bool = False) -> bool:
    """Return whether a cast can keep values. Arrow alone would also cast numbers to text."""
    kinds = (family(source), family(to))
    if kinds[0] != kinds[1]:
        return kinds[0] == "null" or (kinds in _CROSS_FAMILY_CASTS and not (as_key and "float" in kinds))
    old, new = storage_type(source), storage_type(to)
    if kinds[0] == "list":
        return _is_castable(old.value_type, new.value_type)
    if kinds[0] == "map":
        return _is_castable(old.key_type, new.key_type) and _is_castable(old.item_type, new.item_type)
    if kinds[0] == "struct":
        return {f.name for f in old.fields} == {f.name for f in new.fields} and all(
            _is_castable(f.type, new.field(f.name).type) for f in old.fields
        )
    return True


def _mismatch(column: str, source: pa.DataType, target: pa.DataType) -> str:
    lacks = next((f"the dataset lacks the field {path!r}" for path in _unknown_fields(column, source, target)), None)
    misses = next((f"the source lacks the field {path!r}" for path in _unknown_fields(column, target, source)), None)
    types = f"Column {column!r} is {source} in the source and {target} in the dataset"
    return f"{types}: {lacks or misses}." if lacks or misses else f"{types}, and not every value fits."


def _unknown_fields(path: str, type_: pa.DataType, known: pa.DataType) -> Iterator[str]:
    """Yield the paths of the struct fields of a type that another type does not have."""
    if family(type_) != family(known) or family(type_) not in _NESTED:
        return
    type_, known = storage_type(type_), storage_type(known)
    if _is.is_struct(type_):
        for field in type_.fields:
            if known.get_field_index(field.name) < 0:
                yield f"{path}.{field.name}"
            else:
                yield from _unknown_fields(f"{path}.{field.name}", field.type, known.field(field.name).type)
    elif _is.is_map(type_):
        yield from _unknown_fields(path, type_.item_type, known.item_type)
    else:
        yield from _unknown_fields(path, type_.value_type, known.value_type)


def nested_fields(type_: pa.DataType, path: Path = ()) -> list[Path]:
    """List the paths of all fields inside the structs of a type. A path does not name lists and maps."""
    plain = storage_type(type_)
    if _is.is_struct(plain):
        inside = [(field.type, (*path, field.name)) for field in plain.fields]
        return [each for member, below in inside for each in (below, *nested_fields(member, below))]
    if family(plain) in _NESTED:
        return nested_fields(plain.item_type if _is.is_map(plain) else plain.value_type, path)
    return []


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def null_column(rows: int, type_: pa.DataType) -> pa.ChunkedArray:
    """Return a column of NULLs.

    `pa.nulls` would also set the required fields of structs to NULL, which no Parquet file can store.
    """
    if not _is.is_nested(storage_type(type_)):
        return pa.chunked_array([pa.nulls(rows, type_)])
    return pa.chunked_array([pa.array([None], type_).take(pa.nulls(rows, pa.int64()).fill_null(0))])


def _cast(values: pa.ChunkedArray, to: pa.DataType) -> pa.ChunkedArray:
    if _is.is_null(values.type):
        return null_column(len(values), to)
    plain = values
    if isinstance(values.type, pa.BaseExtensionType):
        plain = pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    if _is.is_dictionary(plain.type):
        plain = plain.cast(plain.type.value_type)
    if isinstance(to, pa.BaseExtensionType):
        storage = plain.cast(to.storage_type)
        return pa.chunked_array([pa.ExtensionArray.from_storage(to, chunk) for chunk in storage.chunks], to)
    if _is.is_dictionary(to):
        return plain.cast(to.value_type).dictionary_encode().cast(to)
    return plain.cast(_intermediate_type(plain.type, to)).cast(to)


def _intermediate_type(source: pa.DataType, to: pa.DataType) -> pa.DataType:
    """Return a wide decimal type between integers and decimals, and `to` otherwise.

    Arrow casts integers to a decimal only if all values of the integer type fit. From a wide decimal to a narrow one
    it checks each value.
    """
    if _is.is_integer(source) and _is.is_decimal(to):
        scale = max(to.scale, 0)
        return pa.decimal256(min(_DIGITS[64] + scale, 76), scale)
    if family(source) != family(to) or family(to) not in _NESTED:
        return to
    if _is.is_struct(to):
        return pa.struct([f.with_type(_intermediate_type(source.field(f.name).type, f.type)) for f in to.fields])
    if _is.is_map(to):
        item = to.item_field.with_type(_intermediate_type(source.item_type, to.item_type))
        return pa.map_(to.key_field.with_type(_intermediate_type(source.key_type, to.key_type)), item, to.keys_sorted)
    value = to.value_field.with_type(_intermediate_type(source.value_type, to.value_type))
    if _is.is_fixed_size_list(to):
        return pa.list_(value, to.list_size)
    return pa.large_list(value) if _is.is_large_list(to) else pa.list_(value)


def _keeps_values(before: pa.ChunkedArray, after: pa.ChunkedArray) -> bool:
    """Check the casts that Arrow's safe mode does not check: floats, and decimals of 32 and 64 bits."""
    before, after = _stored(before), _stored(after)
    kinds = (family(before.type), family(after.type))
    if kinds[0] in _NESTED:
        return all(_keeps_values(*pair) for pair in zip(_children(before), _children(after), strict=True))
    if kinds[1] == "decimal" and kinds[0] != "null":
        return bool(pc.all(pc.equal(before, after.cast(before.type)), min_count=0).as_py())
    if "float" not in kinds or kinds[0] == "null":
        return True
    back = after.cast(before.type, safe=False)
    same = _same_floats(before, back) if kinds[0] == "float" else pc.equal(before, back)
    return bool(pc.all(same, min_count=0).as_py())


def _stored(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return values.cast(storage_type(values.type))


def _children(values: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Return the child values of a nested column. Struct fields are sorted by name."""
    kind = family(values.type)
    if kind == "list":
        return [pc.list_flatten(values)]
    if kind == "map":
        entries = pc.list_flatten(values.cast(pa.list_(pa.struct([values.type.key_field, values.type.item_field]))))
        return [pc.struct_field(entries, [index]) for index in (0, 1)]
    names = sorted(field.name for field in values.type.fields)
    return [pc.struct_field(values, [values.type.get_field_index(name)]) for name in names]


def _same_floats(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    if _is.is_float16(left.type):
        left, right = left.cast(pa.float32()), right.cast(pa.float32())
    both_nan = pc.and_(pc.is_nan(left), pc.is_nan(right))
    return pc.or_(pc.equal(left, right), both_nan)
