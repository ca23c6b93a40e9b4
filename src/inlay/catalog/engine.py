"""One database, SQLite or PostgreSQL, with the same rules on both.

Writers come one at a time (SQLite's write lock, an advisory lock on PostgreSQL), so a transaction that looks and
then writes needs no retry and cannot deadlock. Readers never wait, and see one snapshot for a whole transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError

from inlay.errors import CatalogUnavailableError, CommitStateUnknownError, ConflictError, InvalidArgumentError

__all__ = ["Database", "utc_now"]

_LOCK_WAIT_SECONDS = 30
_CONNECT_SECONDS = 10
_SILENCE_SECONDS = 15  # after which PostgreSQL gives up a writer that stopped half-way, before those who wait do
_WRITERS_LOCK = 0x696E6C6179  # "inlay": any constant that all writers share
# What opens a transaction. SQLite's driver would otherwise begin late, and not at all before DDL.
_BEGIN = {
    ("sqlite", "read"): "BEGIN",
    ("sqlite", "write"): "BEGIN IMMEDIATE",
    ("postgresql", "write"): (
        f"SET LOCAL lock_timeout = '{_LOCK_WAIT_SECONDS}s'; "
        f"SET LOCAL idle_in_transaction_session_timeout = '{_SILENCE_SECONDS}s'; "
        f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})"
    ),
}
# A reader's snapshot lasts the transaction. A writer must see what was committed while it waited for the lock.
_ISOLATION = {("postgresql", "read"): "REPEATABLE READ", ("postgresql", "write"): "READ COMMITTED"}
_DRIVERS = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}


def utc_now() -> datetime:
    return datetime.now(UTC)


class Database:
    """Transactions over one catalog database; safe to share between threads."""

    def __init__(
        self, url: str | Path | URL, *, clock: Callable[[], datetime] = utc_now, foreign_keys: bool = True
    ) -> None:
        self._url = _parse(url)
        self._clock = clock
        self._engine = _open(self._url, foreign_keys=foreign_keys)
        self._readers = _engine_for(self._engine, "read")
        self._writers = _engine_for(self._engine, "write")

    def now(self) -> datetime:
        return self._clock()

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    @property
    def location(self) -> str:
        """The address, without a password."""
        return self._url.render_as_string(hide_password=True)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        with self._reachable(), self._readers.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """All or nothing. An error of the commit itself leaves the outcome unknown, and says so."""
        with self._reachable(), self._writers.connect() as connection:
            transaction = connection.begin()
            try:
                yield connection
            except BaseException:
                transaction.rollback()
                raise
            try:
                transaction.commit()
            except DBAPIError as error:
                connection.invalidate()  # what is left of its transaction goes with it
                raise CommitStateUnknownError(
                    f"The catalog did not confirm a commit: {error.orig}",
                    operation="commit",
                    hint="Look the job up again: it has succeeded if the commit took place.",
                ) from error

    def for_migration(self) -> Database:
        """The same database, on which SQLite lets tables be rebuilt that others refer to."""
        return Database(self._url, clock=self._clock, foreign_keys=False)

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise ConflictError(f"The catalog has something else in this place: {error.orig}") from error
        except DBAPIError as error:
            raise _unavailable(self.location, error.orig) from error
        except sa.exc.TimeoutError as error:  # every connection is taken, and none has come back for a while
            raise _unavailable(self.location, error) from error

    def close(self) -> None:
        self._engine.dispose()


def _unavailable(location: str, reason: BaseException | None) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"The catalog at {location} cannot be used: {str(reason).strip()}",
        hint="Check that the database is there, is writable, and that nobody holds it locked.",
    )


def _parse(url: str | Path | URL) -> URL:
    try:
        parsed = URL.create("sqlite", database=str(url)) if isinstance(url, Path) else make_url(url)
    except ArgumentError as error:
        raise InvalidArgumentError(f"Not a database address: {url!r}.", hint=_EXAMPLES) from error
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise InvalidArgumentError(f"The catalog cannot live in {parsed.drivername!r}.", hint=_EXAMPLES)
    if driver.startswith("sqlite") and (parsed.database or ":memory:") == ":memory:":
        raise InvalidArgumentError("The catalog needs a file: an SQLite database in memory is lost.", hint=_EXAMPLES)
    return parsed.set(drivername=driver)


_EXAMPLES = "For example sqlite:////var/lib/inlay/catalog.db or postgresql+psycopg://user@host/database."


def _open(url: URL, *, foreign_keys: bool) -> Engine:
    if url.get_backend_name() == "postgresql":
        waiting = {"connect_timeout": url.query.get("connect_timeout", _CONNECT_SECONDS)}
        return sa.create_engine(url, pool_pre_ping=True, pool_size=8, max_overflow=32, connect_args=waiting)
    try:
        Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unavailable(url.render_as_string(), error) from error
    engine = sa.create_engine(url, pool_size=8, max_overflow=32)
    sa.event.listen(engine, "connect", lambda connection, _: _prepare_sqlite(connection, foreign_keys=foreign_keys))
    return engine


def _prepare_sqlite(connection: sqlite3.Connection, *, foreign_keys: bool) -> None:
    connection.isolation_level = None  # transactions are ours
    connection.execute(f"PRAGMA busy_timeout = {_LOCK_WAIT_SECONDS * 1000}")
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """The switch itself does not wait for locks, whatever the busy timeout says."""
    deadline = time.monotonic() + _LOCK_WAIT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _engine_for(engine: Engine, purpose: str) -> Engine:
    """The same pool, with transactions that begin as this purpose needs."""
    kind = (engine.dialect.name, purpose)
    options: dict[str, Any] = {"isolation_level": _ISOLATION[kind]} if kind in _ISOLATION else {}
    derived = engine.execution_options(**options)
    if kind in _BEGIN:
        sa.event.listen(derived, "begin", lambda connection: connection.exec_driver_sql(_BEGIN[kind]))
    return derived
