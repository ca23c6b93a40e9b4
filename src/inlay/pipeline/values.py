"""JSON values: decoded without changing a number, what they have in common, and as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from inlay.pipeline.inference import infer
from inlay.pipeline.kinds import MIXED, NULL, TEXT, Kind, join

__all__ = ["BadRecordError", "Number", "as_text", "columns_of", "decode_value", "is_text", "kind_of"]

_MAX_DEPTH = 32  # deeper values are kept as text
_DEEPEST = 200  # and these are refused
_INT64 = range(-(1 << 63), 1 << 63)
_EXACT_INTEGERS = range(1 - (1 << 53), 1 << 53)


class Number(str):
    """A number that Python's own types would change, as it was written."""

    __slots__ = ()


class BadRecordError(ValueError):
    """Valid JSON that no record can be."""


def _integer(text: str) -> int | Number:
    return int(text) if len(text) < 40 and text != "-0" else Number(text)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadRecordError("a name stands twice in an object")
    for name in found:
        if not is_text(name):
            raise BadRecordError("a name is no text: half of a surrogate pair stands alone")
    return found


_decoder = json.JSONDecoder(
    parse_float=Number, parse_int=_integer, parse_constant=Number, object_pairs_hook=_pairs, strict=True
)


def decode_value(text: str) -> Any:
    """A JSON value. Numbers that Python's own types would change are a `Number`, their text."""
    value = _decoder.decode(text)
    if text.count("{") + text.count("[") > _DEEPEST and _is_deeper(value, _DEEPEST):
        raise BadRecordError("nested too deeply")
    return value


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, list | dict):
        return False
    members = value.values() if isinstance(value, dict) else value
    return not levels or any(_is_deeper(member, levels - 1) for member in members)


def is_text(text: str) -> bool:
    """Half of a surrogate pair alone is none."""
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
    if depth >= _MAX_DEPTH:
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
    """A value as text: texts and numbers as they are, everything else as JSON."""
    return value if value is None or isinstance(value, str) else _as_json(value)


def _as_json(value: Any) -> str:
    if isinstance(value, Number) or type(value) is int:
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_as_json(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_as_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
