"""Errors that an operation on a dataset meets, said in inlay's words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import pyarrow as pa

from inlay.errors import DatasetIOError, DatasetMergeError, InlayError

__all__ = ["failing_as"]


@contextlib.contextmanager
def failing_as(operation: str, strategy: str | None = None, key_columns: Sequence[str] = ()) -> Iterator[None]:
    """Failures say what was being done; what came from the filesystem stays an OSError."""
    try:
        yield
    except DatasetMergeError as error:
        error.strategy = error.strategy or strategy
        error.key_columns = error.key_columns or list(key_columns)
        raise
    except InlayError:
        raise
    except OSError as error:
        raise DatasetIOError(
            f"The {operation} failed and nothing changed: {error}",
            operation=operation,
            strategy=strategy,
            key_columns=key_columns,
            files=[str(error.filename)] if error.filename else [],
        ) from error
    except (pa.ArrowException, MemoryError) as error:
        raise DatasetMergeError(
            f"The {operation} failed and nothing changed: {error}",
            operation=operation,
            strategy=strategy,
            key_columns=key_columns,
        ) from error
