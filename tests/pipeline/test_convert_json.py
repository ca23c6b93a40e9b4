"""JSON through the whole pipeline: layouts, nested values, exact numbers, mixed sorts, late fields, rejects."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from inlay.errors import BadRowsError, UnreadableUploadError


def _rows(converter: Any, content: str, **more: Any) -> list[dict[str, Any]]:
    conversion = converter.convert(content.encode(), "json", **more)
    table = converter.table(conversion)
    assert table.num_rows == conversion.rows
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


@pytest.mark.parametrize("split_bytes", [20, 1 << 20])
@pytest.mark.parametrize(
    ("layout", "content"),
    [
        ("lines", '{"a": 1, "b": {"c": "x"}}\n\n{"a": 2, "b": {"c": null}}\r\n{"b": null}'),
        ("array", ' [\n{"a": 1, "b": {"c": "x"}},\n{"a": 2, "b": {"c": null}}, {"b": null}\n]\n'),
        ("array", '[{"a":1,"b":{"c":"x"}},{"a":2,"b":{"c":null}},{"b":null}]'),
        ("objects", '{"a": 1,\n "b": {"c":\n"x"}}\n{"a": 2,\n"b": {"c": null}}{\n"b": null}'),
    ],
)
def test_layouts(converter: Any, layout: str, content: str, split_bytes: int) -> None:
    conversion = converter.convert(content.encode(), "json", split_bytes=split_bytes)
    assert conversion.options.layout == layout
    assert converter.table(conversion).to_pylist() == [
        {"a": 1, "b": {"c": "x"}},
        {"a": 2, "b": {"c": None}},
        {"a": None, "b": None},
    ]


@pytest.mark.parametrize(
    ("numbers", "type_", "values"),
    [
        (["1", "-5"], "int64", [1, -5]),
        (["9223372036854775808"], "decimal128(38, 0)", [Decimal(9223372036854775808)]),
        (["1" * 25, "2"], "decimal128(38, 0)", [Decimal("1" * 25), Decimal(2)]),
        (["9007199254740993", "1.5"], "decimal128(38, 1)", [Decimal("9007199254740993.0"), Decimal("1.5")]),
        (["0.1", "2"], "double", [0.1, 2.0]),
        (["0.1234567890123456789"], "decimal128(38, 19)", [Decimal("0.1234567890123456789")]),
        (["1e3"], "double", [1000.0]),
        (["-Infinity", "1"], "double", [-math.inf, 1.0]),
        (["1e400", "1"], "string", ["1e400", "1"]),
    ],
)
@pytest.mark.parametrize("nesting", ["top", "list", "struct"])
def test_numbers_are_never_changed(
    converter: Any, numbers: list[str], type_: str, values: list[Any], nesting: str
) -> None:
    around = {"top": "%s", "list": "[%s]", "struct": '{"x": %s}'}[nesting]
    table = converter.table(converter.convert("\n".join(f'{{"a": {around % n}}}' for n in numbers).encode(), "json"))
    column = table.column("a")
    wanted = {"top": values, "list": [[v] for v in values], "struct": [{"x": v} for v in values]}[nesting]
    assert type_ in str(column.type)
    assert column.to_pylist() == wanted


def test_dates_in_text(converter: Any) -> None:
    content = (
        '{"d": "2024-01-31", "t": "2024-01-31T10:00:00Z", "s": "007", "e": ""}\n{"d": "2024-02-01", "e": "2024-01-01"}'
    )
    assert _rows(converter, content)[0] == {
        "d": dt.date(2024, 1, 31),
        "t": dt.datetime(2024, 1, 31, 10, tzinfo=dt.UTC),
        "s": "007",
        "e": "",
    }


def test_values_of_different_types_become_text_with_a_warning(converter: Any) -> None:
    content = '{"a": 1.50}\n{"a": "x"}\n{"a": {"z": [1.50, null]}}\n{"a": true}\n{"a": null}'
    conversion = converter.convert(content.encode(), "json")
    assert converter.table(conversion).column("a").to_pylist() == ["1.50", "x", '{"z": [1.50, null]}', "true", None]
    assert conversion.warnings == ["Column 'a' is text, because its values have different types."]


def test_fields_and_types_first_seen_after_the_sample(converter: Any) -> None:
    first = [json.dumps({"a": n, "s": {"x": 1}}) for n in range(10_100)]
    late = ['{"a": 1.5, "late": [1], "s": {"y": "new"}}', '{"a": 9007199254740993, "late": null}']
    rows = _rows(converter, "\n".join([*first, *late]), split_bytes=50_000)
    assert len(rows) == 10_102
    assert rows[10_099] == {"a": Decimal(10_099), "s": {"x": 1, "y": None}, "late": None}
    assert rows[10_100] == {"a": Decimal("1.5"), "s": {"x": None, "y": "new"}, "late": [1]}
    assert rows[10_101] == {"a": Decimal(9007199254740993), "s": None, "late": None}


@pytest.mark.parametrize("order", [1, -1])
def test_nanoseconds_with_years_out_of_their_range_become_text(converter: Any, order: int) -> None:
    fine, far = ["2024-01-31T10:00:00.123456789"] * 400, ["9999-12-31T00:00:00"] * 400
    written = [*fine, *far][::order]
    content = "".join(f'{{"at": "{value}"}}\n' for value in written).encode()
    for split_bytes in (1 << 20, 5_000):
        found = converter.convert(content, "json", split_bytes=split_bytes)
        assert (found.rejected, converter.table(found).column("at").to_pylist()) == (0, written)


def test_integers_then_text_after_the_sample(converter: Any) -> None:
    content = "\n".join([*(f'{{"a": {n}}}' for n in range(10_100)), '{"a": "x"}'])
    assert [row["a"] for row in _rows(converter, content, split_bytes=50_000)] == [*map(str, range(10_100)), "x"]


def test_empty_objects_and_lists_are_kept(converter: Any) -> None:
    assert _rows(converter, '{"e": {}, "l": [], "n": null}\n{"l": [1]}') == [
        {"e": "{}", "l": [], "n": None},
        {"e": None, "l": [1], "n": None},
    ]


def test_rejects_have_physical_lines(converter: Any) -> None:
    content = '{"a": 1}\n\nnope\n{"a": 2}\n[1]\n{"a": 1, "a": 2}\n{"a": 3}'
    conversion = converter.convert(content.encode(), "json", on_error="quarantine")
    assert (conversion.rows, conversion.rejected) == (3, 3)
    assert [(r["line"], r["raw"]) for r in converter.rejects(conversion)] == [
        (3, "nope"),
        (5, "[1]"),
        (6, '{"a": 1, "a": 2}'),
    ]
    with pytest.raises(BadRowsError) as caught:
        converter.convert(content.encode(), "json")
    assert [error["line"] for error in caught.value.errors] == [3, 5, 6]


def test_array_elements_that_are_not_objects_are_rejected(converter: Any) -> None:
    conversion = converter.convert(b'[{"a": 1},\n5,\n{"a": 2}, "x"]', "json", on_error="quarantine")
    assert converter.table(conversion).to_pylist() == [{"a": 1}, {"a": 2}]
    assert [(r["line"], r["raw"]) for r in converter.rejects(conversion)] == [(2, "5"), (3, '"x"')]


def test_lone_surrogates_are_rejected(converter: Any) -> None:
    conversion = converter.convert(b'{"a": "x"}\n{"a": "\\ud800"}', "json", on_error="quarantine")
    assert (conversion.rows, converter.rejects(conversion)[0]["value"]) == (1, "\\ud800")


def test_deep_nesting(converter: Any) -> None:
    deep = '{"a":' * 100 + "1" + "}" * 100
    too_deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    conversion = converter.convert(f"{deep}\n{too_deep}\n".encode(), "json", on_error="quarantine")
    assert (conversion.rows, conversion.rejected) == (1, 1)
    value = converter.table(conversion).column("a").to_pylist()[0]
    while isinstance(value, dict):
        value = value["a"]
    assert json.loads(value)["a"]


def test_overrides_and_targets(converter: Any) -> None:
    content = '{"a": "5", "n": 1}\n{"a": 7, "n": "x"}\n{"a": 300, "n": true}'
    conversion = converter.convert(
        content.encode(), "json", overrides={"a": pa.int8(), "n": pa.string()}, on_error="quarantine"
    )
    assert converter.table(conversion).to_pylist() == [{"a": 5, "n": "1"}, {"a": 7, "n": "x"}]
    assert converter.rejects(conversion)[0]["value"] == "300"
    like = pa.schema([("s", pa.struct([("x", pa.int32()), ("y", pa.string())])), ("d", pa.date32())])
    assert _rows(converter, '{"s": {"x": 1}, "d": "2024-01-31"}', like=like) == [
        {"s": {"x": 1, "y": None}, "d": dt.date(2024, 1, 31)}
    ]


@pytest.mark.parametrize("content", ["", "  \n", "[]", "hello", '[{"a": 1}', '[{"a": 1}] x', '{"a": 1}}{"a": 2}'])
def test_unreadable_json_is_rejected(converter: Any, content: str) -> None:
    with pytest.raises((UnreadableUploadError, BadRowsError)):
        converter.convert(content.encode(), "json")
    assert converter.everything() == []
