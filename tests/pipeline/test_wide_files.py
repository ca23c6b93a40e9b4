"""Files of thousands of columns: every value of every type arrives, and only wrong rows are rejected."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from inlay.text.reader import rows_to_sample

COLUMNS = 20_000 if os.environ.get("INLAY_TEST_LONG") == "1" else 2_000
NAMES = [f"column_{number}" for number in range(COLUMNS)]
Value = Callable[[int, int], Any]


def _mixed(row: int, column: int) -> Any:
    """Return integers, fractions, text and dates, each in a quarter of the columns."""
    number = row * 7 + column
    return [number, number + 0.25, f"text {number}", f"2024-01-{1 + number % 28:02}"][column % 4]


def _text(row: int, column: int) -> str:
    return f"text {row} {column}"


def _wanted(value: Value, rows: range) -> dict[str, list[Any]]:
    columns = {name: [value(row, column) for row in rows] for column, name in enumerate(NAMES)}
    if value is _mixed:
        for name in NAMES[3::4]:
            columns[name] = [dt.date.fromisoformat(day) for day in columns[name]]
    return columns


def _csv(rows: list[list[Any]]) -> bytes:
    return "\n".join(",".join(str(cell) for cell in row) for row in [NAMES, *rows]).encode()


def _json(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def _rows(value: Value, count: int) -> list[list[Any]]:
    return [[value(row, column) for column in range(COLUMNS)] for row in range(count)]


# short runs convert columns of several types
@pytest.mark.parametrize("value", [_mixed, pytest.param(_text, marks=pytest.mark.long)])
def test_csv(local_converter: Any, value: Value) -> None:
    table = local_converter.table(local_converter.convert(_csv(_rows(value, 3))))
    assert table.to_pydict() == _wanted(value, range(3))


# short runs convert columns of several types
@pytest.mark.parametrize("value", [_mixed, pytest.param(_text, marks=pytest.mark.long)])
def test_json(local_converter: Any, value: Value) -> None:
    rows = [dict(zip(NAMES, row, strict=True)) for row in _rows(value, 3)]
    table = local_converter.table(local_converter.convert(_json(rows), "json"))
    assert table.to_pydict() == _wanted(value, range(3))


# short runs reject cells of one format
@pytest.mark.parametrize("kind", ["csv", pytest.param("json", marks=pytest.mark.long)])
def test_wrong_cells_reject_their_rows(local_converter: Any, kind: str) -> None:
    rows = _rows(_mixed, 3)
    rows[1][4] = rows[1][-1] = "wrong"
    content = _csv(rows) if kind == "csv" else _json([dict(zip(NAMES, row, strict=True)) for row in rows])
    wanted = _wanted(_mixed, range(3))
    overrides = {name: pa.array(values).type for name, values in wanted.items()}
    conversion = local_converter.convert(content, kind, overrides=overrides, on_error="quarantine")
    assert local_converter.table(conversion).to_pydict() == {name: values[::2] for name, values in wanted.items()}
    (reject,) = local_converter.rejects(conversion)
    assert (reject["line"], reject["column"], reject["value"]) == (3 if kind == "csv" else 2, "column_4", "wrong")
    assert NAMES[-1] in reject["reason"]


def test_a_wrong_cell_widens_its_column(local_converter: Any) -> None:
    rows = _rows(lambda row, column: row + column, 3)
    rows[-1][8] = "x"
    table = local_converter.table(local_converter.convert(_csv(rows)))
    assert (table.schema[8].type, table.schema[9].type) == (pa.string(), pa.int64())
    assert table["column_8"].to_pylist() == ["8", "9", "x"]


# short runs have NULLs that are written
@pytest.mark.parametrize("is_written", [pytest.param(False, marks=pytest.mark.long), True])
def test_missing_fields_and_nulls(local_converter: Any, is_written: bool) -> None:
    def value(row: int, column: int) -> Any:
        return None if (row + column) % 3 == 0 else _mixed(row, column)

    rows = [dict(zip(NAMES, row, strict=True)) for row in _rows(value, 4)]
    if not is_written:
        rows = [{name: item for name, item in row.items() if item is not None} for row in rows]
    table = local_converter.table(local_converter.convert(_json(rows), "json"))
    wanted = {
        name: [None if (row + column) % 3 == 0 else items[row] for row in range(4)]
        for column, (name, items) in enumerate(_wanted(_mixed, range(4)).items())
    }
    assert table.select(NAMES).to_pydict() == wanted


def test_nulls_and_missing_fields_differ_for_a_dataset(local_converter: Any) -> None:
    like = pa.schema([(name, pa.int64()) for name in NAMES])
    rows: list[dict[str, Any]] = [dict.fromkeys(NAMES, 1), dict.fromkeys(NAMES), dict.fromkeys(NAMES[1:])]
    conversion = local_converter.convert(
        _json(rows), "json", like=like, conforms=True, requires_fields=True, on_error="quarantine"
    )
    assert local_converter.table(conversion).to_pydict() == {name: [1, None] for name in NAMES}
    (reject,) = local_converter.rejects(conversion)
    assert (reject["line"], reject["column"]) == (3, "column_0")


@pytest.mark.parametrize(("columns", "rows"), [(1, 10_000), (400, 10_000), (20_000, 200), (100_000, 100)])
def test_the_sample_of_very_many_columns_has_fewer_rows(columns: int, rows: int) -> None:
    assert rows_to_sample(columns) == rows
