"""How far an operation on a dataset is, and whether it is to go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inlay.errors import MergeCancelledError

__all__ = ["Progress", "ProgressCallback", "Reporter"]


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
