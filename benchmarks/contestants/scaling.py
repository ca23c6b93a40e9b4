"""inlay's engines step by step: a plan that reads all footers, a plan with cached footers, and the merge."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import inlay
from benchmarks import spark
from benchmarks.measure import Contestant, Spec, dataset_files, main, measure

PLANS = 2  # repeats of each plan; the minimum counts


class Scaling(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("inlay", "pyarrow", "duckdb", "pyspark")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.source = spec.load_source()
        self.engine = spec.options.get("engine", "pyarrow")
        if self.engine == "spark":
            spark.session()
            spark.warm(spec, self._merge)

    def _call(self, function: Callable[..., Any], target: str) -> None:
        function(self.source, target, self.spec.strategy, self.spec.key_columns, engine=self.engine)

    def _merge(self, target: str) -> None:
        self._call(inlay.merge, target)

    def _plan(self) -> None:
        self._call(inlay.plan_merge, self.spec.target)

    def _clear_footer_cache(self) -> None:
        """Replace the sidecar by an empty one, so that the dataset has a sidecar but no cached footers."""
        target = Path(self.spec.target)
        cache = target.with_name(f".{target.name}.txn")
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()

    def _cold(self) -> dict[str, Any]:
        self._clear_footer_cache()
        return measure(self._plan)

    def run(self) -> dict[str, Any]:
        steps = {
            "cold": [self._cold() for _ in range(PLANS)],
            "again": [measure(self._plan) for _ in range(PLANS)],
            "merge": [measure(lambda: self._merge(self.spec.target))],
        }
        return {step: min(runs, key=lambda run: run["cpu"]) for step, runs in steps.items()}

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(Scaling)
