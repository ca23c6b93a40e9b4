"""The Spark session of all contestants on Spark, and its warm-up."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Spec

MASTER = "local[*]"
SETTINGS = {"spark.driver.memory": "4g"}
# Any option for Java replaces those of inlay, which would slow down Spark's own operators. This one is Java's default.
DEFAULT_JAVA = {"spark.driver.extraJavaOptions": "-XX:+TieredCompilation"}
WARM_UPS = 2


def session(**settings: str) -> Any:
    """Return the session that inlay creates, with additional settings."""
    os.environ.setdefault("INLAY_SPARK_CONF", json.dumps(SETTINGS | settings))
    from inlay.engines.spark.session import current_session, get_session

    return current_session() or get_session(MASTER)


def warm(spec: Spec, merge: Callable[[str], Any]) -> None:
    """Run the same merge into copies first, because a cold JVM needs several times the CPU time."""
    for _ in range(0 if spec.rehearsal else WARM_UPS):
        copy = Path(spec.work, "warm", "target")
        shutil.copytree(spec.target, copy, copy_function=os.link)  # no contestant writes into an existing file
        merge(str(copy))
        shutil.rmtree(copy.parent)
    os.sync()
