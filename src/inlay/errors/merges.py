"""Errors of operations on a dataset, such as merges and commits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from inlay.errors.base import ConflictError, InlayError

__all__ = [
    "CommitPendingError",
    "CommitStateUnknownError",
    "ConcurrentModificationError",
    "CorruptJournalError",
    "DamagedVersionError",
    "DatasetIOError",
    "DatasetMergeError",
    "HistoryUnavailableError",
    "LockTimeoutError",
    "MergeCancelledError",
    "UnreadableFileError",
    "wrap_errors",
]


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
    http_status = 503


class CorruptJournalError(DatasetMergeError):
    """The record of a pending commit is damaged, or a file that it needs is missing."""

    code = "corrupt_journal"


class DamagedVersionError(DatasetMergeError):
    """Another program changed a file of the version in place, so the version cannot be read or restored."""

    code = "damaged_version"


class HistoryUnavailableError(DatasetMergeError):
    """The dataset has no history: its storage has no hard links, and nobody has turned copies on."""

    code = "history_unavailable"


class ConcurrentModificationError(ConflictError):
    """Another writer changed the dataset during the operation. Retry it."""

    code = "concurrent_modification"


class LockTimeoutError(ConflictError, TimeoutError):
    """Another writer held the lock of the dataset for longer than the timeout."""

    code = "lock_timeout"


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
