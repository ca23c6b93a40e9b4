"""Errors of requests to the service that the client can correct."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inlay.errors.base import ConflictError, InlayError, InvalidArgumentError

__all__ = [
    "ForbiddenError",
    "IdempotencyKeyReusedError",
    "InvalidRequestError",
    "InvalidTableNameError",
    "JobEndedError",
    "MethodNotAllowedError",
    "NotAcceptableError",
    "RequestError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "TableNameTakenError",
    "UnauthorizedError",
    "UnsupportedMediaTypeError",
    "UploadConsumedError",
    "UploadInUseError",
]


class InvalidRequestError(InvalidArgumentError):
    """Fields of the request are invalid. `errors` lists each field with its message."""

    code = "invalid_request"

    def __init__(self, message: str, *, errors: Sequence[dict[str, Any]] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errors = list(errors)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"errors": self.errors}


class InvalidTableNameError(InvalidArgumentError):
    """The table name is empty, too long or contains characters that are not allowed."""

    code = "invalid_table_name"


class TableNameTakenError(ConflictError):
    """Another dataset already has this table name."""

    code = "table_name_taken"


class UploadConsumedError(InvalidArgumentError):
    """The upload was already loaded into a dataset. Each upload can be loaded once."""

    code = "upload_consumed"


class UploadInUseError(ConflictError):
    """Another job is loading this upload."""

    code = "upload_in_use"


class IdempotencyKeyReusedError(ConflictError):
    """The idempotency key was already used for a different request."""

    code = "idempotency_key_reused"
    http_status = 422


class JobEndedError(ConflictError):
    """The job has already ended."""

    code = "job_ended"


class RequestError(InlayError):
    """The HTTP request is malformed."""

    code = "bad_request"
    exit_code = 2
    http_status = 400


class UnauthorizedError(RequestError):
    """The request has no valid API key or session."""

    code = "unauthorized"
    http_status = 401


class ForbiddenError(RequestError):
    """The API key or user does not have the required permission."""

    code = "forbidden"
    http_status = 403


class MethodNotAllowedError(RequestError):
    """The path does not support this HTTP method."""

    code = "method_not_allowed"
    http_status = 405


class NotAcceptableError(RequestError):
    """The service cannot respond in any media type that the Accept header allows."""

    code = "not_acceptable"
    http_status = 406


class RequestTimeoutError(RequestError, TimeoutError):
    """The request body did not arrive within the time limit."""

    code = "request_timeout"
    exit_code = 1
    http_status = 408


class RequestTooLargeError(RequestError):
    """The request body exceeds the size limit."""

    code = "request_too_large"
    http_status = 413


class UnsupportedMediaTypeError(RequestError):
    """The service does not accept the Content-Type of the request."""

    code = "unsupported_media_type"
    http_status = 415
