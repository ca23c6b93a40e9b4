"""Every Arrow type that Parquet can store, with edge values, for type and property tests."""

from __future__ import annotations

import datetime as dt
import io
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TINY = struct.unpack("<d", struct.pack("<Q", 1))[0]
LONG = "Straße \U0001f600 " * 40
DICTIONARY = pa.dictionary(pa.int32(), pa.string())
POINT = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("tags", pa.list_(pa.string()))])


def _ints(bits: int, *, signed: bool) -> list[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return [low, high, 1, 5, 42]


def _decimals(precision: int, scale: int) -> list[Decimal]:
    nines = int("9" * precision)
    return [Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)) for n in (nines, -nines, 0, 1, -15)]


#: name -> (type, five different values)
SCALARS: dict[str, tuple[pa.DataType, list[Any]]] = {
    **{f"int{n}": (getattr(pa, f"int{n}")(), _ints(n, signed=True)) for n in (8, 16, 32, 64)},
    **{f"uint{n}": (getattr(pa, f"uint{n}")(), _ints(n, signed=False)) for n in (8, 16, 32, 64)},
    "float16": (pa.float16(), [0.5, -0.0, math.inf, math.nan, 65504.0]),
    "float32": (pa.float32(), [0.5, -0.0, -math.inf, math.nan, 3.0]),
    "float64": (pa.float64(), [0.1, -0.0, math.inf, math.nan, TINY]),
    "string": (pa.string(), ["", "a", "Ünï\0", LONG, " a "]),
    "large_string": (pa.large_string(), ["", "a", "Ünï", LONG, " a "]),
    "string_view": (pa.string_view(), ["", "a", "Ünï", LONG, " a "]),
    "binary": (pa.binary(), [b"", b"a", b"\xff\0", b"x" * 300, b"b"]),
    "large_binary": (pa.large_binary(), [b"", b"a", b"\xff\0", b"x" * 300, b"b"]),
    "binary_view": (pa.binary_view(), [b"", b"a", b"\xff\0", b"x" * 300, b"b"]),
    "fixed_size_binary": (pa.binary(3), [b"abc", b"\0\0\0", b"\xff\xff\xff", b"abd", b"zzz"]),
    "date32": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1970, 1, 1), 1, -1]),
    "time32_ms": (pa.time32("ms"), [0, 1, 86_399_999, 1000, 7]),
    "time64_us": (pa.time64("us"), [0, 1, 86_399_999_999, 1000, 7]),
    "time64_ns": (pa.time64("ns"), [0, 1, 86_399_999_999_999, 1000, 7]),
    **{f"timestamp_{u}": (pa.timestamp(u), [0, 1, -1, 2**40, -(2**40)]) for u in ("ms", "us", "ns")},
    **{
        f"timestamp_{u}_{zone}": (pa.timestamp(u, zone), [0, 1, -1, 2**40, -(2**40)])
        for u, zone in (("ms", "UTC"), ("us", "Europe/Berlin"), ("ns", "+05:30"))
    },
    "decimal32": (pa.decimal32(7, 2), _decimals(7, 2)),
    "decimal64": (pa.decimal64(15, 2), _decimals(15, 2)),
    "decimal128": (pa.decimal128(38, 10), _decimals(38, 10)),
    "decimal256": (pa.decimal256(60, 5), _decimals(60, 5)),
    "dictionary": (DICTIONARY, ["a", "b", "", "Ü", LONG]),
    "dictionary_int8": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "", "Ü", "c"]),
    "dictionary_ordered": (pa.dictionary(pa.int32(), pa.string(), ordered=True), ["a", "b", "", "Ü", "c"]),
    "dictionary_binary": (pa.dictionary(pa.int16(), pa.binary()), [b"a", b"b", b"", b"\xff", b"c"]),
    "uuid": (pa.uuid(), [bytes([i]) * 16 for i in (0, 1, 2, 254, 255)]),
}

#: types of values that cannot be keys
OTHERS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, True, False, True]),
    **{f"duration_{u}": (pa.duration(u), [0, 1, -1, 2**40, -(2**40)]) for u in ("s", "ms", "us", "ns")},
    "null": (pa.null(), [None] * 5),
    "json": (pa.json_(), ["{}", '{"a": 1}', "[]", "null", "1"]),
    "bool8": (pa.bool8(), [1, 0, 1, 0, 1]),
    "list": (pa.list_(pa.int64()), [[], [1], [None, 2], [3] * 20, [4]]),
    "large_list": (pa.large_list(pa.string()), [[], ["a"], [None, "b"], ["c"] * 20, ["d"]]),
    "fixed_size_list": (pa.list_(pa.int16(), 2), [[1, 2], [3, None], [0, 0], [5, 6], [7, 8]]),
    "list_view": (pa.list_view(pa.int32()), [[], [1], [None, 2], [3] * 20, [4]]),
    "list_not_null": (
        pa.list_(pa.field("element", pa.float64(), nullable=False)),
        [[], [0.1], [math.nan], [-0.0, 0.0], [1.0]],
    ),
    "list_of_lists": (pa.list_(pa.list_(pa.int8())), [[], [[]], [[1], None], [[None]], [[2, 3], [4]]]),
    "list_of_dictionaries": (pa.list_(DICTIONARY), [[], ["a"], [None, "b"], ["a", "a"], ["c"]]),
    "struct": (POINT, [{"x": i, "tags": tags} for i, tags in enumerate([None, [], ["a"], [None], ["b"]])]),
    "struct_of_struct": (
        pa.struct([pa.field("p", POINT), pa.field("d", pa.decimal128(9, 2))]),
        [{"p": {"x": i, "tags": ["t"]} if i % 2 else None, "d": Decimal(i)} for i in range(5)],
    ),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        [[], [("a", 1)], [("b", None)], [("c", 2), ("d", 3)], [("e", 4)]],
    ),
    "map_of_structs": (
        pa.map_(pa.int32(), POINT),
        [[], [(1, None)], [(2, {"x": 1, "tags": []})], [(3, {"x": 2, "tags": None})], [(4, None)]],
    ),
    "timestamps_in_list": (pa.list_(pa.timestamp("ns", "UTC")), [[], [1], [None, 2**60], [-1], [3]]),
    "tensor": (pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]),
}


def array_of(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return an array of the type; an extension array is made from its storage."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind).cast(kind)  # pyarrow before 25 forgets that a dictionary is ordered


def _is_stored(kind: pa.DataType, values: list[Any]) -> bool:
    """Check that the installed pyarrow writes the values to Parquet and reads them back."""
    sink = io.BytesIO()
    try:
        pq.write_table(pa.table({"v": array_of(kind, [*values, None])}), sink)
        return pq.read_table(sink).num_rows == len(values) + 1
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False


ALL_TYPES = SCALARS | OTHERS
# Older pyarrow releases cannot store every type; a test asserts that inlay refuses those by name.
SCALARS = {name: held for name, held in SCALARS.items() if _is_stored(*held)}
OTHERS = {name: held for name, held in OTHERS.items() if _is_stored(*held)}
TYPES = SCALARS | OTHERS
needs_small_decimals = pytest.mark.skipif("decimal32" not in TYPES, reason="pyarrow before 22 stores no decimal32")
