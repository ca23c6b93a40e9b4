"""The parts of a workspace (catalog, storage, Spark, queries) and a report about them."""

from __future__ import annotations

import contextlib
import platform
import re
import shutil
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, get_args

from inlay.catalog import Catalog
from inlay.constants import JobState
from inlay.engines.spark.session import cancel, current_session, get_session, ship_package, stop_session, tagged
from inlay.errors import InlayError, SparkUnavailableError
from inlay.query import QueryEngine
from inlay.settings import Settings
from inlay.workspace.runner import JobHandle
from inlay.workspace.storage import ServiceStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["About", "Backend", "Services", "Spark", "about", "time_limit"]

_START_SECONDS = 120.0
_STOP_SECONDS = 5.0
_CANCEL_SECONDS = 0.2


class Spark:
    """The Spark session of the service, which creates and loads require."""

    def __init__(self, master: str) -> None:
        self.master = master
        self._error: BaseException | None = None
        self._versions: dict[str, str] = {}
        self._is_owner = False  # a session of the caller is never stopped
        self._started = threading.Event()
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the session and its first Python worker in the background."""
        threading.Thread(target=self._warm, name="inlay-spark", daemon=True).start()

    def _warm(self) -> None:
        with contextlib.suppress(SparkUnavailableError):
            self._start()

    def state(self) -> str:
        """Return `starting`, `ready`, or the reason why Spark is unavailable."""
        if not self._started.is_set():
            return "starting"
        if self._error is not None:
            return str(self._error)
        return "ready" if current_session() is not None else "The Spark session has ended; the next job starts it."

    def versions(self) -> dict[str, str]:
        """Return the versions of Spark and its Java, or nothing if no session runs."""
        session = current_session() if self._started.is_set() else None
        if session is None:
            return {}
        if not self._versions:
            java = session.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')")
            self._versions = {"Spark": session.version, "Java": java.collect()[0][0]}
        return self._versions

    def session(self) -> SparkSession:
        """Return the session. Waits while it starts, and restarts a session that has ended."""
        if current_session() is None or self._error is not None:
            return self._start()
        return get_session()

    @contextlib.contextmanager
    def running(self, handle: JobHandle) -> Iterator[SparkSession]:
        """Yield the session for one job; stopping the job cancels the Spark jobs of the block."""
        spark = self.session()
        with handle.interrupted_by(lambda: cancel(handle.id, spark)), tagged(spark, handle.id):
            yield spark

    def _start(self) -> SparkSession:
        if not self._lock.acquire(timeout=_START_SECONDS):
            raise SparkUnavailableError("Spark is still starting.", hint="Try again in a minute.")
        try:
            self._is_owner |= current_session() is None
            spark = get_session(self.master)
            ship_package(spark)
            if not self._started.is_set():
                _fork_worker(spark)
            self._error = None
        except Exception as error:
            self._error = error
            if isinstance(error, SparkUnavailableError):
                raise
            reason = error.message if isinstance(error, InlayError) else f"{type(error).__name__}: {error}"
            raise SparkUnavailableError(
                f"Cannot start Spark on {self.master!r}: {reason}",
                hint="Set INLAY_SPARK_MASTER to a reachable master, or to local[*].",
            ) from error
        else:
            return spark
        finally:
            self._started.set()
            self._lock.release()

    def close(self) -> None:
        """Stop the session. A session that is still starting ends with this process."""
        if not self._lock.acquire(timeout=_STOP_SECONDS):
            return
        try:
            if self._is_owner:
                stop_session()
        finally:
            self._lock.release()


@contextlib.contextmanager
def time_limit(spark: SparkSession, seconds: float) -> Iterator[None]:
    """Cancel the Spark jobs of the block, and raise, if the block takes longer."""
    tag = f"inlay-{uuid.uuid4().hex}"
    has_ended, has_expired = threading.Event(), threading.Event()

    def watch() -> None:
        if not has_ended.wait(seconds):
            has_expired.set()
            while not has_ended.wait(_CANCEL_SECONDS):  # again, because the block can start another job
                cancel(tag, spark)

    threading.Thread(target=watch, name="inlay-time-limit", daemon=True).start()
    try:
        with tagged(spark, tag):
            yield
    except Exception as error:
        if has_expired.is_set():
            raise SparkUnavailableError(
                f"Spark did not answer within {seconds:g} seconds.",
                hint="Try again when fewer jobs run, or check the Spark master.",
            ) from error
        raise
    finally:
        has_ended.set()


def _fork_worker(spark: SparkSession) -> None:
    """Run an empty job that forks the first Python worker before a user needs it."""
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    catalog: Catalog
    storage: ServiceStorage
    spark: Spark
    query: QueryEngine


# ---------------------------------------------------------------------------------------------------------------- about
_PACKAGES = {"inlay": "inlay", "PyArrow": "pyarrow", "DataFusion": "datafusion"}
_USER = re.compile(r"(?<=://)[^/@]*@")
_DRIVER = re.compile(r"\+\w+(?=://)")
_KINDS = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "s3": "S3"}


@dataclass(frozen=True, slots=True)
class Backend:
    """The catalog or the storage. The address contains no secrets."""

    kind: str
    address: str
    free_bytes: int | None = None  # of a local disk


@dataclass(frozen=True, slots=True)
class About:
    """Versions, backends and totals of a workspace."""

    versions: dict[str, str]
    spark_master: str
    storage: Backend
    catalog: Backend
    datasets: int
    rows: int  # in current versions
    bytes: int  # in current versions
    uploads: int  # pending
    jobs: dict[str, int]  # by state


def about(services: Services) -> About:
    catalog = services.catalog
    datasets, rows, size = catalog.datasets.totals()
    return About(
        versions=_versions() | services.spark.versions(),
        spark_master=services.spark.master,
        storage=_storage(services.storage),
        catalog=_catalog(catalog.location),
        datasets=datasets,
        rows=rows,
        bytes=size,
        uploads=catalog.uploads.list(status="pending", limit=1).count,
        jobs={state: catalog.jobs.list(state=state, limit=1).count for state in get_args(JobState)},
    )


def _versions() -> dict[str, str]:
    packages = {name: metadata.version(package) for name, package in _PACKAGES.items()}
    return {"inlay": packages.pop("inlay"), "Python": platform.python_version()} | packages


def _catalog(location: str) -> Backend:
    kind = _kind(location)
    return Backend(kind, location.partition(":///")[2] if kind == "SQLite" else _DRIVER.sub("", location))


def _storage(storage: ServiceStorage) -> Backend:
    root = storage.root
    if root.store.is_local:
        return Backend("Local disk", root.path, shutil.disk_usage(root.path).free)
    return Backend(_kind(root.uri), _USER.sub("", root.uri))


def _kind(address: str) -> str:
    scheme = re.split(r"[+:]", address, maxsplit=1)[0]
    return _KINDS.get(scheme, scheme)
