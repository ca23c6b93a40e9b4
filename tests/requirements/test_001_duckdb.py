"""Documents 000 and 001: the requirements that name DuckDB, on the objects that they name.

The same scenarios run on every engine in test_000_scenarios.py and test_001_merge_delta.py.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from tests import lake


@pytest.fixture(params=[None, False], ids=["as detected", "union all"])
def merge(request):
    def call(*args, **options):
        return inlay.DuckDBDatasetIO().merge(*args, use_merge=request.param, **options)

    return call


def test_the_handler_of_document_002_is_the_same_class():
    assert inlay.DuckDBParquetHandler is inlay.DuckDBDatasetIO


def test_insert_appends_only_new_keys(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    result = merge(lake.table([1, 2], ["x", "y"]), path, strategy="insert", key_columns=["id"])
    assert lake.photograph(path)["a.parquet"] == before["a.parquet"]
    assert (result.inserted, result.rewritten_files) == (1, [])
    [written] = result.inserted_files
    assert lake.rows_of(lake.read_file(written)) == [{"id": 2, "v": "y"}]


def test_update_preserves_unaffected_rows(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    merge(lake.table([2], ["x"]), path, strategy="update", key_columns=["id"])
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (2, "x")]


def test_composite_keys_work_for_upsert(tmp_path, merge):
    target = pa.table({"id": [1, 2], "category": ["A", "B"], "v": [1, 2]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"id": [1, 1], "category": ["A", "C"], "v": [10, 30]})
    result = merge(source, path, strategy="upsert", key_columns=["id", "category"])
    assert (result.updated, result.inserted) == (1, 1)
    assert [(r["id"], r["category"], r["v"]) for r in lake.all_rows(path)] == [(1, "A", 10), (2, "B", 2), (1, "C", 30)]


def test_conservative_pruning_and_key_scan_confirmation(tmp_path, merge):
    files = {f"{i}.parquet": lake.table([i, 100 + i]) for i in range(6)}
    path = lake.write(tmp_path / "d", files)
    result = merge(lake.table([4, 101], ["x", "y"]), path, strategy="update", key_columns=["id"])
    assert [Path(file).name for file in sorted(result.rewritten_files)] == ["1.parquet", "4.parquet"]
    assert len(result.preserved_files) == 4


def test_upsert_returns_metadata_for_rewritten_and_inserted_files(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    result = merge(lake.table([1, 9], ["x", "y"]), path, strategy="upsert", key_columns=["id"])
    found = {meta.operation: meta.row_count for meta in result.files}
    assert found == {"rewritten": 2, "preserved": 1, "inserted": 1}


def test_parquet_metadata_is_the_default_metadata_source(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    result = merge(lake.table([1, 9], ["x", "y"]), path, strategy="upsert", key_columns=["id"])
    footers = [pq.read_metadata(meta.path) for meta in result.files]
    assert [meta.row_count for meta in result.files] == [footer.num_rows for footer in footers]
    assert [meta.size_bytes for meta in result.files] == [Path(meta.path).stat().st_size for meta in result.files]


@pytest.mark.parametrize("strategy", ["update", "upsert"])
@pytest.mark.parametrize("rewrite_mode", ["incremental", "full"])
@pytest.mark.parametrize("use_merge", [None, False])
def test_write_parquet_dataset_in_incremental_mode_delegates_to_merge(
    tmp_path, monkeypatch, strategy, rewrite_mode, use_merge
):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    untouched = lake.photograph(path)["b.parquet"]
    calls = []
    merge = inlay.DuckDBDatasetIO.merge
    monkeypatch.setattr(inlay.DuckDBDatasetIO, "merge", lambda *a, **k: calls.append(k) or merge(*a, **k))
    result = inlay.DuckDBDatasetIO().write_parquet_dataset(
        lake.table([2, 9], ["x", "y"]), path, strategy=strategy, rewrite_mode=rewrite_mode, key_columns=["id"],
        use_merge=use_merge,
    )  # fmt: skip
    inserted = int(strategy == "upsert")
    assert (result.updated, result.inserted, result.target_count_after) == (1, inserted, 3 + inserted)
    assert lake.photograph(path)["b.parquet"] == untouched
    assert [call["use_merge"] for call in calls] == [use_merge]


@pytest.mark.parametrize("strategy", ["upsert", "insert", "update", "full_merge", "deduplicate"])
def test_merge_parquet_dataset_of_document_002_returns_the_counts_of_the_merge(tmp_path, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 3])})
    stats = inlay.DuckDBParquetHandler().merge_parquet_dataset(lake.table([3, 4], ["x", "y"]), path, ["id"], strategy)
    expected = {
        "upsert": (1, 1, 0, 4), "insert": (1, 0, 0, 4), "update": (0, 1, 0, 3), "full_merge": (1, 1, 2, 2),
        "deduplicate": (1, 1, 0, 4),
    }  # fmt: skip
    assert (stats.inserted, stats.updated, stats.deleted, stats.total) == expected[strategy]


def test_write_dataset_and_read_parquet(tmp_path):
    handler = inlay.DuckDBDatasetIO()
    path = str(tmp_path / "d")
    handler.write_dataset(lake.table([1]), path)
    handler.write_parquet_dataset(lake.table([2]), path)
    assert sorted(handler.read_parquet(path)["id"].to_pylist()) == [1, 2]
    handler.write_dataset(lake.table([3]), path, mode="overwrite")
    assert handler.read_parquet(path, columns=["id"]).to_pydict() == {"id": [3]}
