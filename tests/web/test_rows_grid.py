"""Tests of the requests of the rows grid, without a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from inlay.errors import QueryTimeoutError
from inlay.web.dataset.rows import Rows, View, _RowsView
from tests.coroutines import run_coroutine


@pytest.mark.parametrize(
    ("asked", "served"),
    [((0, 100), (0, 100)), ((100, 130), (100, 130)), ((0, 10**12), (0, 100)), ((-5, 10), (0, 10))],
)
def test_one_request_reads_at_most_one_page(asked: tuple[int, int], served: tuple[int, int]) -> None:
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
    """Request rows, and return the calls of the grid and the visibility of the retry button."""
    calls: list[Any] = []
    shown: list[bool] = []
    view: Any = object.__new__(_RowsView)
    view._rows, view._latest, view._stored = rows, 0, 10**12
    view._grid = SimpleNamespace(run_method=lambda *call: calls.append(call))
    view._retry = SimpleNamespace(set_visibility=shown.append)
    view._show_status = lambda *_: None
    event: Any = SimpleNamespace(args={"key": 1, "start": start, "stop": stop, "sorts": [], "filters": {}})
    run_coroutine(view._deliver(event))
    return calls, shown


def test_failed_request_is_not_shown_as_no_rows() -> None:
    class Rows:
        schema = pa.schema([("a", pa.int64())])

        async def total(self, _: Any) -> int:
            raise QueryTimeoutError("too long")

    assert deliver(Rows(), 0, 10) == ([("deliver", 1, None, 0)], [True])


def test_queries_use_the_current_table_name() -> None:
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
        run_coroutine(rows.page(view, 0, 10, 100))
    assert ['"old@3"' in asked[0], '"new@3"' in asked[1]] == [True, True]
