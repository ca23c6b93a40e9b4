"""Brings a database to the schema that this program knows.

All migrations of one call are one transaction of one writer: two processes may try at once, and a migration that
fails leaves everything as it was.
"""

from __future__ import annotations

from importlib import resources

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from inlay.catalog.engine import Database
from inlay.errors import CatalogVersionError

__all__ = ["current_revision", "migrate", "require_latest"]

_MIGRATIONS = str(resources.files("inlay.catalog") / "migrations")


def migrate(database: Database, migrations: str = _MIGRATIONS) -> None:
    """Run every migration that the database has not seen."""
    config = _config(migrations)
    unbound = database.for_migration()
    try:
        with unbound.write() as connection:
            _require_known(current_revision(connection), ScriptDirectory.from_config(config))
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        unbound.close()


def current_revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def require_latest(connection: Connection) -> None:
    """Refuse a database that this program would misread."""
    scripts = ScriptDirectory.from_config(_config(_MIGRATIONS))
    revision = current_revision(connection)
    _require_known(revision, scripts)
    if revision != scripts.get_current_head():
        raise CatalogVersionError(
            f"The catalog has schema {revision or 'none'}, and this program needs {scripts.get_current_head()}.",
            hint="Start the service once: it migrates its catalog.",
        )


def _require_known(revision: str | None, scripts: ScriptDirectory) -> None:
    known = {script.revision for script in scripts.walk_revisions()}
    if revision is not None and revision not in known:
        raise CatalogVersionError(
            f"The catalog has schema {revision!r}, which is newer than this program: it knows {max(known)!r} at most.",
            hint="Update inlay, or use another catalog.",
        )


def _config(migrations: str) -> Config:
    config = Config()
    config.set_main_option("script_location", migrations.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
