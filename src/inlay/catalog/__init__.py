"""The catalog of uploads, datasets, versions, jobs and API keys, on SQLite or PostgreSQL.

    catalog = Catalog("sqlite:////var/lib/inlay/catalog.db")
    catalog.migrate()
    catalog.uploads, catalog.datasets, catalog.versions, catalog.views, catalog.jobs, catalog.api_keys, catalog.garbage

Each method runs one transaction, can be called from any thread, returns plain records, and raises `InlayError`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import sqlalchemy as sa

from inlay.catalog import database, leases, tables
from inlay.catalog.api_keys import ApiKeys
from inlay.catalog.database import Context, Database, utc_now
from inlay.catalog.datasets import Datasets
from inlay.catalog.garbage import Garbage
from inlay.catalog.jobs import Jobs
from inlay.catalog.names import dataset_directory, is_id, new_id, upload_directory
from inlay.catalog.records import (
    ApiKey,
    DataFile,
    Dataset,
    Job,
    NewManifest,
    NewVersion,
    Page,
    Snapshot,
    Upload,
    Version,
    View,
)
from inlay.catalog.uploads import Uploads
from inlay.catalog.versions import Versions
from inlay.catalog.views import Views

__all__ = [
    "ApiKey",
    "Catalog",
    "DataFile",
    "Dataset",
    "Job",
    "NewManifest",
    "NewVersion",
    "Page",
    "Snapshot",
    "Upload",
    "Version",
    "View",
    "dataset_directory",
    "is_id",
    "new_id",
    "upload_directory",
]


class Catalog:
    """Access to a catalog database for one process, its `owner`. A path names an SQLite file."""

    def __init__(
        self,
        url: str | Path,
        *,
        owner: str | None = None,
        lease: timedelta = timedelta(seconds=60),
        grace: timedelta = timedelta(seconds=60),
        statement_seconds: float = database.STATEMENT_SECONDS,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._database = Database(url, clock=clock, statement_seconds=statement_seconds)
        context = Context(self._database, owner or leases.this_process(), lease, grace)
        self.owner = context.owner
        self.uploads = Uploads(context)
        self.datasets = Datasets(context)
        self.versions = Versions(context)
        self.views = Views(context)
        self.jobs = Jobs(context)
        self.api_keys = ApiKeys(context)
        self.garbage = Garbage(context)

    @property
    def location(self) -> str:
        """The URL of the database, without its password."""
        return self._database.location

    @property
    def is_local(self) -> bool:
        """Whether the database is a file, so that looking up a key or a table takes microseconds."""
        return self._database.is_local

    @property
    def identity(self) -> str:
        """The unique id of this catalog, which moves and restores keep."""
        with self._database.read() as connection:
            return str(connection.execute(sa.select(tables.identity.c.id)).scalar_one())

    def migrate(self) -> None:
        """Create or migrate the tables. Several processes may call this at the same time."""
        database.migrate(self._database)

    def ping(self) -> None:
        """Raise if the database is unavailable."""
        with self._database.read() as connection:
            connection.execute(sa.select(1))

    def check(self) -> None:
        """Raise if the database is unavailable, or if its schema has a different version."""
        with self._database.read() as connection:
            database.require_latest(connection)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()
