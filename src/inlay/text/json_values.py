"""Decode JSON values exactly, infer their kind, and convert them to Arrow arrays.

Leaves follow the rules of text cells; nested values are assembled from their members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from inlay.schema import Path, family, storage_type
from inlay.text.cells import Reading, convert
from inlay.text.inference import MIXED, NULL, TEXT, Kind, infer, join

__all__ = [
    "DATED",
    "BadRecordError",
    "Fitted",
    "Number",
    "absent_fields",
    "as_text",
    "columns_of",
    "decode_value",
    "fit",
    "is_text",
    "kind_of",
    "unknown_field",
]


_MAX_TYPED_DEPTH = 32  # deeper values become text
_MAX_DEPTH = 200  # deeper values are rejected
_INT64 = range(-(1 << 63), 1 << 63)
_EXACT_INTEGERS = range(1 - (1 << 53), 1 << 53)


class Number(str):
    """The text of a number that Python's number types would change."""

    __slots__ = ()


class BadRecordError(ValueError):
    """Valid JSON that cannot be a record."""


def _integer(text: str) -> int | Number:
    return int(text) if len(text) < 40 and text != "-0" else Number(text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRecordError("an object contains the same name twice")
    if not "".join(found).isascii() and not all(map(is_text, found)):
        raise BadRecordError("a name contains half of a surrogate pair")
    return found


_decoder = json.JSONDecoder(
    parse_float=Number, parse_int=_integer, parse_constant=Number, object_pairs_hook=_pairs, strict=True
)


def decode_value(text: str) -> Any:
    """Decode a JSON value. A number that Python's types would change becomes a `Number`."""
    value = _decoder.decode(text)
    if text.count("{") + text.count("[") > _MAX_DEPTH and _is_deeper(value, _MAX_DEPTH):
        raise BadRecordError("nested too deeply")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    members = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(member, levels - 1) for member in members)


def is_text(text: str) -> bool:
    """Return False if the text contains half of a surrogate pair."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def columns_of(objects: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for value in objects:
        for name, item in value.items():
            columns.setdefault(name, []).append(item)
    return columns


# ----------------------------------------------------------------------------------------------------------- kinds
def kind_of(values: Sequence[Any], day_first: bool | None = None, depth: int = 0) -> Kind:
    """Return the common kind of values. Only top-level text may be inferred as dates."""
    found = NULL
    for type_, members in _by_type(values).items():
        found = join(found, _KINDS[type_](members, day_first, depth))
    return found


def _by_type(values: Sequence[Any]) -> dict[type, list[Any]]:
    groups: dict[type, list[Any]] = {}
    for value in values:
        if value is not None:
            groups.setdefault(type(value), []).append(value)
    return groups


def _kind_of_integers(values: Sequence[Any], _: bool | None, __: int) -> Kind:
    low, high = min(values), max(values)
    return Kind(
        "number",
        integral=low in _INT64 and high in _INT64,
        exact=low in _EXACT_INTEGERS and high in _EXACT_INTEGERS,
        whole=max(len(str(abs(low))), len(str(abs(high)))),
    )


def _kind_of_numbers(values: Sequence[Any], _: bool | None, __: int) -> Kind:
    return infer(pa.array([str(value) for value in values], pa.string()))


def _kind_of_text(values: Sequence[Any], day_first: bool | None, depth: int) -> Kind:
    if depth or "" in values:
        return TEXT
    kind = infer(pa.array(_encodable(values), pa.string()), day_first)
    return kind if kind.family in ("date", "timestamp") else replace(TEXT, form=kind.form, note=kind.note)


def _encodable(values: Sequence[str]) -> list[str]:
    return [value.encode("utf-8", "replace").decode() for value in values]


def _kind_of_lists(values: Sequence[Any], _: bool | None, depth: int) -> Kind:
    if depth >= _MAX_TYPED_DEPTH:
        return MIXED
    return Kind("list", items=kind_of([item for value in values for item in value], None, depth + 1))


def _kind_of_objects(values: Sequence[Any], _: bool | None, depth: int) -> Kind:
    if depth >= _MAX_TYPED_DEPTH:
        return MIXED
    fields = {name: kind_of(items, None, depth + 1) for name, items in columns_of(values).items()}
    return Kind("struct", fields=tuple(fields.items()))


_KINDS: dict[type, Callable[[Sequence[Any], bool | None, int], Kind]] = {
    bool: lambda *_: Kind("boolean"),
    int: _kind_of_integers,
    Number: _kind_of_numbers,
    str: _kind_of_text,
    list: _kind_of_lists,
    dict: _kind_of_objects,
}


def as_text(value: Any) -> str | None:
    """Return text and numbers unchanged, and every other value as JSON."""
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_json(value: Any) -> str:
    if isinstance(value, Number) or type(value) is int:
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_as_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


DATED = frozenset({"date", "naive timestamp", "zoned timestamp", "time"})
_NUMERIC = frozenset({"integer", "float", "decimal"})
_LEAVES = DATED | _NUMERIC | {"boolean", "binary", "text"}


class Fitted(NamedTuple):
    """Values of a type, and the positions of invalid values, which are NULL."""

    values: pa.Array
    wrong: set[int]


def fit(values: Sequence[Any], reading: Reading) -> Fitted:
    """Convert values to a type. A nested value with an invalid member is invalid as a whole."""
    plain = storage_type(reading.type)
    kind = family(plain)
    if kind in _LEAVES:
        return _fit_leaves(values, reading, kind)
    fitted = _NESTED.get(kind, _fit_unsupported)(values, replace(reading, type=plain))
    if plain.equals(reading.type):
        return fitted
    return Fitted(pa.ExtensionArray.from_storage(reading.type, fitted.values), fitted.wrong)


def _fit_unsupported(values: Sequence[Any], reading: Reading) -> Fitted:
    """Reject every value of a type that JSON cannot represent."""
    return Fitted(pa.nulls(len(values), reading.type), {row for row, v in enumerate(values) if v is not None})


# ---------------------------------------------------------------------------------------------------------- leaves
def _fit_leaves(values: Sequence[Any], reading: Reading, kind: str) -> Fitted:
    """Convert leaves by the rules of text cells, from their original text."""
    texts: list[str | None] = []
    wrong = set()
    for row, value in enumerate(values):
        text = as_text(value) if value is None or _may_be(value, kind, fixed=reading.fixed) else None
        if text is None or not is_text(text):
            wrong |= {row} if value is not None else set()
            text = None
        texts.append(text)
    converted = convert(pa.array(texts, pa.string()), reading)
    if converted.bad is not None:
        wrong |= set(np.flatnonzero(converted.bad).tolist())
    return Fitted(converted.values, wrong)


def _may_be(value: Any, kind: str, *, fixed: bool) -> bool:
    """Return True if a value may become such a leaf. A fixed type accepts both numbers and text."""
    if kind == "text":
        return True
    if isinstance(value, bool):
        return kind == "boolean" or (fixed and kind not in DATED)
    if isinstance(value, int | Number):
        return kind in _NUMERIC or (fixed and kind not in DATED)
    return isinstance(value, str) and (kind in DATED or fixed) and (value != "" or kind == "binary")


# ---------------------------------------------------------------------------------------------------------- nested
class _Members(NamedTuple):
    """The members of nested values: all items, the start of each value's items, and the owner of each item."""

    items: list[Any]
    starts: list[int]
    owners: list[int]

    @classmethod
    def of(cls, values: Sequence[Sequence[Any]]) -> _Members:
        starts = np.concatenate([[0], np.cumsum([len(value) for value in values])]).tolist()
        owners = [row for row, value in enumerate(values) for _ in value]
        return cls([item for value in values for item in value], starts, owners)

    def owners_of(self, numbers: set[int]) -> set[int]:
        return {self.owners[number] for number in numbers}

    def missing(self, field: pa.Field) -> set[int]:
        """Return the owners of NULLs that the field does not allow."""
        return set() if field.nullable else {o for o, item in zip(self.owners, self.items, strict=True) if item is None}


def _mask(values: Sequence[Any], wrong: set[int]) -> pa.Array:
    return pa.array([value is None or row in wrong for row, value in enumerate(values)], pa.bool_())


def _others(values: Sequence[Any], type_: type) -> set[int]:
    return {row for row, value in enumerate(values) if value is not None and not isinstance(value, type_)}


def _fit_lists(values: Sequence[Any], reading: Reading) -> Fitted:
    type_ = reading.type
    size = type_.list_size if pa.types.is_fixed_size_list(type_) else None
    wrong = _others(values, list)
    if size is not None:
        wrong |= {row for row, value in enumerate(values) if isinstance(value, list) and len(value) != size}
    filler = [None] * (size or 0)
    members = _Members.of([filler if v is None or row in wrong else v for row, v in enumerate(values)])
    items = fit(members.items, replace(reading, type=type_.value_type))
    wrong |= members.owners_of(items.wrong) | (members.missing(type_.value_field) - _nulls(values))
    mask = _mask(values, wrong)
    if size is not None:
        return Fitted(pa.FixedSizeListArray.from_arrays(items.values, type=type_, mask=mask), wrong)
    large = pa.types.is_large_list(type_)
    starts = pa.array(members.starts, pa.int64() if large else pa.int32())
    array = pa.LargeListArray if large else pa.ListArray
    return Fitted(array.from_arrays(starts, items.values, type=type_, mask=mask), wrong)


def _nulls(values: Sequence[Any]) -> set[int]:
    return {row for row, value in enumerate(values) if value is None}


def _fit_structs(values: Sequence[Any], reading: Reading) -> Fitted:
    fields = list(reading.type)
    names = {field.name for field in fields}
    wrong = _others(values, dict)
    wrong |= {row for row, value in enumerate(values) if isinstance(value, dict) and value.keys() - names}
    arrays = []
    for field in fields:
        items = [value.get(field.name) if isinstance(value, dict) else None for value in values]
        fitted = fit(items, replace(reading, type=field.type))
        wrong |= fitted.wrong
        if field.nullable:
            arrays.append(fitted.values)
            continue
        absent = {row for row, value in enumerate(values) if not isinstance(value, dict)}
        wrong |= _nulls(items) - absent
        arrays.append(
            _filled(fitted.values, absent)
        )  # Arrow writes no NULL in such a field, even where the struct is NULL
    return Fitted(pa.StructArray.from_arrays(arrays, fields=fields, mask=_mask(values, wrong)), wrong)


def unknown_field(value: Any, type_: pa.DataType, path: str) -> str | None:
    """Return the path of the first field of an object that a struct type does not have."""
    plain = storage_type(type_)
    kind = family(plain)
    if kind == "list" and isinstance(value, list):
        found = (unknown_field(item, plain.value_type, path) for item in value)
    elif kind == "struct" and isinstance(value, dict):
        types = {field.name: field.type for field in plain}
        found = (
            unknown_field(item, types[name], f"{path}.{name}") if name in types else f"{path}.{name}"
            for name, item in value.items()
        )
    else:
        return None
    return next((name for name in found if name is not None), None)


def absent_fields(value: Any, type_: pa.DataType, path: Path) -> Iterator[Path]:
    """Yield the paths of the fields that objects inside a value lack. A path does not tell items of a list apart."""
    plain = storage_type(type_)
    if pa.types.is_struct(plain) and isinstance(value, dict):
        for field in plain:
            inside = (*path, field.name)
            if field.name not in value:
                yield inside
            elif pa.types.is_nested(storage_type(field.type)):
                yield from absent_fields(value[field.name], field.type, inside)
    elif pa.types.is_map(plain) and isinstance(value, dict):
        for item in value.values():
            yield from absent_fields(item, plain.item_type, path)
    elif family(plain) == "list" and isinstance(value, list | tuple):
        for item in value:
            yield from absent_fields(item, plain.value_type, path)


def _filled(values: pa.Array, rows: set[int]) -> pa.Array:
    """Fill the rows with an arbitrary valid value."""
    if not rows:
        return values
    indices = [len(values) if row in rows else row for row in range(len(values))]
    return pa.concat_arrays([values, _any_value(values.type)]).take(pa.array(indices, pa.int64()))


def _any_value(type_: pa.DataType) -> pa.Array:
    """Return one value of a type without a NULL at any depth."""
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _any_value(type_.storage_type))
    if pa.types.is_dictionary(type_):
        return _any_value(type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_struct(type_):
        return pa.StructArray.from_arrays([_any_value(field.type) for field in type_], fields=list(type_))
    if pa.types.is_fixed_size_list(type_):
        items = pa.concat_arrays([_any_value(type_.value_type)] * type_.list_size)
        return pa.FixedSizeListArray.from_arrays(items, type=type_)
    value: Any = 0
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        value = []
    elif pa.types.is_boolean(type_):
        value = False
    elif family(type_) == "text":
        value = ""
    elif family(type_) == "binary":
        value = bytes(type_.byte_width if pa.types.is_fixed_size_binary(type_) else 0)
    return pa.array([value], type_)


def _fit_maps(values: Sequence[Any], reading: Reading) -> Fitted:
    """Convert JSON objects to maps. Field names become the keys."""
    type_ = reading.type
    wrong = _others(values, dict)
    kept = [value if isinstance(value, dict) else {} for value in values]
    names, members = _Members.of([list(value) for value in kept]), _Members.of([list(v.values()) for v in kept])
    keys = fit(names.items, replace(reading, type=type_.key_type, fixed=True))
    if keys.wrong:  # Arrow allows no NULL among the keys of a map
        wrong |= names.owners_of(keys.wrong)
        rest = _fit_maps([None if row in wrong else value for row, value in enumerate(values)], reading)
        return Fitted(rest.values, wrong | rest.wrong)
    items = fit(members.items, replace(reading, type=type_.item_type))
    wrong |= members.owners_of(items.wrong) | members.missing(type_.item_field)
    starts = pa.array(members.starts, pa.int32())
    array = pa.MapArray.from_arrays(starts, keys.values, items.values, type=type_, mask=_mask(values, wrong))
    return Fitted(array, wrong)


_NESTED: dict[str, Callable[[Sequence[Any], Reading], Fitted]] = {
    "list": _fit_lists,
    "struct": _fit_structs,
    "map": _fit_maps,
}
