"""Uploads: bytes on their way in, to be used once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Request, Response

from inlay.server import bodies, models
from inlay.server.answers import json_answer
from inlay.server.auth import Reader, Writer
from inlay.server.dependencies import Paging, ServiceOf, problems
from inlay.server.service import Service

if TYPE_CHECKING:
    from inlay.catalog import Upload
    from inlay.workspace import Workspace
    from inlay.workspace.uploads import UploadWriter

__all__ = ["router"]

router = APIRouter(tags=["files"])
_HOP_BYTES = 1 << 20  # how much is gathered before a thread writes it
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "The file itself. The content type is kept as a hint of its format.",
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "minLength": 1}}},
    },
    "parameters": [
        {
            "name": "Content-Encoding",
            "in": "header",
            "schema": {"type": "string"},
            "description": "How the bytes are compressed: gzip, zstd or identity. They are kept as they are.",
        }
    ],
}


@router.post(
    "/v1/files",
    status_code=201,
    response_model=models.Upload,
    responses=problems(408, 413),
    openapi_extra=_BODY,
    summary="Upload a file",
)
async def upload_file(request: Request, service: ServiceOf, _: Writer) -> Response:
    """Stream a file into the storage. It becomes a dataset, or is loaded into one, by its id."""
    upload = await _receive(request, service)
    service.metrics.uploaded(upload.size_bytes)
    return json_answer(models.Upload.of(upload), 201, Location=f"/v1/files/{upload.id}")


async def _receive(request: Request, service: Service) -> Upload:
    headers = request.headers
    length = headers.get("content-length")
    size = int(length) if length is not None and length.isdigit() else None

    def begin(workspace: Workspace) -> UploadWriter:
        return workspace.receive(headers.get("content-type"), headers.get("content-encoding"), size).__enter__()

    writer = await service.run(begin, "bytes")
    try:
        async for block in _blocks(request.stream()):
            await service.next(lambda block=block: writer.write(block))  # type: ignore[misc]
        return await service.next(writer.finish)
    except BaseException as error:
        trace = type(error), error, error.__traceback__
        with anyio.CancelScope(shield=True):  # a client that left, or a service that stops, leaves nothing behind
            await service.next(lambda: writer.__exit__(*trace))
        raise


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Pieces large enough to be worth a thread, small enough to hold many of."""
    gathered, size = [], 0
    async for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= _HOP_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if size:
        yield b"".join(gathered)


@router.get("/v1/files", responses=problems(), summary="List uploads")
async def list_files(
    service: ServiceOf,
    _: Reader,
    page: Paging,
    status: Annotated[Literal["pending", "consumed", "all"], Query()] = "pending",
) -> models.Uploads:
    """Those that wait to be used, unless others are asked for; newest first."""
    return models.Uploads.of(await service.run(lambda w: w.uploads(status, *page)))


@router.get("/v1/files/{upload_id}", responses=problems(404), summary="Show an upload")
async def get_file(upload_id: str, service: ServiceOf, _: Reader) -> models.Upload:
    return models.Upload.of(await service.run(lambda w: w.upload(upload_id)))


@router.post("/v1/files/{upload_id}/preview", responses=problems(404, 413, 415, 422), summary="Preview an upload")
async def preview_file(
    upload_id: str, service: ServiceOf, _: Reader, body: bodies.PreviewBody | None = None
) -> models.Preview:
    """What a dataset made of it would look like, from its first rows; options and types may be tried out."""
    how = body or bodies.PreviewBody()
    columns = how.schema_.pairs() if how.schema_ is not None else []
    found = await service.run(
        lambda w: w.preview(upload_id, how.format, how.options, columns, how.dataset_id), "queries"
    )
    return models.Preview.of(found)


@router.delete("/v1/files/{upload_id}", status_code=204, responses=problems(404, 409), summary="Delete an upload")
async def delete_file(upload_id: str, service: ServiceOf, _: Writer) -> None:
    """Forget a pending upload that no job uses."""
    await service.run(lambda w: w.delete_upload(upload_id))
