"""Errors as RFC 9457 problem documents."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from inlay.errors import (
    InlayError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
    UnauthorizedError,
)

__all__ = ["MEDIA_TYPE", "Answered", "handle_errors", "problem_of", "response_of", "unexpected"]

log = logging.getLogger("inlay.server")
MEDIA_TYPE = "application/problem+json"
_NOBODY_LISTENS = 499
_RETRY_SECONDS = "5"


def problem_of(error: InlayError, told: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A problem document. What nobody foresaw is told to the log alone."""
    told = _INTERNAL if type(error) is InlayError else told or error.to_dict()
    code = str(told["code"])
    rest = {name: value for name, value in told.items() if name not in ("code", "message") and value not in (None, [])}
    head = {
        "type": f"/docs/errors#{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": error.http_status,
        "detail": told["message"],
        "code": code,
    }
    return head | rest


def response_of(
    error: InlayError, headers: Mapping[str, str] | None = None, told: Mapping[str, Any] | None = None
) -> Response:
    """The answer that an error is; `told` is what it told of itself when it happened elsewhere."""
    added = dict(headers or {})
    if isinstance(error, UnauthorizedError):
        added["WWW-Authenticate"] = 'Bearer realm="inlay"'
    if error.http_status == 503:
        added["Retry-After"] = _RETRY_SECONDS
    return _Problem(problem_of(error, told), error.http_status, headers=added)


class _Problem(JSONResponse):
    media_type = MEDIA_TYPE


_INTERNAL = {
    "code": InlayError.code,
    "message": "The service failed unexpectedly.",
    "hint": "Its log says more, under the X-Request-ID of this answer.",
}


class Answered(HTTPException):
    """An answer on its way out, also from where FastAPI would turn any other exception into its own."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def unexpected() -> Response:
    return response_of(InlayError(""))


def handle_errors(app: FastAPI) -> None:
    """Make every error of this application a problem document."""
    app.add_exception_handler(InlayError, _on_known)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


async def _on_known(_: Request, error: Exception) -> Response:
    assert isinstance(error, InlayError)  # noqa: S101  (registered for nothing else)
    if error.http_status >= 500:
        log.warning("%s: %s", error.code, error.message, exc_info=error if type(error) is InlayError else None)
    return response_of(error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return response_of(_invalid(error.errors()))


def _invalid(found: Sequence[Any]) -> InvalidRequestError:
    errors = [{"field": _field(each["loc"]), "message": _message(each)} for each in found]
    named = "; ".join(f"{each['field']}: {each['message']}" for each in errors[:3])
    return InvalidRequestError(f"The request is not valid: {named}.".replace("..", "."), errors=errors)


def _field(location: Sequence[str | int]) -> str:
    """`source.upload_id` of the body, `limit` of the query: where people wrote it."""
    path = [str(part) for part in location[1:]]
    return ".".join(path) or str(location[0])


def _message(error: Mapping[str, Any]) -> str:
    if error["type"] == "json_invalid":
        return f"not JSON: {error.get('ctx', {}).get('error', 'cannot be read')}"
    return _WORDS.get(error["type"]) or str(error["msg"])


_WORDS = {"missing": "This field is required", "model_type": "An object is needed here"}


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if isinstance(error, Answered):
        return error.response
    shown = f"{request.method} {request.url.path[:200]}"
    if error.status_code == 404:
        known: InlayError = NotFoundError(f"There is nothing at {request.url.path[:200]!r}.", hint="See /docs.")
    elif error.status_code == 405:
        known = MethodNotAllowedError(f"{shown} is not possible.", hint="See /docs.")
    else:
        known = RequestError(str(error.detail))
    return response_of(known, error.headers)


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=_NOBODY_LISTENS)
