"""The grid of rows asks for pages; what a browser asks for is not what it gets."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from inlay.web.dataset import rows_view


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

    view: Any = object.__new__(rows_view._RowsView)
    view._rows, view._latest, view._stored = Rows(), 0, 10**12
    view._grid = SimpleNamespace(run_method=lambda *_: None)
    view._tell = lambda *_: None
    event: Any = SimpleNamespace(args={"key": 1, "start": asked[0], "stop": asked[1], "sorts": [], "filters": {}})
    asyncio.run(view._deliver(event))
    assert pages == [served]
