"""Work that takes time: who does it, how far it is, how it ended.

A job holds its upload from the moment it is queued, and, if it writes, its dataset while it runs. What it holds is
free again when it ends, when its owner's lease runs out, or when its owner is seen to be dead.
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
from inlay.catalog.context import Context
from inlay.catalog.ids import new_id, not_found, require_id
from inlay.catalog.records import Heartbeat, Job, Page, Submission
from inlay.catalog.text import require_text
from inlay.choices import ACTIVE, JobState
from inlay.errors import (
    ConflictError,
    IdempotencyKeyReusedError,
    InlayError,
    JobEndedError,
    unknown,
)

__all__ = ["CREATE", "Jobs"]

CREATE = "create"  # the one kind whose dataset is not there yet
_LONGEST_KEY = 255
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
        """Queue a job and claim its upload, or find the job that this idempotency key made before."""
        if idempotency_key is not None:
            require_text(idempotency_key, "Idempotency-Key", longest=_LONGEST_KEY)
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
        """Whether a request came with this key before, so that `create` will find its job."""
        if idempotency_key is None:
            return False
        require_text(idempotency_key, "Idempotency-Key", longest=_LONGEST_KEY)
        same = (_jobs.c.idempotency_key == idempotency_key) & (_jobs.c.key_scope == scope)
        with self._context.read() as connection:
            return connection.execute(sa.select(_jobs.c.id).where(same)).first() is not None

    def start(self, job_id: str) -> bool:
        """Begin a queued job. False: it is another job's turn to write this dataset; try again."""
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
        """Renew the leases of all active jobs of this owner, and of no other."""
        mine = _active & (_jobs.c.owner == self._context.owner)
        with self._context.write() as connection:
            until = self._context.now() + self._context.lease
            connection.execute(_jobs.update().where(mine).values(lease_until=until))
            rows = connection.execute(sa.select(_jobs.c.id, _jobs.c.cancel_requested).where(mine)).all()
        return Heartbeat(frozenset(row.id for row in rows), frozenset(row.id for row in rows if row.cancel_requested))

    def report(self, job_id: str, progress: Mapping[str, Any]) -> bool:
        """Record progress. False: stop, since the job was cancelled or is no longer ours."""
        going_on = _mine(job_id, self._context) & ~_jobs.c.cancel_requested
        with self._context.write() as connection:
            result = connection.execute(_jobs.update().where(going_on).values(progress=dict(progress)))
        return result.rowcount == 1

    def succeed(self, job_id: str, result: Mapping[str, Any] | None = None) -> Job:
        """End a job that makes no version. (Those that do end with it, in one transaction.)"""
        with self._context.write() as connection:
            _require_held(connection, job_id, self._context, ("running",))
            return finish(connection, job_id, "succeeded", self._context, result=dict(result or {}))

    def fail(self, job_id: str, error: InlayError | Mapping[str, Any], *, retryable: bool = False) -> Job:
        """End a job without effect. A retryable failure gives its idempotency key free."""
        problem = error.to_dict() if isinstance(error, InlayError) else dict(error)
        with self._context.write() as connection:
            _require_held(connection, job_id, self._context, ACTIVE)
            forget = {"idempotency_key": None} if retryable else {}
            return finish(connection, job_id, "failed", self._context, error=problem, **forget)

    def stop(self, job_id: str) -> Job:
        """End a job of ours that was cancelled, once its work has stopped."""
        with self._context.write() as connection:
            _require_held(connection, job_id, self._context, ACTIVE)
            return finish(connection, job_id, "cancelled", self._context)

    def cancel(self, job_id: str) -> Job:
        """Ask a job to stop. One that has not begun ends at once; a running one when its owner sees it."""
        leases.release_expired(self._context)
        with self._context.write() as connection:
            return _cancel(connection, job_id, self._context)

    def get(self, job_id: str) -> Job:
        with self._context.read() as connection:
            return get(connection, job_id)

    def left_off(self, dataset_id: str, *, but: str) -> bool:
        """Whether any other job began to change this dataset and did not succeed: it may not know that it ended."""
        begun = _jobs.c.writes & _jobs.c.started_at.is_not(None) & (_jobs.c.state != "succeeded")
        others = (_jobs.c.dataset_id == dataset_id) & (_jobs.c.id != but)
        with self._context.read() as connection:
            return connection.execute(sa.select(_jobs.c.id).where(begun, others)).first() is not None

    def active(self) -> tuple[Job, ...]:
        """Those that have not ended, all at one moment."""
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
        """Newest first."""
        records.check_page(limit, offset)
        if state is not None and state not in _SO_FAR:
            raise unknown("state", state, _SO_FAR)
        wanted = {
            "state": state,
            "dataset_id": dataset_id and require_id("dataset", dataset_id),
            "kind": kind and require_text(kind, "kind"),
        }
        query = records.select(Job, _jobs).order_by(_jobs.c.created_at.desc(), _jobs.c.id)
        query = query.where(*(_jobs.c[name] == value for name, value in wanted.items() if value is not None))
        with self._context.read() as connection:
            return records.page(connection, Job, query, limit, offset)

    def release_expired(self) -> Sequence[str]:
        """End the jobs of dead owners; what they held is free. Returns their ids."""
        return leases.release_expired(self._context)

    def expire(self, *, keep_days: float = 30) -> int:
        """Forget jobs that ended long ago, and with them their idempotency keys."""
        with self._context.write() as connection:
            old = _jobs.c.finished_at < self._context.now() - timedelta(days=keep_days)
            return int(connection.execute(_jobs.delete().where(old)).rowcount)


# ------------------------------------------------------------------------------------------- within a transaction
_SO_FAR = {
    "queued": "has not begun",
    "running": "has begun already",
    "succeeded": "has succeeded already",
    "failed": "has failed already",
    "cancelled": "was cancelled",
}


def get(connection: Connection, job_id: str) -> Job:
    query = records.select(Job, _jobs).where(_jobs.c.id == require_id("job", job_id))
    job = records.first(connection, Job, query)
    if job is None:
        raise not_found("job", job_id)
    return job


def require_running(connection: Connection, job_id: str, context: Context) -> Job:
    """The job, if it runs and is ours: what it has made may become true."""
    return _require_held(connection, job_id, context, ("running",))


def finish(connection: Connection, job_id: str, state: JobState, context: Context, **values: Any) -> Job:
    ended = {"state": state, "finished_at": context.now(), **values}
    connection.execute(_jobs.update().where(_jobs.c.id == job_id).values(ended))
    return get(connection, job_id)


def cancel_all(connection: Connection, dataset_id: str, context: Context) -> None:
    """Ask every active job of a dataset to stop; those that have not begun end at once."""
    for job_id in connection.execute(sa.select(_jobs.c.id).where(_active, _jobs.c.dataset_id == dataset_id)).scalars():
        _cancel(connection, job_id, context)


def _cancel(connection: Connection, job_id: str, context: Context) -> Job:
    job = _require_state(get(connection, job_id), ACTIVE)
    connection.execute(_jobs.update().where(_jobs.c.id == job_id).values(cancel_requested=True))
    return finish(connection, job_id, "cancelled", context) if job.state == "queued" else get(connection, job_id)


def active_datasets(connection: Connection) -> set[str]:
    """The datasets that active jobs name, among them those that are yet to be."""
    return {found for found in connection.execute(sa.select(_jobs.c.dataset_id).where(_active)).scalars() if found}


def _mine(job_id: str, context: Context) -> sa.ColumnElement[bool]:
    return _active & (_jobs.c.id == job_id) & (_jobs.c.owner == context.owner)


def _require_held(connection: Connection, job_id: str, context: Context, states: tuple[str, ...]) -> Job:
    job = _require_state(get(connection, job_id), states)
    if job.owner != context.owner:
        raise ConflictError(f"The job {job_id!r} belongs to another process, {job.owner}.")
    return job


def _require_state(job: Job, states: tuple[str, ...]) -> Job:
    if job.state not in states:
        raise JobEndedError(f"The job {job.id!r} {_SO_FAR[job.state]}.")
    return job


def _must_wait(connection: Connection, job: Job) -> bool:
    """One job at a time changes a dataset, in the order in which they were asked for."""
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
            f"The Idempotency-Key {key!r} was used for another request.", hint="Use a new key for a new request."
        )
    return get(connection, row.id)


def _digest(kind: str, request: Mapping[str, Any], dataset_id: str | None, upload_id: str | None) -> str:
    # a new dataset's id is chosen anew by every request
    target = None if kind == CREATE else dataset_id
    text = json.dumps([kind, request, target, upload_id], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
