"""The sidecar: the directory that holds a dataset's locks, staged files and commit record.

    <parent>/.<dataset>.txn/    next to the dataset, or
    <dataset>/.inlay.txn/       inside the dataset, if its parent directory cannot be used
    <dataset>/.inlay.pending/   an empty directory while a commit of the sidecar next to the dataset is incomplete

Every path to the dataset shows the directories inside it, also a bind mount that hides its parent. So the sidecar
inside takes precedence over the one next to the dataset. The next writer that opens the dataset deletes staging
directories, unless a running process has claimed them, or a lease protects them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, NamedTuple

from inlay.errors import (
    CommitPendingError,
    CommitStateUnknownError,
    CorruptJournalError,
    DatasetIOError,
    HistoryUnavailableError,
)
from inlay.storage import Content, LocalStore, Location

__all__ = [
    "ABANDONED_SECONDS",
    "EXTERNAL_OPERATIONS",
    "STAGING_PREFIX",
    "Change",
    "Put",
    "Record",
    "RecoveryReport",
    "StagedFile",
    "claim",
    "commit_pending_error",
    "commit_unknown_error",
    "corrupt_record_error",
    "create_claimed_staging",
    "damaged_token_error",
    "foreign_commit_error",
    "hidden_commit_error",
    "hidden_tokens_error",
    "holder",
    "inner_sidecar_path",
    "irreversible_error",
    "is_claimed",
    "is_cross_device",
    "is_leased",
    "lease",
    "lock_path",
    "missing_file_error",
    "new_staging_name",
    "no_history_error",
    "note_holder",
    "outer_sidecar_path",
    "pending_marker_path",
    "recovery_error",
    "require_inside",
    "seal",
    "sidecar_owner",
    "sidecar_path",
    "stat_or_none",
    "unlock",
    "unseal",
]


STAGING_PREFIX = ".staging_"
# Nobody can claim a staging directory on an object store, or one that the tasks of a Spark job share. So only its age
# tells that its writer has crashed.
ABANDONED_SECONDS = 24 * 3600.0
_CLAIM = "alive"
_LEASE = "lease"


def sidecar_path(location: Location) -> str:
    """Return the path of the sidecar to use."""
    inside = inner_sidecar_path(location)
    if not isinstance(location.store, LocalStore):
        return _sibling_path(location) or inside
    return inside if stat_or_none(inside) is not None else outer_sidecar_path(location) or inside


def outer_sidecar_path(location: Location) -> str | None:
    """Return the path of the sidecar next to a local dataset, or None if the dataset is a mount point.

    Files can be renamed into a mount point only from the inside.
    """
    beside = _sibling_path(location)
    return None if beside is None or is_cross_device(os.path.dirname(location.path), location.path) else beside


def inner_sidecar_path(location: Location) -> str:
    return f"{location.path}/.inlay.txn"


def _sibling_path(location: Location) -> str | None:
    parent, slash, name = location.path.rpartition("/")
    return f"{parent}/.{name}.txn" if slash and name else None


def pending_marker_path(location: Location) -> str:
    return f"{location.path}/.inlay.pending"


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


def create_claimed_staging(store: LocalStore, sidecar: str) -> tuple[str, int]:
    """Create a staging directory that no writer deletes until the returned descriptor closes."""
    while True:
        path = f"{sidecar}/{new_staging_name()}"
        store.make_directories(path)
        descriptor = claim(path)
        if descriptor is not None:
            return path, descriptor


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


def lease(directory: str, seconds: float) -> None:
    """Protect a staging directory from deletion for some time, whichever processes end meanwhile."""
    path = os.path.join(directory, _LEASE)
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
    end = time.time() + seconds
    with contextlib.suppress(PermissionError):  # another user's lease
        os.utime(path, (end, end))


def is_leased(directory: str) -> bool:
    status = stat_or_none(os.path.join(directory, _LEASE))
    return status is not None and status.st_mtime > time.time()


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


def lock_path(path: str, flags: int, deadline: float) -> int | None:
    """Lock a file or directory and return its descriptor, or None after the deadline or if the path was replaced.

    `flock` is released only when its own descriptor closes. `lockf` would be released when any descriptor of the file
    closes.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
    try:
        pause = 0.005
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
                time.sleep(pause)
                pause = min(pause * 1.5, 0.25)
        if _is_open_at(path, descriptor):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    unlock(descriptor)
    return None


def _is_open_at(path: str, descriptor: int) -> bool:
    status = stat_or_none(path)
    return status is not None and os.path.samestat(status, os.fstat(descriptor))


def note_holder(path: str) -> None:
    note = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:  # The note is optional.
        file.write(json.dumps(note).encode())


def holder(path: str) -> str:
    try:
        with open(path, "rb") as file:
            note = json.load(file)
        return f"process {note['pid']} on {note['host']} (since {note['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


_FORMAT = 2
_READABLE_FORMATS = (1, 2)
# An empty part of a path, "." or "..", in names that NUL characters separate.
_UNSAFE_PART = re.compile(r"(?:^|[/\0])\.{0,2}(?=[/\0]|\Z)")


class StagedFile(NamedTuple):
    """A file that is written to a staging path and committed to a path in the dataset."""

    stage: str  # absolute in the dataset's store
    path: str  # relative to the dataset
    content: Content | None = None  # known if the writer of the file computed its checksum


class Put(NamedTuple):
    """A staged file and its target path. Size and checksum identify the file at both paths.

    `link`, `mtime_ns` and `footer` describe the file in the history of the dataset, if it has one.
    """

    staged: str  # relative to the sidecar
    target: str  # relative to the dataset
    size: int
    crc32: int | None = None
    link: str = ""  # the end of the name of the hard link that keeps the file
    mtime_ns: int = 0
    footer: int | None = None  # the CRC-32 of the footer of a file that another program wrote


# Operations of other programs, whose files are in place before the commit.
EXTERNAL_OPERATIONS = ("external", "found")


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit means: the operation, and its counts of rows."""

    operation: str = "write"
    strategy: str | None = None
    key_columns: Sequence[str] = ()
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    rows: int | None = None  # in the dataset after the commit
    restores: int | None = None  # the version whose files an undo or a restore puts in place

    @property
    def is_external(self) -> bool:
        """Whether another program has made the change, so that its files are in place."""
        return self.operation in EXTERNAL_OPERATIONS


@dataclass(frozen=True, slots=True)
class Record:
    """The files that one commit puts in place and removes. The record of a complete commit describes a version."""

    id: str
    puts: Sequence[Put] = ()
    removes: Sequence[str] = ()
    aborted: bool = False  # on object stores: the log entry records that its writer gave up
    # On a local disk: for each file that the commit replaces or removes, a link to its content before the commit,
    # relative to the sidecar. None if the filesystem has no hard links.
    previous: Mapping[str, str | None] = field(default_factory=dict)
    is_marked: bool = False  # The pending marker was created before the commit point.
    directories: Sequence[str] = ()  # On a local disk: directories that the commit creates, outermost first.
    token: str | None = None  # of the transaction, with the outcome that later calls with this token return
    outcome: Mapping[str, Any] | None = None
    ledger: str | None = None  # that gets the token; on object stores also a new ledger of a new dataset
    change: Change = Change()
    version: int | None = None  # None without history
    history: str | None = None  # on an object store: the id of the history that has the version
    copied: bool = False  # The filesystem has no hard links, so the record of the version is a copy of this one.
    is_first: bool = False
    at: str = ""
    file_count: int = 0  # in the dataset after the commit, like `total_bytes`
    total_bytes: int = 0
    others: str = ""  # the checksum of the listing of all files that the commit keeps
    # The path, link and size of each file of the version before that this version does not have.
    replaced: Sequence[tuple[str, str, int]] = ()
    replaced_bytes: int = 0  # the sizes of all files that were replaced since the history began
    undone: int | None = None  # the version of a pending commit that this commit undoes, whose links are in `replaced`

    def dump(self) -> bytes:
        content = {each.name: getattr(self, each.name) for each in fields(self)}
        return seal(content | {"change": asdict(self.change)})

    @classmethod
    def load(cls, data: bytes, name: str) -> Record:
        try:
            content = unseal(data)
            puts = [Put(**put) if isinstance(put, dict) else Put(*put) for put in content.pop("puts")]
            change = Change(**content.pop("change", {}))
            record = cls(puts=puts, change=change, **content)
            record._require_inside()
            return record
        except (ValueError, KeyError, TypeError) as error:
            raise corrupt_record_error(name, error) from error

    def _require_inside(self) -> None:
        """Reject paths that leave the dataset, because a record may come from an untrusted copy."""
        names = [*(put.staged or put.target for put in self.puts), *self.paths, *self.directories]
        names += [link for link in self.previous.values() if link is not None]
        names += [name for path, link, _ in self.replaced for name in (path, link)]
        names += [put.link or put.target for put in self.puts]
        names += [each for each in (self.ledger, self.history) if each is not None]
        require_inside(names, [*(put.link for put in self.puts), *(link for _, link, _ in self.replaced)])

    @property
    def paths(self) -> list[str]:
        """The paths of all files that the commit puts in place or removes, relative to the dataset."""
        return [*(put.target for put in self.puts), *self.removes]

    def display_files(self, location: Location) -> list[str]:
        return [location.display(name) for name in self.paths]


def require_inside(names: Collection[str], links: Iterable[str]) -> None:
    """Raise ValueError if a path leaves the dataset, or the end of the name of a link is a path."""
    if names and _UNSAFE_PART.search("\0".join(names)):
        unsafe = next(name for name in names if _UNSAFE_PART.search(name))
        raise ValueError(f"it contains the unsafe path {unsafe!r}")
    if any("/" in link for link in links):
        raise ValueError("it contains an unsafe link")


def seal(content: Mapping[str, Any]) -> bytes:
    """Serialize values as JSON, with a checksum that detects damage."""
    body = json.dumps({"format": _FORMAT, **content})
    return json.dumps({"sha256": _digest(body), "body": body}).encode()


def unseal(data: bytes) -> dict[str, Any]:
    """Return the values that `seal` wrote, or raise ValueError, KeyError or TypeError if they are damaged."""
    envelope = json.loads(data)
    body = envelope["body"]
    if envelope["sha256"] != _digest(body):
        raise ValueError("its checksum does not match")
    content: dict[str, Any] = json.loads(body)
    if content.pop("format") not in _READABLE_FORMATS:
        raise ValueError("another version of inlay wrote it in an unknown format")
    return content


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


@dataclass(slots=True)
class RecoveryReport:
    """The result of `recover`. It is true if `recover` changed anything.

    Attributes:
        completed: The id of the pending commit that was completed, or None.
        files: The paths of the files that the completed or undone commit puts in place or removes.
        swept: The names of the staging directories of crashed writers that were deleted, and on S3 the paths of the
            files whose multipart uploads were aborted.
        undone: The id of the pending commit that was undone, or None.

    Example:
        >>> import inlay
        >>> bool(inlay.recover("sales"))
        False
    """

    completed: str | None = None
    files: list[str] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)
    undone: str | None = None

    def __bool__(self) -> bool:
        return self.completed is not None or self.undone is not None or bool(self.swept)


def corrupt_record_error(name: str, error: object) -> CorruptJournalError:
    return CorruptJournalError(
        f"The commit record {name!r} is invalid: {error}. inlay changed no files.",
        operation="recover",
        files=[name],
        hint="Restore the record from a backup. To abandon the commit, delete the record and check the data.",
    )


def commit_pending_error(location: Location, record: Record, error: Exception) -> CommitPendingError:
    return CommitPendingError(
        f"The change to {location.uri!r} is committed, but not all of its files are in place: {error}.",
        operation="commit",
        files=[location.display(put.target) for put in record.puts],
        hint="Do not retry the change. The next call on this dataset, or inlay.recover(path), completes it."
        if record.token is None
        else "Retry with the same transaction: inlay completes the change and returns its result.",
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
        hint="Fix the cause, then retry: the next call completes the earlier commit first. To undo the earlier commit "
        "instead, run `inlay recover --undo DATASET`.",
    )


def missing_file_error(location: Location, put: Put, record_path: str) -> CorruptJournalError:
    name = location.display(put.target)
    return CorruptJournalError(
        f"The commit recorded in {record_path!r} cannot be completed: {name!r} is neither staged nor in place.",
        operation="recover",
        files=[name],
        hint="The dataset was probably copied during a write. Copy it again, together with its .txn directory. To undo "
        "the commit instead, run `inlay recover --undo DATASET`.",
    )


def no_history_error(location: Location, reason: str, hint: str) -> HistoryUnavailableError:
    return HistoryUnavailableError(f"{location.uri!r} has no history: {reason}.", operation="read", hint=hint)


def hidden_commit_error(location: Location) -> DatasetIOError:
    return DatasetIOError(
        f"A commit to {location.uri!r} is pending in the directory next to the dataset, which this mount hides.",
        operation="recover",
        hint="Run `inlay recover DATASET` where the interrupted writer ran, for example on the host of a container.",
    )


def hidden_tokens_error(location: Location, witness: str) -> DatasetIOError:
    return DatasetIOError(
        f"The transactions of {location.uri!r} are recorded in the directory next to the dataset where another program"
        " created it, which this path does not show. Nothing was changed.",
        operation="merge",
        hint=f"Merge where that program runs, for example on the host of a container. If {location.uri!r} is a copy,"
        f" remove its empty directory {witness!r}: inlay then forgets the transactions.",
    )


def damaged_token_error(path: str, error: Exception) -> CorruptJournalError:
    return CorruptJournalError(
        f"The record of a transaction, {path!r}, is invalid: {error}. inlay changed no files.",
        operation="merge",
        files=[path],
        hint="Restore the record from a backup. To make inlay forget the transaction, delete the record.",
    )


def irreversible_error(location: Location, name: str) -> CorruptJournalError:
    return CorruptJournalError(
        f"The commit to {location.uri!r} cannot be undone: the earlier content of {location.display(name)!r} is lost.",
        operation="recover",
        files=[location.display(name)],
        hint="Fix the cause that keeps the commit from completing, then run `inlay recover DATASET`.",
    )


def foreign_commit_error(location: Location, record: Record, name: str) -> CorruptJournalError:
    return CorruptJournalError(
        f"The pending commit of {location.uri!r} belongs to another directory, but its file "
        f"{location.display(name)!r} is in place.",
        operation="recover",
        files=record.display_files(location),
        hint="The dataset was copied or restored during a write. Run `inlay recover --undo DATASET`.",
    )
