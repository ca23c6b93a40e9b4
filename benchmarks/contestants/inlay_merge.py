"""inlay on any engine: a merge, or only its plan."""

from __future__ import annotations

from typing import Any, ClassVar

import inlay
from benchmarks import spark
from benchmarks.measure import Contestant, Spec, dataset_files, main


class Inlay(Contestant):
    packages: ClassVar[tuple[str, ...]] = ("inlay", "pyarrow", "duckdb", "pyspark")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.source = spec.load_source()
        self.engine = spec.options.get("engine", "pyarrow")
        self.call = inlay.plan_merge if spec.options.get("plan_only") else inlay.merge
        if self.engine == "spark":
            spark.session()
            spark.warm(spec, self._merge)
        if "transaction" in spec.options:
            self._merge(spec.target)  # commits the transaction, so that the measured call replays it

    def _merge(self, target: str) -> Any:
        spec = self.spec
        partitions = spec.partition_columns or None
        return self.call(
            self.source, target, spec.strategy, spec.key_columns, partitions, engine=self.engine,
            newer_by=spec.newer_by, missing_columns="keep" if spec.updated_columns else "error",
            transaction=spec.options.get("transaction"),
        )  # fmt: skip

    def run(self) -> dict[str, Any]:
        result = self._merge(self.spec.target)
        counts = ("inserted", "updated", "deleted", "target_count_before", "target_count_after")
        return {name: getattr(result, name) for name in counts if hasattr(result, name)}

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(Inlay)
