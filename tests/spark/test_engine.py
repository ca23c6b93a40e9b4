"""Tests of the Spark engine only. Suites for all engines test what a merge does."""

from __future__ import annotations

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.engines.spark import engine as spark_engine
from inlay.engines.spark import jobs as spark_jobs
from inlay.engines.spark import tasks
from inlay.engines.spark.tasks import MAX_TRACKED_OBJECTS, TaskJobs
from inlay.errors import InlayError, MergeCancelledError
from inlay.storage import locate
from tests import lake

ROWS = 40_000


def target(path, files=4):
    step = ROWS // files
    for at in range(files):
        ids = np.arange(at * step, (at + 1) * step)
        path.mkdir(exist_ok=True)
        pq.write_table(_table(ids, "old"), path / f"{at}.parquet", row_group_size=step // 4)
    return str(path)


def _table(ids, text):
    return pa.table({"id": ids, "text": [f"{text} {i}" for i in ids], "x": np.asarray(ids) * 0.5})


def rows_of(path):
    table = inlay.read_parquet(path).sort_by("id")
    return dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


def expected(changed, inserted=()):
    old = {i: f"old {i}" for i in range(ROWS)}
    return old | {int(i): f"new {i}" for i in [*changed, *inserted]}


@pytest.fixture
def everything_is_routed(monkeypatch):
    """Distribute even small sources through files, in many chunks and waves."""
    monkeypatch.setattr(spark_engine, "_MAX_INLINE_BYTES", 0)
    monkeypatch.setattr(spark_jobs, "_CHUNK_ROWS", 60)
    monkeypatch.setattr(spark_jobs, "_WAVE_ROWS", 2_000)
    monkeypatch.setattr(spark_jobs, "MIN_SPLIT_ROWS", 4_000)


@pytest.mark.usefixtures("spark", "everything_is_routed")
def test_source_rows_are_distributed_in_pieces_and_waves(tmp_path):
    path = target(tmp_path / "d")
    changed = np.arange(0, ROWS, 7)
    ids = np.concatenate([changed, np.arange(ROWS, ROWS + 500)])
    result = inlay.merge(_table(ids[::-1], "new"), path, "upsert", ["id"], engine="spark", max_rows_per_file=200)
    assert (result.updated, result.inserted, len(result.inserted_files)) == (len(changed), 500, 3)
    assert rows_of(path) == expected(changed, range(ROWS, ROWS + 500))


@pytest.mark.usefixtures("spark", "everything_is_routed")
def test_one_file_gets_almost_all_rows(tmp_path):
    path = target(tmp_path / "d")
    changed = [*range(ROWS // 4), ROWS - 1]
    result = inlay.merge(_table(changed, "new"), path, "update", ["id"], engine="spark")
    assert (result.updated, len(result.rewritten_files)) == (len(changed), 2)
    assert rows_of(path) == expected(changed)


@pytest.mark.usefixtures("spark")
def test_a_source_on_disk_is_matched_bucket_by_bucket(tmp_path, monkeypatch):
    from inlay.engines import source as source_module

    monkeypatch.setattr(source_module, "_BUCKET_BYTES", 50_000)
    monkeypatch.setattr(source_module.load_source, "__defaults__", (1_000,))
    path = target(tmp_path / "d")
    changed = np.arange(0, ROWS, 3)
    batches = _table(np.random.default_rng(0).permutation(changed), "new").to_reader(max_chunksize=1_000)
    assert inlay.merge(batches, path, "upsert", ["id"], engine="spark").updated == len(changed)
    assert rows_of(path) == expected(changed)


def test_a_dataframe_selects_the_spark_engine(spark, tmp_path):
    path = target(tmp_path / "d")
    frame = spark.createDataFrame(_table([1, 2, ROWS], "new"))
    result = inlay.merge(frame, path, "upsert", ["id"])
    assert (result.updated, result.inserted) == (2, 1)
    assert inlay.SparkDatasetIO(spark).merge(frame, path, "upsert", ["id"]).unchanged == 3
    assert rows_of(path) == expected([1, 2], [ROWS])


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("operate", "changed"),
    [
        (lambda path: inlay.merge(_table([5], "new"), path, "update", ["id"], engine="spark"), [5]),
        (lambda path: inlay.write_dataset(_table([ROWS], "new"), path, engine="spark"), [ROWS]),
        (lambda path: inlay.compact(path, engine="spark"), []),
    ],
    ids=["merge", "append", "compact"],
)
def test_a_job_reads_the_footers_of_many_files(tmp_path, monkeypatch, operate, changed):
    monkeypatch.setattr(spark_engine, "_MIN_FOOTERS", 2)
    path = target(tmp_path / "d", files=8)
    jobs = []
    run = spark_engine.SparkEngine._run
    monkeypatch.setattr(
        spark_engine.SparkEngine, "_run", lambda self, kernel, *tasks: jobs.append(kernel) or run(self, kernel, *tasks)
    )
    operate(path)
    assert isinstance(jobs[0], spark_engine._FooterKernel)
    assert rows_of(path) == expected(changed)


def test_garbage_collection_after_a_task_ignores_imported_objects(spark):
    def use_a_store(_):
        import s3fs  # noqa: F401

    def look(_):
        import gc
        import sys

        return len(gc.get_objects()) if "s3fs" in sys.modules else None

    jobs = TaskJobs(spark, InlayError)
    list(jobs.run(use_a_store, range(4)))
    walked = [count for count in jobs.run(look, range(4)) if count is not None]
    assert walked
    assert max(walked) < MAX_TRACKED_OBJECTS


@pytest.mark.usefixtures("spark")
def test_spark_and_pyarrow_write_the_same_bytes(tmp_path):
    paths = [target(tmp_path / engine) for engine in ("pyarrow", "spark")]
    changed = np.arange(0, ROWS, 50)
    for path, engine in zip(paths, ("pyarrow", "spark"), strict=True):
        inlay.merge(_table(changed, "new"), path, "update", ["id"], engine=engine)
    folders = [tmp_path / "pyarrow", tmp_path / "spark"]
    files = [{file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders]
    assert files[0] == files[1]


@pytest.mark.usefixtures("spark")
def test_a_small_merge_runs_two_tasks(tmp_path, monkeypatch):
    path = target(tmp_path / "d", files=16)
    counts = []

    def make_jobs(_, spark):
        return TaskJobs(spark, InlayError, lambda done, total: counts.append(total) if done == total else None)

    monkeypatch.setattr(spark_engine.SparkEngine, "_jobs", make_jobs)
    changed = np.arange(0, ROWS, 50)
    result = inlay.merge(_table(changed, "new"), path, "update", ["id"], engine="spark")
    assert len(result.rewritten_files) == 16
    assert counts == [1, 1]  # one job finds the keys, one rewrites the files


def test_small_files_share_tasks_on_a_disk_but_not_on_an_object_store(spark, tmp_path):
    remote = locate("s3://bucket/ds", storage_options={"key": "user", "secret": "s"})
    engines = [spark_engine.SparkEngine(spark, None, location) for location in (locate(tmp_path / "d"), remote)]
    counts = [len(engine._bundles(range(100), 1_000)) for engine in engines]
    assert counts == [1, 4 * spark.sparkContext.defaultParallelism]


@pytest.mark.usefixtures("spark")
def test_progress_ends_at_the_number_of_files(tmp_path):
    path = target(tmp_path / "d")
    seen = []
    inlay.merge(
        _table([1, ROWS - 1], "new"), path, "update", ["id"], engine="spark", progress=lambda p: seen.append(p) or True
    )
    assert [(p.done, p.total) for p in seen if p.phase == "rewrite"][-1] == (2, 2)


@pytest.mark.usefixtures("spark")
def test_canceling_stops_the_job_and_leaves_no_trace(tmp_path, monkeypatch):
    path = target(tmp_path / "d")
    before = lake.photograph(path)

    class Slow(spark_jobs.Receive):
        def __call__(self, task):
            import time

            time.sleep(60)
            return super().__call__(task)

    monkeypatch.setattr(spark_jobs, "Receive", Slow)
    seen = []

    def stop(progress):
        seen.append(progress)
        return progress.phase != "rewrite" or len([p for p in seen if p.phase == "rewrite"]) < 2

    with pytest.raises(MergeCancelledError):
        inlay.merge(_table([1], "new"), path, "update", ["id"], engine="spark", progress=stop)
    assert lake.photograph(path) == before
    assert not list((tmp_path / ".d.txn").glob(".staging_*"))


@pytest.mark.usefixtures("spark")
def test_the_error_names_an_unreadable_row_group(tmp_path):
    path = target(tmp_path / "d")
    broken = tmp_path / "d" / "1.parquet"
    data = bytearray(broken.read_bytes())
    data[4:4000] = b"\xff" * 3996
    broken.write_bytes(data)
    before = lake.photograph(path)
    errors = []
    for engine in ("pyarrow", "spark"):
        with pytest.raises(inlay.InlayError, match=r"1\.parquet") as caught:
            inlay.merge(_table([ROWS // 4], "new"), path, "update", ["id"], engine=engine)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]
    assert lake.photograph(path) == before


def test_driver_credentials_are_replaced_and_executor_credentials_kept(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(tasks, "_borrowed", set())
    key, secret, token = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"

    def found():
        return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}

    tasks.use_credentials({key: "1", secret: "1", token: "1"})
    tasks.use_credentials({key: "2", secret: "2", token: "2"})
    assert found() == {key: "2", secret: "2", token: "2"}
    tasks.use_credentials({key: "3", secret: "3", "AWS_ENDPOINT_URL": "x"})
    assert found() == {key: "3", secret: "3", "AWS_ENDPOINT_URL": "x"}
    tasks.use_credentials({})
    assert found() == {}
    monkeypatch.setenv(key, "own")
    monkeypatch.setenv(secret, "own")
    tasks.use_credentials({key: "4", secret: "4", token: "4", "AWS_ENDPOINT_URL": "y"})
    assert found() == {key: "own", secret: "own", "AWS_ENDPOINT_URL": "y"}
    tasks.use_credentials({})


def test_tasks_in_files_contain_no_credentials(tmp_path):
    import pyarrow.dataset as ds
    from pyarrow.fs import S3FileSystem

    secret = "very-secret-key"
    location = locate("s3://bucket/ds", storage_options={"key": "user", "secret": secret})
    store = S3FileSystem(access_key="user", secret_key=secret, endpoint_override="127.0.0.1:1", scheme="http")
    fragment = ds.ParquetFileFormat().make_fragment("bucket/a.parquet", store)
    stores = []
    packed = spark_engine._pack([location, location, fragment], stores)
    assert secret.encode() not in packed
    assert len(stores) == 2
    again, same, piece = spark_engine._Unpacker(packed, stores).load()
    assert again.store is same.store is location.store
    assert (again.path, piece.path) == ("bucket/ds", "bucket/a.parquet")
