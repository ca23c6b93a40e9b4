"""What every route stands on: the workspace, once it is open, threads that may wait for it, and counters.

The service answers before its workspace is open: imports, migrations and the storage are looked after in the
background, and requests that need them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
import anyio.to_thread

from inlay.server.metrics import Metrics

if TYPE_CHECKING:
    from inlay.workspace import Workspace

__all__ = ["Service", "Threads"]

log = logging.getLogger("inlay.server")
T = TypeVar("T")
Threads = Literal["catalog", "queries", "bytes"]
_THREADS: dict[Threads, int] = {"catalog": 32, "queries": 64, "bytes": 32}


class Service:
    def __init__(self, make_workspace: Callable[[], Workspace]) -> None:
        self.metrics = Metrics()
        self.is_stopping: Callable[[], bool] = lambda: False
        self.failure: BaseException | None = None  # why the workspace could not be opened
        self.on_failure: Callable[[], object] = lambda: None
        self.look_began = -math.inf
        self.look: asyncio.Task[dict[str, str]] | None = None  # at its health, the last one
        self._make_workspace = make_workspace
        self._opening: asyncio.Task[Workspace] | None = None
        self._limits: dict[Threads, anyio.CapacityLimiter] = {}

    # --------------------------------------------------------------------------------------------------- its own life
    def start(self) -> None:
        """Begin to open the workspace; to be called in the event loop."""
        self._limits = {kind: anyio.CapacityLimiter(count) for kind, count in _THREADS.items()}
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(self._opened)

    async def _open(self) -> Workspace:
        return await anyio.to_thread.run_sync(lambda: self._make_workspace().open())

    def _opened(self, opening: asyncio.Task[Workspace]) -> None:
        self.failure = None if opening.cancelled() else opening.exception()
        if self.failure is not None:
            log.error("the service cannot start: %s", self.failure)
            self.on_failure()

    async def stop(self) -> None:
        """Close the workspace, which lets running jobs finish for a while."""
        if self._opening is not None:
            with contextlib.suppress(Exception):  # it was told when it happened
                workspace = await self._opening
                await anyio.to_thread.run_sync(workspace.close)

    # ------------------------------------------------------------------------------------------------------------ use
    @property
    def is_open(self) -> bool:
        return self._opening is not None and self._opening.done()

    async def workspace(self) -> Workspace:
        """The open workspace; raises why it could not be opened."""
        if self._opening is None:
            raise RuntimeError("the application's lifespan has not begun")
        return await asyncio.shield(self._opening)

    async def run(self, work: Callable[[Workspace], T], threads: Threads = "catalog") -> T:
        """Call the workspace in a thread. Each kind of work has its own, so that none keeps another waiting."""
        workspace = await self.workspace()
        return await anyio.to_thread.run_sync(lambda: work(workspace), limiter=self._limits[threads])

    async def next(self, step: Callable[[], T], threads: Threads = "bytes") -> T:
        """One step of something that was begun."""
        return await anyio.to_thread.run_sync(step, limiter=self._limits[threads])
