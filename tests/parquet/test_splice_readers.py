"""Spliced files of every writer, read by every reader."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from inlay.parquet.splice import ParquetBytes, Splicer
from tests.parquet.splicing import (
    GROUP,
    OPERATIONS,
    READERS,
    REPLACED,
    ROWS,
    WRITERS,
    ask_datafusion,
    chunk_pages,
    rows_of,
    sample,
    splice_file,
)


@pytest.fixture(scope="module", params=WRITERS)
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("originals") / f"{request.param}.parquet"
    WRITERS[request.param](sample(), path)
    return path


# Short runs read the two operations that encode rows; test_predicates_find_the_rows reads all of them with DataFusion.
@pytest.mark.parametrize(
    "operation",
    [pytest.param(name, marks=[pytest.mark.long] * (not name.startswith("replace"))) for name in OPERATIONS],
)
def test_every_reader_sees_the_rows(original: Path, operation: str, tmp_path: Path) -> None:
    target = tmp_path / "spliced.parquet"
    expected = rows_of(splice_file(original, operation, target))
    for name, read in READERS.items():
        assert rows_of(read(target)) == expected, name


@pytest.mark.parametrize("operation", OPERATIONS)
def test_predicates_find_the_rows(original: Path, operation: str, tmp_path: Path) -> None:
    """Predicates use statistics, page index and bloom filters, at the edges and in the middle of row groups."""
    target = tmp_path / "spliced.parquet"
    expected = rows_of(splice_file(original, operation, target))
    for low in (0, GROUP - 5, GROUP + 777, 2 * GROUP - 120, 2 * GROUP, ROWS - 5):
        wanted = [row for row in expected if low <= row["id"] < low + 10]
        found = ask_datafusion(target, f"SELECT * FROM t WHERE id >= {low} AND id < {low + 10}")
        assert rows_of(found) == wanted
        for row in wanted[:2]:
            text = "IS NULL" if row["text"] is None else f"= '{row['text']}'"
            point = ask_datafusion(target, f"SELECT * FROM t WHERE id = {row['id']} AND text {text}")
            assert rows_of(point) == [row]


def test_copied_pages_are_the_same_bytes(original: Path, tmp_path: Path) -> None:
    target = tmp_path / "spliced.parquet"
    splice_file(original, "replace_columns", target)
    before, after = chunk_pages(original.read_bytes()), chunk_pages(target.read_bytes())
    leaves = [leaf.path.split(".")[0] for leaf in ParquetBytes(target.read_bytes()).schema.leaves]
    kept = [i for i, name in enumerate(leaves) if name not in REPLACED]
    assert after[1:] == before[1:]
    assert [after[0][i] for i in kept] == [before[0][i] for i in kept]
    replaced = [i for i in range(len(leaves)) if i not in kept]
    assert all(after[0][i] != before[0][i] for i in replaced)


def test_copy_of_everything_keeps_every_page_and_the_footer(original: Path, tmp_path: Path) -> None:
    target = tmp_path / "spliced.parquet"
    splice_file(original, "copy", target)
    assert chunk_pages(target.read_bytes()) == chunk_pages(original.read_bytes())
    before, after = pq.ParquetFile(original).metadata, pq.ParquetFile(target).metadata
    assert after.metadata == before.metadata
    assert after.created_by == before.created_by
    assert after.schema.equals(before.schema)
    for group in range(3):
        old, new = before.row_group(group), after.row_group(group)
        assert new.sorting_columns == old.sorting_columns
        assert new.total_byte_size == old.total_byte_size
        for column in range(before.num_columns):
            assert new.column(column).statistics == old.column(column).statistics
            assert new.column(column).has_column_index == old.column(column).has_column_index
            assert new.column(column).has_offset_index == old.column(column).has_offset_index


def test_many_small_files_are_spliced_into_one(tmp_path: Path) -> None:
    """Every source is closed right after its row group is copied."""
    parts = []
    for i in range(20):
        WRITERS["pyarrow-rich"](sample(100 * i, 100), tmp_path / f"{i}.parquet")
        parts.append(tmp_path / f"{i}.parquet")
    target = tmp_path / "whole.parquet"
    with parts[0].open("rb") as first, target.open("wb") as out:
        splicer = Splicer(out, ParquetBytes(first))
        for part in parts:
            with part.open("rb") as file:
                splicer.copy(ParquetBytes(file), 0)
        splicer.finish()
    for name, read in READERS.items():
        assert rows_of(read(target)) == rows_of(sample(0, 2000)), name
    assert ask_datafusion(target, "SELECT id FROM t WHERE text = 'text number 1234'").to_pylist() == [{"id": 1234}]
