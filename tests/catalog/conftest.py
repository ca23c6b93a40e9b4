"""Fixtures of catalogs.

A test that uses `catalog` or `backend` runs on SQLite and on PostgreSQL.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from inlay.catalog import Catalog
from tests.postgres import PostgresServer, postgres  # noqa: F401  (a fixture)

BACKENDS = ("sqlite", "postgresql")


class Clock:
    """A manual clock. Each reading advances it by a millisecond, so that times are distinct."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 23, 10, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.time += timedelta(milliseconds=1)
        return self.time

    def advance(self, **duration: float) -> None:
        self.time += timedelta(**duration)


class Backend:
    """Creates empty databases and copies of a migrated database."""

    def __init__(self, name: str, directory: Path, server: PostgresServer | None) -> None:
        self.name = name
        self._directory = directory
        self._server = server
        self._template: str | None = None
        self._count = 0

    def empty(self) -> str:
        if self._server is not None:
            return self._server.url(self._server.create_database())
        self._count += 1
        return f"sqlite:///{self._directory / f'{self._count}.db'}"

    def migrated(self) -> str:
        if self._template is None:
            self._template = self.empty()
            catalog = Catalog(self._template)
            catalog.migrate()
            catalog.close()
        if self._server is not None:
            return self._server.url(self._server.create_database(database_of(self._template)))
        url = self.empty()
        shutil.copyfile(database_of(self._template), database_of(url))
        return url

    def drop(self, url: str) -> None:
        if self._server is not None:
            self._server.drop_database(database_of(url))


def database_of(url: str) -> str:
    """Return the name of a PostgreSQL database, or the path of an SQLite file."""
    return str(make_url(url).database)


@pytest.fixture(scope="session", params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Backend:
    server = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    return Backend(request.param, tmp_path_factory.mktemp("catalogs"), server)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def url(backend: Backend) -> Iterator[str]:
    """The URL of a new, migrated database."""
    address = backend.migrated()
    yield address
    backend.drop(address)


@pytest.fixture
def connect(url: str, clock: Clock) -> Iterator[Callable[..., Catalog]]:
    """Opens further catalogs on the same database, for example as another owner."""
    with ExitStack() as stack:

        def open_catalog(**options: Any) -> Catalog:
            catalog = Catalog(url, **({"clock": clock} | options))
            stack.callback(catalog.close)
            return catalog

        yield open_catalog


@pytest.fixture
def catalog(connect: Callable[..., Catalog]) -> Catalog:
    return connect()
