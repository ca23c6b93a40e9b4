"""Errors that an operation on a dataset meets, said in inlay's words."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from inlay.errors import DatasetIOError, DatasetMergeError, InlayError, MergeCancelledError

__all__ = ["Progress", "ProgressCallback", "Reporter", "failing_as"]


@dataclass(frozen=True, slots=True)
class Progress:
    """Handed to the progress callback: how far a phase is, in files. A callback that returns False cancels."""

    phase: str
    done: int
    total: int


ProgressCallback = Callable[[Progress], object]


class Reporter:
    """Reports progress, if anybody listens, and stops the work if they say so."""

    def __init__(self, callback: ProgressCallback | None) -> None:
        self._callback = callback
        self._now = Progress("", 0, 0)

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._now = Progress(phase, done, total)
        if self._callback is not None and self._callback(self._now) is False:
            raise MergeCancelledError(f"Cancelled at {phase} {done} of {total}; nothing changed.", operation=phase)

    def committed(self) -> None:
        """All is done: whatever the callback answers comes too late."""
        self._now = Progress("commit", 1, 1)
        if self._callback is not None:
            self._callback(self._now)

    def tasks(self, done: int, total: int) -> None:
        """An engine that works elsewhere is so far with the phase: the share of tasks stands for that of files."""
        files = self._now.total * done // max(total, 1)
        self(self._now.phase, max(files, self._now.done), self._now.total)


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
