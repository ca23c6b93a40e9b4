"""A footer's schema in a normal form: two files may exchange column chunks if theirs agree.

Writers annotate the same type in different ways (the old converted type, the newer logical type, both, or
neither where the physical type says it all). What remains here is what the stored bytes mean.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from inlay.parquet.thrift import FooterError, Struct, encode_texts

_TIME_TYPE = {1: bool, 2: {}}
_LOGICAL_TYPE = {5: {1: int, 2: int}, 7: _TIME_TYPE, 8: _TIME_TYPE, 10: {2: bool}}
ELEMENT = {1: int, 2: int, 3: int, 4: bytes, 5: int, 6: int, 7: int, 8: int, 10: _LOGICAL_TYPE}

_MAX_DEPTH = 100
_INT32, _INT64, _FIXED_LEN_BYTE_ARRAY = 1, 2, 7
_REPEATED = 2
_TYPE_DEFINED_ORDER = 1

# Fields of the union LogicalType; an annotation is a tuple that begins with one of them.
_STRING, _MAP, _LIST, _ENUM, _DECIMAL, _DATE, _TIME, _TIMESTAMP = range(1, 9)
_INTEGER, _JSON, _BSON = 10, 12, 13
_MILLIS, _MICROS = 1, 2
_ANY_ZONE = None  # a converted type does not say whether instants or local times are meant
_CONVERTED: dict[int, tuple[Any, ...]] = {
    0: (_STRING,),
    1: (_MAP,),
    2: (_MAP,),
    3: (_LIST,),
    4: (_ENUM,),
    6: (_DATE,),
    7: (_TIME, _MILLIS, _ANY_ZONE),
    8: (_TIME, _MICROS, _ANY_ZONE),
    9: (_TIMESTAMP, _MILLIS, _ANY_ZONE),
    10: (_TIMESTAMP, _MICROS, _ANY_ZONE),
    **{11 + i: (_INTEGER, bytes((8 << i,)), False) for i in range(4)},
    **{15 + i: (_INTEGER, bytes((8 << i,)), True) for i in range(4)},
    19: (_JSON,),
    20: (_BSON,),
}
_CONVERTED_DECIMAL, _CONVERTED_MAP_KEY_VALUE = 5, 2
_SAID_BY_PHYSICAL_TYPE = {_INT32: (_INTEGER, b"\x20", True), _INT64: (_INTEGER, b"\x40", True)}


@dataclass(frozen=True, slots=True)
class Element:
    name: str
    physical: int | None
    length: int | None
    repetition: int
    children: int
    annotation: tuple[Any, ...]

    def agrees(self, other: Element) -> bool:
        return self.storage() == other.storage() and _annotations_agree(self.annotation, other.annotation)

    def storage(self) -> tuple[Any, ...]:
        return self.name, self.physical, self.length, self.repetition, self.children


@dataclass(frozen=True, slots=True)
class Leaf:
    path: str
    physical: int
    encoded_path: bytes


@dataclass(frozen=True, slots=True)
class Column:
    """A top-level column: its elements, depth first, and the positions of its leaves."""

    name: str
    elements: tuple[Element, ...]
    leaves: range


@dataclass
class Schema:
    columns: list[Column]
    leaves: list[Leaf]
    column_orders: list[int | None]
    arrow_schema: bytes

    def column(self, name: str) -> Column:
        found = [column for column in self.columns if column.name == name]
        if len(found) != 1:
            raise FooterError(f"{len(found)} columns are named {name!r}")
        return found[0]

    def difference(self, other: Schema, columns: Collection[str] | None = None) -> str | None:
        """What forbids to take chunks (of these top-level columns) from `other`; None if nothing does."""
        if columns is None:
            mine, theirs = [c.name for c in self.columns], [c.name for c in other.columns]
            if mine != theirs:
                return f"columns {mine} against {theirs}"
            pairs = list(zip(self.columns, other.columns, strict=True))
        else:
            pairs = [(self.column(name), other.column(name)) for name in columns]
        return next((text for pair in pairs if (text := self._column_difference(other, *pair))), None)

    def _column_difference(self, other: Schema, mine: Column, theirs: Column) -> str | None:
        if len(mine.elements) != len(theirs.elements):
            return f"column {mine.name} is nested differently"
        for left, right in zip(mine.elements, theirs.elements, strict=True):
            if not left.agrees(right):
                return f"column {mine.name}: {left} against {right}"
        for i, j in zip(mine.leaves, theirs.leaves, strict=True):
            if self.column_orders[i] != other.column_orders[j] and (
                self.column_orders[i] is not None or other.column_orders[j] != _TYPE_DEFINED_ORDER
            ):
                return f"column {mine.name}: its statistics are ordered differently"
        if self.arrow_schema != other.arrow_schema and self.durations(mine) != other.durations(theirs):
            return f"column {mine.name}: durations of different units"
        return None

    @cached_property
    def _arrow_types(self) -> dict[str, list[str]]:
        if not self.arrow_schema:
            return {}
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow_schema)))
        except (ValueError, OSError, pa.ArrowException) as error:
            raise FooterError(f"its Arrow schema cannot be read: {error}") from error
        return {field.name: re.findall(r"duration\[\w+\]", str(field.type)) for field in schema}

    def durations(self, column: Column) -> list[str]:
        """Arrow's durations are plain integers in Parquet: only the Arrow schema tells the unit."""
        return self._arrow_types.get(column.name, [])


def read_schema(footer: Struct) -> Schema:
    elements = footer.structs(2)
    if not elements or 1 in elements[0]:
        raise FooterError("the schema has no root")
    walk = iter(elements[1:])
    columns: list[Column] = []
    leaves: list[Leaf] = []
    for _ in range(elements[0].number(5, 0)):
        first = len(leaves)
        subtree = tuple(_read_column(walk, leaves))
        columns.append(Column(subtree[0].name, subtree, range(first, len(leaves))))
    if next(walk, None) is not None:
        raise FooterError("the schema has more elements than its tree")
    return Schema(columns, leaves, _column_orders(footer, len(leaves)), _arrow_schema(footer))


def _read_column(walk: Iterator[Struct], leaves: list[Leaf]) -> Iterator[Element]:
    """The elements of the next top-level column, depth first; its leaves are appended."""
    path: list[bytes] = []
    open_groups: list[int] = []
    while True:
        tree = next(walk, None)
        if tree is None:
            raise FooterError("the schema has fewer elements than its tree")
        element = _element(tree)
        yield element
        path.append(tree.text(4))
        if element.physical is not None:
            dotted = ".".join(part.decode("utf-8", "replace") for part in path)
            leaves.append(Leaf(dotted, element.physical, encode_texts(path)))
        open_groups.append(element.children)
        if len(open_groups) > _MAX_DEPTH:
            raise FooterError(f"the schema is nested more than {_MAX_DEPTH} deep")
        while open_groups and not open_groups[-1]:
            open_groups.pop()
            path.pop()
        if not open_groups:
            return
        open_groups[-1] -= 1


def _element(tree: Struct) -> Element:
    physical = tree.number(1) if 1 in tree else None
    children = tree.number(5, 0)
    if children < 0 or (children and physical is not None):
        raise FooterError("an element of the schema is neither group nor leaf")
    return Element(
        name=tree.text(4).decode("utf-8", "surrogateescape"),
        physical=physical,
        # Some writers fill in a length that means nothing.
        length=tree.number(2) if physical == _FIXED_LEN_BYTE_ARRAY else None,
        repetition=tree.number(3),
        children=children,
        annotation=_annotation(tree, physical),
    )


def _annotation(tree: Struct, physical: int | None) -> tuple[Any, ...]:
    found = _logical(tree.struct(10)) if 10 in tree else _converted(tree)
    if physical is not None and found == _SAID_BY_PHYSICAL_TYPE.get(physical):
        return ()
    return found


def _logical(union: Struct) -> tuple[Any, ...]:
    kind = _chosen(union)
    value = union[kind][1]
    if kind == _DECIMAL:
        return _DECIMAL, value.number(2), value.number(1)
    if kind in (_TIME, _TIMESTAMP):
        return kind, _chosen(value.struct(2)), value.number(1)
    if kind == _INTEGER:
        return _INTEGER, value.text(1), value.number(2)
    if kind in (_STRING, _MAP, _LIST, _ENUM, _DATE, _JSON, _BSON):
        return (kind,)
    return kind, bytes(value)  # types younger than this code agree if they are spelled alike


def _chosen(union: Struct) -> int:
    if len(union) != 1:
        raise FooterError("a union holds not exactly one value")
    return next(iter(union))


def _converted(tree: Struct) -> tuple[Any, ...]:
    if 6 not in tree:
        return ()
    kind = tree.number(6)
    if kind == _CONVERTED_DECIMAL:
        return _DECIMAL, tree.number(8, 0), tree.number(7, 0)
    if kind == _CONVERTED_MAP_KEY_VALUE and tree.number(3, 0) == _REPEATED:
        return ()  # old writers mark the inner group of a map, too
    return _CONVERTED.get(kind, ("converted", kind))


def _annotations_agree(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    if len(left) != len(right):
        return False
    return all(a == b or a is _ANY_ZONE or b is _ANY_ZONE for a, b in zip(left, right, strict=True))


def _column_orders(footer: Struct, leaves: int) -> list[int | None]:
    if 7 not in footer:
        return [None] * leaves
    orders = [next(iter(order), None) for order in footer.structs(7)]
    if len(orders) != leaves:
        raise FooterError(f"{len(orders)} column orders for {leaves} columns")
    return orders


def _arrow_schema(footer: Struct) -> bytes:
    pairs = footer.structs(5) if 5 in footer else []
    return next((pair.text(2) for pair in pairs if pair.text(1) == b"ARROW:schema" and 2 in pair), b"")
