"""Large DataFrames on real clusters: executors exchange rows through the dataset's store."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs

import inlay
from tests.s3 import s3  # noqa: F401
from tests.spark import cluster

FILES, ROWS = 6, 20_000
TOTAL = FILES * ROWS
NEW = 5_000
EXPECTED = [TOTAL // 2, NEW // 2, TOTAL + NEW // 2, FILES]

MERGE = f"""
import json, sys
import inlay
from inlay.engines.spark import engine, source as spark_source, jobs as spark_jobs
from inlay.engines.spark.session import get_session

path, master, slow = sys.argv[1], sys.argv[2], float(sys.argv[3])
engine._DRIVER_BYTES = 0
spark_source.BUCKET_BYTES = 300_000
spark_jobs._WAVE_ROWS = 30_000
spark_jobs.MIN_SPLIT_ROWS = 100_000 if slow else 4_000

class Slow(spark_jobs.Receive):
    def __call__(self, task):
        import time
        time.sleep(slow)
        return super().__call__(task)

spark_jobs.Receive = Slow
spark = get_session(master)
frame = spark.range(0, {TOTAL + NEW}, 2, 5).selectExpr("id", "concat('new ', id) as text")
source = sys.argv[4] if len(sys.argv) > 4 else frame
print("ready", flush=True)
result = inlay.merge(source, path, "upsert", ["id"], engine="spark",
                     progress=lambda p: print(p.phase, p.done, p.total, flush=True) or True)
print(json.dumps([result.updated, result.inserted, result.target_count_after, len(result.rewritten_files)]))
"""


def target(path):
    """Return rows in random order, so that every file gets rows of every bucket."""
    path.mkdir()
    ids = np.random.default_rng(0).permutation(TOTAL)
    for at, part in enumerate(np.split(ids, FILES)):
        table = pa.table({"id": part, "text": [f"old {i}" for i in part]})
        pq.write_table(table, path / f"{at:02}.parquet", row_group_size=ROWS // 4)
    return str(path)


def is_merged(path):
    table = inlay.read_parquet(path)
    found = dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    old = {i: f"old {i}" for i in range(TOTAL)}
    return len(table) == len(found) and found == old | {i: f"new {i}" for i in range(0, TOTAL + NEW, 2)}


def leftovers(path):
    parent, name = os.path.split(path)
    return [n for n in os.listdir(os.path.join(parent, f".{name}.txn")) if n.startswith((".staging", "commit"))]


def until_rewriting(driver):
    for line in driver.stdout:
        if line.startswith("rewrite 0"):
            return
    raise AssertionError(cluster.without_stacks(driver.stderr.read())[-3000:])


@pytest.mark.long  # short runs merge on two workers, one of which loses its executor, in the next test but one
def test_two_workers(tmp_path, standalone):
    path = target(tmp_path / "d")
    assert cluster.run_driver(MERGE, path, standalone.master, "0", folder=tmp_path) == EXPECTED
    assert is_merged(path)
    assert not leftovers(path)


@pytest.mark.long  # short runs load datasets through Spark Connect in tests/web
def test_spark_connect(tmp_path, connect):
    path = target(tmp_path / "d")
    assert cluster.run_driver(MERGE, path, connect, "0", folder=tmp_path) == EXPECTED
    assert is_merged(path)
    assert not leftovers(path)


def test_a_merge_survives_the_death_of_an_executor(tmp_path):
    """The rows that it wrote for other executors are in the store, not on its disk."""
    path = target(tmp_path / "d")
    with cluster.standalone_cluster() as running:
        driver = cluster.start_driver(MERGE, path, running.master, "0.5", folder=tmp_path)
        try:
            until_rewriting(driver)
            executors = running.wait_for_executors(2)
            time.sleep(0.8)
            os.kill(next(iter(executors)), signal.SIGKILL)
            out, err = driver.communicate(timeout=120)
        finally:
            cluster.end_session(driver.pid)
            driver.wait()
    assert driver.returncode == 0, cluster.without_stacks(err)[-3000:]
    assert out.strip().splitlines()[-1] == str(EXPECTED)
    assert is_merged(path)
    assert not leftovers(path)


@pytest.mark.long  # short runs delete the files of a dead process in test_large_source.py
def test_the_next_merge_deletes_files_of_a_dead_driver(tmp_path, standalone):
    path = target(tmp_path / "d")
    driver = cluster.start_driver(MERGE, path, standalone.master, "3.0", folder=tmp_path)
    try:
        until_rewriting(driver)
        time.sleep(1)
        os.kill(driver.pid, signal.SIGKILL)
    finally:
        cluster.end_session(driver.pid)
        driver.communicate()
    assert leftovers(path)
    assert inlay.recover(path).swept
    assert not leftovers(path)
    assert len(inlay.read_parquet(path)) == TOTAL
    assert not is_merged(path)


@pytest.fixture
def store(s3):  # noqa: F811
    return s3fs.S3FileSystem(endpoint_url=s3.endpoint, skip_instance_cache=True)


# Short runs exchange rows through a disk in the test of a dead executor, and load datasets on S3 in tests/workspace.
@pytest.mark.long
def test_executors_exchange_rows_through_s3(tmp_path, standalone, s3, store):  # noqa: F811
    path = f"{s3.bucket()}/d"
    store.put(target(tmp_path / "d"), path, recursive=True)
    answer = cluster.run_driver(MERGE, path, standalone.master, "0", folder=tmp_path, **s3.environment())
    assert answer == EXPECTED
    assert is_merged(path)
    store.invalidate_cache()
    assert not [name for name in store.find(path) if ".staging" in name]


@pytest.mark.long  # short runs read large files from a disk in test_large_source.py
def test_executors_read_large_files_from_s3(tmp_path, standalone, s3, store):  # noqa: F811
    bucket = s3.bucket()
    path = f"{bucket}/d"
    store.put(target(tmp_path / "d"), path, recursive=True)
    ids = np.arange(0, TOTAL + NEW, 2)
    source = pa.table({"id": ids, "text": [f"new {i}" for i in ids]})
    for at, part in enumerate(np.array_split(np.arange(len(ids)), 3)):
        rows = source.slice(part[0], len(part))
        name = f"{bucket.removeprefix('s3://')}/updates/{at}.parquet"
        pq.write_table(rows, name, row_group_size=5_000, filesystem=store)
    arguments = [path, standalone.master, "0", f"{bucket}/updates"]
    answer = cluster.run_driver(MERGE, *arguments, folder=tmp_path, seconds=300, **s3.environment())
    assert answer == EXPECTED
    assert is_merged(path)
    store.invalidate_cache()
    assert not [name for name in store.find(bucket) if ".staging" in name]
