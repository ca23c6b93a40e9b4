"""Renamed, dropped and widened columns: `alter` and `plan_alter`."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.errors import InvalidArgumentError, MergeCancelledError, NotFoundError, SchemaMismatchError
from inlay.schema import is_widening
from tests import lake
from tests.parquet.splicing import READERS, WRITERS, ask_datafusion, chunk_pages, needs_bloom_filters, rows_of, sample


def renamed(table: pa.Table, **names: str) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def pages(path: Path) -> list[dict[str, Any]]:
    """Return the pages of each column by name, for each row group."""
    names = [pq.ParquetFile(path).schema.column(i).path for i in range(lake.footer(path).num_columns)]
    return [dict(zip(names, group, strict=True)) for group in chunk_pages(path.read_bytes())]


# ------------------------------------------------------------------------------------------------- rename and drop
def test_renaming_and_dropping_copy_every_page(tmp_path: Path, engine: Any) -> None:
    path = lake.write(
        tmp_path / "d", {"a.parquet": sample(0, 5000), "b.parquet": sample(5000, 100)}, row_group_size=2048
    )
    before = pages(tmp_path / "d/a.parquet")
    photo = lake.photograph(path)
    changes: Any = {"rename": {"text": "note", "place": "location"}, "drop": ["tags", "flag"], "engine": engine}
    plan = inlay.plan_alter(path, **changes)
    assert lake.photograph(path) == photo
    assert plan.bytes_to_rewrite == 0
    assert [file.operation for file in plan.files] == ["rewritten", "rewritten"]
    result = inlay.alter(path, **changes)
    assert result.rewritten_files == plan.affected_files == [f"{path}/a.parquet", f"{path}/b.parquet"]
    assert result.bytes_copied == plan.bytes_copied
    assert (result.row_count, result.preserved_files) == (5100, [])
    after = pages(tmp_path / "d/a.parquet")
    for old, new in zip(before, after, strict=True):
        assert {name.replace("note", "text").replace("location", "place"): page for name, page in new.items()} == {
            name: page for name, page in old.items() if not name.startswith(("tags", "flag"))
        }
    expected = renamed(sample(0, 5100).drop_columns(["tags", "flag"]), text="note", place="location")
    assert rows_of(inlay.read_parquet(path)) == rows_of(expected)
    assert inlay.read_parquet(path).column_names == expected.column_names


@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_reads_altered_files_of_every_writer(tmp_path: Path, writer: str) -> None:
    (tmp_path / "d").mkdir()
    file = tmp_path / "d/f.parquet"
    WRITERS[writer](sample(), file)
    place = pa.struct([("x", pa.int64()), ("name", pa.string()), ("zip", pa.string())])
    inlay.alter(
        str(tmp_path / "d"),
        rename={"id": "key", "word": "text", "text": "word"},
        drop=["flag", "tags"],
        widen={"small": "bigint", "price": "decimal(14,4)", "place": place},
    )
    kept = renamed(sample().drop_columns(["flag", "tags"]), word="text", text="word")
    places = [row | {"zip": None} for row in kept["place"].to_pylist()]
    expected = rows_of(kept.set_column(kept.column_names.index("place"), "place", pa.array(places, place)))
    for name, read in READERS.items():
        got = read(file)
        assert rows_of(renamed(got, key="id")) == expected, name
        assert got.schema.field("small").type == pa.int64(), name
        assert got.schema.field("price").type == pa.decimal128(14, 4), name
    for low in (0, 2043, 4096, 6140):
        found = ask_datafusion(file, f'SELECT * FROM t WHERE "key" >= {low} AND "key" < {low + 4} AND price >= 0')
        assert rows_of(renamed(found, key="id")) == expected[low : low + 4]
    found = ask_datafusion(file, "SELECT * FROM t WHERE word = 'text number 2100' AND small = 0")
    assert rows_of(renamed(found, key="id")) == expected[2100:2101]


# Each engine writes the same bytes; Spark is the only reader that the other tests lack.
@pytest.mark.spark
def test_spark_reads_altered_files(tmp_path: Path) -> None:
    from tests.spark import cluster

    spark = cluster.local_session()
    path = str(tmp_path / "d")
    rows = "SELECT CAST(id AS int) AS id, CAST(id AS float) AS score, DATE'2024-01-01' AS day FROM range(10)"
    spark.sql(rows).write.parquet(path)
    inlay.alter(path, rename={"score": "points"}, widen={"id": "bigint", "score": "double", "day": "timestamp"})
    frame = spark.read.parquet(path)
    kinds = dict(frame.dtypes)
    assert (kinds["id"], kinds["points"], kinds["day"]) == ("bigint", "double", "timestamp_ntz")
    assert sorted((row.id, row.points) for row in frame.collect()) == [(n, float(n)) for n in range(10)]
    assert {str(row.day) for row in frame.collect()} == {"2024-01-01 00:00:00"}


def test_a_column_that_keeps_its_name_must_exist(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"day=1/a.parquet": pa.table({"id": [1]})})
    for call in (inlay.plan_alter, inlay.alter):
        with pytest.raises(SchemaMismatchError, match="The column 'idd' does not exist in the dataset") as caught:
            call(path, rename={"idd": "idd"})
        assert caught.value.hint == "Did you mean 'id'?"
    assert inlay.alter(path, rename={"id": "id", "day": "day"}).rewritten_files == []


def test_columns_swap_names(tmp_path: Path, engine: Any) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": [1], "x": ["x"], "y": [2.5]})})
    inlay.alter(path, rename={"x": "y", "y": "x", "id": "id"}, engine=engine)
    assert lake.all_rows(path) == [{"id": 1, "y": "x", "x": 2.5}]


def test_a_merge_uses_the_new_columns(tmp_path: Path, engine: Any) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": pa.array([1, 2], pa.int32()), "v": ["a", "b"]})})
    inlay.alter(path, rename={"id": "key", "v": "value"}, widen={"id": "bigint"}, engine=engine)
    source = pa.table({"key": [2, 2**40], "value": ["new", "wide"]})
    result = inlay.merge(source, path, "upsert", "key", engine=engine)
    assert (result.updated, result.inserted) == (1, 1)
    rows = inlay.read_parquet(path).to_pylist()
    assert {row["key"]: row["value"] for row in rows} == {1: "a", 2: "new", 2**40: "wide"}


def test_files_without_the_column_are_preserved(tmp_path: Path, engine: Any) -> None:
    files = {"a.parquet": lake.table([1]), "b.parquet": lake.table([2], extra=pa.array([7], pa.int32()))}
    path = lake.write(tmp_path / "d", files)
    result = inlay.alter(path, rename={"extra": "more"}, widen={"extra": "bigint"}, engine=engine)
    assert result.preserved_files == [f"{path}/a.parquet"]
    assert lake.contents(path)["b.parquet"] == [{"id": 2, "v": "v2", "more": 7}]
    assert result.to_dict()["files"][1]["operation"] == "rewritten"


def test_partitioned_datasets_keep_their_paths(tmp_path: Path, engine: Any) -> None:
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1, 2], "day": ["mon", "tue"], "v": ["a", "b"]}, path, partition_columns="day")
    names = lake.names(path)
    inlay.alter(path, rename={"v": "value"}, engine=engine)
    assert lake.names(path) == names
    assert sorted(map(tuple, (row.values() for row in inlay.read_parquet(path).to_pylist()))) == [
        (1, "a", "mon"),
        (2, "b", "tue"),
    ]


# ---------------------------------------------------------------------------------------------------------- widening
DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12)  # noqa: DTZ001
STRUCT = pa.struct([("a", pa.int32()), ("b", pa.struct([("c", pa.date32())]))])
WIDENINGS: list[tuple[pa.DataType, pa.DataType | str, list[Any], list[Any]]] = [
    (pa.int8(), "int16", [1, None, -128], [1, None, -128]),
    (pa.int16(), "integer", [1, None, -(2**15)], [1, None, -(2**15)]),
    (pa.int32(), "bigint", [2**31 - 1, None, -1], [2**31 - 1, None, -1]),
    (pa.uint8(), "int16", [255, None], [255, None]),
    (pa.uint16(), "integer", [2**16 - 1, None], [2**16 - 1, None]),
    (pa.uint32(), "bigint", [2**32 - 1, None], [2**32 - 1, None]),
    (pa.uint32(), "ubigint", [2**32 - 1, None], [2**32 - 1, None]),
    (pa.float32(), "double", [0.1, None, float("inf")], [0.10000000149011612, None, float("inf")]),
    (pa.decimal128(5, 2), "decimal(12,4)", [decimal.Decimal("-1.25"), None], [decimal.Decimal("-1.25"), None]),
    (pa.decimal128(5, 2), pa.decimal128(38, 2), [decimal.Decimal("1.25"), None], [decimal.Decimal("1.25"), None]),
    (pa.date32(), "timestamp", [DAY, None], [dt.datetime(2024, 2, 29), None]),  # noqa: DTZ001
    (pa.timestamp("ms"), pa.timestamp("us"), [NOON, None], [NOON, None]),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), [[1, None], None, []], [[1, None], None, []]),
    (
        pa.map_(pa.string(), pa.int32()),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], None, []],
        [[("k", 1)], None, []],
    ),
    (
        STRUCT,
        pa.struct(
            [("new", pa.string()), ("a", pa.int64()), ("b", pa.struct([("c", pa.timestamp("us")), ("d", pa.int8())]))]
        ),
        [{"a": 1, "b": {"c": DAY}}, None, {"a": None, "b": None}],
        [
            {"new": None, "a": 1, "b": {"c": dt.datetime(2024, 2, 29), "d": None}},  # noqa: DTZ001
            None,
            {"new": None, "a": None, "b": None},
        ],
    ),
    (
        pa.list_(pa.struct([("a", pa.int32())])),
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.string())])),
        [[{"a": 1}, None], None, []],
        [[{"a": 1, "b": None}, None], None, []],
    ),
]


@pytest.mark.long_on("duckdb", "duckdb-union", "spark")  # all engines run the same kernel
@pytest.mark.parametrize("codec", ["snappy", "zstd"])
@pytest.mark.parametrize(("old", "new", "values", "expected"), WIDENINGS, ids=str)
def test_a_wider_type_keeps_every_value(
    tmp_path: Path, engine: Any, old: pa.DataType, new: Any, values: list[Any], expected: list[Any], codec: str
) -> None:
    table = pa.table({"id": range(len(values)), "x": pa.array(values, old), "y": ["y"] * len(values)})
    path = lake.write(
        tmp_path / "d", {"f.parquet": table}, row_group_size=2, compression=codec, use_dictionary=codec == "zstd"
    )
    file = tmp_path / "d/f.parquet"
    before = pages(file)
    plan = inlay.plan_alter(path, widen={"x": new}, engine=engine)
    result = inlay.alter(path, widen={"x": new}, engine=engine)
    assert plan.bytes_to_rewrite > 0
    assert result.bytes_copied == plan.bytes_copied > 0
    type_ = pq.read_schema(file).field("x").type
    assert is_widening(old, type_)
    assert not is_widening(type_, old)
    for name, read in READERS.items():
        assert rows_of(read(file)) == rows_of(table.set_column(1, "x", pa.array(expected, type_))), name
    for group, old_group in zip(pages(file), before, strict=True):
        assert [group[name] == old_group[name] for name in ("id", "y")] == [True, True]
    for group in range(lake.footer(file).num_row_groups):
        chunk = lake.footer(file).row_group(group).column(1)
        assert chunk.compression == codec.upper()


def test_decimals_that_not_all_readers_have_widen_only_themselves(tmp_path: Path) -> None:
    fields = [("d", pa.decimal128(38, 2)), ("s", pa.struct([("x", pa.decimal128(5, 2))])), ("l", pa.decimal256(40, 2))]
    path = lake.write(tmp_path / "d", {"f.parquet": pa.schema(fields).empty_table()})
    struct = pa.struct([("x", pa.decimal256(40, 2))])
    for widen in (
        {"d": "decimal(40,2)"},
        {"s": struct},
        {"s": pa.struct([*fields[1][1], ("y", pa.decimal256(40, 2))])},
    ):
        for call in (inlay.plan_alter, inlay.alter):
            with pytest.raises(SchemaMismatchError, match="cannot be widened") as caught:
                call(path, widen=widen)
            assert "polars" in str(caught.value.hint)
    inlay.alter(path, widen={"l": "decimal(50,2)"})
    assert pq.read_schema(tmp_path / "d/f.parquet").field("l").type == pa.decimal256(50, 2)


@pytest.mark.parametrize("new", ["double", "decimal(20,0)", "text"])
def test_the_wider_types_are_named(tmp_path: Path, new: str) -> None:
    path = lake.write(tmp_path / "d", {"f.parquet": pa.table({"id": pa.array([1], pa.int32()), "b": [True]})})
    with pytest.raises(SchemaMismatchError, match=r"Column 'id' cannot be widened from int32 to \w+") as caught:
        inlay.alter(path, widen={"id": new})
    assert caught.value.hint == "It can become bigint."
    with pytest.raises(SchemaMismatchError) as caught:
        inlay.alter(path, widen={"b": new})
    assert caught.value.hint == "No type is wider than boolean."
    wide = lake.write(tmp_path / "wide", {"f.parquet": pa.table({"id": [1], "day": [dt.date(2025, 1, 1)]})})
    for name, expected in (("id", "No type is wider than bigint."), ("day", "It can become a timestamp type")):
        with pytest.raises(SchemaMismatchError) as caught:
            inlay.alter(wide, widen={name: new})
        assert str(caught.value.hint).startswith(expected)


def test_statistics_of_widened_chunks_are_right(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(10), pa.int32()), "d": pa.array([decimal.Decimal(n) for n in range(10)])})
    path = lake.write(tmp_path / "d", {"f.parquet": table}, row_group_size=5, write_page_index=True)
    inlay.alter(path, widen={"id": "bigint", "d": "decimal(10,3)"})
    groups = [lake.footer(tmp_path / "d/f.parquet").row_group(group) for group in range(2)]
    assert [(g.column(0).statistics.min, g.column(0).statistics.max) for g in groups] == [(0, 4), (5, 9)]
    assert [(g.column(1).statistics.min, g.column(1).statistics.max) for g in groups] == [(0, 4), (5, 9)]
    assert all(group.column(0).has_offset_index and group.column(0).has_column_index for group in groups)
    for n in range(10):
        found = ask_datafusion(tmp_path / "d/f.parquet", f"SELECT id FROM t WHERE id = {n} AND d = {n}")
        assert found["id"].to_pylist() == [n]


@needs_bloom_filters
def test_bloom_filters_of_widened_chunks_find_the_values(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array(range(0, 2000, 2), pa.int32())})
    path = lake.write(tmp_path / "d", {"f.parquet": table}, bloom_filter_options={"id": {"ndv": 1000}})
    inlay.alter(path, widen={"id": "bigint"}, rename={"id": "key"})
    for n in (0, 2, 1998):
        assert ask_datafusion(tmp_path / "d/f.parquet", f"SELECT * FROM t WHERE key = {n}").num_rows == 1
    assert ask_datafusion(tmp_path / "d/f.parquet", "SELECT * FROM t WHERE key = 999").num_rows == 0


def test_a_required_column_becomes_nullable(tmp_path: Path, engine: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int32(), nullable=False)])
    path = lake.write(tmp_path / "d", {"f.parquet": pa.table({"id": [1], "x": [2]}, schema)})
    inlay.alter(path, widen={"x": "nullable"}, engine=engine)
    assert inlay.merge({"id": [1], "x": [None]}, path, "upsert", "id", engine=engine).updated == 1
    assert lake.all_rows(path) == [{"id": 1, "x": None}]
    field = pa.field("x", pa.int64(), nullable=True)
    assert inlay.alter(path, widen={"x": field}, engine=engine).row_count == 1
    assert pq.read_schema(tmp_path / "d/f.parquet").field("x").type == pa.int64()


def test_files_of_different_types_get_one_type(tmp_path: Path, engine: Any) -> None:
    files = {
        "a.parquet": pa.table({"id": [1], "x": pa.array([1], pa.int8())}),
        "b.parquet": pa.table({"id": [2], "x": pa.array([2], pa.int64())}),
    }
    path = lake.write(tmp_path / "d", files)
    result = inlay.alter(path, widen={"x": "bigint"}, engine=engine)
    assert result.rewritten_files == [f"{path}/a.parquet"]
    assert {pq.read_schema(tmp_path / "d" / name).field("x").type for name in files} == {pa.int64()}


# ---------------------------------------------------------------------------------------------------------- metadata
def test_pandas_reads_its_index_and_types(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]}, index=pd.Index([10, 20], name="key")).astype({"a": "Int32"})
    (tmp_path / "d").mkdir()
    frame.to_parquet(tmp_path / "d/f.parquet")
    inlay.alter(str(tmp_path / "d"), rename={"key": "number", "a": "amount"}, drop="b", widen={"a": "bigint"})
    found = pd.read_parquet(tmp_path / "d/f.parquet")
    assert found.index.name == "number"
    assert list(found.columns) == ["amount"]
    assert str(found["amount"].dtype) == "Int64"
    assert found.loc[20, "amount"] == 2
    inlay.alter(str(tmp_path / "d"), drop="number")
    assert pd.read_parquet(tmp_path / "d/f.parquet")["amount"].tolist() == [1, 2]


def test_metadata_sorting_and_field_ids_stay_right(tmp_path: Path) -> None:
    fields = [pa.field(name, pa.int32(), metadata={"PARQUET:field_id": str(n)}) for n, name in enumerate("abcd", 1)]
    schema = pa.schema(fields, {"owner": "somebody", "org.apache.spark.sql.parquet.row.metadata": "old"})
    table = pa.table([pa.array([1, 2], pa.int32())] * 4, schema=schema)
    sorting = [pq.SortingColumn(at) for at in (1, 2, 3)]
    path = lake.write(tmp_path / "d", {"f.parquet": table}, sorting_columns=sorting)
    inlay.alter(path, rename={"b": "bb"}, drop="c", widen={"b": "bigint"})
    footer = lake.footer(tmp_path / "d/f.parquet")
    assert footer.row_group(0).sorting_columns == (pq.SortingColumn(1),)
    found = pq.read_schema(tmp_path / "d/f.parquet")
    assert {f.name: f.metadata[b"PARQUET:field_id"] for f in found} == {"a": b"1", "bb": b"2", "d": b"4"}
    assert found.metadata == {b"owner": b"somebody"}


def test_durations_and_dictionaries_keep_their_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "t": pa.array([5], pa.duration("ms")),
            "w": pa.array(["x"]).dictionary_encode(),
            "z": pa.array([1], pa.timestamp("us", "Europe/Berlin")),
            "n": pa.array([1], pa.int32()),
        }
    )
    path = lake.write(tmp_path / "d", {"f.parquet": table})
    inlay.alter(path, rename={"t": "took", "w": "word", "z": "at"}, widen={"n": "bigint"})
    expected = renamed(table, t="took", w="word", z="at").set_column(3, "n", pa.array([1]))
    assert pq.read_table(tmp_path / "d/f.parquet").equals(expected)


# ---------------------------------------------------------------------------------------------------------- refusals
NARROW = pa.table(
    {
        "id": [1, 2],
        "n": pa.array([1, 2], pa.int64()),
        "at": pa.array([0, 1], pa.timestamp("us", "UTC")),
        "s": pa.array([{"a": 1}] * 2),
        "v": ["a", "b"],
        "day": pa.array([dt.date(2024, 1, 1), dt.date(2500, 1, 1)]),
    }
)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({}, InvalidArgumentError, "at least one of rename, drop and widen"),
    ({"rename": {"nn": "x"}}, SchemaMismatchError, "column 'nn' does not exist"),
    ({"drop": "x"}, SchemaMismatchError, "column 'x' does not exist"),
    ({"widen": {"x": "bigint"}}, SchemaMismatchError, "column 'x' does not exist"),
    ({"rename": {"n": ""}}, InvalidArgumentError, "must be a text that is not empty"),
    ({"rename": {"n": "v"}}, InvalidArgumentError, "'n' cannot be renamed to 'v', which already exists"),
    ({"rename": {"n": "x", "v": "x"}}, InvalidArgumentError, "cannot be renamed to 'x', which already exists"),
    ({"rename": {"n": "V"}}, InvalidArgumentError, "to 'V', which differs from column 'v' only by case"),
    ({"rename": {"n": "p"}}, InvalidArgumentError, "cannot be renamed to 'p', which already exists"),
    ({"rename": {"n": "x"}, "drop": "n"}, InvalidArgumentError, "'n' cannot be dropped and renamed at once"),
    ({"widen": {"n": "bigint"}, "drop": "n"}, InvalidArgumentError, "'n' cannot be dropped and widened at once"),
    ({"drop": ["id", "n", "at", "s", "v", "day"]}, InvalidArgumentError, "at least one column"),
    ({"drop": ["n", "n"]}, InvalidArgumentError, "'n' occurs twice"),
    ({"widen": {"n": "integer"}}, SchemaMismatchError, "'n' cannot be widened from int64 to int32"),
    ({"widen": {"n": "ubigint"}}, SchemaMismatchError, "from int64 to uint64"),
    ({"widen": {"n": "double"}}, SchemaMismatchError, "from int64 to double"),
    ({"widen": {"n": "text"}}, SchemaMismatchError, "from int64 to string"),
    ({"widen": {"n": "bigin"}}, InvalidArgumentError, "bigin"),
    ({"widen": {"n": 8}}, InvalidArgumentError, "name of a type or a pyarrow type, not 8"),
    ({"widen": {"at": pa.timestamp("ns")}}, SchemaMismatchError, "'at' cannot be widened"),
    ({"widen": {"day": pa.timestamp("us", "UTC")}}, SchemaMismatchError, "'day' cannot be widened"),
    ({"widen": {"day": pa.timestamp("ns")}}, SchemaMismatchError, "'day' is date32"),
    ({"widen": {"s": pa.struct([("b", pa.int64())])}}, SchemaMismatchError, "'s' cannot be widened"),
    (
        {"widen": {"s": pa.struct([("a", pa.int64()), pa.field("b", pa.int64(), nullable=False)])}},
        SchemaMismatchError,
        "'s' cannot be widened",
    ),
    ({"widen": {"n": pa.field("n", pa.int64(), nullable=False)}}, SchemaMismatchError, "'n' allows NULL"),
    ({"rename": {"p": "q"}}, InvalidArgumentError, "'p' is a partition column"),
    ({"drop": "p"}, InvalidArgumentError, "'p' is a partition column"),
    ({"widen": {"p": "bigint"}}, InvalidArgumentError, "'p' is a partition column"),
]


@pytest.mark.parametrize(("changes", "error", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_change_that_is_impossible_or_loses_values_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = lake.write(tmp_path / "d", {"p=1/f.parquet": NARROW})
    before = lake.photograph(path)
    for call in (inlay.plan_alter, inlay.alter):
        with pytest.raises(error, match=message):
            call(path, **changes)
    assert lake.photograph(path) == before


def test_int96_and_other_timestamps_are_not_mixed(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "at": pa.array([10**15], pa.timestamp("us")), "day": pa.array([1], pa.date32())})
    path = lake.write(tmp_path / "d", {"f.parquet": table}, use_deprecated_int96_timestamps=True)
    before = lake.photograph(path)
    for call in (inlay.plan_alter, inlay.alter):
        with pytest.raises(SchemaMismatchError, match="'day' cannot be written, because column 'at' has INT96"):
            call(path, widen={"day": "timestamp"})
    assert lake.photograph(path) == before
    inlay.alter(path, rename={"at": "seen"})
    assert pq.ParquetFile(tmp_path / "d/f.parquet").schema.column(1).physical_type == "INT96"


def test_a_dataset_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for call in (inlay.plan_alter, inlay.alter):
        for name in ("none", "empty"):
            with pytest.raises(NotFoundError, match=name):
                call(str(tmp_path / name), drop="x")


# ------------------------------------------------------------------------------------------------------------ commit
def test_a_canceled_change_changes_nothing(tmp_path: Path, engine: Any) -> None:
    path = lake.write(tmp_path / "d", {f"{n}.parquet": lake.table([n]) for n in range(3)})
    before = lake.photograph(path)
    steps = []

    def cancel(step: inlay.Progress) -> bool:
        steps.append(step.phase)
        return step.phase != "commit"

    with pytest.raises(MergeCancelledError):
        inlay.alter(path, rename={"v": "value"}, progress=cancel, engine=engine)
    assert {"alter", "commit"} <= set(steps)
    assert lake.photograph(path) == before


def test_an_object_store_gets_new_files(memory: Any) -> None:
    inlay.write_dataset({"id": [1, 2], "v": ["a", "b"]}, "/altered/d", filesystem=memory)
    result = inlay.alter("/altered/d", rename={"v": "value"}, filesystem=memory)
    assert len(result.rewritten_files) == 1
    assert inlay.read_parquet("/altered/d", filesystem=memory).to_pylist() == [
        {"id": 1, "value": "a"},
        {"id": 2, "value": "b"},
    ]


def test_summary_files_are_removed(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    (tmp_path / "d/_metadata").write_bytes((tmp_path / "d/a.parquet").read_bytes())
    result = inlay.alter(path, rename={"v": "value"})
    assert result.removed_summaries == [f"{path}/_metadata"]
    assert json.dumps(result.to_dict())
    assert json.dumps(inlay.plan_alter(path, drop="value").to_dict())


def test_a_change_without_effect_commits_nothing(tmp_path: Path, engine: Any) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    before = lake.photograph(path)
    result = inlay.alter(path, widen={"id": "bigint"}, engine=engine)
    assert (result.rewritten_files, result.bytes_written) == ([], 0)
    assert lake.photograph(path) == before


@pytest.mark.parametrize(
    "changes", [{"rename": {"id": "id"}}, {"widen": {"id": "bigint"}}, {"widen": {"v": "nullable"}}]
)
def test_a_change_to_what_a_column_is_already_says_so(tmp_path: Path, changes: Any) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    [file] = inlay.plan_alter(path, **changes).files
    assert (file.operation, file.reason) == ("preserved", "no column of the file changes")
    before = lake.photograph(path)
    assert inlay.alter(path, **changes).rewritten_files == []
    assert lake.photograph(path) == before


@pytest.mark.parametrize("value", ["a", "", ["a", "b"], [("a", "b")], 1])
def test_names_and_types_must_be_mappings(tmp_path: Path, value: Any) -> None:
    for function in (inlay.plan_alter, inlay.alter):
        for argument in ("rename", "widen"):
            with pytest.raises(InvalidArgumentError, match=f'{argument} must be a mapping such as .*"price": "'):
                function(str(tmp_path), **{argument: value})


def test_methods_of_the_classes(tmp_path: Path) -> None:
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1])})
    assert inlay.PyArrowDatasetIO().plan_alter(path, drop="v").row_count == 1
    assert inlay.DuckDBDatasetIO().alter(path, rename={"v": "value"}).row_count == 1
