"""How many versions a history keeps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from inlay.commit.records import VersionRecords
    from inlay.commit.sidecar import Record

__all__ = ["Retention", "expired_versions"]

_DEFAULT_VERSIONS = 10


@dataclass(frozen=True, slots=True)
class Retention:
    """The limits of a history. A limit that is None does not apply."""

    versions: int | None = None  # counts the newest version
    days: float | None = None  # how long a version is kept after it was replaced
    bytes: int | None = None  # of the files that the newest version does not have
    copies: bool = False  # of files that cannot be linked

    def dump(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, content: str) -> Retention | None:
        """Return the limits that a user has set, or None if they are damaged."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None


def expired_versions(history: VersionRecords, newest: Record | None = None) -> list[int]:
    """Return the oldest versions, which exceed the limits. `newest` is a version that is about to be added."""
    numbers = history.numbers()
    if newest is not None and newest.version not in numbers:
        numbers.append(newest.version or 0)
    if len(numbers) < 2:
        return []
    newest = newest or history.read(numbers[-1])
    retention = history.retention
    # By default, the previous version is always kept, so that a change of a whole dataset can be undone.
    droppable = len(numbers) - (2 if retention is None else 1)
    limits = retention or Retention(versions=_DEFAULT_VERSIONS, bytes=newest.total_bytes)
    expired = (at for at in range(droppable) if not _exceeds(history, numbers[at:], newest, limits))
    return numbers[: next(expired, droppable)]


def _exceeds(history: VersionRecords, numbers: list[int], newest: Record, limits: Retention) -> bool:
    """Return whether keeping these versions exceeds a limit."""
    if limits.versions is not None and len(numbers) > limits.versions:
        return True
    if (
        limits.bytes is not None
        and newest.replaced_bytes > limits.bytes  # The first record may be long, so it is read only if it matters.
        and newest.replaced_bytes - history.read(numbers[0]).replaced_bytes > limits.bytes
    ):
        return True
    if limits.days is None:
        return False
    successor = newest if numbers[1] == newest.version else history.read(numbers[1])
    replaced_at = datetime.fromisoformat(successor.at)
    return replaced_at < datetime.now(UTC) - timedelta(days=limits.days)
