"""inlay itself: a merge, or only its plan."""

from __future__ import annotations

from typing import Any, ClassVar

import inlay
from benchmarks.measure import Spec, dataset_files, main


class Inlay:
    packages: ClassVar[tuple[str, ...]] = ("inlay", "pyarrow")

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.source = spec.load_source()
        self.call = inlay.plan_merge if spec.options.get("plan_only") else inlay.merge

    def run(self) -> dict[str, Any]:
        spec = self.spec
        partitions = spec.partition_columns or None
        result = self.call(self.source, spec.target, spec.strategy, spec.key_columns, partitions, engine="pyarrow")
        counts = ("inserted", "updated", "deleted", "target_count_before", "target_count_after")
        return {name: getattr(result, name) for name in counts if hasattr(result, name)}

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(Inlay)
