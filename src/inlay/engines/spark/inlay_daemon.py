"""The daemon that imports the modules of tasks before it forks Spark's Python workers.

Spark runs this module with `python -m` (setting spark.python.daemon.module). Spark's own daemon forks first, so that
each new worker spends 1 to 2 s importing pyarrow and pandas. Executors can get this file without the package, so it
must not need inlay. It ignores failed imports: the worker reports them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import resource
import warnings

_MODULES = (
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.json",
    "pyarrow.parquet",
    "pyspark.worker",
    "inlay.engines.edits",
    "inlay.engines.kernels",
    "inlay.pipeline.conversion",
    "inlay.storage",
)


MEMORY_VARIABLE = "INLAY_WORKER_MEMORY_BYTES"


def limit_memory() -> None:
    """Limit the memory of this process, and of each worker that it forks, to the bytes in the environment."""
    limit = int(os.environ.get(MEMORY_VARIABLE, "0"))
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def preload() -> None:
    for module in _MODULES:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    with contextlib.suppress(Exception):
        import pyarrow as pa

        pa.array([1])  # the first array of Python objects imports pandas
    # A worker collects garbage after each task. Frozen objects are not tracked, and their memory stays shared.
    gc.collect()
    gc.freeze()


def main() -> None:
    from pyspark.daemon import manager

    limit_memory()
    preload()
    manager()


if __name__ == "__main__":
    main()
