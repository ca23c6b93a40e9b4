"""Readers: waiting for commits, and reading without write permission."""

from __future__ import annotations

import fcntl
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
from typing import Any

import pytest

from inlay.commit.transaction import IncrementalFileManager, list_dataset_files, read_consistently
from inlay.storage import locate
from tests.faults.scenarios import (
    BEFORE,
    PUTS,
    apply_files,
    build_files,
    dataset,
    is_pending,
    leave_pending,
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
def test_a_commit_moves_no_file_during_a_read(root: Path) -> None:
    reading, seen = threading.Event(), []

    def read_slowly(files: list[Any]) -> list[bytes]:
        content = [(dataset(root) / "a.parquet").read_bytes()]
        reading.set()
        time.sleep(0.4)
        return [*content, (dataset(root) / "day=1/b.parquet").read_bytes()]

    open_manager(root).cleanup_staging_files()
    reader = threading.Thread(target=lambda: seen.extend(read_consistently(locate(dataset(root)), read_slowly)))
    reader.start()
    assert reading.wait(10)
    apply_files(root)
    reader.join(10)
    assert seen == [BEFORE["a.parquet"], BEFORE["day=1/b.parquet"]]
    assert is_after(root)


def test_a_reader_waits_for_a_commit_and_not_for_its_writer(root: Path) -> None:
    """A writer that stays open after its commit does not block readers."""
    manager = open_manager(root)
    readers = os.open(sidecar(root) / "readers.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(readers, fcntl.LOCK_SH)  # the commit cannot complete yet
    writer = threading.Thread(target=lambda: manager.commit(list(stage(manager, PUTS)), ["day=2/d.parquet"]))
    writer.start()
    while not is_pending(root):
        time.sleep(0.005)
    threading.Timer(0.3, os.close, [readers]).start()
    started = time.monotonic()
    assert len(list_dataset_files(str(dataset(root)))) == len(PUTS)
    assert time.monotonic() - started < 20
    writer.join(10)
    manager.cleanup_staging_files()


# ------------------------------------------------------------------------------------------- missing permissions
@pytest.fixture
def shared() -> Iterator[Path]:
    """Return a directory that other users may enter, unlike pytest's own directories."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


RUN_AS_NOBODY = """
import os, sys, json, time
from pathlib import Path
from inlay.commit.transaction import IncrementalFileManager, list_dataset_files, read_consistently, recover
from inlay.errors import InlayError
from inlay.storage import locate
from tests.faults.scenarios import *
import fsspec.implementations.local
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
root = Path(sys.argv[1])
"""


def run_as_nobody(root: Path, program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", RUN_AS_NOBODY + program, str(root)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


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
    assert sorted(path.name for path in inside.iterdir()) == ["lock", "readers.lock"]
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
