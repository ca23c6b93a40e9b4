"""Tests that run the code snippets of the dataset page."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from inlay.web.dataset.schema import Line, schema_lines
from inlay.web.dataset.snippets import KEY_VARIABLE, Snippet, Target, snippets
from tests.faults.service_process import ServiceProcess
from tests.spark.cluster import local_connect_url, spark_environment
from tests.web.conftest import SPARK_TIMEOUT


def named(target: Target) -> dict[str, Snippet]:
    return {snippet.title: snippet for snippet in snippets(target)}


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=SPARK_TIMEOUT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# ------------------------------------------------------------------------------------------------------ a real service
@pytest.fixture(scope="module")
def dataset(service: ServiceProcess) -> dict[str, Any]:
    """Create a dataset with two versions, the second in two files."""
    with httpx.Client(base_url=service.url, timeout=SPARK_TIMEOUT) as api:
        source = {"inline": {"format": "csv", "content": "id,name\n1,ann\n2,bob\n"}}
        made: dict[str, Any] = api.post("/v1/datasets", json={"label": "Snippets", "source": source}).json()
        more = {"inline": {"format": "csv", "content": "id,name\n3,cy\n"}}
        loaded = api.post(f"/v1/datasets/{made['id']}/loads", json={"source": more, "strategy": "append"})
        assert loaded.status_code == 201, loaded.text
        return made


@pytest.fixture(params=[None, 1], ids=["current", "older"])
def target(service: ServiceProcess, dataset: dict[str, Any], request: pytest.FixtureRequest) -> Target:
    return Target(service.url, dataset["id"], dataset["table_name"], version=request.param)


@pytest.fixture
def names(target: Target) -> set[str]:
    return {"ann", "bob", "cy"} if target.version is None else {"ann", "bob"}


@pytest.mark.spark
def test_sql(target: Target, names: set[str], api: httpx.Client) -> None:
    answer = api.post("/v1/query", json={"sql": named(target)["SQL"].code}).json()
    assert {name for _, name in answer["rows"]} == names


@pytest.mark.spark
def test_curl(target: Target, names: set[str], tmp_path: Path) -> None:
    printed = run(["bash", "-euc", named(target)["curl"].code], tmp_path)
    assert {row[1] for row in list(csv.reader(io.StringIO(printed)))[1:]} == names
    assert set(pq.read_table(tmp_path / f"{target.table_name}.parquet")["name"].to_pylist()) == names


@pytest.mark.spark
def test_python_queries(target: Target, names: set[str], tmp_path: Path) -> None:
    printed = run([sys.executable, "-c", named(target)["Python: query with SQL"].code], tmp_path)
    assert {line.split("'")[1] for line in printed.splitlines()} == names


@pytest.mark.spark
def test_python_reads_the_files(target: Target, names: set[str], tmp_path: Path) -> None:
    code = named(target)["Python: read the Parquet files"].code
    printed = run([sys.executable, "-c", f"{code}\nprint(*frame['name'])"], tmp_path)
    assert set(printed.splitlines()[-1].split()) == names


@pytest.mark.spark
def test_spark(service: ServiceProcess, dataset: dict[str, Any], tmp_path: Path) -> None:
    code = named(Target(service.url, dataset["id"], dataset["table_name"]))["Spark"].code
    remote = spark_environment(SPARK_REMOTE=local_connect_url())  # the snippet starts no JVM of its own
    printed = run([sys.executable, "-c", code], tmp_path, remote)
    assert all(name in printed for name in ("ann", "bob", "cy"))


# -------------------------------------------------------------------------------------------------------- by themselves
def test_snippets_read_the_key_from_the_environment_if_needed() -> None:
    locked = named(Target("https://data.example", "data_x", "t", needs_key=True))
    for title in set(locked) - {"SQL"}:
        assert KEY_VARIABLE in locked[title].code
    free = named(Target("https://data.example", "data_x", "t"))
    assert not any(KEY_VARIABLE in snippet.code or "import os" in snippet.code for snippet in free.values())


def test_spark_snippet_uses_s3a_addresses() -> None:
    assert "s3a://" in named(Target("http://localhost", "data_x", "t", is_on_s3=True))["Spark"].code
    assert "s3" not in named(Target("http://localhost", "data_x", "t"))["Spark"].code


@pytest.mark.parametrize("version", [None, 7])
@pytest.mark.parametrize("needs_key", [False, True])
def test_python_snippets_compile(version: int | None, needs_key: bool) -> None:
    made = named(Target("http://127.0.0.1:8000", "data_x", "t", version, needs_key))
    for title, snippet in made.items():
        if title not in ("SQL", "curl"):
            compile(snippet.code, title, "exec")


# --------------------------------------------------------------------------------------------------------------- schema
def test_nested_fields_have_lines() -> None:
    point = pa.struct([pa.field("lat", pa.float64(), nullable=False), ("lon", pa.float64())])
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            ("tags", pa.list_(pa.string())),
            ("way", pa.list_(point)),
            ("by_name", pa.map_(pa.string(), point)),
            ("deep", pa.struct([("inner", pa.struct([("x", pa.decimal128(9, 2))]))])),
        ]
    )
    point_lines = [Line(1, "lat", "double", False), Line(1, "lon", "double", True)]
    assert list(schema_lines(schema)) == [
        Line(0, "id", "bigint", False),
        Line(0, "tags", "list<text>", True),
        Line(0, "way", "list<struct>", True),
        *point_lines,
        Line(0, "by_name", "map<text, struct>", True),
        *point_lines,
        Line(0, "deep", "struct", True),
        Line(1, "inner", "struct", True),
        Line(2, "x", "decimal(9,2)", True),
    ]
