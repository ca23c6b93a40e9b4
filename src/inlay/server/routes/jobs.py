"""Routes of jobs: list, show, cancel and follow them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from inlay.constants import JobState
from inlay.server import models
from inlay.server.auth import Reader, Writer
from inlay.server.dependencies import Paging, Service, ServiceDep, problems
from inlay.server.responses import json_response

if TYPE_CHECKING:
    from inlay.catalog import Job

__all__ = ["router"]

router = APIRouter(tags=["jobs"])
_POLL_SECONDS = 0.25
_KEEP_ALIVE_SECONDS = 15.0  # an empty comment line keeps proxies from closing the connection
_EVENTS: dict[str, Any] = {
    "description": "A `progress` event for each change, then an `end` event. The data of each event is the job.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


@router.get("/v1/jobs", responses=problems(404), summary="List jobs")
async def list_jobs(
    service: ServiceDep,
    _: Reader,
    page: Paging,
    state: Annotated[JobState | None, Query()] = None,
    dataset_id: Annotated[str | None, Query()] = None,
) -> models.Jobs:
    """Jobs are sorted from newest to oldest."""
    return models.Jobs.of(await service.run(lambda w: w.jobs(state, dataset_id, *page)))


@router.get("/v1/jobs/{job_id}", responses=problems(404), summary="Show a job")
async def get_job(job_id: str, service: ServiceDep, _: Reader) -> models.Job:
    return models.Job.of(await service.run(lambda w: w.job(job_id)))


@router.delete(
    "/v1/jobs/{job_id}",
    response_model=models.Job,
    responses={202: {"model": models.Job, "description": "The running job will stop soon."}, **problems(404, 409)},
    summary="Cancel a job",
)
async def cancel_job(job_id: str, service: ServiceDep, _: Writer) -> Response:
    """A queued job ends immediately, a running job stops soon. Neither changes anything."""
    job = await service.run(lambda w: w.cancel_job(job_id))
    return json_response(models.Job.of(job), 200 if job.has_ended else 202)


@router.get(
    "/v1/jobs/{job_id}/events",
    response_class=Response,
    responses={200: _EVENTS, **problems(404)},
    summary="Follow a job",
)
async def follow_job(job_id: str, service: ServiceDep, _: Reader) -> Response:
    """Stream server-sent events until the job ends."""
    first = await service.run(lambda w: w.job(job_id))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(service, first), media_type="text/event-stream", headers=headers)


async def _events(service: Service, job: Job) -> AsyncIterator[bytes]:
    """Yield an event for each observed change, until the job ends or the service stops."""
    last: models.Job | None = None
    idle = 0.0
    while True:
        current = models.Job.of(job)
        if current != last or job.has_ended:
            yield _event("end" if job.has_ended else "progress", current)
            last, idle = current, 0.0
        elif idle >= _KEEP_ALIVE_SECONDS:
            yield b":\n\n"
            idle = 0.0
        if job.has_ended or service.is_stopping():
            return
        await asyncio.sleep(_POLL_SECONDS)
        idle += _POLL_SECONDS
        job = await service.run(lambda w, job=job: w.job(job.id))  # type: ignore[misc]


def _event(name: str, job: models.Job) -> bytes:
    return f"event: {name}\ndata: {job.model_dump_json(by_alias=True)}\n\n".encode()
