"""Readers: snapshots that no writer waits for, and reading without write permission."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inlay.commit.snapshot import hold_snapshot, list_dataset_files, read_consistently
from inlay.commit.transaction import IncrementalFileManager, recover
from inlay.errors import ConcurrentModificationError
from inlay.storage import FileStat, LocalStore, Location, locate
from tests.faults.scenarios import (
    BEFORE,
    PUTS,
    apply_files,
    build_files,
    change_files,
    dataset,
    leave_pending,
    leftovers,
    read_files,
    sidecar,
    stage,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    build_files(root)
    return root


def open_manager(root: Path) -> IncrementalFileManager:
    manager = IncrementalFileManager()
    manager.open(locate(dataset(root)))
    return manager


def is_after(root: Path) -> bool:
    return {name: content for name, (content, _) in read_files(root).items()} == PUTS


# ---------------------------------------------------------------------------------------------------------- readers
def test_a_read_that_a_commit_overtakes_is_repeated_on_a_pinned_snapshot(root: Path) -> None:
    seen: list[dict[str, bytes]] = []

    def read(location: Location, files: list[FileStat]) -> dict[str, bytes]:
        seen.append({})
        for file in files:
            seen[-1][file.path] = Path(location.full(file.path)).read_bytes()
            change_files(locate(dataset(root)), {file.path: f"commit {len(seen)}".encode()}, [])
        return seen[-1]

    found = read_consistently(locate(dataset(root)), read)
    assert len(seen) == 2, "the second read has links to its files, so later commits do not disturb it"
    assert set(found.values()) == {b"commit 1"}
    assert {path.read_bytes() for path in dataset(root).rglob("*.parquet")} == {b"commit 2"}
    assert leftovers(root) == []


def test_a_held_snapshot_outlives_commits_and_delays_none(root: Path) -> None:
    with hold_snapshot(locate(dataset(root))) as held:
        apply_files(root)
        assert is_after(root)
        content = {file.path: Path(held.location.full(file.path)).read_bytes() for file in held.files}
    assert content == BEFORE
    assert leftovers(root) == []


def test_a_writer_does_not_delete_the_links_of_a_reader(root: Path) -> None:
    with hold_snapshot(locate(dataset(root))) as held:
        assert recover(dataset(root)).swept == []
        assert all(Path(held.location.full(file.path)).exists() for file in held.files)


def test_links_of_a_killed_reader_are_swept(root: Path) -> None:
    program = "held = hold_snapshot(locate(dataset(root))); held.__enter__(); print(flush=True); time.sleep(60)"
    reader = start(root, program)
    assert reader.stdout is not None
    reader.stdout.readline()
    reader.kill()
    reader.communicate(timeout=10)
    assert len(recover(dataset(root)).swept) == 1
    assert leftovers(root) == []


def test_an_in_place_change_of_a_held_file_is_an_error(root: Path) -> None:
    with (
        pytest.raises(ConcurrentModificationError, match="changed during the read"),
        hold_snapshot(locate(dataset(root))),
    ):
        (dataset(root) / "a.parquet").write_bytes(b"in place")


def test_a_reader_waits_for_a_commit_and_not_for_its_writer(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that stays open after its commit does not block readers."""
    manager, move, moving = open_manager(root), LocalStore.move, threading.Event()

    def slow(store: LocalStore, source: str, target: str) -> None:
        moving.set()
        time.sleep(0.1)
        move(store, source, target)

    monkeypatch.setattr(LocalStore, "move", slow)
    writer = threading.Thread(target=lambda: manager.commit(list(stage(manager, PUTS)), ["day=2/d.parquet"]))
    writer.start()
    assert moving.wait(10)
    assert len(list_dataset_files(str(dataset(root)))) == len(PUTS)
    writer.join(10)
    assert len(list_dataset_files(str(dataset(root)))) == len(PUTS)
    manager.cleanup_staging_files()


# ------------------------------------------------------------------------------------------- missing permissions
@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a directory that other users may enter, unlike pytest's own directories."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


PROGRAM = """
import os, sys, json, time
from pathlib import Path
from inlay.commit.snapshot import hold_snapshot, list_dataset_files, read_consistently
from inlay.commit.transaction import IncrementalFileManager, recover
from inlay.errors import InlayError
from inlay.storage import locate
from tests.faults.scenarios import *
import fsspec.implementations.local
root = Path(sys.argv[1])
"""
BECOME_NOBODY = """
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""


def start(root: Path, program: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM + program, str(root)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_as_nobody(root: Path, program: str) -> subprocess.CompletedProcess[str]:
    process = start(root, BECOME_NOBODY + program)
    output, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_the_sidecar_is_inside_if_the_parent_is_not_writable(shared: Path) -> None:
    build_files(shared)
    if os.geteuid() == 0:
        for path in [dataset(shared), *dataset(shared).rglob("*")]:
            os.chown(path, 65534, 65534)
    shared.chmod(0o555)
    done = run_as_nobody(shared, "apply_files(root); print(json.dumps(list_dataset_files(str(dataset(root)))))")
    shared.chmod(0o755)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == len(PUTS)
    assert is_after(shared)
    inside = dataset(shared) / ".inlay.txn"
    assert sorted(path.name for path in inside.iterdir()) == ["lock"]
    assert not sidecar(shared).exists()
    apply_files(shared)
    assert not sidecar(shared).exists(), "the sidecar inside the dataset is no longer used"


def test_a_reader_without_write_permission_reads(shared: Path) -> None:
    build_files(shared)
    apply_files(shared)
    _forbid_writing(shared)
    done = run_as_nobody(shared, "print(json.dumps(list_dataset_files(str(dataset(root)))))")
    _allow_writing(shared)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == len(PUTS)


def test_a_reader_without_write_permission_gets_an_error_for_a_pending_commit(root: Path, shared: Path) -> None:
    leave_pending(root)
    root = Path(shutil.copytree(root, shared / "copy"))
    _forbid_writing(root)
    done = run_as_nobody(root, "list_dataset_files(str(dataset(root)))")
    _allow_writing(root)
    assert done.returncode == 1
    assert "ConcurrentModificationError" in done.stderr
    assert "inlay recover" in done.stderr


def _forbid_writing(root: Path) -> None:
    for path in [*root.rglob("*"), root]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def _allow_writing(root: Path) -> None:
    for path in [root, *root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
