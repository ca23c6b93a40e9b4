"""Streams in processes of their own: on clusters, through Spark Connect, and killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest
import s3fs

import inlay
from tests.s3 import s3  # noqa: F401
from tests.spark import cluster

STREAM = """
import json, sys
import inlay, inlay.spark
from inlay.engines.spark.session import get_session

folder, path, sink, master = sys.argv[1:]
spark = get_session(master)
spark.dataSource.register(inlay.spark.InlayDataSource)
columns = "id long, value string, position long"
rows = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1).json(f"{folder}/in")
write = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
options = {"strategy": "deduplicate", "dedup_order_by": "position"}
if sink == "format":
    query = write.format("inlay").option("keys", "id").options(**options).start(path)
else:
    query = write.foreachBatch(inlay.spark.merge_batch(path, "id", **options)).start()
print("started", flush=True)
query.awaitTermination()
read = spark.read.format("inlay").option("columns", "id,value").option("filter", "id >= 0").load(path)
print(json.dumps([read.count(), read.where("value = 'file 1'").count()]))
"""


def put_files(folder, count, rows=5, keys=40):
    """Write files of changes, and return the resulting table. File n also has a row of its own, with id -1 - n."""
    (folder / "in").mkdir()
    random_ = random.Random(count)
    expected = {}
    for number in range(count):
        ids = [*(random_.randrange(keys) for _ in range(rows)), -1 - number]
        changes = [{"id": i, "value": f"file {number}", "position": number * 100 + at} for at, i in enumerate(ids)]
        expected |= {change["id"]: (change["value"], change["position"]) for change in changes}
        path = folder / "in" / f"{number:04}.json"
        path.write_text("".join(f"{json.dumps(change)}\n" for change in changes))
        os.utime(path, (number + 1, number + 1))  # Spark reads files in the order of their times.
    return expected


def table(folder):
    rows = inlay.read_parquet(folder / "table").to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: (row["value"], row["position"]) for row in rows}


def staging(folder):
    names = os.listdir(folder / ".table.txn")
    return [name for name in names if name.startswith((".staging", "commit")) and not name.endswith("_leased")]


@pytest.mark.long  # short runs stream in one process; a cluster takes a minute to start
@pytest.mark.parametrize("sink", ["format", "foreachBatch"])
def test_executors_without_inlay_stream_into_a_dataset(standalone, bare_python, tmp_path, sink):
    expected = put_files(tmp_path, 4)
    answer = cluster.run_driver(
        STREAM, str(tmp_path), str(tmp_path / "table"), sink, standalone.master,
        folder=tmp_path, seconds=240, PYSPARK_PYTHON=bare_python,
    )  # fmt: skip
    assert table(tmp_path) == expected
    assert answer == [sum(i >= 0 for i in expected), sum(i >= 0 and v == "file 1" for i, (v, _) in expected.items())]
    assert staging(tmp_path) == []


@pytest.mark.long  # short runs stream in a classic session
def test_a_stream_through_spark_connect(connect, tmp_path):
    expected = put_files(tmp_path, 3)
    answer = cluster.run_driver(
        STREAM, str(tmp_path), str(tmp_path / "table"), "format", connect, folder=tmp_path, seconds=120
    )
    assert table(tmp_path) == expected
    assert answer[0] == sum(i >= 0 for i in expected)


@pytest.mark.long  # short runs merge on S3 in tests/test_object_stores.py
@pytest.mark.parametrize("sink", ["format", "foreachBatch"])
def test_a_stream_into_a_dataset_on_s3(s3, tmp_path, sink):  # noqa: F811
    path = f"{s3.bucket()}/table"
    expected = put_files(tmp_path, 3)
    answer = cluster.run_driver(
        STREAM, str(tmp_path), path, sink, "local[2]", folder=tmp_path, **s3.environment()
    )  # fmt: skip
    assert answer[0] == sum(i >= 0 for i in expected)
    store = s3fs.S3FileSystem(endpoint_url=s3.endpoint, skip_instance_cache=True)
    rows = inlay.read_parquet(path, filesystem=store).to_pylist()
    assert {row["id"]: (row["value"], row["position"]) for row in rows} == expected
    assert [name for name in store.find(path.removesuffix("table")) if ".staging" in name] == []


BATCH = """
import json, sys
import inlay.spark
from inlay.engines.spark.session import get_session

path, master = sys.argv[1:]
spark = get_session(master)
spark.dataSource.register(inlay.spark.InlayDataSource)
spark.range(10).write.format("inlay").mode("append").option("keys", "id").save(path)
print(json.dumps(spark.read.format("inlay").option("filter", "id > 6").load(path).count()))
"""


@pytest.mark.long  # short runs write and read in a classic session
def test_spark_connect_ships_the_package_for_data_frames(bare_python, tmp_path):
    stock = {"spark.python.daemon.module": "pyspark.daemon"}  # The server's Python has no inlay.
    with cluster.connect_server("local[2]", conf=stock, PYSPARK_PYTHON=bare_python) as connect:
        answer = cluster.run_driver(BATCH, str(tmp_path / "d"), connect.url, folder=tmp_path, seconds=120)
    assert answer == 3
    assert inlay.read_parquet(tmp_path / "d").num_rows == 10


def mark_committed(folder, seen):
    """Change the own row of each file whose batch is committed. A batch that is applied again would undo it."""
    try:
        committed = [-1 - i for i in table(folder) if i < 0]
    except inlay.InlayError:
        return
    for number in set(committed) - seen:
        row = {"id": [-1 - number], "value": ["seen"], "position": [number]}
        inlay.merge(row, folder / "table", "update", "id")
        seen.add(number)


def victim(session, random_):
    """Choose what dies: all processes of the driver, its JVM, or a Python worker."""
    members = cluster.session_members(session)
    workers = [p.pid for p in members if "pyspark.daemon" in p.command or "inlay_daemon" in p.command]
    java = [p.pid for p in members if "org.apache.spark" in p.command]
    kind = random_.choice(["all", "java", "worker", "worker"])
    return {"all": [p.pid for p in members], "java": java, "worker": workers and [random_.choice(workers)]}[kind]


def batches_begun(folder):
    offsets = folder / "checkpoint" / "offsets"
    names = os.listdir(offsets) if offsets.exists() else []  # Spark deletes old files.
    return max((int(name) + 1 for name in names if name.isdigit()), default=0)


LOG_TO_FILE = """
import os, sys
os.dup2(os.open(f"{sys.argv[1]}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)  # A full pipe would block the driver.
"""


@pytest.mark.long  # starts Spark some twenty times; short runs repeat single batches
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sink", ["format", "foreachBatch"])
def test_killed_streams_lose_nothing_and_apply_nothing_twice(tmp_path, sink):
    files = int(os.environ.get("INLAY_TEST_STREAM_FILES", "200"))
    expected = put_files(tmp_path, files)
    random_ = random.Random()
    seen, kills, starts = set(), 0, 0
    while True:
        starts += 1
        assert starts < 100, "the stream does not advance"
        driver = cluster.start_driver(
            LOG_TO_FILE + STREAM, str(tmp_path), str(tmp_path / "table"), sink, "local[2]", folder=tmp_path
        )
        try:
            line = driver.stdout.readline()
            assert line == "started\n", cluster.without_stacks((tmp_path / "log").read_text())[-3000:]
            last = batches_begun(tmp_path) + random_.choice([0, 0, 1, 5, 20, 40])
            deadline = time.monotonic() + 60
            while driver.poll() is None and batches_begun(tmp_path) < last and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(random_.uniform(0, 1.5))  # some moment of a batch
            if driver.poll() is None:
                kills += 1
                for pid in victim(driver.pid, random_):
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
                time.sleep(random_.uniform(0, 0.5))  # Processes that are left go on for a moment.
        finally:
            cluster.end_session(driver.pid)
            driver.communicate()
        mark_committed(tmp_path, seen)
        print(f"start {starts}, {kills} kills, {len(seen)} batches", flush=True)
        if driver.returncode == 0:
            break
    found = table(tmp_path)
    assert {i: row for i, row in found.items() if i >= 0} == {i: row for i, row in expected.items() if i >= 0}
    assert {i for i in found if i < 0} == {-1 - number for number in range(files)}
    assert {value for i, (value, _) in found.items() if i < 0} == {"seen"}
    assert kills > 2
    assert staging(tmp_path) == []
