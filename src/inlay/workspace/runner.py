"""Runs jobs on threads of this process, renews their leases, and stops canceled jobs."""

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
)

__all__ = ["JobHandle", "JobRunner", "cancelled_error"]

log = logging.getLogger("inlay.jobs")
_POLL_SECONDS = 0.05
_DATASET_POLL_SECONDS = 0.5  # another process may hold the dataset
_MAX_WAITING = 64
_REPORT_SECONDS = 0.25
_HEARTBEAT_SECONDS = 1.0
_MAX_PHASES = 50

Work = Callable[["JobHandle"], Mapping[str, Any] | None]


class JobHandle:
    """Connects the work of a job to its job: progress, cancellation and interruption."""

    def __init__(self, job: Job, report: Callable[[str, Mapping[str, Any]], bool]) -> None:
        self.job, self.id = job, job.id
        self.stopped_by: InlayError | None = None
        self.is_abandoned = False  # the catalog could not record its end
        self._report = report
        self._reported_at = 0.0
        self._phases: list[dict[str, str]] = []
        self._interrupt: Callable[[], object] | None = None

    def stop(self, reason: InlayError) -> None:
        """Stop the work at its next check, and interrupt the call that it waits for."""
        if self.stopped_by is None:
            self.stopped_by = reason
            if self._interrupt is not None:
                self._interrupt()

    @contextlib.contextmanager
    def interrupted_by(self, interrupt: Callable[[], object]) -> Iterator[None]:
        """Call `interrupt` if the job is stopped inside the block."""
        self._interrupt = interrupt
        try:
            self.check()
            yield
        finally:
            self._interrupt = None

    def progress(self, phase: str, done: int, total: int) -> None:
        """Report progress, and raise if the job is to stop."""
        self.check()
        self._add_phase(phase)
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_SECONDS or done >= total:
            self._reported_at = now
            if not self._report(self.id, {"phase": phase, "done": done, "total": total, "phases": self._phases}):
                self.stop(cancelled_error(self.id))
                self.check()

    def _add_phase(self, phase: str) -> None:
        if not self._phases or self._phases[-1]["phase"] != phase:
            at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._phases = [*self._phases, {"phase": phase, "at": at}][-_MAX_PHASES:]

    def check(self) -> None:
        if self.stopped_by is not None:
            raise self.stopped_by


class JobRunner:
    def __init__(self, catalog: Catalog, *, threads: int, lease_seconds: float) -> None:
        self._catalog = catalog
        self._pool = ThreadPoolExecutor(threads + _MAX_WAITING, "inlay-job")
        self._slots = threading.BoundedSemaphore(threads)  # for working jobs; waiting jobs hold none
        self._job_ended = threading.Condition()
        self._running: dict[str, JobHandle] = {}
        self._futures: dict[str, Future[Job]] = {}
        self._lock = threading.Lock()
        self._admission = threading.Lock()
        self._has_abandoned = False  # the catalog may list jobs of this process that no thread runs
        self._closing = threading.Event()
        self._heartbeat_seconds = min(_HEARTBEAT_SECONDS, lease_seconds / 4)
        self._heartbeat = threading.Thread(target=self._renew_leases, name="inlay-heartbeat", daemon=True)
        self._heartbeat.start()

    @contextlib.contextmanager
    def admission(self) -> Iterator[None]:
        """Create and submit a job in this block, so that it never counts as abandoned."""
        with self._admission:
            try:
                yield
            except CommitStateUnknownError:
                self._has_abandoned = True  # the job may exist under an unknown id
                raise

    def submit(self, job: Job, work: Work) -> Future[Job]:
        """Run the work of a queued job. The future returns the ended job, or raises its error."""
        handle = JobHandle(job, self._catalog.jobs.report)
        with self._lock:
            if self._closing.is_set():
                self._catalog.jobs.fail(job.id, ServiceStoppingError("The service is stopping."), retryable=True)
                raise ServiceStoppingError("The service is stopping.", hint="Try again in a moment.")
            self._running[job.id] = handle
            future = self._futures[job.id] = self._pool.submit(self._run, handle, work)
        return future

    def future(self, job_id: str) -> Future[Job] | None:
        """Return the future of a job that runs in this process, or None."""
        return self._futures.get(job_id)

    def close(self, timeout: float) -> None:
        """Let running jobs finish for `timeout` seconds, then stop the remaining jobs."""
        with self._lock:
            self._closing.set()
        deadline = time.monotonic() + timeout
        while self._running and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        with self._lock:
            for handle in self._running.values():
                handle.stop(_interrupted("The service stopped before the job ended. Nothing changed."))
        self._pool.shutdown(wait=True)  # jobs that wait for a thread fail immediately
        self._heartbeat.join()

    # ------------------------------------------------------------------------------------------------------ one job
    def _run(self, handle: JobHandle, work: Work) -> Job:
        try:
            handle.check()
            with self._slot(handle):
                result = work(handle)
                job = self._catalog.jobs.get(handle.id)
                return job if job.has_ended else self._catalog.jobs.succeed(handle.id, result)
        except BaseException as error:  # noqa: BLE001  (raised again unless the job succeeded)
            return self._failed(handle, error)
        finally:
            with self._lock:
                self._running.pop(handle.id, None)
                self._futures.pop(handle.id, None)
                self._has_abandoned |= handle.is_abandoned

    @contextlib.contextmanager
    def _slot(self, handle: JobHandle) -> Iterator[None]:
        """Hold a slot while the job works. A job that waits for its dataset holds no slot."""
        while not self._start(handle):
            handle.check()
            with self._job_ended:
                self._job_ended.wait(_DATASET_POLL_SECONDS)
        try:
            yield
        finally:
            self._slots.release()
            with self._job_ended:
                self._job_ended.notify_all()

    def _start(self, handle: JobHandle) -> bool:
        """Take a slot and start the job, unless another job must change the dataset first."""
        while not self._slots.acquire(timeout=_POLL_SECONDS):
            handle.check()
        is_started = False
        try:
            is_started = self._catalog.jobs.start(handle.id)
        finally:
            if not is_started:
                self._slots.release()
        return is_started

    def _failed(self, handle: JobHandle, error: BaseException) -> Job:
        """End a job whose work raised an error, unless the catalog says that the job has ended."""
        is_unknown = isinstance(error, CommitStateUnknownError)
        reason = _NOT_COMMITTED if is_unknown else handle.stopped_by or _as_inlay_error(handle, error)
        try:
            self._end(handle, reason)  # waits for this job's pending commit
        except JobEndedError:
            job = self._catalog.jobs.get(handle.id)
            if job.state == "succeeded":
                return job
            reason = cancelled_error(job.id) if job.state == "cancelled" else _lost(job.id)
        except Exception:  # noqa: BLE001  (the heartbeat ends the job later, whatever the error)
            handle.is_abandoned = True
            reason = error if is_unknown and isinstance(error, InlayError) else reason
        raise reason from error

    def _end(self, handle: JobHandle, error: InlayError) -> None:
        if isinstance(error, JobCancelledError):
            self._catalog.jobs.stop(handle.id)
        else:
            self._catalog.jobs.fail(handle.id, error, retryable=error.http_status >= 500)

    def stop(self, job_id: str) -> None:
        """Stop a job immediately if this process runs it."""
        handle = self._running.get(job_id)
        if handle is not None:
            handle.stop(cancelled_error(job_id))

    # ---------------------------------------------------------------------------------------------------- heartbeat
    def _renew_leases(self) -> None:
        while not (self._closing.is_set() and not self._running):
            time.sleep(self._heartbeat_seconds)
            try:
                self._renew()
                if self._has_abandoned:
                    self._end_abandoned()
            except InlayError as error:
                log.warning("cannot renew the leases of jobs: %s", error)
            except Exception:
                log.exception("cannot renew the leases of jobs")  # go on: without renewal all jobs would be lost

    def _renew(self) -> None:
        with self._lock:
            handles = dict(self._running)
        if not handles:
            return
        heartbeat = self._catalog.jobs.heartbeat()
        for job_id, handle in handles.items():
            if job_id in heartbeat.cancelling:
                handle.stop(cancelled_error(job_id))
            elif job_id not in heartbeat.held and job_id in self._running:
                self._check_lost(handle)

    def _check_lost(self, handle: JobHandle) -> None:
        job = self._catalog.jobs.get(handle.id)
        if job.has_ended and job.state != "succeeded":
            handle.stop(_lost(job.id))

    def _end_abandoned(self) -> None:
        """End jobs that the catalog lists for this process but that no thread runs.

        They exist after an outage of the catalog. Their leases never expire, because this process is alive.
        """
        with self._admission:
            held = self._catalog.jobs.heartbeat().held
            with self._lock:
                abandoned = held - self._running.keys()
                self._has_abandoned = False
        try:
            for job_id in abandoned:
                with contextlib.suppress(JobEndedError):
                    self._catalog.jobs.fail(job_id, _NOT_COMMITTED, retryable=True)
        except InlayError:
            self._has_abandoned = True
            raise


def cancelled_error(job_id: str) -> JobCancelledError:
    return JobCancelledError(f"The job {job_id!r} was canceled. Nothing changed.")


def _interrupted(message: str) -> JobInterruptedError:
    return JobInterruptedError(message, hint="Send the request again.")


def _lost(job_id: str) -> JobInterruptedError:
    return _interrupted(f"Another process ended the job {job_id!r}. Nothing changed.")


_NOT_COMMITTED = _interrupted("The catalog did not commit the change. Nothing changed.")


def _as_inlay_error(handle: JobHandle, error: BaseException) -> InlayError:
    if isinstance(error, InlayError):
        return error
    log.error("job %s failed", handle.id, exc_info=error)
    return InlayError(f"The job failed unexpectedly: {type(error).__name__}: {error}")
