"""The Spark session: one per process, started when it is first needed.

get_session    the session, classic or Connect; use_session hands in one that the caller made
tagged         jobs started inside carry a tag; cancel(tag) stops them, watch counts their tasks
ship_package   this package for executors without it; check_workers compares versions
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from inlay.engines import spark_daemon
from inlay.engines.spark_conf import SHIPPED_DAEMON, default_conf, is_loopback, user_conf, worker_python
from inlay.engines.spark_java import spark_java_home
from inlay.engines.spark_jobs import cancel_jobs, parallelism, tagged, watch
from inlay.engines.spark_workers import Worker, check_workers, is_connect, ship_package
from inlay.errors import EngineNotInstalledError, InlayError, InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Worker",
    "cancel",
    "check_workers",
    "current_session",
    "get_session",
    "is_connect",
    "parallelism",
    "ship_package",
    "stop_session",
    "tagged",
    "use_session",
    "watch",
]

_lock = threading.RLock()
_session: Any = None
_owned = False  # whether we started it, and so may stop it
_pid = os.getpid()  # a forked child may not stop its parent's


def get_session(master: str | None = None) -> SparkSession:
    """The session of this process. A session that the caller already has is taken as it is."""
    global _session, _owned  # noqa: PLW0603 - one per process
    with _lock:
        found = current_session()
        if found is None:
            stop_session()  # what a JVM that died left behind
            found, _owned = _start(master), True
            _session = found
        elif master is not None and not _runs_on(found, master):
            raise InvalidArgumentError(
                f"this process already has a Spark session on {_master_of(found)}, not on {master}",
                hint="There is one session per process: stop it first, or use a process of its own.",
            )
        return found


def use_session(spark: SparkSession) -> None:
    """From now on work on this session. It stays the caller's: it is never changed nor stopped."""
    global _session, _owned
    with _lock:
        if _session is not spark:
            if _owned and _is_alive(_session) and not _same_context(_session, spark):
                stop_session()
            _session, _owned = spark, False


def current_session() -> SparkSession | None:
    """The session if there is a living one; nothing is started."""
    global _session  # noqa: PLW0603 - one per process
    with _lock:
        if _is_alive(_session):
            return cast("SparkSession", _session)
        found = None if _owned else _foreign_session()
        if found is not None:
            _session = found  # pyspark makes another object each time it is asked
        return found


def stop_session() -> None:
    """Stop the session if we started it, with its JVM; forget it otherwise."""
    global _session, _owned
    with _lock:
        spark, owned = _session, _owned and os.getpid() == _pid
        _session, _owned = None, False
        if spark is None or not owned:
            return
        if is_connect(spark):
            with contextlib.suppress(Exception):  # the server may be gone
                spark.stop()
            os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # left there, it forbids a classic session
        else:
            _stop_classic(spark)


def _foreign_session() -> Any:
    """A session that somebody else in this process started; pyspark is not imported to look for it."""
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
    process = getattr(context._gateway, "proc", None)  # noqa: SLF001 - pyspark has no other way to ask
    return context._jsc is not None and (process is None or process.poll() is None)  # noqa: SLF001


def _same_context(one: Any, other: Any) -> bool:
    return not is_connect(one) and not is_connect(other) and one.sparkContext is other.sparkContext


def _master_of(spark: Any) -> str:
    return f"sc://{spark.client.host}" if is_connect(spark) else str(spark.sparkContext.master)


def _runs_on(spark: Any, master: str) -> bool:
    if is_connect(spark):
        return master.startswith("sc://")
    return bool(spark.sparkContext.master == master)


def _start(master: str | None) -> SparkSession:
    _require_pyspark()
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    user = _submitted_conf() or user_conf(os.environ)
    wanted = master or os.environ.get("INLAY_SPARK_MASTER") or _configured_master(user) or "local[*]"
    try:
        spark = _connect(wanted, user) if wanted.startswith("sc://") else _launch(wanted, user)
    except InlayError:
        raise
    except Exception as error:
        raise InlayError(
            f"Spark could not start on {wanted}: {_reason(error)}",
            hint="The lines that Spark itself wrote to stderr say more.",
        ) from error
    atexit.register(stop_session)
    return spark


def _reason(error: Exception) -> str:
    """What Java says first; its stack traces are longer than anything that they tell."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.removeprefix(": ") for line in lines if line.startswith(": ")]
    return next(iter([*told, *lines]), type(error).__name__)


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise EngineNotInstalledError("pyspark is not installed", hint="pip install 'inlay[spark]'") from error


def _configured_master(user: Mapping[str, str]) -> str | None:
    return user.get("spark.remote") or os.environ.get("SPARK_REMOTE") or user.get("spark.master")


def _connect(url: str, user: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    # Only what belongs to a session: the rest is the server's.
    ours = {k: v for k, v in default_conf(url, user, os.environ).items() if k.startswith("spark.sql.")}
    settings: dict[str, Any] = ours | {k: v for k, v in user.items() if k.startswith("spark.sql.")}
    return SparkSession.builder.remote(url).config(map=settings).getOrCreate()


def _launch(master: str, user: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    ours = default_conf(master, user, os.environ)
    settings: dict[str, Any] = {k: v for k, v in user.items() if k not in {"spark.master", "spark.remote"}} | ours
    with _environment(_launch_environment(master, user)):
        spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    if ours.get("spark.python.daemon.module") == SHIPPED_DAEMON:
        # Executors fetch it into their working directory, from where `python -m` imports.
        spark.sparkContext.addFile(str(Path(spark_daemon.__file__)))
    return spark


def _launch_environment(master: str, user: Mapping[str, str]) -> dict[str, str | None]:
    changes: dict[str, str | None] = {
        "PYSPARK_PYTHON": worker_python(user, os.environ),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON") or sys.executable,
        "SPARK_REMOTE": None,  # a classic master was asked for
    }
    if is_loopback(master):
        changes["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP") or "127.0.0.1"
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit started the JVM
        changes["JAVA_HOME"] = spark_java_home(os.environ)
    return changes


@contextlib.contextmanager
def _environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Spark takes part of its settings from the environment, only while it starts."""
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
    """Under spark-submit the JVM is there before us and knows every setting."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001 - a SparkConf made before is empty
    return dict(SparkConf().getAll()) | user_conf({"INLAY_SPARK_CONF": os.environ.get("INLAY_SPARK_CONF", "")})


def _stop_classic(spark: Any) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway  # noqa: SLF001
    with contextlib.suppress(Exception), warnings.catch_warnings():  # the JVM may be gone
        warnings.simplefilter("ignore")
        spark.stop()
    # Where stop() failed half-way, and also since the JVM, which it leaves running with its options, is ended here.
    SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    with contextlib.suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process.stdin.close()  # the JVM ends when this pipe does
    with contextlib.suppress(Exception):
        process.wait(10)
    if process.poll() is None:
        process.kill()
        process.wait()


def cancel(tag: str, spark: Any = None) -> None:
    """Stop the running jobs with this tag, from any thread. Their callers get an exception of Spark's.

    Jobs that start later are not stopped: keep a flag of your own and look at it before each one.
    """
    spark = current_session() if spark is None else spark
    if spark is not None:
        cancel_jobs(spark, tag)
