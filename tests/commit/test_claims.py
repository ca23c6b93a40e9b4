"""Claims on staging directories, and filesystems between which files cannot be renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inlay.commit import sidecar
from inlay.commit.sidecar import claim, is_claimed, is_cross_device, unlock


@pytest.fixture
def open_files() -> Iterator[None]:
    """Check that the test closes every descriptor that it opens."""
    before = os.listdir("/proc/self/fd")
    yield
    assert len(os.listdir("/proc/self/fd")) == len(before)


def delete(path: Path) -> None:
    path.unlink()


def replace(path: Path) -> None:
    path.rename(path.with_name("old"))
    path.touch()


@pytest.mark.usefixtures("open_files")
def test_claim_protects_a_directory_until_it_is_released(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        descriptor = claim(str(tmp_path))
    finally:
        os.umask(before)
    assert descriptor is not None
    assert stat.S_IMODE((tmp_path / "alive").stat().st_mode) == 0o666  # other users of the dataset can claim too
    assert is_claimed(str(tmp_path))
    unlock(descriptor)
    assert not is_claimed(str(tmp_path))


@pytest.mark.usefixtures("open_files")
@pytest.mark.parametrize("interfere", [delete, replace])
def test_claim_fails_if_the_directory_is_deleted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interfere: Callable[[Path], None]
) -> None:
    flock = fcntl.flock

    def lock_late(descriptor: int, mode: int) -> None:
        if mode == fcntl.LOCK_SH:
            interfere(tmp_path / "alive")
        flock(descriptor, mode)

    monkeypatch.setattr(sidecar.fcntl, "flock", lock_late)
    assert claim(str(tmp_path)) is None


def test_missing_directory_cannot_be_claimed(tmp_path: Path) -> None:
    assert claim(str(tmp_path / "missing")) is None
    assert not is_claimed(str(tmp_path / "missing"))


def test_directory_of_another_user_counts_as_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, flags: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(sidecar.os, "open", refuse)
    assert is_claimed(str(tmp_path))


def test_directories_of_one_filesystem_are_not_cross_device(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not is_cross_device(str(tmp_path), str(tmp_path / "a"))
    assert not is_cross_device(str(tmp_path), str(tmp_path / "missing"))
    assert is_cross_device(str(tmp_path), "/proc")


def test_different_devices_are_cross_device_whatever_the_rename_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: str, target: str) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file", source)

    monkeypatch.setattr(sidecar.os, "rename", fail)
    assert is_cross_device(str(tmp_path), "/proc")
    assert not is_cross_device(str(tmp_path), str(tmp_path))
