"""Document 002 (backend-neutral merge layer): its API, semantics and edge cases, one test each."""

import typing

import pyarrow as pa
import pytest

import inlay
from inlay.incremental import (
    MergeStats,
    MergeStrategy,
    TableLike,
    compute_merge_stats,
    normalize_keys,
    validate_keys_and_schema,
)
from tests import lake

STRATEGIES = ["upsert", "insert", "update", "full_merge", "deduplicate"]
TARGET = pa.schema([("id", pa.int64()), ("v", pa.string())])


class Descriptor:
    """A table descriptor with a schema and a row count, but no data."""

    def __init__(self, schema, num_rows=1):
        self.schema = schema
        self.num_rows = num_rows


# Normalizes inputs


def test_key_columns_are_normalized_to_a_list_of_strings():
    assert normalize_keys("id") == ["id"]
    assert normalize_keys(["id", "day"]) == ["id", "day"]
    assert normalize_keys(("id",)) == ["id"]


@pytest.mark.parametrize("keys", [[], "", [""], [1], None])
def test_missing_key_columns_are_rejected(keys):
    with pytest.raises(ValueError, match=r"(?i)key"):
        normalize_keys(keys)


def test_a_string_and_a_list_of_one_merge_alike(tmp_path, engine):
    for name, keys in (("a", "id"), ("b", ["id"])):
        path = lake.write(tmp_path / name, {"a.parquet": lake.table([1])})
        assert inlay.merge(lake.table([1], ["x"]), path, "upsert", keys, engine=engine).updated == 1


# Validates inputs


def test_validation_accepts_table_descriptors_without_materialization():
    assert validate_keys_and_schema(Descriptor(TARGET), Descriptor(TARGET), ["id"]) is None
    assert validate_keys_and_schema(Descriptor(TARGET), None, ["id"]) is None
    assert {"schema", "num_rows"} <= set(dir(TableLike))


def test_key_columns_must_exist_in_the_source():
    with pytest.raises(ValueError, match="nope"):
        validate_keys_and_schema(lake.table([1]), None, ["nope"])


def test_key_columns_must_exist_in_the_target():
    source = lake.table([1], k=pa.array([1]))
    with pytest.raises(ValueError, match=r"\bk\b"):
        validate_keys_and_schema(source, Descriptor(TARGET), ["k"])


def test_null_keys_are_rejected():
    with pytest.raises(ValueError, match=r"(?i)null"):
        validate_keys_and_schema(lake.table([None, 1]), None, ["id"])


def test_schema_incompatibility_raises_and_promotion_that_loses_nothing_does_not():
    target = Descriptor(TARGET)
    assert validate_keys_and_schema(pa.table({"id": pa.array([1], pa.int8()), "v": ["a"]}), target, ["id"]) is None
    with pytest.raises(ValueError, match=r"\bv\b"):
        validate_keys_and_schema(pa.table({"id": [1], "v": [[1]]}), target, ["id"])


# Defines canonical strategy semantics


def test_the_strategies_are_the_five():
    """Strategy delete came later (docs/decisions/requirements.md)."""
    assert set(typing.get_args(MergeStrategy)) - {"delete"} == set(STRATEGIES)


EXPECTED = {  # target 1, 2, 3; source 2 (new value), 9
    "upsert": [(1, "v1"), (2, "x"), (3, "v3"), (9, "y")],
    "insert": [(1, "v1"), (2, "v2"), (3, "v3"), (9, "y")],
    "update": [(1, "v1"), (2, "x"), (3, "v3")],
    "full_merge": [(2, "x"), (9, "y")],
    "deduplicate": [(1, "v1"), (2, "x"), (3, "v3"), (9, "y")],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_canonical_strategy_semantics(tmp_path, engine, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    inlay.merge(lake.table([2, 9], ["x", "y"]), path, strategy, ["id"], engine=engine)
    assert sorted(lake.id_values(lake.all_rows(path))) == EXPECTED[strategy]


# Computes statistics


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compute_merge_stats(strategy):
    stats = compute_merge_stats(
        strategy=strategy, target_before=10, target_after=12, inserted_rows=3, updated_rows=4, deleted_rows=1
    )
    assert isinstance(stats, MergeStats)
    assert isinstance(stats, dict)
    assert dict(stats) == {"inserted": 3, "updated": 4, "deleted": 1, "total": 12}
    assert (stats.inserted, stats.updated, stats.deleted, stats.total) == (3, 4, 1, 12)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_statistics_come_from_the_rows_written(tmp_path, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 3])})
    source = lake.table([2, 9], ["x", "y"])
    stats = inlay.merge_parquet_dataset_pyarrow(source, path, key_columns=["id"], strategy=strategy)
    rows = lake.all_rows(path)
    assert stats["total"] == len(rows) == len(EXPECTED[strategy])
    assert stats["inserted"] == sum(row["id"] == 9 for row in rows)
    assert stats["updated"] == sum(row["v"] == "x" for row in rows)
    assert stats["deleted"] == (2 if strategy == "full_merge" else 0)


# Preserves the existing public APIs


def test_merge_parquet_dataset_is_a_method_and_a_function(tmp_path):
    for i, call in enumerate((inlay.merge_parquet_dataset_pyarrow, inlay.PyArrowDatasetIO().merge_parquet_dataset)):
        path = lake.write(tmp_path / str(i), {"a.parquet": lake.table([1])})
        stats = call(lake.table([1, 2], ["x", "y"]), path, key_columns="id", strategy="upsert")
        assert isinstance(stats, MergeStats)
        assert dict(stats) == {"inserted": 1, "updated": 1, "deleted": 0, "total": 2}


# Edge cases


@pytest.mark.parametrize("strategy", ["upsert", "insert"])
def test_empty_target_upsert_and_insert_are_an_initial_load(tmp_path, engine, strategy):
    result = inlay.merge(lake.table([1, 2]), str(tmp_path / "d"), strategy, ["id"], engine=engine)
    assert (result.inserted, result.updated, result.deleted, result.target_count_after) == (2, 0, 0, 2)


def test_empty_target_update_is_a_no_op(tmp_path, engine):
    result = inlay.merge(lake.table([1, 2]), str(tmp_path / "d"), "update", ["id"], engine=engine)
    assert (result.inserted, result.updated, result.deleted, result.target_count_after) == (0, 0, 0, 0)
    assert not (tmp_path / "d").exists()


def test_full_merge_with_empty_source_deletes_everything(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    result = inlay.merge(lake.table([]), path, "full_merge", ["id"], engine=engine)
    assert (result.deleted, result.inserted, result.updated, result.target_count_after) == (3, 0, 0, 0)
    assert lake.all_rows(path) == []


def test_schema_incompatibility_is_the_same_error_in_plan_and_merge(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    messages = []
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(ValueError, match=r"\bv\b") as caught:
            call(pa.table({"id": [1], "v": [[1]]}), path, "upsert", ["id"], engine=engine)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
