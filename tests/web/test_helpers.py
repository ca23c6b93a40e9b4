"""Tests of page helpers without a browser."""

from __future__ import annotations

import csv
import io
import itertools
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.catalog import Page
from inlay.pipeline import InlineFile, Preview
from inlay.pipeline.previews import _Previewer
from inlay.server import models
from inlay.text.options import Limits
from inlay.text.reader import BadCell
from inlay.web import home
from inlay.web.home import _Home
from inlay.web.preview import frequent_values, grid_rows, suggest_label
from inlay.web.sql import fit_to_browser
from inlay.web.upload_form import file_name
from inlay.web.widgets import sparkline


# ---------------------------------------------------------------------------------------------------------- sparklines
@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_sparkline_follows_its_values(values: list[int]) -> None:
    drawing = ET.fromstring(sparkline(values, "Rows"))
    points = [tuple(map(float, point.split(","))) for point in str(drawing[0].get("points")).split()]
    assert all(0 <= x <= 96 and 0 <= y <= 24 for x, y in points)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    heights = [-y for _, y in points][-len(values) :]
    for (value, height), (other, other_height) in itertools.combinations(zip(values, heights, strict=True), 2):
        assert (value < other and height <= other_height) or (value >= other and height >= other_height)
    assert (drawing[1].get("cx"), drawing[1].get("cy")) == tuple(f"{number:g}" for number in points[-1])


# -------------------------------------------------------------------------------------------------------------- sample
def test_sample_is_a_messy_file_and_deterministic() -> None:
    rows = list(csv.DictReader(io.StringIO(home.sample_orders())))
    assert len(rows) == len({row["order_id"] for row in rows}) == 500
    assert home.sample_orders() == home.sample_orders()
    assert any(row["postcode"].startswith("0") for row in rows)
    assert {"", "n/a"} < {row["discount"] for row in rows}
    assert any("\n" in row["note"] for row in rows)


def test_sample_corrections_change_and_add_orders() -> None:
    before = {row["order_id"]: row for row in csv.DictReader(io.StringIO(home.sample_orders()))}
    after = {row["order_id"]: row for row in csv.DictReader(io.StringIO(home.sample_corrections()))}
    assert [key for key in after if key not in before] == ["000501", "000502"]
    assert all(row != before[key] for key, row in after.items() if key in before)


# --------------------------------------------------------------------------------------------------------------- names
@pytest.mark.parametrize(
    ("content_type", "name"),
    [
        ('text/csv; name="q1%20sales%22%3Cb%3E.csv"', 'q1 sales"<b>.csv'),
        ('text/csv; charset=utf-8; name="a.csv"', "a.csv"),
        ('text/csv; name=""', None),
        ("text/csv", None),
        (None, None),
    ],
)
def test_file_name_comes_from_the_content_type(content_type: str | None, name: str | None) -> None:
    assert file_name(content_type) == name


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("q1_sales-2024.csv", "Q1 sales-2024"),
        ("orders.NDJSON.gz", "Orders"),
        ("C:\\Users\\me\\Größe.v2.parquet", "Größe.v2"),
        (".csv", ".csv"),
        ("folder/ünter wegs.tsv.zst", "Ünter wegs"),
        ("no ending", "No ending"),
    ],
)
def test_label_is_suggested_from_the_file_name(name: str, label: str) -> None:
    assert suggest_label(name) == label


# ------------------------------------------------------------------------------------------------------------ the grid
def preview(content: bytes, **types: pa.DataType) -> Preview:
    """Preview content with the task that Spark runs."""
    return _Previewer(None, None, types, None, Limits())(InlineFile(content))


def test_rejected_rows_keep_their_position_and_have_reasons() -> None:
    content = "id,n\n" + "".join(f"{number},{'x' if number % 3 == 1 else number}\n" for number in range(100))
    found = preview(content.encode() + b"100\n", n=pa.int64())
    rows = grid_rows(found, models.Preview.of(found))
    assert len(rows) == 50
    for number, (identity, value, why) in enumerate(rows):
        is_bad = number % 3 == 1
        assert str(identity) == str(number)
        assert value == ("x" if is_bad else number)
        assert why == ({"1": "not an integer that fits bigint"} if is_bad else {})


def test_first_cell_of_an_invalid_row_has_the_reason() -> None:
    found = preview(b"a,b,c\n1,2,3\n4,5\n")
    assert grid_rows(found, models.Preview.of(found)) == [
        [1, 2, 3, {}],
        ["4", "5", None, {"0": "the row has 2 cells instead of 3"}],
    ]


def test_nested_cells_are_sent_as_text() -> None:
    """NiceGUI evaluates values of keys that begin with a colon."""
    found = preview(b'{"a": {":b": "alert(1)"}, "c": [{":d": 1}]}\n')
    assert grid_rows(found, models.Preview.of(found)) == [['{":b":"alert(1)"}', '[{":d":1}]', {}]]


def test_frequent_invalid_values_are_suggested_as_null() -> None:
    values = ["n/a"] * 5 + ["-"] * 3 + ["once"] + ["y" * 30] * 9 + [None] * 9
    cells = [BadCell(line, "a", value, "not a number") for line, value in enumerate(values)]
    assert frequent_values(cells) == ["n/a", "-"]


# ------------------------------------------------------------------------------------------------------------- answers
@pytest.mark.parametrize("cell", [1.5, None, True, "x" * 18])
def test_size_limit_counts_numbers_like_text(cell: object) -> None:
    rows = [[cell] * 10 for _ in range(100)]
    assert len(list(fit_to_browser(iter(rows), 10 * 18 * 7))) == 7


# ---------------------------------------------------------------------------------------------------------------- home
def test_deleted_last_page_falls_back_to_the_previous_page() -> None:
    home: Any = object.__new__(_Home)
    home._offset, home._search = 200, ""
    there = list(range(120))
    workspace: Any = SimpleNamespace(
        datasets=lambda limit, offset, _: Page(
            tuple(SimpleNamespace(id=n) for n in there[offset : offset + limit]), len(there), limit, offset
        ),
        row_counts=lambda _: {},
        uploads=lambda *_: Page((), 0, 100, 0),
    )
    assert [dataset.id for dataset in home._read(workspace).datasets.items] == there[100:]
    assert home._offset == 100
