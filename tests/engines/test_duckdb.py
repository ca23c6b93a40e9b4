"""Tests of the DuckDB engine only. Suites for all engines test what a merge does."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import fsspec
import hypothesis
import numpy as np
import pyarrow as pa
import pytest

import inlay
from inlay import engines
from inlay.engines import duckdb as duckdb_engine
from inlay.engines import get_engine
from inlay.engines.duckdb import DuckDBEngine, duckdb_version, supports_merge
from inlay.errors import DatasetMergeError, EngineNotInstalledError, InlayError, UnreadableFileError
from tests import lake
from tests.arrow_types import SCALARS, array_of
from tests.duckdb_tap import Tap, state_of
from tests.incremental.test_merge_properties import Dataset

ROOT = Path(__file__).resolve().parents[2]
USE_MERGE = pytest.mark.parametrize("use_merge", [None, False], ids=["as detected", "union all"])


def upsert(source, path, keys=("id",), use_merge=None, connection=None, **options):
    return inlay.DuckDBDatasetIO(connection).merge(
        source, str(path), "upsert", list(keys), use_merge=use_merge, **options
    )


# --------------------------------------------------------------------------------------------------- matching keys
@pytest.mark.parametrize("name", SCALARS)
def test_keys_of_all_types_match_in_sql(tmp_path, name):
    kind, values = SCALARS[name]
    target = pa.table({"k": array_of(kind, values), "v": range(5)})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    tap = Tap()
    result = upsert(pa.table({"k": array_of(kind, values[1:3]), "v": [10, 20]}), path, ["k"], connection=tap)
    assert (result.updated, result.inserted) == (2, 0)
    assert tap.executed("source_view")


def test_one_statement_matches_the_keys_of_all_files(tmp_path):
    files = {f"{i}.parquet": lake.table([i, 100 + i]) for i in range(20)}
    path = lake.write(tmp_path / "d", files)
    tap = Tap()
    assert upsert(lake.table(range(20), ["x"] * 20), path, connection=tap).updated == 20
    assert len(tap.executed('CREATE TEMP TABLE "target_keys')) == 1


@USE_MERGE
def test_files_that_store_a_key_in_different_types(tmp_path, use_merge):
    files = {
        "a.parquet": pa.table({"id": pa.array([1, 2], pa.int64())}),
        "b.parquet": pa.table({"id": pa.array([3, 4], pa.int32())}),
        "c.parquet": pa.table({"id": pa.array([5, 6], pa.int64()), "x": pa.array([[1], [2]])}).select(["x", "id"]),
    }
    path = lake.write(tmp_path / "d", files)
    source = pa.table({"id": [2, 4, 6, 8], "x": pa.array([[9]] * 4, pa.list_(pa.int64()))})
    result = upsert(source, path, use_merge=use_merge, schema_mode="evolve")
    assert (result.updated, result.inserted) == (3, 1)


@USE_MERGE
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_nan_and_zero_match_all_their_bit_patterns(tmp_path, use_merge, kind):
    bits = {pa.float32(): (np.uint32, 0xFFC00001), pa.float64(): (np.uint64, 0xFFF8000000000001)}[kind]
    other_nan = np.array([bits[1]], bits[0]).view(kind.to_pandas_dtype())[0]
    target = pa.table({"k": pa.array(np.array([other_nan, -0.0, 1.5], kind.to_pandas_dtype())), "v": [1, 2, 3]})
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    source = pa.table({"k": pa.array([float("nan"), 0.0, 2.5], kind), "v": [10, 20, 40]})
    result = upsert(source, path, ["k"], use_merge)
    assert (result.updated, result.inserted) == (2, 1)
    assert [row["v"] for row in lake.all_rows(path)] == [10, 20, 3, 40]


@USE_MERGE
def test_one_source_row_replaces_every_target_row_with_its_key(tmp_path, use_merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 1, 2, None]), "b.parquet": lake.table([1, None])})
    result = upsert(lake.table([1, 3], ["x", "y"]), path, use_merge=use_merge)
    assert (result.updated, result.inserted) == (3, 1)
    values = [row["v"] for row in lake.all_rows(path)]
    assert values == ["x", "x", "v2", "vNone", "x", "vNone", "y"]


@USE_MERGE
def test_key_columns_in_the_path(tmp_path, use_merge):
    path = str(tmp_path / "d")
    day = pa.array(["x", "y", "__z z"])
    upsert(lake.table([1, 1, 1], day=day), path, ["id", "day"], use_merge, partition_columns=["day"])
    result = upsert(lake.table([1, 2], ["new", "new"], day=day.slice(1)), path, ["id", "day"], use_merge)
    assert (result.updated, result.inserted) == (1, 1)
    assert inlay.read_parquet(path).sort_by([("day", "ascending"), ("id", "ascending")])["v"].to_pylist() == [
        "v1", "new", "v1", "new",
    ]  # fmt: skip


@USE_MERGE
@pytest.mark.parametrize("shuffled", [False, True])
def test_sql_matches_no_more_keys_than_its_limit(tmp_path, monkeypatch, use_merge, shuffled):
    """Above the limit the search of the pyarrow engine finds the same rows."""
    ids = np.random.default_rng(0).permutation(200) if shuffled else np.arange(200)
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table(ids.tolist())}, row_group_size=30)
    source = lake.table(range(160, 240), ["x"] * 80)
    for limit in (80, 79):
        monkeypatch.setattr(duckdb_engine, "MAX_KEYS", limit)
        for strategy, counts in (("insert", (0, 40)), ("update", (40, 0)), ("upsert", (40, 40))):
            tap = Tap()
            plan = inlay.DuckDBDatasetIO(tap).plan_merge(source, path, strategy, ["id"], use_merge=use_merge)
            assert (plan.updated, plan.inserted) == counts
            assert bool(tap.executed("source_view")) == (limit == 80)


# -------------------------------------------------------------------------------------------------- names and paths
@USE_MERGE
@pytest.mark.parametrize(
    "names",
    [
        ("id", "ID", "v"),
        ("file_row_number", "filename", "v"),
        ("source row", "target row", "v"),
        ("path", "first row", "v"),
        ("id", "ID", "ID_"),
        ('"', "'", ";"),
        ("select", "räksmörgås", "RÄKSMÖRGÅS"),
        ("a.b", "a", "b"),
    ],
)
def test_column_names_that_are_special_in_sql(tmp_path, names, use_merge):
    target = pa.Table.from_arrays([pa.array([1, 1, 2]), pa.array([1, 2, 1]), pa.array([1, 2, 3])], names)
    source = pa.Table.from_arrays([pa.array([1, 2]), pa.array([2, 2]), pa.array([20, 40])], names)
    path = lake.write(tmp_path / "d", {"a.parquet": target})
    result = upsert(source, path, names[:2], use_merge)
    assert (result.updated, result.inserted) == (1, 1)
    assert [row[names[2]] for row in lake.all_rows(path)] == [1, 20, 3, 40]


@pytest.mark.parametrize("name", ["d[1]", "d?", "d*x", "{d,d1}", "d 1", "d%201", "d=1", "d:1", "d+@1", "дом", "家"])
def test_paths_with_special_characters(tmp_path, name):
    path = lake.write(tmp_path / name, {"a.parquet": lake.table([1, 2])})
    result = upsert(lake.table([2, 3], ["x", "y"]), path)
    assert (result.updated, result.inserted) == (1, 1)


@pytest.mark.parametrize("name", ["it's", 'say "x"', "a;b", "a--b", "x/../y", "tab\there", "\u202eevil"])
def test_rejected_paths_are_neither_read_nor_written(tmp_path, name):
    path = str(tmp_path) + "/" + name
    for engine in ("duckdb", get_engine("duckdb", use_merge=False)):
        for function in (inlay.merge, inlay.plan_merge):
            with pytest.raises(ValueError, match="The path"):
                function(iter("never read"), path, "upsert", ["id"], engine=engine)
        with pytest.raises(ValueError, match="The path"):
            inlay.write_dataset(lake.table([1]), path, engine=engine)
    assert lake.names(tmp_path) == []


def test_a_rejected_path_is_not_compacted(tmp_path):
    path = lake.write(tmp_path / "it's", {"a.parquet": lake.table([1]), "b.parquet": lake.table([2])})
    before = lake.photograph(path)
    with pytest.raises(ValueError, match="The path"):
        inlay.compact(path, engine="duckdb")
    assert lake.photograph(path) == before


def test_the_error_names_a_file_with_a_rejected_path(tmp_path):
    path = lake.write(tmp_path / "d", {"day=it's/a.parquet": lake.table([1])})
    before = lake.photograph(path)
    with pytest.raises(ValueError, match="day=it's"):
        upsert(lake.table([1], ["x"], day=pa.array(["it's"])), path)
    assert lake.photograph(path) == before


@USE_MERGE
def test_datasets_on_other_filesystems(tmp_path, use_merge):
    path = f"memory://{tmp_path.name}/d"
    upsert(lake.table(range(10)), path, use_merge=use_merge)
    result = upsert(lake.table([9, 10], ["x", "y"]), path, use_merge=use_merge)
    assert (result.updated, result.inserted) == (1, 1)
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


# ------------------------------------------------------------------------------------------------------- connections
@USE_MERGE
def test_a_merge_does_not_change_the_connection(tmp_path, monkeypatch, use_merge):
    """Settings, tables, views and the transaction remain unchanged, also after errors."""
    connection = duckdb.connect()
    connection.execute("SET default_collation = 'nocase'; SET threads = 1; SET memory_limit = '500MB'").fetchall()
    connection.execute("CREATE TABLE t AS SELECT 1 AS a; CREATE TEMP TABLE u AS SELECT 2 AS a").fetchall()
    connection.register("seen", lake.table([1]))
    connection.begin()
    connection.execute("INSERT INTO t VALUES (7)").fetchall()
    before = state_of(connection)
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    text = lake.write(tmp_path / "e", {"a.parquet": pa.table({"k": ["a", "B"], "v": [1, 2]})})
    assert upsert(lake.table([2, 3]), path, use_merge=use_merge, connection=connection).updated == 1
    result = upsert(pa.table({"k": ["A", "B"], "v": [3, 4]}), text, ["k"], use_merge, connection)
    assert (result.updated, result.inserted) == (1, 1)  # whatever the collation
    monkeypatch.setattr("inlay.engines.duckdb.sql.count_actions", lambda _: "SELECT no_such_column")
    with pytest.raises(DatasetMergeError):
        upsert(lake.table([2, 3]), path, use_merge=use_merge, connection=connection)
    with pytest.raises(ValueError, match="NULL"):
        upsert(lake.table([None]), path, use_merge=use_merge, connection=connection)
    assert state_of(connection) == before
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(2,)]
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(1,)]


def test_a_connection_without_file_access(tmp_path):
    connection = duckdb.connect(config={"enable_external_access": "false"})
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    assert upsert(lake.table([2, 3], ["x", "y"]), path, connection=connection).updated == 1


def test_settings_cannot_be_combined_with_a_connection():
    with pytest.raises(ValueError, match="Cannot apply memory_limit to a connection"):
        inlay.DuckDBDatasetIO(duckdb.connect(), memory_limit="1GB")


def test_own_connections_use_the_settings_and_leave_no_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    made = []
    connect = duckdb.connect

    def spy(*arguments, config):
        made.append(connect(*arguments, config=config))
        names = ["threads", "memory_limit", "temp_directory"]
        made.append([made[0].execute(f"SELECT current_setting('{name}')").fetchall()[0][0] for name in names])
        return made[0]

    monkeypatch.setattr(duckdb, "connect", spy)
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    handler = inlay.DuckDBDatasetIO(threads=1, memory_limit="100MB")
    handler.merge(lake.table([2]), path, "upsert", ["id"])
    assert made[1][:2] == [1, "95.3 MiB"]
    assert made[1][2].startswith(str(tmp_path / "tmp/inlay-duckdb-"))
    with pytest.raises(duckdb.Error):
        made[0].execute("SELECT 1")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_forked_process_does_not_use_the_database_of_its_parent(tmp_path):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    assert inlay.plan_merge(lake.table([2, 3]), path, "upsert", ["id"], engine="duckdb").inserted == 1
    parent = duckdb_engine._process_database()
    child = os.fork()
    if not child:
        os._exit(42 if duckdb_engine._process_database() is not parent else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert duckdb_engine._process_database() is parent


def test_one_handler_in_several_threads(tmp_path):
    handler = inlay.DuckDBDatasetIO(duckdb.connect())
    start = threading.Barrier(4)

    def work(number):
        path = lake.write(tmp_path / str(number), {"a.parquet": lake.table(range(1000))})
        start.wait()
        counts = [
            handler.merge(lake.table(range(990, 1010), [f"{number}"] * 20), path, "upsert", ["id"], use_merge=use_merge)
            for use_merge in (None, False, None)
        ]
        return [(result.updated, result.inserted) for result in counts]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [[(10, 10), (20, 0), (20, 0)]] * 4


def test_the_error_without_duckdb_names_the_package(monkeypatch):
    monkeypatch.setitem(engines._ENGINES, "duckdb", ("inlay.engines.no_such_module", "X", "inlay[duckdb]"))
    with pytest.raises(EngineNotInstalledError, match=r"pip install 'inlay\[duckdb\]'"):
        inlay.DuckDBDatasetIO()


# ------------------------------------------------------------------------------------------------------------ errors
@USE_MERGE
def test_inconsistent_counts_are_an_error(tmp_path, monkeypatch, use_merge):
    monkeypatch.setattr(duckdb_engine.SqlSearch, "_count", lambda *_: (1, 2))
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2])})
    before = lake.photograph(path)
    with pytest.raises(
        DatasetMergeError, match="DuckDB reports 1 updated and 2 inserted rows, but its table contains 1 and 1"
    ):
        upsert(lake.table([2, 3], ["x", "y"]), path, use_merge=use_merge)
    assert lake.photograph(path) == before


@USE_MERGE
def test_the_error_names_an_unreadable_file(tmp_path, use_merge):
    path = lake.write(tmp_path / "d", {"a.parquet": lake.table([1, 2]), "b.parquet": lake.table([2, 3])})
    lake.spoil(tmp_path / "d/b.parquet")
    with pytest.raises(UnreadableFileError, match=r"Cannot read row group 0 of .*b\.parquet"):
        upsert(lake.table([2], ["x"]), path, use_merge=use_merge)


@USE_MERGE
def test_too_little_memory_is_a_merge_error(tmp_path, caplog, use_merge):
    ids = np.random.default_rng(0).permutation(duckdb_engine.MAX_KEYS)
    path = lake.write(tmp_path / "d", {"a.parquet": pa.table({"id": ids})})
    handler = inlay.DuckDBDatasetIO(memory_limit="1MB", threads=1)
    with caplog.at_level(logging.ERROR), pytest.raises(DatasetMergeError, match="MERGE operation failed") as caught:
        handler.merge(pa.table({"id": ids}), path, "upsert", ["id"], use_merge=use_merge)
    assert isinstance(caught.value.__cause__, duckdb.Error)
    assert (caught.value.strategy, caught.value.key_columns) == ("upsert", ["id"])
    assert "id" in caplog.text


def test_canceling_leaves_no_trace(tmp_path):
    connection = duckdb.connect()
    before = state_of(connection)
    files = {f"{i}.parquet": lake.table([i, 100 + i]) for i in range(5)}
    path = lake.write(tmp_path / "d", files)
    photograph = lake.photograph(path)
    with pytest.raises(DatasetMergeError, match="cancel"):
        upsert(lake.table([3, 4], ["x", "y"]), path, connection=connection, progress=lambda p: p.phase != "rewrite")
    assert lake.photograph(path) == photograph
    assert state_of(connection) == before


# ---------------------------------------------------------------------------------------------------- many merges
class DuckDBDataset(Dataset):
    engine = "duckdb"


class UnionDataset(Dataset):
    engine = DuckDBEngine(use_merge=False)


TestLifeWithMerge = DuckDBDataset.TestCase
TestLifeWithUnionAll = UnionDataset.TestCase
TestLifeWithMerge.settings = TestLifeWithUnionAll.settings = hypothesis.settings(
    max_examples=8, stateful_step_count=8, deadline=None
)


@pytest.mark.parametrize("use_merge", [True, False])
def test_use_merge_selects_how_duckdb_matches_keys(tmp_path, caplog, use_merge):
    arguments = ({"id": [1]}, tmp_path / "d", "upsert", "id")
    if use_merge and not supports_merge(duckdb_version(duckdb.connect())):
        with pytest.raises(InlayError, match="Required version"):
            inlay.merge(*arguments, engine="duckdb", use_merge=True)
        return
    with caplog.at_level(logging.INFO):
        for call in (inlay.plan_merge, inlay.merge):
            call(*arguments, engine="duckdb", use_merge=use_merge)
    assert ("Using DuckDB MERGE" in caplog.text) == use_merge


# ---------------------------------------------------------------------------------------------------- older versions
def environment_with(requirement, folder):
    """Create a virtual environment with another DuckDB and the packages of this one."""
    uv = shutil.which("uv")
    python = folder / "bin/python"
    make = [uv, "venv", "--quiet", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
    pip = [uv, "pip", "install", "--quiet", "--python", str(python)] if uv else [str(python), "-m", "pip", "install"]
    subprocess.run([*make, str(folder)], check=True)
    installed = subprocess.run([*pip, "--no-deps", requirement], capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip(f"{requirement} cannot be installed: {installed.stderr.strip().splitlines()[-1]}")
    [site] = (folder / "lib").glob("python*/site-packages")
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join([*others, str(ROOT / "src")]))
    return python


@pytest.mark.long  # installs other versions; short runs run the same tests with the locked version
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("requirement", ["duckdb>=1.1,<1.2", "duckdb<1.4", "duckdb>=1.4,<1.5"])
def test_the_suite_passes_with_other_versions_of_duckdb(tmp_path, requirement):
    python = environment_with(requirement, tmp_path / "env")
    version = subprocess.run(
        [python, "-c", "import duckdb; print(duckdb.__version__)"], capture_output=True, text=True, check=True
    ).stdout
    assert version.startswith("1.")
    suites = [
        "tests/incremental/test_merge_semantics.py",
        "tests/incremental/test_merge_types.py",
        "tests/incremental/test_merge_partitions.py",
        "tests/incremental/test_merge_properties.py::test_a_merge_agrees_with_the_oracle",
        "tests/requirements/test_001_duckdb.py",
        "tests/requirements/test_003_duckdb_merge.py",
        "tests/engines/test_duckdb.py",
    ]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--engines", "duckdb", *suites],
        cwd=ROOT,
        env=os.environ | {"INLAY_TEST_LONG": "", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
