"""Rejected merges: every check runs before the first write, and a plan raises the same error."""

import pickle

import pyarrow as pa
import pytest

import inlay
from tests import lake

DAY = pa.array(["2025-01-01"])


def plain_target(root):
    return lake.write(root, {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})


def daily_target(root):
    files = {f"day=2025-01-0{i}/a.parquet": lake.table([i]) for i in (1, 2)}
    return lake.write(root, files)


def call(source, strategy="upsert", keys=("id",), **more):
    return {"data": source, "strategy": strategy, "key_columns": list(keys), **more}


# name -> (target, arguments); each is refused
REFUSED = {
    "null key": (plain_target, call(lake.table([5, None]))),
    "null in a composite key": (plain_target, call(lake.table([5], [None]), keys=["id", "v"])),
    "duplicate keys": (plain_target, call(lake.table([5, 5]))),
    "duplicate keys, full_merge": (plain_target, call(lake.table([1, 1]), "full_merge")),
    "missing column": (plain_target, call(lake.table([1]).select(["id"]))),
    "extra column": (plain_target, call(lake.table([1], extra=pa.array([1])))),
    "uncastable column": (plain_target, call(pa.table({"id": [1], "v": [[1]]}))),
    "uncastable key": (plain_target, call(pa.table({"id": ["x"], "v": ["x"]}))),
    "key that is not in the source": (plain_target, call(lake.table([1]), keys=["nope"])),
    "key that is not in the target": (plain_target, call(lake.table([1], k=pa.array([1])), keys=["k"])),
    "no keys": (plain_target, call(lake.table([1]), keys=[])),
    "unknown strategy": (plain_target, call(lake.table([1]), "replace")),
    "unknown engine": (plain_target, call(lake.table([1]), engine="abacus")),
    "unknown schema mode": (plain_target, call(lake.table([1]), schema_mode="loose")),
    "unknown compression": (plain_target, call(lake.table([9]), compression="squash")),
    "no rows per file": (plain_target, call(lake.table([9]), max_rows_per_file=0)),
    "no rows per row group": (plain_target, call(lake.table([9]), row_group_size=0)),
    "unknown order column": (plain_target, call(lake.table([1]), "deduplicate", dedup_order_by="nope")),
    "a move": (daily_target, call(lake.table([2], day=DAY))),
    "a move among good rows": (daily_target, call(lake.table([1, 2], day=pa.array(["2025-01-01"] * 2)))),
    "no partition column": (daily_target, call(lake.table([1]))),
    "unknown partition column": (plain_target, call(lake.table([1]), partition_columns=["nope"])),
}


# inlay checks arguments, columns and types before it calls an engine. Engines check keys: see test_merge_semantics.py
# and, for rows that stay with Spark's executors, tests/spark/test_large_source.py.
@pytest.mark.long_on("duckdb-union", "spark")
@pytest.mark.parametrize("case", REFUSED)
def test_a_rejected_merge_leaves_no_trace_and_the_plan_raises_the_same(tmp_path, engine, case):
    target, arguments = REFUSED[case]
    path = target(tmp_path / "d")
    before = lake.photograph(path)
    errors = []
    for function in (inlay.plan_merge, inlay.merge):
        with pytest.raises(ValueError, match=r"\w") as caught:
            function(path=path, **({"engine": engine} | arguments))
        assert isinstance(caught.value, inlay.InlayError)
        errors.append((type(caught.value), str(caught.value)))
        assert lake.photograph(path) == before
    assert errors[0] == errors[1]


@pytest.mark.parametrize("case", ["null key", "duplicate keys", "no keys", "unknown strategy"])
def test_a_rejected_initial_load_creates_nothing(tmp_path, engine, case):
    path = tmp_path / "d"
    with pytest.raises(ValueError, match=r"\w"):
        inlay.merge(path=str(path), engine=engine, **REFUSED[case][1])
    assert not path.exists()


def test_a_file_that_cannot_be_read_is_named_before_anything_is_written(tmp_path, engine):
    """The merge cannot know the keys of the file."""
    path = plain_target(tmp_path / "d")
    (tmp_path / "d/broken.parquet").write_bytes(b"PAR1 this is no footer PAR1")
    before = lake.photograph(path)
    for function in (inlay.plan_merge, inlay.merge):
        with pytest.raises(inlay.InlayError, match=r"broken\.parquet"):
            function(lake.table([1, 9], ["x", "y"]), path, "upsert", ["id"], engine=engine)
        assert lake.photograph(path) == before


def test_files_that_are_not_data_are_ignored(tmp_path, engine):
    path = plain_target(tmp_path / "d")
    strangers = ["README.txt", "_SUCCESS", ".hidden.parquet", "_temporary/0.parquet"]
    for name in strangers:
        (tmp_path / "d" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"not ours")
    before = lake.photograph(path)
    inlay.merge(lake.table([1], ["x"]), path, "full_merge", ["id"], engine=engine)
    after = lake.photograph(path)
    assert {name: after[name] for name in strangers} == {name: before[name] for name in strangers}


def test_a_merge_leaves_only_data_files_in_the_dataset_directory(tmp_path, engine):
    path = plain_target(tmp_path / "d")
    inlay.merge(lake.table([1, 9], ["x", "y"]), path, "upsert", ["id"], engine=engine)
    seen = [name for name in lake.photograph(path) if name != "./"]
    assert sorted(seen) == lake.names(path)
    leftovers = [file for file in tmp_path.rglob("*") if file.suffix == ".stage" or ".staging_" in str(file)]
    assert leftovers == []


PLANNED = ["insert", "update", "upsert", "full_merge", "deduplicate"]


@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("target", [plain_target, daily_target], ids=["plain", "daily"])
def test_a_plan_writes_nothing_and_predicts_the_merge(tmp_path, engine, strategy, target):
    path = target(tmp_path / "d")
    source = lake.table([1, 9], ["x", "y"])
    if target is daily_target:
        source = source.append_column("day", pa.array(["2025-01-01"] * 2))
    before = lake.photograph(tmp_path / "d")
    plan = inlay.plan_merge(source, path, strategy, ["id"], engine=engine)
    assert lake.photograph(tmp_path / "d") == before
    result = inlay.merge(source, path, strategy, ["id"], engine=engine)
    assert (plan.inserted, plan.updated, plan.deleted) == (result.inserted, result.updated, result.deleted)
    assert sorted(plan.affected_files) == sorted(result.rewritten_files + result.removed_files)
    assert sorted(plan.unaffected_files) == sorted(result.preserved_files)
    assert len(plan.new_files) == len(result.inserted_files)


def test_a_plan_counts_affected_rows_and_explains_each_file(tmp_path, engine):
    tables = {f"{i}.parquet": lake.table(range(i * 100, i * 100 + 10)) for i in range(3)}
    path = lake.write(tmp_path / "d", tables)
    plan = inlay.plan_merge(lake.table([5, 205], ["x", "y"]), path, "update", ["id"], engine=engine)
    assert plan.affected_files == [f"{path}/0.parquet", f"{path}/2.parquet"]
    assert plan.unaffected_files == [f"{path}/1.parquet"]
    assert (plan.new_files, plan.affected_rows, plan.updated) == ([], 20, 2)
    assert sorted(file.path for file in plan.files) == [f"{path}/{i}.parquet" for i in range(3)]
    assert all(file.reason for file in plan.files)
    assert "1.parquet" in repr(plan) or "update" in repr(plan)
    document = plan.to_dict()
    assert document["affected_files"] == plan.affected_files
    assert [file["path"] for file in document["files"]] == [file.path for file in plan.files]
    assert pickle.loads(pickle.dumps(plan)).to_dict() == document


def test_a_plan_of_equal_rows_affects_nothing(tmp_path, engine):
    path = plain_target(tmp_path / "d")
    plan = inlay.plan_merge(lake.table([1, 2, 3]), path, "full_merge", ["id"], engine=engine)
    assert (plan.affected_files, plan.new_files, plan.updated) == ([], [], 3)


def test_a_plan_for_a_missing_dataset_creates_nothing(tmp_path, engine):
    plan = inlay.plan_merge(lake.table([1]), str(tmp_path / "d"), "upsert", ["id"], engine=engine)
    assert (plan.inserted, plan.affected_files, len(plan.new_files)) == (1, [], 1)
    assert not (tmp_path / "d").exists()


def test_swapped_arguments_are_reported(tmp_path):
    table = lake.table([1])
    with pytest.raises(ValueError, match=r"Unknown merge strategy \['id'\]; known: insert"):
        inlay.merge(table, tmp_path / "d", ["id"], "upsert")
    with pytest.raises(ValueError, match="not Table"):
        inlay.merge(str(tmp_path / "d"), table, "upsert", ["id"])
