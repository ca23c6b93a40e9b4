"""Tokens of transactions: the outcomes of committed merges, found by the token that the caller chose.

    <parent>/.<dataset>.txn/tokens.<ledger>/<sha256 of the token>    next to the dataset, and in the dataset
    <dataset>/.inlay.tokens.<ledger>/                                an empty directory, the witness

A commit writes the entry of its token before it deletes its record, so that a token is known as long as its rows are
in the dataset. A ledger counts only if the dataset contains its witness: a dataset that was deleted and created again
knows no token, although the sidecar beside it still exists.

A merge that has nothing to delete or update in a dataset without files commits its token too. The witness of such an
early ledger counts until the first files come. Their commit adds the usual witness.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import time
import uuid
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from inlay.commit.access import share_access
from inlay.commit.sidecar import Record, damaged_token_error, hidden_tokens_error, inner_sidecar_path, seal, unseal
from inlay.storage import LocalStore, Location, discard_tree

__all__ = [
    "LocalTokens",
    "choose_ledger",
    "dump_entry",
    "entry_name",
    "expired_entries",
    "is_early",
    "is_trim_due",
    "ledger_id",
    "load_entry",
    "witness_name",
]

KEPT_TOKENS = 1000
KEPT_SECONDS = 30 * 24 * 3600
_TOKENS_PER_TRIM = 64
_LEDGER = "tokens."
_WITNESS = ".inlay.tokens."
_EARLY = "early-"
_LENGTH_OF_NAME = 200  # of 255 bytes that a filesystem allows


# ------------------------------------------------------------------------------------------------------------ ledgers
def choose_ledger(known: str | None, *, has_files: bool) -> str:
    """Return the ledger of a commit: the known one, or a new one. It is early before the dataset has files."""
    name = uuid.uuid4().hex if known is None else ledger_id(known)
    return name if has_files else _EARLY + name


def is_early(ledger: str) -> bool:
    return ledger.startswith(_EARLY)


def ledger_id(ledger: str) -> str:
    """Return the name of a ledger's entries, which don't move when the dataset gets its first files."""
    return ledger.removeprefix(_EARLY)


# ------------------------------------------------------------------------------------------------------------ entries
def entry_name(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def dump_entry(record: Record) -> bytes:
    return seal({"token": record.token, "outcome": record.outcome})


def load_entry(data: bytes, token: str, path: str) -> Mapping[str, Any]:
    """Return the outcome in an entry. Reject an entry that is damaged or belongs to another token."""
    try:
        entry = unseal(data)
        if entry["token"] != token:
            raise ValueError("it belongs to another transaction")
        outcome: Mapping[str, Any] = entry["outcome"]
        return outcome
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_token_error(path, error) from error


def is_trim_due(name: str) -> bool:
    """Return whether the commit of this entry deletes expired entries. Listing them for every commit costs too much."""
    return int(name, 16) % _TOKENS_PER_TRIM == 0


def expired_entries(entries: Iterable[tuple[str, int]]) -> list[str]:
    """Choose the entries to delete from pairs of path and modification time in nanoseconds."""
    newest_first = sorted(entries, key=lambda entry: entry[1], reverse=True)
    limit = (time.time() - KEPT_SECONDS) * 1e9
    return [path for path, nanoseconds in newest_first[KEPT_TOKENS:] if nanoseconds < limit]


# ------------------------------------------------------------------------------------------------------ on local disks
def witness_name(ledger: str) -> str:
    """Return the name of the empty directory in the dataset that belongs to a ledger."""
    return _WITNESS + ledger


class LocalTokens:
    """The ledgers in one sidecar of a dataset on a local disk."""

    def __init__(self, location: Location, sidecar: str) -> None:
        self._store = LocalStore()
        self._location = location
        self._sidecar = sidecar
        # Other readers take every file inside the dataset for data, so entries there are directories without files.
        self._is_inside = sidecar == inner_sidecar_path(location)

    def path(self, ledger: str) -> str:
        return os.path.join(self._sidecar, _LEDGER + ledger_id(ledger))

    def _entry(self, ledger: str, token: str) -> str:
        return os.path.join(self.path(ledger), entry_name(token))

    def ledgers(self) -> list[str]:
        """List the ledgers of this dataset. There is one, unless directories were copied into one another."""
        return [ledger for ledger in self._all() if self._has_witness(ledger)]

    def _all(self) -> list[str]:
        names = _list_names(self._sidecar)
        return sorted(name.removeprefix(_LEDGER) for name in names if name.startswith(_LEDGER))

    def _has_witness(self, ledger: str) -> bool:
        return any(os.path.isdir(self._location.full(witness_name(each))) for each in (ledger, _EARLY + ledger))

    def find(self, token: str) -> Mapping[str, Any] | None:
        """Return the outcome of the transaction that was committed with this token, or None."""
        for path in (self._entry(ledger, token) for ledger in self.ledgers()):
            with contextlib.suppress(FileNotFoundError):
                return load_entry(self._read(path), token, path)
        return None

    def prepare(self, ledger: str) -> None:
        """Create the directory of a ledger before the commit point, because that can fail.

        The commit syncs the sidecar afterward.
        """
        for made in self._store.make_directories(self.path(ledger)):
            share_access(self._location.path, made)

    def add(self, record: Record) -> None:
        """Write the entry of a committed transaction durably. Repeating it has the same result."""
        if record.token is None or record.ledger is None:
            return
        path = self._entry(record.ledger, record.token)
        self._write(path, dump_entry(record))
        self._store.sync_directory(os.path.dirname(path))
        if is_trim_due(os.path.basename(path)):
            self._trim(record.ledger)

    def remove(self, record: Record) -> None:
        """Forget the token of a commit that is undone."""
        if record.token is not None and record.ledger is not None:
            _remove(self._store, self._entry(record.ledger, record.token))
            self._store.sync_directory(self.path(record.ledger))

    def remove_unused(self, record: Record) -> None:
        """Remove the directory of a ledger that has no entries."""
        if record.ledger is not None:
            self._store.remove_empty_directory(self.path(record.ledger))

    def are_early(self) -> bool:
        """Return whether all tokens are of merges that found no files."""
        found = self._witnesses()
        return bool(found) and all(map(is_early, found))

    def forget_all(self) -> None:
        """Remove all witnesses, unless they are early: a dataset that lost its data files knows no tokens."""
        found = set() if self.are_early() else self._witnesses()
        for ledger in found:
            os.rmdir(self._location.full(witness_name(ledger)))
        if found:
            self._store.sync_directory(self._location.path)

    def sweep(self) -> None:
        """Delete the ledgers of datasets that were deleted."""
        for ledger in set(self._all()) - set(self.ledgers()):
            discard_tree(self._store, self.path(ledger))

    def require_visible(self, others: Iterable[str]) -> None:
        """Reject a dataset whose tokens are in a sidecar that this process cannot see."""
        hidden = set(map(ledger_id, self._witnesses())) - {*self._all(), *others}
        for ledger in sorted(hidden):
            raise hidden_tokens_error(self._location, witness_name(ledger))

    def _witnesses(self) -> set[str]:
        names = _list_names(self._location.path)
        return {name.removeprefix(_WITNESS) for name in names if name.startswith(_WITNESS)}

    def _trim(self, ledger: str) -> None:
        with contextlib.suppress(OSError), os.scandir(self.path(ledger)) as entries:
            for path in expired_entries([(entry.path, entry.stat().st_mtime_ns) for entry in entries]):
                _remove(self._store, path)

    # ----------------------------------------------------------------------------------------------- one entry
    def _read(self, path: str) -> bytes:
        if not self._is_inside:
            return self._store.read_bytes(path)
        try:
            text = "".join(name.partition(".")[2] for name in sorted(os.listdir(path)))
            return zlib.decompress(base64.urlsafe_b64decode(text))
        except (ValueError, zlib.error) as error:
            raise damaged_token_error(path, error) from error

    def _write(self, path: str, data: bytes) -> None:
        draft = f"{path}.tmp"
        if not self._is_inside:
            with open(draft, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        elif os.path.isdir(path):
            return  # A process that crashed later has written it.
        else:
            self._store.remove_tree(draft)  # of a process that crashed
            text = base64.urlsafe_b64encode(zlib.compress(data)).decode()
            chunks = [text[start : start + _LENGTH_OF_NAME] for start in range(0, len(text), _LENGTH_OF_NAME)]
            for number, chunk in enumerate(chunks):
                os.makedirs(os.path.join(draft, f"{number:06d}.{chunk}"))
            self._store.sync_directory(draft)
        os.rename(draft, path)


def _remove(store: LocalStore, path: str) -> None:
    if os.path.isdir(path):
        store.remove_tree(path)
    else:
        store.remove(path)


def _list_names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
