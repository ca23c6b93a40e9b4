"""Views of managed datasets: tables of Delta Lake that follow the versions."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from inlay.errors import EngineNotInstalledError, InvalidArgumentError
from inlay.server import models
from inlay.settings import Settings
from inlay.workspace import Workspace
from tests import managed
from tests.workspace.conftest import BACKENDS


def workspace_with(request: pytest.FixtureRequest, directory: Path, backend: str, **settings: Any) -> Workspace:
    located = {} if backend == "sqlite-disk" else {"storage_url": request.getfixturevalue("s3").bucket() + "/inlay"}
    if backend != "sqlite-disk":
        server = request.getfixturevalue("postgres")
        located["catalog_url"] = server.url(server.create_database())
    grace = {"delete_grace_seconds": 0.0, "orphan_grace_seconds": 0.0}
    made = Workspace(Settings(data_dir=str(directory), **grace, **located, **settings))
    made.catalog.migrate()
    made.storage.prepare()
    return made


def close(workspace: Workspace) -> None:
    workspace.query_engine.close()
    workspace.catalog.close()


@pytest.fixture(params=BACKENDS)
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    made = workspace_with(request, tmp_path / "data", request.param, publish=("delta",))
    yield made
    close(made)


@pytest.fixture
def local(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Workspace]:
    made = workspace_with(request, tmp_path / "data", "sqlite-disk", publish=("delta",))
    yield made
    close(made)


def numbers(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


def log_files(workspace: Workspace, dataset_id: str) -> dict[str, bytes]:
    root = workspace.storage.root
    folder = workspace.storage.in_storage(dataset_id, "_delta_log")
    paths = workspace.storage.files_below(folder).paths
    return {path: root.store.read_bytes(root.full(f"{folder}/{path}")) for path in paths}


def replayed(workspace: Workspace, dataset_id: str) -> dict[int, list[int]]:
    """Return the rows of each version of the table, as its log says, read without inlay's code for views."""
    root, found, files = workspace.storage.root, dict[int, list[int]](), dict[str, None]()
    logged = log_files(workspace, dataset_id)
    for name in sorted(logged):
        actions = [json.loads(line) for line in logged[name].splitlines()]
        for action in actions:
            if "add" in action:
                files[action["add"]["path"]] = None
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
        if actions[0]["commitInfo"]["inlay"] is None:  # an entry of dropped versions
            continue
        rows: list[int] = []
        for path in files:
            with root.store.open_read(root.full(workspace.storage.in_storage(dataset_id, path))) as file:
                rows += pq.read_table(file)["id"].to_pylist()
        found[int(name.partition(".")[0])] = sorted(rows)
    return found


READ = """
import json, sys
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

address, options, found = sys.argv[1], {"AWS_ALLOW_HTTP": "true"}, {}
for entry in DeltaTable(address, storage_options=options).history():
    if entry["operation"] == "DROP":
        continue
    table = DeltaTable(address, version=entry["version"], storage_options=options)
    rows = QueryBuilder().register("t", table).execute("SELECT id FROM t ORDER BY id").read_all()
    found[entry["version"]] = pa.table(rows)["id"].to_pylist()
print(json.dumps(found))
"""


def read_by_deltalake(workspace: Workspace, dataset_id: str) -> dict[int, list[int]]:
    """Return the rows of each version of the table, as deltalake reads them.

    It runs in a process of its own, because it keeps the GIL from the S3 server of the tests.
    """
    command = [sys.executable, "-c", READ, workspace.publisher.address(dataset_id)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return {int(number): rows for number, rows in json.loads(done.stdout).items()}


def stored(workspace: Workspace, dataset_id: str) -> dict[int, list[int]]:
    listed = [version.version for version in workspace.versions(dataset_id).items]
    return {
        number: sorted(
            value for batch in workspace.data(dataset_id, number).batches() for value in batch["id"].to_pylist()
        )
        for number in sorted(listed)
    }


def state(workspace: Workspace, dataset_id: str) -> list[tuple[str, int | None, str | None]]:
    return [(view.format, view.version, view.problem) for view in workspace.publisher.views(dataset_id)]


@pytest.mark.on_servers
def test_a_view_follows_the_versions(workspace: Workspace) -> None:
    dataset_id = managed.create(workspace, numbers(1, 2), numbers(3))
    workspace.publisher.update(dataset_id)
    managed.commit(workspace, dataset_id, numbers(4), kept=[0], operation="append")
    managed.commit(workspace, dataset_id, numbers(5), kept=[1])
    assert state(workspace, dataset_id) == [("delta", 1, None)]
    workspace.publisher.update(dataset_id)
    assert state(workspace, dataset_id) == [("delta", 3, None)]
    assert stored(workspace, dataset_id) == {1: [1, 2, 3], 2: [1, 2, 4], 3: [4, 5]}
    assert replayed(workspace, dataset_id) == stored(workspace, dataset_id)
    assert read_by_deltalake(workspace, dataset_id) == stored(workspace, dataset_id)
    before = log_files(workspace, dataset_id)
    workspace.publisher.update(dataset_id)
    workspace.publisher.catch_up()
    assert log_files(workspace, dataset_id) == before


@pytest.mark.on_servers
def test_maintenance_catches_up_trims_and_removes(workspace: Workspace) -> None:
    dataset_id = managed.create(workspace, numbers(1))
    for value in range(2, 6):
        managed.commit(workspace, dataset_id, numbers(value))
    workspace._maintenance.run()
    assert state(workspace, dataset_id) == [("delta", 5, None)]
    assert set(replayed(workspace, dataset_id)) == {1, 2, 3, 4, 5}
    assert workspace.catalog.versions.expire(keep_versions=2, keep_days=0) == 3
    workspace._maintenance.run()
    assert replayed(workspace, dataset_id) == stored(workspace, dataset_id) == {4: [4], 5: [5]}
    assert read_by_deltalake(workspace, dataset_id) == {4: [4], 5: [5]}
    [view] = models.Dataset.of_snapshot(workspace.dataset(dataset_id), workspace).views
    shown = (view.format, view.url, view.version, view.problem)
    assert shown == ("delta", workspace.publisher.address(dataset_id), 5, None)
    workspace.delete_dataset(dataset_id)
    workspace._maintenance.run()
    assert not workspace.storage.files_below("datasets")
    assert workspace.catalog.views.outdated(["delta"]) == []


def test_a_view_that_shows_only_expired_versions_begins_again(local: Workspace) -> None:
    dataset_id = managed.create(local, numbers(1))
    local.publisher.update(dataset_id)
    for value in range(2, 4):
        managed.commit(local, dataset_id, numbers(value))
    local.catalog.versions.expire(keep_versions=2, keep_days=0)
    local.publisher.update(dataset_id)
    assert replayed(local, dataset_id) == {2: [2], 3: [3]}


def test_a_type_that_the_format_lacks_is_a_problem_of_the_view(local: Workspace) -> None:
    dataset_id = managed.create(local, numbers(1))
    local.publisher.update(dataset_id)
    wide = pa.table({"id": [1], "big": pa.array([1], pa.uint64())})
    managed.commit(local, dataset_id, wide)
    local.publisher.update(dataset_id)
    [(format_, version, problem)] = state(local, dataset_id)
    assert (format_, version) == ("delta", 1)
    assert "'big'" in str(problem)
    assert local.catalog.views.outdated(["delta"]) == []  # it is tried again with the next version
    managed.commit(local, dataset_id, numbers(2))
    assert local.catalog.views.outdated(["delta"]) == [dataset_id]


def test_a_failure_of_the_storage_is_caught_up(local: Workspace, caplog: pytest.LogCaptureFixture) -> None:
    dataset_id = managed.create(local, numbers(1))
    blocked = Path(local.storage.address(local.storage.in_storage(dataset_id, "_delta_log")))
    blocked.write_text("not a directory")
    local.publisher.update(dataset_id)
    assert "is not up to date" in caplog.text
    assert state(local, dataset_id) == []
    blocked.unlink()
    local.publisher.catch_up()
    assert state(local, dataset_id) == [("delta", 1, None)]
    caplog.clear()
    local.delete_dataset(dataset_id)
    local.publisher.update(dataset_id)
    assert caplog.text == ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_iceberg_view_follows_the_versions(request: pytest.FixtureRequest, tmp_path: Path, backend: str) -> None:
    made = workspace_with(request, tmp_path / "data", backend, publish=("delta", "iceberg"))
    dataset_id = managed.create(made, numbers(1, 2), numbers(3))
    made.publisher.catch_up()
    managed.commit(made, dataset_id, numbers(4), kept=[0], operation="append")
    managed.commit(made, dataset_id, numbers(5), kept=[1])
    made.publisher.update(dataset_id)
    assert state(made, dataset_id) == [("delta", 3, None), ("iceberg", 3, None)]

    def read_by_pyiceberg() -> dict[int, list[int]]:
        properties = {"s3.endpoint": os.environ.get("AWS_ENDPOINT_URL", "")}
        table = StaticTable.from_metadata(made.publisher.address(dataset_id), properties)
        numbers = [snapshot.snapshot_id for snapshot in table.snapshots()]
        rows = {number: table.scan(snapshot_id=number).to_arrow()["id"].to_pylist() for number in numbers}
        return {number: sorted(found) for number, found in rows.items()}

    assert read_by_pyiceberg() == stored(made, dataset_id) == {1: [1, 2, 3], 2: [1, 2, 4], 3: [4, 5]}
    made.catalog.versions.expire(keep_versions=1, keep_days=0)
    made._maintenance.run()
    assert read_by_pyiceberg() == stored(made, dataset_id) == {3: [4, 5]}
    close(made)


def test_a_format_without_its_package_is_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(EngineNotInstalledError, match="pyiceberg"):
        Workspace(Settings(data_dir=str(tmp_path), publish=("iceberg",)))


def test_services_that_publish_at_the_same_time_write_one_table(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = [workspace_with(request, tmp_path / "data", "sqlite-disk", publish=("delta",)) for _ in range(3)]
    dataset_ids = [managed.create(made[0], numbers(at), label=f"table {at}") for at in range(4)]
    for value in (7, 8):
        with ThreadPoolExecutor(len(made)) as threads:
            list(threads.map(lambda workspace: workspace.publisher.catch_up(), made))
        made[0].publisher.catch_up()
        for dataset_id in dataset_ids:
            assert replayed(made[0], dataset_id) == stored(made[0], dataset_id)
            entries = [json.loads(content.splitlines()[0]) for content in log_files(made[0], dataset_id).values()]
            tables = {info["table"] for entry in entries if (info := entry["commitInfo"]["inlay"]) is not None}
            assert len(tables) == 1
            managed.commit(made[0], dataset_id, numbers(value), kept=[0])
    assert not made[0].storage.files_below("scratch")
    for workspace in made:
        close(workspace)


def test_the_log_is_no_orphan_until_its_format_is_no_longer_published(
    local: Workspace, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    dataset_id = managed.create(local, numbers(1))
    local.publisher.update(dataset_id)
    old = time.time() - 9000
    for path in Path(local.storage.root.path).rglob("*.json"):
        os.utime(path, (old, old))
    before = log_files(local, dataset_id)
    local._maintenance.run()
    assert log_files(local, dataset_id) == before
    plain = workspace_with(request, tmp_path / "data", "sqlite-disk")
    assert plain.publisher.views(dataset_id) == ()
    plain._maintenance.run()
    assert log_files(plain, dataset_id) == {}
    assert stored(plain, dataset_id) == {1: [1]}
    close(plain)


def test_an_unknown_format_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match=r"Unknown view format .*'detla'") as caught:
        Settings.load({"publish": "detla"}, {})
    assert "delta" in str(caught.value.hint)
    assert Settings.load({}, {"INLAY_PUBLISH": "delta, iceberg"}).publish == ("delta", "iceberg")
