"""The pyarrow engine: kernels on a pool of threads."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from inlay.engines.base import FileMatch, Target
from inlay.engines.buckets import ArrowSource
from inlay.engines.matching import match_files, open_target
from inlay.engines.threads import ThreadedKernels, bounded_map
from inlay.storage import Location

__all__ = ["ArrowEngine"]


class ArrowEngine(ThreadedKernels):
    name = "pyarrow"

    def match(
        self, location: Location, source: ArrowSource, key_columns: Sequence[str], targets: Sequence[Target]
    ) -> Iterator[FileMatch]:
        with ThreadPoolExecutor(self.workers, "inlay-match") as pool:
            opened = list(pool.map(lambda target: open_target(location, target), targets))
            in_order = functools.partial(bounded_map, pool, self.workers)
            yield from match_files(location, source, key_columns, opened, in_order)
