"""The sidecar: the directory that holds a dataset's locks, staged files and commit record.

    <parent>/.<dataset>.txn/    next to the dataset, or
    <dataset>/.inlay.txn/       inside the dataset, if its parent directory cannot be used

The next writer that opens the dataset deletes staging directories, unless a running process has claimed them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from inlay.errors import CommitPendingError, CommitStateUnknownError, CorruptJournalError, DatasetIOError
from inlay.storage import LocalStore, Location

__all__ = [
    "STAGING_PREFIX",
    "Put",
    "Record",
    "RecoveryReport",
    "claim",
    "commit_pending_error",
    "commit_unknown_error",
    "inner_sidecar_path",
    "is_claimed",
    "is_cross_device",
    "missing_file_error",
    "new_staging_name",
    "recovery_error",
    "sidecar_owner",
    "sidecar_path",
    "stat_or_none",
    "unlock",
]


STAGING_PREFIX = ".staging_"
_CLAIM = "alive"


def sidecar_path(location: Location) -> str:
    """Return the path of the existing sidecar, or where to create it."""
    inside, beside = inner_sidecar_path(location), _outer_sidecar_path(location)
    if beside is None or not isinstance(location.store, LocalStore):
        return beside or inside
    existing = next((path for path in (beside, inside) if stat_or_none(path) is not None), None)
    # If the dataset is a mount point, files can be renamed into it only from the inside.
    return existing or (inside if is_cross_device(os.path.dirname(location.path), location.path) else beside)


def inner_sidecar_path(location: Location) -> str:
    return f"{location.path}/.inlay.txn"


def _outer_sidecar_path(location: Location) -> str | None:
    parent, slash, name = location.path.rpartition("/")
    return f"{parent}/.{name}.txn" if slash and name else None


def sidecar_owner(name: str) -> str | None:
    """Return the name of the dataset that a sidecar directory belongs to, or None for other names."""
    found = re.fullmatch(r"\.(.+)\.txn", name, re.DOTALL)
    return found and found[1]


def new_staging_name() -> str:
    return STAGING_PREFIX + uuid.uuid4().hex


def claim(directory: str) -> int | None:
    """Protect a staging directory from deletion until the returned descriptor closes.

    Returns None if the directory is already deleted.
    """
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
        descriptor = os.open(os.path.join(directory, _CLAIM), os.O_RDWR)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:  # The directory belongs to another user, so this process could not delete it either.
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        unlock(descriptor)
    return False


def unlock(descriptor: int) -> None:
    """Release a lock and close its descriptor, even if a forked child inherited it."""
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def is_cross_device(source: str, target: str) -> bool:
    """Return whether the kernel refuses to rename files from one directory to another.

    Device numbers differ between filesystems and between subvolumes. Two mounts of one filesystem share a device
    number, but a rename between them fails with EXDEV even if the renamed file does not exist.
    """
    ends = stat_or_none(source), stat_or_none(target)
    if ends[0] is None or ends[1] is None:
        return False
    name = f".none_{uuid.uuid4().hex}"
    try:
        os.rename(os.path.join(source, name), os.path.join(target, name))
    except OSError as error:
        if error.errno == errno.EXDEV:
            return True
    return ends[0].st_dev != ends[1].st_dev


def stat_or_none(path: str) -> os.stat_result | None:
    """Return the status of a path, or None if nothing exists there. Other errors are raised."""
    try:
        return os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Put:
    """A staged file and its target path. Size and checksum identify the file at both paths."""

    staged: str  # relative to the sidecar
    target: str  # relative to the dataset
    size: int
    crc32: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """The files that one commit puts in place and removes."""

    id: str
    puts: Sequence[Put] = ()
    removes: Sequence[str] = ()
    aborted: bool = False  # on object stores: the log entry records that its writer gave up

    def dump(self) -> bytes:
        body = json.dumps({"format": _FORMAT, **asdict(self)})
        return json.dumps({"sha256": _digest(body), "body": body}).encode()

    @classmethod
    def load(cls, data: bytes, name: str) -> Record:
        try:
            envelope = json.loads(data)
            body = envelope["body"]
            if envelope["sha256"] != _digest(body):
                raise ValueError("its checksum does not match")
            content = json.loads(body)
            if content.pop("format") != _FORMAT:
                raise ValueError("another version of inlay wrote it in an unknown format")
            puts = [Put(**put) for put in content.pop("puts")]
            record = cls(puts=puts, **content)
            record._require_inside()
            return record
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptJournalError(
                f"The commit record {name!r} is invalid: {error}. inlay changed no files.",
                operation="recover",
                files=[name],
                hint="Restore the record from a backup. To abandon the commit, delete the record and check the data.",
            ) from error

    def _require_inside(self) -> None:
        """Reject paths that leave the dataset, because a record may come from an untrusted copy."""
        for name in [*(put.staged for put in self.puts), *self.paths]:
            if any(part in ("", ".", "..") for part in name.split("/")):
                raise ValueError(f"it contains the unsafe path {name!r}")

    @property
    def paths(self) -> list[str]:
        """The paths of all files that the commit puts in place or removes, relative to the dataset."""
        return [*(put.target for put in self.puts), *self.removes]

    def display_files(self, location: Location) -> list[str]:
        return [location.display(name) for name in self.paths]


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


@dataclass(slots=True)
class RecoveryReport:
    """The result of `recover`. It is true if `recover` changed anything.

    Attributes:
        completed: The id of the pending commit that was completed, or None.
        files: The paths of the files that the completed commit put in place or removed.
        swept: The names of the staging directories of crashed writers that were deleted, and on S3 the paths of the
            files whose multipart uploads were aborted.

    Example:
        >>> import inlay
        >>> bool(inlay.recover("sales"))
        False
    """

    completed: str | None = None
    files: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.completed is not None or bool(self.swept)


def commit_pending_error(location: Location, record: Record, error: Exception) -> CommitPendingError:
    return CommitPendingError(
        f"The change to {location.uri!r} is committed, but not all of its files are in place: {error}.",
        operation="commit",
        files=[location.display(put.target) for put in record.puts],
        hint="Do not retry the change. The next call on this dataset, or inlay.recover(path), completes it.",
    )


def commit_unknown_error(location: Location, error: Exception) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"The outcome of the commit to {location.uri!r} is unknown: {error}.",
        operation="commit",
        hint="inlay completes or discards this commit the next time it opens the dataset. "
        "Check the dataset before you retry.",
    )


def recovery_error(location: Location, record: Record, error: Exception) -> DatasetIOError:
    return DatasetIOError(
        f"An earlier commit to {location.uri!r} cannot be completed: {error}.",
        operation="recover",
        files=[location.display(put.target) for put in record.puts],
        hint="Fix the cause, then retry. This call changed nothing; the next call completes the earlier commit first.",
    )


def missing_file_error(location: Location, put: Put, record_path: str) -> CorruptJournalError:
    name = location.display(put.target)
    return CorruptJournalError(
        f"The commit recorded in {record_path!r} cannot be completed: {name!r} is neither staged nor in place.",
        operation="recover",
        files=[name],
        hint="The dataset was probably copied during a write. Copy it again, together with its .txn directory.",
    )
