"""The service's Spark session: started in the background, asked for by every conversion and load."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from inlay.engines.spark_session import cancel, current_session, get_session, ship_package, stop_session, tagged
from inlay.errors import InlayError, SparkUnavailableError
from inlay.workspace.runner import JobHandle

__all__ = ["Spark"]

_PATIENCE = 120.0
_PATIENCE_AT_THE_END = 5.0


class Spark:
    """There is no way around it: while it cannot be had, conversions and loads answer 503 with the reason."""

    def __init__(self, master: str) -> None:
        self.master = master
        self._error: BaseException | None = None
        self._versions: dict[str, str] = {}
        self._ours = False  # a session that was there before stays when we go
        self._started = threading.Event()
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Start the session and a first worker, without making anybody wait."""
        threading.Thread(target=self._warm, name="inlay-spark", daemon=True).start()

    def _warm(self) -> None:
        with contextlib.suppress(SparkUnavailableError):
            self._start()

    def state(self) -> str:
        """`starting`, `ready`, or why it is not there."""
        if not self._started.is_set():
            return "starting"
        if self._error is not None:
            return str(self._error)
        return "ready" if current_session() is not None else "The Spark session has ended; the next job starts it."

    def versions(self) -> dict[str, str]:
        """Of Spark and of the Java that it runs on; what is not running has none."""
        session = current_session() if self._started.is_set() else None
        if session is None:
            return {}
        if not self._versions:
            asked = session.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.version')")
            self._versions = {"Spark": session.version, "Java": asked.collect()[0][0]}
        return self._versions

    def session(self) -> Any:
        """The session; waits for its start, and starts it again if it was lost."""
        if current_session() is None or self._error is not None:
            return self._start()
        return get_session()

    @contextlib.contextmanager
    def running(self, handle: JobHandle) -> Iterator[Any]:
        """The session for one job: what it starts inside can be stopped with it."""
        spark = self.session()
        with handle.interrupted_by(lambda: cancel(handle.id, spark)), tagged(spark, handle.id):
            yield spark

    def _start(self) -> Any:
        if not self._lock.acquire(timeout=_PATIENCE):
            raise SparkUnavailableError("Spark is still starting.", hint="Try again in a minute.")
        try:
            self._ours |= current_session() is None
            spark = get_session(self.master)
            ship_package(spark)
            if not self._started.is_set():
                _first_job(spark)
            self._error = None
        except Exception as error:
            self._error = error
            reason = error.message if isinstance(error, InlayError) else f"{type(error).__name__}: {error}"
            raise SparkUnavailableError(
                f"Spark cannot be started on {self.master!r}: {reason}",
                hint="Set INLAY_SPARK_MASTER to a master that can be reached, or local[*].",
            ) from error
        else:
            return spark
        finally:
            self._started.set()
            self._lock.release()

    def close(self) -> None:
        """Stop the session. One that is still starting ends with this process: who wants to stop need not wait."""
        if not self._lock.acquire(timeout=_PATIENCE_AT_THE_END):
            return
        try:
            if self._ours:
                stop_session()
        finally:
            self._lock.release()


def _first_job(spark: Any) -> None:
    """Forks the first Python worker, which would otherwise be a user's wait."""
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
