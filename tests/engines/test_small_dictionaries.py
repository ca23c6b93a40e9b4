"""Text columns with few distinct values are edited as dictionaries. The file must not show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.engines.base import NO_ROWS, FileEdit, GroupEdit
from inlay.engines.edits import rewrite_file
from inlay.engines.open_file import OpenFile
from inlay.parquet.splice import ParquetBytes
from inlay.storage import locate
from tests.parquet.splicing import READERS, needs_bloom_filters

ROWS = 400
TEXT = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}


def words(type_: pa.DataType) -> pa.Table:
    values = [None if i % 9 == 0 else "zz" if i == 7 else f"w{i % 4}" for i in range(ROWS)]
    column = pa.array(values).cast(pa.binary() if pa.types.is_large_binary(type_) else pa.string())
    return pa.table({"id": pa.array(range(ROWS)), "word": column.cast(type_)}, metadata={"owner": "somebody"})


def replace(folder: Path, positions: list[int], values: list[str | None]) -> Path:
    """Replace words in `folder/a.parquet`. Returns the staged file."""
    location = locate(folder)
    is_binary = "binary" in str(pq.read_schema(folder / "a.parquet").field("word").type)
    column = pa.array(values).cast(pa.binary() if is_binary else pa.string())
    source = pa.table({"id": pa.array(positions, pa.int64()), "word": column})
    groups = [GroupEdit(0, np.array(positions, np.int64), np.arange(len(positions)))]
    stage = folder.parent / "staged.parquet"
    rewrite_file(location, FileEdit("a.parquet", str(stage), groups), lambda rows: source.take(pa.array(rows)), map)
    return stage


def write(folder: Path, table: pa.Table, **options: Any) -> None:
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet", **options)


@pytest.mark.parametrize("type_", TEXT.values(), ids=TEXT.keys())
def test_the_schema_and_the_values_are_those_of_plain_text(tmp_path: Path, type_: pa.DataType) -> None:
    before = words(type_)
    write(tmp_path / "d", before)
    staged = replace(tmp_path / "d", [0, 7, 9, 11], ["new", "w1", None, "w2"])
    expected = before["word"].cast(pa.string()).to_pylist()
    expected[0], expected[7], expected[9], expected[11] = "new", "w1", None, "w2"
    for name, read in READERS.items():
        column = read(staged)["word"]
        assert [v.decode() if isinstance(v, bytes) else v for v in column.to_pylist()] == expected, name
    assert pq.read_schema(staged).equals(pq.read_schema(tmp_path / "d/a.parquet"), check_metadata=True)
    assert pq.read_metadata(staged).metadata == pq.read_metadata(tmp_path / "d/a.parquet").metadata


@pytest.mark.parametrize("type_", TEXT.values(), ids=TEXT.keys())
def test_texts_of_a_row_group_whose_rows_are_all_replaced(tmp_path: Path, type_: pa.DataType) -> None:
    before = words(type_)
    write(tmp_path / "d", before)
    values = [f"n{i % 3}" for i in range(ROWS)]
    staged = replace(tmp_path / "d", list(range(ROWS)), values)
    assert pq.read_table(staged)["word"].cast(pa.string()).to_pylist() == values
    assert pq.read_schema(staged).equals(pq.read_schema(tmp_path / "d/a.parquet"), check_metadata=True)


@pytest.mark.parametrize("type_", TEXT.values(), ids=TEXT.keys())
def test_texts_of_a_row_group_that_loses_rows(tmp_path: Path, type_: pa.DataType) -> None:
    before = words(type_)
    write(tmp_path / "d", before)
    groups = [GroupEdit(0, NO_ROWS, NO_ROWS, deleted=np.array([0, 7, 8]))]
    stage = tmp_path / "staged.parquet"
    rewrite_file(locate(tmp_path / "d"), FileEdit("a.parquet", str(stage), groups), before.take, map)
    expected = [v for i, v in enumerate(before["word"].cast(pa.string()).to_pylist()) if i not in (0, 7, 8)]
    for name, read in READERS.items():
        column = read(stage)["word"]
        assert [v.decode() if isinstance(v, bytes) else v for v in column.to_pylist()] == expected, name
    assert pq.read_metadata(stage).row_group(0).column(1).statistics.max in ("w3", b"w3")  # the only "zz" is deleted
    assert pq.read_schema(stage).equals(pq.read_schema(tmp_path / "d/a.parquet"), check_metadata=True)


def test_statistics_do_not_count_values_that_only_the_dictionary_holds(tmp_path: Path) -> None:
    write(tmp_path / "d", words(pa.string()))
    staged = replace(tmp_path / "d", [7], ["w1"])  # the only "zz"
    chunk = pq.read_metadata(staged).row_group(0).column(1)
    nulls = sum(i % 9 == 0 for i in range(ROWS))
    assert (chunk.statistics.min, chunk.statistics.max, chunk.statistics.null_count) == ("w0", "w3", nulls)
    assert chunk.dictionary_page_offset


def test_the_dictionary_holds_only_values_of_the_column(tmp_path: Path) -> None:
    write(tmp_path / "d", words(pa.string()))
    for turn in range(9):
        replace(tmp_path / "d", [1, 2], [f"a{turn}", f"b{turn}"]).replace(tmp_path / "d/a.parquet")
    with (tmp_path / "d/a.parquet").open("rb") as file:
        (share,) = [s.distinct_share for s in ParquetBytes(file).chunk_settings(0) if s.path == "word"]
    assert share == len(["a8", "b8", "w0", "w1", "w2", "w3", "zz"]) / ROWS


def small_dictionaries(path: Path) -> list[str]:
    file = OpenFile(locate(path.parent), path.name)
    with file.raw() as raw:
        return file.small_dictionaries(raw, 0)


def test_only_small_dictionaries_are_chosen(tmp_path: Path) -> None:
    values = pa.array([str(i % 100) for i in range(ROWS)])
    write(tmp_path / "d", words(pa.string()).append_column("many", values).append_column("n", pa.array([1] * ROWS)))
    assert small_dictionaries(tmp_path / "d/a.parquet") == ["word"]


@needs_bloom_filters
def test_a_column_with_a_bloom_filter_is_decoded(tmp_path: Path) -> None:
    write(tmp_path / "d", words(pa.string()), bloom_filter_options={"word": {"ndv": 50}})
    assert not small_dictionaries(tmp_path / "d/a.parquet")
    settings = ParquetBytes(replace(tmp_path / "d", [7], ["new"]).read_bytes()).chunk_settings(0)
    assert settings[1].bloom_filter_bytes
