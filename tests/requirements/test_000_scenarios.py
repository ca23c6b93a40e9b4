"""Document 000 (datasets-parquet-io): one test per scenario, named after it."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.incremental import ConservativeMembershipChecker, ParquetMetadataAnalyzer
from tests import lake

DAY1, DAY2 = "2025-01-01", "2025-01-02"


def relative(path, files):
    return sorted(str(Path(file).relative_to(path)) for file in files)


def many_files(root, count=8):
    """Write files; file i holds the ids 10i to 10i+9."""
    files = {f"{i}.parquet": lake.table(range(i * 10, i * 10 + 10)) for i in range(count)}
    return lake.write(root, files)


# Requirement: Incremental Merge Planning Uses Partition and Statistics Pruning


def test_partition_pruning_reduces_candidate_files(tmp_path, engine):
    files = {f"day={day}/{i}.parquet": lake.table([i, 500 + i]) for day in (DAY1, DAY2) for i in range(2)}
    files |= {f"day={DAY2}/9.parquet": lake.table([100, 200])}
    path = lake.write(tmp_path / "d", files)
    source = lake.table([100], ["x"], day=pa.array([DAY2]))
    plan = inlay.plan_merge(source, path, "update", ["id"], engine=engine)
    assert relative(path, plan.affected_files) == [f"day={DAY2}/9.parquet"]
    reasons = {Path(file.path).relative_to(path).as_posix(): str(file.reason) for file in plan.files}
    assert len(reasons) == 5
    assert reasons[f"day={DAY1}/0.parquet"] != reasons[f"day={DAY2}/9.parquet"]


def test_files_with_unknown_partition_values_are_not_pruned():
    """A file outside every partition directory may hold rows of any partition."""
    from inlay.incremental import ParquetFileMetadata, PartitionPruner

    inside = ParquetFileMetadata("d/day=2025-01-02/a.parquet", 1, 1, {}, {"day": DAY2})
    outside = ParquetFileMetadata("d/b.parquet", 1, 1, {}, None)
    schema = pa.schema([("day", pa.string())])
    found = PartitionPruner().identify_candidate_files(
        [inside, outside], ["id", "day"], [(1, DAY1)], partition_schema=schema
    )
    assert found == ["d/b.parquet"]


def test_statistics_pruning_excludes_non_overlapping_files(tmp_path, engine):
    path = many_files(tmp_path / "d")
    plan = inlay.plan_merge(lake.table([33, 35], ["x", "y"]), path, "update", ["id"], engine=engine)
    assert relative(path, plan.affected_files) == ["3.parquet"]
    assert len(plan.unaffected_files) == 7


# Requirement: Conservative Pruning Preserves Correctness


@pytest.mark.parametrize("statistics", [False, True])
def test_missing_or_inexact_stats_treated_as_unknown_membership(tmp_path, engine, statistics):
    """Without statistics, or with bounds that are too long to be exact, the key is still found."""
    key = "k" * 70 + "b"
    table = pa.table({"id": ["k" * 70 + "a", key], "v": ["a", "b"]})
    path = lake.write(tmp_path / "d", {"a.parquet": table}, write_statistics=statistics)
    [meta] = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    if not statistics:
        assert ConservativeMembershipChecker().file_might_contain_keys(meta, ["id"], ["zzz"])
    assert ConservativeMembershipChecker().file_might_contain_keys(meta, ["id"], [key])
    source = pa.table({"id": [key], "v": ["x"]})
    assert inlay.merge(source, path, "update", ["id"], engine=engine).updated == 1


# Requirement: Full Row Replacement Semantics


def test_update_replaces_full_rows(tmp_path, engine):
    target = pa.table({"id": [1, 2], "a": ["a1", "a2"], "b": [1.0, 2.0]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"id": [1], "a": pa.array([None], pa.string()), "b": [9.0]})
    inlay.merge(source, path, "update", ["id"], engine=engine)
    assert lake.all_rows(path) == [{"id": 1, "a": None, "b": 9.0}, {"id": 2, "a": "a2", "b": 2.0}]


# Requirement: Partition Columns Cannot Change (Initial Implementation)


def test_reject_partition_movement_on_update(tmp_path, engine):
    path = lake.write(tmp_path / "d", {f"day={DAY1}/a.parquet": lake.table([1])})
    source = lake.table([1], ["x"], day=pa.array([DAY2]))
    with pytest.raises(ValueError, match=r"(?i)partition columns? cannot change"):
        inlay.merge(source, path, "update", ["id"], partition_by=["day"], engine=engine)


# Requirement: `write_dataset` Supports Append and Overwrite


def test_append_writes_new_parquet_files_only(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    result = inlay.write_dataset(lake.table([1, 2]), path, mode="append", engine=engine)
    after = lake.photograph(path)
    assert {name: after[name] for name in before} == before
    assert sorted(after.keys() - before.keys()) == relative(path, [meta.path for meta in result.files])
    assert sorted(row["id"] for row in lake.all_rows(path)) == [1, 1, 2]


def test_overwrite_replaces_parquet_data_files(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "sub/b.parquet": lake.table([2])})
    (tmp_path / "d/README.txt").write_text("kept")
    result = inlay.write_dataset(lake.table([7, 8]), path, mode="overwrite", engine=engine)
    assert lake.id_values(lake.all_rows(path)) == [(7, "v7"), (8, "v8")]
    assert (tmp_path / "d/README.txt").read_text() == "kept"
    assert relative(path, [meta.path for meta in result.files]) == lake.names(path)
    assert not {"a.parquet", "sub/b.parquet"} & set(lake.names(path))


def test_write_dataset_rejects_other_modes(tmp_path, engine):
    with pytest.raises(ValueError, match="truncate"):
        inlay.write_dataset(lake.table([1]), str(tmp_path / "d"), mode="truncate", engine=engine)
    assert not (tmp_path / "d").exists()


# Requirement: Return File Metadata for Newly Written Files


def test_append_returns_written_file_metadata(tmp_path, engine):
    path = lake.write(tmp_path / "d", {f"day={DAY1}/a.parquet": lake.table([1])})
    source = lake.table([2, 3, 4], day=pa.array([DAY1, DAY2, DAY2]))
    result = inlay.write_dataset(source, path, mode="append", partition_columns=["day"], engine=engine)
    rows = {meta.path: meta.row_count for meta in result.files}
    assert sorted(rows.values()) == [1, 2]
    assert all(pq.read_metadata(file).num_rows == count for file, count in rows.items())
    assert all(meta.size_bytes == Path(meta.path).stat().st_size for meta in result.files)


# Requirement: `merge` Supports Insert, Update, Upsert (stated for DuckDB; every engine obeys)


def test_insert_appends_only_new_keys(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    result = inlay.merge(lake.table([1, 2], ["x", "y"]), path, strategy="insert", key_columns=["id"], engine=engine)
    assert lake.photograph(path)["a.parquet"] == before["a.parquet"]
    written = [row for file in result.inserted_files for row in lake.rows_of(lake.read_file(file))]
    assert written == [{"id": 2, "v": "y"}]
    assert result.rewritten_files == []


def test_update_preserves_unaffected_rows(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    inlay.merge(lake.table([2], ["x"]), path, strategy="update", key_columns=["id"], engine=engine)
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (2, "x")]


def test_composite_keys_work_for_upsert(tmp_path, engine):
    target = pa.table({"id": [1, 2], "category": ["A", "B"], "v": ["a", "b"]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"id": [1, 1, 2], "category": ["A", "B", "A"], "v": ["x", "y", "z"]})
    result = inlay.merge(source, path, strategy="upsert", key_columns=["id", "category"], engine=engine)
    assert (result.updated, result.inserted) == (1, 2)
    assert [row["v"] for row in lake.all_rows(path)] == ["x", "b", "y", "z"]


def test_conservative_pruning_and_key_scan_confirmation(tmp_path, engine):
    """Id 15 is in the ranges of files 1 and x, but only file 1 holds it."""
    path = many_files(tmp_path / "d")
    lake.write(tmp_path / "d", {"x.parquet": lake.table([0, 200])})
    before = lake.photograph(path)
    result = inlay.merge(lake.table([15], ["x"]), path, strategy="update", key_columns=["id"], engine=engine)
    assert relative(path, result.rewritten_files) == ["1.parquet"]
    after = lake.photograph(path)
    assert [name for name in before if before[name] != after[name]] == ["1.parquet"]


# Requirement: Merge Returns File Metadata


def test_upsert_returns_metadata_for_rewritten_and_inserted_files(tmp_path, engine):
    path = many_files(tmp_path / "d", 3)
    source = lake.table([5, 25, 100], ["x", "y", "z"])
    result = inlay.merge(source, path, strategy="upsert", key_columns=["id"], engine=engine)
    by_operation = {}
    for meta in result.files:
        by_operation.setdefault(meta.operation, []).append(meta.row_count)
    assert by_operation == {"rewritten": [10, 10], "inserted": [1], "preserved": [10]}
    assert relative(path, result.rewritten_files) == ["0.parquet", "2.parquet"]
    assert relative(path, result.preserved_files) == ["1.parquet"]


def test_parquet_metadata_is_the_default_metadata_source(tmp_path, engine):
    path = many_files(tmp_path / "d", 3)
    result = inlay.merge(lake.table([5, 100], ["x", "z"]), path, "upsert", ["id"], engine=engine)
    for meta in result.files:
        assert meta.row_count == pq.read_metadata(meta.path).num_rows
        assert meta.size_bytes == Path(meta.path).stat().st_size


# Requirement: `merge` Supports Insert, Update, Upsert (PyArrow); Merge Returns File Metadata (PyArrow)


def test_update_rewrites_only_affected_files(tmp_path):
    path = many_files(tmp_path / "d")
    before = lake.photograph(path)
    source = lake.table([15, 71, 999], ["x", "y", "z"])
    result = inlay.PyArrowDatasetIO().merge(source, path, strategy="update", key_columns=["id"])
    assert relative(path, result.rewritten_files) == ["1.parquet", "7.parquet"]
    after = lake.photograph(path)
    assert [name for name in before if before[name] != after[name]] == ["1.parquet", "7.parquet"]
    assert before.keys() == after.keys()
    assert (result.updated, result.inserted, result.target_count_after) == (2, 0, 80)


def test_pyarrow_upsert_returns_metadata_for_rewritten_and_inserted_files(tmp_path):
    path = many_files(tmp_path / "d", 2)
    source = lake.table([5, 100], ["x", "z"])
    result = inlay.PyArrowDatasetIO().merge(source, path, strategy="upsert", key_columns=["id"])
    assert relative(path, result.rewritten_files) == ["0.parquet"]
    assert [lake.footer(file).num_rows for file in result.inserted_files] == [1]
