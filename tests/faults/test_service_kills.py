"""Services fail while clients use them: changes are complete, and none is lost.

Services are killed at random moments, stopped with SIGTERM, run out of disk space, are paused for longer than their
leases, and lose their catalog. Spark is a Connect server that keeps running, so that a restart takes seconds, and so
that tasks of a killed service still write after its successor has started. With INLAY_TEST_LONG=1, each test repeats
random faults for INLAY_SOAK_SECONDS (900 by default).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from inlay.catalog import Catalog
from tests.faults.service_model import Client, CreateDataset, NoResponseError, Source, ViolationError, needed_files
from tests.faults.service_process import TIMEOUT_SECONDS, MortalPostgres, ServiceProcess, Stand, small_disk
from tests.s3 import S3Server, s3  # noqa: F401  (a fixture)
from tests.spark import cluster

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(7200)]
Tally = Callable[[str, int, list[str]], None]
SEED = int(os.environ.get("INLAY_FAULT_SEED") or 1)


@pytest.fixture(scope="module")
def spark_url(s3: S3Server) -> Iterator[str]:  # noqa: F811
    """Run a Connect server that outlives all services and knows the endpoint of `s3`."""
    with cluster.connect_server() as server:
        yield server.url


@dataclass
class FaultTest:
    """Services with the same catalog and storage, their clients, and faults to inject."""

    stand: Stand
    services: list[ServiceProcess]
    postgres: MortalPostgres | None = None
    clients: list[Client] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    random: random.Random = field(default_factory=lambda: random.Random(SEED))

    def __enter__(self) -> FaultTest:
        for service in self.services:
            service.start()
        try:
            for service in self.services:
                service.wait_until_ready()
            self._create_clients(3)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        for service in self.services:
            service.end()

    def _create_clients(self, count: int) -> None:
        """Create the ledger that all clients share, and the clients."""
        creator = Client(0, self.services[0].url, SEED, 10)
        creator.perform(CreateDataset("ledger", f"ledger-{SEED}", Source({0: ("first", 0)})))
        (ledger,) = creator.tables.values()
        creator.close()
        self.clients = [Client(number, "", SEED, 20_000, ledger) for number in range(1, count + 1)]
        self._assign_services()

    def _assign_services(self, unavailable: ServiceProcess | None = None) -> None:
        """Assign each client to an available service."""
        available = [service for service in self.services if service is not unavailable]
        for client in self.clients:
            client.url = available[client.number % len(available)].url

    # ---------------------------------------------------------------------------------------------------- clients
    def run_clients(self, inject: Callable[[], object]) -> None:
        """Run all clients until the fault is injected. A client without a response stops earlier."""
        stop = threading.Event()
        with ThreadPoolExecutor(len(self.clients)) as pool:
            runs = [pool.submit(self._run_client, client, stop) for client in self.clients]
            try:
                time.sleep(self.random.uniform(0.1, 2.0))
                inject()
            finally:
                stop.set()
            for run in runs:
                run.result()

    def _run_client(self, client: Client, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                client.step()
        except NoResponseError:
            self.counts["requests without a response"] += 1
        except ViolationError as violation:
            self._record_violation(client, violation)

    def check(self, *, thoroughly: bool = False) -> None:
        """Let each client resolve its last request, and compare the service with its model."""
        with ThreadPoolExecutor(len(self.clients)) as pool:
            list(pool.map(lambda client: self._check_client(client, thoroughly=thoroughly), self.clients))

    def _check_client(self, client: Client, *, thoroughly: bool) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS  # a paused service keeps its leases until they expire
        while True:
            try:
                client.resolve()
                client.check(thoroughly=thoroughly)
            except NoResponseError as error:
                self.counts["checks without a response"] += 1
                if time.monotonic() > deadline:
                    self._record_violation(client, ViolationError(f"no response before the timeout: {error}"))
                    return
                time.sleep(0.5)
            except ViolationError as violation:
                self._record_violation(client, violation)
                return
            else:
                return

    def _record_violation(self, client: Client, violation: ViolationError) -> None:
        attempt = f" with the unresolved {client.unresolved!r}"[:1000] if client.unresolved is not None else ""
        self.violations.append(f"client {client.number}: {violation}{attempt}")
        client.unresolved = None

    # -------------------------------------------------------------------------------------------------- faults
    def kill(self) -> None:
        """Kill a service. Its clients continue with another service, or after the restart."""
        victim = self.random.choice(self.services)
        self.run_clients(victim.kill)
        self.counts["kills"] += 1
        self._restart(victim)

    def kill_twice(self) -> None:
        """Kill a service, and kill it again while it restarts."""
        victim = self.random.choice(self.services)
        self.run_clients(victim.kill)
        victim.start()
        time.sleep(self.random.uniform(0.0, 5.0))
        victim.kill()
        self.counts["kills"] += 2
        self._restart(victim)

    def _restart(self, victim: ServiceProcess) -> None:
        victim.start()
        if len(self.services) > 1:
            self._assign_services(unavailable=victim)
        else:
            victim.wait_until_open()
        self.check()
        victim.wait_until_open()
        self._assign_services()

    def terminate(self) -> None:
        """Stop a service with SIGTERM: it completes its jobs or releases them, and exits."""
        victim = self.random.choice(self.services)
        self.run_clients(lambda: victim.terminate(TIMEOUT_SECONDS))
        self.counts["stops"] += 1
        assert victim.process is not None
        if victim.process.returncode not in (0, -signal.SIGTERM):
            self.violations.append(f"after SIGTERM, a service exited with {victim.process.returncode}")
        self._check_released_jobs(victim.process.pid)
        self._restart(victim)

    def _check_released_jobs(self, pid: int) -> None:
        catalog = Catalog(self.stand.catalog or f"sqlite:///{self.stand.folder / 'data' / 'catalog.db'}")
        active = [job for state in ("queued", "running") for job in catalog.jobs.list(state=state).items]
        catalog.close()
        held = [job.id for job in active if job.owner.split("/")[1] == str(pid)]
        if held:
            self.violations.append(f"after SIGTERM, a service still owned the jobs {held}")

    def fill_disk(self) -> None:
        """Fill the disk of the service, Spark's tasks and the catalog, and free it again."""
        ballast = self.stand.folder / "data" / "ballast"

        def fill() -> None:
            with ballast.open("wb", buffering=0) as file:
                for block in (1 << 20, 4 << 10):
                    with contextlib.suppress(OSError):
                        while file.write(b"\0" * block):
                            pass
            time.sleep(self.random.uniform(1.0, 5.0))
            ballast.unlink()

        self.run_clients(fill)
        self.counts["full disks"] += 1
        self.check()

    def pause(self) -> None:
        """Pause a service for longer than its leases, while another service takes over its work."""
        paused = self.random.choice(self.services)
        for client in self.clients:
            client.is_impatient = True
        self.run_clients(lambda: (paused.signal(signal.SIGSTOP), time.sleep(5.0)))
        try:
            self._assign_services(unavailable=paused)
            self.check()
        finally:
            paused.signal(signal.SIGCONT)
        self.counts["pauses"] += 1
        time.sleep(1.0)
        paused.wait_until_open()
        self._assign_services()
        for client in self.clients:
            client.is_impatient = False
        self.check()

    def lose_catalog(self) -> None:
        """Crash and restart the server of the catalog."""
        postgres = self.postgres
        assert postgres is not None

        def restart() -> None:
            postgres.crash()
            time.sleep(self.random.uniform(0.0, 3.0))
            postgres.come_back()

        self.run_clients(restart)
        self.counts["lost catalogs"] += 1
        self.check()

    # ------------------------------------------------------------------------------------------------------- end
    def finish(self, tally: Tally) -> None:
        """Check all versions, and that the storage holds exactly the needed files."""
        if not self.violations:
            for service in self.services:
                service.wait_until_ready()
            self.check(thoroughly=True)
        if not self.violations:
            self._check_storage()
        for client in self.clients:
            self.counts += client.counts
        summary = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        print(summary)
        if self.violations:
            print("\n".join(service.tail() for service in self.services))
        tally(summary, self.counts["acknowledged"], self.violations)

    def _check_storage(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            needed, found = needed_files(self.clients[0], self.stand.address), self.stand.files()
            if needed == found:
                return
            if needed - found:
                self.violations.append(f"missing files: {sorted(needed - found)}")
                return
            if time.monotonic() > deadline:
                self.violations.append(f"files that no version needs: {sorted(found - needed)}")
                return
            time.sleep(0.2)


def choose_faults(test: FaultTest, quick: str, thorough: bool) -> Iterator[Callable[[], None]]:
    """Yield the named faults, or in long runs random faults. Stop at a violation."""
    names = quick.split()
    if thorough:
        end = time.monotonic() + float(os.environ.get("INLAY_SOAK_SECONDS") or 900)
        choices = iter(lambda: test.random.choice([*names, *["kill"] * 12, *["kill_twice"] * 4]), None)
        for name in choices:
            if time.monotonic() > end or test.violations:
                return
            yield getattr(test, name)
    for name in names:
        if not test.violations:
            yield getattr(test, name)


def test_on_sqlite_and_a_disk(spark_url: str, tmp_path: Path, thorough: bool, tally: Tally) -> None:
    stand = Stand(tmp_path, spark_url)
    with _mount_data_disk(stand) as can_be_full, FaultTest(stand, [ServiceProcess(stand)]) as test:
        for inject in choose_faults(test, "kill_twice" + " fill_disk" * can_be_full, thorough):
            inject()
        test.finish(tally)


@contextlib.contextmanager
def _mount_data_disk(stand: Stand) -> Iterator[bool]:
    """Mount a small disk for the data directory, and yield whether that is permitted."""
    try:
        with small_disk(stand.folder / "data", "256m"):
            yield True
    except PermissionError:
        yield False


# Long: short runs kill a service on SQLite and a disk, and the catalog on PostgreSQL in tests/catalog/test_races.py.
@pytest.mark.long
def test_two_services_on_postgresql_and_s3(
    spark_url: str,
    s3: S3Server,  # noqa: F811
    tmp_path: Path,
    thorough: bool,
    tally: Tally,
) -> None:
    postgres = MortalPostgres.start()
    try:
        catalog = postgres.server.url(postgres.server.create_database())
        stand = Stand(tmp_path, spark_url, catalog, f"{s3.bucket()}/inlay", lease_seconds=3.0)
        services = [ServiceProcess(stand, name) for name in ("first", "second")]
        with FaultTest(stand, services, postgres) as test:
            for inject in choose_faults(test, "kill pause lose_catalog terminate", thorough):
                inject()
            test.finish(tally)
    finally:
        postgres.stop()
