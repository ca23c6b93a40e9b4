"""The engines, by name. An engine is imported when it is first asked for."""

from __future__ import annotations

import importlib
import os
from typing import Any, cast

from inlay.engines.base import Engine
from inlay.errors import EngineNotInstalledError, unknown

__all__ = ["get_engine"]

# name -> (module, class, what to install)
_ENGINES = {
    "pyarrow": ("inlay.engines.arrow", "ArrowEngine", "inlay"),
    "duckdb": ("inlay.engines.duckdb", "DuckDBEngine", "inlay[duckdb]"),
    "spark": ("inlay.engines.spark", "SparkEngine", "inlay[spark]"),
}


def _choose(data: Any) -> str:
    from_spark = type(data).__module__.startswith("pyspark.")
    return "spark" if from_spark or os.environ.get("INLAY_SPARK_MASTER") else "pyarrow"


def get_engine(name: str | Engine = "auto", data: Any = None, **settings: Any) -> Engine:
    """The engine of this name; `auto` is spark for a Spark DataFrame or a configured master, else pyarrow.

    `settings` are the engine's own.
    """
    if not isinstance(name, str):
        return name
    chosen = _choose(data) if name == "auto" else name
    if chosen not in _ENGINES:
        raise unknown("engine", name, ["auto", *_ENGINES])
    module, class_, install = _ENGINES[chosen]
    try:
        return cast(Engine, getattr(importlib.import_module(module), class_)(**settings))
    except ImportError as error:
        raise EngineNotInstalledError(
            f"The {chosen} engine is not installed: {error}.", hint=f"pip install '{install}'"
        ) from error
