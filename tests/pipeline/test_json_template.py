"""JSON that repeats a template, against the json module: what is read without a parser equals what json reads."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inlay.text import json_template
from inlay.text.json_template import read_templated

MORE = settings(max_examples=(settings.default or settings()).max_examples * 10)
_TEXT = st.text(st.sampled_from('a"\\é𝄞\n\t\0/, :{}[]null'), max_size=6) | st.sampled_from(["", "null", '"a": null'])
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): _TEXT,
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-3, 3),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False).filter(lambda n: n == 0 or 1e-300 < abs(n) < 2**53)
    | st.decimals(-1000, 1000, places=2).map(float),
    pa.bool_(): st.booleans(),
    pa.null(): st.none(),
}
_NAMES = ("a", "b", "é", " ", "null", ", ", "a.b")


@st.composite
def _files(draw: st.DrawFn) -> tuple[bytes, pa.Schema]:
    """Lines of one template, and a schema that may have more fields."""
    types = st.sampled_from(list(_VALUES))
    schema = pa.schema(
        draw(st.lists(st.tuples(st.sampled_from(_NAMES), types), min_size=1, max_size=4, unique_by=lambda f: f[0]))
    )
    written = draw(st.permutations(list(schema)))[: draw(st.integers(1, 4))]
    row = st.tuples(*(st.one_of(st.none(), _VALUES[f.type], _VALUES[f.type]) for f in written))
    rows = [
        dict(zip([f.name for f in written], row, strict=True)) for row in draw(st.lists(row, min_size=1, max_size=8))
    ]
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]))
    ascii_only, end = draw(st.booleans()), draw(st.sampled_from(["\n", "\r\n"]))
    lines = [json.dumps(row, separators=separators, ensure_ascii=ascii_only) + end for row in rows]
    return "".join(lines).encode(), schema


def _read(text: bytes, schema: pa.Schema) -> list[dict[str, Any]] | None:
    tables = read_templated(text, schema)
    return None if tables is None else pa.concat_tables(tables).to_pylist()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


def _refuse(text: str) -> Any:
    raise AssertionError(text)


def _check(text: bytes, schema: pa.Schema) -> None:
    """Compare the rows, if they are read, with those of the json module."""
    found = _read(text, schema)
    if found is None:
        return
    lines = text.decode().removesuffix("\n").split("\n")
    for line, row in zip(lines, found, strict=True):
        wanted = json.loads(line, object_pairs_hook=_unique, parse_float=Decimal, parse_constant=_refuse)
        assert wanted.keys() <= row.keys()
        for name, value in row.items():
            exact = Decimal(repr(value)) if isinstance(value, float) else value
            assert exact == wanted.get(name), (line, row)
            assert isinstance(value, bool) == isinstance(wanted.get(name), bool)


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_template, "_FIRST_BLOCK", 30)
        patch.setattr(json_template, "_BLOCK", 60)
        yield


@MORE
@given(_files())
@example((b'{"a": null}\n{"a": "null"}\n{"a": "\\u0000\\u0000"}', pa.schema([("a", pa.string())])))
def test_records_that_repeat_a_template_are_read(file: tuple[bytes, pa.Schema]) -> None:
    assert _read(*file) is not None
    _check(*file)


_EDITS = st.lists(
    st.tuples(
        st.integers(0, 300),
        st.integers(0, 3),
        st.sampled_from(['"', "\\", "\\\\", '\\"', ",", ":", "{", "}", "[]", " ", "\n", "\r", "\t", "\0", "null"])
        | st.sampled_from(["true", "0", "-", ".", "1", "e5", "NaN", '"a": null', '"a": 1, ', "\\ud800", "\\x", "é"]),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@MORE
@given(_files(), _EDITS)
@example((b'{"a":"x"}\n{"a":"y"}', pa.schema([("a", pa.string())])), [(14, 0, "\\")])
@example((b'{"a":"x","b":1}\n{"a":"y","b":2}', pa.schema([("a", pa.string()), ("b", pa.int64())])), [(29, 1, "")])
@example((b'{"a" : 1 ,"b" : 2}\n{"a" : 1 ,"b" : 2}', pa.schema([("a", pa.int64()), ("b", pa.int64())])), [(26, 2, "")])
def test_edited_records_are_read_like_json_or_not_at_all(
    file: tuple[bytes, pa.Schema], edits: list[tuple[int, int, str]]
) -> None:
    text, schema = file
    for at, removed, inserted in edits:
        start = at % (len(text) + 1)
        text = text[:start] + inserted.encode() + text[start + removed :]
    try:
        text.decode()
    except UnicodeDecodeError:  # is rejected before
        return
    _check(text, schema)


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1, "a": 1}', b'{"a": 01}', b'{"a": .5}', b'{"a": -.5}', b'{"a": 5.}', b'{"a": +5}', b'{"a": NaN}',
        b'{"a": 1,}', b'{"a": 1 2}', b'{"a": [1]}', b'{"a": {}}', b'{"b": 1}', b'{"a": "\x01"}', b'{"a": "\\x"}',
        b'{"a": "\\ud800"}', b'{"a": TRUE}', b'{"a": nul}', b"{}", b" ", b"[1]", b'{"a": 1}}', b'{"a":}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("type_", list(_VALUES), ids=str)
def test_other_lines_are_left_to_a_parser(line: bytes, type_: pa.DataType) -> None:
    schema = pa.schema([("a", type_)])
    assert _read(line, schema) is None
    assert _read(b'{"a": null}\n' + line, schema) is None
