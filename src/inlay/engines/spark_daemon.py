"""The process that forks Spark's Python workers, with everything that tasks need imported beforehand.

Spark runs it as `python -m` (setting spark.python.daemon.module). The stock daemon forks first, so each new worker
spends 1 to 2 s importing pyarrow and pandas. Executors also get this file alone, without the package: nothing here
may need inlay, and whatever cannot be imported is left to the worker, which reports it in its own way.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import warnings

_MODULES = (
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.json",
    "pyarrow.parquet",
    "pyspark.worker",
    "inlay.engines.kernels",
    "inlay.pipeline.conversion",
    "inlay.storage",
)


def preload() -> None:
    for module in _MODULES:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    with contextlib.suppress(Exception):
        import pyarrow as pa

        pa.array([1])  # the first array made of Python objects imports pandas
    # A worker collects garbage after each task: what it shares with this process need not be walked (and copied).
    gc.collect()
    gc.freeze()


def main() -> None:
    from pyspark.daemon import manager

    preload()
    manager()


if __name__ == "__main__":
    main()
