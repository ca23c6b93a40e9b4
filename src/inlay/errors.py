"""Every error that inlay raises, with its stable code, exit code and HTTP status.

All errors derive from `InlayError`. `code` names the error in JSON output and in the documentation and never
changes. The command line exits with `exit_code`; the service responds with `http_status`.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


_MAX_COMPARED_LENGTH = 200  # difflib compares in quadratic time


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


class InvalidArgumentError(InlayError, ValueError):
    """An argument, option or setting is missing, unknown or invalid."""

    code = "invalid_argument"
    exit_code = 2
    http_status = 400


def close_matches(name: object, known: Iterable[str], limit: int = 1) -> list[str]:
    """Return the known names that are spelled most like `name`, ignoring case."""
    if not isinstance(name, str) or len(name) > _MAX_COMPARED_LENGTH:
        return []
    spellings = {each.casefold(): each for each in known}
    return [spellings[each] for each in difflib.get_close_matches(name.casefold(), spellings, limit)]


def did_you_mean(name: object, known: Iterable[str], limit: int = 1, quote: Callable[[str], str] = repr) -> str | None:
    """Return the hint "Did you mean ...?" if `name` is close to a known name, else None."""
    matches = [quote(each) for each in close_matches(name, known, limit)]
    return f"Did you mean {' or '.join(matches)}?" if matches else None


def unknown(kind: str, name: object, known: Iterable[str]) -> InvalidArgumentError:
    """Build the error for a name that is not among the known names."""
    names = list(known)
    return InvalidArgumentError(
        f"Unknown {kind} {name!r}; known: {', '.join(names) or 'none'}.", hint=did_you_mean(name, names)
    )


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


class UploadConsumedError(InvalidArgumentError):
    """The upload was already loaded into a dataset. Each upload can be loaded once."""

    code = "upload_consumed"


class RejectedDataError(InlayError, ValueError):
    """The source rows, keys or columns do not fit the dataset."""

    code = "rejected_data"
    exit_code = 3
    http_status = 422


class NullKeyError(RejectedDataError):
    """A source row has NULL in a key column."""

    code = "null_key"


class DuplicateKeyError(RejectedDataError):
    """Several source rows have the same key, and nothing says which row to keep."""

    code = "duplicate_key"


class SchemaMismatchError(RejectedDataError):
    """The source's columns or types do not match the dataset, or data files are incompatible."""

    code = "schema_mismatch"


class PartitionMoveError(RejectedDataError):
    """A merge would move a row to another partition."""

    code = "partition_move"


class UnreadableSourceError(RejectedDataError):
    """The source cannot be read as rows and columns."""

    code = "unreadable_source"


class UnreadableUploadError(RejectedDataError):
    """The uploaded file is damaged, or its format is not the declared one."""

    code = "unreadable_upload"
    http_status = 400


class NotUtf8Error(UnreadableUploadError):
    """The uploaded text is not valid in its declared encoding (UTF-8 by default)."""

    code = "not_utf8"


class BadRowsError(RejectedDataError):
    """Rows have values that do not fit their column types.

    `errors` lists the first invalid cells, each with `line`, `column`, `value` and `reason`. `rejected` counts the
    rejected rows.
    """

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
    """The dataset, version, upload, job, file or page does not exist."""

    code = "not_found"
    exit_code = 5
    http_status = 404


class EngineNotInstalledError(InlayError, ImportError):
    """The package that the engine or feature needs is not installed."""

    code = "engine_not_installed"
    exit_code = 2


class QueryError(InlayError, ValueError):
    """The SQL query is invalid. `position` is the (line, column) of the mistake, or None."""

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
    """The query ran longer than its time limit."""

    code = "query_timeout"
    exit_code = 1
    http_status = 408


class QueryLimitError(QueryError):
    """The query needs more memory, disk space or rows than the limits allow."""

    code = "query_limit"
    http_status = 413


class QueryCancelledError(QueryError):
    """The query was canceled."""

    code = "query_cancelled"
    exit_code = 1
    http_status = 499  # nginx's status for a client that closed the connection


class QueryBusyError(QueryError):
    """Too many queries are running. Retry later."""

    code = "query_busy"
    exit_code = 4
    http_status = 503


class QueryFailedError(QueryError):
    """The query is valid, but running it failed."""

    code = "query_failed"
    exit_code = 1
    http_status = 500


class ConflictError(InlayError):
    """The request conflicts with another change or with the current state."""

    code = "conflict"
    exit_code = 4
    http_status = 409


class ConcurrentModificationError(ConflictError):
    """Another writer changed the dataset during the operation. Retry it."""

    code = "concurrent_modification"


class IdempotencyKeyReusedError(ConflictError):
    """The idempotency key was already used for a different request."""

    code = "idempotency_key_reused"
    http_status = 422


class JobEndedError(ConflictError):
    """The job has already ended."""

    code = "job_ended"


class LockTimeoutError(ConflictError, TimeoutError):
    """Another writer held the lock of the dataset for longer than the timeout."""

    code = "lock_timeout"


class TableNameTakenError(ConflictError):
    """Another dataset already has this table name."""

    code = "table_name_taken"


class UploadInUseError(ConflictError):
    """Another job is loading this upload."""

    code = "upload_in_use"


class UploadTooLargeError(InlayError, ValueError):
    """The upload exceeds the size limit."""

    code = "upload_too_large"
    exit_code = 2
    http_status = 413


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


class ConversionFailedError(InlayError):
    """The upload is valid, but converting it to Parquet failed."""

    code = "conversion_failed"


class JobCancelledError(InlayError):
    """The job was canceled. Nothing changed."""

    code = "job_cancelled"
    http_status = 409


class JobInterruptedError(InlayError):
    """The process that ran the job ended. Nothing changed."""

    code = "job_interrupted"
    http_status = 503


class ServiceStoppingError(InlayError):
    """The service is shutting down."""

    code = "service_stopping"
    http_status = 503


class ServiceUnreachableError(InlayError):
    """No inlay service responds at the address."""

    code = "service_unreachable"
    http_status = 503


class SparkUnavailableError(InlayError):
    """The Spark master cannot be reached, or Spark cannot start."""

    code = "spark_unavailable"
    http_status = 503


class StorageUnavailableError(InlayError):
    """The storage cannot be read or written."""

    code = "storage_unavailable"
    http_status = 503


class CatalogUnavailableError(InlayError):
    """The catalog database cannot be reached."""

    code = "catalog_unavailable"
    http_status = 503


class CatalogVersionError(CatalogUnavailableError):
    """The catalog database's schema does not match this version of inlay."""

    code = "catalog_version"


class DatasetMergeError(InlayError):
    """An operation on a dataset failed.

    Attributes:
        operation: The operation that failed, such as "merge", "read" or "commit", or None.
        strategy: The merge strategy, or None.
        key_columns: The key columns of the merge.
        files: The paths of the files that the failure concerns.

    `__cause__` is the underlying exception, if there is one. See `InlayError` for the other attributes.

    Example:
        >>> import inlay
        >>> inlay.write_dataset({"id": [1]}, "people").row_count
        1
        >>> try:
        ...     inlay.merge({"id": [1]}, "people", "upsert", "id", progress=lambda step: False)
        ... except inlay.DatasetMergeError as error:
        ...     print(error.code, error.operation, error.key_columns)
        cancelled match ['id']
    """

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
    """The filesystem or object store failed during an operation on a dataset."""

    code = "io_error"


class UnreadableFileError(DatasetMergeError, OSError):
    """A data file of the dataset cannot be read."""

    code = "unreadable_file"


class MergeCancelledError(DatasetMergeError):
    """The progress callback canceled the merge. Nothing changed."""

    code = "cancelled"


class CommitPendingError(DatasetMergeError):
    """The change is committed. inlay completes it the next time it opens the dataset."""

    code = "commit_pending"


class CommitStateUnknownError(DatasetMergeError):
    """The outcome of the commit is unknown until inlay opens the dataset again."""

    code = "commit_state_unknown"


class CorruptJournalError(DatasetMergeError):
    """The record of a pending commit is damaged, or a file that it needs is missing."""

    code = "corrupt_journal"


@contextlib.contextmanager
def wrap_errors(operation: str, strategy: str | None = None, key_columns: Sequence[str] = ()) -> Iterator[None]:
    """Raise failures inside the block as `DatasetMergeError`s that name the operation."""
    import pyarrow as pa  # here, because `inlay --help` imports this module

    try:
        yield
    except DatasetMergeError as error:
        error.strategy = error.strategy or strategy
        error.key_columns = error.key_columns or list(key_columns)
        raise
    except InlayError:
        raise
    except (OSError, pa.ArrowException, MemoryError) as error:
        error_class = DatasetIOError if isinstance(error, OSError) else DatasetMergeError
        filename = getattr(error, "filename", None)
        raise error_class(
            f"The {operation} failed and nothing changed: {error}",
            operation=operation,
            strategy=strategy,
            key_columns=key_columns,
            files=[str(filename)] if filename else [],
        ) from error
