"""Answers that are more than a JSON document: negotiated forms, streams, jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel

from inlay.errors import NotAcceptableError, error_from
from inlay.server import models
from inlay.server.problems import Answered, response_of
from inlay.server.service import Service

if TYPE_CHECKING:
    from inlay.catalog import Job
    from inlay.workspace import Ticket

__all__ = ["choose", "ended", "json_answer", "on_disconnect", "queued", "streamed"]

_LOOK_SECONDS = 0.2
_PORTION = 1 << 16


def json_answer(model: BaseModel, status: int = 200, **headers: str) -> Response:
    return JSONResponse(model.model_dump(mode="json", by_alias=True), status, headers)


# ------------------------------------------------------------------------------------------------------- negotiation
def choose(accept: str | None, offered: Sequence[str]) -> str:
    """The media type that is wanted most; the first one where all are the same to the client."""
    wanted = [_range(part) for part in (accept or "*/*").split(",") if part.strip()]
    best = max(offered, key=lambda media: _quality(media, wanted))
    if wanted and not _quality(best, wanted):
        raise NotAcceptableError(f"The answer cannot be {accept!r}.", hint=f"It can be {', '.join(offered)}.")
    return best


def _range(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    weights = [parameter[2:] for parameter in parameters if parameter.startswith("q=")]
    try:
        return media, float(weights[0]) if weights else 1.0
    except ValueError:
        return media, 1.0


def _quality(media: str, wanted: Sequence[tuple[str, float]]) -> float:
    """By the most specific range that covers it."""
    for pattern in (media, f"{media.partition('/')[0]}/*", "*/*"):
        for given, weight in wanted:
            if given == pattern:
                return weight
    return 0.0


# ------------------------------------------------------------------------------------------------------------ streams
async def streamed(
    service: Service,
    pieces: Iterable[bytes],
    media_type: str,
    *,
    headers: Mapping[str, str] | None = None,
    close: Callable[[], object] = lambda: None,
) -> Response:
    """Bytes that threads make: whole if they are few, else in portions. Whatever happens, their source is closed.

    The first portion is there before the answer begins, so that what fails at once is still a problem document.
    """
    portions = _portions(pieces)
    try:
        first, second = await service.next(lambda: (next(portions, b""), next(portions, None)))
    except BaseException:
        close()
        raise
    if second is None:
        close()
        return Response(first, media_type=media_type, headers=headers)
    return _Stream(_rest(service, [first, second], portions), media_type, headers or {}, close)


class _Stream(StreamingResponse):
    def __init__(
        self, portions: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str], close: Callable[[], object]
    ) -> None:
        super().__init__(portions, media_type=media_type, headers=headers)
        self._close = close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def _portions(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, each portion worth a turn of a thread."""
    waiting = bytearray()
    for piece in pieces:
        waiting += piece
        if len(waiting) >= _PORTION:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


async def _rest(service: Service, begun: Sequence[bytes], portions: Iterator[bytes]) -> AsyncIterator[bytes]:
    for portion in begun:
        yield portion
    while (portion := await service.next(lambda: next(portions, b""))) != b"":
        yield portion


@contextlib.asynccontextmanager
async def on_disconnect(request: Request, act: Callable[[], object]) -> AsyncIterator[None]:
    """While the block runs, a client that leaves makes this happen. The body must have been read."""

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        act()

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


# --------------------------------------------------------------------------------------------------------------- jobs
def queued(job: Job) -> Response:
    """The answer to `Prefer: respond-async`."""
    told = {"Location": f"/v1/jobs/{job.id}", "Preference-Applied": "respond-async"}
    return json_answer(models.Job.of(job), 202, **told)


async def ended(service: Service, ticket: Ticket) -> Job:
    """Wait for a job without a thread; raises what it failed with. A client that leaves does not end it."""
    from inlay.workspace import require_success

    if ticket.future is not None:
        return await asyncio.shield(asyncio.wrap_future(ticket.future))
    job = ticket.job
    while not job.has_ended:  # it runs in another process, or ended a moment ago
        await asyncio.sleep(_LOOK_SECONDS)
        job = await service.run(lambda w: w.job(ticket.job.id))
    if job.error is not None:
        raise Answered(response_of(error_from(job.error), told=job.error))
    return require_success(job)
