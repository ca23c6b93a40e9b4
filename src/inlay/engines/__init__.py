"""The engines by name. An engine's module is imported when that engine is first used."""

from __future__ import annotations

import importlib
import os
from typing import Any, cast

from inlay.engines.base import Engine
from inlay.errors import EngineNotInstalledError, InvalidArgumentError, unknown

__all__ = ["get_engine"]

# name -> (module, class, package to install)
_ENGINES = {
    "pyarrow": ("inlay.engines.local", "ArrowEngine", "inlay"),
    "duckdb": ("inlay.engines.duckdb", "DuckDBEngine", "inlay[duckdb]"),
    "spark": ("inlay.engines.spark.engine", "SparkEngine", "inlay[spark]"),
}


def get_engine(name: str | Engine = "auto", data: object = None, **settings: Any) -> Engine:
    """Return the engine `name`, made with `settings`; an engine object is returned unchanged.

    `auto` is `spark` if `data` is a Spark DataFrame or INLAY_SPARK_MASTER is set, otherwise `pyarrow`.
    """
    chosen = _default_engine(data) if name == "auto" else name
    if settings.get("use_merge") is None:
        settings.pop("use_merge", None)
    elif chosen != "duckdb":
        raise InvalidArgumentError("use_merge needs the DuckDB engine.", hint='Pass engine="duckdb".')
    if not isinstance(chosen, str):
        return chosen
    if chosen not in _ENGINES:
        raise unknown("engine", name, ["auto", *_ENGINES])
    module, class_, package = _ENGINES[chosen]
    try:
        return cast(Engine, getattr(importlib.import_module(module), class_)(**settings))
    except ImportError as error:
        raise EngineNotInstalledError(
            f"The {chosen} engine is not installed: {error}.", hint=f"Run `pip install '{package}'`."
        ) from error


def _default_engine(data: object) -> str:
    from_spark = type(data).__module__.startswith("pyspark.")
    return "spark" if from_spark or os.environ.get("INLAY_SPARK_MASTER") else "pyarrow"
