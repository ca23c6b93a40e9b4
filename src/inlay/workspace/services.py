"""The parts of a workspace (catalog, storage, Spark, queries) and a report about them."""

from __future__ import annotations

import contextlib
import logging
import math
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
from inlay.engines.spark.session import (
    ServiceSession,
    cancel,
    current_session,
    get_session,
    ship_package,
    stop_session,
    tagged,
)
from inlay.engines.spark.tasks import TaskJobs
from inlay.errors import InlayError, SparkUnavailableError
from inlay.query import QueryEngine
from inlay.settings import Settings
from inlay.workspace.health import Check
from inlay.workspace.runner import JobHandle
from inlay.workspace.storage import ServiceStorage
from inlay.workspace.views import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["About", "Backend", "Services", "Spark", "about", "time_limit"]

log = logging.getLogger("inlay.spark")
_START_SECONDS = 120.0
_STOP_SECONDS = 5.0
_CANCEL_SECONDS = 0.2
_VERSIONS_SECONDS = 2.0


class Spark:
    """The Spark session of the service. It starts with the first work, and stops after a while without work."""

    def __init__(self, master: str, service: ServiceSession | None = None, idle_seconds: float = math.inf) -> None:
        self.master = master
        self._service = service
        self._idle_seconds = idle_seconds
        self._error: BaseException | None = None
        self._versions: dict[str, str] = {}
        self._versions_check = Check(self._find_versions)
        self._is_owner = False  # a session of the caller is never stopped
        self._transition: str | None = None  # the state while the session starts or stops
        self._lock = threading.Lock()
        self._users = 0
        self._users_lock = threading.Lock()
        self._idle_timer: threading.Timer | None = None

    def warm(self) -> None:
        """Start the session and its first Python worker in the background, unless it runs."""
        if self.state() != "starting" and current_session() is None:
            threading.Thread(target=self._warm, name="inlay-spark", daemon=True).start()

    def _warm(self) -> None:
        with contextlib.suppress(InlayError), self.using() as spark:
            TaskJobs(spark, SparkUnavailableError).run(_no_work, [None])

    def state(self) -> str:
        """Return `not started`, `starting`, `ready`, or the reason why Spark is unavailable."""
        if self._transition is not None:  # current_session() would wait for its end
            return self._transition
        if self._error is not None:
            return str(self._error)
        return "ready" if current_session() is not None else "not started"

    def versions(self) -> dict[str, str]:
        """Return the versions of Spark and its Java, or nothing if no session runs or Spark does not answer."""
        try:
            return self._versions_check.start().result(_VERSIONS_SECONDS)
        except Exception as error:  # noqa: BLE001  (pyspark raises many kinds)
            log.warning("cannot get the versions of Spark: %s", type(error).__name__)
            return {}

    def _find_versions(self) -> dict[str, str]:
        session = current_session() if self.state() == "ready" else None
        if session is None:
            return {}
        if not self._versions:
            java = session.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')")
            self._versions = {"Spark": session.version, "Java": java.collect()[0][0]}
        return self._versions

    @contextlib.contextmanager
    def using(self) -> Iterator[SparkSession]:
        """Yield the session. Waits while it starts. The session does not stop before the block ends."""
        with self._users_lock:
            self._users += 1
        try:
            yield self._session()
        finally:
            with self._users_lock:
                self._users -= 1
                self._stop_later()

    @contextlib.contextmanager
    def running(self, handle: JobHandle) -> Iterator[SparkSession]:
        """Yield the session for one job; stopping the job cancels the Spark jobs of the block."""
        with self.using() as spark:

            def interrupt() -> None:  # a server that does not answer must not block the caller
                threading.Thread(target=cancel, args=(handle.id, spark), name="inlay-cancel", daemon=True).start()

            with handle.interrupted_by(interrupt), tagged(spark, handle.id):
                yield spark

    def _session(self) -> SparkSession:
        if current_session() is None or self._error is not None:
            return self._start()
        return get_session()

    def _start(self) -> SparkSession:
        if not self._lock.acquire(timeout=_START_SECONDS):
            raise SparkUnavailableError("Spark is still starting.", hint="Try again in a minute.")
        self._transition = "starting"
        try:
            self._is_owner |= current_session() is None
            spark = get_session(self.master, self._service)
            ship_package(spark)
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
            self._transition = None
            self._lock.release()

    def _stop_later(self) -> None:
        """Stop the session after the idle time. Each use cancels the timer of the previous use."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._is_owner and not self._users and self._idle_seconds < threading.TIMEOUT_MAX:
            self._idle_timer = threading.Timer(self._idle_seconds, self._stop_if_idle)
            self._idle_timer.daemon = True
            self._idle_timer.start()

    def _stop_if_idle(self) -> None:
        with self._users_lock:  # new users wait, and then start a new session
            if self._users or not self._is_owner:
                return
            with self._lock:
                self._transition = "not started"
                try:
                    stop_session()
                finally:
                    self._transition = None

    def close(self) -> None:
        """Stop the session. A session that is still starting ends with this process."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
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


def _no_work(_: object) -> None:
    """The kernel of a job that starts the first Python worker."""


@dataclass(frozen=True, slots=True)
class Services:
    settings: Settings
    catalog: Catalog
    storage: ServiceStorage
    spark: Spark
    query: QueryEngine
    publisher: Publisher


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
