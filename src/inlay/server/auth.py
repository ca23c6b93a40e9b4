"""Who asks, and whether they may: by `Authorization: Bearer`, or by the cookie that signing in on the page sets.

While no key exists, a loopback service is open.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from inlay.choices import Scope
from inlay.errors import CatalogUnavailableError, ForbiddenError, UnauthorizedError
from inlay.server.service import Service
from inlay.settings import is_loopback

if TYPE_CHECKING:
    from inlay.workspace import Workspace

__all__ = [
    "SESSION_COOKIE",
    "Caller",
    "Reader",
    "Writer",
    "caller_of",
    "identify",
    "is_trusted",
    "require",
    "require_own_page",
    "require_same_origin",
]

log = logging.getLogger("inlay.server")
SESSION_COOKIE = "inlay_key"
_bearer = HTTPBearer(
    scheme_name="ApiKey", description="A key from `inlay keys create` or INLAY_API_KEYS.", auto_error=False
)
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]


class Caller(NamedTuple):
    """A key, by its id, and what it may do."""

    id: str
    scopes: frozenset[str]


_ANYBODY = Caller("", frozenset({"read", "write"}))


async def identify(service: Service, given: str | None) -> Caller:
    """Whose key this is; without a key, anybody, as long as the service is open."""
    settings = (await service.workspace()).settings
    try:
        if given is not None:
            found = _static(given, settings.api_keys) or await service.run(lambda w: _stored(w, given))
            if found is not None:
                return found
        if not settings.api_keys and settings.is_loopback and not await service.run(lambda w: w.catalog.keys.exist()):
            return _ANYBODY
    except CatalogUnavailableError as error:  # where it is and why is nothing for strangers
        log.warning("cannot look up a key: %s", error)
        raise CatalogUnavailableError("The catalog cannot be used.", hint="Try again later.") from error
    raise UnauthorizedError(
        "The API key is not valid." if given else "An API key is needed.",
        hint="Send Authorization: Bearer KEY. `inlay keys create` makes one.",
    )


def require(caller: Caller, scope: Scope) -> None:
    if scope not in caller.scopes:
        raise ForbiddenError(f"This key may not {scope}.", hint=f"Use a key with the scope {scope}.")


async def caller_of(request: HTTPConnection, bearer: str | None = None) -> Caller:
    """Who sent a request. What a browser sends by itself, a cookie or nothing, counts only from our own page."""
    cookie = request.cookies.get(SESSION_COOKIE)
    caller = await identify(request.app.state.service, bearer or cookie)
    if caller == _ANYBODY:
        _require_loopback_name(request)
    if bearer is None or caller == _ANYBODY:
        require_same_origin(request)
    return caller


async def require_own_page(connection: HTTPConnection) -> None:
    """For what a page of ours opens by itself, also one that asks for a key."""
    require_same_origin(connection)
    with contextlib.suppress(UnauthorizedError):
        await caller_of(connection)


def _static(given: str, keys: Sequence[str]) -> Caller | None:
    """A key of the settings. Digests are compared, all of them, so that time tells nothing."""
    digest = _digest(given)
    matches = [hmac.compare_digest(digest, _digest(key)) for key in keys]
    return Caller(f"static_{digest[:16]}", _ANYBODY.scopes) if any(matches) else None


def _stored(workspace: Workspace, given: str) -> Caller | None:
    key = workspace.catalog.keys.verify(given)
    return None if key is None else Caller(key.id, frozenset(key.scopes))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


# --------------------------------------------------------------------------------------------------- foreign web sites
def _require_loopback_name(request: HTTPConnection) -> None:
    """An open service serves this machine, not the web sites that its browsers happen to show."""
    host = request.headers.get("host", "")
    if not is_loopback(_hostname(host)):
        raise ForbiddenError(
            f"Without API keys the service answers only under a loopback name, not {host[:100]!r}.",
            hint="Use http://127.0.0.1 or http://localhost, or set INLAY_API_KEYS.",
        )


def require_same_origin(request: HTTPConnection) -> None:
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host", ""):
        raise ForbiddenError(
            f"Without an API key in its headers, a request from the web site {origin[:100]!r} is not taken.",
            hint="Send Authorization: Bearer KEY.",
        )


def _hostname(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


# -------------------------------------------------------------------------------------------------------- dependencies
def _requires(scope: Scope) -> Callable[[Request, HTTPAuthorizationCredentials | None], Awaitable[Caller]]:
    async def check(request: Request, bearer: Bearer) -> Caller:
        caller = await caller_of(request, bearer.credentials if bearer is not None else None)
        require(caller, scope)
        return caller

    return check


Reader = Annotated[Caller, Depends(_requires("read"))]
Writer = Annotated[Caller, Depends(_requires("write"))]


async def is_trusted(request: Request) -> bool:
    """Whether the one who asks may read; for answers that tell others less."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    try:
        caller = await caller_of(request, secret.strip() if scheme.lower() == "bearer" else None)
    except (UnauthorizedError, ForbiddenError):
        return False
    return "read" in caller.scopes
