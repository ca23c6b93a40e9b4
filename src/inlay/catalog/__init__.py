"""The catalog: what uploads, datasets, versions, jobs and keys there are, on SQLite or PostgreSQL.

    catalog = Catalog("sqlite:////var/lib/inlay/catalog.db")
    catalog.migrate()
    catalog.uploads, catalog.datasets, catalog.versions, catalog.jobs, catalog.keys, catalog.garbage

Every method is one transaction, may be called from any thread, gives plain records, and raises `InlayError`s.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from inlay.catalog import migrate, owners, tables
from inlay.catalog.context import Context
from inlay.catalog.datasets import Datasets
from inlay.catalog.engine import Database, utc_now
from inlay.catalog.garbage import Garbage
from inlay.catalog.ids import dataset_directory, is_id, new_id, upload_directory
from inlay.catalog.jobs import Jobs
from inlay.catalog.keys import Keys
from inlay.catalog.names import table_name_from_label, validate_table_name
from inlay.catalog.records import (
    ApiKey,
    DataFile,
    Dataset,
    GarbageItem,
    Heartbeat,
    Job,
    NewKey,
    NewVersion,
    Page,
    Snapshot,
    Submission,
    Upload,
    Version,
)
from inlay.catalog.schemas import schema_from_json, schema_to_json
from inlay.catalog.uploads import Uploads
from inlay.catalog.versions import Versions

__all__ = [
    "ApiKey",
    "Catalog",
    "DataFile",
    "Dataset",
    "GarbageItem",
    "Heartbeat",
    "Job",
    "NewKey",
    "NewVersion",
    "Page",
    "Snapshot",
    "Submission",
    "Upload",
    "Version",
    "dataset_directory",
    "is_id",
    "new_id",
    "schema_from_json",
    "schema_to_json",
    "table_name_from_label",
    "upload_directory",
    "validate_table_name",
]


class Catalog:
    """A catalog database, as one process (its `owner`) uses it. A path is an SQLite file."""

    def __init__(
        self,
        url: str | Path,
        *,
        owner: str | None = None,
        lease: timedelta = timedelta(seconds=60),
        grace: timedelta = timedelta(seconds=60),
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = Database(url, clock=clock)
        context = Context(self._database, owner or owners.this_process(), lease, grace)
        self.owner = context.owner
        self.uploads = Uploads(context)
        self.datasets = Datasets(context)
        self.versions = Versions(context)
        self.jobs = Jobs(context)
        self.keys = Keys(context)
        self.garbage = Garbage(context)

    @property
    def location(self) -> str:
        """The database's address, without a password."""
        return self._database.location

    @property
    def identity(self) -> str:
        """What tells this catalog from every other one, wherever it is moved or restored."""
        with self._database.read() as connection:
            return str(connection.execute(sa.select(tables.identity.c.id)).scalar_one())

    def migrate(self) -> None:
        """Make or update the tables. Safe to call at every start, from several processes at once."""
        migrate.migrate(self._database)

    def check(self) -> None:
        """Raise if the database does not answer or its schema is not the one this program knows."""
        with self._database.read() as connection:
            migrate.require_latest(connection)

    def close(self) -> None:
        """Give all connections back."""
        self._database.close()
