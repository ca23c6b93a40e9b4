"""Jobs: work that takes time, how far it is, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi.responses import StreamingResponse

from inlay.choices import JobState
from inlay.server import models
from inlay.server.answers import json_answer
from inlay.server.auth import Reader, Writer
from inlay.server.dependencies import Paging, ServiceOf, problems
from inlay.server.service import Service

if TYPE_CHECKING:
    from inlay.catalog import Job

__all__ = ["router"]

router = APIRouter(tags=["jobs"])
_LOOK_SECONDS = 0.25
_SILENCE_SECONDS = 15.0  # after which a line that says nothing keeps proxies from giving up
_EVENTS: dict[str, Any] = {
    "description": "`progress` whenever the job has changed, then `end`; the data of each is the job.",
    "content": {"text/event-stream": {"schema": {"type": "string"}}},
}


@router.get("/v1/jobs", responses=problems(404), summary="List jobs")
async def list_jobs(
    service: ServiceOf,
    _: Reader,
    page: Paging,
    state: Annotated[JobState | None, Query()] = None,
    dataset_id: Annotated[str | None, Query()] = None,
) -> models.Jobs:
    """Newest first."""
    return models.Jobs.of(await service.run(lambda w: w.jobs(state, dataset_id, *page)))


@router.get("/v1/jobs/{job_id}", responses=problems(404), summary="Show a job")
async def get_job(job_id: str, service: ServiceOf, _: Reader) -> models.Job:
    return models.Job.of(await service.run(lambda w: w.job(job_id)))


@router.delete(
    "/v1/jobs/{job_id}",
    response_model=models.Job,
    responses={202: {"model": models.Job, "description": "It runs, and will stop."}, **problems(404, 409)},
    summary="Cancel a job",
)
async def cancel_job(job_id: str, service: ServiceOf, _: Writer) -> Response:
    """A job that has not begun is cancelled at once, a running one stops soon. Nothing of it remains."""
    job = await service.run(lambda w: w.cancel_job(job_id))
    return json_answer(models.Job.of(job), 200 if job.has_ended else 202)


@router.get(
    "/v1/jobs/{job_id}/events",
    response_class=Response,
    responses={200: _EVENTS, **problems(404)},
    summary="Follow a job",
)
async def follow_job(job_id: str, service: ServiceOf, _: Reader) -> Response:
    """Server-sent events until the job ends."""
    first = await service.run(lambda w: w.job(job_id))
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(service, first), media_type="text/event-stream", headers=headers)


async def _events(service: Service, job: Job) -> AsyncIterator[bytes]:
    """One event for each change that is seen; a service that stops lets its clients come again."""
    told: models.Job | None = None
    silent = 0.0
    while True:
        now = models.Job.of(job)
        if now != told or job.has_ended:
            yield _event("end" if job.has_ended else "progress", now)
            told, silent = now, 0.0
        elif silent >= _SILENCE_SECONDS:
            yield b":\n\n"
            silent = 0.0
        if job.has_ended or service.is_stopping():
            return
        await asyncio.sleep(_LOOK_SECONDS)
        silent += _LOOK_SECONDS
        job = await service.run(lambda w, job=job: w.job(job.id))  # type: ignore[misc]


def _event(name: str, job: models.Job) -> bytes:
    return f"event: {name}\ndata: {job.model_dump_json(by_alias=True)}\n\n".encode()
