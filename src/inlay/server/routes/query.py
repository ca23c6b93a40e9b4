"""SQL over datasets, answered as JSON, CSV, an Arrow stream or a Parquet file."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from inlay.server import bodies, models
from inlay.server.answers import choose, on_disconnect, streamed
from inlay.server.auth import Reader
from inlay.server.dependencies import Accept, ServiceOf, problems

if TYPE_CHECKING:
    from inlay.query import QueryResult

__all__ = ["router"]

log = logging.getLogger("inlay.server")
router = APIRouter(tags=["query"])
_FORMS = {
    "application/json": "to_json",
    "text/csv": "to_csv",
    "application/vnd.apache.arrow.stream": "to_arrow",
    "application/vnd.apache.parquet": "to_parquet",
}
_BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}


@router.post(
    "/v1/query",
    response_model=models.QueryAnswer,
    responses={
        200: {"content": dict.fromkeys(list(_FORMS)[1:], _BINARY)},
        **problems(406, 408, 413, 415),
    },
    summary="Ask SQL",
)
async def query(
    body: bodies.QueryBody, request: Request, service: ServiceOf, _: Reader, accept: Accept = None
) -> Response:
    """Answer one SELECT over `datasets.<table_name>`; the form is chosen by `Accept`."""
    media = choose(accept, list(_FORMS))
    cancel = threading.Event()
    log.debug("query: %s", body.sql)
    async with on_disconnect(request, cancel.set):
        result: QueryResult = await service.run(
            lambda w: w.query(body.sql, body.limit, body.timeout_seconds, cancel), "queries"
        )
    told = {"X-Row-Count": str(result.row_count), "X-Truncated": str(result.truncated).lower()}
    pieces = getattr(result, _FORMS[media])()
    return await streamed(service, pieces, media, headers=told, close=result.close)
