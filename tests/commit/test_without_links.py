"""Datasets whose files cannot be hard-linked: another device, another user's files, no hard links at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import inlay
from inlay.commit.files import keep_file
from inlay.commit.local import LocalJournal
from inlay.errors import HistoryUnavailableError
from inlay.storage import locate
from tests.faults.scenarios import wrong_history


def rows(path: Path, version: int | None = None) -> dict[int, str]:
    table = inlay.read_parquet(path, version=version)
    return dict(zip(table["id"].to_pylist(), table["v"].to_pylist(), strict=True))


def upsert(path: Path, **values: str) -> None:
    ids = [int(name[1:]) for name in values]
    inlay.merge({"id": ids, "v": list(values.values())}, path, "upsert", "id")


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


def check_copies(path: Path, *, is_refused: bool = True) -> None:
    """Check that there is no history until the user allows copies, and that each version is complete afterwards."""
    if is_refused:
        for _ in range(2):  # before and after a commit without history
            with pytest.raises(HistoryUnavailableError, match="cannot create hard links"):
                inlay.undo(path)
            upsert(path, k1="b")
    inlay.keep(path, versions=9, copies=True)
    upsert(path, k1="c")
    assert [(version.version, version.operation) for version in inlay.history(path)] == [(1, "merge"), (0, "found")]
    assert inlay.undo(path).restores == 0
    assert [rows(path, number)[1] for number in (0, 1, 2)] == ["b", "c", "b"]
    assert [(row["_change"], row["v"]) for row in inlay.diff(path, 0, 1).read_all().to_pylist()] == [
        ("update_before", "b"),
        ("update_after", "c"),
    ]
    inlay.forget(path, before=2)
    assert wrong_history(path.parent) == []


@contextlib.contextmanager
def another_device(path: Path) -> Iterator[Path]:
    for parent in ("/dev/shm", "/run", "/var/tmp", "/tmp"):
        if os.access(parent, os.W_OK) and os.stat(parent).st_dev != path.stat().st_dev:
            with tempfile.TemporaryDirectory(dir=parent) as directory:
                yield Path(directory)
                return
    pytest.fail("All directories are on one device.")


def test_a_file_on_another_device_is_copied_if_the_user_allows_it(tmp_path: Path) -> None:
    path = tmp_path / "ds"
    path.mkdir()
    with another_device(tmp_path) as elsewhere:
        pq.write_table(pa.table({"id": [1], "v": ["a"]}), path / "a.parquet")
        pq.write_table(pa.table({"id": [2], "v": ["a"]}), elsewhere / "b")
        (path / "b.parquet").symlink_to(elsewhere / "b")
        check_copies(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users; injected errors show the same below")
def test_a_file_of_another_user_is_copied_if_the_user_allows_it() -> None:
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent) / "ds"
        path.mkdir()
        pq.write_table(pa.table({"id": [1], "v": ["a"]}), path / "b.parquet")
        # The other user may not read the modules, so the same calls with a dataset of root import them all.
        path.with_name("own").mkdir()
        pq.write_table(pa.table({"id": [1], "v": ["b"]}), path.with_name("own") / "b.parquet")
        check_copies(path.with_name("own"), is_refused=False)
        for each in (Path(parent), path):
            os.chown(each, 65534, 65534)
        os.seteuid(65534)
        try:
            with pytest.raises(PermissionError):
                os.link(path / "b.parquet", path.with_name("link"))
            check_copies(path)
        finally:
            os.seteuid(0)


def test_a_filesystem_without_hard_links_keeps_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "ds"
    upsert(path, k1="a")
    check_copies(path)
    with pytest.raises(HistoryUnavailableError):
        inlay.keep(path, versions=3)
    assert rows(path, 2) == {1: "b"}, "a call that fails changes nothing"
    monkeypatch.undo()
    upsert(path, k1="linked again")
    assert wrong_history(tmp_path) == []


PROGRAM = """
import os, sys
from pathlib import Path
from tests.commit.test_without_links import check_copies, upsert
try:
    os.link(sys.argv[0], "link")
    sys.exit("a link was created")
except PermissionError:
    upsert(Path("ds").absolute(), k1="a")
    check_copies(Path("ds").absolute())
"""


@pytest.mark.faults
@pytest.mark.long  # The injected errors above show the same; here the kernel reports them.
def test_the_kernel_refuses_all_links(tmp_path: Path) -> None:
    command = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=link,linkat"]
    command += ["-e", "inject=link,linkat:error=EPERM", sys.executable, "-c", PROGRAM]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_blocks_are_shared_without_asking_where_the_filesystem_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(copy: Any, request: int, original: int) -> int:
        assert request == 0x40049409
        os.write(copy.fileno(), os.pread(original, 1 << 20, 0))
        return 0

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(fcntl, "ioctl", clone)
    path = tmp_path / "ds"
    upsert(path, k1="a")
    upsert(path, k1="b")
    assert [rows(path, number) for number in (1, 2)] == [{1: "a"}, {1: "b"}]
    inlay.recover(path)
    assert wrong_history(tmp_path) == []


def test_a_copy_has_the_access_rights_and_the_time_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = tmp_path / "original"
    original.write_bytes(b"x" * (3 << 20))
    original.chmod(0o640)
    os.utime(original, ns=(1, 2_000_000_003))
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(PermissionError):
        keep_file(str(original), str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()
    keep_file(str(original), str(tmp_path / "copy"), copies=True)
    found, expected = (tmp_path / "copy").stat(), original.stat()
    assert (found.st_mode, found.st_mtime_ns, found.st_size) == (expected.st_mode, 2_000_000_003, 3 << 20)
    assert (tmp_path / "copy").read_bytes() == original.read_bytes()


def test_a_full_disk_is_no_reason_to_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "ds"
    upsert(path, k1="a")
    monkeypatch.setattr(os, "link", fill)
    with pytest.raises(inlay.InlayError, match="No space left"):
        upsert(path, k1="b")
    monkeypatch.undo()
    assert rows(path) == {1: "a"}
    assert [version.version for version in inlay.history(path)] == [1]


def test_a_reader_waits_for_a_pending_commit_whose_record_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version gets a copy of the record, so a lock on the record of the commit would not keep the version."""
    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "ds"
    path.mkdir()
    inlay.keep(path, versions=9, copies=True)
    upsert(path, k1="a")
    with monkeypatch.context() as patch:
        patch.setattr(LocalJournal, "_put", refuse)
        with pytest.raises(inlay.DatasetMergeError, match="not all of its files are in place"):
            upsert(path, k1="b")
    journal = LocalJournal(locate(path))
    assert journal.history is not None
    assert journal.history.pin_pending(journal.staged_path("commit.json")) is None
    assert rows(path) == {1: "b"}
    with inlay.open_dataset(path, 2):
        upsert(path, k1="c")
        assert inlay.forget(path, before=3).pinned == 2
    assert inlay.recover(path).completed is None
    assert wrong_history(tmp_path) == []
