"""The lower limit: reads the touched files, writes the same bytes and forces them to disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.measure import Contestant, Spec, dataset_files, main

BLOCK = 1 << 20


class Limit(Contestant):
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.copies = Path(spec.work, "copies")
        self.copies.mkdir()

    def run(self) -> dict[str, Any]:
        for number, name in enumerate(self.spec.touched_files):
            with (
                open(Path(self.spec.target, name), "rb", buffering=0) as source,
                open(self.copies / str(number), "wb", buffering=0) as copy,
            ):
                while block := source.read(BLOCK):
                    copy.write(block)
                os.fsync(copy.fileno())
        return {}

    def files(self) -> list[str]:
        return dataset_files(self.spec.target)


if __name__ == "__main__":
    main(Limit)
