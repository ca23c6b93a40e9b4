"""Signing a browser in: a page sends no headers of its own, so its key travels in a cookie that no script reads."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import Field

from inlay.server import bodies
from inlay.server.auth import SESSION_COOKIE, identify, require_same_origin
from inlay.server.dependencies import ServiceOf, problems

__all__ = ["router"]

router = APIRouter(tags=["service"])


class SessionBody(bodies.Request):
    key: Annotated[str, Field(min_length=1, max_length=1000, description="An API key.")]


@router.post("/v1/session", status_code=204, responses=problems(415), summary="Sign a browser in")
async def sign_in(request: Request, body: SessionBody, service: ServiceOf) -> Response:
    """Sets a cookie for this browser session. Programs send `Authorization: Bearer KEY` instead."""
    require_same_origin(request)
    await identify(service, body.key)
    answer = Response(status_code=204)
    answer.set_cookie(SESSION_COOKIE, body.key, httponly=True, samesite="strict", secure=request.url.scheme == "https")
    return answer


@router.delete("/v1/session", status_code=204, responses=problems(), summary="Sign a browser out")
async def sign_out(request: Request) -> Response:
    require_same_origin(request)
    answer = Response(status_code=204)
    answer.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return answer
