"""The same conversions on a standalone cluster, on Spark Connect and in an object store; and what Spark's log says."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inlay.errors import BadRowsError
from inlay.storage import locate
from tests.pipeline.conftest import Converter
from tests.s3 import start_server
from tests.spark import cluster

pytestmark = pytest.mark.spark

ROWS = 20_000
SCRIPT = """
import json, sys
import pyarrow as pa
from inlay.engines.spark.session import get_session
from inlay.parquet.writer import WriterSettings
from inlay.pipeline import InlineFile, RawFile, ReadOptions, convert, preview, read_rejects
from inlay.storage import locate

master, root, csv, documents = sys.argv[1:]
spark = get_session(master)
into = locate(root)
answers = []
for kind, path in (("csv", csv), ("json", documents)):
    raw = RawFile(into, path, into.store.stat(into.full(path)).size, "gzip")
    found = convert(
        spark, raw, ReadOptions.of(kind), into=into, directory=f"out-{kind}", rejects_directory=f"out-{kind}/rejects",
        settings=WriterSettings({"compression": "zstd"}, 100_000), overrides={"b": pa.int32()}, on_error="quarantine",
        split_bytes=50_000, max_rows_per_file=15_000,
    )
    shown = preview(spark, raw, ReadOptions.of(kind))
    answers.append({
        "files": [list(file) for file in found.files], "rows": found.rows, "rejected": found.rejected,
        "jobs": [list(job) for job in found.jobs], "types": [str(t) for t in found.schema.types],
        "lines": [row["line"] for row in read_rejects(into, found.reject_files, 0, 10)],
        "preview": shown.rows[0]["a"],
    })
print(json.dumps(answers))
"""


def _payloads() -> dict[str, bytes]:
    import gzip

    numbers = [str(n) if n != 15_000 else "1.5" for n in range(ROWS)]
    csv = "a,b\n" + "".join(f"{a},{'bad' if n == 7_000 else n}\n" for n, a in enumerate(numbers))
    lines = "".join(
        f'{{"a": {a}, "b": {chr(34) + "bad" + chr(34) if n == 7_000 else n}}}\n' for n, a in enumerate(numbers)
    )
    return {"raw.csv": gzip.compress(csv.encode()), "raw.json": gzip.compress(lines.encode())}


def _check(answers: list[dict[str, Any]]) -> None:
    for answer, line in zip(answers, (7_002, 7_001), strict=True):
        assert (answer["rows"], answer["rejected"]) == (ROWS - 1, 1)
        assert answer["types"] == ["double", "int32"]
        assert answer["lines"] == [line]
        assert all(rows <= 15_000 for _, rows, _ in answer["files"])
        assert sum(rows for _, rows, _ in answer["files"]) == ROWS - 1
        assert answer["preview"] == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("places")
    for name, content in _payloads().items():
        (root / name).write_bytes(content)
    return root


def _copy(folder: Path, name: str) -> str:
    target = folder.parent / f"{folder.name}-{name}"
    target.mkdir()
    for file in ("raw.csv", "raw.json"):
        (target / file).write_bytes((folder / file).read_bytes())
    return str(target)


def _left(root: str) -> set[str]:
    return {str(path.relative_to(root)) for path in Path(root).rglob("*") if path.is_file()} - {"raw.csv", "raw.json"}


@pytest.mark.long  # short runs convert on local executors, and merge on a cluster in tests/spark
def test_a_standalone_cluster_and_its_event_log(folder: Path, tmp_path: Path, standalone: cluster.Cluster) -> None:
    root, events = _copy(folder, "cluster"), tmp_path / "events"
    events.mkdir()
    conf = cluster.DRIVER_CONF | {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(events),
        "spark.eventLog.compress": "false",
    }
    answers = cluster.run_driver(
        SCRIPT, standalone.master, root, "raw.csv", "raw.json", folder=tmp_path, INLAY_SPARK_CONF=json.dumps(conf)
    )
    _check(answers)
    log = _events(events)
    for answer in answers:
        assert _left(root) >= {file[0] for file in answer["files"]}
        parse = [job for job in answer["jobs"] if job[0].startswith("inlay-parse-")]
        # The last of them read every split: what it reports is what the dataset holds.
        name, rows, rejected = parse[-1]
        assert (rows, rejected) == (answer["rows"], answer["rejected"])
        assert _finished_tasks(log, name) > 1
    assert not any(".convert-" in path for path in _left(root))


def _events(directory: Path) -> list[dict[str, Any]]:
    files = [path for path in directory.rglob("*") if path.is_file() and path.name.startswith(("events_", "app-"))]
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def _finished_tasks(log: list[dict[str, Any]], group: str) -> int:
    """Tasks of a job group that ended well; each yielded reports of splits, which the plan adds up."""
    starts = [
        e for e in log if e["Event"] == "SparkListenerJobStart" and e["Properties"].get("spark.jobGroup.id") == group
    ]
    assert len(starts) == 1
    executions = [
        e
        for e in log
        if e["Event"].endswith("SQLExecutionStart")
        and str(e["executionId"]) == starts[0]["Properties"]["spark.sql.execution.id"]
    ]
    assert "MapInArrow" in executions[0]["physicalPlanDescription"]
    assert "sum(rows" in executions[0]["physicalPlanDescription"]
    stages = set(starts[0]["Stage IDs"])
    ended = [e for e in log if e["Event"] == "SparkListenerTaskEnd" and e["Stage ID"] in stages]
    assert all(e["Task End Reason"]["Reason"] == "Success" for e in ended)
    return len(ended)


@pytest.mark.long  # short runs load datasets through Spark Connect in tests/web
def test_spark_connect(folder: Path, tmp_path: Path, connect: str) -> None:
    root = _copy(folder, "connect")
    answers = cluster.run_driver(SCRIPT, connect, root, "raw.csv", "raw.json", folder=tmp_path)
    _check(answers)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = start_server()
    host, port = server.get_host_and_port()
    connection = http.client.HTTPConnection(host, port)
    connection.request("PUT", "/bucket")
    assert connection.getresponse().status == 200
    connection.close()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(spark: Any, endpoint: str) -> Converter:
    options = {"key": "test", "secret": "test", "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}
    return Converter(spark, locate("s3://bucket/data", storage_options=options))


def test_an_object_store(bucket: Converter) -> None:
    import pyarrow as pa

    raw = bucket.upload(_payloads()["raw.csv"])
    found = bucket.convert(raw, split_bytes=50_000, overrides={"b": pa.int32()}, on_error="quarantine")
    assert (found.rows, found.rejected) == (ROWS - 1, 1)
    assert bucket.table(found).column("a").to_pylist()[15_000 - 1] == 1.5
    assert bucket.rejects(found)[0]["line"] == 7_002
    assert sorted(bucket.everything()) == sorted([raw.path, found.files[0].path, *found.reject_files])
    with pytest.raises(BadRowsError):
        bucket.convert(raw, split_bytes=50_000, overrides={"b": pa.int32()})
    assert len(bucket.everything()) == 3
