"""The Spark session of this process, its jobs and its workers.

get_session    return the session, classic or Connect; use_session sets one that the caller made
tagged         tag the jobs started in the block; cancel(tag) stops them, report_tasks counts their tasks
ship_package   send this package to executors that lack it; check_workers compares versions
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import warnings
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from inlay.engines.spark import inlay_daemon
from inlay.engines.spark.conf import (
    DAEMON_MODULE,
    SHIPPED_DAEMON,
    ServiceSession,
    clean_java_home,
    default_conf,
    display_master,
    is_loopback,
    require_master,
    spark_java_home,
    this_package,
    user_conf,
    worker_python,
)
from inlay.errors import EngineNotInstalledError, InlayError, InvalidArgumentError, SparkUnavailableError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = [
    "ServiceSession",
    "Worker",
    "cancel",
    "cancel_jobs",
    "check_workers",
    "current_session",
    "get_session",
    "is_connect",
    "parallelism",
    "report_tasks",
    "service_session",
    "ship_package",
    "stop_session",
    "tagged",
    "use_session",
]

T = TypeVar("T")
OnTasks = Callable[[int, int], None]

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 60.0  # for the first answers of a Connect server
_STOP_SECONDS = 5.0
_cores: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_lock = threading.RLock()
_session: Any = None
_owned = False  # whether this module started the session, and so may stop it
_service: ServiceSession | None = None  # of the session, if a service started it
_pid = os.getpid()  # a forked child must not stop its parent's session
_shipping = threading.Lock()  # shipping must not wait for a session that starts
_shipped: weakref.WeakSet[Any] = weakref.WeakSet()
_zip: str | None = None


# --------------------------------------------------------------------------------------------------------- session
def get_session(master: str | None = None, service: ServiceSession | None = None) -> SparkSession:
    """Return the session of this process, or start one, as `service` wants it."""
    global _session, _owned, _service
    with _lock:
        found = current_session()
        if found is None:
            stop_session()  # cleans up after a JVM that died
            found, _owned = _start(master, service), True
            _session, _service = found, service
        elif master is not None and not _runs_on(found, master):
            raise InvalidArgumentError(
                f"This process already has a Spark session on {_master_of(found)}, not on {master}.",
                hint="A process can have only one session. Stop it first, or use another process.",
            )
        return found


def service_session() -> ServiceSession | None:
    """Return how a service started the session, or None if it did not."""
    return _service


def use_session(spark: SparkSession) -> None:
    """Use the caller's Spark session. inlay never reconfigures or stops it."""
    global _session, _owned, _service
    with _lock:
        if _session is not spark:
            if _owned and _is_alive(_session) and not _same_context(_session, spark):
                stop_session()
            _session, _owned, _service = spark, False, None


def current_session() -> SparkSession | None:
    """Return the session if it is alive, without starting one."""
    global _session  # noqa: PLW0603 - one per process
    with _lock:
        if _is_alive(_session):
            return cast("SparkSession", _session)
        found = None if _owned else _foreign_session()
        if found is not None:
            _session = found  # SparkSession.active() returns a new object each time
        return found


def stop_session() -> None:
    """Stop the session and its JVM if inlay started it. Otherwise only stop using it."""
    global _session, _owned, _service
    with _lock:
        spark, owned = _session, _owned and os.getpid() == _pid
        _session, _owned, _service = None, False, None
        if spark is None or not owned:
            return
        if is_connect(spark):
            with contextlib.suppress(Exception):  # the server may have ended, or not answer
                _within(_STOP_SECONDS, spark.stop)
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # it prevents a classic session
        else:
            _stop_classic(spark)


def _foreign_session() -> Any:
    """Return a session that other code of this process started. Does not import pyspark."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        found = SparkSession.active()
    except PySparkException:
        return None
    return found if _is_alive(found) else None


def _is_alive(spark: Any) -> bool:
    if spark is None:
        return False
    if is_connect(spark):
        return not spark.is_stopped
    context = spark.sparkContext
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - pyspark has no public way
    return context._jsc is not None and (process is None or process.poll() is None)  # noqa: SLF001


def _same_context(one: Any, other: Any) -> bool:
    return not is_connect(one) and not is_connect(other) and one.sparkContext is other.sparkContext


def _master_of(spark: Any) -> str:
    return f"sc://{spark.client.host}" if is_connect(spark) else str(spark.sparkContext.master)


def _runs_on(spark: Any, master: str) -> bool:
    if is_connect(spark):
        return master.startswith("sc://")
    return bool(spark.sparkContext.master == master)


def _start(master: str | None, service: ServiceSession | None) -> SparkSession:
    _require_pyspark()
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    user = _submitted_conf() or user_conf(os.environ)
    wanted = master or os.environ.get("INLAY_SPARK_MASTER") or _configured_master(user) or "local[*]"
    require_master(wanted)
    try:
        spark = _connect(wanted, user) if wanted.startswith("sc://") else _launch(wanted, user, service)
    except InlayError:
        raise
    except Exception as error:
        raise InlayError(
            f"Spark could not start on {wanted}: {_reason(error)}", hint="Read Spark's messages on stderr."
        ) from error
    atexit.register(stop_session)
    return spark


def _reason(error: Exception) -> str:
    """Return Java's message without its stack trace."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    messages = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return next(iter([*messages, *lines]), type(error).__name__)


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise EngineNotInstalledError(
            "The spark engine needs pyspark, which is not installed.", hint="Run `pip install 'inlay[spark]'`."
        ) from error


def _configured_master(user: Mapping[str, str]) -> str | None:
    return user.get("spark.remote") or os.environ.get("SPARK_REMOTE") or user.get("spark.master")


def _connect(url: str, user: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    # The server has all other settings.
    defaults = {k: v for k, v in default_conf(url, user, os.environ).items() if k.startswith("spark.sql.")}
    settings: dict[str, Any] = defaults | {k: v for k, v in user.items() if k.startswith("spark.sql.")}
    builder = SparkSession.builder.remote(url).config(map=settings)
    try:
        _require_answer(url)
        return _within(_CONNECT_SECONDS, builder.getOrCreate)
    except TimeoutError as error:
        raise SparkUnavailableError(
            f"The Spark server {display_master(url)} did not answer within {_CONNECT_SECONDS:g} seconds.",
            hint="Check the server, or set INLAY_SPARK_MASTER to another master or to local[*].",
        ) from error


def _require_answer(url: str) -> None:
    """Raise `TimeoutError` if a Connect server accepts no calls. A client of pyspark would wait also at exit."""
    import grpc  # type: ignore[import-untyped]
    from pyspark.sql.connect.client import DefaultChannelBuilder

    with DefaultChannelBuilder(url).toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(_CONNECT_SECONDS)
        except grpc.FutureTimeoutError as error:
            raise TimeoutError from error


def _within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of a call to a server, or raise `TimeoutError`. The call goes on in its own thread."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            future.set_exception(error)

    threading.Thread(target=run, name="inlay-spark-call", daemon=True).start()
    return future.result(seconds)


def _launch(master: str, user: Mapping[str, str], service: ServiceSession | None) -> SparkSession:
    from pyspark.sql import SparkSession

    defaults = default_conf(master, user, os.environ, service)
    settings: dict[str, Any] = {k: v for k, v in user.items() if k not in {"spark.master", "spark.remote"}} | defaults
    with _environment(_launch_environment(master, user, service)):
        spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    if defaults.get("spark.python.daemon.module") == SHIPPED_DAEMON:
        # Executors fetch the file into their working directory, where `python -m` finds it.
        spark.sparkContext.addFile(str(Path(inlay_daemon.__file__)))
    return spark


def _launch_environment(master: str, user: Mapping[str, str], service: ServiceSession | None) -> dict[str, str | None]:
    changes: dict[str, str | None] = {
        "PYSPARK_PYTHON": worker_python(user, os.environ),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
        "SPARK_REMOTE": None,  # it would select Spark Connect
    }
    if is_loopback(master):
        changes["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # under spark-submit the JVM runs already
        if service is not None and master.startswith("local"):
            changes["JAVA_HOME"] = clean_java_home(os.environ, uses_s3=service.uses_s3)
        else:
            changes["JAVA_HOME"] = spark_java_home(os.environ)
    return changes


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Change environment variables that Spark reads when it starts."""
    before = {name: os.environ.get(name) for name in changes}
    _set_environment(changes)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _submitted_conf() -> dict[str, str] | None:
    """Return the settings of the JVM that spark-submit started, or None without spark-submit."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - an earlier SparkConf would be empty
    return dict(SparkConf().getAll()) | user_conf({"INLAY_SPARK_CONF": os.environ.get("INLAY_SPARK_CONF", "")})


def _stop_classic(spark: Any) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway  # noqa: SLF001
    with contextlib.suppress(Exception), warnings.catch_warnings():  # the JVM may have ended
        warnings.simplefilter("ignore")
        spark.stop()
    # stop() may have failed halfway, and it leaves the JVM running, which ends below.
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process.stdin.close()  # ends the JVM
    with contextlib.suppress(Exception):
        process.wait(10)
    if process.poll() is None:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------------------------------------------ jobs
def parallelism(spark: Any) -> int:
    """Return the number of tasks that Spark runs at the same time."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    if spark not in _cores:
        from pyspark.sql import functions as f

        # A Connect client can only count the partitions that the server makes by default.
        last = spark.range(1 << 16).select(f.spark_partition_id().alias("p")).agg(f.max("p")).collect()[0][0]
        _cores[spark] = int(last) + 1
    return _cores[spark]


@contextlib.contextmanager
def tagged(spark: Any, tag: str) -> Iterator[None]:
    """Tag the jobs that this thread starts in the block."""
    with _tagged_connect(spark, tag) if is_connect(spark) else _tagged_classic(spark.sparkContext, tag):
        yield


def cancel_jobs(spark: Any, tag: str) -> None:
    if is_connect(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def cancel(tag: str, spark: Any = None) -> None:
    """Cancel the running jobs with this tag. Spark raises an exception in their threads.

    Jobs that start later are not canceled: check a flag before each job.
    """
    spark = current_session() if spark is None else spark
    if spark is not None:
        cancel_jobs(spark, tag)


@contextlib.contextmanager
def report_tasks(spark: Any, tag: str, callback: OnTasks) -> Iterator[None]:
    """Tag the jobs that this thread starts in the block, and report (tasks done, in total).

    The total grows when a job adds stages. The callback runs in another thread on a classic session, and in the
    waiting thread on Connect. Its exception is raised when the block ends.
    """
    reports = _Reports(callback)
    reporting = _report_connect(spark, tag, reports) if is_connect(spark) else _report_classic(spark, tag, reports)
    with tagged(spark, tag), reporting:
        yield
    reports.finish()


class _Reports:
    """Calls a callback when counts change. Its exception must not reach Spark's threads."""

    def __init__(self, callback: OnTasks) -> None:
        self._callback = callback
        self._last = (0, 0)
        self._error: Exception | None = None

    def __call__(self, done: int, total: int) -> None:
        if (done, total) == self._last or self._error is not None:
            return
        self._last = (done, total)
        try:
            self._callback(done, total)
        except Exception as error:  # noqa: BLE001 - raised by finish
            self._error = error

    def finish(self) -> None:
        if self._error is not None:
            raise self._error


@contextlib.contextmanager
def _tagged_classic(context: Any, tag: str) -> Iterator[None]:
    # Jobs are canceled by tag, which broadcasts keep too. The status tracker finds jobs only by group.
    names = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
    before = {name: context.getLocalProperty(name) for name in names}
    context.setJobGroup(tag, before["spark.job.description"] or tag, interruptOnCancel=True)
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)
        for name, value in before.items():
            context.setLocalProperty(name, value)


@contextlib.contextmanager
def _tagged_connect(spark: Any, tag: str) -> Iterator[None]:
    added = tag not in spark.getTags()
    spark.addTag(tag)
    try:
        yield
    finally:
        if added:
            spark.removeTag(tag)


@contextlib.contextmanager
def _report_classic(spark: Any, tag: str, reports: _Reports) -> Iterator[None]:
    tracker = spark.sparkContext.statusTracker()
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(_POLL_SECONDS):
            with contextlib.suppress(Exception):  # the session may end first
                reports(*_count_classic(tracker, tag))

    thread = threading.Thread(target=poll, name="inlay-spark-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(Exception):
            reports(*_count_classic(tracker, tag))


def _count_classic(tracker: Any, tag: str) -> tuple[int, int]:
    done = total = 0
    for job_id in tracker.getJobIdsForGroup(tag):
        job = tracker.getJobInfo(job_id)
        stages = [tracker.getStageInfo(stage) for stage in job.stageIds] if job else []
        for stage in stages:
            if stage is not None:
                # Spark skips stages whose output exists: the tasks of such a stage never complete.
                done += stage.numTasks if job.status == "SUCCEEDED" else stage.numCompletedTasks
                total += stage.numTasks
    return done, total


@contextlib.contextmanager
def _report_connect(spark: Any, tag: str, reports: _Reports) -> Iterator[None]:
    operations: dict[str, tuple[int, int]] = {}

    # Spark calls the handler with these keywords. Another signature would break the query.
    def handler(stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:  # noqa: ARG001
        if tag not in spark.getTags():  # a tag belongs to a thread, a handler to the session
            return
        found = list(stages or ())
        total = sum(stage.num_tasks for stage in found)
        finished = sum(stage.num_completed_tasks for stage in found)
        operations[operation_id or ""] = (total if done else finished, total)
        reports(sum(d for d, _ in operations.values()), sum(t for _, t in operations.values()))

    spark.registerProgressHandler(handler)
    try:
        yield
    finally:
        spark.removeProgressHandler(handler)


# --------------------------------------------------------------------------------------------------------- workers
@dataclass(frozen=True, slots=True)
class Worker:
    """A Python worker of Spark and its versions. `inlay` is None if the package is missing."""

    host: str
    pid: int
    executable: str
    python: str
    pyarrow: str
    inlay: str | None

    @property
    def name(self) -> str:
        return f"{self.executable} on {self.host}"


def is_connect(spark: Any) -> bool:
    """Return whether a session uses Spark Connect, without importing that part of pyspark."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def ship_package(spark: Any) -> None:
    """Send this package to the executors, once per session. An installed copy takes precedence."""
    receiver = spark if is_connect(spark) else spark.sparkContext  # sessions of one context share files
    with _shipping:
        if receiver in _shipped:
            return
        if is_connect(spark):
            spark.addArtifacts(_package_zip(), pyfile=True)
        elif not _has_package(spark):
            receiver.addPyFile(_package_zip())
        _shipped.add(receiver)


def _has_package(spark: Any) -> bool:
    """Return whether workers import this package from the same files (in local mode)."""
    context = spark.sparkContext
    return bool(
        context.master.startswith("local") and context.getConf().get("spark.python.daemon.module") == DAEMON_MODULE
    )


def _package_zip() -> str:
    """Return the path of this package as a ZIP file, written once per process."""
    global _zip  # noqa: PLW0603 - a cache
    if _zip is None or not os.path.exists(_zip):
        folder = tempfile.mkdtemp(prefix="inlay-package-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        _zip = os.path.join(folder, f"inlay-{this_package().__version__}.zip")
        _write_zip(_zip)
    return _zip


def _write_zip(path: str) -> None:
    root = Path(str(this_package().__file__)).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                archive.write(file, Path("inlay") / file.relative_to(root))


def check_workers(spark: Any) -> list[Worker]:
    """Return the Python workers. Raise if a version differs, because files could differ too."""
    import pyarrow as pa

    version = str(this_package().__version__)
    workers = _find_workers(spark)
    for worker in workers:
        if worker.inlay is None:
            raise InlayError(f"Spark worker {worker.name} does not have inlay.", hint="Call ship_package(spark) first.")
        if worker.inlay != version:
            raise InlayError(
                f"Spark worker {worker.name} has inlay {worker.inlay}, but this process has {version}.",
                hint="Install this version on the workers, or uninstall inlay there: the driver then sends a copy.",
            )
        if worker.pyarrow.split(".")[0] != pa.__version__.split(".")[0]:
            raise InlayError(
                f"Spark worker {worker.name} has pyarrow {worker.pyarrow}, but this process has {pa.__version__}.",
                hint="Install the same major version of pyarrow on the driver and the workers.",
            )
    return workers


def _find_workers(spark: Any) -> list[Worker]:
    # A nested function is pickled by value, so that a worker without this package can run it.
    def report(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib
        import os
        import platform
        import socket
        import sys

        import pyarrow as pa

        for _ in batches:
            pass
        try:
            version = importlib.import_module("inlay").__version__
        except ImportError:
            version = None
        facts = [socket.gethostname(), os.getpid(), sys.executable, platform.python_version(), pa.__version__]
        types = [pa.string(), pa.int64(), *[pa.string()] * 4]
        columns = [pa.array([fact], kind) for fact, kind in zip([*facts, version], types, strict=True)]
        yield pa.RecordBatch.from_arrays(columns, ["host", "pid", "executable", "python", "pyarrow", "inlay"])

    fields = "host string, pid long, executable string, python string, pyarrow string, inlay string"
    try:
        # Spark makes a partition per core, so that every executor gets a task.
        rows = spark.range(4096).mapInArrow(report, fields).collect()
    except Exception as error:
        raise InlayError(
            f"Spark's Python workers cannot run inlay: {_first_line(error)}",
            hint="Install this Python version and pyarrow on the executors, and set PYSPARK_PYTHON to that Python.",
        ) from error
    return sorted({Worker(**row.asDict()) for row in rows}, key=lambda worker: (worker.host, worker.pid))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
