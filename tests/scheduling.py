"""Distribution of tests among the worker processes of pytest-xdist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class GroupScheduling(LoadFileScheduling):
    """Let one worker run a whole group of tests, and never repeat a test that ended its worker.

    xdist repeats such a test in each new worker. A test that exceeds its time limit ends its worker, so that a run
    with such a test would take an hour.
    """

    def __init__(self, config: Any, log: Any, group: Callable[[str], str]) -> None:
        super().__init__(config, log)
        self._group = group

    def _split_scope(self, nodeid: str) -> str:
        return self._group(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Remove a worker, return the test that it was running, and give its other tests to other workers."""
        units = self.assigned_work[node]
        ended = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        if ended is None:
            return super().remove_node(node)
        del self.assigned_work[node]
        units[self._group(ended)][ended] = True
        self.workqueue.update({group: unit for group, unit in units.items() if not all(unit.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return ended
