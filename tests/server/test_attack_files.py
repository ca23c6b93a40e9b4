"""Small files that decode to gigabytes or to endless columns, in a service process with its own Spark session.

Each file is refused in a preview, when it creates a dataset, and in a load, and the service keeps working.
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.parquet_bytes import row_with_a_long_list, rows_of_a_constant
from tests.postgres import PostgresServer
from tests.server.test_process import MEGABYTE, Served, served
from tests.service import TIMEOUT_SECONDS, expect, expect_problem
from tests.spark import cluster

pytestmark = pytest.mark.spark

SECRETS = {
    "INLAY_API_KEYS": "key-of-the-service",
    "AWS_SECRET_ACCESS_KEY": "secret-of-s3",
    "PGPASSWORD": "secret-of-pg",
}
BILLION = 10**9
MEMORY = 1 << 30


# The limits do not depend on the catalog, so that short runs use one catalog.
@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    variables = SECRETS | {"INLAY_WORKER_MEMORY_BYTES": str(MEMORY), "INLAY_MAX_COLUMNS": "20000"}
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        variables["INLAY_CATALOG_URL"] = server.url(server.create_database())
    with served(tmp_path_factory.mktemp("attacked"), "--spark-master", "local[1]", **variables) as found:
        yield found


@pytest.fixture(scope="module")
def http(attacked: Served) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {SECRETS['INLAY_API_KEYS']}"}
    with httpx.Client(base_url=attacked.url, timeout=TIMEOUT_SECONDS, headers=headers) as client:
        yield client


@pytest.fixture(scope="module")
def dataset(http: httpx.Client) -> str:
    body = {"label": "target", "source": {"inline": {"format": "csv", "content": "a\n1\n"}}}
    return str(expect(http.post("/v1/datasets", json=body), 201)["id"])


# ----------------------------------------------------------------------------------------------------------- the files
def parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", dictionary_pagesize_limit=8 * MEGABYTE)
    return out.getvalue()


def repeated_text(rows: int, texts: list[str], index: int) -> bytes:
    """Return a file of `rows` references to one of the texts, after references to the first text."""
    indexes = pa.concat_arrays(
        [pa.repeat(pa.scalar(0, pa.int32()), 1_000), pa.repeat(pa.scalar(index, pa.int32()), rows)]
    )
    return parquet(pa.table({"a": pa.DictionaryArray.from_arrays(indexes, texts)}))


def no_rows(columns: int) -> bytes:
    return parquet(pa.table({f"c{number}": pa.array([], pa.int8()) for number in range(columns)}))


def one_name(name: str) -> str:
    return json.dumps({name: 1})


HUGE = "x" * MEGABYTE
ATTACKS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    # name: format, content, text of the problem
    "parquet-list": ("parquet", lambda: row_with_a_long_list(BILLION), "1,000 times"),
    "parquet-list-with-a-false-footer": ("parquet", lambda: row_with_a_long_list(BILLION, declared=1), "memory"),
    "parquet-dictionary": ("parquet", lambda: repeated_text(100_000, [HUGE], 0), "1,000 times"),
    "parquet-dictionary-with-a-hidden-text": ("parquet", lambda: repeated_text(100_000, ["", HUGE], 1), "memory"),
    "parquet-constant": ("parquet", lambda: rows_of_a_constant(BILLION), "1,000 times"),
    "parquet-columns": ("parquet", lambda: no_rows(20_001), "20,001 columns"),
    "parquet-name": ("parquet", lambda: parquet(pa.table({"n" * 1_001: [1]})), "name of column 1"),
    "csv-commas": ("csv", lambda: b"," * 5_000_000, "columns, more than the limit"),
    "csv-columns": ("csv", lambda: ",".join(f"c{n}" for n in range(20_001)).encode() + b"\n1\n", "20,001 columns"),
    "csv-name": ("csv", lambda: b"a," + b"n" * 1_001 + b"\n1,2\n", "name of column 2"),
    "csv-gzip": ("csv", lambda: gzip.compress(b"1\n" * (150 * MEGABYTE)), "1,000 times"),
    "json-fields": ("json", lambda: json.dumps({f"c{n}": n for n in range(20_001)}).encode(), "20,001 columns"),
    "json-nested-fields": (
        "json", lambda: json.dumps({"a": {f"c{n}": n for n in range(20_001)}}).encode(), "20,001 columns",
    ),
    "json-other-fields-in-each-record": (
        "json", lambda: "".join(f"{one_name(f'c{n}')}\n" for n in range(9_000)).encode(), "1,000 times",
    ),
    "json-late-fields": (
        "json", lambda: b'{"a": 1}\n' * 10_001 + b"".join(b'{"c%d": 1}\n' % n for n in range(20_001)), "columns, more",
    ),
    "json-name": ("json", lambda: one_name("n" * 1_001).encode(), "name of column 1"),
}  # fmt: skip
SHOWN_IN_A_PREVIEW = {"json-late-fields", "parquet-dictionary", "csv-gzip"}  # a preview reads only the first rows


@pytest.mark.parametrize("name", ATTACKS)
def test_a_small_file_cannot_use_up_the_service(http: httpx.Client, dataset: str, name: str) -> None:
    kind, make, expected = ATTACKS[name]
    content = make()
    assert len(content) < 6 * MEGABYTE
    upload = expect(http.post("/v1/files", content=content), 201)["id"]
    source = {"upload_id": upload, "format": kind}
    created = http.post("/v1/datasets", json={"label": name, "source": source})
    loaded = http.post(f"/v1/datasets/{dataset}/loads", json={"source": source, "strategy": "append"})
    previewed = http.post(f"/v1/files/{upload}/preview", json={"format": kind})
    assert expected in expect_problem(created, created.status_code)["detail"]
    for answer in (created, loaded, *([] if name in SHOWN_IN_A_PREVIEW else [previewed])):
        assert 400 <= answer.status_code < 500, answer.text
        assert "java" not in answer.text
    assert [row["id"] for row in expect(http.get("/v1/datasets"), 200)["datasets"]] == [dataset]


def test_a_rejected_row_of_commas_does_not_stop_a_preview(http: httpx.Client) -> None:
    content = b"a,b\n1,2\n" + b"," * 5_000_000 + b"\n3,4\n"
    upload = expect(http.post("/v1/files", content=content), 201)["id"]
    preview = expect(http.post(f"/v1/files/{upload}/preview", json={"format": "csv"}), 200)
    assert preview["rows"] == [[1, 2], [3, 4]]
    assert [cell["reason"] for cell in preview["bad_cells"]] == ["the row has 5000001 cells instead of 2"]


def test_large_ordinary_files_pass_the_limits(http: httpx.Client, tmp_path: Path) -> None:
    """One file has many rows and long texts in a small dictionary, the other one has large values."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0, 1] * 1_000_000, pa.int32()), ["short", "a longer text" * 4])
    blobs = [os.urandom(3 * MEGABYTE).hex() for _ in range(8)]
    for table in (pa.table({"id": range(2_000_000), "text": texts}), pa.table({"id": range(8), "text": blobs})):
        upload = expect(http.post("/v1/files", content=parquet(table)), 201)["id"]
        body = {"label": "large", "source": {"upload_id": upload, "format": "parquet"}}
        made = expect(http.post("/v1/datasets", json=body), 201)
        assert made["row_count"] == table.num_rows
        expect(http.delete(f"/v1/datasets/{made['id']}"), 204)


def test_processes_of_spark_inherit_no_secrets(attacked: Served, http: httpx.Client, dataset: str) -> None:
    """The storage is a disk, so that the processes need no credentials. Workers have a memory limit."""
    assert expect(http.get("/readyz"), 200)["parts"]["spark"] == "ready"
    own = [process for process in cluster.processes() if process.session == attacked.process.pid]
    spark = {process.pid for process in own} - {attacked.process.pid}
    workers = {process.pid for process in own if "-m inlay.engines.spark.inlay_daemon" in process.command}
    assert workers < spark
    for pid in spark:
        variables = Path(f"/proc/{pid}/environ").read_text()
        assert not [name for name in (*SECRETS, *SECRETS.values()) if name in variables]
    for pid in workers:
        limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
        assert next(line for line in limits if line.startswith("Max data size")).split()[3] == str(MEMORY)


def test_the_session_requires_authentication(attacked: Served, dataset: str) -> None:
    commands: list[Any] = [p.command for p in cluster.processes() if p.session == attacked.process.pid]
    assert any("spark.authenticate=true" in command for command in commands)
