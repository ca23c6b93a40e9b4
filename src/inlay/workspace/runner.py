"""Runs jobs on threads of this process, keeps their leases alive, and stops those that somebody cancels."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from inlay.catalog import Catalog, Job
from inlay.errors import (
    CommitStateUnknownError,
    InlayError,
    JobCancelledError,
    JobEndedError,
    JobInterruptedError,
    ServiceStoppingError,
    StorageUnavailableError,
)

__all__ = ["JobHandle", "JobRunner", "cancelled"]

log = logging.getLogger("inlay.jobs")
_TURN_SECONDS = 0.05
_OTHERS_SECONDS = 0.5
_MOST_WAITING = 64
_REPORT_SECONDS = 0.25
_BEAT_SECONDS = 1.0
_MOST_PHASES = 50

Work = Callable[["JobHandle"], Mapping[str, Any] | None]


class JobHandle:
    """What a job's work knows of its job."""

    def __init__(self, job: Job, report: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self.job, self.id = job, job.id
        self.stopped_by: InlayError | None = None
        self.is_unended = False  # in the catalog, which could not be told
        self._report = report
        self._reported = 0.0
        self._phases: list[dict[str, str]] = []
        self._interrupt: Callable[[], object] | None = None

    def stop(self, reason: InlayError) -> None:
        """Make the work end, also where it waits for something else."""
        if self.stopped_by is None:
            self.stopped_by = reason
            if self._interrupt is not None:
                self._interrupt()

    @contextlib.contextmanager
    def interrupted_by(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """While the block runs, stopping the job calls this."""
        self._interrupt = interrupt
        try:
            self.check()
            yield
        finally:
            self._interrupt = None

    def progress(self, phase: str, done: int, total: int) -> None:
        """Say how far the job is; raises if it is to stop."""
        self.check()
        self._note(phase)
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS or done >= total:
            self._reported = now
            if not self._report(self.id, {"phase": phase, "done": done, "total": total, "phases": self._phases}):
                self.stop(cancelled(self.id))
                self.check()

    def _note(self, phase: str) -> None:
        """What was done when; it is kept with the progress, and costs nothing of its own."""
        if not self._phases or self._phases[-1]["phase"] != phase:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._phases = [*self._phases, {"phase": phase, "at": at}][-_MOST_PHASES:]

    def check(self) -> None:
        if self.stopped_by is not None:
            raise self.stopped_by


class JobRunner:
    def __init__(self, catalog: Catalog, *, threads: int, lease_seconds: float) -> None:
        self._catalog = catalog
        self._pool = ThreadPoolExecutor(threads + _MOST_WAITING, "inlay-job")
        self._places = threading.BoundedSemaphore(threads)  # of those that work, not of those that wait
        self._ended = threading.Condition()  # a job of ours
        self._running: dict[str, JobHandle] = {}
        self._futures: dict[str, Future[Job]] = {}
        self._lock = threading.Lock()
        self._admission = threading.Lock()
        self._has_strays = False  # the catalog may hold jobs of ours that nobody works on
        self._closing = threading.Event()
        self._beat_seconds = min(_BEAT_SECONDS, lease_seconds / 4)
        self._heart = threading.Thread(target=self._beat, name="inlay-heartbeat", daemon=True)
        self._heart.start()

    @contextlib.contextmanager
    def admission(self) -> Iterator[None]:
        """For making a job and submitting it: meanwhile no job that does not run here is taken for a stray."""
        with self._admission:
            try:
                yield
            except CommitStateUnknownError:
                self._has_strays = True  # it may have been made, and nobody knows its id
                raise

    def submit(self, job: Job, work: Work) -> Future[Job]:
        """Run the work of a queued job of ours. The future holds the ended job, or raises why it failed."""
        handle = JobHandle(job, self._catalog.jobs.report)
        with self._lock:
            if self._closing.is_set():
                self._catalog.jobs.fail(job.id, ServiceStoppingError("The service is stopping."), retryable=True)
                raise ServiceStoppingError("The service is stopping.", hint="Try again in a moment.")
            self._running[job.id] = handle
            future = self._futures[job.id] = self._pool.submit(self._run, handle, work)
        return future

    def future(self, job_id: str) -> Future[Job] | None:
        """The outcome of a job that runs here, for others who asked for the same."""
        return self._futures.get(job_id)

    def close(self, patience: float) -> None:
        """Let running jobs finish for a while, stop the others, and release what they hold."""
        with self._lock:
            self._closing.set()
        deadline = time.monotonic() + patience
        while self._running and time.monotonic() < deadline:
            time.sleep(_TURN_SECONDS)
        with self._lock:
            for handle in self._running.values():
                handle.stop(_interrupted("The service was stopped; nothing changed."))
        self._pool.shutdown(wait=True)  # also those that wait for a thread: they end at once, and in the catalog
        self._heart.join()

    # ------------------------------------------------------------------------------------------------------ one job
    def _run(self, handle: JobHandle, work: Work) -> Job:
        try:
            handle.check()
            with self._turn(handle):
                result = work(handle)
                job = self._catalog.jobs.get(handle.id)
                return job if job.has_ended else self._catalog.jobs.succeed(handle.id, result)
        except BaseException as error:  # noqa: BLE001  (raised again, or its opposite is true)
            return self._failed(handle, error)
        finally:
            with self._lock:
                self._running.pop(handle.id, None)
                self._futures.pop(handle.id, None)
                self._has_strays |= handle.is_unended

    @contextlib.contextmanager
    def _turn(self, handle: JobHandle) -> Iterator[None]:
        """One job at a time changes a dataset, and so many work at once; who waits for a dataset takes no place."""
        while not self._begin(handle):
            handle.check()
            with self._ended:
                self._ended.wait(_OTHERS_SECONDS)  # the dataset may also be another process's
        try:
            yield
        finally:
            self._places.release()
            with self._ended:
                self._ended.notify_all()

    def _begin(self, handle: JobHandle) -> bool:
        """Take a place and begin, unless it is another job's turn."""
        while not self._places.acquire(timeout=_TURN_SECONDS):
            handle.check()
        has_begun = False
        try:
            has_begun = self._catalog.jobs.start(handle.id)
        finally:
            if not has_begun:
                self._places.release()
        return has_begun

    def _failed(self, handle: JobHandle, error: BaseException) -> Job:
        """End a job whose work broke off. One that has ended already says itself what became of it."""
        is_in_doubt = isinstance(error, CommitStateUnknownError)
        known = _NOT_TAKEN if is_in_doubt else handle.stopped_by or _known(handle, error)
        try:
            self._end(handle, known)  # waits for a commit of ours that is still under way
        except JobEndedError:
            job = self._catalog.jobs.get(handle.id)
            if job.state == "succeeded":
                return job
            known = cancelled(job.id) if job.state == "cancelled" else _lost(job.id)
        except Exception:  # noqa: BLE001  (whatever kept the catalog from hearing of it, it must be told later)
            handle.is_unended = True
            known = error if is_in_doubt and isinstance(error, InlayError) else known
        raise known from error

    def _end(self, handle: JobHandle, error: InlayError) -> None:
        if isinstance(error, JobCancelledError):
            self._catalog.jobs.stop(handle.id)
        else:
            self._catalog.jobs.fail(handle.id, error, retryable=error.http_status >= 500)

    def stop(self, job_id: str) -> None:
        """Stop a job that runs here, at once."""
        handle = self._running.get(job_id)
        if handle is not None:
            handle.stop(cancelled(job_id))

    # ---------------------------------------------------------------------------------------------------- the heart
    def _beat(self) -> None:
        while not (self._closing.is_set() and not self._running):
            time.sleep(self._beat_seconds)
            try:
                self._renew()
                if self._has_strays:
                    self._end_strays()
            except InlayError as error:
                log.warning("cannot renew the leases of jobs: %s", error)
            except Exception:
                log.exception("cannot renew the leases of jobs")  # without a heart everything here would be lost

    def _renew(self) -> None:
        with self._lock:
            handles = dict(self._running)
        if not handles:
            return
        pulse = self._catalog.jobs.heartbeat()
        for job_id, handle in handles.items():
            if job_id in pulse.cancelling:
                handle.stop(cancelled(job_id))
            elif job_id not in pulse.held and job_id in self._running:
                self._check_lost(handle)

    def _check_lost(self, handle: JobHandle) -> None:
        job = self._catalog.jobs.get(handle.id)
        if job.has_ended and job.state != "succeeded":
            handle.stop(_lost(job.id))

    def _end_strays(self) -> None:
        """End jobs of ours that nobody works on, since the catalog was away when they began or ended.

        No lease ends them: they are ours, and we are alive.
        """
        with self._admission:
            held = self._catalog.jobs.heartbeat().held
            with self._lock:
                strays = held - self._running.keys()
                self._has_strays = False
        try:
            for job_id in strays:
                with contextlib.suppress(JobEndedError):
                    self._catalog.jobs.fail(job_id, _NOT_TAKEN, retryable=True)
        except InlayError:
            self._has_strays = True
            raise


def cancelled(job_id: str) -> JobCancelledError:
    return JobCancelledError(f"The job {job_id!r} was cancelled; nothing changed.")


def _interrupted(message: str) -> JobInterruptedError:
    return JobInterruptedError(message, hint="Try again.")


def _lost(job_id: str) -> JobInterruptedError:
    return _interrupted(f"The job {job_id!r} was ended by somebody else; nothing changed.")


_NOT_TAKEN = _interrupted("The catalog did not take the change; nothing changed.")


def _known(handle: JobHandle, error: BaseException) -> InlayError:
    if isinstance(error, InlayError):
        return error
    log.error("job %s failed", handle.id, exc_info=error)
    if isinstance(error, OSError):  # a full disk, a store that does not answer
        return StorageUnavailableError(f"The storage failed: {error.strerror or error}", hint="Try again later.")
    return InlayError(f"The job failed unexpectedly: {type(error).__name__}: {error}")
