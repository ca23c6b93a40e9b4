"""The format `inlay` of DataFrames: batch reads and writes."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as f
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

import inlay
from inlay.commit.sidecar import is_leased
from inlay.errors import (
    ConcurrentModificationError,
    InlayError,
    InvalidArgumentError,
    NotFoundError,
    SchemaMismatchError,
)
from inlay.spark import InlayDataSource
from inlay.spark.options import ReadOptions, WriteOptions
from inlay.spark.options import _value as option_value
from inlay.spark.types import arrow_schema, spark_schema
from inlay.spark.writer import _create_file
from inlay.storage import locate

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def session(spark):
    spark.dataSource.register(InlayDataSource)
    return spark


def sorted_rows(path):
    return sorted(inlay.read_parquet(path).to_pylist(), key=lambda row: row["id"])


def sidecar(path):
    """Return the staging directories beside a dataset."""
    folder = Path(path).parent / f".{Path(path).name}.txn"
    return [name for name in os.listdir(folder) if name.startswith(".staging")] if folder.exists() else []


def read_all(source, schema=None):
    """Read in this process what Spark's tasks would read. Returns the rows and the scanned files."""
    schema = schema or InlayDataSource(source).schema()
    reader = InlayDataSource(source).reader(schema)
    parts = reader.partitions()
    batches = [batch for part in parts for batch in reader.read(part)]
    rows = pa.Table.from_batches(batches, arrow_schema(schema)).to_pylist()
    return rows, [file.path for part in parts for file, _ in part.parts]


# ------------------------------------------------------------------------------------------------------- with Spark
def test_a_data_frame_is_merged_and_read_back(session, tmp_path):
    path = str(tmp_path / "people ü")
    first = session.range(0, 10, 1, 3).selectExpr("id", "concat('old ', id) AS name")
    first.write.format("inlay").mode("append").option("keys", "id").save(path)
    second = session.range(5, 12, 1, 2).selectExpr("id", "concat('new ', id) AS name")
    write = second.write.format("inlay").mode("append").option("keys", "id").option("strategy", "upsert")
    write.option("compression", "zstd").option("max_rows_per_file", "1000").save(path)
    expected = [{"id": i, "name": f"{'new' if i >= 5 else 'old'} {i}"} for i in range(12)]
    assert sorted_rows(path) == expected
    read = session.read.format("inlay").load(path)
    assert [row.asDict() for row in read.orderBy("id").collect()] == expected
    assert read.where("id > 9").select("name").count() == 2
    assert {m.column(0).compression for m in row_groups(path)} == {"SNAPPY", "ZSTD"}
    assert [name for name in sidecar(path) if not name.endswith("_leased")] == []


def row_groups(path):
    metadata = [pq.read_metadata(name) for name in inlay.list_dataset_files(path)]
    return [each.row_group(at) for each in metadata for at in range(each.num_row_groups)]


def test_a_data_frame_replaces_one_partition(session, tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1, 2, 3], "day": ["a", "a", "b"]}, path, partition_columns="day")
    write = session.sql("SELECT 2L AS id, 'a' AS day").write.format("inlay").mode("append").option("keys", "id")
    write = write.option("strategy", "full_merge").option("scope", '{"day": ["a"]}')
    with pytest.raises(Exception, match="max_deleted"):
        write.option("max_deleted", "0.4").save(path)
    write.option("max_deleted", "1").save(path)
    assert [row["id"] for row in sorted_rows(path)] == [2, 3]


def test_modes_without_keys_append_and_replace(session, tmp_path):
    path = str(tmp_path / "events")
    rows = session.range(0, 4, 1, 2).selectExpr("id", "id % 2 AS half")
    for _ in range(2):
        rows.write.format("inlay").mode("append").option("partition_columns", "half").save(path)
    assert inlay.read_parquet(path).num_rows == 8
    assert len(inlay.list_dataset_files(path)) == 4
    session.range(1).write.format("inlay").mode("overwrite").option("partition_columns", "[]").save(path)
    assert sorted_rows(path) == [{"id": 0}]


def test_the_last_row_in_partition_order_wins(session, tmp_path):
    path = str(tmp_path / "latest")
    rows = session.range(0, 300, 1, 7).selectExpr("id % 10 AS id", "id AS position")
    rows.write.format("inlay").mode("append").option("keys", "id").option("strategy", "deduplicate").save(path)
    assert sorted_rows(path) == [{"id": i, "position": 290 + i} for i in range(10)]


def test_an_empty_data_frame_creates_an_empty_dataset(session, tmp_path):
    path = str(tmp_path / "d")
    session.range(0).write.format("inlay").mode("overwrite").save(path)
    assert session.read.format("inlay").load(path).collect() == []
    session.range(0).write.format("inlay").mode("append").option("keys", "id").save(path)
    assert inlay.read_parquet(path).num_rows == 0


def test_a_failed_write_leaves_nothing(session, tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1]}, path)
    before = inlay.list_dataset_files(path)
    rows = session.range(0, 1000, 1, 4).select(
        f.when(f.col("id") == 999, f.raise_error(f.lit("stop here"))).otherwise(f.col("id")).cast("long").alias("id")
    )
    with pytest.raises(Exception, match="stop here"):
        rows.write.format("inlay").mode("append").option("keys", "id").save(path)
    with pytest.raises(Exception, match=r"SchemaMismatchError: .*'nope'"):
        session.range(3).write.format("inlay").mode("append").option("keys", "nope").save(path)
    with pytest.raises(Exception, match="DuplicateKeyError"):
        session.sql("SELECT 5L AS id UNION ALL SELECT 5L").write.format("inlay").mode("append").option(
            "keys", "id"
        ).save(path)
    assert inlay.list_dataset_files(path) == before
    assert sidecar(path) == []


def test_a_failed_first_write_creates_nothing(session, tmp_path):
    with pytest.raises(Exception, match="SchemaMismatchError"):
        session.range(3).write.format("inlay").mode("append").option("keys", "nope").save(str(tmp_path / "a" / "d"))
    assert os.listdir(tmp_path) in ([], ["a"])
    assert not (tmp_path / "a" / "d").exists()


@pytest.mark.parametrize(
    ("options", "mode", "message"),
    [
        ({"kyes": "id"}, "append", "Unknown option 'kyes'.*\n.*Did you mean 'keys'"),
        ({"keys": "id", "startegy": "insert"}, "append", "Unknown option 'startegy'.*\n.*'strategy'"),
    ],
)
def test_spark_shows_what_is_wrong_with_options(session, tmp_path, options, mode, message):
    with pytest.raises(Exception, match=message):
        session.range(3).write.format("inlay").mode(mode).options(**options).save(str(tmp_path / "d"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_queries_of_one_data_frame_do_not_share_filters(session, tmp_path, enabled):
    path = str(tmp_path / "d")
    for start in (0, 100):
        inlay.write_dataset({"id": list(range(start, start + 100)), "v": [NAN] * 100, "t": ["x"] * 100}, path)
    before = session.conf.get(PUSHDOWN)
    session.conf.set(PUSHDOWN, enabled)
    try:
        read = session.read.format("inlay").option("columns", "v,id").option("filter", "id < 180").load(path)
        assert read.columns == ["v", "id"]
        assert read.where("id >= 150 AND v > 3.0").count() == 30  # In Spark, NaN is greater than every number.
        assert read.where("id = 7 OR v < 0").select("id").collect() == [(7,)]
        assert read.where("id = 1").union(read.where("id = 2")).select("id").collect() == [(1,), (2,)]
    finally:
        session.conf.set(PUSHDOWN, before)


def test_queries_of_one_data_frame_read_one_snapshot(session, tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1, 2]}, path)
    read = session.read.format("inlay").load(path)
    assert read.count() == 2
    inlay.merge({"id": [2, 3]}, path, "full_merge", "id")
    assert sorted(row.id for row in read.where("id > 0").collect()) == [1, 2]
    assert sorted(row.id for row in session.read.format("inlay").load(path).collect()) == [2, 3]


def test_types_of_spark_survive(session, tmp_path):
    path = str(tmp_path / "d")
    expressions = [
        "id", "CAST(id AS tinyint) AS a", "CAST(id AS smallint) AS b", "CAST(id AS int) AS c", "CAST(id AS float) AS d",
        "CAST(id AS decimal(38, 3)) AS e", "date'2020-02-29' AS g", "timestamp'2020-02-29 01:02:03.000004' AS h",
        "timestamp_ntz'2020-02-29 01:02:03.000004' AS i", "CAST('x' AS binary) AS j", "array(1, NULL) AS k",
        "map('a', 1.5D) AS l", "named_struct('x', id, 'y', array('z')) AS m",
        "interval '1 02:03:04' day to second AS n", "true AS o",
    ]  # fmt: skip
    rows = session.range(2).selectExpr(*expressions)
    rows.write.format("inlay").mode("append").option("keys", "id").save(path)
    read = session.read.format("inlay").load(path)
    assert [field.dataType for field in read.schema] == [field.dataType for field in rows.schema]
    assert read.orderBy("id").collect() == rows.collect()


def test_another_session_time_zone_keeps_instants(session, tmp_path):
    path = str(tmp_path / "d")
    rows = session.sql("SELECT 1L AS id, timestamp'2020-01-01 00:00:00 UTC' AS at")
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        rows.write.format("inlay").mode("append").option("keys", "id").save(path)
        assert session.read.format("inlay").load(path).selectExpr("unix_seconds(at)").collect() == [(1577836800,)]
    finally:
        session.conf.set("spark.sql.session.timeZone", "UTC")
    assert inlay.read_parquet(path)["at"].to_pylist() == [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)]


# -------------------------------------------------------------------------------------------------------- snapshots
def test_tasks_read_the_snapshot_of_the_plan(tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1, 2], "v": [1, 2]}, path)
    source = InlayDataSource({"path": path})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    inlay.merge({"id": [2, 3], "v": [20, 30]}, path, "upsert", "id")
    inlay.write_dataset({"id": [9], "v": [9]}, path, "overwrite")
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [{"id": 1, "v": 1}, {"id": 2, "v": 2}]
    assert len(sidecar(path)) == 1


def expire(path):
    [name] = sidecar(path)
    lease = Path(path).parent / f".{Path(path).name}.txn" / name / "lease"
    os.utime(lease, (0, 0))


def test_a_lease_ends(tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1, 2]}, path)
    source = InlayDataSource({"path": path})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    assert not inlay.recover(path).swept
    expire(path)
    assert len(inlay.recover(path).swept) == 1
    assert [b.to_pydict() for p in parts for b in reader.read(p)] == [{"id": [1, 2]}]  # the file is unchanged
    inlay.merge({"id": [3]}, path, "full_merge", "id")
    with pytest.raises(ConcurrentModificationError, match="Load the dataset again"):
        [list(reader.read(part)) for part in parts]


def test_writers_keep_the_staged_rows_of_a_running_job(tmp_path):
    path = tmp_path / "d"
    staged, out = _create_file(locate(path), "job")
    with out:
        out.write(b"rows")
    inlay.merge({"id": [1]}, path, "upsert", "id")
    assert Path(staged).read_bytes() == b"rows"
    [name] = sidecar(path)
    assert Path(staged).parent.name == name
    expire(path)
    inlay.merge({"id": [2]}, path, "upsert", "id")
    assert sidecar(path) == []


def test_a_task_creates_a_deleted_staging_directory_again(tmp_path, monkeypatch):
    leases = iter([lambda path: os.rename(path, f"{tmp_path}/gone"), lambda path: None])
    monkeypatch.setattr("inlay.spark.writer.lease", lambda path, _: next(leases)(path))
    staged, out = _create_file(locate(tmp_path / "d"), "job")
    out.close()
    assert Path(staged).exists()


def test_a_task_renews_the_lease(tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1, 2]}, path)
    reader = InlayDataSource({"path": path}).reader(InlayDataSource({"path": path}).schema())
    [part] = reader.partitions()
    expire(path)
    assert not is_leased(part.plan.location.links)
    list(reader.read(part))
    assert is_leased(part.plan.location.links)


def test_an_object_store_refuses_a_changed_file(memory, tmp_path):
    path = "memory://bucket/d"
    inlay.write_dataset({"id": [1, 2]}, path)
    reader = InlayDataSource({"path": path}).reader(InlayDataSource({"path": path}).schema())
    [part] = reader.partitions()
    assert [b.to_pydict() for b in reader.read(part)] == [{"id": [1, 2]}]
    inlay.merge({"id": [2, 3]}, path, "full_merge", "id")
    with pytest.raises(ConcurrentModificationError, match="Load the dataset again"):
        list(reader.read(part))


def test_a_large_file_is_split_into_row_groups(tmp_path, monkeypatch):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": list(range(1000))}, path, row_group_size=100)
    monkeypatch.setattr("inlay.spark.reader._SPLIT_BYTES", 1)
    monkeypatch.setattr("inlay.engines.spark.source._TASK_BYTES", 2000)
    rows, files = read_all({"path": path})
    assert sorted(row["id"] for row in rows) == list(range(1000))
    assert len(files) > 3
    assert read_all({"path": path, "filter": "id = 555"})[0] == [{"id": 555}]


# ---------------------------------------------------------------------------------------------------------- filters
NAN = float("nan")


def test_filters_leave_out_files_and_rows(tmp_path):
    path = str(tmp_path / "d")
    for day in (1, 2, 3):
        rows = {
            "id": [10 * day, 10 * day + 1], "v": [NAN, 1.0 * day], "day": [f"d{day}"] * 2,
            "at": [dt.datetime(2025, 1, day)] * 2,  # noqa: DTZ001
            "m": [Decimal(day)] * 2,
        }  # fmt: skip
        inlay.write_dataset(rows, path, partition_columns="day")

    def read(condition):
        rows, files = read_all({"path": path, "columns": "id", "filter": condition})
        return [row["id"] for row in rows], [name.split("/")[0] for name in files]

    assert read("id = 21")[0] == [21]
    assert read("day IN ('d1', 'd3') AND id > 10") == ([11, 30, 31], ["day=d1", "day=d3"])
    assert read("v < 2")[0] == [11]
    assert read("v >= 2")[0] == [10, 20, 21, 30, 31]  # NaN is greater than every number, as in Spark.
    assert read("at <= '2025-01-02' AND m > 1")[0] == [20, 21]
    assert read("day = 'd9' OR day = 'd8'") == ([], [])


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("v > 5", [2]), ("v >= 5", [2]), ("v <> 1", [2]), ("NOT v = 1", [2]), ("NOT v < 5", [2]), ("v < 5", [1]),
        ("v IN (1, 7)", [1]), ("NOT v IN (1)", [2]), ("NOT v BETWEEN 0 AND 3", [2]), ("v IS NULL", [3]),
        ("V <> 1 OR id = 1", [1, 2]), ("id > 1", [2, 3]), ("c = 'x'", [1, 3]), ("c <> 'x' AND v > 0", [2]),
    ],
)  # fmt: skip
def test_statistics_without_nan_lose_no_row(tmp_path, condition, expected):
    (tmp_path / "d").mkdir()
    columns = {"id": [1, 2, 3], "v": [1.0, NAN, None], "c": pa.array(["x", "y", "x"]).dictionary_encode()}
    pq.write_table(pa.table(columns), tmp_path / "d" / "a.parquet")
    rows, _ = read_all({"path": str(tmp_path / "d"), "columns": "id", "filter": condition})
    assert [row["id"] for row in rows] == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [("id ~ 1", "unexpected '~ 1'"), ("di = 1", "no column 'di'"), ("id = 'x'", "'x'"), ("", "it is empty")],
)
def test_wrong_filters_are_refused_by_name(tmp_path, condition, message):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1]}, path)
    with pytest.raises(InlayError, match=message):
        InlayDataSource({"path": path, "filter": condition}).schema()


def test_a_reader_without_tasks_reads_nothing(tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1]}, path)
    source = InlayDataSource({"path": path})
    assert list(source.reader(source.schema()).read(InputPartition(None))) == []


# ------------------------------------------------------------------------------------------------------------ types
READABLE = {
    "u8": (pa.array([0, 255], pa.uint8()), "smallint"),
    "u16": (pa.array([0, 65535], pa.uint16()), "int"),
    "u32": (pa.array([0, 2**32 - 1], pa.uint32()), "bigint"),
    "u64": (pa.array([0, 2**64 - 1], pa.uint64()), "decimal(20,0)"),
    "large": (pa.array(["a", None], pa.large_string()), "string"),
    "dictionary": (pa.array(["a", "b"]).dictionary_encode(), "string"),
    "fixed": (pa.array([b"ab", b"cd"], pa.binary(2)), "binary"),
    "ms": (pa.array([1, -1], pa.timestamp("ms")), "timestamp_ntz"),
    "zone": (pa.array([1, -1], pa.timestamp("us", "Europe/Amsterdam")), "timestamp"),
    "list": (pa.array([[1], None], pa.large_list(pa.uint16())), "array<int>"),
    "sized": (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), "array<tinyint>"),
    "struct": (pa.array([{"x": 1}, None], pa.struct({"x": pa.uint8()})), "struct<x:smallint>"),
    "map": (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.uint8())), "map<string,smallint>"),
}


def test_types_that_spark_lacks_are_widened_without_changing_values(tmp_path):
    path = str(tmp_path / "d")
    table = pa.table({name: values for name, (values, _) in READABLE.items()})
    inlay.write_dataset(table, path)
    schema = InlayDataSource({"path": path}).schema()
    assert {field.name: field.dataType.simpleString() for field in schema} == {n: t for n, (_, t) in READABLE.items()}
    rows, _ = read_all({"path": path})
    expected = table.to_pylist()
    for row, other in zip(rows, expected, strict=True):
        row["map"], other["map"] = dict(row["map"] or []), dict(other["map"] or [])
        assert row == other


@pytest.mark.parametrize(
    "type_",
    [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.time64("us"), pa.time32("ms"), pa.duration("ns"),
     pa.decimal256(50, 2), pa.list_(pa.timestamp("ns")), pa.struct({"x": pa.struct({"y": pa.time64("ns")})})],
    ids=str,
)  # fmt: skip
def test_types_without_an_equal_in_spark_are_refused_by_name(type_):
    schema = pa.schema({"ok": pa.int64(), "odd": type_})
    with pytest.raises(SchemaMismatchError, match="'odd'") as refused:
        spark_schema(schema)
    assert str(type_) in str(refused.value)
    assert spark_schema(schema, ["ok"]).names == ["ok"]


def test_a_schema_of_the_caller_must_be_the_dataset_s(tmp_path):
    path = str(tmp_path / "d")
    inlay.write_dataset({"id": [1], "name": ["a"]}, path)
    assert read_all({"path": path}, schema=StructType([StructField("name", StringType())]))[0] == [{"name": "a"}]
    with pytest.raises(SchemaMismatchError, match="Column 'name' is string in the dataset, not bigint"):
        read_all({"path": path}, schema=StructType([StructField("name", LongType())]))
    with pytest.raises(SchemaMismatchError, match=r"'nam'.*\n.*Did you mean 'name'"):
        read_all({"path": path}, schema=StructType([StructField("nam", LongType())]))


def test_a_missing_dataset_is_an_error(tmp_path):
    with pytest.raises(NotFoundError, match="There is no Parquet file"):
        InlayDataSource({"path": str(tmp_path / "d")}).schema()


# ---------------------------------------------------------------------------------------------------------- options
def test_options_are_the_arguments_of_merge():
    found = WriteOptions.parse(
        {
            "path": "p", "keys": "a, b", "Strategy": "deduplicate", "dedup_order_by": '["x,y", "z"]',
            "row_group_size": "7", "lock_timeout": "1.5", "storage_options": '{"key": "value"}',
            "schema_mode": "evolve",
        },
        overwrite=False,
    )  # fmt: skip
    assert (found.path, found.mode, found.key_columns, found.strategy) == ("p", "append", ["a", "b"], "deduplicate")
    assert found.arguments == {
        "dedup_order_by": ["x,y", "z"], "row_group_size": 7, "lock_timeout": 1.5, "storage_options": {"key": "value"},
        "schema_mode": "evolve",
    }  # fmt: skip
    assert WriteOptions.parse({"path": "p", "key_columns": "id"}, overwrite=False).strategy == "upsert"


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("1000", "int | float | None", 1000),
        ("0.05", "int | float | None", 0.05),
        ("TRUE", "bool | None", True),
        ("7", "float | None", 7),
        ("1.0", "float | None", 1.0),
        ('{"day": ["2025-01-01"]}', "Scope | None", {"day": ["2025-01-01"]}),
        ("a,b", "str | Sequence[str] | None", ["a", "b"]),
        ("keep", "MissingColumns", "keep"),
    ],
)
def test_texts_become_values_of_the_arguments_types(text, annotation, expected):
    found = option_value("option", text, annotation)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("options", "overwrite", "message"),
    [
        ({"path": "p", "strategy": "upsert"}, False, "strategy='upsert' needs key columns"),
        ({"path": "p", "keys": "id"}, True, "replaces all rows, so it compares no keys"),
        ({"path": "p", "keys": "id", "key_columns": "id"}, False, "mean the same"),
        ({"keys": "id"}, False, "no path"),
        ({"path": "p", "keys": "id", "row_group_size": "many"}, False, "row_group_size is not a number: 'many'"),
        ({"path": "p", "keys": "id", "storage_options": "key=value"}, False, "storage_options is not JSON"),
        ({"path": "p", "keys": "id", "dedup_order_by": "[1"}, False, "dedup_order_by is not JSON"),
        ({"path": "p", "keys": "id", "strategy": "upset"}, False, "Unknown merge strategy 'upset'"),
        ({"path": "p", "keys": "id", "engine": "spark"}, False, "Unknown option 'engine'"),
        ({"path": "p", "keys": "id", "progress": "true"}, False, "Unknown option 'progress'"),
        ({"path": "p", "dedup_order_by": "id"}, False, "Unknown option 'dedup_order_by'"),
    ],
)
def test_wrong_options_are_refused_by_name(options, overwrite, message):
    with pytest.raises(InvalidArgumentError, match=message):
        WriteOptions.parse(options, overwrite=overwrite)


def test_the_module_needs_no_import_of_its_own():
    script = "import inlay, sys; assert 'pyspark' not in sys.modules; print(inlay.spark.InlayDataSource.name())"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "inlay\n"


def test_wrong_read_options_are_refused_by_name():
    with pytest.raises(InvalidArgumentError, match=r"Unknown option 'colums'.*\n.*Did you mean 'columns'"):
        ReadOptions.parse({"path": "p", "colums": "id"})
