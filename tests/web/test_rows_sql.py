"""Tests of the SQL of the rows grid over a real table, compared with plain Python."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.errors import InvalidArgumentError
from inlay.query import QueryEngine, Table
from inlay.query.values import text_values
from inlay.web.dataset import rows
from inlay.web.dataset.rows import Filter, Sort, View, count_sql, operators_of, page_sql

NAN, INFINITY = float("nan"), float("inf")
UTC = dt.UTC
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "n": (pa.int64(), [1, 2, -7, 2**62, None]),
    'quo"ted': (pa.string(), ["", "it's", "IT", "50%_", "ÄRGER", '"; DROP TABLE x --', None]),
    "<img src=x onerror=alert(1)>": (pa.float64(), [1.5, -INFINITY, INFINITY, NAN, 0.0, None]),
    "a.b": (pa.decimal128(9, 2), [Decimal("1.20"), Decimal("-3.00"), None]),
    "Day": (pa.date32(), [dt.date(2024, 1, 31), dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
    "at": (pa.timestamp("us", "UTC"), [dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(9999, 1, 1, tzinfo=UTC), None]),
    "local": (pa.timestamp("ns"), [dt.datetime(2024, 1, 1, 10, 30), None]),  # noqa: DTZ001
    "clock": (pa.time64("us"), [dt.time(10, 30), dt.time(0), None]),
    "is it?": (pa.bool_(), [True, False, None]),
    "list": (pa.list_(pa.int64()), [[1, 2], [1], [], None]),
    "struct": (pa.struct([("a", pa.int64()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": None, "b": ""}, None]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [("j", 2)], None]),
    "raw": (pa.binary(), [b"\x00\xff", b"", None]),
}
TABLE = 'datasets."things@3"'
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in COLUMNS.items()])
COUNT = 90
Row = dict[str, Any]


def made_rows() -> list[Row]:
    """Create rows with few distinct values, so that many rows are equal in some or all columns."""
    rows = []
    for number in range(COUNT):
        spread = number % 70  # the last ones repeat the first
        rows.append(
            {name: values[spread // (1 + i) % len(values)] for i, (name, (_, values)) in enumerate(COLUMNS.items())}
        )
    return rows


ROWS: list[Row] = pa.Table.from_pylist(made_rows(), SCHEMA).to_pylist()


class OneTable:
    def __init__(self, folder: Path) -> None:
        table = pa.Table.from_pylist(ROWS, SCHEMA)
        self.files = []
        for start in (0, 20, 60):
            path = folder / f"{start}.parquet"
            stop = {0: 20, 20: 60, 60: COUNT}[start]
            pq.write_table(table.slice(start, stop - start), path, row_group_size=15, write_statistics=False)
            self.files.append(str(path))

    def find(self, name: str, version: int | None) -> Table | None:
        return Table(SCHEMA, self.files) if (name, version) == ("things", 3) else None

    def names(self) -> list[str]:
        return ["things"]


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryEngine]:
    folder = tmp_path_factory.mktemp("rows")
    with QueryEngine(OneTable(folder), spill_dir=folder / "spill", threads=2) as found:
        yield found


# --------------------------------------------------------------------------------------------------------------- oracle
def rank(value: Any) -> tuple[int, Any]:
    """Return the sort key of a value: NULL comes last, and NaN is the largest number."""
    if value is None:
        return 2, 0
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def agrees(row: Row, asked: Filter) -> bool:
    value = row[asked.column]
    if asked.operator in ("blank", "notBlank"):
        return (value is None) == (asked.operator == "blank")
    if value is None:
        return False
    if asked.operator in ("isTrue", "isFalse"):
        return bool(value == (asked.operator == "isTrue"))
    if asked.operator == "contains":
        return asked.value.lower() in value.lower()
    if isinstance(value, str):
        value, other = (0, value.encode()), (0, asked.value.encode())
    else:
        value, other = rank(value), rank(typed(asked))
    return bool({
        "equals": value == other, "notEqual": value != other, "greaterThan": value > other, "lessThan": value < other,
    }[asked.operator])  # fmt: skip


def typed(asked: Filter) -> Any:
    """Return the value of the table that a text stands for."""
    return next(v for v in COLUMNS[asked.column][1] if v is not None and written(asked.column, v) == asked.value)


def written(column: str, value: Any) -> str:
    """Format a value like the grid, which also accepts it in filters."""
    [text] = text_values(pa.array([value], COLUMNS[column][0]))
    assert text is not None
    return text


def printable(row: Row) -> str:
    return repr([str(row[name]) if isinstance(row[name], float) else row[name] for name in SCHEMA.names])


def is_ordered(found: list[Row], sorts: tuple[Sort, ...]) -> bool:
    """Assert that rows are in order."""

    def key(value: Any, descending: bool) -> tuple[Any, ...]:
        position, inner = rank(value)
        return (position == 2, Descending((position, inner)) if descending else (position, inner))

    keys = [[key(row[sort.column], sort.descending) for sort in sorts] for row in found]
    return all(not later < earlier for earlier, later in itertools.pairwise(keys))


class Descending:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descending) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


# ---------------------------------------------------------------------------------------------------------- strategies
@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(SCHEMA.names))
    operator = draw(st.sampled_from(operators_of(COLUMNS[column][0])))
    if operator == "contains":
        return Filter(column, operator, draw(st.sampled_from(["", "it", "T'", "%", "_", "är", '"', "\\", "nope"])))
    if operator not in ("equals", "notEqual", "greaterThan", "lessThan"):
        return Filter(column, operator)
    value = draw(st.sampled_from([value for value in COLUMNS[column][1] if value is not None]))
    return Filter(column, operator, written(column, value))


SORTABLE = [name for name in SCHEMA.names if not pa.types.is_nested(COLUMNS[name][0])]
sorts = st.lists(st.builds(Sort, st.sampled_from(SORTABLE), st.booleans()), max_size=3, unique_by=lambda s: s.column)
views = st.builds(View, sorts.map(tuple), st.lists(filters(), max_size=2, unique_by=lambda f: f.column).map(tuple))


def ask(queries: QueryEngine, sql: str) -> list[Row]:
    with queries.run(sql) as result:
        return list(result.read_all().to_pylist())


def read_page(queries: QueryEngine, view: View, start: int, stop: int, total: int) -> list[Row]:
    page = page_sql(TABLE, SCHEMA, view, start, stop, total)
    found = ask(queries, page.sql)
    return found[::-1] if page.is_reversed else found


@settings(max_examples=60)
@given(view=views, size=st.integers(7, 100), many=st.sampled_from([0, 20_000]))
def test_pages_contain_every_row_once_in_order(queries: QueryEngine, view: View, size: int, many: int) -> None:
    expected = [row for row in ROWS if all(agrees(row, asked) for asked in view.filters)]
    [[total]] = [list(row.values()) for row in ask(queries, count_sql(TABLE, SCHEMA, view.filters))]
    assert total == len(expected)
    with mock.patch.object(rows, "MAX_TOP_K_OFFSET", many):
        found = [row for start in range(0, total, size) for row in read_page(queries, view, start, start + size, total)]
    assert Counter(map(printable, found)) == Counter(map(printable, expected))
    assert is_ordered(found, view.sorts)


@settings(max_examples=20)
@given(view=views, start=st.integers(0, 80), stop=st.integers(0, 100), other=st.integers(0, 80))
def test_row_position_does_not_depend_on_the_page_size(
    queries: QueryEngine, view: View, start: int, stop: int, other: int
) -> None:
    total = sum(all(agrees(row, asked) for asked in view.filters) for row in ROWS)
    whole = list(map(printable, read_page(queries, view, 0, total, total)))
    with mock.patch.object(rows, "MAX_TOP_K_OFFSET", 0):
        assert list(map(printable, read_page(queries, view, start, stop, total))) == whole[start:stop]
    assert list(map(printable, read_page(queries, view, other, other + 9, total))) == whole[other : other + 9]


@pytest.mark.parametrize(
    ("column", "typed_text", "value"),
    [
        ("at", "2024-01-01", dt.datetime(2024, 1, 1, tzinfo=UTC)),
        ("at", "2024-01-01 01:00:00+01:00", dt.datetime(2024, 1, 1, tzinfo=UTC)),
        ("local", "2024-01-01 10:30", dt.datetime(2024, 1, 1, 10, 30)),  # noqa: DTZ001
        ("clock", "10:30", dt.time(10, 30)),
        ("Day", "31.01.2024", dt.date(2024, 1, 31)),
        ("a.b", "1.2", Decimal("1.20")),
        ("n", " -7 ", -7),
        ("<img src=x onerror=alert(1)>", "nan", NAN),
    ],
)
def test_filters_accept_common_formats(queries: QueryEngine, column: str, typed_text: str, value: Any) -> None:
    [[found]] = [
        list(row.values()) for row in ask(queries, count_sql(TABLE, SCHEMA, [Filter(column, "equals", typed_text)]))
    ]
    assert found == sum(row[column] is not None and rank(row[column]) == rank(value) for row in ROWS) > 0


@pytest.mark.parametrize(("column", "text"), [("n", "many"), ("n", ""), ("Day", "yesterday"), ("a.b", "1.234")])
def test_invalid_filter_value_is_an_error(column: str, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a"):
        count_sql("t", SCHEMA, [Filter(column, "greaterThan", text)])


def test_grid_models_are_parsed() -> None:
    sorts = [{"colId": "c1", "sort": "desc"}, {"colId": "c0", "sort": "asc"}]
    filters = {"c2": {"filterType": "text", "type": "equals", "filter": "1.5"}, "c3": {"type": "blank"}}
    names = SCHEMA.names
    assert View.of(SCHEMA, sorts, filters) == View(
        (Sort(names[1], True), Sort(names[0], False)),
        (Filter(names[2], "equals", "1.5"), Filter(names[3], "blank")),
    )
    assert View.of(SCHEMA, [], {}).is_stored_order


@pytest.mark.parametrize(
    ("sorts", "filters"),
    [([{"colId": "c99", "sort": "asc"}], {}), ([{}], {}), ([], {"n": {"type": "blank"}}), ([], {"c0": None})],
)
def test_invalid_grid_models_are_rejected(sorts: Any, filters: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        View.of(SCHEMA, sorts, filters)


def test_unsupported_operator_is_rejected() -> None:
    for column, operator in (("n", "contains"), ("list", "equals"), ("n", "1=1; --")):
        with pytest.raises(InvalidArgumentError):
            count_sql("t", SCHEMA, [Filter(column, operator)])  # type: ignore[arg-type]
