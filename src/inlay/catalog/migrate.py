"""Brings a database to the schema that this program knows.

All migrations of one call are one transaction of one writer: two processes may try at once, and a migration that
fails leaves everything as it was.
"""

from __future__ import annotations

from importlib import resources

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog.engine import Database
from inlay.errors import CatalogVersionError

__all__ = ["LATEST", "MIGRATIONS", "current_revision", "migrate", "require_latest"]

LATEST = "0002"
MIGRATIONS = str(resources.files("inlay.catalog") / "migrations")


def migrate(database: Database, migrations: str = MIGRATIONS, latest: str = LATEST) -> None:
    """Run every migration that the database has not seen."""
    with database.read() as connection:
        revision = current_revision(connection)
    _require_no_newer(revision, latest)
    if revision != latest:
        _upgrade(database, migrations, latest)


def _upgrade(database: Database, migrations: str, latest: str) -> None:
    from alembic import command  # takes long to import, and is rarely needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", migrations.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    unbound = database.for_migration()
    try:
        with unbound.write() as connection:
            _require_no_newer(current_revision(connection), latest)
            config.attributes["connection"] = connection
            command.upgrade(config, latest)
    finally:
        unbound.close()


def current_revision(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    revision: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def require_latest(connection: Connection) -> None:
    """Refuse a database that this program would misread."""
    revision = current_revision(connection)
    _require_no_newer(revision, LATEST)
    if revision != LATEST:
        raise CatalogVersionError(
            f"The catalog has schema {revision or 'none'}, and this program needs {LATEST}.",
            hint="Start the service once: it migrates its catalog.",
        )


def _require_no_newer(revision: str | None, latest: str) -> None:
    if revision is not None and revision > latest:
        raise CatalogVersionError(
            f"The catalog has schema {revision!r}, which is newer than this program: it knows {latest!r} at most.",
            hint="Update inlay, or use another catalog.",
        )
