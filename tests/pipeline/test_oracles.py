"""Conversions against oracles that share no code with them: a parser that goes character by character, json, Decimal.

Jobs run in this process here, one task after the other, with pickled tasks and answers as Spark would have them; so
thousands of files can be cut into splits of a few bytes.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import tempfile
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from inlay.errors import BadRowsError, UnreadableUploadError
from inlay.pipeline import Conversion, InlineFile, ReadOptions, convert
from inlay.storage import locate
from tests.pipeline.conftest import SETTINGS, Converter

pytestmark = pytest.mark.usefixtures("run_jobs_in_process")
MORE = settings(max_examples=(settings.default or settings()).max_examples * 4)


class Outcome(NamedTuple):
    conversion: Conversion
    table: pa.Table
    rejects: list[dict[str, Any]]


def _convert(content: bytes, kind: str, split_bytes: int, options: dict[str, Any], **more: Any) -> Outcome:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("inlay.text.delimited._BLOCK_BYTES", 1 + split_bytes // 3)  # several blocks in a split
        converter = Converter(None, locate(folder))
        found = convert(
            None,
            InlineFile(content),
            ReadOptions.of(kind, options),
            into=converter.into,
            directory="out",
            rejects_directory="out/rejects",
            settings=SETTINGS,
            on_error="quarantine",
            split_bytes=split_bytes,
            **more,
        )
        return Outcome(found, converter.table(found), converter.rejects(found))


# -------------------------------------------------------------------------------------------------------------- CSV
class Cell(NamedTuple):
    text: str
    quoted: bool


class Record(NamedTuple):
    line: int
    cells: list[Cell]
    open_line: int | None  # where a quote opened that nothing closes


def _reference(text: str, escape: str = "") -> list[Record]:
    """Records of comma-separated text, one character after the other."""
    records: list[Record] = []
    line, start, at = 1, 1, 0
    cells: list[Cell] = []
    cell, quoted, inside, opened = "", False, False, 0
    is_blank, begun = True, False

    def end_cell() -> None:
        nonlocal cell, quoted, begun
        cells.append(Cell(cell, quoted))
        cell, quoted, begun = "", False, False

    while at < len(text):
        c = text[at]
        if c == escape and at + 1 == len(text):
            opened, inside, is_blank = line, True, False
        elif c == escape:
            at += 1
            cell, is_blank, begun = cell + text[at], False, True
            line += text[at] == "\n" or (text[at] == "\r" and text[at + 1 : at + 2] != "\n")
        elif inside:
            if c == '"' and text[at + 1 : at + 2] == '"':
                cell, at = cell + '"', at + 1
            elif c == '"':
                inside = False
            else:
                cell += c
                line += c == "\n" or (c == "\r" and text[at + 1 : at + 2] != "\n")
        elif c in "\r\n":
            if c == "\r" and text[at + 1 : at + 2] == "\n":
                at += 1
            if not is_blank:
                end_cell()
                records.append(Record(start, cells, None))
            cells, is_blank = [], True
            line += 1
            start = line
        elif c == ",":
            is_blank = False
            end_cell()
        elif c == '"' and not begun and not quoted:
            inside, quoted, opened, is_blank = True, True, line, False
        else:
            cell, is_blank, begun = cell + c, False, True
        at += 1
    if not is_blank:
        end_cell()
        records.append(Record(start, cells, opened if inside else None))
    return records


_PIECES = st.sampled_from(
    [
        '"',
        '""',
        ",",
        "\n",
        "\r\n",
        "\r",
        "a",
        "bc",
        "5",
        " ",
        "é",
        "𝄞",
        '5" pipe',
        '"x\ny"',
        '"p,q"',
        '"r\r\ns",',
        ",,",
        '""""',
    ]
)
_DIRTY = st.lists(_PIECES, max_size=60).map("".join)
_CLEAN_CELL = st.text(st.sampled_from('ab"\n\r,é5 '), max_size=6)


@st.composite
def _clean(draw: st.DrawFn) -> str:
    width = draw(st.integers(2, 4))
    rows = draw(st.lists(st.lists(_CLEAN_CELL, min_size=width, max_size=width), min_size=1, max_size=20))
    sink = io.StringIO(newline="")
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    csv.writer(sink, lineterminator=end, quoting=draw(st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]))).writerows(
        rows
    )
    return sink.getvalue()


def test_the_reference_agrees_with_the_csv_module() -> None:
    @given(_clean())
    def check(text: str) -> None:
        theirs = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        assert [[cell.text for cell in record.cells] for record in _reference(text)] == theirs

    check()


_ESCAPES = st.lists(st.one_of(_PIECES, st.sampled_from(["\\", '\\"', "\\,", "\\\n", "\\\\", '\\,"'])), max_size=60)


@MORE
@given(
    st.one_of(st.tuples(st.one_of(_clean(), _DIRTY), st.just("")), st.tuples(_ESCAPES.map("".join), st.just("\\"))),
    st.integers(1, 80),
)
@example(("\\,\\\r\n", "\\"), 1)
@example(('x\\,"y,1\nz,2\nw,3\n', "\\"), 80)
@example(('""\\,', "\\"), 1)
@example(("a,b\nc,\\", "\\"), 80)
@example(('""\n"""\n""', ""), 1)
def test_cells_lines_and_rejects_are_exact_for_every_split_size(written: tuple[str, str], split_bytes: int) -> None:
    text, escape = written
    records = _reference(text, escape)
    assume(records and records[0].open_line is None)
    width = len(records[0].cells)
    names = [f"column_{n}" for n in range(1, width + 1)]
    options = {"delimiter": ",", "header": False, "quote": '"', "escape": escape}
    found = _convert(text.encode(), "csv", split_bytes, options, overrides=dict.fromkeys(names, pa.string()))
    good = [r for r in records if len(r.cells) == width and r.open_line is None]
    bad = [r for r in records if r not in good]
    wanted = [[None if cell == Cell("", False) else cell.text for cell in r.cells] for r in good]
    assert [list(row.values()) for row in found.table.to_pylist()] == wanted
    assert [r["line"] for r in found.rejects] == [r.open_line or r.line for r in bad]
    assert found.conversion.rows + found.conversion.rejected == len(records)


_NUMBERS = st.one_of(
    st.integers(-(10**40), 10**40).map(str),
    st.integers(-1_000, 1_000).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**6), max_value=10**6).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(["007", "-0", "1e400", "1e-400", "0x1F", "+5", "1_000", " 7", ".5", "5.", "1.", "--1"]),
)


@MORE
@given(st.lists(_NUMBERS, min_size=1, max_size=30), st.integers(1, 60))
def test_numbers_are_never_changed(numbers: list[str], split_bytes: int) -> None:
    content = "a,b\n" + "".join(f"{n},x\n" for n in numbers)
    found = _convert(content.encode(), "csv", split_bytes, {"header": True, "delimiter": ","})
    assert found.conversion.rejected == 0
    for given_text, value in zip(numbers, found.table.column("a").to_pylist(), strict=True):
        if isinstance(value, str):
            assert value == given_text
        else:
            # a number that is printed as it was written
            assert not given_text.strip().lstrip("-").startswith(("00", "+", "0x"))
            assert Decimal(given_text.strip()) == Decimal(repr(value) if isinstance(value, float) else value)


def test_split_sizes_do_not_change_the_result() -> None:
    cells = st.one_of(_NUMBERS, st.sampled_from(["", "true", "2024-01-31", "31.01.2024", "2024-01-31 10:00", "x"]))

    @MORE
    @given(st.lists(st.tuples(cells, cells), min_size=1, max_size=25), st.integers(1, 60))
    def check(rows: list[tuple[str, str]], split_bytes: int) -> None:
        content = "a,b,c\n" + "".join(f"{a},{b},x\n" for a, b in rows)
        options = {"header": True, "delimiter": ","}
        pieces, whole = (_convert(content.encode(), "csv", size, options) for size in (split_bytes, 1 << 20))
        assert pieces.table.equals(whole.table)

    check()


# ------------------------------------------------------------------------------------------------------------- JSON
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.integers(-100, 100),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["2024-01-31", "2024-01-31T10:00:00Z", "", "007"]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)),
    max_leaves=5,
)
_OBJECTS = st.lists(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), _VALUES, max_size=4), min_size=1, max_size=20
)


@st.composite
def _typed_objects(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Objects whose values are mostly of one sort, with a few that are not."""
    sort = draw(
        st.sampled_from(
            [st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False), st.booleans()]
        )
    )
    rows = draw(
        st.lists(
            st.fixed_dictionaries({}, optional={"a": sort, "b": st.lists(sort, max_size=2)}), min_size=3, max_size=20
        )
    )
    late = draw(st.lists(st.dictionaries(st.sampled_from("abc"), _SCALARS, max_size=2), max_size=2))
    return [*rows, *late]


def _same(given_value: Any, loaded: Any) -> bool:
    """Return whether a loaded value equals the written value, or its text."""
    if given_value is None or loaded is None:
        return given_value is None and loaded is None
    if isinstance(loaded, dict):
        return (
            isinstance(given_value, dict)
            and all(_same(given_value.get(k), v) for k, v in loaded.items())
            and (given_value.keys() <= loaded.keys())
        )
    if isinstance(loaded, list):
        return (
            isinstance(given_value, list) and len(given_value) == len(loaded) and all(map(_same, given_value, loaded))
        )
    if isinstance(given_value, str):
        return str(loaded) == given_value or (
            not isinstance(loaded, str) and given_value[:10] == loaded.isoformat()[:10]
        )
    if isinstance(loaded, str):
        return bool(json.loads(loaded) == given_value)
    if isinstance(given_value, bool) or isinstance(loaded, bool):
        return given_value is loaded
    return Decimal(repr(given_value)) == Decimal(repr(loaded) if isinstance(loaded, float) else loaded)


@MORE
@given(st.one_of(_OBJECTS, _typed_objects()), st.integers(1, 100), st.sampled_from(["lines", "array", "pretty"]))
def test_json_values_are_never_changed(objects: list[dict[str, Any]], split_bytes: int, layout: str) -> None:
    assume(any(objects))
    content = {
        "lines": "\n".join(json.dumps(value, ensure_ascii=False) for value in objects),
        "array": json.dumps(objects),
        "pretty": json.dumps(objects, indent=1),
    }[layout]
    found = _convert(content.encode(), "json", split_bytes, {})
    assert (found.conversion.rows, found.conversion.rejected) == (len(objects), 0)
    for value, row in zip(objects, found.table.to_pylist(), strict=True):
        assert _same(value, row), (value, row)


_LINES = st.one_of(
    st.sampled_from(
        [
            '{"a": 1}',
            '{"a": 2, "b": "x"}',
            "{}",
            "",
            " ",
            "nope",
            "[1]",
            "5",
            '{"a": 1',
            '{"a":1}{"a":2}',
            '{"a":1,"a":2}',
        ]
    )
)


@MORE
@given(st.lists(_LINES, min_size=1, max_size=20), st.integers(1, 40), st.sampled_from(["\n", "\r\n"]))
def test_every_line_is_loaded_or_rejected(lines: list[str], split_bytes: int, end: str) -> None:
    def is_record(line: str) -> bool:
        try:
            pairs = json.loads(line, object_pairs_hook=list)
        except ValueError:
            return False
        return line.startswith("{") and len({name for name, _ in pairs}) == len(pairs)

    content = end.join(['{"a": 0, "b": ""}', *lines])
    found = _convert(content.encode(), "json", split_bytes, {"layout": "lines"})
    bad = [number for number, line in enumerate(lines, 2) if line.strip() and not is_record(line)]
    assert [reject["line"] for reject in found.rejects] == bad
    assert found.conversion.rows == 1 + sum(1 for line in lines if line.strip()) - len(bad)


@MORE
@given(st.binary(max_size=200), st.sampled_from(["csv", "json", "parquet"]), st.integers(1, 50))
def test_arbitrary_bytes_are_converted_or_rejected_with_a_reason(content: bytes, kind: str, split_bytes: int) -> None:
    with contextlib.suppress(UnreadableUploadError, BadRowsError):
        found = _convert(content, kind, split_bytes, {})
        assert found.table.num_rows == found.conversion.rows


def test_nan_is_kept() -> None:
    found = _convert(b"a,b\nnan,1\n1.5,2\ninf,3\n", "csv", 5, {})
    values = found.table.column("a").to_pylist()
    assert math.isnan(values[0])
    assert values[1:] == [1.5, math.inf]


# ------------------------------------------------------------------------------------------------- missing fields
_ODD_NAMES = ('x"on', ", ", ": null")  # which look like the JSON around other names
_TARGET = pa.schema(
    [("id", pa.int64()), ("t", pa.string()), ("on", pa.date32()), *((n, pa.int64()) for n in _ODD_NAMES)]
)
_NESTED = pa.schema([*_TARGET, ("s", pa.struct([("t", pa.string())]))])
_FIELD_VALUES = {
    **dict.fromkeys(("id", *_ODD_NAMES), st.integers(0, 9) | st.none()),
    "t": st.sampled_from(["", "t", '"t": null', "\\", "null", None]),
    "on": st.sampled_from(["2024-01-31", None]),
    "s": st.fixed_dictionaries({}, optional={"t": st.sampled_from(["x", None])}) | st.none(),
}
_COMPLETE = {"id": 1, "t": "", ": null": 1, ", ": 1, 'x"on': 1, "on": "2024-01-31", "s": {"t": None}}


def _without(name: str, **changed: Any) -> dict[str, Any]:
    return {key: value for key, value in {**_COMPLETE, **changed}.items() if key != name}


@given(
    st.lists(st.fixed_dictionaries({}, optional=_FIELD_VALUES), min_size=1, max_size=12),
    st.sampled_from(["lines", "array"]),
    st.booleans(),
    st.sampled_from([40, 1 << 20]),
)
@example([_without("on", **{'x"on': None})], "lines", False, 1 << 20)
@example([_without(", ")], "lines", False, 1 << 20)
@example([_without("on", t='"on": null')], "lines", False, 1 << 20)
@example([_without("t")], "lines", True, 1 << 20)
@example([_without("", t=None, on=None)], "lines", False, 1 << 20)
def test_records_that_lack_a_required_field_are_rejected(
    records: list[dict[str, Any]], layout: str, nested: bool, split_bytes: int
) -> None:
    schema = _NESTED if nested else _TARGET
    records = [{name: value for name, value in record.items() if name in schema.names} for record in records]
    texts = [json.dumps(record) for record in records]
    content = "\n".join(texts) if layout == "lines" else "[" + ",\n".join(texts) + "]"
    found = _convert(content.encode(), "json", split_bytes, {"layout": layout}, like=schema, requires_fields=True)
    missing = [[name for name in schema.names if name not in record] for record in records]
    assert [(reject["line"], reject["column"]) for reject in found.rejects] == [
        (line, names[0]) for line, names in enumerate(missing, 1) if names
    ]
    complete = [record for record, names in zip(records, missing, strict=True) if not names]
    assert found.table.column("t").to_pylist() == [record["t"] for record in complete]
    assert found.table.column("id").to_pylist() == [record["id"] for record in complete]
