"""The journal of a dataset on an object store: a log of commit records without a lock.

    <parent>/.<dataset>.txn/        log/<n>.json   log/<n>.done   log/<n>.tokens_<ledger>   log/0.versions_<id>
                                    .staging_<uuid>/<n>.stage
    <parent>/.<dataset>.tokens/     <ledger>/<sha256 of the token>
    <parent>/.<dataset>.versions/   <id>/, see `commit/object_history.py`

The commit point is the conditional create of the next log entry. A writer that read the dataset at entry n commits as
entry n + 1. If another writer has created that entry, the commit fails and must be retried. Rewritten files get new
names, so completing a commit twice, or late, never overwrites newer data.

Tokens of transactions are in the ledger of the highest number in the log. A commit to a dataset without data files
begins a new ledger, so that a dataset that was deleted and created again knows no token. It continues an early ledger,
whose tokens are of merges that found no files. An entry is marked as done
after its token is in the ledger, and no writer commits before that: of two writers with one token, the second finds it.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from inlay.commit.kept import KeptFiles
from inlay.commit.object_history import ObjectHistory
from inlay.commit.retention import Retention
from inlay.commit.sidecar import (
    ABANDONED_SECONDS,
    STAGING_PREFIX,
    Put,
    Record,
    RecoveryReport,
    StagedFile,
    commit_pending_error,
    commit_unknown_error,
    inner_sidecar_path,
    missing_file_error,
    new_staging_name,
    no_history_error,
    recovery_error,
    sidecar_path,
)
from inlay.commit.tokens import (
    choose_ledger,
    dump_entry,
    entry_name,
    expired_entries,
    is_early,
    is_trim_due,
    ledger_id,
    load_entry,
)
from inlay.errors import (
    CommitPendingError,
    CommitStateUnknownError,
    ConcurrentModificationError,
    CorruptJournalError,
    DatasetIOError,
    InlayError,
    InvalidArgumentError,
)
from inlay.storage import FileStat, Location, ObjectStore

__all__ = ["ObjectJournal"]


_KEPT_ENTRIES = 10
_LEDGER_KIND, _HISTORY_KIND, _ENDED_KIND = "tokens_", "versions_", "ended_"
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
        self._ledger: str | None = None  # known after `recover`
        self._log: _Log | None = None  # as it was listed last
        self._history: ObjectHistory | None = None
        self._writable = True
        self._keep_staged = False  # True while a commit may refer to the staged files

    # ----------------------------------------------------------------------------------------------------- history
    @property
    def history(self) -> ObjectHistory | None:
        """The versions of the dataset, if a user has begun a history, as of the last listing of the log."""
        id_ = (self._log or self._list()).history
        if id_ is None:
            return None
        if self._history is None or self._history.id != id_:
            marker = self._entry(0, f"{_HISTORY_KIND}{id_}")
            self._history = ObjectHistory(self.location, self._store, id_, f"{self._histories}/{id_}", marker)
        return self._history

    @property
    def _histories(self) -> str:
        return f"{self.sidecar.removesuffix('.txn')}.versions"

    def require_history(self) -> ObjectHistory:
        history = self.history
        if history is None:
            raise no_history_error(
                self.location,
                "on an object store, versions cost requests, so their history is off",
                'Call inlay.keep("DATASET", versions=10), or run `inlay keep DATASET --versions 10`: inlay then copies'
                " each object before a commit replaces it.",
            )
        return history

    def write_retention(self, retention: Retention) -> None:
        """Set the limits of the history. Without one, begin it."""
        if self.sidecar == inner_sidecar_path(self.location):
            raise no_history_error(
                self.location,
                "it is a whole bucket, where other programs read every object",
                "Move the dataset to a prefix in the bucket.",
            )
        history = self.history
        id_ = uuid.uuid4().hex if history is None else history.id
        self._store.write_bytes(self._entry(0, f"{_HISTORY_KIND}{id_}"), retention.dump().encode())
        self._list()

    def end_history(self) -> tuple[list[int], int]:
        """Delete all versions and the limits. Return the versions, and the freed bytes."""
        history = self.require_history()
        numbers, freed = history.numbers(), history.size_of_copies()
        for id_ in self._list().histories:
            self._create_surely(self._entry(0, f"{_ENDED_KIND}{id_}"), b"")
            self._store.remove(self._entry(0, f"{_HISTORY_KIND}{id_}"))
        self._delete_ended(self._list())
        return numbers, freed

    def _delete_ended(self, log: _Log) -> None:
        """Delete histories that have ended. If the process crashes, the next writer continues."""
        for id_ in log.ended:
            self._store.remove_tree(f"{self._histories}/{id_}")
            self._store.remove(self._entry(0, f"{_ENDED_KIND}{id_}"))

    def record_external(self, files: Sequence[FileStat]) -> tuple[Record | None, KeptFiles]:
        """Record the changes of other programs as a version, if there are any. Return the newest version."""
        history = self.require_history()
        self._commit_external(history, files)
        head = history.head()
        return head, {} if head is None else history.files(head)

    def _commit_external(self, history: ObjectHistory, files: Sequence[FileStat]) -> None:
        record = history.find_external(files)
        try:
            if record is not None:
                self._commit(record)
        except (CommitPendingError, CommitStateUnknownError) as error:
            self._keep_staged = False  # No file of the caller's change is in this commit.
            raise DatasetIOError(
                f"The history of {self.location.uri!r} cannot record what other programs changed:"
                f" {error.__cause__ or error}. Nothing changed.",
                operation="commit",
            ) from error

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

    def lease_links(self, files: Sequence[FileStat], seconds: float, source: Location | None = None) -> None:
        pass

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

    def _list(self) -> _Log:
        self._log = _parse_names(file.path for file in self._store.walk(f"{self.sidecar}/log", lambda _: True))
        return self._log

    def _read(self, number: int) -> Record | None:
        name = self._entry(number)
        try:
            return Record.load(self._store.read_bytes(name), name)
        except FileNotFoundError:
            return None

    # ---------------------------------------------------------------------------------------------------- commit
    def prepare(self, files: Sequence[StagedFile]) -> list[Put]:
        """Find the sizes of staged objects, whose paths are relative to the sidecar."""
        sizes = {
            f"{staging}/{found.path}": found.size
            for staging in {posixpath.dirname(file.stage) for file in files}
            for found in self._store.walk(self.staged_path(staging), lambda _: True)
        }
        if missing := [file.stage for file in files if file.stage not in sizes]:
            raise DatasetIOError(
                f"The staged object {self.staged_path(missing[0])!r} does not exist.", operation="commit"
            )
        return [Put(file.stage, file.path, sizes[file.stage]) for file in files]

    def commit(self, record: Record, files: Sequence[FileStat], *, is_new: bool = False) -> Record:
        """Commit a change. `is_new` means that the dataset has had no data files, and so knows no tokens."""
        history = self.history
        if history is not None and record.paths:
            self._commit_external(history, files)
            record = history.begin(record, files)
        return self._commit(record, is_new=is_new)

    def _commit(self, record: Record, *, is_new: bool = False) -> Record:
        if record.token is not None or (is_new and self._ledger is not None):
            known = None if is_new and not self.has_early_tokens() else self._ledger
            record = replace(record, ledger=choose_ledger(known, has_files=bool(record.puts) or not is_new))
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
        return record

    def _create_entry(self, number: int, record: Record) -> None:
        self._create(self._entry(number), record.dump(), lambda: self._is_own_entry(number, record))

    def _create(self, path: str, data: bytes, exists: Callable[[], bool]) -> None:
        """Create an object, unless it exists. Retry while the store reports a conflict but has no object."""
        for pause in _CONFLICT_PAUSES:
            try:
                self._store.create(path, data)
            except FileExistsError:
                if exists():
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
            log = self._list()
        except Exception as error:
            raise commit_unknown_error(self.location, error) from error
        trimmed = max(log.entries, default=0) > self._base + _KEPT_ENTRIES and self._base not in log.entries
        if trimmed and number not in log.done:
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

    def roll_forward(self, number: int, record: Record, *, resumed: bool = False) -> None:
        history = self._history_of(record)
        expired = [] if history is None else history.expired(record)
        puts = [] if record.change.is_external else record.puts
        # Copying an object again can change its ETag, which its version records.
        placed = history.placed_tags(puts) if history is not None and resumed else {}
        missing = [put for put in puts if put.target not in placed]
        staged = [(self.staged_path(put.staged), self.location.full(put.target), put.size) for put in missing]
        for put, was_staged in zip(missing, self._store.copy_all(staged), strict=True):
            if not was_staged:
                if self._is_done(number):  # Another process has completed this commit.
                    self._undo_if_late(number, record, self._list().entries)
                    return
                self._require_placed(put, number)
        if history is not None:  # No version is listed without its objects, so it changes before they are deleted.
            history.keep_replaced(record, expired)
            history.complete(record, expired)
        if not record.change.is_external:
            self._store.remove_all([self.location.full(name) for name in record.removes])
        # Staged objects are deleted before the entry is marked as done. So a slow process that completes the same
        # commit fails to copy, and no writer commits on top of this entry earlier.
        self._store.remove_all([self.staged_path(put.staged) for put in puts])
        self._add_token(number, record)
        self._mark_done(number)
        log = self._list()
        self._undo_if_late(number, record, log.entries)
        self._trim(number, log.entries | log.done)
        self._trim_tokens(record, log)

    def _history_of(self, record: Record) -> ObjectHistory | None:
        """Return the history that has the version of a commit, unless a user has ended it meanwhile."""
        history = self.history if record.history is not None else None
        return history if history is not None and history.id == record.history else None

    def _require_placed(self, put: Put, number: int) -> None:
        placed = self._store.stat(self.location.full(put.target))
        if placed is None or placed.size != put.size:
            raise missing_file_error(self.location, put, self._entry(number))

    def _is_done(self, number: int) -> bool:
        log = self._list()
        return number in log.done or number < max(log.entries, default=0)

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

    # ---------------------------------------------------------------------------------------------------- tokens
    def has_early_tokens(self) -> bool:
        """Return whether all tokens are of merges that found no files in the dataset."""
        return is_early((self._log or self._list()).ledger or "")

    def find_outcome(self, token: str) -> Mapping[str, Any] | None:
        """Return the outcome of the transaction that was committed with this token, or None."""
        ledger = self._list().ledger
        if ledger is None:
            return None
        path = self._token_path(ledger, token)
        try:
            return load_entry(self._store.read_bytes(path), token, path)
        except FileNotFoundError:
            return None

    def _ledger_path(self, ledger: str) -> str:
        # Not in the sidecar, because every writer lists all objects in it.
        return f"{self.sidecar.removesuffix('.txn')}.tokens/{ledger_id(ledger)}"

    def _token_path(self, ledger: str, token: str) -> str:
        return f"{self._ledger_path(ledger)}/{entry_name(token)}"

    def _ledger_mark(self, number: int, ledger: str) -> str:
        return self._entry(number, f"{_LEDGER_KIND}{ledger}")

    def _add_token(self, number: int, record: Record) -> None:
        if record.ledger is None:
            return
        if record.ledger != self._ledger:
            self._create_surely(self._ledger_mark(number, record.ledger), b"")
            self._ledger = record.ledger
        if record.token is not None:
            self._create_surely(self._token_path(record.ledger, record.token), dump_entry(record))

    def _create_surely(self, path: str, data: bytes) -> None:
        self._create(path, data, lambda: self._store.stat(path) is not None)

    def _trim_tokens(self, record: Record, log: _Log) -> None:
        """Delete ledgers of datasets that were deleted, and from time to time the expired tokens of this dataset."""
        with contextlib.suppress(Exception):
            for number, ledger in sorted(log.ledgers.items())[:-1]:
                if ledger_id(ledger) != ledger_id(log.ledger or ""):
                    self._store.remove_tree(self._ledger_path(ledger))
                self._store.remove(self._ledger_mark(number, ledger))
            if record.ledger is not None and record.token is not None and is_trim_due(entry_name(record.token)):
                root = self._ledger_path(record.ledger)
                entries = [(f"{root}/{file.path}", file.mtime_ns) for file in self._store.walk(root, lambda _: True)]
                self._store.remove_all(expired_entries(entries))

    # -------------------------------------------------------------------------------------------------- recovery
    def has_pending_commit(self) -> bool:
        self._history = None  # Another process may have changed it.
        return not self._list().head[1]

    def recover(self, *, sweep: bool, undo: bool = False) -> RecoveryReport:
        if undo:
            raise InvalidArgumentError(
                f"A commit to {self.location.uri!r} cannot be undone, because an object store has no hard links.",
                hint="Run `inlay recover DATASET` without --undo.",
            )
        report = RecoveryReport()
        files = self._store.walk(self.sidecar, lambda _: True)
        logged = (file.path.removeprefix("log/") for file in files if file.path.startswith("log/"))
        self._log = log = _parse_names(logged)
        self._history = None  # Another process may have changed it.
        self._ledger = log.ledger
        self._base, done = log.head
        record = None if done else self._read(self._base)
        if record is not None:
            self._finish(self._base, record)
            report.completed = None if record.aborted else record.id
            report.files = record.display_files(self.location)
        if sweep:
            report.swept = self._sweep(files)
            self._delete_ended(log)
        return report

    def _finish(self, number: int, record: Record) -> None:
        """Complete another writer's commit."""
        try:
            self.roll_forward(number, record, resumed=True)
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
        limit = (time.time() - ABANDONED_SECONDS) * 1e9
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


class _Log(NamedTuple):
    """The numbers of all log entries and of the completed ones, and the ledgers of tokens by number."""

    entries: set[int]
    done: set[int]
    ledgers: dict[int, str]
    histories: list[str]
    ended: list[str]  # histories that are being deleted

    @property
    def head(self) -> tuple[int, bool]:
        """The number of the newest log entry, and whether it is completed."""
        newest = max(self.entries, default=0)
        return newest, newest in self.done or newest == 0

    @property
    def ledger(self) -> str | None:
        return self.ledgers[max(self.ledgers)] if self.ledgers else None

    @property
    def history(self) -> str | None:
        return min(self.histories, default=None)  # Two users may have begun one at the same time.


def _parse_names(names: Iterable[str]) -> _Log:
    found = [(int(number), kind) for number, _, kind in (name.partition(".") for name in names)]
    entries, done = ({number for number, kind in found if kind == wanted} for wanted in ("json", "done"))
    ledgers = {number: kind[len(_LEDGER_KIND) :] for number, kind in found if kind.startswith(_LEDGER_KIND)}
    histories, ended = (
        [kind[len(wanted) :] for _, kind in found if kind.startswith(wanted)] for wanted in (_HISTORY_KIND, _ENDED_KIND)
    )
    return _Log(entries, done, ledgers, histories, ended)
