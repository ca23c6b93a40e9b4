"""A schema as people read it: a line for each column, and below it one for each field inside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from inlay.type_grammar import type_name

__all__ = ["Line", "lines_of"]

_is: Any = pa.types


class Line(NamedTuple):
    depth: int
    name: str
    type: str
    nullable: bool


def lines_of(fields: Iterable[pa.Field], depth: int = 0) -> Iterator[Line]:
    for field in fields:
        yield Line(depth, field.name, _outer(field.type), field.nullable)
        yield from lines_of(_inner(field.type), depth + 1)


def _outer(type_: pa.DataType) -> str:
    """A type without the fields that have lines of their own."""
    if _is.is_struct(type_):
        return "struct"
    if _is_list(type_):
        return f"list<{_outer(type_.value_type)}>"
    if _is.is_map(type_):
        return f"map<{_outer(type_.key_type)}, {_outer(type_.item_type)}>"
    return type_name(type_)


def _inner(type_: pa.DataType) -> list[pa.Field]:
    if _is.is_struct(type_):
        return list(type_)
    if _is_list(type_):
        return _inner(type_.value_type)
    return _inner(type_.item_type) if _is.is_map(type_) else []


def _is_list(type_: pa.DataType) -> bool:
    return bool(_is.is_list(type_) or _is.is_large_list(type_) or _is.is_fixed_size_list(type_))
