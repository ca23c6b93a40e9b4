"""Dependencies of the routes: the service, paging, job preferences, documented problems.

All dependencies are coroutines, because FastAPI runs plain functions in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from fastapi import Depends, Header, Query, Request

from inlay.errors import InvalidRequestError
from inlay.server.middleware import Metrics
from inlay.server.problems import MEDIA_TYPE

if TYPE_CHECKING:
    from inlay.server.processes import Processes
    from inlay.workspace import Workspace

log = logging.getLogger("inlay.server")
T = TypeVar("T")
Threads = Literal["catalog", "queries", "bytes", "health"]
_THREADS: dict[Threads, int] = {"catalog": 32, "queries": 64, "bytes": 32, "health": 2}


class Service:
    """The open workspace of the application, and the threads that call it."""

    def __init__(self, make_workspace: Callable[[], Workspace]) -> None:
        self.metrics = Metrics()
        self.is_stopping: Callable[[], bool] = lambda: False
        self.failure: BaseException | None = None  # the error that opening the workspace raised
        self.on_failure: Callable[[], object] = lambda: None
        self.processes: Processes | None = None  # the other HTTP processes, of which this is the main process
        self.loop: asyncio.AbstractEventLoop | None = None
        self.health_check: asyncio.Task[dict[str, str]] | None = None  # the last one
        self.health_checked_at = -math.inf
        self._make_workspace = make_workspace
        self._opening: asyncio.Task[Workspace] | None = None
        self._limits: dict[Threads, anyio.CapacityLimiter] = {}

    def start(self) -> None:
        """Start opening the workspace. Call this in the event loop."""
        self.loop = asyncio.get_running_loop()
        self._limits = {kind: anyio.CapacityLimiter(count) for kind, count in _THREADS.items()}
        self._opening = asyncio.create_task(self._open())
        self._opening.add_done_callback(self._opened)

    async def _open(self) -> Workspace:
        return await anyio.to_thread.run_sync(lambda: self._make_workspace().open())

    def _opened(self, opening: asyncio.Task[Workspace]) -> None:
        self.failure = None if opening.cancelled() else opening.exception()
        if self.failure is not None:
            log.error("cannot start the service: %s", self.failure)
            self.on_failure()
        elif self.processes is not None and not opening.cancelled():
            self.processes.start(opening.result().spark.warm)

    async def stop(self) -> None:
        """Close the workspace, which waits for running jobs for a while."""
        if self._opening is not None:
            with contextlib.suppress(Exception):  # `_opened` logged it
                workspace = await self._opening
                await anyio.to_thread.run_sync(workspace.close)

    @property
    def is_open(self) -> bool:
        return self._opening is not None and self._opening.done()

    async def workspace(self) -> Workspace:
        """Return the open workspace, or raise the error that opening it raised."""
        if self._opening is None:
            raise RuntimeError("The lifespan of the application has not started.")
        return self._opening.result() if self._opening.done() else await asyncio.shield(self._opening)

    async def run(self, work: Callable[[Workspace], T], threads: Threads = "catalog") -> T:
        """Call the workspace in a thread. Each kind of work has its own threads."""
        workspace = await self.workspace()
        return await anyio.to_thread.run_sync(lambda: work(workspace), limiter=self._limits[threads])

    async def look_up(self, work: Callable[[Workspace], T]) -> T:
        """Look something up in the catalog: in this thread if the catalog answers within microseconds."""
        workspace = await self.workspace()
        return work(workspace) if workspace.catalog.is_local else await self.run(work)

    async def next(self, step: Callable[[], T], threads: Threads = "bytes") -> T:
        """Run one step of a started stream or upload in a thread."""
        return await anyio.to_thread.run_sync(step, limiter=self._limits[threads])


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceDep = Annotated[Service, Depends(_service)]
Accept = Annotated[str | None, Header(include_in_schema=False)]
Version = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Version number. Default: the current version.")]


class PageRange(NamedTuple):
    limit: int
    offset: int


async def _page_range(
    limit: Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")] = 100,
    offset: Annotated[int, Query(ge=0, le=2**63 - 1, description="Number of items to skip.")] = 0,
) -> PageRange:
    return PageRange(limit, offset)


Paging = Annotated[PageRange, Depends(_page_range)]


class JobPreferences(NamedTuple):
    """The request headers that concern its job."""

    is_async: bool
    idempotency_key: str | None


async def _job_preferences(
    prefer: Annotated[
        str | None,
        Header(description="`respond-async`: return 202 with the job immediately.", examples=["respond-async"]),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1, max_length=255, description="Repeating a request with the same key returns its first result."
        ),
    ] = None,
) -> JobPreferences:
    preferences = [part.strip().lower() for part in (prefer or "").replace(";", ",").split(",")]
    return JobPreferences("respond-async" in preferences, idempotency_key)


Preferences = Annotated[JobPreferences, Depends(_job_preferences)]


async def reject_unexpected_parameters(request: Request) -> None:
    """Raise if the request has a query parameter that its route does not define, or one parameter several times."""
    if not request.scope["query_string"]:
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise InvalidRequestError(
            f"Unknown query parameter {unknown[0][:100]!r}.",
            errors=[{"field": name[:100], "message": "Unknown parameter"} for name in unknown[:100]],
            hint=f"Valid parameters: {', '.join(known)}." if known else "Remove the parameter: this path accepts none.",
        )
    names = Counter(name for name, _ in request.query_params.multi_items())
    repeated = [name for name, count in names.items() if count > 1]
    if repeated:
        raise InvalidRequestError(
            f"The query parameter {repeated[0]!r} occurs {names[repeated[0]]:,} times.",
            errors=[{"field": name, "message": "Repeated parameter"} for name in repeated],
            hint="Send each parameter once.",
        )


_ALWAYS = (400, 401, 403, 500, 503)
_DESCRIPTIONS = {
    400: "The request is invalid.",
    401: "The API key is missing or invalid.",
    403: "The API key lacks the required scope, or the request comes from another web site.",
    404: "The requested object does not exist.",
    406: "The response is not available in a format that the client accepts.",
    408: "The request or its query timed out.",
    409: "The request conflicts with another request or with the current state.",
    413: "The request, upload or query result is too large.",
    415: "The body is not JSON.",
    422: "The data is invalid, or the Idempotency-Key belongs to another request.",
    500: "The service failed unexpectedly.",
    503: "The catalog, the storage or Spark is unavailable. Retry later.",
    507: "The disk of the service has too little free space for new data.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe these statuses, and those that every route can return, for OpenAPI."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": _DESCRIPTIONS[status], "content": content} for status in sorted({*_ALWAYS, *statuses})
    }
