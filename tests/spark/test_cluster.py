"""Real clusters on loopback, whose executors get inlay from the driver."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark import cluster

CONNECT = """
import json, os, sys, threading, time
from inlay.engines.spark import session as s
from inlay.errors import InlayError

spark = s.get_session(sys.argv[1])
folder = sys.argv[2]
answer = {"connect": s.is_connect(spark), "same": s.get_session() is spark, "parallelism": s.parallelism(spark)}
answer["zone"] = spark.conf.get("spark.sql.session.timeZone")
try:
    s.check_workers(spark)
except InlayError as error:
    answer["unshipped"] = str(error)
s.ship_package(spark)
s.ship_package(spark)
answer["workers"] = sorted({worker.inlay for worker in s.check_workers(spark)})

def slowly(batches):
    import inlay.engines.kernels, time
    for batch in batches:
        time.sleep(0.7)
        yield batch

def quickly(batches):
    yield from batches

seen = []
beside = threading.Thread(target=lambda: spark.range(0, 40, 1, 40).mapInArrow(quickly, "id long").collect())
with s.report_tasks(spark, "counted", lambda done, total: seen.append((done, total))):
    beside.start()
    answer["rows"] = sorted(row.id for row in spark.range(0, 6, 1, 6).mapInArrow(slowly, "id long").collect())
beside.join()
answer["seen"] = seen

def forever(batches):
    import os, time
    for batch in batches:
        while True:
            open(os.path.join(folder, str(os.getpid())), "w").close()
            time.sleep(0.05)
        yield batch

def stop():
    while len(os.listdir(folder)) < 2:
        time.sleep(0.05)
    answer["canceled at"] = time.time()
    s.cancel("endless")

stopper = threading.Thread(target=stop)
stopper.start()
try:
    with s.tagged(spark, "endless"):
        spark.range(0, 2, 1, 2).mapInArrow(forever, "id long").collect()
except Exception as error:
    answer["cancelled"] = str(error)[:300]
stopper.join()
answer["after"] = time.time() - answer.pop("canceled at")
deadline = time.time() + 15
while any(os.path.exists(f"/proc/{pid}") for pid in os.listdir(folder)) and time.time() < deadline:
    time.sleep(0.05)
answer["tasks left"] = [pid for pid in os.listdir(folder) if os.path.exists(f"/proc/{pid}")]
answer["still works"] = spark.range(7).count()
s.stop_session()
answer["stopped"] = s.current_session() is None

from pyspark.sql import SparkSession
theirs = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
answer["adopted"] = s.get_session() is theirs and s.get_session() is theirs
s.stop_session()
answer["theirs"] = theirs.range(3).count()
print(json.dumps(answer))
"""


@pytest.mark.long  # short runs load datasets through Spark Connect in tests/web, and ship the package below
def test_connect(bare_python: str, tmp_path: Path) -> None:
    (tmp_path / "beats").mkdir()
    stock = {"spark.python.daemon.module": "pyspark.daemon"}  # executors without inlay have no other daemon
    with cluster.connect_server("local[2]", conf=stock, PYSPARK_PYTHON=bare_python) as connect:
        answer = cluster.run_driver(CONNECT, connect.url, str(tmp_path / "beats"), folder=tmp_path, java=False)
        listening = cluster.listening_addresses(connect.pid)
    assert answer["connect"]
    assert answer["same"]
    assert answer["parallelism"] == 2
    assert answer["zone"] == "UTC"
    assert "does not have inlay" in answer["unshipped"]
    assert len(answer["workers"]) == 1
    assert answer["rows"] == list(range(6))
    assert answer["seen"][-1] == [6, 6], "the other thread's tasks are not counted"
    assert any(0 < done < 6 for done, _ in answer["seen"])
    assert "CANCEL" in answer["cancelled"].upper()
    assert answer["after"] < 10
    assert answer["tasks left"] == []
    assert answer["still works"] == 7
    assert answer["stopped"]
    assert answer["adopted"]
    assert answer["theirs"] == 3
    assert listening
    assert listening <= cluster.LOOPBACK


STANDALONE = """
import json, sys
from inlay.engines.spark import session as s

spark = s.get_session(sys.argv[1])
s.ship_package(spark)
workers = s.check_workers(spark)

def where(batches):
    import inlay.engines.kernels, os, sys, time
    import pyarrow as pa
    for batch in batches:
        time.sleep(0.3)
        row = {"id": batch.column(0), "cwd": pa.array([os.getcwd()] * len(batch))}
        row["daemon"] = pa.array([" ".join(sys.orig_argv)] * len(batch))
        row["inlay"] = pa.array([inlay.__file__] * len(batch))
        yield pa.RecordBatch.from_pydict(row)

rows = spark.range(0, 8, 1, 8).mapInArrow(where, "id long, cwd string, daemon string, inlay string").collect()
answer = {name: sorted({row[name] for row in rows}) for name in ("id", "cwd", "daemon", "inlay")}
answer["inlay versions"] = sorted({worker.inlay for worker in workers})
print(json.dumps(answer), flush=True)
sys.stdin.read()
"""


@pytest.mark.long  # short runs merge on a standalone cluster in test_large_source_cluster.py
def test_standalone_cluster(standalone: cluster.Cluster, bare_python: str, tmp_path: Path) -> None:
    """Run a job on two executors, which get the package and the daemon from the driver."""
    driver = cluster.start_driver(STANDALONE, standalone.master, folder=tmp_path, PYSPARK_PYTHON=bare_python)
    try:
        answer = _answer(driver)
        assert answer["id"] == list(range(8))
        assert len(answer["cwd"]) == 2
        assert all("-m inlay_daemon" in daemon for daemon in answer["daemon"])
        assert all(path.endswith(".zip/inlay/__init__.py") for path in answer["inlay"])
        assert len(answer["inlay versions"]) == 1
        executors = standalone.executors()
        assert sorted(executors.values()) == sorted(standalone.workers)
        for session in (standalone.master_pid, *standalone.workers, driver.pid):
            assert cluster.listening_addresses(session) <= cluster.LOOPBACK
        assert driver.communicate("", timeout=30)
        assert driver.returncode == 0
        assert cluster.session_members(driver.pid) == []
        cluster.wait_until(lambda: not standalone.executors(), 15, "the end of the executors")
    finally:
        cluster.end_session(driver.pid)
        driver.communicate()


def _answer(driver: Any) -> Any:
    line = driver.stdout.readline()
    assert line, cluster.without_stacks(driver.communicate(timeout=10)[1])[-4000:]
    return json.loads(line)
