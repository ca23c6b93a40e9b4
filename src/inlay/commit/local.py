"""The journal of a dataset on a local disk: writers' lock, commit record, roll-forward and recovery.

    <parent>/.<dataset>.txn/   lock   commit.json   footers.db   .staging_<uuid>/<n>.stage

Writers lock the dataset directory itself, because symbolic links and bind mounts add other paths to it. The commit
point is the rename of the record to `commit.json`. Before the rename, a crash leaves the dataset unchanged. After it,
any process can complete the commit, as often as needed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from inlay.commit.sidecar import (
    STAGING_PREFIX,
    Put,
    Record,
    RecoveryReport,
    commit_pending_error,
    commit_unknown_error,
    create_claimed_staging,
    foreign_commit_error,
    hidden_commit_error,
    holder,
    inner_sidecar_path,
    irreversible_error,
    is_claimed,
    is_cross_device,
    lock_path,
    missing_file_error,
    new_staging_name,
    note_holder,
    outer_sidecar_path,
    pending_marker_path,
    recovery_error,
    sidecar_path,
    stat_or_none,
    unlock,
)
from inlay.errors import CommitStateUnknownError, CorruptJournalError, DatasetIOError, LockTimeoutError
from inlay.storage import FileStat, LocalStore, Location, discard_tree

__all__ = ["LocalJournal"]


_CHECKSUM_BLOCK = 1 << 20
# Network filesystems that cannot lock a directory fail with one of these errors.
_NO_DIRECTORY_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class LocalJournal:
    """One process's access to the sidecar of a dataset on a local disk."""

    def __init__(self, location: Location, sidecar: str | None = None) -> None:
        self.location = location
        self._store = LocalStore()
        self._lock: int | None = None
        self._created: list[str] = []  # directories that this writer created to lock the dataset
        self._created_sidecar = False
        self.sidecar = sidecar or sidecar_path(location)

    def has_sidecar(self) -> bool:
        return stat_or_none(self.sidecar) is not None

    @property
    def _is_inside(self) -> bool:
        return self.sidecar == inner_sidecar_path(self.location)

    def _make_sidecar(self) -> None:
        try:
            made = self._store.make_directories(self.sidecar)
        except PermissionError:
            self.sidecar = inner_sidecar_path(self.location)
            made = self._store.make_directories(self.sidecar)
        self._created_sidecar |= bool(made)
        for directory in made:
            self._store.sync_directory(os.path.dirname(directory))
            _share_access(self.location.path, directory)

    def _in_sidecar(self, name: str) -> str:
        return os.path.join(self.sidecar, name)

    @property
    def _journal(self) -> str:
        return self._in_sidecar("commit.json")

    @property
    def _marker(self) -> str:
        return pending_marker_path(self.location)

    @property
    def cache_path(self) -> str | None:
        """The path of the footer cache, or None: other readers take a file inside the dataset for data."""
        is_usable = not self._is_inside and os.access(self.sidecar, os.W_OK)
        return self._in_sidecar("footers.db") if is_usable else None

    # --------------------------------------------------------------------------------------------------- locking
    def acquire(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._lock is None:
            # A writer that fails removes the directory that it created, so it can disappear at any time.
            with contextlib.suppress(FileNotFoundError):
                self._created += self._store.make_directories(self.location.path)
                self._lock = self._lock_dataset(deadline)
            if self._lock is None and time.monotonic() >= deadline:
                self._remove_created()
                raise LockTimeoutError(
                    f"{self.location.uri!r} is locked by {holder(self._in_sidecar('lock'))}; waited {timeout:g} s.",
                    hint="Retry when the other writer has finished, or pass a larger lock_timeout.",
                )
        try:
            if stat_or_none(self._marker) is not None and outer_sidecar_path(self.location) is None:
                raise hidden_commit_error(self.location)
            self.sidecar = sidecar_path(self.location)  # Another writer may have created a sidecar inside.
            self._make_sidecar()
            note_holder(self._in_sidecar("lock"))
        except BaseException:
            self.release()
            raise

    def _lock_dataset(self, deadline: float) -> int | None:
        """Lock the dataset directory, or a file in the sidecar if the filesystem cannot lock directories."""
        try:
            return lock_path(self.location.path, os.O_RDONLY | os.O_DIRECTORY, deadline)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_LOCKS:
                raise
        self._make_sidecar()
        return lock_path(self._in_sidecar("lock"), os.O_RDWR | os.O_CREAT, deadline)

    def release(self) -> None:
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            try:
                with contextlib.suppress(OSError):
                    os.truncate(self._in_sidecar("lock"), 0)  # Removes the note about the holder.
                self._remove_created()
            finally:
                unlock(descriptor)

    def _remove_created(self) -> None:
        """Remove the sidecar and the directories that this writer created, if it committed nothing."""
        created, self._created = self._created, []
        with contextlib.suppress(OSError):
            if self._created_sidecar:
                self._remove_unused_sidecar()
            for directory in reversed(created):
                self._store.remove_empty_directory(directory)

    def _remove_unused_sidecar(self) -> None:
        names = os.listdir(self.sidecar)
        if all(name.startswith(("lock", "footers.db")) for name in names):
            for name in names:
                self._store.remove(self._in_sidecar(name))
            self._store.remove_empty_directory(self.sidecar)  # A reader may have created a staging directory meanwhile.

    # ------------------------------------------------------------------------------------------------- snapshots
    @contextlib.contextmanager
    def pin(self, files: Sequence[FileStat]) -> Iterator[Location | None]:
        """Yield a location of hard links that keep the content of files readable, or None if links are impossible.

        A commit replaces directory entries, not content, so links need no lock.
        """
        with contextlib.ExitStack() as stack:
            pinned = None
            # Only a writer creates a sidecar inside the dataset, because all writers then use it.
            if not self._is_inside or self.has_sidecar():
                with contextlib.suppress(OSError):
                    pinned = stack.enter_context(self._link_files(files))
            yield pinned

    @contextlib.contextmanager
    def _link_files(self, files: Sequence[FileStat]) -> Iterator[Location]:
        path, descriptor = create_claimed_staging(self._store, self.sidecar)
        try:
            pinned = replace(self.location, links=path)
            for directory in {os.path.dirname(pinned.full(file.path)) for file in files}:
                os.makedirs(directory, exist_ok=True)
            with _open_directory(self.location.path) as root:
                for file in files:
                    _link(root, file.path, pinned.full(file.path))
            yield pinned
        finally:
            discard_tree(self._store, path)
            unlock(descriptor)
            self._store.remove_empty_directory(self.sidecar)

    # --------------------------------------------------------------------------------------------------- staging
    def create_staging(self) -> str:
        """Create a staging directory and return its name relative to the sidecar."""
        name = new_staging_name()
        self._make_sidecar()  # A reader removes a sidecar that is empty.
        os.mkdir(self._in_sidecar(name), 0o777)
        # Staged files get the group and the default ACL of this directory, and keep them in the dataset.
        _share_access(self.location.path, self._in_sidecar(name))
        return name

    def discard_staging(self, staging: str) -> None:
        """Delete a staging directory, unless a pending commit may need its files."""
        if not self._may_be_pending():
            discard_tree(self._store, self._in_sidecar(staging))

    def _may_be_pending(self) -> bool:
        try:
            return stat_or_none(self._journal) is not None
        except OSError:
            return True

    def staged_path(self, name: str) -> str:
        return self._in_sidecar(name)

    # ---------------------------------------------------------------------------------------------------- commit
    def prepare(self, staged: str, target: str) -> Put:
        """Copy the access rights of the replaced file to the staged file, and sync it to disk."""
        path = self.staged_path(staged)
        _copy_access(self.location.full(target), path)
        size, checksum = _fingerprint(path)
        self._store.sync_file(path)
        return Put(staged, target, size, checksum)

    def commit(self, record: Record) -> None:
        try:
            record = self._link_previous(record)
            record = replace(record, is_marked=not self._is_inside, directories=self._missing_directories(record))
            self._write_draft(record)
            self._make_target_directories(record)
            for directory in self._staging_directories(record):
                self._store.sync_directory(directory)
            self._store.sync_directory(self.sidecar)
            self._sync_parent(self.sidecar)
            self._publish(record)
        except CommitStateUnknownError:
            raise
        except BaseException:
            self._discard_draft(record)
            raise
        self._created.clear()
        self._created_sidecar = False
        self._complete(record)

    def _missing_directories(self, record: Record) -> list[str]:
        """List the directories that the commit creates, relative to the dataset, outermost first."""
        above = {path for target in self._target_directories(record) for path in self._up_to_root(target)}
        missing = sorted(path for path in above if stat_or_none(path) is None)
        return [os.path.relpath(path, self.location.path) for path in missing]

    def _make_target_directories(self, record: Record) -> None:
        """Try before the commit point what could fail after it: create target directories and check access."""
        if record.directories:
            self._store.sync_directory(self.sidecar)  # After a crash, the draft tells which directories to remove.
        for created in map(self.location.full, record.directories):
            self._store.make_durable_directories(created)
            _share_access(os.path.dirname(created), created)
        for directory in self._target_directories(record):
            self._require_writable(directory)
        for created in self._created:
            self._sync_parent(created)
        if record.is_marked:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._marker)
            self._store.sync_directory(self.location.path)

    def _remove_directories(self, record: Record) -> None:
        for name in reversed(record.directories):
            self._store.remove_empty_directory(self.location.full(name))
        self._store.remove_empty_directory(self._marker)

    def _require_writable(self, directory: str) -> None:
        """Reject target directories into which files cannot be moved."""
        if is_cross_device(self.sidecar, directory):
            raise DatasetIOError(
                f"{directory!r} is not on the same filesystem as {self.sidecar!r}, so files cannot be moved there.",
                operation="commit",
                hint="Keep the dataset on one filesystem. A partition cannot be a mount point or a link out of it.",
            )
        if not os.access(directory, os.W_OK | os.X_OK):
            raise DatasetIOError(
                f"You do not have permission to write to {directory!r}. Nothing was changed.",
                operation="commit",
                hint="Get write permission for the directory, then retry.",
            )

    def _link_previous(self, record: Record) -> Record:
        """Link the files that the commit replaces or removes, so that the commit can be undone."""
        existing = [name for name in record.paths if os.path.lexists(self.location.full(name))]
        if not existing:
            return record
        staging = os.path.dirname(record.puts[0].staged) if record.puts else self.create_staging()
        previous: dict[str, str | None] = {}
        with _open_directory(self.location.path) as root:
            for number, name in enumerate(existing):
                link = f"{staging}/{number}.previous"
                try:
                    _link(root, name, self._in_sidecar(link))
                    previous[name] = link
                except OSError:
                    previous[name] = None
        return replace(record, previous=previous)

    def _discard_previous(self, record: Record) -> None:
        """Delete the links of a commit that only removes files. Other links are among the staged files."""
        if not record.puts:
            for directory in self._staging_directories(record):
                discard_tree(self._store, directory)

    def _draft(self, record: Record) -> str:
        return self._in_sidecar(f"commit.{record.id}.tmp")

    def _write_draft(self, record: Record) -> None:
        with open(self._draft(record), "xb") as file:
            file.write(record.dump())
            file.flush()
            os.fsync(file.fileno())

    def _discard_draft(self, record: Record) -> None:
        """Remove what a failed commit prepared, unless the failure came after the commit point."""
        if not self._may_be_pending():
            self._discard_previous(record)
            self._remove_directories(record)
            self._store.remove(self._draft(record))

    def _publish(self, record: Record) -> None:
        try:
            os.rename(self._draft(record), self._journal)  # This is the commit point.
        except OSError as error:
            if stat_or_none(self._journal) is not None:  # A network filesystem can report failure for a success.
                raise commit_unknown_error(self.location, error) from error
            raise
        try:
            self._store.sync_directory(self.sidecar)
        except OSError as error:
            raise commit_unknown_error(self.location, error) from error

    def _complete(self, record: Record) -> None:
        try:
            self.roll_forward(record)
        except CorruptJournalError:
            raise
        except Exception as error:  # No error past the commit point may claim that nothing changed.
            raise commit_pending_error(self.location, record, error) from error

    def roll_forward(self, record: Record, *, resumed: bool = False) -> None:
        """Move all files into place and delete the record. Repeating it has the same result."""
        if resumed:
            self._make_directories_again(record)
        for name in record.paths:
            self._store.unlink(_hadoop_checksum(self.location.full(name)))
        # Readers that do not use inlay see a mixture until these two loops end. The loops do nothing else, and they
        # keep the GIL. New files come first: a reader then misses a file and fails, instead of missing rows.
        for put in record.puts:
            self._put(put, self.location.full(put.target))
        for name in record.removes:
            self._store.unlink(self.location.full(name))
        # Syncing targets before sources ensures that a power cut cannot lose a moved file at both paths.
        self._sync(self._target_directories(record))
        self._sync(self._staging_directories(record) | {self.sidecar})
        os.unlink(self._journal)
        self._store.sync_directory(self.sidecar)
        self._store.remove_empty_directory(self._marker)
        self._discard_previous(record)

    def _make_directories_again(self, record: Record) -> None:
        """Create the target directories of a crashed writer if a power cut lost them, and make them durable."""
        for put in record.puts:
            self._store.make_durable_directories(os.path.dirname(self.location.full(put.target)))
        self._sync_parent(self.location.path)
        self._sync({above for path in self._target_directories(record) for above in self._up_to_root(path)})

    def _target_directories(self, record: Record) -> set[str]:
        return {os.path.dirname(self.location.full(name)) for name in record.paths}

    def _staging_directories(self, record: Record) -> set[str]:
        names = [*(put.staged for put in record.puts), *(link for link in record.previous.values() if link is not None)]
        return {os.path.dirname(self.staged_path(name)) for name in names}

    def _up_to_root(self, directory: str) -> Iterator[str]:
        while len(directory) >= len(self.location.path):
            yield directory
            directory = os.path.dirname(directory)

    def _sync(self, directories: set[str]) -> None:
        for directory in sorted(directories):
            with contextlib.suppress(FileNotFoundError):  # Removing a file can remove its directory.
                self._store.sync_directory(directory)

    def _sync_parent(self, path: str) -> None:
        """Make the directory entry of `path` durable, because a crashed writer may have created it."""
        with contextlib.suppress(PermissionError):  # A parent that is not readable belongs to another user.
            self._store.sync_directory(os.path.dirname(path))

    def _put(self, put: Put, target: str) -> None:
        try:
            self._store.move(self.staged_path(put.staged), target)
        except FileNotFoundError:
            if not _matches(target, put):
                raise missing_file_error(self.location, put, self._journal) from None

    # -------------------------------------------------------------------------------------------------- recovery
    def has_pending_commit(self) -> bool:
        # To processes that use the sidecar inside, the marker shows a commit in the sidecar next to the dataset.
        paths = [self._journal, self._marker] if self._is_inside else [self._journal]
        return any(stat_or_none(path) is not None for path in paths)

    def recover(self, *, sweep: bool, undo: bool = False) -> RecoveryReport:
        """Complete or undo a pending commit and, with `sweep`, delete staged files of crashed writers.

        The caller must hold the lock.
        """
        report = RecoveryReport()
        outer = outer_sidecar_path(self.location) if self._is_inside else None
        journals = [self] if outer is None else [LocalJournal(self.location, outer), self]
        for journal in (each for each in journals if each.has_sidecar()):
            journal.recover_sidecar(report, sweep=sweep, undo=undo)
        self._store.remove_empty_directory(self._marker)  # A crashed writer may have left it without a commit.
        return report

    def recover_sidecar(self, report: RecoveryReport, *, sweep: bool, undo: bool) -> None:
        if stat_or_none(self._journal) is not None:
            record = Record.load(self._store.read_bytes(self._journal), self._journal)
            report.files = record.display_files(self.location)
            if self._is_foreign(record, undo=undo):
                os.unlink(self._journal)
                self._store.sync_directory(self.sidecar)
                report.undone = record.id
            elif undo:
                self._undo(record)
                report.undone = record.id
            else:
                self._finish(record)
                report.completed = record.id
        elif stat_or_none(self._marker) is not None:
            # The writer may have crashed after it deleted the record, but before the deletion was durable. The record
            # without the marker would look like a commit of another directory.
            self._store.sync_directory(self.sidecar)
        if sweep:
            report.swept += self._sweep()

    def _is_foreign(self, record: Record, *, undo: bool) -> bool:
        """Return whether the dataset was deleted, and perhaps created again, after the commit began."""
        if not record.is_marked or stat_or_none(self._marker) is not None:
            return False
        found = next((put.target for put in record.puts if _matches(self.location.full(put.target), put)), None)
        if found is not None and not undo:
            raise foreign_commit_error(self.location, record, found)
        return found is None

    def _finish(self, record: Record) -> None:
        """Complete another writer's commit. Before any file moves, check that all files exist."""
        try:
            for put in record.puts:
                if not _matches(self.staged_path(put.staged), put) and not _matches(
                    self.location.full(put.target), put
                ):
                    raise missing_file_error(self.location, put, self._journal)
            # The writer may have crashed between rename and sync. The record must be durable before a file moves.
            self._store.sync_directory(self.sidecar)
            self._sync_parent(self.sidecar)
            self.roll_forward(record, resumed=True)
        except OSError as error:
            raise recovery_error(self.location, record, error) from error

    def _undo(self, record: Record) -> None:
        """Replace a pending commit by its inverse, and complete that."""
        inverse = self._inverse(record)
        self._write_draft(inverse)
        self._publish(inverse)
        self._complete(inverse)
        self._remove_directories(record)

    def _inverse(self, record: Record) -> Record:
        staged = {put.target: self.staged_path(put.staged) for put in record.puts}
        puts, removes = [], []
        for name in record.paths:
            target = self.location.full(name)
            link = record.previous.get(name)
            if name not in record.previous:
                if os.path.lexists(target):
                    removes.append(name)
            elif link is None or not os.path.lexists(self._in_sidecar(link)):
                if not os.path.lexists(staged.get(name, target)):
                    raise irreversible_error(self.location, name)
            elif not os.path.lexists(target) or not os.path.samefile(self._in_sidecar(link), target):
                puts.append(Put(link, name, *_fingerprint(self._in_sidecar(link))))
        return Record(uuid.uuid4().hex, puts, removes, is_marked=record.is_marked)

    def _sweep(self) -> list[str]:
        swept = []
        for name in sorted(os.listdir(self.sidecar)):
            if name.startswith(STAGING_PREFIX):
                if not is_claimed(self._in_sidecar(name)):  # Dry runs hold no lock, so they claim their directory.
                    self.discard_staging(name)
                    swept.append(name)
            elif name.startswith("commit.") and name.endswith(".tmp"):
                self._sweep_draft(self._in_sidecar(name))
            elif name.startswith("footers.db-"):
                self._store.remove(self._in_sidecar(name))  # A process that writes the cache now goes without it.
        return swept

    def _sweep_draft(self, path: str) -> None:
        """Delete the record of a writer that crashed before the commit point, and the directories that it created."""
        with contextlib.suppress(CorruptJournalError):  # The writer crashed while it wrote the record.
            self._remove_directories(Record.load(self._store.read_bytes(path), path))
        self._store.remove(path)

    def is_writable(self) -> bool:
        return os.access(self.sidecar if self.has_sidecar() else os.path.dirname(self.sidecar), os.W_OK)


def _hadoop_checksum(path: str) -> str:
    """Return the path of the checksum file that Hadoop and Spark write beside a data file.

    Spark cannot read a data file whose checksum file belongs to an older version of it.
    """
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.crc")


def _matches(path: str, put: Put) -> bool:
    status = stat_or_none(path)
    return status is not None and status.st_size == put.size and _fingerprint(path) == (put.size, put.crc32)


def _link(root: int, name: str, target: str) -> None:
    """Link a file of the dataset. With a directory descriptor, Python follows symbolic links."""
    os.link(name, target, src_dir_fd=root)


# --------------------------------------------------------------------------------------------------------- access
def _share_access(model: str, directory: str) -> None:
    """Copy group, mode and default ACL from another directory to a new one, so that the same users can write to it."""
    status = os.stat(model)
    with contextlib.suppress(OSError):
        os.chown(directory, -1, status.st_gid)
    with contextlib.suppress(OSError):
        os.chmod(directory, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    _copy_attributes(model, directory, ["system.posix_acl_default"])


def _copy_access(replaced: str, path: str) -> None:
    """Copy owner, group, mode and ACL of a replaced file to the staged file, as far as permitted."""
    status = stat_or_none(replaced)
    if status is None:
        return
    for owner in (status.st_uid, -1):  # Only root can change the owner. Other users can keep the group.
        with contextlib.suppress(PermissionError):
            os.chown(path, owner, status.st_gid)
            break
    os.chmod(path, stat.S_IMODE(status.st_mode))
    with contextlib.suppress(OSError):
        _copy_attributes(replaced, path, os.listxattr(replaced))


def _copy_attributes(source: str, target: str, names: Sequence[str]) -> None:
    for name in names:
        with contextlib.suppress(OSError):  # The attribute does not exist, or only root may set it.
            os.setxattr(target, name, os.getxattr(source, name))


@contextlib.contextmanager
def _open_directory(path: str) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _fingerprint(path: str) -> tuple[int, int]:
    checksum = size = 0
    with open(path, "rb") as file:
        while block := file.read(_CHECKSUM_BLOCK):
            checksum = zlib.crc32(block, checksum)
            size += len(block)
    return size, checksum
