"""The journal of a dataset on an object store: a log of commit records without a lock.

    <parent>/.<dataset>.txn/   log/<n>.json   log/<n>.done   .staging_<uuid>/<n>.stage

The commit point is the conditional create of the next log entry. A writer that read the dataset at entry n commits as
entry n + 1. If another writer has created that entry, the commit fails and must be retried. Rewritten files get new
names, so completing a commit twice, or late, never overwrites newer data.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from inlay.commit.sidecar import (
    STAGING_PREFIX,
    Put,
    Record,
    RecoveryReport,
    commit_pending_error,
    commit_unknown_error,
    missing_file_error,
    new_staging_name,
    recovery_error,
    sidecar_path,
)
from inlay.errors import (
    ConcurrentModificationError,
    CorruptJournalError,
    DatasetIOError,
    InlayError,
    InvalidArgumentError,
)
from inlay.storage import FileStat, Location, ObjectStore

__all__ = ["ObjectJournal"]


_KEPT_ENTRIES = 10
# Staging directories on an object store cannot be locked, so only their age tells that their writer has crashed.
_ABANDONED_SECONDS = 24 * 3600
# A store answers "conflict" while another request creates the entry, which may still fail.
_CONFLICT_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
_OWN_NAME = re.compile(r"(-inlay|/part)-[0-9a-f]{12}[^/]*$")  # of the files that inlay writes


class ObjectJournal:
    """One process's access to the log of a dataset on an object store."""

    cache_path = None

    def __init__(self, location: Location) -> None:
        self.location = location
        self._store = cast(ObjectStore, location.store)
        self.sidecar = sidecar_path(location)
        self._base = 0
        self._writable = True
        self._keep_staged = False  # True while a commit may refer to the staged files
        self._sizes: dict[str, int] = {}  # of the staged objects of the next commit

    def acquire(self, timeout: float) -> None:  # noqa: ARG002  (the log has no lock to wait for)
        try:
            self._store.require_conditional_create(self.sidecar)
        except PermissionError:
            self._writable = False
            raise

    def release(self) -> None:
        pass

    @contextlib.contextmanager
    def pin(self, files: Sequence[FileStat]) -> Iterator[None]:  # noqa: ARG002  (an object has one name)
        yield None

    def is_writable(self) -> bool:
        """Return False after the store has refused a write. No earlier check can tell."""
        return self._writable

    # --------------------------------------------------------------------------------------------------- staging
    def create_staging(self) -> str:
        return new_staging_name()

    def staged_path(self, name: str) -> str:
        return f"{self.sidecar}/{name}"

    def discard_staging(self, staging: str) -> None:
        """Delete a staging directory, unless a commit may need its files."""
        if not self._keep_staged:
            with contextlib.suppress(Exception):
                self._store.remove_tree(self.staged_path(staging))

    # ------------------------------------------------------------------------------------------------------- log
    def _entry(self, number: int, kind: str = "json") -> str:
        return f"{self.sidecar}/log/{number:020d}.{kind}"

    def _numbers(self) -> tuple[set[int], set[int]]:
        """Return the numbers of all log entries, and those of the completed entries."""
        return _parse_numbers(file.path for file in self._store.walk(f"{self.sidecar}/log", lambda _: True))

    def _read(self, number: int) -> Record | None:
        name = self._entry(number)
        try:
            return Record.load(self._store.read_bytes(name), name)
        except FileNotFoundError:
            return None

    # ---------------------------------------------------------------------------------------------------- commit
    def prepare(self, staged: str, target: str) -> Put:
        if staged not in self._sizes:
            self._sizes = self._list_sizes(staged.rpartition("/")[0])
        if staged not in self._sizes:
            raise DatasetIOError(f"The staged object {self.staged_path(staged)!r} does not exist.", operation="commit")
        return Put(staged, target, self._sizes[staged])

    def _list_sizes(self, staging: str) -> dict[str, int]:
        """Return the sizes of all staged objects with one request."""
        files = self._store.walk(self.staged_path(staging), lambda _: True)
        return {f"{staging}/{file.path}": file.size for file in files}

    def commit(self, record: Record) -> None:
        number = self._base + 1
        self._keep_staged = True
        try:
            self._create_entry(number, record)
        except InlayError:
            raise
        except Exception as error:  # noqa: BLE001  (clients raise any type; only the log shows the outcome)
            self._settle(number, record, error)
        self._require_current(number)
        self._base = number
        self._complete(number, record)
        self._keep_staged = False
        self._sizes = {}

    def _create_entry(self, number: int, record: Record) -> None:
        """Create the log entry of a commit. Retry while the store reports a conflict but has no entry."""
        for pause in _CONFLICT_PAUSES:
            try:
                self._store.create(self._entry(number), record.dump())
            except FileExistsError:
                if self._is_own_entry(number, record):
                    return
                time.sleep(pause)
            else:
                return
        raise FileExistsError("the store reports a conflict")

    def _is_own_entry(self, number: int, record: Record) -> bool:
        """Return whether the log entry is this commit's own, or False if there is none.

        A client that retries a create whose response was lost gets "exists" although its own create succeeded.
        """
        found = self._read_or_unknown(number)
        if found is not None and found.id != record.id:
            self._keep_staged = False
            raise ConcurrentModificationError(
                f"Another writer committed to {self.location.uri!r} first. This change was not written.",
                hint="Retry: the operation then starts from the new version of the dataset.",
            )
        return found is not None

    def _settle(self, number: int, record: Record, error: Exception) -> None:
        """Decide a commit whose response was lost by creating its log entry as aborted.

        If that succeeds, the commit did not happen. If the entry exists, its content is the outcome.
        """
        try:
            self._store.create(self._entry(number), Record(id=f"abort-{record.id}", aborted=True).dump())
        except FileExistsError:
            found = self._read_or_unknown(number)
            if found is None:
                raise commit_unknown_error(self.location, error) from error
            if found.id == f"abort-{record.id}":
                raise self._not_committed(error) from error
            self._is_own_entry(number, record)
        except Exception as again:  # noqa: BLE001
            raise commit_unknown_error(self.location, again) from error
        else:
            raise self._not_committed(error) from error

    def _read_or_unknown(self, number: int) -> Record | None:
        try:
            return self._read(number)
        except CorruptJournalError:
            raise
        except Exception as error:
            raise commit_unknown_error(self.location, error) from error

    def _require_current(self, number: int) -> None:
        """Detect a paused writer that recreated a log entry which other writers have trimmed."""
        try:
            entries, done = self._numbers()
        except Exception as error:
            raise commit_unknown_error(self.location, error) from error
        trimmed = max(entries, default=0) > self._base + _KEPT_ENTRIES and self._base not in entries
        if trimmed and number not in done:
            overtaken = TimeoutError(f"more than {_KEPT_ENTRIES} other commits happened while this writer was paused")
            raise commit_unknown_error(self.location, overtaken)

    def _not_committed(self, error: Exception) -> DatasetIOError:
        self._keep_staged = False
        return DatasetIOError(
            f"The store rejected the commit to {self.location.uri!r}: {error}. Nothing changed.",
            operation="commit",
        )

    def _complete(self, number: int, record: Record) -> None:
        try:
            self.roll_forward(number, record)
        except CorruptJournalError:
            raise
        except Exception as error:
            raise commit_pending_error(self.location, record, error) from error

    def roll_forward(self, number: int, record: Record) -> None:
        for put in record.puts:
            if not self._put(put):
                if self._is_done(number):  # Another process has completed this commit.
                    self._undo_if_late(number, record, self._numbers()[0])
                    return
                self._require_placed(put, number)
        self._store.remove_all([self.location.full(name) for name in record.removes])
        # Staged objects are deleted before the entry is marked as done. So a slow process that completes the same
        # commit fails to copy, and no writer commits on top of this entry earlier.
        self._store.remove_all([self.staged_path(put.staged) for put in record.puts])
        self._mark_done(number)
        entries, marks = self._numbers()
        self._undo_if_late(number, record, entries)
        self._trim(number, entries | marks)

    def _put(self, put: Put) -> bool:
        """Copy a staged file into place. Returns False if it is no longer staged."""
        try:
            self._store.move(self.staged_path(put.staged), self.location.full(put.target), put.size)
        except FileNotFoundError:
            return False
        return True

    def _require_placed(self, put: Put, number: int) -> None:
        placed = self._store.stat(self.location.full(put.target))
        if placed is None or placed.size != put.size:
            raise missing_file_error(self.location, put, self._entry(number))

    def _is_done(self, number: int) -> bool:
        entries, done = self._numbers()
        return number in done or number < max(entries, default=0)

    def _mark_done(self, number: int) -> None:
        with contextlib.suppress(FileExistsError):
            self._store.create(self._entry(number, "done"), b"")

    def _undo_if_late(self, number: int, record: Record, entries: set[int]) -> None:
        """Remove the files of this commit that later commits have already removed."""
        targets = {put.target for put in record.puts}
        for later in sorted(entry for entry in entries if entry > number):
            entry = self._read(later)
            for name in targets & set(entry.removes if entry else ()):
                self._store.remove(self.location.full(name))

    def _trim(self, number: int, entries: set[int]) -> None:
        """Delete old log entries, oldest first, each after its done mark. `_require_current` needs this order."""
        with contextlib.suppress(Exception):
            for old in sorted(entry for entry in entries if entry < number - _KEPT_ENTRIES):
                for kind in ("done", "json"):
                    self._store.remove(self._entry(old, kind))

    # -------------------------------------------------------------------------------------------------- recovery
    def has_pending_commit(self) -> bool:
        return not _head(*self._numbers())[1]

    def recover(self, *, sweep: bool, undo: bool = False) -> RecoveryReport:
        if undo:
            raise InvalidArgumentError(
                f"A commit to {self.location.uri!r} cannot be undone, because an object store has no hard links.",
                hint="Run `inlay recover DATASET` without --undo.",
            )
        report = RecoveryReport()
        files = self._store.walk(self.sidecar, lambda _: True)
        logged = (file.path.removeprefix("log/") for file in files if file.path.startswith("log/"))
        self._base, done = _head(*_parse_numbers(logged))
        record = None if done else self._read(self._base)
        if record is not None:
            self._finish(self._base, record)
            report.completed = None if record.aborted else record.id
            report.files = record.display_files(self.location)
        if sweep:
            report.swept = self._sweep(files)
        return report

    def _finish(self, number: int, record: Record) -> None:
        """Complete another writer's commit."""
        try:
            self.roll_forward(number, record)
        except CorruptJournalError:
            raise
        except Exception as error:
            raise recovery_error(self.location, record, error) from error

    def _sweep(self, files: Sequence[FileStat]) -> list[str]:
        """Delete the staged objects and abort the multipart uploads of crashed writers."""
        uploads = self._store.uploads(self.sidecar)
        touched = [(file.path, file.mtime_ns) for file in files]
        touched += [(upload.path[len(self.sidecar) + 1 :], upload.started_ns) for upload in uploads]
        newest: dict[str, int] = {}
        for path, nanoseconds in touched:
            top = path.split("/")[0]
            if top.startswith((STAGING_PREFIX, ".probe_")):
                newest[top] = max(newest.get(top, 0), nanoseconds)
        limit = (time.time() - _ABANDONED_SECONDS) * 1e9
        abandoned = sorted(name for name, nanoseconds in newest.items() if 0 < nanoseconds < limit)  # 0 means unknown.
        roots = tuple(f"{self.staged_path(name)}/" for name in abandoned)
        copies = [
            upload
            for upload in self._store.uploads(self.location.path)
            if upload.started_ns < limit and _OWN_NAME.search(upload.path)
        ]
        for upload in [*(upload for upload in uploads if upload.path.startswith(roots)), *copies]:
            self._store.abort(upload)
        for name in abandoned:
            self.discard_staging(name)
        return [*abandoned, *(self.location.display(copy.path[len(self.location.path) + 1 :]) for copy in copies)]


def _parse_numbers(names: Iterable[str]) -> tuple[set[int], set[int]]:
    """Return the numbers of all log entries, and those of the completed entries, from the names in the log."""
    found = [name.split(".") for name in names]
    entries, done = ({int(number) for number, kind in found if kind == wanted} for wanted in ("json", "done"))
    return entries, done


def _head(entries: set[int], done: set[int]) -> tuple[int, bool]:
    """Return the number of the newest log entry, and whether it is completed."""
    newest = max(entries, default=0)
    return newest, newest in done or newest == 0
