"""JSON values: decoded without changing a number, what values of one place have in common, and values as Arrow
takes them for a type."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa

from inlay.pipeline.cells import infer, prints_exactly
from inlay.pipeline.kinds import MIXED, NULL, TEXT, Kind, join
from inlay.schema import family

__all__ = ["DuplicateNameError", "MisfitError", "Number", "as_text", "columns_of", "decode_value", "fit", "kind_of"]

_MAX_DEPTH = 32  # deeper values are kept as text
_INT64 = range(-(1 << 63), 1 << 63)
_EXACT_INTEGERS = range(-(1 << 53), (1 << 53) + 1)


class Number(str):
    """A number that Python's own types would change, as it was written."""

    __slots__ = ()


class DuplicateNameError(ValueError):
    """An object in which a name stands twice."""


class MisfitError(Exception):
    """A value that a type does not hold."""


def _integer(text: str) -> int | Number:
    return int(text) if len(text) < 40 and text != "-0" else Number(text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise DuplicateNameError("a name stands twice in an object")
    return found


_decoder = json.JSONDecoder(
    parse_float=Number, parse_int=_integer, parse_constant=Number, object_pairs_hook=_pairs, strict=True
)


def decode_value(text: str) -> Any:
    """A JSON value. Numbers that Python's own types would change are a `Number`, their text."""
    return _decoder.decode(text)


def columns_of(objects: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for value in objects:
        for name, item in value.items():
            columns.setdefault(name, []).append(item)
    return columns


# ----------------------------------------------------------------------------------------------------------- kinds
def kind_of(values: Sequence[Any], day_first: bool | None = None, depth: int = 0) -> Kind:
    """What values of one place have in common; only text at the top may turn out to be dates."""
    found = NULL
    for sort, members in _by_sort(values).items():
        found = join(found, _KINDS[sort](members, day_first, depth))
    return found


def _by_sort(values: Sequence[Any]) -> dict[type, list[Any]]:
    sorts: dict[type, list[Any]] = {}
    for value in values:
        if value is not None:
            sorts.setdefault(type(value), []).append(value)
    return sorts


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
    if depth >= _MAX_DEPTH:
        return MIXED
    return Kind("list", items=kind_of([item for value in values for item in value], None, depth + 1))


def _kind_of_objects(values: Sequence[Any], _: bool | None, depth: int) -> Kind:
    fields = {name: kind_of(items, None, depth + 1) for name, items in columns_of(values).items()}
    if depth >= _MAX_DEPTH or not fields:
        return MIXED
    return Kind("struct", fields=tuple(fields.items()))


_KINDS: dict[type, Callable[[Sequence[Any], bool | None, int], Kind]] = {
    bool: lambda *_: Kind("boolean"),
    int: _kind_of_integers,
    Number: _kind_of_numbers,
    str: _kind_of_text,
    list: _kind_of_lists,
    dict: _kind_of_objects,
}


# ------------------------------------------------------------------------------------------------------------- fit
def fit(value: Any, type_: pa.DataType, *, strict: bool) -> Any:
    """The value as Arrow takes it for this type, exactly, or a MisfitError."""
    if value is None:
        return None
    return _FITS.get(family(type_), _fit_nothing)(value, type_, strict)


def _fit_nothing(value: Any, type_: pa.DataType, strict: bool) -> Any:  # noqa: ARG001
    raise MisfitError


def _fit_boolean(value: Any, type_: pa.DataType, strict: bool) -> Any:  # noqa: ARG001
    if not isinstance(value, bool):
        raise MisfitError
    return value


def _fit_integer(value: Any, type_: pa.DataType, strict: bool) -> Any:  # noqa: ARG001
    if isinstance(value, bool) or not isinstance(value, int) or value not in _INT64:
        raise MisfitError
    return pa.scalar(value, type_).as_py() if not type_.equals(pa.int64()) else value


def _fit_float(value: Any, type_: pa.DataType, strict: bool) -> Any:  # noqa: ARG001
    if isinstance(value, bool) or not isinstance(value, int | Number):
        raise MisfitError
    if strict and not (value in _EXACT_INTEGERS if isinstance(value, int) else prints_exactly(value)):
        raise MisfitError
    return float(value)


def _fit_decimal(value: Any, type_: pa.DataType, strict: bool) -> Any:  # noqa: ARG001
    if isinstance(value, bool) or not isinstance(value, int | Number):
        raise MisfitError
    number = Decimal(value)
    if not number.is_finite():
        raise MisfitError
    return pa.scalar(number, type_).as_py()


def _fit_text(value: Any, type_: pa.DataType, strict: bool) -> Any:  # noqa: ARG001
    text = as_text(value)
    if text is not None:
        text.encode()  # a lone surrogate is no text
    return text


def _fit_list(value: Any, type_: pa.DataType, strict: bool) -> Any:
    if not isinstance(value, list):
        raise MisfitError
    return [fit(item, type_.value_type, strict=strict) for item in value]


def _fit_struct(value: Any, type_: pa.DataType, strict: bool) -> Any:
    if not isinstance(value, dict) or value.keys() - {field.name for field in type_.fields}:
        raise MisfitError
    return {field.name: fit(value.get(field.name), field.type, strict=strict) for field in type_.fields}


_FITS: dict[str, Callable[[Any, pa.DataType, bool], Any]] = {
    "boolean": _fit_boolean,
    "integer": _fit_integer,
    "float": _fit_float,
    "decimal": _fit_decimal,
    "text": _fit_text,
    "list": _fit_list,
    "struct": _fit_struct,
}


def as_text(value: Any) -> str | None:
    """A value as text: texts and numbers as they are, everything else as JSON."""
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_json(value: Any) -> str:
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_as_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
