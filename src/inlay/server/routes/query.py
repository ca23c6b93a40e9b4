"""The route for SQL queries, with results as JSON, CSV, Arrow or Parquet."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from inlay.server import models, requests
from inlay.server.auth import Reader
from inlay.server.dependencies import Accept, ServiceDep, problems
from inlay.server.responses import negotiate, on_disconnect, stream_response

if TYPE_CHECKING:
    from inlay.query import QueryResult

__all__ = ["router"]

router = APIRouter(tags=["query"], route_class=requests.JsonRoute)
_WRITERS = {
    "application/json": "to_json",
    "text/csv": "to_csv",
    "application/vnd.apache.arrow.stream": "to_arrow",
    "application/vnd.apache.parquet": "to_parquet",
}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/v1/query",
    response_model=models.QueryResult,
    responses={
        200: {"content": dict.fromkeys(list(_WRITERS)[1:], _BINARY)},
        **problems(406, 408, 413, 415, 507),
    },
    summary="Run a query",
)
async def query(
    body: requests.QueryBody, request: Request, service: ServiceDep, _: Reader, accept: Accept = None
) -> Response:
    """Run one SELECT over `datasets.<table_name>`. `Accept` chooses the format of the result."""
    media = negotiate(accept, list(_WRITERS))
    cancel = threading.Event()
    async with on_disconnect(request, cancel.set):
        result: QueryResult = await service.run(
            lambda w: w.query(body.sql, body.limit, body.timeout_seconds, cancel), "queries"
        )
    headers = {"X-Row-Count": str(result.row_count), "X-Truncated": str(result.truncated).lower()}
    pieces = getattr(result, _WRITERS[media])()
    return await stream_response(service, pieces, media, headers=headers, close=result.close)
