"""Consistent reads, as a table or in batches."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.errors import ConcurrentModificationError, DatasetMergeError, InlayError, NotFoundError, SchemaMismatchError
from inlay.incremental.read import parquet_dataset
from inlay.storage import locate
from tests import lake


def test_an_open_dataset_is_scanned_in_batches(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {f"day={i}/a.parquet": lake.table(range(i, i + 3)) for i in range(4)})
    with inlay.open_dataset(path) as dataset:
        reader = dataset.scanner(columns=["id", "day"], filter=pc.field("day") > 1).to_reader()
        batches = list(reader)
        assert dataset.to_table().equals(inlay.read_parquet(path))
    assert isinstance(reader, pa.RecordBatchReader)
    rows = pa.Table.from_batches(batches).to_pylist()
    assert sorted((row["id"], row["day"]) for row in rows) == [(2, 2), (3, 2), (3, 3), (4, 2), (4, 3), (5, 3)]


def test_an_exception_inside_the_block_is_not_wrapped(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    with pytest.raises(FileNotFoundError), inlay.open_dataset(path):
        (tmp_path / "none" / "out.csv").write_text("")


def test_an_open_dataset_without_a_sidecar_leaves_none(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    with inlay.open_dataset(path) as dataset:
        assert dataset.count_rows() == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["d"]


def test_a_commit_on_an_object_store_is_an_error_at_the_end_of_the_block(memory: MemoryFileSystem) -> None:
    inlay.write_dataset(lake.table([1]), "/open/d", filesystem=memory)
    opened = inlay.open_dataset("/open/d", filesystem=memory)
    assert opened.__enter__().count_rows() == 1
    inlay.write_dataset(lake.table([2]), "/open/d", filesystem=memory)
    with pytest.raises(ConcurrentModificationError, match="changed during the read"):
        opened.__exit__(None, None, None)
    with inlay.open_dataset("/open/d", filesystem=memory) as dataset:
        assert dataset.count_rows() == 2


def test_opening_a_missing_dataset_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no Parquet file"), inlay.open_dataset(str(tmp_path / "none")):
        pass


def test_an_error_of_the_caller_is_not_wrapped(tmp_path: Path) -> None:
    pq.write_table(lake.table([1]), tmp_path / "a.parquet")
    with pytest.raises(ZeroDivisionError), inlay.open_dataset(str(tmp_path)):
        raise ZeroDivisionError


@pytest.mark.parametrize("options", [{"columns": ["id", "idd"]}, {"filter": pc.field("idd") > 1}])
def test_an_unknown_column_is_reported_with_the_known_columns(tmp_path: Path, options: dict[str, Any]) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    with pytest.raises(SchemaMismatchError, match="idd") as caught:
        inlay.read_parquet(path, **options)
    assert "'id'" in str(caught.value)


def test_a_filter_that_fails_is_a_failed_read(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1], ["word"])})
    with pytest.raises(DatasetMergeError, match="The read failed and nothing changed: Failed to parse string: 'word'"):
        inlay.read_parquet(path, filter=pc.field("v").cast(pa.int64()) > 1)


def test_directories_above_the_dataset_are_not_partitions(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "day=9" / "d", {"day=1/a.parquet": lake.table([1])})
    assert inlay.read_parquet(path).to_pylist() == [{"id": 1, "v": "v1", "day": 1}]


def test_schema_metadata_is_kept(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]).replace_schema_metadata({"owner": "somebody"})})
    assert inlay.read_parquet(path).schema.metadata == {b"owner": b"somebody"}


def test_out_of_range_int96_timestamps_are_found_in_any_file(tmp_path: Path) -> None:
    """Four kinds of files: no timestamps, INT64 timestamps, INT96 timestamps in range and out of range."""
    now, far = (dt.datetime.fromisoformat(f"{year}-01-01") for year in (2026, 9999))
    lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1]})})
    lake.write(tmp_path / "d", {"b.parquet": pa.table({"id": [2], "at": pa.array([now], pa.timestamp("ns"))})})
    for name, when in (("c", now), ("d", far)):
        table = pa.table({"id": [3], "at": pa.array([when], pa.timestamp("us")), name: [1]})
        pq.write_table(table, tmp_path / "d" / f"{name}.parquet", use_deprecated_int96_timestamps=True)
    with pytest.raises(InlayError, match=r"d\.parquet"):
        inlay.read_parquet(str(tmp_path / "d"))
    (tmp_path / "d/d.parquet").unlink()
    assert inlay.read_parquet(str(tmp_path / "d"))["id"].to_pylist() == [1, 2, 3]


def test_parquet_dataset_opens_the_named_files(memory: MemoryFileSystem) -> None:
    inlay.write_dataset(lake.table(range(5)), "/named/d", filesystem=memory, max_rows_per_file=2)
    location = locate("/named/d", memory)
    paths = [location.relative(name) for name in memory.find("/named/d")]
    schema = pa.schema([("id", pa.int32())])
    assert parquet_dataset(location, paths[1:], schema).to_table().equals(pa.table({"id": [2, 3, 4]}, schema))
