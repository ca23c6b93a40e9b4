"""HTTP responses: JSON, content negotiation, streams, and waiting for jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from inlay.errors import NotAcceptableError, error_from_dict
from inlay.server import models
from inlay.server.dependencies import Service
from inlay.server.problems import ProblemException, problem_response

if TYPE_CHECKING:
    from inlay.catalog import Job
    from inlay.query import Answer, Format
    from inlay.workspace import SubmittedJob

__all__ = [
    "ANSWER_FORMATS",
    "accepted_response",
    "answer_headers",
    "answer_response",
    "cancel_on_disconnect",
    "json_response",
    "negotiate",
    "stream_response",
    "wait_for_job",
]

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 16


def json_response(model: BaseModel, status: int = 200, **headers: str) -> Response:
    return JSONResponse(model.model_dump(mode="json", by_alias=True), status, headers)


def negotiate(accept: str | None, offered: Sequence[str]) -> str:
    """Return the offered media type that `Accept` prefers, or the first one on a tie."""
    ranges = [_media_range(part) for part in (accept or "*/*").split(",") if part.strip()]
    best = max(offered, key=lambda media: _quality(media, ranges))
    if ranges and not _quality(best, ranges):
        raise NotAcceptableError(
            f"The response is not available as {accept!r}.", hint=f"Set Accept to {' or '.join(offered)}."
        )
    return best


def _media_range(part: str) -> tuple[str, float]:
    media, *parameters = (piece.strip().lower() for piece in part.split(";"))
    weights = [parameter[2:] for parameter in parameters if parameter.startswith("q=")]
    try:
        return media, float(weights[0]) if weights else 1.0
    except ValueError:
        return media, 1.0


def _quality(media: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Return the weight of the most specific range that matches a media type."""
    for pattern in (media, f"{media.partition('/')[0]}/*", "*/*"):
        for name, weight in ranges:
            if name == pattern:
                return weight
    return 0.0


# ------------------------------------------------------------------------------------------------------------ streams
async def stream_response(
    service: Service,
    pieces: Iterable[bytes],
    media_type: str,
    *,
    headers: Mapping[str, str] | None = None,
    close: Callable[[], object] = lambda: None,
) -> Response:
    """Return bytes that threads produce: in one response if they are few, else as a stream.

    The first chunk is produced before the response starts, so that an early failure is still a problem document.
    `close` is called in every case.
    """
    chunks = _chunks(pieces)
    try:
        first, second = await service.next(lambda: (next(chunks, b""), next(chunks, None)))
    except BaseException:
        close()
        raise
    if second is None:
        close()
        return Response(first, media_type=media_type, headers=headers)
    return _Stream(_prepend(service, [first, second], chunks), media_type, headers or {}, close)


class _Stream(StreamingResponse):
    """A stream that calls `close` when it ends or its client disconnects."""

    def __init__(
        self, chunks: AsyncIterator[bytes], media_type: str, headers: Mapping[str, str], close: Callable[[], object]
    ) -> None:
        super().__init__(chunks, media_type=media_type, headers=headers)
        self._close = close

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._close()


def _chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join small pieces, because each chunk costs a switch to a thread."""
    buffer = bytearray()
    for piece in pieces:
        if not buffer and len(piece) >= _CHUNK_BYTES:
            yield piece
            continue
        buffer += piece
        if len(buffer) >= _CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


async def _prepend(service: Service, produced: Sequence[bytes], chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    for chunk in produced:
        yield chunk
    while (chunk := await service.next(lambda: next(chunks, b""))) != b"":
        yield chunk


# ------------------------------------------------------------------------------------------------------------- answers
_PARQUET = "application/vnd.apache.parquet"
ANSWER_FORMATS: dict[str, Format] = {
    "application/json": "json",
    "text/csv": "csv",
    "application/vnd.apache.arrow.stream": "arrow",
    _PARQUET: "arrow",  # which this process converts
}


def answer_headers(answer: Answer) -> dict[str, str]:
    return {"X-Row-Count": str(answer.row_count), "X-Truncated": str(answer.truncated).lower()}


async def answer_response(
    service: Service,
    answer: Answer,
    media: str,
    headers: Mapping[str, str],
    summary: Mapping[str, Any] | None = None,
) -> Response:
    """Return the rows that a query process answered. In JSON, a summary comes before them."""
    if media == _PARQUET:
        from inlay.query import QueryResult

        result = QueryResult(answer)
        return await stream_response(service, result.to_parquet(), media, headers=headers, close=result.close)
    form = ANSWER_FORMATS[media]
    if answer.path is None:
        return Response(answer.complete(form, summary), media_type=media, headers=headers)
    pieces = (await service.workspace()).encode(answer, form, summary)
    return await stream_response(service, pieces, media, headers=headers, close=answer.close)


@contextlib.asynccontextmanager
async def cancel_on_disconnect(request: Request) -> AsyncIterator[None]:
    """Cancel the block if the client disconnects, and raise `ClientDisconnect`. Read the request body first."""
    block = asyncio.current_task()
    is_disconnected = False

    async def watch() -> None:
        nonlocal is_disconnected
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_disconnected = True
        if block is not None:
            block.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not is_disconnected or block is None or block.uncancel():
            raise
        raise ClientDisconnect from None
    finally:
        watcher.cancel()


# --------------------------------------------------------------------------------------------------------------- jobs
def accepted_response(job: Job) -> Response:
    """Return 202 with the job, for `Prefer: respond-async`."""
    headers = {"Location": f"/v1/jobs/{job.id}", "Preference-Applied": "respond-async"}
    return json_response(models.Job.of(job), 202, **headers)


async def wait_for_job(service: Service, submitted: SubmittedJob) -> Job:
    """Wait for a job without blocking a thread, and raise its error if it failed.

    A client that disconnects does not stop the job.
    """
    from inlay.workspace import require_success

    if submitted.future is not None:
        return await asyncio.shield(asyncio.wrap_future(submitted.future))
    job = submitted.job
    while not job.has_ended:  # another process runs the job
        await asyncio.sleep(_POLL_SECONDS)
        job = await service.run(lambda w: w.job(submitted.job.id))
    if job.error is not None:
        raise ProblemException(problem_response(error_from_dict(job.error), details=job.error))
    return require_success(job)
