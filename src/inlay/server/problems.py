"""Errors as RFC 9457 problem documents."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from inlay.errors import (
    CatalogUnavailableError,
    CommitStateUnknownError,
    InlayError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    RequestError,
    StorageUnavailableError,
    UnauthorizedError,
)

log = logging.getLogger("inlay.server")
MEDIA_TYPE = "application/problem+json"
_CLIENT_CLOSED_REQUEST = 499
_RETRY_SECONDS = "5"
_MAX_ERRORS = 100


def problem_document(error: InlayError, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the problem document of an error; `details` replace the error's own `to_dict`.

    An unexpected error gets a generic document, and so does a failure of the catalog or the storage, because its
    message can contain their addresses: only the log holds it.
    """
    fields = _GENERIC.get(type(error)) or details or error.to_dict()
    code = str(fields["code"])
    rest = {
        name: value for name, value in fields.items() if name not in ("code", "message") and value not in (None, [])
    }
    head = {
        "type": f"/docs/errors#{code}",
        "title": code.replace("_", " ").capitalize(),
        "status": error.http_status,
        "detail": fields["message"],
        "code": code,
    }
    return head | rest


def problem_response(
    error: InlayError, headers: Mapping[str, str] | None = None, details: Mapping[str, Any] | None = None
) -> Response:
    """Return the HTTP response for an error."""
    added = dict(headers or {})
    if isinstance(error, UnauthorizedError):
        added["WWW-Authenticate"] = 'Bearer realm="inlay"'
    if error.http_status == 503 and not isinstance(error, CommitStateUnknownError):  # a retry could change data twice
        added["Retry-After"] = _RETRY_SECONDS
    return _Problem(problem_document(error, details), error.http_status, headers=added)


class _Problem(JSONResponse):
    media_type = MEDIA_TYPE


def _generic(error_class: type[InlayError], message: str, hint: str = "") -> dict[str, Any]:
    search = "Search the service's log for the X-Request-ID of this response."
    return {"code": error_class.code, "message": message, "hint": f"{hint} {search}".strip()}


_GENERIC: dict[type[InlayError], dict[str, Any]] = {
    InlayError: _generic(InlayError, "The service failed unexpectedly."),
    CatalogUnavailableError: _generic(CatalogUnavailableError, "The catalog is unavailable.", "Try again later."),
    StorageUnavailableError: _generic(StorageUnavailableError, "The storage is unavailable.", "Try again later."),
    CommitStateUnknownError: _generic(
        CommitStateUnknownError,
        "The catalog did not confirm the change. The change may be stored.",
        "Check whether it is stored before you send the request again.",
    ),
}


class ProblemException(HTTPException):
    """Carries a ready response out of code in which FastAPI would wrap any other exception."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def internal_error_response() -> Response:
    return problem_response(InlayError(""))


def handle_errors(app: FastAPI) -> None:
    """Answer every error of the application with a problem document."""
    app.add_exception_handler(InlayError, _on_inlay_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


async def _on_inlay_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, InlayError)  # noqa: S101  (the only class registered)
    if error.http_status >= 500:
        log.warning("%s: %s", error.code, error.message, exc_info=error if type(error) is InlayError else None)
    return problem_response(error)


async def _on_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    return problem_response(_invalid(error.errors()))


def _invalid(details: Sequence[Any]) -> InvalidRequestError:
    errors = [{"field": _field(each["loc"])[:200], "message": field_message(each)} for each in details[:_MAX_ERRORS]]
    summary = "; ".join(f"{each['field']}: {each['message']}" for each in errors[:3])
    return InvalidRequestError(f"The request is invalid: {summary}.".replace("..", "."), errors=errors)


def _field(location: Sequence[str | int]) -> str:
    """Return the dotted path of a field, such as `source.upload_id`."""
    path = [str(part) for part in location[1:]]
    return ".".join(path) or str(location[0])


def field_message(error: Mapping[str, Any]) -> str:
    """Return the message for an error of pydantic, naming an unknown value and the known values."""
    if error["type"] == "literal_error":
        known = re.findall("'([^']*)'", error["ctx"]["expected"])
        return f"Unknown value {repr(error['input'])[:100]}; known: {', '.join(known)}"
    if error["type"] == "json_invalid":
        return f"invalid JSON: {error.get('ctx', {}).get('error', 'not readable')}"
    return _MESSAGES.get(error["type"]) or str(error["msg"])


_MESSAGES = {"missing": "This field is required", "model_type": "This must be a JSON object"}


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    if isinstance(error, ProblemException):
        return error.response
    path = request.url.path[:200]
    problem: InlayError
    if error.status_code == 404:
        problem = NotFoundError(f"Nothing exists at {path!r}.", hint="See /docs for all paths.")
    elif error.status_code == 405:
        problem = MethodNotAllowedError(f"{path} does not accept {request.method}.", hint="See /docs for all methods.")
    else:
        problem = RequestError(str(error.detail))
    return problem_response(problem, error.headers)


async def _on_disconnect(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)
