"""The commit record: what becomes true in one moment, written down so that anybody can finish it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from inlay.errors import CommitPendingError, CorruptJournalError, DatasetIOError
from inlay.storage import Location

__all__ = ["Put", "Record", "RecoveryReport", "still_pending", "unfinished"]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Put:
    """A staged file and the place where it belongs; size and checksum recognise it at either end."""

    staged: str  # relative to the sidecar
    target: str  # relative to the dataset
    size: int
    crc32: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One transaction: files to put in place and files to remove."""

    id: str
    puts: Sequence[Put] = ()
    removes: Sequence[str] = ()
    aborted: bool = False  # on object stores: this place in the log is taken by nobody

    def dump(self) -> bytes:
        body = json.dumps({"format": _FORMAT, **asdict(self)})
        return json.dumps({"sha256": _digest(body), "body": body}).encode()

    def require_inside(self) -> None:
        """A dataset may come from anybody: its record must not reach files elsewhere."""
        names = [*(put.staged for put in self.puts), *(put.target for put in self.puts), *self.removes]
        for name in names:
            if any(part in ("", ".", "..") for part in name.split("/")):
                raise ValueError(f"it names {name!r}")

    @classmethod
    def load(cls, data: bytes, name: str) -> Record:
        try:
            envelope = json.loads(data)
            body = envelope["body"]
            if envelope["sha256"] != _digest(body):
                raise ValueError("its checksum is wrong")
            content = json.loads(body)
            if content.pop("format") != _FORMAT:
                raise ValueError("it was written by another version of inlay")
            puts = [Put(**put) for put in content.pop("puts")]
            record = cls(puts=puts, **content)
            record.require_inside()
            return record
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptJournalError(
                f"The commit record {name!r} cannot be trusted: {error}. Nothing was touched.",
                operation="recover",
                files=[name],
                hint="Restore the record from a copy; or, to give the commit up, move it away and check the data.",
            ) from error


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


@dataclass(slots=True)
class RecoveryReport:
    """What `recover` found and did."""

    completed: str | None = None  # the transaction that was finished
    files: list[str] = field(default_factory=list)  # the files that it put in place or removed
    swept: list[str] = field(default_factory=list)  # staging directories of writers that died

    def __bool__(self) -> bool:
        return self.completed is not None or bool(self.swept)


def still_pending(location: Location, record: Record, error: Exception) -> CommitPendingError:
    """What to say when one's own commit is true but not in place yet."""
    return CommitPendingError(
        f"The change of {location.given!r} is committed and will complete: {error}.",
        operation="commit",
        files=[location.shown(put.target) for put in record.puts],
        hint="The next call on this dataset, or inlay.recover(path), completes it. Do not retry the merge.",
    )


def unfinished(location: Location, record: Record, error: Exception) -> DatasetIOError:
    """What to say when somebody else's commit stands in the way."""
    return DatasetIOError(
        f"An earlier commit to {location.given!r} could not be completed: {error}.",
        operation="recover",
        files=[location.shown(put.target) for put in record.puts],
        hint="Nothing of this call was done. The next call on this dataset tries again.",
    )
