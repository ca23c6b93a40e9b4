"""Transactions on SQLite or PostgreSQL with the same guarantees, and migrations.

Only one writer runs at a time (by SQLite's write lock, or an advisory lock on PostgreSQL), so that a transaction that
reads and then writes needs no retry and cannot deadlock. Readers never wait, and see one snapshot per transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError

from inlay.catalog.lookups import Lookup, Lookups
from inlay.errors import (
    CatalogUnavailableError,
    CatalogVersionError,
    CommitStateUnknownError,
    ConflictError,
    InvalidArgumentError,
    StorageFullError,
)

if TYPE_CHECKING:
    from inlay.catalog.postgres import Outage

CONNECT_SECONDS = 10
STATEMENT_SECONDS = 30.0
_LOCK_SHARE = 0.9  # so that PostgreSQL reports a lock that is not free before the client stops waiting
_WRITERS_LOCK = 0x696E6C6179  # "inlay" in ASCII; all writers use this constant
# Errors with which a database rejects a commit. Other errors leave its outcome unknown.
_REJECTED_SQLITE = (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_FULL)
_REJECTED_SQLSTATES = ("23", "53")  # violated constraints, and missing resources such as disk space
_DISK_FULL_SQLSTATE = "53100"
# A reader keeps one snapshot. A writer must see the transactions that committed while it waited for the lock.
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
        self,
        url: str | Path | URL,
        *,
        clock: Callable[[], datetime] = utc_now,
        statement_seconds: float = STATEMENT_SECONDS,
        foreign_keys: bool = True,
    ) -> None:
        self._url = _parse(url)
        self._clock = clock
        self._seconds = statement_seconds
        self._engine = _open(self._url, statement_seconds, foreign_keys=foreign_keys)
        self._lookups = Lookups(self._engine)
        self._readers = _engine_for(self._engine, "read", statement_seconds)
        self._writers = _engine_for(self._engine, "write", statement_seconds)
        self._outage = _outage_of(self._engine)

    def now(self) -> datetime:
        return self._clock()

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    @property
    def location(self) -> str:
        """The URL of the database, without its password."""
        return self._url.render_as_string(hide_password=True)

    @property
    def is_local(self) -> bool:
        """Whether the database is a file, so that a look-up takes microseconds."""
        return self.dialect == "sqlite"

    def look_up(self, lookup: Lookup, **parameters: Any) -> tuple[Any, ...] | None:
        """Return the first row of a look-up, or None. Use `read` for a consistent state of several rows."""
        with self._reachable():
            return self._lookups.first(lookup, **parameters)

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        with self._reachable(), self._readers.connect() as connection, connection.begin():
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Run a transaction. Raise `CommitStateUnknownError` if the commit fails and its outcome is unknown."""
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
                connection.invalidate()  # ends the rest of its transaction
                if _is_rejected(error.orig):
                    raise
                raise CommitStateUnknownError(
                    f"The catalog did not confirm a commit: {error.orig}",
                    operation="commit",
                    hint="Check the job: it has succeeded if the commit took place.",
                ) from error

    def for_migration(self) -> Database:
        """Return this database without foreign keys, so that SQLite can rebuild tables."""
        return Database(self._url, clock=self._clock, statement_seconds=self._seconds, foreign_keys=False)

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        if self._outage is not None and (error := self._outage.error) is not None:
            raise _unavailable(self.location, error) from error
        try:
            yield
        except IntegrityError as error:
            raise ConflictError(f"The change conflicts with existing catalog entries: {error.orig}") from error
        except DBAPIError as error:
            if _is_full(error.orig):
                raise StorageFullError(
                    "The disk of the catalog is full. Nothing changed.", hint="Free disk space, then try again."
                ) from error
            if self._outage is not None:
                self._outage.record(error.orig)
            raise _unavailable(self.location, error.orig) from error
        except sa.exc.TimeoutError as error:  # no connection of the pool is free
            raise _unavailable(self.location, error) from error
        except self._engine.dialect.loaded_dbapi.Error as error:  # of a look-up
            if self._outage is not None:
                self._outage.record(error)
            raise _unavailable(self.location, error) from error

    def close(self) -> None:
        self._lookups.close()
        self._engine.dispose()


def _is_rejected(error: BaseException | None) -> bool:
    """Return whether an error of a commit means that the database discarded the transaction."""
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) in _REJECTED_SQLITE
    return str(getattr(error, "sqlstate", None)).startswith(_REJECTED_SQLSTATES)


def _is_full(error: BaseException | None) -> bool:
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) == sqlite3.SQLITE_FULL
    return getattr(error, "sqlstate", None) == _DISK_FULL_SQLSTATE


def _sqlite_code(error: sqlite3.Error) -> int:
    """Return the primary code of an error, or 0 for an error of the driver."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _unavailable(location: str, reason: BaseException | None) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"The catalog at {location} is unavailable: {str(reason).strip()}",
        hint="Check that the database exists, is writable, and is not locked by another program.",
    )


def _parse(url: str | Path | URL) -> URL:
    try:
        parsed = URL.create("sqlite", database=str(url)) if isinstance(url, Path) else make_url(url)
    except ArgumentError as error:
        raise InvalidArgumentError(f"Invalid database URL {url!r}.", hint=_URL_HINT) from error
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise InvalidArgumentError(f"The catalog does not support the database {parsed.drivername!r}.", hint=_URL_HINT)
    if driver.startswith("sqlite") and (parsed.database or ":memory:") == ":memory:":
        raise InvalidArgumentError("The catalog cannot be an in-memory SQLite database.", hint=_URL_HINT)
    return parsed.set(drivername=driver)


_URL_HINT = "Use a URL such as sqlite:////var/lib/inlay/catalog.db or postgresql+psycopg://user@host/database."


def _open(url: URL, seconds: float, *, foreign_keys: bool) -> Engine:
    pool = {"pool_size": 8, "max_overflow": 32, "pool_timeout": seconds}
    if url.get_backend_name() == "postgresql":
        from inlay.catalog.postgres import connect  # imports psycopg, which SQLite does not need

        waiting = {"connect_timeout": url.query.get("connect_timeout", CONNECT_SECONDS)}
        engine = sa.create_engine(url, pool_pre_ping=True, connect_args=waiting, **pool)
        sa.event.listen(engine, "do_connect", lambda _, __, args, options: connect(seconds, *args, **options))
        return engine
    try:
        Path(url.database or "").parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unavailable(url.render_as_string(), error) from error
    engine = sa.create_engine(url, **pool)
    sa.event.listen(
        engine, "connect", lambda connection, _: _prepare_sqlite(connection, seconds, foreign_keys=foreign_keys)
    )
    return engine


def _outage_of(engine: Engine) -> Outage | None:
    if engine.dialect.name == "sqlite":
        return None
    from inlay.catalog.postgres import Outage

    return Outage()


def _prepare_sqlite(connection: sqlite3.Connection, seconds: float, *, foreign_keys: bool) -> None:
    connection.isolation_level = None  # the events below begin transactions
    connection.execute(f"PRAGMA busy_timeout = {_milliseconds(seconds)}")
    _use_write_ahead_log(connection, seconds)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")  # so that reads work on a full disk
    connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _use_write_ahead_log(connection: sqlite3.Connection, seconds: float) -> None:
    """Switch to a write-ahead log, retrying because the switch ignores the busy timeout."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _engine_for(engine: Engine, purpose: str, seconds: float) -> Engine:
    """Return an engine on the same pool whose transactions read or write."""
    kind = (engine.dialect.name, purpose)
    options: dict[str, Any] = {"isolation_level": _ISOLATION[kind]} if kind in _ISOLATION else {}
    derived = engine.execution_options(**options)
    begin = _begin_statements(seconds).get(kind)
    if begin is not None:
        sa.event.listen(derived, "begin", lambda connection: connection.exec_driver_sql(begin))
    return derived


def _begin_statements(seconds: float) -> dict[tuple[str, str], str]:
    """Return the statements that begin a transaction. SQLite's driver begins it late, and not at all before DDL."""
    return {
        ("sqlite", "read"): "BEGIN",
        ("sqlite", "write"): "BEGIN IMMEDIATE",
        # PostgreSQL aborts an idle writer before waiting writers time out.
        ("postgresql", "write"): (
            f"SET LOCAL lock_timeout = '{_milliseconds(seconds * _LOCK_SHARE)}ms'; "
            f"SET LOCAL idle_in_transaction_session_timeout = '{_milliseconds(seconds / 2)}ms'; "
            f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})"
        ),
    }


@dataclass(frozen=True, slots=True)
class Context:
    """The database and the parameters of a catalog."""

    database: Database
    owner: str  # of the jobs that this process creates and runs
    lease: timedelta  # time after the last heartbeat of its owner at which a job expires
    grace: timedelta  # time for which readers may still use files that no version refers to

    def now(self) -> datetime:
        return self.database.now()

    def read(self) -> AbstractContextManager[Connection]:
        return self.database.read()

    def look_up(self, lookup: Lookup, **parameters: Any) -> tuple[Any, ...] | None:
        return self.database.look_up(lookup, **parameters)

    def write(self) -> AbstractContextManager[Connection]:
        return self.database.write()


def require_text(value: str, name: str, *, max_length: int = 4096) -> str:
    """Return the text, or raise if it is blank, too long, or not storable in PostgreSQL."""
    if not value.strip():
        raise InvalidArgumentError(f"{name} must not be empty.")
    if len(value) > max_length:
        raise InvalidArgumentError(f"{name} has {len(value):,} characters, and the limit is {max_length:,}.")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidArgumentError(f"{name} contains a NUL character or half a surrogate pair: {value[:50]!r}.")
    return value


LATEST = "0004"
_migrating = threading.Lock()  # Alembic keeps the state of a migration in a module
MIGRATIONS = str(resources.files("inlay.catalog") / "migrations")


def migrate(database: Database, migrations: str = MIGRATIONS, latest: str = LATEST) -> None:
    """Run the migrations that the database lacks."""
    with database.read() as connection:
        revision = current_revision(connection)
    _require_no_newer(revision, latest)
    if revision != latest:
        _upgrade(database, migrations, latest)


def _upgrade(database: Database, migrations: str, latest: str) -> None:
    from alembic import command  # slow to import and rarely needed
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", migrations.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    target = database.for_migration()
    try:
        with _migrating, target.write() as connection:
            _require_no_newer(current_revision(connection), latest)
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, latest)
            except (CommandError, AssertionError) as error:
                raise CatalogVersionError(
                    "The table alembic_version of the catalog does not name a known schema version.", hint=_FOREIGN_HINT
                ) from error
    finally:
        target.close()


_FOREIGN_HINT = "Another program may use this database. Use another one, or restore the catalog from a backup."


def current_revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revisions: list[str] = list(connection.execute(sa.text("SELECT * FROM alembic_version")).scalars())
    if len(revisions) > 1:
        raise CatalogVersionError(
            f"The table alembic_version of the catalog has {len(revisions)} rows instead of one.", hint=_FOREIGN_HINT
        )
    return revisions[0] if revisions else None


def require_latest(connection: Connection) -> None:
    """Raise if the database has a different schema version than this program."""
    revision = current_revision(connection)
    _require_no_newer(revision, LATEST)
    if revision != LATEST:
        raise CatalogVersionError(
            f"The catalog has schema version {revision or 'none'}, but this program requires {LATEST}.",
            hint="Start the service, which migrates the catalog.",
        )


def _require_no_newer(revision: str | None, latest: str) -> None:
    if revision is not None and str(revision) > latest:
        raise CatalogVersionError(
            f"The catalog has schema version {revision!r}, but this program supports versions up to {latest!r}.",
            hint="Update inlay, or use another catalog.",
        )
