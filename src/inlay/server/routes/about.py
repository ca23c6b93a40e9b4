"""Routes about the service: health, readiness, metrics and documentation."""

from __future__ import annotations

import asyncio
import html
import time
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse

from inlay import errors
from inlay.constants import GOOD_STATES, JobState
from inlay.server import models
from inlay.server.auth import Reader, is_trusted
from inlay.server.dependencies import Service, ServiceDep, problems
from inlay.server.middleware import merge_metrics
from inlay.server.responses import json_response

if TYPE_CHECKING:
    from inlay.workspace import Workspace

__all__ = ["check_health", "router"]

router = APIRouter(tags=["service"])
_STARTING = {"workspace": "starting"}
_PUBLIC_STATES = (*GOOD_STATES, "no answer")  # any other state is a reason, which only readers see
_HEALTH_SECONDS = 1.0
_TRUST_SECONDS = 1.7  # to identify the caller, and to check the parts meanwhile
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}


@router.get("/healthz", summary="Check liveness")
async def healthz() -> models.Health:
    return models.Health(status="ok")


@router.get(
    "/readyz",
    response_model=models.Readiness,
    responses={503: {"model": models.Readiness, "description": "The service is starting, or a part is unavailable."}},
    summary="Check readiness",
)
async def readyz(request: Request, service: ServiceDep) -> Response:
    """Check the catalog, the storage and Spark within 2 seconds. Reasons of failures require the read scope.

    Spark starts with the first upload, preview or job, and stops after a while without work.
    """
    trust = asyncio.create_task(_is_trusted_in_time(request)) if service.is_open else None
    parts = await check_health(service)
    is_ready = service.is_open and all(state in GOOD_STATES for state in parts.values())
    if trust is not None and not await trust:
        parts = {name: state if state in _PUBLIC_STATES else "not ready" for name, state in parts.items()}
    readiness = models.Readiness(status="ready" if is_ready else "not ready", parts=parts)
    return json_response(readiness, 200 if is_ready else 503)


async def _is_trusted_in_time(request: Request) -> bool:
    """Return whether the caller may read. A catalog that does not answer cannot confirm an API key."""
    check = asyncio.create_task(is_trusted(request))
    await asyncio.wait({check}, timeout=_TRUST_SECONDS)
    if not check.done():
        check.add_done_callback(lambda done: done.exception())  # so that no late error is logged
        return False
    return check.exception() is None and check.result()


async def check_health(service: Service) -> dict[str, str]:
    """Check the parts at most once a second, because each check writes to the storage."""
    if not service.is_open:
        return _STARTING
    is_old = time.monotonic() - service.health_checked_at > _HEALTH_SECONDS
    if service.health_check is None or (is_old and service.health_check.done()):
        service.health_checked_at = time.monotonic()
        service.health_check = asyncio.create_task(_check_parts(service))
    return await asyncio.shield(service.health_check)


async def _check_parts(service: Service) -> dict[str, str]:
    parts = service.run(lambda w: w.health(), "health")
    if service.processes is None:
        return await parts
    found, state = await asyncio.gather(parts, service.processes.state())
    return found | {"processes": state}


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    responses=problems(),
    summary="Export Prometheus metrics",
)
async def metrics(service: ServiceDep, _: Reader) -> Response:
    jobs = await service.run(_jobs_by_state)
    own = service.metrics.render(jobs)
    if service.processes is not None:
        answers = await service.processes.answers()
        own = merge_metrics({1: own.decode()} | {number: each.get("metrics", "") for number, each in answers.items()})
    return Response(own, media_type=service.metrics.content_type)


def _jobs_by_state(workspace: Workspace) -> dict[str, int]:
    return {state: workspace.jobs(state, limit=1).count for state in get_args(JobState)}


# ------------------------------------------------------------------------------------------------------- documentation
@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    """Show the OpenAPI document as a page that loads nothing from other hosts."""
    return HTMLResponse(_page("docs.html"), headers=_PAGE_HEADERS)


@router.get("/docs/errors", include_in_schema=False)
async def error_docs() -> Response:
    return HTMLResponse(_page("errors.html").replace("{rows}", _error_rows()), headers=_PAGE_HEADERS)


@cache
def _page(name: str) -> str:
    return resources.files("inlay.server").joinpath("pages", name).read_text(encoding="utf-8")


@cache
def _error_rows() -> str:
    kinds = sorted((getattr(errors, name) for name in errors.__all__), key=lambda kind: kind.code)
    return "\n".join(
        f'<tr id="{kind.code}"><td><code>{kind.code}</code></td><td>{kind.http_status}</td>'
        f"<td>{html.escape(_summary(kind))}</td></tr>"
        for kind in kinds
    )


def _summary(kind: type[errors.InlayError]) -> str:
    return (kind.__doc__ or "").partition("\n")[0]
