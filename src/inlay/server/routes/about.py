"""About the service itself: whether it lives and is ready, what it counts, how it is used."""

from __future__ import annotations

import asyncio
import html
import re
import time
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from inlay import errors
from inlay.choices import JobState
from inlay.server import models
from inlay.server.answers import json_answer
from inlay.server.auth import Reader, is_trusted
from inlay.server.dependencies import ServiceOf, problems
from inlay.server.service import Service

if TYPE_CHECKING:
    from inlay.workspace import Workspace

__all__ = ["router"]

router = APIRouter(tags=["service"])
_STARTING = {"workspace": "starting"}
_STATES = ("ready", "starting")  # what anybody may know; reasons are for those who may read
_LOOK_AGAIN_SECONDS = 1.0
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'",
    "Cache-Control": "no-cache",
}


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> models.Health:
    return models.Health(status="ok")


@router.get(
    "/readyz",
    response_model=models.Readiness,
    responses={503: {"model": models.Readiness, "description": "Not yet, or not any more."}},
    summary="Can it work?",
)
async def readyz(request: Request, service: ServiceOf) -> Response:
    """Whether the catalog, the storage and Spark can be used. Reasons are told to those who may read."""
    parts = await _parts(service)
    ready = all(state == "ready" for state in parts.values())
    if service.is_open and not await is_trusted(request):
        parts = {name: state if state in _STATES else "not ready" for name, state in parts.items()}
    answer = models.Readiness(status="ready" if ready else "not ready", parts=parts)
    return json_answer(answer, 200 if ready else 503)


async def _parts(service: Service) -> dict[str, str]:
    """Looked at once a second, by one at a time: it costs a write to the storage, and anybody may ask."""
    if not service.is_open:
        return _STARTING
    is_old = time.monotonic() - service.look_began > _LOOK_AGAIN_SECONDS
    if service.look is None or (is_old and service.look.done()):
        service.look_began = time.monotonic()
        service.look = asyncio.create_task(service.run(lambda w: w.health()))
    return await asyncio.shield(service.look)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=problems(),
    summary="Counters for Prometheus",
)
async def metrics(service: ServiceOf, _: Reader) -> Response:
    jobs = await service.run(_jobs_by_state)
    return Response(service.metrics.render(jobs), media_type=service.metrics.content_type)


def _jobs_by_state(workspace: Workspace) -> dict[str, int]:
    return {state: workspace.jobs(state, limit=1).count for state in get_args(JobState)}


# ------------------------------------------------------------------------------------------------------- documentation
@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """The API, shown without anything from elsewhere."""
    return HTMLResponse(_page("docs.html"), headers=_PAGE_HEADERS)


@router.get("/docs/errors", include_in_schema=False)
async def docs_of_errors() -> Response:
    return HTMLResponse(_page("errors.html").replace("{rows}", _error_rows()), headers=_PAGE_HEADERS)


@cache
def _page(name: str) -> str:
    return resources.files("inlay.server").joinpath("pages", name).read_text(encoding="utf-8")


@cache
def _error_rows() -> str:
    kinds = sorted((getattr(errors, name) for name in errors.__all__), key=lambda kind: kind.code)
    return "\n".join(
        f'<tr id="{kind.code}"><td><code>{kind.code}</code></td><td>{kind.http_status}</td>'
        f"<td>{html.escape(_meaning(kind))}</td></tr>"
        for kind in kinds
    )


def _meaning(kind: type[errors.InlayError]) -> str:
    """What the tree of errors says of it, or its own words."""
    said = re.search(rf"{kind.__name__}(?: +\(\w+\))? +([^\n]+)", errors.__doc__ or "")
    return said[1] if said else kind.code.replace("_", " ")
