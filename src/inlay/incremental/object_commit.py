"""Commit on an object store: a log in which creating the next entry, if it is not there, is the commit point.

    <parent>/.<dataset>.txn/   log/<n>.json   log/<n>.done   .staging_<uuid>/<n>.stage

There is no lock: a writer plans on entry n and commits as n + 1; whoever comes second is told so and plans again.
Rewritten files get new names, so finishing a commit twice, or late, can never overwrite newer data.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import cast

from inlay.errors import (
    CommitStateUnknownError,
    ConcurrentModificationError,
    CorruptJournalError,
    DatasetIOError,
)
from inlay.incremental.journal import Put, Record, RecoveryReport, still_pending, unfinished
from inlay.parquet.sidecar import STAGING, new_staging, sidecar
from inlay.storage import Location, ObjectStore

__all__ = ["ObjectJournal"]

_KEPT_ENTRIES = 10
# a staging directory cannot be locked here, so only age says that its writer is gone
_DEAD_AFTER_SECONDS = 24 * 3600


class ObjectJournal:
    """One writer's view of a dataset's log."""

    cache_path = None

    def __init__(self, location: Location) -> None:
        self.location = location
        self._store = cast(ObjectStore, location.store)
        self.sidecar = sidecar(location)
        self._base = 0
        self._may_write = True
        self._in_doubt = False  # whether what we staged may belong to a commit

    def acquire(self, timeout: float) -> None:  # noqa: ARG002  (nobody waits here: the log decides)
        try:
            self._store.require_conditional_create(self.sidecar)
        except PermissionError:
            self._may_write = False
            raise

    def release(self) -> None:
        pass

    @contextlib.contextmanager
    def reading(self) -> Iterator[bool]:
        yield False

    def is_writable(self) -> bool:
        """As far as it is known: only who tries finds out."""
        return self._may_write

    # --------------------------------------------------------------------------------------------------- staging
    def stage(self) -> str:
        return new_staging()

    def staged(self, name: str) -> str:
        return f"{self.sidecar}/{name}"

    def discard(self, staging: str) -> None:
        """Remove what is staged, unless a commit may need it; what stays is swept when it is old."""
        if not self._in_doubt:
            with contextlib.suppress(Exception):
                self._store.remove_tree(self.staged(staging))

    # ------------------------------------------------------------------------------------------------------- log
    def _entry(self, number: int, kind: str = "json") -> str:
        return f"{self.sidecar}/log/{number:020d}.{kind}"

    def _numbers(self) -> tuple[set[int], set[int]]:
        """The numbers of the entries that are there, and of those that were completed."""
        names = [file.path for file in self._store.walk(f"{self.sidecar}/log", lambda _: True)]
        entries = {int(name.split(".")[0]) for name in names if name.endswith(".json")}
        done = {int(name.split(".")[0]) for name in names if name.endswith(".done")}
        return entries, done

    def _head(self) -> tuple[int, bool]:
        """The number of the newest entry, and whether it was completed."""
        entries, done = self._numbers()
        newest = max(entries, default=0)
        return newest, newest in done or newest == 0

    def _read(self, number: int) -> Record | None:
        name = self._entry(number)
        try:
            return Record.load(self._store.read_bytes(name), name)
        except FileNotFoundError:
            return None

    # ---------------------------------------------------------------------------------------------------- commit
    def prepare(self, staged: str, target: str) -> Put:
        stat = self._store.stat(self.staged(staged))
        if stat is None:
            raise DatasetIOError(f"The staged object {self.staged(staged)!r} is not there.", operation="commit")
        return Put(staged, target, stat.size)

    def commit(self, record: Record) -> None:
        number = self._base + 1
        self._in_doubt = True
        try:
            self._store.create(self._entry(number), record.dump())
        except FileExistsError:
            self._require_ours(number, record)
        except Exception as error:  # noqa: BLE001  (clients raise what they like; the log knows what happened)
            self._settle(number, record, error)
        self._require_current(number)
        self._base = number
        self._complete(number, record)
        self._in_doubt = False

    def _require_ours(self, number: int, record: Record) -> None:
        """A client that lost the answer to its own success is told that the entry exists: look whose it is."""
        found = self._read_or_unknown(number)
        if found is None:  # refused, and nobody is there: another request of ours may still be on its way
            self._settle(number, record, FileExistsError("the store reports a conflict"))
        elif found.id != record.id:
            self._in_doubt = False
            raise ConcurrentModificationError(
                f"Another writer committed to {self.location.given!r} first; nothing of this change was written.",
                hint="Run it again: it will plan on what is there now.",
            )

    def _settle(self, number: int, record: Record, error: Exception) -> None:
        """The answer is lost. Take the place in the log ourselves, as aborted: whoever is there decided it."""
        try:
            self._store.create(self._entry(number), Record(id=f"abort-{record.id}", aborted=True).dump())
        except FileExistsError:
            found = self._read_or_unknown(number)
            if found is None:
                raise self._unknown(error) from error
            if found.id == f"abort-{record.id}":
                raise self._not_committed(error) from error
            self._require_ours(number, record)
        except Exception as again:  # noqa: BLE001
            raise self._unknown(again) from error
        else:
            raise self._not_committed(error) from error

    def _read_or_unknown(self, number: int) -> Record | None:
        try:
            return self._read(number)
        except CorruptJournalError:
            raise
        except Exception as error:
            raise self._unknown(error) from error

    def _require_current(self, number: int) -> None:
        """A writer that stood still for long may have taken a place whose entry was trimmed away since."""
        try:
            entries, done = self._numbers()
        except Exception as error:
            raise self._unknown(error) from error
        trimmed = max(entries, default=0) > self._base + _KEPT_ENTRIES and self._base not in entries
        if trimmed and number not in done:
            raise self._unknown(TimeoutError("many other writers went on while this one stood still"))

    def _not_committed(self, error: Exception) -> DatasetIOError:
        self._in_doubt = False
        return DatasetIOError(
            f"The store refused the commit of {self.location.given!r}: {error}. Nothing changed.",
            operation="commit",
        )

    def _unknown(self, error: Exception) -> CommitStateUnknownError:
        return CommitStateUnknownError(
            f"Whether the commit of {self.location.given!r} succeeded is not known: {error}.",
            operation="commit",
            hint="The next call on this dataset finds out and completes or ignores it; look before you retry.",
        )

    def _complete(self, number: int, record: Record) -> None:
        try:
            self.roll_forward(number, record)
        except CorruptJournalError:
            raise
        except Exception as error:
            raise still_pending(self.location, record, error) from error

    def roll_forward(self, number: int, record: Record) -> None:
        for put in record.puts:
            if not self._put(put):
                if self._is_done(number):  # somebody else was faster
                    self._undo_if_late(number, record, self._numbers()[0])
                    return
                self._require_placed(put)
        for name in record.removes:
            self._store.remove(self.location.full(name))
        # the order matters: a late helper's copy fails once its staged object is gone, and nobody commits on top
        # of this entry before it is done
        for put in record.puts:
            self._store.remove(self.staged(put.staged))
        self._mark_done(number)
        entries, marks = self._numbers()
        self._undo_if_late(number, record, entries)
        self._trim(number, entries | marks)

    def _put(self, put: Put) -> bool:
        """Put a file in place; whether it was still staged."""
        try:
            self._store.move(self.staged(put.staged), self.location.full(put.target))
        except FileNotFoundError:
            return False
        return True

    def _require_placed(self, put: Put) -> None:
        placed = self._store.stat(self.location.full(put.target))
        if placed is None or placed.size != put.size:
            raise CorruptJournalError(
                f"{self.location.shown(put.target)!r} is neither staged nor in place; its commit cannot finish.",
                operation="recover",
                files=[self.location.shown(put.target)],
            )

    def _is_done(self, number: int) -> bool:
        entries, done = self._numbers()
        return number in done or number < max(entries, default=0)

    def _mark_done(self, number: int) -> None:
        with contextlib.suppress(FileExistsError):
            self._store.create(self._entry(number, "done"), b"")

    def _undo_if_late(self, number: int, record: Record, entries: set[int]) -> None:
        """If others went on while we finished, take back what they have removed since."""
        ours = {put.target for put in record.puts}
        for later in sorted(entry for entry in entries if entry > number):
            entry = self._read(later)
            for name in ours & set(entry.removes if entry else ()):
                self._store.remove(self.location.full(name))

    def _trim(self, number: int, entries: set[int]) -> None:
        """Forget old entries, oldest first and each without its mark first: `_require_current` relies on it."""
        with contextlib.suppress(Exception):
            for old in sorted(entry for entry in entries if entry < number - _KEPT_ENTRIES):
                for kind in ("done", "json"):
                    self._store.remove(self._entry(old, kind))

    # -------------------------------------------------------------------------------------------------- recovery
    def pending(self) -> bool:
        return not self._head()[1]

    def recover(self, *, sweep: bool) -> RecoveryReport:
        report = RecoveryReport()
        self._base, done = self._head()
        record = None if done else self._read(self._base)
        if record is not None:
            self._finish(self._base, record)
            report.completed = None if record.aborted else record.id
            report.files = [self.location.shown(put.target) for put in record.puts]
            report.files += [self.location.shown(name) for name in record.removes]
        if sweep:
            report.swept = self._sweep()
        return report

    def _finish(self, number: int, record: Record) -> None:
        """Complete what somebody else committed."""
        try:
            self.roll_forward(number, record)
        except CorruptJournalError:
            raise
        except Exception as error:
            raise unfinished(self.location, record, error) from error

    def _sweep(self) -> list[str]:
        newest: dict[str, int] = {}
        for file in self._store.walk(self.sidecar, lambda _: True):
            top = file.path.split("/")[0]
            if top.startswith((STAGING, ".probe_")):
                newest[top] = max(newest.get(top, 0), file.mtime_ns)
        limit = (time.time() - _DEAD_AFTER_SECONDS) * 1e9
        dead = sorted(name for name, touched in newest.items() if 0 < touched < limit)  # 0: nobody says when
        for name in dead:
            self.discard(name)
        return dead
