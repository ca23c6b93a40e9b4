"""`scope`: a full merge or a deletion touches only the rows inside."""

import datetime as dt
import json
import math
from contextlib import nullcontext

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import inlay
from inlay.errors import DeletionLimitError, InvalidArgumentError, OutsideScopeError, SchemaMismatchError
from tests import lake, oracle

SCOPES = [{"g": ["a"]}, pc.field("g") == "a"]


def grouped(ids, groups, values=None):
    return lake.table(ids, values, g=pa.array(groups, pa.string()))


def contents(path):
    return sorted((row["id"], row["v"]) for row in lake.all_rows(path))


@pytest.mark.parametrize("scope", SCOPES)
def test_a_full_merge_replaces_only_the_rows_inside(tmp_path, engine, scope):
    files = {"1.parquet": grouped([1, 2, 3], ["a", "b", "a"]), "2.parquet": grouped([4, 5], ["b", None])}
    path = lake.write(tmp_path / "d", files)
    source = grouped([3, 9], ["a", "a"], ["x", "y"])
    plan = inlay.plan_merge(source, path, "full_merge", "id", scope=scope, engine=engine)
    assert (plan.inserted, plan.updated, plan.deleted) == (1, 1, 1)
    assert plan.files[0].reason == "1 matching row in 1 of 1 row groups, 1 to delete"
    result = inlay.merge(source, path, "full_merge", "id", scope=scope, engine=engine)
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    assert (result.target_count_before, result.target_count_after) == (5, 5)
    assert result.preserved_files == [f"{path}/2.parquet"]
    assert plan.files[1].reason == "no row is in the scope"
    assert contents(path) == [(2, "v2"), (3, "x"), (4, "v4"), (5, "v5"), (9, "y")]


@pytest.mark.parametrize("scope", [{"day": ["2025-01-01"]}, {"day": [dt.date(2025, 1, 1)]}])
def test_one_partition_is_replaced(tmp_path, engine, scope):
    files = {f"day=2025-01-0{n}/a.parquet": lake.table([10 * n, 10 * n + 1]) for n in (1, 2)}
    path = lake.write(tmp_path / "d", files)
    lake.spoil(tmp_path / "d/day=2025-01-02/a.parquet")
    source = lake.table([11, 12], ["x", "y"], day=["2025-01-01"] * 2)
    result = inlay.merge(source, path, "full_merge", ["id", "day"], scope=scope, engine=engine)
    assert (result.inserted, result.updated, result.deleted) == (1, 1, 1)
    empty = source.slice(0, 0)
    result = inlay.merge(empty, path, "full_merge", ["id", "day"], scope=scope, max_deleted=1.0, engine=engine)
    assert (result.deleted, result.target_count_after) == (2, 2)
    assert lake.names(path) == ["day=2025-01-02/a.parquet"]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_deletion_looks_only_at_the_rows_inside(tmp_path, engine, scope):
    path = lake.write(tmp_path / "d", {"1.parquet": grouped([1, 2, 3], ["a", "b", "a"])})
    assert inlay.merge({"id": [1, 9]}, path, "delete", "id", scope=scope, engine=engine).deleted == 1
    before = lake.photograph(path)
    for source in ({"id": [2]}, {"id": [3], "g": ["b"]}):
        for function in (inlay.plan_merge, inlay.merge):
            with pytest.raises(OutsideScopeError, match="outside the scope"):
                function(source, path, "delete", "id", scope=scope, engine=engine)
    assert lake.photograph(path) == before


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (grouped([1, 8], ["a", "b"]), "Source rows are outside the scope: 1, the first with id=8, g='b'"),
        (grouped([1, 8], ["a", None]), "Source rows are outside the scope: 1, the first with id=8, g=None"),
        (grouped([2], ["a"]), "/1.parquet': 1, the first with id=2"),
    ],
)
def test_source_rows_and_keys_outside_are_refused(tmp_path, engine, scope, source, message):
    path = lake.write(tmp_path / "d", {"1.parquet": grouped([1, 2], ["a", "b"])})
    before = lake.photograph(path)
    for function in (inlay.plan_merge, inlay.merge):
        with pytest.raises(OutsideScopeError) as caught:
            function(source, path, "full_merge", "id", scope=scope, engine=engine)
        assert message in caught.value.message
    assert lake.photograph(path) == before


def test_the_share_of_max_deleted_counts_the_rows_inside(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"1.parquet": grouped(range(100), ["a"] * 4 + ["b"] * 96)})
    source, scope = grouped([0, 1], ["a", "a"]), {"g": ["a"]}
    with pytest.raises(DeletionLimitError, match="2 of 4 rows"):
        inlay.merge(source, path, "full_merge", "id", scope=scope, max_deleted=0.49, engine=engine)
    assert inlay.merge(source, path, "full_merge", "id", scope=scope, max_deleted=0.5, engine=engine).deleted == 2


@pytest.mark.parametrize(
    ("kind", "stored", "values", "inside"),
    [
        (pa.int32(), [1, 2, None], ["1", 2], "YYN"),
        (pa.int64(), [1, 2, None], [None], "NNY"),
        (pa.float64(), [0.0, -0.0, math.nan, 1.0], [0.0, math.nan], "YYYN"),
        (pa.date32(), [dt.date(2025, 1, 1), dt.date(2025, 1, 2)], ["2025-01-01"], "YN"),
        (pa.bool_(), [True, False], ["true"], "YN"),
        (pa.decimal128(5, 2), ["1.50", "2.00"], ["1.5"], "YN"),
        (pa.timestamp("us"), [dt.date(2025, 1, 1), dt.date(2025, 1, 2)], ["2025-01-01 00:00:00"], "YN"),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["a"], "YN"),
    ],
)
def test_values_are_compared_as_the_type_of_the_column(tmp_path, kind, stored, values, inside):
    plain = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    array = pa.array(stored, pa.string() if isinstance(kind, pa.Decimal128Type) else None).cast(plain).cast(kind)
    path = lake.write(tmp_path / "d", {"1.parquet": lake.table(range(len(stored)), g=array)})
    result = inlay.merge({"id": pa.array([], pa.int64())}, path, "delete", "id", scope={"g": values})
    assert result.deleted == 0
    gone = inlay.read_parquet(path).slice(0, 0)
    inlay.merge(gone, path, "full_merge", "id", scope={"g": values})
    assert [row["id"] for row in lake.all_rows(path)] == [at for at, mark in enumerate(inside) if mark == "N"]


def test_a_new_dataset_gets_only_rows_inside(tmp_path, engine):
    path = str(tmp_path / "d")
    with pytest.raises(OutsideScopeError, match="id=2, g='b'"):
        inlay.merge(grouped([1, 2], ["a", "b"]), path, "full_merge", "id", scope={"g": ["a"]}, engine=engine)
    assert inlay.merge({"id": [1]}, path, "delete", "id", scope={"g": ["a"]}, engine=engine).deleted == 0
    for rows in (grouped([1, 2], ["a", "b"]), [{"id": 1}, {"id": 2, "g": "b"}]):
        with pytest.raises(OutsideScopeError, match="rows are outside the scope: 1, the first with id=2, g='b'"):
            inlay.merge(rows, path, "delete", "id", scope={"g": ["a"], "v": ["v1", "v2"]}, engine=engine)
    assert not (tmp_path / "d").exists()
    assert inlay.merge(grouped([1], ["a"]), path, "full_merge", "id", scope={"g": ["a"]}, engine=engine).inserted == 1


def test_bad_scopes_are_refused(tmp_path):
    path = lake.write(tmp_path / "d", {"1.parquet": lake.table([1])})
    for strategy in ("insert", "update", "upsert", "deduplicate"):
        with pytest.raises(InvalidArgumentError, match='scope needs strategy="full_merge" or "delete"'):
            inlay.merge(lake.table([1]), path, strategy, "id", scope={"id": [1]})
    for scope in ({}, {"id": []}, {"id": 1}, {"v": "v1"}, ["id"], "id = 1"):
        with pytest.raises(InvalidArgumentError, match="scope"):
            inlay.merge(lake.table([1]), path, "full_merge", "id", scope=scope)
    for values in ("1", 1, None, {"a": 1}, pd.DataFrame({"id": [1]}), np.zeros((1, 1))):
        with pytest.raises(InvalidArgumentError) as caught:
            inlay.merge(lake.table([1]), path, "full_merge", "id", scope={"id": values})
        expected = f"The scope needs a list of values for column 'id', not {type(values).__name__}."
        assert caught.value.message == expected
    with pytest.raises(InvalidArgumentError, match="A scope column must be the name of a column, not 3"):
        inlay.merge(lake.table([1]), path, "full_merge", "id", scope={3: ["x"]})
    with pytest.raises(InvalidArgumentError, match="Invalid scope: DataFrame"):
        inlay.merge(lake.table([1]), path, "full_merge", "id", scope=pd.DataFrame({"id": [1]}))
    with pytest.raises(InvalidArgumentError, match="'x' is not a value of column 'id', which is bigint"):
        inlay.merge(lake.table([1]), path, "full_merge", "id", scope={"id": ["x"]})
    with pytest.raises(SchemaMismatchError, match="The scope column 'day' does not exist in the dataset"):
        inlay.merge(lake.table([1]), path, "full_merge", "id", scope={"day": ["2025-01-01"]})
    with pytest.raises(InvalidArgumentError, match="there is no column 'day'"):
        inlay.merge(lake.table([1]), path, "full_merge", "id", scope=pc.field("day") == 1)
    keep = {"missing_columns": "keep"}
    with pytest.raises(SchemaMismatchError, match="1 new row lacks the scope column 'v'; the first is id=2"):
        inlay.merge({"id": [1, 2]}, path, "full_merge", "id", scope={"v": ["v1"]}, **keep)
    assert inlay.merge({"id": [1]}, path, "full_merge", "id", scope={"v": ["v1"]}, **keep).unchanged == 1


@pytest.mark.parametrize("make", [np.array, pd.Series, set, pa.array, tuple, iter])
def test_values_can_be_any_iterable(tmp_path, make):
    path = lake.write(tmp_path / "d", {"1.parquet": grouped([1, 2, 3], ["a", "b", None])})
    assert inlay.merge(grouped([], []), path, "full_merge", "id", scope={"g": make(["b"])}).deleted == 1


def test_values_without_a_python_type_are_compared_exactly(tmp_path):
    nanoseconds = pa.array([1, None, 3], pa.timestamp("ns"))
    path = lake.write(tmp_path / "d", {"1.parquet": lake.table([1, 2, 3], g=nanoseconds)})
    empty = inlay.read_parquet(path).slice(0, 0)
    assert inlay.merge(empty, path, "full_merge", "id", scope={"g": nanoseconds.slice(0, 2)}).deleted == 2
    last = {"g": nanoseconds[2:].to_numpy()}
    assert inlay.merge(empty, path, "full_merge", "id", scope=last).deleted == 1


def test_every_place_of_a_key_outside_is_named(tmp_path, engine):
    files = {f"day=2025-01-0{n}/a.parquet": lake.table([7, 10 + n]) for n in range(1, 9)}
    path = lake.write(tmp_path / "d", files)
    with pytest.raises(OutsideScopeError) as caught:
        inlay.merge({"id": [7, 11]}, path, "delete", "id", scope={"day": ["2025-01-01"]}, engine=engine)
    assert "and 2 more files: 1, the first with id=7" in caught.value.message
    assert f"'{path}/day=2025-01-02/a.parquet'" in caught.value.message
    assert "2025-01-01" not in caught.value.message


def test_repeated_keys_of_a_deletion_hide_no_row_outside(tmp_path):
    path = lake.write(tmp_path / "d", {"1.parquet": grouped([1], ["a"])})
    with pytest.raises(OutsideScopeError, match="id=1, g='b'"):
        inlay.merge(grouped([1, 1], ["b", "a"]), path, "delete", "id", scope={"g": ["a"]})


@pytest.mark.long_on("duckdb-union", "spark")  # the check precedes the work of the engines
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("in_path", [False, True])
@pytest.mark.parametrize("name", [None, "keys.jsonl"])
def test_a_row_of_keys_that_lacks_the_column_shows_no_value_outside(tmp_path, scope, in_path, name, engine):
    if in_path:
        files = {f"g={g}/1.parquet": lake.table(ids) for g, ids in (("a", [1, 9]), ("b", [2]))}
    else:
        files = {"1.parquet": grouped([1, 2, 9], ["a", "b", "a"])}
    path = lake.write(tmp_path / "d", files)

    def delete(keys):
        source = keys if name is None else str(tmp_path / name)
        (tmp_path / "keys.jsonl").write_text("\n".join(map(json.dumps, keys)))
        return inlay.merge(source, path, "delete", "id", scope=scope, engine=engine)

    before = lake.photograph(path)
    for outside in ({"id": 9, "g": None}, {"id": 9, "g": "b"}):
        with pytest.raises(OutsideScopeError, match="id=9, g="):
            delete([{"id": 1}, outside, {"id": 9, "g": "a"}])
    with pytest.raises(OutsideScopeError, match="the first with id=2"):
        delete([{"id": 1}, {"id": 2}, {"id": 9, "g": "a"}])
    assert lake.photograph(path) == before
    assert delete([{"id": 1}, {"id": 9, "g": "a"}]).deleted == 2
    assert [row["id"] for row in lake.all_rows(path)] == [2]


TWO = pc.field("k").isin(["x"]) & (pc.field("n") == 1)


@pytest.mark.parametrize("scope", [{"k": ["x"], "n": [1]}, TWO, ~(~(pc.field("k") == "x") | (pc.field("n") != 1))])
@pytest.mark.parametrize("strategy", ["delete", "full_merge"])
def test_a_value_outside_is_refused_although_the_row_lacks_another_column(tmp_path, scope, strategy):
    rows = pa.table({"id": [1, 2, 3], "k": ["x", "x", "y"], "n": [1, 1, 1]})
    path = lake.write(tmp_path / "d", {"1.parquet": rows})
    options = {"scope": scope} | ({"missing_columns": "keep"} if strategy == "full_merge" else {})
    for source in (
        {"id": [1, 2], "n": [1, 4]},
        [{"id": 1}, {"id": 2, "n": 4}],
        [{"id": 1, "k": "x"}, {"id": 2, "n": 4}],
        [{"id": 1, "k": "x", "n": 1}, {"id": 2, "n": 1, "k": "y"}],
        [{"id": 1, "n": 1}, {"id": 2, "k": "y"}],
    ):
        with pytest.raises(
            OutsideScopeError, match=r"outside the scope: 1, the first with id=2, (n=4|k='y')"
        ) as caught:
            inlay.merge(source, path, strategy, "id", **options)
        assert "None" not in caught.value.message
    with pytest.raises(OutsideScopeError, match="the first with id=3"):
        inlay.merge([{"id": 3, "n": 1}, {"id": 1}], path, strategy, "id", **options)
    for source in ([{"id": 1}], {"id": [1], "n": [1]}, [{"id": 1, "n": 1}, {"id": 1, "k": "x"}]):
        assert (
            inlay.plan_merge(
                source[:1] if strategy == "full_merge" and isinstance(source, list) else source,
                path,
                strategy,
                "id",
                **options,
            ).deleted
            == 1
        )
    with (
        pytest.raises(SchemaMismatchError, match="lacks the scope column")
        if strategy == "full_merge"
        else nullcontext()
    ):
        inlay.merge([{"id": 9, "n": 1}], path, strategy, "id", **options)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_text_of_every_type_is_compared(tmp_path, kind):
    rows = lake.table([1, 2], g=pa.array(["a", "b"]).cast(kind))
    path = lake.write(tmp_path / "d", {"1.parquet": rows})
    assert inlay.merge(rows.slice(0, 0), path, "full_merge", "id", scope={"g": ["a"]}).deleted == 1
    assert inlay.merge(rows.slice(0, 0), path, "full_merge", "id", scope=pc.field("g") == "b").deleted == 1


ROWS = st.dictionaries(st.integers(0, 9), st.sampled_from(["a", "b", None]), max_size=8)


# Other engines share the selection and the plan, which the tests above run on all engines.
@given(
    stored=st.lists(ROWS, min_size=1, max_size=3), source=ROWS, strategy=st.sampled_from(["full_merge", "delete"]),
    names=st.sets(st.sampled_from(["a", "b", None]), min_size=1), shown=st.booleans(),
)  # fmt: skip
def test_scopes_agree_with_the_oracle(tmp_path_factory, stored, source, strategy, names, shown):
    tables = {f"{n}.parquet": grouped(list(rows), list(rows.values())) for n, rows in enumerate(stored)}
    path = lake.write(tmp_path_factory.mktemp("d"), tables, row_group_size=3)
    table = grouped(list(source), list(source.values()), ["x"] * len(source))
    table = table if shown or strategy == "full_merge" else table.select(["id"])
    files = [(name, lake.rows_of(each)) for name, each in tables.items()]
    options = {"scope": {"g": list(names)}}
    try:
        expected = oracle.merge(files, lake.rows_of(table), strategy, ["id"], **options)
    except oracle.RefusedError:
        for function in (inlay.plan_merge, inlay.merge):
            with pytest.raises(OutsideScopeError):
                function(table, path, strategy, "id", **options)
        return
    plan = inlay.plan_merge(table, path, strategy, "id", **options)
    result = inlay.merge(table, path, strategy, "id", **options)
    for got in (plan, result):
        assert (got.inserted, got.updated, got.deleted) == (expected.inserted, expected.updated, expected.deleted)
        assert got.target_count_after == expected.after
    assert lake.same_rows(lake.all_rows(path), expected.rows(), ordered=False)
