"""Failures of the storage: errors that name them, and the reserve of free disk space."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator

from inlay.errors import (
    CommitStateUnknownError,
    ConversionFailedError,
    DatasetMergeError,
    InlayError,
    QueryFailedError,
    QueryTimeoutError,
    StorageFullError,
    StorageUnavailableError,
    UnreadableSourceError,
    UnreadableUploadError,
)
from inlay.query.disk import FULL, is_low
from inlay.workspace.health import Check
from inlay.workspace.storage import ServiceStorage

__all__ = ["DiskReserve", "find_fault", "storage_faults"]

_PROBE_SECONDS = 5.0
_WATCH_SECONDS = 0.1  # in which a job can write much less than the default reserve
_NOT_FAULTS = (None, errno.ENOENT, errno.EEXIST)  # pyarrow raises an OSError without a number for a damaged file
_FULL_TEXT = re.compile(r"No space left on device|Disk quota exceeded|os error (28|122)\b")
_FAULT_TEXT = re.compile(r"\[Errno \d+\] (?!No such file)|Object Store error|Generic S3 error")
# Errors that a failure of the storage can cause. Errors of Spark tasks and query workers arrive without their cause.
_SUSPECTS = (
    ConversionFailedError,
    DatasetMergeError,
    QueryFailedError,
    QueryTimeoutError,
    UnreadableSourceError,
    UnreadableUploadError,
)
_TRY_AGAIN = "Try again later."


def _storage_error(reason: BaseException | str, *, is_full: bool) -> InlayError:
    """Return the error of an operation that the storage made fail."""
    if is_full:
        return StorageFullError("The disk is full. Nothing changed.", hint="Free disk space, then try again.")
    if isinstance(reason, OSError):
        reason = reason.strerror or str(reason)
    return StorageUnavailableError(f"The storage failed: {reason}", hint=_TRY_AGAIN)


@contextlib.contextmanager
def storage_faults(storage: ServiceStorage) -> Iterator[None]:
    """Raise errors that the storage causes inside the block as errors of the storage."""
    try:
        yield
    except Exception as error:
        fault = find_fault(error, storage)
        if fault is None:
            raise
        raise fault from error


def find_fault(error: Exception, storage: ServiceStorage) -> InlayError | None:
    """Return the error of the storage that caused an error, or None."""
    is_suspect = isinstance(error, _SUSPECTS) and not isinstance(error, CommitStateUnknownError)
    if isinstance(error, InlayError) and not is_suspect:
        return None
    for cause in _causes(error):
        if isinstance(cause, OSError) and not isinstance(cause, InlayError) and cause.errno not in _NOT_FAULTS:
            return _storage_error(cause, is_full=cause.errno in FULL)
    if not is_suspect and not isinstance(error, OSError):
        return None
    text = str(error)
    if _FULL_TEXT.search(text):
        return _storage_error(text, is_full=True)
    if found := _FAULT_TEXT.search(text):
        return _storage_error(f"{found[0].strip()} (in a worker process)", is_full=False)
    return _probe(storage)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _probe(storage: ServiceStorage) -> StorageUnavailableError | None:
    """Return why the storage cannot be read, or None."""
    try:
        Check(storage.require_readable).start().result(_PROBE_SECONDS)
    except TimeoutError:
        return StorageUnavailableError(
            f"The storage did not answer within {_PROBE_SECONDS:g} seconds.", hint=_TRY_AGAIN
        )
    except StorageUnavailableError as error:
        return error
    return None


class DiskReserve:
    """The free space below which the service refuses writes, so that reads go on."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]], reserve: int) -> None:
        self._paths, self._reserve = list(paths), reserve

    @contextlib.contextmanager
    def watch(self, stop: Callable[[InlayError], object]) -> Iterator[None]:
        """Call `stop` if a disk has less free space than the reserve while the block runs."""
        has_ended = threading.Event()

        def check() -> None:
            while not has_ended.wait(_WATCH_SECONDS):
                try:
                    self.require()
                except StorageFullError as error:
                    stop(error)
                    return
                except OSError:  # the job itself reports a disk that fails
                    continue

        threading.Thread(target=check, name="inlay-disk", daemon=True).start()
        try:
            yield
        finally:
            has_ended.set()

    def require(self) -> None:
        """Raise if a disk of the service has less free space than the reserve."""
        if any(is_low(path, self._reserve) for path in self._paths):
            raise StorageFullError(
                f"A disk of the service has less than {self._reserve:,} free bytes, so it accepts no new data.",
                hint="Delete datasets or pending uploads, or free disk space. INLAY_DISK_RESERVE_BYTES sets the limit.",
            )
