"""Large sources: merged like any other source, without loading rows into the driver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.engines.spark import engine as spark_engine
from inlay.engines.spark import jobs as spark_jobs
from inlay.engines.spark import source as source_module
from inlay.engines.spark.tasks import Scratch
from inlay.errors import DuplicateKeyError, InlayError, MergeCancelledError, NullKeyError
from inlay.storage import locate
from tests import lake

ROWS, FILES = 6_000, 6


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch):
    """Treat every source as large: many pieces, buckets, chunks and waves."""
    monkeypatch.setattr(spark_engine, "_DRIVER_BYTES", 0)
    monkeypatch.setattr(source_module, "BUCKET_BYTES", 32_000)
    monkeypatch.setattr(source_module, "_INDEX_ROWS", 1_000)
    monkeypatch.setattr(spark_jobs, "_CHUNK_ROWS", 300)
    monkeypatch.setattr(spark_jobs, "_WAVE_ROWS", 1_500)
    monkeypatch.setattr(spark_jobs, "MIN_SPLIT_ROWS", 100)


@pytest.fixture
def stored(monkeypatch):
    """Record the sources that are split into buckets."""
    made = []
    make = spark_engine.make_buckets
    monkeypatch.setattr(spark_engine, "make_buckets", lambda *args: made.append(make(*args)) or made[-1])
    return made


def rows(ids, text="new", seed=0):
    rng = np.random.default_rng(seed)
    ids = np.asarray(ids, np.int64)
    return pa.table(
        {
            "id": ids,
            "k": pa.array([f"k{i % 13}" for i in ids]),
            "text": pa.array([None if i % 11 == 0 else f"{text} {i}" for i in ids.tolist()]),
            "x": rng.random(len(ids)),
            "when": pa.array(ids * 1_000_003, pa.timestamp("us", "UTC")),
            "tags": pa.array([[f"t{i % 3}"] * (i % 3) for i in ids.tolist()], pa.list_(pa.string())),
        }
    )


def target(path, *, shuffled=False, groups=5):
    path.mkdir()
    ids = np.random.default_rng(1).permutation(ROWS) if shuffled else np.arange(ROWS)
    for at, part in enumerate(np.split(ids, FILES)):
        pq.write_table(rows(part, "old"), path / f"{at}.parquet", row_group_size=len(part) // groups)
    return str(path)


def frame_of(spark, table, partitions=5):
    return spark.createDataFrame(table).repartitionByRange(partitions, "x")


def both(spark, source, paths):
    """Merge the same rows as a table and as a DataFrame, each into its own dataset."""
    return zip((source, frame_of(spark, source)), paths, strict=True)


def content(path, by="id"):
    return inlay.read_parquet(path).sort_by(by)


def counts(result):
    return result.inserted, result.updated, result.deleted, result.unchanged, result.target_count_after


def leftovers(path):
    parent, name = os.path.split(path)
    sidecar = os.path.join(parent, f".{name}.txn")
    return [n for n in os.listdir(sidecar) if n.startswith(".staging")] if os.path.isdir(sidecar) else []


# Short runs try strategies that do what the others do, each with another kind of key or order.
@pytest.mark.parametrize(
    ("strategy", "keys", "shuffled"),
    [
        pytest.param("insert", ["k", "id"], True, marks=pytest.mark.long),
        pytest.param("update", ["id"], True, marks=pytest.mark.long),
        pytest.param("upsert", ["id"], False, marks=pytest.mark.long),
        ("upsert", ["k", "id"], True),
        pytest.param("full_merge", ["id"], True, marks=pytest.mark.long),
        ("full_merge", ["k", "id"], False),
        ("deduplicate", ["id"], True),
    ],
)
def test_every_strategy_equals_that_of_pyarrow(spark, tmp_path, stored, strategy, keys, shuffled):
    ids = np.random.default_rng(2).choice(ROWS + 1_500, 2_500, replace=False)
    source = rows(ids)
    paths = [target(tmp_path / engine, shuffled=shuffled) for engine in ("pyarrow", "spark")]
    results = [inlay.merge(data, path, strategy, keys) for data, path in both(spark, source, paths)]
    assert counts(results[0]) == counts(results[1])
    assert content(paths[0]).equals(content(paths[1]))
    assert len(stored) == 1
    assert not leftovers(paths[1])


def test_rewritten_files_have_the_same_bytes_for_any_number_of_tasks(spark, tmp_path, monkeypatch):
    """One file gets almost all rows, so that several tasks edit it."""
    parts = []
    join = spark_jobs._join
    monkeypatch.setattr(spark_jobs, "_join", lambda *args: parts.append(len(args[-1])) or join(*args))
    paths = [target(tmp_path / engine, groups=10) for engine in ("pyarrow", "spark")]
    source = rows([*range(1_000), 1_500, 5_999])
    results = [inlay.merge(data, path, "update", ["id"]) for data, path in both(spark, source, paths)]
    assert parts == [5]
    files = [{name: Path(path, name).read_bytes() for name in os.listdir(path)} for path in paths]
    assert files[0] == files[1]
    assert results[0].bytes_copied == results[1].bytes_copied
    assert counts(results[0]) == counts(results[1])


def test_a_full_merge_drops_row_groups_of_a_split_file(spark, tmp_path):
    paths = [target(tmp_path / engine, groups=10) for engine in ("pyarrow", "spark")]
    source = rows([*range(300), *range(500, 1_000)])
    results = [inlay.merge(data, path, "full_merge", ["id"]) for data, path in both(spark, source, paths)]
    assert counts(results[0]) == counts(results[1])
    assert content(paths[0]).equals(content(paths[1]))


def test_a_file_whose_part_cannot_be_spliced_is_rewritten(spark, tmp_path, monkeypatch):
    class Refusing(spark_jobs.Receive):
        def __call__(self, task):
            return None if isinstance(task[0], spark_jobs.EditPart) else super().__call__(task)

    monkeypatch.setattr(spark_jobs, "Receive", Refusing)
    path = target(tmp_path / "d")
    source = rows(range(1_000))
    result = inlay.merge(frame_of(spark, source), path, "update", ["id"])
    assert (result.updated, len(result.rewritten_files)) == (1_000, 1)
    assert content(path).slice(0, 1_000).equals(source.cast(content(path).schema))


def test_equal_rows_are_not_written(spark, tmp_path):
    path = target(tmp_path / "d")
    before = lake.photograph(path)
    result = inlay.merge(frame_of(spark, inlay.read_parquet(path)), path, "upsert", ["id"])
    assert (result.updated, result.unchanged, result.rewritten_files) == (ROWS, ROWS, [])
    assert lake.photograph(path) == before


# short runs order by two columns
@pytest.mark.parametrize(
    "order_by", [pytest.param(None, marks=pytest.mark.long), pytest.param("x", marks=pytest.mark.long), ["k", "x"]]
)
def test_deduplicate_keeps_the_last_row_in_spark_order(spark, tmp_path, order_by):
    ids = np.random.default_rng(3).integers(0, 300, 3_000)
    source = spark.createDataFrame(rows(ids)).repartition(4, "x").sortWithinPartitions("x").persist()
    delivered = source.toArrow()
    paths = [target(tmp_path / engine) for engine in ("pyarrow", "spark")]
    results = [
        inlay.merge(data, path, "deduplicate", ["id"], dedup_order_by=order_by, engine=engine)
        for data, path, engine in zip((delivered, source), paths, ("pyarrow", "spark"), strict=True)
    ]
    assert counts(results[0]) == counts(results[1])
    assert (results[1].source_count, results[1].updated) == (3_000, len(set(ids.tolist())))
    assert content(paths[0]).equals(content(paths[1]))


def test_one_key_has_almost_all_rows(spark, tmp_path):
    """All rows of a key are in one bucket of any size."""
    path = target(tmp_path / "d")
    ids = np.concatenate([np.full(5_000, 7), np.arange(100, 200)])
    source = spark.createDataFrame(rows(ids)).repartition(3)
    result = inlay.merge(source, path, "deduplicate", ["id"], dedup_order_by="x")
    assert (result.updated, result.target_count_after) == (101, ROWS)


def nulled(table, column, positions):
    values = [None if row in positions else value for row, value in enumerate(table[column].to_pylist())]
    at = table.column_names.index(column)
    return table.set_column(at, column, pa.array(values, table.schema.field(column).type))


REFUSED = {
    "one repeat": (rows([*range(1_000), 42]), ["id"]),
    "many repeats": (rows([*range(1_000), *range(300, 900), 42, 42, 41]), ["id"]),
    "repeats of two columns": (rows([*range(1_000), *range(900, 100, -3)]), ["k", "id"]),
    "one key again and again": (rows([*range(500), *[7] * 600]), ["id"]),
    "NULLs": (nulled(rows(range(1_000)), "id", {5, 900}), ["id"]),
    "NULLs in two columns": (nulled(nulled(rows(range(1_000)), "id", {950}), "k", {700, 30}), ["id", "k"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_key_errors_equal_those_of_the_driver_and_no_file_remains(spark, tmp_path, monkeypatch, case):
    source, keys = REFUSED[case]
    monkeypatch.setattr(source_module, "_PIECE_BYTES", 3_000)
    path = target(tmp_path / "d")
    before = lake.photograph(path)
    frame = spark.createDataFrame(source)
    delivered = frame.toArrow().cast(source.schema)
    errors = []
    for data, engine in ((delivered, "pyarrow"), (frame, "spark")):
        with pytest.raises((DuplicateKeyError, NullKeyError)) as caught:
            inlay.merge(data, path, "upsert", keys, engine=engine)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert lake.photograph(path) == before
    assert not leftovers(path)


def test_schema_errors_of_tasks_equal_those_of_the_driver(spark, tmp_path):
    path = str(tmp_path / "d")
    inlay.merge(pa.table({"id": pa.array([1], pa.int8()), "v": ["a"]}), path, "insert", ["id"])
    source = pa.table({"id": pa.array([*range(100), 300], pa.int64()), "v": ["b"] * 101})
    errors = []
    for data in (source, spark.createDataFrame(source).repartition(3)):
        with pytest.raises(InlayError) as caught:
            inlay.merge(data, path, "upsert", ["id"])
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert not leftovers(path)


# short runs merge by a key that could move between partitions
@pytest.mark.parametrize("keys", [["id"], pytest.param(["p", "id"], marks=pytest.mark.long)])
def test_partitions(spark, tmp_path, keys):
    def day(table):
        return table.append_column("p", pa.array([f"d;{i % 4}" for i in table["id"].to_pylist()]))

    paths = [str(tmp_path / engine) for engine in ("pyarrow", "spark")]
    for path in paths:
        inlay.merge(day(rows(range(ROWS), "old")), path, "insert", ["id"], ["p"], row_group_size=300)
    source = day(rows(np.arange(3_000, 7_500)))
    results = [inlay.merge(data, path, "upsert", keys) for data, path in both(spark, source, paths)]
    assert counts(results[0]) == counts(results[1])
    assert content(paths[0]).equals(content(paths[1]))
    moved = source.set_column(source.schema.get_field_index("p"), "p", pa.array(["d;0"] * len(source)))
    if keys == ["id"]:
        with pytest.raises(inlay.errors.PartitionMoveError):
            inlay.merge(frame_of(spark, moved), paths[1], "upsert", keys)
    assert not leftovers(paths[1])


def test_creating_and_emptying_a_dataset(spark, tmp_path):
    path = str(tmp_path / "d")
    source = rows(range(2_000))
    result = inlay.merge(frame_of(spark, source), path, "upsert", ["id"], max_rows_per_file=450)
    assert (result.inserted, len(result.inserted_files)) == (2_000, 5)
    assert content(path).equals(source.cast(content(path).schema))
    empty = spark.createDataFrame(source.slice(0, 0))
    assert inlay.merge(empty, path, "full_merge", ["id"]).deleted == 2_000


def test_new_columns_and_narrower_files(spark, tmp_path):
    results, paths = [], [str(tmp_path / engine) for engine in ("pyarrow", "spark")]
    table = pa.table({"id": pa.array(range(500), pa.int64()), "v": pa.array(range(500), pa.int32())})
    wide = pa.table(
        {"id": pa.array(range(300, 800), pa.int64()), "v": pa.array(range(500), pa.int64()), "w": ["w"] * 500}
    )
    for path, data in zip(paths, (wide, spark.createDataFrame(wide).repartition(3)), strict=True):
        inlay.merge(table, path, "insert", ["id"])
        results.append(inlay.merge(data, path, "full_merge", ["id"], schema_mode="evolve"))
    assert counts(results[0]) == counts(results[1])
    assert content(paths[0]).equals(content(paths[1]))


def test_a_dry_run_reports_the_same_and_leaves_no_files(spark, tmp_path):
    path = target(tmp_path / "d")
    source = rows(range(500, 7_000, 3))
    plans = [inlay.plan_merge(data, path, "upsert", ["id"]) for data in (source, frame_of(spark, source))]
    assert plans[0].affected_files == plans[1].affected_files
    assert (plans[0].updated, plans[0].inserted) == (plans[1].updated, plans[1].inserted)
    assert sorted(os.listdir(tmp_path)) == ["d"]


def test_no_row_passes_through_the_driver(spark, tmp_path, monkeypatch):
    """The driver reads no piece, not even pieces of keys."""
    read, read_ordered = [], Scratch.read_ordered
    monkeypatch.setattr(Scratch, "read_ordered", lambda *args: read.append(args[1]) or read_ordered(*args))
    path = target(tmp_path / "d")
    result = inlay.merge(frame_of(spark, rows(range(3_000, 7_000))), path, "upsert", ["id"])
    assert (result.updated, result.inserted) == (3_000, 1_000)
    assert not read


def test_a_small_dataframe_is_loaded_into_the_driver_by_one_job(spark, tmp_path, monkeypatch, stored):
    monkeypatch.setattr(spark_engine, "_DRIVER_BYTES", 64 << 20)
    path = target(tmp_path / "d")
    source = rows(range(4_000, 6_500))
    result = inlay.merge(frame_of(spark, source), path, "upsert", ["id"])
    assert (result.updated, result.inserted) == (2_000, 500)
    assert not stored
    assert not leftovers(path)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("limit", [1 << 20, 64 << 20])
def test_the_size_of_files_is_their_size_in_memory(tmp_path, monkeypatch, stored, limit):
    """Files with repeated values take little space, but much memory."""
    monkeypatch.setattr(spark_engine, "_DRIVER_BYTES", limit)
    ids = np.arange(5_000)
    table = pa.table({"id": ids, "text": pa.array(["x" * 1_000]).take(pa.array(np.zeros(len(ids), np.int8)))})
    pq.write_table(table, tmp_path / "source.parquet")
    assert (tmp_path / "source.parquet").stat().st_size < 1 << 20 < table.nbytes < 64 << 20
    path = str(tmp_path / "d")
    inlay.write_dataset(table.slice(0, 10), path)
    result = inlay.merge(str(tmp_path / "source.parquet"), path, "upsert", ["id"], engine="spark")
    assert (result.updated, result.inserted, len(stored)) == (10, 4_990, 1 if limit < table.nbytes else 0)
    assert not leftovers(path)


# short runs cancel the longest phase
@pytest.mark.parametrize(
    "phase", [pytest.param("match", marks=pytest.mark.long), "rewrite", pytest.param("append", marks=pytest.mark.long)]
)
def test_canceling_leaves_no_trace(spark, tmp_path, phase):
    path = target(tmp_path / "d")
    before = lake.photograph(path)
    with pytest.raises(MergeCancelledError):
        inlay.merge(
            frame_of(spark, rows(range(3_000, 7_000))), path, "upsert", ["id"], progress=lambda p: p.phase != phase
        )
    assert lake.photograph(path) == before
    assert not leftovers(path)


DYING = """
import os, sys
import pyarrow as pa
from inlay.engines.spark.tasks import Scratch
from inlay.storage import locate
Scratch.beside(locate(sys.argv[1])).write("rows", pa.table({"id": [1]}))
os._exit(0)
"""


def test_the_next_merge_deletes_files_of_dead_merges_only(tmp_path):
    """A plan holds no lock, so other merges must keep its files."""
    path = target(tmp_path / "d")
    scratch = Scratch.beside(locate(path))
    piece = scratch.write("rows", rows([1]))
    subprocess.run([sys.executable, "-c", DYING, path], check=True)
    assert len(leftovers(path)) == 2
    inlay.merge(rows([2]), path, "update", ["id"])
    assert leftovers(path) == [os.path.basename(scratch.path)]
    assert scratch.read(piece).num_rows == 1
    scratch.remove()
    assert not leftovers(path)


# --------------------------------------------------------------------------------------------------------------- files
def exact_rows(ids):
    """Return rows of types that Spark lacks."""
    ids = np.asarray(ids, np.int64)
    return pa.table(
        {
            "id": pa.array(ids, pa.uint32()),
            "ns": pa.array(ids * 1_000_000_007, pa.timestamp("ns")),
            "price": pa.array([f"{i}.25" for i in ids.tolist()]).cast(pa.decimal128(20, 2)),
            "word": pa.array([f"w{i % 7}" for i in ids.tolist()]).dictionary_encode(),
            "half": pa.array(ids.astype(np.float16)),
            "pair": pa.array([[i, i + 1] for i in ids.tolist()], pa.list_(pa.int16(), 2)),
        }
    )


def files_of(path, table, count=3):
    path.mkdir()
    for at, part in enumerate(np.array_split(np.arange(len(table)), count)):
        pq.write_table(table.slice(part[0], len(part)), path / f"{at}.parquet", row_group_size=150)
    return path


@pytest.mark.usefixtures("spark")
# short runs read a directory
@pytest.mark.parametrize(
    "named",
    ["directory", pytest.param("pattern", marks=pytest.mark.long), pytest.param("file", marks=pytest.mark.long)],
)
def test_tasks_read_files_without_changing_types(tmp_path, monkeypatch, stored, named):
    monkeypatch.setattr(source_module, "_TASK_BYTES", 10_000)
    source = files_of(tmp_path / "source", exact_rows(np.random.default_rng(5).permutation(3_000) % 30_000 + 200))
    sources = {"directory": source, "pattern": source / "*.parquet", "file": source / "1.parquet"}
    paths, results = [str(tmp_path / engine) for engine in ("pyarrow", "spark")], []
    for path, engine in zip(paths, ("pyarrow", "spark"), strict=True):
        inlay.merge(exact_rows(range(2_000)), path, "insert", ["id"], row_group_size=500)
        results.append(inlay.merge(str(sources[named]), path, "upsert", ["id"], engine=engine))
    assert len(stored) == 1
    assert counts(results[0]) == counts(results[1])
    assert content(paths[0]).schema == content(paths[1]).schema
    assert content(paths[0]).to_pylist() == content(paths[1]).to_pylist()  # the order of dictionaries can differ
    assert not leftovers(paths[1])


@pytest.mark.usefixtures("spark")
def test_the_last_row_of_the_last_file_wins(tmp_path, stored):
    versions = [rows([7, 8, 9], text) for text in ("first", "second", "third")]
    source = files_of(tmp_path / "source", pa.concat_tables(versions))
    path = target(tmp_path / "d")
    result = inlay.merge(str(source), path, "deduplicate", ["id"], engine="spark")
    assert (result.source_count, result.updated, len(stored)) == (9, 3, 1)
    assert content(path).slice(7, 3)["text"].to_pylist() == ["third 7", "third 8", "third 9"]


@pytest.mark.usefixtures("spark")
def test_partition_columns_come_from_the_paths_of_files(tmp_path, stored):
    path, source = str(tmp_path / "d"), str(tmp_path / "source")
    table = rows(range(1_000)).append_column("p", pa.array([i % 3 for i in range(1_000)], pa.int32()))
    inlay.merge(table.slice(0, 500), path, "insert", ["id"], ["p"])
    inlay.merge(table.slice(300), source, "insert", ["id"], ["p"])
    result = inlay.merge(source, path, "upsert", ["id"], engine="spark")
    assert (result.updated, result.inserted, len(stored)) == (200, 500, 1)


@pytest.mark.usefixtures("spark")
def test_the_driver_reads_files_that_tasks_cannot_open(tmp_path, stored):
    path = target(tmp_path / "d")
    with fsspec.open("memory://updates.parquet", "wb") as out:
        pq.write_table(rows(range(100)), out)
    result = inlay.merge("memory://updates.parquet", path, "update", ["id"], engine="spark")
    assert (result.updated, stored) == (100, [])
    assert not leftovers(path)


@pytest.mark.usefixtures("spark")
def test_the_error_of_a_corrupt_file_equals_that_of_the_driver(tmp_path):
    path = target(tmp_path / "d")
    source = files_of(tmp_path / "source", rows(range(900)))
    broken = bytearray((source / "1.parquet").read_bytes())
    broken[10:400] = bytes(390)
    (source / "1.parquet").write_bytes(broken)
    errors = []
    for engine in ("pyarrow", "spark"):
        with pytest.raises(InlayError) as caught:
            inlay.merge(str(source), path, "update", ["id"], engine=engine)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert not leftovers(path)


@pytest.mark.parametrize("partitions", [None, ["k"]])
def test_tasks_write_rows_without_keys(spark, tmp_path, stored, partitions):
    path = str(tmp_path / "d")
    source = rows(range(2_000))
    frame = spark.createDataFrame(source).coalesce(1)
    result = inlay.write_dataset(frame, path, partition_columns=partitions, max_rows_per_file=450)
    assert (result.row_count, len(stored)) == (2_000, 1)
    assert (
        content(path).select(source.column_names).equals(source.cast(content(path).select(source.column_names).schema))
    )
    assert inlay.write_dataset(str(files_of(tmp_path / "more", source)), path, engine="spark").row_count == 2_000
    assert len(stored) == 2
    assert not leftovers(path)


def feed(ids, *, seed=0):
    """Return two versions of each row in random order. The later version of every third key deletes."""
    ids = np.repeat(ids, 2)
    version = np.tile([1, 2], len(ids) // 2)
    table = rows(ids, seed=seed)
    table = table.append_column("version", pa.array(version))
    table = table.append_column(
        "op", pa.array(["d" if i % 3 == 0 and v == 2 else "u" for i, v in zip(ids, version, strict=True)])
    )
    return table.take(np.random.default_rng(seed).permutation(len(table)))


def test_a_change_feed(spark, tmp_path, stored):
    """Operations, versions and deletions have the same effect as in a small source."""
    paths = [target(tmp_path / name, groups=2) for name in ("table", "frame")]
    ids = np.arange(0, 2 * ROWS, 3) + np.arange(0, 2 * ROWS, 3) % 2
    options = {"operation_column": "op", "newer_by": "version", "schema_mode": "evolve"}
    for again in (False, True):
        found = []
        for source, path in both(spark, feed(ids), paths):
            engine = "pyarrow" if isinstance(source, pa.Table) else "spark"
            result = inlay.merge(source, path, "deduplicate", "id", engine=engine, **options)
            found.append((result.inserted, result.updated, result.deleted, result.stale, result.target_count_after))
        assert found[0] == found[1]
        assert (found[0][3] > 0) == again
    assert lake.same_rows(lake.rows_of(content(paths[0])), lake.rows_of(content(paths[1])))
    gone = rows(np.arange(0, ROWS, 2)).select(["id", "k", "x"])
    found = [
        inlay.merge(source, path, "delete", "id", scope={"k": [f"k{i}" for i in range(13)]}).deleted
        for source, path in both(spark, gone, paths)
    ]
    assert found[0] == found[1] > 0
    assert content(paths[0]).equals(content(paths[1]))
    assert len(stored) == 3
