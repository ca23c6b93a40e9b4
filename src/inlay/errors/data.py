"""Errors about rows, keys, columns and uploaded files that do not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inlay.errors.base import InlayError, RejectedDataError

__all__ = [
    "BadRowsError",
    "DeletionLimitError",
    "DuplicateKeyError",
    "NotUtf8Error",
    "NullKeyError",
    "OutsideScopeError",
    "PartitionMoveError",
    "SchemaMismatchError",
    "UnknownOperationError",
    "UnreadableSourceError",
    "UnreadableUploadError",
    "UploadTooLargeError",
]


class NullKeyError(RejectedDataError):
    """A source row has NULL in a key column."""

    code = "null_key"


class DuplicateKeyError(RejectedDataError):
    """Several source rows have the same key, and nothing says which row to keep."""

    code = "duplicate_key"


class SchemaMismatchError(RejectedDataError):
    """The source's columns or types do not match the dataset, or data files are incompatible."""

    code = "schema_mismatch"


class UnknownOperationError(RejectedDataError):
    """A source row has a value in the operation column that is no insert, update or delete."""

    code = "unknown_operation"


class DeletionLimitError(RejectedDataError):
    """An operation would delete more rows than `max_deleted` allows."""

    code = "deletion_limit"


class OutsideScopeError(RejectedDataError):
    """A source row, or the stored row with its key, is outside the scope of the merge."""

    code = "outside_scope"


class PartitionMoveError(RejectedDataError):
    """A merge would move a row to another partition."""

    code = "partition_move"


class UnreadableSourceError(RejectedDataError):
    """The source cannot be read as rows and columns."""

    code = "unreadable_source"

    def __init__(self, message: str, *, hint: str | None = None, is_empty: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_empty = is_empty  # True if the source has no rows, and nothing tells its columns


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


class UploadTooLargeError(InlayError, ValueError):
    """The upload exceeds the size limit."""

    code = "upload_too_large"
    exit_code = 2
    http_status = 413
