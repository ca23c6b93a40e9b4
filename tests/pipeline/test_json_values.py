"""JSON values of chosen types without Spark: by the rules of cells, wherever they are."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inlay.errors import InvalidArgumentError, UnreadableUploadError
from inlay.pipeline import InlineFile, preview
from inlay.text import json_files
from inlay.text.cells import Reading, convert
from inlay.type_grammar import parse_type
from tests.pipeline.conftest import Converter
from tests.pipeline.test_cells import NUMBERS, decimals
from tests.pipeline_data import parquet_bytes

_DAY = dt.date(2024, 1, 31)
_MORNING = dt.datetime.fromisoformat("2024-01-31T10:00")
_AS_JSON = NUMBERS.map(lambda n: n.lstrip("-0") or "0").map(lambda n: f"0{n}" if n[0] in ".e" else n)


# Types of fields that allow no NULL, also under a NULL.
REQUIRED = (
    pa.string(), pa.binary(), pa.binary(3), pa.bool_(), pa.float32(), pa.decimal128(9, 2), pa.date32(),
    pa.timestamp("us", "UTC"), pa.time64("us"), pa.list_(pa.int8()), pa.large_list(pa.string()),
    pa.map_(pa.string(), pa.int64()),
    pa.struct([pa.field("deep", pa.int16(), nullable=False)]),
)  # fmt: skip


def _column(
    local_converter: Converter, rows: list[str], type_: pa.DataType | None
) -> tuple[list[Any], list[str | None]]:
    """Values that were loaded, and those that were rejected."""
    content = "\n".join(f'{{"x": {row}}}' for row in rows).encode()
    overrides = {} if type_ is None else {"x": type_}
    found = local_converter.convert(content, "json", overrides=overrides, on_error="quarantine")
    assert found.rows + found.rejected == len(rows)
    return local_converter.table(found).column("x").to_pylist(), [
        reject["value"] for reject in local_converter.rejects(found)
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(_AS_JSON, min_size=1, max_size=8),
    st.one_of(decimals(), st.sampled_from([pa.float64(), pa.float32(), pa.float16(), pa.int64(), pa.int16()])),
    st.sampled_from(["%s", "[%s]", '{"y": %s}']),
)
@example(["4"], pa.decimal128(1, 1), "%s")
@example(["4"], pa.decimal128(1, 1), "[%s]")
@example(["4"], pa.decimal128(1, 1), '{"y": %s}')
@example(["9" * 39], pa.decimal128(38, 0), "%s")
@example(["9" * 10], pa.decimal128(38, 30), "%s")
@example(["1e39", "1e-60", "16777217", "1.5"], pa.float32(), "%s")
@example(["1e400", "1e-400"], pa.float64(), "[%s]")
def test_json_numbers_follow_the_rules_of_cells(
    local_converter: Converter, numbers: list[str], type_: pa.DataType, around: str
) -> None:
    cells = convert(pa.array(numbers), Reading(type_, fixed=True)).values.to_pylist()
    wanted = [cell for cell in cells if cell is not None]
    whole = {"%s": type_, "[%s]": pa.list_(type_), '{"y": %s}': pa.struct([("y", type_)])}[around]
    values, _ = _column(local_converter, [around % number for number in numbers], whole)
    inner = {"%s": lambda v: v, "[%s]": lambda v: v[0], '{"y": %s}': lambda v: v["y"]}[around]
    assert [inner(value) for value in values] == wanted


@pytest.mark.parametrize("late", ["1e-400", "1e400", "0.12345678901234567890", "9007199254740993"])
def test_late_numbers_are_never_changed(local_converter: Converter, monkeypatch: pytest.MonkeyPatch, late: str) -> None:
    monkeypatch.setattr(json_files, "SAMPLE_ROWS", 3)
    values, rejects = _column(local_converter, ["1.5", "1.5", "2", late], None)
    assert rejects == []
    assert Decimal(values[-1]) == Decimal(late)


@pytest.mark.parametrize(
    ("type_", "rows", "values", "rejects"),
    [
        ("list<date>", ['["2024-01-31", null]', "[]", "null", '["x"]'], [[_DAY, None], [], None], ['["x"]']),
        ("struct<a: timestamp>", ['{"a": "2024-01-31 10:00"}'], [{"a": _MORNING}], []),
        ("list<time>", ['["10:00:00"]', "[5]"], [[dt.time(10)]], ["[5]"]),
        ("list<binary>", ['["é", ""]'], [["é".encode(), b""]], []),
        ("map<text, bigint>", ['{"a": 1, "b": null}', "{}", "[1]"], [[("a", 1), ("b", None)], []], ["[1]"]),
        ("map<date, list<date>>", ['{"2024-01-31": ["2024-01-31"]}', '{"x": []}'], [[(_DAY, [_DAY])]], ['{"x": []}']),
        ("list<map<text, double>>", ['[{"a": 1.5}]', '[{"a": "x"}]'], [[[("a", 1.5)]]], ['[{"a": "x"}]']),
        ("struct<a: list<bigint>>", ['{"a": [1, "2"]}', '{"a": [1.5]}'], [{"a": [1, 2]}], ['{"a": [1.5]}']),
        (pa.list_(pa.int64(), 2), ["[1, 2]", "[1]", "null"], [[1, 2], None], ["[1]"]),
        (pa.large_list(pa.date32()), ['["2024-01-31"]', "5"], [[_DAY]], ["5"]),
        (pa.struct([pa.field("a", pa.int8(), nullable=False)]), ['{"a": 1}', "{}", "null"], [{"a": 1}, None], ["{}"]),
        (
            pa.struct([pa.field(str(n), t, nullable=False) for n, t in enumerate(REQUIRED)]),
            ["null", '{"0": "x"}'],
            [None],
            ['{"0": "x"}'],
        ),
        (pa.list_(pa.field("item", pa.int64(), nullable=False)), ["[1]", "[null]", "null"], [[1], None], ["[null]"]),
        (pa.duration("s"), ["5", "null"], [None], ["5"]),
        (pa.list_view(pa.int64()), ["[5]"], [], ["[5]"]),
        (pa.binary(2), ['"ab"', '"abc"', "null"], [b"ab", None], ["abc"]),
    ],
)
def test_nested_and_odd_types(
    local_converter: Converter, type_: Any, rows: list[str], values: list[Any], rejects: list[str]
) -> None:
    chosen = parse_type(type_) if isinstance(type_, str) else type_
    loaded, refused = _column(local_converter, rows, chosen)
    assert loaded == values
    assert [json.loads(r) if r[:1] in "[{" else r for r in map(str, refused)] == [
        json.loads(r) if r[:1] in "[{" else r for r in rejects
    ]


def test_values_beyond_the_capacity_of_a_dictionary_are_rejected(local_converter: Converter) -> None:
    values, rejects = _column(local_converter, [f'"{n}"' for n in range(130)], pa.dictionary(pa.int8(), pa.string()))
    assert (values, rejects) == ([str(n) for n in range(128)], ["128", "129"])


@pytest.mark.parametrize("deep", ['{"a":' * 400 + "1" + "}" * 400, '{"a":' + "[" * 900 + "]" * 900 + "}"])
def test_deeply_nested_values_are_rejected(local_converter: Converter, deep: str) -> None:
    found = local_converter.convert(f'{{"a": 1}}\n{deep}'.encode(), "json", on_error="quarantine")
    assert local_converter.table(found).to_pylist() == [{"a": 1}]
    assert local_converter.rejects(found)[0]["reason"] == "nested too deeply"


def test_names_with_lone_surrogates_are_rejected(local_converter: Converter) -> None:
    found = local_converter.convert(b'{"\\ud7a3": 1}\n{"\\ud800": 1}', "json", on_error="quarantine")
    assert local_converter.table(found).to_pylist() == [{"\ud7a3": 1}]
    assert "surrogate" in local_converter.rejects(found)[0]["reason"]


@pytest.mark.parametrize(
    ("content", "layout", "rows"),
    [
        ('{"a":1}{"a":2}', "objects", [{"a": 1}, {"a": 2}]),
        ('{\n"a":\n{"b": 1}\n}', "objects", [{"a": {"b": 1}}]),
        ('{"a": 1}\n{"a": 2}', "lines", [{"a": 1}, {"a": 2}]),
    ],
)
def test_the_layout_is_detected_from_the_first_record(
    local_converter: Converter, content: str, layout: str, rows: list[Any]
) -> None:
    found = local_converter.convert(content.encode(), "json")
    assert (found.options.layout, local_converter.table(found).to_pylist()) == (layout, rows)


def test_overrides_apply_to_fields_outside_of_the_sample(local_converter: Converter) -> None:
    found = local_converter.convert(b"[]", "json", overrides={"a": pa.date32()})
    assert (found.rows, found.schema) == (0, pa.schema([("a", pa.date32())]))


@pytest.mark.parametrize(
    "late",
    [
        '{"a": "2024-01-31"}',
        '{"a": null}',
        '{"\\u0061": null}',
        '{"b": 1, "b": 2}\n{"a": 5, "b": 2}',
        '{"x": {"a": 1}}\n{"a": null}',
    ],
)
def test_a_late_field_with_an_override_is_loaded(
    local_converter: Converter, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    monkeypatch.setattr(json_files, "SAMPLE_ROWS", 1)
    content = f'{{"b": 1}}\n{late}\n{{"b": 3}}'.encode()
    found = local_converter.convert(content, "json", overrides={"a": pa.date32()}, on_error="quarantine", split_bytes=5)
    assert "a" in found.schema.names
    assert found.rows + found.rejected == content.count(b"\n") + 1


@pytest.mark.parametrize("late", ['{"c": "amount"}', '{"x": {"amuont": 1}}', '{"y": "\\u0061"}', "[1]", '{"b": 2}'])
@pytest.mark.parametrize("sample", [1, 100])
def test_an_override_for_a_field_that_no_record_has_is_rejected(
    local_converter: Converter, monkeypatch: pytest.MonkeyPatch, late: str, sample: int
) -> None:
    monkeypatch.setattr(json_files, "SAMPLE_ROWS", sample)
    content = f'{{"amount": 1, "b": 1}}\n{late}'.encode()
    with pytest.raises(InvalidArgumentError, match="Cannot set a type for 'amuont'") as caught:
        local_converter.convert(content, "json", overrides={"amuont": pa.int8()}, on_error="quarantine", split_bytes=5)
    assert caught.value.hint == "Did you mean 'amount'?"
    assert local_converter.everything() == []
    shown = preview(None, InlineFile(content), overrides={"amuont": pa.int8()})
    assert "The first rows have no field 'amuont', for which you set a type." in shown.warnings


def test_a_file_without_records_is_rejected(local_converter: Converter) -> None:
    with pytest.raises(UnreadableUploadError):
        local_converter.convert(b'{"a": 1, "a": 2}', "json", on_error="quarantine")
    assert local_converter.everything() == []


def test_a_field_with_an_empty_name_is_renamed(local_converter: Converter) -> None:
    found = local_converter.convert(b'{"": 1, "column_1": 2, " ": 3}', "json")
    assert found.schema.names == ["column_1_2", "column_1", " "]
    assert found.warnings == ["Column 1 has no name: inlay loads it as 'column_1_2'."]


def test_a_late_field_with_an_empty_name_is_renamed(
    local_converter: Converter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_files, "SAMPLE_ROWS", 1)
    content = b'{"a": 1}\n{"a": 2, "": {"": 5}}\n{"": null, "column_2": 3}'
    found = local_converter.convert(content, "json", on_error="quarantine")
    assert local_converter.table(found).to_pylist() == [{"a": 1, "column_2": None}, {"a": 2, "column_2": {"": 5}}]
    assert [reject["reason"] for reject in local_converter.rejects(found)] == [
        "an object contains the same name twice: inlay loads the field with an empty name as 'column_2'"
    ]


def test_years_outside_of_pythons_range_are_previewed_as_text(local_converter: Converter) -> None:
    days = pa.array([-719_529, 3_000_000], pa.int32()).cast(pa.date32())
    found = preview(None, InlineFile(parquet_bytes(pa.table({"d": days}))))
    assert [row["d"] for row in found.rows] == found.columns[0].samples == ["-0001-12-31", "10183-09-21"]


@pytest.mark.parametrize(
    ("early", "late", "type_", "values"),
    [
        ("[]", "[1, 2]", "list<bigint>", [[], [1, 2]]),
        ("[null]", "[1.5]", "list<double>", [[None], [1.5]]),
        ("[null, null]", "null", "list<text>", [[None, None], None]),
        ("[[]]", '[["x"]]', "list<list<text>>", [[[]], [["x"]]]),
        ('{"x": null}', '{"x": true}', "struct<x: boolean>", [{"x": None}, {"x": True}]),
        ('{"x": []}', '{"x": [7]}', "struct<x: list<bigint>>", [{"x": []}, {"x": [7]}]),
        ("{}", '{"x": 1}', "struct<x: bigint>", [{"x": None}, {"x": 1}]),
        ("[{}]", '[{"x": 1}]', "list<struct<x: bigint>>", [[{"x": None}], [{"x": 1}]]),
        ('{"x": {}}', '{"x": {"y": "z"}}', "struct<x: struct<y: text>>", [{"x": {"y": None}}, {"x": {"y": "z"}}]),
        ("{}", "5", "text", ["{}", "5"]),
        ("{}", "[]", "text", ["{}", "[]"]),
        ("[{}]", "[{}]", "list<text>", [["{}"], ["{}"]]),
    ],
)
def test_parts_that_are_empty_in_the_sample_take_the_type_of_later_values(
    local_converter: Converter, monkeypatch: pytest.MonkeyPatch, early: str, late: str, type_: str, values: list[Any]
) -> None:
    monkeypatch.setattr(json_files, "SAMPLE_ROWS", 1)
    found = local_converter.convert(f'{{"a": {early}}}\n{{"a": {late}}}'.encode(), "json")
    assert found.schema.field("a").type == parse_type(type_)
    assert local_converter.table(found).column("a").to_pylist() == values


_NESTED = st.recursive(
    st.sampled_from([None, None, True, 1, 2.5, 10**25, "x", "", []]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("xy"), inner, max_size=2)),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.dictionaries(st.sampled_from("ab"), _NESTED, max_size=2), min_size=2, max_size=8), st.integers(1, 60)
)
def test_the_sample_size_does_not_change_the_result(
    local_converter: Converter, rows: list[dict[str, Any]], split_bytes: int
) -> None:
    content = "\n".join(map(json.dumps, [{"k": 1}, *rows])).encode()
    whole = local_converter.table(local_converter.convert(content, "json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_files, "SAMPLE_ROWS", 2)
        found = local_converter.table(local_converter.convert(content, "json", split_bytes=split_bytes))
    assert found.equals(whole)
