"""Document 001 (datasets-parquet-io, delta): the scenarios that hold for every engine.

Document 000 has most of these scenarios too; these tests use both entry points of document 001.
"""

import functools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from tests import lake


def function_form(engine):
    def call(*args, **options):
        return inlay.merge(*args, engine=engine, **options)

    return call


@pytest.fixture(params=["function", "object"])
def merge(request, engine):
    """inlay.merge on each engine, and the method of the engine's dataset IO."""
    if request.param == "function":
        return function_form(engine)
    handlers = {"pyarrow": inlay.PyArrowDatasetIO, "duckdb": inlay.DuckDBDatasetIO, "spark": inlay.SparkDatasetIO}
    if not isinstance(engine, str):  # DuckDB without MERGE
        return functools.partial(inlay.DuckDBDatasetIO().merge, use_merge=False)
    return handlers[engine]().merge


def test_insert_appends_only_new_keys(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    result = merge(lake.table([1, 2], ["x", "y"]), path, strategy="insert", key_columns=["id"])
    assert lake.photograph(path)["a.parquet"] == before["a.parquet"]
    assert [lake.all_rows(path)[0]["v"], result.inserted, result.rewritten_files] == ["v1", 1, []]
    [written] = result.inserted_files
    assert lake.rows_of(lake.read_file(written)) == [{"id": 2, "v": "y"}]


def test_update_preserves_unaffected_rows(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    result = merge(lake.table([2], ["x"]), path, strategy="update", key_columns=["id"])
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (2, "x")]
    assert (result.updated, result.target_count_after) == (1, 2)


def test_composite_keys_work_for_upsert(tmp_path, merge):
    target = pa.table({"id": [1, 2], "category": ["A", "B"], "v": [1, 2]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"id": [1, 1], "category": ["A", "C"], "v": [10, 30]})
    result = merge(source, path, strategy="upsert", key_columns=["id", "category"])
    assert (result.updated, result.inserted) == (1, 1)
    assert [(r["id"], r["category"], r["v"]) for r in lake.all_rows(path)] == [
        (1, "A", 10),
        (2, "B", 2),
        (1, "C", 30),
    ]


def test_conservative_pruning_and_key_scan_confirmation(tmp_path, merge):
    """The ranges of all files overlap, so only reading the keys can exclude files."""
    files = {f"{i}.parquet": lake.table([i, 100 + i]) for i in range(6)}
    path = lake.write(tmp_path / "d", files)
    result = merge(lake.table([4, 101], ["x", "y"]), path, strategy="update", key_columns=["id"])
    assert [Path(file).name for file in sorted(result.rewritten_files)] == ["1.parquet", "4.parquet"]
    assert len(result.preserved_files) == 4


def test_upsert_returns_metadata_for_rewritten_and_inserted_files(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    result = merge(lake.table([1, 9], ["x", "y"]), path, strategy="upsert", key_columns=["id"])
    found = {meta.operation: (meta.row_count, Path(meta.path).name) for meta in result.files}
    assert found["rewritten"] == (2, "a.parquet")
    assert found["preserved"] == (1, "b.parquet")
    assert found["inserted"][0] == 1


def test_parquet_metadata_is_the_default_metadata_source(tmp_path, merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    result = merge(lake.table([1, 9], ["x", "y"]), path, strategy="upsert", key_columns=["id"])
    assert [meta.row_count for meta in result.files] == [pq.read_metadata(m.path).num_rows for m in result.files]


@pytest.mark.parametrize("strategy", ["update", "upsert"])
def test_write_parquet_dataset_in_incremental_mode_delegates_to_merge(tmp_path, strategy):
    """Stated for DuckDB; the other engines' objects offer the same method, and it is the same merge."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    untouched = lake.photograph(path)["b.parquet"]
    writer = inlay.PyArrowDatasetIO()
    options = {"strategy": strategy, "rewrite_mode": "incremental", "key_columns": ["id"]}
    result = writer.write_parquet_dataset(lake.table([2, 9], ["x", "y"]), path, **options)
    inserted = int(strategy == "upsert")
    assert (result.updated, result.inserted, result.target_count_after) == (1, inserted, 3 + inserted)
    assert lake.photograph(path)["b.parquet"] == untouched
