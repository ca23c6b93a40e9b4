"""Authentication by bearer key or session cookie, and the routes that set the cookie.

A service on loopback is open to every program on the machine until its first API key is created. After that it stays
closed, even if all API keys are revoked.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Depends, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import Field
from starlette.requests import HTTPConnection

from inlay.constants import Scope
from inlay.errors import CatalogUnavailableError, ForbiddenError, InlayError, UnauthorizedError
from inlay.server import requests
from inlay.server.dependencies import Service, ServiceDep, problems
from inlay.server.middleware import SESSION_PATH
from inlay.server.problems import problem_response
from inlay.settings import is_loopback

log = logging.getLogger("inlay.server")
router = APIRouter(tags=["service"], route_class=requests.JsonRoute)
SESSION_COOKIE = "inlay_key"
_CALLER = "inlay.caller"  # the key of the caller, or of the error, in the scope of a request
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?")
_OWN_SITE = ("same-origin", "none")  # values of Sec-Fetch-Site; "none" is an address that the user typed
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
            caller = _from_settings(secret, settings.api_keys) or await _from_catalog(service, secret)
            if caller is not None:
                return caller
        elif await _is_open(service):
            return _ANONYMOUS
    except CatalogUnavailableError as error:  # an unauthenticated caller must not see the address of the catalog
        log.warning("cannot look up an API key: %s", error)
        raise CatalogUnavailableError("The catalog is unavailable.", hint="Try again later.") from error
    raise UnauthorizedError(
        "The API key is invalid." if secret else "This request requires an API key.",
        hint="Send the header Authorization: Bearer KEY. Create an API key with `inlay keys create`.",
    )


async def _is_open(service: Service) -> bool:
    settings = (await service.workspace()).settings
    if not settings.is_loopback or settings.api_keys:
        return False
    return not await service.look_up(lambda w: w.catalog.api_keys.have_existed())


def require_scope(caller: Caller, scope: Scope) -> None:
    if scope not in caller.scopes:
        raise ForbiddenError(
            f"The API key lacks the scope {scope!r}.", hint=f"Use an API key with the scope {scope!r}."
        )


async def authenticate(request: HTTPConnection) -> Caller:
    """Return the caller of a request, or raise. Later calls for the same request have the same outcome."""
    if _CALLER not in request.scope:
        try:
            request.scope[_CALLER] = await _authenticate(request)
        except InlayError as error:
            request.scope[_CALLER] = error
    outcome: Caller | InlayError = request.scope[_CALLER]
    if isinstance(outcome, InlayError):
        raise outcome
    return outcome


async def _authenticate(request: HTTPConnection) -> Caller:
    """Return the caller of a request.

    A request without a bearer key must have the service's own origin: browsers send cookies for any web site.
    """
    bearer = _bearer_key(request)
    caller = await identify(request.app.state.service, bearer or request.cookies.get(SESSION_COOKIE))
    if caller == _ANONYMOUS:
        _require_loopback_name(request)
    if bearer is None or caller == _ANONYMOUS:
        require_same_origin(request)
    return caller


def _bearer_key(request: HTTPConnection) -> str | None:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None


class AuthenticationMiddleware:
    """Authenticates requests under /v1 before anything reads their bodies. Signing in needs no key yet."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/v1/") and scope["path"] != SESSION_PATH:
            try:
                await authenticate(HTTPConnection(scope))
            except InlayError as error:
                await problem_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)


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


async def _from_catalog(service: Service, secret: str) -> Caller | None:
    keys = (await service.workspace()).catalog.api_keys
    key = await service.look_up(lambda _: keys.verify(secret))
    if key is None:
        return None
    if keys.is_use_due(key):
        await service.run(lambda _: keys.record_use(key))
    return Caller(key.id, frozenset(key.scopes))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


# --------------------------------------------------------------------------------------------------- foreign web sites
def _require_loopback_name(request: HTTPConnection) -> None:
    """Raise if the Host header is not a loopback name, which DNS rebinding can cause."""
    host = ", ".join(request.headers.getlist("host"))
    found = _HOST.fullmatch(host)
    if found is None or not is_loopback(found["name"].strip("[]").lower()):
        raise ForbiddenError(
            f"Without API keys, the service is available only under a loopback name, not {host[:100]!r}.",
            hint="Use http://127.0.0.1 or http://localhost, or set INLAY_API_KEYS.",
        )


def require_same_origin(request: HTTPConnection) -> None:
    """Raise if a browser sent the request for another web site. Links from other sites may open a page."""
    headers = request.headers
    origin = headers.get("origin")
    is_foreign = origin is not None and origin.lower().split("://")[1:] != [headers.get("host", "").lower()]
    is_fetched = headers.get("sec-fetch-site", "none") not in _OWN_SITE and headers.get("sec-fetch-mode") != "navigate"
    if is_foreign or is_fetched:
        site = f"the web site {origin[:100]!r}" if origin else "other web sites"
        raise ForbiddenError(
            f"Requests from {site} require an API key in a header.", hint="Send the header Authorization: Bearer KEY."
        )


# -------------------------------------------------------------------------------------------------------- dependencies
def _requires(scope: Scope) -> Callable[[Request, HTTPAuthorizationCredentials | None], Awaitable[Caller]]:
    async def check(request: Request, _: Bearer) -> Caller:  # `Bearer` documents the header in OpenAPI
        caller = await authenticate(request)
        require_scope(caller, scope)
        return caller

    return check


def require_read_scope(request: Request) -> Caller:
    """Return the caller whom `AuthenticationMiddleware` found, or raise if the caller may not read."""
    caller: Caller = request.scope[_CALLER]
    require_scope(caller, "read")
    return caller


Reader = Annotated[Caller, Depends(_requires("read"))]
Writer = Annotated[Caller, Depends(_requires("write"))]


async def is_trusted(request: Request) -> bool:
    """Return whether the caller may read, and therefore see the reasons of failures."""
    try:
        caller = await authenticate(request)
    except (UnauthorizedError, ForbiddenError):
        return False
    return "read" in caller.scopes


# ------------------------------------------------------------------------------------------------------------- sessions
class SessionBody(requests.RequestBody):
    key: Annotated[str, Field(min_length=1, max_length=1000, description="An API key.")]


@router.post(SESSION_PATH, status_code=204, responses=problems(415), summary="Sign a browser in")
async def sign_in(request: Request, body: SessionBody, service: ServiceDep) -> Response:
    """Store the API key in a session cookie. Programs use `Authorization: Bearer KEY` instead."""
    require_same_origin(request)
    await identify(service, body.key)
    response = Response(status_code=204)
    is_https = request.url.scheme == "https"
    response.set_cookie(SESSION_COOKIE, body.key, httponly=True, samesite="strict", secure=is_https)
    return response


@router.delete(SESSION_PATH, status_code=204, responses=problems(), summary="Sign a browser out")
async def sign_out(request: Request) -> Response:
    require_same_origin(request)
    response = Response(status_code=204)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response
