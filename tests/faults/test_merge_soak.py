"""Random merges on every engine and store, while their processes are killed, disks are full and answers are lost.

After each of them the dataset is what a model says, before or after; who was told is told the truth, with exact counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

import inlay
from tests.faults.merge_model import KEYS, OPEN_ENDS, State, Step, state_of, table_of
from tests.faults.proxy import KINDS, Proxy
from tests.faults.scenarios import leftovers
from tests.faults.service_process import small_disk
from tests.s3 import S3Server, s3  # noqa: F401  (a fixture)
from tests.spark import cluster

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]
Tally = Callable[[str, int, list[str]], None]
SEED = int(os.environ.get("INLAY_FAULT_SEED") or 1)
PATIENCE = 180.0
MOST_REQUESTS = 150  # of a merge over S3: a fault at a later one does not fire
# A network that stays away makes every request wait for its retries: test_s3.py has it.
LOST = [kind for kind in KINDS if not kind.endswith("cut")]


# ------------------------------------------------------------------------------------------------------------- places
@dataclass
class Place:
    """Where a dataset is, and what can go wrong there."""

    dataset: str
    faults: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ballast: Path | None = None
    proxy: Proxy | None = None

    @contextlib.contextmanager
    def troubled(self, fault: str, chance: random.Random) -> Iterator[None]:
        if fault == "full disk" and self.ballast:
            with _filled(self.ballast, chance.randrange(200_000)):
                yield
        elif fault == "lost answer" and self.proxy:
            with self.proxy.fault(chance.choice(LOST), chance.randint(1, MOST_REQUESTS)):
                yield
        else:
            yield


@contextlib.contextmanager
def _filled(ballast: Path, free: int) -> Iterator[None]:
    """Almost no space is left."""
    room = os.statvfs(ballast.parent)
    ballast.write_bytes(b"\0" * max(room.f_bavail * room.f_frsize - free, 0))
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def on_disk(folder: Path) -> Iterator[Place]:
    disk = folder / "disk"
    try:
        with small_disk(disk, "32m"):
            root = disk / "root"
            root.mkdir()
            yield Place(str(root / "ds"), ("kill", "full disk"), ballast=disk / "ballast")
    except PermissionError:
        yield Place(str(disk / "ds"), ("kill",))


@contextlib.contextmanager
def on_s3(server: S3Server) -> Iterator[Place]:
    proxy = Proxy(server.host, server.port)
    try:
        environment = server.environment() | {"AWS_ENDPOINT_URL": proxy.url, "AWS_MAX_ATTEMPTS": "2"}
        yield Place(f"{server.bucket()}/ds", ("kill", "lost answer"), environment, proxy=proxy)
    finally:
        proxy.stop()


# ------------------------------------------------------------------------------------------------------------ processes
class Merger:
    """A process that merges; another one takes its place when it is killed."""

    def __init__(self, engine: str, place: Place, folder: Path, environment: dict[str, str]) -> None:
        self._command = [sys.executable, "-m", "tests.faults.merge_model", engine, place.dataset]
        self._environment = cluster.spark_environment() | environment | place.environment
        self._log = folder / "merger.log"
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, step: Step, patience: float) -> dict[str, Any] | None:
        """Its answer; None if it was killed because there was none in time."""
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(step).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], patience)[0]:
            self.kill()
            return None
        line = process.stdout.readline()
        assert line, f"it ended by itself: {self._log.read_text()[-3000:]}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*cluster._dies_with_us(), *self._command],
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        return self._process

    def kill(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.communicate()
        cluster.end_session(self._process.pid)
        self._process = None


# ------------------------------------------------------------------------------------------------------------- the soak
@dataclass
class Soak:
    place: Place
    merger: Merger
    state: State
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    usual: float = 1.0  # seconds that a step takes

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.violations:
            self.step(Step.any(self.chance, self.counts["steps"] + 1))

    def step(self, step: Step) -> None:
        self.counts["steps"] += 1
        fault = self.chance.choice((*self.place.faults, "none"))
        patience = self.chance.uniform(0, 1.2 * self.usual) if fault == "kill" else PATIENCE
        began = time.monotonic()
        with self.place.troubled(fault, self.chance):
            answer = self.merger.ask(step, patience)
        if answer is None:
            self.counts["kills"] += 1
        elif "counts" in answer:
            self.counts["acknowledged"] += 1
            self.usual += 0.2 * (time.monotonic() - began - self.usual)
        else:
            self.counts[f"told {answer['error']}"] += 1
        if fault not in ("none", "kill"):
            self.counts[f"{fault}s"] += 1
        self._check(step, fault, answer)

    def _check(self, step: Step, fault: str, answer: dict[str, Any] | None) -> None:
        before, after = self.state, step.applied(self.state)
        found = state_of(inlay.read_parquet(self.place.dataset))
        if answer is None or answer.get("error") in OPEN_ENDS:
            allowed = [before, after]
        elif "error" in answer:
            allowed = [before]
        else:
            allowed = [after]
            if answer["counts"] != step.counts(before):
                self.violations.append(f"{step}: {answer['counts']} were told instead of {step.counts(before)}")
        if fault in ("none", "kill") and answer is not None and "error" in answer:
            self.violations.append(f"{step} failed though nothing was wrong: {answer['message']}")
        if found not in allowed:
            differ = {key for key in found.keys() | after.keys() if found.get(key) != after.get(key)}
            self.violations.append(f"{step} under {fault!r}, answered {answer}: {len(differ)} keys are not as after it")
        self.state = found

    def finish(self, engine: str, tally: Tally) -> None:
        self.merger.kill()
        inlay.recover(self.place.dataset)
        self.violations += [f"left behind: {name}" for name in self._left()]
        others = ds.dataset(**_plain(self.place.dataset), format="parquet", partitioning="hive").to_table()
        if state_of(others) != self.state:
            self.violations.append("plain readers see something else")
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        print(told)
        tally(f"{engine} on {self.place.dataset.partition('://')[0]}: {told}", self.counts["steps"], self.violations)

    def _left(self) -> list[str]:
        if self.place.ballast:
            return leftovers(Path(self.place.dataset).parent)
        store = _plain(self.place.dataset).get("filesystem")
        return [name for name in store.find(self.place.dataset) if ".staging" in name] if store else []


def _plain(dataset: str) -> dict[str, Any]:
    """How pyarrow alone reads a dataset."""
    if "://" not in dataset:
        return {"source": dataset}
    import s3fs

    store = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], skip_instance_cache=True)
    return {"source": dataset.removeprefix("s3://"), "filesystem": store}


def _seconds(thorough: bool) -> float:
    return float(os.environ.get("INLAY_SOAK_SECONDS") or (60 if thorough else 6))


def soak(engine: str, place: Place, folder: Path, environment: dict[str, str], seconds: float, tally: Tally) -> None:
    start = [(key, f"0.{key}") for key in range(0, KEYS, 2)]
    inlay.write_dataset(table_of(start), place.dataset, partition_columns=["day"], max_rows_per_file=50)
    drama = Soak(place, Merger(engine, place, folder, environment), dict(start))
    try:
        drama.run(seconds)
        drama.finish(engine, tally)
    finally:
        drama.merger.kill()


# Short runs soak each engine on one kind of storage.
LONG, SPARK = pytest.mark.long, pytest.mark.spark
ON_DISK = ("pyarrow", "duckdb", pytest.param("spark", marks=[SPARK, LONG]))
ON_S3 = ("pyarrow", pytest.param("duckdb", marks=LONG), pytest.param("spark", marks=SPARK))


@pytest.fixture
def surroundings(request: pytest.FixtureRequest, name: str) -> dict[str, str]:
    """Spark lives on when a merger is killed, with whatever its tasks are doing."""
    return {"INLAY_SPARK_MASTER": request.getfixturevalue("connect")} if name == "spark" else {}


@pytest.mark.parametrize("name", ON_DISK)
def test_merges_on_a_disk(
    name: str, surroundings: dict[str, str], tmp_path: Path, thorough: bool, tally: Tally
) -> None:
    with on_disk(tmp_path) as place:
        soak(name, place, tmp_path, surroundings, _seconds(thorough), tally)


@pytest.mark.parametrize("name", ON_S3)
def test_merges_on_s3(
    s3: S3Server,  # noqa: F811
    name: str,
    surroundings: dict[str, str],
    tmp_path: Path,
    thorough: bool,
    tally: Tally,
) -> None:
    with on_s3(s3) as place:
        soak(name, place, tmp_path, surroundings, _seconds(thorough), tally)
