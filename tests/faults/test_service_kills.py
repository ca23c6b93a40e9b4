"""Things happen to the service while clients use it: nothing acknowledged is lost, nothing is half done.

It is killed at random moments, asked to stop, runs out of disk, sleeps longer than its leases, loses its catalog.
Spark lives on (a Connect server), so that a restart takes seconds, and so that tasks of a killed service go on writing
after its successor has started. INLAY_TEST_LONG=1 lets things happen for INLAY_SOAK_SECONDS (900) on each stand.
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
from tests.faults.service_model import Client, Creating, Source, UnansweredError, ViolationError, needed_files
from tests.faults.service_process import PATIENCE, MortalPostgres, ServiceProcess, Stand, small_disk
from tests.s3 import S3Server, s3  # noqa: F401  (a fixture)
from tests.spark import cluster

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(7200)]
Tally = Callable[[str, int, list[str]], None]
SEED = int(os.environ.get("INLAY_FAULT_SEED") or 1)


@pytest.fixture(scope="module")
def spark_url(s3: S3Server) -> Iterator[str]:  # noqa: F811
    """A Connect server that outlives every service, and knows where the object store is."""
    with cluster.connect_server() as server:
        yield server.url


@dataclass
class Drama:
    """Services on one stand, their clients, and what is done to them."""

    stand: Stand
    services: list[ServiceProcess]
    postgres: MortalPostgres | None = None
    clients: list[Client] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    random: random.Random = field(default_factory=lambda: random.Random(SEED))

    def __enter__(self) -> Drama:
        for service in self.services:
            service.start()
        try:
            for service in self.services:
                service.wait_until_ready()
            self._cast(3)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.clients:
            client.close()
        for service in self.services:
            service.end()

    def _cast(self, count: int) -> None:
        """Clients, each at one of the services, and the table that they share."""
        author = Client(0, self.services[0].url, SEED, 10)
        author._do(Creating("ledger", f"ledger-{SEED}", Source({0: ("first", 0)})))
        (ledger,) = author.tables.values()
        author.close()
        self.clients = [Client(number, "", SEED, 20_000, ledger) for number in range(1, count + 1)]
        self._seat()

    def _seat(self, away: ServiceProcess | None = None) -> None:
        """Every client at a service that is there."""
        there = [service for service in self.services if service is not away]
        for client in self.clients:
            client.url = there[client.number % len(there)].url

    # ---------------------------------------------------------------------------------------------------- the clients
    def play(self, interrupt: Callable[[], object]) -> None:
        """Clients work until something has been done, or until no answer comes."""
        over = threading.Event()
        with ThreadPoolExecutor(len(self.clients)) as pool:
            playing = [pool.submit(self._act, client, over) for client in self.clients]
            try:
                time.sleep(self.random.uniform(0.1, 2.0))
                interrupt()
            finally:
                over.set()
            for each in playing:
                each.result()

    def _act(self, client: Client, over: threading.Event) -> None:
        try:
            while not over.is_set():
                client.step()
        except UnansweredError:
            self.counts["unanswered"] += 1
        except ViolationError as violation:
            self._blame(client, violation)

    def settle(self, *, thoroughly: bool = False) -> None:
        """Every client finds out what became of its last request, and that everything else is as it was."""
        with ThreadPoolExecutor(len(self.clients)) as pool:
            list(pool.map(lambda client: self._settle(client, thoroughly=thoroughly), self.clients))

    def _settle(self, client: Client, *, thoroughly: bool) -> None:
        deadline = time.monotonic() + PATIENCE  # what a silent service held is free only when its lease is over
        while True:
            try:
                client.settle()
                client.check(thoroughly=thoroughly)
            except UnansweredError as error:
                self.counts["asked in vain"] += 1
                if time.monotonic() > deadline:
                    self._blame(client, ViolationError(f"there is no answer: {error}"))
                    return
                time.sleep(0.5)
            except ViolationError as violation:
                self._blame(client, violation)
                return
            else:
                return

    def _blame(self, client: Client, violation: ViolationError) -> None:
        doubt = f" while in doubt about {client.doubt!r}"[:1000] if client.doubt is not None else ""
        self.violations.append(f"client {client.number}: {violation}{doubt}")
        client.doubt = None

    # -------------------------------------------------------------------------------------------------- what happens
    def kill(self) -> None:
        """Killed; its clients go on at another service, or at its successor."""
        victim = self.random.choice(self.services)
        self.play(victim.kill)
        self.counts["kills"] += 1
        self._restart(victim)

    def kill_twice(self) -> None:
        """Killed again before it has come to itself."""
        victim = self.random.choice(self.services)
        self.play(victim.kill)
        victim.start()
        time.sleep(self.random.uniform(0.0, 5.0))
        victim.kill()
        self.counts["kills"] += 2
        self._restart(victim)

    def _restart(self, victim: ServiceProcess) -> None:
        victim.start()
        if len(self.services) > 1:
            self._seat(away=victim)
        else:
            victim.wait_until_open()
        self.settle()
        victim.wait_until_open()
        self._seat()

    def terminate(self) -> None:
        """Asked to stop: it finishes what it does, or gives it back, and goes."""
        victim = self.random.choice(self.services)
        self.play(lambda: victim.terminate(PATIENCE))
        self.counts["stops"] += 1
        assert victim.process is not None
        if victim.process.returncode not in (0, -signal.SIGTERM):
            self.violations.append(f"asked to stop, it ended with {victim.process.returncode}")
        self._require_nothing_held(victim.process.pid)
        self._restart(victim)

    def _require_nothing_held(self, pid: int) -> None:
        catalog = Catalog(self.stand.catalog or f"sqlite:///{self.stand.folder / 'data' / 'catalog.db'}")
        active = [job for state in ("queued", "running") for job in catalog.jobs.list(state=state).items]
        catalog.close()
        held = [job.id for job in active if job.owner.split("/")[1] == str(pid)]
        if held:
            self.violations.append(f"asked to stop, it left the jobs {held}")

    def fill_disk(self) -> None:
        """No space left, neither for the service nor for Spark's tasks nor for the catalog; then there is again."""
        ballast = self.stand.folder / "data" / "ballast"

        def fill() -> None:
            with ballast.open("wb", buffering=0) as file:
                for block in (1 << 20, 4 << 10):
                    with contextlib.suppress(OSError):
                        while file.write(b"\0" * block):
                            pass
            time.sleep(self.random.uniform(1.0, 5.0))
            ballast.unlink()

        self.play(fill)
        self.counts["full disks"] += 1
        self.settle()

    def sleep(self) -> None:
        """It stops for longer than its leases last, and wakes up when others have done its work."""
        sleeper = self.random.choice(self.services)
        for client in self.clients:
            client.is_hasty = True
        self.play(lambda: (sleeper.signal(signal.SIGSTOP), time.sleep(5.0)))
        try:
            self._seat(away=sleeper)
            self.settle()
        finally:
            sleeper.signal(signal.SIGCONT)
        self.counts["sleeps"] += 1
        time.sleep(1.0)
        sleeper.wait_until_open()
        self._seat()
        for client in self.clients:
            client.is_hasty = False
        self.settle()

    def lose_catalog(self) -> None:
        """The catalog's server crashes and comes back."""
        postgres = self.postgres
        assert postgres is not None

        def lose() -> None:
            postgres.crash()
            time.sleep(self.random.uniform(0.0, 3.0))
            postgres.come_back()

        self.play(lose)
        self.counts["lost catalogs"] += 1
        self.settle()

    # ------------------------------------------------------------------------------------------------------- the end
    def finish(self, tally: Tally) -> None:
        """All versions are right, and in the end the storage holds what is needed and nothing else."""
        if not self.violations:
            for service in self.services:
                service.wait_until_ready()
            self.settle(thoroughly=True)
        if not self.violations:
            self._check_storage()
        for client in self.clients:
            self.counts += client.counts
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        print(told)
        if self.violations:
            print("\n".join(service.tail() for service in self.services))
        tally(told, self.counts["acknowledged"], self.violations)

    def _check_storage(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            needed, found = needed_files(self.clients[0], self.stand.address), self.stand.files()
            if needed == found:
                return
            if needed - found:
                self.violations.append(f"files are lost: {sorted(needed - found)}")
                return
            if time.monotonic() > deadline:
                self.violations.append(f"files that nobody needs remain: {sorted(found - needed)}")
                return
            time.sleep(0.2)


def acts(drama: Drama, quick: str, thorough: bool) -> Iterator[Callable[[], None]]:
    """A few things that happen, or as many as there is time for, until one of them does harm."""
    names = quick.split()
    if thorough:
        end = time.monotonic() + float(os.environ.get("INLAY_SOAK_SECONDS") or 900)
        endless = iter(lambda: drama.random.choice([*names, *["kill"] * 12, *["kill_twice"] * 4]), None)
        for name in endless:
            if time.monotonic() > end or drama.violations:
                return
            yield getattr(drama, name)
    for name in names:
        if not drama.violations:
            yield getattr(drama, name)


def test_on_sqlite_and_a_disk(spark_url: str, tmp_path: Path, thorough: bool, tally: Tally) -> None:
    stand = Stand(tmp_path, spark_url)
    with _disk_of(stand) as can_be_full, Drama(stand, [ServiceProcess(stand)]) as drama:
        for act in acts(drama, "kill_twice" + " fill_disk" * can_be_full, thorough):
            act()
        drama.finish(tally)


@contextlib.contextmanager
def _disk_of(stand: Stand) -> Iterator[bool]:
    """A small one for the data directory, if we may mount one."""
    try:
        with small_disk(stand.folder / "data", "256m"):
            yield True
    except PermissionError:
        yield False


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
        with Drama(stand, services, postgres) as drama:
            for act in acts(drama, "kill sleep lose_catalog terminate", thorough):
                act()
            drama.finish(tally)
    finally:
        postgres.stop()
