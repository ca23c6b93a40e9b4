"""The route for SQL queries, with results as JSON, CSV, Arrow or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from inlay.server import models, requests
from inlay.server.auth import Reader, require_read_scope
from inlay.server.dependencies import Accept, Service, ServiceDep, problems, reject_unexpected_parameters
from inlay.server.responses import cancel_on_disconnect, negotiate, stream_response

if TYPE_CHECKING:
    from inlay.query import Answer, Format
    from inlay.workspace import Workspace

__all__ = ["router"]

_PARQUET = "application/vnd.apache.parquet"
_FORMATS: dict[str, Format] = {
    "application/json": "json",
    "text/csv": "csv",
    "application/vnd.apache.arrow.stream": "arrow",
    _PARQUET: "arrow",  # which this process converts
}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


class _QueryRoute(APIRoute):
    """Handles requests without FastAPI's dependencies, which take as long as a small query."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def handle(request: Request) -> Response:
            await reject_unexpected_parameters(request)
            caller = require_read_scope(request)
            body = await requests.read_body(request, requests.QueryBody)
            return await query(body, request, request.app.state.service, caller, request.headers.get("accept"))

        return handle


router = APIRouter(tags=["query"], route_class=_QueryRoute)


@router.post(
    "/v1/query",
    response_model=models.QueryResult,
    responses={
        200: {"content": dict.fromkeys(list(_FORMATS)[1:], _BINARY)},
        **problems(406, 408, 413, 415, 507),
    },
    summary="Run a query",
)
async def query(
    body: requests.QueryBody, request: Request, service: ServiceDep, _: Reader, accept: Accept = None
) -> Response:
    """Run one SELECT over `datasets.<table_name>`. `Accept` chooses the format of the result."""
    media = negotiate(accept, list(_FORMATS))
    workspace = await service.workspace()
    async with cancel_on_disconnect(request):
        answer = await workspace.answer(body.sql, _FORMATS[media], body.limit, body.timeout_seconds)
    headers = {"X-Row-Count": str(answer.row_count), "X-Truncated": str(answer.truncated).lower()}
    if answer.path is None and media != _PARQUET:
        return Response(answer.complete(_FORMATS[media]), media_type=media, headers=headers)
    return await _stream(service, workspace, answer, media, headers)


async def _stream(
    service: Service, workspace: Workspace, answer: Answer, media: str, headers: dict[str, str]
) -> Response:
    if media == _PARQUET:
        from inlay.query import QueryResult

        result = QueryResult(answer)
        return await stream_response(service, result.to_parquet(), media, headers=headers, close=result.close)
    pieces: Iterator[bytes] = workspace.encode(answer, _FORMATS[media])
    return await stream_response(service, pieces, media, headers=headers, close=answer.close)
