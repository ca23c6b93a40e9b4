"""The partition rule of the design: only the source's partitions are rewritten, and no key moves."""

import datetime as dt
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import inlay
from inlay.errors import PartitionMoveError, SchemaMismatchError
from inlay.incremental.target import Partitions
from tests import lake

MOVING = ["update", "upsert", "full_merge", "deduplicate"]
DAY1, DAY2, DAY3 = "2025-01-01", "2025-01-02", "2025-01-03"


def daily(root, **days):
    """A dataset partitioned by day: daily(root, d1=[1, 2]) puts ids 1 and 2 into 2025-01-01."""
    files = {f"day=2025-01-0{name[1]}/a.parquet": lake.table(ids) for name, ids in days.items()}
    return lake.write(root, files)


def source_of(ids, days, values=None):
    return lake.table(ids, values, day=pa.array(days, pa.string()))


def relative(path, files):
    return sorted(str(Path(file).relative_to(path)) for file in files)


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "deduplicate"])
def test_only_files_of_the_source_partitions_are_candidates(tmp_path, engine, strategy):
    """Other partitions are not rewritten even if their key ranges overlap the source's."""
    path = daily(tmp_path / "d", d1=[1, 5, 9], d2=[2, 6, 8], d3=[3, 7])
    source = source_of([5, 6000], [DAY1, DAY1], ["x", "y"])
    plan = inlay.plan_merge(source, path, strategy, ["id"], engine=engine)
    rewritten = [] if strategy == "insert" else ["day=2025-01-01/a.parquet"]
    assert relative(path, plan.affected_files) == rewritten
    others = {name: shot for name, shot in lake.photograph(path).items() if "2025-01-01" not in name}
    result = inlay.merge(source, path, strategy, ["id"], engine=engine)
    assert relative(path, result.rewritten_files) == rewritten
    after = lake.photograph(path)
    assert {name: after[name] for name in others} == others


@pytest.mark.parametrize("strategy", MOVING)
def test_a_key_of_another_partition_is_rejected(tmp_path, engine, strategy):
    """Id 6006 exists on day 2; pruning alone would silently write it a second time on day 1."""
    path = daily(tmp_path / "d", d1=[1, 5, 9], d2=[2, 6006, 8])
    before = lake.photograph(path)
    source = source_of([5, 6006], [DAY1, DAY1], ["x", "y"])
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(ValueError, match=r"(?i)partition") as caught:
            call(source, path, strategy, ["id"], partition_by=["day"], engine=engine)
        assert isinstance(caught.value, inlay.InlayError)
        assert "6006" in str(caught.value)
    assert lake.photograph(path) == before


@pytest.mark.parametrize("strategy", MOVING)
def test_a_move_to_a_new_partition_is_rejected(tmp_path, engine, strategy):
    path = daily(tmp_path / "d", d1=[1])
    with pytest.raises(ValueError, match=r"(?i)partition"):
        inlay.merge(source_of([1], [DAY3]), path, strategy, ["id"], engine=engine)
    assert lake.names(path) == ["day=2025-01-01/a.parquet"]


def test_insert_skips_a_key_of_another_partition(tmp_path, engine):
    path = daily(tmp_path / "d", d1=[1], d2=[2])
    before = lake.photograph(path)
    result = inlay.merge(source_of([2], [DAY1], ["x"]), path, "insert", ["id"], engine=engine)
    assert (result.inserted, result.updated, result.target_count_after) == (0, 0, 2)
    assert lake.photograph(path) == before


def test_full_merge_deletes_in_every_partition(tmp_path, engine):
    path = daily(tmp_path / "d", d1=[1, 2], d2=[3, 4], d3=[5])
    result = inlay.merge(source_of([1, 3], [DAY1, DAY2]), path, "full_merge", ["id"], engine=engine)
    assert (result.deleted, result.updated, result.unchanged) == (3, 2, 2)
    assert relative(path, result.rewritten_files) == ["day=2025-01-01/a.parquet", "day=2025-01-02/a.parquet"]
    assert relative(path, result.removed_files) == ["day=2025-01-03/a.parquet"]


@pytest.mark.parametrize("strategy", MOVING)
def test_a_key_in_several_partitions_is_rejected(tmp_path, engine, strategy):
    path = daily(tmp_path / "d", d1=[1, 7], d2=[7], d3=[3])
    with pytest.raises(ValueError, match=r"(?i)partition") as caught:
        inlay.merge(source_of([7], [DAY1], ["x"]), path, strategy, ["id"], engine=engine)
    assert DAY1 in str(caught.value)
    assert DAY2 in str(caught.value)


@pytest.mark.parametrize("strategy", ["update", "upsert"])
def test_a_key_in_several_partitions_is_accepted_if_not_in_the_source(tmp_path, engine, strategy):
    path = daily(tmp_path / "d", d1=[1, 7], d2=[7])
    result = inlay.merge(source_of([1], [DAY1], ["x"]), path, strategy, ["id"], engine=engine)
    assert result.updated == 1


@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
def test_with_partition_columns_in_the_key_the_same_id_is_another_row(tmp_path, engine, strategy):
    path = daily(tmp_path / "d", d1=[1], d2=[1])
    source = source_of([1, 1], [DAY2, DAY3], ["x", "y"])
    result = inlay.merge(source, path, strategy, ["id", "day"], engine=engine)
    replaced = strategy != "insert"
    inserted = strategy != "update"
    assert (result.updated, result.inserted) == (int(replaced), int(inserted))
    assert result.deleted == (1 if strategy == "full_merge" else 0)
    rows = lake.contents(path)
    assert rows["day=2025-01-02/a.parquet"] == [{"id": 1, "v": "x" if replaced else "v1"}]
    assert any(name.startswith("day=2025-01-03/") for name in rows) == inserted


def test_with_the_partition_in_the_key_other_partitions_are_not_read(tmp_path, engine):
    """The pages of the other partition are damaged and its range contains the key, but nothing reads it."""
    path = daily(tmp_path / "d", d1=[1, 5, 9], d2=[2, 8])
    lake.spoil(tmp_path / "d/day=2025-01-02/a.parquet")
    source = source_of([5], [DAY1], ["x"])
    with pytest.raises(inlay.InlayError, match="2025-01-02"):
        inlay.merge(source, path, "update", ["id"], engine=engine)
    result = inlay.merge(source, path, "update", ["day", "id"], engine=engine)
    assert relative(path, result.rewritten_files) == ["day=2025-01-01/a.parquet"]


def test_other_partitions_are_not_read_if_statistics_exclude_the_key(tmp_path, engine):
    path = daily(tmp_path / "d", d1=[1, 5, 9], d2=[20, 80])
    lake.spoil(tmp_path / "d/day=2025-01-02/a.parquet")
    result = inlay.merge(source_of([5], [DAY1], ["x"]), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.target_count_after) == (1, 5)


def test_new_partitions_get_new_directories_and_files_without_the_column(tmp_path, engine):
    path = daily(tmp_path / "d", d1=[1])
    result = inlay.merge(source_of([2, 3], [DAY3, DAY1]), path, "upsert", ["id"], engine=engine)
    assert {name.split("/")[0] for name in relative(path, result.inserted_files)} == {
        "day=2025-01-03",
        "day=2025-01-01",
    }
    assert all(lake.read_file(file).column_names == ["id", "v"] for file in result.inserted_files)
    assert inlay.read_parquet(path).num_rows == 3


@pytest.mark.parametrize("name", ["partition_columns", "partition_by"])
def test_a_new_dataset_is_laid_out_by_its_partition_columns(tmp_path, engine, name):
    source = source_of([1, 2, 3], [DAY1, DAY2, DAY1])
    path = str(tmp_path / "d")
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine, **{name: ["day"]})
    rows = lake.contents(path)
    assert {Path(file).parent.name for file in rows} == {f"day={DAY1}", f"day={DAY2}"}
    assert sorted(row["id"] for row in lake.all_rows(path)) == [1, 2, 3]
    assert (result.inserted, len(result.inserted_files)) == (3, 2)


def test_two_levels_of_partitions(tmp_path, engine):
    where = {"year": pa.array([2024, 2024, 2025]), "region": pa.array(["eu", "us", "eu"])}
    path = str(tmp_path / "d")
    inlay.merge(lake.table([1, 2, 3], **where), path, "insert", ["id"], ["year", "region"], engine=engine)
    update = lake.table([2], ["x"], region=pa.array(["us"]), year=pa.array([2024]))
    result = inlay.merge(update, path, "upsert", ["id"], engine=engine)
    [touched] = relative(path, result.rewritten_files)
    assert touched.startswith("year=2024/region=us/")
    moved = lake.table([2], ["x"], region=pa.array(["eu"]), year=pa.array([2024]))
    with pytest.raises(ValueError, match=r"(?i)partition"):
        inlay.merge(moved, path, "upsert", ["id"], engine=engine)


def test_a_key_that_would_move_is_reported_with_both_partitions(tmp_path, engine):
    where = {"year": pa.array([2024, 2024, 2024]), "region": pa.array(["eu", "eu", "us"])}
    path, keys = str(tmp_path / "d"), ["id", "kind"]
    rows = lake.table([1, 2, 3], **where, kind=pa.array(["a", "b", "c"]))
    result = inlay.merge(rows, path, "insert", keys, ["year", "region"], engine=engine)
    [home] = [file for file in result.inserted_files if "region=eu" in file]
    there = {"year": pa.array([2024, 2025]), "region": pa.array(["us", "us"])}
    moved = lake.table([1, 2], **there, kind=pa.array(["a", "b"]))
    with pytest.raises(PartitionMoveError) as caught:
        inlay.merge(moved, path, "upsert", keys, engine=engine)
    assert caught.value.message == (
        f"Partition columns cannot change for existing keys: id=1, kind='a' is in {home!r} and the source has it in"
        " year=2024, region=us (2 such rows)."
    )


@pytest.mark.parametrize("value", ["a/b", "50%", "x=y", " ", "ü ö", "a:b", "..", "%2F", "a'b", 'q"q'])
def test_partition_values_are_percent_encoded_and_decoded(tmp_path, engine, value):
    """Every value round-trips through its own directory."""
    path = str(tmp_path / "d")
    first = source_of([1, 2], [value, "other"])
    inlay.merge(first, path, "upsert", ["id"], ["day"], engine=engine)
    update = source_of([1], [value], ["x"])
    result = inlay.merge(update, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 0)
    assert len(list((tmp_path / "d").iterdir())) == 2
    assert sorted(inlay.read_parquet(path)["day"].to_pylist()) == sorted([value, "other"])


@pytest.mark.parametrize("value", ["a'b", "a;b", "--a---b", "/*a*/", 'q"q', "a\nb", "a\u202eb", "a\u200bb", ".."])
def test_partitions_of_one_engine_are_readable_by_every_engine(tmp_path, engine, value):
    """This includes DuckDB, which rejects quotes, semicolons and comments in paths."""
    path = str(tmp_path / "d")
    inlay.merge(source_of([1, 2], [value, "other"]), path, "upsert", ["id"], ["day"], engine="pyarrow")
    result = inlay.merge(source_of([1, 3], [value, value], ["x", "y"]), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert len(list((tmp_path / "d").iterdir())) == 2
    assert sorted(inlay.read_parquet(path)["day"].to_pylist()) == sorted([value, value, "other"])


def test_directories_are_percent_decoded(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"day=a%2Fb/a.parquet": lake.table([1])})
    result = inlay.merge(source_of([1], ["a/b"], ["x"]), path, "update", ["id"], engine=engine)
    assert result.updated == 1


def test_path_values_are_compared_as_values_of_the_type_of_the_column(tmp_path, engine):
    """The directory p=01 holds the integer 1: existing rows are found there, and new rows are added there."""
    path = lake.write(tmp_path / "d", {"p=01/a.parquet": lake.table([1]), "p=2/a.parquet": lake.table([2])})
    source = lake.table([1, 5], ["x", "y"], p=pa.array([1, 1], pa.int64()))
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert relative(path, result.rewritten_files) == ["p=01/a.parquet"]
    assert {int(Path(file).parent.name.split("=")[1]) for file in result.inserted_files} == {1}


def test_an_empty_value_is_the_empty_string(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"day=/a.parquet": lake.table([1]), "day=b/a.parquet": lake.table([2])})
    result = inlay.merge(source_of([1], [""], ["x"]), path, "update", ["id"], engine=engine)
    assert (result.updated, relative(path, result.rewritten_files)) == (1, ["day=/a.parquet"])


def test_the_hive_default_partition_is_null(tmp_path, engine):
    default = "day=__HIVE_DEFAULT_PARTITION__"
    files = {f"{default}/a.parquet": lake.table([1]), f"day={DAY1}/a.parquet": lake.table([2])}
    path = lake.write(tmp_path / "d", files)
    source = source_of([1, 3], [None, None], ["x", "y"])
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert {Path(file).parent.name for file in result.inserted_files} == {default}
    assert inlay.read_parquet(path)["day"].null_count == 2
    with pytest.raises(ValueError, match=r"(?i)partition"):
        inlay.merge(source_of([2], [None]), path, "upsert", ["id"], engine=engine)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.date32(), [dt.date(2025, 1, 1), dt.date(2025, 1, 2)]),
        (pa.int32(), [-3, 7]),
        (pa.int64(), [2**40, 0]),
        (pa.string(), ["2025-01-01", "007"]),
        (pa.bool_(), [True, False]),
    ],
)
def test_partition_values_are_typed(tmp_path, engine, kind, values):
    """A second merge of the same values finds the rows of the first."""
    path = str(tmp_path / "d")
    first = lake.table([1, 2], p=pa.array(values, kind))
    inlay.merge(first, path, "upsert", ["id"], ["p"], engine=engine)
    again = lake.table([2, 1], ["x", "y"], p=pa.array(values[::-1], kind))
    result = inlay.merge(again, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted, len(lake.names(path))) == (2, 0, 2)
    swapped = lake.table([2], p=pa.array(values[:1], kind))
    with pytest.raises(ValueError, match=r"(?i)partition"):
        inlay.merge(swapped, path, "upsert", ["id"], engine=engine)


def test_partitions_are_detected_from_hive_paths(tmp_path, engine):
    """The result is the same with and without partition_columns."""
    for name, columns in (("a", None), ("b", ["day"])):
        path = daily(tmp_path / name, d1=[1], d2=[2])
        source = source_of([1, 9], [DAY1, DAY2], ["x", "y"])
        result = inlay.merge(source, path, "upsert", ["id"], columns, engine=engine)
        assert (result.updated, result.inserted) == (1, 1)
        assert relative(path, result.inserted_files)[0].startswith("day=2025-01-02/")


@pytest.mark.parametrize("schema_mode", ["strict", "evolve"])
def test_a_source_without_the_partition_column_is_rejected(tmp_path, engine, schema_mode):
    """The partition of a row must be known, also with evolve."""
    path = daily(tmp_path / "d", d1=[1])
    with pytest.raises(ValueError, match="day"):
        inlay.merge(lake.table([1]), path, "upsert", ["id"], engine=engine, schema_mode=schema_mode)


@pytest.mark.parametrize("value", [["x"], {"a": "x"}, b"\xff"])
def test_a_partition_column_of_values_that_no_path_can_hold_is_refused(tmp_path, value):
    path = lake.write(tmp_path / "d", {"p=x/a.parquet": lake.table([1])})
    before = lake.photograph(path)
    source, new = [{"id": 1, "v": "w", "p": value}], str(tmp_path / "new")
    for change in (
        lambda: inlay.plan_merge(source, path, "upsert", "id"),
        lambda: inlay.merge(source, path, "upsert", "id"),
        lambda: inlay.merge(source, path, "full_merge", "id", scope={"p": ["x"]}),
        lambda: inlay.merge(source, path, "delete", "id", scope={"p": ["x"]}),
        lambda: inlay.write_dataset(source, path, mode="append"),
        lambda: inlay.merge(source, new, "upsert", "id", partition_columns="p"),
        lambda: inlay.write_dataset(source, new, partition_columns="p"),
    ):
        with pytest.raises(SchemaMismatchError, match=r"The partition column 'p' is .* its values cannot be text"):
            change()
    assert lake.photograph(path) == before
    assert inlay.merge(source, path, "delete", "id").deleted == 1  # which ignores the column


def test_partition_columns_that_contradict_the_paths_are_rejected(tmp_path, engine):
    """A dataset partitioned by day cannot also be partitioned by v."""
    path = daily(tmp_path / "d", d1=[1])
    before = lake.photograph(path)
    with pytest.raises(ValueError, match="day"):
        inlay.merge(source_of([1], [DAY1]), path, "upsert", ["id"], ["v"], engine=engine)
    assert lake.photograph(path) == before


def test_a_dataset_without_partitions_gets_no_partitioned_files(tmp_path, engine):
    """Other readers reject such a directory."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1], ["x"], day=["mon"])})
    for strategy in ("upsert", "insert"):
        with pytest.raises(ValueError, match=r"not partitioned.* day") as caught:
            inlay.merge(source_of([2], ["tue"]), path, strategy, ["id"], ["day"], engine=engine)
        assert "Omit partition_columns" in str(caught.value)
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["a.parquet"]
    inlay.write_dataset(source_of([2], ["tue"]), path, mode="overwrite", partition_columns=["day"])
    assert [file.name for file in (tmp_path / "d").iterdir()] == ["day=tue"]


def test_max_rows_per_file_splits_within_each_partition(tmp_path, engine):
    source = source_of(range(10), [DAY1 if i % 2 else DAY2 for i in range(10)])
    path = str(tmp_path / "d")
    inlay.merge(source, path, "upsert", ["id"], ["day"], max_rows_per_file=2, engine=engine)
    assert sorted(len(rows) for rows in lake.contents(path).values()) == [1, 1, 2, 2, 2, 2]


def test_an_emptied_partition_loses_its_file_except_the_last_of_the_dataset(tmp_path, engine):
    path = daily(tmp_path / "d", d1=[1], d2=[2])
    empty = source_of([], [])
    result = inlay.merge(empty, path, "full_merge", ["id"], engine=engine)
    assert (result.deleted, result.target_count_after, len(result.removed_files)) == (2, 0, 1)
    [left] = lake.names(path)
    assert lake.read_file(tmp_path / "d" / left).num_rows == 0
    assert set(inlay.read_parquet(path).column_names) == {"id", "v", "day"}


def test_a_timestamp_that_would_move_is_reported_with_nanoseconds(tmp_path):
    at = pa.array([1], pa.timestamp("ns"))
    path = lake.write(tmp_path / "d", {"p=1/a.parquet": pa.table({"at": at, "v": [1]})})
    with pytest.raises(PartitionMoveError, match=r"at=1970-01-01 00:00:00\.000000001 is in"):
        inlay.merge(pa.table({"at": at, "v": [2], "p": [2]}), path, "upsert", ["at"])


def test_an_empty_file_is_kept_when_other_files_are_removed(tmp_path):
    path = daily(tmp_path / "d", d1=[1], d2=[], d3=[3])
    result = inlay.merge(source_of([1], [DAY1], ["v1"]), path, "full_merge", ["id"])
    assert relative(path, result.removed_files) == [f"day={DAY3}/a.parquet"]
    assert relative(path, result.preserved_files) == [f"day={DAY1}/a.parquet", f"day={DAY2}/a.parquet"]


def test_the_first_file_keeps_the_schema_when_all_rows_are_deleted(tmp_path):
    path = daily(tmp_path / "d", d1=[1, 2], d2=[3], d3=[4])
    result = inlay.merge(source_of([], []), path, "full_merge", ["id"])
    assert result.deleted == 4
    assert relative(path, result.rewritten_files) == [f"day={DAY1}/a.parquet"]
    assert relative(path, result.removed_files) == [f"day={DAY2}/a.parquet", f"day={DAY3}/a.parquet"]
    assert inlay.read_parquet(path).num_rows == 0


def test_new_files_use_the_existing_directory_of_their_partition(tmp_path):
    path = lake.write(tmp_path / "d", {"p=01/a.parquet": lake.table([1])})
    result = inlay.merge(lake.table([2, 3], p=pa.array([1, 2])), path, "upsert", ["id"])
    assert [Path(file).parent.name for file in result.inserted_files] == ["p=01", "p=2"]


def test_other_directories_of_a_path_are_not_partitions():
    partitions = Partitions(["p"], [("1",)], np.zeros(1, np.int64), {}, [pa.int64()])
    assert partitions.values_of("x=9/p=1/a.parquet") == ("1",)
    assert partitions.constants_of("x=9/p=1/a.parquet") == {"p": pa.scalar(1)}
    assert partitions.values_of("x=9/p=text/a.parquet") is None
