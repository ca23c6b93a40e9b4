"""The base class of all errors, and the kinds of errors that several parts of inlay raise."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "ConflictError",
    "EngineNotInstalledError",
    "InlayError",
    "InvalidArgumentError",
    "NotFoundError",
    "RejectedDataError",
]


class InlayError(Exception):
    """An unexpected failure, and the base class of every error that inlay raises.

    Attributes:
        code: The stable name of the error in JSON output and in the documentation.
        message: What happened and where.
        hint: What to do about it, or None.
        exit_code: The exit code of the command line.
        http_status: The HTTP status of the service's response.

    Example:
        >>> import inlay
        >>> try:
        ...     inlay.read_parquet("missing")
        ... except inlay.InlayError as error:
        ...     print(error.code, error.exit_code)
        not_found 5
    """

    code: ClassVar[str] = "failure"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nHint: {hint}")
        self.message = message
        self.hint = hint

    def to_dict(self) -> dict[str, Any]:
        """Return the error as the JSON document that `--json` prints.

        Returns:
            `code`, `message` and `hint`, and the attributes that subclasses add.

        Example:
            >>> import inlay
            >>> try:
            ...     inlay.read_parquet("missing")
            ... except inlay.InlayError as error:
            ...     error.to_dict()["code"]
            'not_found'
        """
        return {"code": self.code, "message": self.message, "hint": self.hint}


class InvalidArgumentError(InlayError, ValueError):
    """An argument, option or setting is missing, unknown or invalid."""

    code = "invalid_argument"
    exit_code = 2
    http_status = 400


class RejectedDataError(InlayError, ValueError):
    """The source rows, keys or columns do not fit the dataset."""

    code = "rejected_data"
    exit_code = 3
    http_status = 422


class ConflictError(InlayError):
    """The request conflicts with another change or with the current state."""

    code = "conflict"
    exit_code = 4
    http_status = 409


class NotFoundError(InlayError, FileNotFoundError):
    """The dataset, version, upload, job, file or page does not exist."""

    code = "not_found"
    exit_code = 5
    http_status = 404


class EngineNotInstalledError(InlayError, ImportError):
    """The package that the engine or feature needs is not installed."""

    code = "engine_not_installed"
    exit_code = 2
