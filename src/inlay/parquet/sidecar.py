"""What belongs to a dataset but is no data of it: locks, journals and files on their way lie in a directory beside it.

    <parent>/.<dataset>.txn/   or, where that cannot be, inside the dataset:   .inlay.txn/

Directories whose name begins with STAGING are swept by whoever opens the dataset next, unless somebody who still lives
has claimed them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import uuid

from inlay.storage import LocalStore, Location

__all__ = [
    "STAGING",
    "claim",
    "crosses",
    "is_claimed",
    "new_staging",
    "owner_of",
    "sidecar",
    "sidecar_inside",
    "status_of",
    "unlock",
]

STAGING = ".staging_"
_CLAIM = "alive"


def sidecar(location: Location) -> str:
    """Where it is, or would be made: beside the dataset, or inside one that is a mount, so that files can be moved."""
    inside, beside = sidecar_inside(location), _beside(location)
    if beside is None or not isinstance(location.store, LocalStore):
        return beside or inside
    existing = next((place for place in (beside, inside) if status_of(place) is not None), None)
    return existing or (inside if crosses(os.path.dirname(location.path), location.path) else beside)


def sidecar_inside(location: Location) -> str:
    """For those who may not write beside the dataset."""
    return f"{location.path}/.inlay.txn"


def _beside(location: Location) -> str | None:
    parent, slash, name = location.path.rpartition("/")
    return f"{parent}/.{name}.txn" if slash and name else None


def owner_of(name: str) -> str | None:
    """The name of the dataset beside which a directory of this name lies; None if it is none of these directories."""
    found = re.fullmatch(r"\.(.+)\.txn", name, re.DOTALL)
    return found and found[1]


def new_staging() -> str:
    return STAGING + uuid.uuid4().hex


def claim(directory: str) -> int | None:
    """A descriptor that keeps a local directory from being swept while this process lives, or closes it; None if it
    was swept already."""
    path = os.path.join(directory, _CLAIM)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        return None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    unlock(descriptor)
    return None


def is_claimed(directory: str) -> bool:
    try:
        descriptor = os.open(os.path.join(directory, _CLAIM), os.O_RDWR | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:  # of somebody else, whose directories we could not remove either
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        unlock(descriptor)
    return False


def unlock(descriptor: int) -> None:
    """Give up a lock and its descriptor; also for children that a fork gave the descriptor, who would keep the lock."""
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def crosses(source: str, target: str) -> bool:
    """Whether no rename leads from one directory to another: devices differ between filesystems and subvolumes, and
    between mounts of one filesystem the kernel refuses before it looks for the file."""
    ends = status_of(source), status_of(target)
    if ends[0] is None or ends[1] is None:
        return False
    name = f".none_{uuid.uuid4().hex}"
    try:
        os.rename(os.path.join(source, name), os.path.join(target, name))
    except OSError as error:
        return error.errno == errno.EXDEV or ends[0].st_dev != ends[1].st_dev
    return False


def status_of(path: str) -> os.stat_result | None:
    """None only if there is nothing: unlike os.path.exists, which takes any error for absence."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
