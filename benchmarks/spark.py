"""What all contestants on Spark share: one session with the same settings, warm before the clock starts."""

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
WARM_UPS = 2


def session() -> Any:
    """The session that inlay makes; Spark's own contestant runs in it too."""
    os.environ.setdefault("INLAY_SPARK_CONF", json.dumps(SETTINGS))
    from inlay.engines.spark_session import current_session, get_session

    return current_session() or get_session(MASTER)


def warm(spec: Spec, merge: Callable[[str], Any]) -> None:
    """The same merge into copies first: a JVM that never ran the code costs several times as much."""
    for _ in range(0 if spec.rehearsal else WARM_UPS):
        copy = Path(spec.work, "warm", "target")
        shutil.copytree(spec.target, copy, copy_function=os.link)  # nobody here writes into an existing file
        merge(str(copy))
        shutil.rmtree(copy.parent)
    os.sync()
