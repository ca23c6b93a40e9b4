"""The route for SQL queries, with results as JSON, CSV, Arrow or Parquet."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from inlay.server import models, requests
from inlay.server.auth import Reader, require_read_scope
from inlay.server.dependencies import Accept, ServiceDep, problems, reject_unexpected_parameters
from inlay.server.responses import ANSWER_FORMATS, answer_headers, answer_response, cancel_on_disconnect, negotiate

__all__ = ["router"]

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
        200: {"content": dict.fromkeys(list(ANSWER_FORMATS)[1:], _BINARY)},
        **problems(406, 408, 413, 415, 507),
    },
    summary="Run a query",
)
async def query(
    body: requests.QueryBody, request: Request, service: ServiceDep, _: Reader, accept: Accept = None
) -> Response:
    """Run one SELECT over `datasets.<table_name>`. `Accept` chooses the format of the result."""
    media = negotiate(accept, list(ANSWER_FORMATS))
    workspace = await service.workspace()
    async with cancel_on_disconnect(request):
        answer = await workspace.answer(body.sql, ANSWER_FORMATS[media], body.limit, body.timeout_seconds)
    return await answer_response(service, answer, media, answer_headers(answer))
