"""Parquet files that a few bytes describe and that no writer would write, for tests of limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inlay.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, Raw, Struct, encode

_INT32, _INT64 = 1, 2
_OPTIONAL, _REPEATED = 1, 2
_LIST = 3  # converted type
_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8
_MAGIC = b"PAR1"


def rows_of_a_constant(rows: int) -> bytes:
    """Return a file with one required column and `rows` equal numbers."""
    dictionary = (7).to_bytes(8, "little")
    page = _header(2, len(dictionary), 7, {1: (I32, 1), 2: (I32, _PLAIN)}) + dictionary
    indexes = b"\x01" + _run(rows, 0)
    data = _header(0, len(indexes), 5, _data_page(rows, _RLE_DICTIONARY)) + indexes
    root = _element("root", children=1)
    column = _column(_INT64, ["a"], rows, page + data, data_offset=4 + len(page), dictionary_offset=4)
    return _file([root, _element("a", _INT64)], column, rows, page + data)


def row_with_a_long_list(items: int, *, declared: int | None = None) -> bytes:
    """Return a file with one list of NULLs. The footer declares another number of items, if it is set."""
    repetitions = _run(1, 0) + _run(items - 1, 1)
    definitions = _run(items, 2)
    levels = b"".join(len(part).to_bytes(4, "little") + part for part in (repetitions, definitions))
    page = _header(0, len(levels), 5, _data_page(items, _PLAIN)) + levels
    schema = [
        _element("root", children=1),
        _element("a", repetition=_OPTIONAL, children=1, converted=_LIST),
        _element("list", repetition=_REPEATED, children=1),
        _element("element", _INT32, repetition=_OPTIONAL),
    ]
    column = _column(_INT32, ["a", "list", "element"], declared or items, page, data_offset=4)
    return _file(schema, column, 1, page)


def _run(count: int, value: int) -> bytes:
    """Encode a run of equal levels or indexes of at most 8 bits."""
    return _varint(count << 1) + bytes([value])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _data_page(values: int, encoding: int) -> dict[int, tuple[int, Any]]:
    return {1: (I32, values), 2: (I32, encoding), 3: (I32, _RLE), 4: (I32, _RLE)}


def _header(kind: int, size: int, field: int, page: dict[int, tuple[int, Any]]) -> bytes:
    return encode(Struct({1: (I32, kind), 2: (I32, size), 3: (I32, size), field: (STRUCT, Struct(page))}))


def _element(
    name: str, kind: int | None = None, *, repetition: int = 0, children: int = 0, converted: int | None = None
) -> Struct:
    fields = {1: kind, 3: repetition, 4: name.encode(), 5: children or None, 6: converted}
    return Struct({at: (BINARY if at == 4 else I32, value) for at, value in fields.items() if value is not None})


def _column(
    kind: int, path: Sequence[str], values: int, pages: bytes, *, data_offset: int, dictionary_offset: int | None = None
) -> Struct:
    fields: dict[int, tuple[int, Any]] = {
        1: (I32, kind),
        2: (LIST, Raw(bytes([0x15, _RLE << 1]))),
        3: (LIST, Raw(bytes([len(path) << 4 | 8]) + b"".join(bytes([len(p)]) + p.encode() for p in path))),
        4: (I32, 0),  # not compressed
        5: (I64, values),
        6: (I64, len(pages)),
        7: (I64, len(pages)),
        9: (I64, data_offset),
    }
    if dictionary_offset is not None:
        fields[11] = (I64, dictionary_offset)
    return Struct({2: (I64, 4), 3: (STRUCT, Struct(fields))})


def _file(schema: list[Struct], column: Struct, rows: int, pages: bytes) -> bytes:
    group = Struct({1: (LIST, [column]), 2: (I64, len(pages)), 3: (I64, rows)})
    footer = encode(Struct({1: (I32, 1), 2: (LIST, schema), 3: (I64, rows), 4: (LIST, [group])}))
    return _MAGIC + pages + footer + len(footer).to_bytes(4, "little") + _MAGIC
