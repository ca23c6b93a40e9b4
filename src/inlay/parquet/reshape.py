"""Data files with other columns: renamed, dropped and encoded ones.

`reshape` presents a file with the new columns, so that a splicer copies its chunks without decoding them.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from inlay.parquet.raw import ELEMENT, Column, ParquetBytes, read_schema, refuse_invalid
from inlay.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, Raw, Struct, decode_structs, encode_structs
from inlay.schema import without_schema_copies

__all__ = ["Shape", "alter_pandas_metadata", "reshape"]

_FIELD_ID = 9
_ARROW_SCHEMA = b"ARROW:schema"
_PANDAS = b"pandas"


@dataclass(frozen=True)
class Shape:
    """The columns of a file after a change. `origins` maps their names to those before the change."""

    before: pa.Schema
    after: pa.Schema
    origins: Mapping[str, str]

    @classmethod
    def of(cls, before: pa.Schema, after: pa.Schema, renamed: Mapping[str, str]) -> Shape:
        """Build a shape. `renamed` maps old names to new ones."""
        old_names = {new: old for old, new in renamed.items() if old in before.names}
        origins = {name: old_names.get(name, name) for name in after.names}
        return cls(before, after, origins)

    @cached_property
    def encoded(self) -> list[str]:
        """The columns that must be encoded, because their type or nullability changes."""
        return [field.name for field in self.after if not self._is_same(field)]

    def _is_same(self, field: pa.Field) -> bool:
        old = self.before.field(self.origins[field.name])
        return bool(old.type.equals(field.type) and old.nullable == field.nullable)

    @property
    def encoded_schema(self) -> pa.Schema:
        return pa.schema([self.after.field(name) for name in self.encoded])


def reshape(file: ParquetBytes, shape: Shape, template: ParquetBytes | None) -> ParquetBytes:
    """Return `file` with the columns of `shape`. Raises SpliceRefused.

    Encoded columns have no chunks yet: every row group needs new ones. `template` is a file with these columns, as they
    will be encoded.
    """
    with refuse_invalid(file.name):
        new = copy.copy(file)
        new.footer = Struct(file.footer)
        columns = list(_columns(file, shape, template))
        root = decode_structs(bytes(file.footer[2][1]), ELEMENT)[0]
        root.put(5, I32, len(columns))
        elements = [root, *(element for column in columns for element in column.elements)]
        new.footer[2] = (LIST, Raw(encode_structs(elements)))
        _put_metadata(new.footer, shape)
        if 7 in file.footer:
            new.footer[7] = (LIST, Raw(encode_structs([order for column in columns for order in column.orders])))
        new.schema = read_schema(new.footer)
        new.row_groups = [_row_group(group, columns, new) for group in file.row_groups]
    return new


@dataclass(frozen=True)
class _NewColumn:
    """A column of the new file. `leaves` are those whose chunks are copied, and empty for an encoded column."""

    elements: list[Struct]
    orders: list[Struct]
    leaves: range
    origin: range  # the leaves of the column before the change
    width: int  # its number of leaves


def _columns(file: ParquetBytes, shape: Shape, template: ParquetBytes | None) -> Iterator[_NewColumn]:
    for name, origin in shape.origins.items():
        old = file.schema.column(origin)
        if name in shape.encoded and template is not None:
            column, elements = _elements(template, name)
            orders = _orders(template)
            field_id = _elements(file, origin)[1][0].get(_FIELD_ID)
            elements[0].pop(_FIELD_ID, None)
            if field_id is not None:
                elements[0][_FIELD_ID] = field_id
            leaves = range(0)
        else:
            column, elements = _elements(file, origin)
            orders = _orders(file)
            elements[0][4] = (BINARY, name.encode("utf-8", "surrogateescape"))
            leaves = column.leaves
        own = [orders[leaf] for leaf in column.leaves] if orders else []
        yield _NewColumn(elements, own, leaves, old.leaves, len(column.leaves))


def _elements(file: ParquetBytes, name: str) -> tuple[Column, list[Struct]]:
    """Return a column and its elements of the schema, which the caller may change."""
    column = file.schema.column(name)
    first = 1
    for other in file.schema.columns:
        if other is column:
            break
        first += len(other.elements)
    return column, decode_structs(bytes(file.footer[2][1]), ELEMENT)[first : first + len(column.elements)]


def _orders(file: ParquetBytes) -> list[Struct]:
    return decode_structs(bytes(file.footer[7][1]), {}) if 7 in file.footer else []


def _row_group(group: Struct, columns: list[_NewColumn], new: ParquetBytes) -> Struct:
    """Return a row group with the chunks of the new columns."""
    old, chunks, positions = group.structs(1), list[Struct](), dict[int, int]()
    for column in columns:
        for number in range(column.width):
            if len(column.origin) == column.width:  # also if the values are encoded: a wider type keeps their order
                positions[column.origin[number]] = len(chunks)
            path = new.schema.leaves[len(chunks)].encoded_path
            chunks.append(_renamed(old[column.leaves[number]], path) if column.leaves else Struct())
    result = Struct(group)
    result.put(1, LIST, chunks)
    metas = [chunk.struct(3) for chunk in chunks if chunk]
    result.put(2, I64, sum(meta.number(6) for meta in metas))
    if 6 in result:
        result.put(6, I64, sum(meta.number(7) for meta in metas))
    _put_sorting(result, positions)
    return result


def _renamed(chunk: Struct, path: bytes) -> Struct:
    renamed, meta = Struct(chunk), Struct(chunk.struct(3))
    meta[3] = (LIST, Raw(path))
    renamed.put(3, STRUCT, meta)
    return renamed


def _put_sorting(group: Struct, positions: Mapping[int, int]) -> None:
    """Renumber the columns by which rows are sorted, up to the first one that no longer exists."""
    kept: list[Struct] = []
    for column in group.structs(4) if 4 in group else []:
        if column.number(1) not in positions:
            break
        moved = Struct(column)
        moved.put(1, I32, positions[column.number(1)])
        kept.append(moved)
    group.pop(4, None)
    if kept:
        group.put(4, LIST, kept)


# -------------------------------------------------------------------------------------------------------- metadata
def _put_metadata(footer: Struct, shape: Shape) -> None:
    """Rewrite the copies of the schema in the metadata. Copies that inlay cannot rewrite are dropped."""
    pairs = decode_structs(bytes(footer[5][1]), {1: bytes, 2: bytes}) if 5 in footer else []
    stored = {pair.text(1): pair.text(2) for pair in pairs if 2 in pair}
    kept = dict(without_schema_copies(stored) or {})
    if _PANDAS in stored:
        kept[_PANDAS] = alter_pandas_metadata(stored[_PANDAS], shape)
    if _ARROW_SCHEMA in stored or shape.encoded:  # pyarrow reads only the metadata that the Arrow schema repeats
        schema = _arrow_schema(stored.get(_ARROW_SCHEMA), shape).with_metadata(kept or None)
        kept[_ARROW_SCHEMA] = base64.b64encode(schema.serialize().to_pybytes())
    footer.pop(5, None)
    if kept:
        structs = [Struct({1: (BINARY, key), 2: (BINARY, value)}) for key, value in kept.items()]
        footer[5] = (LIST, Raw(encode_structs(structs)))


def _arrow_schema(stored: bytes | None, shape: Shape) -> pa.Schema:
    """Return the Arrow schema of the new file. Copied columns keep the field that their writer declared."""
    declared = shape.before
    if stored is not None:
        declared = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored)))
    fields = []
    for field in shape.after:
        at = declared.get_field_index(shape.origins[field.name])
        is_declared = at >= 0 and field.name not in shape.encoded
        fields.append(declared.field(at).with_name(field.name) if is_declared else field)
    return pa.schema(fields)


def alter_pandas_metadata(stored: bytes, shape: Shape) -> bytes:
    """Rename, drop and retype the columns that pandas lists in the metadata of a file."""
    try:
        metadata = json.loads(stored)
        new_names = {old: new for new, old in shape.origins.items()}
        columns = []
        for column in metadata.get("columns", []):
            name = new_names.get(column.get("field_name", column.get("name")))
            if name is not None:
                columns.append(_pandas_column(column, name, shape))
        metadata["columns"] = columns
        indexes = metadata.get("index_columns", [])
        metadata["index_columns"] = [
            new_names[each] if isinstance(each, str) else each
            for each in indexes
            if not isinstance(each, str) or each in new_names
        ]
    except (ValueError, AttributeError, TypeError):
        return stored  # not written by pandas
    return json.dumps(metadata).encode()


def _pandas_column(column: Mapping[str, Any], name: str, shape: Shape) -> dict[str, Any]:
    renamed = dict(column)
    if renamed.get("field_name", renamed.get("name")) == renamed.get("name"):
        renamed["name"] = name
    if "field_name" in renamed:
        renamed["field_name"] = name
    if name in shape.encoded:
        renamed |= _pandas_types(shape.after.field(name), str(column.get("numpy_type")))
    return renamed


def _pandas_types(field: pa.Field, before: str) -> dict[str, Any]:
    """Describe a type as pyarrow does for pandas. Nullable integers of pandas have names like Int32."""
    type_ = field.type
    if pa.types.is_timestamp(type_):
        kind = {"pandas_type": "datetime" if type_.tz is None else "datetimetz", "numpy_type": "datetime64[ns]"}
        return kind | {"metadata": None if type_.tz is None else {"timezone": type_.tz}}
    if pa.types.is_decimal(type_):
        digits = {"precision": type_.precision, "scale": type_.scale}
        return {"pandas_type": "decimal", "numpy_type": "object", "metadata": digits}
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        name = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(type_), str(type_))
        return {"pandas_type": name, "numpy_type": name.capitalize() if before[:1].isupper() else name}
    return {}
