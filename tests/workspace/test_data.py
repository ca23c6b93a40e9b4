"""Slices of the rows of a version, across files and row groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.catalog import DataFile
from inlay.errors import DatasetIOError
from inlay.workspace.data import Data
from inlay.workspace.storage import ServiceStorage

SCHEMA = pa.schema([("n", pa.int64()), ("later", pa.string())])


def data_of(folder: Path, layout: Sequence[Sequence[int]]) -> Data:
    """Write files with these row groups and consecutive ids. The first file lacks a column."""
    files, first = [], 0
    for number, groups in enumerate(layout):
        path = folder / f"{number}.parquet"
        rows = pa.table({"n": pa.array(range(first, first + sum(groups)), pa.int64())})
        table = rows.append_column("later", [["x"] * rows.num_rows]) if number else rows
        with pq.ParquetWriter(path, table.schema) as writer:
            for group in groups:
                writer.write_table(table.slice(0, group), row_group_size=max(1, group))
                table = table.slice(group)
        files.append(DataFile(path.name, rows.num_rows, path.stat().st_size))
        first += rows.num_rows
    snapshot: Any = SimpleNamespace(version=SimpleNamespace(schema=SCHEMA, row_count=first), files=tuple(files))
    return Data(snapshot, ServiceStorage(str(folder)))


layouts = st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4)


@given(layout=layouts, offset=st.integers(0, 60), limit=st.none() | st.integers(0, 60))
def test_batches_return_any_slice_of_the_rows(
    tmp_path_factory: Any, layout: list[list[int]], offset: int, limit: int | None
) -> None:
    data = data_of(tmp_path_factory.mktemp("data"), layout)
    found = pa.Table.from_batches(data.batches(offset, limit), SCHEMA)
    total = sum(map(sum, layout))
    assert found["n"].to_pylist() == list(range(total))[offset : None if limit is None else offset + limit]
    in_first = sum(layout[0]) if layout else 0
    assert found["later"].to_pylist() == [None if n < in_first else "x" for n in found["n"].to_pylist()]


def test_row_groups_before_the_first_row_are_not_read(tmp_path: Path) -> None:
    data = data_of(tmp_path, [[3, 3], [4]])
    data.storage.claim("catalog")
    path = tmp_path / "0.parquet"
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 20] = b"\xff" * 20
    path.write_bytes(content)
    with pytest.raises(DatasetIOError, match="The read failed"):
        next(data.batches())
    assert pa.Table.from_batches(data.batches(3, 4))["n"].to_pylist() == [3, 4, 5, 6]


def test_reading_holds_one_row_group_in_memory(tmp_path: Path) -> None:
    group = 100_000 * 8
    data = data_of(tmp_path, [[100_000] * 60])
    before = pa.total_allocated_bytes()
    held = [pa.total_allocated_bytes() - before for _ in data.batches()]
    assert max(held) < 10 * group
