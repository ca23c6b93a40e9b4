"""Document 000 (datasets-parquet-io): its API, behavior and testing requirements, one test each."""

import dataclasses
import inspect
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay import incremental
from inlay.incremental import (
    ConservativeMembershipChecker,
    IncrementalFileManager,
    IncrementalRewritePlan,
    MergeFileMetadata,
    MergeResult,
    ParquetFileMetadata,
    ParquetMetadataAnalyzer,
    PartitionPruner,
    confirm_affected_files,
    list_dataset_files,
    parse_hive_partition_path,
    plan_incremental_rewrite,
    validate_no_null_keys,
    validate_partition_column_immutability,
)
from tests import lake

DAYS = pa.schema([("day", pa.string())])


def meta(path, partition=None, **stats):
    """Build a ParquetFileMetadata from stats of the form name=(min, max, null_count)."""
    columns = {name: dict(zip(("min", "max", "null_count"), s, strict=True)) for name, s in stats.items()}
    return ParquetFileMetadata(
        path=path, row_group_count=1, total_rows=10, column_stats=columns, partition_values=partition
    )


def analysed(root, files, **options):
    path = lake.write(root, files, **options)
    return path, ParquetMetadataAnalyzer().analyze_dataset_files(path)


# API: signatures and fields, in the documented order


def test_merge_takes_the_documented_arguments_in_order():
    names = "data path strategy key_columns partition_columns filesystem compression max_rows_per_file "
    names += "row_group_size"
    parameters = inspect.signature(inlay.merge).parameters
    assert list(parameters)[:9] == names.split()
    assert parameters["max_rows_per_file"].default == 5_000_000
    assert all(p.kind is p.KEYWORD_ONLY for p in list(parameters.values())[9:])
    assert incremental.merge is inlay.merge


FIELDS = {
    MergeFileMetadata: "path row_count operation size_bytes",
    MergeResult: "strategy source_count target_count_before target_count_after inserted updated deleted "
    "files rewritten_files inserted_files preserved_files",
    ParquetFileMetadata: "path row_group_count total_rows column_stats partition_values",
    IncrementalRewritePlan: "affected_files unaffected_files new_files affected_rows",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_dataclasses_have_the_documented_fields_first(kind):
    names = FIELDS[kind].split()
    assert [field.name for field in dataclasses.fields(kind)][: len(names)] == names


SIGNATURES = {
    list_dataset_files: "dataset_path filesystem",
    parse_hive_partition_path: "file_path partition_columns",
    ParquetMetadataAnalyzer.analyze_dataset_files: "self dataset_path filesystem",
    PartitionPruner.identify_candidate_files: "self file_metadata key_columns source_keys partition_schema",
    ConservativeMembershipChecker.file_might_contain_keys: "self file_metadata key_columns source_keys",
    confirm_affected_files: "candidate_files key_columns source_keys filesystem",
    IncrementalFileManager.create_staging_directory: "self base_path",
    IncrementalFileManager.atomic_replace_files: "self source_files target_files filesystem",
    IncrementalFileManager.cleanup_staging_files: "self",
    validate_no_null_keys: "source_table key_columns",
    validate_partition_column_immutability: "source_table target_table key_columns partition_columns",
    plan_incremental_rewrite: "dataset_path source_keys key_columns filesystem partition_schema",
}


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda function: function.__name__)
def test_functions_take_the_documented_arguments_in_order(function):
    names = SIGNATURES[function].split()
    parameters = list(inspect.signature(function).parameters.values())
    assert [p.name for p in parameters][: len(names)] == names
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters[len(names) :])


# Testing requirement: Hive partition parsing with various path formats

PATHS = {
    "/data/year=2024/month=12/file.parquet": {"year": "2024", "month": "12"},
    "file.parquet": {},
    "/data/plain/file.parquet": {},
    "day=2025-01-01/f.parquet": {"day": "2025-01-01"},
    "s3://bucket/t/a=1/b=2/c=3/f.parquet": {"a": "1", "b": "2", "c": "3"},
    "d/p=a%2Fb/f.parquet": {"p": "a/b"},
    "d/p=x=y/f.parquet": {"p": "x=y"},
    "d/p=/f.parquet": {"p": ""},
    "d/p=__HIVE_DEFAULT_PARTITION__/f.parquet": {"p": None},
    "d\\year=2024\\f.parquet": {"year": "2024"},
    "d/p=%C3%BC/f.parquet": {"p": "ü"},
    "d/p=100%25/f.parquet": {"p": "100%"},
    "d/a%20b=1/f.parquet": {"a b": "1"},
    "d/p=1/name=odd.parquet": {"p": "1"},
}


@pytest.mark.parametrize("path", PATHS)
def test_hive_partition_parsing_with_various_path_formats(path):
    assert parse_hive_partition_path(path) == PATHS[path]


def test_hive_partition_parsing_restricted_to_partition_columns():
    path = "/data/v=1/year=2024/month=12/file.parquet"
    assert parse_hive_partition_path(path, ["year", "month"]) == {"year": "2024", "month": "12"}


def test_list_dataset_files_is_sorted_recursive_and_skips_what_is_not_data(tmp_path):
    data = ["b.parquet", "a/c.parquet", "p=1/d.parquet"]
    path = lake.write(tmp_path / "d", {name: lake.table([1]) for name in data})
    debris = [
        "_x.parquet",
        ".y.parquet",
        "_tmp/z.parquet",
        ".inlay.txn/q.parquet",
        "n.txt",
        ".staging_1/s.parquet",
    ]
    for name in debris:
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"")
    (tmp_path / "d/broken.parquet").write_bytes(b"listing opens no file")
    assert list_dataset_files(path) == sorted(f"{path}/{name}" for name in [*data, "broken.parquet"])
    assert list_dataset_files(str(tmp_path / "missing")) == []


# Testing requirement: metadata extraction with and without statistics


def test_metadata_extraction_with_statistics(tmp_path):
    files = {"day=2025-01-01/a.parquet": lake.table([3, None, 9], ["b", "a", None])}
    path, [found] = analysed(tmp_path / "d", files, row_group_size=2)
    assert (found.path, found.row_group_count, found.total_rows) == (f"{path}/day=2025-01-01/a.parquet", 2, 3)
    assert found.partition_values == {"day": "2025-01-01"}
    stats = {name: (s["min"], s["max"], s["null_count"]) for name, s in found.column_stats.items()}
    assert stats == {"id": (3, 9, 1), "v": ("a", "b", 1)}


def test_metadata_extraction_without_statistics(tmp_path):
    _, [found] = analysed(tmp_path / "d", {"a.parquet": lake.table([3, 9])}, write_statistics=False)
    stats = found.column_stats.get("id") or {}
    assert (stats.get("min"), stats.get("max")) == (None, None)
    assert ConservativeMembershipChecker().file_might_contain_keys(found, ["id"], [-1])


def test_metadata_extraction_with_statistics_in_some_row_groups_only(tmp_path):
    """A row group without bounds (all NULL) must not get the bounds of the others."""
    table = pa.table({"id": pa.array([1.0, 2.0, float("nan"), float("nan")])})
    _, [found] = analysed(tmp_path / "d", {"a.parquet": table}, row_group_size=2)
    assert ConservativeMembershipChecker().file_might_contain_keys(found, ["id"], [float("nan")])


def test_missing_metadata_is_a_conservative_fallback(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    (tmp_path / "d/b.parquet").write_bytes(b"no footer")
    found = ParquetMetadataAnalyzer().analyze_dataset_files(path)
    assert [Path(m.path).name for m in found] == ["a.parquet", "b.parquet"]
    assert ConservativeMembershipChecker().file_might_contain_keys(found[1], ["id"], [77])


# Testing requirement: partition pruning with single and multi-column partitions


def test_partition_pruning_with_a_single_column():
    files = [meta(f"{day}.parquet", {"day": day}) for day in ("2025-01-01", "2025-01-02")]
    found = PartitionPruner().identify_candidate_files(files, ["id", "day"], [(1, "2025-01-02")], DAYS)
    assert found == ["2025-01-02.parquet"]


def test_partition_pruning_with_several_columns():
    files = [meta(f"{y}{m}.parquet", {"y": y, "m": m}) for y in ("2024", "2025") for m in ("1", "02")]
    schema = pa.schema([("y", pa.int32()), ("m", pa.int32())])
    keys = [(2024, 2, "a"), (2025, 1, "b")]
    found = PartitionPruner().identify_candidate_files(files, ["y", "m", "id"], keys, schema)
    assert found == ["202402.parquet", "20251.parquet"]


def test_partition_pruning_needs_to_know_the_partition():
    """Without a partition schema and with other key columns, every file is a candidate."""
    files = [meta(f"{day}.parquet", {"day": day}) for day in ("2025-01-01", "2025-01-02")]
    pruner = PartitionPruner()
    everything = [m.path for m in files]
    assert pruner.identify_candidate_files(files, ["id"], [1]) == everything
    assert pruner.identify_candidate_files(files, ["id"], [1], DAYS) == everything


def test_partition_pruning_treats_null_as_a_value_of_its_own():
    files = [meta("null.parquet", {"day": None}), meta("empty.parquet", {"day": ""})]
    found = PartitionPruner().identify_candidate_files(files, ["id", "day"], [(1, "")], DAYS)
    assert found == ["empty.parquet"]


# Testing requirement: conservative membership checking edge cases

MEMBERSHIP = {
    "inside": ({"id": (1, 9, 0)}, ["id"], [5], True),
    "on the lower bound": ({"id": (1, 9, 0)}, ["id"], [1], True),
    "on the upper bound": ({"id": (1, 9, 0)}, ["id"], [9], True),
    "outside": ({"id": (1, 9, 0)}, ["id"], [0, 10], False),
    "one of many": ({"id": (1, 9, 0)}, ["id"], [100, 9, 200], True),
    "no statistics": ({}, ["id"], [5], True),
    "no minimum": ({"id": (None, 9, 0)}, ["id"], [5], True),
    "no bounds": ({"id": (None, None, 0)}, ["id"], [500], True),
    "no keys": ({"id": (1, 9, 0)}, ["id"], [], False),
    "composite, both inside": ({"a": (1, 9, 0), "b": ("k", "m", 0)}, ["a", "b"], [(5, "l")], True),
    "composite, one outside": ({"a": (1, 9, 0), "b": ("k", "m", 0)}, ["a", "b"], [(5, "z")], False),
    "composite, one unknown": ({"a": (1, 9, 0)}, ["a", "b"], [(5, "z")], True),
    "composite, outside although one is unknown": ({"a": (1, 9, 0)}, ["a", "b"], [(50, "z")], False),
    "types that cannot be compared": ({"id": (1, 9, 0)}, ["id"], ["text"], True),
}


@pytest.mark.parametrize("case", MEMBERSHIP)
def test_conservative_membership_checking_edge_cases(case):
    stats, keys, source, expected = MEMBERSHIP[case]
    assert ConservativeMembershipChecker().file_might_contain_keys(meta("f", **stats), keys, source) is expected


# Affected file confirmation


def test_confirm_affected_files_scans_the_candidates(tmp_path):
    files = {f"{i}.parquet": lake.table(ids) for i, ids in enumerate([[1, 9], [2, 8], [3, None]])}
    path = lake.write(tmp_path / "d", files)
    candidates = list_dataset_files(path)
    assert confirm_affected_files(candidates, ["id"], [8, 3, 77]) == candidates[1:]
    assert confirm_affected_files(candidates[:1], ["id"], [8, 3]) == []
    assert confirm_affected_files(candidates, ["id", "v"], [(2, "v2"), (9, "v1")]) == candidates[1:2]


# Planning


def test_plan_incremental_rewrite(tmp_path):
    files = {f"{i}.parquet": lake.table(range(i * 10, i * 10 + 10)) for i in range(4)}
    path = lake.write(tmp_path / "d", files)
    plan = plan_incremental_rewrite(path, [5, 31, 1000], ["id"])
    assert isinstance(plan, IncrementalRewritePlan)
    assert plan.affected_files == [f"{path}/0.parquet", f"{path}/3.parquet"]
    assert plan.unaffected_files == [f"{path}/1.parquet", f"{path}/2.parquet"]
    assert plan.affected_rows == 20


def test_plan_merge_is_an_incremental_rewrite_plan(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    assert isinstance(inlay.plan_merge(lake.table([1], ["x"]), path, "update", ["id"]), IncrementalRewritePlan)


# Testing requirement: NULL key detection


def test_null_key_detection():
    table = pa.table({"a": pa.array([1, None, None]), "b": ["x", None, "y"], "c": [1, 2, 3]})
    with pytest.raises(ValueError, match=r"(?i)null") as caught:
        validate_no_null_keys(table, ["a"])
    assert "2" in str(caught.value)
    with pytest.raises(ValueError, match=r"(?i)null"):
        validate_no_null_keys(table, ["c", "b"])
    assert validate_no_null_keys(table, ["c"]) is None
    assert validate_no_null_keys(table.slice(0, 0), ["a"]) is None


# Testing requirement: partition column immutability validation


def test_partition_column_immutability_validation():
    target = pa.table({"id": [1, 2], "day": ["a", "b"]})
    check = validate_partition_column_immutability
    assert check(pa.table({"id": [1, 3], "day": ["a", "z"]}), target, ["id"], ["day"]) is None
    with pytest.raises(ValueError, match=r"(?i)partition columns? cannot change"):
        check(pa.table({"id": [1, 2], "day": ["a", "a"]}), target, ["id"], ["day"])
    with pytest.raises(ValueError, match=r"(?i)partition"):
        check(pa.table({"id": [1], "day": pa.array([None], pa.string())}), target, ["id"], ["day"])
    nulls = pa.table({"id": [5], "day": pa.array([None], pa.string())})
    assert check(nulls, nulls, ["id"], ["day"]) is None
    assert check(pa.table({"id": [1], "day": ["z"]}), target, ["id", "day"], ["day"]) is None


# Testing requirement: staging and atomic replace operations


def test_atomic_replace_reads_sources_from_the_filesystem_argument(memory):
    inlay.write_dataset(lake.table([1]), "/replace/d", filesystem=memory)
    [target] = [name for name in memory.find("/replace/d") if name.endswith(".parquet")]
    with memory.open("/replace/staged.parquet", "wb") as file:
        pq.write_table(lake.table([7]), file)
    with IncrementalFileManager() as manager:
        manager.atomic_replace_files(["/replace/staged.parquet"], [target], filesystem=memory)
    assert inlay.read_parquet("/replace/d", filesystem=memory)["id"].to_pylist() == [7]


def test_staging_and_atomic_replace_operations(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    manager = IncrementalFileManager()
    staging = Path(manager.create_staging_directory(path))
    assert staging.is_dir()
    assert staging.name.startswith(".staging_")
    assert uuid.UUID(staging.name.removeprefix(".staging_"))
    assert (tmp_path / "d") not in staging.parents, "staged files would be seen as data"
    sources, targets = [], [f"{path}/a.parquet", f"{path}/b.parquet"]
    for i in (0, 1):
        sources.append(str(staging / f"{i}.stage"))
        pq.write_table(lake.table([10 + i]), sources[-1])
    manager.atomic_replace_files(sources, targets)
    assert lake.id_values(lake.all_rows(path)) == [(10, "v10"), (11, "v11")]
    manager.cleanup_staging_files()
    assert not staging.exists()
    assert lake.names(path) == ["a.parquet", "b.parquet"]


# Testing requirement: cleanup on success and failure paths


def test_cleanup_on_success(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    inlay.merge(lake.table([1, 2], ["x", "y"]), path, "upsert", ["id"], engine=engine)
    assert [p for p in tmp_path.rglob("*") if ".staging_" in p.name or p.suffix == ".stage"] == []


def test_cleanup_on_failure(tmp_path):
    """A replace whose source is missing changes nothing, and cleaning up afterwards is safe."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    before = lake.photograph(path)
    manager = IncrementalFileManager()
    staging = Path(manager.create_staging_directory(path))
    pq.write_table(lake.table([10]), staging / "0.stage")
    sources = [str(staging / "0.stage"), str(staging / "missing.stage")]
    with pytest.raises((OSError, inlay.InlayError)):
        manager.atomic_replace_files(sources, [f"{path}/a.parquet", f"{path}/b.parquet"])
    assert lake.photograph(path) == before
    manager.cleanup_staging_files()
    manager.cleanup_staging_files()
    assert not staging.exists()


# Error handling: filesystem errors propagate to the caller with context


def test_filesystem_errors_propagate_with_context(tmp_path, engine):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(inlay.InlayError, match="file"):
        inlay.merge(lake.table([1]), str(tmp_path / "file" / "d"), "upsert", ["id"], engine=engine)
