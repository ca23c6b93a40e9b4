"""What each strategy does, row counts, key equality, and empty sources and datasets."""

import contextlib
import math
import struct
from pathlib import Path

import pyarrow as pa
import pytest

import inlay
from tests import lake, oracle

STRATEGIES = list(oracle.TRUTH)
REPLACING = [name for name in STRATEGIES if oracle.TRUTH[name][0] == "replace"]
INSERTING = [name for name in STRATEGIES if oracle.TRUTH[name][1] == "insert"]


def check_counts(result, expected):
    """Check every count of the result, and that the counts add up."""
    got = (
        result.source_count,
        result.target_count_before,
        result.target_count_after,
        result.inserted,
        result.updated,
        result.deleted,
        result.unchanged,
    )
    want = (
        expected.source_count,
        expected.before,
        expected.after,
        expected.inserted,
        expected.updated,
        expected.deleted,
        expected.unchanged,
    )
    assert got == want
    assert result.target_count_before + result.inserted - result.deleted == result.target_count_after


def check_metadata(result, path):
    """Check the metadata of each file against its footer."""
    for meta in result.files:
        if meta.operation == "removed":
            assert not Path(meta.path).exists()
        else:
            assert meta.row_count == lake.footer(meta.path).num_rows
            assert meta.size_bytes == Path(meta.path).stat().st_size
    listed = sorted(meta.path for meta in result.files if meta.operation != "removed")
    assert listed == [f"{path}/{name}" for name in lake.names(path)]
    for operation in ("rewritten", "inserted", "preserved", "removed"):
        paths = [meta.path for meta in result.files if meta.operation == operation]
        assert sorted(getattr(result, f"{operation}_files")) == sorted(paths)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_truth_table(tmp_path, engine, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3, 4])})
    source = lake.table([2, 3, 9], ["two", "three", "nine"])
    before = lake.contents(path)
    expected = oracle.merge(list(before.items()), lake.rows_of(source), strategy, ["id"])
    result = inlay.merge(source, path, strategy, ["id"], engine=engine)
    after = lake.contents(path)
    assert {name: after.get(name, []) for name in before} == expected.files
    assert [after[name] for name in lake.new_names(path, before)] == list(expected.inserts.values())
    assert result.strategy == strategy
    check_counts(result, expected)
    check_metadata(result, path)


@pytest.mark.parametrize("strategy", REPLACING)
def test_replace_is_full_row_and_in_place(tmp_path, engine, strategy):
    """NULL in the source replaces a value, and each row group keeps its order."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(100))}, row_group_size=10)
    ids = list(range(100)) if strategy == "full_merge" else [5, 55]
    values = [None if i == 55 else "new" if i == 5 else f"v{i}" for i in ids]
    inlay.merge(lake.table(ids, values), path, strategy, ["id"], engine=engine)
    rows = lake.all_rows(path)
    assert [row["id"] for row in rows] == list(range(100))
    assert [rows[5]["v"], rows[55]["v"], rows[6]["v"]] == ["new", None, "v6"]
    footer = lake.footer(tmp_path / "d/a.parquet")
    bounds = [footer.row_group(i).column(0).statistics for i in range(footer.num_row_groups)]
    assert [(b.min, b.max) for b in bounds] == [(i, i + 9) for i in range(0, 100, 10)]


@pytest.mark.parametrize("strategy", REPLACING)
def test_equal_rows_cost_nothing(tmp_path, engine, strategy):
    """Equal rows count as updated and as unchanged; files keep their bytes, times and inodes."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    before = lake.photograph(path)
    result = inlay.merge(lake.table([1, 2, 3]), path, strategy, ["id"], engine=engine)
    assert lake.photograph(path) == before
    assert (result.updated, result.unchanged, result.inserted, result.deleted) == (3, 3, 0, 0)
    assert result.preserved_files == [f"{path}/a.parquet", f"{path}/b.parquet"]
    assert result.rewritten_files == result.inserted_files == result.removed_files == []


def test_row_groups_without_a_difference_are_not_encoded_again(tmp_path, engine):
    """Row group 0 has equal rows, 1 a changed row, 2 no match: only 1 is encoded again."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(range(30))}, row_group_size=10)
    file = tmp_path / "d/a.parquet"
    old = [[lake.chunk_bytes(file, group, column) for column in (0, 1)] for group in range(3)]
    result = inlay.merge(lake.table([3, 4, 15], ["v3", "v4", "x"]), path, "update", ["id"], engine=engine)
    assert (result.updated, result.unchanged, result.rewritten_files) == (3, 2, [str(file)])
    new = [[lake.chunk_bytes(file, group, column) for column in (0, 1)] for group in range(3)]
    assert (new[0], new[2]) == (old[0], old[2])
    assert new[1][1] != old[1][1]


def test_a_full_merge_of_a_snapshot_rewrites_only_what_changed(tmp_path, engine):
    tables = {f"{i}.parquet": lake.table(range(i * 50, i * 50 + 50)) for i in range(6)}
    path = lake.write(tmp_path / "d", tables)
    values = ["changed" if i in (120, 121, 122) else f"v{i}" for i in range(300)]
    result = inlay.merge(lake.table(range(300), values), path, "full_merge", ["id"], engine=engine)
    assert result.rewritten_files == [f"{path}/2.parquet"]
    assert (result.updated, result.unchanged, result.deleted) == (300, 297, 0)


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (-0.0, 0.0)])
def test_equal_is_bit_equal_for_zeros(tmp_path, engine, old, new):
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "x": [old]})})
    result = inlay.merge(pa.table({"id": [1], "x": [new]}), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.unchanged) == (1, 0)
    assert math.copysign(1, lake.all_rows(path)[0]["x"]) == math.copysign(1, new)


def nan(payload):
    return struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 + payload))[0]


def test_equal_is_bit_equal_for_nans(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1, 2], "x": [nan(0), nan(0)]})})
    source = pa.table({"id": [1, 2], "x": [nan(0), nan(7)]})
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.unchanged) == (2, 1)
    assert lake.same_rows(lake.all_rows(path), lake.rows_of(source))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_null_source_keys_are_rejected_with_a_count_and_an_example(tmp_path, engine, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    source = lake.table([7012, None, None, None])
    with pytest.raises(ValueError, match=r"\b3\b") as caught:
        inlay.merge(source, path, strategy, ["id"], engine=engine)
    assert isinstance(caught.value, inlay.InlayError)
    assert "id" in str(caught.value)
    composite = pa.table({"id": [7012, 2], "v": pa.array([None, "b"], pa.string())})
    with pytest.raises(ValueError, match="7012"):
        inlay.merge(composite, path, strategy, ["id", "v"], engine=engine)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name not in ("deduplicate", "delete")])
def test_duplicate_source_keys_are_rejected_with_up_to_five_examples(tmp_path, engine, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    doubles = [*range(9001, 9008), *range(9001, 9008), 5]
    with pytest.raises(ValueError, match="900") as caught:
        inlay.merge(lake.table(doubles), path, strategy, ["id"], engine=engine)
    assert sum(str(i) in str(caught.value) for i in range(9001, 9008)) == 5


def test_keys_equal_but_for_the_sign_of_zero_or_the_bits_of_nan_are_duplicates(tmp_path, engine):
    for pair in ([0.0, -0.0], [nan(0), nan(1)]):
        source = pa.table({"id": pair, "v": ["a", "b"]})
        with pytest.raises(ValueError, match="id"):
            inlay.merge(source, str(tmp_path / "d"), "upsert", ["id"], engine=engine)


def test_every_target_row_of_a_duplicate_key_is_replaced(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2, 1]), "b.parquet": lake.table([1])})
    result = inlay.merge(lake.table([1], ["x"]), path, "upsert", ["id"], engine=engine)
    assert lake.id_values(lake.all_rows(path)) == [(1, "x"), (2, "v2"), (1, "x"), (1, "x")]
    assert (result.updated, result.inserted, result.target_count_after) == (3, 0, 4)


def test_nan_keys_match_whatever_their_bits(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1.0, nan(0), 5.0], "v": list("abc")})})
    source = pa.table({"id": [nan(7), 2.0], "v": ["n", "two"]})
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert [row["v"] for row in lake.all_rows(path)] == ["a", "n", "c", "two"]


def test_nan_keys_are_found_although_statistics_leave_them_out(tmp_path, engine):
    files = {
        "a.parquet": pa.table({"id": [1.0, math.nan], "v": ["a", "b"]}),
        "b.parquet": pa.table({"id": [8.0, 9.0], "v": ["c", "d"]}),
    }
    path = lake.write(tmp_path / "d", files)
    result = inlay.merge(pa.table({"id": [math.nan], "v": ["x"]}), path, "update", ["id"], engine=engine)
    assert (result.updated, result.rewritten_files) == (1, [f"{path}/a.parquet"])


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (-0.0, 0.0)])
def test_zero_keys_match_and_the_bits_of_the_source_win(tmp_path, engine, old, new):
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [old, 4.0], "v": ["a", "b"]})})
    source = pa.table({"id": [new], "v": ["a"]})
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.unchanged, result.inserted) == (1, 0, 0)
    assert math.copysign(1, lake.all_rows(path)[0]["id"]) == math.copysign(1, new)


def test_strings_compare_as_bytes(tmp_path, engine):
    ids = ["é", "e\u0301", "a", "A", "a ", "", "a\0", "ß", "ss", "z" * 300]
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": ids, "v": ["old"] * len(ids)})})
    source = pa.table({"id": ["é", "a", "", "z" * 300, "z" * 299], "v": ["new"] * 5})
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (4, 1)
    changed = [row["id"] for row in lake.all_rows(path) if row["v"] == "new"]
    assert changed == ["é", "a", "", "z" * 300, "z" * 299]


def test_timestamps_compare_as_instants(tmp_path, engine):
    """An instant in milliseconds of Berlin time equals the same instant in microseconds of UTC."""
    noon = 1_735_732_800
    target = pa.table({"id": pa.array([noon * 10**6, 0], pa.timestamp("us", "UTC")), "v": ["a", "b"]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    zoned = pa.array([noon * 1000], pa.timestamp("ms", "Europe/Berlin"))
    result = inlay.merge(pa.table({"id": zoned, "v": ["x"]}), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 0)
    assert lake.read_file(tmp_path / "d/a.parquet").schema == target.schema


def test_a_source_key_that_fits_is_cast_to_the_type_of_the_target(tmp_path, engine):
    target = pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    result = inlay.merge(lake.table([2, 3]), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert {lake.read_file(tmp_path / "d" / name).schema.field("id").type for name in lake.names(path)} == {pa.int32()}


@pytest.mark.parametrize(
    ("target", "source"),
    [
        (pa.array([1], pa.int32()), pa.array([2**40], pa.int64())),
        (pa.array([2.0**53], pa.float64()), pa.array([2**53 + 1], pa.int64())),
        (pa.array([1], pa.int64()), pa.array([1.5], pa.float64())),
        (pa.array([0], pa.timestamp("us")), pa.array([1], pa.timestamp("ns"))),
        (pa.array([1], pa.uint8()), pa.array([-1], pa.int8())),
        (pa.array([1], pa.int64()), pa.array(["x"], pa.string())),
    ],
)
def test_a_source_key_that_does_not_fit_is_rejected(tmp_path, engine, target, source):
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": target, "v": ["a"]})})
    with pytest.raises(ValueError, match="id"):
        inlay.merge(pa.table({"id": source, "v": ["x"]}), path, "upsert", ["id"], engine=engine)


def test_int64_and_float64_keys_are_never_compared_as_floats(tmp_path, engine):
    """The float 2**53 must not match the integer 2**53 + 1."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([2**53 + 1], ["a"])})
    source = pa.table({"id": pa.array([2.0**53]), "v": ["x"]})
    with contextlib.suppress(ValueError):
        inlay.merge(source, path, "update", ["id"], engine=engine)
    assert lake.id_values(lake.all_rows(path)) == [(2**53 + 1, "a")]


@pytest.mark.parametrize("state", ["missing", "empty directory", "empty file"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_empty_target_is_an_initial_load_and_update_does_nothing(tmp_path, engine, strategy, state):
    path = str(tmp_path / "d")
    if state == "empty directory":
        (tmp_path / "d").mkdir()
    elif state == "empty file":
        lake.write(tmp_path / "d", {"a.parquet": lake.table([])})
    before = lake.photograph(path)
    source = lake.table([3, 1, 2])
    result = inlay.merge(source, path, strategy, ["id"], engine=engine)
    inserted = 3 if strategy in INSERTING else 0
    assert (result.target_count_before, result.updated, result.deleted) == (0, 0, 0)
    assert (result.source_count, result.inserted, result.target_count_after) == (3, inserted, inserted)
    if strategy not in INSERTING:
        assert lake.photograph(path) == before
        assert result.inserted_files == []
    else:
        assert lake.all_rows(path) == lake.rows_of(source)


def test_an_empty_source_into_a_new_dataset_is_an_empty_result(tmp_path, engine):
    for strategy in STRATEGIES:
        result = inlay.merge(lake.table([]), str(tmp_path / strategy), strategy, ["id"], engine=engine)
        assert (result.inserted, result.deleted, result.target_count_after) == (0, 0, 0)


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "full_merge"])
def test_an_empty_source_changes_nothing(tmp_path, engine, strategy):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    before = lake.photograph(path)
    result = inlay.merge(lake.table([]), path, strategy, ["id"], engine=engine)
    assert lake.photograph(path) == before
    assert (result.source_count, result.updated, result.target_count_after) == (0, 0, 2)


def test_full_merge_with_an_empty_source_empties_the_dataset(tmp_path, engine):
    """One file is kept with zero rows and the schema, the others are removed, and the next merge works."""
    files = {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3]), "c.parquet": lake.table([4])}
    path = lake.write(tmp_path / "d", files)
    schema = lake.read_file(tmp_path / "d/a.parquet").schema
    result = inlay.merge(lake.table([]), path, "full_merge", ["id"], engine=engine)
    assert (result.deleted, result.inserted, result.updated) == (4, 0, 0)
    assert (result.target_count_before, result.target_count_after) == (4, 0)
    [left] = lake.names(path)
    assert lake.read_file(tmp_path / "d" / left).num_rows == 0
    assert lake.read_file(tmp_path / "d" / left).schema.equals(schema, check_metadata=True)
    assert sorted(result.removed_files) == sorted({f"{path}/{name}" for name in files} - {f"{path}/{left}"})
    check_metadata(result, path)
    inlay.merge(lake.table([7]), path, "upsert", ["id"], engine=engine)
    assert lake.id_values(lake.all_rows(path)) == [(7, "v7")]


def test_a_file_left_without_rows_is_removed(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])})
    result = inlay.merge(lake.table([1, 2]), path, "full_merge", ["id"], engine=engine)
    assert lake.names(path) == ["a.parquet"]
    assert result.removed_files == [f"{path}/b.parquet"]
    assert [meta.operation for meta in result.files if meta.path.endswith("b.parquet")] == ["removed"]
    check_metadata(result, path)


def test_no_empty_file_is_kept_when_new_files_carry_the_schema(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    result = inlay.merge(lake.table([5]), path, "full_merge", ["id"], engine=engine)
    assert (result.deleted, result.inserted) == (2, 1)
    assert lake.id_values(lake.all_rows(path)) == [(5, "v5")]
    assert len(lake.names(path)) == 1


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_target_rows_with_null_keys_match_nothing(tmp_path, engine, strategy):
    """Such rows are kept unchanged; full_merge deletes them. Strategy delete deletes the row that matches."""
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([None, 1, None], ["n", "one", "m"])})
    result = inlay.merge(lake.table([1], ["x"]), path, strategy, ["id"], engine=engine)
    kept = [row["v"] for row in lake.all_rows(path) if row["id"] is None]
    assert kept == ([] if strategy == "full_merge" else ["n", "m"])
    assert result.deleted == {"full_merge": 2, "delete": 1}.get(strategy, 0)


def test_a_null_part_of_a_composite_target_key_matches_nothing(tmp_path, engine):
    target = pa.table({"a": [1, 1], "b": pa.array([None, 2], pa.int64()), "v": ["n", "two"]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"a": [1], "b": [2], "v": ["x"]})
    result = inlay.merge(source, path, "full_merge", ["a", "b"], engine=engine)
    assert (result.updated, result.deleted) == (1, 1)
    assert [row["v"] for row in lake.all_rows(path)] == ["x"]


DEDUP = {
    "no order: the last in source order": (None, [1, 3, 2], "c"),
    "a column": ("at", [1, 3, 2], "b"),
    "a list": (["at"], [1, 3, 2], "b"),
    "nulls are lowest": ("at", [-5, None, None], "a"),
    "ties by source order": ("at", [3, 3, 2], "b"),
    "all null: source order": ("at", [None, None, None], "c"),
    "two columns": (["at", "v"], [3, 3, 3], "c"),
}


@pytest.mark.parametrize("case", DEDUP)
def test_deduplicate_keeps_the_last(tmp_path, engine, case):
    order, stamps, winner = DEDUP[case]
    source = pa.table({"id": [1, 1, 1], "v": ["a", "b", "c"], "at": pa.array(stamps, pa.int64())})
    target = pa.table({"id": [1], "v": ["old"], "at": [0]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    result = inlay.merge(source, path, "deduplicate", ["id"], dedup_order_by=order, engine=engine)
    assert [row["v"] for row in lake.all_rows(path)] == [winner]
    assert (result.source_count, result.updated, result.inserted) == (3, 1, 0)


def test_deduplicate_counts_all_source_rows(tmp_path, engine):
    source = lake.table([2, 1, 2, 1], ["a", "b", "c", "d"])
    result = inlay.merge(source, str(tmp_path / "d"), "deduplicate", ["id"], engine=engine)
    assert (result.source_count, result.inserted, result.target_count_after) == (4, 2, 2)
    assert sorted(lake.id_values(lake.all_rows(tmp_path / "d"))) == [(1, "d"), (2, "c")]


def test_deduplicate_does_not_reduce_the_target(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 1, 2])})
    result = inlay.merge(lake.table([2, 2], ["x", "y"]), path, "deduplicate", ["id"], engine=engine)
    assert lake.id_values(lake.all_rows(path)) == [(1, "v1"), (1, "v1"), (2, "y")]
    assert result.target_count_after == 3


def test_composite_keys_match_as_tuples(tmp_path, engine):
    """The key ('a', 'bc') is not ('ab', 'c'), and one equal column is not a match."""
    target = pa.table({"a": ["a", "ab", "x"], "b": ["bc", "c", "c"], "v": [1, 2, 3]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"a": ["a", "ab"], "b": ["c", "c"], "v": [10, 20]})
    result = inlay.merge(source, path, "upsert", ["a", "b"], engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    assert [row["v"] for row in lake.all_rows(path)] == [1, 20, 3, 10]
