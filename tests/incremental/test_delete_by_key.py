"""Strategy delete: the dataset rows whose key is in the source are deleted."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from tests import lake


def test_a_source_of_keys_is_enough_and_other_columns_are_ignored(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 3]), "b.parquet": lake.table([4])})
    result = inlay.merge({"id": [2, 9]}, path, "delete", "id", engine=engine)
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (3, "v3"), (4, "v4")]
    assert (result.source_count, result.deleted, result.updated, result.inserted) == (2, 1, 0, 0)
    assert (result.target_count_before, result.target_count_after) == (4, 3)
    assert result.preserved_files == [f"{path}/b.parquet"]
    strange = pa.table({"new": [1.5], "v": [7], "id": [3]})
    assert inlay.merge(strange, path, "delete", "id", engine=engine).deleted == 1
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (4, "v4")]


def test_repeated_source_keys_are_one_and_repeated_dataset_keys_all_go(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 1]), "b.parquet": lake.table([1, 3])})
    result = inlay.merge({"id": [1, 1, 1]}, path, "delete", "id", engine=engine)
    assert (result.source_count, result.deleted) == (3, 3)
    assert lake.id_values(lake.all_rows(path)) == [(2, "v2"), (3, "v3")]


def test_row_groups_without_a_deleted_row_are_copied_and_empty_ones_are_dropped(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(9))}, row_group_size=3)
    before = lake.chunk_bytes(f"{path}/a.parquet", 0, 1)
    result = inlay.merge({"id": [3, 4, 5, 7]}, path, "delete", "id", engine=engine)
    footer = lake.footer(f"{path}/a.parquet")
    assert [footer.row_group(group).num_rows for group in range(footer.num_row_groups)] == [3, 2]
    assert lake.chunk_bytes(f"{path}/a.parquet", 0, 1) == before
    assert [row["id"] for row in lake.all_rows(path)] == [0, 1, 2, 6, 8]
    assert result.bytes_copied >= len(before)


def test_a_file_without_rows_is_removed_and_the_last_one_keeps_the_schema(tmp_path, engine):
    table = pa.table({"id": [1], "v": ["x"]}, pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", "string")]))
    path = lake.write(tmp_path / "d", {"a.parquet": table, "b.parquet": lake.table([2, 3])})
    plan = inlay.plan_merge({"id": [2, 3]}, path, "delete", "id", engine=engine)
    assert [(file.operation, file.matched_rows) for file in plan.files] == [("preserved", 0), ("removed", 2)]
    assert plan.files[1].reason == "all 2 rows are deleted (2 matching rows in 1 of 1 row groups)"
    result = inlay.merge({"id": [2, 3]}, path, "delete", "id", engine=engine)
    assert result.removed_files == [f"{path}/b.parquet"]
    assert inlay.merge({"id": [1]}, path, "delete", "id", engine=engine).deleted == 1
    [left] = lake.names(path)
    assert lake.footer(f"{path}/{left}").num_rows == 0
    assert inlay.read_parquet(path).schema.names == ["id", "v"]


def test_a_missing_dataset_stays_missing(tmp_path, engine):
    result = inlay.merge({"id": [1]}, str(tmp_path / "d"), "delete", "id", engine=engine)
    assert (result.deleted, result.target_count_after) == (0, 0)
    assert not (tmp_path / "d").exists() or not lake.names(tmp_path / "d")


@pytest.mark.parametrize("key", [["id"], ["id", "p"], ["p", "id"]])
def test_partitions_need_no_column_in_the_source_unless_they_are_keys(tmp_path, engine, key):
    files = {"p=x/a.parquet": lake.table([1, 2]), "p=y/b.parquet": lake.table([2, 3])}
    path = lake.write(tmp_path / "d", files)
    source = pa.table({"id": [2], "p": ["y"]}).select(key)
    result = inlay.merge(source, path, "delete", key, engine=engine)
    assert result.deleted == (2 if key == ["id"] else 1)
    expected = {"p=x/a.parquet": [1] if key == ["id"] else [1, 2], "p=y/b.parquet": [3]}
    assert {name: [row["id"] for row in rows] for name, rows in lake.contents(path).items()} == expected


def test_one_of_two_partition_columns_can_be_a_key(tmp_path, engine):
    files = {f"y=1/m={m}/a.parquet": lake.table([1, 2]) for m in (1, 2)} | {"y=2/m=1/a.parquet": lake.table([1, 2])}
    path = lake.write(tmp_path / "d", files)
    plan = inlay.plan_merge({"id": [1], "y": [1]}, path, "delete", ["id", "y"], engine=engine)
    assert plan.deleted == 2
    assert [file.reason for file in plan.files][2].endswith("(partition not in the source)")


def test_a_file_that_only_loses_rows_keeps_its_columns(tmp_path, engine):
    """A merge that replaces rows would rewrite the file with the columns of the other files."""
    files = {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3], w=pa.array([1.5]))}
    path = lake.write(tmp_path / "d", files)
    result = inlay.merge({"id": [1]}, path, "delete", "id", engine=engine)
    assert result.deleted == 1
    assert lake.footer(f"{path}/a.parquet").schema.names == ["id", "v"]


def test_columns_of_every_kind_lose_rows(tmp_path, engine):
    rows = 7
    table = pa.table({
        "id": range(rows),
        "text": pa.array([f"t{i % 3}" for i in range(rows)]).dictionary_encode(),
        "items": [[i] * i for i in range(rows)],
        "pair": [{"a": i, "b": None} for i in range(rows)],
        "view": pa.array([f"view {i}" for i in range(rows)], pa.string_view()),
        "nothing": pa.nulls(rows),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=4)
    rest = [lake.rows_of(table)[row] for row in (0, 2, 6)]
    inlay.merge({"id": [1, 3, 4, 5]}, str(tmp_path), "delete", "id", engine=engine)
    assert lake.same_rows(lake.all_rows(tmp_path), rest)


def test_keys_of_a_text_file_get_the_types_of_the_dataset(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    (tmp_path / "gone.csv").write_text("id,v\n2,\n")
    (tmp_path / "gone.jsonl").write_text('{"id": 1}\n')
    assert inlay.merge(str(tmp_path / "gone.csv"), path, "delete", "id", engine=engine).deleted == 1
    assert inlay.merge(str(tmp_path / "gone.jsonl"), path, "delete", "id", engine=engine).deleted == 1


def test_bad_sources_are_refused_by_name(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    with pytest.raises(inlay.errors.NullKeyError, match="id"):
        inlay.merge({"id": pa.array([None], pa.int64())}, path, "delete", "id")
    with pytest.raises(inlay.errors.SchemaMismatchError, match="'id' does not exist in the source"):
        inlay.merge({"v": ["v1"]}, path, "delete", "id")
    with pytest.raises(inlay.errors.SchemaMismatchError, match="'new' does not exist in the dataset"):
        inlay.merge({"new": [1]}, path, "delete", "new")
    with pytest.raises(inlay.errors.InvalidArgumentError, match="dedup_order_by"):
        inlay.merge({"id": [1]}, path, "delete", "id", dedup_order_by="id")
    assert lake.photograph(path) == before
