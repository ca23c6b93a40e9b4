"""A compact Thrift codec that decodes selected fields and keeps all others encoded.

A *spec* selects the fields of a struct to decode: field id -> `int`, `bytes`, `bool`, a spec (a struct) or `[spec]` (a
list of structs). Other fields become `Raw` and are written unchanged, so fields of newer writers survive.

The input is not trusted. A value that exceeds the buffer raises IndexError, at the latest at the stop byte of its
struct, so lengths are not checked separately. No memory is allocated for a declared length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)

Spec = Mapping[int, Any]

_INTEGERS = frozenset((I16, I32, I64))
_MAX_DEPTH = 64
_LONG_LIST = 15


class FooterError(ValueError):
    """A footer is malformed, contradicts itself, or refers to bytes outside the file."""


class Raw(bytes):
    """An encoded value of a field that the spec does not select."""

    __slots__ = ()


class Struct(dict[int, tuple[int, Any]]):
    """A Thrift struct: a mapping from field id to (Thrift type, value)."""

    __slots__ = ()

    def __missing__(self, field: int) -> tuple[int, Any]:
        raise FooterError(f"required field {field} is missing")

    def number(self, field: int, default: int | None = None) -> int:
        if default is not None and field not in self:
            return default
        value: int = self[field][1]
        return value

    def text(self, field: int) -> bytes:
        value: bytes = self[field][1]
        return value

    def struct(self, field: int) -> Struct:
        value: Struct = self[field][1]
        return value

    def structs(self, field: int) -> list[Struct]:
        value: list[Struct] = self[field][1]
        return value

    def put(self, field: int, kind: int, value: int | list[Struct] | Struct) -> None:
        self[field] = (kind, value)


def decode(data: bytes, spec: Spec) -> tuple[Struct, int]:
    """Decode the struct at the start of `data`. Returns the struct and its length in bytes."""
    try:
        return _read_struct(data, 0, spec)
    except IndexError:
        raise FooterError("the data ends inside a value") from None


def decode_structs(data: bytes, spec: Spec) -> list[Struct]:
    """Decode a list of structs, such as a `Raw` field."""
    try:
        return _read_structs(data, 0, spec)[0]
    except IndexError:
        raise FooterError("the data ends inside a list") from None


def encode(struct: Struct) -> bytes:
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def encode_structs(structs: list[Struct]) -> bytes:
    """Encode a list of structs as the value of a field."""
    out = bytearray()
    _write_value(out, structs)
    return bytes(out)


def encode_texts(texts: list[bytes]) -> bytes:
    """Encode a list of binary values as the value of a field."""
    out = bytearray()
    _write_list_header(out, len(texts), BINARY)
    for text in texts:
        _write_varint(out, len(text))
        out += text
    return bytes(out)


# These loops run for each field of footers with thousands of column chunks, so frequent cases have shortcuts.


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value = byte & 0x7F
    shift = 7
    while shift < 70:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at + 1
        shift += 7
    raise FooterError("a number has more than 64 bits")


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _read_struct(data: bytes, at: int, spec: Spec) -> tuple[Struct, int]:
    out = Struct()
    field = 0
    while header := data[at]:
        at += 1
        kind = header & 15
        if header > 15:
            field += header >> 4
        else:
            field, at = _read_int(data, at)
        if field in out:
            raise FooterError(f"field {field} appears twice")
        shape = spec.get(field)
        if shape is None:
            end = _skip(data, at, kind, _MAX_DEPTH)
            out[field] = (kind, Raw(data[at:end]))
            at = end
        elif shape is int and kind in _INTEGERS:
            value, at = (byte, at + 1) if (byte := data[at]) < 0x80 else _read_varint(data, at)
            out[field] = (kind, (value >> 1) ^ -(value & 1))
        else:
            decoded, at = _read_value(data, at, kind, shape)
            out[field] = (kind, decoded)
    return out, at + 1


def _read_value(data: bytes, at: int, kind: int, shape: Any) -> tuple[Any, int]:
    if shape is bytes and kind == BINARY:
        size, at = _read_varint(data, at)
        return data[at : at + size], at + size
    if shape is bool and kind in (TRUE, FALSE):
        return kind == TRUE, at
    if isinstance(shape, list) and kind == LIST:
        return _read_structs(data, at, shape[0])
    if isinstance(shape, dict) and kind == STRUCT:
        return _read_struct(data, at, shape)
    raise FooterError(f"a field has the unexpected Thrift type {kind}")


def _read_list_header(data: bytes, at: int) -> tuple[int, int, int]:
    header = data[at]
    size, at = (_read_varint(data, at + 1)) if header >> 4 == _LONG_LIST else (header >> 4, at + 1)
    return size, header & 15, at


def _read_structs(data: bytes, at: int, spec: Spec) -> tuple[list[Struct], int]:
    size, kind, at = _read_list_header(data, at)
    if size and kind != STRUCT:
        raise FooterError(f"a list of structs has elements of Thrift type {kind}")
    out = []
    for _ in range(size):
        struct, at = _read_struct(data, at, spec)
        out.append(struct)
    return out, at


def _skip(data: bytes, at: int, kind: int, depth: int) -> int:
    """Return the position after a value of Thrift type `kind`."""
    if I16 <= kind <= I64:
        while data[at] >= 0x80:
            at += 1
        return at + 1
    if kind == BINARY:
        size, at = _read_varint(data, at)
        return at + size
    if kind == STRUCT:
        return _skip_struct(data, at, depth - 1)
    if kind in (LIST, SET):
        return _skip_list(data, at, depth - 1)
    return _skip_rare(data, at, kind, depth)


def _skip_rare(data: bytes, at: int, kind: int, depth: int) -> int:
    if kind in (TRUE, FALSE):
        return at
    if kind == I8:
        return at + 1
    if kind == DOUBLE:
        return at + 8
    if kind == MAP:
        size, at = _read_varint(data, at)
        if not size:
            return at
        return _skip_elements(data, at + 1, (data[at] >> 4, data[at] & 15), size, depth - 1)
    raise FooterError(f"{kind} is not a Thrift type")


def _skip_struct(data: bytes, at: int, depth: int) -> int:
    if depth < 0:
        raise FooterError(f"values are nested more than {_MAX_DEPTH} levels deep")
    while header := data[at]:
        at += 1
        if header < 16:
            _, at = _read_varint(data, at)
        kind = header & 15
        if I16 <= kind <= I64:
            while data[at] >= 0x80:
                at += 1
            at += 1
        elif kind == BINARY and (size := data[at]) < 0x80:
            at += size + 1
        elif kind > FALSE:
            at = _skip(data, at, kind, depth)
    return at + 1


def _skip_list(data: bytes, at: int, depth: int) -> int:
    size, kind, at = _read_list_header(data, at)
    if I16 <= kind <= I64:
        for _ in range(size):
            while data[at] >= 0x80:
                at += 1
            at += 1
        return at
    return _skip_elements(data, at, (kind,), size, depth)


def _skip_elements(data: bytes, at: int, kinds: tuple[int, ...], size: int, depth: int) -> int:
    if depth < 0:
        raise FooterError(f"values are nested more than {_MAX_DEPTH} levels deep")
    for _ in range(size):
        for kind in kinds:
            # A boolean field has its value in the header, but a boolean element has one byte.
            at = at + 1 if kind in (TRUE, FALSE) else _skip(data, at, kind, depth)
        if at > len(data):
            raise IndexError
    return at


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _write_int(out: bytearray, value: int) -> None:
    if not -(1 << 63) <= value < 1 << 63:
        raise FooterError(f"{value} has more than 64 bits")
    _write_varint(out, value << 1 if value >= 0 else (-value << 1) - 1)


def _write_list_header(out: bytearray, size: int, kind: int) -> None:
    if size < _LONG_LIST:
        out.append(size << 4 | kind)
    else:
        out.append(_LONG_LIST << 4 | kind)
        _write_varint(out, size)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for field in sorted(struct):
        kind, value = struct[field]
        if 0 < field - last < 16:
            out.append((field - last) << 4 | kind)
        else:
            out.append(kind)
            _write_int(out, field)
        last = field
        if value.__class__ is Raw:
            out += value
        elif value.__class__ is int:
            if 0 <= value < 0x40:
                out.append(value << 1)
            else:
                _write_int(out, value)
        else:
            _write_value(out, value)
    out.append(0)


def _write_value(out: bytearray, value: bytes | bool | Struct | list[Struct]) -> None:
    if isinstance(value, bytes):
        _write_varint(out, len(value))
        out += value
    elif isinstance(value, Struct):
        _write_struct(out, value)
    elif isinstance(value, list):
        _write_list_header(out, len(value), STRUCT)
        for struct in value:
            _write_struct(out, struct)
    # The Thrift type of a boolean field is its value.
