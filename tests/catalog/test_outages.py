"""A PostgreSQL server that does not answer, or that refuses connections."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from inlay.catalog import Catalog
from inlay.catalog.database import _WRITERS_LOCK
from inlay.errors import CatalogUnavailableError, CommitStateUnknownError
from tests.catalog import steps
from tests.faults.tcp_proxy import FAULTS, TcpProxy
from tests.postgres import PostgresServer

SECONDS = 1.0
ENOUGH_SECONDS = 10.0  # more than a test needs on a busy machine, and less than the default limits


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[TcpProxy]:
    with TcpProxy.to(str(postgres.directory / ".s.PGSQL.5432")) as made:
        yield made


@pytest.fixture
def catalog(postgres: PostgresServer, proxy: TcpProxy) -> Iterator[Catalog]:
    database = postgres.create_database()
    made = Catalog(
        f"postgresql+psycopg://postgres@127.0.0.1:{proxy.port}/{database}?connect_timeout=2", statement_seconds=SECONDS
    )
    made.migrate()
    yield made
    made.close()
    postgres.drop_database(database)


@pytest.mark.parametrize("fault", FAULTS)
def test_reads_and_writes_fail_in_time_and_work_again_afterward(catalog: Catalog, proxy: TcpProxy, fault: str) -> None:
    steps.upload(catalog)
    with proxy.fault(fault):
        for call in (catalog.uploads.list, lambda: steps.upload(catalog)):
            started = time.monotonic()
            with pytest.raises(CatalogUnavailableError):
                call()
            assert time.monotonic() - started < ENOUGH_SECONDS
    wait_until_available(catalog)
    assert catalog.uploads.list().count == 1
    steps.upload(catalog)
    assert catalog.uploads.list().count == 2


def test_many_calls_do_not_wait_for_the_server_in_turn(catalog: Catalog, proxy: TcpProxy) -> None:
    def call(_: int) -> type[Exception]:
        with pytest.raises(CatalogUnavailableError) as caught:
            catalog.uploads.list()
        return caught.type

    with proxy.fault("mute"), ThreadPoolExecutor(2) as threads:
        started = time.monotonic()
        assert set(threads.map(call, range(60))) == {CatalogUnavailableError}  # 30 turns of 2 to 3 seconds
        assert time.monotonic() - started < 2 * ENOUGH_SECONDS
    wait_until_available(catalog)


def wait_until_available(catalog: Catalog) -> None:
    """Wait for the moment after an outage in which calls fail immediately."""
    deadline = time.monotonic() + ENOUGH_SECONDS
    while True:
        try:
            return catalog.ping()
        except CatalogUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_commit_without_an_answer_has_an_unknown_outcome(catalog: Catalog, proxy: TcpProxy) -> None:
    def write() -> None:
        with catalog._database.write() as connection:
            connection.exec_driver_sql("DELETE FROM uploads")
            silence.enter_context(proxy.fault("mute"))

    with contextlib.ExitStack() as silence, pytest.raises(CommitStateUnknownError, match="no answer within 1 seconds"):
        write()
    wait_until_available(catalog)
    assert catalog.uploads.list().count == 0


def test_a_writer_waits_for_the_lock_as_long_as_for_a_statement(catalog: Catalog, postgres: PostgresServer) -> None:
    database = catalog.location.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(f"host={postgres.directory} user=postgres dbname={database}") as other:
        other.execute(f"SELECT pg_advisory_xact_lock({_WRITERS_LOCK})".encode())
        with pytest.raises(CatalogUnavailableError, match="lock timeout"):
            steps.upload(catalog)
    steps.upload(catalog)
