"""Delimited text without Spark: characters that mean something, NULLs, chosen dates."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from inlay.errors import InvalidArgumentError, UnreadableUploadError
from inlay.pipeline import ReadOptions
from inlay.text.inference import column_names


def _rows(local_converter: Any, content: str, **more: Any) -> list[list[Any]]:
    return [
        list(row.values())
        for row in local_converter.table(local_converter.convert(content.encode(), **more)).to_pylist()
    ]


@pytest.mark.parametrize("options", [{"escape": '"'}, {"escape": '"', "quote": '"'}])
def test_an_escape_equal_to_the_quote_means_doubling(local_converter: Any, options: dict[str, str]) -> None:
    content = 'a,b\n1,"x"\n2,"y ""z"""\n3,"z"\n'
    assert _rows(local_converter, content, options=options) == [[1, "x"], [2, 'y "z"'], [3, "z"]]


@pytest.mark.parametrize("options", [{"escape": ","}, {"quote": ","}, {"escape": ";", "delimiter": ";"}])
def test_equal_special_characters_are_rejected(local_converter: Any, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="different characters"):
        local_converter.convert(b"a,b\n1,2\n", options=options)


@pytest.mark.parametrize("encoding", ["base64", "zlib", "hex", "rot13", "unicode_escape", "idna", "nonsense", 5])
def test_encodings_that_are_not_for_files_are_rejected(encoding: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="encoding"):
        ReadOptions.of("csv", {"encoding": encoding})


def test_nul_is_rejected_as_a_delimiter() -> None:
    with pytest.raises(InvalidArgumentError, match="delimiter"):
        ReadOptions.of("csv", {"delimiter": "\0"})


def test_utf_16_without_a_byte_order_mark_is_rejected(local_converter: Any) -> None:
    with pytest.raises(UnreadableUploadError, match="Invalid utf-16"):
        local_converter.convert("a,b\n1,2\n".encode("utf-16-le"), options={"encoding": "utf-16"})
    assert _rows(local_converter, "a,b\n1,2\n".encode("utf-16-le").decode(), options={"encoding": "utf-16-le"}) == [
        [1, 2]
    ]


@pytest.mark.parametrize("other", ["5", " 5", "x"])
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_null_values_match_unquoted_cells_with_surrounding_blanks(
    local_converter: Any, other: str, delimiter: str
) -> None:
    content = '"-1",a\n-1,b\n -1 ,c\nNA,d\n'.replace(",", delimiter) + f"{other}{delimiter}e\n"
    rows = _rows(
        local_converter, content, options={"null_values": ["-1", "NA"], "header": False, "delimiter": delimiter}
    )
    assert [None if row[0] is None else str(row[0]) for row in rows[:4]] == ["-1", None, None, None]


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("d,k\n31/12/2024,x\n30/12/2024,x\nn/a,x\n", {"day_first": True}),
        ("d,k\n31/12/2024,x\n30/12/2024,x\nn/a,x\n", {}),
        ("d,k\n31.12.2024,x\n30.12.2024,x\nn/a,x\n", {}),
    ],
)
def test_one_invalid_cell_does_not_reject_other_dates(
    local_converter: Any, content: str, options: dict[str, Any]
) -> None:
    for chosen in ({"overrides": {"d": pa.date32()}}, {"like": pa.schema([("d", pa.date32())])}):
        found = local_converter.convert(content.encode(), options=options, on_error="quarantine", **chosen)
        assert [str(day) for day in local_converter.table(found).column("d").to_pylist()] == [
            "2024-12-31",
            "2024-12-30",
        ]
        assert [reject["value"] for reject in local_converter.rejects(found)] == ["n/a"]


def test_day_first_applies_to_columns_outside_of_the_sample(local_converter: Any) -> None:
    content = "d,k\n" + ",x\n" * 10_100 + "02/01/2024,x\n"
    found = local_converter.convert(content.encode(), options={"day_first": True}, overrides={"d": pa.date32()})
    assert str(local_converter.table(found).column("d")[-1]) == "2024-01-02"


def test_an_unclosed_quote_in_the_header_is_reported(local_converter: Any) -> None:
    with pytest.raises(UnreadableUploadError, match="Line 2: the first record opens a quote"):
        local_converter.convert(b'\n"a,b\n1,2\n')


@pytest.mark.parametrize(
    "content",
    [
        "region,2020,2021\nnorth,1,2\nsouth,3,4\n",
        "region,2022,2021\nnorth,1,2\n",
        ",2000,2005,2010\nnorth,1,,3\n",
        "2019,2020,2021\n1,2,3\n4,5,6\n",
        "country,2023\nDE,84.4\nFR,68.1\n",
        "region,2024-01-31,2024-02-29\nnorth,1,2\n",
        "region,2020,2021\nnorth,1,n/a\n",
        "name,age\nann,5\n",
        "a,b\nx,y\n",
        "a,b\n,\n",
    ],
)
def test_the_first_row_is_a_header_unless_it_is_evidently_data(local_converter: Any, content: str) -> None:
    found = local_converter.convert(content.encode(), options={"delimiter": ","})
    assert (found.options.header, found.rows) == (True, content.count("\n") - 1)


@pytest.mark.parametrize(
    "content",
    [
        "1,x\n2,y\n",
        "1,2,3\n4,5,6\n",
        "1,2,3\n1.5,2.5,3.5\n",
        "ann,1980\nbob,1990\n",
        "north,2000\nsouth,1500\n",
        "name,2020\n,5\nann,\n",
        "north,2000,1950\nsouth,3,4\n",
        "ann,2020,2021\nbob,2021,2022\n",
        "2020,2020\n1,2\n",
        "2024-01-31,x\n2024-02-29,y\n",
        "true,1\nfalse,2\n",
        "1,2024-01-31\n2,5\n",
        "2020,2021\n",
    ],
)
def test_a_first_row_that_is_evidently_data_is_loaded_with_a_warning(local_converter: Any, content: str) -> None:
    found = local_converter.convert(content.encode(), options={"delimiter": ","})
    assert (found.options.header, found.rows) == (False, content.count("\n"))
    assert found.warnings[0] == (
        "The first row looks like data, not like a header: inlay loads it and names the columns column_1, column_2 ... "
        "Set the option header to change this."
    )
    converted = local_converter.convert(content.encode(), options={"delimiter": ",", "header": False})
    assert not [warning for warning in converted.warnings if "first row" in warning]


def test_blank_names_are_generated(local_converter: Any) -> None:
    found = local_converter.convert(b'a, ,"",column_3\nx,1,2,3\n')
    assert found.schema.names == ["a", "column_2", "column_3_2", "column_3"]
    assert found.warnings == [
        "Column 2 has no name: inlay loads it as 'column_2'.",
        "Column 3 has no name: inlay loads it as 'column_3_2'.",
    ]


def test_many_equal_names_are_made_unique_quickly() -> None:
    """Each by the next free number: counting from 2 for every one would take half an hour."""
    names, warnings = column_names(["a", "a_2", *["a"] * 20_000, *[""] * 20_000])
    assert len(set(names)) == len(names) == 40_002
    assert (names[:4], names[20_001], names[20_002]) == (["a", "a_2", "a_3", "a_4"], "a_20002", "column_20003")
    assert len(warnings) == 40_000
