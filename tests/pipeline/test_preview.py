"""Previews: the same findings as a conversion, from the first rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from inlay.errors import InvalidArgumentError, NotUtf8Error, UnreadableUploadError
from inlay.pipeline import InlineFile, ReadOptions, preview
from tests.pipeline_data import parquet_bytes


def _preview(converter: Any, content: bytes, options: ReadOptions | None = None, **more: Any) -> Any:
    return preview(converter.spark, InlineFile(content), options, **more)


@pytest.mark.parametrize(
    ("content", "format_", "names"),
    [
        (b"a;b\n1;x\n", "csv", ["a", "b"]),
        (b'{"a": 1}\n', "json", ["a"]),
        (b'\n [{"a": 1, "b": [2]}]', "json", ["a", "b"]),
        (parquet_bytes(pa.table({"p": [1, 2]})), "parquet", ["p"]),
        (pa.compress(b"a,b\n1,2\n", codec="gzip", asbytes=True), "csv", ["a", "b"]),
    ],
)
def test_formats_are_detected(converter: Any, content: bytes, format_: str, names: list[str]) -> None:
    found = _preview(converter, content)
    assert (found.format, [column.name for column in found.columns]) == (format_, names)


def test_types_samples_and_rows(converter: Any) -> None:
    content = "n,t,d\n" + "".join(f"{n % 3},{'' if n % 2 else 'x'},01/02/2024\n" for n in range(200))
    found = _preview(converter, content.encode())
    number, text, _ = found.columns
    assert (number.type, number.samples, number.null_share) == (pa.int64(), [0, 1, 2], 0)
    assert (text.type, text.samples, text.null_share) == (pa.string(), ["x"], 0.5)
    assert len(found.rows) == 50
    assert found.rows[1] == {"n": 1, "t": None, "d": "01/02/2024"}
    assert "day_first" in found.warnings[0]
    assert found.options.delimiter == ","


def test_edited_options_and_types(converter: Any) -> None:
    found = _preview(
        converter, b"a,b\n1,01/02/2024\nx,y\n", ReadOptions.of("csv", {"day_first": True}), overrides={"a": pa.int64()}
    )
    assert [(cell.line, cell.column, cell.value) for cell in found.bad_cells] == [(3, "a", "x")]
    assert found.rows == [{"a": 1, "b": "01/02/2024"}]


def test_invalid_cells_are_counted_by_column_and_listed_up_to_a_limit(converter: Any) -> None:
    content = "a,b\n" + "".join(f"x,{'y' if n < 900 else n}\n" for n in range(1_000))
    found = _preview(converter, content.encode(), overrides={"a": pa.int64(), "b": pa.int64()})
    assert [(column.name, column.bad_count) for column in found.columns] == [("a", 1_000), ("b", 900)]
    assert (len(found.bad_cells), found.rows_rejected) == (100, 1_000)


def test_other_encodings_are_guessed_with_a_warning(converter: Any) -> None:
    found = _preview(converter, "a,b\né,1\n".encode("cp1252"))
    assert found.rows == [{"a": "é", "b": 1}]
    assert found.options.encoding == "cp1252"
    assert "offset 4" in found.warnings[0]


@pytest.mark.parametrize("content", ["a,b\né,1\n", '[{"a": "é", "b": 1}]'])
def test_wide_encodings_without_a_byte_order_mark_are_guessed(local_converter: Any, content: str) -> None:
    found = _preview(local_converter, content.encode("utf-16-le"))
    assert (found.rows, found.options.encoding) == ([{"a": "é", "b": 1}], "utf-16-le")
    assert "It looks like utf-16-le without a byte order mark" in found.warnings[0]
    with pytest.raises(NotUtf8Error):
        local_converter.convert(content.encode("utf-16-le"), found.format)
    assert local_converter.convert(content.encode("utf-16-le"), found.format, {"encoding": "utf-16-le"}).rows == 1


def test_large_files_are_not_read_whole(converter: Any) -> None:
    content = "a,b\n" + "".join(f"{n},x\n" for n in range(1_000_000))
    packed = pa.compress(content.encode(), codec="zstd", asbytes=True)
    for raw in (converter.upload(packed), converter.upload(content.encode())):
        found = preview(converter.spark, raw)
        assert (len(found.rows), found.bad_cells) == (50, [])


def test_parquet_types_are_not_altered(converter: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="altering parquet schema is currently unsupported"):
        _preview(converter, parquet_bytes(pa.table({"p": [1]})), overrides={"p": pa.int8()})


@pytest.mark.parametrize(
    ("content", "format_", "names"),
    [
        (b"[]", "json", []),
        (b" [\n] ", "json", []),
        (b"\n \r\n", "json", []),
        (b"", "json", []),
        (b"a,b\n", "csv", ["a", "b"]),
    ],
)
def test_files_without_rows_are_previewed_with_a_warning(
    local_converter: Any, content: bytes, format_: str, names: list[str]
) -> None:
    found = _preview(local_converter, content, ReadOptions.of(format_))
    assert ([column.name for column in found.columns], found.rows, found.bad_cells) == (names, [], [])
    assert found.warnings == [
        "The file has no data rows. Set a type for every column to create a dataset without rows."
    ]
    with pytest.raises(UnreadableUploadError, match="no data rows"):
        local_converter.convert(content, format_)
    types = dict.fromkeys(names or ["a"], pa.int64())
    assert local_converter.convert(content, format_, overrides=types).rows == 0
    assert _preview(local_converter, content, ReadOptions.of(format_), overrides=types).warnings == []


CODES_AND_MORE = """id,zip,amount,day,when,free
1,01234,10,2024-01-05,2024-01-05,a
2,00501,n/a,unknown,05.01.2024,1
3,90210,12.5,2024-01-07,2024-01-07,b
4,10001,7,2024-01-08,2024-01-08,c
5,94105,8,2024-01-09,2024-01-09,d
"""


def test_columns_that_look_typed_explain_why_they_are_text(converter: Any) -> None:
    found = _preview(converter, CODES_AND_MORE.encode())
    assert [str(column.type) for column in found.columns] == ["int64"] + ["string"] * 5
    assert found.warnings == [
        "Column 'zip' stays text, because its numbers have leading zeros.",
        "Column 'amount' stays text, because it holds numbers and also 'n/a'.",
        "Column 'day' stays text, because it holds dates and also 'unknown'.",
        "Column 'when' stays text, because no single format reads all its dates.",
    ]
    chosen = {"zip": pa.string(), "amount": pa.float64(), "day": pa.date32(), "when": pa.date32()}
    assert _preview(converter, CODES_AND_MORE.encode(), overrides=chosen).warnings == []
    assert _preview(converter, b'{"zip": "01234"}\n{"zip": "90210"}\n').warnings == []  # JSON says itself what is text


def test_rejects_have_the_position_of_their_rows(converter: Any) -> None:
    content = b'a,b\n1,"two\nlines"\nx,y\n3\n4,z\n,w\n5,"open'
    found = _preview(converter, content, overrides={"a": pa.int64()})
    assert [(reject.row, reject.cells, reject.bad_cells[0].line) for reject in found.rejects] == [
        (1, ["x", "y"], 4),
        (2, ["3"], 5),
        (5, [None, None], 8),  # a row with an unclosed quote has no cells
    ]
    assert [row["b"] for row in found.rows] == ["two\nlines", "z", "w"]
    assert (found.rows_seen, found.rows_rejected) == (6, 3)


def test_json_rejects_have_the_position_of_their_records(converter: Any) -> None:
    found = _preview(
        converter, b'[{"a": 1, "b": {"c": 2}}, {"a": "x", "b": null}, 7, {"a": 3}]', overrides={"a": pa.int8()}
    )
    assert [(reject.row, reject.cells) for reject in found.rejects] == [(1, ["x", None]), (2, [None, None])]
    assert [row["a"] for row in found.rows] == [1, 3]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a PNG image"),
        (b"PK\x03\x04\x14\0\x06\0", "an Office document"),
        (b"%PDF-1.7\n%...", "a PDF document"),
        (parquet_bytes(pa.table({"p": [1, 2]})), "a Parquet file"),
        (pa.compress(b"\xff\xd8\xff\xe0\0\x10JFIF", codec="gzip", asbytes=True), "a JPEG image"),
    ],
)
def test_binary_files_are_rejected_by_their_format(converter: Any, content: bytes, what: str) -> None:
    for options in ({}, {"encoding": "latin-1"}):
        with pytest.raises(UnreadableUploadError, match=what):
            _preview(converter, content, ReadOptions.of("csv", options))
