"""`operation_column`: every source row says whether it inserts, updates or deletes."""

import pyarrow as pa
import pytest

import inlay
from inlay.errors import InvalidArgumentError, SchemaMismatchError, UnknownOperationError
from tests import lake


@pytest.mark.parametrize(
    "words", [("insert", "update", "delete"), ("I", "U", "D"), ("c", "u", "d"), ("R", "u", "DELETE")]
)
def test_the_rows_of_a_feed_are_upserted_and_deleted(tmp_path, engine, words):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    insert, update, delete = words
    feed = lake.table([9, 1, 2, 8], ["new", "one", None, None], op=[insert, update, delete, delete])
    plan = inlay.plan_merge(feed, path, "upsert", "id", operation_column="op", engine=engine)
    assert (plan.inserted, plan.updated, plan.deleted) == (1, 1, 1)
    assert plan.files[0].reason == "2 matching rows in 1 of 1 row groups, 1 to delete"
    result = inlay.merge(feed, path, "upsert", "id", operation_column="op", engine=engine)
    assert (result.source_count, result.inserted, result.updated, result.deleted) == (4, 1, 1, 1)
    assert sorted(lake.id_values(lake.all_rows(path))) == [(1, "one"), (3, "v3"), (9, "new")]
    assert inlay.read_parquet(path).schema.names == ["id", "v"]


def test_feeds_may_insert_keys_that_exist_and_update_keys_that_do_not(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    inlay.merge(lake.table([1, 2], ["x", "y"], op=["c", "u"]), path, "upsert", "id", operation_column="op")
    assert lake.id_values(lake.all_rows(path)) == [(1, "x"), (2, "y")]


def test_deduplicate_takes_the_last_row_of_a_key_first(tmp_path, engine):
    """A key whose last operation deletes is deleted, and one that comes back stays."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 3])})
    feed = lake.table([1, 1, 2, 2, 4, 4], list("abcdef"), op=["u", "d", "d", "c", "c", "d"])
    result = inlay.merge(feed, path, "deduplicate", "id", operation_column="op", engine=engine)
    assert (result.inserted, result.updated, result.deleted) == (0, 1, 1)
    assert lake.id_values(lake.all_rows(path)) == [(2, "d"), (3, "v3")]


def test_rows_that_delete_need_only_their_key(tmp_path, engine):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    table = pa.table({"id": [1, 2], "v": ["x", "y"]}, schema)
    path = lake.write(tmp_path / "d", {"p=a/a.parquet": table, "p=b/b.parquet": table.slice(0, 0)})
    rows = [{"id": 1, "op": "d"}, {"id": 3, "v": "new", "p": "b", "op": "c"}]
    assert inlay.merge(rows, path, "upsert", "id", operation_column="op", engine=engine).deleted == 1
    assert inlay.merge([{"id": 2, "op": "d"}], path, "upsert", "id", operation_column="op", engine=engine).deleted == 1
    assert [row["id"] for row in lake.all_rows(path)] == [3]


@pytest.mark.parametrize(
    "source", [{"id": [1, 2], "op": ["d", "u"]}, {"id": [1, 2], "v": ["a", None], "op": ["d", "c"]}]
)
def test_rows_that_write_need_every_column(tmp_path, engine, source):
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "v": ["x"]}, schema)})
    before = lake.photograph(path)
    with pytest.raises(SchemaMismatchError, match="'v'"):
        inlay.merge(source, path, "upsert", "id", operation_column="op", engine=engine)
    assert lake.photograph(path) == before


@pytest.mark.parametrize(
    ("operations", "message"),
    [
        (
            ["u", "gone", "d"],
            "Column 'op' is 'gone' in the source row with id=8, which is no insert, update or delete.",
        ),
        (["u", None, "d"], "Column 'op' is NULL in the source row with id=8"),
        (["u", "", "d"], "Column 'op' is '' in the source row with id=8"),
        ([1, 2, 3], "Column 'op' is 1 in the source row with id=7"),
    ],
)
def test_other_values_are_refused_with_row_and_value(tmp_path, engine, operations, message):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    feed = lake.table([7, 8, 9], op=operations)
    before = lake.photograph(path)
    for function in (inlay.plan_merge, inlay.merge):
        with pytest.raises(UnknownOperationError) as caught:
            function(feed, path, "upsert", "id", operation_column="op", engine=engine)
        assert message in caught.value.message
    assert lake.photograph(path) == before


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_operations_of_every_text_type(tmp_path, engine, kind):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    feed = lake.table([1, 3], op=pa.array(["D", "I"], pa.string()).cast(kind))
    result = inlay.merge(feed, path, "upsert", "id", operation_column="op", engine=engine)
    assert (result.deleted, result.inserted) == (1, 1)


def test_a_new_dataset_does_not_store_the_operations(tmp_path, engine):
    feed = lake.table([1, 2], op=["c", "d"])
    result = inlay.merge(feed, str(tmp_path / "d"), "upsert", "id", operation_column="op", engine=engine)
    assert (result.inserted, result.deleted) == (1, 0)
    assert inlay.read_parquet(str(tmp_path / "d")).to_pylist() == [{"id": 1, "v": "v1"}]
    evolved = inlay.merge(
        lake.table([3], op=["c"], w=[1]), str(tmp_path / "d"), "upsert", "id", operation_column="op", engine=engine,
        schema_mode="evolve",
    )  # fmt: skip
    assert evolved.inserted == 1
    assert inlay.read_parquet(str(tmp_path / "d")).schema.names == ["id", "v", "w"]


def test_a_deletion_is_no_move_to_another_partition(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"p=a/a.parquet": lake.table([1, 2])})
    feed = lake.table([1], p=["b"], op=["d"])
    assert inlay.merge(feed, path, "upsert", "id", operation_column="op", engine=engine).deleted == 1
    with pytest.raises(inlay.errors.PartitionMoveError):
        inlay.merge(lake.table([2], p=["b"], op=["u"]), path, "upsert", "id", operation_column="op", engine=engine)


@pytest.mark.parametrize("name", ["feed.csv", "feed.jsonl"])
def test_a_feed_can_be_a_text_file(tmp_path, name):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    csv, lines = "op,id,v\nd,1,\nc,3,new\n", '{"op": "d", "id": 1}\n{"op": "c", "id": 3, "v": "new"}\n'
    (tmp_path / name).write_text(csv if name.endswith("csv") else lines)
    inlay.merge(str(tmp_path / name), path, "upsert", "id", operation_column="op")
    assert lake.id_values(lake.all_rows(path)) == [(2, "v2"), (3, "new")]


def test_the_option_is_refused_where_it_has_no_meaning(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1], op=["u"])})
    feed = lake.table([1], op=["u"])
    for strategy in ("insert", "update", "full_merge", "delete"):
        with pytest.raises(InvalidArgumentError, match='operation_column needs strategy="upsert" or "deduplicate"'):
            inlay.merge(feed, path, strategy, "id", operation_column="op")
    with pytest.raises(InvalidArgumentError, match="cannot also be a key"):
        inlay.merge(feed, path, "upsert", ["id", "op"], operation_column="op")
    with pytest.raises(SchemaMismatchError, match="The operation column 'op' exists in the dataset"):
        inlay.merge(feed, path, "upsert", "id", operation_column="op")
    with pytest.raises(SchemaMismatchError, match="The operation column 'what' does not exist in the source"):
        inlay.merge(feed, path, "upsert", "id", operation_column="what")


def test_a_feed_on_disk_has_the_same_effect_as_one_in_memory(tmp_path, monkeypatch):
    ids = [n * 7919 % 1000 for n in range(3000)]
    feed = lake.table(ids, op=["d" if n % 4 == 3 else "u" for n in range(3000)], at=list(range(3000)))
    paths = [lake.write(tmp_path / name, {"a.parquet": lake.table(range(600), at=[50] * 600)}) for name in "ab"]
    options = {"operation_column": "op", "newer_by": "at"}
    in_memory = inlay.merge(feed, paths[0], "deduplicate", "id", **options)
    monkeypatch.setattr("inlay.engines.source.SPILL_BYTES", 1)
    monkeypatch.setattr("inlay.engines.source._BUCKET_BYTES", 5000)
    on_disk = inlay.merge(
        pa.RecordBatchReader.from_batches(feed.schema, feed.to_batches(100)), paths[1], "deduplicate", "id", **options
    )
    for name in ("source_count", "inserted", "updated", "deleted", "stale", "target_count_after"):
        assert getattr(in_memory, name) == getattr(on_disk, name)
    assert in_memory.deleted > 0 < in_memory.inserted
    left, right = (inlay.read_parquet(path).sort_by("id") for path in paths)
    assert left.equals(right)
