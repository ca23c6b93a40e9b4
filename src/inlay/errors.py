"""Every error inlay raises.

    InlayError
    ├── InvalidArgumentError       (ValueError)   the call itself is wrong
    │   ├── InvalidRequestError                   fields of a request, each with what is wrong with it
    │   ├── InvalidTableNameError
    │   └── UploadConsumedError                   an upload is used once
    ├── RejectedDataError          (ValueError)   the rows, keys or columns do not fit
    │   ├── NullKeyError
    │   ├── DuplicateKeyError
    │   ├── SchemaMismatchError
    │   ├── PartitionMoveError
    │   ├── UnreadableSourceError
    │   ├── UnreadableUploadError                 not what it is said to be
    │   │   └── NotUtf8Error                      text in another encoding than it should be in
    │   └── BadRowsError                          cells that do not fit, with their places
    ├── NotFoundError              (FileNotFoundError)
    ├── EngineNotInstalledError    (ImportError)
    ├── QueryError                 (ValueError)   SQL that cannot be answered
    │   ├── QueryTimeoutError      (TimeoutError)
    │   ├── QueryLimitError                       it needs more than a query may use
    │   ├── QueryCancelledError
    │   ├── QueryBusyError                        too many others are being answered
    │   └── QueryFailedError                      not the query's fault
    ├── ConflictError                             somebody else was there
    │   ├── ConcurrentModificationError
    │   ├── IdempotencyKeyReusedError             the same key with another request
    │   ├── JobEndedError
    │   ├── LockTimeoutError       (TimeoutError)
    │   ├── TableNameTakenError
    │   └── UploadInUseError                      another job has claimed it
    ├── UploadTooLargeError        (ValueError)
    ├── RequestError                              HTTP as such: the service does not even look at it
    │   ├── UnauthorizedError
    │   ├── ForbiddenError
    │   ├── MethodNotAllowedError
    │   ├── NotAcceptableError
    │   ├── RequestTimeoutError    (TimeoutError)
    │   ├── RequestTooLargeError
    │   └── UnsupportedMediaTypeError
    ├── ConversionFailedError                     not the upload's fault
    ├── JobCancelledError                         somebody asked for it; nothing was changed
    ├── JobInterruptedError                       the process that ran it is gone; nothing was changed
    ├── ServiceStoppingError
    ├── ServiceUnreachableError                   nobody answers at its address
    ├── SparkUnavailableError                     conversions and loads run on Spark, and it is not there
    ├── StorageUnavailableError                   nothing can be kept
    ├── CatalogUnavailableError                   the database does not answer
    │   └── CatalogVersionError                   its schema is not the one this program knows
    └── DatasetMergeError                         a failure while merging
        ├── DatasetIOError         (OSError)
        ├── UnreadableFileError    (OSError)      a data file that cannot be read
        ├── MergeCancelledError
        ├── CommitPendingError                    committed; completes at the next open
        ├── CommitStateUnknownError               known at the next open
        └── CorruptJournalError                   nothing was touched

`code` is stable: it names the error in JSON output and in the documentation. `exit_code` is what the command
line ends with, `http_status` what the service answers.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

__all__ = [
    "BadRowsError",
    "CatalogUnavailableError",
    "CatalogVersionError",
    "CommitPendingError",
    "CommitStateUnknownError",
    "ConcurrentModificationError",
    "ConflictError",
    "ConversionFailedError",
    "CorruptJournalError",
    "DatasetIOError",
    "DatasetMergeError",
    "DuplicateKeyError",
    "EngineNotInstalledError",
    "ForbiddenError",
    "IdempotencyKeyReusedError",
    "InlayError",
    "InvalidArgumentError",
    "InvalidRequestError",
    "InvalidTableNameError",
    "JobCancelledError",
    "JobEndedError",
    "JobInterruptedError",
    "LockTimeoutError",
    "MergeCancelledError",
    "MethodNotAllowedError",
    "NotAcceptableError",
    "NotFoundError",
    "NotUtf8Error",
    "NullKeyError",
    "PartitionMoveError",
    "QueryBusyError",
    "QueryCancelledError",
    "QueryError",
    "QueryFailedError",
    "QueryLimitError",
    "QueryTimeoutError",
    "RejectedDataError",
    "RequestError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "SchemaMismatchError",
    "ServiceStoppingError",
    "ServiceUnreachableError",
    "SparkUnavailableError",
    "StorageUnavailableError",
    "TableNameTakenError",
    "UnauthorizedError",
    "UnreadableFileError",
    "UnreadableSourceError",
    "UnreadableUploadError",
    "UnsupportedMediaTypeError",
    "UploadConsumedError",
    "UploadInUseError",
    "UploadTooLargeError",
]

_LONGEST_NAME = 200  # comparing takes quadratic time


class InlayError(Exception):
    """Base of all errors; `hint` says what to do about it."""

    code: ClassVar[str] = "failure"
    exit_code: ClassVar[int] = 1
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\nHint: {hint}")
        self.message = message
        self.hint = hint

    def to_dict(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


def error_from(told: Mapping[str, Any]) -> InlayError:
    """An error as another process told it with `to_dict`: the same class, with the same words."""
    kinds: dict[str, type[InlayError]] = {kind.code: kind for kind in (globals()[name] for name in __all__)}
    kind = kinds.get(str(told.get("code")), InlayError)
    error = kind(str(told.get("message", "")), hint=told.get("hint"))
    rest = {name: value for name, value in told.items() if name not in ("code", "message", "hint")}
    if rest.get("position"):  # `to_dict` spells it out
        rest["position"] = (rest["position"]["line"], rest["position"]["column"])
    for name, value in rest.items():
        setattr(error, name, value)
    return error


class InvalidArgumentError(InlayError, ValueError):
    code = "invalid_argument"
    exit_code = 2
    http_status = 400


def closest(name: object, known: Iterable[str], most: int = 1) -> list[str]:
    """Those of the known names that this one was probably meant to be; case does not matter."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME:
        return []
    spelled = {each.casefold(): each for each in known}
    return [spelled[each] for each in difflib.get_close_matches(name.casefold(), spelled, most)]


def did_you_mean(name: object, known: Iterable[str], most: int = 1, shown: Callable[[str], str] = repr) -> str | None:
    """The hint for a name that is not known, if it is close to one that is."""
    meant = [shown(each) for each in closest(name, known, most)]
    return f"Did you mean {' or '.join(meant)}?" if meant else None


def unknown(what: str, name: object, known: Iterable[str]) -> InvalidArgumentError:
    """The error for a name that is none of the known ones."""
    names = list(known)
    return InvalidArgumentError(
        f"Unknown {what} {name!r}; known: {', '.join(names) or 'none'}.", hint=did_you_mean(name, names)
    )


class InvalidRequestError(InvalidArgumentError):
    """A request whose fields are wrong; `errors` holds each: field, message."""

    code = "invalid_request"

    def __init__(self, message: str, *, errors: Sequence[dict[str, Any]] = (), hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errors = list(errors)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"errors": self.errors}


class InvalidTableNameError(InvalidArgumentError):
    code = "invalid_table_name"


class UploadConsumedError(InvalidArgumentError):
    code = "upload_consumed"


class RejectedDataError(InlayError, ValueError):
    code = "rejected_data"
    exit_code = 3
    http_status = 422


class NullKeyError(RejectedDataError):
    code = "null_key"


class DuplicateKeyError(RejectedDataError):
    code = "duplicate_key"


class SchemaMismatchError(RejectedDataError):
    code = "schema_mismatch"


class PartitionMoveError(RejectedDataError):
    code = "partition_move"


class UnreadableSourceError(RejectedDataError):
    code = "unreadable_source"


class UnreadableUploadError(RejectedDataError):
    code = "unreadable_upload"
    http_status = 400


class NotUtf8Error(UnreadableUploadError):
    code = "not_utf8"


class BadRowsError(RejectedDataError):
    """Rows that do not fit their columns; `errors` holds the first bad cells: line, column, value, reason."""

    code = "bad_rows"

    def __init__(
        self, message: str, *, errors: Sequence[dict[str, Any]] = (), rejected: int = 0, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.errors = list(errors)
        self.rejected = rejected

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {"errors": self.errors, "rejected": self.rejected}


class NotFoundError(InlayError, FileNotFoundError):
    code = "not_found"
    exit_code = 5
    http_status = 404


class EngineNotInstalledError(InlayError, ImportError):
    code = "engine_not_installed"
    exit_code = 2


class QueryError(InlayError, ValueError):
    """SQL that cannot be answered; `position` is the line and column of what is wrong, where that is known."""

    code = "invalid_query"
    exit_code = 2
    http_status = 400

    def __init__(self, message: str, *, position: tuple[int, int] | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.position = position

    def to_dict(self) -> dict[str, Any]:
        position = None if self.position is None else {"line": self.position[0], "column": self.position[1]}
        return super().to_dict() | {"position": position}


class QueryTimeoutError(QueryError, TimeoutError):
    code = "query_timeout"
    exit_code = 1
    http_status = 408


class QueryLimitError(QueryError):
    code = "query_limit"
    http_status = 413


class QueryCancelledError(QueryError):
    code = "query_cancelled"
    exit_code = 1
    http_status = 499  # nobody waits for the answer any more


class QueryBusyError(QueryError):
    code = "query_busy"
    exit_code = 4
    http_status = 503


class QueryFailedError(QueryError):
    code = "query_failed"
    exit_code = 1
    http_status = 500


class ConflictError(InlayError):
    code = "conflict"
    exit_code = 4
    http_status = 409


class ConcurrentModificationError(ConflictError):
    code = "concurrent_modification"


class IdempotencyKeyReusedError(ConflictError):
    code = "idempotency_key_reused"
    http_status = 422


class JobEndedError(ConflictError):
    code = "job_ended"


class LockTimeoutError(ConflictError, TimeoutError):
    code = "lock_timeout"


class TableNameTakenError(ConflictError):
    code = "table_name_taken"


class UploadInUseError(ConflictError):
    code = "upload_in_use"


class UploadTooLargeError(InlayError, ValueError):
    code = "upload_too_large"
    exit_code = 2
    http_status = 413


class RequestError(InlayError):
    code = "bad_request"
    exit_code = 2
    http_status = 400


class UnauthorizedError(RequestError):
    code = "unauthorized"
    http_status = 401


class ForbiddenError(RequestError):
    code = "forbidden"
    http_status = 403


class MethodNotAllowedError(RequestError):
    code = "method_not_allowed"
    http_status = 405


class NotAcceptableError(RequestError):
    code = "not_acceptable"
    http_status = 406


class RequestTimeoutError(RequestError, TimeoutError):
    code = "request_timeout"
    exit_code = 1
    http_status = 408


class RequestTooLargeError(RequestError):
    code = "request_too_large"
    http_status = 413


class UnsupportedMediaTypeError(RequestError):
    code = "unsupported_media_type"
    http_status = 415


class ConversionFailedError(InlayError):
    code = "conversion_failed"


class JobCancelledError(InlayError):
    code = "job_cancelled"
    http_status = 409


class JobInterruptedError(InlayError):
    code = "job_interrupted"
    http_status = 503


class ServiceStoppingError(InlayError):
    code = "service_stopping"
    http_status = 503


class ServiceUnreachableError(InlayError):
    code = "service_unreachable"
    http_status = 503


class SparkUnavailableError(InlayError):
    code = "spark_unavailable"
    http_status = 503


class StorageUnavailableError(InlayError):
    code = "storage_unavailable"
    http_status = 503


class CatalogUnavailableError(InlayError):
    code = "catalog_unavailable"
    http_status = 503


class CatalogVersionError(CatalogUnavailableError):
    code = "catalog_version"


class DatasetMergeError(InlayError):
    """A failure while merging, with what was being done; the cause is `__cause__`."""

    code = "merge_failed"

    def __init__(
        self,
        message: str,
        *,
        operation: str | None = None,
        strategy: str | None = None,
        key_columns: Sequence[str] = (),
        files: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.operation = operation
        self.strategy = strategy
        self.key_columns = list(key_columns)
        self.files = list(files)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | {
            "operation": self.operation,
            "strategy": self.strategy,
            "key_columns": self.key_columns,
            "files": self.files,
        }


class DatasetIOError(DatasetMergeError, OSError):
    code = "io_error"


class UnreadableFileError(DatasetMergeError, OSError):
    code = "unreadable_file"


class MergeCancelledError(DatasetMergeError):
    code = "cancelled"


class CommitPendingError(DatasetMergeError):
    code = "commit_pending"


class CommitStateUnknownError(DatasetMergeError):
    code = "commit_state_unknown"


class CorruptJournalError(DatasetMergeError):
    code = "corrupt_journal"
