"""The journal of a dataset on a local disk: writers' lock, commit record, roll-forward and recovery.

    <parent>/.<dataset>.txn/   lock   commit.json   footers.db   .staging_<uuid>/<n>.stage   tokens.<ledger>/<hash>
                               files/   versions/

Writers lock the dataset directory itself, because symbolic links and bind mounts add other paths to it. The commit
point is the rename of the record to `commit.json`. Before the rename, a crash leaves the dataset unchanged. After it,
any process can complete the commit, as often as needed. Its last step links the record into `versions`, see
`commit/history.py`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from inlay.commit.access import copy_access, share_access
from inlay.commit.files import is_link_refused, keep_file, open_directory, read_content, write_durably
from inlay.commit.history import History
from inlay.commit.kept import KeptFiles
from inlay.commit.published import PublishedViews
from inlay.commit.retention import Retention, expired_versions
from inlay.commit.sidecar import (
    STAGING_PREFIX,
    Put,
    Record,
    RecoveryReport,
    StagedFile,
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
    is_leased,
    lease,
    lock_path,
    missing_file_error,
    new_staging_name,
    no_history_error,
    note_holder,
    outer_sidecar_path,
    pending_marker_path,
    recovery_error,
    sidecar_path,
    stat_or_none,
    unlock,
)
from inlay.commit.tokens import LocalTokens, choose_ledger, witness_name
from inlay.errors import (
    CommitStateUnknownError,
    CorruptJournalError,
    DatasetIOError,
    HistoryUnavailableError,
    InlayError,
    LockTimeoutError,
)
from inlay.parquet.footer_cache import FooterCache, read_footers
from inlay.storage import FileStat, LocalStore, Location, discard_tree

__all__ = ["LocalJournal"]


_SYNCED_AT_ONCE = 8
_MAX_NAME = 255  # bytes of a file name
# Network filesystems that cannot lock a directory fail with one of these errors.
_NO_DIRECTORY_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})

log = logging.getLogger("inlay.commit")
_COPIES_HINT = (
    'Call inlay.keep("DATASET", versions=10, copies=True), or run `inlay keep DATASET --versions 10 --copies`: inlay'
    " then keeps a copy of each data file, so the dataset takes more than twice the space."
)


class LocalJournal:
    """One process's access to the sidecar of a dataset on a local disk."""

    def __init__(self, location: Location, sidecar: str | None = None) -> None:
        self.location = location
        self._store = LocalStore()
        self._lock: int | None = None
        self._created: list[str] = []  # directories that this writer created to lock the dataset
        self._created_sidecar = False
        self.sidecar = sidecar or sidecar_path(location)

    @property
    def history(self) -> History | None:
        """The versions of the dataset. A sidecar inside it has none, because other readers would read the links."""
        return None if self._is_inside else History(self.location, self.sidecar)

    @property
    def views(self) -> PublishedViews:
        return PublishedViews(self.location, self.sidecar)

    def require_history(self) -> History:
        history = self._possible_history()
        if stat_or_none(self._refusal) is not None and not history.numbers():
            raise self._no_links_error(self._store.read_bytes(self._refusal).decode())
        return history

    def _possible_history(self) -> History:
        if self.history is None:
            raise no_history_error(
                self.location,
                "its sidecar is inside the dataset, where other programs read every file",
                "Move the dataset to a directory whose parent directory you can write to.",
            )
        return self.history

    def write_retention(self, retention: Retention) -> None:
        """Set the limits of the history, and whether it may copy files. The caller must hold the lock."""
        try:
            self._possible_history().write_retention(retention)
        except OSError as error:
            if not is_link_refused(error):
                raise
            raise self._no_links_error(str(error)) from error
        self._store.remove(self._refusal)

    def end_history(self) -> tuple[list[int], int]:
        """Delete all versions and the limits. Return the versions, and the freed bytes."""
        return self.require_history().end()

    def record_external(self, files: Sequence[FileStat]) -> tuple[Record | None, KeptFiles]:
        """Record the changes of other programs as a version, if there are any. Return the newest version."""
        try:
            return self._possible_history().record_external(files, lambda: self.count_rows(files))
        except OSError as error:
            if not is_link_refused(error):
                raise
            raise self._no_links_error(str(error)) from error

    def _no_links_error(self, reason: str) -> HistoryUnavailableError:
        return no_history_error(self.location, f"inlay cannot create hard links: {reason}", _COPIES_HINT)

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
            share_access(self.location.path, directory)

    def _in_sidecar(self, name: str) -> str:
        return os.path.join(self.sidecar, name)

    @property
    def _journal(self) -> str:
        return self._in_sidecar("commit.json")

    @property
    def _refusal(self) -> str:
        """The path of a note about why the last commit made no version."""
        return self._in_sidecar("no_history")

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
        if self._may_be_pending():
            return
        if self.history is not None:
            self.history.remove_unused()
        names = os.listdir(self.sidecar)
        if all(name.startswith(("lock", "footers.db", "no_history")) for name in names):
            for name in names:
                self._store.remove(self._in_sidecar(name))
            self._store.remove_empty_directory(self.sidecar)  # A reader may have created a staging directory meanwhile.

    # ------------------------------------------------------------------------------------------------- snapshots
    @contextlib.contextmanager
    def pin(self, files: Sequence[FileStat], source: Location | None = None) -> Iterator[Location | None]:
        """Yield a location of hard links that keep the content of files readable, or None if links are impossible.

        A commit replaces directory entries, not content, so links need no lock. `source` opens the files: the dataset
        by default, or a version of it.
        """
        with contextlib.ExitStack() as stack:
            pinned = None
            # Only a writer creates a sidecar inside the dataset, because all writers then use it.
            if not self._is_inside or self.has_sidecar():
                with contextlib.suppress(OSError):
                    pinned = stack.enter_context(self._link_files(files, source or self.location))
            yield pinned

    def lease_links(self, files: Sequence[FileStat], seconds: float, source: Location | None = None) -> Location | None:
        """Return hard links that every process can read for some time, or None if links are impossible."""
        with self.pin(files, source) as pinned:
            if pinned is None or pinned.links is None:
                return None
            leased = f"{pinned.links}_leased"
            try:
                lease(pinned.links, seconds)
                os.rename(pinned.links, leased)  # The end of the block deletes only the old name.
            except OSError:
                return None
            return replace(pinned, links=leased)

    @contextlib.contextmanager
    def _link_files(self, files: Sequence[FileStat], source: Location) -> Iterator[Location]:
        path, descriptor = create_claimed_staging(self._store, self.sidecar)
        try:
            pinned = replace(self.location, links=path)
            for directory in {os.path.dirname(pinned.full(file.path)) for file in files}:
                os.makedirs(directory, exist_ok=True)
            with open_directory(source.root) as root:
                for file in files:
                    name = source.full(file.path)[len(source.root) + 1 :]
                    keep_file(name, pinned.full(file.path), root=root)
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
        share_access(self.location.path, self._in_sidecar(name))
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
    def prepare(self, files: Sequence[StagedFile]) -> list[Put]:
        """Copy the access rights of replaced files to the staged files, and sync these to disk.

        The paths of the staged files are relative to the sidecar.
        """
        if len(files) < _SYNCED_AT_ONCE:
            return [self._prepare(file) for file in files]
        with ThreadPoolExecutor(_SYNCED_AT_ONCE, "inlay-sync") as pool:
            return list(pool.map(self._prepare, files))

    def _prepare(self, file: StagedFile) -> Put:
        path = self.staged_path(file.stage)
        copy_access(self.location.full(file.path), path)
        content = file.content or read_content(path)
        self._store.sync_file(path)
        return Put(file.stage, file.path, *content)

    def commit(self, record: Record, files: Sequence[FileStat], *, is_new: bool = False) -> Record:
        """Put staged files in place and remove files. Return the complete record of the commit.

        `files` lists the dataset before the commit. `is_new` means that the dataset has had no data files, and so
        knows no tokens.
        """
        if is_new:
            self._tokens.forget_all()
        if record.token is not None or (is_new and self.has_early_tokens()):
            known = next(iter(self._tokens.ledgers()), None)
            record = replace(record, ledger=choose_ledger(known, has_files=bool(record.puts) or not is_new))
        try:
            record = self._begin_version(record, files)
            record = self._link_previous(record)
            record = replace(record, is_marked=not self._is_inside, directories=self._missing_directories(record))
            self._write_draft(record)
            if record.ledger is not None:
                self._tokens.prepare(record.ledger)
            for directory in self._staging_directories(record):
                self._store.sync_directory(directory)
            # After a crash, the draft tells which directories and links to remove.
            self._store.sync_directory(self.sidecar)
            self._sync_parent(self.sidecar)
            self._make_target_directories(record)
            if self.history is not None:
                self.history.link_staged(record)
            self._publish(record)
        except CommitStateUnknownError:
            raise
        except BaseException:
            self._discard_draft(record)
            raise
        self._created.clear()
        self._created_sidecar = False
        self._complete(record)
        return record

    def _begin_version(self, record: Record, files: Sequence[FileStat]) -> Record:
        """Make the commit a version, unless hard links are impossible."""
        if self.history is None or not record.paths:
            return record
        try:
            record = self.history.begin(record, files, lambda: self.count_rows(files))
            if stat_or_none(self._refusal) is not None:
                self._store.remove(self._refusal)
        except OSError as error:
            if not is_link_refused(error):
                raise
            self._note_refusal(str(error))
        return record

    def _note_refusal(self, reason: str) -> None:
        """Log once per dataset that it has no history, and let later calls know why."""
        if stat_or_none(self._refusal) is None:
            log.warning(
                "inlay keeps no history of %r: it cannot create hard links: %s. %s",
                self.location.uri, reason, _COPIES_HINT,
            )  # fmt: skip
        with contextlib.suppress(OSError), open(self._refusal, "wb", buffering=0) as note:
            note.write(reason.encode())

    def count_rows(self, files: Sequence[FileStat]) -> int | None:
        """Count the rows of data files, or return None if a file cannot be read."""
        cache = None if self.cache_path is None else FooterCache(self.cache_path)
        footers = read_footers(self.location, files, [], cache)
        return None if footers.errors else footers.total_rows

    def _missing_directories(self, record: Record) -> list[str]:
        """List the directories that the commit creates, relative to the dataset, outermost first."""
        targets = self._target_directories(record)
        if record.ledger is not None:
            targets.add(self.location.full(witness_name(record.ledger)))
        above = {path for target in targets for path in self._up_to_root(target)}
        missing = sorted(path for path in above if stat_or_none(path) is None)
        return [os.path.relpath(path, self.location.path) for path in missing]

    def _make_target_directories(self, record: Record) -> None:
        """Try before the commit point what could fail after it: create target directories and check access."""
        for created in map(self.location.full, record.directories):
            self._store.make_durable_directories(created)
            share_access(os.path.dirname(created), created)
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
        self._tokens.remove_unused(record)
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
        with open_directory(self.location.path) as root:
            for number, name in enumerate(existing):
                link = f"{staging}/{number}.previous"
                try:
                    keep_file(name, self._in_sidecar(link), root=root)
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
        write_durably(self._draft(record), record.dump())

    def _discard_draft(self, record: Record) -> None:
        """Remove what a failed commit prepared, unless the failure came after the commit point."""
        if not self._may_be_pending():
            self._discard_previous(record)
            if self.history is not None:
                self.history.discard(record)
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
        for checksum in (_hadoop_checksum(self.location.full(name)) for name in record.paths):
            if len(os.fsencode(os.path.basename(checksum))) <= _MAX_NAME:
                self._store.unlink(checksum)
        # Readers that do not use inlay see a mixture until these two loops end. The loops do nothing else, and they
        # keep the GIL. New files come first: a reader then misses a file and fails, instead of missing rows.
        for put in record.puts:
            self._put(put, self.location.full(put.target))
        for name in record.removes:
            self._store.unlink(self.location.full(name))
        # Syncing targets before sources ensures that a power cut cannot lose a moved file at both paths.
        self._sync(self._target_directories(record))
        names = self._staging_directories(record) | ({self.sidecar} if record.ledger is not None else set())
        self._sync(names)
        self._tokens.add(record)
        history = self.history
        if history is not None:
            history.complete(record, self._journal, lambda: expired_versions(history, record))
        os.unlink(self._journal)
        self._store.sync_directory(self.sidecar)
        self._store.remove_empty_directory(self._marker)
        self._discard_previous(record)
        if history is not None:
            self.views.update(history)
            with contextlib.suppress(OSError, InlayError):  # `finish_drops` repeats it.
                history.delete_dropped()

    def _make_directories_again(self, record: Record) -> None:
        """Create the target directories of a crashed writer if a power cut lost them, and make them durable."""
        for put in record.puts:
            self._store.make_durable_directories(os.path.dirname(self.location.full(put.target)))
        if record.ledger is not None:
            self._tokens.prepare(record.ledger)
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

    # ---------------------------------------------------------------------------------------------------- tokens
    @property
    def _tokens(self) -> LocalTokens:
        return LocalTokens(self.location, self.sidecar)

    def has_early_tokens(self) -> bool:
        """Return whether all tokens are of merges that found no files in the dataset."""
        return self._tokens.are_early()

    def find_outcome(self, token: str) -> Mapping[str, Any] | None:
        """Return the outcome of the transaction that was committed with this token, or None."""
        others = [LocalTokens(self.location, outer) for outer in self._outer_sidecars()]
        found = [outcome for each in [*others, self._tokens] if (outcome := each.find(token)) is not None]
        if not found and self._is_inside:
            self._tokens.require_visible(ledger for each in others for ledger in each.ledgers())
        return found[0] if found else None

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
        journals = [LocalJournal(self.location, outer) for outer in self._outer_sidecars()]
        for journal in (each for each in [*journals, self] if each.has_sidecar()):
            journal.recover_sidecar(report, sweep=sweep, undo=undo)
        self._store.remove_empty_directory(self._marker)  # A crashed writer may have left it without a commit.
        return report

    def _outer_sidecars(self) -> list[str]:
        """Return the sidecar next to the dataset if this journal uses the one inside and can see the other."""
        outer = outer_sidecar_path(self.location) if self._is_inside else None
        return [] if outer is None else [outer]

    def recover_sidecar(self, report: RecoveryReport, *, sweep: bool, undo: bool) -> None:
        if stat_or_none(self._journal) is not None:
            record = Record.load(self._store.read_bytes(self._journal), self._journal)
            report.files = record.display_files(self.location)
            if self._is_foreign(record, undo=undo):
                if self.history is not None:
                    self.history.discard(record)
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
            self._tokens.sweep()
            if self.history is not None and stat_or_none(self._journal) is None:
                self.views.update(self.history)  # A crash may have interrupted the update after a commit.

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
                if (
                    not _matches(self.staged_path(put.staged), put)
                    and not _matches(self.location.full(put.target), put)
                    and not (self.history and self.history.restage(put))
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
        self._tokens.remove(record)
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
                puts.append(Put(link, name, *read_content(self._in_sidecar(link))))
        links = [(put.target, put.link, put.size) for put in record.puts if put.link]
        return Record(
            uuid.uuid4().hex, puts, removes, is_marked=record.is_marked, replaced=links, undone=record.version
        )

    def _sweep(self) -> list[str]:
        swept = []
        for name in sorted(os.listdir(self.sidecar)):
            if name.startswith(STAGING_PREFIX):
                directory = self._in_sidecar(name)
                if not is_claimed(directory) and not is_leased(directory):  # Dry runs hold no lock, so they claim it.
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
            record = Record.load(self._store.read_bytes(path), path)
            if self.history is not None:
                self.history.discard(record)
            self._remove_directories(record)
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
    return status is not None and status.st_size == put.size and read_content(path) == (put.size, put.crc32)
