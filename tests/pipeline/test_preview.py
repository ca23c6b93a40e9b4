"""Previews: the same findings as a conversion, from the first rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from inlay.errors import InvalidArgumentError, NotUtf8Error, UnreadableUploadError
from inlay.pipeline import InlineFile, ReadOptions, preview
from tests.pipeline_data import parquet_bytes


def _preview(desk: Any, content: bytes, options: ReadOptions | None = None, **more: Any) -> Any:
    return preview(desk.spark, InlineFile(content), options, **more)


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
def test_formats_are_suggested(desk: Any, content: bytes, format_: str, names: list[str]) -> None:
    found = _preview(desk, content)
    assert (found.format, [column.name for column in found.columns]) == (format_, names)


def test_types_samples_and_rows(desk: Any) -> None:
    content = "n,t,d\n" + "".join(f"{n % 3},{'' if n % 2 else 'x'},01/02/2024\n" for n in range(200))
    found = _preview(desk, content.encode())
    number, text, _ = found.columns
    assert (number.type, number.samples, number.null_share) == (pa.int64(), [0, 1, 2], 0)
    assert (text.type, text.samples, text.null_share) == (pa.string(), ["x"], 0.5)
    assert len(found.rows) == 50
    assert found.rows[1] == {"n": 1, "t": None, "d": "01/02/2024"}
    assert "day_first" in found.warnings[0]
    assert found.options.delimiter == ","


def test_edited_options_and_types(desk: Any) -> None:
    found = _preview(
        desk, b"a,b\n1,01/02/2024\nx,y\n", ReadOptions.of("csv", {"day_first": True}), overrides={"a": pa.int64()}
    )
    assert [(cell.line, cell.column, cell.value) for cell in found.bad_cells] == [(3, "a", "x")]
    assert found.rows == [{"a": 1, "b": "01/02/2024"}]


def test_other_encodings_are_guessed_with_a_warning(desk: Any) -> None:
    found = _preview(desk, "a,b\né,1\n".encode("cp1252"))
    assert found.rows == [{"a": "é", "b": 1}]
    assert found.options.encoding == "cp1252"
    assert "offset 4" in found.warnings[0]


@pytest.mark.parametrize("content", ["a,b\né,1\n", '[{"a": "é", "b": 1}]'])
def test_wide_encodings_without_a_mark_are_guessed_too(here: Any, content: str) -> None:
    found = _preview(here, content.encode("utf-16-le"))
    assert (found.rows, found.options.encoding) == ([{"a": "é", "b": 1}], "utf-16-le")
    assert "seems to be utf-16-le without a byte order mark" in found.warnings[0]
    with pytest.raises(NotUtf8Error):
        here.convert(content.encode("utf-16-le"), found.format)
    assert here.convert(content.encode("utf-16-le"), found.format, {"encoding": "utf-16-le"}).rows == 1


def test_large_files_are_not_read_whole(desk: Any) -> None:
    content = "a,b\n" + "".join(f"{n},x\n" for n in range(1_000_000))
    packed = pa.compress(content.encode(), codec="zstd", asbytes=True)
    for raw in (desk.upload(packed), desk.upload(content.encode())):
        found = preview(desk.spark, raw)
        assert (len(found.rows), found.bad_cells) == (50, [])


def test_parquet_types_are_not_altered(desk: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="altering parquet schema is currently unsupported"):
        _preview(desk, parquet_bytes(pa.table({"p": [1]})), overrides={"p": pa.int8()})


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
def test_files_without_rows_are_shown_with_a_warning(here: Any, content: bytes, format_: str, names: list[str]) -> None:
    found = _preview(here, content, ReadOptions.of(format_))
    assert ([column.name for column in found.columns], found.rows, found.bad_cells) == (names, [], [])
    assert found.warnings == [
        "The file has no data rows. Without rows it becomes a dataset only if every column is given a type."
    ]
    with pytest.raises(UnreadableUploadError, match="no data rows"):
        here.convert(content, format_)
    types = dict.fromkeys(names or ["a"], pa.int64())
    assert here.convert(content, format_, overrides=types).rows == 0
    assert _preview(here, content, ReadOptions.of(format_), overrides=types).warnings == []
