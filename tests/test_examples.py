"""Every example runs as a reader would run it, says what it did, and leaves what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import inlay
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.s3 import S3Server, s3  # noqa: F401  (a fixture)
from tests.service import Api, running
from tests.spark import cluster

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
SCRIPTS = sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh"))


def run(name: str, *arguments: str, environment: dict[str, str] | None = None, code: int = 0) -> str:
    """Return what an example prints. Its processes form one session, which ends with the example."""
    command = ["bash"] if name.endswith(".sh") else [sys.executable, "-W", "error"]
    process = subprocess.Popen(
        [*command, str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} if environment is None else environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=240)
    finally:
        cluster.end_session(process.pid)
        process.wait()
    assert process.returncode == code, f"{out}\n{cluster.without_stacks(err)[-4000:]}"
    return out + (err if code else "")


# ------------------------------------------------------------------------------------------------------- on one machine
def test_daily_upsert(tmp_path: Path) -> None:
    printed = run("daily_upsert.py", str(tmp_path))
    assert "2 corrected, 2 new, 29 files untouched" in printed
    assert re.findall(r"to be rewritten: (\S+)", printed) == ["day=2025-01-30", "day=2025-01-31"]
    assert "second run: 4 of 4 rows unchanged, 0 bytes written" in printed
    orders = pl.scan_parquet(tmp_path / "orders/**/*.parquet", hive_partitioning=True).collect()
    assert orders.height == 31_002
    assert orders.filter(pl.col("order_id").is_in([29_007, 31_001])).sort("order_id")["amount"].to_list() == [99.0, 8.0]


def test_cdc_deduplicate(tmp_path: Path) -> None:
    printed = run("cdc_deduplicate.py", str(tmp_path))
    assert "6 events: 2 customers inserted, 1 updated" in printed
    assert "1 marked row deleted, 3 rows left" in printed
    rows = pl.read_parquet(tmp_path / "customers/*.parquet").sort("customer")
    assert rows.rows() == [(1, "Kiel", 107, False), (3, "Jena", 104, False), (4, "Hof", 91, False)]


def test_an_example_creates_its_own_directory(tmp_path: Path) -> None:
    printed = run("daily_upsert.py", environment=os.environ | {"TMPDIR": str(tmp_path)})
    [made] = tmp_path.iterdir()
    assert str(made / "orders") in printed


# ------------------------------------------------------------------------------------------------------------ elsewhere
def test_s3_dataset(s3: S3Server) -> None:  # noqa: F811
    bucket = s3.bucket()
    printed = run("s3_dataset.py", f"{bucket}/shop", environment=os.environ | s3.environment())
    assert "2 updated, 1 inserted" in printed
    assert int(re.findall(r"(\d+)% of the written bytes were copied", printed)[0]) > 50
    assert "rows now: 10,001" in printed
    stock = inlay.read_parquet(f"{bucket}/shop/stock")
    assert stock.num_rows == 10_001
    changed = {row["sku"]: row["stock"] for row in stock.to_pylist() if row["stock"] != 10}
    assert changed == {"A00007": 9, "A09999": 0, "B00001": 40}


def test_s3_dataset_names_missing_settings() -> None:
    assert "AWS_ENDPOINT_URL" in run("s3_dataset.py", code=1)


def check_spark_example(folder: Path, *arguments: str) -> str:
    settings = cluster.spark_environment(INLAY_SPARK_CONF=json.dumps(cluster.DRIVER_CONF))
    printed = run("spark_cluster.py", *arguments, str(folder), environment=settings)
    assert "from the driver: 1 updated, 1 inserted, 7 files untouched" in printed
    assert "from a DataFrame: 160 updated in 8 files, 160,001 rows" in printed
    prices = pl.read_parquet(folder / "prices/*.parquet")
    assert prices.height == 160_001
    assert prices.filter(pl.col("price") != 1.0).height == 162  # 160 of the DataFrame, one of the table, one new
    return printed


@pytest.mark.long  # starts a JVM; short runs merge with Spark in tests/spark and tests/incremental
@pytest.mark.spark
def test_spark_on_this_machine(tmp_path: Path) -> None:
    assert "written on local[2]" in check_spark_example(tmp_path)


@pytest.mark.long  # short runs run the example on this machine; tests/spark runs merges on clusters
@pytest.mark.spark
def test_spark_cluster(tmp_path: Path, standalone: cluster.Cluster) -> None:
    printed = check_spark_example(tmp_path, "--master", standalone.master)
    assert f"160,000 rows in 8 files written on {standalone.master}" in printed


# ---------------------------------------------------------------------------------------------------------- the service
@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A service that requires a key."""
    cluster.local_session()
    settings = Settings(
        data_dir=str(tmp_path_factory.mktemp("service")), spark_master="local[2]", api_keys=("open-sesame",)
    )
    with running(Workspace(settings)) as api:
        yield api


@pytest.mark.spark
@pytest.mark.parametrize("name", ["http_api.sh", "http_api.py"])
def test_http_api(service: Api, name: str) -> None:
    environment = os.environ | {"INLAY_API_KEY": "open-sesame"}
    printed = run(name, service.url, environment=environment).splitlines()
    assert [line for line in printed if "total" in line or "restore" in line] == [
        "total: [['17.75']]",
        "total: [['19.50']]",
        "after the restore: [['17.75']]",
    ]
    assert printed[-1] == "deleted"
    service.http.headers["Authorization"] = "Bearer open-sesame"
    assert service.get("/v1/datasets")["count"] == service.get("/v1/files")["count"] == 0


@pytest.mark.spark
def test_http_api_reports_problems(service: Api) -> None:
    assert "unauthorized" in run("http_api.py", service.url, code=1)
    assert "unauthorized" in run("http_api.sh", service.url, code=1)


def test_http_api_without_a_service() -> None:
    assert "No service responds at http://127.0.0.1:1." in run("http_api.py", "http://127.0.0.1:1", code=1)
    assert "127.0.0.1" in run("http_api.sh", "http://127.0.0.1:1", code=1)


# ------------------------------------------------------------------------------------------------------- all of them
def test_every_example_is_indexed_and_tested() -> None:
    index = (EXAMPLES / "README.md").read_text()
    for script in SCRIPTS:
        assert f"[{script.name}]({script.name})" in index
        assert script.name in Path(__file__).read_text()
    assert set(re.findall(r"\]\((\S+?)\)", index)) == {script.name for script in SCRIPTS}
    assert "(examples/README.md)" in (EXAMPLES.parent / "README.md").read_text()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_an_example_says_how_to_run_it(script: Path) -> None:
    assert f"examples/{script.name}" in "\n".join(script.read_text().splitlines()[:8])
