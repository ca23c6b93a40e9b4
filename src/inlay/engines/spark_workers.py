"""What Spark's Python workers have: this package is shipped to those without it, and versions are compared."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.engines.spark_conf import DAEMON_MODULE, this_package
from inlay.errors import InlayError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Worker", "check_workers", "is_connect", "package_zip", "ship_package"]

_lock = threading.Lock()
_shipped: weakref.WeakSet[Any] = weakref.WeakSet()
_zip: str | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """A Python worker; `inlay` and `pyarrow` are versions, None where the package is missing."""

    host: str
    pid: int
    executable: str
    python: str
    pyarrow: str
    inlay: str | None

    @property
    def place(self) -> str:
        return f"{self.executable} on {self.host}"


def is_connect(spark: Any) -> bool:
    """Whether a session is of Spark Connect, without importing its half of pyspark."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def ship_package(spark: Any) -> None:
    """Give this package to executors, once per session. Workers that import it anyway keep their own."""
    receiver = spark if is_connect(spark) else spark.sparkContext  # sessions of one context share its files
    with _lock:
        if receiver in _shipped:
            return
        if is_connect(spark):
            spark.addArtifacts(package_zip(), pyfile=True)
        elif not _shares_our_files(spark):
            receiver.addPyFile(package_zip())
        _shipped.add(receiver)


def _shares_our_files(spark: Any) -> bool:
    """In local mode with our own daemon module, workers have already imported the package from where we did."""
    context = spark.sparkContext
    return bool(
        context.master.startswith("local") and context.getConf().get("spark.python.daemon.module") == DAEMON_MODULE
    )


def package_zip() -> str:
    """This package as one importable file, made once per process."""
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
    """Ask the workers for their versions; other ones than ours could write other files, so they are an error."""
    import pyarrow as pa

    workers = _ask_workers(spark)
    for worker in workers:
        if worker.inlay is None:
            raise InlayError(f"Spark worker {worker.place} has no inlay", hint="Call ship_package(spark) first.")
        if worker.inlay != this_package().__version__:
            raise InlayError(
                f"Spark worker {worker.place} has inlay {worker.inlay}, this process {this_package().__version__}",
                hint="Install the same version there, or none: it is then shipped.",
            )
        if worker.pyarrow.split(".")[0] != pa.__version__.split(".")[0]:
            raise InlayError(
                f"Spark worker {worker.place} has pyarrow {worker.pyarrow}, this process {pa.__version__}",
                hint="Install the same major version on both sides.",
            )
    return workers


def _ask_workers(spark: Any) -> list[Worker]:
    # A function inside a function travels by value: a worker without this package can run it and say so.
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
        # As many partitions as there are cores, so that every executor that is there gets a task.
        rows = spark.range(4096).mapInArrow(report, fields).collect()
    except Exception as error:
        raise InlayError(
            f"Spark's Python workers cannot run this project's code: {_first_line(error)}",
            hint="Executors need this Python version with pyarrow; PYSPARK_PYTHON says which Python they start.",
        ) from error
    return sorted({Worker(**row.asDict()) for row in rows}, key=lambda worker: (worker.host, worker.pid))


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
