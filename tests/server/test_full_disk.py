"""A service whose disk is almost or completely full: a small filesystem, which only root can mount."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from inlay.catalog import DataFile, Dataset, NewVersion, new_id
from inlay.errors import StorageFullError
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests.faults.service_process import small_disk
from tests.service import Api, expect_problem, running
from tests.spark import cluster

DISK = "32m"
RESERVE = 2 << 20
ROWS = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK) as disk:
        yield disk


@pytest.fixture
def disk_api(folder: Path) -> Iterator[Api]:
    settings = Settings(
        data_dir=str(folder / "data"), disk_reserve_bytes=RESERVE, query_memory_bytes=32 << 20, delete_grace_seconds=0.0
    )
    with running(Workspace(settings), spark=False) as found:
        found.get("/v1/datasets")  # waits until the service is open
        yield found


@contextlib.contextmanager
def filled(folder: Path, free: int) -> Iterator[None]:
    """Fill the disk inside the block, except for some free bytes."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    with contextlib.suppress(OSError), (folder / "rest").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    os.truncate(ballast, max(0, ballast.stat().st_size - free))
    try:
        yield
    finally:
        ballast.unlink()
        (folder / "rest").unlink()


def add_dataset(workspace: Workspace) -> Dataset:
    """Add a dataset without Spark."""
    dataset_id = new_id("dataset")
    table = pa.table({"id": pa.array(range(ROWS), pa.int64())})
    path = f"datasets/{dataset_id}/v1/data.parquet"
    workspace.storage.make_directory(f"datasets/{dataset_id}/v1")
    pq.write_table(table, workspace.storage.root.full(path))
    size = os.stat(workspace.storage.root.full(path)).st_size
    job = workspace.catalog.jobs.create("create", {}, dataset_id=dataset_id).job
    workspace.catalog.jobs.start(job.id)
    version = NewVersion(
        operation="create", files=[DataFile(path, ROWS, size)], schema=table.schema, parquet_url=path, inserted=ROWS
    )
    return workspace.catalog.datasets.create(
        job_id=job.id, label="stored", source_type="inline", source_config={}, version=version
    )


def check_reads(api: Api, dataset: Dataset) -> None:
    assert api.rows("SELECT 1") == [[1]]
    assert api.rows("SELECT sum(id) FROM datasets.stored") == [[sum(range(ROWS))]]
    assert len(api.rows("SELECT id FROM datasets.stored ORDER BY id DESC LIMIT 5000")) == 5000
    assert api.get("/v1/datasets")["count"] == 1
    assert api.get(f"/v1/datasets/{dataset.id}")["row_count"] == ROWS
    answer = api.http.get(f"/v1/datasets/{dataset.id}/data", params={"format": "csv"})
    assert len(answer.text.splitlines()) == ROWS + 1


@pytest.mark.parametrize("free", [0, RESERVE // 2])
def test_reads_go_on_and_writes_are_refused(disk_api: Api, folder: Path, free: int) -> None:
    dataset = add_dataset(disk_api.workspace)
    check_reads(disk_api, dataset)  # with the same worker as later
    inline = {"inline": {"format": "csv", "content": "id\n1\n"}}
    before, jobs = disk_api.files(), disk_api.get("/v1/jobs")["count"]
    with filled(folder, free):
        check_reads(disk_api, dataset)
        expect_problem(disk_api.http.post("/v1/files", content=b"a\n1\n"), 507, "storage_full")
        expect_problem(disk_api.try_to_create(inline), 507, "storage_full")
        expect_problem(disk_api.try_to_load(dataset.id, inline, "append"), 507, "storage_full")
        assert (disk_api.files(), disk_api.get("/v1/jobs")["count"]) == (before, jobs)
        large = "SELECT a.id, b.id, uuid() FROM datasets.stored a CROSS JOIN datasets.stored b LIMIT 900000"
        expect_problem(disk_api.http.post("/v1/query", json={"sql": large}), 507, "storage_full")
        sort = (
            "SELECT a.id, md5(CAST(a.id * b.id AS TEXT)) m FROM datasets.stored a, datasets.stored b WHERE b.id < 100"
        )
        spilled = disk_api.http.post(
            "/v1/query", json={"sql": f"SELECT m FROM ({sort}) ORDER BY m DESC, id OFFSET 1999990"}
        )
        expect_problem(spilled, 507, "storage_full")
    check_reads(disk_api, dataset)
    disk_api.upload(b"a\n1\n")


def test_a_new_query_worker_starts_on_a_full_disk(disk_api: Api, folder: Path) -> None:
    disk_api.rows("SELECT 1")
    with filled(folder, 0):
        [worker] = disk_api.workspace.query_engine._pool._idle
        os.kill(worker.pid, signal.SIGKILL)
        while worker.is_alive:
            time.sleep(0.01)
        assert disk_api.rows("SELECT 1") == [[1]]


def test_a_disk_that_fills_up_during_an_upload(disk_api: Api, folder: Path) -> None:
    before = disk_api.files()

    def blocks() -> Iterator[bytes]:
        yield bytes(2 << 20)
        with filled(folder, 0):
            for _ in range(64):
                yield bytes(1 << 20)

    answer = disk_api.http.post("/v1/files", content=blocks())
    expect_problem(answer, 507, "storage_full")
    assert disk_api.files() == before
    assert disk_api.get("/v1/files")["count"] == 0


def test_the_outcome_of_a_change_on_a_full_disk_is_known(disk_api: Api, folder: Path) -> None:
    """The catalog rejects changes that do not fit, and accepts changes again later."""
    jobs, refused = disk_api.workspace.catalog.jobs, 0
    with filled(folder, 0):
        for _ in range(50):
            before = jobs.list(limit=1).count
            try:
                jobs.create("create", {"label": "x" * 200_000}, dataset_id=new_id("dataset"))
            except StorageFullError:
                refused += 1
                assert jobs.list(limit=1).count == before
    assert refused
    jobs.create("create", {}, dataset_id=new_id("dataset"))
    assert jobs.list(limit=1).count == before + 1


@pytest.mark.spark
def test_a_disk_that_fills_up_during_a_job(folder: Path) -> None:
    """The job fails, leaves no files, and the upload can be used again."""
    cluster.local_session()
    settings = Settings(data_dir=str(folder / "data"), disk_reserve_bytes=RESERVE, spark_master="local[2]")
    random = np.random.default_rng(1)
    numbers = pa.table({"id": range(600_000), "n": random.integers(0, 1 << 62, 600_000)})
    file = io.BytesIO()
    csv.write_csv(numbers, file)
    with running(Workspace(settings)) as api:
        upload_id = api.upload(file.getvalue())
        before = api.files()
        with filled(folder, RESERVE + (1 << 20)):  # less than the data file needs
            expect_problem(api.try_to_create({"upload_id": upload_id}), 507, "storage_full")
            assert api.get("/v1/datasets")["count"] == 0
            assert api.files() == before
        assert api.create({"upload_id": upload_id})["row_count"] == 600_000
