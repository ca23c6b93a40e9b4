"""Random merges with killed processes, full disks and lost responses.

After each merge, the dataset equals a model, before or after the merge. Each result and each error describes the
outcome correctly, with exact counts.
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
from tests.faults.merge_model import KEYS, UNCERTAIN_ERRORS, State, Step, state_of, table_of
from tests.faults.proxy import KINDS, Proxy
from tests.faults.scenarios import leftovers
from tests.faults.service_process import small_disk
from tests.s3 import S3Server, s3  # noqa: F401  (a fixture)
from tests.spark import cluster

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200)]
Tally = Callable[[str, int, list[str]], None]
SEED = int(os.environ.get("INLAY_FAULT_SEED") or 1)
TIMEOUT_SECONDS = 180.0
MAX_REQUESTS = 150  # of a merge on S3; a fault at a later request has no effect
# Without kinds that cut the network, because then every request waits for its retries. test_s3.py tests those kinds.
RESPONSE_FAULTS = [kind for kind in KINDS if not kind.endswith("cut")]


# ------------------------------------------------------------------------------------------------------------- storage
@dataclass
class Storage:
    """The location of a dataset, and the faults that can occur there."""

    dataset: str
    faults: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    ballast: Path | None = None
    proxy: Proxy | None = None

    @contextlib.contextmanager
    def inject(self, fault: str, rng: random.Random) -> Iterator[None]:
        if fault == "full disk" and self.ballast:
            with _filled(self.ballast, rng.randrange(200_000)):
                yield
        elif fault == "lost response" and self.proxy:
            with self.proxy.fault(rng.choice(RESPONSE_FAULTS), rng.randint(1, MAX_REQUESTS)):
                yield
        else:
            yield


@contextlib.contextmanager
def _filled(ballast: Path, free: int) -> Iterator[None]:
    """Fill the disk of `ballast` except for `free` bytes."""
    space = os.statvfs(ballast.parent)
    ballast.write_bytes(b"\0" * max(space.f_bavail * space.f_frsize - free, 0))
    try:
        yield
    finally:
        ballast.unlink()


@contextlib.contextmanager
def on_disk(folder: Path) -> Iterator[Storage]:
    disk = folder / "disk"
    try:
        with small_disk(disk, "32m"):
            root = disk / "root"
            root.mkdir()
            yield Storage(str(root / "ds"), ("kill", "full disk"), ballast=disk / "ballast")
    except PermissionError:
        yield Storage(str(disk / "ds"), ("kill",))


@contextlib.contextmanager
def on_s3(server: S3Server) -> Iterator[Storage]:
    proxy = Proxy(server.host, server.port)
    try:
        environment = server.environment() | {"AWS_ENDPOINT_URL": proxy.url, "AWS_MAX_ATTEMPTS": "2"}
        yield Storage(f"{server.bucket()}/ds", ("kill", "lost response"), environment, proxy=proxy)
    finally:
        proxy.stop()


# ------------------------------------------------------------------------------------------------------------ processes
class Merger:
    """A process that merges. The next request starts a new process after a kill."""

    def __init__(self, engine: str, storage: Storage, folder: Path, environment: dict[str, str]) -> None:
        self._command = [sys.executable, "-m", "tests.faults.merge_model", engine, storage.dataset]
        self._environment = cluster.spark_environment() | environment | storage.environment
        self._log = folder / "merger.log"
        self._process: subprocess.Popen[bytes] | None = None

    def request(self, step: Step, timeout: float) -> dict[str, Any] | None:
        """Run a step and return its response. Kill the process after the timeout and return None."""
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(step).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], timeout)[0]:
            self.kill()
            return None
        line = process.stdout.readline()
        assert line, f"the process exited by itself: {self._log.read_text()[-3000:]}"
        response: dict[str, Any] = json.loads(line)
        return response

    def _start(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*cluster.kill_on_parent_exit(), *self._command],
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


# ------------------------------------------------------------------------------------------------------------- soak
@dataclass
class Soak:
    storage: Storage
    merger: Merger
    state: State
    rng: random.Random = field(default_factory=lambda: random.Random(SEED))
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    step_seconds: float = 1.0  # a moving average

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.violations:
            self.step(Step.choose(self.rng, self.counts["steps"] + 1))

    def step(self, step: Step) -> None:
        self.counts["steps"] += 1
        fault = self.rng.choice((*self.storage.faults, "none"))
        timeout = self.rng.uniform(0, 1.2 * self.step_seconds) if fault == "kill" else TIMEOUT_SECONDS
        began = time.monotonic()
        with self.storage.inject(fault, self.rng):
            response = self.merger.request(step, timeout)
        if response is None:
            self.counts["kills"] += 1
        elif "counts" in response:
            self.counts["acknowledged"] += 1
            self.step_seconds += 0.2 * (time.monotonic() - began - self.step_seconds)
        else:
            self.counts[f"errors {response['error']}"] += 1
        if fault not in ("none", "kill"):
            self.counts[f"{fault}s"] += 1
        self._check(step, fault, response)

    def _check(self, step: Step, fault: str, response: dict[str, Any] | None) -> None:
        before, after = self.state, step.apply(self.state)
        found = state_of(inlay.read_parquet(self.storage.dataset))
        if response is None or response.get("error") in UNCERTAIN_ERRORS:
            allowed = [before, after]
        elif "error" in response:
            allowed = [before]
        else:
            allowed = [after]
            if response["counts"] != step.counts(before):
                self.violations.append(f"{step}: reported {response['counts']} instead of {step.counts(before)}")
        if fault in ("none", "kill") and response is not None and "error" in response:
            self.violations.append(f"{step} failed without a fault: {response['message']}")
        if found not in allowed:
            differ = {key for key in found.keys() | after.keys() if found.get(key) != after.get(key)}
            self.violations.append(
                f"{step} with {fault!r}, response {response}: {len(differ)} keys differ from the state after it"
            )
        self.state = found

    def finish(self, engine: str, tally: Tally) -> None:
        self.merger.kill()
        inlay.recover(self.storage.dataset)
        self.violations += [f"leftover file: {name}" for name in self._leftovers()]
        plain = ds.dataset(**_pyarrow_arguments(self.storage.dataset), format="parquet", partitioning="hive").to_table()
        if state_of(plain) != self.state:
            self.violations.append("pyarrow reads other rows")
        summary = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        print(summary)
        tally(
            f"{engine} on {self.storage.dataset.partition('://')[0]}: {summary}", self.counts["steps"], self.violations
        )

    def _leftovers(self) -> list[str]:
        if self.storage.ballast:
            return leftovers(Path(self.storage.dataset).parent)
        store = _pyarrow_arguments(self.storage.dataset).get("filesystem")
        return [name for name in store.find(self.storage.dataset) if ".staging" in name] if store else []


def _pyarrow_arguments(dataset: str) -> dict[str, Any]:
    """Return the arguments with which pyarrow reads a dataset without inlay."""
    if "://" not in dataset:
        return {"source": dataset}
    import s3fs

    store = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], skip_instance_cache=True)
    return {"source": dataset.removeprefix("s3://"), "filesystem": store}


def _seconds(thorough: bool) -> float:
    return float(os.environ.get("INLAY_SOAK_SECONDS") or (60 if thorough else 6))


def run_soak(
    engine: str, storage: Storage, folder: Path, environment: dict[str, str], seconds: float, tally: Tally
) -> None:
    start = [(key, f"0.{key}") for key in range(0, KEYS, 2)]
    inlay.write_dataset(table_of(start), storage.dataset, partition_columns=["day"], max_rows_per_file=50)
    soak = Soak(storage, Merger(engine, storage, folder, environment), dict(start))
    try:
        soak.run(seconds)
        soak.finish(engine, tally)
    finally:
        soak.merger.kill()


# Short runs test pyarrow on both storages and DuckDB on a disk; they kill a Spark executor in tests/spark.
LONG, SPARK = pytest.mark.long, pytest.mark.spark
ON_DISK = ("pyarrow", "duckdb", pytest.param("spark", marks=[SPARK, LONG]))
ON_S3 = ("pyarrow", pytest.param("duckdb", marks=LONG), pytest.param("spark", marks=[SPARK, LONG]))


@pytest.fixture
def engine_environment(request: pytest.FixtureRequest, name: str) -> dict[str, str]:
    """Use a Spark server that keeps running, with its tasks, when a merging process is killed."""
    return {"INLAY_SPARK_MASTER": request.getfixturevalue("connect")} if name == "spark" else {}


@pytest.mark.parametrize("name", ON_DISK)
def test_merges_on_a_disk(
    name: str, engine_environment: dict[str, str], tmp_path: Path, thorough: bool, tally: Tally
) -> None:
    with on_disk(tmp_path) as storage:
        run_soak(name, storage, tmp_path, engine_environment, _seconds(thorough), tally)


@pytest.mark.parametrize("name", ON_S3)
def test_merges_on_s3(
    s3: S3Server,  # noqa: F811
    name: str,
    engine_environment: dict[str, str],
    tmp_path: Path,
    thorough: bool,
    tally: Tally,
) -> None:
    with on_s3(s3) as storage:
        run_soak(name, storage, tmp_path, engine_environment, _seconds(thorough), tally)
