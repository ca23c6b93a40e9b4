"""JSON values as Arrow arrays of a type: leaves are read by the rules of cells, nested places are put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from inlay.pipeline.cells import Reading, convert
from inlay.pipeline.values import Number, as_text, is_text
from inlay.schema import family, storage_type

__all__ = ["DATED", "Fitted", "fit"]

DATED = frozenset({"date", "naive timestamp", "zoned timestamp", "time"})
_NUMERIC = frozenset({"integer", "float", "decimal"})
_LEAVES = DATED | _NUMERIC | {"boolean", "binary", "text"}


class Fitted(NamedTuple):
    """Values of a type, and the numbers of those that do not fit it and are NULL."""

    values: pa.Array
    wrong: set[int]


def fit(values: Sequence[Any], reading: Reading) -> Fitted:
    """All values of one place; a value with something in it that does not fit does not fit either."""
    plain = storage_type(reading.type)
    kind = family(plain)
    if kind in _LEAVES:
        return _fit_leaves(values, reading, kind)
    fitted = _NESTED.get(kind, _fit_nothing)(values, replace(reading, type=plain))
    if plain.equals(reading.type):
        return fitted
    return Fitted(pa.ExtensionArray.from_storage(reading.type, fitted.values), fitted.wrong)


def _fit_nothing(values: Sequence[Any], reading: Reading) -> Fitted:
    """A type that no JSON value is of."""
    return Fitted(pa.nulls(len(values), reading.type), {row for row, v in enumerate(values) if v is not None})


# ---------------------------------------------------------------------------------------------------------- leaves
def _fit_leaves(values: Sequence[Any], reading: Reading, kind: str) -> Fitted:
    """By the same rules as a cell of text; numbers are what was written."""
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
    """Whether values of this sort are read as such a leaf; a chosen type takes numbers and text alike."""
    if kind == "text":
        return True
    if isinstance(value, bool):
        return kind == "boolean" or (fixed and kind not in DATED)
    if isinstance(value, int | Number):
        return kind in _NUMERIC or (fixed and kind not in DATED)
    return isinstance(value, str) and (kind in DATED or fixed) and (value != "" or kind == "binary")


# ---------------------------------------------------------------------------------------------------------- nested
class _Members(NamedTuple):
    """What is in values that hold others: everything in a row, where each value's part starts, and whose it is."""

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
        """Owners of NULLs that the field does not allow."""
        return set() if field.nullable else {o for o, item in zip(self.owners, self.items, strict=True) if item is None}


def _mask(values: Sequence[Any], wrong: set[int]) -> pa.Array:
    return pa.array([value is None or row in wrong for row, value in enumerate(values)], pa.bool_())


def _others(values: Sequence[Any], sort: type) -> set[int]:
    return {row for row, value in enumerate(values) if value is not None and not isinstance(value, sort)}


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
        arrays.append(_filled(fitted.values, absent))  # Arrow writes no NULL in such a field, not under a NULL either
    return Fitted(pa.StructArray.from_arrays(arrays, fields=fields, mask=_mask(values, wrong)), wrong)


def _filled(values: pa.Array, rows: set[int]) -> pa.Array:
    """The same with some value, it does not matter which, in these rows."""
    if not rows:
        return values
    places = [len(values) if row in rows else row for row in range(len(values))]
    return pa.concat_arrays([values, _something(values.type)]).take(pa.array(places, pa.int64()))


def _something(type_: pa.DataType) -> pa.Array:
    """One value of a type, without a NULL at any depth."""
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, _something(type_.storage_type))
    if pa.types.is_dictionary(type_):
        return _something(type_.value_type).dictionary_encode().cast(type_)
    if pa.types.is_struct(type_):
        return pa.StructArray.from_arrays([_something(field.type) for field in type_], fields=list(type_))
    if pa.types.is_fixed_size_list(type_):
        items = pa.concat_arrays([_something(type_.value_type)] * type_.list_size)
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
    """Objects; their names are the keys."""
    type_ = reading.type
    wrong = _others(values, dict)
    kept = [value if isinstance(value, dict) else {} for value in values]
    names, members = _Members.of([list(value) for value in kept]), _Members.of([list(v.values()) for v in kept])
    keys = fit(names.items, replace(reading, type=type_.key_type, fixed=True))
    if keys.wrong:  # there is no array of keys with a NULL among them
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
