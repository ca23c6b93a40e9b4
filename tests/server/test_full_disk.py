"""A service whose disk is almost or completely full: a small filesystem, which only root can mount."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from inlay.catalog import Catalog, DataFile, Dataset, NewVersion, new_id
from inlay.errors import StorageFullError
from inlay.settings import Settings
from inlay.workspace import Workspace
from inlay.workspace.storage_faults import DiskReserve
from tests.faults.service_process import small_disk
from tests.postgres import NOBODY
from tests.service import Api, expect_problem, running
from tests.spark import cluster

DISK = "32m"
RESERVE = 2 << 20
ROWS = 20_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK) as disk:
        yield disk


@pytest.fixture(params=["sqlite", "postgresql"])
def disk_api(folder: Path, request: pytest.FixtureRequest) -> Iterator[Api]:
    """Run a service whose data directory is on a small disk. PostgreSQL has its own disk."""
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    settings = Settings(
        data_dir=str(folder / "data"),
        catalog_url=server.url(server.create_database()) if server is not None else "",
        disk_reserve_bytes=RESERVE,
        query_memory_bytes=32 << 20,
        delete_grace_seconds=0.0,
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


@pytest.fixture(params=["sqlite", "postgresql"])
def full_catalog(tmp_path: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Catalog]:
    """A catalog whose rows are on a small disk. The log of PostgreSQL is on another disk."""
    url = f"sqlite:///{folder}/catalog.db"
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        space = f"space_{uuid.uuid4().hex}"
        (folder / "rows").mkdir()
        os.chown(folder / "rows", NOBODY, NOBODY)
        for parent in (folder, *folder.parents):
            parent.chmod(parent.stat().st_mode | 0o011)  # the server runs as another user
        server.run(f"CREATE TABLESPACE {space} LOCATION '{folder}/rows'")
        database = f"t_{uuid.uuid4().hex}"
        server.run(f"CREATE DATABASE {database} TEMPLATE template0 TABLESPACE {space}")
        url = server.url(database)
    catalog = Catalog(url)
    catalog.migrate()
    yield catalog
    catalog.close()
    if request.param == "postgresql":
        server.drop_database(database)
        server.run(f"DROP TABLESPACE {space}")


def test_the_outcome_of_a_change_on_a_full_disk_is_known(full_catalog: Catalog, folder: Path) -> None:
    """The catalog rejects changes that do not fit, and accepts changes again later."""
    jobs, refused = full_catalog.jobs, 0
    text = base64.b64encode(os.urandom(200_000)).decode()  # which does not compress
    with filled(folder, 0):
        for _ in range(50):
            before = jobs.list(limit=1).count
            try:
                jobs.create("create", {"label": text}, dataset_id=new_id("dataset"))
            except StorageFullError:
                refused += 1
                assert jobs.list(limit=1).count == before
    assert refused
    before = jobs.list(limit=1).count
    jobs.create("create", {}, dataset_id=new_id("dataset"))
    assert jobs.list(limit=1).count == before + 1


def csv_file(rows: int) -> bytes:
    random = np.random.default_rng(1)
    file = io.BytesIO()
    csv.write_csv(pa.table({"id": range(rows), "n": random.integers(0, 1 << 62, rows)}), file)
    return file.getvalue()


@pytest.mark.spark
def test_a_disk_that_fills_up_during_a_job(folder: Path) -> None:
    """The job fails, leaves no files, and the upload can be used again."""
    cluster.local_session()
    settings = Settings(data_dir=str(folder / "data"), disk_reserve_bytes=RESERVE, spark_master="local[2]")
    with running(Workspace(settings)) as api:
        upload_id = api.upload(csv_file(600_000))
        before = api.files()
        with filled(folder, RESERVE + (1 << 20)):  # less than the data file needs
            expect_problem(api.try_to_create({"upload_id": upload_id}), 507, "storage_full")
            assert api.get("/v1/datasets")["count"] == 0
            assert api.files() == before
        assert api.create({"upload_id": upload_id})["row_count"] == 600_000


@pytest.mark.spark
def test_a_job_ends_before_it_uses_up_the_reserve(tmp_path: Path) -> None:
    """The disk has room for the files of the job, but not above the reserve."""
    cluster.local_session()
    reserve = 48 << 20
    with small_disk(tmp_path / "disk", "144m") as folder:
        settings = Settings(data_dir=str(folder / "data"), disk_reserve_bytes=reserve, spark_master="local[2]")
        with running(Workspace(settings)) as api:
            upload_id = api.upload(csv_file(2_000_000))
            before, least = api.files(), []
            with filled(folder, reserve + (1 << 20)):
                watch = threading.Event()
                thread = threading.Thread(target=lambda: least.extend(_free_until(watch, folder)))
                thread.start()
                problem = expect_problem(api.try_to_create({"upload_id": upload_id}), 507, "storage_full")
                watch.set()
                thread.join()
                assert "free bytes" in problem["detail"]
                assert api.files() == before
            assert 0 < min(least) < reserve  # the job has started to write
            assert api.create({"upload_id": upload_id})["row_count"] == 2_000_000


def test_a_disk_that_fails_for_a_while_is_still_watched(tmp_path: Path) -> None:
    stopped = threading.Event()
    with DiskReserve([tmp_path / "disk"], 1 << 60).watch(lambda _: stopped.set()):
        assert not stopped.wait(0.3)
        (tmp_path / "disk").mkdir()
        assert stopped.wait(20)


def _free_until(end: threading.Event, folder: Path) -> list[int]:
    found = []
    while not end.wait(0.02):
        found.append(shutil.disk_usage(folder).free)
    return found
