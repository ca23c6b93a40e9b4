"""`newer_by`: a matching row changes only if the source row is newer."""

import datetime as dt
import json
import math

import pyarrow as pa
import pytest

import inlay
from inlay.errors import InvalidArgumentError, SchemaMismatchError
from tests import lake

MERGED = ["update", "upsert", "deduplicate"]


def versioned(ids, values, times, kind="int64"):
    return lake.table(ids, values, at=pa.array(times, kind))


@pytest.mark.parametrize("strategy", MERGED)
def test_only_newer_rows_replace(tmp_path, engine, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": versioned([1, 2, 3, 4], list("abcd"), [10, 10, 10, None])})
    source = versioned([1, 2, 3, 4], list("wxyz"), [11, 10, 9, None])
    plan = inlay.plan_merge(source, path, strategy, "id", newer_by="at", engine=engine)
    assert (plan.updated, plan.stale) == (1, 3)
    assert plan.files[0].reason == "1 matching row in 1 of 1 row groups, 3 matching rows not older than the source"
    result = inlay.merge(source, path, strategy, "id", newer_by="at", engine=engine)
    assert (result.updated, result.unchanged, result.stale, result.inserted) == (1, 0, 3, 0)
    assert lake.id_values(lake.all_rows(path)) == [(1, "w"), (2, "b"), (3, "c"), (4, "d")]
    assert "3 stale" in repr(result)
    assert "3 stale" in repr(plan)


def test_a_repeated_batch_writes_no_byte(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": versioned(range(9), None, [0] * 9)}, row_group_size=3)
    batch = versioned([1, 7, 20], list("xyz"), [5, 5, 5])
    assert inlay.merge(batch, path, "upsert", "id", newer_by="at", engine=engine).updated == 2
    before = lake.photograph(path)
    again = inlay.merge(batch, path, "upsert", "id", newer_by="at", engine=engine)
    assert lake.photograph(path) == before
    assert (again.updated, again.inserted, again.stale, again.bytes_written) == (0, 0, 3, 0)
    assert all("not older than the source" in f.reason for f in inlay.plan_merge(
        batch, path, "upsert", "id", newer_by="at", engine=engine).files)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "stored", "given", "is_newer"),
    [
        (pa.float64(), [1.0, math.nan, math.inf, 0.0, None], [math.nan, math.nan, math.nan, -0.0, -math.inf], "YNYNY"),
        (pa.string(), ["b", "B", "é", "", None], ["a", "a", "z", None, ""], "NYNNY"),
        (pa.string_view(), ["a", "b"], ["b", "a"], "YN"),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["b", "a"], "YN"),
        (pa.timestamp("us", "UTC"), [1, 2], [2, 2], "YN"),
        (pa.bool_(), [False, True], [True, False], "YN"),
        (pa.binary(), [b"\x7f", b"a"], [b"\x80", b"a"], "YN"),
    ],
)
def test_values_are_compared_as_when_sorting(tmp_path, kind, stored, given, is_newer):
    ids = list(range(len(stored)))
    if kind == pa.timestamp("us", "UTC"):
        zero = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
        stored, given = ([zero + dt.timedelta(days=n) for n in days] for days in (stored, given))
    arrays = [pa.array(v, pa.string() if pa.types.is_dictionary(kind) else kind) for v in (stored, given)]
    old, new = (a.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else a for a in arrays)
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(ids, ["old"] * len(ids), at=old)})
    inlay.merge(lake.table(ids, ["new"] * len(ids), at=new), path, "upsert", "id", newer_by="at")
    assert "".join("Y" if row["v"] == "new" else "N" for row in lake.all_rows(path)) == is_newer


def test_values_are_compared_in_the_type_of_the_dataset(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": versioned([1], ["a"], [10], "int32")})
    assert inlay.merge(versioned([1], ["b"], [11]), path, "upsert", "id", newer_by="at").updated == 1


def test_deduplicate_keeps_the_newest_row_of_a_key(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": versioned([1], ["a"], [5])})
    source = versioned([1, 1, 1, 2, 2], list("bcdef"), [6, 8, 7, 1, None])
    result = inlay.merge(source, path, "deduplicate", "id", newer_by="at", engine=engine)
    assert (result.updated, result.inserted, result.stale) == (1, 1, 0)
    assert lake.id_values(lake.all_rows(path)) == [(1, "c"), (2, "e")]


def test_deletions_must_be_newer_too(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": versioned([1, 2, 3, 4], None, [5, 5, 5, 5])})
    gone = {"id": [1, 2, 2], "at": [5, 5, 6]}
    result = inlay.merge(gone, path, "delete", "id", newer_by="at", engine=engine)
    assert (result.deleted, result.stale) == (1, 1)
    feed = [{"id": 3, "at": 4, "op": "d"}, {"id": 4, "at": 9, "op": "d"}]
    result = inlay.merge(feed, path, "upsert", "id", newer_by="at", operation_column="op", engine=engine)
    assert (result.deleted, result.stale) == (1, 1)
    assert [row["id"] for row in lake.all_rows(path)] == [1, 3]


def written(tmp_path, name, rows):
    """Return the rows as a source: dicts, or a file of JSON."""
    if name is None:
        return rows
    (tmp_path / name).write_text("\n".join(json.dumps(row) for row in rows))
    return str(tmp_path / name)


@pytest.mark.parametrize("missing", ["error", "null", "keep"])
@pytest.mark.parametrize("name", [None, "feed.jsonl"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_deletion_without_the_field_is_refused(tmp_path, name, missing, exists):
    """It would look older than the stored row, and delete nothing."""
    path = str(tmp_path / "d")
    if exists:
        lake.write(tmp_path / "d", {"a.parquet": versioned([1, 2], None, [1, 1])})
    feed = [{"id": 1, "op": "d"}, {"id": 2, "op": "u", "at": 5, "v": "x"}]
    keys = [{"id": 2, "at": 5}, {"id": 1}]
    before = lake.photograph(path)
    for rows, strategy, column, row in [(feed, "upsert", "op", 1), (keys, "delete", None, 2)]:
        options = {"operation_column": column, "missing_columns": missing, "newer_by": "at"}
        place = f"row {row - 1}" if name is None else f"feed.jsonl', line {row}"
        message = f"'at' is missing in .*{place} of the source, a row that deletes"
        with pytest.raises(SchemaMismatchError, match=message):
            inlay.merge(written(tmp_path, name, rows), path, strategy, "id", **options)
        assert lake.photograph(path) == before


def test_a_deletion_with_an_explicit_null_is_the_oldest(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": versioned([1, 2], None, [1, 1])})
    keys = [{"id": 1, "at": None}, {"id": 2, "at": 5}]
    result = inlay.merge(keys, path, "delete", "id", newer_by="at", engine=engine)
    assert (result.deleted, result.stale) == (1, 1)


def test_a_row_of_several_that_is_older_is_enough_to_have_an_effect(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": versioned([1, 1], ["a", "b"], [5, 7])})
    result = inlay.merge(versioned([1], ["x"], [6]), path, "upsert", "id", newer_by="at")
    assert (result.updated, result.stale) == (1, 0)
    assert lake.id_values(lake.all_rows(path)) == [(1, "x"), (1, "b")]


def test_a_stale_row_is_no_move_to_another_partition(tmp_path):
    path = lake.write(tmp_path / "d", {"p=a/a.parquet": versioned([1], ["a"], [5])})
    late = versioned([1], ["x"], [4]).append_column("p", pa.array(["b"]))
    assert inlay.merge(late, path, "upsert", "id", newer_by="at").stale == 1
    newer = versioned([1], ["x"], [6]).append_column("p", pa.array(["b"]))
    with pytest.raises(inlay.errors.PartitionMoveError):
        inlay.merge(newer, path, "upsert", "id", newer_by="at")


def test_files_without_the_column_hold_the_oldest_rows(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    source = versioned([1, 2], ["x", "y"], [0, None])
    result = inlay.merge(source, path, "upsert", "id", newer_by="at", schema_mode="evolve", missing_columns="keep")
    assert (result.updated, result.stale) == (1, 1)


def test_the_option_is_refused_where_it_has_no_meaning(tmp_path):
    path = lake.write(tmp_path / "d", {"p=1/a.parquet": versioned([1], ["a"], [5])})
    source = versioned([1], ["a"], [5]).append_column("p", pa.array([1]))
    for strategy in ("insert", "full_merge"):
        with pytest.raises(InvalidArgumentError, match="newer_by has no meaning with strategy"):
            inlay.merge(source, path, strategy, "id", newer_by="at")
    for name in ("id", "p"):
        with pytest.raises(InvalidArgumentError, match=f"The newer_by column '{name}' cannot"):
            inlay.merge(source, path, "upsert", "id", newer_by=name)
    with pytest.raises(SchemaMismatchError, match="The newer_by column 'at' does not exist in the source"):
        inlay.merge(source.drop_columns(["at"]), path, "upsert", "id", newer_by="at", missing_columns="keep")
    with pytest.raises(SchemaMismatchError, match="when"):
        inlay.merge(source.append_column("when", pa.array([1])), path, "upsert", "id", newer_by="when")
    nested = source.set_column(2, "at", pa.array([[1]]))
    with pytest.raises(InvalidArgumentError, match="cannot be a newer_by column"):
        inlay.merge(nested, path, "upsert", "id", newer_by="at")
