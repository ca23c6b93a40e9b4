"""Free disk space: while a disk is almost full, queries that need no disk go on."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile

__all__ = ["FULL", "is_low", "make_directory", "require_space"]

_MEMORY_DISK = "/dev/shm"  # noqa: S108  (the directories have random names and are private)
FULL = (errno.ENOSPC, errno.EDQUOT)


def is_low(directory: str | os.PathLike[str], reserve: int) -> bool:
    """Return whether the disk of a directory has less free space than the reserve, or none."""
    free = shutil.disk_usage(directory).free
    return free < reserve or not free


def require_space(directory: str, reserve: int) -> None:
    """Raise the error of a full disk if a disk has less free space than the reserve."""
    if is_low(directory, reserve):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def make_directory(parent: str) -> str:
    """Create a directory for a worker: on the disk or, if the disk is full, in memory."""
    try:
        return tempfile.mkdtemp(prefix="worker-", dir=parent)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return tempfile.mkdtemp(prefix="inlay-worker-", dir=_MEMORY_DISK)
