"""Files that nobody needs any more, until they are really gone; a restart forgets none of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import PurePosixPath

import sqlalchemy
from sqlalchemy.engine import Connection

from inlay.catalog import records, tables
from inlay.catalog.context import Context
from inlay.catalog.records import GarbageItem

__all__ = ["Garbage"]

_garbage = tables.garbage


class Garbage:
    def __init__(self, context: Context) -> None:
        self._context = context

    def add(self, paths: Iterable[str], *, is_directory: bool = False) -> None:
        """Schedule what no version refers to, for example what a job left behind."""
        now = self._context.now()
        with self._context.write() as connection:
            schedule(connection, paths, is_directory=is_directory, now=now, due_at=now + self._context.grace)

    def due(self, now: datetime | None = None, *, limit: int = 1000) -> tuple[GarbageItem, ...]:
        """What may be removed now, the longest overdue first."""
        query = (
            records.select(GarbageItem, _garbage)
            .where(_garbage.c.due_at <= (now or self._context.now()))
            .order_by(_garbage.c.due_at, _garbage.c.path)
            .limit(limit)
        )
        with self._context.read() as connection:
            return records.every(connection, GarbageItem, query)

    def paths(self) -> set[str]:
        """Everything that waits to be removed."""
        with self._context.read() as connection:
            return set(connection.scalars(sqlalchemy.select(_garbage.c.path)))

    def postpone(self, path: str, by: timedelta) -> None:
        """Try again later what cannot be removed now."""
        with self._context.write() as connection:
            later = _garbage.update().where(_garbage.c.path == path).values(due_at=self._context.now() + by)
            connection.execute(later)

    def done(self, path: str) -> None:
        """Forget what has been removed from the storage."""
        with self._context.write() as connection:
            connection.execute(_garbage.delete().where(_garbage.c.path == path))


def schedule(
    connection: Connection, paths: Iterable[str], *, is_directory: bool, now: datetime, due_at: datetime
) -> None:
    """Add to the garbage; what is in it already keeps its time."""
    wanted = set(paths)
    rows = [
        {"path": path, "is_directory": is_directory, "created_at": now, "due_at": due_at}
        for path in sorted(wanted - records.known(connection, _garbage.c.path, wanted))
    ]
    if rows:
        connection.execute(_garbage.insert(), rows)


def rescue(connection: Connection, paths: Iterable[str]) -> None:
    """Take out of the garbage what is needed after all, and every directory that holds any of it."""
    needed = {str(place) for path in paths for place in (path, *PurePosixPath(path).parents)}
    for some in records.chunks(needed):
        connection.execute(_garbage.delete().where(_garbage.c.path.in_(some)))
