"""Authentication by bearer key or session cookie, and the routes that set the cookie.

While no API key exists, a service on loopback is open to every program on the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field
from starlette.requests import HTTPConnection

from inlay.constants import Scope
from inlay.errors import CatalogUnavailableError, ForbiddenError, UnauthorizedError
from inlay.server import requests
from inlay.server.dependencies import Service, ServiceDep, problems
from inlay.settings import is_loopback

if TYPE_CHECKING:
    from inlay.workspace import Workspace

log = logging.getLogger("inlay.server")
router = APIRouter(tags=["service"])
SESSION_COOKIE = "inlay_key"
_bearer = HTTPBearer(
    scheme_name="ApiKey", description="An API key from `inlay keys create` or INLAY_API_KEYS.", auto_error=False
)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


class Caller(NamedTuple):
    """The API key of a request, by its id, and its scopes."""

    id: str
    scopes: frozenset[str]


_ANONYMOUS = Caller("", frozenset({"read", "write"}))


async def identify(service: Service, secret: str | None) -> Caller:
    """Return the caller of an API key, or the anonymous caller of an open service."""
    settings = (await service.workspace()).settings
    try:
        if secret is not None:
            caller = _from_settings(secret, settings.api_keys) or await service.run(lambda w: _from_catalog(w, secret))
            if caller is not None:
                return caller
        may_be_open = settings.is_loopback and not settings.api_keys
        if may_be_open and not await service.run(lambda w: w.catalog.api_keys.exist()):
            return _ANONYMOUS
    except CatalogUnavailableError as error:  # an unauthenticated caller must not see the address of the catalog
        log.warning("cannot look up an API key: %s", error)
        raise CatalogUnavailableError("The catalog is unavailable.", hint="Try again later.") from error
    raise UnauthorizedError(
        "The API key is invalid." if secret else "This request requires an API key.",
        hint="Send the header Authorization: Bearer KEY. Create an API key with `inlay keys create`.",
    )


def require_scope(caller: Caller, scope: Scope) -> None:
    if scope not in caller.scopes:
        raise ForbiddenError(
            f"The API key lacks the scope {scope!r}.", hint=f"Use an API key with the scope {scope!r}."
        )


async def authenticate(request: HTTPConnection, bearer: str | None = None) -> Caller:
    """Return the caller of a request.

    A request without a bearer key must have the service's own origin: browsers send cookies for any web site.
    """
    cookie = request.cookies.get(SESSION_COOKIE)
    caller = await identify(request.app.state.service, bearer or cookie)
    if caller == _ANONYMOUS:
        _require_loopback_name(request)
    if bearer is None or caller == _ANONYMOUS:
        require_same_origin(request)
    return caller


async def require_own_page(connection: HTTPConnection) -> None:
    """Raise unless a page of this service, which may be the sign-in page, is connecting."""
    require_same_origin(connection)
    with contextlib.suppress(UnauthorizedError):
        await authenticate(connection)


def _from_settings(secret: str, keys: Sequence[str]) -> Caller | None:
    digest = _digest(secret)
    # Comparing every digest in constant time reveals nothing about the keys.
    matches = [hmac.compare_digest(digest, _digest(key)) for key in keys]
    return Caller(f"static_{digest[:16]}", _ANONYMOUS.scopes) if any(matches) else None


def _from_catalog(workspace: Workspace, secret: str) -> Caller | None:
    key = workspace.catalog.api_keys.verify(secret)
    return None if key is None else Caller(key.id, frozenset(key.scopes))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


# --------------------------------------------------------------------------------------------------- foreign web sites
def _require_loopback_name(request: HTTPConnection) -> None:
    """Raise if the Host header is not a loopback name, which DNS rebinding can cause."""
    host = request.headers.get("host", "")
    if not is_loopback(_hostname(host)):
        raise ForbiddenError(
            f"Without API keys, the service is available only under a loopback name, not {host[:100]!r}.",
            hint="Use http://127.0.0.1 or http://localhost, or set INLAY_API_KEYS.",
        )


def require_same_origin(request: HTTPConnection) -> None:
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise ForbiddenError(
            f"Requests from the web site {origin[:100]!r} require an API key in a header.",
            hint="Send the header Authorization: Bearer KEY.",
        )


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


# -------------------------------------------------------------------------------------------------------- dependencies
def _requires(scope: Scope) -> Callable[[Request, HTTPAuthorizationCredentials | None], Awaitable[Caller]]:
    async def check(request: Request, bearer: Bearer) -> Caller:
        caller = await authenticate(request, bearer.credentials if bearer is not None else None)
        require_scope(caller, scope)
        return caller

    return check


Reader = Annotated[Caller, Depends(_requires("read"))]
Writer = Annotated[Caller, Depends(_requires("write"))]


async def is_trusted(request: Request) -> bool:
    """Return whether the caller may read, and therefore see the reasons of failures."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    try:
        caller = await authenticate(request, secret.strip() if scheme.lower() == "bearer" else None)
    except (UnauthorizedError, ForbiddenError):
        return False
    return "read" in caller.scopes


# ------------------------------------------------------------------------------------------------------------- sessions
class SessionBody(requests.RequestBody):
    key: Annotated[str, Field(min_length=1, max_length=1000, description="An API key.")]


@router.post("/v1/session", status_code=204, responses=problems(415), summary="Sign a browser in")
async def sign_in(request: Request, body: SessionBody, service: ServiceDep) -> Response:
    """Store the API key in a session cookie. Programs use `Authorization: Bearer KEY` instead."""
    require_same_origin(request)
    await identify(service, body.key)
    response = Response(status_code=204)
    is_https = request.url.scheme == "https"
    response.set_cookie(SESSION_COOKIE, body.key, httponly=True, samesite="strict", secure=is_https)
    return response


@router.delete("/v1/session", status_code=204, responses=problems(), summary="Sign a browser out")
async def sign_out(request: Request) -> Response:
    require_same_origin(request)
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response
