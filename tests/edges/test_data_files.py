"""Files of a dataset directory: which are data, and which other files a change removes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import inlay
from inlay.errors import InlayError
from inlay.parquet import layout
from tests import lake
from tests.edges.readers import assert_rows

NAMES = {
    "hive": ("000000_0", "000001_0"),
    "codec after parquet": ("a.parquet.snappy", "b.parquet.snappy"),
    "codec": ("a.snappy", "b.snappy"),
    "capitals": ("part-0.PARQUET", "part-1.PARQUET"),
    "dat": ("a.dat", "b.dat"),
    "pq": ("a.pq", "b.pq"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_data_files_have_any_name(tmp_path: Path, engine: Any, kind: str) -> None:
    first, second = NAMES[kind]
    path = Path(lake.write(tmp_path / "d", {first: lake.table([1], ["a"]), second: lake.table([2], ["b"])}))
    result = inlay.merge([{"id": 1, "v": "x"}, {"id": 3, "v": "c"}], path, "upsert", "id", engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert [Path(file).name for file in result.rewritten_files] == [first]
    rows = [{"id": 1, "v": "x"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}]
    assert_rows(path, rows)
    assert pl.read_parquet(path).sort("id").to_dicts() == rows  # polars accepts one extension in a directory only
    inlay.compact(path, engine=engine)
    assert len(inlay.list_dataset_files(path)) == 1
    assert_rows(path, rows)


@pytest.mark.spark
def test_spark_reads_files_without_an_extension(tmp_path: Path, spark_session: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"000000_0": lake.table([1], ["a"])}))
    inlay.merge([{"id": 1, "v": "x"}, {"id": 2, "v": "y"}], path, "upsert", "id")
    rows = [row.asDict() for row in spark_session.read.parquet(str(path)).orderBy("id").collect()]
    assert rows == [{"id": 1, "v": "x"}, {"id": 2, "v": "y"}]


def test_files_of_an_object_store_have_any_name(memory: MemoryFileSystem) -> None:
    with memory.open("memory://d/000000_0", "wb") as file:
        pq.write_table(lake.table([1], ["a"]), file)
    memory.pipe("memory://d/notes.txt", b"no data")
    result = inlay.merge([{"id": 1, "v": "x"}], "memory://d", "upsert", "id")
    assert result.updated == 1
    assert inlay.read_parquet("memory://d").to_pylist() == [{"id": 1, "v": "x"}]


def test_other_files_are_no_data(tmp_path: Path, engine: Any) -> None:
    path = Path(lake.write(tmp_path / "d", {"a.parquet": lake.table([1], ["a"])}))
    others = {"README.txt": b"hello", "schema.json": b"{}", "x.csv": b"id\n1\n", "part_$folder$": b"", "_SUCCESS": b""}
    for name, content in others.items():
        (path / name).write_bytes(content)
    inlay.merge([{"id": 1, "v": "x"}], path, "full_merge", "id", engine=engine)
    assert {name: (path / name).read_bytes() for name in others} == others
    assert inlay.read_parquet(path).to_pylist() == [{"id": 1, "v": "x"}]


@pytest.mark.parametrize(
    "content", [b"PAR1 an unfinished file", b"PARE an encrypted footer PARE"], ids=["unfinished", "encrypted"]
)
@pytest.mark.parametrize("name", ["000001_0", "b.parquet"])
def test_data_files_that_cannot_be_read_are_rejected_by_name(tmp_path: Path, content: bytes, name: str) -> None:
    path = Path(lake.write(tmp_path / "d", {"000000_0": lake.table([1], ["a"])}))
    (path / name).write_bytes(content)
    before = lake.photograph(path)
    with pytest.raises(InlayError, match=name):
        inlay.merge([{"id": 1, "v": "x"}], path, "upsert", "id")
    assert lake.photograph(path) == before


def test_a_listing_opens_no_file_with_a_known_extension(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lake.write(
        tmp_path / "d", {"a.parquet": lake.table([1]), "b.PARQ": lake.table([2]), "c.pq": lake.table([3])}
    )
    opened: list[str] = []
    monkeypatch.setattr(layout, "_begins_like_parquet", lambda _store, name, _file: opened.append(name))
    assert len(inlay.list_dataset_files(path)) == 3
    assert opened == []


# ------------------------------------------------------------------------------------------------------- summaries
CHANGES: dict[str, Callable[[Path, Any], Any]] = {
    "merge": lambda path, engine: inlay.merge([{"id": 3, "v": "x", "p": 1}], path, "upsert", "id", engine=engine),
    "append": lambda path, engine: inlay.write_dataset([{"id": 3, "v": "x", "p": 1}], path, engine=engine),
    "overwrite": lambda path, engine: inlay.write_dataset(
        [{"id": 3, "v": "x", "p": 1}], path, mode="overwrite", engine=engine
    ),
    "compact": lambda path, engine: inlay.compact(path, sort_by="id", engine=engine),
}


def _with_summaries(root: Path) -> Path:
    """Write a dataset with `_metadata`, as pyarrow and Dask do, and with a summary of one partition."""
    files = {f"p=1/{n}.parquet": lake.table([n], [f"v{n}"]) for n in (1, 2)}
    path = Path(lake.write(root / "d", files))
    footers = []
    for name in files:
        footer = pq.read_metadata(path / name)
        footer.set_file_path(name)
        footers.append(footer)
    schema = pq.read_schema(path / "p=1/1.parquet")
    pq.write_metadata(schema, path / "_metadata", footers)
    pq.write_metadata(schema, path / "_common_metadata")
    pq.write_metadata(schema, path / "p=1" / "_metadata")
    return path


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_removes_summaries_of_old_footers(tmp_path: Path, engine: Any, change: str) -> None:
    path = _with_summaries(tmp_path)
    assert ds.parquet_dataset(path / "_metadata").count_rows() == 2
    result = CHANGES[change](path, engine)
    removed = [str(Path(file).relative_to(path)) for file in result.removed_summaries]
    assert removed == ["_common_metadata", "_metadata", "p=1/_metadata"]
    assert not [file for file in path.rglob("_*") if file.is_file()]
    rows = inlay.read_parquet(path).to_pylist()
    assert_rows(path, rows)
    assert sorted(pd.read_parquet(path)["id"]) == sorted(row["id"] for row in rows)  # pandas reads `_metadata` first


def test_a_merge_without_changes_keeps_summaries(tmp_path: Path) -> None:
    path = _with_summaries(tmp_path)
    result = inlay.merge([{"id": 1, "v": "v1", "p": 1}], path, "upsert", "id")
    assert (result.unchanged, result.removed_summaries) == (1, [])
    assert ds.parquet_dataset(path / "_metadata").count_rows() == 2


def test_summaries_in_an_object_store_are_removed(memory: MemoryFileSystem) -> None:
    inlay.write_dataset([{"id": 1}], "memory://d")
    memory.pipe("memory://d/_metadata", b"stale")
    result = inlay.merge([{"id": 2}], "memory://d", "upsert", "id")
    assert result.removed_summaries == ["memory://d/_metadata"]
    assert not memory.exists("memory://d/_metadata")
