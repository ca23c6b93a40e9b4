"""JSON arrays without Spark: every value is a row or a reject of its own, and broken punctuation is an error."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inlay.errors import UnreadableUploadError
from inlay.pipeline import InlineFile, preview
from tests.pipeline.conftest import Converter


@pytest.mark.parametrize(
    ("content", "line", "offset", "why"),
    [
        ('[{"a":1},\n{"a":2}}', 2, 17, "unexpected }"),
        ('[{"a":1}},\n{"a":2}]', 1, 8, "unexpected }"),
        ('[,{"a":1}]', 1, 1, "a value is missing next to a comma"),
        ('[{"a":1},\n,{"a":2}]', 2, 10, "a value is missing next to a comma"),
        ('[{"a":1},\n]', 2, 10, "a value is missing next to a comma"),
        ('[\n{"a":1}\n{"a":2}]', 3, 10, "a comma is missing between two values"),
        ('[{"a":1} 5, {"a":2}]', 1, 9, "a comma is missing between two values"),
        ('[{"a":1}, 5 {"a":2}]', 1, 10, "a comma is missing between two values"),
        ('[{"a":1}]\r\n\r\nx', 3, 13, "text follows the array"),
        ('[{"a":1}][{"a":2}]', 1, 9, "text follows the array"),
        ('[{"a":1}],', 1, 9, "text follows the array"),
        ('[{"a":1},\n{"a":2}', 2, 17, "the array is never closed, so the file is probably incomplete"),
        ('{"a":\n1}}\n{"a":2}', 2, 8, "unexpected }"),
    ],
)
@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_invalid_punctuation_is_reported_with_its_position(
    local_converter: Converter, content: str, line: int, offset: int, why: str, split_bytes: int
) -> None:
    wanted = f"Invalid JSON in line {line}, at byte {offset} of the file: {why}."
    with pytest.raises(UnreadableUploadError, match=re.escape(wanted)):
        local_converter.convert(content.encode(), "json", on_error="quarantine", split_bytes=split_bytes)
    assert local_converter.everything() == []


def test_text_long_after_an_array_is_found(local_converter: Converter) -> None:
    with pytest.raises(UnreadableUploadError, match="at byte 20000009 of the file: text follows"):
        local_converter.convert(b'[{"a":1}]' + b" " * 20_000_000 + b"x", "json")


@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_every_value_that_is_not_an_object_is_one_reject(local_converter: Converter, split_bytes: int) -> None:
    content = '[1, 2,\n{"a": 1}, "x, {y}", null,\n[3, 4], {"a": 2}, 5 6]'
    found = local_converter.convert(content.encode(), "json", on_error="quarantine", split_bytes=split_bytes)
    assert local_converter.table(found).to_pylist() == [{"a": 1}, {"a": 2}]
    assert [(reject["line"], reject["raw"]) for reject in local_converter.rejects(found)] == [
        (1, "1"), (1, "2"), (2, '"x, {y}"'), (2, "null"), (3, "[3, 4]"), (3, "5 6"),
    ]  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("split_bytes", [1, 1 << 20])
def test_lines_are_counted_with_every_line_end(local_converter: Converter, end: str, split_bytes: int) -> None:
    content = end.join(["", "[", '{"a": 1},', '{"a":', '2, "a": 3},', "4,", '{"a": 5}', "]"])
    found = local_converter.convert(content.encode(), "json", on_error="quarantine", split_bytes=split_bytes)
    assert [reject["line"] for reject in local_converter.rejects(found)] == [4, 6]


def test_objects_separated_by_commas_are_not_a_sequence(local_converter: Converter) -> None:
    found = local_converter.convert(b'{"a":1},\n{"a":2}', "json", on_error="quarantine")
    assert (found.options.layout, found.rows, found.rejected) == ("objects", 2, 1)
    assert local_converter.rejects(found)[0]["raw"] == ","


def test_a_line_end_inside_a_string_is_never_replaced(local_converter: Converter) -> None:
    found = local_converter.convert(b'[{"a": "x"}, {"a": "y\nz"}]', "json", on_error="quarantine")
    assert local_converter.table(found).to_pylist() == [{"a": "x"}]
    assert "control character" in local_converter.rejects(found)[0]["reason"]


def test_a_preview_shows_all_of_a_small_array(local_converter: Converter) -> None:
    found = preview(None, InlineFile(b'[{"a": 1}, 5,\n6]'))
    assert (found.rows, [cell.line for cell in found.bad_cells]) == ([{"a": 1}], [1, 2])
    with pytest.raises(UnreadableUploadError, match="line 1, at byte 9 of the file: a comma"):
        preview(None, InlineFile(b'[{"a": 1}{"a": 2}]'))


_TOKENS = st.sampled_from(
    [",", ",", ",", ",\n", '{"a": 1}', '{"a": 2}', '{"a": {"b": [1, "]"]}}', "{}", "5", "null", '"x,y"', '"[\\"{"',
     "[1]", "\r\n", "x", "{", "}", "[", "]", '"', ":"]
)  # fmt: skip


@st.composite
def _arrays(draw: st.DrawFn) -> str:
    """Mostly what is right."""
    if draw(st.booleans()):
        return "[" + "".join(draw(st.lists(_TOKENS, max_size=12))) + "]"
    values = draw(st.lists(_TOKENS.filter(lambda token: token[0] not in ",x{}[]:" or len(token) > 2), max_size=10))
    return "[" + draw(st.sampled_from([",", ", ", "\n,\r"])).join(values) + "]"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_arrays(), st.integers(1, 60))
@example("[]", 1)
@example('[{"a": 1},]', 1)
@example('[{"a": 1}{"a": 1}]', 80)
def test_arrays_against_the_json_module(local_converter: Converter, content: str, split_bytes: int) -> None:
    content = '[{"a": 0},' + content[1:] if content != "[]" else '[{"a": 0}]'
    try:
        wanted = json.loads(content)
    except ValueError:
        wanted = None
    try:
        found = local_converter.convert(
            content.encode(), "json", {"layout": "array"}, on_error="quarantine", split_bytes=split_bytes
        )
    except UnreadableUploadError:
        assert wanted is None
        return
    if wanted is None:
        assert found.rejected
    else:
        bad = [value for value in wanted if not isinstance(value, dict)]
        assert (found.rows, found.rejected) == (len(wanted) - len(bad), len(bad))
        assert [json.loads(reject["raw"]) for reject in local_converter.rejects(found)] == bad
