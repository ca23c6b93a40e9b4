"""Columns and types of a merge: strict, evolve, lossless casts, files with different schemas."""

from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.errors import ConcurrentModificationError
from inlay.schema import common_type
from tests import lake


def one(kind, value, name="x"):
    """A row with id 1 and one more column."""
    return pa.table({"id": pa.array([1], pa.int64()), name: pa.array([value], kind)})


def test_columns_match_by_name_and_the_order_of_the_target_wins(tmp_path, engine):
    target = pa.table({"id": [1], "a": ["a1"], "b": ["b1"]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"b": ["b2", "b3"], "id": [1, 2], "a": ["a2", "a3"]})
    inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert {tuple(lake.read_file(tmp_path / "d" / n).column_names) for n in lake.names(path)} == {("id", "a", "b")}
    assert lake.all_rows(path) == [{"id": 1, "a": "a2", "b": "b2"}, {"id": 2, "a": "a3", "b": "b3"}]


@pytest.mark.long_on("duckdb-union", "spark")  # inlay compares the schemas before it calls an engine
@pytest.mark.parametrize("strategy", ["insert", "update", "upsert", "full_merge", "deduplicate"])
@pytest.mark.parametrize(
    ("source", "named"),
    [
        (pa.table({"id": [1]}), "x"),
        (pa.table({"id": [1], "x": [1], "surplus": [1]}), "surplus"),
        (pa.table({"id": [1], "x": ["text"]}), "x"),
    ],
    ids=["missing", "extra", "not castable"],
)
def test_strict_mode_rejects_and_names_the_column(tmp_path, engine, strategy, source, named):
    path = lake.write(tmp_path / "d", {"a.parquet": one(pa.int64(), 5)})
    before = lake.photograph(path)
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(ValueError, match=named) as caught:
            call(source, path, strategy, ["id"], engine=engine)
        assert isinstance(caught.value, inlay.InlayError)
    assert lake.photograph(path) == before


LOSSLESS = [
    (pa.int32(), pa.int64(), 2**31 - 1),
    (pa.int8(), pa.uint64(), 127),
    (pa.uint64(), pa.int64(), 2**40),
    (pa.float32(), pa.float64(), 0.5),
    (pa.float64(), pa.float32(), 0.1),
    (pa.timestamp("ms"), pa.timestamp("ns"), 7_000_000),
    (pa.timestamp("ns", "UTC"), pa.timestamp("ms", "Asia/Tokyo"), 7),
    (pa.decimal128(5, 1), pa.decimal128(10, 3), Decimal("1.500")),
    (pa.decimal256(50, 2), pa.decimal128(10, 2), Decimal("1.25")),
    (pa.string(), pa.large_string(), "ü"),
    (pa.large_string(), pa.string_view(), "ü"),
    (pa.string(), pa.dictionary(pa.int8(), pa.string()), "ü"),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), "ü"),
    (pa.binary(), pa.large_binary(), b"\0"),
    (pa.binary(2), pa.binary(), b"ab"),
    (pa.list_(pa.int32()), pa.large_list(pa.int64()), [1, None]),
    (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), {"a": 3}),
    (pa.string(), pa.null(), None),
    (pa.int64(), pa.null(), None),
]


@pytest.mark.long_on("duckdb-union", "spark")  # inlay casts the source before it calls an engine
@pytest.mark.parametrize(("target", "source", "value"), LOSSLESS, ids=str)
def test_lossless_is_judged_by_value_and_the_type_of_the_target_wins(tmp_path, engine, target, source, value):
    path = lake.write(tmp_path / "d", {"a.parquet": one(target, None)})
    schema = lake.read_file(tmp_path / "d/a.parquet").schema
    updates = one(source, value)
    result = inlay.merge(updates, path, "upsert", ["id"], engine=engine)
    assert result.updated == 1
    got = lake.read_file(tmp_path / "d/a.parquet")
    assert got.schema == schema
    expected = lake.rows_of(updates)
    if target == pa.float64():
        expected = [{"id": 1, "x": pa.scalar(value, pa.float32()).as_py()}]
    assert lake.same_rows(lake.rows_of(got), expected)


LOSSY = [
    (pa.int32(), pa.int64(), 2**31),
    (pa.uint16(), pa.int64(), -1),
    (pa.float32(), pa.float64(), 0.1),
    (pa.float64(), pa.int64(), 2**53 + 1),
    (pa.int64(), pa.float64(), 0.5),
    (pa.timestamp("ms"), pa.timestamp("ns"), 1),
    (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"), 1),
    (pa.decimal128(5, 1), pa.decimal128(5, 2), Decimal("1.25")),
    (pa.decimal128(3, 1), pa.decimal128(10, 1), Decimal("1000.0")),
    (pa.binary(2), pa.binary(), b"abc"),
    (pa.int64(), pa.string(), "x"),
    (pa.date32(), pa.timestamp("s"), 1),
    (pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64())]), {"a": 2**40}),
    (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())]), {"b": 1}),
    (pa.list_(pa.int8()), pa.list_(pa.int64()), [1, 1000]),
]


@pytest.mark.long_on("duckdb-union", "spark")  # inlay casts the source before it calls an engine
@pytest.mark.parametrize(("target", "source", "value"), LOSSY, ids=str)
def test_a_lossy_cast_is_rejected(tmp_path, engine, target, source, value):
    path = lake.write(tmp_path / "d", {"a.parquet": one(target, None)})
    before = lake.photograph(path)
    with pytest.raises(ValueError, match=r"\bx\b"):
        inlay.merge(one(source, value), path, "upsert", ["id"], engine=engine)
    assert lake.photograph(path) == before


@pytest.mark.parametrize(
    ("target", "source", "value"),
    [(pa.string(), pa.int64(), 7), (pa.string(), pa.float64(), 1.5), (pa.int64(), pa.string(), "7")],
    ids=str,
)
def test_numbers_and_text_are_not_cast_into_each_other(tmp_path, engine, target, source, value):
    """The number 7 may have been the text "007" in its file, so inlay does not guess."""
    path = lake.write(tmp_path / "d", {"a.parquet": one(target, None)})
    with pytest.raises(ValueError, match=r"\bx\b"):
        inlay.merge(one(source, value), path, "upsert", ["id"], engine=engine)


@pytest.mark.parametrize("schema_mode", ["strict", "evolve"])
@pytest.mark.parametrize(("target", "source"), [("UTC", None), (None, "UTC"), (None, "Europe/Berlin")])
def test_naive_and_zoned_timestamps_never_mix(tmp_path, engine, target, source, schema_mode):
    """This is true for values and for keys."""
    path = lake.write(tmp_path / "d", {"a.parquet": one(pa.timestamp("us", target), 5)})
    updates = one(pa.timestamp("us", source), 5)
    for keys in (["id"], ["x"], ["id", "x"]):
        with pytest.raises(ValueError, match=r"\bx\b"):
            inlay.merge(updates, path, "upsert", keys, engine=engine, schema_mode=schema_mode)


def test_time_zones_mix_and_the_zone_of_the_target_is_kept(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": one(pa.timestamp("us", "Europe/Berlin"), 5)})
    inlay.merge(one(pa.timestamp("us", "UTC"), 9), path, "upsert", ["id"], engine=engine)
    got = lake.read_file(tmp_path / "d/a.parquet")
    assert got.schema.field("x").type == pa.timestamp("us", "Europe/Berlin")
    assert lake.rows_of(got) == [{"id": 1, "x": 9000}]


def test_a_null_for_a_column_that_is_not_nullable_is_rejected(tmp_path, engine):
    """A NOT NULL column cannot hold NULL."""
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int64(), nullable=False)])
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "x": [2]}, schema)})
    with pytest.raises(ValueError, match=r"\bx\b"):
        inlay.merge(one(pa.int64(), None), path, "upsert", ["id"], engine=engine)
    inlay.merge(one(pa.int64(), 3), path, "upsert", ["id"], engine=engine)
    assert lake.read_file(tmp_path / "d/a.parquet").schema.field("x").nullable is False


@pytest.mark.parametrize(
    ("columns", "hint"),
    [
        (["id", "nmae"], "Rename the source columns to the names in the dataset"),
        (["id"], 'missing_columns="keep" to keep the stored values'),
        (["id", "name", "colour"], "add the new columns to the dataset"),
    ],
)
def test_hints_about_columns_lose_no_data(tmp_path, columns, hint):
    """Following the hint for a misspelled column must not set the intended column to NULL."""
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "name": ["ann"]})})
    source = pa.table({name: [1] if name == "id" else ["x"] for name in columns})
    with pytest.raises(ValueError, match="differ") as caught:
        inlay.merge(source, path, "upsert", ["id"])
    assert hint in str(caught.value)
    assert ("Pass " in str(caught.value) or "pass " in str(caught.value)) == ("nmae" not in columns)


def test_evolve_adds_new_columns_to_rewritten_and_new_files_only(tmp_path, engine):
    files = {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([3])}
    path = lake.write(tmp_path / "d", files)
    untouched = lake.photograph(path)["b.parquet"]
    source = lake.table([1, 9], ["x", "y"], extra=pa.array([10, 90], pa.int16()))
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine, schema_mode="evolve")
    assert (result.updated, result.inserted) == (1, 1)
    rows = lake.contents(path)
    assert rows["a.parquet"] == [{"id": 1, "v": "x", "extra": 10}, {"id": 2, "v": "v2", "extra": None}]
    [new] = lake.new_names(path, files)
    assert rows[new] == [{"id": 9, "v": "y", "extra": 90}]
    assert lake.photograph(path)["b.parquet"] == untouched
    field = lake.read_file(tmp_path / "d/a.parquet").schema.field("extra")
    assert (field.type, field.nullable) == (pa.int16(), True)


def test_after_evolve_our_reader_and_compact_see_one_schema(tmp_path, engine):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    source = lake.table([2], ["x"], extra=pa.array([7]))
    inlay.merge(source, path, "upsert", ["id"], engine=engine, schema_mode="evolve")
    expected = [{"id": 1, "v": "v1", "extra": None}, {"id": 2, "v": "x", "extra": 7}]
    assert lake.rows_of(inlay.read_parquet(path)) == expected
    inlay.compact(path)
    assert all(lake.read_file(tmp_path / "d" / n).column_names == ["id", "v", "extra"] for n in lake.names(path))
    assert lake.same_rows(lake.all_rows(path), expected, ordered=False)


@pytest.mark.parametrize("schema_mode", ["strict", "evolve"])
def test_a_key_column_must_be_in_source_and_target(tmp_path, engine, schema_mode):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    with_k = lake.table([1], k=pa.array([1]))
    for source, keys in ((lake.table([1]), ["id", "k"]), (with_k, ["id", "k"])):
        with pytest.raises(ValueError, match=r"\bk\b"):
            inlay.merge(source, path, "upsert", keys, engine=engine, schema_mode=schema_mode)


def mixed(tmp_path, first, second):
    """Two files of one dataset whose column x differs in type."""
    files = {
        "a.parquet": pa.table({"id": [1, 2], "x": pa.array([1, 2], first)}),
        "b.parquet": pa.table({"id": [3, 4], "x": pa.array([3, 4], second)}),
    }
    return lake.write(tmp_path / "d", files)


@pytest.mark.parametrize(
    ("first", "second", "wide"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.int32(), pa.int64()),
        (pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.float32(), pa.float64(), pa.float64()),
    ],
    ids=str,
)
def test_files_of_different_types_keep_their_own_and_inserts_are_widened(tmp_path, engine, first, second, wide):
    path = mixed(tmp_path, first, second)
    old = lake.all_rows(path)
    source = pa.table({"id": [1, 3, 9], "x": pa.array([10_000, 30_000, 90_000], wide)})
    result = inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (2, 1)
    [new] = lake.new_names(path, {"a.parquet", "b.parquet"})
    tables = [lake.read_file(tmp_path / "d" / name) for name in ("a.parquet", "b.parquet", new)]
    assert [table.schema.field("x").type for table in tables] == [first, second, wide]
    new_rows = lake.rows_of(source)
    expected = [new_rows[0], old[1], new_rows[1], old[3], new_rows[2]]
    assert [row for table in tables for row in lake.rows_of(table)] == expected


def test_a_value_that_does_not_fit_the_file_of_its_key_is_rejected(tmp_path, engine):
    """A rewritten file keeps its types, so id 1 cannot get a value that only fits the other file."""
    path = mixed(tmp_path, pa.int32(), pa.int64())
    before = lake.photograph(path)
    big = pa.table({"id": [1], "x": pa.array([2**40], pa.int64())})
    for call in (inlay.plan_merge, inlay.merge):
        with pytest.raises(ValueError, match=r"\bx\b"):
            call(big, path, "upsert", ["id"], engine=engine)
    assert lake.photograph(path) == before
    fits = pa.table({"id": [3], "x": pa.array([2**40], pa.int64())})
    assert inlay.merge(fits, path, "upsert", ["id"], engine=engine).updated == 1


def test_keys_of_different_types_match_across_files(tmp_path, engine):
    files = {
        "a.parquet": pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]}),
        "b.parquet": pa.table({"id": pa.array([3, 2**40], pa.int64()), "v": ["c", "d"]}),
    }
    path = lake.write(tmp_path / "d", files)
    result = inlay.merge(lake.table([2, 2**40, 5]), path, "upsert", ["id"], engine=engine)
    assert (result.updated, result.inserted) == (2, 1)
    assert lake.read_file(tmp_path / "d/a.parquet").schema.field("id").type == pa.int32()


def test_files_with_different_column_order_keep_their_own(tmp_path, engine):
    files = {"a.parquet": lake.table([1]), "b.parquet": lake.table([2]).select(["v", "id"])}
    path = lake.write(tmp_path / "d", files)
    inlay.merge(lake.table([1, 2], ["x", "y"]), path, "upsert", ["id"], engine=engine)
    assert lake.read_file(tmp_path / "d/b.parquet").column_names == ["v", "id"]
    assert lake.same_rows(lake.all_rows(path), [{"id": 1, "v": "x"}, {"id": 2, "v": "y"}])


def test_an_unknown_schema_mode_is_rejected(tmp_path, engine):
    with pytest.raises(ValueError, match="loose"):
        inlay.merge(lake.table([1]), str(tmp_path / "d"), "upsert", ["id"], engine=engine, schema_mode="loose")


# -------------------------------------------------------------------------------------------------------- dictionaries
NARROW = pa.dictionary(pa.int8(), pa.string())


def narrow(first: int, values: list[str]) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(first, first + len(values))), "x": pa.array(values).dictionary_encode().cast(NARROW)}
    )


def test_files_with_narrow_dictionaries_compact_to_a_readable_file(tmp_path, engine):
    """Each has 31 values and indices of 8 bits, as pandas writes categories; together they have 372."""
    files = {f"{n:02}.parquet": narrow(31 * n, [f"{n}-{k}" for k in range(31)]) for n in range(12)}
    path = lake.write(tmp_path / "d", files)
    inlay.compact(path, engine=engine)
    (file,) = (tmp_path / "d").glob("*.parquet")
    found = pq.read_table(file)
    assert found["x"].to_pylist() == [f"{n}-{k}" for n in range(12) for k in range(31)]
    assert inlay.merge(pa.table({"id": [5], "x": ["new"]}), path, "upsert", ["id"], engine=engine).updated == 1


def test_more_values_than_dictionary_indices_can_hold_are_rejected(tmp_path, engine):
    """The file declares indices of 8 bits, so no reader could read the row group."""
    path = lake.write(tmp_path / "d", {"a.parquet": narrow(0, [f"a{n}" for n in range(120)])})
    batches = [pa.record_batch({"id": [1000 + n], "x": [f"new {n}"]}) for n in range(300)]
    before = (tmp_path / "d/a.parquet").read_bytes()
    source = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    with pytest.raises(ValueError, match="'x'"):
        inlay.merge(source, path, "upsert", ["id"], engine=engine)
    assert [file.name for file in (tmp_path / "d").glob("*.parquet")] == ["a.parquet"]
    assert (tmp_path / "d/a.parquet").read_bytes() == before


def test_narrow_and_wide_dictionaries_are_wide_together():
    wide = pa.dictionary(pa.int16(), pa.string())
    assert common_type(NARROW, wide) == common_type(wide, NARROW) == wide


# --------------------------------------------------------------------------------------------------------------- INT96
def test_int96_and_other_timestamps_are_not_mixed_in_one_file(tmp_path, engine):
    """The writer would write all columns as INT96, which has no time zone and fewer years."""
    at = pa.array([10**15] * 2, pa.timestamp("us"))
    files = {"a.parquet": pa.table({"id": [1, 2], "at": at})}
    path = lake.write(tmp_path / "d", files, use_deprecated_int96_timestamps=True)
    before = (tmp_path / "d/a.parquet").read_bytes()
    seen = pa.array([253_402_214_400 * 10**6] * 2, pa.timestamp("us", "UTC"))  # the last day of 9999
    source = pa.table({"id": [2, 3], "at": at, "seen": seen})
    with pytest.raises(ValueError, match="'seen' cannot be written, because column 'at' has INT96"):
        inlay.merge(source, path, "upsert", ["id"], schema_mode="evolve", engine=engine)
    assert (tmp_path / "d/a.parquet").read_bytes() == before
    inlay.merge(pa.table({"id": [2, 3], "at": at}), path, "upsert", ["id"], engine=engine)
    kinds = {pq.ParquetFile(file).schema.column(1).physical_type for file in (tmp_path / "d").glob("*.parquet")}
    assert kinds == {"INT96"}


def test_a_schema_change_during_a_merge_is_a_conflict(memory, replace_sleep):
    """On an object store, the source may have been cast to a schema that another writer replaces."""
    inlay.write_dataset(one(pa.int64(), 5), "/changing/d", filesystem=memory)
    replace_sleep(lambda _: None)

    def change(step):
        if step.phase == "rewrite":
            inlay.write_dataset(one(pa.string(), "five"), "/changing/d", mode="overwrite", filesystem=memory)

    with pytest.raises(ConcurrentModificationError, match="Another writer changed the schema"):
        inlay.merge(one(pa.int64(), 6), "/changing/d", "upsert", ["id"], filesystem=memory, progress=change)
    assert inlay.read_parquet("/changing/d", filesystem=memory).to_pylist() == [{"id": 1, "x": "five"}]
