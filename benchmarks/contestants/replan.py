"""Planning over many files: first without cached footers, then in a process that uses the cache."""

from __future__ import annotations

from typing import Any, ClassVar

import pyarrow.parquet as pq

import inlay
from benchmarks.measure import Contestant, Spec, dataset_files, main


class Replan(Contestant):
    """Run `plan_merge` once; or, with `footers`, read every footer and its key statistics with pyarrow."""

    packages: ClassVar[tuple[str, ...]] = ("inlay", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.source = spec.load_source()

    def run(self) -> dict[str, Any]:
        if self.spec.options.get("footers"):
            return self._footers()
        plan = inlay.plan_merge(self.source, self.spec.target, "upsert", self.spec.key_columns, engine="pyarrow")
        return {"plan": type(plan).__name__}

    def _footers(self) -> dict[str, Any]:
        groups = 0
        for file in dataset_files(self.spec.target):
            metadata = pq.read_metadata(file)
            for index in range(metadata.num_row_groups):
                statistics = metadata.row_group(index).column(0).statistics
                groups += statistics is not None and statistics.has_min_max
        return {"row_groups": groups}

    def files(self) -> list[str]:
        return []


if __name__ == "__main__":
    main(Replan)
