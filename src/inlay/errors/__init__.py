"""Every error that inlay raises, with its stable code, exit code and HTTP status.

All errors derive from `InlayError`. `code` names the error in JSON output and in the documentation and never
changes. The command line exits with `exit_code`; the service responds with `http_status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inlay.errors.base import (
    ConflictError,
    EngineNotInstalledError,
    InlayError,
    InvalidArgumentError,
    NotFoundError,
    RejectedDataError,
)
from inlay.errors.data import (
    BadRowsError,
    DeletionLimitError,
    DuplicateKeyError,
    NotUtf8Error,
    NullKeyError,
    OutsideScopeError,
    PartitionMoveError,
    SchemaMismatchError,
    UnknownOperationError,
    UnreadableSourceError,
    UnreadableUploadError,
    UploadTooLargeError,
)
from inlay.errors.hints import close_matches as close_matches
from inlay.errors.hints import did_you_mean as did_you_mean
from inlay.errors.hints import short_repr as short_repr
from inlay.errors.hints import unknown as unknown
from inlay.errors.merges import (
    CommitPendingError,
    CommitStateUnknownError,
    ConcurrentModificationError,
    CorruptJournalError,
    DamagedVersionError,
    DatasetIOError,
    DatasetMergeError,
    HistoryUnavailableError,
    LockTimeoutError,
    MergeCancelledError,
    UnreadableFileError,
)
from inlay.errors.merges import wrap_errors as wrap_errors
from inlay.errors.queries import (
    QueryBusyError,
    QueryCancelledError,
    QueryError,
    QueryFailedError,
    QueryLimitError,
    QueryTimeoutError,
)
from inlay.errors.requests import (
    ForbiddenError,
    IdempotencyKeyReusedError,
    InvalidRequestError,
    InvalidTableNameError,
    JobEndedError,
    MethodNotAllowedError,
    NotAcceptableError,
    RequestError,
    RequestTimeoutError,
    RequestTooLargeError,
    TableNameTakenError,
    UnauthorizedError,
    UnsupportedMediaTypeError,
    UploadConsumedError,
    UploadInUseError,
)
from inlay.errors.service import (
    CatalogUnavailableError,
    CatalogVersionError,
    ConversionFailedError,
    JobCancelledError,
    JobInterruptedError,
    MemoryLimitError,
    ServiceBusyError,
    ServiceStoppingError,
    ServiceUnreachableError,
    SparkUnavailableError,
    StorageFullError,
    StorageUnavailableError,
)

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
    "DamagedVersionError",
    "DatasetIOError",
    "DatasetMergeError",
    "DeletionLimitError",
    "DuplicateKeyError",
    "EngineNotInstalledError",
    "ForbiddenError",
    "HistoryUnavailableError",
    "IdempotencyKeyReusedError",
    "InlayError",
    "InvalidArgumentError",
    "InvalidRequestError",
    "InvalidTableNameError",
    "JobCancelledError",
    "JobEndedError",
    "JobInterruptedError",
    "LockTimeoutError",
    "MemoryLimitError",
    "MergeCancelledError",
    "MethodNotAllowedError",
    "NotAcceptableError",
    "NotFoundError",
    "NotUtf8Error",
    "NullKeyError",
    "OutsideScopeError",
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
    "ServiceBusyError",
    "ServiceStoppingError",
    "ServiceUnreachableError",
    "SparkUnavailableError",
    "StorageFullError",
    "StorageUnavailableError",
    "TableNameTakenError",
    "UnauthorizedError",
    "UnknownOperationError",
    "UnreadableFileError",
    "UnreadableSourceError",
    "UnreadableUploadError",
    "UnsupportedMediaTypeError",
    "UploadConsumedError",
    "UploadInUseError",
    "UploadTooLargeError",
]

for name in __all__:
    globals()[name].__module__ = __name__  # so that tracebacks show the name to import


def error_from_dict(document: Mapping[str, Any]) -> InlayError:
    """Rebuild an error from its `to_dict` document, for example one of another process."""
    classes: dict[str, type[InlayError]] = {each.code: each for each in (globals()[name] for name in __all__)}
    error_class = classes.get(str(document.get("code")), InlayError)
    error = error_class(str(document.get("message", "")), hint=document.get("hint"))
    attributes = {name: value for name, value in document.items() if name not in ("code", "message", "hint")}
    if position := attributes.get("position"):
        attributes["position"] = (position["line"], position["column"])
    for name, value in attributes.items():
        setattr(error, name, value)
    return error
