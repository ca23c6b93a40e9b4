"""Merges on a real cluster happen exactly once if executors, workers or drivers die."""

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

FILES, ROWS = 12, 20_000

MERGE = f"""
import json, sys, time
import numpy as np, pyarrow as pa
import inlay
from inlay.engines.spark import jobs as spark_jobs

path, master, slow = sys.argv[1], sys.argv[2], float(sys.argv[3])

class Slow(spark_jobs.Receive):
    def __call__(self, task):
        import time
        time.sleep(slow)
        return super().__call__(task)

spark_jobs.Receive = Slow
from inlay.engines.spark.session import get_session
get_session(master)
ids = np.arange(0, {FILES * ROWS}, 10)
table = pa.table({{"id": ids, "text": [f"new {{i}}" for i in ids]}})
print("ready", flush=True)
result = inlay.merge(table, path, "upsert", ["id"], engine="spark",
                     progress=lambda p: print(p.phase, p.done, p.total, flush=True) or True)
print(json.dumps([result.updated, result.inserted, result.target_count_after, len(result.rewritten_files)]))
"""


def target(path):
    path.mkdir()
    for at in range(FILES):
        ids = np.arange(at * ROWS, (at + 1) * ROWS)
        pq.write_table(pa.table({"id": ids, "text": [f"old {i}" for i in ids]}), path / f"{at:02}.parquet")
    return str(path)


def state(path):
    """Return 'before', 'after', or the unexpected content."""
    table = inlay.read_parquet(path)
    ids, texts = table["id"].to_pylist(), table["text"].to_pylist()
    assert sorted(ids) == list(range(FILES * ROWS))
    new = {i for i, text in zip(ids, texts, strict=True) if text == f"new {i}"}
    old = {i for i, text in zip(ids, texts, strict=True) if text == f"old {i}"}
    if not new and len(old) == FILES * ROWS:
        return "before"
    if new == set(range(0, FILES * ROWS, 10)) and len(old) == FILES * ROWS - len(new):
        return "after"
    return f"mixed: {len(new)} new, {len(old)} old"


def nothing_left(path):
    parent, name = os.path.split(path)
    return not [n for n in os.listdir(os.path.join(parent, f".{name}.txn")) if n.startswith((".staging", "commit"))]


def until_rewriting(driver):
    for line in driver.stdout:
        if line.startswith("rewrite 0"):
            return
    raise AssertionError(cluster.without_stacks(driver.stderr.read())[-3000:])


@pytest.mark.long  # short runs kill an executor in test_large_source_cluster.py
@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_a_merge_survives_the_death_of(tmp_path, victim):
    path = target(tmp_path / "d")
    with cluster.standalone_cluster() as running:
        driver = cluster.start_driver(MERGE, path, running.master, "1.0", folder=tmp_path)
        try:
            until_rewriting(driver)
            executors = running.wait_for_executors(2)
            time.sleep(1.5)
            pid, worker = next(iter(executors.items()))
            os.kill(pid if victim == "executor" else worker, signal.SIGKILL)
            if victim == "worker":
                os.kill(pid, signal.SIGKILL)
            out, err = driver.communicate(timeout=120)
        finally:
            cluster.end_session(driver.pid)
            driver.wait()
    assert driver.returncode == 0, cluster.without_stacks(err)[-3000:]
    assert out.strip().splitlines()[-1] == f"[{FILES * ROWS // 10}, 0, {FILES * ROWS}, {FILES}]"
    assert state(path) == "after"
    assert nothing_left(path)


@pytest.mark.long  # short runs kill merging processes in tests/faults; a driver leaves the same staged files
def test_a_driver_that_dies_changes_nothing(spark, tmp_path, standalone):
    path = target(tmp_path / "d")
    driver = cluster.start_driver(MERGE, path, standalone.master, "2.0", folder=tmp_path)
    try:
        until_rewriting(driver)
        time.sleep(2)
        os.kill(driver.pid, signal.SIGKILL)
    finally:
        cluster.end_session(driver.pid)
        driver.communicate()
    assert state(path) == "before"
    report = inlay.recover(path)
    assert report.swept
    assert nothing_left(path)
    ids = np.arange(0, FILES * ROWS, 10)
    table = pa.table({"id": ids, "text": [f"new {i}" for i in ids]})
    assert inlay.merge(table, path, "upsert", ["id"], engine="spark").updated == len(ids)
    assert state(path) == "after"


@pytest.mark.long  # short runs load datasets through Spark Connect in tests/web
def test_merge_on_spark_connect(tmp_path, connect):
    path = target(tmp_path / "d")
    answer = cluster.run_driver(MERGE, path, connect, "0", folder=tmp_path)
    assert answer == [FILES * ROWS // 10, 0, FILES * ROWS, FILES]
    assert state(path) == "after"


@pytest.mark.long  # short runs load datasets on S3 with Spark in tests/workspace
def test_executors_read_and_write_s3_without_extra_jars(tmp_path, standalone, s3):  # noqa: F811
    path = f"{s3.bucket()}/d"
    s3fs.S3FileSystem(endpoint_url=s3.endpoint, skip_instance_cache=True).put(
        target(tmp_path / "d"), path, recursive=True
    )
    answer = cluster.run_driver(MERGE, path, standalone.master, "0", folder=tmp_path, **s3.environment())
    assert answer == [FILES * ROWS // 10, 0, FILES * ROWS, FILES]
    assert state(path) == "after"
