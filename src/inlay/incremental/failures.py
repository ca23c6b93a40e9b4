"""Errors that an operation on a dataset meets, said in inlay's words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from inlay.errors import DatasetIOError, DatasetMergeError, InlayError, MergeCancelledError

__all__ = ["Progress", "ProgressCallback", "failing_as", "reporter"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Handed to the progress callback: how far a phase is, in files. A callback that returns False cancels."""

    phase: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], object]


def reporter(callback: ProgressCallback | None) -> Callable[[str, int, int], None]:
    """A function that reports progress, if anybody listens, and stops the work if they say so."""

    def report(phase: str, done: int, total: int) -> None:
        if callback is not None and callback(Progress(phase, done, total)) is False:
            raise MergeCancelledError(f"Cancelled at {phase} {done} of {total}; nothing changed.", operation=phase)

    return report


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
