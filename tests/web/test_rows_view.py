"""The grid of rows asks for pages; what a browser asks for is not what it gets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from inlay.errors import QueryTimeoutError
from inlay.web.dataset import rows_view
from inlay.web.dataset.row_sql import View
from inlay.web.dataset.rows import Rows


@pytest.mark.parametrize(
    ("asked", "served"),
    [((0, 100), (0, 100)), ((100, 130), (100, 130)), ((0, 10**12), (0, 100)), ((-5, 10), (0, 10))],
)
def test_no_more_than_a_page_is_read_at_once(asked: tuple[int, int], served: tuple[int, int]) -> None:
    pages = []

    class Rows:
        schema = pa.schema([("a", pa.int64())])

        async def total(self, _: Any) -> int:
            return 10**12

        async def page(self, _: Any, start: int, stop: int, __: int) -> list[Any]:
            pages.append((start, stop))
            return []

    deliver(Rows(), *asked)
    assert pages == [served]


def deliver(rows: Any, start: int, stop: int) -> tuple[list[Any], list[bool]]:
    """What the grid and the button beside it are told when it asks for rows."""
    calls: list[Any] = []
    shown: list[bool] = []
    view: Any = object.__new__(rows_view._RowsView)
    view._rows, view._latest, view._stored = rows, 0, 10**12
    view._grid = SimpleNamespace(run_method=lambda *call: calls.append(call))
    view._again = SimpleNamespace(set_visibility=shown.append)
    view._tell = lambda *_: None
    event: Any = SimpleNamespace(args={"key": 1, "start": start, "stop": stop, "sorts": [], "filters": {}})
    asyncio.run(view._deliver(event))
    return calls, shown


def test_rows_that_cannot_be_had_are_not_no_rows() -> None:
    class Rows:
        schema = pa.schema([("a", pa.int64())])

        async def total(self, _: Any) -> int:
            raise QueryTimeoutError("too long")

    assert deliver(Rows(), 0, 10) == ([("deliver", 1, None, 0)], [True])


def test_rows_are_asked_for_by_the_name_that_the_dataset_has_then() -> None:
    asked: list[str] = []

    @contextlib.contextmanager
    def query(sql: str) -> Iterator[Any]:
        asked.append(sql)
        yield SimpleNamespace(read_all=lambda: pa.table({"n": [1]}))

    names = iter(["old", "new"])
    workspace = SimpleNamespace(
        query=query,
        catalog=SimpleNamespace(datasets=SimpleNamespace(get=lambda _: SimpleNamespace(table_name=next(names)))),
    )

    class Visitor:
        async def read(self, work: Any, _: str) -> Any:
            return work(workspace)

    snapshot: Any = SimpleNamespace(
        dataset=SimpleNamespace(id="data_x"),
        version=SimpleNamespace(version=3, row_count=1, schema=pa.schema([("n", pa.int64())])),
    )
    rows = Rows(cast(Any, Visitor()), snapshot)
    view = View.of(rows.schema, [{"colId": "c0", "sort": "asc"}], {})
    for _ in range(2):
        asyncio.run(rows.page(view, 0, 10, 100))
    assert ['"old@3"' in asked[0], '"new@3"' in asked[1]] == [True, True]
