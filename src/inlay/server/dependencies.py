"""What routes ask for, in one place: the service, pages, preferences.

All of them are coroutines, which need no thread: FastAPI sends plain functions to one.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import Depends, Header, Query, Request

from inlay.errors import InvalidRequestError
from inlay.server.problems import MEDIA_TYPE
from inlay.server.service import Service

__all__ = ["Accept", "How", "Paging", "ServiceOf", "Version", "known_parameters", "problems"]


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(_service)]
Accept = Annotated[str | None, Header(include_in_schema=False)]
Version = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="The current one unless another is given.")]


class PageOf(NamedTuple):
    limit: int
    offset: int


async def _page(
    limit: Annotated[int, Query(ge=1, le=1000)] = 100, offset: Annotated[int, Query(ge=0, le=2**63 - 1)] = 0
) -> PageOf:
    return PageOf(limit, offset)


Paging = Annotated[PageOf, Depends(_page)]


class Manner(NamedTuple):
    """How a job is wanted."""

    is_async: bool
    idempotency_key: str | None


async def _manner(
    prefer: Annotated[
        str | None, Header(description="`respond-async`: answer 202 with the job at once.", examples=["respond-async"])
    ] = None,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=255, description="The same key and request get the same answer once more."),
    ] = None,
) -> Manner:
    preferences = [part.strip().lower() for part in (prefer or "").replace(";", ",").split(",")]
    return Manner("respond-async" in preferences, idempotency_key)


How = Annotated[Manner, Depends(_manner)]


async def known_parameters(request: Request) -> None:
    """A misspelt parameter must not be silently ignored."""
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise InvalidRequestError(
            f"There is no parameter {unknown[0][:100]!r}.",
            errors=[{"field": name[:100], "message": "There is no such parameter"} for name in unknown[:100]],
            hint=f"Known: {', '.join(known)}." if known else "This takes no parameters.",
        )


_ALWAYS = (400, 401, 403, 500, 503)
_DESCRIPTIONS = {
    400: "Something in the request is wrong.",
    401: "A key is needed, or it is not valid.",
    403: "The key may not do this.",
    404: "There is no such thing.",
    406: "No form that the client accepts.",
    408: "It took too long.",
    409: "Somebody else was there.",
    413: "It is too large.",
    415: "The body must be JSON.",
    422: "The data does not fit, or the Idempotency-Key belongs to another request.",
    500: "The service failed.",
    503: "Something that is needed is not there; try again.",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its description."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        status: {"description": _DESCRIPTIONS[status], "content": content} for status in sorted({*_ALWAYS, *statuses})
    }
