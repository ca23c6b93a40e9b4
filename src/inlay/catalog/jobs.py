"""Jobs: their owner, progress and result.

A job claims its upload from the moment it is queued, and its dataset while it runs, if it writes. Both are free again
when the job ends, when its owner's lease expires, or when its owner is dead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from inlay.catalog import leases, records, tables, uploads
from inlay.catalog.database import Context, require_text
from inlay.catalog.names import new_id, not_found, require_id
from inlay.catalog.records import Heartbeat, Job, Page, Submission
from inlay.constants import ACTIVE, JobState
from inlay.errors import (
    ConflictError,
    IdempotencyKeyReusedError,
    InlayError,
    JobEndedError,
    unknown,
)

__all__ = ["CREATE", "Jobs"]

CREATE = "create"  # the only kind whose dataset does not exist yet
_MAX_KEY_LENGTH = 255
_jobs = tables.jobs
_active = _jobs.c.state.in_(ACTIVE)


class Jobs:
    def __init__(self, context: Context) -> None:
        self._context = context

    def create(
        self,
        kind: str,
        request: Mapping[str, Any],
        *,
        dataset_id: str | None = None,
        upload_id: str | None = None,
        writes: bool = True,
        idempotency_key: str | None = None,
        scope: str = "",
    ) -> Submission:
        """Queue a job and claim its upload, or return the earlier job of this idempotency key."""
        if idempotency_key is not None:
            require_text(idempotency_key, "Idempotency-Key", max_length=_MAX_KEY_LENGTH)
        digest = _digest(kind, request, dataset_id, upload_id)
        leases.release_expired(self._context)
        with self._context.write() as connection:
            earlier = idempotency_key and _by_key(connection, idempotency_key, scope, digest)
            if earlier:
                return Submission(earlier, is_new=False)
            _require_targets(connection, kind, dataset_id, upload_id)
            now = self._context.now()
            job_id = new_id("job")
            connection.execute(
                _jobs.insert().values(
                    id=job_id,
                    kind=kind,
                    state="queued",
                    dataset_id=dataset_id,
                    upload_id=upload_id,
                    writes=writes,
                    request=dict(request),
                    request_hash=digest,
                    key_scope=scope,
                    idempotency_key=idempotency_key,
                    owner=self._context.owner,
                    lease_until=now + self._context.lease,
                    cancel_requested=False,
                    created_at=now,
                )
            )
            return Submission(get(connection, job_id), is_new=True)

    def knows_key(self, idempotency_key: str | None, scope: str = "") -> bool:
        """Return whether `create` would return an earlier job for this idempotency key."""
        if idempotency_key is None:
            return False
        require_text(idempotency_key, "Idempotency-Key", max_length=_MAX_KEY_LENGTH)
        same = (_jobs.c.idempotency_key == idempotency_key) & (_jobs.c.key_scope == scope)
        with self._context.read() as connection:
            return connection.execute(sa.select(_jobs.c.id).where(same)).first() is not None

    def start(self, job_id: str) -> bool:
        """Start a queued job. Returns False while another job must change the dataset first."""
        leases.release_expired(self._context)
        with self._context.write() as connection:
            job = _require_held(connection, job_id, self._context, ("queued",))
            if job.writes and job.dataset_id and _must_wait(connection, job):
                return False
            now = self._context.now()
            values = {"state": "running", "started_at": now, "lease_until": now + self._context.lease}
            connection.execute(_jobs.update().where(_jobs.c.id == job_id).values(values))
            return True

    def heartbeat(self) -> Heartbeat:
        """Renew the leases of all active jobs of this owner."""
        mine = _active & (_jobs.c.owner == self._context.owner)
        with self._context.write() as connection:
            until = self._context.now() + self._context.lease
            connection.execute(_jobs.update().where(mine).values(lease_until=until))
            rows = connection.execute(sa.select(_jobs.c.id, _jobs.c.cancel_requested).where(mine)).all()
        return Heartbeat(frozenset(row.id for row in rows), frozenset(row.id for row in rows if row.cancel_requested))

    def report(self, job_id: str, progress: Mapping[str, Any]) -> bool:
        """Record progress. Returns False if the job is canceled or lost, and must stop."""
        is_running = _mine(job_id, self._context) & ~_jobs.c.cancel_requested
        with self._context.write() as connection:
            result = connection.execute(_jobs.update().where(is_running).values(progress=dict(progress)))
        return result.rowcount == 1

    def succeed(self, job_id: str, result: Mapping[str, Any] | None = None) -> Job:
        """End a job that commits no version. A commit ends its job in the same transaction."""
        with self._context.write() as connection:
            _require_held(connection, job_id, self._context, ("running",))
            return finish(connection, job_id, "succeeded", self._context, result=dict(result or {}))

    def fail(self, job_id: str, error: InlayError | Mapping[str, Any], *, retryable: bool = False) -> Job:
        """Fail a job. A retryable failure releases its idempotency key."""
        problem = error.to_dict() if isinstance(error, InlayError) else dict(error)
        with self._context.write() as connection:
            _require_held(connection, job_id, self._context, ACTIVE)
            released = {"idempotency_key": None} if retryable else {}
            return finish(connection, job_id, "failed", self._context, error=problem, **released)

    def stop(self, job_id: str) -> Job:
        """End a canceled job of this owner, after its work has stopped."""
        with self._context.write() as connection:
            _require_held(connection, job_id, self._context, ACTIVE)
            return finish(connection, job_id, "cancelled", self._context)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job. A queued job ends immediately, a running job when its owner notices."""
        leases.release_expired(self._context)
        with self._context.write() as connection:
            return _cancel(connection, job_id, self._context)

    def get(self, job_id: str) -> Job:
        with self._context.read() as connection:
            return get(connection, job_id)

    def has_failed_writes(self, dataset_id: str, *, excluded: str) -> bool:
        """Return whether another job that did not succeed may still write to the dataset."""
        started = _jobs.c.writes & _jobs.c.started_at.is_not(None) & (_jobs.c.state != "succeeded")
        others = (_jobs.c.dataset_id == dataset_id) & (_jobs.c.id != excluded)
        with self._context.read() as connection:
            return connection.execute(sa.select(_jobs.c.id).where(started, others)).first() is not None

    def active(self) -> tuple[Job, ...]:
        """Return all queued and running jobs, from one snapshot."""
        query = records.select(Job, _jobs).where(_active)
        with self._context.read() as connection:
            return records.every(connection, Job, query)

    def list(
        self,
        *,
        state: JobState | None = None,
        dataset_id: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Page[Job]:
        """List jobs, newest first."""
        records.check_page(limit, offset)
        if state is not None and state not in _STATE_TEXTS:
            raise unknown("state", state, _STATE_TEXTS)
        filters = {
            "state": state,
            "dataset_id": dataset_id and require_id("dataset", dataset_id),
            "kind": kind and require_text(kind, "kind"),
        }
        query = records.select(Job, _jobs).order_by(_jobs.c.created_at.desc(), _jobs.c.id)
        query = query.where(*(_jobs.c[name] == value for name, value in filters.items() if value is not None))
        with self._context.read() as connection:
            return records.page(connection, Job, query, limit, offset)

    def release_expired(self) -> Sequence[str]:
        """Fail the jobs of dead owners. Returns the ids of the jobs."""
        return leases.release_expired(self._context)

    def expire(self, *, keep_days: float = 30) -> int:
        """Delete jobs that ended more than `keep_days` ago, with their idempotency keys."""
        with self._context.write() as connection:
            old = _jobs.c.finished_at < self._context.now() - timedelta(days=keep_days)
            return int(connection.execute(_jobs.delete().where(old)).rowcount)


# ------------------------------------------------------------------------------------------- within a transaction
_STATE_TEXTS = {
    "queued": "has not started yet",
    "running": "has already started",
    "succeeded": "has already succeeded",
    "failed": "has already failed",
    "cancelled": "is already canceled",
}


def get(connection: Connection, job_id: str) -> Job:
    query = records.select(Job, _jobs).where(_jobs.c.id == require_id("job", job_id))
    job = records.first(connection, Job, query)
    if job is None:
        raise not_found("job", job_id)
    return job


def require_running(connection: Connection, job_id: str, context: Context) -> Job:
    """Return the job if it runs and belongs to this owner, so that it may commit."""
    return _require_held(connection, job_id, context, ("running",))


def finish(connection: Connection, job_id: str, state: JobState, context: Context, **values: Any) -> Job:
    ended = {"state": state, "finished_at": context.now(), **values}
    connection.execute(_jobs.update().where(_jobs.c.id == job_id).values(ended))
    return get(connection, job_id)


def cancel_all(connection: Connection, dataset_id: str, context: Context) -> None:
    """Cancel every active job of a dataset."""
    for job_id in connection.execute(sa.select(_jobs.c.id).where(_active, _jobs.c.dataset_id == dataset_id)).scalars():
        _cancel(connection, job_id, context)


def _cancel(connection: Connection, job_id: str, context: Context) -> Job:
    job = _require_state(get(connection, job_id), ACTIVE)
    connection.execute(_jobs.update().where(_jobs.c.id == job_id).values(cancel_requested=True))
    return finish(connection, job_id, "cancelled", context) if job.state == "queued" else get(connection, job_id)


def active_datasets(connection: Connection) -> set[str]:
    """Return the datasets of active jobs, including datasets that are not created yet."""
    return {found for found in connection.execute(sa.select(_jobs.c.dataset_id).where(_active)).scalars() if found}


def _mine(job_id: str, context: Context) -> sa.ColumnElement[bool]:
    return _active & (_jobs.c.id == job_id) & (_jobs.c.owner == context.owner)


def _require_held(connection: Connection, job_id: str, context: Context, states: tuple[str, ...]) -> Job:
    job = _require_state(get(connection, job_id), states)
    if job.owner != context.owner:
        raise ConflictError(f"The job {job_id!r} belongs to another process: {job.owner}.")
    return job


def _require_state(job: Job, states: tuple[str, ...]) -> Job:
    if job.state not in states:
        raise JobEndedError(f"The job {job.id!r} {_STATE_TEXTS[job.state]}.")
    return job


def _must_wait(connection: Connection, job: Job) -> bool:
    """Return whether another job writes to this dataset, or was queued for it earlier."""
    running = _jobs.c.state == "running"
    earlier = (_jobs.c.state == "queued") & (_jobs.c.created_at < job.created_at)
    others = (_jobs.c.dataset_id == job.dataset_id) & _jobs.c.writes & (_jobs.c.id != job.id)
    return connection.execute(sa.select(_jobs.c.id).where(others, running | earlier)).first() is not None


def _require_targets(connection: Connection, kind: str, dataset_id: str | None, upload_id: str | None) -> None:
    if dataset_id is not None:
        require_id("dataset", dataset_id)
        if kind != CREATE and not records.known(connection, tables.datasets.c.id, [dataset_id]):
            raise not_found("dataset", dataset_id)
    if upload_id is not None:
        uploads.require_pending(connection, upload_id)
        uploads.require_unclaimed(connection, upload_id)


def _by_key(connection: Connection, key: str, scope: str, digest: str) -> Job | None:
    same = (_jobs.c.idempotency_key == key) & (_jobs.c.key_scope == scope)
    row = connection.execute(sa.select(_jobs.c.id, _jobs.c.request_hash).where(same)).first()
    if row is None:
        return None
    if row.request_hash != digest:
        raise IdempotencyKeyReusedError(
            f"The Idempotency-Key {key!r} was already used for a different request.",
            hint="Use a new key for each new request.",
        )
    return get(connection, row.id)


def _digest(kind: str, request: Mapping[str, Any], dataset_id: str | None, upload_id: str | None) -> str:
    # Each create request chooses a new dataset id, which must not make repeated requests differ.
    target = None if kind == CREATE else dataset_id
    text = json.dumps([kind, request, target, upload_id], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
