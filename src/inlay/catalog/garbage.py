"""Garbage: files that are scheduled for removal from the storage."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import PurePosixPath

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import records, tables
from inlay.catalog.database import Context
from inlay.catalog.records import GarbageItem

__all__ = ["Garbage"]

_garbage = tables.garbage


class Garbage:
    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, paths: Iterable[str], *, is_directory: bool = False) -> None:
        """Schedule files that no version refers to for removal after the grace period."""
        now = self._context.now()
        with self._context.write() as connection:
            schedule(connection, paths, is_directory=is_directory, now=now, due_at=now + self._context.grace)

    def due(self, now: datetime | None = None, *, limit: int = 1000) -> tuple[GarbageItem, ...]:
        """Return the items that may be removed now, longest overdue first."""
        query = (
            records.select(GarbageItem, _garbage)
            .where(_garbage.c.due_at <= (now or self._context.now()))
            .order_by(_garbage.c.due_at, _garbage.c.path)
            .limit(limit)
        )
        with self._context.read() as connection:
            return records.every(connection, GarbageItem, query)

    def paths(self) -> set[str]:
        """Return the paths of all items."""
        with self._context.read() as connection:
            return set(connection.scalars(sa.select(_garbage.c.path)))

    def postpone(self, path: str, by: timedelta) -> None:
        """Retry the removal of an item later."""
        with self._context.write() as connection:
            later = _garbage.update().where(_garbage.c.path == path).values(due_at=self._context.now() + by)
            connection.execute(later)

    def mark_removed(self, path: str) -> None:
        """Delete the item of a file that is removed from the storage."""
        with self._context.write() as connection:
            connection.execute(_garbage.delete().where(_garbage.c.path == path))


def schedule(
    connection: Connection, paths: Iterable[str], *, is_directory: bool, now: datetime, due_at: datetime
) -> None:
    """Add paths to the garbage. A path that is already garbage keeps its due time."""
    added = set(paths)
    rows = [
        {"path": path, "is_directory": is_directory, "created_at": now, "due_at": due_at}
        for path in sorted(added - records.known(connection, _garbage.c.path, added))
    ]
    if rows:
        connection.execute(_garbage.insert(), rows)


def rescue(connection: Connection, paths: Iterable[str]) -> None:
    """Remove paths, and the directories that contain them, from the garbage."""
    needed = {str(each) for path in paths for each in (path, *PurePosixPath(path).parents)}
    for chunk in records.chunks(needed):
        connection.execute(_garbage.delete().where(_garbage.c.path.in_(chunk)))
