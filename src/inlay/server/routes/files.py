"""Routes of uploads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Request, Response

from inlay.server import models, requests
from inlay.server.auth import Reader, Writer
from inlay.server.dependencies import Paging, Service, ServiceDep, problems
from inlay.server.responses import json_response

if TYPE_CHECKING:
    from inlay.catalog import Upload
    from inlay.workspace import Workspace
    from inlay.workspace.storage import UploadWriter

__all__ = ["router"]

router = APIRouter(tags=["files"], route_class=requests.JsonRoute)
_BLOCK_BYTES = 1 << 20  # written by a thread at a time
_BODY: dict[str, Any] = {
    "requestBody": {
        "description": "The bytes of the file. The content type determines the default format.",
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "minLength": 1}}},
    },
    "parameters": [
        {
            "name": "Content-Encoding",
            "in": "header",
            "schema": {"type": "string"},
            "description": "Compression of the bytes: gzip, zstd or identity. They are stored as sent.",
        }
    ],
}


@router.post(
    "/v1/files",
    status_code=201,
    response_model=models.Upload,
    responses=problems(408, 413, 507),
    openapi_extra=_BODY,
    summary="Upload a file",
)
async def upload_file(request: Request, service: ServiceDep, _: Writer) -> Response:
    """Store a file. Use its id as `upload_id` to create a dataset from it or to load it."""
    upload = await _receive(request, service)
    service.metrics.record_upload(upload.size_bytes)
    return json_response(models.Upload.of(upload, await service.workspace()), 201, Location=f"/v1/files/{upload.id}")


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
        with anyio.CancelScope(shield=True):  # remove the file also after a disconnect or a shutdown
            await service.next(lambda: writer.__exit__(*trace))
        raise


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Join chunks into blocks, because each block costs a switch to a thread."""
    buffer, size = [], 0
    async for chunk in chunks:
        buffer.append(chunk)
        size += len(chunk)
        if size >= _BLOCK_BYTES:
            yield b"".join(buffer)
            buffer, size = [], 0
    if size:
        yield b"".join(buffer)


@router.get("/v1/files", responses=problems(), summary="List uploads")
async def list_files(
    service: ServiceDep,
    _: Reader,
    page: Paging,
    status: Annotated[Literal["pending", "consumed", "all"], Query()] = "pending",
) -> models.Uploads:
    """Uploads are sorted from newest to oldest. By default, only pending uploads are listed."""
    return await service.run(lambda w: models.Uploads.of(w.uploads(status, *page), w))


@router.get("/v1/files/{upload_id}", responses=problems(404), summary="Show an upload")
async def get_file(upload_id: str, service: ServiceDep, _: Reader) -> models.Upload:
    return await service.run(lambda w: models.Upload.of(w.upload(upload_id), w))


@router.post("/v1/files/{upload_id}/preview", responses=problems(404, 413, 415, 422), summary="Preview an upload")
async def preview_file(
    upload_id: str, service: ServiceDep, _: Reader, body: requests.PreviewBody | None = None
) -> models.Preview:
    """Return the first rows of an upload, to check its format, options and types."""
    body = body or requests.PreviewBody()
    arguments = (body.format, body.options, body.schema_.pairs() if body.schema_ is not None else [], body.dataset_id)
    return models.Preview.of(await service.run(lambda w: w.preview(upload_id, *arguments), "queries"))


@router.delete("/v1/files/{upload_id}", status_code=204, responses=problems(404, 409), summary="Delete an upload")
async def delete_file(upload_id: str, service: ServiceDep, _: Writer) -> None:
    """Delete a pending upload that no job uses."""
    await service.run(lambda w: w.delete_upload(upload_id))
